//! Splits a fold of the last axis and of others: rows are folded first, while they are computed, and then the results.
//!
//! ```text
//! reduce op(add) axes(0, 2) x: f32[8, 3, 25]  ->  reduce op(add) axes(0, 2) (reduce op(add) axes(2) x: f32[8, 3, 1])
//! ```
use crate::passes::rewrite::KernelRewriter;
use pallas_ir::structural::Reduce;
use pallas_ir::{Inst, Kernel, Op, StructuralOp, Type};

/// Minimum elements of a row with which rows are folded first, where an unfolded axis lies between folded ones; a fold
/// with shorter rows is not split, since they would leave most of a vector empty.
const MIN_SPLIT_FOLD_ROW_ELEMENTS: usize = 8;
/// Minimum elements of a row with which rows are folded first, where all folded axes are adjacent in memory; below it
/// the fold is not split, since it can take all of them as one long row.
const MIN_SPLIT_ADJACENT_ROW_ELEMENTS: usize = 128;

/// Returns the kernel with each fold of the last and other axes that has long enough rows split into a fold of rows and
/// a fold of their results; `None` if it has no such fold.
pub(super) fn split_folds_by_rows(kernel: &Kernel) -> Option<Kernel> {
    let has_rows = |inst: &Inst| find_row_fold(kernel, inst).is_some();
    if !kernel.insts.iter().any(has_rows) {
        return None;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| {
        let Some(rows) = find_row_fold(kernel, inst) else { return false };
        let from = kernel.ty(inst.args[0]);
        let mut shape = from.shape.clone();
        shape[rows.axes[0]] = 1;
        let (x, folded) = (r.mapped_value(inst.args[0]), r.out.value(Type::new(from.dtype, shape)));
        let op = Op::Structural(StructuralOp::from(rows));
        r.out.push(Inst { op, args: vec![x], results: vec![folded], regions: vec![] }, loc);
        r.append(inst.op.clone(), vec![folded], inst, loc);
        true
    });
    Some(rewrite.finish())
}

/// Returns the reduction of the last axis alone as which a reduction over several axes, `inst`, should begin; `None` if
/// `inst` is no such reduction, or faster as a whole.
fn find_row_fold(kernel: &Kernel, inst: &Inst) -> Option<Reduce> {
    let Op::Structural(StructuralOp::Reduce(op)) = &inst.op else { return None };
    let shape = &kernel.ty(inst.args[0]).shape;
    let last = shape.len().checked_sub(1).filter(|last| op.axes.contains(last))?;
    let is_long = |axis: &usize| shape[*axis] != 1;
    let outer = op.axes.iter().filter(|axis| **axis != last).copied().filter(is_long).min()?;
    // True if an axis that is not folded lies between folded ones.
    let is_sharded = (outer..last).any(|axis| is_long(&axis) && !op.axes.contains(&axis));
    let least = if is_sharded { MIN_SPLIT_FOLD_ROW_ELEMENTS } else { MIN_SPLIT_ADJACENT_ROW_ELEMENTS };
    (shape[last] >= least && !shape.contains(&0)).then(|| Reduce::keeping(op.op, vec![last]))
}
