//! State of the compiler of one row of a chain: the registers of its operands' addresses.
//!
//! For a single chain, the address of each operand's row stays in a register, to which the distance of rows is added:
//! computing the address again would take longer than computing a short row.
use super::super::super::plan::step::{Chain, SinkAlong, Source};
use super::super::form::{Form, Place, bit};
use super::asm::{Gpr, Mem, Operand, Reg};
use super::frame::{END, KEPT_END, KEPT_ROW, LIMIT, POINTERS, ROW, SPARE, entry, kept};
use super::rotations::{Rotation, rotations};
use super::types::{in_fewer_bytes, in_four_bytes};
use super::vector::Writer;
use pallas_ir::{DType, ScalarOp};

/// A fold of rows whose running results are in registers.
pub(super) struct Folded {
    pub(super) op: ScalarOp,
    pub(super) start: Operand,
    /// The running results, of each vector that is processed at a time; negated if the fold is a maximum.
    pub(super) running: Vec<Reg>,
}

/// Number of vectors on the stack that a chain's code needs: one for each input with one element for each row.
pub(super) fn slots(chain: &Chain, form: Form) -> usize {
    chain.values().filter(|(i, _)| bit(form.single, *i)).count()
}

/// Registers for row addresses that are stepped from row to row. Two of them are arguments of the function, which are
/// on the stack too.
const STEPPED: [Gpr; 9] = [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END, ROW];

/// Returns true if there are enough registers for the addresses of all of the chain's operands.
pub(super) fn steps(chain: &Chain) -> bool {
    chain.places() - 1 <= STEPPED.len()
}

/// Compiler that writes the code for a row of one chain.
pub(super) struct Compiler<'c> {
    pub(super) chain: &'c Chain,
    pub(super) form: Form,
    pub(super) w: Writer,
    /// Index in `places` of the entry with the row's length; after it come the inputs.
    pub(super) length: usize,
    /// Number of rows and of columns, if the code is for exactly that many.
    pub(super) extents: Option<[usize; 2]>,
    /// Index in `places` of the first result; `folds` is that of the first fold.
    pub(super) results: usize,
    pub(super) folds: usize,
    /// The register with the address of each operand that is read or written element by element, inputs first.
    pub(super) pointers: Vec<Option<Gpr>>,
    /// The registers with the addresses of all operands, if these are stepped from row to row.
    pub(super) stepped: &'static [Gpr],
    /// Bytes of an element of the input whose next row is prefetched, if there is one.
    pub(super) ahead: Option<i32>,
    /// Stack offset of each input that has one element for each row.
    pub(super) slots: Vec<Option<i32>>,
    /// Running results of each sink that folds rows.
    pub(super) folded: Vec<Option<Folded>>,
    /// Number of uses of each input and of each link.
    pub(super) uses: [Vec<usize>; 2],
    /// For each link the rotation of bits that it computes, if any; `rotated` is true for links that are parts of one.
    pub(super) rotations: Vec<Option<Rotation>>,
    pub(super) rotated: Vec<bool>,
    /// The element type of each input, known from the operations that use it.
    pub(super) types: Vec<Option<DType>>,
}

impl<'c> Compiler<'c> {
    /// Creates the compiler of a chain whose row length is at index `length` of the places; `None` if its types or the
    /// number of its operands are not supported.
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
        let results = length + 1 + chain.values().count();
        let folds = results + chain.outputs().count();
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
        for (place, (input, _)) in chain.values().enumerate() {
            is_held(compiler.types[input]?).then_some(())?;
            if bit(form.single, input) {
                compiler.slots[input] = Some(slot);
                slot += compiler.w.bytes();
            } else {
                compiler.pointers[place] = Some(free.next()?);
            }
        }
        for (k, (_, link)) in chain.outputs().enumerate() {
            is_held(link.dtype).then_some(())?;
            compiler.pointers[results - length - 1 + k] = Some(free.next()?);
        }
        for (k, sink) in chain.sinks.iter().enumerate().filter(|(_, s)| s.along == SinkAlong::Columns) {
            is_held(sink.dtype).then_some(())?;
            compiler.pointers[folds - length - 1 + k] = Some(free.next()?);
        }
        Some(compiler)
    }

    /// Returns the number of places of this chain and those before it.
    pub(super) fn end(&self) -> usize {
        self.folds + self.chain.sinks.len()
    }

    /// Sets `to` to the address of the current row of an operand.
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

    /// Lets the addresses of operands be stepped from row to row, and sets them to the first row.
    pub(super) fn start_steps(&mut self) {
        let stepped = &STEPPED[..self.end() - self.length - 1];
        for (place, &to) in stepped.iter().enumerate() {
            self.point(self.length + 1 + place, to);
        }
        for (pointer, &to) in self.pointers.iter_mut().zip(stepped).filter(|(pointer, _)| pointer.is_some()) {
            *pointer = Some(to);
        }
        self.stepped = stepped;
    }

    /// Advances to the next row, and compares its number with the last one, for a conditional jump.
    pub(super) fn step(&mut self) {
        for (place, &pointer) in self.stepped.iter().enumerate() {
            self.w.asm.add_load(pointer, entry(self.length + 1 + place, std::mem::offset_of!(Place, row)));
        }
        self.w.asm.mov_load(SPARE, kept(KEPT_ROW));
        self.w.asm.lea(SPARE, Mem { base: SPARE, index: None, offset: 1 });
        self.w.asm.mov_store(kept(KEPT_ROW), SPARE);
        self.w.asm.mov_load(LIMIT, kept(KEPT_END));
        self.w.asm.compare_numbers(SPARE, LIMIT);
    }

    /// Returns the start of the current row of an operand, from its own register or computed in a spare one.
    pub(super) fn start(&mut self, place: usize) -> Mem {
        let stepped = self.stepped.get(place - self.length - 1);
        let base = stepped.copied().unwrap_or_else(|| {
            self.point(place, LIMIT);
            LIMIT
        });
        Mem { base, index: None, offset: 0 }
    }
}
