//! Gathers from, and scatters to, windows of tiles at positions given by data. Elements adjacent in both arrays are
//! moved together.
use super::super::fold::FoldFunctions;
use super::super::indexed_lines::{
    self, IndexedLine, MAX_PREFETCHED_ROW_BYTES, PREFETCH_DISTANCE_ROWS, prefetch_cache_lines,
};
use super::super::plan::step::GatherScatter;
use super::super::row_copies::copy_row;
use super::super::tile::{self, MAX_RANK, StridedTile, TileLoops};
use super::super::window_starts::WindowStarts;
use super::thread_state::{OverhangingTile, ProgramRunner};
use pallas_ir::structural::IndexedWindows;
use pallas_ir::{Literal, Value};

/// Maximum positions in a row of which several adjacent rows are processed as one line; longer rows are processed one
/// by one.
const MAX_MERGED_ROW_POSITIONS: usize = 32;

/// A loop over the windows of a gather or scatter: strides and extents, computed once per step.
pub(super) struct WindowLoop {
    /// Extents of the positions: axes of the indices without that of their start vectors.
    positions: Vec<usize>,
    /// Strides along the positions: of the indices, of the array of windows, and of the operand (0 except for batched
    /// axes).
    index: StridedTile,
    moved: StridedTile,
    operand: StridedTile,
    /// For each start of a window: its offset in the index vector, its greatest valid value, and the stride of its
    /// axis in the operand.
    starts: Vec<(isize, isize, isize)>,
    /// Extents of a window, and its strides in the operand and in the array of windows.
    window: Vec<usize>,
    in_operand: StridedTile,
    in_moved: StridedTile,
    /// Number of elements of a window if they are adjacent in both arrays.
    pub(super) row: Option<usize>,
}

impl WindowLoop {
    /// Creates the loop over windows of `x` at the positions `index`, each given as a tile and its extents;
    /// `window_array` is the array of windows (a gather's result, a scatter's updates).
    pub(super) fn new(
        windows: &IndexedWindows,
        x: (StridedTile, &[usize]),
        index: (StridedTile, &[usize]),
        window_array: (StridedTile, &[usize]),
    ) -> WindowLoop {
        let none = |tile: &StridedTile| StridedTile { start: tile.start, strides: [0; MAX_RANK] };
        let mut walk = WindowLoop {
            positions: windows.index.iter().map(|&axis| window_array.1[axis]).collect(),
            index: none(&index.0),
            moved: none(&window_array.0),
            operand: none(&x.0),
            starts: vec![(0, 0, 0); windows.start_vector_length()],
            window: vec![],
            in_operand: none(&x.0),
            in_moved: none(&window_array.0),
            row: None,
        };
        let index_axes = (0..index.1.len()).filter(|&axis| Some(axis) != windows.vector);
        for (i, (from, &axis)) in index_axes.zip(&windows.index).enumerate() {
            walk.index.strides[i] = index.0.strides[from];
            walk.moved.strides[i] = window_array.0.strides[axis];
        }
        for (axis, window) in windows.axes.iter().enumerate() {
            let (stride, n) = (x.0.strides[axis], x.1[axis] as isize);
            let size = window.axis.map_or(1, |a| if windows.index.contains(&a) { 1 } else { window_array.1[a] });
            if let Some(k) = window.start {
                let own = windows.vector.map_or(0, |axis| index.0.strides[axis]);
                walk.starts[k] = (own * k as isize, n - size as isize, stride);
            }
            match window.axis.map(|a| (a, windows.index.iter().position(|&i| i == a))) {
                Some((_, Some(position))) => walk.operand.strides[position] = stride,
                Some((a, None)) => {
                    walk.in_operand.strides[walk.window.len()] = stride;
                    walk.in_moved.strides[walk.window.len()] = window_array.0.strides[a];
                    walk.window.push(size);
                }
                None => {}
            }
        }
        walk
    }

    /// Turns axes of the positions that share an index into axes of the window, and records the number of a window's
    /// elements if they are adjacent in both arrays.
    fn with_merged_window_axes(mut self) -> WindowLoop {
        self.merge_constant_index_axes();
        self.sort_window_axes();
        let is_row = self.in_operand.is_contiguous(&self.window) && self.in_moved.is_contiguous(&self.window);
        self.row = is_row.then(|| self.window.iter().product());
        self
    }

    /// Number of positions, each of which has one window.
    pub(super) fn window_count(&self) -> usize {
        self.positions.iter().product()
    }

    /// Turns the last axes of the positions along which the indices do not change into axes of the window, as in
    /// `take_along_axis` with one index for each row.
    fn merge_constant_index_axes(&mut self) {
        let same = |walk: &WindowLoop, last: usize| walk.index.strides[last] == 0 && walk.positions[last] > 0;
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
    fn sort_window_axes(&mut self) {
        let mut axes: Vec<usize> = (0..self.window.len()).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(self.in_moved.strides[axis].abs()));
        let (window, operand, moved) = (self.window.clone(), self.in_operand.strides, self.in_moved.strides);
        for (to, from) in axes.into_iter().enumerate() {
            self.window[to] = window[from];
            (self.in_operand.strides[to], self.in_moved.strides[to]) = (operand[from], moved[from]);
        }
    }

    /// Calls `f` with the offsets, in elements, of each window in the operand and in the array of windows, and
    /// `prefetch` with the operand's offset of a window that follows soon. A window that leaves the operand is skipped
    /// if `skip_outside`, else moved inside.
    ///
    /// # Safety
    /// The indices are i32, and their tile holds the positions and vectors.
    pub(super) unsafe fn for_each_window(
        &self,
        skip_outside: bool,
        prefetch: impl Fn(isize),
        mut f: impl FnMut(isize, isize),
    ) {
        let place = |at: isize, first: isize| {
            let mut operand = first;
            for &(k, last, stride) in &self.starts {
                // SAFETY: the caller's.
                let found = unsafe { *self.index.start.cast::<i32>().offset(at + k) } as isize;
                let start = found.clamp(0, last.max(0));
                if skip_outside && (start != found || last < 0) {
                    return None;
                }
                operand += start * stride;
            }
            Some(operand)
        };
        let nest = TileLoops::new(&self.positions, [&self.index, &self.moved, &self.operand]);
        let [index, moved, operand] = [0, 1, 2].map(|tile| nest.inner_stride(tile));
        let n = nest.inner_extent() as isize;
        nest.for_each_row(|[at, into, first]| {
            for i in 0..n {
                if i + PREFETCH_DISTANCE_ROWS < n {
                    place(at + (i + PREFETCH_DISTANCE_ROWS) * index, first + (i + PREFETCH_DISTANCE_ROWS) * operand)
                        .into_iter()
                        .for_each(&prefetch);
                }
                if let Some(found) = place(at + i * index, first + i * operand) {
                    f(found, into + i * moved);
                }
            }
        });
    }

    /// If exactly one axis of the operand is indexed, calls `f` with each line of windows, the offset of its first one
    /// in the operand without the index, and that in the array of windows, both in elements. Returns false, without a
    /// call, otherwise.
    pub(super) fn for_each_line(&self, mut f: impl FnMut(IndexedLine, isize, isize)) -> bool {
        let &[(_, last, stride)] = &self.starts[..] else { return false };
        let mut nest = TileLoops::new(&self.positions, [&self.index, &self.moved, &self.operand]);
        let [index_stride, moved, along] = [0, 1, 2].map(|tile| nest.inner_stride(tile));
        // Negative for an operand without elements.
        let last = last.min(i32::MAX as isize) as i32;
        let index = self.index.start.cast::<i32>().cast_const();
        let mut line =
            IndexedLine { n: nest.inner_extent(), rows: 1, row: 0, index, index_stride, last, stride, along, moved };
        // Short rows of positions that are adjacent form one line.
        if nest.rank > 1 && self.row == Some(1) && (1..=MAX_MERGED_ROW_POSITIONS).contains(&line.n) {
            let outer = nest.rank - 2;
            let rows = IndexedLine { rows: nest.shape[outer], row: nest.strides[2][outer], ..line };
            let n = line.n as isize;
            if nest.strides[0][outer] == n * index_stride
                && nest.strides[1][outer] == n * moved
                && rows.can_vectorize_offsets()
            {
                (line, nest.rank) = (rows, outer + 1);
            }
        }
        nest.for_each_row(|[at, into, first]| f(IndexedLine { index: index.wrapping_offset(at), ..line }, first, into));
        true
    }

    /// Calls `f` for each gathered window that leaves the operand, with its offset (in elements) in the array of
    /// windows; does nothing unless exactly one axis of the operand is indexed.
    pub(super) fn for_each_outside_window(&self, mut f: impl FnMut(isize)) {
        let &[(_, last, _)] = &self.starts[..] else { return };
        let last = last.min(i32::MAX as isize) as i32;
        let nest = TileLoops::new(&self.positions, [&self.index, &self.moved]);
        let [stride, moved] = [0, 1].map(|tile| nest.inner_stride(tile));
        let index = self.index.start.cast::<i32>().cast_const();
        nest.for_each_row(|[at, into]| {
            let positions = WindowStarts { n: nest.inner_extent(), index: index.wrapping_offset(at), stride, last };
            // SAFETY: the indices are i32, and their tile holds the positions.
            unsafe {
                if positions.has_start_outside() {
                    positions.for_each_start_outside(|i| f(into + i * moved));
                }
            }
        });
    }

    /// Number of bytes worth prefetching of a window whose elements have `element_bytes` bytes.
    fn prefetched_bytes(&self, element_bytes: usize) -> usize {
        self.row.map_or(element_bytes, |n| n * element_bytes).min(MAX_PREFETCHED_ROW_BYTES)
    }
}

/// Returns the tile with another address.
fn tile_at_address(mut tile: StridedTile, start: *mut u8) -> StridedTile {
    tile.start = start;
    tile
}

impl ProgramRunner<'_> {
    /// Creates the loop over the windows of a step; `x` is the operand's tile, and `window_array` the tile that holds
    /// the gathered windows or the updates, with its extents.
    fn window_loop(&self, step: &GatherScatter, x: StridedTile, window_array: (StridedTile, &[usize])) -> WindowLoop {
        let index = (self.tile(step.index), self.shape(step.index));
        WindowLoop::new(&step.windows, (x, self.shape(step.from)), index, window_array).with_merged_window_axes()
    }

    /// Returns the extents of the part of a gather's result that is written, and of the part that is taken from the
    /// operand, which is smaller where the operand's array ends before its tile does.
    fn written_and_taken_extents(&self, step: &GatherScatter) -> [[usize; MAX_RANK]; 2] {
        let written = self.existing_extents(step.to);
        let mut taken = written;
        if let Some(end) = self.find_overhang(step.from) {
            for (axis, &extent) in step.windows.axes.iter().zip(&end.extents) {
                if let (None, Some(parallel)) = (axis.start, axis.axis) {
                    taken[parallel] = taken[parallel].min(extent);
                }
            }
        }
        [written, taken]
    }

    /// Runs a gather: copies its windows, or keeps their addresses if its readers need no copy.
    pub(super) fn gather(&mut self, step: &GatherScatter) {
        let out = self.result_tile(step.to);
        let bytes = self.element_bytes(step.to);
        let x = self.tile(step.from);
        let rank = self.shape(step.to).len();
        let [written, taken] = self.written_and_taken_extents(step);
        let (written, taken) = (&written[..rank], &taken[..rank]);
        if let Some(OverhangingTile { fill: Some(fill), .. }) =
            self.find_overhang(step.from).filter(|_| taken != written)
        {
            // SAFETY: the result holds these extents; the bits begin with an element.
            unsafe { tile::fill((&raw const fill.bits).cast(), &out, written, bytes) };
        }
        let walk = self.window_loop(step, x, (out, taken));
        if let Some(readers) = step.stays_for {
            self.buffers.forget_windows(step.to);
            if taken == self.shape(step.to) && self.keep_window_addresses(step, readers, &walk) {
                return;
            }
        }
        let copy = |from: isize, to: isize| {
            let (from, to) = (x.element_address(from, bytes), out.element_address(to, bytes));
            // SAFETY: starts are held where the window lies inside of the operand; the positions are the result's,
            // which overlaps no operand.
            unsafe {
                match walk.row {
                    Some(n) => std::ptr::copy_nonoverlapping(from, to, n * bytes),
                    None => {
                        let (from, to) = (tile_at_address(walk.in_operand, from), tile_at_address(walk.in_moved, to));
                        tile::copy(&from, &to, &walk.window, bytes);
                    }
                }
            }
        };
        let lined = |row: usize| {
            walk.for_each_line(|own, from, to| {
                let (from, to) = (x.element_address(from, bytes), out.element_address(to, bytes));
                // SAFETY: as for `copy`.
                unsafe {
                    match row {
                        1 => indexed_lines::gather(own, from, to, bytes),
                        _ => indexed_lines::gather_rows(own, from, to, bytes, row),
                    }
                }
            })
        };
        if !walk.row.is_some_and(lined) {
            // SAFETY: the shape rule admits i32 only.
            unsafe {
                walk.for_each_window(
                    false,
                    |from| prefetch_cache_lines(x.element_address(from, bytes), walk.prefetched_bytes(bytes)),
                    copy,
                )
            };
        }
        if let Some(Literal { bits, .. }) = step.fill {
            let bits: *const u8 = (&raw const bits).cast();
            let all = (taken != written).then(|| self.window_loop(step, x, (out, written)));
            let all = all.as_ref().unwrap_or(&walk);
            all.for_each_outside_window(|at| {
                let to = out.element_address(at, bytes);
                // SAFETY: the result holds its windows; the bits begin with an element.
                unsafe {
                    match all.row {
                        Some(n) => copy_row(bits, 0, to, 1, n, bytes),
                        None => TileLoops::new(&all.window, [&all.in_moved]).for_each_element(|[a]| {
                            copy_row(bits, 0, to.wrapping_offset(a * bytes as isize), 1, 1, bytes);
                        }),
                    }
                }
            });
        }
    }

    /// Runs a scatter: copies the operand to the result, and replaces its windows by updates or folds these into it.
    pub(super) fn scatter(&mut self, step: &GatherScatter, updates: Value, fold: Option<FoldFunctions>) {
        let (x, own) = (self.tile(step.from), self.tile(updates));
        let (out, bytes) = (self.result_tile(step.to), self.element_bytes(step.to));
        // SAFETY: the result is where the operand is, or overlaps it nowhere.
        unsafe { tile::copy(&x, &out, self.shape(step.to), bytes) };
        let walk = self.window_loop(step, out, (own, self.shape(updates)));
        let put = |to: isize, from: isize| {
            let (from, to) = (own.element_address(from, bytes), out.element_address(to, bytes));
            // SAFETY: a window that would leave the operand is skipped; the positions are the updates', which the
            // result does not overlap.
            unsafe {
                match (walk.row, fold) {
                    (Some(n), None) => std::ptr::copy_nonoverlapping(from, to, n * bytes),
                    (Some(n), Some(fold)) => (fold.into)(from, n, to),
                    (None, None) => {
                        let (from, to) = (tile_at_address(walk.in_moved, from), tile_at_address(walk.in_operand, to));
                        tile::copy(&from, &to, &walk.window, bytes);
                    }
                    (None, Some(fold)) => {
                        TileLoops::new(&walk.window, [&walk.in_moved, &walk.in_operand]).for_each_element(|[a, b]| {
                            let [a, b] = [a, b].map(|elements| elements * bytes as isize);
                            (fold.into)(from.wrapping_offset(a), 1, to.wrapping_offset(b));
                        });
                    }
                }
            }
        };
        let lined = |lined, to, from| {
            let (from, to) = (own.element_address(from, bytes), out.element_address(to, bytes));
            // SAFETY: as for `put`.
            unsafe {
                match (fold, walk.row) {
                    (Some(fold), Some(row @ 2..)) => (fold.rows_at)(lined, row, from, to),
                    (Some(fold), _) => (fold.at)(lined, from, to),
                    (None, _) => indexed_lines::scatter(lined, from, to, bytes),
                }
            }
        };
        let is_lined = walk.row.is_some_and(|row| row == 1 || fold.is_some() && row > 1);
        if is_lined && walk.for_each_line(lined) {
            return;
        }
        // SAFETY: the shape rule admits i32 only.
        unsafe {
            walk.for_each_window(
                true,
                |to| prefetch_cache_lines(out.element_address(to, bytes), walk.prefetched_bytes(bytes)),
                put,
            )
        };
    }
}
