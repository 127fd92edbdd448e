//! Copies of constants, one for each use, so that no sharding propagates between uses through a constant.
use crate::graph::Op;
use crate::shard::propagation_program::{Node, NodeId, NodeKind, RegionGraph, Val};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, HashMap};

/// A kind of value that each reader gets its own copy of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConstantKind {
    /// A value computed from constants alone; the whole expression is copied.
    Expression,
    /// A scalar broadcast to an array; only the broadcast is copied.
    ScalarBroadcast,
}

/// Gives each use of a constant expression or of a broadcast scalar its own copy.
pub(super) fn split_constants(program: &mut RegionGraph) {
    let order = program.preorder();
    let mut copies =
        ConstantSplitter { kinds: vec![None; program.types.len()], groups: HashMap::new(), inserted: BTreeMap::new() };
    for &id in &order {
        if let NodeKind::ShardingGroup(_) = program.nodes[id].kind {
            copies.groups.entry(program.nodes[id].operands[0]).or_default().push(id);
        }
    }
    copies.copy_constant_operands(program, &program.body.nodes.clone());
    for i in 0..program.body.results.len() {
        let result = program.body.results[i];
        program.body.results[i] = copies.copy_for_use(program, result);
    }
    // Copies are inserted before their originals, which are removed.
    for (original, inserted) in &copies.inserted {
        inserted.iter().for_each(|&copy| program.insert_beside(copy, *original, false));
    }
    let is_gone = |program: &RegionGraph, id: NodeId| {
        let node = &program.nodes[id];
        let of = if matches!(node.kind, NodeKind::ShardingGroup(_)) { &node.operands } else { &node.results };
        of.iter().any(|&v| copies.kinds.get(v.index()).copied().flatten().is_some() && program.rank(v) > 0)
    };
    let gone: Vec<NodeId> = order.into_iter().filter(|&id| is_gone(program, id)).collect();
    let mut is_dropped = vec![false; program.nodes.len()];
    gone.iter().for_each(|&id| is_dropped[id] = true);
    let mut parents: Vec<_> = gone.iter().map(|&id| program.nodes[id].parent).collect();
    parents.sort_unstable();
    parents.dedup();
    for parent in parents {
        program.region_mut(parent).nodes.retain(|&id| !is_dropped[id]);
    }
}

/// The pass that gives each use of a constant its own copy, with the copies made so far.
struct ConstantSplitter {
    /// By value of the original program, its kind if it is to be copied.
    kinds: Vec<Option<ConstantKind>>,
    /// By value, the nodes that put it into sharding groups.
    groups: HashMap<Val, Vec<NodeId>>,
    /// By original node, its copies in order.
    inserted: BTreeMap<NodeId, Vec<NodeId>>,
}

impl ConstantSplitter {
    /// Gives each operand of these nodes, and each result of their regions, that is a constant a copy of its own, in
    /// program order.
    fn copy_constant_operands(&mut self, program: &mut RegionGraph, nodes: &[NodeId]) {
        for &id in nodes {
            let node = &program.nodes[id];
            if let Some(kind) = self.constant_kind(program, node) {
                let result = node.results[0];
                self.kinds[result.index()] = Some(kind);
                continue;
            }
            if matches!(node.kind, NodeKind::ShardingGroup(_)) {
                continue;
            }
            for i in 0..program.nodes[id].operands.len() {
                let operand = program.nodes[id].operands[i];
                program.nodes[id].operands[i] = self.copy_for_use(program, operand);
            }
            for r in 0..program.nodes[id].regions.len() {
                self.copy_constant_operands(program, &program.nodes[id].regions[r].nodes.clone());
                for i in 0..program.nodes[id].regions[r].results.len() {
                    let result = program.nodes[id].regions[r].results[i];
                    program.nodes[id].regions[r].results[i] = self.copy_for_use(program, result);
                }
            }
        }
    }

    fn is_constant_expression(&self, v: Val) -> bool {
        self.kinds.get(v.index()).copied().flatten() == Some(ConstantKind::Expression)
    }

    /// Returns the kind of constant that a node's result is; `None` if it is none.
    fn constant_kind(&self, program: &RegionGraph, node: &Node) -> Option<ConstantKind> {
        let all = || !node.operands.is_empty() && node.operands.iter().all(|&v| self.is_constant_expression(v));
        let NodeKind::Op(op) = &node.kind else {
            return (node.kind == NodeKind::Constant).then_some(ConstantKind::Expression);
        };
        match op {
            Op::Literal(_) | Op::Structural(StructuralOp::Iota(_)) => Some(ConstantKind::Expression),
            Op::Scalar(_) if all() => Some(ConstantKind::Expression),
            Op::Structural(op) => {
                let is_pure = matches!(
                    op,
                    StructuralOp::Broadcast(_)
                        | StructuralOp::Reshape(_)
                        | StructuralOp::Slice(_)
                        | StructuralOp::Cast(_)
                        | StructuralOp::Bitcast(_)
                        | StructuralOp::Powi(_)
                );
                let is_expansion = matches!(op, StructuralOp::Broadcast(_)) && program.rank(node.operands[0]) == 0;
                match (is_pure && all(), is_expansion) {
                    (true, _) => Some(ConstantKind::Expression),
                    (false, true) => Some(ConstantKind::ScalarBroadcast),
                    (false, false) => None,
                }
            }
            Op::Scalar(_) | Op::Dynamic(_) | Op::Call(_) | Op::Identity(_) | Op::Collective(_) => None,
        }
    }

    /// Returns the value that one use reads: a new copy if `v` is to be copied, else `v`.
    fn copy_for_use(&mut self, program: &mut RegionGraph, v: Val) -> Val {
        match self.kinds.get(v.index()).copied().flatten() {
            Some(kind) => self.copy_constant(program, v, kind, &mut HashMap::new()),
            None => v,
        }
    }

    /// Makes a copy of a constant; `copies` has the copies made for the same use so far.
    fn copy_constant(
        &mut self,
        program: &mut RegionGraph,
        v: Val,
        kind: ConstantKind,
        copies: &mut HashMap<Val, Val>,
    ) -> Val {
        if program.rank(v) == 0 {
            return v;
        }
        if let Some(&copy) = copies.get(&v) {
            return copy;
        }
        let Some(original) = program.defining_node(v) else { return v };
        let Node { kind: op, operands, loc, label, .. } = program.nodes[original].clone();
        let operands = match kind {
            ConstantKind::Expression => {
                operands.into_iter().map(|x| self.copy_constant(program, x, kind, copies)).collect()
            }
            ConstantKind::ScalarBroadcast => operands,
        };
        let copy = program.create_node(op, operands, vec![program.ty(v).clone()], loc);
        program.nodes[copy].label = label;
        self.inserted.entry(original).or_default().push(copy);
        let result = program.nodes[copy].results[0];
        // A copy belongs to the groups of its original.
        for group in self.groups.get(&v).cloned().unwrap_or_default() {
            let member = program.create_node(program.nodes[group].kind.clone(), vec![result], vec![], loc);
            self.inserted.entry(original).or_default().push(member);
        }
        copies.insert(v, result);
        result
    }
}
