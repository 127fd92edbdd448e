//! Decides which transposed or strided tiles are copied to row-major order before elementwise operations read them.
use super::super::super::tile::{MAX_RANK, StridedTile};
use super::AffineIndex;
use pallas_ir::{Inst, Kernel, Op};

/// Minimum elements of a row that loops read efficiently where it lies; a tile of shorter rows may be copied to
/// row-major order first.
const MIN_UNCOPIED_ROW_ELEMENTS: usize = 8;
/// Minimum elements of a group of equally spaced rows that loops read efficiently where it lies; a tile of smaller
/// groups may be copied to row-major order first.
const MIN_UNCOPIED_ROW_GROUP_ELEMENTS: usize = 64;

/// Returns true if a rearranged tile should be copied: it has at least `min_elements` elements, all of its operand,
/// only elementwise operations read it, and its short rows are not equally spaced, so that finding each row would take
/// longer than the copy.
pub(super) fn should_copy_row_major(kernel: &Kernel, inst: &Inst, axes: &[AffineIndex], min_elements: usize) -> bool {
    let (from, to) = (kernel.ty(inst.args[0]), kernel.ty(inst.results[0]));
    let is_long = to.elements() < min_elements || to.elements() != from.elements();
    let Some((&columns, rows)) = to.shape.split_last().filter(|_| !is_long) else { return false };
    let own = StridedTile::contiguous(std::ptr::null_mut(), &from.shape);
    let mut strides = [0; MAX_RANK];
    for (affine, stride) in axes.iter().zip(own.strides) {
        if let Some(axis) = affine.axis {
            strides[axis] += affine.stride * stride;
        }
    }
    let tile = StridedTile { start: std::ptr::null_mut(), strides };
    let even = (0..rows.len()).find(|&axis| tile.merged_stride(&to.shape, axis..rows.len()).is_some());
    let group: usize = rows[even.unwrap_or(rows.len())..].iter().product();
    let is_read_by_elements = |user: &Inst| !user.args.contains(&inst.results[0]) || matches!(user.op, Op::Scalar(_));
    let is_scattered =
        columns < MIN_UNCOPIED_ROW_ELEMENTS && even != Some(0) && group * columns < MIN_UNCOPIED_ROW_GROUP_ELEMENTS;
    is_scattered && kernel.insts.iter().all(is_read_by_elements)
}
