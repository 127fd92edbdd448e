//! Elementwise chains: strip by strip, every link over the strip while it is in the first level cache.
//!
//! Strips are read and written in place where their elements are adjacent. Chains over tiles with gaps between rows, or with
//! stretched operands, run in windows: a part of one long row, or several short rows, which are copied side by side.
use super::super::plan::step::{Chain, Input, Source};
use super::super::strips::{STRIP, slice, slice_mut};
use super::super::tile::{Tile, copy_row};
use super::{Run, room};
use pallas_ir::{DType, Literal, Slice};

/// How a strip of an operand is found.
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
    /// For results: copied from a strip buffer to a row-major position.
    Copied(*mut u8, *mut u8),
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
const LONG: usize = STRIP / 2;

impl<'a> Run<'a> {
    pub(super) fn chain(&mut self, chain: &'a Chain) {
        let total: usize = chain.shape.iter().product();
        if total == 0 {
            return;
        }
        // Buffers are a line more than a strip apart, so that they do not fall on the same cache sets.
        let pitch = STRIP * chain.widest + 64;
        let buffers = room(&mut self.buffers.strips, pitch * (chain.buffers + chain.inputs.len()));
        // SAFETY: the room was asked for.
        let buffer = |i: usize| unsafe { buffers.add(i * pitch) };
        let (mut inputs, mut outputs) =
            (std::mem::take(&mut self.buffers.inputs), std::mem::take(&mut self.buffers.outputs));
        inputs.clear();
        outputs.clear();
        let inner = chain.shape.last().copied().unwrap_or(1);
        let long = inner >= LONG;
        for (i, input) in chain.inputs.iter().enumerate() {
            inputs.push(self.reach(chain, *input, buffer(chain.buffers + i), long, total));
        }
        for link in &chain.links {
            let own = buffer(link.buffer);
            outputs.push(match link.output {
                None => Reach::Held(own),
                Some(v) => {
                    let tile = self.define(v);
                    match (tile.is_contiguous(&chain.shape), link.aside) {
                        (true, false) => Reach::Straight(tile.start),
                        (true, true) => Reach::Copied(tile.start, own),
                        // Tiles that are aimed have adjacent elements in a row.
                        (false, false) if long => Reach::Row(tile),
                        (false, _) => Reach::Rows(tile, own),
                    }
                }
            });
        }
        let by_rows = |(r, _): &(Reach, DType)| !matches!(r, Reach::Straight(_) | Reach::Held(_) | Reach::Copied(..));
        let inner =
            if inputs.iter().any(by_rows) || outputs.iter().any(|r| by_rows(&(*r, DType::U8))) { inner } else { total };
        let (rows, height) = (total / inner, if inner >= LONG { 1 } else { STRIP / inner });
        for row in (0..rows).step_by(height) {
            for col in (0..inner).step_by(STRIP) {
                let window = Window { row, rows: height.min(rows - row), col, cols: STRIP.min(inner - col) };
                // SAFETY: the window lies inside of the shape, which every tile holds.
                unsafe { strip(chain, &inputs, &outputs, inner, window) };
            }
        }
        (self.buffers.inputs, self.buffers.outputs) = (inputs, outputs);
    }

    /// How an input's strips are found, and its element type.
    fn reach(&self, chain: &Chain, input: Input, buffer: *mut u8, long: bool, total: usize) -> (Reach, DType) {
        let n = STRIP.min(total);
        match input {
            Input::Constant(Literal { dtype, bits }) => {
                // SAFETY: the buffer holds a strip; the bits lie at the start of their eight bytes.
                unsafe { copy_row((&raw const bits).cast(), 0, buffer, 1, n, dtype.bytes()) };
                (Reach::Held(buffer), dtype)
            }
            Input::Value(v) => {
                let (tile, dtype) = (self.tile(v).stretched(self.shape(v), &chain.shape), self.ty(v).dtype);
                let last = chain.shape.len().wrapping_sub(1);
                let reach = if tile.is_contiguous(&chain.shape) {
                    Reach::Straight(tile.start)
                } else if tile.is_splat(&chain.shape) {
                    // SAFETY: the buffer holds a strip, the tile one element.
                    unsafe { copy_row(tile.start, 0, buffer, 1, n, dtype.bytes()) };
                    Reach::Held(buffer)
                } else if long && tile.strides[last] == 1 {
                    Reach::Row(tile)
                } else if long && tile.strides[last] == 0 {
                    Reach::Spread(tile, buffer)
                } else if !long && (0..last).all(|a| chain.shape[a] == 1 || tile.strides[a] == 0) {
                    for r in 0..STRIP / chain.shape[last] {
                        // SAFETY: the buffer holds a strip, the tile a row.
                        unsafe {
                            let to = buffer.add(r * chain.shape[last] * dtype.bytes());
                            copy_row(tile.start, tile.strides[last], to, 1, chain.shape[last], dtype.bytes());
                        }
                    }
                    Reach::Repeated(buffer)
                } else {
                    Reach::Rows(tile, buffer)
                };
                (reach, dtype)
            }
        }
    }
}

/// Elements from a tile's first to the first of a row; rows count over all axes but the last.
fn row_offset(tile: &Tile, shape: &[usize], mut row: usize) -> isize {
    let mut offset = 0;
    for axis in (1..shape.len().saturating_sub(1)).rev() {
        offset += (row % shape[axis]) as isize * tile.strides[axis];
        row /= shape[axis];
    }
    // What is left counts along the first axis; tiles of two axes need no division.
    if shape.len() > 1 { offset + row as isize * tile.strides[0] } else { offset }
}

/// # Safety
/// Tiles and buffers hold what the chain says; the window lies inside of its shape, whose rows have `inner` elements.
unsafe fn strip(chain: &Chain, inputs: &[(Reach, DType)], outputs: &[Reach], inner: usize, w: Window) {
    let (first, n) = (w.row * inner + w.col, w.rows * w.cols);
    let last_axis = chain.shape.len().saturating_sub(1);
    let row_start = |tile: &Tile, r: usize, bytes: usize| {
        let elements = row_offset(tile, &chain.shape, w.row + r) + w.col as isize * tile.strides[last_axis];
        tile.start.wrapping_offset(elements * bytes as isize)
    };
    for &(input, dtype) in inputs {
        let bytes = dtype.bytes();
        match input {
            Reach::Rows(tile, buffer) => {
                for r in 0..w.rows {
                    // SAFETY: the row lies inside of the tile, the buffer holds the strip.
                    unsafe {
                        let to = buffer.add(r * w.cols * bytes);
                        copy_row(row_start(&tile, r, bytes), tile.strides[last_axis], to, 1, w.cols, bytes);
                    }
                }
            }
            // The first strip of a row is its longest; the others find it filled.
            // SAFETY: as above.
            Reach::Spread(tile, buffer) if w.col == 0 => unsafe {
                copy_row(row_start(&tile, 0, bytes), 0, buffer, 1, w.cols, bytes);
            },
            _ => {}
        }
    }
    let at = |reach: &Reach, bytes: usize| match reach {
        Reach::Straight(start) => start.wrapping_add(first * bytes),
        Reach::Row(tile) => row_start(tile, 0, bytes),
        Reach::Held(buffer) | Reach::Repeated(buffer) => *buffer,
        Reach::Spread(_, buffer) | Reach::Rows(_, buffer) | Reach::Copied(_, buffer) => *buffer,
    };
    let mut strips = [Slice::U8(&[]); 3];
    for (i, link) in chain.links.iter().enumerate() {
        for (k, &(source, dtype)) in link.args.iter().enumerate() {
            let start = match source {
                Source::Link(l) => at(&outputs[l], dtype.bytes()),
                Source::Input(x) => at(&inputs[x].0, dtype.bytes()),
            };
            // SAFETY: `start` holds n elements; only results of other links and inputs are read.
            strips[k] = unsafe { slice(dtype, start, n) };
        }
        // SAFETY: a link writes its own buffer or the memory of its value, which no strip it reads lies in.
        let out = unsafe { slice_mut(link.dtype, at(&outputs[i], link.dtype.bytes()), n) };
        (link.strip)(&strips[..link.args.len()], out, n);
    }
    for (link, reach) in chain.links.iter().zip(outputs) {
        let bytes = link.dtype.bytes();
        // SAFETY: the result holds the chain's shape, the buffer the strip.
        unsafe {
            match reach {
                Reach::Copied(start, buffer) => {
                    copy_row(*buffer, 1, start.wrapping_add(first * bytes), 1, n, bytes);
                }
                Reach::Rows(tile, buffer) => {
                    for r in 0..w.rows {
                        let from = buffer.add(r * w.cols * bytes);
                        copy_row(from, 1, row_start(tile, r, bytes), tile.strides[last_axis], w.cols, bytes);
                    }
                }
                _ => {}
            }
        }
    }
}
