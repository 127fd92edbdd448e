//! Elementwise chains: strip by strip, every link over the strip while it is in the first level cache.
//!
//! Strips are read and written in place where their elements are adjacent. Chains over tiles with gaps between rows, or with
//! stretched operands, run in windows: a part of one long row, or several short rows, which are copied side by side.
use super::super::plan::step::{Chain, Sink, SinkAlong, Source};
use super::super::rows::{copy_row, copy_rows, repeat_each, repeat_first};
use super::super::strips::{STRIP, slice, slice_mut};
use super::super::tile::{Tile, stream};
use super::spacing::row_offset;
use pallas_ir::{DType, Slice};

/// The method of reading a strip of an operand.
#[derive(Clone, Copy)]
pub(super) enum Reach {
    /// At a row-major position of this memory.
    Straight(*mut u8),
    /// In a strip buffer, where it stays.
    Held(*mut u8),
    /// In a strip buffer that holds as many copies of one row as a strip has rows.
    Repeated(*mut u8),
    /// In place: windows lie in one row, whose elements are adjacent.
    Row(Tile),
    /// One element a row, spread over a strip buffer; windows lie in one row.
    Spread(Tile, *mut u8),
    /// Copied row by row to a strip buffer, or from it for results.
    Rows(Tile, *mut u8),
    /// For results: copied from a strip buffer to a row-major position, with or without non-temporal stores. Large
    /// arrays bypass the caches, since they would evict data that is still needed.
    Late { start: *mut u8, buffer: *mut u8, streams: bool },
}

/// Memory of all operands and results of a chain.
#[derive(Default)]
pub(super) struct Reaches {
    /// Operands and their element types.
    pub(super) inputs: Vec<(Reach, DType)>,
    /// Results of links.
    pub(super) outputs: Vec<Reach>,
    /// First elements of folded rows.
    pub(super) sinks: Vec<*mut u8>,
    /// Elements of a row.
    pub(super) inner: usize,
    /// Results of links that leave the chain.
    pub(super) results: Vec<Tile>,
}

impl Reaches {
    /// True if a strip may extend past the end of a row into the next.
    pub(super) fn anywhere(&self) -> bool {
        let flat = |r: &Reach| matches!(r, Reach::Straight(_) | Reach::Held(_) | Reach::Late { .. });
        self.sinks.is_empty() && self.inputs.iter().all(|i| flat(&i.0)) && self.outputs.iter().all(flat)
    }
}

/// Strip buffers: those that chains use in turn, then those that keep what they hold.
pub(super) struct StripBuffers {
    pub(super) start: *mut u8,
    pub(super) pitch: usize,
    /// The first one that is free to keep.
    pub(super) held: usize,
}

impl StripBuffers {
    pub(super) fn at(&self, i: usize) -> *mut u8 {
        self.start.wrapping_add(i * self.pitch)
    }
    pub(super) fn keep(&mut self) -> *mut u8 {
        self.held += 1;
        self.at(self.held - 1)
    }
}

/// A box of the chain's shape: rows from `row` on, columns from `col` on.
#[derive(Clone, Copy)]
struct Window {
    row: usize,
    rows: usize,
    col: usize,
    cols: usize,
}

/// Shorter rows share a strip with others.
pub(super) const LONG: usize = STRIP / 2;

/// A chain with everything in its place.
#[derive(Clone, Copy)]
pub(super) struct Strips<'r> {
    pub(super) chain: &'r Chain,
    pub(super) reaches: &'r Reaches,
}

impl Strips<'_> {
    /// All links over some rows.
    ///
    /// # Safety
    /// Tiles and buffers hold what the chain says; short rows fit a strip together.
    pub(super) unsafe fn rows(&self, from: usize, to: usize) {
        let inner = self.reaches.inner;
        if inner < LONG {
            // SAFETY: the caller's.
            return unsafe { self.compute(Window { row: from, rows: to - from, col: 0, cols: inner }) };
        }
        // Folds alone need no buffers for rows that they read in place.
        let in_place = |i: &(Reach, DType)| matches!(i.0, Reach::Straight(_) | Reach::Row(_));
        let width = if self.chain.links.is_empty() && self.reaches.inputs.iter().all(in_place) { inner } else { STRIP };
        for row in from..to {
            for col in (0..inner).step_by(width) {
                // SAFETY: the caller's.
                unsafe { self.compute(Window { row, rows: 1, col, cols: width.min(inner - col) }) };
            }
        }
    }

    /// All links over a window.
    ///
    /// # Safety
    /// Tiles and buffers hold what the chain says; the window lies inside of its shape.
    unsafe fn compute(&self, w: Window) {
        let n = w.rows * w.cols;
        // SAFETY: the caller's; strips have n elements.
        unsafe {
            self.bring(w);
            let mut strips = [Slice::U8(&[]); 3];
            for (link, out) in self.chain.links.iter().zip(&self.reaches.outputs) {
                for (strip, &(source, dtype)) in strips.iter_mut().zip(&link.args) {
                    // Only results of other links and inputs are read.
                    *strip = slice(dtype, self.at(self.reach(source), w, dtype.bytes()), n);
                }
                // A link writes its own buffer or the memory of its value, which no strip it reads lies in.
                let out = slice_mut(link.dtype, self.at(out, w, link.dtype.bytes()), n);
                (link.strip)(&strips[..link.args.len()], out, n);
            }
            for (sink, &to) in self.chain.sinks.iter().zip(&self.reaches.sinks) {
                self.drain(sink, to, w);
            }
            self.take_away(w);
        }
    }

    fn reach(&self, source: Source) -> &Reach {
        match source {
            Source::Link(l) => &self.reaches.outputs[l],
            Source::Input(x) => &self.reaches.inputs[x].0,
        }
    }
    /// The start of the strip of a window.
    #[inline]
    fn at(&self, reach: &Reach, w: Window, bytes: usize) -> *mut u8 {
        match reach {
            Reach::Straight(start) => start.wrapping_add((w.row * self.reaches.inner + w.col) * bytes),
            Reach::Row(tile) => self.row(tile, w, 0, bytes),
            Reach::Held(buffer) | Reach::Repeated(buffer) | Reach::Late { buffer, .. } => *buffer,
            Reach::Spread(_, buffer) | Reach::Rows(_, buffer) => *buffer,
        }
    }
    /// The start of row `r` of a window.
    fn row(&self, tile: &Tile, w: Window, r: usize, bytes: usize) -> *mut u8 {
        let elements = row_offset(tile, &self.chain.shape, w.row + r) + w.col as isize * self.stride(tile);
        tile.start.wrapping_offset(elements * bytes as isize)
    }

    /// Calls `f` with rows of a window that are equally spaced in a tile: the first one's place in the tile, their distance,
    /// its place in a strip buffer, and how many there are.
    fn runs(
        &self,
        tile: &Tile,
        buffer: *mut u8,
        w: Window,
        bytes: usize,
        mut f: impl FnMut((*mut u8, isize), *mut u8, usize),
    ) {
        let shape = &self.chain.shape;
        let last = shape.len().saturating_sub(1);
        // The axis along which rows follow each other.
        let axis = (0..last).rev().find(|&axis| shape[axis] != 1);
        let mut r = 0;
        while r < w.rows {
            let count = axis.map_or(1, |axis| shape[axis] - (w.row + r) % shape[axis]).min(w.rows - r);
            let far = axis.map_or(0, |axis| tile.strides[axis]);
            f((self.row(tile, w, r, bytes), far), buffer.wrapping_add(r * w.cols * bytes), count);
            r += count;
        }
    }

    /// Elements from one column of a tile to the next.
    fn stride(&self, tile: &Tile) -> isize {
        tile.strides[self.chain.shape.len().saturating_sub(1)]
    }

    /// Copies rows of an operand to a strip buffer: as one line where they are adjacent; copies of one row, or of one element
    /// a row, are made without a loop for each row.
    ///
    /// # Safety
    /// As [`Strips::compute`].
    unsafe fn bring_rows(&self, tile: &Tile, buffer: *mut u8, w: Window, bytes: usize) {
        let stride = self.stride(tile);
        self.runs(tile, buffer, w, bytes, |(place, far), strip, count| {
            let all = count * w.cols;
            // SAFETY: rows lie inside of the tile, the buffer holds the strip.
            unsafe {
                if count > 1 && far == stride * w.cols as isize {
                    copy_row(place, stride, strip, 1, all, bytes);
                } else if count > 1 && far == 0 {
                    copy_row(place, stride, strip, 1, w.cols, bytes);
                    repeat_first(strip, w.cols * bytes, all * bytes);
                } else if count > 1 && stride == 0 {
                    repeat_each(place, far, strip, count, w.cols, bytes);
                } else {
                    copy_rows([place, strip], [stride, 1], [far, w.cols as isize], [count, w.cols], bytes);
                }
            }
        });
    }

    /// Copies operands that are not read in place.
    ///
    /// # Safety
    /// As [`Strips::compute`].
    unsafe fn bring(&self, w: Window) {
        for &(input, dtype) in &self.reaches.inputs {
            let bytes = dtype.bytes();
            match input {
                // SAFETY: the caller's.
                Reach::Rows(tile, buffer) => unsafe { self.bring_rows(&tile, buffer, w, bytes) },
                // The first strip of a row is its longest; the others find it filled.
                // SAFETY: as above.
                Reach::Spread(tile, buffer) if w.col == 0 => unsafe {
                    copy_row(self.row(&tile, w, 0, bytes), 0, buffer, 1, w.cols, bytes);
                },
                _ => {}
            }
        }
    }

    /// Folds the window's part of its rows or columns into the result.
    ///
    /// # Safety
    /// As [`Strips::compute`]; `to` has an element per row, or column.
    unsafe fn drain(&self, sink: &Sink, to: *mut u8, w: Window) {
        let bytes = sink.dtype.bytes();
        let x = self.at(self.reach(sink.of), w, bytes);
        let start: *const u8 = (&raw const sink.start.bits).cast();
        // SAFETY: the strip holds the window's rows side by side; windows that continue a row have one.
        unsafe {
            if sink.along == SinkAlong::Columns {
                return sink.fold.columns(x, [w.rows, w.cols], bytes, to.add(w.col * bytes));
            }
            let to = to.add(w.row * bytes);
            let start = if w.col == 0 { start } else { to.cast_const() };
            (sink.fold.rows)(x, (w.cols * bytes) as isize, w.rows, w.cols, start, to);
        }
    }

    /// Copies results that were not written in place.
    ///
    /// # Safety
    /// As [`Strips::compute`].
    unsafe fn take_away(&self, w: Window) {
        for (link, reach) in self.chain.links.iter().zip(&self.reaches.outputs) {
            let bytes = link.dtype.bytes();
            match reach {
                // SAFETY: the result holds the chain's shape, the buffer the strip.
                Reach::Late { start, buffer, streams } => unsafe {
                    let to = start.wrapping_add((w.row * self.reaches.inner + w.col) * bytes);
                    if *streams {
                        stream(*buffer, to, w.rows * w.cols * bytes);
                    } else {
                        copy_row(*buffer, 1, to, 1, w.rows * w.cols, bytes);
                    }
                },
                // SAFETY: as above.
                Reach::Rows(tile, buffer) => unsafe {
                    self.runs(tile, *buffer, w, bytes, |(place, far), strip, count| {
                        let inner = [1, self.stride(tile)];
                        copy_rows([strip, place], inner, [w.cols as isize, far], [count, w.cols], bytes);
                    });
                },
                _ => {}
            }
        }
    }
}
