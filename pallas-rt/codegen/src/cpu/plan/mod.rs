//! From a lowered kernel to the steps of a program and the places of its tiles.
//!
//! [`step`] is what a program does; [`casts`] leaves casts to products and sums, [`filled`] selections to gathers; [`folds`] divides folds; [`concats`] stores tiles one by one; [`build`] makes steps of instructions; [`place`] lets loads refer to the operand's
//! memory and stores be computed in it, [`open`] also where the array ends; [`sweeps`] runs chains over the same rows together; [`rolled`] finds loops whose turns are rows;
//! [`sums`] lets sums of products begin and end without copies; [`pages`] lets products read rows where they lie;
//! [`slots`] lays out the rest in a program's arena.
//! [`uses`] tells them which steps access which values; `text` prints a plan. Each takes time in proportion to the length of the body.
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

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kernel: Arc<Kernel>,
    pub(super) body: Block,
    /// Values that are the same for every program.
    pub(super) fixed: Vec<(Value, Fixed)>,
    /// Values that are parameters.
    pub(super) params: Vec<(Value, OperandId)>,
    /// Index tables for [`Step::Count`](step::Step::Count): number of entries, which count from 0, and element type.
    pub(super) tables: Vec<(DType, usize)>,
    /// The value whose memory each value refers to.
    pub(super) roots: Vec<Value>,
    /// Byte offset of each tile's own memory in a program's arena; shared by tiles that are not alive at once.
    pub(super) slots: Vec<Option<usize>>,
    /// Byte offset of each scratch operand, behind the slots.
    pub(super) scratch: Vec<usize>,
    pub(super) arena_bytes: usize,
    /// Rough number of elementary operations of one program.
    pub(super) work: usize,
    pub(super) sizes: &'static Sizes,
}

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

/// For each value the last of the values that it refers to: itself, if it is in its own slot.
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

/// Work of sorting an element.
const SORTED: usize = 16;

/// Elements computed by one program; loops count eight times.
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
