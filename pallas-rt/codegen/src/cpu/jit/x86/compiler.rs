//! State of the compiler of one row of a chain: the registers of its operands' addresses.
//!
//! For a single chain, the address of each operand's row stays in a register, to which the distance of rows is added:
//! computing the address again would take longer than computing a short row.
use super::super::super::plan::step::{ElementwiseChain, FoldDirection, LinkOperand};
use super::super::operand_layouts::{CodeSpecialization, OperandAddress, is_bit_set};
use super::assembler::{Gpr, Mem, Operand, Reg};
use super::frame::{
    COLUMN_LIMIT_REGISTER, END_ROW_REGISTER, END_ROW_SLOT, POINTER_REGISTERS, ROW_REGISTER, ROW_SLOT, SPARE_REGISTER,
    address_field, stack_slot,
};
use super::rotations::{Rotation, find_rotations};
use super::types::{is_four_byte_type, is_narrow_type};
use super::vector::VectorWriter;
use pallas_ir::{DType, ScalarOp};

/// A fold of rows whose running results are in registers.
pub(super) struct FoldRegisters {
    pub(super) op: ScalarOp,
    pub(super) start: Operand,
    /// The running results, of each vector that is processed at a time; negated if the fold is a maximum.
    pub(super) running: Vec<Reg>,
}

/// Number of vectors on the stack that a chain's code needs: one for each input with one element for each row.
pub(super) fn stack_vector_count(chain: &ElementwiseChain, form: CodeSpecialization) -> usize {
    chain.input_values().filter(|(i, _)| is_bit_set(form.single, *i)).count()
}

/// Registers for row addresses that are stepped from row to row. Two of them are arguments of the function, which are
/// on the stack too.
const STEPPED_ADDRESS_REGISTERS: [Gpr; 9] =
    [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END_ROW_REGISTER, ROW_REGISTER];

/// Returns true if there are enough registers to keep the addresses of all of the chain's operands from row to row.
pub(super) fn can_step_row_addresses(chain: &ElementwiseChain) -> bool {
    chain.address_count() - 1 <= STEPPED_ADDRESS_REGISTERS.len()
}

/// Compiler that writes the code for a row of one chain. Its functions return `None` if no register is free, or if an
/// operation has no instructions here.
pub(super) struct ChainCompiler<'c> {
    pub(super) chain: &'c ElementwiseChain,
    pub(super) form: CodeSpecialization,
    pub(super) w: VectorWriter,
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
    pub(super) folded: Vec<Option<FoldRegisters>>,
    /// Number of uses of each input and of each link.
    pub(super) uses: [Vec<usize>; 2],
    /// For each link the rotation of bits that it computes, if any; `rotated` is true for links that are parts of one.
    pub(super) rotations: Vec<Option<Rotation>>,
    pub(super) rotated: Vec<bool>,
    /// The element type of each input, known from the operations that use it.
    pub(super) types: Vec<Option<DType>>,
}

impl<'c> ChainCompiler<'c> {
    /// Creates the compiler of a chain whose row length is the entry `length_index` of the addresses with which the
    /// code is called; `None` if its types or the number of its operands are not supported.
    pub(super) fn new(
        chain: &'c ElementwiseChain,
        form: CodeSpecialization,
        w: VectorWriter,
        length_index: usize,
    ) -> Option<Self> {
        let mut uses = [vec![0; chain.inputs.len()], vec![0; chain.links.len()]];
        let sources = chain.links.iter().flat_map(|l| &l.args).copied();
        let sources = sources.chain(chain.sinks.iter().map(|s| (s.of, s.dtype)));
        let mut types = vec![None; chain.inputs.len()];
        for (source, dtype) in sources {
            match source {
                LinkOperand::Input(i) => {
                    uses[0][i] += 1;
                    types[i] = Some(dtype);
                }
                LinkOperand::Link(l) => uses[1][l] += 1,
            }
        }
        let rotations = find_rotations(chain, &uses[1]);
        let mut rotated = vec![false; chain.links.len()];
        rotations.iter().flatten().flat_map(|r| r.parts).for_each(|link| rotated[link] = true);
        let results = length_index + 1 + chain.input_values().count();
        let folds = results + chain.outputs().count();
        let mut compiler = ChainCompiler {
            chain,
            form,
            w,
            length: length_index,
            extents: None,
            results,
            folds,
            pointers: vec![None; folds + chain.sinks.len() - length_index - 1],
            stepped: &[],
            ahead: None,
            slots: vec![None; chain.inputs.len()],
            folded: vec![],
            rotations,
            rotated,
            types,
            uses,
        };
        let mut free = POINTER_REGISTERS.into_iter();
        let is_held = |dtype| is_four_byte_type(dtype) || is_narrow_type(dtype);
        let mut slot = 0;
        for (place, (input, _)) in chain.input_values().enumerate() {
            is_held(compiler.types[input]?).then_some(())?;
            if is_bit_set(form.single, input) {
                compiler.slots[input] = Some(slot);
                slot += compiler.w.vector_bytes();
            } else {
                compiler.pointers[place] = Some(free.next()?);
            }
        }
        for (k, (_, link)) in chain.outputs().enumerate() {
            is_held(link.dtype).then_some(())?;
            compiler.pointers[results - length_index - 1 + k] = Some(free.next()?);
        }
        for (k, sink) in chain.sinks.iter().enumerate().filter(|(_, s)| s.along == FoldDirection::Columns) {
            is_held(sink.dtype).then_some(())?;
            compiler.pointers[folds - length_index - 1 + k] = Some(free.next()?);
        }
        Some(compiler)
    }

    /// Returns the index after this chain's last operand address: the number of addresses of this chain and of those
    /// before it.
    pub(super) fn end_address_index(&self) -> usize {
        self.folds + self.chain.sinks.len()
    }

    /// Writes the code that sets `to` to the address of the current row of an operand.
    pub(super) fn load_row_address(&mut self, address_index: usize, to: Gpr) {
        let at = |field: usize| address_field(address_index, field);
        if let Some([1, _]) = self.extents {
            return self.w.asm.mov_load(to, at(std::mem::offset_of!(OperandAddress, start)));
        }
        self.w.asm.mov_load(SPARE_REGISTER, stack_slot(ROW_SLOT));
        self.w.asm.mul_load(SPARE_REGISTER, at(std::mem::offset_of!(OperandAddress, row)));
        self.w.asm.add_load(SPARE_REGISTER, at(std::mem::offset_of!(OperandAddress, start)));
        self.w.asm.mov(to, SPARE_REGISTER);
    }

    /// Writes the code that loads the addresses of all operands for the first row, and keeps them in registers that
    /// [`emit_row_advance`](ChainCompiler::emit_row_advance) steps from row to row.
    pub(super) fn start_stepping_addresses(&mut self) {
        let stepped = &STEPPED_ADDRESS_REGISTERS[..self.end_address_index() - self.length - 1];
        for (place, &to) in stepped.iter().enumerate() {
            self.load_row_address(self.length + 1 + place, to);
        }
        for (pointer, &to) in self.pointers.iter_mut().zip(stepped).filter(|(pointer, _)| pointer.is_some()) {
            *pointer = Some(to);
        }
        self.stepped = stepped;
    }

    /// Writes the code that advances to the next row, and compares its number with the end, for a conditional jump.
    pub(super) fn emit_row_advance(&mut self) {
        for (place, &pointer) in self.stepped.iter().enumerate() {
            self.w
                .asm
                .add_load(pointer, address_field(self.length + 1 + place, std::mem::offset_of!(OperandAddress, row)));
        }
        self.w.asm.mov_load(SPARE_REGISTER, stack_slot(ROW_SLOT));
        self.w.asm.lea(SPARE_REGISTER, Mem { base: SPARE_REGISTER, index: None, offset: 1 });
        self.w.asm.mov_store(stack_slot(ROW_SLOT), SPARE_REGISTER);
        self.w.asm.mov_load(COLUMN_LIMIT_REGISTER, stack_slot(END_ROW_SLOT));
        self.w.asm.compare_registers(SPARE_REGISTER, COLUMN_LIMIT_REGISTER);
    }

    /// Returns the start of the current row of an operand, from its own register or computed in a spare one.
    pub(super) fn current_row_start(&mut self, address_index: usize) -> Mem {
        let stepped = self.stepped.get(address_index - self.length - 1);
        let base = stepped.copied().unwrap_or_else(|| {
            self.load_row_address(address_index, COLUMN_LIMIT_REGISTER);
            COLUMN_LIMIT_REGISTER
        });
        Mem { base, index: None, offset: 0 }
    }
}
