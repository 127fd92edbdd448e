//! Preparation of a program before shardings propagate, as in Shardy's import pipeline.
//!
//! - `split_constants`: each use of a constant gets its own copy, so that no sharding propagates between uses
//!   through it;
//! - edges: one after each result of loops, branches and barriers ([`NodeKind::DataFlowEdge`]);
//! - `apply_constraints`: a closed constraint on a value without other annotations becomes the value's own sharding;
//! - `import_sharding_groups`: the members of a sharding group begin with one sharding.
//!
//! The uses of a value are in order, the newest one last, since propagation visits them in order. Replacing all uses
//! reverses them.
mod split_constants;

use super::propagation_program::{Node, NodeId, NodeKind, RegionGraph, Val, ValueDefinition};
use super::provenance::PropagationOrigin;
use crate::graph::Op;
use crate::mesh::Sharding;
use pallas_ir::structural::AccessForm;
use pallas_ir::{Dim, Loc, StructuralOp};
use split_constants::split_constants;
use std::collections::{BTreeMap, HashMap};

/// A place in the program that reads a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueUse {
    /// The node's operand with this number.
    Operand(NodeId, usize),
    /// A result of a region: the node, the number of the region, the number of the result.
    Yield(NodeId, usize, usize),
    /// The program's result with this number.
    Result(usize),
}

/// A program with the shardings of its values. Values can share one sharding, their *cell*: the result of a loop's edge
/// shares that of the body's parameter. A cell is named by one of its values.
pub(super) struct ShardingState {
    pub program: RegionGraph,
    /// By value, the places that read it, the newest last.
    pub uses: Vec<Vec<ValueUse>>,
    /// By value, its cell, named by one of the values that share the cell.
    pub cell: Vec<Val>,
    /// By cell, its sharding so far; `None` if nothing is known.
    pub shardings: Vec<Option<Sharding>>,
    /// By cell, the annotation from which it got its first sharding.
    pub origins: Vec<Option<PropagationOrigin>>,
    /// By result of the program, its sharding so far.
    pub results: Vec<Option<Sharding>>,
    /// By result of the program, true if the user declared its sharding.
    pub declared_results: Vec<bool>,
    /// By result of a loop, branch or barrier (node and number), its edge.
    pub edges: HashMap<(NodeId, usize), NodeId>,
    /// The members of each sharding group.
    pub groups: Vec<Vec<Val>>,
}

/// Returns the state from which propagation starts: the program with copies of shared constants and with edges after
/// results of loops, branches and barriers, and the shardings that declarations, constraints and sharding groups give
/// its values. `params` and `results` are the declared shardings; `None` if there is none.
pub(super) fn prepare_for_propagation(
    mut program: RegionGraph,
    params: &[Option<Sharding>],
    results: &[Option<Sharding>],
) -> ShardingState {
    split_constants(&mut program);
    let values = program.types.len();
    let mut flow = ShardingState {
        uses: collect_uses(&program),
        cell: (0..values as u32).map(Val).collect(),
        shardings: vec![None; values],
        origins: vec![None; values],
        results: results.to_vec(),
        declared_results: results.iter().map(Option::is_some).collect(),
        edges: HashMap::new(),
        groups: vec![],
        program,
    };
    flow.add_data_flow_edges();
    for (i, (&p, sharding)) in flow.program.body.params.iter().zip(params).enumerate() {
        // Open dimensions alone say nothing.
        let sharding = sharding.as_ref().filter(|s| s.dims.is_empty() || **s != Sharding::open(s.dims.len()));
        flow.shardings[p.index()] = sharding.cloned();
        flow.origins[p.index()] = sharding.map(|_| PropagationOrigin::Param(i));
    }
    for node in flow.program.preorder() {
        let Node { kind, results, .. } = &flow.program.nodes[node];
        if let NodeKind::Constraint(sharding) = kind {
            flow.shardings[results[0].index()] = Some(sharding.clone());
            flow.origins[results[0].index()] = Some(PropagationOrigin::Constraint(node));
        }
    }
    flow.apply_constraints();
    flow.import_sharding_groups();
    flow
}

/// Returns for each value the places that read it, in the order in which a parser of the program's text meets them:
/// results of a node's regions before the node's operands.
fn collect_uses(program: &RegionGraph) -> Vec<Vec<ValueUse>> {
    fn collect_region_uses(program: &RegionGraph, nodes: &[NodeId], all: &mut [Vec<ValueUse>]) {
        for &id in nodes {
            let node = &program.nodes[id];
            for (r, region) in node.regions.iter().enumerate() {
                collect_region_uses(program, &region.nodes, all);
                for (i, v) in region.results.iter().enumerate() {
                    all[v.index()].push(ValueUse::Yield(id, r, i));
                }
            }
            node.operands.iter().enumerate().for_each(|(i, v)| all[v.index()].push(ValueUse::Operand(id, i)));
        }
    }
    let mut all = vec![vec![]; program.types.len()];
    collect_region_uses(program, &program.body.nodes, &mut all);
    program.body.results.iter().enumerate().for_each(|(i, v)| all[v.index()].push(ValueUse::Result(i)));
    all
}

impl ShardingState {
    /// Makes all uses of `from` read `to`, except those by the node `except`.
    fn replace_uses(&mut self, from: Val, to: Val, except: Option<NodeId>) {
        let all = std::mem::take(&mut self.uses[from.index()]);
        let (kept, moved): (Vec<ValueUse>, Vec<ValueUse>) =
            all.into_iter().partition(|u| matches!(u, ValueUse::Operand(node, _) if Some(*node) == except));
        self.uses[from.index()] = kept;
        moved.into_iter().rev().for_each(|u| self.redirect_use(u, to));
    }

    /// Makes a use read another value.
    fn redirect_use(&mut self, place: ValueUse, new_value: Val) {
        match place {
            ValueUse::Operand(node, i) => self.program.nodes[node].operands[i] = new_value,
            ValueUse::Yield(node, r, i) => self.program.nodes[node].regions[r].results[i] = new_value,
            ValueUse::Result(i) => self.program.body.results[i] = new_value,
        }
        self.uses[new_value.index()].push(place);
    }

    /// Makes a node with one operand and a result of the same type, which no region contains yet; it gets the source
    /// position of node `location_source`, or none for `None`.
    fn create_unary_node(&mut self, kind: NodeKind, operand: Val, location_source: Option<NodeId>) -> (NodeId, Val) {
        let ty = self.program.ty(operand).clone();
        let (loc, label) = location_source
            .map_or((Loc::NONE, usize::MAX), |node| (self.program.nodes[node].loc, self.program.nodes[node].label));
        let node = self.program.create_node(kind, vec![operand], vec![ty], loc);
        self.program.nodes[node].label = label;
        let result = self.program.nodes[node].results[0];
        self.uses.push(vec![]);
        self.cell.push(result);
        self.shardings.push(None);
        self.origins.push(None);
        (node, result)
    }

    /// Inserts a data flow edge, an identity through which Shardy propagates shardings, after each result of loops,
    /// branches and optimization barriers; the result, and a loop's parameter for it, share the edge's sharding.
    fn add_data_flow_edges(&mut self) {
        for id in self.program.preorder() {
            let node = &self.program.nodes[id];
            if !matches!(node.kind, NodeKind::Loop(_) | NodeKind::Branches(_) | NodeKind::OptimizationBarrier) {
                continue;
            }
            let results = node.results.clone();
            let mut last = id;
            for (i, v) in results.into_iter().enumerate() {
                let (edge, result) = self.create_unary_node(NodeKind::DataFlowEdge, v, Some(id));
                self.replace_uses(v, result, None);
                self.uses[v.index()].push(ValueUse::Operand(edge, 0));
                self.edges.insert((id, i), edge);
                self.program.insert_beside(edge, last, true);
                last = edge;
                self.cell[v.index()] = result;
                if let NodeKind::Loop(_) = self.program.nodes[id].kind {
                    for region in &self.program.nodes[id].regions {
                        self.cell[region.params[i].index()] = result;
                    }
                }
            }
        }
    }

    /// Returns the sharding that annotations or propagation have given a value until now; `None` if it has none yet.
    pub(super) fn sharding(&self, v: Val) -> Option<&Sharding> {
        self.shardings[self.cell[v.index()].index()].as_ref()
    }

    /// Returns the sharding of a constraint; `None` for other nodes.
    fn constraint_sharding(&self, node: NodeId) -> Option<&Sharding> {
        match &self.program.nodes[node].kind {
            NodeKind::Constraint(sharding) => Some(sharding),
            NodeKind::Op(_)
            | NodeKind::Constant
            | NodeKind::Loop(_)
            | NodeKind::Branches(_)
            | NodeKind::ShardingGroup(_)
            | NodeKind::PropagationBarrier(_)
            | NodeKind::OptimizationBarrier
            | NodeKind::DataFlowEdge => None,
        }
    }

    /// Gives each value that a closed sharding constraint applies to the constraint's sharding, unless the value has a
    /// sharding already, is a scalar argument of a region, or has a different constraint too. If the value shares a
    /// loop's sharding, its other readers read the constraint's result instead.
    fn apply_constraints(&mut self) {
        for id in self.program.preorder() {
            let Some(sharding) = self.constraint_sharding(id).cloned() else { continue };
            self.redirect_to_last_constraint(id);
            let x = self.program.nodes[id].operands[0];
            let differs = |u: &ValueUse| match u {
                ValueUse::Operand(node, _) => self.constraint_sharding(*node).is_some_and(|other| *other != sharding),
                ValueUse::Yield(..) | ValueUse::Result(_) => false,
            };
            let is_open = sharding.dims.iter().any(|dim| dim.open);
            let is_scalar_argument = self.program.rank(x) == 0
                && matches!(self.program.definitions[x.index()], ValueDefinition::Argument(..));
            if self.sharding(x).is_some() || is_open || is_scalar_argument || self.uses[x.index()].iter().any(differs) {
                continue;
            }
            let definer = self.program.defining_node(x);
            let is_of_edge = definer.is_some_and(|node| self.program.nodes[node].kind == NodeKind::DataFlowEdge);
            if self.cell[x.index()] == x && !is_of_edge {
                self.shardings[x.index()] = Some(sharding);
                self.origins[x.index()] = Some(PropagationOrigin::Constraint(id));
                continue;
            }
            // A value of a loop keeps the loop's sharding; all others read what the constraint makes of it.
            let parent = self.program.nodes[id].parent;
            self.program.region_mut(parent).nodes.retain(|&node| node != id);
            match self.program.definitions[x.index()] {
                ValueDefinition::Result(node, _) => self.program.insert_beside(id, node, true),
                ValueDefinition::Argument(node, region, _) => {
                    self.program.insert_at_region_start(id, Some((node, region)))
                }
                ValueDefinition::Param(_) => self.program.insert_at_region_start(id, None),
            }
            let result = self.program.nodes[id].results[0];
            self.replace_uses(x, result, Some(id));
        }
    }

    /// If the constraint `first` begins a chain of constraints of a value, makes later readers of the value read the
    /// result of the last constraint.
    fn redirect_to_last_constraint(&mut self, first: NodeId) {
        let x = self.program.nodes[first].operands[0];
        let is_constraint = |flow: &ShardingState, u: &ValueUse| matches!(u, ValueUse::Operand(node, _) if flow.constraint_sharding(*node).is_some());
        let is_head = self.program.defining_node(x).is_none_or(|node| self.constraint_sharding(node).is_none());
        let is_only = !self.uses[x.index()].iter().any(|u| *u != ValueUse::Operand(first, 0) && is_constraint(self, u));
        if !is_head || !is_only || self.sharding(x).is_some() {
            return;
        }
        let mut last = first;
        while let [ValueUse::Operand(next, _)] = self.uses[self.program.nodes[last].results[0].index()][..]
            && self.constraint_sharding(next).is_some()
        {
            last = next;
        }
        let result = self.program.nodes[last].results[0];
        if last == first || self.uses[result.index()].iter().any(|u| is_constraint(self, u)) {
            return;
        }
        let list = &self.program.region(self.program.nodes[last].parent).nodes;
        let at = list.iter().position(|&node| node == last).expect("a node is in its parent's list");
        let behind = list[at + 1..].to_vec();
        let all = std::mem::take(&mut self.uses[x.index()]);
        let (moved, kept): (Vec<ValueUse>, Vec<ValueUse>) = all
            .into_iter()
            .partition(|u| matches!(u, ValueUse::Operand(node, _) if *node != first && behind.contains(node)));
        self.uses[x.index()] = kept;
        moved.into_iter().rev().for_each(|u| self.redirect_use(u, result));
    }

    /// Collects the members of each sharding group and gives them one initial sharding. If their annotations differ,
    /// open constraints on the members are inserted and become the members, without an initial sharding.
    fn import_sharding_groups(&mut self) {
        let mut numbers: BTreeMap<u32, Vec<Val>> = BTreeMap::new();
        for id in self.program.preorder() {
            if let NodeKind::ShardingGroup(group) = self.program.nodes[id].kind {
                numbers.entry(group).or_default().push(self.program.nodes[id].operands[0]);
            }
        }
        // A value in two groups makes them one.
        let mut groups: Vec<Vec<Val>> = vec![];
        for members in numbers.into_values() {
            let (others, mut joined): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|group: &Vec<Val>| !group.iter().any(|v| members.contains(v)));
            groups = others;
            joined.push(members);
            let mut all: Vec<Val> = vec![];
            joined.into_iter().flatten().for_each(|v| {
                if !all.contains(&v) {
                    all.push(v);
                }
            });
            groups.push(all);
        }
        for group in &mut groups {
            self.unify_group_sharding(group);
        }
        self.groups = groups;
    }

    /// Gives the members of a sharding group one initial sharding, or open constraints if their annotations differ.
    fn unify_group_sharding(&mut self, group: &mut [Val]) {
        let says = |s: &&Sharding| s.dims.iter().any(|dim| !dim.open || !dim.axes.is_empty());
        let said: Vec<(Sharding, Option<PropagationOrigin>)> = (group.iter().map(|v| self.cell[v.index()].index()))
            .filter_map(|cell| Some((self.shardings[cell].as_ref().filter(says)?.clone(), self.origins[cell])))
            .collect();
        let Some((first, origin)) = said.first() else { return };
        if said.iter().all(|(s, _)| s == first) {
            for v in group.iter() {
                let cell = self.cell[v.index()].index();
                // An annotation that leaves all dimensions open gives a member nothing.
                if !self.shardings[cell].as_ref().is_some_and(|s| says(&s)) {
                    self.origins[cell] = *origin;
                }
                self.shardings[cell] = Some(first.clone());
            }
            return;
        }
        for v in group.iter_mut() {
            let open = Sharding::open(self.program.rank(*v));
            let definer = self.program.defining_node(*v);
            let (node, result) = self.create_unary_node(NodeKind::Constraint(open.clone()), *v, definer);
            self.shardings[result.index()] = Some(open);
            match self.program.definitions[v.index()] {
                ValueDefinition::Result(definer, _) => self.program.insert_beside(node, definer, true),
                ValueDefinition::Argument(owner, region, _) => {
                    self.program.insert_at_region_start(node, Some((owner, region)))
                }
                ValueDefinition::Param(_) => self.program.insert_at_region_start(node, None),
            }
            self.replace_uses(*v, result, None);
            self.uses[v.index()].push(ValueUse::Operand(node, 0));
            *v = result;
        }
    }
}

/// Returns the array that a value is a slice of, if it is one.
pub(super) fn slice_source(program: &RegionGraph, v: Val) -> Option<Val> {
    let node = &program.nodes[program.defining_node(v)?];
    matches!(node.kind, NodeKind::Op(Op::Structural(StructuralOp::Slice(_)))).then(|| node.operands[0])
}

/// Returns true for a node that Shardy treats as elementwise: one that computes each element of its result from the
/// operands' elements at the same position.
pub(super) fn is_elementwise(program: &RegionGraph, node: &Node) -> bool {
    match &node.kind {
        NodeKind::Constraint(_) | NodeKind::PropagationBarrier(_) => true,
        NodeKind::Op(Op::Scalar(_)) => true,
        NodeKind::Op(Op::Structural(op)) => {
            let dims: Vec<Vec<Dim>> = node.operands.iter().map(|&v| program.ty(v).dims()).collect();
            let dims: Vec<&[Dim]> = dims.iter().map(|dims| &dims[..]).collect();
            matches!(op.access(&dims), AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_))
        }
        NodeKind::Op(_)
        | NodeKind::Constant
        | NodeKind::Loop(_)
        | NodeKind::Branches(_)
        | NodeKind::ShardingGroup(_)
        | NodeKind::OptimizationBarrier
        | NodeKind::DataFlowEdge => false,
    }
}
