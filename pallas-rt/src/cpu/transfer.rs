//! Loads and stores: rows between an operand's memory and a tile, clipped to the array.
use pallas_ir::{Literal, View};

/// An operand's memory during a launch.
#[derive(Clone, Debug)]
pub struct Memory {
    /// First element; dangling for operands without memory.
    pub ptr: *mut u8,
    /// The array's extents.
    pub shape: Vec<usize>,
}

// SAFETY: a launch shares its operands' memory among its programs; inputs are only read, and programs write disjoint
// blocks of outputs (the interpreter reports kernels that do not).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// A tile in memory: rows `ld` elements apart, each contiguous.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) ptr: *mut u8,
    pub(super) ld: usize,
}

/// A view placed on an array: per axis first position, count and distance.
pub(super) struct Placed<'a> {
    memory: &'a Memory,
    start: Vec<i64>,
    size: Vec<usize>,
    stride: Vec<i64>,
    kept: Vec<bool>,
    element: usize,
}

impl<'a> Placed<'a> {
    pub(super) fn new(memory: &'a Memory, view: &View, starts: &mut dyn Iterator<Item = i64>, element: usize) -> Self {
        let first =
            |a: &pallas_ir::ViewAxis| a.offset.saturating_add(if a.dynamic { starts.next().unwrap_or(0) } else { 0 });
        Placed {
            memory,
            start: view.axes.iter().map(first).collect(),
            size: view.axes.iter().map(|a| a.size).collect(),
            stride: view.axes.iter().map(|a| a.stride).collect(),
            kept: view.axes.iter().map(|a| a.kept).collect(),
            element,
        }
    }
    fn rank(&self) -> usize {
        self.start.len()
    }
    /// Elements between neighbours along an axis of the array.
    fn step(&self, axis: usize) -> usize {
        self.memory.shape[axis + 1..].iter().product()
    }
    fn inside(&self, axis: usize, i: usize) -> bool {
        let at = self.start[axis] + i as i64 * self.stride[axis];
        0 <= at && at < self.memory.shape[axis] as i64
    }

    /// The view as a tile over the operand's own memory, if it lies inside of the array with contiguous rows.
    pub(super) fn refer(&self) -> Option<Tile> {
        let rank = self.rank();
        let whole = (0..rank).all(|a| self.size[a] > 0 && self.inside(a, 0) && self.inside(a, self.size[a] - 1));
        if !whole || rank == 0 || !self.kept[rank - 1] || self.stride[rank - 1] != 1 && self.size[rank - 1] > 1 {
            return None;
        }
        let mut rows = (0..rank - 1).filter(|&a| self.size[a] > 1);
        let ld = match (rows.next(), rows.next()) {
            (None, _) => self.size[rank - 1],
            (Some(a), None) => usize::try_from(self.stride[a]).ok()? * self.step(a),
            _ => return None,
        };
        let at: usize = (0..rank).map(|a| self.start[a] as usize * self.step(a)).sum();
        // SAFETY: the first element lies inside of the array.
        Some(Tile { ptr: unsafe { self.memory.ptr.add(at * self.element) }, ld })
    }

    /// Calls `f(position in the tile, element of the array or None, count)` for runs along the last axis: elements of a
    /// run are `stride` apart in the array.
    fn runs(&self, f: &mut dyn FnMut(usize, Option<usize>, usize)) {
        let rank = self.rank();
        if rank == 0 {
            return f(0, Some(0), 1);
        }
        let (last, n) = (rank - 1, self.size[rank - 1]);
        let rows: usize = self.size[..last].iter().product();
        let (lo, hi) = self.clip(last, n);
        let mut at = vec![0usize; last];
        for row in 0..rows {
            let inside = (0..last).all(|a| self.inside(a, at[a]));
            let base = row * n;
            if inside && hi > lo {
                let outer: usize =
                    (0..last).map(|a| (self.start[a] + at[a] as i64 * self.stride[a]) as usize * self.step(a)).sum();
                let first = (self.start[last] + lo as i64 * self.stride[last]) as usize;
                if lo > 0 {
                    f(base, None, lo);
                }
                f(base + lo, Some(outer + first), hi - lo);
                if hi < n {
                    f(base + hi, None, n - hi);
                }
            } else {
                f(base, None, n);
            }
            for a in (0..last).rev() {
                at[a] += 1;
                if at[a] < self.size[a] {
                    break;
                }
                at[a] = 0;
            }
        }
    }
    /// The indices along an axis that lie inside of the array: `lo..hi`. Strides are positive.
    fn clip(&self, axis: usize, n: usize) -> (usize, usize) {
        let (s, t, extent) = (self.start[axis], self.stride[axis].max(1), self.memory.shape[axis] as i64);
        let lo = if s >= 0 { 0 } else { ((-s) + t - 1) / t };
        let hi = if extent <= s { 0 } else { (extent - s + t - 1) / t };
        ((lo.min(n as i64)) as usize, (hi.clamp(0, n as i64)) as usize)
    }

    /// Copies the view into a contiguous tile; elements outside of the array become `fill`.
    ///
    /// # Safety
    /// `out` has room for the view's elements.
    pub(super) unsafe fn load(&self, out: *mut u8, fill: Literal) {
        let (e, fill) = (self.element, fill.to_bytes());
        let stride = self.stride.last().map_or(1, |&t| t as usize);
        self.runs(&mut |to, from, n| {
            // SAFETY: `runs` stays inside of the array, and `to + n` inside of the tile.
            unsafe {
                let to = out.add(to * e);
                match from {
                    None => (0..n).for_each(|i| std::ptr::copy_nonoverlapping(fill.as_ptr(), to.add(i * e), e)),
                    Some(from) if stride == 1 => {
                        std::ptr::copy_nonoverlapping(self.memory.ptr.add(from * e), to, n * e)
                    }
                    Some(from) => (0..n).for_each(|i| {
                        std::ptr::copy_nonoverlapping(self.memory.ptr.add((from + i * stride) * e), to.add(i * e), e);
                    }),
                }
            }
        });
    }

    /// Copies a tile of `cols` columns into the view; elements outside of the array, or where `mask` is false, are left.
    ///
    /// # Safety
    /// `tile` has the view's elements, `mask` one `bool` each.
    pub(super) unsafe fn store(&self, tile: Tile, cols: usize, mask: Option<*const bool>) {
        let e = self.element;
        let stride = self.stride.last().map_or(1, |&t| t as usize);
        let source = |i: usize| (i / cols.max(1)) * tile.ld + i % cols.max(1);
        self.runs(&mut |from, to, n| {
            let Some(to) = to else { return };
            // SAFETY: `runs` stays inside of the array, and `from + n` inside of the tile.
            unsafe {
                // A run lies in one row of the tile when the last axis is kept.
                let straight = stride == 1 && from % cols.max(1) + n <= cols && mask.is_none();
                if straight {
                    std::ptr::copy(tile.ptr.add(source(from) * e), self.memory.ptr.add(to * e), n * e);
                    return;
                }
                for i in 0..n {
                    if mask.is_none_or(|m| *m.add(from + i)) {
                        std::ptr::copy(
                            tile.ptr.add(source(from + i) * e),
                            self.memory.ptr.add((to + i * stride) * e),
                            e,
                        );
                    }
                }
            }
        });
    }

    /// Which positions along a kept axis lie inside of the array.
    pub(super) fn valid(&self, axis: usize) -> Vec<bool> {
        let kept: Vec<usize> = (0..self.rank()).filter(|&a| self.kept[a]).collect();
        (0..self.size[kept[axis]]).map(|i| self.inside(kept[axis], i)).collect()
    }
}
