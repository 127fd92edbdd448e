//! Representation of element types in registers, conversions between types, and loads and stores of each type.
//!
//! ```text
//! f32, i32, u32    as they are
//! f16, bf16        the same number as f32
//! i8, u8           the same number as i32
//! bool             all bits of the element, or none
//! ```
#![warn(clippy::wildcard_enum_match_arm)]
use super::asm::{Asm, Binary, Fma, Gpr, Jump, Mem, Operand, Predicate, Reg, Shift, Unary};
use super::vector::Writer;
use pallas_ir::{DType, Literal};

/// Returns true if an element has the same representation in registers as in memory.
pub(super) fn in_four_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::U32)
}

/// Returns true if elements are held as `f32` in registers.
fn as_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// Returns true if machine code supports the type and its elements have fewer than four bytes.
pub(super) fn in_fewer_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::F16 | DType::Bf16 | DType::I8 | DType::U8)
}

/// Returns a constant as registers hold it; `None` for types without a representation there.
pub(super) fn held(x: Literal) -> Option<u32> {
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
pub(super) struct Part {
    pub(super) mask: Reg,
    /// A register with their number, and the number itself if it is known when the code is written.
    pub(super) count: Gpr,
    pub(super) exact: Option<usize>,
}

impl Writer {
    /// Writes a cast of elements.
    pub(super) fn cast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        use DType::{Bf16, Bool, F16, F32, I8, I32, U8, U32};
        match (from, to) {
            (a, b) if a == b => self.load(x),
            (I8 | U8 | I32 | U32, I32 | U32) | (F16 | Bf16, F32) => self.load(x),
            (I8 | U8 | I32, F32) => self.unary(Unary::IntToFloat, x),
            // Every byte is a 16-bit float.
            (I8 | U8, F16 | Bf16) => self.unary(Unary::IntToFloat, x),
            (U32, F32) => self.float_of_unsigned(x),
            (F32 | F16 | Bf16, F16 | Bf16) => self.rounded(to, x),
            (F32 | F16 | Bf16, I32) => self.signed_of_float(x),
            (F32 | F16 | Bf16, U32) => self.unsigned_of_float(x),
            (F32 | F16 | Bf16, I8 | U8) => self.byte_of_float(to, x),
            (I8 | U8 | I32 | U32, I8 | U8) => self.lowest_byte(to, x),
            (Bool, to) if in_four_bytes(to) || in_fewer_bytes(to) => {
                let one = if as_float(to) { self.number(1.0) } else { self.word(1) };
                self.binary(Binary::And, x, one)
            }
            (from, Bool) if as_float(from) => {
                let zero = self.number(0.0);
                self.compare(Predicate::NotEqual, x, zero)
            }
            (I8 | U8 | I32 | U32, Bool) => {
                let (zero, ones) = (self.word(0), self.word(!0));
                let y = self.binary(Binary::EqualInt, x, zero)?;
                self.update(Binary::Xor, y, ones);
                Some(y)
            }
            _ => None,
        }
    }
    /// Writes a bitcast.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        (in_four_bytes(from) && in_four_bytes(to)).then(|| self.load(x))?
    }

    /// Writes a cast of u32 to f32: both 16-bit halves are converted exactly, and rounded once when they are added.
    fn float_of_unsigned(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let high = self.take()?;
        self.asm.shift(Shift::Right, high, x, 16);
        self.asm.unary(Unary::IntToFloat, high, Operand::Reg(high));
        let lower = self.word(0xffff);
        let y = self.binary(Binary::And, Operand::Reg(x), lower)?;
        self.asm.unary(Unary::IntToFloat, y, Operand::Reg(y));
        let place = self.number(65_536.0);
        self.asm.fma(Fma::F231, y, high, place);
        self.free(high);
        self.release(x, loaded);
        Some(y)
    }
    /// Writes a cast of a float to i32: truncated; too large values become the largest or smallest i32, NaN becomes 0.
    fn signed_of_float(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let y = self.unary(Unary::FloatToInt, Operand::Reg(x))?;
        // The instruction gives `i32::MIN` for all of these; its complement is `i32::MAX`.
        let beyond = self.number(2_147_483_648.0);
        let above = self.compare(Predicate::GreaterEqual, Operand::Reg(x), beyond)?;
        self.update(Binary::Xor, y, Operand::Reg(above));
        self.asm.compare(Predicate::Ordered, above, x, Operand::Reg(x));
        self.update(Binary::And, y, Operand::Reg(above));
        self.free(above);
        self.release(x, loaded);
        Some(y)
    }
    /// Writes a cast of a float to u32: truncated; negative values and NaN become 0, too large ones the largest u32.
    fn unsigned_of_float(&mut self, x: Operand) -> Option<Reg> {
        let (zero, half, beyond) = (self.number(0.0), self.number(2_147_483_648.0), self.number(4_294_967_296.0));
        let x = self.binary(Binary::Max, x, zero)?;
        // Values from 2^31 on are converted without their highest bit.
        let upper = self.compare(Predicate::GreaterEqual, Operand::Reg(x), half)?;
        let less = self.binary(Binary::And, Operand::Reg(upper), half)?;
        self.asm.binary(Binary::Sub, less, x, Operand::Reg(less));
        self.asm.unary(Unary::FloatToInt, less, Operand::Reg(less));
        self.asm.shift(Shift::Left, upper, upper, 31);
        self.update(Binary::Xor, less, Operand::Reg(upper));
        self.asm.compare(Predicate::GreaterEqual, upper, x, beyond);
        self.update(Binary::Or, less, Operand::Reg(upper));
        [x, upper].into_iter().for_each(|r| self.free(r));
        Some(less)
    }
    /// Writes a cast of a float to a byte: truncated and clamped to the type's range; NaN becomes 0.
    fn byte_of_float(&mut self, to: DType, x: Operand) -> Option<Reg> {
        let y = self.signed_of_float(x)?;
        let (least, most) = if to == DType::I8 { (-128i32, 127) } else { (0, 255) };
        let (least, most) = (self.word(least as u32), self.word(most));
        self.update(Binary::MaxInt, y, least);
        self.update(Binary::MinInt, y, most);
        Some(y)
    }
    /// Writes a cast of an integer to a byte: the lowest byte, extended as the type `to` demands.
    fn lowest_byte(&mut self, to: DType, x: Operand) -> Option<Reg> {
        if to == DType::U8 {
            let byte = self.word(0xff);
            return self.binary(Binary::And, x, byte);
        }
        let y = self.load(x)?;
        self.asm.shift(Shift::Left, y, y, 24);
        self.asm.shift(Shift::Sign, y, y, 24);
        Some(y)
    }
    /// Rounds f32 to the 16-bit float type, and returns it as registers hold it.
    pub(super) fn rounded(&mut self, dtype: DType, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let y = self.take()?;
        if dtype == DType::F16 {
            self.asm.narrow(Operand::Reg(y), x);
            self.asm.widen(y, Operand::Reg(y));
        } else if self.beyond.rounds {
            self.asm.round_to_bf16(y, x);
            self.asm.unary(Unary::WordsToInts, y, Operand::Reg(y));
            self.asm.shift(Shift::Left, y, y, 16);
        } else {
            // To nearest even: adds half of the last bit that stays, less one if that bit is 0.
            self.asm.shift(Shift::Right, y, x, 16);
            let (one, half, upper) = (self.word(1), self.word(0x7fff), self.word(0xffff_0000));
            self.update(Binary::And, y, one);
            self.update(Binary::AddInt, y, half);
            self.update(Binary::AddInt, y, Operand::Reg(x));
            let quiet = self.word(0x0040_0000);
            let nan = self.binary(Binary::Or, Operand::Reg(x), quiet)?;
            let unordered = self.compare(Predicate::Unordered, Operand::Reg(x), Operand::Reg(x))?;
            self.asm.blend(y, unordered, Operand::Reg(nan), y);
            self.update(Binary::And, y, upper);
            [nan, unordered].into_iter().for_each(|r| self.free(r));
        }
        self.release(x, loaded);
        Some(y)
    }

    // ---- memory

    /// Loads a vector, or the elements at its start, from memory.
    pub(super) fn load_vector(&mut self, dtype: DType, from: Mem, part: Option<Part>) -> Option<Reg> {
        match (in_fewer_bytes(dtype), part) {
            (true, None) => self.widened(dtype, Operand::Mem(from)),
            (true, Some(_)) if self.beyond.wide => self.load_narrow_tail(dtype, from),
            (true, Some(part)) => self.load_narrow_part(dtype, from, part),
            (false, None) => self.load(Operand::Mem(from)),
            (false, Some(Part { mask, exact, .. })) => {
                let to = self.take()?;
                if !exact.is_some_and(|n| self.asm.load_first(n, to, from)) {
                    self.asm.load_masked(to, mask, from);
                }
                Some(to)
            }
        }
    }
    /// Loads a wide vector of 4-byte elements in halves.
    pub(super) fn load_halves(&mut self, from: Mem) -> Option<Reg> {
        let to = self.take()?;
        self.asm.load_halves(to, from);
        Some(to)
    }
    /// Stores a vector, or the elements at its start. With `streams`, it is stored past the caches, at a multiple of
    /// eight elements.
    pub(super) fn store_vector(
        &mut self,
        dtype: DType,
        to: Mem,
        part: Option<Part>,
        x: Reg,
        streams: bool,
    ) -> Option<()> {
        match (in_fewer_bytes(dtype), part) {
            (true, None) => self.store_narrow(dtype, to, x, streams)?,
            (true, Some(_)) if self.beyond.wide => self.store_narrow_tail(dtype, to, x)?,
            (true, Some(part)) => self.store_narrow_part(dtype, to, x, part)?,
            (false, Some(Part { exact: Some(n), .. })) if self.asm.store_first(n, to, x) => {}
            (false, Some(Part { mask, .. })) => self.asm.store_masked(to, mask, x),
            (false, None) if streams && self.beyond.wide => {
                let upper = self.take()?;
                self.asm.upper(upper, x);
                self.asm.stream_half(to, x);
                self.asm.stream_half(after(to, 8, 4), upper);
                self.free(upper);
            }
            (false, None) if streams => self.asm.stream(to, x),
            (false, None) => self.asm.store(to, x),
        }
        Some(())
    }
    /// Loads the last elements of a row, of fewer than four bytes each, with the mask of the tail; others are 0.
    fn load_narrow_tail(&mut self, dtype: DType, from: Mem) -> Option<Reg> {
        let x = self.take()?;
        match self.widening(dtype)? {
            Some(load) => self.asm.unary_masked(load, x, from),
            None => self.asm.widen_masked(x, from),
        }
        self.loaded(dtype, x);
        Some(x)
    }
    /// Loads the elements at the start of a vector, of fewer than four bytes each, one by one; others are 0.
    fn load_narrow_part(&mut self, dtype: DType, from: Mem, part: Part) -> Option<Reg> {
        let half = self.take()?;
        self.update(Binary::Xor, half, Operand::Reg(half));
        let bytes = dtype.bytes();
        self.each_of(part, |asm, i| asm.insert(bytes, half, i as u8, after(from, i, bytes)));
        let x = self.widened(dtype, Operand::Reg(half))?;
        self.free(half);
        Some(x)
    }
    /// Writes instructions for each element of a part; `element` gets the element's number.
    fn each_of(&mut self, part: Part, element: impl Fn(&mut Asm, usize)) {
        if let Some(n) = part.exact {
            return (0..n).for_each(|i| element(&mut self.asm, i));
        }
        let done = self.asm.label();
        for i in 0..7 {
            if i > 0 {
                self.asm.compare_number(part.count, i as i8);
                self.asm.jump_if(Jump::Equal, done);
            }
            element(&mut self.asm, i);
        }
        self.asm.here(done);
    }
    /// Converts elements of fewer than four bytes, in memory or at the start of a register, to the form that registers
    /// hold.
    fn widened(&mut self, dtype: DType, from: Operand) -> Option<Reg> {
        let x = self.take()?;
        match self.widening(dtype)? {
            Some(load) => self.asm.unary(load, x, from),
            None => self.asm.widen(x, from),
        }
        self.loaded(dtype, x);
        Some(x)
    }
    /// Returns the instruction that loads elements of fewer than four bytes: `Some(None)` if it is [`Asm::widen`],
    /// `None` for other types.
    fn widening(&self, dtype: DType) -> Option<Option<Unary>> {
        match dtype {
            DType::F16 => Some(None),
            DType::Bf16 => Some(Some(Unary::WordsToInts)),
            DType::U8 => Some(Some(Unary::BytesToUnsigned)),
            DType::Bool | DType::I8 => Some(Some(Unary::BytesToInts)),
            DType::F32 | DType::F64 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                None
            }
        }
    }
    /// Loads one element of fewer than four bytes to all elements of a register.
    pub(super) fn broadcast_narrow(&mut self, dtype: DType, from: Mem) -> Option<Reg> {
        let load = if dtype.bytes() == 1 { Unary::Byte } else { Unary::Word };
        let x = self.unary(load, Operand::Mem(from))?;
        match dtype {
            DType::F16 => self.asm.widen(x, Operand::Reg(x)),
            DType::U8 => self.asm.shift(Shift::Right, x, x, 24),
            DType::I8 => self.asm.shift(Shift::Sign, x, x, 24),
            DType::Bf16 | DType::Bool => self.loaded(dtype, x),
            DType::F32 | DType::F64 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                return None;
            }
        }
        Some(x)
    }
    /// Completes a load of narrow elements: converts their bits in memory, at the low end of each lane, to what
    /// registers hold.
    fn loaded(&mut self, dtype: DType, x: Reg) {
        if dtype == DType::Bf16 {
            self.asm.shift(Shift::Left, x, x, 16);
        } else if dtype == DType::Bool {
            let zero = self.word(0);
            self.update(Binary::GreaterInt, x, zero);
        }
    }
    /// Stores a vector of elements of fewer than four bytes; with `streams`, those of two bytes are stored past the
    /// caches.
    pub(super) fn store_narrow(&mut self, dtype: DType, to: Mem, x: Reg, streams: bool) -> Option<()> {
        let packed = self.packed(dtype, x)?;
        match (dtype.bytes(), streams) {
            (1, _) => self.asm.store_quarter(to, packed),
            (_, false) => self.asm.store_half(to, packed),
            (_, true) if self.beyond.wide => {
                let second = self.take()?;
                self.asm.second_quarter(second, packed);
                self.asm.stream_quarter(to, packed);
                self.asm.stream_quarter(after(to, 8, 2), second);
                self.free(second);
            }
            (_, true) => self.asm.stream_half(to, packed),
        }
        self.free(packed);
        Some(())
    }
    /// Stores the last elements of a row, of fewer than four bytes each, with the mask of the tail.
    fn store_narrow_tail(&mut self, dtype: DType, to: Mem, x: Reg) -> Option<()> {
        if dtype == DType::F16 {
            self.asm.narrow_masked(to, x);
            return Some(());
        }
        let low = self.lowered(dtype, x)?;
        self.asm.cut_masked(dtype.bytes(), to, low);
        self.free(low);
        Some(())
    }
    /// Returns elements of fewer than four bytes, other than `f16`, as in memory, each in the lowest bytes of its
    /// lane.
    fn lowered(&mut self, dtype: DType, x: Reg) -> Option<Reg> {
        if dtype == DType::Bf16 {
            let low = self.take()?;
            self.asm.shift(Shift::Right, low, x, 16);
            return Some(low);
        }
        if dtype == DType::Bool {
            let one = self.word(1);
            return self.binary(Binary::And, Operand::Reg(x), one);
        }
        self.load(Operand::Reg(x))
    }
    /// Stores the elements at the start of a vector, of fewer than four bytes each, one by one.
    fn store_narrow_part(&mut self, dtype: DType, to: Mem, x: Reg, part: Part) -> Option<()> {
        let (packed, bytes) = (self.packed(dtype, x)?, dtype.bytes());
        self.each_of(part, |asm, i| asm.extract(bytes, after(to, i, bytes), packed, i as u8));
        self.free(packed);
        Some(())
    }
    /// Stores the first element of a vector, of fewer than four bytes.
    pub(super) fn store_narrow_one(&mut self, dtype: DType, to: Mem, x: Reg) -> Option<()> {
        let packed = self.packed(dtype, x)?;
        self.asm.extract(dtype.bytes(), to, packed, 0);
        self.free(packed);
        Some(())
    }
    /// Returns elements of fewer than four bytes as in memory, adjacent at the low end of a register.
    fn packed(&mut self, dtype: DType, x: Reg) -> Option<Reg> {
        if self.beyond.wide && dtype != DType::F16 {
            let low = self.lowered(dtype, x)?;
            self.asm.cut(dtype.bytes(), Operand::Reg(low), low);
            return Some(low);
        }
        let low = self.take()?;
        if dtype == DType::F16 {
            self.asm.narrow(Operand::Reg(low), x);
            return Some(low);
        }
        let high = self.take()?;
        if dtype == DType::Bf16 {
            self.asm.shift(Shift::Right, low, x, 16);
            self.asm.upper(high, low);
            self.asm.binary(Binary::PackUnsigned, low, low, Operand::Reg(high));
        } else {
            self.asm.upper(high, x);
            self.asm.binary(Binary::PackWords, low, x, Operand::Reg(high));
            let pack = if dtype == DType::U8 { Binary::PackUnsignedBytes } else { Binary::PackBytes };
            self.asm.binary(pack, low, low, Operand::Reg(low));
            if dtype == DType::Bool {
                let ones = self.word(0x0101_0101);
                self.update(Binary::And, low, ones);
            }
        }
        self.free(high);
        Some(low)
    }
}

/// Returns the memory operand for the position this many elements after `m`.
fn after(m: Mem, elements: usize, bytes: usize) -> Mem {
    Mem { offset: m.offset + (elements * bytes) as i32, ..m }
}
