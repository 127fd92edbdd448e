//! Assembler for x86-64 with AVX2 and FMA, or with AVX-512: the instructions of elementwise chains.
//!
//! Encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (VEX prefixes: section 2.3.5;
//! EVEX prefixes: section 2.7.1).

mod evex;
mod general_registers;

use evex::{COMPARE_MASK_REGISTER, MERGE_MASKING};

/// A vector register: ymm0 to ymm15, or zmm0 to zmm31.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reg(pub(super) u8);

/// A general register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[rustfmt::skip]
pub(super) enum Gpr { Rax, Rcx, Rdx, Rbx, Rsp, Rbp, Rsi, Rdi, R8, R9, R10, R11, R12, R13, R14, R15 }

/// A memory operand, at `base + index.0 * index.1 + offset`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mem {
    pub(super) base: Gpr,
    /// An index register and its factor: 1, 2, 4 or 8.
    pub(super) index: Option<(Gpr, u8)>,
    pub(super) offset: i32,
}

/// An operand of an instruction: a register, or memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Operand {
    Reg(Reg),
    Mem(Mem),
}

// Parts of an instruction as the VEX prefix encodes it: opcode map, mandatory prefix and opcode, one byte each.
const MAP_0F: u32 = 0x1_0000;
const MAP_0F38: u32 = 0x2_0000;
const MAP_0F3A: u32 = 0x3_0000;
const PREFIX_66: u32 = 0x100;
const PREFIX_F3: u32 = 0x200;

/// Length of a vector (here and below: 128, 256, 512 bits) as VEX and EVEX prefixes encode it.
const VECTOR_LENGTH_128: u8 = 0;
const VECTOR_LENGTH_256: u8 = 1;
const VECTOR_LENGTH_512: u8 = 2;

/// Vector instructions `to = a op b`; `b` may be in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u32)]
pub(super) enum BinaryInstruction {
    Add = MAP_0F | 0x58,
    Sub = MAP_0F | 0x5c,
    Mul = MAP_0F | 0x59,
    Div = MAP_0F | 0x5e,
    /// `a < b ? a : b`, which is `b` if either is NaN or both are zero.
    Min = MAP_0F | 0x5d,
    /// `a > b ? a : b`, which is `b` if either is NaN or both are zero.
    Max = MAP_0F | 0x5f,
    And = MAP_0F | 0x54,
    Or = MAP_0F | 0x56,
    Xor = MAP_0F | 0x57,
    AddInt = MAP_0F | PREFIX_66 | 0xfe,
    SubInt = MAP_0F | PREFIX_66 | 0xfa,
    MulInt = MAP_0F38 | PREFIX_66 | 0x40,
    MinInt = MAP_0F38 | PREFIX_66 | 0x39,
    MaxInt = MAP_0F38 | PREFIX_66 | 0x3d,
    GreaterInt = MAP_0F | PREFIX_66 | 0x66,
    EqualInt = MAP_0F | PREFIX_66 | 0x76,
    /// Minimum of unsigned elements.
    MinUnsigned = MAP_0F38 | PREFIX_66 | 0x3b,
    /// Maximum of unsigned elements.
    MaxUnsigned = MAP_0F38 | PREFIX_66 | 0x3f,
    /// Shifts each element by its own number of bits in `b`, below 32; `ShiftRightArithmetic` shifts right and keeps
    /// the sign.
    ShiftLeft = MAP_0F38 | PREFIX_66 | 0x47,
    ShiftRight = MAP_0F38 | PREFIX_66 | 0x45,
    ShiftRightArithmetic = MAP_0F38 | PREFIX_66 | 0x46,
    /// Selects the bytes of `a` at the positions in `b`; its opcode is 0.
    ShuffleBytes = MAP_0F38 | PREFIX_66,
    PackWords = MAP_0F | PREFIX_66 | 0x6b,
    PackBytes = MAP_0F | PREFIX_66 | 0x63,
    PackUnsignedWords = MAP_0F38 | PREFIX_66 | 0x2b,
    PackUnsignedBytes = MAP_0F | PREFIX_66 | 0x67,
}

/// Vector instructions `to = op b`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u32)]
pub(super) enum UnaryInstruction {
    Sqrt = MAP_0F | 0x51,
    IntToFloat = MAP_0F | 0x5b,
    /// Truncates; gives `i32::MIN` for NaN and for what no i32 holds.
    FloatToInt = MAP_0F | PREFIX_F3 | 0x5b,
    AbsInt = MAP_0F38 | PREFIX_66 | 0x1e,
    BytesToInts = MAP_0F38 | PREFIX_66 | 0x21,
    BytesToUnsigned = MAP_0F38 | PREFIX_66 | 0x31,
    WordsToInts = MAP_0F38 | PREFIX_66 | 0x33,
    /// Broadcasts the first byte to all elements.
    BroadcastByte = MAP_0F38 | PREFIX_66 | 0x78,
    /// Broadcasts the first two bytes to all elements.
    BroadcastWord = MAP_0F38 | PREFIX_66 | 0x79,
}

/// Rounding modes of [`Asm::round`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(super) enum RoundingMode {
    Even = 0,
    Down = 1,
    Up = 2,
    Zero = 3,
}

/// Shifts by a constant; zeros are shifted in, or the sign (`RightArithmetic`, to the right).
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(super) enum ShiftKind {
    Right = 2,
    RightArithmetic = 4,
    Left = 6,
}

/// Predicates of comparisons; all but `NotEqual` and `Unordered` are false for NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(super) enum Predicate {
    Equal = 0x00,
    Less = 0x11,
    LessEqual = 0x12,
    Unordered = 0x03,
    NotEqual = 0x04,
    Ordered = 0x07,
    GreaterEqual = 0x1d,
    Greater = 0x1e,
}

/// Order of the operands of `to = ± x * y + z`: the digits of the instruction's name.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(super) enum FmaForm {
    /// `to = a * to + b`
    F213 = 0xa8,
    /// `to = a * b + to`
    F231 = 0xb8,
}

/// Conditions of jumps, with their opcodes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(super) enum JumpCondition {
    GreaterEqual = 0x8d,
    Less = 0x8c,
    Equal = 0x84,
}

/// A position in the code; jumps to it may be written before it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// Machine code under construction, followed by its constants.
#[derive(Default)]
pub(super) struct Asm {
    code: Vec<u8>,
    labels: Vec<Option<usize>>,
    /// Positions in the code of distances to labels, which are filled in at the end.
    jumps: Vec<(usize, Label)>,
    /// Positions in the code of distances to the constants, which are filled in at the end.
    pool: Vec<usize>,
    /// True if vectors have 512 bits, else they have 256.
    wide: bool,
    /// The register whose value is in the mask register only; see `evex.rs`.
    unspread: Option<Reg>,
}

impl Asm {
    /// Creates an assembler without code, for vectors of 512 bits if `is_512_bit`, else of 256 bits.
    pub(super) fn new(is_512_bit: bool) -> Asm {
        Asm { wide: is_512_bit, ..Asm::default() }
    }
    /// Returns the length of a whole vector, as VEX and EVEX prefixes encode it.
    fn full_vector_length(&self) -> u8 {
        if self.wide { VECTOR_LENGTH_512 } else { VECTOR_LENGTH_256 }
    }
    fn half_vector_length(&self) -> u8 {
        self.full_vector_length() - 1
    }

    // ---- vectors

    pub(super) fn binary(&mut self, op: BinaryInstruction, to: Reg, a: Reg, b: Operand) {
        if self.wide && matches!(op, BinaryInstruction::GreaterInt | BinaryInstruction::EqualInt) {
            self.emit_deferred_mask();
            self.emit_full_vector(op as u32, COMPARE_MASK_REGISTER, a.0, b);
            return self.defer_mask_vector(to);
        }
        self.emit_full_vector(op as u32, to.0, a.0, b);
    }
    pub(super) fn unary(&mut self, op: UnaryInstruction, to: Reg, x: Operand) {
        self.emit_full_vector(op as u32, to.0, 0, x);
    }
    pub(super) fn fma(&mut self, form: FmaForm, to: Reg, a: Reg, b: Operand) {
        self.emit_full_vector(MAP_0F38 | PREFIX_66 | form as u32, to.0, a.0, b);
    }
    pub(super) fn compare(&mut self, predicate: Predicate, to: Reg, a: Reg, b: Operand) {
        self.emit_deferred_mask();
        self.emit_full_vector(MAP_0F | 0xc2, if self.wide { COMPARE_MASK_REGISTER } else { to.0 }, a.0, b);
        self.code.push(predicate as u8);
        if self.wide {
            self.defer_mask_vector(to);
        }
    }
    /// Sets `to = mask ? yes : no` in each element, by the sign bits of the mask.
    pub(super) fn blend(&mut self, to: Reg, mask: Reg, yes: Operand, no: Reg) {
        if self.wide {
            self.move_signs_to_mask(mask);
            return self.emit_evex(
                VECTOR_LENGTH_512,
                MERGE_MASKING | COMPARE_MASK_REGISTER,
                MAP_0F38 | PREFIX_66 | 0x65,
                to.0,
                no.0,
                yes,
            );
        }
        self.emit_full_vector(MAP_0F3A | PREFIX_66 | 0x4a, to.0, no.0, yes);
        self.code.push(mask.0 << 4);
    }
    /// Shifts 32-bit elements by a constant number of bits.
    pub(super) fn shift(&mut self, kind: ShiftKind, to: Reg, x: Reg, bits: u8) {
        // The opcode's extension takes the place of a register; the result is named by VEX.
        self.emit_full_vector(MAP_0F | PREFIX_66 | 0x72, kind as u8, to.0, Operand::Reg(x));
        self.code.push(bits);
    }
    /// Rotates 32-bit elements to the left (AVX-512VL).
    pub(super) fn rotate(&mut self, to: Reg, x: Reg, bits: u8) {
        // The opcode's extension takes the place of a register.
        self.emit_evex(self.full_vector_length(), 0, MAP_0F | PREFIX_66 | 0x72, 1, to.0, Operand::Reg(x));
        self.code.push(bits);
    }
    /// Rounds 32-bit floats to the nearest bfloat16, in half a register (AVX512-BF16 with AVX-512VL).
    pub(super) fn round_to_bf16(&mut self, to: Reg, x: Reg) {
        self.emit_evex(self.full_vector_length(), 0, MAP_0F38 | PREFIX_F3 | 0x72, to.0, 0, Operand::Reg(x));
    }
    pub(super) fn round(&mut self, mode: RoundingMode, to: Reg, x: Operand) {
        self.emit_full_vector(MAP_0F3A | PREFIX_66 | 0x08, to.0, 0, x);
        // Inexact results raise no exception.
        self.code.push(8 | mode as u8);
    }
    /// Converts 16-bit floats to 32 bits; `narrow_to_f16` converts back, to nearest even.
    pub(super) fn widen_f16(&mut self, to: Reg, from: Operand) {
        self.emit_full_vector(MAP_0F38 | PREFIX_66 | 0x13, to.0, 0, from);
    }
    pub(super) fn narrow_to_f16(&mut self, to: Operand, x: Reg) {
        self.emit_full_vector(MAP_0F3A | PREFIX_66 | 0x1d, x.0, 0, to);
        self.code.push(0);
    }
    pub(super) fn load(&mut self, to: Reg, from: Operand) {
        self.emit_full_vector(MAP_0F | 0x10, to.0, 0, from);
    }
    pub(super) fn store(&mut self, to: Mem, x: Reg) {
        self.emit_full_vector(MAP_0F | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// Stores the lower half of a register.
    pub(super) fn store_half(&mut self, to: Mem, x: Reg) {
        self.emit_sized_vector(self.half_vector_length(), MAP_0F | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// Stores past the caches; the address is a multiple of a vector's size.
    pub(super) fn store_nontemporal(&mut self, to: Mem, x: Reg) {
        self.emit_full_vector(MAP_0F | 0x2b, x.0, 0, Operand::Mem(to));
    }
    /// Stores the lower half past the caches; the address is a multiple of its size.
    pub(super) fn store_half_nontemporal(&mut self, to: Mem, x: Reg) {
        self.emit_sized_vector(self.half_vector_length(), MAP_0F | 0x2b, x.0, 0, Operand::Mem(to));
    }
    /// Loads an element of one or two bytes into one position of a vector, and leaves the others as they are.
    pub(super) fn insert_element(&mut self, element_bytes: usize, to: Reg, lane: u8, from: Mem) {
        let opcode = if element_bytes == 1 { MAP_0F3A | PREFIX_66 | 0x20 } else { MAP_0F | PREFIX_66 | 0xc4 };
        self.emit_sized_vector(VECTOR_LENGTH_128, opcode, to.0, to.0, Operand::Mem(from));
        self.code.push(lane);
    }
    pub(super) fn extract_element(&mut self, element_bytes: usize, to: Mem, x: Reg, lane: u8) {
        let opcode = if element_bytes == 1 { 0x14 } else { 0x15 };
        self.emit_sized_vector(VECTOR_LENGTH_128, MAP_0F3A | PREFIX_66 | opcode, x.0, 0, Operand::Mem(to));
        self.code.push(lane);
    }
    /// Loads one element to all elements of `to`.
    pub(super) fn broadcast(&mut self, to: Reg, from: Mem) {
        self.emit_full_vector(MAP_0F38 | PREFIX_66 | 0x18, to.0, 0, Operand::Mem(from));
    }
    /// Loads the elements whose sign bit is set in `mask` (with 512-bit vectors, in the mask register of the tail
    /// instead); others become 0 and are not read.
    pub(super) fn load_masked(&mut self, to: Reg, mask: Reg, from: Mem) {
        if self.wide {
            return self.load_tail(to, from);
        }
        self.emit_full_vector(MAP_0F38 | PREFIX_66 | 0x2c, to.0, mask.0, Operand::Mem(from));
    }
    pub(super) fn store_masked(&mut self, to: Mem, mask: Reg, x: Reg) {
        if self.wide {
            return self.store_tail(to, x);
        }
        self.emit_full_vector(MAP_0F38 | PREFIX_66 | 0x2e, x.0, mask.0, Operand::Mem(to));
    }
    /// Loads the first `count` 4-byte elements; others become 0. Returns false, writing nothing, if no instruction
    /// loads so many.
    ///
    /// Unlike after a masked store, a load after such a store gets its data without waiting for the cache.
    pub(super) fn load_first_elements(&mut self, count: usize, to: Reg, from: Mem) -> bool {
        self.move_first_elements(count, false, to, from)
    }
    /// Stores the first `count` 4-byte elements. Returns false, having written nothing, if no instruction stores so
    /// many.
    pub(super) fn store_first_elements(&mut self, count: usize, to: Mem, x: Reg) -> bool {
        self.move_first_elements(count, true, x, to)
    }
    fn move_first_elements(&mut self, count: usize, is_store: bool, x: Reg, at: Mem) -> bool {
        let moves = MAP_0F | 0x10 | u32::from(is_store);
        let (bits, opcode) = match count {
            1 => (VECTOR_LENGTH_128, PREFIX_F3 | moves),
            2 if !self.wide => {
                (VECTOR_LENGTH_128, if is_store { MAP_0F | PREFIX_66 | 0xd6 } else { MAP_0F | PREFIX_F3 | 0x7e })
            }
            4 => (VECTOR_LENGTH_128, moves),
            8 if self.wide => (VECTOR_LENGTH_256, moves),
            _ => return false,
        };
        self.emit_sized_vector(bits, opcode, x.0, 0, Operand::Mem(at));
        true
    }
    /// Copies the upper half of a register to the lower half of another.
    pub(super) fn extract_upper_half(&mut self, to: Reg, x: Reg) {
        self.emit_full_vector(MAP_0F3A | PREFIX_66 | if self.wide { 0x1b } else { 0x19 }, x.0, 0, Operand::Reg(to));
        self.code.push(1);
    }
    /// Permutes the four elements of the lowest 128 bits; `order` has two bits for each.
    pub(super) fn shuffle(&mut self, to: Reg, x: Reg, order: u8) {
        self.emit_sized_vector(VECTOR_LENGTH_128, MAP_0F | 0xc6, to.0, x.0, Operand::Reg(x));
        self.code.push(order);
    }
    /// Stores the first element.
    pub(super) fn store_single_element(&mut self, to: Mem, x: Reg) {
        self.emit_sized_vector(VECTOR_LENGTH_128, MAP_0F | PREFIX_F3 | 0x11, x.0, 0, Operand::Mem(to));
    }
    /// Stores the first quarter of a register: eight bytes, or sixteen.
    pub(super) fn store_quarter(&mut self, to: Mem, x: Reg) {
        let opcode = if self.wide { MAP_0F | 0x11 } else { MAP_0F | PREFIX_66 | 0xd6 };
        self.emit_sized_vector(VECTOR_LENGTH_128, opcode, x.0, 0, Operand::Mem(to));
    }
    /// Clears the upper halves of registers, before other code runs that may use SSE instructions.
    pub(super) fn zero_upper(&mut self) {
        self.code.extend([0xc5, 0xf8, 0x77]);
    }

    /// Writes an instruction on whole vectors. `opcode` includes the opcode map and the prefix; `reg` and `vvvv` are
    /// the first and second register, `rm` is the last operand.
    fn emit_full_vector(&mut self, opcode: u32, reg: u8, vvvv: u8, rm: Operand) {
        self.emit_sized_vector(self.full_vector_length(), opcode, reg, vvvv, rm);
    }
    /// Writes an instruction on vectors of a length as prefixes encode it; `reg` and `vvvv` are its first and second
    /// register.
    fn emit_sized_vector(&mut self, vector_length: u8, opcode: u32, reg: u8, vvvv: u8, rm: Operand) {
        if self.wide {
            return self.emit_evex(vector_length, 0, opcode, reg, vvvv, rm);
        }
        let (x, b) = match rm {
            Operand::Reg(r) => (0, r.0 >> 3),
            Operand::Mem(m) => (m.index.map_or(0, |i| i.0 as u8 >> 3), m.base as u8 >> 3),
        };
        let inverted = |bit: u8, at: u8| (bit ^ 1) << at;
        self.code.push(0xc4);
        self.code.push(inverted(reg >> 3, 7) | inverted(x, 6) | inverted(b, 5) | (opcode >> 16) as u8);
        self.code.push((!vvvv & 15) << 3 | vector_length << 2 | (opcode >> 8) as u8);
        self.code.push(opcode as u8);
        self.emit_modrm_operand(reg, rm);
    }
    fn emit_modrm_operand(&mut self, reg: u8, rm: Operand) {
        match rm {
            Operand::Reg(r) => self.code.push(0xc0 | (reg & 7) << 3 | r.0 & 7),
            Operand::Mem(m) => self.emit_address(reg, m),
        }
    }
    /// Writes the ModRM and SIB bytes and an offset of four bytes.
    fn emit_address(&mut self, reg: u8, m: Mem) {
        self.code.push(0x80 | (reg & 7) << 3 | 4);
        let (index, factor) = m.index.map_or((4, 1), |(r, factor)| (r as u8 & 7, factor));
        self.code.push((factor.trailing_zeros() as u8) << 6 | index << 3 | m.base as u8 & 7);
        self.code.extend(m.offset.to_le_bytes());
    }

    // ---- jumps

    pub(super) fn new_label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    pub(super) fn bind_label(&mut self, label: Label) {
        self.emit_deferred_mask();
        self.labels[label.0] = Some(self.code.len());
    }
    pub(super) fn jump_if(&mut self, condition: JumpCondition, label: Label) {
        self.emit_deferred_mask();
        self.code.extend([0x0f, condition as u8]);
        self.jumps.push((self.code.len(), label));
        self.code.extend([0; 4]);
    }

    /// Returns the machine code, followed by the constants at the next multiple of 64 bytes, with the relative offset
    /// of every jump and of every constant filled in.
    pub(super) fn finish(mut self, constants: &[u8]) -> Vec<u8> {
        let pool = self.code.len().next_multiple_of(64);
        let target = |label: Label| self.labels[label.0].expect("every label is placed");
        let jumps = self.jumps.iter().map(|&(at, label)| (at, target(label)));
        let distances: Vec<(usize, usize)> = jumps.chain(self.pool.iter().map(|&at| (at, pool))).collect();
        for (at, target) in distances {
            let distance = target as i32 - (at as i32 + 4);
            self.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.code.resize(pool, 0xcc);
        self.code.extend(constants);
        self.code
    }
}
