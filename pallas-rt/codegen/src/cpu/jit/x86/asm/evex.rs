//! Instructions of AVX-512: masks of elements in registers of their own, and conversions to narrower elements.
//!
//! Elsewhere, masks are vectors, as in AVX2. A comparison writes the mask register; its vector form is written only
//! once something reads it, since a blend that follows uses the mask register. The mask of the last elements of a row
//! has a mask register of its own.
use super::{Asm, M0F, M0F3A, M0F38, Mem, Operand, P66, PF3, Reg, Unary, XMM, YMM, ZMM};

/// Number of the mask register that comparisons write and blends read.
pub(super) const MASK: u8 = 1;
/// Number of the mask register for the last elements of a row (the tail).
const TAIL: u8 = 2;
/// Bits of an instruction for which elements outside of the mask stay as they are.
pub(super) const MASKED: u8 = 0;
/// Bits of an instruction for which elements outside of the mask become 0.
pub(super) const ZEROED: u8 = 0x80;

impl Asm {
    /// States that the register stands for the mask in the mask register; its bits are written when something reads
    /// it.
    pub(super) fn spread_mask(&mut self, to: Reg) {
        self.unspread = Some(to);
    }
    /// Writes the vector that [`spread_mask`](Asm::spread_mask) has put off. This is due before the mask register is
    /// overwritten, and at labels and jumps. (AVX-512DQ)
    pub(super) fn settle(&mut self) {
        if let Some(to) = self.unspread.take() {
            self.evex(ZMM, 0, M0F38 | PF3 | 0x38, to.0, 0, Operand::Reg(Reg(MASK)));
        }
    }
    /// States that the value of a register is not read any more.
    pub(in super::super) fn forget(&mut self, r: Reg) {
        self.unspread = self.unspread.filter(|unspread| *unspread != r);
    }
    /// Moves the sign bits of the elements of a vector to the mask register. (AVX-512DQ)
    pub(super) fn take_mask(&mut self, mask: Reg) {
        if self.unspread == Some(mask) {
            return;
        }
        self.settle();
        self.evex(ZMM, 0, M0F38 | PF3 | 0x39, MASK, 0, Operand::Reg(mask));
    }
    /// Moves the sign bits of the elements of a vector to the mask register of the tail.
    pub(in super::super) fn take_tail(&mut self, mask: Reg) {
        self.evex(ZMM, 0, M0F38 | PF3 | 0x39, TAIL, 0, Operand::Reg(mask));
    }
    /// Loads the elements in the mask of the tail; `store_tail` stores them.
    pub(super) fn load_tail(&mut self, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, M0F | 0x10, to.0, 0, Operand::Mem(from));
    }
    pub(super) fn store_tail(&mut self, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, M0F | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// Loads a vector in halves. (AVX-512DQ)
    pub(in super::super) fn load_halves(&mut self, to: Reg, from: Mem) {
        let upper = Mem { offset: from.offset + 32, ..from };
        self.evex(YMM, 0, M0F | 0x10, to.0, 0, Operand::Mem(from));
        self.evex(ZMM, 0, M0F3A | P66 | 0x1a, to.0, to.0, Operand::Mem(upper));
        self.code.push(1);
    }
    /// Applies [`Asm::unary`] to the elements in the mask of the tail; others are 0 and not accessed.
    pub(in super::super) fn unary_masked(&mut self, op: Unary, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, op as u32, to.0, 0, Operand::Mem(from));
    }
    /// Applies [`Asm::widen`] to the elements in the mask of the tail; others are 0 and not accessed.
    pub(in super::super) fn widen_masked(&mut self, to: Reg, from: Mem) {
        self.evex(ZMM, ZEROED | TAIL, M0F38 | P66 | 0x13, to.0, 0, Operand::Mem(from));
    }
    /// Writes the lowest byte, or two bytes, of each element to adjacent positions. (AVX-512)
    pub(in super::super) fn cut(&mut self, bytes: usize, to: Operand, x: Reg) {
        self.evex(ZMM, 0, Asm::cut_code(bytes), x.0, 0, to);
    }
    /// Writes the lowest bytes of the elements in the mask of the tail to memory, as [`Asm::cut`] does.
    pub(in super::super) fn cut_masked(&mut self, bytes: usize, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, Asm::cut_code(bytes), x.0, 0, Operand::Mem(to));
    }
    fn cut_code(bytes: usize) -> u32 {
        M0F38 | PF3 | if bytes == 1 { 0x31 } else { 0x33 }
    }
    /// Writes the elements in the mask of the tail to memory as 16-bit floats, as [`Asm::narrow`] does.
    pub(in super::super) fn narrow_masked(&mut self, to: Mem, x: Reg) {
        self.evex(ZMM, MASKED | TAIL, M0F3A | P66 | 0x1d, x.0, 0, Operand::Mem(to));
        self.code.push(0);
    }
    /// Copies the second quarter of a 512-bit register to the lowest quarter of another.
    pub(in super::super) fn second_quarter(&mut self, to: Reg, x: Reg) {
        self.evex(YMM, 0, M0F3A | P66 | 0x19, x.0, 0, Operand::Reg(to));
        self.code.push(1);
    }
    /// Stores a quarter of a vector past the caches; the address is a multiple of its size.
    pub(in super::super) fn stream_quarter(&mut self, to: Mem, x: Reg) {
        self.sized(XMM, M0F | 0x2b, x.0, 0, Operand::Mem(to));
    }
    /// Writes an instruction with an EVEX prefix, which has 32 registers; `masked` names its mask register and the
    /// treatment of other elements.
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
