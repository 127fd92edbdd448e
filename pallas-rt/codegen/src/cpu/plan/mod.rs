//! Translates a lowered kernel to the steps of a CPU program, and assigns its tiles their memory.
//!
//! [`step`] defines the steps. Passes before them: [`casts`] leaves casts to products and sums, [`filled`] selections
//! to gathers; [`folds`] splits folds; [`concats`] stores concatenated tiles one by one. [`build`] makes steps of
//! instructions. Passes after it: [`place`] lets loads refer to the operand's memory and stores be computed in it,
//! [`open`] also past the array's end; [`sweeps`] runs chains over the same rows together; [`rolled`] finds loops that
//! run as one piece of machine code; [`sums`] lets sums of products begin and end without copies; [`pages`] lets
//! products read gathered rows in their array; [`slots`] assigns the other tiles their place in a program's arena.
//! [`uses`] says which steps access which values; `text` prints a plan. Each pass takes time in proportion to the
//! body's length.
mod build;
mod casts;
mod concats;
mod filled;
mod folds;
mod open;
mod pages;
mod place;
pub(super) mod rolled;
mod slots;
pub(super) mod step;
mod sums;
mod sweeps;
#[cfg(test)]
mod tests;
mod text;
mod uses;

use super::Sizes;
use crate::passes::access;
use pallas_ir::{Access, DType, Kernel, Op, OperandId, OperandKind, RegionId, StructuralOp, Value};
use std::sync::Arc;
use step::{Block, Fixed};

/// A kernel compiled for CPUs: its steps, and the memory of its values.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kernel: Arc<Kernel>,
    pub(super) body: Block,
    /// Values that are the same for every program of a launch.
    pub(super) fixed: Vec<(Value, Fixed)>,
    /// Values that are parameters of the kernel, with their operands.
    pub(super) params: Vec<(Value, OperandId)>,
    /// Index tables that [`Step::Count`](step::Step::Count) reads: each has an element type and a number of entries,
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
    pub(super) sizes: &'static Sizes,
}

/// Compiles a lowered kernel to a plan for CPUs.
pub(super) fn plan(kernel: Arc<Kernel>, sizes: &'static Sizes) -> Plan {
    let kernel = casts::behind_transposes(&kernel).map_or(kernel, Arc::new);
    let kernel = folds::rows_first(&kernel).map_or(kernel, Arc::new);
    let kernel = concats::apart(&kernel).map_or(kernel, Arc::new);
    let mut build = build::Build::new(&kernel, sizes);
    let mut body = build.region(kernel.body);
    let build::Build { base, fixed, params, tables, .. } = build;
    let roots = roots(&base);
    place::refer_to_operands(&kernel, &roots, &mut body);
    place::aim_at_stores(&kernel, &roots, &mut body);
    sweeps::gather(&kernel, &roots, &mut body);
    rolled::roll(&kernel, &roots, &mut body);
    pages::keep(&kernel, &roots, sizes.chain_row, &mut body);
    open::open_ends(&kernel, &roots, &mut body);
    let (slots, mut arena_bytes) = slots::allocate(&kernel, &base, &body);
    let mut scratch = vec![];
    for operand in &kernel.operands {
        scratch.push(arena_bytes);
        if operand.kind == OperandKind::Scratch {
            let elements: usize = operand.block_shape().iter().product();
            arena_bytes += slots::rounded(elements * operand.dtype.bytes());
        }
    }
    let work = work(&kernel, kernel.body);
    let mut plan = Plan { body, params, fixed, tables, roots, slots, scratch, arena_bytes, work, sizes, kernel };
    sums::begin(&mut plan);
    plan
}

/// Follows the references of each value to the last one: the value that owns the memory.
fn roots(base: &[Option<Value>]) -> Vec<Value> {
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

/// Operations that sorting counts for each element.
const SORTED: usize = 16;

/// Estimates the operations of one program: elements computed by each instruction times their terms; loop bodies count
/// eight times.
fn work(kernel: &Kernel, region: RegionId) -> usize {
    let mut sum = 0usize;
    for &i in &kernel.region(region).insts {
        let inst = kernel.inst(i);
        let own: usize = inst.results.iter().map(|&v| kernel.ty(v).elements()).sum();
        let inner: usize = match &inst.op {
            Op::Structural(StructuralOp::Dot(d)) => {
                d.contract.iter().map(|p| kernel.ty(inst.args[0]).shape[p.0]).product()
            }
            Op::Structural(StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_) | StructuralOp::Sort(_)) => SORTED,
            Op::Structural(op @ (StructuralOp::Conv(_) | StructuralOp::ReduceWindow(_))) => {
                match access(kernel, op, inst) {
                    Access::Nest(nest) => nest.terms(),
                    _ => 1,
                }
            }
            _ => 1,
        };
        let nested = inst.regions.iter().map(|&r| work(kernel, r)).fold(0, usize::saturating_add);
        let trips = if inst.op == Op::If { 1 } else { 8 };
        sum = own.saturating_mul(inner).saturating_add(nested.saturating_mul(trips)).saturating_add(sum);
    }
    sum
}
