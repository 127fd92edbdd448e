//! Uniform integers.
use super::lanes::{ElementwiseBuilder, VarResult};
use super::uniform::array_operands;
use super::{Key, draw_array};
use crate::array::Array;
use crate::ops::Operand;
use pallas_graph::Var;
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp};

/// Uniform integers in [low, high) of an integer type; bounds are integers, or integer arrays that stretch to the
/// shape; `jax.random.randint`.
///
/// Bounds outside of the type are moved to its ends, where `high` may be one more than its largest value. Where `high`
/// is not above `low`, the result is `low`. The remainder of twice as many random bits is taken, so the distribution is
/// slightly uneven unless the span is a power of two.
///
/// ```
/// use pallas_rt::{ir::DType, random};
/// let die = random::randint(random::key(3), &[100], 1, 7, DType::I32).to_vec::<i32>()?;
/// assert!(die.iter().all(|x| (1..=6).contains(x)) && (1..=6).all(|x| die.contains(&x)));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn randint(key: Key, shape: &[usize], low: impl Into<Operand>, high: impl Into<Operand>, dtype: DType) -> Array {
    let (low, high) = (low.into(), high.into());
    draw_array(key, &array_operands(&[&low, &high]), shape, Loc::caller(), |lanes, key, vars| {
        let Some(unsigned) = unsigned_dtype(dtype) else {
            return Err(Diag::new("dtype", At::Op, format!("`randint` of {dtype}"), "an integer type"));
        };
        // Narrow types are drawn as i32.
        let wide = if dtype.bytes() < 4 { DType::I32 } else { dtype };
        let unsigned = if dtype.bytes() < 4 { DType::U32 } else { unsigned };
        let limits = RandintTypes { dtype, wide, unsigned };
        let vars = &mut vars.iter();
        let IntegerRange { low, span, power } = match (&low, &high) {
            (Operand::Int(low), Operand::Int(high)) => limits.range_of_numbers(lanes, *low, *high),
            _ => limits.range_of_operands(lanes, &low, &high, vars)?,
        };
        let keys = lanes.split(key)?;
        let mut bits =
            |i: usize| if unsigned == DType::U64 { lanes.random_bits_64(keys[i]) } else { lanes.random_bits(keys[i]) };
        let [higher, lower] = [bits(0)?, bits(1)?];
        // (higher · 2^32 + lower) mod span; likewise for 64 bits.
        let higher = remainder(lanes, higher, span)?;
        let higher = lanes.push_op(ScalarOp::Mul, &[higher, power])?;
        let lower = remainder(lanes, lower, span)?;
        let offset = lanes.push_op(ScalarOp::Add, &[higher, lower])?;
        let offset = remainder(lanes, offset, span)?;
        let offset = lanes.cast(offset, wide)?;
        let x = lanes.push_op(ScalarOp::Add, &[low, offset])?;
        lanes.cast(x, dtype)
    })
}

/// Appends the remainder of unsigned integers; `a` where `b` is 0.
///
/// That of u32 is computed by way of f32, since CPUs have no vector instructions for integer division. The quotient of
/// floats has a relative error below 2^-20, on GPUs too. Made smaller by 2^-19, it is at most the integers' quotient,
/// and leaves at most `b + 2^14`. A second step leaves less than `2·b`.
pub(super) fn remainder(lanes: &mut ElementwiseBuilder<'_>, a: Var, b: Var) -> VarResult {
    if lanes.graph.ty(a).dtype != DType::U32 {
        return lanes.push_op(ScalarOp::Rem, &[a, b]);
    }
    let (less, divisor) = (lanes.splat_number(DType::F32, 1.0 - 2f64.powi(-19)), lanes.cast(b, DType::F32)?);
    let reciprocal = lanes.push_op(ScalarOp::Div, &[less, divisor])?;
    let mut rest = a;
    for _ in 0..2 {
        let float = lanes.cast(rest, DType::F32)?;
        let quotient = lanes.push_op(ScalarOp::Mul, &[float, reciprocal])?;
        let quotient = lanes.cast(quotient, DType::U32)?;
        let taken = lanes.push_op(ScalarOp::Mul, &[quotient, b])?;
        rest = lanes.push_op(ScalarOp::Sub, &[rest, taken])?;
    }
    let smaller = lanes.push_op(ScalarOp::Sub, &[rest, b])?;
    let is_large = lanes.push_op(ScalarOp::Ge, &[rest, b])?;
    let rest = lanes.push_op(ScalarOp::Select, &[is_large, smaller, rest])?;
    let zero = lanes.splat_integer(DType::U32, 0);
    let is_zero = lanes.push_op(ScalarOp::Eq, &[b, zero])?;
    lanes.push_op(ScalarOp::Select, &[is_zero, a, rest])
}

/// Returns the unsigned type with as many bits as an integer type; `None` for other types.
fn unsigned_dtype(dtype: DType) -> Option<DType> {
    match dtype {
        DType::I8 | DType::U8 => Some(DType::U8),
        DType::I16 | DType::U16 => Some(DType::U16),
        DType::I32 | DType::U32 => Some(DType::U32),
        DType::I64 | DType::U64 => Some(DType::U64),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::Bool => None,
    }
}

/// Returns the smallest and the largest value of an integer type.
fn integer_limits(dtype: DType) -> (i128, i128) {
    let value = |x: Literal| if dtype == DType::U64 { i128::from(x.bits) } else { i128::from(x.as_i64()) };
    (value(Literal::lowest(dtype)), value(Literal::highest(dtype)))
}

/// Element types of a draw of [`randint`]: that of the result, and those in which it is computed.
struct RandintTypes {
    dtype: DType,
    /// The type in which numbers are drawn, which has at least 32 bits.
    wide: DType,
    /// The unsigned type with as many bits as `wide`.
    unsigned: DType,
}

/// The range of the integers to draw.
struct IntegerRange {
    /// The smallest integer.
    low: Var,
    /// The number of integers in the range, modulo the number of all integers of the type.
    span: Var,
    /// The number of all integers of the type, modulo `span`.
    power: Var,
}

impl RandintTypes {
    /// Returns the range between two numbers, computed on the host.
    fn range_of_numbers(&self, lanes: &mut ElementwiseBuilder<'_>, low: i64, high: i64) -> IntegerRange {
        let (least, most) = integer_limits(self.dtype);
        let is_wide = self.dtype == self.wide;
        let low = i128::from(low).clamp(least, most);
        let beyond = is_wide && i128::from(high) > most;
        let high = i128::from(high).clamp(least, if is_wide { most } else { most + 1 });
        let (root, all) = (1 << (self.unsigned.bytes() * 4), 1 << (self.unsigned.bytes() * 8));
        let span = if high <= low { 1 } else { (high - low + i128::from(beyond)) % all };
        let rest = |x: i128| if span == 0 { x } else { x % span };
        let power = rest(rest(root) * rest(root) % all);
        let mut word = |x: i128| lanes.splat_integer(self.unsigned, x as i64);
        let (span, power) = (word(span), word(power));
        IntegerRange { low: lanes.splat_integer(self.wide, low as i64), span, power }
    }

    /// Appends the integers from `low` up to but without `high`, as a lower bound and a span, if at least one of both
    /// is an array; the arrays' variables are taken from `vars` in order.
    fn range_of_operands(
        &self,
        lanes: &mut ElementwiseBuilder<'_>,
        low: &Operand,
        high: &Operand,
        vars: &mut std::slice::Iter<'_, Var>,
    ) -> Result<IntegerRange, Diag> {
        let (low, _) = self.clamp_bound(lanes, low, vars, false)?;
        let (high, beyond) = self.clamp_bound(lanes, high, vars, true)?;
        let span = lanes.push_op(ScalarOp::Sub, &[high, low])?;
        let span = lanes.cast(span, self.unsigned)?;
        let (is_empty, one) = (lanes.push_op(ScalarOp::Le, &[high, low])?, lanes.splat_integer(self.unsigned, 1));
        let mut span = lanes.push_op(ScalarOp::Select, &[is_empty, one, span])?;
        if let Some(beyond) = beyond {
            let is_some = lanes.push_op(ScalarOp::Gt, &[high, low])?;
            let one_more = lanes.push_op(ScalarOp::BitAnd, &[beyond, is_some])?;
            let wider = lanes.push_op(ScalarOp::Add, &[span, one])?;
            span = lanes.push_op(ScalarOp::Select, &[one_more, wider, span])?;
        }
        // 2^32 is the square of 2^16; likewise for 64 bits.
        let root = lanes.splat_integer(self.unsigned, 1 << (self.unsigned.bytes() * 4));
        let root = remainder(lanes, root, span)?;
        let square = lanes.push_op(ScalarOp::Mul, &[root, root])?;
        Ok(IntegerRange { low, span, power: remainder(lanes, square, span)? })
    }

    /// Appends a bound (the upper one if `is_high`) at every element, clamped to the drawn type, whose upper bound may
    /// be one more than its largest value if it has fewer than 32 bits. Returns also truth values: true where the bound
    /// was above the largest value; `None` if it cannot be, and for types of fewer than 32 bits.
    fn clamp_bound(
        &self,
        lanes: &mut ElementwiseBuilder<'_>,
        x: &Operand,
        vars: &mut std::slice::Iter<'_, Var>,
        is_high: bool,
    ) -> Result<(Var, Option<Var>), Diag> {
        let (least, most) = integer_limits(self.dtype);
        let most = if self.dtype == self.wide || !is_high { most } else { most + 1 };
        let is_wide = self.dtype == self.wide;
        match x {
            Operand::Array(_) => {
                let mut v = *vars.next().expect("a variable for each array");
                let own = lanes.graph.ty(v).dtype;
                if unsigned_dtype(own).is_none() {
                    return Err(Diag::new(
                        "dtype",
                        At::Op,
                        format!("a bound of `randint` of {own}"),
                        "an integer array",
                    ));
                }
                v = lanes.broadcast(v)?;
                let (own_least, own_most) = integer_limits(own);
                let mut beyond = None;
                if own_most > most {
                    let limit = lanes.splat_integer(own, most as i64);
                    if is_wide {
                        beyond = Some(lanes.push_op(ScalarOp::Gt, &[v, limit])?);
                    }
                    v = lanes.push_op(ScalarOp::Minimum, &[v, limit])?;
                }
                if own_least < least {
                    let limit = lanes.splat_integer(own, least as i64);
                    v = lanes.push_op(ScalarOp::Maximum, &[v, limit])?;
                }
                Ok((lanes.cast(v, self.wide)?, beyond))
            }
            Operand::Int(x) => {
                let x = i128::from(*x);
                let v = lanes.splat_integer(self.wide, x.clamp(least, most) as i64);
                let beyond = is_wide && x > most;
                Ok((v, beyond.then(|| lanes.splat_integer(DType::Bool, 1))))
            }
            Operand::Float(x) => Err(non_integer_bound_diag(format!("{x:?}"))),
            Operand::Bool(x) => Err(non_integer_bound_diag(x.to_string())),
        }
    }
}

fn non_integer_bound_diag(x: String) -> Diag {
    Diag::new("dtype", At::Op, format!("the number {x} as a bound of `randint`"), "an integer or an integer array")
}
