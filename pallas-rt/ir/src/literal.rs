//! A constant of any element type, compared bit by bit.
#![warn(clippy::wildcard_enum_match_arm)]
use crate::dtype::{Bf16, DType, Half};
use std::fmt;

/// A constant: its type, and its bits as a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Literal {
    /// Type of the constant.
    pub dtype: DType,
    /// Bits of the element, zero-extended.
    pub bits: u64,
}

impl Literal {
    /// Creates `x` rounded to `dtype`; integers saturate as Rust's `as` does, `bool` is `x != 0`.
    pub fn new(dtype: DType, x: f64) -> Literal {
        let bits = match dtype {
            DType::F32 => u64::from((x as f32).to_bits()),
            DType::F64 => x.to_bits(),
            DType::F16 => u64::from(f16_bits(x)),
            DType::Bf16 => u64::from(Bf16::round(x as f32).to_bits()),
            DType::Bool => u64::from(x != 0.0),
            DType::I8 => u64::from(x as i8 as u8),
            DType::U8 => u64::from(x as u8),
            DType::I16 => u64::from(x as i16 as u16),
            DType::U16 => u64::from(x as u16),
            DType::I32 => u64::from(x as i32 as u32),
            DType::U32 => u64::from(x as u32),
            DType::I64 => x as i64 as u64,
            DType::U64 => x as u64,
        };
        Literal { dtype, bits }
    }
    /// Creates an integer, wrapped to the width of `dtype`; for a float type the nearest value.
    pub fn int(dtype: DType, x: i64) -> Literal {
        match dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::Bool => Literal::new(dtype, x as f64),
            DType::I8 | DType::U8 => Literal { dtype, bits: u64::from(x as u8) },
            DType::I16 | DType::U16 => Literal { dtype, bits: u64::from(x as u16) },
            DType::I32 | DType::U32 => Literal { dtype, bits: u64::from(x as u32) },
            DType::I64 | DType::U64 => Literal { dtype, bits: x as u64 },
        }
    }
    /// Creates a truth value.
    pub fn bool(x: bool) -> Literal {
        Literal { dtype: DType::Bool, bits: u64::from(x) }
    }
    /// The lowest value of a type: -inf, or the lowest integer.
    pub fn lowest(dtype: DType) -> Literal {
        // Saturating conversions give the bounds of integer types.
        Literal::new(dtype, if dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY })
    }
    /// The highest value of a type: inf, or the highest integer.
    pub fn highest(dtype: DType) -> Literal {
        Literal::new(dtype, f64::INFINITY)
    }
    /// The value of an integer type or `bool` with all bits set.
    pub fn ones(dtype: DType) -> Literal {
        Literal::int(dtype, -1)
    }
    /// Returns true if the bits are a value of the type: none beyond its width, and 0 or 1 for `bool`.
    pub fn is_canonical(self) -> bool {
        let width = if self.dtype == DType::Bool { 1 } else { 8 * self.dtype.bytes() };
        width == 64 || self.bits >> width == 0
    }
    /// The value as an f64: exact except for 64-bit integers beyond 2⁵³.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F64 => f64::from_bits(self.bits),
            DType::F16 => f16_value(self.bits as u16),
            DType::Bf16 => f64::from(f32::from_bits((self.bits as u32) << 16)),
            DType::Bool
            | DType::I8
            | DType::U8
            | DType::I16
            | DType::U16
            | DType::I32
            | DType::U32
            | DType::I64
            | DType::U64 => self.as_i64() as f64,
        }
    }
    /// The value as an integer; floats truncate.
    pub fn as_i64(self) -> i64 {
        match self.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => self.as_f64() as i64,
            DType::I8 => i64::from(self.bits as i8),
            DType::I16 => i64::from(self.bits as i16),
            DType::I32 => i64::from(self.bits as i32),
            DType::I64 | DType::U64 => self.bits as i64,
            DType::Bool | DType::U8 | DType::U16 | DType::U32 => self.bits as i64,
        }
    }
    /// The bytes of the element, as many as its type has.
    pub fn to_bytes(self) -> Vec<u8> {
        self.bits.to_le_bytes()[..self.dtype.bytes()].to_vec()
    }
}

/// Bits of the nearest binary16 number, ties to even, rounded once from the f64.
fn f16_bits(x: f64) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let a = x.abs();
    if a.is_nan() {
        return sign | 0x7e00;
    }
    // Units in the last place at this magnitude; 2^-24 in the subnormal range.
    let exponent = if a == 0.0 { -14 } else { ((a.to_bits() >> 52) as i32 - 1023).max(-14) };
    if exponent > 15 {
        return sign | 0x7c00;
    }
    let units = (a * 2f64.powi(10 - exponent)).round_ties_even() as u32;
    // `units` counts from the bottom of the binade (or from 0 when subnormal); a carry moves into the exponent field.
    let bits = if units < 1024 { units } else { (((exponent + 14) as u32) << 10) + units };
    sign | (bits.min(0x7c00) as u16)
}

/// Value of a binary16 number with these bits.
fn f16_value(bits: u16) -> f64 {
    let (e, m) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let a = match e {
        0 => m * 2f64.powi(-24),
        31 if m == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1024.0 + m) * 2f64.powi(e - 25),
    };
    if bits & 0x8000 != 0 { -a } else { a }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            DType::Bool => write!(f, "{}", self.bits != 0),
            DType::U64 => write!(f, "{}", self.bits),
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => {
                let x = self.as_f64();
                // A NaN's payload is part of the constant; everything else reads back from its shortest decimal.
                if x.is_nan() {
                    write!(f, "nan:{:x}", self.bits)
                } else if self.dtype == DType::F64 {
                    write!(f, "{x:?}")
                } else {
                    write!(f, "{:?}", x as f32)
                }
            }
            DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 => {
                write!(f, "{}", self.as_i64())
            }
        }
    }
}
impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}_{}", self.dtype)
    }
}

impl Literal {
    /// Parses the text that `Display` writes.
    pub fn parse(dtype: DType, text: &str) -> Option<Literal> {
        if let Some(bits) = text.strip_prefix("nan:") {
            let x = Literal { dtype, bits: u64::from_str_radix(bits, 16).ok()? };
            return (dtype.is_float() && x.is_canonical() && x.as_f64().is_nan()).then_some(x);
        }
        Some(match dtype {
            DType::Bool => Literal::bool(text.parse().ok()?),
            DType::U64 => Literal { dtype, bits: text.parse().ok()? },
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => Literal::new(dtype, text.parse().ok()?),
            DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 => {
                Literal::int(dtype, text.parse().ok()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn every_16_bit_float_survives() {
        for bits in 0..=u16::MAX {
            for dtype in [DType::F16, DType::Bf16] {
                let x = Literal { dtype, bits: u64::from(bits) };
                let back = Literal::parse(dtype, &x.to_string());
                assert_eq!(back, Some(x), "{bits:x}");
                if !x.as_f64().is_nan() {
                    assert_eq!(Literal::new(dtype, x.as_f64()), x, "{bits:x}");
                }
            }
        }
    }
    #[test]
    fn halves_round_once_and_to_even() {
        assert_eq!(Literal::new(DType::F16, 1.0 + 2f64.powi(-11)).as_f64(), 1.0);
        assert_eq!(Literal::new(DType::F16, 1.0 + 3.0 * 2f64.powi(-11)).as_f64(), 1.0 + 2f64.powi(-9));
        assert_eq!(Literal::new(DType::F16, 65520.0).as_f64(), f64::INFINITY);
        assert_eq!(Literal::new(DType::F16, 65519.0).as_f64(), 65504.0);
        assert_eq!(Literal::int(DType::I8, 200).as_i64(), -56);
    }
}
