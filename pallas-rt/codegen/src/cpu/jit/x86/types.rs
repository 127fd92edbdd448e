//! Element types in registers: conversions between them, and between registers and memory.
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

/// True if an element has the same representation in registers as in memory.
pub(super) fn in_four_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::U32)
}

/// True if elements are held as `f32` in registers.
fn as_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// True if machine code supports elements of less than four bytes.
pub(super) fn in_fewer_bytes(dtype: DType) -> bool {
    matches!(dtype, DType::Bool | DType::F16 | DType::Bf16 | DType::I8 | DType::U8)
}

/// A constant as registers hold it; `None` for types that they do not.
pub(super) fn held(x: Literal) -> Option<u32> {
    match x.dtype {
        DType::Bool => Some(if x.bits & 1 == 1 { !0 } else { 0 }),
        DType::F16 | DType::Bf16 => Some((x.as_f64() as f32).to_bits()),
        DType::I8 | DType::U8 => Some(x.as_i64() as u32),
        DType::F32 | DType::I32 | DType::U32 => Some(x.bits as u32),
        DType::F64 | DType::I16 | DType::U16 | DType::I64 | DType::U64 => None,
    }
}

/// The first elements of a vector, fewer than all and at least one.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) mask: Reg,
    /// Their number, and what is known of it.
    pub(super) count: Gpr,
    pub(super) exact: Option<usize>,
}

impl Writer {
    /// A conversion of elements.
    pub(super) fn cast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        use DType::{Bf16, Bool, F16, F32, I8, I32, U8, U32};
        match (from, to) {
            (a, b) if a == b => self.load(x),
            (I8 | U8 | I32 | U32, I32 | U32) | (F16 | Bf16, F32) => self.load(x),
            (I8 | U8 | I32, F32) => self.unary(Unary::IntToFloat, x),
            // They have the bits for it.
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
    /// The same bits as another type.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, x: Operand) -> Option<Reg> {
        (in_four_bytes(from) && in_four_bytes(to)).then(|| self.load(x))?
    }

    /// Both halves exactly, and rounded once when they are added.
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
    /// Cut off; what is too large becomes the largest, NaN becomes 0.
    fn signed_of_float(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let y = self.unary(Unary::FloatToInt, Operand::Reg(x))?;
        // The instruction gives the least for all of them; the largest are its other bits.
        let beyond = self.number(2_147_483_648.0);
        let above = self.compare(Predicate::GreaterEqual, Operand::Reg(x), beyond)?;
        self.update(Binary::Xor, y, Operand::Reg(above));
        self.asm.compare(Predicate::Ordered, above, x, Operand::Reg(x));
        self.update(Binary::And, y, Operand::Reg(above));
        self.free(above);
        self.release(x, loaded);
        Some(y)
    }
    /// Cut off; what is below 0 and NaN become 0, what is too large becomes the largest.
    fn unsigned_of_float(&mut self, x: Operand) -> Option<Reg> {
        let (zero, half, beyond) = (self.number(0.0), self.number(2_147_483_648.0), self.number(4_294_967_296.0));
        let x = self.binary(Binary::Max, x, zero)?;
        // The upper half is converted without its highest bit.
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
    /// Cut off, and held among the type's numbers; NaN becomes 0.
    fn byte_of_float(&mut self, to: DType, x: Operand) -> Option<Reg> {
        let y = self.signed_of_float(x)?;
        let (least, most) = if to == DType::I8 { (-128i32, 127) } else { (0, 255) };
        let (least, most) = (self.word(least as u32), self.word(most));
        self.update(Binary::MaxInt, y, least);
        self.update(Binary::MinInt, y, most);
        Some(y)
    }
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
    /// A 16-bit float of the type, in 32 bits.
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
            // To nearest even: half of the last place that stays, less one if that is even.
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

    /// A vector from memory, or a part of one.
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
    /// A wide vector of four-byte elements, read in halves.
    pub(super) fn load_halves(&mut self, from: Mem) -> Option<Reg> {
        let to = self.take()?;
        self.asm.load_halves(to, from);
        Some(to)
    }
    /// A vector to memory, past the caches where `streams`, at a multiple of eight elements; or a part of one.
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
    /// The elements of fewer than four bytes that are left of a row; the others are 0.
    fn load_narrow_tail(&mut self, dtype: DType, from: Mem) -> Option<Reg> {
        let x = self.take()?;
        match self.widening(dtype)? {
            Some(load) => self.asm.unary_masked(load, x, from),
            None => self.asm.widen_masked(x, from),
        }
        self.loaded(dtype, x);
        Some(x)
    }
    /// The first ones of them; the others are 0.
    fn load_narrow_part(&mut self, dtype: DType, from: Mem, part: Part) -> Option<Reg> {
        let half = self.take()?;
        self.update(Binary::Xor, half, Operand::Reg(half));
        let bytes = dtype.bytes();
        self.each_of(part, |asm, i| asm.insert(bytes, half, i as u8, after(from, i, bytes)));
        let x = self.widened(dtype, Operand::Reg(half))?;
        self.free(half);
        Some(x)
    }
    /// Instructions for each element of a part.
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
    /// From memory, or from the lower end of a register, to what registers hold.
    fn widened(&mut self, dtype: DType, from: Operand) -> Option<Reg> {
        let x = self.take()?;
        match self.widening(dtype)? {
            Some(load) => self.asm.unary(load, x, from),
            None => self.asm.widen(x, from),
        }
        self.loaded(dtype, x);
        Some(x)
    }
    /// The instruction that loads elements of fewer than four bytes; `Some(None)` if it is [`Asm::widen`].
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
    /// One of them, everywhere.
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
    /// From memory's bits in the lower end to what registers hold.
    fn loaded(&mut self, dtype: DType, x: Reg) {
        if dtype == DType::Bf16 {
            self.asm.shift(Shift::Left, x, x, 16);
        } else if dtype == DType::Bool {
            let zero = self.word(0);
            self.update(Binary::GreaterInt, x, zero);
        }
    }
    /// To memory, past the caches where `streams`: of elements of two bytes.
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
    /// The ones that are left of a row.
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
    /// Elements of fewer than four bytes but `f16`, each in the lowest bytes of its lane.
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
    /// The first ones.
    fn store_narrow_part(&mut self, dtype: DType, to: Mem, x: Reg, part: Part) -> Option<()> {
        let (packed, bytes) = (self.packed(dtype, x)?, dtype.bytes());
        self.each_of(part, |asm, i| asm.extract(bytes, after(to, i, bytes), packed, i as u8));
        self.free(packed);
        Some(())
    }
    /// The first one.
    pub(super) fn store_narrow_one(&mut self, dtype: DType, to: Mem, x: Reg) -> Option<()> {
        let packed = self.packed(dtype, x)?;
        self.asm.extract(dtype.bytes(), to, packed, 0);
        self.free(packed);
        Some(())
    }
    /// Elements of fewer than four bytes, side by side in the lower end of a register.
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

/// Memory that many elements after this.
fn after(m: Mem, elements: usize, bytes: usize) -> Mem {
    Mem { offset: m.offset + (elements * bytes) as i32, ..m }
}
