//! Translates a lowered kernel to the steps of a CPU program, and assigns its tiles their memory.
//!
//! [`step`] defines the steps. Passes before them: [`fused_casts`] leaves casts to products and sums, [`gather_fill`]
//! selections to gathers; [`folds`] splits folds; [`concats`] stores concatenated tiles one by one. [`build`] makes
//! steps of instructions. Passes after it: [`copy_elision`] lets loads refer to the operand's memory and results be
//! computed where they are stored, [`past_end_tiles`] also past the array's end; [`sweeps`] runs chains over the same
//! rows together; [`loop_compilation`] finds loops that run as one piece of machine code; [`accumulated_products`] lets
//! sums of products begin and end without copies; [`in_place_gathers`] lets products read gathered rows in their array;
//! [`tile_slots`] assigns the other tiles their place in a program's arena. [`uses`] says which steps access which
//! values; [`cpu_plan_text`] prints a plan. Each pass takes time in proportion to the body's length.
mod accumulated_products;
mod build;
mod concats;
mod copy_elision;
mod cpu_plan_text;
mod folds;
mod fused_casts;
mod gather_fill;
mod in_place_gathers;
pub(super) mod loop_compilation;
mod past_end_tiles;
pub(super) mod step;
mod sweeps;
#[cfg(test)]
mod tests;
mod tile_slots;
mod uses;

use super::Thresholds;
use crate::passes::access_form;
use pallas_ir::{AccessForm, DType, Kernel, Op, OperandId, OperandKind, RegionId, StructuralOp, Value};
use std::sync::Arc;
use step::{LaunchConstant, StepBlock};

/// A kernel compiled for CPUs: its steps, and the memory of its values.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kernel: Arc<Kernel>,
    pub(super) body: StepBlock,
    /// Values that are the same for every program of a launch.
    pub(super) fixed: Vec<(Value, LaunchConstant)>,
    /// Values that are parameters of the kernel, with their operands.
    pub(super) params: Vec<(Value, OperandId)>,
    /// Index tables that [`Step::Iota`](step::Step::Iota) reads: each has an element type and a number of entries,
    /// which are 0, 1, ..
    pub(super) tables: Vec<(DType, usize)>,
    /// For each value the value whose memory it refers to: itself, if it has its own.
    pub(super) roots: Vec<Value>,
    /// Byte offset of each tile's own memory in a program's arena; tiles that are not alive at once may share memory.
    pub(super) slots: Vec<Option<usize>>,
    /// Byte offset of each scratch operand in the arena, after the tiles.
    pub(super) scratch: Vec<usize>,
    pub(super) arena_bytes: usize,
    /// Rough number of elementary operations of one program.
    pub(super) work: usize,
    pub(super) sizes: &'static Thresholds,
}

/// Compiles a lowered kernel to a plan for CPUs.
pub(super) fn build_plan(kernel: Arc<Kernel>, thresholds: &'static Thresholds) -> Plan {
    let kernel = fused_casts::move_casts_behind_transposes(&kernel).map_or(kernel, Arc::new);
    let kernel = folds::split_folds_by_rows(&kernel).map_or(kernel, Arc::new);
    let kernel = concats::split_concat_stores(&kernel).map_or(kernel, Arc::new);
    let mut build = build::StepBuilder::new(&kernel, thresholds);
    let mut body = build.translate_region(kernel.body);
    let build::StepBuilder { base, fixed, params, tables, .. } = build;
    let roots = resolve_memory_roots(&base);
    copy_elision::mark_in_place_loads(&kernel, &roots, &mut body);
    copy_elision::redirect_results_to_stores(&kernel, &roots, &mut body);
    sweeps::fuse_chains(&kernel, &roots, &mut body);
    loop_compilation::mark_jit_loops(&kernel, &roots, &mut body);
    in_place_gathers::mark_uncopied_gathers(&kernel, &roots, thresholds.chain_row, &mut body);
    past_end_tiles::mark_overhang_axes(&kernel, &roots, &mut body);
    let (slots, mut arena_bytes) = tile_slots::assign_arena_offsets(&kernel, &base, &body);
    let mut scratch = vec![];
    for operand in &kernel.operands {
        scratch.push(arena_bytes);
        if operand.kind == OperandKind::Scratch {
            let elements: usize = operand.block_shape().iter().product();
            arena_bytes += tile_slots::round_to_cache_lines(elements * operand.dtype.bytes());
        }
    }
    let work = estimate_operations(&kernel, kernel.body);
    let mut plan =
        Plan { body, params, fixed, tables, roots, slots, scratch, arena_bytes, work, sizes: thresholds, kernel };
    accumulated_products::elide_zeros_and_copies(&mut plan);
    plan
}

/// Follows the references of each value to the last one: the value that owns the memory.
fn resolve_memory_roots(base: &[Option<Value>]) -> Vec<Value> {
    let mut roots: Vec<Option<Value>> = vec![None; base.len()];
    let mut path = vec![];
    for v in (0..base.len() as u32).map(Value) {
        let mut root = v;
        while let (None, Some(next)) = (roots[root.index()], base[root.index()]) {
            path.push(root);
            root = next;
        }
        let root = roots[root.index()].unwrap_or(root);
        path.drain(..).chain([v]).for_each(|v| roots[v.index()] = Some(root));
    }
    roots.into_iter().flatten().collect()
}

/// Operations per element that the estimate of a program's operations counts for a sort.
const SORT_OPERATIONS_PER_ELEMENT: usize = 16;

/// Estimates the operations of one program in a region: elements computed by each instruction times their terms; loop
/// bodies count eight times.
fn estimate_operations(kernel: &Kernel, region: RegionId) -> usize {
    let mut sum = 0usize;
    for &i in &kernel.region(region).insts {
        let inst = kernel.inst(i);
        let own: usize = inst.results.iter().map(|&v| kernel.ty(v).elements()).sum();
        let inner: usize = match &inst.op {
            Op::Structural(StructuralOp::Dot(d)) => {
                d.contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0]).product()
            }
            Op::Structural(StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_) | StructuralOp::Sort(_)) => {
                SORT_OPERATIONS_PER_ELEMENT
            }
            Op::Structural(op @ (StructuralOp::Conv(_) | StructuralOp::ReduceWindow(_))) => {
                match access_form(kernel, op, inst) {
                    AccessForm::Nest(nest) => nest.folded_count(),
                    _ => 1,
                }
            }
            _ => 1,
        };
        let nested = inst.regions.iter().map(|&r| estimate_operations(kernel, r)).fold(0, usize::saturating_add);
        let trips = if inst.op == Op::If { 1 } else { 8 };
        sum = own.saturating_mul(inner).saturating_add(nested.saturating_mul(trips)).saturating_add(sum);
    }
    sum
}
