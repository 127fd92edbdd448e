//! The loops around a chain's vectors.
use super::super::plan::step::{Chain, Input, Link, Operation, SinkAlong, Source};
use super::asm::{Gpr, Jump, Mem, Operand, Reg};
use super::links::{Rotation, rotations};
use super::steps::steps;
use super::types::{Part, held, in_fewer_bytes, in_four_bytes};
use super::vector::{Beyond, Writer};
use super::{Code, Form, Place, bit};
use pallas_ir::{DType, ScalarOp};

/// Assignment of registers. The first three are the function's arguments.
const FRAME: Gpr = Gpr::Rdi;
pub(super) const ROW: Gpr = Gpr::Rsi;
pub(super) const END: Gpr = Gpr::Rdx;
pub(super) const COLUMN: Gpr = Gpr::Rax;
pub(super) const LIMIT: Gpr = Gpr::R13;
/// Behind the last whole vector: the elements that are left of the row.
pub(super) const LEFT: Gpr = LIMIT;
/// In a row's loop: where the next row of an input begins.
pub(super) const SPARE: Gpr = Gpr::R14;
const POOL: Gpr = Gpr::R15;
/// Beginnings of rows. The last ones take the place of arguments, which no vector needs.
pub(super) const POINTERS: [Gpr; 10] =
    [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END, ROW, FRAME];
/// The caller's, below its frame.
const SAVED: [Gpr; 5] = [Gpr::Rbx, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
/// Below them: the arguments, and the elements of a row.
const ARGUMENTS: [Gpr; 3] = [FRAME, ROW, END];
pub(super) const KEPT_ROW: usize = 1;
pub(super) const KEPT_END: usize = 2;
const COLUMNS: usize = ARGUMENTS.len();
/// And the caller's word of control.
const CONTROL: usize = COLUMNS + 1;
/// Floats are rounded to the nearest, nothing traps, and subnormal operands and results are zeros: on some processors each
/// of them costs a hundred cycles. XLA computes so too.
const FLUSHING: u32 = 0x1f80 | 1 << 15 | 1 << 6;

/// The stack slot of an argument, or of what is behind them.
pub(super) fn kept(i: usize) -> Mem {
    Mem { base: Gpr::Rbp, index: None, offset: -8 * (SAVED.len() + 1 + i) as i32 }
}

/// A field of a place.
pub(super) fn entry(place: usize, field: usize) -> Mem {
    Mem { base: FRAME, index: None, offset: (place * size_of::<Place>() + field) as i32 }
}

/// A fold in registers.
pub(super) struct Folded {
    pub(super) op: ScalarOp,
    pub(super) start: Operand,
    /// Negated if the fold is a maximum.
    pub(super) running: Vec<Reg>,
}

/// Code for chains whose operands lie like this; `None` where something has no instructions here.
pub(super) fn compile(chains: &[Chain], forms: &[Form], beyond: Beyond) -> Option<Code> {
    in_some_order(beyond, |order, w| function(chains, forms, order, w))
}

/// The code that `write` writes in the first order for which there are registers.
pub(super) fn in_some_order(
    beyond: Beyond,
    write: impl Fn(Order, Writer) -> Option<(Vec<u8>, Vec<u32>)>,
) -> Option<Code> {
    let with = |order, pinned: &[u32]| write(order, Writer::new(pinned, beyond));
    // Several running results, so that none waits for its last step, as far as there are registers.
    let mut orders = [4, 2, 1].into_iter().flat_map(|running| [true, false].map(|abreast| Order { running, abreast }));
    let (order, (mut bytes, pinned)) = orders.find_map(|order| Some((order, with(order, &[])?)))?;
    // Registers that are left when all is written keep constants when it is written anew.
    if !pinned.is_empty() {
        bytes = with(order, &pinned)?.0;
    }
    Code::new(&bytes)
}

/// The order of instructions.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// Vectors in a step of the loop over columns, each with running results of its own.
    running: i32,
    /// True if instructions of several vectors are interleaved, link by link, so that the latency of a long chain is
    /// hidden.
    abreast: bool,
}

/// Columns up to which a row has no loops, where their number is known.
pub(super) const FEW: usize = 64;

/// Links from which on a chain is long: the processor does not see the next vector's while it waits for this one's. A
/// function such as `tanh` takes as long as several others.
const LONG: usize = 24;
const FUNCTION: usize = 6;

/// The length of a chain in links of one or two instructions.
fn length(chain: &Chain) -> usize {
    let of = |link: &Link| match link.op {
        Operation::Scalar(op) if op.row().cost.transcendental > 0 => FUNCTION,
        _ => 1,
    };
    chain.links.iter().map(of).sum()
}

/// A function over rows, and the constants that are worth a register.
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

/// Stack slots that a chain needs.
pub(super) fn slots(chain: &Chain, form: Form) -> usize {
    values(chain).filter(|&i| bit(form.single, i)).count()
}

/// The beginning of a function, with so many stack slots: what runs one after the other uses them anew.
pub(super) fn enter(w: &mut Writer, slots: Option<usize>) {
    masks(w);
    let stack = slots.unwrap_or(0) as i32 * w.bytes();
    let asm = &mut w.asm;
    asm.push(Gpr::Rbp);
    asm.mov(Gpr::Rbp, Gpr::Rsp);
    SAVED.into_iter().for_each(|r| asm.push(r));
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rsp, index: None, offset: -stack - 8 * (CONTROL + 1) as i32 });
    asm.and_number(Gpr::Rsp, -64);
    ARGUMENTS.into_iter().enumerate().for_each(|(i, r)| asm.mov_store(kept(i), r));
    asm.constants(POOL);
    asm.store_control(kept(CONTROL));
    let flushing = w.constants.number(FLUSHING);
    w.asm.load_control(flushing);
    w.pin();
}

/// The end of a function.
pub(super) fn leave(mut w: Writer) -> (Vec<u8>, Vec<u32>) {
    let asm = &mut w.asm;
    asm.load_control(kept(CONTROL));
    asm.zero_upper();
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rbp, index: None, offset: -8 * SAVED.len() as i32 });
    SAVED.into_iter().rev().for_each(|r| asm.pop(r));
    asm.pop(Gpr::Rbp);
    asm.ret();
    let (constants, pinned) = (w.constants.bytes(), w.worth_pinning());
    (w.asm.finish(&constants), pinned)
}

/// Masks of the first lanes, none of them to all but one, where the constants begin.
fn masks(w: &mut Writer) {
    (0..w.lanes() as usize).for_each(|n| _ = first_lanes(w, n));
}

/// A mask of the first ones of the lanes.
pub(super) fn first_lanes(w: &mut Writer, n: usize) -> Mem {
    w.constants.vector(std::array::from_fn(|lane| if lane < n { !0 } else { 0 }))
}

/// Indices of inputs that are values, in the order of places.
pub(super) fn values(chain: &Chain) -> impl Iterator<Item = usize> {
    (0..chain.inputs.len()).filter(|&i| matches!(chain.inputs[i], Input::Value(_)))
}

/// Writes a row of one chain.
pub(super) struct Compiler<'c> {
    pub(super) chain: &'c Chain,
    pub(super) form: Form,
    pub(super) w: Writer,
    /// Index among the places of the row's length; behind it are inputs.
    pub(super) length: usize,
    /// Rows, and elements of a row, if code is for so many.
    pub(super) extents: Option<[usize; 2]>,
    /// Index among the places of the first result, and of the first fold.
    pub(super) results: usize,
    pub(super) folds: usize,
    /// The pointer of each place that is walked along, inputs first.
    pub(super) pointers: Vec<Option<Gpr>>,
    /// The pointer of every place, if they step from row to row.
    pub(super) stepped: &'static [Gpr],
    /// Bytes of an element of the input whose next row is fetched.
    pub(super) ahead: Option<i32>,
    /// Stack slots of inputs with one element a row.
    pub(super) slots: Vec<Option<i32>>,
    /// Running results of each sink that folds rows.
    pub(super) folded: Vec<Option<Folded>>,
    /// Uses of each input and link in a vector.
    pub(super) uses: [Vec<usize>; 2],
    /// Links that are rotations, and those that are parts of one.
    pub(super) rotations: Vec<Option<Rotation>>,
    pub(super) rotated: Vec<bool>,
    /// The element type of each input, inferred from its uses.
    pub(super) types: Vec<Option<DType>>,
}

impl<'c> Compiler<'c> {
    pub(super) fn new(chain: &'c Chain, form: Form, w: Writer, length: usize) -> Option<Self> {
        let mut uses = [vec![0; chain.inputs.len()], vec![0; chain.links.len()]];
        let sources = chain.links.iter().flat_map(|l| &l.args).copied();
        let sources = sources.chain(chain.sinks.iter().map(|s| (s.of, s.dtype)));
        let mut types = vec![None; chain.inputs.len()];
        for (source, dtype) in sources {
            match source {
                Source::Input(i) => {
                    uses[0][i] += 1;
                    types[i] = Some(dtype);
                }
                Source::Link(l) => uses[1][l] += 1,
            }
        }
        let rotations = rotations(chain, &uses[1]);
        let mut rotated = vec![false; chain.links.len()];
        rotations.iter().flatten().flat_map(|r| r.parts).for_each(|link| rotated[link] = true);
        let results = length + 1 + values(chain).count();
        let outputs = chain.links.iter().filter(|l| l.output.is_some());
        let folds = results + outputs.clone().count();
        let mut compiler = Compiler {
            chain,
            form,
            w,
            length,
            extents: None,
            results,
            folds,
            pointers: vec![None; folds + chain.sinks.len() - length - 1],
            stepped: &[],
            ahead: None,
            slots: vec![None; chain.inputs.len()],
            folded: vec![],
            rotations,
            rotated,
            types,
            uses,
        };
        let mut free = POINTERS.into_iter();
        let is_held = |dtype| in_four_bytes(dtype) || in_fewer_bytes(dtype);
        let mut slot = 0;
        for (place, input) in values(chain).enumerate() {
            let dtype = compiler.types[input]?;
            if bit(form.single, input) {
                is_held(dtype).then_some(())?;
                compiler.slots[input] = Some(slot);
                slot += compiler.w.bytes();
            } else {
                is_held(dtype).then_some(())?;
                compiler.pointers[place] = Some(free.next()?);
            }
        }
        for (k, link) in outputs.enumerate() {
            is_held(link.dtype).then_some(())?;
            compiler.pointers[results - length - 1 + k] = Some(free.next()?);
        }
        for (k, sink) in chain.sinks.iter().enumerate().filter(|(_, s)| s.along == SinkAlong::Columns) {
            is_held(sink.dtype).then_some(())?;
            compiler.pointers[folds - length - 1 + k] = Some(free.next()?);
        }
        Some(compiler)
    }

    /// The number of places so far.
    pub(super) fn end(&self) -> usize {
        self.folds + self.chain.sinks.len()
    }

    /// `to` = where this row of a place begins.
    pub(super) fn point(&mut self, place: usize, to: Gpr) {
        let at = |field: usize| entry(place, field);
        if let Some([1, _]) = self.extents {
            return self.w.asm.mov_load(to, at(std::mem::offset_of!(Place, start)));
        }
        self.w.asm.mov_load(SPARE, kept(KEPT_ROW));
        self.w.asm.mul_load(SPARE, at(std::mem::offset_of!(Place, row)));
        self.w.asm.add_load(SPARE, at(std::mem::offset_of!(Place, start)));
        self.w.asm.mov(to, SPARE);
    }

    pub(super) fn row(&mut self, order: Order) -> Option<()> {
        let few = self.extents.map(|[_, columns]| columns).filter(|columns| *columns <= FEW).or(self.form.few);
        if few.is_none() {
            self.w.asm.mov_load(SPARE, entry(self.length, std::mem::offset_of!(Place, start)));
            self.w.asm.mov_store(kept(COLUMNS), SPARE);
        }
        let first = self.length + 1;
        for (place, input) in values(self.chain).enumerate() {
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
        // Without folds two independent vectors.
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

    /// Registers for the running results of folds.
    fn start_folds(&mut self, unroll: i32) -> Option<()> {
        for sink in &self.chain.sinks {
            if sink.along == SinkAlong::Columns {
                self.folded.push(None);
                continue;
            }
            // Only what needs no rounding is folded in 16 bits.
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

    /// Pointers to the row's elements, and to what of the next row is fetched meanwhile.
    fn walk(&mut self, first: usize) -> Option<()> {
        for place in 0..self.pointers.len() {
            if let (Some(to), true) = (self.pointers[place], self.stepped.is_empty()) {
                self.point(first + place, to);
            }
        }
        let far = values(self.chain).position(|input| bit(self.form.ahead, input) && !bit(self.form.single, input));
        if let Some((place, at)) = far.and_then(|place| Some((place, self.pointers[place]?))) {
            let input = values(self.chain).nth(place)?;
            self.ahead = Some(self.types[input]?.bytes() as i32);
            let field = entry(first + place, std::mem::offset_of!(Place, row));
            self.w.asm.mov_load(SPARE, kept(0));
            self.w.asm.mov_load(SPARE, Mem { base: SPARE, ..field });
            self.w.asm.add(SPARE, at);
        }
        Some(())
    }

    /// As many steps of `unroll` vectors as fit.
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

    /// So many columns, without loops.
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

    /// A vector's first elements, those in a mask, whose number may be known.
    fn part(&mut self, mask: Mem, exact: Option<usize>) -> Option<()> {
        let mask = self.w.load(Operand::Mem(mask))?;
        if self.w.beyond.wide {
            self.w.asm.take_tail(mask);
        }
        self.vectors(0..1, Some(Part { mask, count: LEFT, exact }))?;
        self.w.free(mask);
        Some(())
    }

    /// Fewer elements than a vector.
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

    /// Folds of the row are done.
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
