//! The frame of a machine-code function: its registers, its stack, and the masks at the start of its constants.
use super::super::form::Place;
use super::asm::{Gpr, Mem};
use super::vector::Writer;

/// Register of the first argument: the address of the places.
pub(super) const FRAME: Gpr = Gpr::Rdi;
/// Register of the second argument: the first row to run, then the current row.
pub(super) const ROW: Gpr = Gpr::Rsi;
/// Register of the third argument: the end of the rows to run.
pub(super) const END: Gpr = Gpr::Rdx;
/// Register of the current column.
pub(super) const COLUMN: Gpr = Gpr::Rax;
/// Register of the bound of the loop over columns.
pub(super) const LIMIT: Gpr = Gpr::R13;
/// After the last whole vector: the number of elements that are left of the row.
pub(super) const LEFT: Gpr = LIMIT;
/// A register for intermediate values; in the loop over columns, it points at the next row of a prefetched input.
pub(super) const SPARE: Gpr = Gpr::R14;
/// Register of the address of the constants.
pub(super) const POOL: Gpr = Gpr::R15;
/// Registers for the addresses of rows. The last ones are those of the arguments, which the code for vectors does not
/// need.
pub(super) const POINTERS: [Gpr; 10] =
    [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END, ROW, FRAME];
/// Registers that are saved for the caller, below the frame pointer.
const SAVED: [Gpr; 5] = [Gpr::Rbx, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
/// Registers of the arguments, which are also in stack slots below the saved registers.
pub(super) const ARGUMENTS: [Gpr; 3] = [FRAME, ROW, END];
/// Index of the stack slot of the current row.
pub(super) const KEPT_ROW: usize = 1;
/// Index of the stack slot of the end of the rows.
pub(super) const KEPT_END: usize = 2;
/// Index of the stack slot of the number of elements of a row.
pub(super) const COLUMNS: usize = ARGUMENTS.len();
/// Index of the stack slot of the caller's floating-point control word.
const CONTROL: usize = COLUMNS + 1;
/// The control word while the code runs: rounding to nearest, no traps, and subnormal operands and results are zeros,
/// since on some processors each of them costs a hundred cycles. XLA does the same.
const FLUSHING: u32 = 0x1f80 | 1 << 15 | 1 << 6;

/// Returns the memory of stack slot `i`: an argument, or one of the slots after them.
pub(super) fn kept(i: usize) -> Mem {
    Mem { base: Gpr::Rbp, index: None, offset: -8 * (SAVED.len() + 1 + i) as i32 }
}

/// Returns the memory of a field of a place; `field` is its offset in bytes.
pub(super) fn entry(place: usize, field: usize) -> Mem {
    Mem { base: FRAME, index: None, offset: (place * size_of::<Place>() + field) as i32 }
}

/// Writes the start of a function whose stack has room for `slots` vectors; chains that run one after the other share
/// them.
pub(super) fn enter(w: &mut Writer, slots: Option<usize>) {
    // Masks of the first lanes (of none, one, .. all but one) are the first constants.
    (0..w.lanes() as usize).for_each(|n| _ = first_lanes(w, n));
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

/// Writes the end of a function; returns its code, and the constants worth keeping in registers.
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

/// Returns the memory of a mask of the first `n` lanes.
pub(super) fn first_lanes(w: &mut Writer, n: usize) -> Mem {
    w.constants.vector(std::array::from_fn(|lane| if lane < n { !0 } else { 0 }))
}
