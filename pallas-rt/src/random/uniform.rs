//! Random bits, uniform numbers, and what is made by comparing these with a probability.
use super::lanes::{ElementwiseBuilder, VarResult};
use super::{Key, check_float, draw_array};
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
    draw_array(key, &[], shape, Loc::caller(), |lanes, key, _| match dtype {
        DType::U32 => lanes.random_bits(key),
        DType::U64 => lanes.random_bits_64(key),
        DType::U8 | DType::U16 => {
            let bits = lanes.random_bits(key)?;
            lanes.cast(bits, dtype)
        }
        _ => Err(Diag::new("dtype", At::Op, format!("`bits` of {dtype}"), "an unsigned type: u8, u16, u32 or u64")),
    })
}

/// Uniform numbers in [0, 1) of a floating-point type; `jax.random.uniform`.
#[track_caller]
#[must_use]
pub fn uniform(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw_array(key, &[], shape, Loc::caller(), |lanes, key, _| {
        check_float("uniform", dtype)?;
        unit_uniform(lanes, key, dtype)
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
    draw_array(key, &array_operands(&[&low, &high]), shape, Loc::caller(), |lanes, key, vars| {
        check_float("uniform_between", dtype)?;
        let vars = &mut vars.iter();
        let (low, high) = (lanes.float_operand(&low, vars, dtype)?, lanes.float_operand(&high, vars, dtype)?);
        uniform_in_range(lanes, key, dtype, low, high)
    })
}

/// True with probability `p`, a number or an array that stretches to the shape; `jax.random.bernoulli`.
#[track_caller]
#[must_use]
pub fn bernoulli(key: Key, p: impl Into<Operand>, shape: &[usize]) -> Array {
    let p = p.into();
    draw_array(key, &array_operands(&[&p]), shape, Loc::caller(), |lanes, key, vars| {
        let dtype = vars.first().map_or(DType::F32, |&v| lanes.graph.ty(v).dtype);
        check_float("bernoulli", dtype)?;
        let p = lanes.float_operand(&p, &mut vars.iter(), dtype)?;
        let u = unit_uniform(lanes, key, dtype)?;
        lanes.push_op(ScalarOp::Lt, &[u, p])
    })
}

/// -1 or 1, each with probability 1/2, of a number type; `jax.random.rademacher`.
#[track_caller]
#[must_use]
pub fn rademacher(key: Key, shape: &[usize], dtype: DType) -> Array {
    draw_array(key, &[], shape, Loc::caller(), |lanes, key, _| {
        if dtype == DType::Bool {
            return Err(Diag::new("dtype", At::Op, "`rademacher` of bool".into(), "a number type"));
        }
        let u = unit_uniform(lanes, key, DType::F32)?;
        let half = lanes.splat_number(DType::F32, 0.5);
        let is_low = lanes.push_op(ScalarOp::Lt, &[u, half])?;
        let (one, minus_one) = (lanes.splat_integer(dtype, 1), lanes.splat_integer(dtype, -1));
        lanes.push_op(ScalarOp::Select, &[is_low, one, minus_one])
    })
}

/// Returns the arrays among operands.
pub(super) fn array_operands<'a>(operands: &[&'a Operand]) -> Vec<&'a Array> {
    let array = |x: &&'a Operand| match x {
        Operand::Array(x) => Some(x),
        Operand::Float(_) | Operand::Int(_) | Operand::Bool(_) => None,
    };
    operands.iter().filter_map(array).collect()
}

/// Appends uniform numbers in [0, 1): random bits as the fraction of a float in [1, 2), minus 1.
///
/// 16-bit floats are cut out of f32, which holds them exactly.
pub(super) fn unit_uniform(lanes: &mut ElementwiseBuilder<'_>, key: [Var; 2], dtype: DType) -> VarResult {
    if dtype == DType::F64 {
        let bits = lanes.random_bits_64(key)?;
        let by = lanes.splat_integer(DType::U64, 12);
        let fraction = lanes.push_op(ScalarOp::Shr, &[bits, by])?;
        return float_from_fraction(lanes, fraction, DType::F64);
    }
    let bits = lanes.random_bits(key)?;
    let fraction = match dtype {
        // The upper 10 bits of the lower 16, and the upper 7 of the lower 8.
        DType::F16 => mask_and_shift(lanes, bits, 0xffc0, 7)?,
        DType::Bf16 => mask_and_shift(lanes, bits, 0xfe, 15)?,
        _ => {
            let by = lanes.splat_integer(DType::U32, 9);
            lanes.push_op(ScalarOp::Shr, &[bits, by])?
        }
    };
    let unit = float_from_fraction(lanes, fraction, DType::F32)?;
    lanes.cast(unit, dtype)
}

/// Appends the bits of u32 words that `mask` selects, shifted to the left by `left_shift` places.
fn mask_and_shift(lanes: &mut ElementwiseBuilder<'_>, bits: Var, mask: i64, left_shift: i64) -> VarResult {
    let mask = lanes.splat_integer(DType::U32, mask);
    let bits = lanes.push_op(ScalarOp::BitAnd, &[bits, mask])?;
    let by = lanes.splat_integer(DType::U32, left_shift);
    lanes.push_op(ScalarOp::Shl, &[bits, by])
}

/// Appends the float in [1, 2) with this fraction, minus 1.
fn float_from_fraction(lanes: &mut ElementwiseBuilder<'_>, fraction: Var, dtype: DType) -> VarResult {
    let (unsigned, one_bits) = match dtype {
        DType::F64 => (DType::U64, 1f64.to_bits() as i64),
        _ => (DType::U32, i64::from(1f32.to_bits())),
    };
    let one_bits = lanes.splat_integer(unsigned, one_bits);
    let bits = lanes.push_op(ScalarOp::BitOr, &[fraction, one_bits])?;
    let (x, one) = (lanes.bitcast(bits, dtype)?, lanes.splat_number(dtype, 1.0));
    lanes.push_op(ScalarOp::Sub, &[x, one])
}

/// Appends uniform numbers between two arrays. As in XLA's CPU backend, the product and the sum are fused for f32 and
/// f64, and both are rounded for 16-bit floats.
pub(super) fn uniform_in_range(
    lanes: &mut ElementwiseBuilder<'_>,
    key: [Var; 2],
    dtype: DType,
    low: Var,
    high: Var,
) -> VarResult {
    let unit = unit_uniform(lanes, key, dtype)?;
    let span = lanes.push_rounded_op(ScalarOp::Sub, &[high, low], dtype)?;
    let x = if matches!(dtype, DType::F16 | DType::Bf16) {
        let x = lanes.push_rounded_op(ScalarOp::Mul, &[unit, span], dtype)?;
        lanes.push_rounded_op(ScalarOp::Add, &[x, low], dtype)?
    } else {
        lanes.push_op(ScalarOp::Fma, &[unit, span, low])?
    };
    lanes.push_rounded_op(ScalarOp::Maximum, &[low, x], dtype)
}
