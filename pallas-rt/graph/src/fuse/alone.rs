//! Clusters of steps that share their work with no other: of one operation, or of a scatter with the casts around it.
use super::apart::Apart;
use super::cluster::Cluster;
use super::grow::Grow;
use super::kinds::is_alone;
use super::order::Order;
use super::padded;
use super::scatter::{self, Rounded};
use crate::graph::{Equation, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::BTreeSet;

impl Grow<'_, '_> {
    /// Returns true for the last equation of a step that forms a cluster by itself: an operation, or a scatter with
    /// casts.
    pub(super) fn is_alone(&self, i: usize) -> bool {
        let e = &self.graph.equations[i];
        is_alone(&e.op)
            || self.found.sums.contains_key(&i)
            || padded::is_apart(self.graph, &self.found.definitions, e, self.sizes)
    }

    /// Returns the cluster of a step that shares its work with no other, from its last equation.
    pub(super) fn alone(&self, root: usize, order: &mut Order) -> Cluster {
        let sum = self.found.sums.get(&root);
        for part in sum.map_or(vec![], |sum| vec![sum.scatter, sum.widen]) {
            order.merge(part, root);
        }
        let e = &self.graph.equations[sum.map_or(root, |sum| sum.scatter)];
        Cluster {
            members: sum.map_or(BTreeSet::from([root]), |sum| sum.members().into()),
            outs: self.graph.equations[root].results.iter().copied().collect(),
            apart: self.read_by(e).into_iter().map(|arg| (arg, Apart::Alone)).collect(),
            ..Cluster::default()
        }
    }

    /// Returns the values that a step of its own reads from memory, from its equation (that of the scatter, if it has
    /// casts).
    pub(super) fn read_by(&self, e: &Equation) -> Vec<Var> {
        match e.op {
            Op::Structural(StructuralOp::Scatter(_)) => {}
            // The kernel knows the literal with which it pads.
            Op::Structural(StructuralOp::Pad(_)) => return e.args[..1].to_vec(),
            _ => return e.args.clone(),
        }
        let mut all = scatter::reads(self.graph, &self.found.definitions, e, self.sizes);
        let of = |sum: &&Rounded| self.graph.equations[sum.scatter].result() == e.result();
        if let (Some(sum), Some(updates)) = (self.found.sums.values().find(of), all.last_mut()) {
            *updates = self.graph.equations[sum.widen].args[0];
        }
        all
    }
}
