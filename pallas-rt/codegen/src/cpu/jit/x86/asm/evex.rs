//! Instructions that AVX2 does not have: masks of elements in a register of their own, and elements that become narrower.
//!
//! Code keeps masks in vectors, as AVX2 has them. What a comparison finds is in the mask register first, and becomes a vector
//! once something reads that: a choice that follows takes the mask register. The mask of the elements that are left at the end
//! of a row has a register of its own.
use super::{Asm, M0F, M0F3A, M0F38, Mem, Operand, P66, PF3, Reg, Unary, XMM, YMM, ZMM};

/// The mask register of comparisons and choices.
pub(super) const MASK: u8 = 1;
/// The one of the elements that are left at the end of a row.
const TAIL: u8 = 2;
/// For the elements in a mask, others stay; and for them, others are 0.
pub(super) const MASKED: u8 = 0;
pub(super) const ZEROED: u8 = 0x80;

impl Asm {
    /// The register has all bits of the elements that are in the mask register, and none of the others, once it is read.
    pub(super) fn spread_mask(&mut self, to: Reg) {
        self.unspread = Some(to);
    }
    /// Writes the vector that [`spread_mask`](Asm::spread_mask) has left out: before another value is in the mask register, and
    /// where paths of the code part or meet. AVX-512DQ.
    pub(super) fn settle(&mut self) {
        if let Some(to) = self.unspread.take() {
            self.evex(ZMM, 0, M0F38 | PF3 | 0x38, to.0, 0, Operand::Reg(Reg(MASK)));
        }
    }
    /// Nobody reads the register's value any more.
    pub(in super::super) fn forget(&mut self, r: Reg) {
        self.unspread = self.unspread.filter(|unspread| *unspread != r);
    }
    /// Elements whose sign bits are set, to the mask register: AVX-512DQ.
    pub(super) fn take_mask(&mut self, mask: Reg) {
        if self.unspread == Some(mask) {
            return;
        }
        self.settle();
        self.evex(ZMM, 0, M0F38 | PF3 | 0x39, MASK, 0, Operand::Reg(mask));
    }
    /// .. to the mask register of the elements that are left.
    pub(in super::super) fn take_tail(&mut self, mask: Reg) {
        self.evex(ZMM, 0, M0F38 | PF3 | 0x39, TAIL, 0, Operand::Reg(mask));
    }
    /// Loads and stores the elements that are left.
    pub(super) fn load_tail(&mut self, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, M0F | 0x10, to.0, 0, Operand::Mem(from));
    }
    pub(super) fn store_tail(&mut self, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, M0F | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// A vector, read in halves: AVX-512DQ.
    pub(in super::super) fn load_halves(&mut self, to: Reg, from: Mem) {
        let upper = Mem { offset: from.offset + 32, ..from };
        self.evex(YMM, 0, M0F | 0x10, to.0, 0, Operand::Mem(from));
        self.evex(ZMM, 0, M0F3A | P66 | 0x1a, to.0, to.0, Operand::Mem(upper));
        self.code.push(1);
    }
    /// As [`Asm::unary`] of the elements that are left; others are 0 and not touched.
    pub(in super::super) fn unary_masked(&mut self, op: Unary, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, op as u32, to.0, 0, Operand::Mem(from));
    }
    /// As [`Asm::widen`] of the elements that are left; others are 0 and not touched.
    pub(in super::super) fn widen_masked(&mut self, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, M0F38 | P66 | 0x13, to.0, 0, Operand::Mem(from));
    }
    /// The lowest bytes of each element, two or one, side by side: AVX-512.
    pub(in super::super) fn cut(&mut self, bytes: usize, to: Operand, x: Reg) {
        self.evex(ZMM, 0, Asm::cut_code(bytes), x.0, 0, to);
    }
    /// As [`Asm::cut`], to memory, of the elements that are left.
    pub(in super::super) fn cut_masked(&mut self, bytes: usize, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, Asm::cut_code(bytes), x.0, 0, Operand::Mem(to));
    }
    fn cut_code(bytes: usize) -> u32 {
        M0F38 | PF3 | if bytes == 1 { 0x31 } else { 0x33 }
    }
    /// As [`Asm::narrow`], to memory, of the elements that are left.
    pub(in super::super) fn narrow_masked(&mut self, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, M0F3A | P66 | 0x1d, x.0, 0, Operand::Mem(to));
        self.code.push(0);
    }
    /// The upper half of the lower half of a register, in the lowest quarter of another: of 512 bits.
    pub(in super::super) fn second_quarter(&mut self, to: Reg, x: Reg) {
        self.evex(YMM, 0, M0F3A | P66 | 0x19, x.0, 0, Operand::Reg(to));
        self.code.push(1);
    }
    /// A quarter past the caches; the address is a multiple of one.
    pub(in super::super) fn stream_quarter(&mut self, to: Mem, x: Reg) {
        self.sized(XMM, M0F | 0x2b, x.0, 0, Operand::Mem(to));
    }
    /// With 32 registers, and the elements in the mask register alone if `masked` says so.
    pub(super) fn evex(&mut self, bits: u8, masked: u8, opcode: u32, reg: u8, vvvv: u8, rm: Operand) {
        if self.unspread.is_some_and(|r| [reg, vvvv].contains(&r.0) || rm == Operand::Reg(r)) {
            self.settle();
        }
        let (x, b) = match rm {
            Operand::Reg(r) => (r.0 >> 4, r.0 >> 3),
            Operand::Mem(m) => (m.index.map_or(0, |i| i.0 as u8 >> 3), m.base as u8 >> 3),
        };
        let inverted = |bit: u8, at: u8| (!bit & 1) << at;
        let registers = inverted(reg >> 3, 7) | inverted(x, 6) | inverted(b, 5) | inverted(reg >> 4, 4);
        self.code.extend([0x62, registers | (opcode >> 16) as u8]);
        self.code.push((!vvvv & 15) << 3 | 4 | (opcode >> 8) as u8);
        self.code.push(masked | bits << 5 | inverted(vvvv >> 4, 3));
        self.code.push(opcode as u8);
        self.operand(reg, rm);
    }
}
