//! Clusters of steps that share their work with no other: of one operation, or of a scatter with the casts around it.
use super::cluster::Cluster;
use super::equation_kinds::is_standalone_op;
use super::grow::ClusterGrower;
use super::large_pads;
use super::scatter::{self, RoundedScatter};
use super::topological_order::ClusterOrder;
use super::unfused_reasons::UnfusedReason;
use crate::graph::{Equation, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::BTreeSet;

impl ClusterGrower<'_, '_> {
    /// Returns true for the last equation of a step that forms a cluster by itself: an operation, or a scatter with
    /// casts.
    pub(super) fn is_standalone_step(&self, equation: usize) -> bool {
        let e = &self.graph.equations[equation];
        is_standalone_op(&e.op)
            || self.found.sums.contains_key(&equation)
            || large_pads::is_standalone_pad(self.graph, &self.found.definitions, e, self.sizes)
    }

    /// Returns the cluster of a step that shares its work with no other, from its last equation.
    pub(super) fn standalone_cluster(&self, root: usize, order: &mut ClusterOrder) -> Cluster {
        let sum = self.found.sums.get(&root);
        for part in sum.map_or(vec![], |sum| vec![sum.scatter, sum.widen]) {
            order.merge_into(part, root);
        }
        let e = &self.graph.equations[sum.map_or(root, |sum| sum.scatter)];
        Cluster {
            members: sum.map_or(BTreeSet::from([root]), |sum| sum.equation_indices().into()),
            outs: self.graph.equations[root].results.iter().copied().collect(),
            apart: self.standalone_inputs(e).into_iter().map(|arg| (arg, UnfusedReason::Standalone)).collect(),
            ..Cluster::default()
        }
    }

    /// Returns the values that a standalone step reads from memory, where `e` is its equation: of a pad the padded
    /// array alone, and of a scatter between casts the updates before their cast.
    pub(super) fn standalone_inputs(&self, e: &Equation) -> Vec<Var> {
        match e.op {
            Op::Structural(StructuralOp::Scatter(_)) => {}
            // The kernel knows the literal with which it pads.
            Op::Structural(StructuralOp::Pad(_)) => return e.args[..1].to_vec(),
            _ => return e.args.clone(),
        }
        let mut all = scatter::scatter_inputs(self.graph, &self.found.definitions, e, self.sizes);
        let of = |sum: &&RoundedScatter| self.graph.equations[sum.scatter].result() == e.result();
        if let (Some(sum), Some(updates)) = (self.found.sums.values().find(of), all.last_mut()) {
            *updates = self.graph.equations[sum.widen].args[0];
        }
        all
    }
}
