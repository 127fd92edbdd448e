//! Draws loads and stores: of blocks that a table chooses, of windows at run-time positions, with masks.
//!
//! All accesses are valid: positions are clamped to blocks, and loads from an operand without a fill are masked with
//! `valid`.
use super::draw::{Pool, SHAPE};
use crate::lang::refs::{AxisIndex, Span, Window};
use crate::prelude::*;
use pallas_ir::DType;

/// The operands that a random program reads and writes in its body.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    /// Table of block indices, which index maps also read; one entry per program.
    pub(super) table: Prefetch<i32>,
    /// The program's own block.
    pub(super) near: In<f32>,
    /// Another block of the same array.
    pub(super) twin: In<f32>,
    /// A block that the table chose.
    pub(super) far: In<f32>,
    /// A row that the table chose, of an operand without a fill.
    pub(super) bare: In<i32>,
    /// Scratch that is written at run-time positions; bit-equal on every device, as all memory.
    pub(super) shelf: Scratch<f32>,
}

impl Pool {
    /// Draws a load from one of the operands; its result becomes a value.
    pub(super) fn load(&mut self) {
        let Memory { table, near, twin, far, bare, shelf } = self.memory;
        let handle = match self.dice.below(7) {
            0 => {
                let at = [0, 1].map(|axis| minimum(self.position(3), num_programs(axis) - 1));
                table.at((at[0], at[1])).handle
            }
            1 => self.read(near.at(..)),
            2 | 3 => self.read(far.at(..)),
            4 => self.read(shelf.at(..)),
            5 => self.read(twin.at(..)),
            _ => {
                let row = bare.at(ds(self.position(4), 4));
                let inside = row.valid(0);
                let mask = if self.dice.below(2) == 0 { inside } else { inside & self.mask(&row.shape()) };
                row.load_masked(mask, self.dice.below(9) as i32 - 4).handle
            }
        };
        self.drawn(handle);
    }
    /// Draws a store of `x` to a window of `shelf`.
    pub(super) fn store(&mut self, x: Tile<f32>) {
        let shelf = self.memory.shelf;
        let [height, width] = [0, 1].map(|axis| shelf.shape()[axis] - SHAPE[axis]);
        let to = shelf.at((ds(self.position(height), SHAPE[0]), ds(self.position(width), SHAPE[1])));
        if self.dice.below(2) == 0 {
            to.store(x);
        } else {
            to.store_masked(x, self.mask(&SHAPE));
        }
    }
    /// Draws a load of a window of `block`, or of a window of such a window.
    fn read<A>(&mut self, block: Window<f32, A>) -> crate::lang::context::Handle {
        let mut window = self.narrow(&block);
        if self.dice.below(3) == 0 {
            window = self.narrow(&window);
        }
        match self.dice.below(3) {
            0 => {
                let mask = self.mask(&window.shape());
                window.load_masked(mask, self.dice.below(9) as f32 / 4.0 - 1.0).handle
            }
            _ => window.load().handle,
        }
    }
    /// Returns a random window of `window`.
    fn narrow<A>(&mut self, window: &Window<f32, A>) -> Window<f32, A> {
        let spans: Vec<Span> = window.shape().into_iter().map(|extent| self.span(extent)).collect();
        match spans[..] {
            [] => window.clone(),
            [x] => window.at(x),
            [x, y] => window.at((x, y)),
            _ => unreachable!("blocks have two axes"),
        }
    }
    /// Draws what a window selects of an axis with `extent` elements.
    fn span(&mut self, extent: usize) -> Span {
        let size = 1 + self.dice.below(extent);
        let left = extent - size;
        match self.dice.below(8) {
            0 => ds(self.dice.below(left + 1), size),
            1 => self.position(extent - 1).axis_span(),
            2 => strided(self.position(extent - 1 - (size - 1) / 2 * 2), size.div_ceil(2), 2),
            3 | 4 => (..).axis_span(),
            _ => ds(self.position(left), size),
        }
    }
    /// Returns a run-time integer from 0 to `most`, computed from a random value of the program.
    fn position(&mut self, most: usize) -> Scalar<i32> {
        let Some(i) = self.of(DType::I32) else { return scalar(0) };
        let x = Tile::<i32>::new(self.made[i].handle);
        let x = if x.rank() == 0 { Scalar::new(x.handle) } else { x.sum(..).item() };
        minimum(x & ((most + 1).next_power_of_two() as i32 - 1), most as i32)
    }
    /// Returns a random mask of this shape.
    fn mask(&mut self, shape: &[usize]) -> Tile<bool> {
        let fits = |i: &usize| self.made[*i].ty.dtype == DType::Bool && self.made[*i].ty.shape == shape;
        let fitting: Vec<usize> = (0..self.made.len()).filter(fits).collect();
        if !fitting.is_empty() && self.dice.below(2) == 0 {
            return Tile::new(self.made[self.dice.pick(&fitting)].handle);
        }
        match shape.len() {
            0 => Tile::new(self.position(1).eq(0).handle),
            rank => iota::<i32>(shape, self.dice.below(rank)).lt(self.position(4)),
        }
    }
}
