//! Writes the loops of machine code over rows and columns, around the code for vectors.
use super::super::super::plan::step::{Chain, Link, Operation, SinkAlong};
use super::super::form::{Form, Place, bit};
use super::asm::{Gpr, Jump, Mem, Operand};
use super::compiler::{Compiler, Folded, slots, steps};
use super::frame::{
    ARGUMENTS, COLUMN, COLUMNS, END, KEPT_ROW, LEFT, LIMIT, POOL, ROW, SPARE, enter, entry, first_lanes, kept, leave,
};
use super::memory::Code;
use super::types::{Part, held, in_fewer_bytes};
use super::vector::{Beyond, Writer};
use pallas_ir::{DType, ScalarOp};

/// Compiles the code for chains with operands in these layouts. Returns `None` if an operation has no instructions
/// here.
pub(super) fn compile(chains: &[Chain], forms: &[Form], beyond: Beyond) -> Option<Code> {
    in_some_order(beyond, |order, w| function(chains, forms, order, w))
}

/// Returns the code that `write` writes, for the first order of instructions for which there are enough registers.
pub(super) fn in_some_order(
    beyond: Beyond,
    write: impl Fn(Order, Writer) -> Option<(Vec<u8>, Vec<u32>)>,
) -> Option<Code> {
    let with = |order, pinned: &[u32]| write(order, Writer::new(pinned, beyond));
    // Several running results are used, so that no addition waits for the one before, as far as there are registers.
    let mut orders = [4, 2, 1].into_iter().flat_map(|running| [true, false].map(|abreast| Order { running, abreast }));
    let (order, (mut bytes, pinned)) = orders.find_map(|order| Some((order, with(order, &[])?)))?;
    // Registers that were never used hold constants when the code is written a second time.
    if !pinned.is_empty() {
        bytes = with(order, &pinned)?.0;
    }
    Code::new(&bytes)
}

/// The order of the instructions that compute a row.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// Number of vectors in a step of the loop over columns, each with running results of its own.
    running: i32,
    /// True if the instructions of several vectors are interleaved, link by link, which hides the latency of a long
    /// chain.
    abreast: bool,
}

/// Maximum columns of a row that is computed without loops, if their number is known.
pub(super) const FEW: usize = 64;

/// Minimum links of a long chain: while the processor waits for one vector, it does not look far enough ahead to see
/// the next.
const LONG: usize = 24;
/// Number of links that a function such as `tanh` counts as.
const FUNCTION: usize = 6;

/// Returns the length of a chain, counted in links of one or two instructions.
fn length(chain: &Chain) -> usize {
    let of = |link: &Link| match link.op {
        Operation::Scalar(op) if op.row().cost.transcendental > 0 => FUNCTION,
        _ => 1,
    };
    chain.links.iter().map(of).sum()
}

/// Writes a function over rows of the chains; returns its code and the constants worth keeping in registers.
fn function(chains: &[Chain], forms: &[Form], order: Order, mut w: Writer) -> Option<(Vec<u8>, Vec<u32>)> {
    enter(&mut w, chains.iter().zip(forms).map(|(chain, form)| slots(chain, *form)).max());
    let asm = &mut w.asm;
    let (next, done) = (asm.label(), asm.label());
    asm.compare_numbers(ROW, END);
    asm.jump_if(Jump::GreaterEqual, done);
    if let ([chain], [form]) = (chains, forms)
        && steps(chain)
    {
        let mut compiler = Compiler::new(chain, *form, w, 0)?;
        compiler.start_steps();
        compiler.w.asm.here(next);
        compiler.row(order)?;
        compiler.step();
        w = compiler.w;
        w.asm.jump_if(Jump::Less, next);
        w.asm.here(done);
        return Some(leave(w));
    }
    asm.here(next);
    let mut first = 0;
    for (chain, form) in chains.iter().zip(forms) {
        let mut compiler = Compiler::new(chain, *form, w, first)?;
        compiler.row(order)?;
        first = compiler.end();
        w = compiler.w;
    }
    let asm = &mut w.asm;
    asm.lea(ROW, Mem { base: ROW, index: None, offset: 1 });
    asm.mov_store(kept(KEPT_ROW), ROW);
    asm.compare_numbers(ROW, END);
    asm.jump_if(Jump::Less, next);
    asm.here(done);
    Some(leave(w))
}

impl Compiler<'_> {
    /// Writes the code for one row of the chain.
    pub(super) fn row(&mut self, order: Order) -> Option<()> {
        let few = self.extents.map(|[_, columns]| columns).filter(|columns| *columns <= FEW).or(self.form.few);
        if few.is_none() {
            self.w.asm.mov_load(SPARE, entry(self.length, std::mem::offset_of!(Place, start)));
            self.w.asm.mov_store(kept(COLUMNS), SPARE);
        }
        let first = self.length + 1;
        for (place, (input, _)) in self.chain.values().enumerate() {
            let Some(slot) = self.slots[input] else { continue };
            let from = self.start(first + place);
            let x = match self.types[input]? {
                dtype if in_fewer_bytes(dtype) => self.w.broadcast_narrow(dtype, from)?,
                _ => self.w.broadcast(from)?,
            };
            self.w.asm.store(Mem { base: Gpr::Rsp, index: None, offset: slot }, x);
            self.w.free(x);
        }
        self.walk(first)?;
        // Without folds, two independent vectors are enough.
        let folds = self.chain.sinks.iter().any(|s| s.along == SinkAlong::Rows);
        let unroll = match few {
            Some(_) => 1,
            None if folds => order.running,
            None => order.running.min(2),
        };
        self.start_folds(unroll)?;
        self.w.asm.clear(COLUMN);
        if let Some(columns) = few {
            self.few_columns(columns)?;
        } else {
            self.columns(unroll, order.abreast && length(self.chain) >= LONG)?;
            if unroll > 1 {
                self.columns(1, false)?;
            }
            if !self.form.whole {
                self.rest()?;
            }
        }
        for (i, argument) in ARGUMENTS.into_iter().enumerate() {
            if self.stepped.is_empty() && self.pointers.contains(&Some(argument)) {
                self.w.asm.mov_load(argument, kept(i));
            }
        }
        self.fold_away()
    }

    /// Initialises the registers of the running results of folds.
    fn start_folds(&mut self, unroll: i32) -> Option<()> {
        for sink in &self.chain.sinks {
            if sink.along == SinkAlong::Columns {
                self.folded.push(None);
                continue;
            }
            // In 16 bits, only folds without rounding (minimum, maximum) are possible.
            let is_half = matches!(sink.dtype, DType::F16 | DType::Bf16);
            let is_extreme = matches!(sink.op, ScalarOp::Maximum | ScalarOp::Minimum);
            (sink.dtype == DType::F32 || is_half && is_extreme).then_some(())?;
            let start = self.w.word(held(sink.start)?);
            let mut running = vec![];
            for _ in 0..unroll {
                running.push(self.w.load(start)?);
            }
            if sink.op == ScalarOp::Maximum {
                running.iter().for_each(|&r| self.w.negate(r));
            }
            self.folded.push(Some(Folded { op: sink.op, start, running }));
        }
        Some(())
    }

    /// Sets the registers of operands to the row's start, and one to the part of the next row that is prefetched
    /// meanwhile.
    fn walk(&mut self, first: usize) -> Option<()> {
        for place in 0..self.pointers.len() {
            if let (Some(to), true) = (self.pointers[place], self.stepped.is_empty()) {
                self.point(first + place, to);
            }
        }
        let is_far = |input: usize| bit(self.form.ahead, input) && !bit(self.form.single, input);
        let far = self.chain.values().enumerate().find(|(_, (input, _))| is_far(*input));
        if let Some((place, input, at)) =
            far.and_then(|(place, (input, _))| Some((place, input, self.pointers[place]?)))
        {
            self.ahead = Some(self.types[input]?.bytes() as i32);
            let field = entry(first + place, std::mem::offset_of!(Place, row));
            self.w.asm.mov_load(SPARE, kept(0));
            self.w.asm.mov_load(SPARE, Mem { base: SPARE, ..field });
            self.w.asm.add(SPARE, at);
        }
        Some(())
    }

    /// Writes the loop over columns that takes `unroll` vectors in each step, as long as whole steps fit.
    fn columns(&mut self, unroll: i32, abreast: bool) -> Option<()> {
        let (next, done) = (self.w.asm.label(), self.w.asm.label());
        let step = unroll * self.w.lanes();
        self.w.asm.mov_load(LIMIT, kept(COLUMNS));
        self.w.asm.lea(LIMIT, Mem { base: LIMIT, index: None, offset: 1 - step });
        self.w.asm.compare_numbers(COLUMN, LIMIT);
        self.w.asm.jump_if(Jump::GreaterEqual, done);
        self.w.asm.here(next);
        let together = if abreast { unroll as usize } else { 1 };
        for first in (0..unroll as usize).step_by(together) {
            self.vectors(first..first + together, None)?;
        }
        self.w.asm.lea(COLUMN, Mem { base: COLUMN, index: None, offset: step });
        self.w.asm.compare_numbers(COLUMN, LIMIT);
        self.w.asm.jump_if(Jump::Less, next);
        self.w.asm.here(done);
        Some(())
    }

    /// Writes the code for a known number of columns, without loops.
    fn few_columns(&mut self, columns: usize) -> Option<()> {
        let lanes = self.w.lanes() as usize;
        for _ in 0..columns / lanes {
            self.vectors(0..1, None)?;
            self.w.asm.lea(COLUMN, Mem { base: COLUMN, index: None, offset: lanes as i32 });
        }
        let rest = columns % lanes;
        if rest > 0 {
            let mask = first_lanes(&mut self.w, rest);
            self.part(mask, Some(rest))?;
        }
        Some(())
    }

    /// Writes the code for the elements at the start of a vector that `mask` selects; `exact` is their number, if it
    /// is known.
    fn part(&mut self, mask: Mem, exact: Option<usize>) -> Option<()> {
        let mask = self.w.load(Operand::Mem(mask))?;
        if self.w.beyond.wide {
            self.w.asm.take_tail(mask);
        }
        self.vectors(0..1, Some(Part { mask, count: LEFT, exact }))?;
        self.w.free(mask);
        Some(())
    }

    /// Writes the code for the columns after the last whole vector.
    fn rest(&mut self) -> Option<()> {
        let done = self.w.asm.label();
        self.w.asm.mov_load(SPARE, kept(COLUMNS));
        self.w.asm.sub(SPARE, COLUMN);
        self.w.asm.clear(LIMIT);
        self.w.asm.compare_numbers(SPARE, LIMIT);
        self.w.asm.jump_if(Jump::Equal, done);
        self.w.asm.mov(LEFT, SPARE);
        let bytes = self.w.bytes();
        self.w.asm.shl(SPARE, bytes.trailing_zeros() as u8);
        self.part(Mem { base: POOL, index: Some((SPARE, 1)), offset: 0 }, None)?;
        self.w.asm.here(done);
        Some(())
    }

    /// Combines the running results of each fold of the row, and stores it.
    fn fold_away(&mut self) -> Option<()> {
        for (k, folded) in std::mem::take(&mut self.folded).into_iter().enumerate() {
            let Some(Folded { op, running, .. }) = folded else { continue };
            let (&first, others) = running.split_first().expect("unrolled at least once");
            for &r in others {
                self.w.merge(op, first, Operand::Reg(r))?;
                self.w.free(r);
            }
            self.w.across(op, first)?;
            if op == ScalarOp::Maximum {
                self.w.negate(first);
            }
            let to = self.start(self.folds + k);
            match self.chain.sinks[k].dtype {
                dtype if in_fewer_bytes(dtype) => self.w.store_narrow_one(dtype, to, first)?,
                _ => self.w.asm.store_one(to, first),
            }
            self.w.free(first);
        }
        Some(())
    }
}
