//! Axes along which operations move or combine elements.
use super::device_limits::DeviceLimits;
use pallas_ir::structural::{ArgSort, ArgTopK, Concat, Cumulative, Pad, Reverse, Roll, Slice, Sort, TakeAlong};
use pallas_ir::{Dim, StructuralOp};

/// Fewest columns of a block if programs split the columns: shorter rows leave vectors partly empty.
const MIN_SPLIT_COLUMNS: usize = 64;

/// Returns the axes along which an operation moves the elements of its first operand, which has this shape; `None` for
/// other operations. For a windowed operation, which has its own rules, these are all axes.
pub(super) fn moved_axes(op: &StructuralOp, shape: &[usize]) -> Option<Vec<usize>> {
    let is = |n: &Dim, m: usize| n.as_number() == Some(m as i64);
    let all = 0..shape.len();
    Some(match op {
        StructuralOp::ArgSort(ArgSort { axis, .. })
        | StructuralOp::ArgTopK(ArgTopK { axis, .. })
        | StructuralOp::Concat(Concat { axis })
        | StructuralOp::Cumulative(Cumulative { axis, .. })
        | StructuralOp::Roll(Roll { axis, .. })
        | StructuralOp::Sort(Sort { axis })
        | StructuralOp::TakeAlong(TakeAlong { axis }) => vec![*axis],
        StructuralOp::Pad(Pad { low, high }) => all.filter(|&i| !is(&low[i], 0) || !is(&high[i], 0)).collect(),
        StructuralOp::Reverse(Reverse { axes }) => axes.clone(),
        StructuralOp::ReduceWindow(_) => all.collect(),
        StructuralOp::Slice(Slice { start, size, stride }) => {
            all.filter(|&i| start[i] != 0 || stride[i] != 1 || !is(&size[i], shape[i])).collect()
        }
        _ => return None,
    })
}

/// Returns true if programs that have these axes whole split the other ones, the columns: if a tile holds enough
/// columns, and does not hold the whole value.
pub(super) fn can_split_columns(axes: &[usize], shape: &[usize], sizes: &DeviceLimits) -> bool {
    let column: usize = axes.iter().map(|&axis| shape[axis]).product();
    column.saturating_mul(MIN_SPLIT_COLUMNS) <= sizes.tile && shape.iter().product::<usize>() > sizes.tile
}
