//! The loops around a chain's vectors.
use super::super::plan::step::{Along, Chain, Input, Operation, Source};
use super::asm::{Binary, Gpr, Jump, Mem, Operand, Reg};
use super::vector::{BYTES, Writer};
use super::{Code, Form, Place};
use pallas_ir::{DType, Literal, ScalarOp};

/// Where things are while the code runs. The first three are its arguments.
const FRAME: Gpr = Gpr::Rdi;
const ROW: Gpr = Gpr::Rsi;
const END: Gpr = Gpr::Rdx;
const COLUMNS: Gpr = Gpr::Rcx;
const COLUMN: Gpr = Gpr::Rax;
const LIMIT: Gpr = Gpr::R13;
/// In a row's loop: where the next row of an input begins.
const SPARE: Gpr = Gpr::R14;
const POOL: Gpr = Gpr::R15;
/// Beginnings of rows.
const POINTERS: [Gpr; 6] = [Gpr::Rbx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12];
const SAVED: [Gpr; 5] = [Gpr::Rbx, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];

/// A field of a place.
fn entry(place: usize, field: usize) -> Mem {
    Mem { base: FRAME, index: None, offset: (place * size_of::<Place>() + field) as i32 }
}

/// Elements of a vector.
const LANES: i32 = 8;
/// Bytes of a cache line.
const LINE: i32 = 64;

/// A fold in registers.
struct Folded {
    op: ScalarOp,
    start: Operand,
    running: Vec<Reg>,
    /// Which lanes have seen NaN, where the instruction forgets.
    nan: Option<Reg>,
}

/// Code for chains whose operands lie like this; `None` where something has no instructions here.
pub(super) fn compile(chains: &[Chain], forms: &[Form]) -> Option<Code> {
    // Several running results, so that none waits for its last step, as far as there are registers.
    let (running, pinned) = [4, 2, 1].into_iter().find_map(|n| Some((n, function(chains, forms, n, &[])?.1)))?;
    // Registers that are left when all is written keep constants when it is written anew.
    let (bytes, _) = function(chains, forms, running, &pinned)?;
    Code::new(&bytes)
}

/// A function over rows, with so many running results of each fold and some constants in registers, and the constants that
/// are worth one.
fn function(chains: &[Chain], forms: &[Form], running: i32, pinned: &[u32]) -> Option<(Vec<u8>, Vec<u32>)> {
    let mut w = Writer::new(pinned);
    masks(&mut w);
    // Chains run one after the other: stack slots are used anew.
    let slots = chains.iter().zip(forms).map(|(chain, form)| {
        let single = |i: &usize| form.is_single(*i);
        values(chain).filter(single).count() as i32
    });
    let stack = slots.max().unwrap_or(0) * BYTES;
    let asm = &mut w.asm;
    let (next, done) = (asm.label(), asm.label());
    asm.push(Gpr::Rbp);
    asm.mov(Gpr::Rbp, Gpr::Rsp);
    SAVED.into_iter().for_each(|r| asm.push(r));
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rsp, index: None, offset: -stack });
    asm.and_number(Gpr::Rsp, -32);
    asm.constants(POOL);
    w.pin();
    let asm = &mut w.asm;
    asm.compare_numbers(ROW, END);
    asm.jump_if(Jump::GreaterEqual, done);
    asm.here(next);
    let mut first = 0;
    for (chain, form) in chains.iter().zip(forms) {
        let mut compiler = Compiler::new(chain, *form, w, first)?;
        compiler.row(running)?;
        first = compiler.folds + chain.sinks.len();
        w = compiler.w;
    }
    let asm = &mut w.asm;
    asm.lea(ROW, Mem { base: ROW, index: None, offset: 1 });
    asm.compare_numbers(ROW, END);
    asm.jump_if(Jump::Less, next);
    asm.here(done);
    asm.zero_upper();
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rbp, index: None, offset: -8 * SAVED.len() as i32 });
    SAVED.into_iter().rev().for_each(|r| asm.pop(r));
    asm.pop(Gpr::Rbp);
    asm.ret();
    let (constants, pinned) = (w.constants.bytes(), w.worth_pinning());
    Some((w.asm.finish(&constants), pinned))
}

/// Masks of the first 0 to 7 lanes, where the constants begin.
fn masks(w: &mut Writer) {
    for n in 0..8 {
        w.constants.vector(std::array::from_fn(|lane| if lane < n { !0 } else { 0 }));
    }
}

/// Indices of inputs that are values, in the order of places.
fn values(chain: &Chain) -> impl Iterator<Item = usize> {
    (0..chain.inputs.len()).filter(|&i| matches!(chain.inputs[i], Input::Value(_)))
}

fn in_four_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32)
}

/// Writes a row of one chain.
struct Compiler<'c> {
    chain: &'c Chain,
    form: Form,
    w: Writer,
    /// Index among the places of the row's length; behind it are inputs.
    length: usize,
    /// .. of the first result, and the first fold.
    results: usize,
    folds: usize,
    /// The pointer of each place that is walked along, inputs first.
    pointers: Vec<Option<Gpr>>,
    /// Bytes of an element of the input whose next row is fetched.
    ahead: Option<i32>,
    /// Stack slots of inputs with one element a row.
    slots: Vec<Option<i32>>,
    /// Running results of each sink that folds rows.
    folded: Vec<Option<Folded>>,
    /// Uses of each input and link in a vector.
    uses: [Vec<usize>; 2],
}

impl<'c> Compiler<'c> {
    fn new(chain: &'c Chain, form: Form, w: Writer, length: usize) -> Option<Self> {
        let mut uses = [vec![0; chain.inputs.len()], vec![0; chain.links.len()]];
        let sources = chain.links.iter().flat_map(|l| &l.args).map(|a| a.0).chain(chain.sinks.iter().map(|s| s.of));
        for source in sources {
            match source {
                Source::Input(i) => uses[0][i] += 1,
                Source::Link(l) => uses[1][l] += 1,
            }
        }
        let results = length + 1 + values(chain).count();
        let outputs = chain.links.iter().filter(|l| l.output.is_some());
        let folds = results + outputs.clone().count();
        let mut compiler = Compiler {
            chain,
            form,
            w,
            length,
            results,
            folds,
            pointers: vec![None; folds + chain.sinks.len() - length - 1],
            ahead: None,
            slots: vec![None; chain.inputs.len()],
            folded: vec![],
            uses,
        };
        let mut free = POINTERS.into_iter();
        // Others have no loads and stores of parts of a vector.
        let known = |dtype| matches!(dtype, DType::Bool | DType::F16 | DType::Bf16);
        let whole = |dtype| in_four_bytes(dtype) || (known(dtype) && form.whole);
        let mut slot = 0;
        for (place, input) in values(chain).enumerate() {
            let dtype = compiler.input_type(input)?;
            if form.is_single(input) {
                (in_four_bytes(dtype) || dtype == DType::Bool).then_some(())?;
                compiler.slots[input] = Some(slot);
                slot += BYTES;
            } else {
                whole(dtype).then_some(())?;
                compiler.pointers[place] = Some(free.next()?);
            }
        }
        for (k, link) in outputs.enumerate() {
            whole(link.dtype).then_some(())?;
            compiler.pointers[results - length - 1 + k] = Some(free.next()?);
        }
        for (k, sink) in chain.sinks.iter().enumerate().filter(|(_, s)| s.along == Along::Columns) {
            // Of the others a vector can't be added to in one instruction.
            (sink.op == ScalarOp::Add).then_some(())?;
            compiler.pointers[folds - length - 1 + k] = Some(free.next()?);
        }
        Some(compiler)
    }

    /// The element type of an input, by its uses.
    fn input_type(&self, input: usize) -> Option<DType> {
        let args = self.chain.links.iter().flat_map(|l| &l.args).copied();
        let all = args.chain(self.chain.sinks.iter().map(|s| (s.of, s.dtype)));
        all.into_iter().find(|(s, _)| *s == Source::Input(input)).map(|(_, dtype)| dtype)
    }

    /// `to` = where this row of a place begins.
    fn point(&mut self, place: usize, to: Gpr) {
        let at = |field: usize| entry(place, field);
        self.w.asm.mov(to, ROW);
        self.w.asm.mul_load(to, at(std::mem::offset_of!(Place, row)));
        self.w.asm.mov_load(SPARE, at(std::mem::offset_of!(Place, start)));
        self.w.asm.add(to, SPARE);
    }

    fn row(&mut self, running: i32) -> Option<()> {
        self.w.asm.mov_load(COLUMNS, entry(self.length, std::mem::offset_of!(Place, start)));
        let first = self.length + 1;
        for (place, input) in values(self.chain).enumerate() {
            let Some(slot) = self.slots[input] else { continue };
            self.point(first + place, LIMIT);
            let from = Mem { base: LIMIT, index: None, offset: 0 };
            let x = match self.input_type(input)? {
                DType::Bool => self.w.mask_of_byte(from)?,
                _ => self.w.broadcast(from)?,
            };
            self.w.asm.store(Mem { base: Gpr::Rsp, index: None, offset: slot }, x);
            self.w.free(x);
        }
        for place in 0..self.pointers.len() {
            if let Some(to) = self.pointers[place] {
                self.point(first + place, to);
            }
        }
        let far = values(self.chain).position(|input| self.form.is_ahead(input) && !self.form.is_single(input));
        if let Some((place, at)) = far.and_then(|place| Some((place, self.pointers[place]?))) {
            let input = values(self.chain).nth(place)?;
            self.ahead = Some(self.input_type(input)?.bytes() as i32);
            self.w.asm.mov_load(SPARE, entry(first + place, std::mem::offset_of!(Place, row)));
            self.w.asm.add(SPARE, at);
        }
        // Without folds two independent vectors.
        let unroll = if self.chain.sinks.iter().any(|s| s.along == Along::Rows) { running } else { running.min(2) };
        for sink in &self.chain.sinks {
            (sink.dtype == DType::F32).then_some(())?;
            if sink.along == Along::Columns {
                self.folded.push(None);
                continue;
            }
            let start = self.w.word(sink.start.bits as u32);
            let mut running = vec![];
            for _ in 0..unroll {
                running.push(self.w.load(start)?);
            }
            let forgets = matches!(sink.op, ScalarOp::Maximum | ScalarOp::Minimum);
            let zero = self.w.word(0);
            let nan = if forgets { Some(self.w.load(zero)?) } else { None };
            self.folded.push(Some(Folded { op: sink.op, start, running, nan }));
        }
        self.w.asm.clear(COLUMN);
        self.columns(unroll)?;
        if unroll > 1 {
            self.columns(1)?;
        }
        if !self.form.whole {
            self.rest()?;
        }
        self.fold_away()
    }

    /// As many steps of `unroll` vectors as fit.
    fn columns(&mut self, unroll: i32) -> Option<()> {
        let (next, done) = (self.w.asm.label(), self.w.asm.label());
        self.w.asm.lea(LIMIT, Mem { base: COLUMNS, index: None, offset: 1 - unroll * LANES });
        self.w.asm.compare_numbers(COLUMN, LIMIT);
        self.w.asm.jump_if(Jump::GreaterEqual, done);
        self.w.asm.here(next);
        for k in 0..unroll {
            self.vector(k as usize, None)?;
        }
        self.w.asm.lea(COLUMN, Mem { base: COLUMN, index: None, offset: unroll * LANES });
        self.w.asm.compare_numbers(COLUMN, LIMIT);
        self.w.asm.jump_if(Jump::Less, next);
        self.w.asm.here(done);
        Some(())
    }

    /// Fewer elements than a vector.
    fn rest(&mut self) -> Option<()> {
        let done = self.w.asm.label();
        self.w.asm.mov(SPARE, COLUMNS);
        self.w.asm.sub(SPARE, COLUMN);
        self.w.asm.clear(LIMIT);
        self.w.asm.compare_numbers(SPARE, LIMIT);
        self.w.asm.jump_if(Jump::Equal, done);
        self.w.asm.shl(SPARE, BYTES.trailing_zeros() as u8);
        let mask = self.w.take()?;
        self.w.asm.load(mask, Operand::Mem(Mem { base: POOL, index: Some((SPARE, 1)), offset: 0 }));
        self.vector(0, Some(mask))?;
        self.w.free(mask);
        self.w.asm.here(done);
        Some(())
    }

    /// Folds of the row are done.
    fn fold_away(&mut self) -> Option<()> {
        for (k, folded) in std::mem::take(&mut self.folded).into_iter().enumerate() {
            let Some(Folded { op, running, nan, .. }) = folded else { continue };
            let (&first, others) = running.split_first().expect("unrolled at least once");
            for &r in others {
                self.w.merge(op, first, r);
                self.w.free(r);
            }
            self.w.across(op, first)?;
            if let Some(nan) = nan {
                self.w.across(ScalarOp::BitOr, nan)?;
                // All bits set are a NaN.
                self.w.join(first, nan);
                self.w.free(nan);
            }
            self.point(self.folds + k, LIMIT);
            self.w.asm.store_one(Mem { base: LIMIT, index: None, offset: 0 }, first);
            self.w.free(first);
        }
        Some(())
    }

    /// Eight elements, `k` vectors behind the column; with a mask only some of them.
    fn vector(&mut self, k: usize, mask: Option<Reg>) -> Option<()> {
        if let (Some(bytes), None) = (self.ahead, mask) {
            let offset = k as i32 * LANES * bytes;
            if offset % LINE == 0 {
                self.w.asm.prefetch(Mem { base: SPARE, index: Some((COLUMN, bytes as u8)), offset });
            }
        }
        let mut left = self.uses.clone();
        let mut inputs: Vec<Option<Reg>> = vec![None; self.chain.inputs.len()];
        let mut links: Vec<Reg> = vec![];
        let mut late = vec![];
        let mut output = self.results - self.length - 1;
        for (i, link) in self.chain.links.iter().enumerate() {
            let mut args = vec![];
            for (source, _) in &link.args {
                args.push(match source {
                    Source::Input(x) => self.input(*x, k, mask, &mut inputs, left[0][*x])?,
                    Source::Link(l) => Operand::Reg(links[*l]),
                });
            }
            let result = match link.op {
                Operation::Scalar(op) => {
                    // The type of the table's open operands: those of a selection come behind its condition.
                    let dtype = link.args.last()?.1;
                    self.w.scalar(op, dtype, &args)?
                }
                Operation::Cast => self.w.cast(link.args[0].1, link.dtype, args[0])?,
                Operation::Bitcast => return None,
            };
            links.push(result);
            for (source, _) in &link.args {
                self.used(*source, &mut left, &inputs, &links);
            }
            if link.output.is_some() {
                let place = output;
                output += 1;
                if link.aside {
                    late.push((i, place));
                    left[1][i] += 1;
                } else {
                    self.store(i, place, k, mask, result)?;
                }
            }
            if left[1][i] == 0 {
                self.w.free(result);
            }
        }
        for at in 0..self.chain.sinks.len() {
            let source = self.chain.sinks[at].of;
            let mut x = match source {
                Source::Input(x) => self.input(x, k, mask, &mut inputs, left[0][x])?,
                Source::Link(l) => Operand::Reg(links[l]),
            };
            if let Some(Folded { op, start, ref running, nan }) = self.folded[at] {
                let to = running[k];
                let kept = match mask {
                    Some(mask) => Some(self.w.keep(mask, x, start)?),
                    None => None,
                };
                x = kept.map_or(x, Operand::Reg);
                self.w.accumulate(op, to, nan, x)?;
                if let Some(kept) = kept {
                    self.w.free(kept);
                }
            } else {
                self.add_to_columns(at, k, mask, x)?;
            }
            self.used(source, &mut left, &inputs, &links);
        }
        for (i, place) in late {
            self.store(i, place, k, mask, links[i])?;
            left[1][i] -= 1;
            if left[1][i] == 0 {
                self.w.free(links[i]);
            }
        }
        Some(())
    }

    /// Adds a vector to the columns that a sink folds.
    fn add_to_columns(&mut self, sink: usize, k: usize, mask: Option<Reg>, x: Operand) -> Option<()> {
        let at = self.element(self.folds - self.length - 1 + sink, DType::F32, k);
        let sum = self.w.take()?;
        match mask {
            Some(mask) => self.w.asm.load_masked(sum, mask, at),
            None => self.w.asm.load(sum, Operand::Mem(at)),
        }
        self.w.update(Binary::Add, sum, x);
        match mask {
            Some(mask) => self.w.asm.store_masked(at, mask, sum),
            None => self.w.asm.store(at, sum),
        }
        self.w.free(sum);
        Some(())
    }

    /// One use less; frees registers that hold what has none.
    fn used(&mut self, source: Source, left: &mut [Vec<usize>; 2], inputs: &[Option<Reg>], links: &[Reg]) {
        let (count, register) = match source {
            Source::Input(i) => (&mut left[0][i], inputs[i]),
            Source::Link(l) => (&mut left[1][l], Some(links[l])),
        };
        *count -= 1;
        if let (0, Some(r)) = (*count, register) {
            self.w.free(r);
        }
    }

    /// An input of a vector: from memory as an operand where it is used once, in a register otherwise.
    fn input(
        &mut self,
        input: usize,
        k: usize,
        mask: Option<Reg>,
        inputs: &mut [Option<Reg>],
        left: usize,
    ) -> Option<Operand> {
        if let Some(r) = inputs[input] {
            return Some(Operand::Reg(r));
        }
        if let Input::Constant(Literal { dtype, bits }) = self.chain.inputs[input] {
            return match dtype {
                DType::Bool => Some(self.w.word(if bits & 1 == 1 { !0 } else { 0 })),
                dtype if in_four_bytes(dtype) => Some(self.w.word(bits as u32)),
                _ => None,
            };
        }
        if let Some(offset) = self.slots[input] {
            return Some(Operand::Mem(Mem { base: Gpr::Rsp, index: None, offset }));
        }
        let place = values(self.chain).position(|i| i == input)?;
        let dtype = self.input_type(input)?;
        let at = self.element(place, dtype, k);
        let r = match (dtype, mask) {
            (DType::Bool, _) => self.w.mask_of_bytes(at)?,
            (DType::F16 | DType::Bf16, _) => self.w.load_half(dtype, at)?,
            (_, Some(mask)) => {
                let to = self.w.take()?;
                self.w.asm.load_masked(to, mask, at);
                to
            }
            _ if left == 1 => return Some(Operand::Mem(at)),
            _ => self.w.load(Operand::Mem(at))?,
        };
        inputs[input] = Some(r);
        Some(Operand::Reg(r))
    }

    fn element(&self, place: usize, dtype: DType, k: usize) -> Mem {
        let bytes = dtype.bytes();
        let base = self.pointers[place].expect("walked along");
        Mem { base, index: Some((COLUMN, bytes as u8)), offset: k as i32 * LANES * bytes as i32 }
    }

    fn store(&mut self, link: usize, place: usize, k: usize, mask: Option<Reg>, x: Reg) -> Option<()> {
        let dtype = self.chain.links[link].dtype;
        let at = self.element(place, dtype, k);
        match (dtype, mask) {
            (DType::Bool, _) => {
                let bytes = self.w.bytes_of_mask(x)?;
                self.w.asm.store_eight_bytes(at, bytes);
                self.w.free(bytes);
            }
            (DType::F16 | DType::Bf16, _) => self.w.store_half(dtype, at, x)?,
            (_, Some(mask)) => self.w.asm.store_masked(at, mask, x),
            _ if self.form.is_streamed(link) => self.w.asm.stream(at, x),
            _ => self.w.asm.store(at, x),
        }
        Some(())
    }
}
