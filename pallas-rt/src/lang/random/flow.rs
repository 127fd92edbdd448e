//! Draws control flow, and stages it by the steps that `#[kernel]` writes for a user's `if`, `for` and `while`.
use super::draw::{Dice, ERROR, Pool, SHAPE};
use super::memory::Memory;
use crate::lang::context::Handle;
use crate::lang::decide::{Carry, slot};
use crate::lang::stage::{For, While, condition, range};
use crate::prelude::*;
use std::ops::ControlFlow::{Break, Continue};

/// A part of a random program; each number in it is a seed.
#[derive(Clone, Debug)]
pub(super) enum Flow {
    /// Operations, without control flow.
    Steps(u64),
    If {
        test: u64,
        then: Vec<Flow>,
        other: Vec<Flow>,
    },
    For {
        test: u64,
        body: Vec<Flow>,
    },
    While {
        test: u64,
        body: Vec<Flow>,
    },
}

/// Draws a list of at most `longest` parts, which are nested `depth` deep at most.
pub(super) fn draw(dice: &mut Dice, depth: usize, longest: usize) -> Vec<Flow> {
    let mut list = vec![];
    for _ in 0..1 + dice.below(longest) {
        let test = dice.below(1000) as u64;
        list.push(match if depth == 0 { 0 } else { dice.below(5) } {
            1 => Flow::If { test, then: draw(dice, depth - 1, longest), other: draw(dice, depth - 1, longest) },
            2 | 3 => Flow::For { test, body: draw(dice, depth - 1, longest) },
            4 => Flow::While { test, body: draw(dice, depth - 1, longest) },
            _ => Flow::Steps(dice.below(1 << 30) as u64),
        });
    }
    list
}

/// The variables that loops and branches carry.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// Floats in which devices may differ by [`ERROR`].
    pub(super) rough: Tile<f32>,
    /// Floats that are bit-equal on every device, as are the other fields below.
    pub(super) exact: Tile<f32>,
    pub(super) ints: Tile<i32>,
    pub(super) count: Scalar<i32>,
}

/// Limits, operands and first values of a random program.
pub(super) struct Program<'a> {
    /// Maximum number of operations of a [`Flow::Steps`].
    pub(super) steps: usize,
    /// Values that every part may use, bit-equal on every device.
    pub(super) inputs: &'a [Handle],
    pub(super) memory: Memory,
    pub(super) rounds: Scalar<i32>,
    /// True if the program has 64-bit values.
    pub(super) wide: bool,
}

impl Carry for State {
    fn collect_handles(&self, out: &mut Vec<Handle>) {
        (self.rough, self.exact, self.ints, self.count).collect_handles(out);
    }
    fn assign_handles(&mut self, from: &mut dyn Iterator<Item = Handle>) {
        let mut all = (self.rough, self.exact, self.ints, self.count);
        all.assign_handles(from);
        (self.rough, self.exact, self.ints, self.count) = all;
    }
}

impl Program<'_> {
    pub(super) fn run(&self, flow: &[Flow], state: &mut State) {
        for part in flow {
            match part {
                Flow::Steps(seed) => self.straight(*seed, state),
                Flow::If { test, then, other } => self.choose(*test, then, other, state),
                Flow::For { test, body } => self.count(*test, body, state),
                Flow::While { test, body } => self.repeat(*test, body, state),
            }
        }
    }
    /// Runs the operations that `seed` draws; the new state depends on all of their results.
    fn straight(&self, seed: u64, state: &mut State) {
        let mut pool = Pool::new(seed, self.wide, self.memory);
        self.inputs.iter().for_each(|&x| pool.give(x, 0.0));
        [state.exact.handle, state.ints.handle, state.count.handle].into_iter().for_each(|x| pool.give(x, 0.0));
        if self.wide {
            let wide =
                [state.exact.cast::<f64>().handle, state.ints.cast::<i64>().handle, state.ints.cast::<u64>().handle];
            wide.into_iter().for_each(|x| pool.give(x, 0.0));
        }
        pool.give(state.rough.handle, ERROR);
        pool.steps(self.steps);
        if seed.is_multiple_of(3) {
            pool.store(state.exact);
        }
        *state = State {
            rough: pool.floats(state.rough),
            exact: pool.last_exact().unwrap_or(state.exact),
            ints: pool.ints(state.ints),
            count: state.count + 1,
        };
    }
    /// Returns a run-time condition: on a tile's elements, on the program's index, or on the number of parts that have
    /// run.
    fn test(&self, test: u64, state: &State) -> Scalar<bool> {
        match test % 3 {
            0 => (state.ints.sum(..).item() & 1).eq(0),
            1 => program_id(1).eq(0),
            _ => state.count.lt(self.rounds) & state.exact.max(..).item().gt(0.5),
        }
    }
    /// Stages an `if`.
    fn choose(&self, test: u64, then: &[Flow], other: &[Flow], state: &mut State) {
        let mut region = condition(self.test(test, state));
        let key = region.key();
        if region.gate().is_some() {
            region.begin(&mut [slot(key, state)]);
        }
        loop {
            self.run(if region.side() { then } else { other }, state);
            match region.leave(()) {
                Break(()) => break,
                Continue(()) => region.swap(&mut [slot(key, state)]),
            }
        }
        if region.gate().is_some() {
            region.finish((), &mut [slot(key, state)]);
        }
    }
    /// Stages a `for`; `test` determines its bounds, step and direction.
    fn count(&self, test: u64, body: &[Flow], state: &mut State) {
        let lo = (test / 4 % 3) as i32 - 1;
        let mut counted = match test % 4 {
            0 => range(lo, self.rounds),
            1 => range(lo, state.count % 4),
            _ => range(lo, 2),
        };
        if (test / 16).is_multiple_of(2) {
            counted = counted.rev();
        }
        if (test / 32).is_multiple_of(2) {
            counted = counted.step_by(2);
        }
        let mut region = For::new(counted);
        let key = region.key();
        while let Some(i) = region.next(&mut [slot(key, state)]) {
            state.ints += i;
            let inputs = [self.inputs, &[i.handle]].concat();
            Program { inputs: &inputs, ..*self }.run(body, state);
        }
    }
    /// Stages a `while` with up to three iterations.
    fn repeat(&self, test: u64, body: &[Flow], state: &mut State) {
        let mut left = scalar(1 + (test % 3) as i32);
        let mut region = While::new();
        let key = region.key();
        loop {
            if region.gate().is_some() && !region.head(&mut [slot(key, state), slot(key, &mut left)]) {
                break;
            }
            let goes_on = left.gt(0) & !(self.test(test / 3, state) & left.eq(1));
            if !region.condition(goes_on) {
                break;
            }
            if region.gate().is_some() {
                region.body(&mut [slot(key, state), slot(key, &mut left)]);
            }
            left -= 1;
            state.ints = select(iota::<i32>(SHAPE, 1).eq(left), state.ints + 1, state.ints);
            self.run(body, state);
        }
    }
}
