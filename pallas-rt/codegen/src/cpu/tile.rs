//! Tiles as strided memory: copies, rows, reshapes.

pub(super) use pallas_ir::MAX_RANK;

use super::gemm;
use super::row_copies::{MAX_SHORT_ROW_BYTES, copy_rows};
use super::strips::{compiled, sized};
use smallvec::SmallVec;
use std::cmp::Reverse;

/// The memory of a tile: element `i` (an index for each axis) is `Σ i·stride` elements after the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedTile {
    /// The first element.
    pub(super) start: *mut u8,
    /// Distance of neighbours along each axis, in elements.
    pub(super) strides: [isize; MAX_RANK],
}

impl StridedTile {
    /// Returns a tile whose elements are row-major, without gaps.
    pub(super) fn contiguous(start: *mut u8, shape: &[usize]) -> StridedTile {
        let mut strides = [0; MAX_RANK];
        let mut step = 1isize;
        for axis in (0..shape.len()).rev() {
            strides[axis] = step;
            // For an empty array the other extents are arbitrary.
            step = step.wrapping_mul(shape[axis] as isize);
        }
        StridedTile { start, strides }
    }
    /// Returns true if a tile of this shape is row-major, without gaps.
    pub(super) fn is_contiguous(&self, shape: &[usize]) -> bool {
        let mut step = 1;
        for axis in (0..shape.len()).rev() {
            if shape[axis] != 1 && self.strides[axis] != step {
                return false;
            }
            step *= shape[axis] as isize;
        }
        true
    }
    /// Returns true if all elements of a tile of this shape are at the same address.
    pub(super) fn is_splat(&self, shape: &[usize]) -> bool {
        shape.iter().zip(&self.strides).all(|(&n, &s)| n == 1 || s == 0)
    }
    /// Returns the tile broadcast to a larger shape: those axes of its own shape that have extent 1 get stride 0. A
    /// tile of rank 0 is broadcast along all axes.
    pub(super) fn broadcast(mut self, own_shape: &[usize]) -> StridedTile {
        if own_shape.is_empty() {
            self.strides = [0; MAX_RANK];
        }
        for (stride, _) in self.strides.iter_mut().zip(own_shape).filter(|(_, n)| **n == 1) {
            *stride = 0;
        }
        self
    }
    /// Returns the stride of several axes traversed as one: `None` if it is not uniform, `Some(None)` if no axis is
    /// longer than 1.
    pub(super) fn merged_stride(
        &self,
        shape: &[usize],
        axes: impl DoubleEndedIterator<Item = usize>,
    ) -> Option<Option<isize>> {
        let (mut found, mut next) = (None, 0);
        for axis in axes.rev().filter(|&axis| shape[axis] != 1) {
            let stride = self.strides[axis];
            if found.is_some() && stride != next {
                return None;
            }
            found.get_or_insert(stride);
            next = stride * shape[axis] as isize;
        }
        Some(found)
    }
    /// Returns the tile with only these axes, in this order.
    pub(super) fn select_axes(&self, order: &[usize]) -> StridedTile {
        let mut strides = [0; MAX_RANK];
        strides.iter_mut().zip(order).for_each(|(stride, &axis)| *stride = self.strides[axis]);
        StridedTile { start: self.start, strides }
    }
    /// Returns the tile whose axes, taken in this order, are this tile's: the reverse of
    /// [`select_axes`](StridedTile::select_axes).
    pub(super) fn with_inverse_axis_order(&self, order: &[usize]) -> StridedTile {
        let mut strides = [0; MAX_RANK];
        order.iter().zip(self.strides).for_each(|(&axis, stride)| strides[axis] = stride);
        StridedTile { start: self.start, strides }
    }
    /// Returns the first `rank` axes in the order of their strides, greatest first.
    pub(super) fn memory_order(&self, rank: usize) -> SmallVec<[usize; MAX_RANK]> {
        let mut order: SmallVec<[usize; MAX_RANK]> = (0..rank).collect();
        order.sort_by_key(|&axis| Reverse(self.strides[axis].unsigned_abs()));
        order
    }
    /// Returns the tile with its axes in the order of memory (greatest stride first), and their extents.
    pub(super) fn with_axes_in_memory_order(&self, shape: &[usize]) -> (StridedTile, [usize; MAX_RANK]) {
        let (order, mut sizes) = (self.memory_order(shape.len()), [1; MAX_RANK]);
        sizes.iter_mut().zip(&order).for_each(|(size, &axis)| *size = shape[axis]);
        (self.select_axes(&order), sizes)
    }
    /// Returns the address of the element at this distance, in elements of the given size, from the tile's first one.
    #[inline]
    pub(super) fn element_address(&self, element_offset: isize, element_bytes: usize) -> *mut u8 {
        self.start.wrapping_offset(element_offset.wrapping_mul(element_bytes as isize))
    }
    /// Returns the tile whose first element is at this distance, in elements, from the old one.
    pub(super) fn offset(self, element_offset: isize, element_bytes: usize) -> StridedTile {
        StridedTile { start: self.element_address(element_offset, element_bytes), ..self }
    }
}

/// Loops over the elements of `N` tiles of one shape; axes are merged where every tile allows it.
pub(super) struct TileLoops<const N: usize> {
    /// Extents of the loops, innermost last; there is at least one.
    pub(super) shape: [usize; MAX_RANK],
    /// Strides of each tile along the loops, in elements.
    pub(super) strides: [[isize; MAX_RANK]; N],
    /// Number of loops.
    pub(super) rank: usize,
}

impl<const N: usize> TileLoops<N> {
    /// Creates the loops over the elements of `tiles`, all of extents `shape`: drops axes of extent 1, and merges
    /// neighbouring axes along which every tile's elements are equally spaced.
    pub(super) fn new(shape: &[usize], tiles: [&StridedTile; N]) -> TileLoops<N> {
        let mut nest = TileLoops { shape: [1; MAX_RANK], strides: [[0; MAX_RANK]; N], rank: 0 };
        for (axis, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
            let last = nest.rank.wrapping_sub(1);
            let merges = nest.rank > 0 && (0..N).all(|t| nest.strides[t][last] == tiles[t].strides[axis] * n as isize);
            let at = if merges { last } else { nest.rank };
            nest.shape[at] *= n;
            nest.strides.iter_mut().zip(tiles).for_each(|(strides, tile)| strides[at] = tile.strides[axis]);
            nest.rank = at + 1;
        }
        if nest.rank == 0 {
            nest.rank = 1;
            nest.strides = [[1; MAX_RANK]; N];
        }
        nest
    }
    /// Extent of the innermost loop.
    pub(super) fn inner_extent(&self) -> usize {
        self.shape[self.rank - 1]
    }
    /// Stride of a tile along the innermost loop.
    pub(super) fn inner_stride(&self, tile: usize) -> isize {
        self.strides[tile][self.rank - 1]
    }
    /// Calls `f` with the tiles' offsets (in elements) of each element.
    pub(super) fn for_each_element(&self, mut f: impl FnMut([isize; N])) {
        self.for_each_row(|first| {
            for i in 0..self.inner_extent() as isize {
                f(std::array::from_fn(|t| first[t] + i * self.inner_stride(t)));
            }
        });
    }
    /// Calls `f` with the tiles' offsets (in elements) of each innermost row.
    pub(super) fn for_each_row(&self, mut f: impl FnMut([isize; N])) {
        if self.shape[..self.rank].contains(&0) {
            return;
        }
        let outer = self.rank - 1;
        let (mut at, mut offsets) = ([0usize; MAX_RANK], [0isize; N]);
        loop {
            f(offsets);
            let mut axis = outer;
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                at[axis] += 1;
                (0..N).for_each(|t| offsets[t] += self.strides[t][axis]);
                if at[axis] < self.shape[axis] {
                    break;
                }
                (0..N).for_each(|t| offsets[t] -= self.strides[t][axis] * at[axis] as isize);
                at[axis] = 0;
            }
        }
    }
}

/// Copies bytes with non-temporal stores, where the machine supports them. A [`NonTemporalFence`] must be dropped
/// before another thread reads the bytes.
///
/// # Safety
/// Both hold as many bytes and do not overlap.
pub(super) unsafe fn copy_non_temporal(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn copy_avx2_vectors(from: *const u8, to: *mut u8, vectors: usize) {
        use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
        let (from, to) = (from.cast::<__m256i>(), to.cast::<__m256i>());
        for i in 0..vectors {
            // SAFETY: the caller's; `to` is a multiple of a vector.
            unsafe { _mm256_stream_si256(to.add(i), _mm256_loadu_si256(from.add(i))) };
        }
    }
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if super::strips::has_avx2() && (to as usize).is_multiple_of(32) {
        // SAFETY: the caller's, the feature is there, and so is the alignment.
        unsafe { copy_avx2_vectors(from, to, bytes / 32) };
        done = bytes / 32 * 32;
    }
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done) };
}

/// A guard: on drop, it makes the writes of [`copy_non_temporal`] visible to threads that synchronise with this one.
pub(super) struct NonTemporalFence;

impl Drop for NonTemporalFence {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence accesses no memory.
        #[allow(unused_unsafe, reason = "it is safe where its feature is always there")]
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
    }
}

/// Rows and columns of the square of a matrix that is transposed at a time.
const TRANSPOSE_BLOCK_ROWS: usize = 8;

/// Transposes a matrix: `to[i, j] = from[j, i]` for `i` below `rows` and `j` below `columns`; both have adjacent
/// elements in each row, and a distance between rows.
///
/// # Safety
/// Both hold these elements and do not overlap.
#[inline(always)]
unsafe fn transpose<T: Copy>(
    from: *const T,
    from_row_stride: isize,
    to: *mut T,
    to_row_stride: isize,
    rows: usize,
    columns: usize,
) {
    for (i, j) in (0..rows)
        .step_by(TRANSPOSE_BLOCK_ROWS)
        .flat_map(|i| (0..columns).step_by(TRANSPOSE_BLOCK_ROWS).map(move |j| (i, j)))
    {
        let (high, wide) = (TRANSPOSE_BLOCK_ROWS.min(rows - i), TRANSPOSE_BLOCK_ROWS.min(columns - j));
        // SAFETY: the caller's; a square lies inside of the matrix.
        unsafe {
            let (from, to) =
                (from.offset(j as isize * from_row_stride).add(i), to.offset(i as isize * to_row_stride).add(j));
            if (high, wide) == (TRANSPOSE_BLOCK_ROWS, TRANSPOSE_BLOCK_ROWS) {
                let lines: [[T; TRANSPOSE_BLOCK_ROWS]; TRANSPOSE_BLOCK_ROWS] = std::array::from_fn(|j| {
                    from.offset(j as isize * from_row_stride).cast::<[T; TRANSPOSE_BLOCK_ROWS]>().read_unaligned()
                });
                (0..TRANSPOSE_BLOCK_ROWS).for_each(|i| {
                    let line: [T; TRANSPOSE_BLOCK_ROWS] = std::array::from_fn(|j| lines[j][i]);
                    to.offset(i as isize * to_row_stride).cast::<[T; TRANSPOSE_BLOCK_ROWS]>().write_unaligned(line);
                });
                continue;
            }
            for (i, j) in (0..high as isize).flat_map(|i| (0..wide as isize).map(move |j| (i, j))) {
                to.offset(i * to_row_stride + j).write(from.offset(j * from_row_stride + i).read());
            }
        }
    }
}
compiled! {
    fastest_transpose<T: Copy>()
        = transpose(from: *const T, from_row: isize, to: *mut T, to_row: isize, rows: usize, columns: usize)
}

/// Transposes the matrices of a tile to another whose adjacent elements run along another axis. Returns false, having
/// copied nothing, if they run along the same axis, or if the matrices are too small.
///
/// # Safety
/// As [`copy`]; the tiles do not overlap.
unsafe fn try_copy_transposed(from: &StridedTile, to: &StridedTile, nest: &TileLoops<2>, element_bytes: usize) -> bool {
    let adjacent = |tile: usize| (0..nest.rank).find(|&axis| nest.strides[tile][axis] == 1);
    let (Some(i), Some(j)) = (adjacent(0), adjacent(1)) else { return false };
    let (rows, columns) = (nest.shape[i], nest.shape[j]);
    // A row that repeats one element is no column.
    if i == j || rows < TRANSPOSE_BLOCK_ROWS || columns < TRANSPOSE_BLOCK_ROWS || nest.strides[0][j] == 0 {
        return false;
    }
    let mut others = TileLoops { shape: nest.shape, strides: nest.strides, rank: nest.rank };
    (others.shape[i], others.shape[j]) = (1, 1);
    let [from_row, to_row] = [nest.strides[0][j], nest.strides[1][i]];
    others.for_each_element(|[f, t]| {
        let (from, to) = (from.element_address(f, element_bytes), to.element_address(t, element_bytes));
        // SAFETY: the caller's; the stride of columns that are adjacent is positive, or there is one row.
        unsafe {
            let is_done = element_bytes == 4
                && to_row > 0
                && gemm::try_transpose_words(from.cast(), from_row, to.cast(), to_row as usize, [rows, columns]);
            if !is_done {
                sized!(element_bytes, T => fastest_transpose::<T>()(from.cast(), from_row, to.cast(), to_row, rows, columns));
            }
        }
    });
    true
}

/// Copies a tile to another of the same shape.
///
/// # Safety
/// Both tiles hold `shape`; they are the same elements in the same places, or do not overlap.
pub(super) unsafe fn copy(from: &StridedTile, to: &StridedTile, shape: &[usize], element_bytes: usize) {
    // SAFETY: the caller's.
    unsafe { copy_tile_in_chunks(from, to, shape, element_bytes, MAX_COPY_CHUNK_ROWS) }
}

/// Copies a tile as [`copy`] does, a given number of rows along an outer axis at a time.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_tile_in_chunks(
    from: &StridedTile,
    to: &StridedTile,
    shape: &[usize],
    element_bytes: usize,
    chunk_rows: usize,
) {
    if from.start == to.start && from.strides[..shape.len()] == to.strides[..shape.len()] {
        return;
    }
    let nest = TileLoops::new(shape, [from, to]);
    // SAFETY: the caller's; tiles in different places do not overlap.
    if unsafe { try_copy_transposed(from, to, &nest, element_bytes) } {
        return;
    }
    // Rows along one axis are copied by one call: the axis around them, or a longer one if it has few rows.
    let (mut others, mut outer, mut rows) = (nest, [0; 2], 1);
    let is_short = others.inner_extent() * element_bytes <= MAX_SHORT_ROW_BYTES;
    let next = others.rank.checked_sub(2);
    let axis = next.map(|next| match is_short && others.shape[next] < MIN_ROWS_PER_COPY_CALL {
        true => (0..=next).max_by_key(|&axis| others.shape[axis]).unwrap_or(next),
        false => next,
    });
    if let Some(axis) = axis {
        rows = std::mem::replace(&mut others.shape[axis], 1);
        outer = [0, 1].map(|tile: usize| others.strides[tile][axis]);
    }
    let (inner, n) = ([others.inner_stride(0), others.inner_stride(1)], others.inner_extent());
    let together = if axis == next { rows.max(1) } else { chunk_rows };
    for first in (0..rows).step_by(together) {
        let count = together.min(rows - first);
        others.for_each_row(|[f, t]| {
            // SAFETY: the caller's; rows of the nest are rows of the tiles.
            unsafe {
                let [f, t] = [f + first as isize * outer[0], t + first as isize * outer[1]];
                let (f, t) =
                    (from.start.offset(f * element_bytes as isize), to.start.offset(t * element_bytes as isize));
                copy_rows([f, t], inner, outer, [count, n], element_bytes);
            }
        });
    }
}

/// Minimum short rows along the axis next to the innermost for which one call copies the rows of that axis; with
/// fewer, it copies those along the longest axis.
const MIN_ROWS_PER_COPY_CALL: usize = 8;
/// Maximum rows that one call copies along an axis other than the second innermost, before the rows that lie between
/// them in memory: the cache then still holds the lines that they share with these.
const MAX_COPY_CHUNK_ROWS: usize = 512;

/// Copies a tile to memory that may not be aligned.
///
/// # Safety
/// Both tiles hold `shape` and do not overlap.
pub(super) unsafe fn copy_unaligned(from: &StridedTile, to: &StridedTile, shape: &[usize], element_bytes: usize) {
    TileLoops::new(shape, [from, to]).for_each_element(|[f, t]| {
        // SAFETY: the caller's.
        unsafe {
            let (f, t) = (from.start.offset(f * element_bytes as isize), to.start.offset(t * element_bytes as isize));
            std::ptr::copy_nonoverlapping(f, t, element_bytes);
        }
    });
}

/// Fills a tile with one element.
///
/// # Safety
/// The tile holds `shape`, `x` one element; it lies outside of the tile.
pub(super) unsafe fn fill(x: *const u8, to: &StridedTile, shape: &[usize], element_bytes: usize) {
    let from = StridedTile { start: x.cast_mut(), strides: [0; MAX_RANK] };
    let (to, sizes) = to.with_axes_in_memory_order(shape);
    // SAFETY: the caller's.
    unsafe { copy(&from, &to, &sizes[..shape.len()], element_bytes) }
}

/// Returns the tile with the same memory and another shape; `None` if no strides give the elements the same row-major
/// order, so that they have to be copied.
pub(super) fn try_reshape(tile: &StridedTile, old_shape: &[usize], new_shape: &[usize]) -> Option<StridedTile> {
    if old_shape.contains(&0) {
        return Some(StridedTile::contiguous(tile.start, new_shape));
    }
    let nest = TileLoops::new(old_shape, [tile]);
    let mut strides = [0; MAX_RANK];
    // Both shapes are traversed from the right; an axis of `to` must be inside of one merged axis of `from`.
    let mut group = nest.rank;
    let (mut left, mut step) = (1, 0);
    for axis in (0..new_shape.len()).rev() {
        if new_shape[axis] == 1 {
            continue;
        }
        while left == 1 {
            group = group.checked_sub(1)?;
            (left, step) = (nest.shape[group], nest.strides[0][group]);
        }
        if left % new_shape[axis] != 0 {
            return None;
        }
        strides[axis] = step;
        left /= new_shape[axis];
        step *= new_shape[axis] as isize;
    }
    Some(StridedTile { start: tile.start, strides })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies between all orders of axes in memory are those of single elements.
    #[test]
    fn a_copy_has_each_element_in_its_place() {
        fn check<T: Copy + PartialEq + std::fmt::Debug>(shape: [usize; 3], number: impl Fn(usize) -> T) {
            let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
            let total: usize = shape.iter().product();
            let tile = |memory: &mut Vec<T>, order: [usize; 3]| {
                let mut tile = StridedTile { start: memory.as_mut_ptr().cast(), strides: [0; MAX_RANK] };
                order.iter().rev().fold(1, |step, &axis| {
                    tile.strides[axis] = step;
                    step * shape[axis] as isize
                });
                tile
            };
            let pairs = orders.into_iter().flat_map(|a| orders.map(|b| (a, b)));
            // An axis is reversed, or its elements are one.
            let changes = [None, Some((0, -1)), Some((1, -1)), Some((2, -1)), Some((0, 0)), Some((1, 0)), Some((2, 0))];
            for ((a, b), changed) in pairs.flat_map(|pair| changes.map(|change| (pair, change))) {
                let mut from: Vec<T> = (0..total).map(&number).collect();
                let mut to = vec![number(0); total];
                let (mut own, other) = (tile(&mut from, a), tile(&mut to, b));
                if let Some((axis, factor)) = changed.filter(|_| total > 0) {
                    own = own.offset((shape[axis] as isize - 1) * own.strides[axis], size_of::<T>());
                    own.strides[axis] *= factor;
                }
                let start = own.start.addr() as isize - from.as_ptr().addr() as isize;
                // SAFETY: both hold the shape and lie apart.
                unsafe { copy_tile_in_chunks(&own, &other, &shape, size_of::<T>(), 5) };
                TileLoops::new(&shape, [&own, &other]).for_each_element(|[f, t]| {
                    let f = start / size_of::<T>() as isize + f;
                    assert_eq!(from[f as usize], to[t as usize], "{shape:?} from {a:?} to {b:?}, {changed:?} changed");
                });
            }
        }
        let all = [
            [1, 1, 1],
            [3, 8, 17],
            [8, 16, 8],
            [9, 1, 40],
            [17, 13, 2],
            [0, 9, 9],
            [31, 3, 24],
            [2, 5, 3],
            [4, 6, 129],
        ];
        for shape in all {
            check(shape, |i| i as u8);
            check(shape, |i| i as u16);
            check(shape, |i| i as u32);
            check(shape, |i| i as u64);
        }
    }
}
