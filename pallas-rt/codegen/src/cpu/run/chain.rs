//! Runs chains of elementwise operations strip by strip: all operations over a strip while it is in the first-level
//! cache.
//!
//! A strip is read and written in place where its elements are adjacent. Chains over tiles with gaps between rows, or
//! with broadcast operands, run in windows (a part of one long row, or several short rows), which are copied to
//! buffers.
use super::super::plan::step::{ChainFold, ElementwiseChain, FoldDirection, LinkOperand};
use super::super::row_copies::{copy_row, copy_rows, repeat_each_element, repeat_prefix};
use super::super::strips::{STRIP_ELEMENTS, slice, slice_mut};
use super::super::tile::{StridedTile, copy_non_temporal};
use super::spacing::row_offset;
use pallas_ir::{DType, Slice};

/// The way in which a chain reads strips of an operand, or writes strips of a result.
#[derive(Clone, Copy)]
pub(super) enum StripAccess {
    /// In place: elements are in row-major order from this address on.
    Contiguous(*mut u8),
    /// In this strip buffer, whose contents stay the same for all strips (a broadcast scalar).
    BroadcastScalar(*mut u8),
    /// In this strip buffer, which holds as many copies of one row as a strip has rows.
    RepeatedRow(*mut u8),
    /// In place: each window is a part of one row of this tile, whose elements are adjacent.
    RowInPlace(StridedTile),
    /// One element of each row, repeated in a strip buffer; each window is a part of one row.
    BroadcastRowElement(StridedTile, *mut u8),
    /// Copied row by row from a strided tile to a strip buffer, or for results from the buffer to the tile.
    CopiedRows(StridedTile, *mut u8),
    /// For results: computed in `buffer` and copied to row-major memory, with non-temporal stores if `streams`. Large
    /// arrays bypass the caches, since they would evict data that is still needed.
    BufferedResult { start: *mut u8, buffer: *mut u8, streams: bool },
}

/// Addresses and strides by which a chain of elementwise operations reads its inputs and writes its results.
#[derive(Default)]
pub(super) struct ChainAccess {
    /// The chain's inputs with their element types.
    pub(super) inputs: Vec<(StripAccess, DType)>,
    /// The result of each link: in its strip buffer, or in the memory of its value.
    pub(super) outputs: Vec<StripAccess>,
    /// Address of the first element of each fold's result.
    pub(super) sinks: Vec<*mut u8>,
    /// Number of elements of a row.
    pub(super) inner: usize,
    /// Tiles of the links' results that steps outside of the chain need.
    pub(super) results: Vec<StridedTile>,
}

impl ChainAccess {
    /// Returns true if a strip may extend past the end of a row into the next: nothing is folded, and all memory is
    /// contiguous.
    pub(super) fn can_cross_rows(&self) -> bool {
        let flat = |r: &StripAccess| {
            matches!(
                r,
                StripAccess::Contiguous(_) | StripAccess::BroadcastScalar(_) | StripAccess::BufferedResult { .. }
            )
        };
        self.sinks.is_empty() && self.inputs.iter().all(|i| flat(&i.0)) && self.outputs.iter().all(flat)
    }
}

/// Strip buffers of a thread: first those that every chain overwrites, then those that keep their contents (broadcast
/// values).
pub(super) struct StripBuffers {
    pub(super) start: *mut u8,
    pub(super) pitch: usize,
    /// Index of the first buffer that may be given to a value that is kept.
    pub(super) held: usize,
}

impl StripBuffers {
    /// Returns the address of strip buffer `i`.
    pub(super) fn buffer_address(&self, i: usize) -> *mut u8 {
        self.start.wrapping_add(i * self.pitch)
    }
    /// Takes the next buffer for a broadcast value, whose contents stay the same for all strips of a chain, and returns
    /// its address.
    pub(super) fn allocate_broadcast_buffer(&mut self) -> *mut u8 {
        self.held += 1;
        self.buffer_address(self.held - 1)
    }
}

/// A part of the chain's shape: `rows` rows from `row` on, and of each `cols` columns from `col` on.
#[derive(Clone, Copy)]
struct StripWindow {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

/// Minimum elements of a row that has a strip of its own; several shorter rows share a strip.
pub(super) const MIN_LONG_ROW_ELEMENTS: usize = STRIP_ELEMENTS / 2;

/// A chain with the addresses of its inputs, results and buffers.
#[derive(Clone, Copy)]
pub(super) struct StripRunner<'r> {
    pub(super) chain: &'r ElementwiseChain,
    pub(super) reaches: &'r ChainAccess,
}

impl StripRunner<'_> {
    /// Runs all links and folds over the rows `from..to`.
    ///
    /// # Safety
    /// Tiles and buffers hold what the chain says; short rows fit a strip together.
    pub(super) unsafe fn run_rows(&self, from: usize, to: usize) {
        let inner = self.reaches.inner;
        if inner < MIN_LONG_ROW_ELEMENTS {
            // SAFETY: the caller's.
            return unsafe { self.run_window(StripWindow { row: from, rows: to - from, col: 0, cols: inner }) };
        }
        // Folds alone need no buffers for rows that they read in place.
        let in_place =
            |i: &(StripAccess, DType)| matches!(i.0, StripAccess::Contiguous(_) | StripAccess::RowInPlace(_));
        let width = if self.chain.links.is_empty() && self.reaches.inputs.iter().all(in_place) {
            inner
        } else {
            STRIP_ELEMENTS
        };
        for row in from..to {
            for col in (0..inner).step_by(width) {
                // SAFETY: the caller's.
                unsafe { self.run_window(StripWindow { row, rows: 1, col, cols: width.min(inner - col) }) };
            }
        }
    }

    /// Runs all links and folds over a window.
    ///
    /// # Safety
    /// Tiles and buffers hold what the chain says; the window lies inside of its shape.
    unsafe fn run_window(&self, w: StripWindow) {
        let n = w.rows * w.cols;
        // SAFETY: the caller's; strips have n elements.
        unsafe {
            self.copy_inputs(w);
            let mut strips = [Slice::U8(&[]); 3];
            for (link, out) in self.chain.links.iter().zip(&self.reaches.outputs) {
                for (strip, &(source, dtype)) in strips.iter_mut().zip(&link.args) {
                    // Only results of other links and inputs are read.
                    *strip = slice(dtype, self.strip_address(self.operand_access(source), w, dtype.bytes()), n);
                }
                // A link writes its own buffer or the memory of its value, which no strip it reads lies in.
                let out = slice_mut(link.dtype, self.strip_address(out, w, link.dtype.bytes()), n);
                (link.strip)(&strips[..link.args.len()], out, n);
            }
            for (sink, &to) in self.chain.sinks.iter().zip(&self.reaches.sinks) {
                self.fold_window(sink, to, w);
            }
            self.copy_results(w);
        }
    }

    fn operand_access(&self, operand: LinkOperand) -> &StripAccess {
        match operand {
            LinkOperand::Link(l) => &self.reaches.outputs[l],
            LinkOperand::Input(x) => &self.reaches.inputs[x].0,
        }
    }
    /// Returns the address of a window's strip for an input or result.
    #[inline]
    fn strip_address(&self, access: &StripAccess, w: StripWindow, element_bytes: usize) -> *mut u8 {
        match access {
            StripAccess::Contiguous(start) => start.wrapping_add((w.row * self.reaches.inner + w.col) * element_bytes),
            StripAccess::RowInPlace(tile) => self.row_address(tile, w, 0, element_bytes),
            StripAccess::BroadcastScalar(buffer)
            | StripAccess::RepeatedRow(buffer)
            | StripAccess::BufferedResult { buffer, .. } => *buffer,
            StripAccess::BroadcastRowElement(_, buffer) | StripAccess::CopiedRows(_, buffer) => *buffer,
        }
    }
    /// Returns the address of row `r` of a window in a tile.
    fn row_address(&self, tile: &StridedTile, w: StripWindow, r: usize, element_bytes: usize) -> *mut u8 {
        let elements = row_offset(tile, &self.chain.shape, w.row + r) + w.col as isize * self.column_stride(tile);
        tile.start.wrapping_offset(elements * element_bytes as isize)
    }

    /// Calls `f` for each group of rows of a window that are equally spaced in a tile, with the address of the first
    /// row in the tile, the distance of rows in elements, the address in a strip buffer, and the number of rows.
    fn for_each_row_group(
        &self,
        tile: &StridedTile,
        buffer: *mut u8,
        w: StripWindow,
        element_bytes: usize,
        mut f: impl FnMut((*mut u8, isize), *mut u8, usize),
    ) {
        let shape = &self.chain.shape;
        let last = shape.len().saturating_sub(1);
        // The innermost axis of the rows that is longer than 1.
        let axis = (0..last).rev().find(|&axis| shape[axis] != 1);
        let mut r = 0;
        while r < w.rows {
            let count = axis.map_or(1, |axis| shape[axis] - (w.row + r) % shape[axis]).min(w.rows - r);
            let far = axis.map_or(0, |axis| tile.strides[axis]);
            f(
                (self.row_address(tile, w, r, element_bytes), far),
                buffer.wrapping_add(r * w.cols * element_bytes),
                count,
            );
            r += count;
        }
    }

    /// Returns the distance in elements from one column of a tile to the next.
    fn column_stride(&self, tile: &StridedTile) -> isize {
        tile.strides[self.chain.shape.len().saturating_sub(1)]
    }

    /// Copies a window's rows of an input to a strip buffer. Adjacent rows are copied as one line; a row, or an
    /// element of each row, that is broadcast is repeated without a loop over rows.
    ///
    /// # Safety
    /// As [`StripRunner::run_window`].
    unsafe fn copy_input_rows(&self, tile: &StridedTile, buffer: *mut u8, w: StripWindow, element_bytes: usize) {
        let stride = self.column_stride(tile);
        self.for_each_row_group(tile, buffer, w, element_bytes, |(place, far), strip, count| {
            let all = count * w.cols;
            // SAFETY: rows lie inside of the tile, the buffer holds the strip.
            unsafe {
                if count > 1 && far == stride * w.cols as isize {
                    copy_row(place, stride, strip, 1, all, element_bytes);
                } else if count > 1 && far == 0 {
                    copy_row(place, stride, strip, 1, w.cols, element_bytes);
                    repeat_prefix(strip, w.cols * element_bytes, all * element_bytes);
                } else if count > 1 && stride == 0 {
                    repeat_each_element(place, far, strip, count, w.cols, element_bytes);
                } else {
                    copy_rows([place, strip], [stride, 1], [far, w.cols as isize], [count, w.cols], element_bytes);
                }
            }
        });
    }

    /// Copies the inputs of a window that are not read in place to strip buffers.
    ///
    /// # Safety
    /// As [`StripRunner::run_window`].
    unsafe fn copy_inputs(&self, w: StripWindow) {
        for &(input, dtype) in &self.reaches.inputs {
            let bytes = dtype.bytes();
            match input {
                // SAFETY: the caller's.
                StripAccess::CopiedRows(tile, buffer) => unsafe { self.copy_input_rows(&tile, buffer, w, bytes) },
                // The first strip of a row is its longest; the others find it filled.
                // SAFETY: as above.
                StripAccess::BroadcastRowElement(tile, buffer) if w.col == 0 => unsafe {
                    copy_row(self.row_address(&tile, w, 0, bytes), 0, buffer, 1, w.cols, bytes);
                },
                _ => {}
            }
        }
    }

    /// Folds a window's part of its rows or columns into the fold's result at `to`.
    ///
    /// # Safety
    /// As [`StripRunner::run_window`]; `to` has an element per row, or column.
    unsafe fn fold_window(&self, fold: &ChainFold, to: *mut u8, w: StripWindow) {
        let bytes = fold.dtype.bytes();
        let x = self.strip_address(self.operand_access(fold.of), w, bytes);
        let start: *const u8 = (&raw const fold.start.bits).cast();
        // SAFETY: the strip holds the window's rows side by side; windows that continue a row have one.
        unsafe {
            if fold.along == FoldDirection::Columns {
                return fold.fold.fold_columns(x, [w.rows, w.cols], bytes, to.add(w.col * bytes));
            }
            let to = to.add(w.row * bytes);
            let start = if w.col == 0 { start } else { to.cast_const() };
            (fold.fold.rows)(x, (w.cols * bytes) as isize, w.rows, w.cols, start, to);
        }
    }

    /// Copies the results of a window that were not written in place from strip buffers to their memory.
    ///
    /// # Safety
    /// As [`StripRunner::run_window`].
    unsafe fn copy_results(&self, w: StripWindow) {
        for (link, reach) in self.chain.links.iter().zip(&self.reaches.outputs) {
            let bytes = link.dtype.bytes();
            match reach {
                // SAFETY: the result holds the chain's shape, the buffer the strip.
                StripAccess::BufferedResult { start, buffer, streams } => unsafe {
                    let to = start.wrapping_add((w.row * self.reaches.inner + w.col) * bytes);
                    if *streams {
                        copy_non_temporal(*buffer, to, w.rows * w.cols * bytes);
                    } else {
                        copy_row(*buffer, 1, to, 1, w.rows * w.cols, bytes);
                    }
                },
                // SAFETY: as above.
                StripAccess::CopiedRows(tile, buffer) => unsafe {
                    self.for_each_row_group(tile, *buffer, w, bytes, |(place, far), strip, count| {
                        let inner = [1, self.column_stride(tile)];
                        copy_rows([strip, place], inner, [w.cols as isize, far], [count, w.cols], bytes);
                    });
                },
                _ => {}
            }
        }
    }
}
