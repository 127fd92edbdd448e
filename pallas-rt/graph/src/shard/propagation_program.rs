//! A graph in the form of StableHLO, in which shardings propagate.
//!
//! Bodies of loops and branches are regions that read values from outside directly, and a scan is a `while` that reads
//! and writes windows of its arrays. The order of nodes and of uses is that of the text which [`Graph::to_stablehlo`]
//! prints, because propagation takes different decisions for a different order.
use crate::call::Call;
use crate::graph::{Graph, Op, Var};
use crate::identity::IdentityUpdate;
use crate::mesh::{PropagationDirection, Sharding};
use pallas_ir::structural::Reshape;
use pallas_ir::{DType, Literal, Loc, StructuralOp, Type};
use std::collections::HashMap;

/// A value of a [`RegionGraph`]: a parameter, a node's result or a region's parameter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Val(pub u32);

impl Val {
    /// Returns the value's index in the program's tables, such as [`RegionGraph::types`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node's index in [`RegionGraph::nodes`].
pub type NodeId = usize;

/// Region that contains a node: the node that has the region, and the region's number there; `None` for the program's
/// own body.
pub type ParentRegion = Option<(NodeId, usize)>;

/// The definition of a value: the place in the program that introduces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDefinition {
    /// The program's parameter with this number.
    Param(usize),
    /// The node's result with this number.
    Result(NodeId, usize),
    /// A parameter of a region: the node, the number of the region, the number of the parameter.
    Argument(NodeId, usize, usize),
}

/// The kind of a node: the operation that it does.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeKind {
    /// The operation of an equation.
    Op(Op),
    /// An array of zeros, without an equation of the graph.
    Constant,
    /// A loop, whose regions are the condition and the body; their parameters are the carried values. The field is an
    /// index into [`RegionGraph::calls`].
    Loop(usize),
    /// A branch, which runs one of its regions. The field is an index into [`RegionGraph::calls`].
    Branches(usize),
    /// Identity that annotates the operand with this sharding.
    Constraint(Sharding),
    /// Puts the operand into the sharding group with this number, whose members have equal shardings. There is no
    /// result.
    ShardingGroup(u32),
    /// Identity through which shardings propagate only in the directions of the [`PropagationDirection`].
    PropagationBarrier(PropagationDirection),
    /// Identity that optimizations must not see through; no sharding propagates through it.
    OptimizationBarrier,
    /// Identity around a result of a loop, branch or barrier, which shares one sharding with all values that this
    /// result may come from.
    DataFlowEdge,
}

/// One operation of a [`RegionGraph`].
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation that the node does.
    pub kind: NodeKind,
    /// The operands, in order.
    pub operands: Vec<Val>,
    /// The results, in order.
    pub results: Vec<Val>,
    /// The regions of a loop or branch; none for other nodes.
    pub regions: Vec<Region>,
    /// The user's source line that traced the operation.
    pub loc: Loc,
    /// The region that contains the node.
    pub parent: ParentRegion,
    /// The number of the equation that the node was made for, in the order of the printed text.
    pub label: usize,
}

/// A list of nodes with parameters and results: the program's body, or that of a loop or a branch.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The region's parameters, in order.
    pub params: Vec<Val>,
    /// The region's nodes, each after those whose results it reads.
    pub nodes: Vec<NodeId>,
    /// The values that the region returns.
    pub results: Vec<Val>,
}

/// The call that a loop node or a branch node stands for. A scan becomes a `while` whose carried values are the step's
/// number, the scan's carried values and its stacked outputs.
#[derive(Clone, Debug)]
pub struct RegionCall {
    /// The call, whose bodies are the node's regions.
    pub call: Call,
    /// In the body of a scan, the values that hold this step's element of each scanned array.
    pub elements: Vec<Val>,
    /// Nodes of the body that have no equation in the scan, such as those that slice the arrays and count the steps.
    pub implied: Vec<NodeId>,
}

impl RegionCall {
    /// Creates the entry for a call whose bodies become regions as they are, without additional nodes such as those
    /// that slice the arrays of a scan.
    pub(crate) fn new(call: impl Into<Call>) -> RegionCall {
        RegionCall { call: call.into(), elements: vec![], implied: vec![] }
    }
}

/// A graph in the form of StableHLO, as nodes in nested regions.
#[derive(Clone, Debug, Default)]
pub struct RegionGraph {
    /// By value, its type.
    pub types: Vec<Type>,
    /// By value, the place that defines it.
    pub definitions: Vec<ValueDefinition>,
    /// All nodes, by [`NodeId`]; the regions say which of them are in use.
    pub nodes: Vec<Node>,
    /// Parameters, top-level nodes and results of the program.
    pub body: Region,
    /// The calls that loop nodes and branch nodes stand for, by the number in their [`NodeKind`].
    pub calls: Vec<RegionCall>,
    /// By variable of the graph, the value that stands for it.
    pub vars: Vec<Option<Val>>,
}

impl RegionGraph {
    /// Converts a graph that calls no functions, because they have been inlined.
    pub fn from_graph(graph: &Graph) -> RegionGraph {
        RegionGraph::from_graph_with_known_results(graph, &HashMap::new())
    }

    /// Converts a graph like [`from_graph`](RegionGraph::from_graph). `known_results` has shardings of the results of
    /// calls of `shard_map` with automatic axes, by the call's [`label`](Node::label).
    pub fn from_graph_with_known_results(graph: &Graph, known_results: &HashMap<usize, Vec<Sharding>>) -> RegionGraph {
        let open = vec![(None, vec![])];
        let mut build = RegionGraphBuilder {
            program: RegionGraph::default(),
            open,
            label: 0,
            labels: 0,
            first: 0,
            groups: 0,
            known: known_results,
        };
        let params: Vec<Val> = (graph.params.iter().enumerate())
            .map(|(i, &p)| build.program.add_value(graph.ty(p).clone(), ValueDefinition::Param(i)))
            .collect();
        let (results, vars) = build.add_graph(graph, &params);
        let RegionGraphBuilder { mut program, mut open, .. } = build;
        let (_, nodes) = open.pop().expect("the program's own list");
        program.body = Region { params, nodes, results };
        program.vars = vars;
        program
    }

    /// Adds a value of this type; returns it.
    pub(super) fn add_value(&mut self, ty: Type, definition: ValueDefinition) -> Val {
        self.types.push(ty);
        self.definitions.push(definition);
        Val(self.types.len() as u32 - 1)
    }

    /// Adds a node that no region contains yet, with new values of the types `result_types` as its results.
    pub(super) fn create_node(
        &mut self,
        kind: NodeKind,
        operands: Vec<Val>,
        result_types: Vec<Type>,
        loc: Loc,
    ) -> NodeId {
        let id = self.nodes.len();
        let results = result_types.into_iter().enumerate();
        let results = results.map(|(i, ty)| self.add_value(ty, ValueDefinition::Result(id, i))).collect();
        self.nodes.push(Node { kind, operands, results, regions: vec![], loc, parent: None, label: 0 });
        id
    }

    /// Returns the type of a value.
    pub fn ty(&self, v: Val) -> &Type {
        &self.types[v.index()]
    }

    /// Number of dimensions of a value.
    pub(super) fn rank(&self, v: Val) -> usize {
        self.ty(v).shape.len()
    }

    /// Returns the node that has a value as a result; `None` for a parameter of the program or of a region.
    pub(crate) fn defining_node(&self, v: Val) -> Option<NodeId> {
        match self.definitions[v.index()] {
            ValueDefinition::Result(node, _) => Some(node),
            ValueDefinition::Param(_) | ValueDefinition::Argument(..) => None,
        }
    }

    /// Returns the index in [`RegionGraph::calls`] of a loop or a branch; `None` for other nodes.
    pub(crate) fn call_index(&self, node: NodeId) -> Option<usize> {
        if let NodeKind::Loop(number) | NodeKind::Branches(number) = self.nodes[node].kind {
            Some(number)
        } else {
            None
        }
    }

    /// Returns the region that contains a node with this `parent`.
    pub(super) fn region(&self, parent: ParentRegion) -> &Region {
        parent.map_or(&self.body, |(node, region)| &self.nodes[node].regions[region])
    }

    /// Returns the region that contains a node with this `parent`, to change it.
    pub(super) fn region_mut(&mut self, parent: ParentRegion) -> &mut Region {
        match parent {
            Some((node, region)) => &mut self.nodes[node].regions[region],
            None => &mut self.body,
        }
    }

    /// Inserts `node` into the region of `beside`, right before it, or right after it if `is_after`.
    pub(super) fn insert_beside(&mut self, node: NodeId, beside: NodeId, is_after: bool) {
        let parent = self.nodes[beside].parent;
        self.nodes[node].parent = parent;
        let list = &mut self.region_mut(parent).nodes;
        let at = list.iter().position(|&other| other == beside).expect("a node is in its parent's list");
        list.insert(at + usize::from(is_after), node);
    }

    /// Inserts a node at the beginning of a region.
    pub(super) fn insert_at_region_start(&mut self, node: NodeId, parent: ParentRegion) {
        self.nodes[node].parent = parent;
        self.region_mut(parent).nodes.insert(0, node);
    }

    /// Returns all nodes of the program's regions, each before the nodes of its own regions.
    pub fn preorder(&self) -> Vec<NodeId> {
        fn add_region_nodes(program: &RegionGraph, region: &Region, all: &mut Vec<NodeId>) {
            for &node in &region.nodes {
                all.push(node);
                program.nodes[node].regions.iter().for_each(|region| add_region_nodes(program, region, all));
            }
        }
        let mut all = vec![];
        add_region_nodes(self, &self.body, &mut all);
        all
    }
}

/// Builder of a [`RegionGraph`] from a graph.
pub(crate) struct RegionGraphBuilder<'a> {
    pub(crate) program: RegionGraph,
    /// Regions under construction, innermost last: the region's node and number, and its nodes so far.
    open: Vec<(ParentRegion, Vec<NodeId>)>,
    /// Label of the current equation.
    label: usize,
    /// Number of equations appended so far; the next equation's label.
    labels: usize,
    /// Number of the first sharding group of the current graph.
    first: u32,
    /// Number of sharding groups appended so far.
    groups: u32,
    /// By label of a call of `shard_map` with automatic axes, known shardings of its results.
    known: &'a HashMap<usize, Vec<Sharding>>,
}

impl RegionGraphBuilder<'_> {
    /// Appends a graph's equations with `args` as its parameters. Returns the values of its results, and by variable
    /// its value: `None` for a variable that is never defined.
    pub(crate) fn add_graph(&mut self, graph: &Graph, args: &[Val]) -> (Vec<Val>, Vec<Option<Val>>) {
        let mut vars: Vec<Option<Val>> = vec![None; graph.types.len()];
        graph.params.iter().zip(args).for_each(|(p, &x)| vars[p.index()] = Some(x));
        let of = |vars: &[Option<Val>], v: Var| vars[v.index()].expect("defined before its use");
        let outer = (self.label, self.first);
        (self.first, self.groups) = (self.groups, self.groups + graph.sharding_group_count());
        for e in &graph.equations {
            let args: Vec<Val> = e.args.iter().map(|&v| of(&vars, v)).collect();
            let gives: Vec<Type> = e.results.iter().map(|&v| graph.ty(v).clone()).collect();
            (self.label, self.labels) = (self.labels, self.labels + 1);
            let made = self.add_equation(&e.op, args, gives, e.loc);
            e.results.iter().zip(made).for_each(|(r, x)| vars[r.index()] = Some(x));
        }
        (self.label, self.first) = outer;
        (graph.results.iter().map(|&r| of(&vars, r)).collect(), vars)
    }

    /// Appends the node of one equation; returns its results, which are `args` where the equation needs no node.
    fn add_equation(&mut self, op: &Op, args: Vec<Val>, result_types: Vec<Type>, loc: Loc) -> Vec<Val> {
        let kind = match op {
            // The text has no operation for what changes nothing.
            Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Cast(_))
                if *self.program.ty(args[0]) == result_types[0] =>
            {
                return args;
            }
            Op::Identity(op) => {
                match op.data().with_update(IdentityUpdate::ShiftGroups(self.first)).regions().node_kind() {
                    None => return args,
                    Some(kind @ NodeKind::ShardingGroup(_)) => {
                        self.push_node(kind, args.clone(), vec![], loc);
                        return args;
                    }
                    Some(kind) => kind,
                }
            }
            Op::Call(call) => return self.add_call(call, &args, &result_types, loc),
            Op::Literal(_) | Op::Scalar(_) | Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) => {
                NodeKind::Op(op.clone())
            }
        };
        let node = self.push_node(kind, args, result_types, loc);
        self.program.nodes[node].results.clone()
    }

    /// Appends a node to the innermost region under construction, with the current equation's label.
    pub(crate) fn push_node(
        &mut self,
        kind: NodeKind,
        operands: Vec<Val>,
        result_types: Vec<Type>,
        loc: Loc,
    ) -> NodeId {
        let node = self.program.create_node(kind, operands, result_types, loc);
        let (parent, list) = self.open.last_mut().expect("a list is open");
        list.push(node);
        self.program.nodes[node].parent = *parent;
        self.program.nodes[node].label = self.label;
        node
    }

    /// Appends an operation with one result of type `result_type` that no equation of the graph stands for; returns the
    /// result.
    pub(crate) fn add_implied_op(&mut self, op: impl Into<Op>, operands: &[Val], result_type: Type, loc: Loc) -> Val {
        let node = self.push_node(NodeKind::Op(op.into()), operands.to_vec(), vec![result_type], loc);
        self.program.nodes[node].results[0]
    }

    /// Appends the constant `n`, an i32 scalar, as a position along an axis.
    pub(crate) fn add_index_constant(&mut self, n: usize, loc: Loc) -> Val {
        self.add_implied_op(Op::Literal(Literal::int(DType::I32, n as i64)), &[], Type::scalar(DType::I32), loc)
    }

    /// Adds a region to `node`: its parameters have the types `param_types`; `write` appends its nodes and returns its
    /// results.
    pub(crate) fn add_region(
        &mut self,
        node: NodeId,
        param_types: &[Type],
        write: impl FnOnce(&mut Self, &[Val]) -> Vec<Val>,
    ) {
        let number = self.program.nodes[node].regions.len();
        let params: Vec<Val> = (param_types.iter().enumerate())
            .map(|(i, ty)| self.program.add_value(ty.clone(), ValueDefinition::Argument(node, number, i)))
            .collect();
        // Its nodes name it as their parent before it is there.
        self.open.push((Some((node, number)), vec![]));
        let results = write(self, &params);
        let (_, nodes) = self.open.pop().expect("the list of this region");
        self.program.nodes[node].regions.push(Region { params, nodes, results });
    }

    /// Appends the nodes of a call: those of a called function's body, or a node with regions for a loop or a branch.
    fn add_call(&mut self, call: &Call, args: &[Val], result_types: &[Type], loc: Loc) -> Vec<Val> {
        match call.expansion_in_plan() {
            Some(graph) => self.add_graph(graph, args).0,
            None => call.regions().expect("it stays").add_propagation_nodes(self, args, result_types, loc),
        }
    }

    /// Returns the shardings that are known of the current equation's results, if it is a call of `shard_map`.
    pub(crate) fn known_result_shardings(&self) -> Option<&[Sharding]> {
        self.known.get(&self.label).map(|known| &known[..])
    }

    /// Appends the node of a loop or a branch, of the kind that `kind` returns for the index of its `call`; the caller
    /// adds its regions afterwards.
    pub(crate) fn add_control_flow_node(
        &mut self,
        kind: fn(usize) -> NodeKind,
        call: RegionCall,
        operands: &[Val],
        result_types: &[Type],
        loc: Loc,
    ) -> NodeId {
        self.program.calls.push(call);
        self.push_node(kind(self.program.calls.len() - 1), operands.to_vec(), result_types.to_vec(), loc)
    }

    /// Appends a call as one node without regions; returns its results.
    pub(crate) fn add_call_node(
        &mut self,
        call: impl Into<Op>,
        args: &[Val],
        result_types: &[Type],
        loc: Loc,
    ) -> Vec<Val> {
        let node = self.push_node(NodeKind::Op(call.into()), args.to_vec(), result_types.to_vec(), loc);
        self.program.nodes[node].results.clone()
    }

    /// Appends a reshape of a value to `shape`; returns the result.
    pub(crate) fn add_reshape(&mut self, x: Val, shape: &[usize], loc: Loc) -> Val {
        let ty = Type::new(self.program.ty(x).dtype, shape);
        let op: StructuralOp = Reshape { to: ty.dims() }.into();
        self.add_implied_op(op, &[x], ty, loc)
    }
}
