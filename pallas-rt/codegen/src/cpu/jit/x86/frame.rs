//! The frame of a function: its registers, its stack, and the masks that its constants begin with.
use super::super::form::Place;
use super::asm::{Gpr, Mem};
use super::vector::Writer;

/// Assignment of registers. The first three are the function's arguments.
pub(super) const FRAME: Gpr = Gpr::Rdi;
pub(super) const ROW: Gpr = Gpr::Rsi;
pub(super) const END: Gpr = Gpr::Rdx;
pub(super) const COLUMN: Gpr = Gpr::Rax;
pub(super) const LIMIT: Gpr = Gpr::R13;
/// Behind the last whole vector: the elements that are left of the row.
pub(super) const LEFT: Gpr = LIMIT;
/// In a row's loop: where the next row of an input begins.
pub(super) const SPARE: Gpr = Gpr::R14;
pub(super) const POOL: Gpr = Gpr::R15;
/// Beginnings of rows. The last ones take the place of arguments, which no vector needs.
pub(super) const POINTERS: [Gpr; 10] =
    [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END, ROW, FRAME];
/// The caller's, below its frame.
const SAVED: [Gpr; 5] = [Gpr::Rbx, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
/// Below them: the arguments, and the elements of a row.
pub(super) const ARGUMENTS: [Gpr; 3] = [FRAME, ROW, END];
pub(super) const KEPT_ROW: usize = 1;
pub(super) const KEPT_END: usize = 2;
pub(super) const COLUMNS: usize = ARGUMENTS.len();
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

/// The beginning of a function, with so many stack slots: what runs one after the other uses them anew.
pub(super) fn enter(w: &mut Writer, slots: Option<usize>) {
    // Masks of the first lanes, none of them to all but one, where the constants begin.
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

/// A mask of the first ones of the lanes.
pub(super) fn first_lanes(w: &mut Writer, n: usize) -> Mem {
    w.constants.vector(std::array::from_fn(|lane| if lane < n { !0 } else { 0 }))
}
