//! Instructions on numbers in general registers.
use super::{Asm, Gpr, Mem};

impl Asm {
    /// Writes an instruction of two 64-bit registers: REX.W, opcode, ModRM.
    fn emit_two_registers(&mut self, opcode: &[u8], reg: Gpr, rm: Gpr) {
        self.code.push(0x48 | (reg as u8 >> 3) << 2 | rm as u8 >> 3);
        self.code.extend(opcode);
        self.code.push(0xc0 | (reg as u8 & 7) << 3 | rm as u8 & 7);
    }
    fn emit_with_memory(&mut self, opcode: &[u8], reg: Gpr, m: Mem) {
        self.emit_with_memory_and_rex(0x48, opcode, reg, m);
    }
    /// Writes an instruction with a memory operand after the prefix `rex`: REX.W, or REX if no operand has 64 bits.
    fn emit_with_memory_and_rex(&mut self, rex: u8, opcode: &[u8], reg: Gpr, m: Mem) {
        let x = m.index.map_or(0, |i| i.0 as u8 >> 3);
        self.code.push(rex | (reg as u8 >> 3) << 2 | x << 1 | m.base as u8 >> 3);
        self.code.extend(opcode);
        self.emit_address(reg as u8, m);
    }
    pub(in super::super) fn mov(&mut self, to: Gpr, from: Gpr) {
        self.emit_two_registers(&[0x8b], to, from);
    }
    pub(in super::super) fn mov_load(&mut self, to: Gpr, from: Mem) {
        self.emit_with_memory(&[0x8b], to, from);
    }
    pub(in super::super) fn mov_store(&mut self, to: Mem, from: Gpr) {
        self.emit_with_memory(&[0x89], from, to);
    }
    /// Prefetches a cache line; any address is allowed.
    pub(in super::super) fn prefetch(&mut self, m: Mem) {
        // The register's number says: to all caches.
        self.emit_with_memory(&[0x0f, 0x18], Gpr::Rcx, m);
    }
    /// Loads the floating-point control word. (REX.W is left out: processors ignore it, Valgrind rejects it.)
    pub(in super::super) fn load_mxcsr(&mut self, from: Mem) {
        self.emit_with_memory_and_rex(0x40, &[0x0f, 0xae], Gpr::Rdx, from);
    }
    pub(in super::super) fn store_mxcsr(&mut self, to: Mem) {
        self.emit_with_memory_and_rex(0x40, &[0x0f, 0xae], Gpr::Rbx, to);
    }
    /// Sets `to` to an address.
    pub(in super::super) fn lea(&mut self, to: Gpr, m: Mem) {
        self.emit_with_memory(&[0x8d], to, m);
    }
    pub(in super::super) fn add(&mut self, to: Gpr, x: Gpr) {
        self.emit_two_registers(&[0x03], to, x);
    }
    /// Adds memory: `to += [m]`.
    pub(in super::super) fn add_load(&mut self, to: Gpr, m: Mem) {
        self.emit_with_memory(&[0x03], to, m);
    }
    /// Adds to memory: `[m] += x`.
    pub(in super::super) fn add_store(&mut self, m: Mem, x: Gpr) {
        self.emit_with_memory(&[0x01], x, m);
    }
    pub(in super::super) fn sub(&mut self, to: Gpr, x: Gpr) {
        self.emit_two_registers(&[0x2b], to, x);
    }
    /// Multiplies by memory: `to *= [m]`.
    pub(in super::super) fn mul_load(&mut self, to: Gpr, m: Mem) {
        self.emit_with_memory(&[0x0f, 0xaf], to, m);
    }
    pub(in super::super) fn shl(&mut self, to: Gpr, bits: u8) {
        self.code.extend([0x48 | to as u8 >> 3, 0xc1, 0xe0 | to as u8 & 7, bits]);
    }
    pub(in super::super) fn clear(&mut self, to: Gpr) {
        self.emit_two_registers(&[0x33], to, to);
    }
    pub(in super::super) fn compare_registers(&mut self, a: Gpr, b: Gpr) {
        self.emit_two_registers(&[0x3b], a, b);
    }
    pub(in super::super) fn compare_immediate(&mut self, a: Gpr, x: i8) {
        self.code.extend([0x48 | a as u8 >> 3, 0x83, 0xf8 | a as u8 & 7, x as u8]);
    }
    /// Sets `to &= x`, with `x` sign-extended.
    pub(in super::super) fn and_immediate(&mut self, to: Gpr, x: i8) {
        self.code.extend([0x48 | to as u8 >> 3, 0x83, 0xe0 | to as u8 & 7, x as u8]);
    }
    pub(in super::super) fn push(&mut self, r: Gpr) {
        self.code.extend([0x40 | r as u8 >> 3, 0x50 | r as u8 & 7]);
    }
    pub(in super::super) fn pop(&mut self, r: Gpr) {
        self.code.extend([0x40 | r as u8 >> 3, 0x58 | r as u8 & 7]);
    }
    pub(in super::super) fn ret(&mut self) {
        self.code.push(0xc3);
    }
    /// Sets `to` to the address of the constants.
    pub(in super::super) fn load_constants_address(&mut self, to: Gpr) {
        self.code.extend([0x48 | (to as u8 >> 3) << 2, 0x8d, 0x05 | (to as u8 & 7) << 3]);
        self.pool.push(self.code.len());
        self.code.extend([0; 4]);
    }
}
