//! Instructions of AVX-512: masks of elements in registers of their own, and conversions to narrower elements.
//!
//! Elsewhere, masks are vectors, as in AVX2. A comparison writes the mask register; its vector form is written only
//! once something reads it, since a blend that follows uses the mask register. The mask of the last elements of a row
//! has a mask register of its own.
use super::{
    Asm, MAP_0F, MAP_0F3A, MAP_0F38, Mem, Operand, PREFIX_66, PREFIX_F3, Reg, UnaryInstruction, VECTOR_LENGTH_128,
    VECTOR_LENGTH_256, VECTOR_LENGTH_512,
};

/// Number of the mask register that comparisons write and blends read.
pub(super) const COMPARE_MASK_REGISTER: u8 = 1;
/// Number of the mask register for the last elements of a row (the tail).
const TAIL_MASK_REGISTER: u8 = 2;
/// Bits of an instruction for which elements outside of the mask stay as they are.
pub(super) const MERGE_MASKING: u8 = 0;
/// Bits of an instruction for which elements outside of the mask become 0.
pub(super) const ZERO_MASKING: u8 = 0x80;

impl Asm {
    /// States that a vector register stands for the mask in the mask register; its bits are written only when
    /// something reads them.
    pub(super) fn defer_mask_vector(&mut self, to: Reg) {
        self.unspread = Some(to);
    }
    /// Writes the vector that [`defer_mask_vector`](Asm::defer_mask_vector) has put off. This is due before the mask
    /// register is overwritten, and at labels and jumps. (AVX-512DQ)
    pub(super) fn emit_deferred_mask(&mut self) {
        if let Some(to) = self.unspread.take() {
            self.emit_evex(
                VECTOR_LENGTH_512,
                0,
                MAP_0F38 | PREFIX_F3 | 0x38,
                to.0,
                0,
                Operand::Reg(Reg(COMPARE_MASK_REGISTER)),
            );
        }
    }
    /// States that the value of a register is not read any more, so that a mask vector that was put off for it need
    /// not be written.
    pub(in super::super) fn discard_deferred_mask(&mut self, r: Reg) {
        self.unspread = self.unspread.filter(|unspread| *unspread != r);
    }
    /// Moves the sign bits of the elements of a vector to the mask register. (AVX-512DQ)
    pub(super) fn move_signs_to_mask(&mut self, mask: Reg) {
        if self.unspread == Some(mask) {
            return;
        }
        self.emit_deferred_mask();
        self.emit_evex(VECTOR_LENGTH_512, 0, MAP_0F38 | PREFIX_F3 | 0x39, COMPARE_MASK_REGISTER, 0, Operand::Reg(mask));
    }
    /// Moves the sign bits of the elements of a vector to the mask register of the tail.
    pub(in super::super) fn move_signs_to_tail_mask(&mut self, mask: Reg) {
        self.emit_evex(VECTOR_LENGTH_512, 0, MAP_0F38 | PREFIX_F3 | 0x39, TAIL_MASK_REGISTER, 0, Operand::Reg(mask));
    }
    /// Loads the elements that the mask register of the tail (the end of a row) selects; others become 0.
    pub(super) fn load_tail(&mut self, to: Reg, from: Mem) {
        self.emit_evex(
            VECTOR_LENGTH_512,
            ZERO_MASKING | TAIL_MASK_REGISTER,
            MAP_0F | 0x10,
            to.0,
            0,
            Operand::Mem(from),
        );
    }
    pub(super) fn store_tail(&mut self, to: Mem, x: Reg) {
        self.emit_evex(VECTOR_LENGTH_512, MERGE_MASKING | TAIL_MASK_REGISTER, MAP_0F | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// Loads a 64-byte vector by two loads of 32 bytes each. (AVX-512DQ)
    pub(in super::super) fn load_in_halves(&mut self, to: Reg, from: Mem) {
        let upper = Mem { offset: from.offset + 32, ..from };
        self.emit_evex(VECTOR_LENGTH_256, 0, MAP_0F | 0x10, to.0, 0, Operand::Mem(from));
        self.emit_evex(VECTOR_LENGTH_512, 0, MAP_0F3A | PREFIX_66 | 0x1a, to.0, to.0, Operand::Mem(upper));
        self.code.push(1);
    }
    /// Applies [`Asm::unary`] to the elements in the mask of the tail; others are 0 and not accessed.
    pub(in super::super) fn unary_masked(&mut self, op: UnaryInstruction, to: Reg, from: Mem) {
        self.emit_evex(VECTOR_LENGTH_512, ZERO_MASKING | TAIL_MASK_REGISTER, op as u32, to.0, 0, Operand::Mem(from));
    }
    /// Converts the 16-bit floats in the mask of the tail, loaded from memory, to 32 bits; other elements become 0 and
    /// are not read.
    pub(in super::super) fn widen_f16_masked(&mut self, to: Reg, from: Mem) {
        self.emit_evex(
            VECTOR_LENGTH_512,
            ZERO_MASKING | TAIL_MASK_REGISTER,
            MAP_0F38 | PREFIX_66 | 0x13,
            to.0,
            0,
            Operand::Mem(from),
        );
    }
    /// Writes the lowest byte, or two bytes, of each element to adjacent positions. (AVX-512)
    pub(in super::super) fn truncate_elements(&mut self, element_bytes: usize, to: Operand, x: Reg) {
        self.emit_evex(VECTOR_LENGTH_512, 0, Asm::truncation_opcode(element_bytes), x.0, 0, to);
    }
    /// Writes the lowest bytes of the elements in the mask of the tail to memory, as [`Asm::truncate_elements`] does.
    pub(in super::super) fn truncate_elements_masked(&mut self, element_bytes: usize, to: Mem, x: Reg) {
        self.emit_evex(
            VECTOR_LENGTH_512,
            MERGE_MASKING | TAIL_MASK_REGISTER,
            Asm::truncation_opcode(element_bytes),
            x.0,
            0,
            Operand::Mem(to),
        );
    }
    fn truncation_opcode(element_bytes: usize) -> u32 {
        MAP_0F38 | PREFIX_F3 | if element_bytes == 1 { 0x31 } else { 0x33 }
    }
    /// Writes the 32-bit floats in the mask of the tail to memory as 16-bit floats, rounded to nearest even.
    pub(in super::super) fn narrow_to_f16_masked(&mut self, to: Mem, x: Reg) {
        self.emit_evex(
            VECTOR_LENGTH_512,
            MERGE_MASKING | TAIL_MASK_REGISTER,
            MAP_0F3A | PREFIX_66 | 0x1d,
            x.0,
            0,
            Operand::Mem(to),
        );
        self.code.push(0);
    }
    /// Copies the second quarter of a 512-bit register to the lowest quarter of another.
    pub(in super::super) fn extract_second_quarter(&mut self, to: Reg, x: Reg) {
        self.emit_evex(VECTOR_LENGTH_256, 0, MAP_0F3A | PREFIX_66 | 0x19, x.0, 0, Operand::Reg(to));
        self.code.push(1);
    }
    /// Stores a quarter of a vector past the caches; the address is a multiple of its size.
    pub(in super::super) fn store_quarter_nontemporal(&mut self, to: Mem, x: Reg) {
        self.emit_sized_vector(VECTOR_LENGTH_128, MAP_0F | 0x2b, x.0, 0, Operand::Mem(to));
    }
    /// Writes an instruction with an EVEX prefix, which has 32 registers: `reg` and `vvvv` are its first and second.
    /// The mask control names its mask register and the treatment of elements outside of the mask.
    pub(super) fn emit_evex(
        &mut self,
        vector_length: u8,
        mask_control: u8,
        opcode: u32,
        reg: u8,
        vvvv: u8,
        rm: Operand,
    ) {
        if self.unspread.is_some_and(|r| [reg, vvvv].contains(&r.0) || rm == Operand::Reg(r)) {
            self.emit_deferred_mask();
        }
        let (x, b) = match rm {
            Operand::Reg(r) => (r.0 >> 4, r.0 >> 3),
            Operand::Mem(m) => (m.index.map_or(0, |i| i.0 as u8 >> 3), m.base as u8 >> 3),
        };
        let inverted = |bit: u8, at: u8| (!bit & 1) << at;
        let registers = inverted(reg >> 3, 7) | inverted(x, 6) | inverted(b, 5) | inverted(reg >> 4, 4);
        self.code.extend([0x62, registers | (opcode >> 16) as u8]);
        self.code.push((!vvvv & 15) << 3 | 4 | (opcode >> 8) as u8);
        self.code.push(mask_control | vector_length << 5 | inverted(vvvv >> 4, 3));
        self.code.push(opcode as u8);
        self.emit_modrm_operand(reg, rm);
    }
}
