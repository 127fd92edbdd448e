//! Clusters: equations that share a kernel.
use super::axis_tiling::{self, AxisTiling, min_block_elements};
use super::equation_kinds::is_memory_alias;
use super::panels;
use super::scatter::RoundedScatter;
use super::unfused_reasons::UnfusedReason;
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
    pub tilings: BTreeMap<Var, Vec<AxisTiling>>,
    /// Extents of the axes of the kernel's grid, in positions of arrays.
    pub extents: Vec<usize>,
    /// The member that is a product (`dot` or a convolution); of several ones the first, which decides the blocks.
    pub product: Option<usize>,
    /// Extents of the product's contracted axes if it is computed in panels: further axes of the grid after `extents`.
    pub panels: Vec<usize>,
    /// By value that the cluster reads, the reason why another cluster computes it.
    pub apart: BTreeMap<Var, UnfusedReason>,
}

impl Cluster {
    /// Returns the tiling of each operand of a member whose result has this tiling; `None` if blocks of the result do
    /// not follow from blocks of the operands.
    pub(super) fn operand_tilings(
        &self,
        graph: &Graph,
        e: &Equation,
        tiling: &[AxisTiling],
    ) -> Option<Vec<Vec<AxisTiling>>> {
        let mut operands = axis_tiling::operand_tilings(graph, e, tiling)?;
        let is_product = self.product.is_some_and(|i| graph.equations[i].result() == e.result());
        if is_product && !self.panels.is_empty() {
            panels::split_contracted_axes(graph, e, self.extents.len(), &mut operands);
        }
        Some(operands)
    }

    /// Returns the number of elements that all sorts of a program order together, if the program has the smallest
    /// blocks: one index along each axis of the grid.
    pub(super) fn count_sorted_elements(&self, graph: &Graph) -> usize {
        let members = self.members.iter().map(|&i| &graph.equations[i]);
        members.map(|e| count_sorted_elements_in_equation(graph, e, &self.tilings[&e.result()])).sum()
    }
}

/// A graph whose equations are grouped in clusters.
pub(super) struct ClusteredGraph<'g> {
    pub graph: &'g Graph,
    /// By variable, the index of the equation that defines it.
    pub definitions: Vec<Option<usize>>,
    pub all: Vec<Cluster>,
    /// By equation, the index of its cluster; `None` for equations without a kernel, such as literals and aliases of
    /// memory.
    pub owner: Vec<Option<usize>>,
    /// Sums of rows of 16-bit floats that are steps of their own, by the index of their last equation.
    pub sums: BTreeMap<usize, RoundedScatter>,
}

impl ClusteredGraph<'_> {
    /// Returns the index of the equation whose operation decides how a cluster is lowered: the scatter of a scatter
    /// between casts, else the cluster's first equation.
    pub(super) fn step_kind_equation(&self, cluster: &Cluster) -> usize {
        let [first, last] =
            [cluster.members.first(), cluster.members.last()].map(|i| *i.expect("a cluster has members"));
        self.sums.get(&last).map_or(first, |sum| sum.scatter)
    }

    /// Returns the value in whose memory `v` is stored: `v` itself, or for an alias that no cluster computes, the value
    /// that stores its operand.
    pub(super) fn storage_value(&self, mut v: Var) -> Var {
        while let Some(i) = self.definitions[v.index()]
            && is_memory_alias(self.graph, &self.definitions, &self.graph.equations[i])
            && self.owner[i].is_none()
        {
            v = self.graph.equations[i].args[0];
        }
        v
    }

    /// Returns true if the memory of a value is read by a single equation of a cluster, and belongs to no result and to
    /// no parameter that the caller keeps.
    pub(super) fn has_one_reader(&self, v: Var, is_donated: &[bool]) -> bool {
        let stored = self.storage_value(v);
        let is = |other: &&Var| self.storage_value(**other) == stored;
        let params = self.graph.params.iter().zip(is_donated);
        let is_kept = params.filter(|(_, donated)| !**donated).any(|(p, _)| *p == stored);
        let owned = self.graph.equations.iter().zip(&self.owner).filter(|(_, owner)| owner.is_some());
        let reads = owned.flat_map(|(e, _)| &e.args).filter(is).take(2).count();
        !is_kept && reads == 1 && !self.graph.results.iter().any(|r| is(&r))
    }

    /// Returns the reason why a cluster reads a value from memory; `None` if no cluster computes the value.
    pub(super) fn unfused_reason(&self, cluster: usize, v: Var) -> Option<UnfusedReason> {
        let stored = self.storage_value(v);
        self.cluster_of(stored)?;
        let apart = self.all[cluster].apart.iter();
        apart.filter(|(own, _)| self.storage_value(**own) == stored).map(|(_, apart)| *apart).next_back()
    }

    /// Returns the cluster that computes a value; `None` for parameters and values without a kernel.
    pub(super) fn cluster_of(&self, v: Var) -> Option<usize> {
        self.owner[self.definitions[self.storage_value(v).index()]?]
    }
}

/// Returns the number of elements that a sort orders in a program with the smallest blocks, of one index along each
/// axis of the grid; 0 for other equations. The program's memory and its loops grow with this number.
pub(super) fn count_sorted_elements_in_equation(graph: &Graph, e: &Equation, tiling: &[AxisTiling]) -> usize {
    let Op::Structural(StructuralOp::Sort(_) | StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_)) = &e.op else {
        return 0;
    };
    axis_tiling::operand_tilings(graph, e, tiling)
        .map_or(0, |operands| min_block_elements(&graph.ty(e.args[0]).shape, &operands[0]))
}
