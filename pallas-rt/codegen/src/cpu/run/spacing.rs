//! Spacing of an operand's rows in memory: equal distances, or an address for each.
use super::super::plan::step::ElementwiseChain;
use super::super::tile::StridedTile;
use pallas_ir::Value;

/// Number of elements of a vector of machine code.
pub(super) const VECTOR_ELEMENTS: usize = 8;
/// Number of elements of a wide vector of machine code.
pub(super) const WIDE_VECTOR_ELEMENTS: usize = 16;

/// Strides of a tile in elements: from row to row, and from element to element of a row.
#[derive(Clone, Copy)]
pub(super) struct RowStrides {
    pub(super) row: isize,
    pub(super) step: isize,
}

/// Addresses of the windows of a gather whose readers need no copy of them, kept instead of copies.
#[derive(Default)]
pub(super) struct UncopiedWindows {
    /// The gather's result, to which they would be copied; `None` if this entry is free.
    pub(super) of: Option<Value>,
    /// Number of adjacent elements at each address: a window, or a row of it where elementwise operations read it.
    pub(super) elements: usize,
    pub(super) starts: Vec<*const u8>,
    /// A window of the gather's fill value, for windows outside of the array.
    pub(super) filled: Vec<u64>,
    /// True if the array is too large for the caches, so that windows are prefetched.
    pub(super) is_far: bool,
}

/// Returns the number of elements of each row of a chain: the extent of its last axis, 1 if it has no axes.
#[inline]
pub(super) fn row_length(chain: &ElementwiseChain) -> usize {
    chain.shape.last().copied().unwrap_or(1)
}

/// Returns the first axis such that the rows along it and the following axes are equally spaced in a tile of this
/// shape.
pub(super) fn first_evenly_spaced_axis(tile: &StridedTile, shape: &[usize]) -> usize {
    let outer = shape.len().saturating_sub(1);
    (0..outer).find(|&axis| tile.merged_stride(shape, axis..outer).is_some()).unwrap_or(outer)
}

/// Returns the strides of a tile of this shape, whose rows are equally spaced from `axis` on.
pub(super) fn row_strides(tile: &StridedTile, shape: &[usize], axis: usize) -> RowStrides {
    let Some((&columns, outer)) = shape.split_last() else { return RowStrides { row: 1, step: 1 } };
    let row = tile.merged_stride(shape, axis..outer.len()).flatten();
    let step = tile.strides[outer.len()];
    // If there is only one row, any distance is right.
    let row = row.unwrap_or(if step == 0 && columns != 1 { 0 } else { columns as isize });
    RowStrides { row, step }
}

/// Returns the offset, in elements, of a row of a tile; rows are counted row-major over all axes but the last.
#[inline]
pub(super) fn row_offset(tile: &StridedTile, shape: &[usize], mut row: usize) -> isize {
    let mut offset = 0;
    for axis in (1..shape.len().saturating_sub(1)).rev() {
        offset += (row % shape[axis]) as isize * tile.strides[axis];
        row /= shape[axis];
    }
    // What is left counts along the first axis; tiles of two axes need no division.
    if shape.len() > 1 { offset + row as isize * tile.strides[0] } else { offset }
}
