//! Strided memory of tiles: copies, rows, reshapes.

pub(super) use pallas_ir::MAX_RANK;

use super::strips::compiled;

/// The memory of a tile's elements: element `i` is `Σ i·stride` elements after the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// The first element.
    pub(super) start: *mut u8,
    /// One per axis, in elements.
    pub(super) strides: [isize; MAX_RANK],
}

impl Tile {
    /// Row-major, without gaps.
    pub(super) fn contiguous(start: *mut u8, shape: &[usize]) -> Tile {
        let mut strides = [0; MAX_RANK];
        let mut step = 1isize;
        for axis in (0..shape.len()).rev() {
            strides[axis] = step;
            // For an empty array the other extents are arbitrary.
            step = step.wrapping_mul(shape[axis] as isize);
        }
        Tile { start, strides }
    }
    /// True if the elements of `shape` are row-major without gaps.
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
    /// True if all elements are at the same address.
    pub(super) fn is_splat(&self, shape: &[usize]) -> bool {
        shape.iter().zip(&self.strides).all(|(&n, &s)| n == 1 || s == 0)
    }
    /// The tile seen as `to`, whose axes are those of `shape` or stretch its unit axes; rank 0 stretches everywhere.
    pub(super) fn stretched(mut self, shape: &[usize], to: &[usize]) -> Tile {
        if shape.len() != to.len() {
            self.strides = [0; MAX_RANK];
        }
        for (stride, _) in self.strides.iter_mut().zip(shape).filter(|(_, n)| **n == 1) {
            *stride = 0;
        }
        self
    }
    /// The stride of several axes traversed as one, if it is uniform; axes of one element are ignored.
    pub(super) fn distance(
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
    /// Selects axes, in this order.
    pub(super) fn axes(&self, order: &[usize]) -> Tile {
        let mut strides = [0; MAX_RANK];
        strides.iter_mut().zip(order).for_each(|(stride, &axis)| *stride = self.strides[axis]);
        Tile { start: self.start, strides }
    }
    /// Moves the first element.
    pub(super) fn offset(self, elements: isize, bytes: usize) -> Tile {
        Tile { start: self.start.wrapping_offset(elements.wrapping_mul(bytes as isize)), ..self }
    }
}

/// Axes of one or more tiles, merged where every tile allows it: what loops run over.
pub(super) struct Nest<const N: usize> {
    /// Extents, innermost last; at least one.
    pub(super) shape: [usize; MAX_RANK],
    /// Per tile.
    pub(super) strides: [[isize; MAX_RANK]; N],
    /// Axes used.
    pub(super) rank: usize,
}

impl<const N: usize> Nest<N> {
    /// Drops unit axes and merges neighbours.
    pub(super) fn new(shape: &[usize], tiles: [&Tile; N]) -> Nest<N> {
        let mut nest = Nest { shape: [1; MAX_RANK], strides: [[0; MAX_RANK]; N], rank: 0 };
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
    /// Extent of the innermost axis.
    pub(super) fn inner(&self) -> usize {
        self.shape[self.rank - 1]
    }
    /// Stride of a tile along the innermost axis.
    pub(super) fn inner_stride(&self, tile: usize) -> isize {
        self.strides[tile][self.rank - 1]
    }
    /// Calls `f` with the tiles' offsets (in elements) of each element.
    pub(super) fn each(&self, mut f: impl FnMut([isize; N])) {
        self.rows(|first| {
            for i in 0..self.inner() as isize {
                f(std::array::from_fn(|t| first[t] + i * self.inner_stride(t)));
            }
        });
    }
    /// Calls `f` with the tiles' offsets (in elements) of each innermost row.
    pub(super) fn rows(&self, mut f: impl FnMut([isize; N])) {
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

/// Copies `n` elements of `bytes` between strides (in elements).
///
/// # Safety
/// Both hold `n` elements at their strides; they are the same elements, or do not overlap.
#[inline]
pub(super) unsafe fn copy_row(
    from: *const u8,
    from_stride: isize,
    to: *mut u8,
    to_stride: isize,
    n: usize,
    bytes: usize,
) {
    #[inline(always)]
    unsafe fn each<T: Copy>(from: *const u8, fs: isize, to: *mut u8, ts: isize, n: usize) {
        let (from, to) = (from.cast::<T>(), to.cast::<T>());
        // SAFETY: the caller's.
        unsafe {
            if fs == 0 && ts == 1 {
                fastest_repeat()(from.read(), to, n);
            } else {
                (0..n as isize).for_each(|i| to.offset(i * ts).write(from.offset(i * fs).read()));
            }
        }
    }
    // SAFETY: the caller's.
    unsafe {
        match bytes {
            _ if from_stride == 1 && to_stride == 1 => std::ptr::copy(from, to, n * bytes),
            1 => each::<u8>(from, from_stride, to, to_stride, n),
            2 => each::<u16>(from, from_stride, to, to_stride, n),
            4 => each::<u32>(from, from_stride, to, to_stride, n),
            _ => each::<u64>(from, from_stride, to, to_stride, n),
        }
    }
}

/// Writes `n` copies of `x`.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn repeat<T: Copy>(x: T, to: *mut T, n: usize) {
    // SAFETY: the caller's.
    (0..n).for_each(|i| unsafe { to.add(i).write(x) });
}
compiled! { fastest_repeat<T: Copy>() -> unsafe fn(T, *mut T, usize) = repeat(x: T, to: *mut T, n: usize) }

/// Copies bytes with non-temporal stores, where the machine supports them; [`Settled`] must be dropped before another
/// thread reads them.
///
/// # Safety
/// Both hold as many bytes and do not overlap.
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(from: *const u8, to: *mut u8, vectors: usize) {
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
        unsafe { avx2(from, to, bytes / 32) };
        done = bytes / 32 * 32;
    }
    // SAFETY: the caller's.
    unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done) };
}

/// On drop, makes the writes of [`stream`] visible to threads that synchronise with this one.
pub(super) struct Settled;

impl Drop for Settled {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence accesses no memory.
        #[allow(unused_unsafe, reason = "it is safe where its feature is always there")]
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
    }
}

/// Copies a tile.
///
/// # Safety
/// Both tiles hold `shape`; they are the same elements in the same places, or do not overlap.
pub(super) unsafe fn copy(from: &Tile, to: &Tile, shape: &[usize], bytes: usize) {
    if from.start == to.start && from.strides[..shape.len()] == to.strides[..shape.len()] {
        return;
    }
    let nest = Nest::new(shape, [from, to]);
    nest.rows(|[f, t]| {
        let (f, t) = (f * bytes as isize, t * bytes as isize);
        // SAFETY: the caller's; rows of the nest are rows of the tiles.
        unsafe {
            let (f, t) = (from.start.offset(f), to.start.offset(t));
            copy_row(f, nest.inner_stride(0), t, nest.inner_stride(1), nest.inner(), bytes);
        }
    });
}

/// Copies a tile to memory that may not be aligned.
///
/// # Safety
/// Both tiles hold `shape` and do not overlap.
pub(super) unsafe fn copy_bytes(from: &Tile, to: &Tile, shape: &[usize], bytes: usize) {
    Nest::new(shape, [from, to]).each(|[f, t]| {
        // SAFETY: the caller's.
        unsafe {
            let (f, t) = (from.start.offset(f * bytes as isize), to.start.offset(t * bytes as isize));
            std::ptr::copy_nonoverlapping(f, t, bytes);
        }
    });
}

/// Fills a tile with one element.
///
/// # Safety
/// The tile holds `shape`, `x` one element; it lies outside of the tile.
pub(super) unsafe fn fill(x: *const u8, to: &Tile, shape: &[usize], bytes: usize) {
    let from = Tile { start: x.cast_mut(), strides: [0; MAX_RANK] };
    // SAFETY: the caller's.
    unsafe { copy(&from, to, shape, bytes) }
}

/// Strides under which the same elements have another shape, where there are any.
pub(super) fn reshaped(tile: &Tile, from: &[usize], to: &[usize]) -> Option<Tile> {
    if from.contains(&0) {
        return Some(Tile::contiguous(tile.start, to));
    }
    let nest = Nest::new(from, [tile]);
    let mut strides = [0; MAX_RANK];
    // Both shapes are walked from the right; an axis of `to` must lie inside of one merged axis of `from`.
    let mut group = nest.rank;
    let (mut left, mut step) = (1, 0);
    for axis in (0..to.len()).rev() {
        if to[axis] == 1 {
            continue;
        }
        while left == 1 {
            group = group.checked_sub(1)?;
            (left, step) = (nest.shape[group], nest.strides[0][group]);
        }
        if left % to[axis] != 0 {
            return None;
        }
        strides[axis] = step;
        left /= to[axis];
        step *= to[axis] as isize;
    }
    Some(Tile { start: tile.start, strides })
}
