//! Elementwise chains: strip by strip, every link over the strip while it is in the first level cache.
use super::super::plan::step::{Chain, Input, Source};
use super::super::strips::{STRIP, slice, slice_mut};
use super::super::tile::{Tile, copy_row};
use super::{Run, room};
use pallas_ir::{Literal, Slice};

/// How a strip of an operand is found.
#[derive(Clone, Copy)]
enum Reach {
    /// At a row-major position of this memory.
    Straight(*mut u8),
    /// In a strip buffer, where it stays.
    Held(*mut u8),
    /// In a strip buffer that holds as many copies of one row as a strip has rows.
    Repeated(*mut u8),
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
        let inputs: Vec<Reach> = (0..chain.inputs.len())
            .map(|i| self.reach(chain, chain.inputs[i], buffer(chain.buffers + i), total))
            .collect();
        let mut outputs = Vec::with_capacity(chain.links.len());
        for link in &chain.links {
            let own = buffer(link.buffer);
            outputs.push(match link.output {
                None => Reach::Held(own),
                Some(v) => {
                    let tile = self.define(v);
                    // Memory of an operand may be an input of this very chain: it is written when the strip is done.
                    let slot = self.own(v);
                    if tile.start == slot.start {
                        Reach::Straight(tile.start)
                    } else if tile.is_contiguous(&chain.shape) {
                        Reach::Copied(tile.start, own)
                    } else {
                        Reach::Rows(tile, own)
                    }
                }
            });
        }
        let rowwise = inputs.iter().chain(&outputs).any(|r| matches!(r, Reach::Rows(..) | Reach::Repeated(_)));
        let inner = if rowwise { chain.shape.last().copied().unwrap_or(1) } else { total };
        let (rows, height) = (total / inner, (STRIP / inner).max(1));
        for row in (0..rows).step_by(height) {
            for col in (0..inner).step_by(STRIP) {
                let window = Window { row, rows: height.min(rows - row), col, cols: STRIP.min(inner - col) };
                // SAFETY: the window lies inside of the shape, which every tile holds.
                unsafe { strip(chain, &inputs, &outputs, inner, window) };
            }
        }
    }

    fn reach(&self, chain: &Chain, input: Input, buffer: *mut u8, total: usize) -> Reach {
        let n = STRIP.min(total);
        match input {
            Input::Constant(Literal { dtype, bits }) => {
                // SAFETY: the buffer holds a strip; the bits lie at the start of their eight bytes.
                unsafe { copy_row((&raw const bits).cast(), 0, buffer, 1, n, dtype.bytes()) };
                Reach::Held(buffer)
            }
            Input::Value(v) => {
                let tile = self.tile(v).stretched(self.shape(v), &chain.shape);
                if tile.is_contiguous(&chain.shape) {
                    return Reach::Straight(tile.start);
                }
                if tile.is_splat(&chain.shape) {
                    // SAFETY: the buffer holds a strip, the tile one element.
                    unsafe { copy_row(tile.start, 0, buffer, 1, n, self.bytes(v)) };
                    return Reach::Held(buffer);
                }
                let (last, inner) = (chain.shape.len() - 1, chain.shape[chain.shape.len() - 1]);
                let one_row = chain.shape[..last].iter().zip(&tile.strides).all(|(&n, &s)| n == 1 || s == 0);
                if one_row && inner <= STRIP {
                    for r in 0..STRIP / inner {
                        let bytes = self.bytes(v);
                        // SAFETY: the buffer holds a strip, the tile a row.
                        unsafe {
                            let to = buffer.add(r * inner * bytes);
                            copy_row(tile.start, tile.strides[last], to, 1, inner, bytes);
                        }
                    }
                    return Reach::Repeated(buffer);
                }
                Reach::Rows(tile, buffer)
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
unsafe fn strip(chain: &Chain, inputs: &[Reach], outputs: &[Reach], inner: usize, w: Window) {
    let (first, n) = (w.row * inner + w.col, w.rows * w.cols);
    let last_axis = chain.shape.len().saturating_sub(1);
    let row_start = |tile: &Tile, r: usize, bytes: usize| {
        let elements = row_offset(tile, &chain.shape, w.row + r) + w.col as isize * tile.strides[last_axis];
        tile.start.wrapping_offset(elements * bytes as isize)
    };
    let at = |reach: Reach, bytes: usize| match reach {
        Reach::Straight(start) => start.wrapping_add(first * bytes),
        Reach::Held(buffer) | Reach::Repeated(buffer) | Reach::Rows(_, buffer) | Reach::Copied(_, buffer) => buffer,
    };
    // Element sizes of the inputs, from the links that read them; copies are made at the first use in a strip.
    let mut copied = [false; 64];
    let mut strips = [Slice::U8(&[]); 3];
    for (i, link) in chain.links.iter().enumerate() {
        for (k, &(source, dtype)) in link.args.iter().enumerate() {
            let bytes = dtype.bytes();
            let start = match source {
                Source::Link(l) => at(outputs[l], bytes),
                Source::Input(x) => {
                    if let Reach::Rows(tile, buffer) = inputs[x]
                        && !(x < 64 && std::mem::replace(&mut copied[x], true))
                    {
                        for r in 0..w.rows {
                            // SAFETY: the row lies inside of the tile, the buffer holds the strip.
                            unsafe {
                                let to = buffer.add(r * w.cols * bytes);
                                copy_row(row_start(&tile, r, bytes), tile.strides[last_axis], to, 1, w.cols, bytes);
                            }
                        }
                    }
                    at(inputs[x], bytes)
                }
            };
            // SAFETY: `start` holds n elements; only results of other links and inputs are read.
            strips[k] = unsafe { slice(dtype, start, n) };
        }
        // SAFETY: a link writes its own buffer or the slot of its value, which no strip it reads lies in.
        let out = unsafe { slice_mut(link.dtype, at(outputs[i], link.dtype.bytes()), n) };
        (link.strip)(&strips[..link.args.len()], out, n);
    }
    for (link, reach) in chain.links.iter().zip(outputs) {
        let bytes = link.dtype.bytes();
        if let Reach::Copied(start, buffer) = reach {
            // SAFETY: the result holds the chain's shape row-major.
            unsafe { copy_row(*buffer, 1, start.wrapping_add(first * bytes), 1, n, bytes) };
        }
        let Reach::Rows(tile, buffer) = reach else { continue };
        for r in 0..w.rows {
            // SAFETY: as for inputs.
            unsafe {
                let from = buffer.add(r * w.cols * bytes);
                copy_row(from, 1, row_start(tile, r, bytes), tile.strides[last_axis], w.cols, bytes);
            }
        }
    }
}
