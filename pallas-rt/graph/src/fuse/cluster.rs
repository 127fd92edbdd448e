//! Clusters: equations that share a kernel.
use super::apart::Apart;
use super::cut::{self, Cut, whole};
use super::kinds::is_alias;
use super::panels;
use super::scatter::Rounded;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, BTreeSet};

/// Equations that share a kernel, and how their values are split among its programs.
#[derive(Default, Debug)]
pub(crate) struct Cluster {
    /// The indices of the cluster's equations in the graph.
    pub members: BTreeSet<usize>,
    /// The members' results that equations outside of the cluster read.
    pub outs: BTreeSet<Var>,
    /// By result of a member, how each of its axes is split among programs.
    pub cuts: BTreeMap<Var, Vec<Cut>>,
    /// Extents of the axes of the kernel's grid, in positions of arrays.
    pub extents: Vec<usize>,
    /// The member that is a product (`dot` or a convolution); of several ones the first, which decides the blocks.
    pub product: Option<usize>,
    /// Extents of the product's contracted axes if it is computed in panels: further axes of the grid after `extents`.
    pub panels: Vec<usize>,
    /// By value that the cluster reads, the reason why another cluster computes it.
    pub apart: BTreeMap<Var, Apart>,
}

impl Cluster {
    /// Returns the cuts of each operand of a member whose result has these cuts; `None` if blocks of the result do not
    /// follow from blocks of the operands.
    pub(super) fn operands(&self, graph: &Graph, e: &Equation, cuts: &[Cut]) -> Option<Vec<Vec<Cut>>> {
        let mut operands = cut::operands(graph, e, cuts)?;
        let is_product = self.product.is_some_and(|i| graph.equations[i].result() == e.result());
        if is_product && !self.panels.is_empty() {
            panels::divide(graph, e, self.extents.len(), &mut operands);
        }
        Some(operands)
    }

    /// Returns the number of elements that all sorts of a program order, if blocks have one position along each axis of
    /// the grid.
    pub(super) fn sorted(&self, graph: &Graph) -> usize {
        let members = self.members.iter().map(|&i| &graph.equations[i]);
        members.map(|e| sorted(graph, e, &self.cuts[&e.result()])).sum()
    }
}

/// A graph whose equations are grouped in clusters.
pub(super) struct Clusters<'g> {
    pub graph: &'g Graph,
    /// By variable, the index of the equation that defines it.
    pub definitions: Vec<Option<usize>>,
    pub all: Vec<Cluster>,
    /// By equation, the index of its cluster; `None` for equations without a kernel, such as literals and reshapes of
    /// memory.
    pub owner: Vec<Option<usize>>,
    /// Sums of rows of 16-bit floats that are steps of their own, by the index of their last equation.
    pub sums: BTreeMap<usize, Rounded>,
}

impl Clusters<'_> {
    /// Returns the equation whose operation decides what kind of step a cluster is.
    pub(super) fn named_by(&self, cluster: &Cluster) -> usize {
        let [first, last] =
            [cluster.members.first(), cluster.members.last()].map(|i| *i.expect("a cluster has members"));
        self.sums.get(&last).map_or(first, |sum| sum.scatter)
    }

    /// Returns the value in whose memory a value is: a reshape that belongs to no cluster has its operand's memory.
    pub(super) fn stored_as(&self, mut v: Var) -> Var {
        while let Some(i) = self.definitions[v.index()]
            && is_alias(self.graph, &self.definitions, &self.graph.equations[i])
            && self.owner[i].is_none()
        {
            v = self.graph.equations[i].args[0];
        }
        v
    }

    /// Returns true if the memory of a value is read by a single equation of a cluster, and belongs to no result and to
    /// no parameter that the caller keeps.
    pub(super) fn has_one_reader(&self, v: Var, is_donated: &[bool]) -> bool {
        let stored = self.stored_as(v);
        let is = |other: &&Var| self.stored_as(**other) == stored;
        let params = self.graph.params.iter().zip(is_donated);
        let is_kept = params.filter(|(_, donated)| !**donated).any(|(p, _)| *p == stored);
        let owned = self.graph.equations.iter().zip(&self.owner).filter(|(_, owner)| owner.is_some());
        let reads = owned.flat_map(|(e, _)| &e.args).filter(is).take(2).count();
        !is_kept && reads == 1 && !self.graph.results.iter().any(|r| is(&r))
    }

    /// Returns the reason why a cluster reads a value from memory; `None` if no cluster computes the value.
    pub(super) fn apart(&self, cluster: usize, v: Var) -> Option<Apart> {
        let stored = self.stored_as(v);
        self.cluster_of(stored)?;
        let apart = self.all[cluster].apart.iter();
        apart.filter(|(own, _)| self.stored_as(**own) == stored).map(|(_, apart)| *apart).next_back()
    }

    /// Returns the cluster that computes a value; `None` for parameters and values without a kernel.
    pub(super) fn cluster_of(&self, v: Var) -> Option<usize> {
        self.owner[self.definitions[self.stored_as(v).index()]?]
    }
}

/// Returns the number of elements that a sort orders in a program, if blocks have one position along each axis of the
/// grid; 0 for other equations. The program needs memory for two positions of each, and its loops grow with them.
pub(super) fn sorted(graph: &Graph, e: &Equation, cuts: &[Cut]) -> usize {
    let Op::Structural(StructuralOp::Sort(_) | StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_)) = &e.op else {
        return 0;
    };
    cut::operands(graph, e, cuts).map_or(0, |operands| whole(&graph.ty(e.args[0]).shape, &operands[0]))
}
