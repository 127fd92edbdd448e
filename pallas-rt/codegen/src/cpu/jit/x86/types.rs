//! Representation of element types in registers, conversions between types, and loads and stores of each type.
//!
//! ```text
//! f32, i32, u32    as they are
//! f16, bf16        the same number as f32
//! i8, u8           the same number as i32
//! bool             all bits of the element, or none
//! ```
#![warn(clippy::wildcard_enum_match_arm)]
use super::assembler::{
    Asm, BinaryInstruction, FmaForm, Gpr, JumpCondition, Mem, Operand, Predicate, Reg, ShiftKind, UnaryInstruction,
};
use super::vector::VectorWriter;
use pallas_ir::{DType, Literal};

/// Returns true for the 4-byte types that machine code supports, whose elements are the same in registers as in memory.
pub(super) fn is_four_byte_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::U32)
}

/// Returns true if elements are held as `f32` in registers.
fn is_held_as_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// Returns true if machine code supports the type and its elements have fewer than four bytes.
pub(super) fn is_narrow_type(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::F16 | DType::Bf16 | DType::I8 | DType::U8)
}

/// Returns a constant as registers hold it; `None` for types without a representation there.
pub(super) fn register_bits(x: Literal) -> Option<u32> {
    match x.dtype {
        DType::Bool => Some(if x.bits & 1 == 1 { !0 } else { 0 }),
        DType::F16 | DType::Bf16 => Some((x.as_f64() as f32).to_bits()),
        DType::I8 | DType::U8 => Some(x.as_i64() as u32),
        DType::F32 | DType::I32 | DType::U32 => Some(x.bits as u32),
        DType::F64 | DType::I16 | DType::U16 | DType::I64 | DType::U64 => None,
    }
}

/// Some elements at the start of a vector: fewer than all, at least one.
#[derive(Clone, Copy)]
pub(super) struct PartialVector {
    pub(super) mask: Reg,
    /// A register with their number, and the number itself if it is known when the code is written.
    pub(super) count: Gpr,
    pub(super) exact: Option<usize>,
}

impl VectorWriter {
    /// Writes the conversion of the elements of the vector `x` from one type to another, and returns the register of
    /// the result; `None` if machine code does not support the conversion.
    pub(super) fn cast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        use DType::{Bf16, Bool, F16, F32, I8, I32, U8, U32};
        match (from, to) {
            (a, b) if a == b => self.load(x),
            (I8 | U8 | I32 | U32, I32 | U32) | (F16 | Bf16, F32) => self.load(x),
            (I8 | U8 | I32, F32) => self.unary(UnaryInstruction::IntToFloat, x),
            // Every byte is a 16-bit float.
            (I8 | U8, F16 | Bf16) => self.unary(UnaryInstruction::IntToFloat, x),
            (U32, F32) => self.unsigned_to_float(x),
            (F32 | F16 | Bf16, F16 | Bf16) => self.round_to_16_bits(to, x),
            (F32 | F16 | Bf16, I32) => self.float_to_signed(x),
            (F32 | F16 | Bf16, U32) => self.float_to_unsigned(x),
            (F32 | F16 | Bf16, I8 | U8) => self.float_to_byte(to, x),
            (I8 | U8 | I32 | U32, I8 | U8) => self.integer_to_byte(to, x),
            (Bool, to) if is_four_byte_type(to) || is_narrow_type(to) => {
                let one = if is_held_as_f32(to) { self.float_constant(1.0) } else { self.word_constant(1) };
                self.binary(BinaryInstruction::And, x, one)
            }
            (from, Bool) if is_held_as_f32(from) => {
                let zero = self.float_constant(0.0);
                self.compare(Predicate::NotEqual, x, zero)
            }
            (I8 | U8 | I32 | U32, Bool) => {
                let (zero, ones) = (self.word_constant(0), self.word_constant(!0));
                let y = self.binary(BinaryInstruction::EqualInt, x, zero)?;
                self.binary_in_place(BinaryInstruction::Xor, y, ones);
                Some(y)
            }
            _ => None,
        }
    }
    /// Writes a load of the vector `x`, whose bits are reinterpreted as elements of the type `to`; `None` unless both
    /// types have four bytes.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        (is_four_byte_type(from) && is_four_byte_type(to)).then(|| self.load(x))?
    }

    /// Writes a cast of u32 to f32: both 16-bit halves are converted exactly, and rounded once when they are added.
    fn unsigned_to_float(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let high = self.allocate_register()?;
        self.asm.shift(ShiftKind::Right, high, x, 16);
        self.asm.unary(UnaryInstruction::IntToFloat, high, Operand::Reg(high));
        let lower = self.word_constant(0xffff);
        let y = self.binary(BinaryInstruction::And, Operand::Reg(x), lower)?;
        self.asm.unary(UnaryInstruction::IntToFloat, y, Operand::Reg(y));
        let place = self.float_constant(65_536.0);
        self.asm.fma(FmaForm::F231, y, high, place);
        self.free_register(high);
        self.free_if_loaded(x, loaded);
        Some(y)
    }
    /// Writes a cast of a float to i32: truncated; too large values become the largest or smallest i32, NaN becomes 0.
    fn float_to_signed(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let y = self.unary(UnaryInstruction::FloatToInt, Operand::Reg(x))?;
        // The instruction gives `i32::MIN` for all of these; its complement is `i32::MAX`.
        let beyond = self.float_constant(2_147_483_648.0);
        let above = self.compare(Predicate::GreaterEqual, Operand::Reg(x), beyond)?;
        self.binary_in_place(BinaryInstruction::Xor, y, Operand::Reg(above));
        self.asm.compare(Predicate::Ordered, above, x, Operand::Reg(x));
        self.binary_in_place(BinaryInstruction::And, y, Operand::Reg(above));
        self.free_register(above);
        self.free_if_loaded(x, loaded);
        Some(y)
    }
    /// Writes a cast of a float to u32: truncated; negative values and NaN become 0, too large ones the largest u32.
    fn float_to_unsigned(&mut self, x: Operand) -> Option<Reg> {
        let (zero, half, beyond) =
            (self.float_constant(0.0), self.float_constant(2_147_483_648.0), self.float_constant(4_294_967_296.0));
        let x = self.binary(BinaryInstruction::Max, x, zero)?;
        // Values from 2^31 on are converted without their highest bit.
        let upper = self.compare(Predicate::GreaterEqual, Operand::Reg(x), half)?;
        let less = self.binary(BinaryInstruction::And, Operand::Reg(upper), half)?;
        self.asm.binary(BinaryInstruction::Sub, less, x, Operand::Reg(less));
        self.asm.unary(UnaryInstruction::FloatToInt, less, Operand::Reg(less));
        self.asm.shift(ShiftKind::Left, upper, upper, 31);
        self.binary_in_place(BinaryInstruction::Xor, less, Operand::Reg(upper));
        self.asm.compare(Predicate::GreaterEqual, upper, x, beyond);
        self.binary_in_place(BinaryInstruction::Or, less, Operand::Reg(upper));
        [x, upper].into_iter().for_each(|r| self.free_register(r));
        Some(less)
    }
    /// Writes a cast of a float to a byte: truncated and clamped to the type's range; NaN becomes 0.
    fn float_to_byte(&mut self, to: DType, x: Operand) -> Option<Reg> {
        let y = self.float_to_signed(x)?;
        let (least, most) = if to == DType::I8 { (-128i32, 127) } else { (0, 255) };
        let (least, most) = (self.word_constant(least as u32), self.word_constant(most));
        self.binary_in_place(BinaryInstruction::MaxInt, y, least);
        self.binary_in_place(BinaryInstruction::MinInt, y, most);
        Some(y)
    }
    /// Writes a cast of an integer to a byte: the lowest byte, extended as the type `to` demands.
    fn integer_to_byte(&mut self, to: DType, x: Operand) -> Option<Reg> {
        if to == DType::U8 {
            let byte = self.word_constant(0xff);
            return self.binary(BinaryInstruction::And, x, byte);
        }
        let y = self.load(x)?;
        self.asm.shift(ShiftKind::Left, y, y, 24);
        self.asm.shift(ShiftKind::RightArithmetic, y, y, 24);
        Some(y)
    }
    /// Rounds f32 to the 16-bit float type, and returns it as registers hold it.
    pub(super) fn round_to_16_bits(&mut self, dtype: DType, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let y = self.allocate_register()?;
        if dtype == DType::F16 {
            self.asm.narrow_to_f16(Operand::Reg(y), x);
            self.asm.widen_f16(y, Operand::Reg(y));
        } else if self.beyond.rounds {
            self.asm.round_to_bf16(y, x);
            self.asm.unary(UnaryInstruction::WordsToInts, y, Operand::Reg(y));
            self.asm.shift(ShiftKind::Left, y, y, 16);
        } else {
            // To nearest even: adds half of the last bit that stays, less one if that bit is 0.
            self.asm.shift(ShiftKind::Right, y, x, 16);
            let (one, half, upper) =
                (self.word_constant(1), self.word_constant(0x7fff), self.word_constant(0xffff_0000));
            self.binary_in_place(BinaryInstruction::And, y, one);
            self.binary_in_place(BinaryInstruction::AddInt, y, half);
            self.binary_in_place(BinaryInstruction::AddInt, y, Operand::Reg(x));
            let quiet = self.word_constant(0x0040_0000);
            let nan = self.binary(BinaryInstruction::Or, Operand::Reg(x), quiet)?;
            let unordered = self.compare(Predicate::Unordered, Operand::Reg(x), Operand::Reg(x))?;
            self.asm.blend(y, unordered, Operand::Reg(nan), y);
            self.binary_in_place(BinaryInstruction::And, y, upper);
            [nan, unordered].into_iter().for_each(|r| self.free_register(r));
        }
        self.free_if_loaded(x, loaded);
        Some(y)
    }

    // ---- memory

    /// Loads a vector from memory, or only the elements at its start that `part` selects.
    pub(super) fn load_vector(&mut self, dtype: DType, from: Mem, part: Option<PartialVector>) -> Option<Reg> {
        match (is_narrow_type(dtype), part) {
            (true, None) => self.widen_elements(dtype, Operand::Mem(from)),
            (true, Some(_)) if self.beyond.wide => self.load_narrow_tail(dtype, from),
            (true, Some(part)) => self.load_narrow_part(dtype, from, part),
            (false, None) => self.load(Operand::Mem(from)),
            (false, Some(PartialVector { mask, exact, .. })) => {
                let to = self.allocate_register()?;
                if !exact.is_some_and(|n| self.asm.load_first_elements(n, to, from)) {
                    self.asm.load_masked(to, mask, from);
                }
                Some(to)
            }
        }
    }
    /// Loads a 64-byte vector of 4-byte elements by two loads of 32 bytes each, and returns its register.
    pub(super) fn load_in_halves(&mut self, from: Mem) -> Option<Reg> {
        let to = self.allocate_register()?;
        self.asm.load_in_halves(to, from);
        Some(to)
    }
    /// Stores the vector `x`, or only the elements at its start that `part` describes. If `is_nontemporal`, whole
    /// vectors bypass the caches, which requires an address that is a multiple of the size of eight elements.
    pub(super) fn store_vector(
        &mut self,
        dtype: DType,
        to: Mem,
        part: Option<PartialVector>,
        x: Reg,
        is_nontemporal: bool,
    ) -> Option<()> {
        match (is_narrow_type(dtype), part) {
            (true, None) => self.store_narrow(dtype, to, x, is_nontemporal)?,
            (true, Some(_)) if self.beyond.wide => self.store_narrow_tail(dtype, to, x)?,
            (true, Some(part)) => self.store_narrow_part(dtype, to, x, part)?,
            (false, Some(PartialVector { exact: Some(n), .. })) if self.asm.store_first_elements(n, to, x) => {}
            (false, Some(PartialVector { mask, .. })) => self.asm.store_masked(to, mask, x),
            (false, None) if is_nontemporal && self.beyond.wide => {
                let upper = self.allocate_register()?;
                self.asm.extract_upper_half(upper, x);
                self.asm.store_half_nontemporal(to, x);
                self.asm.store_half_nontemporal(offset_by_elements(to, 8, 4), upper);
                self.free_register(upper);
            }
            (false, None) if is_nontemporal => self.asm.store_nontemporal(to, x),
            (false, None) => self.asm.store(to, x),
        }
        Some(())
    }
    /// Loads the last elements of a row, of fewer than four bytes each, with the mask of the tail; others are 0.
    fn load_narrow_tail(&mut self, dtype: DType, from: Mem) -> Option<Reg> {
        let x = self.allocate_register()?;
        match self.widening_instruction(dtype)? {
            Some(load) => self.asm.unary_masked(load, x, from),
            None => self.asm.widen_f16_masked(x, from),
        }
        self.finish_narrow_load(dtype, x);
        Some(x)
    }
    /// Loads the elements at the start of a vector, of fewer than four bytes each, one by one; others are 0.
    fn load_narrow_part(&mut self, dtype: DType, from: Mem, part: PartialVector) -> Option<Reg> {
        let half = self.allocate_register()?;
        self.binary_in_place(BinaryInstruction::Xor, half, Operand::Reg(half));
        let bytes = dtype.bytes();
        self.emit_for_each_element(part, |asm, i| {
            asm.insert_element(bytes, half, i as u8, offset_by_elements(from, i, bytes))
        });
        let x = self.widen_elements(dtype, Operand::Reg(half))?;
        self.free_register(half);
        Some(x)
    }
    /// Writes instructions for each element of a part; `element` gets the element's number.
    fn emit_for_each_element(&mut self, part: PartialVector, element: impl Fn(&mut Asm, usize)) {
        if let Some(n) = part.exact {
            return (0..n).for_each(|i| element(&mut self.asm, i));
        }
        let done = self.asm.new_label();
        for i in 0..7 {
            if i > 0 {
                self.asm.compare_immediate(part.count, i as i8);
                self.asm.jump_if(JumpCondition::Equal, done);
            }
            element(&mut self.asm, i);
        }
        self.asm.bind_label(done);
    }
    /// Converts elements of fewer than four bytes, in memory or at the start of a register, to the form that registers
    /// hold.
    fn widen_elements(&mut self, dtype: DType, from: Operand) -> Option<Reg> {
        let x = self.allocate_register()?;
        match self.widening_instruction(dtype)? {
            Some(load) => self.asm.unary(load, x, from),
            None => self.asm.widen_f16(x, from),
        }
        self.finish_narrow_load(dtype, x);
        Some(x)
    }
    /// Returns the instruction that loads elements of fewer than four bytes as four bytes each: `Some(None)` for
    /// `f16`, which has one of its own, `None` for types without one.
    fn widening_instruction(&self, dtype: DType) -> Option<Option<UnaryInstruction>> {
        match dtype {
            DType::F16 => Some(None),
            DType::Bf16 => Some(Some(UnaryInstruction::WordsToInts)),
            DType::U8 => Some(Some(UnaryInstruction::BytesToUnsigned)),
            DType::Bool | DType::I8 => Some(Some(UnaryInstruction::BytesToInts)),
            DType::F32 | DType::F64 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                None
            }
        }
    }
    /// Loads one element of fewer than four bytes to all elements of a register.
    pub(super) fn broadcast_narrow(&mut self, dtype: DType, from: Mem) -> Option<Reg> {
        let load = if dtype.bytes() == 1 { UnaryInstruction::BroadcastByte } else { UnaryInstruction::BroadcastWord };
        let x = self.unary(load, Operand::Mem(from))?;
        match dtype {
            DType::F16 => self.asm.widen_f16(x, Operand::Reg(x)),
            DType::U8 => self.asm.shift(ShiftKind::Right, x, x, 24),
            DType::I8 => self.asm.shift(ShiftKind::RightArithmetic, x, x, 24),
            DType::Bf16 | DType::Bool => self.finish_narrow_load(dtype, x),
            DType::F32 | DType::F64 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                return None;
            }
        }
        Some(x)
    }
    /// Completes a load of narrow elements: converts their bits in memory, at the low end of each lane, to what
    /// registers hold.
    fn finish_narrow_load(&mut self, dtype: DType, x: Reg) {
        if dtype == DType::Bf16 {
            self.asm.shift(ShiftKind::Left, x, x, 16);
        } else if dtype == DType::Bool {
            let zero = self.word_constant(0);
            self.binary_in_place(BinaryInstruction::GreaterInt, x, zero);
        }
    }
    /// Stores a vector of elements of fewer than four bytes. With `is_nontemporal`, elements of two bytes bypass the
    /// caches; those of one byte are stored as usual.
    pub(super) fn store_narrow(&mut self, dtype: DType, to: Mem, x: Reg, is_nontemporal: bool) -> Option<()> {
        let packed = self.pack_narrow(dtype, x)?;
        match (dtype.bytes(), is_nontemporal) {
            (1, _) => self.asm.store_quarter(to, packed),
            (_, false) => self.asm.store_half(to, packed),
            (_, true) if self.beyond.wide => {
                let second = self.allocate_register()?;
                self.asm.extract_second_quarter(second, packed);
                self.asm.store_quarter_nontemporal(to, packed);
                self.asm.store_quarter_nontemporal(offset_by_elements(to, 8, 2), second);
                self.free_register(second);
            }
            (_, true) => self.asm.store_half_nontemporal(to, packed),
        }
        self.free_register(packed);
        Some(())
    }
    /// Stores the last elements of a row, of fewer than four bytes each, with the mask of the tail.
    fn store_narrow_tail(&mut self, dtype: DType, to: Mem, x: Reg) -> Option<()> {
        if dtype == DType::F16 {
            self.asm.narrow_to_f16_masked(to, x);
            return Some(());
        }
        let low = self.narrow_in_lanes(dtype, x)?;
        self.asm.truncate_elements_masked(dtype.bytes(), to, low);
        self.free_register(low);
        Some(())
    }
    /// Returns elements of fewer than four bytes, other than `f16`, as in memory, each in the lowest bytes of its
    /// lane.
    fn narrow_in_lanes(&mut self, dtype: DType, x: Reg) -> Option<Reg> {
        if dtype == DType::Bf16 {
            let low = self.allocate_register()?;
            self.asm.shift(ShiftKind::Right, low, x, 16);
            return Some(low);
        }
        if dtype == DType::Bool {
            let one = self.word_constant(1);
            return self.binary(BinaryInstruction::And, Operand::Reg(x), one);
        }
        self.load(Operand::Reg(x))
    }
    /// Stores the elements at the start of a vector, of fewer than four bytes each, one by one.
    fn store_narrow_part(&mut self, dtype: DType, to: Mem, x: Reg, part: PartialVector) -> Option<()> {
        let (packed, bytes) = (self.pack_narrow(dtype, x)?, dtype.bytes());
        self.emit_for_each_element(part, |asm, i| {
            asm.extract_element(bytes, offset_by_elements(to, i, bytes), packed, i as u8)
        });
        self.free_register(packed);
        Some(())
    }
    /// Stores the first element of a vector, of fewer than four bytes.
    pub(super) fn store_narrow_element(&mut self, dtype: DType, to: Mem, x: Reg) -> Option<()> {
        let packed = self.pack_narrow(dtype, x)?;
        self.asm.extract_element(dtype.bytes(), to, packed, 0);
        self.free_register(packed);
        Some(())
    }
    /// Returns elements of fewer than four bytes as in memory, adjacent at the low end of a register.
    fn pack_narrow(&mut self, dtype: DType, x: Reg) -> Option<Reg> {
        if self.beyond.wide && dtype != DType::F16 {
            let low = self.narrow_in_lanes(dtype, x)?;
            self.asm.truncate_elements(dtype.bytes(), Operand::Reg(low), low);
            return Some(low);
        }
        let low = self.allocate_register()?;
        if dtype == DType::F16 {
            self.asm.narrow_to_f16(Operand::Reg(low), x);
            return Some(low);
        }
        let high = self.allocate_register()?;
        if dtype == DType::Bf16 {
            self.asm.shift(ShiftKind::Right, low, x, 16);
            self.asm.extract_upper_half(high, low);
            self.asm.binary(BinaryInstruction::PackUnsignedWords, low, low, Operand::Reg(high));
        } else {
            self.asm.extract_upper_half(high, x);
            self.asm.binary(BinaryInstruction::PackWords, low, x, Operand::Reg(high));
            let pack =
                if dtype == DType::U8 { BinaryInstruction::PackUnsignedBytes } else { BinaryInstruction::PackBytes };
            self.asm.binary(pack, low, low, Operand::Reg(low));
            if dtype == DType::Bool {
                let ones = self.word_constant(0x0101_0101);
                self.binary_in_place(BinaryInstruction::And, low, ones);
            }
        }
        self.free_register(high);
        Some(low)
    }
}

/// Returns the memory operand for the position this many elements after `m`.
fn offset_by_elements(m: Mem, elements: usize, element_bytes: usize) -> Mem {
    Mem { offset: m.offset + (elements * element_bytes) as i32, ..m }
}
