//! Gathers from, and scatters to, windows of tiles at positions given by data. Elements adjacent in both arrays are
//! moved together.
use super::super::fold::Fold;
use super::super::line::{self, AHEAD, FETCHED, Line, fetch};
use super::super::plan::step::Indexed;
use super::super::positions::Positions;
use super::super::rows::copy_row;
use super::super::tile::{self, MAX_RANK, Nest, Tile};
use super::state::{End, Run};
use pallas_ir::structural::Windows;
use pallas_ir::{Literal, Value};

/// Maximum elements of a row of positions of which several rows are processed as one line.
const SHORT: usize = 32;

/// A loop over the windows of a gather or scatter: strides and extents, computed once per step.
pub(super) struct Walk {
    /// Extents of the positions: axes of the indices without that of their start vectors.
    positions: Vec<usize>,
    /// Strides along the positions: of the indices, of the array of windows, and of the operand (0 except for batched
    /// axes).
    index: Tile,
    moved: Tile,
    operand: Tile,
    /// For each start of a window: its offset in the index vector, its greatest valid value, and the stride of its
    /// axis in the operand.
    starts: Vec<(isize, isize, isize)>,
    /// Extents of a window, and its strides in the operand and in the array of windows.
    window: Vec<usize>,
    in_operand: Tile,
    in_moved: Tile,
    /// Number of elements of a window if they are adjacent in both arrays.
    pub(super) row: Option<usize>,
}

impl Walk {
    /// Creates the loop over windows of `x` at the positions `index`; `moved` is the array of windows (a gather's
    /// result, a scatter's updates).
    pub(super) fn new(
        windows: &Windows,
        x: (Tile, &[usize]),
        index: (Tile, &[usize]),
        moved: (Tile, &[usize]),
    ) -> Walk {
        let none = |tile: &Tile| Tile { start: tile.start, strides: [0; MAX_RANK] };
        let mut walk = Walk {
            positions: windows.index.iter().map(|&axis| moved.1[axis]).collect(),
            index: none(&index.0),
            moved: none(&moved.0),
            operand: none(&x.0),
            starts: vec![(0, 0, 0); windows.starts()],
            window: vec![],
            in_operand: none(&x.0),
            in_moved: none(&moved.0),
            row: None,
        };
        let index_axes = (0..index.1.len()).filter(|&axis| Some(axis) != windows.vector);
        for (i, (from, &axis)) in index_axes.zip(&windows.index).enumerate() {
            walk.index.strides[i] = index.0.strides[from];
            walk.moved.strides[i] = moved.0.strides[axis];
        }
        for (axis, window) in windows.axes.iter().enumerate() {
            let (stride, n) = (x.0.strides[axis], x.1[axis] as isize);
            let size = window.axis.map_or(1, |a| if windows.index.contains(&a) { 1 } else { moved.1[a] });
            if let Some(k) = window.start {
                let own = windows.vector.map_or(0, |axis| index.0.strides[axis]);
                walk.starts[k] = (own * k as isize, n - size as isize, stride);
            }
            match window.axis.map(|a| (a, windows.index.iter().position(|&i| i == a))) {
                Some((_, Some(position))) => walk.operand.strides[position] = stride,
                Some((a, None)) => {
                    walk.in_operand.strides[walk.window.len()] = stride;
                    walk.in_moved.strides[walk.window.len()] = moved.0.strides[a];
                    walk.window.push(size);
                }
                None => {}
            }
        }
        walk
    }

    /// Makes positions that share an index axes of the window, and finds out whether windows are contiguous.
    fn widened(mut self) -> Walk {
        self.widen();
        self.order();
        let is_row = self.in_operand.is_contiguous(&self.window) && self.in_moved.is_contiguous(&self.window);
        self.row = is_row.then(|| self.window.iter().product());
        self
    }

    /// Number of positions, each of which has one window.
    pub(super) fn count(&self) -> usize {
        self.positions.iter().product()
    }

    /// Makes the last position axes along which the indices do not change axes of the window, as in `take_along_axis`
    /// with one index for each row.
    fn widen(&mut self) {
        let same = |walk: &Walk, last: usize| walk.index.strides[last] == 0 && walk.positions[last] > 0;
        while let Some(last) = self.positions.len().checked_sub(1).filter(|&last| same(self, last)) {
            let at = self.window.len();
            if at == MAX_RANK {
                return;
            }
            self.window.push(self.positions[last]);
            self.in_operand.strides[at] = self.operand.strides[last];
            self.in_moved.strides[at] = self.moved.strides[last];
            for tile in [&mut self.index, &mut self.moved, &mut self.operand] {
                tile.strides[last] = 0;
            }
            self.positions.truncate(last);
        }
    }

    /// Sorts the axes of the window by their stride in the array of windows, innermost last.
    fn order(&mut self) {
        let mut axes: Vec<usize> = (0..self.window.len()).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.in_moved.strides[axis].abs()));
        let (window, operand, moved) = (self.window.clone(), self.in_operand.strides, self.in_moved.strides);
        for (to, from) in axes.into_iter().enumerate() {
            self.window[to] = window[from];
            (self.in_operand.strides[to], self.in_moved.strides[to]) = (operand[from], moved[from]);
        }
    }

    /// Calls `f` with the offsets, in elements, of each window in the operand and in the array of windows, and `ahead`
    /// with the operand's offset of a window that follows soon, to be prefetched. A window that leaves the operand is
    /// skipped if `skips`, else moved inside.
    ///
    /// # Safety
    /// The indices are i32, and their tile holds the positions and vectors.
    pub(super) unsafe fn each(&self, skips: bool, ahead: impl Fn(isize), mut f: impl FnMut(isize, isize)) {
        let place = |at: isize, first: isize| {
            let mut operand = first;
            for &(k, last, stride) in &self.starts {
                // SAFETY: the caller's.
                let found = unsafe { *self.index.start.cast::<i32>().offset(at + k) } as isize;
                let start = found.clamp(0, last.max(0));
                if skips && (start != found || last < 0) {
                    return None;
                }
                operand += start * stride;
            }
            Some(operand)
        };
        let nest = Nest::new(&self.positions, [&self.index, &self.moved, &self.operand]);
        let [index, moved, operand] = [0, 1, 2].map(|tile| nest.inner_stride(tile));
        let n = nest.inner() as isize;
        nest.rows(|[at, into, first]| {
            for i in 0..n {
                if i + AHEAD < n {
                    place(at + (i + AHEAD) * index, first + (i + AHEAD) * operand).into_iter().for_each(&ahead);
                }
                if let Some(found) = place(at + i * index, first + i * operand) {
                    f(found, into + i * moved);
                }
            }
        });
    }

    /// If each window has one start, calls `f` with each line of windows and its first offsets, in elements, in the
    /// operand and in the array of windows. Returns false, without a call, otherwise.
    pub(super) fn lines(&self, mut f: impl FnMut(Line, isize, isize)) -> bool {
        let &[(_, last, stride)] = &self.starts[..] else { return false };
        let mut nest = Nest::new(&self.positions, [&self.index, &self.moved, &self.operand]);
        let [index_stride, moved, along] = [0, 1, 2].map(|tile| nest.inner_stride(tile));
        // Negative for an operand without elements.
        let last = last.min(i32::MAX as isize) as i32;
        let index = self.index.start.cast::<i32>().cast_const();
        let mut line = Line { n: nest.inner(), rows: 1, row: 0, index, index_stride, last, stride, along, moved };
        // Short rows of positions that are adjacent form one line.
        if nest.rank > 1 && self.row == Some(1) && (1..=SHORT).contains(&line.n) {
            let outer = nest.rank - 2;
            let rows = Line { rows: nest.shape[outer], row: nest.strides[2][outer], ..line };
            let n = line.n as isize;
            if nest.strides[0][outer] == n * index_stride && nest.strides[1][outer] == n * moved && rows.is_dense() {
                (line, nest.rank) = (rows, outer + 1);
            }
        }
        nest.rows(|[at, into, first]| f(Line { index: index.wrapping_offset(at), ..line }, first, into));
        true
    }

    /// Calls `f` with the offset, in elements, in the array of windows of each window that leaves the operand, if
    /// windows have one start.
    pub(super) fn outside(&self, mut f: impl FnMut(isize)) {
        let &[(_, last, _)] = &self.starts[..] else { return };
        let last = last.min(i32::MAX as isize) as i32;
        let nest = Nest::new(&self.positions, [&self.index, &self.moved]);
        let [stride, moved] = [0, 1].map(|tile| nest.inner_stride(tile));
        let index = self.index.start.cast::<i32>().cast_const();
        nest.rows(|[at, into]| {
            let positions = Positions { n: nest.inner(), index: index.wrapping_offset(at), stride, last };
            // SAFETY: the indices are i32, and their tile holds the positions.
            unsafe {
                if positions.leave() {
                    positions.each_outside(|i| f(into + i * moved));
                }
            }
        });
    }

    /// Number of bytes of a window of `bytes`-byte elements that are worth prefetching.
    fn near(&self, bytes: usize) -> usize {
        self.row.map_or(bytes, |n| n * bytes).min(FETCHED)
    }
}

/// Returns the tile with another address.
fn placed(mut tile: Tile, start: *mut u8) -> Tile {
    tile.start = start;
    tile
}

impl Run<'_> {
    /// Creates the loop over the windows of a step; `x` is the operand and `moved` the array of windows with its
    /// extents.
    fn walk(&self, step: &Indexed, x: Tile, moved: (Tile, &[usize])) -> Walk {
        let index = (self.tile(step.index), self.shape(step.index));
        Walk::new(&step.windows, (x, self.shape(step.from)), index, moved).widened()
    }

    /// Returns the extents of the part of a gather's result that is written, and of the part that is taken from the
    /// operand: arrays may end before their tiles do.
    fn extents(&self, step: &Indexed) -> [[usize; MAX_RANK]; 2] {
        let written = self.extents_inside(step.to);
        let mut taken = written;
        if let Some(end) = self.end(step.from) {
            for (axis, &extent) in step.windows.axes.iter().zip(&end.extents) {
                if let (None, Some(parallel)) = (axis.start, axis.axis) {
                    taken[parallel] = taken[parallel].min(extent);
                }
            }
        }
        [written, taken]
    }

    /// Runs a gather: copies its windows, or keeps their addresses if its readers need no copy.
    pub(super) fn gather(&mut self, step: &Indexed) {
        let out = self.define(step.to);
        let bytes = self.bytes(step.to);
        let x = self.tile(step.from);
        let rank = self.shape(step.to).len();
        let [written, taken] = self.extents(step);
        let (written, taken) = (&written[..rank], &taken[..rank]);
        if let Some(End { fill: Some(fill), .. }) = self.end(step.from).filter(|_| taken != written) {
            // SAFETY: the result holds these extents; the bits begin with an element.
            unsafe { tile::fill((&raw const fill.bits).cast(), &out, written, bytes) };
        }
        let walk = self.walk(step, x, (out, taken));
        if let Some(readers) = step.stays_for {
            self.buffers.forget(step.to);
            if taken == self.shape(step.to) && self.keep(step, readers, &walk) {
                return;
            }
        }
        let copy = |from: isize, to: isize| {
            let (from, to) = (x.element(from, bytes), out.element(to, bytes));
            // SAFETY: starts are held where the window lies inside of the operand; the positions are the result's, which
            // overlaps no operand.
            unsafe {
                match walk.row {
                    Some(n) => std::ptr::copy_nonoverlapping(from, to, n * bytes),
                    None => {
                        let (from, to) = (placed(walk.in_operand, from), placed(walk.in_moved, to));
                        tile::copy(&from, &to, &walk.window, bytes);
                    }
                }
            }
        };
        let lined = |row: usize| {
            walk.lines(|own, from, to| {
                let (from, to) = (x.element(from, bytes), out.element(to, bytes));
                // SAFETY: as for `copy`.
                unsafe {
                    match row {
                        1 => line::gather(own, from, to, bytes),
                        _ => line::gather_rows(own, from, to, bytes, row),
                    }
                }
            })
        };
        if !walk.row.is_some_and(lined) {
            // SAFETY: the shape rule admits i32 only.
            unsafe { walk.each(false, |from| fetch(x.element(from, bytes), walk.near(bytes)), copy) };
        }
        if let Some(Literal { bits, .. }) = step.fill {
            let bits: *const u8 = (&raw const bits).cast();
            let all = (taken != written).then(|| self.walk(step, x, (out, written)));
            let all = all.as_ref().unwrap_or(&walk);
            all.outside(|at| {
                let to = out.element(at, bytes);
                // SAFETY: the result holds its windows; the bits begin with an element.
                unsafe {
                    match all.row {
                        Some(n) => copy_row(bits, 0, to, 1, n, bytes),
                        None => Nest::new(&all.window, [&all.in_moved]).each(|[a]| {
                            copy_row(bits, 0, to.wrapping_offset(a * bytes as isize), 1, 1, bytes);
                        }),
                    }
                }
            });
        }
    }

    /// Runs a scatter: copies the operand to the result, and replaces its windows by updates or folds these into it.
    pub(super) fn scatter(&mut self, step: &Indexed, updates: Value, fold: Option<Fold>) {
        let (x, own) = (self.tile(step.from), self.tile(updates));
        let (out, bytes) = (self.define(step.to), self.bytes(step.to));
        // SAFETY: the result is where the operand is, or overlaps it nowhere.
        unsafe { tile::copy(&x, &out, self.shape(step.to), bytes) };
        let walk = self.walk(step, out, (own, self.shape(updates)));
        let put = |to: isize, from: isize| {
            let (from, to) = (own.element(from, bytes), out.element(to, bytes));
            // SAFETY: a window that would leave the operand is skipped; the positions are the updates', which the result
            // does not overlap.
            unsafe {
                match (walk.row, fold) {
                    (Some(n), None) => std::ptr::copy_nonoverlapping(from, to, n * bytes),
                    (Some(n), Some(fold)) => (fold.into)(from, n, to),
                    (None, None) => {
                        let (from, to) = (placed(walk.in_moved, from), placed(walk.in_operand, to));
                        tile::copy(&from, &to, &walk.window, bytes);
                    }
                    (None, Some(fold)) => {
                        Nest::new(&walk.window, [&walk.in_moved, &walk.in_operand]).each(|[a, b]| {
                            let [a, b] = [a, b].map(|elements| elements * bytes as isize);
                            (fold.into)(from.wrapping_offset(a), 1, to.wrapping_offset(b));
                        });
                    }
                }
            }
        };
        let lined = |lined, to, from| {
            let (from, to) = (own.element(from, bytes), out.element(to, bytes));
            // SAFETY: as for `put`.
            unsafe {
                match (fold, walk.row) {
                    (Some(fold), Some(row @ 2..)) => (fold.rows_at)(lined, row, from, to),
                    (Some(fold), _) => (fold.at)(lined, from, to),
                    (None, _) => line::scatter(lined, from, to, bytes),
                }
            }
        };
        let is_lined = walk.row.is_some_and(|row| row == 1 || fold.is_some() && row > 1);
        if is_lined && walk.lines(lined) {
            return;
        }
        // SAFETY: the shape rule admits i32 only.
        unsafe { walk.each(true, |to| fetch(out.element(to, bytes), walk.near(bytes)), put) };
    }
}
