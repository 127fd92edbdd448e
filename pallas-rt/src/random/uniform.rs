//! Random bits, uniform numbers, and what is made by comparing these with a probability.
use super::lanes::{Lanes, Made};
use super::{Key, check_float, draw};
use crate::array::Array;
use crate::ops::Operand;
use pallas_graph::Var;
use pallas_ir::{At, DType, Diag, Loc, ScalarOp};

/// Random bits of an unsigned type: u8, u16, u32 or u64; `jax.random.bits`.
///
/// ```
/// use pallas_rt::{ir::DType, random};
/// let x = random::bits(random::key(1), &[2, 3], DType::U8);
/// assert_eq!(x.shape(), [2, 3]);
/// ```
#[track_caller]
#[must_use]
pub fn bits(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw(key, &[], shape, Loc::caller(), |lanes, key, _| match dtype {
        DType::U32 => lanes.bits(key),
        DType::U64 => lanes.long_bits(key),
        DType::U8 | DType::U16 => {
            let bits = lanes.bits(key)?;
            lanes.cast(bits, dtype)
        }
        _ => Err(Diag::new("dtype", At::Op, format!("`bits` of {dtype}"), "an unsigned type: u8, u16, u32 or u64")),
    })
}

/// Uniform numbers in [0, 1) of a floating-point type; `jax.random.uniform`.
#[track_caller]
#[must_use]
pub fn uniform(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw(key, &[], shape, Loc::caller(), |lanes, key, _| {
        check_float("uniform", dtype)?;
        unit(lanes, key, dtype)
    })
}

/// Uniform numbers in [low, high) of a floating-point type; bounds are numbers, or arrays that stretch to the shape;
/// `jax.random.uniform` with `minval` and `maxval`. As there, rounding may give `high`.
#[track_caller]
#[must_use]
pub fn uniform_between(
    key: Key,
    shape: &[usize],
    dtype: DType,
    low: impl Into<Operand>,
    high: impl Into<Operand>,
) -> Array {
    let (low, high) = (low.into(), high.into());
    draw(key, &arrays(&[&low, &high]), shape, Loc::caller(), |lanes, key, vars| {
        check_float("uniform_between", dtype)?;
        let vars = &mut vars.iter();
        let (low, high) = (lanes.float(&low, vars, dtype)?, lanes.float(&high, vars, dtype)?);
        between(lanes, key, dtype, low, high)
    })
}

/// True with probability `p`, a number or an array that stretches to the shape; `jax.random.bernoulli`.
#[track_caller]
#[must_use]
pub fn bernoulli(key: Key, p: impl Into<Operand>, shape: &[usize]) -> Array {
    let p = p.into();
    draw(key, &arrays(&[&p]), shape, Loc::caller(), |lanes, key, vars| {
        let dtype = vars.first().map_or(DType::F32, |&v| lanes.graph.ty(v).dtype);
        check_float("bernoulli", dtype)?;
        let p = lanes.float(&p, &mut vars.iter(), dtype)?;
        let u = unit(lanes, key, dtype)?;
        lanes.op(ScalarOp::Lt, &[u, p])
    })
}

/// -1 or 1, each with probability 1/2, of a number type; `jax.random.rademacher`.
#[track_caller]
#[must_use]
pub fn rademacher(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw(key, &[], shape, Loc::caller(), |lanes, key, _| {
        if dtype == DType::Bool {
            return Err(Diag::new("dtype", At::Op, "`rademacher` of bool".into(), "a number type"));
        }
        let u = unit(lanes, key, DType::F32)?;
        let half = lanes.number(DType::F32, 0.5);
        let is_low = lanes.op(ScalarOp::Lt, &[u, half])?;
        let (one, minus_one) = (lanes.integer(dtype, 1), lanes.integer(dtype, -1));
        lanes.op(ScalarOp::Select, &[is_low, one, minus_one])
    })
}

/// Returns the arrays among operands.
pub(super) fn arrays<'a>(operands: &[&'a Operand]) -> Vec<&'a Array> {
    let array = |x: &&'a Operand| match x {
        Operand::Array(x) => Some(x),
        Operand::Float(_) | Operand::Int(_) | Operand::Bool(_) => None,
    };
    operands.iter().filter_map(array).collect()
}

/// Appends uniform numbers in [0, 1): random bits as the fraction of a float in [1, 2), minus 1.
///
/// 16-bit floats are cut out of f32, which holds them exactly.
pub(super) fn unit(lanes: &mut Lanes<'_>, key: [Var; 2], dtype: DType) -> Made {
    if dtype == DType::F64 {
        let bits = lanes.long_bits(key)?;
        let by = lanes.integer(DType::U64, 12);
        let fraction = lanes.op(ScalarOp::Shr, &[bits, by])?;
        return from_one(lanes, fraction, DType::F64);
    }
    let bits = lanes.bits(key)?;
    let fraction = match dtype {
        // The upper 10 bits of the lower 16, and the upper 7 of the lower 8.
        DType::F16 => moved(lanes, bits, 0xffc0, 7)?,
        DType::Bf16 => moved(lanes, bits, 0xfe, 15)?,
        _ => {
            let by = lanes.integer(DType::U32, 9);
            lanes.op(ScalarOp::Shr, &[bits, by])?
        }
    };
    let unit = from_one(lanes, fraction, DType::F32)?;
    lanes.cast(unit, dtype)
}

/// Appends the bits that `mask` selects, shifted to the left by `by`.
fn moved(lanes: &mut Lanes<'_>, bits: Var, mask: i64, by: i64) -> Made {
    let mask = lanes.integer(DType::U32, mask);
    let bits = lanes.op(ScalarOp::BitAnd, &[bits, mask])?;
    let by = lanes.integer(DType::U32, by);
    lanes.op(ScalarOp::Shl, &[bits, by])
}

/// Appends the float in [1, 2) with this fraction, minus 1.
fn from_one(lanes: &mut Lanes<'_>, fraction: Var, dtype: DType) -> Made {
    let (unsigned, one_bits) = match dtype {
        DType::F64 => (DType::U64, 1f64.to_bits() as i64),
        _ => (DType::U32, i64::from(1f32.to_bits())),
    };
    let one_bits = lanes.integer(unsigned, one_bits);
    let bits = lanes.op(ScalarOp::BitOr, &[fraction, one_bits])?;
    let (x, one) = (lanes.bitcast(bits, dtype)?, lanes.number(dtype, 1.0));
    lanes.op(ScalarOp::Sub, &[x, one])
}

/// Appends uniform numbers between two arrays. As in XLA's CPU backend, the product and the sum are fused for f32 and
/// f64, and both are rounded for 16-bit floats.
pub(super) fn between(lanes: &mut Lanes<'_>, key: [Var; 2], dtype: DType, low: Var, high: Var) -> Made {
    let unit = unit(lanes, key, dtype)?;
    let span = lanes.rounded(ScalarOp::Sub, &[high, low], dtype)?;
    let x = if matches!(dtype, DType::F16 | DType::Bf16) {
        let x = lanes.rounded(ScalarOp::Mul, &[unit, span], dtype)?;
        lanes.rounded(ScalarOp::Add, &[x, low], dtype)?
    } else {
        lanes.op(ScalarOp::Fma, &[unit, span, low])?
    };
    lanes.rounded(ScalarOp::Maximum, &[low, x], dtype)
}
