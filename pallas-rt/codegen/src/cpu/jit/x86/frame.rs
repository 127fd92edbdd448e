//! The frame of a machine-code function: its registers, its stack, and the masks at the start of its constants.
use super::super::operand_layouts::OperandAddress;
use super::assembler::{Gpr, Mem};
use super::vector::VectorWriter;

/// Register of the first argument: the address of the list of operands' addresses.
pub(super) const ADDRESSES_REGISTER: Gpr = Gpr::Rdi;
/// Register of the second argument: the first row to run, then the current row.
pub(super) const ROW_REGISTER: Gpr = Gpr::Rsi;
/// Register of the third argument: the end of the rows to run.
pub(super) const END_ROW_REGISTER: Gpr = Gpr::Rdx;
/// Register of the current column.
pub(super) const COLUMN_REGISTER: Gpr = Gpr::Rax;
/// Register of the bound of the loop over columns.
pub(super) const COLUMN_LIMIT_REGISTER: Gpr = Gpr::R13;
/// Register of the number of elements of the row that are left after its last whole vector.
pub(super) const REMAINING_COLUMNS_REGISTER: Gpr = COLUMN_LIMIT_REGISTER;
/// A register for intermediate values; in the loop over columns, it points at the next row of a prefetched input.
pub(super) const SPARE_REGISTER: Gpr = Gpr::R14;
/// Register of the address of the constants.
pub(super) const CONSTANTS_REGISTER: Gpr = Gpr::R15;
/// Registers for the addresses of rows. The last ones are those of the arguments, which the code for vectors does not
/// need.
pub(super) const POINTER_REGISTERS: [Gpr; 10] = [
    Gpr::Rbx,
    Gpr::Rcx,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::R12,
    END_ROW_REGISTER,
    ROW_REGISTER,
    ADDRESSES_REGISTER,
];
/// Registers that are saved for the caller, below the frame pointer.
const CALLEE_SAVED_REGISTERS: [Gpr; 5] = [Gpr::Rbx, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
/// Registers of the arguments, which are also in stack slots below the saved registers.
pub(super) const ARGUMENT_REGISTERS: [Gpr; 3] = [ADDRESSES_REGISTER, ROW_REGISTER, END_ROW_REGISTER];
/// Index of the stack slot of the current row.
pub(super) const ROW_SLOT: usize = 1;
/// Index of the stack slot of the end of the rows.
pub(super) const END_ROW_SLOT: usize = 2;
/// Index of the stack slot of the number of elements of a row.
pub(super) const COLUMN_COUNT_SLOT: usize = ARGUMENT_REGISTERS.len();
/// Index of the stack slot of the caller's floating-point control word.
const MXCSR_SLOT: usize = COLUMN_COUNT_SLOT + 1;
/// The control word while the code runs: rounding to nearest, no traps, and subnormal operands and results are zeros,
/// since on some processors each of them costs a hundred cycles. XLA does the same.
const FLUSH_TO_ZERO_MXCSR: u32 = 0x1f80 | 1 << 15 | 1 << 6;

/// Returns the memory of stack slot `i`: an argument, or one of the slots after them.
pub(super) fn stack_slot(i: usize) -> Mem {
    Mem { base: Gpr::Rbp, index: None, offset: -8 * (CALLEE_SAVED_REGISTERS.len() + 1 + i) as i32 }
}

/// Returns the memory of a field, at this offset in bytes, of the operand address at this index.
pub(super) fn address_field(address_index: usize, field_offset: usize) -> Mem {
    Mem {
        base: ADDRESSES_REGISTER,
        index: None,
        offset: (address_index * size_of::<OperandAddress>() + field_offset) as i32,
    }
}

/// Writes the start of a function whose stack has room for a number of vectors (none if `None`); chains that run one
/// after the other share them.
pub(super) fn emit_prologue(w: &mut VectorWriter, vector_slots: Option<usize>) {
    // Masks of the first lanes (of none, one, .. all but one) are the first constants.
    (0..w.lanes() as usize).for_each(|n| _ = first_lanes_mask(w, n));
    let stack = vector_slots.unwrap_or(0) as i32 * w.vector_bytes();
    let asm = &mut w.asm;
    asm.push(Gpr::Rbp);
    asm.mov(Gpr::Rbp, Gpr::Rsp);
    CALLEE_SAVED_REGISTERS.into_iter().for_each(|r| asm.push(r));
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rsp, index: None, offset: -stack - 8 * (MXCSR_SLOT + 1) as i32 });
    asm.and_immediate(Gpr::Rsp, -64);
    ARGUMENT_REGISTERS.into_iter().enumerate().for_each(|(i, r)| asm.mov_store(stack_slot(i), r));
    asm.load_constants_address(CONSTANTS_REGISTER);
    asm.store_mxcsr(stack_slot(MXCSR_SLOT));
    let flushing = w.constants.add_splat(FLUSH_TO_ZERO_MXCSR);
    w.asm.load_mxcsr(flushing);
    w.load_pinned_constants();
}

/// Writes the end of a function; returns its code, and the constants worth keeping in registers.
pub(super) fn emit_epilogue(mut w: VectorWriter) -> (Vec<u8>, Vec<u32>) {
    let asm = &mut w.asm;
    asm.load_mxcsr(stack_slot(MXCSR_SLOT));
    asm.zero_upper();
    asm.lea(Gpr::Rsp, Mem { base: Gpr::Rbp, index: None, offset: -8 * CALLEE_SAVED_REGISTERS.len() as i32 });
    CALLEE_SAVED_REGISTERS.into_iter().rev().for_each(|r| asm.pop(r));
    asm.pop(Gpr::Rbp);
    asm.ret();
    let (constants, pinned) = (w.constants.bytes(), w.constants_to_pin());
    (w.asm.finish(&constants), pinned)
}

/// Returns the memory of a mask of the first `n` lanes.
pub(super) fn first_lanes_mask(w: &mut VectorWriter, n: usize) -> Mem {
    w.constants.add_vector(std::array::from_fn(|lane| if lane < n { !0 } else { 0 }))
}
