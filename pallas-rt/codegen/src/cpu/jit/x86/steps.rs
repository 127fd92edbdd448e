//! Rows of a chain one after the other: where each operand's row begins stays in a register, to which the distance of rows
//! is added. Short rows would take longer to find than to compute.
use super::super::super::plan::step::Chain;
use super::super::form::Place;
use super::asm::{Gpr, Mem};
use super::compiler::Compiler;
use super::frame::{END, KEPT_END, KEPT_ROW, LIMIT, ROW, SPARE, entry, kept};

/// Registers for that. Two of them are arguments, which are on the stack, too.
const STEPPED: [Gpr; 9] = [Gpr::Rbx, Gpr::Rcx, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::R12, END, ROW];

/// True if there is a register for each place of the chain.
pub(super) fn steps(chain: &Chain) -> bool {
    chain.places() - 1 <= STEPPED.len()
}

impl Compiler<'_> {
    /// Lets pointers step from row to row, and sets them to the first one.
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

    /// To the next row; the flags say whether there is one.
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

    /// The beginning of this row of a place: in a register of its own, or in a spare one.
    pub(super) fn start(&mut self, place: usize) -> Mem {
        let stepped = self.stepped.get(place - self.length - 1);
        let base = stepped.copied().unwrap_or_else(|| {
            self.point(place, LIMIT);
            LIMIT
        });
        Mem { base, index: None, offset: 0 }
    }
}
