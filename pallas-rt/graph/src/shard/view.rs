//! A graph in the form of StableHLO, in which shardings propagate.
//!
//! Bodies of loops and branches are regions that read values from outside directly, and a scan is a `while` that reads and
//! writes windows of its arrays. Order counts: nodes and uses are those of the text that [`Graph::to_stablehlo`] prints, so
//! that propagation takes the decisions that it takes on that text.
use crate::call::Call;
use crate::graph::{Graph, Op, Var};
use crate::identity::Change;
use crate::mesh::{Flow, Sharding};
use pallas_ir::structural::Reshape;
use pallas_ir::{DType, Literal, Loc, StructuralOp, Type};
use std::collections::HashMap;

/// A value of a [`Program`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Val(pub u32);

impl Val {
    /// Its position in the tables of a program.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a node in its program.
pub type NodeId = usize;

/// The node and the region that a node is in; `None`: the program's own.
pub type Parent = Option<(NodeId, usize)>;

/// The definition of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Definition {
    /// The program's parameter of this number.
    Param(usize),
    /// A node's result of this number.
    Result(NodeId, usize),
    /// The parameter of a region of a node.
    Argument(NodeId, usize, usize),
}

/// The operation of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// That of an equation.
    Op(Op),
    /// An array of zeros.
    Constant,
    /// A loop: regions are the condition and the body, whose parameters are the carried values. The number of its call.
    Loop(usize),
    /// One of its regions. The number of its call.
    Branches(usize),
    /// The operand, with this sharding.
    Constraint(Sharding),
    /// The operand belongs to a group. There is no result.
    Group(u32),
    /// The operand; shardings go through it in some directions.
    Barrier(Flow),
    /// The operand, which is not known to be equal to it; nothing propagates through it.
    OptimizationBarrier,
    /// The operand, a result of a loop or branch. Its sharding is that of all values that the result may come from.
    Edge,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub kind: Kind,
    /// Its operands.
    pub operands: Vec<Val>,
    /// Its results.
    pub results: Vec<Val>,
    /// The regions of a loop or branch.
    pub regions: Vec<Region>,
    /// The user's line.
    pub loc: Loc,
    /// The list that it is in.
    pub parent: Parent,
    /// The number of the equation that it belongs to, in the order of the text.
    pub label: usize,
}

/// Nodes with parameters and results.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The parameters.
    pub params: Vec<Val>,
    /// The nodes, in order.
    pub nodes: Vec<NodeId>,
    /// The results.
    pub results: Vec<Val>,
}

/// The call that a loop or branches stand for. A scan is a `while`, whose carried values are the number of the step, the scan's
/// own, and the stacks.
#[derive(Clone, Debug)]
pub struct CallView {
    /// The call. Its bodies are those of the regions.
    pub call: Call,
    /// In the body of a scan, the element of each array.
    pub elements: Vec<Val>,
    /// Nodes of the body that the scan itself has no equations for.
    pub implied: Vec<NodeId>,
}

impl CallView {
    /// A call whose regions have its own operations alone.
    pub(crate) fn of(call: impl Into<Call>) -> CallView {
        CallView { call: call.into(), elements: vec![], implied: vec![] }
    }
}

/// A graph in the form of StableHLO.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The type of each value.
    pub types: Vec<Type>,
    /// The definition of each value.
    pub definitions: Vec<Definition>,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// The program itself.
    pub body: Region,
    /// The calls of loops and branches.
    pub calls: Vec<CallView>,
    /// By variable of the graph, its value.
    pub vars: Vec<Option<Val>>,
}

impl Program {
    /// The form of a graph without calls of functions.
    pub fn of(graph: &Graph) -> Program {
        Program::with_results(graph, &HashMap::new())
    }

    /// As [`of`](Program::of), with shardings that are known of the results of calls of `shard_map` with automatic axes, by
    /// [`label`](Node::label).
    pub fn with_results(graph: &Graph, known: &HashMap<usize, Vec<Sharding>>) -> Program {
        let open = vec![(None, vec![])];
        let mut build = Build { program: Program::default(), open, label: 0, labels: 0, first: 0, groups: 0, known };
        let params: Vec<Val> = (graph.params.iter().enumerate())
            .map(|(i, &p)| build.program.value(graph.ty(p).clone(), Definition::Param(i)))
            .collect();
        let (results, vars) = build.graph(graph, &params);
        let Build { mut program, mut open, .. } = build;
        let (_, nodes) = open.pop().expect("the program's own list");
        program.body = Region { params, nodes, results };
        program.vars = vars;
        program
    }

    pub(super) fn value(&mut self, ty: Type, definition: Definition) -> Val {
        self.types.push(ty);
        self.definitions.push(definition);
        Val(self.types.len() as u32 - 1)
    }

    /// Makes a node that is in no list yet.
    pub(super) fn node(&mut self, kind: Kind, operands: Vec<Val>, gives: Vec<Type>, loc: Loc) -> NodeId {
        let id = self.nodes.len();
        let results = gives.into_iter().enumerate();
        let results = results.map(|(i, ty)| self.value(ty, Definition::Result(id, i))).collect();
        self.nodes.push(Node { kind, operands, results, regions: vec![], loc, parent: None, label: 0 });
        id
    }

    /// The type of a value.
    pub fn ty(&self, v: Val) -> &Type {
        &self.types[v.index()]
    }

    /// Number of dimensions.
    pub(super) fn rank(&self, v: Val) -> usize {
        self.ty(v).shape.len()
    }

    /// The node that defines a value.
    pub(crate) fn definer(&self, v: Val) -> Option<NodeId> {
        match self.definitions[v.index()] {
            Definition::Result(node, _) => Some(node),
            Definition::Param(_) | Definition::Argument(..) => None,
        }
    }

    /// The number of the call that a node with regions stands for.
    pub(crate) fn call_number(&self, node: NodeId) -> Option<usize> {
        if let Kind::Loop(number) | Kind::Branches(number) = self.nodes[node].kind { Some(number) } else { None }
    }

    /// The list that has a node, or the program's own.
    pub(super) fn region(&self, parent: Parent) -> &Region {
        parent.map_or(&self.body, |(node, region)| &self.nodes[node].regions[region])
    }

    pub(super) fn region_mut(&mut self, parent: Parent) -> &mut Region {
        match parent {
            Some((node, region)) => &mut self.nodes[node].regions[region],
            None => &mut self.body,
        }
    }

    /// Puts a node into the list of another one, in front of it or behind it.
    pub(super) fn insert(&mut self, node: NodeId, beside: NodeId, is_behind: bool) {
        let parent = self.nodes[beside].parent;
        self.nodes[node].parent = parent;
        let list = &mut self.region_mut(parent).nodes;
        let at = list.iter().position(|&other| other == beside).expect("a node is in its parent's list");
        list.insert(at + usize::from(is_behind), node);
    }

    /// Puts a node in front of all others of a list.
    pub(super) fn insert_first(&mut self, node: NodeId, parent: Parent) {
        self.nodes[node].parent = parent;
        self.region_mut(parent).nodes.insert(0, node);
    }

    /// All nodes in the lists, each before those of its own regions.
    pub fn preorder(&self) -> Vec<NodeId> {
        fn add(program: &Program, region: &Region, all: &mut Vec<NodeId>) {
            for &node in &region.nodes {
                all.push(node);
                program.nodes[node].regions.iter().for_each(|region| add(program, region, all));
            }
        }
        let mut all = vec![];
        add(self, &self.body, &mut all);
        all
    }
}

pub(crate) struct Build<'a> {
    pub(crate) program: Program,
    /// Lists of nodes under construction, and where they belong; innermost last.
    open: Vec<(Parent, Vec<NodeId>)>,
    /// Number of the present equation, and of those so far.
    label: usize,
    labels: usize,
    /// The number of the present graph's first group, and the number of groups so far.
    first: u32,
    groups: u32,
    known: &'a HashMap<usize, Vec<Sharding>>,
}

impl Build<'_> {
    /// Appends the equations of a graph for these operands; returns its results, and its variables.
    pub(crate) fn graph(&mut self, graph: &Graph, args: &[Val]) -> (Vec<Val>, Vec<Option<Val>>) {
        let mut vars: Vec<Option<Val>> = vec![None; graph.types.len()];
        graph.params.iter().zip(args).for_each(|(p, &x)| vars[p.index()] = Some(x));
        let of = |vars: &[Option<Val>], v: Var| vars[v.index()].expect("defined before its use");
        let outer = (self.label, self.first);
        (self.first, self.groups) = (self.groups, self.groups + graph.groups());
        for e in &graph.equations {
            let args: Vec<Val> = e.args.iter().map(|&v| of(&vars, v)).collect();
            let gives: Vec<Type> = e.results.iter().map(|&v| graph.ty(v).clone()).collect();
            (self.label, self.labels) = (self.labels, self.labels + 1);
            let made = self.equation(&e.op, args, gives, e.loc);
            e.results.iter().zip(made).for_each(|(r, x)| vars[r.index()] = Some(x));
        }
        (self.label, self.first) = outer;
        (graph.results.iter().map(|&r| of(&vars, r)).collect(), vars)
    }

    fn equation(&mut self, op: &Op, args: Vec<Val>, gives: Vec<Type>, loc: Loc) -> Vec<Val> {
        let kind = match op {
            // The text has no operation for what changes nothing.
            Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Cast(_))
                if *self.program.ty(args[0]) == gives[0] =>
            {
                return args;
            }
            Op::Identity(op) => match op.data().changed(Change::GroupsFrom(self.first)).regions().kind() {
                None => return args,
                Some(kind @ Kind::Group(_)) => {
                    self.push(kind, args.clone(), vec![], loc);
                    return args;
                }
                Some(kind) => kind,
            },
            Op::Call(call) => return self.call(call, &args, &gives, loc),
            Op::Literal(_) | Op::Scalar(_) | Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) => {
                Kind::Op(op.clone())
            }
        };
        let node = self.push(kind, args, gives, loc);
        self.program.nodes[node].results.clone()
    }

    pub(crate) fn push(&mut self, kind: Kind, operands: Vec<Val>, gives: Vec<Type>, loc: Loc) -> NodeId {
        let node = self.program.node(kind, operands, gives, loc);
        let (parent, list) = self.open.last_mut().expect("a list is open");
        list.push(node);
        self.program.nodes[node].parent = *parent;
        self.program.nodes[node].label = self.label;
        node
    }

    /// Appends an operation with one result that no equation stands for.
    pub(crate) fn implied(&mut self, op: impl Into<Op>, operands: &[Val], gives: Type, loc: Loc) -> Val {
        let node = self.push(Kind::Op(op.into()), operands.to_vec(), vec![gives], loc);
        self.program.nodes[node].results[0]
    }

    pub(crate) fn position(&mut self, n: usize, loc: Loc) -> Val {
        self.implied(Op::Literal(Literal::int(DType::I32, n as i64)), &[], Type::scalar(DType::I32), loc)
    }

    /// A region of a node with parameters of these types.
    pub(crate) fn region(&mut self, node: NodeId, takes: &[Type], write: impl FnOnce(&mut Self, &[Val]) -> Vec<Val>) {
        let number = self.program.nodes[node].regions.len();
        let params: Vec<Val> = (takes.iter().enumerate())
            .map(|(i, ty)| self.program.value(ty.clone(), Definition::Argument(node, number, i)))
            .collect();
        // Its nodes name it as their parent before it is there.
        self.open.push((Some((node, number)), vec![]));
        let results = write(self, &params);
        let (_, nodes) = self.open.pop().expect("the list of this region");
        self.program.nodes[node].regions.push(Region { params, nodes, results });
    }

    fn call(&mut self, call: &Call, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        match call.function() {
            Some(graph) => self.graph(graph, args).0,
            None => call.regions().expect("it stays").view(self, args, gives, loc),
        }
    }

    /// The known shardings of the results of the present equation.
    pub(crate) fn known_results(&self) -> Option<&[Sharding]> {
        self.known.get(&self.label).map(|known| &known[..])
    }

    /// Appends a node that stands for a call with regions, which follow.
    pub(crate) fn structured(
        &mut self,
        kind: fn(usize) -> Kind,
        call: CallView,
        operands: &[Val],
        gives: &[Type],
        loc: Loc,
    ) -> NodeId {
        self.program.calls.push(call);
        self.push(kind(self.program.calls.len() - 1), operands.to_vec(), gives.to_vec(), loc)
    }

    /// Appends a call as a node of its own.
    pub(crate) fn call_node(&mut self, call: impl Into<Op>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        let node = self.push(Kind::Op(call.into()), args.to_vec(), gives.to_vec(), loc);
        self.program.nodes[node].results.clone()
    }

    pub(crate) fn reshaped(&mut self, x: Val, shape: &[usize], loc: Loc) -> Val {
        let ty = Type::new(self.program.ty(x).dtype, shape);
        let op: StructuralOp = Reshape { to: ty.dims() }.into();
        self.implied(op, &[x], ty, loc)
    }
}
