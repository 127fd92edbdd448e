//! The rows of an operand in memory: at equal distances, or each at a place of its own.
use super::super::plan::step::Chain;
use super::super::tile::Tile;
use pallas_ir::Value;

/// Elements of a vector, and of a wide one.
pub(super) const VECTOR: usize = 8;
pub(super) const WIDE: usize = 16;

/// Distances (in elements) between a tile's rows, and between elements of a row.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) row: isize,
    pub(super) step: isize,
}

/// Windows of an array that were not copied.
#[derive(Default)]
pub(super) struct Kept {
    /// The tile that they would be copied to.
    pub(super) of: Option<Value>,
    /// Elements of a window, which are adjacent; those of a row where operations read them.
    pub(super) elements: usize,
    pub(super) starts: Vec<*const u8>,
    /// A row of elements of no array.
    pub(super) filled: Vec<u64>,
    /// True if caches may not hold the array.
    pub(super) is_far: bool,
}

/// Elements of a row.
#[inline]
pub(super) fn columns(chain: &Chain) -> usize {
    chain.shape.last().copied().unwrap_or(1)
}

/// The first axis from which on the rows of a tile of this shape are equally spaced.
pub(super) fn first_even(tile: &Tile, shape: &[usize]) -> usize {
    let outer = shape.len().saturating_sub(1);
    (0..outer).find(|&axis| tile.distance(shape, axis..outer).is_some()).unwrap_or(outer)
}

/// The layout of a tile of this shape along its axes from one on, from which on its rows are equally spaced.
pub(super) fn lines(tile: &Tile, shape: &[usize], axis: usize) -> Lines {
    let Some((&columns, outer)) = shape.split_last() else { return Lines { row: 1, step: 1 } };
    let row = tile.distance(shape, axis..outer.len()).flatten();
    let step = tile.strides[outer.len()];
    // A single row may be as far from the next as it likes.
    let row = row.unwrap_or(if step == 0 && columns != 1 { 0 } else { columns as isize });
    Lines { row, step }
}

/// Elements from a tile's first to the first of a row; rows count over all axes but the last.
#[inline]
pub(super) fn row_offset(tile: &Tile, shape: &[usize], mut row: usize) -> isize {
    let mut offset = 0;
    for axis in (1..shape.len().saturating_sub(1)).rev() {
        offset += (row % shape[axis]) as isize * tile.strides[axis];
        row /= shape[axis];
    }
    // What is left counts along the first axis; tiles of two axes need no division.
    if shape.len() > 1 { offset + row as isize * tile.strides[0] } else { offset }
}
