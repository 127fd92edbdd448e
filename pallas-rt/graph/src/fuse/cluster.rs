//! Clusters: equations that share a kernel.
use super::apart::Apart;
use super::cut::{self, Cut, whole};
use super::kinds::is_alias;
use super::panels;
use super::scatter::Rounded;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, BTreeSet};

/// Equations that share a kernel.
#[derive(Default, Debug)]
pub(crate) struct Cluster {
    /// Their numbers.
    pub members: BTreeSet<usize>,
    /// The values that others read.
    pub outs: BTreeSet<Var>,
    /// The cuts of every value that a member defines.
    pub cuts: BTreeMap<Var, Vec<Cut>>,
    /// Extents of the values along the axes of the grid.
    pub extents: Vec<usize>,
    /// The member that is a `dot`; of several ones the first, whose blocks the programs have.
    pub product: Option<usize>,
    /// Extents of the product's contracted axes, if it is computed in panels: axes of the grid behind those of `extents`.
    pub panels: Vec<usize>,
    /// Why others compute the values that it reads.
    pub apart: BTreeMap<Var, Apart>,
}

impl Cluster {
    /// The cuts of each operand of a member whose result has these cuts.
    pub(super) fn operands(&self, graph: &Graph, e: &Equation, cuts: &[Cut]) -> Option<Vec<Vec<Cut>>> {
        let mut operands = cut::operands(graph, e, cuts)?;
        let is_product = self.product.is_some_and(|i| graph.equations[i].result() == e.result());
        if is_product && !self.panels.is_empty() {
            panels::divide(graph, e, self.extents.len(), &mut operands);
        }
        Some(operands)
    }

    /// Elements that its programs put in order.
    pub(super) fn sorted(&self, graph: &Graph) -> usize {
        let members = self.members.iter().map(|&i| &graph.equations[i]);
        members.map(|e| sorted(graph, e, &self.cuts[&e.result()])).sum()
    }
}

/// A graph in clusters.
pub(super) struct Clusters<'g> {
    pub graph: &'g Graph,
    pub definitions: Vec<Option<usize>>,
    pub all: Vec<Cluster>,
    /// By equation, the number of its cluster.
    pub owner: Vec<Option<usize>>,
    /// Sums of rows that are steps of their own, by their last equation.
    pub sums: BTreeMap<usize, Rounded>,
}

impl Clusters<'_> {
    /// The equation whose operation says what the step of a cluster is.
    pub(super) fn named_by(&self, cluster: &Cluster) -> usize {
        let [first, last] =
            [cluster.members.first(), cluster.members.last()].map(|i| *i.expect("a cluster has members"));
        self.sums.get(&last).map_or(first, |sum| sum.scatter)
    }

    /// The value whose memory a value has: a reshape that belongs to no cluster has its operand's.
    pub(super) fn stored_as(&self, mut v: Var) -> Var {
        while let Some(i) = self.definitions[v.index()]
            && is_alias(self.graph, &self.definitions, &self.graph.equations[i])
            && self.owner[i].is_none()
        {
            v = self.graph.equations[i].args[0];
        }
        v
    }

    /// Returns true if one cluster reads the memory of a value, and only once, and it is not a result's or the caller's.
    pub(super) fn has_one_reader(&self, v: Var, is_donated: &[bool]) -> bool {
        let stored = self.stored_as(v);
        let is = |other: &&Var| self.stored_as(**other) == stored;
        let params = self.graph.params.iter().zip(is_donated);
        let is_kept = params.filter(|(_, donated)| !**donated).any(|(p, _)| *p == stored);
        let owned = self.graph.equations.iter().zip(&self.owner).filter(|(_, owner)| owner.is_some());
        let reads = owned.flat_map(|(e, _)| &e.args).filter(is).take(2).count();
        !is_kept && reads == 1 && !self.graph.results.iter().any(|r| is(&r))
    }

    /// Why a cluster does not compute a value that it reads from memory, and that another cluster computes.
    pub(super) fn apart(&self, cluster: usize, v: Var) -> Option<Apart> {
        let stored = self.stored_as(v);
        self.cluster_of(stored)?;
        let apart = self.all[cluster].apart.iter();
        apart.filter(|(own, _)| self.stored_as(**own) == stored).map(|(_, apart)| *apart).next_back()
    }

    /// The cluster that computes a value.
    pub(super) fn cluster_of(&self, v: Var) -> Option<usize> {
        self.owner[self.definitions[self.stored_as(v).index()]?]
    }
}

/// Elements that an equation puts in order in a program of blocks of 1; 0 if it is no sort. Such a program needs memory
/// for two positions of each, and its loops grow with them.
pub(super) fn sorted(graph: &Graph, e: &Equation, cuts: &[Cut]) -> usize {
    let Op::Structural(StructuralOp::Sort(_) | StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_)) = &e.op else {
        return 0;
    };
    cut::operands(graph, e, cuts).map_or(0, |operands| whole(&graph.ty(e.args[0]).shape, &operands[0]))
}
