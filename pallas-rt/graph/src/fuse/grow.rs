//! Growth of clusters, each from its last equation backwards to those it depends on.
use super::axis_tiling::{
    self, AxisTiling, AxisTiling::Full, AxisTiling::Grid, has_distinct_blocks, min_block_elements,
};
use super::cluster::{Cluster, ClusteredGraph, count_sorted_elements_in_equation};
use super::convolution_blocks;
use super::device_limits::DeviceLimits;
use super::dynamic_window_kernels;
use super::equation_kinds::{
    MAX_RECOMPUTED_ELEMENTS, is_always_inlined, is_memory_alias, is_product, is_short_fold, is_standalone_op,
};
use super::large_pads;
use super::merge::merge_clusters;
use super::moves::{self, WholeAxes};
use super::panels;
use super::scatter::RoundedScatter;
use super::split_reductions::StageKernelResults;
use super::topological_order::ClusterOrder;
use super::unfused_reasons::UnfusedReason;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Most equations of a cluster: passes over a kernel's body take more than linear time.
pub(super) const MAX_CLUSTER_EQUATIONS: usize = 300;
/// Longest last axis that each program has whole if rows are folded.
const MAX_WHOLE_ROW_ELEMENTS: usize = 1 << 15;
/// Most columns of a product that each program has whole if its rows are folded.
const MAX_WHOLE_PRODUCT_COLUMNS: usize = 512;
/// Most columns of a product that each program has whole on a CPU if its rows are folded and each element is a sum of
/// at most [`MAX_SHORT_SUM_TERMS`] terms: writing the product and reading it again to fold it, as a softmax of scores
/// does, would take longer than computing it.
const MAX_SHORT_SUM_COLUMNS: usize = 1 << 12;
/// Maximum terms of the sum that each element of a product is, for each program to have up to
/// [`MAX_SHORT_SUM_COLUMNS`] of its columns whole.
const MAX_SHORT_SUM_TERMS: usize = 256;
/// Most members of a cluster that several programs may each compute, although they are not small.
const MAX_REPEATED_MEMBERS: usize = 16;

/// Groups equations in clusters, from the last equation to the first, until each one that takes work belongs to one.
/// `stage_results` maps each value that one stage of a long reduction passes to the next to the result whose kernel has
/// to compute it.
pub(super) fn grow_clusters<'g>(
    graph: &'g Graph,
    stage_results: &StageKernelResults,
    sizes: &DeviceLimits,
) -> ClusteredGraph<'g> {
    let mut grow = ClusterGrower {
        graph,
        given: stage_results,
        sizes,
        uses: graph.uses(),
        is_stored: vec![false; graph.types.len()],
        found: ClusteredGraph {
            graph,
            definitions: graph.definitions(),
            all: vec![],
            owner: vec![None; graph.equations.len()],
            sums: RoundedScatter::find_all(graph, sizes),
        },
    };
    // Positions that are literals are part of a window's kernel and are not read.
    let is_read = |e: &Equation, v: Var| {
        !matches!(e.op, Op::Dynamic(_))
            || dynamic_window_kernels::literal_value(graph, &grow.found.definitions, v).is_none()
    };
    let alone = graph
        .equations
        .iter()
        .filter(|e| is_standalone_op(&e.op) || large_pads::is_standalone_pad(graph, &grow.found.definitions, e, sizes));
    let read = alone.flat_map(|e| grow.standalone_inputs(e).into_iter().filter(|&v| is_read(e, v)));
    let read_from_memory: Vec<Var> = read.collect();
    graph.results.iter().chain(&read_from_memory).for_each(|v| grow.is_stored[v.index()] = true);
    let mut order = ClusterOrder::new(graph);
    for root in (0..graph.equations.len()).rev() {
        let e = &graph.equations[root];
        let is_stored = grow.is_stored[e.result().index()];
        let is_free = is_always_inlined(graph, &grow.found.definitions, e);
        if grow.found.owner[root].is_none()
            && !is_memory_alias(graph, &grow.found.definitions, e)
            && (is_stored || !is_free)
        {
            let cluster = grow.grow_cluster_from(root, &mut order);
            let id = grow.found.all.len();
            cluster.members.iter().for_each(|&i| grow.found.owner[i] = Some(id));
            grow.found.all.push(cluster);
        }
    }
    merge_clusters(&mut grow, &mut order);
    grow.found
}

/// State while the equations of a graph are grouped in clusters.
pub(super) struct ClusterGrower<'g, 's> {
    pub graph: &'g Graph,
    given: &'s StageKernelResults,
    pub sizes: &'s DeviceLimits,
    /// By variable, the equations that read it.
    uses: Vec<Vec<usize>>,
    /// By variable, true if it is in memory anyway: results, and operands of operations that form a step of their own.
    is_stored: Vec<bool>,
    /// The clusters that were found so far.
    pub found: ClusteredGraph<'g>,
}

/// The tiling of the equation from which a cluster grows.
struct RootTiling {
    /// By axis of the result, its tiling.
    axes: Vec<AxisTiling>,
    /// Extents of the axes of the grid, in positions of arrays.
    extents: Vec<usize>,
    /// True if the result is computed from a product of its shape.
    has_dot: bool,
}

impl ClusterGrower<'_, '_> {
    /// Returns the tiling of an equation's result: each axis is split among programs, except the last one if rows are
    /// folded or if it has few enough columns of a product.
    fn tile_root(&self, equation: usize) -> RootTiling {
        let graph = self.graph;
        let shape = &graph.ty(graph.equations[equation].result()).shape;
        // All equations that the result depends on, up to operations of other kinds.
        let (mut stack, mut seen, mut has_dot, mut has_rows) = (vec![equation], BTreeSet::new(), false, false);
        let mut longest = usize::MAX;
        // Axes that a program has to have whole for a convolution or a window, and axes along which elements move.
        let (mut whole, mut moved) = (vec![false; shape.len()], vec![false; shape.len()]);
        let mut windowed = None;
        while let Some(j) = stack.pop() {
            if !seen.insert(j) || seen.len() > 64 {
                continue;
            }
            let e = &graph.equations[j];
            let own = &graph.ty(e.result()).shape;
            if let Some(axes) = (own == shape).then(|| convolution_blocks::windowed_whole_axes(graph, e)).flatten() {
                if is_product(&e.op) && windowed.is_none() {
                    windowed = Some(axes.clone());
                }
                whole.iter_mut().zip(axes).for_each(|(whole, own)| *whole |= own);
            }
            if is_product(&e.op) {
                if has_permuted_rows(own, shape) {
                    has_dot = true;
                    longest = longest.min(self.max_whole_columns(e));
                }
                continue;
            }
            if is_standalone_op(&e.op) {
                continue;
            }
            let needed = match &e.op {
                Op::Structural(op) => moves::find_whole_axes(graph, e, op),
                _ => WholeAxes::Nothing,
            };
            match needed {
                // Rows of another shape are whole in each program, however the axes of this one are split.
                WholeAxes::Folded(axes) => {
                    let of = &graph.ty(e.args[0]).shape;
                    has_rows |= of == shape && axes.contains(&of.len().wrapping_sub(1));
                }
                WholeAxes::Moved(axes) => {
                    let is_last = axes.contains(&own.len().wrapping_sub(1));
                    has_rows |= is_last || !moves::can_split_columns(&axes, own, self.sizes);
                    let is_same = |axis: usize| axes.contains(&axis) || own[axis] == shape[axis];
                    if own.len() == shape.len() && (0..own.len()).all(is_same) {
                        axes.iter().for_each(|&axis| moved[axis] = true);
                    }
                }
                // Rows that are windows are copied as a whole.
                WholeAxes::Copied(axes) => has_rows |= axes.contains(&own.len().wrapping_sub(1)),
                WholeAxes::Nothing => stack.extend(e.args.iter().filter_map(|a| self.found.definitions[a.index()])),
            }
        }
        let columns = if has_rows { longest } else { self.sizes.product[1].min(MAX_WHOLE_PRODUCT_COLUMNS) };
        // Programs have axes whole along which elements move if programs split the columns, or if a tile can hold these
        // axes and the rows and enough programs are left. Then all that moves along other axes shares the kernel too.
        let is_held = |axis: usize| moved[axis] || axis + 1 == shape.len();
        let (held, others): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|&axis| is_held(axis));
        let [held, others] = [held, others].map(|axes| axes.iter().map(|&axis| shape[axis]).product::<usize>());
        let holds = held <= self.sizes.tile && others >= self.sizes.programs;
        if !has_dot && (!has_rows || holds) {
            whole.iter_mut().zip(moved).for_each(|(whole, moved)| *whole |= moved);
        }
        let (mut axes, mut extents) = (vec![], vec![]);
        for (axis, &n) in shape.iter().enumerate() {
            let is_row =
                axis + 1 == shape.len() && if has_dot { n <= columns } else { has_rows && n <= MAX_WHOLE_ROW_ELEMENTS };
            let is_whole = windowed.as_ref().map_or(is_row || whole[axis], |axes| axes[axis]);
            axes.push(if n == 1 || is_whole { Full } else { Grid(extents.len() as u8) });
            if axes[axis] != Full {
                extents.push(n);
            }
        }
        RootTiling { axes, extents, has_dot }
    }

    /// Returns the most columns of a product that each program has whole if its rows are folded.
    fn max_whole_columns(&self, e: &Equation) -> usize {
        let Op::Structural(StructuralOp::Dot(dot)) = &e.op else { return MAX_WHOLE_PRODUCT_COLUMNS };
        let of = &self.graph.ty(e.args[0]).shape;
        let summed: usize = dot.contract.iter().map(|p| of[p.0]).product();
        if self.sizes.panel.is_none() && summed <= MAX_SHORT_SUM_TERMS {
            MAX_SHORT_SUM_COLUMNS
        } else {
            MAX_WHOLE_PRODUCT_COLUMNS
        }
    }

    /// Returns true if a product would have this tiling as the root of a cluster of its own; a last axis that is whole
    /// is allowed if it is short enough, since its rows are folded then.
    fn is_root_tiling(&self, product: usize, tiling: &[AxisTiling]) -> bool {
        let own = self.tile_root(product).axes;
        let columns = self.graph.ty(self.graph.equations[product].result()).shape.last();
        let has_whole_rows = columns.is_some_and(|&n| n <= self.max_whole_columns(&self.graph.equations[product]))
            && tiling.last() == Some(&Full);
        let rows = if has_whole_rows { own.len() - 1 } else { own.len() };
        own.len() == tiling.len() && is_grid_axis_renumbering(&own[..rows], &tiling[..rows])
    }

    /// Grows the cluster whose last equation is `root`.
    fn grow_cluster_from(&self, root: usize, order: &mut ClusterOrder) -> Cluster {
        let graph = self.graph;
        if self.is_standalone_step(root) {
            return self.standalone_cluster(root, order);
        }
        let mut own = self.tile_root(root);
        if axis_tiling::operand_tilings(graph, &graph.equations[root], &own.axes).is_none() {
            // An axis along which the root moves elements is whole; at worst there is one program.
            own = self.keep_splittable_axes(root, own);
        }
        let result = graph.equations[root].result();
        let mut cluster = Cluster { outs: BTreeSet::from([result]), extents: own.extents, ..Cluster::default() };
        let mut repeated = RepetitionLimits {
            most: min_block_elements(&graph.ty(result).shape, &own.axes),
            left: MAX_REPEATED_MEMBERS,
        };
        // The tilings with which members need a value. Equations are visited after all their readers, so all are known
        // by then.
        let mut wanted: BTreeMap<Var, BTreeSet<Vec<AxisTiling>>> =
            BTreeMap::from([(result, BTreeSet::from([own.axes]))]);
        // Values that operands of the cluster's product depend on.
        let mut in_front: BTreeSet<Var> = BTreeSet::new();
        let mut next = BinaryHeap::from([root]);
        while let Some(i) = next.pop() {
            if next.peek() == Some(&i) {
                continue;
            }
            let e = &graph.equations[i];
            let wanted_tilings = &wanted[&e.result()];
            let tiling = wanted_tilings.first().expect("someone asks for it").clone();
            let mut joins = || {
                UnfusedReason::require(cluster.members.len() < MAX_CLUSTER_EQUATIONS, UnfusedReason::KernelFull)?;
                UnfusedReason::require(wanted_tilings.len() == 1, UnfusedReason::DifferentBlocks)?;
                let sorts = count_sorted_elements_in_equation(graph, e, &tiling);
                let others = if sorts == 0 { 0 } else { cluster.count_sorted_elements(graph) };
                UnfusedReason::require(
                    others == 0 || others + sorts <= self.sizes.sorted,
                    UnfusedReason::TooManySorts,
                )?;
                UnfusedReason::require(
                    self.given.get(&e.result()).is_none_or(|own| *own == result),
                    UnfusedReason::ReductionStage,
                )?;
                self.check_can_join(&cluster, i, &tiling, &in_front, &mut repeated)?;
                UnfusedReason::require(!order.would_close_cycle(i, root), UnfusedReason::Cycle)
            };
            let operands = if i == root { Ok(()) } else { joins() };
            let operands = operands
                .and_then(|()| axis_tiling::operand_tilings(graph, e, &tiling).ok_or(UnfusedReason::DifferentBlocks));
            let mut operands = match operands {
                Ok(operands) => operands,
                Err(apart) => {
                    assert!(i != root, "{} is computed in some way", e.op);
                    cluster.apart.insert(e.result(), apart);
                    continue;
                }
            };
            if is_product(&e.op) {
                cluster.product = Some(i);
                cluster.panels = panels::panel_extents(graph, e, self.sizes);
                operands = cluster.operand_tilings(graph, e, &tiling).expect("a product has a tiling");
            }
            if is_product(&e.op) || in_front.contains(&e.result()) {
                in_front.extend(&e.args);
            }
            if self.is_result_stored(&cluster, i) {
                debug_assert!(
                    has_distinct_blocks(cluster.extents.len(), &tiling),
                    "several programs store one block of {}",
                    e.op
                );
                cluster.outs.insert(e.result());
            }
            cluster.members.insert(i);
            if i != root {
                order.merge_into(i, root);
            }
            cluster.tilings.insert(e.result(), tiling);
            for (i, (&arg, tiling)) in e.args.iter().zip(operands).enumerate() {
                wanted.entry(arg).or_default().insert(tiling);
                // Each program would compute the whole table of the gather.
                if i == 0 && matches!(e.op, Op::Structural(StructuralOp::Gather(_))) {
                    cluster.apart.insert(arg, UnfusedReason::GatherTable);
                    continue;
                }
                let Some(d) = self.found.definitions[arg.index()] else { continue };
                if self.is_standalone_step(d) {
                    cluster.apart.insert(arg, UnfusedReason::Standalone);
                } else if !is_always_inlined(graph, &self.found.definitions, &graph.equations[d]) {
                    next.push(d);
                }
            }
        }
        cluster
    }

    /// Returns `tiling` with each split axis made whole along which blocks of the root's result do not follow from
    /// blocks of its operands.
    fn keep_splittable_axes(&self, root: usize, tiling: RootTiling) -> RootTiling {
        let e = &self.graph.equations[root];
        let shape = &self.graph.ty(e.result()).shape;
        let mut axes = vec![Full; tiling.axes.len()];
        let mut extents = vec![];
        for axis in 0..axes.len() {
            if tiling.axes[axis] != Full {
                axes[axis] = Grid(extents.len() as u8);
                match axis_tiling::operand_tilings(self.graph, e, &axes) {
                    Some(_) => extents.push(shape[axis]),
                    None => axes[axis] = Full,
                }
            }
        }
        RootTiling { axes, extents, ..tiling }
    }

    /// Returns true if an equation reads and computes only few elements, so that every program may compute it again.
    fn is_cheap_to_repeat(&self, e: &Equation) -> bool {
        let mut values = e.args.iter().chain(&e.results).map(|&v| self.graph.ty(v));
        !is_product(&e.op) && values.all(|ty| ty.shape.iter().product::<usize>() <= MAX_RECOMPUTED_ELEMENTS)
    }

    /// Returns true if the result of an equation is written to memory: an equation outside of the cluster reads it, it
    /// is a result of the graph, or an operation that is a step of its own reads it.
    pub(super) fn is_result_stored(&self, cluster: &Cluster, equation: usize) -> bool {
        let result = self.graph.equations[equation].result();
        self.is_stored[result.index()] || self.uses[result.index()].iter().any(|user| !cluster.members.contains(user))
    }

    /// Checks if an equation whose result has this tiling can become a member, apart from cycles of clusters; the error
    /// is the reason why it cannot. `product_inputs` has the values that operands of the cluster's product depend on.
    fn check_can_join(
        &self,
        cluster: &Cluster,
        equation: usize,
        tiling: &[AxisTiling],
        product_inputs: &BTreeSet<Var>,
        repetition_limits: &mut RepetitionLimits,
    ) -> Result<(), UnfusedReason> {
        let e = &self.graph.equations[equation];
        let is_stored = self.is_result_stored(cluster, equation);
        let is_alias = is_memory_alias(self.graph, &self.found.definitions, e);
        let is_broadcast = matches!(e.op, Op::Structural(StructuralOp::Broadcast(_)));
        let is_cheap = is_alias || is_broadcast || self.is_cheap_to_repeat(e);
        UnfusedReason::require(self.found.owner[equation].is_none(), UnfusedReason::InOtherKernel)?;
        UnfusedReason::require(!is_alias || !is_stored, UnfusedReason::MemoryAlias)?;
        // A product joins only with the blocks that it would have alone.
        UnfusedReason::require(!is_product(&e.op) || cluster.product.is_none(), UnfusedReason::SecondProduct)?;
        UnfusedReason::require(
            !is_product(&e.op) || self.is_root_tiling(equation, tiling),
            UnfusedReason::DifferentBlocks,
        )?;
        // An equation after another product belongs to that product's cluster.
        let follows = product_inputs.contains(&e.result()) && !is_cheap && self.tile_root(equation).has_dot;
        UnfusedReason::require(!follows, UnfusedReason::SecondProduct)?;
        // A program whose block does not depend on an axis of the grid computes the same as others along that axis, and
        // would store to the same block.
        let is_in_front = product_inputs.contains(&e.result());
        // Before a product in panels, it would be computed again for each panel that it does not belong to.
        let once = if is_in_front { cluster.panels.len() } else { 0 };
        if has_distinct_blocks(cluster.extents.len() + once, tiling) || !is_stored && is_cheap {
            return Ok(());
        }
        let elements = min_block_elements(&self.graph.ty(e.result()).shape, tiling);
        // More repeated work is worth it for an operand of a product, which does more with each element.
        let most = if is_in_front { repetition_limits.most.max(self.sizes.tile) } else { repetition_limits.most };
        let is_little = e.op.is_cheap_per_element() && elements <= most || once == 0 && is_short_fold(self.graph, e);
        UnfusedReason::require(!is_stored && is_little && repetition_limits.left > 0, UnfusedReason::RepeatedWork)?;
        repetition_limits.left -= 1;
        Ok(())
    }
}

/// Limits for members of a cluster that several programs compute again: little beside what each computes alone.
struct RepetitionLimits {
    /// Most elements of a repeated member in a program, if blocks have one position along each axis of the grid.
    most: usize,
    /// Number of repeated members that may still be added.
    left: usize,
}

/// Returns true if both shapes have the same last axis, and the same other axes in any order.
fn has_permuted_rows(shape: &[usize], other: &[usize]) -> bool {
    let sorted = |shape: &[usize]| {
        let mut shape = shape.to_vec();
        shape.sort_unstable();
        shape
    };
    shape.last() == other.last() && sorted(shape) == sorted(other)
}

/// Returns true if both tilings are equal except that the axes of the grid have other numbers, each of which occurs
/// once.
fn is_grid_axis_renumbering(tiling: &[AxisTiling], others: &[AxisTiling]) -> bool {
    let mut seen = BTreeSet::new();
    tiling.iter().zip(others).all(|(own, other)| match (own, other) {
        (Grid(_), Grid(k)) => seen.insert(*k),
        _ => own == other,
    })
}
