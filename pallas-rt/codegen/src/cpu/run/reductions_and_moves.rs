//! Steps for reductions, scans and moved elements.
use super::super::extreme_positions;
use super::super::fold::{self, FoldFunctions};
use super::super::launch::LaunchError;
use super::super::plan::step::{AffineIndex, CopiedBox};
use super::super::tile::{self, MAX_RANK, StridedTile, TileLoops};
use super::spacing::VECTOR_ELEMENTS;
use super::thread_state::{ProgramRunner, grow_buffer_to};
use pallas_ir::{Literal, Value};

impl ProgramRunner<'_> {
    /// Returns a view with `rank` axes of the memory of `from`. For each axis of `from`, an entry of `axes` gives the
    /// axis of the view that runs along it, with a stride and an offset.
    pub(super) fn restride(&self, from: Value, axes: &[AffineIndex], rank: usize) -> StridedTile {
        let tile = self.tile(from);
        let mut out = StridedTile { start: tile.start, strides: [0; MAX_RANK] };
        let mut offset = 0isize;
        for (a, stride) in axes.iter().zip(tile.strides) {
            // Along an axis of one element the stride is arbitrary, and may be too large.
            offset = a.offset.wrapping_mul(stride).wrapping_add(offset);
            if let Some(axis) = a.axis {
                debug_assert!(axis < rank, "axes are the result's");
                out.strides[axis] = a.stride.wrapping_mul(stride).wrapping_add(out.strides[axis]);
            }
        }
        out.offset(offset, self.element_bytes(from))
    }

    /// Runs a reshape: a view of the same memory if the strides allow it, else a copy.
    pub(super) fn reshape(&mut self, from: Value, to: Value) {
        if let Some(tile) = tile::try_reshape(&self.tile(from), self.shape(from), self.shape(to)) {
            self.state.tiles[to.index()] = tile;
            return;
        }
        let out = self.result_tile(to);
        let straight = StridedTile::contiguous(out.start, self.shape(from));
        // SAFETY: the slot holds as many elements; row-major positions agree.
        unsafe { tile::copy(&self.tile(from), &straight, self.shape(from), self.element_bytes(from)) };
    }

    /// Runs a data movement from several operands (a concatenation, pad ..): copies the box of each part to the result;
    /// where boxes overlap, the earlier part wins.
    pub(super) fn copy_boxes(&mut self, parts: &[CopiedBox], to: Value) {
        let (out, bytes, rank) = (self.result_tile(to), self.element_bytes(to), self.shape(to).len());
        // Earlier parts win, so they are written last.
        for part in parts.iter().rev().filter(|p| !p.size.contains(&0)) {
            let (mut source, mut target) = (self.restride(part.from, &part.axes, rank), out);
            for (axis, &start) in part.start.iter().enumerate() {
                source = source.offset(start as isize * source.strides[axis], bytes);
                target = target.offset(start as isize * target.strides[axis], bytes);
            }
            // SAFETY: a part's box lies inside of the result, and its positions inside of the operand.
            unsafe { tile::copy(&source, &target, &part.size, bytes) };
        }
    }

    /// Copies a tile to a buffer, contiguously, with its axes in the given order.
    pub(super) fn copy_with_axis_order(
        &mut self,
        buffer: usize,
        from: &StridedTile,
        shape: &[usize],
        order: &[usize],
        element_bytes: usize,
    ) -> Result<StridedTile, LaunchError> {
        let sizes: Vec<usize> = order.iter().map(|&a| shape[a]).collect();
        let total: usize = sizes.iter().product();
        let to =
            StridedTile::contiguous(grow_buffer_to(&mut self.buffers.operands[buffer], total * element_bytes)?, &sizes);
        // SAFETY: the buffer has room for every element.
        unsafe { tile::copy(&from.select_axes(order), &to, &sizes, element_bytes) };
        Ok(to)
    }

    /// Runs a reduction over `axes`. Where the folded axes are innermost each row of the operand is folded to one
    /// element; elsewhere each row of the operand is folded, element by element, into a row of the result.
    pub(super) fn fold(
        &mut self,
        fold: FoldFunctions,
        start: Literal,
        from: Value,
        axes: &[usize],
        to: Value,
    ) -> Result<(), LaunchError> {
        let (shape, bytes) = (self.shape(from), self.element_bytes(from));
        let out = self.result_tile(to);
        let total: usize = shape.iter().product();
        let start = start.bits;
        let start: *const u8 = (&raw const start).cast();
        if total == 0 {
            // SAFETY: the result's own memory holds its shape.
            unsafe { tile::fill(start, &out, self.shape(to), bytes) };
            return Ok(());
        }
        if self.tile(from).is_contiguous(shape)
            && let ([axis], Some((&n, outer))) = (axes, shape.split_last())
            && *axis == outer.len()
        {
            let (x, rows) = (self.tile(from).start, total / n);
            // SAFETY: the tile is rows of n adjacent elements side by side; the result has one element a row.
            unsafe { (fold.rows)(x, (n * bytes) as isize, rows, n, start, out.start) };
            return Ok(());
        }
        let long = |a: &usize| shape[*a] != 1;
        let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).filter(long).collect();
        let mut folded: Vec<usize> = axes.iter().copied().filter(long).collect();
        folded.sort_unstable();
        let mut tile = self.tile(from);
        let by_rows = folded.last() > kept.last() || kept.is_empty();
        let sizes = |axes: &[usize]| -> Vec<usize> { axes.iter().map(|&a| shape[a]).collect() };
        if by_rows {
            if !tile.select_axes(&folded).is_contiguous(&sizes(&folded)) {
                let order = [&kept[..], &folded[..]].concat();
                let copy = self.copy_with_axis_order(0, &tile, shape, &order, bytes)?;
                tile.start = copy.start;
                order.iter().enumerate().for_each(|(i, &a)| tile.strides[a] = copy.strides[i]);
            }
            let n: usize = sizes(&folded).iter().product();
            let rows = tile.select_axes(&kept);
            let nest = TileLoops::new(&sizes(&kept), [&rows]);
            let (mut done, stride) = (0, nest.inner_stride(0) * bytes as isize);
            nest.for_each_row(|[offset]| {
                // SAFETY: rows of the nest are rows of the tile, adjacent in `folded`; the result has one element a
                // row.
                unsafe {
                    let x = rows.start.offset(offset * bytes as isize);
                    (fold.rows)(x, stride, nest.inner_extent(), n, start, out.start.add(done * bytes));
                }
                done += nest.inner_extent();
            });
            return Ok(());
        }
        if kept.last().is_some_and(|&a| tile.strides[a] != 1) {
            let order: Vec<usize> = (0..shape.len()).collect();
            tile = self.copy_with_axis_order(0, &tile, shape, &order, bytes)?;
        }
        let (rows, row_sizes) = (tile.select_axes(&kept), sizes(&kept));
        let results = StridedTile::contiguous(out.start, &row_sizes);
        let inner = TileLoops::new(&row_sizes, [&rows, &results]);
        // SAFETY: the slot holds the result; rows of both nests lie inside of the tile and are adjacent elements.
        unsafe {
            tile::fill(start, &results, &row_sizes, bytes);
            if tile.is_contiguous(shape) && folded.last() < kept.first() {
                let columns: usize = row_sizes.iter().product();
                fold.fold_columns(tile.start, [total / columns.max(1), columns], bytes, out.start);
                return Ok(());
            }
            TileLoops::new(&sizes(&folded), [&tile.select_axes(&folded)]).for_each_element(|[step]| {
                inner.for_each_row(|[x, y]| {
                    let x = rows.start.offset((step + x) * bytes as isize);
                    (fold.into)(x, inner.inner_extent(), out.start.offset(y * bytes as isize));
                });
            });
        }
        Ok(())
    }

    /// Runs a running fold (prefix scan) along an axis, from its last element backwards if `reverse`.
    pub(super) fn scan(&mut self, fold: FoldFunctions, from: Value, axis: usize, reverse: bool, to: Value) {
        let (out, x, shape, bytes) =
            (self.result_tile(to), self.tile(from), self.shape(from), self.element_bytes(from));
        let (n, mut strides) = (shape[axis], [x.strides[axis], out.strides[axis]]);
        let last = n.saturating_sub(1) as isize;
        let ends = strides.map(|s| if reverse { s * last * bytes as isize } else { 0 });
        if reverse {
            strides = strides.map(|s| -s);
        }
        let mut columns = shape.to_vec();
        columns[axis] = n.min(1);
        let nest = TileLoops::new(&columns, [&x, &out]);
        if (nest.inner_stride(0), nest.inner_stride(1)) != (1, 1) || nest.inner_extent() < VECTOR_ELEMENTS {
            for_each_line(shape, axis, [(x, bytes), (out, bytes)], |x, y| {
                // SAFETY: both tiles hold the shape: a line has `n` elements at the axis' strides.
                unsafe { (fold.scan)(x.offset(ends[0]), strides[0], y.offset(ends[1]), strides[1], n) };
            });
            return;
        }
        // Adjacent lines are scanned together, one element of each at a time.
        nest.for_each_row(|[a, b]| {
            let at = |tile: &StridedTile, first: isize, k: usize, i: usize| {
                tile.start.wrapping_offset(ends[k] + (first + i as isize * strides[k]) * bytes as isize)
            };
            for i in 0..n {
                let (from, to) = (at(&x, a, 0, i), at(&out, b, 1, i));
                // SAFETY: rows of both tiles have as many adjacent elements; the result overlaps no operand.
                unsafe {
                    if i == 0 {
                        std::ptr::copy_nonoverlapping(from, to, nest.inner_extent() * bytes);
                    } else {
                        std::ptr::copy_nonoverlapping(at(&out, b, 1, i - 1), to, nest.inner_extent() * bytes);
                        (fold.into)(from, nest.inner_extent(), to);
                    }
                    if let Some(flush) = fold
                        .flush
                        .filter(|_| i % fold::ELEMENTS_PER_SUBNORMAL_FLUSH == fold::ELEMENTS_PER_SUBNORMAL_FLUSH - 1)
                    {
                        flush(to, nest.inner_extent());
                    }
                }
            }
        });
    }

    /// Computes the position of the greatest (`max`) or smallest element of each line along an axis.
    pub(super) fn run_arg_min_max(&mut self, max: bool, from: Value, axis: usize, to: Value) {
        let (out, x, shape) = (self.result_tile(to), self.tile(from), self.shape(from));
        let (n, dtype) = (shape[axis], self.ty(from).dtype);
        if n == 0 {
            let zero = 0u32;
            // SAFETY: the slot holds the result.
            return unsafe { tile::fill((&raw const zero).cast(), &out, self.shape(to), 4) };
        }
        let mut columns = shape.to_vec();
        columns[axis] = 1;
        let nest = TileLoops::new(&columns, [&x, &out]);
        let (adjacent, steps) = (nest.inner_extent(), [nest.inner_stride(0), nest.inner_stride(1)]);
        let find = extreme_positions::find_extremes_fn(dtype);
        nest.for_each_row(|[a, b]| {
            // SAFETY: a line has `n` elements at the axis' stride; the result is i32.
            let find = |c: usize, columns: usize| unsafe {
                let [a, b] = [a + c as isize * steps[0], b + c as isize * steps[1]];
                let to = out.start.wrapping_offset(b * 4).cast::<i32>();
                let from = x.start.wrapping_offset(a * dtype.bytes() as isize);
                find(max, from, [x.strides[axis], steps[0]], n, columns, to);
            };
            match steps[1] {
                1 => find(0, adjacent),
                _ => (0..adjacent).for_each(|c| find(c, 1)),
            }
        });
    }
}

/// Calls `f` with the address of each line along `axis` in two tiles, each given with the bytes of an element.
fn for_each_line(shape: &[usize], axis: usize, [x, y]: [(StridedTile, usize); 2], mut f: impl FnMut(*mut u8, *mut u8)) {
    let mut lines = shape.to_vec();
    lines[axis] = lines[axis].min(1);
    TileLoops::new(&lines, [&x.0, &y.0]).for_each_element(|[a, b]| {
        f(x.0.start.wrapping_offset(a * x.1 as isize), y.0.start.wrapping_offset(b * y.1 as isize));
    });
}
