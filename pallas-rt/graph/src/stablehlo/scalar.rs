//! Translation of elementwise operations to StableHLO.
use super::operation::{HloAttributes, HloValue};
use super::writer::HloWriter;
use pallas_ir::{DType, Literal, ScalarOp, Type};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

/// Appends an elementwise operation; returns its result. One that StableHLO lacks becomes a formula; `erf` and `erfc`
/// are operations of CHLO, a dialect that comes with StableHLO.
pub(super) fn emit_scalar(w: &mut HloWriter, op: ScalarOp, args: &[HloValue]) -> HloValue {
    use ScalarOp::*;
    let x = &args[0];
    let second = args.get(1);
    let y = || second.expect("the operation takes two operands");
    match op {
        Add => w.emit_binary("add", x, y()),
        Sub => w.emit_binary("subtract", x, y()),
        Mul => w.emit_binary("multiply", x, y()),
        Div => w.emit_binary("divide", x, y()),
        Rem => w.emit_binary("remainder", x, y()),
        Pow => w.emit_binary("power", x, y()),
        Minimum => w.emit_binary("minimum", x, y()),
        Maximum => w.emit_binary("maximum", x, y()),
        Atan2 => w.emit_binary("atan2", x, y()),
        BitAnd => w.emit_binary("and", x, y()),
        BitOr => w.emit_binary("or", x, y()),
        BitXor => w.emit_binary("xor", x, y()),
        Shl => w.emit_binary("shift_left", x, y()),
        Shr if x.ty.dtype.is_signed() => w.emit_binary("shift_right_arithmetic", x, y()),
        Shr => w.emit_binary("shift_right_logical", x, y()),
        Lt => w.emit_comparison("LT", x, y()),
        Le => w.emit_comparison("LE", x, y()),
        Gt => w.emit_comparison("GT", x, y()),
        Ge => w.emit_comparison("GE", x, y()),
        Eq => w.emit_comparison("EQ", x, y()),
        Ne => w.emit_comparison("NE", x, y()),
        IsNan => w.emit_comparison("NE", x, x),
        IsFinite => w.emit_op("is_finite", &[x], HloAttributes::None, Type::new(DType::Bool, &x.ty.shape[..])),
        Select => w.emit_select(x, y(), &args[2]),
        Clamp => emit_clamp(w, x, y(), &args[2]),
        Fma => {
            let product = w.emit_binary("multiply", x, y());
            w.emit_binary("add", &product, &args[2])
        }
        Neg => w.emit_unary("negate", x),
        Abs => w.emit_unary("abs", x),
        Exp => w.emit_unary("exponential", x),
        Log => w.emit_unary("log", x),
        Tanh => w.emit_unary("tanh", x),
        Sqrt => w.emit_unary("sqrt", x),
        Rsqrt => w.emit_unary("rsqrt", x),
        Floor => w.emit_unary("floor", x),
        Ceil => w.emit_unary("ceil", x),
        Round => w.emit_unary("round_nearest_even", x),
        Sin => w.emit_unary("sine", x),
        Cos => w.emit_unary("cosine", x),
        Tan => w.emit_unary("tan", x),
        Log1p => w.emit_unary("log_plus_one", x),
        Expm1 => w.emit_unary("exponential_minus_one", x),
        Logistic => w.emit_unary("logistic", x),
        Sign => w.emit_unary("sign", x),
        Not => w.emit_unary("not", x),
        CountOnes => w.emit_unary("popcnt", x),
        ToBits => w.emit_op("bitcast_convert", &[x], HloAttributes::None, Type::new(DType::U32, &x.ty.shape[..])),
        Erf => w.emit_unary("chlo.erf", x),
        Erfc => emit_erfc(w, x),
        Exp2 => {
            let scaled = emit_times_constant(w, x, LN_2);
            w.emit_unary("exponential", &scaled)
        }
        Log2 => {
            let log = w.emit_unary("log", x);
            emit_times_constant(w, &log, LOG2_E)
        }
        Recip => {
            let one = w.emit_constant_like(x, 1.0);
            w.emit_binary("divide", &one, x)
        }
        Gelu => {
            let scaled = emit_times_constant(w, x, -FRAC_1_SQRT_2);
            let tail = emit_erfc(w, &scaled);
            let half = emit_times_constant(w, x, 0.5);
            w.emit_binary("multiply", &half, &tail)
        }
        Silu => {
            let negative = w.emit_unary("negate", x);
            let (exponential, one) = (w.emit_unary("exponential", &negative), w.emit_constant_like(x, 1.0));
            let below = w.emit_binary("add", &one, &exponential);
            w.emit_binary("divide", x, &below)
        }
        Softplus => {
            let (zero, size) = (w.emit_constant_like(x, 0.0), w.emit_unary("abs", x));
            let negative = w.emit_unary("negate", &size);
            let exponential = w.emit_unary("exponential", &negative);
            let (above, below) = (w.emit_binary("maximum", x, &zero), w.emit_unary("log_plus_one", &exponential));
            w.emit_binary("add", &above, &below)
        }
        Sinh => emit_sinh(w, x),
        Cosh => {
            let [a, b] = emit_half_exponentials(w, x);
            w.emit_binary("add", &a, &b)
        }
        Asin => {
            let root = emit_sqrt_one_minus_square(w, x);
            let (one, two) = (w.emit_constant_like(x, 1.0), w.emit_constant_like(x, 2.0));
            let below = w.emit_binary("add", &one, &root);
            let half = w.emit_binary("atan2", x, &below);
            w.emit_binary("multiply", &two, &half)
        }
        Acos => {
            // 2·atan2(√(1-x), √(1+x)), which is accurate at both ends.
            let (one, two) = (w.emit_constant_like(x, 1.0), w.emit_constant_like(x, 2.0));
            let (less, more) = (w.emit_binary("subtract", &one, x), w.emit_binary("add", &one, x));
            let (a, b) = (w.emit_unary("sqrt", &less), w.emit_unary("sqrt", &more));
            let half = w.emit_binary("atan2", &a, &b);
            w.emit_binary("multiply", &two, &half)
        }
        Atan => {
            let one = w.emit_constant_like(x, 1.0);
            w.emit_binary("atan2", x, &one)
        }
        Trunc => {
            let (zero, up, down) = (w.emit_constant_like(x, 0.0), w.emit_unary("ceil", x), w.emit_unary("floor", x));
            let is_negative = w.emit_comparison("LT", x, &zero);
            w.emit_select(&is_negative, &up, &down)
        }
    }
}

/// Appends the product of a value and a constant.
fn emit_times_constant(w: &mut HloWriter, x: &HloValue, factor: f64) -> HloValue {
    let factor = w.emit_constant_like(x, factor);
    w.emit_binary("multiply", x, &factor)
}

/// Appends StableHLO's clamp if the bounds are known to be in order. Otherwise it appends selects: for bounds in the
/// wrong order the graph's clamp gives the lower one, StableHLO's the upper one.
fn emit_clamp(w: &mut HloWriter, x: &HloValue, low: &HloValue, high: &HloValue) -> HloValue {
    let in_order = |(a, b): (Literal, Literal)| {
        if a.dtype.is_float() { a.as_f64() <= b.as_f64() } else { a.as_i64() <= b.as_i64() }
    };
    if low.splat.zip(high.splat).is_some_and(in_order) && x.ty.dtype != DType::U64 {
        return w.emit_op("clamp", &[low, x, high], HloAttributes::None, x.ty.clone());
    }
    let (is_below, is_above) = (w.emit_comparison("LT", x, low), w.emit_comparison("GT", x, high));
    let held = w.emit_select(&is_above, high, x);
    w.emit_select(&is_below, low, &held)
}

/// Appends CHLO's `erfc`, or a formula if CHLO must not be used: `1 - erf` up to 2.5, above it the continued fraction
/// `e^(-x²) / √π / (x + 1/2 / (x + 2/2 / (x + ..)))`. The formula is computed in f64, as `1 - erf` loses digits.
fn emit_erfc(w: &mut HloWriter, x: &HloValue) -> HloValue {
    if !w.without_chlo {
        return w.emit_unary("chlo.erfc", x);
    }
    let (own, x) = (x.ty.dtype, w.emit_cast(x, DType::F64));
    let (erf, one, bound) =
        (w.emit_unary("chlo.erf", &x), w.emit_constant_like(&x, 1.0), w.emit_constant_like(&x, 2.5));
    let near = w.emit_binary("subtract", &one, &erf);
    // Smaller arguments, whose fraction is not used, would divide by zero.
    let large = w.emit_binary("maximum", &x, &bound);
    let mut below = large.clone();
    for k in (1..24).rev() {
        let half = w.emit_constant_like(&x, f64::from(k) / 2.0);
        let part = w.emit_binary("divide", &half, &below);
        below = w.emit_binary("add", &large, &part);
    }
    let (square, scaled) =
        (w.emit_binary("multiply", &large, &large), emit_times_constant(w, &below, std::f64::consts::PI.sqrt()));
    let negative = w.emit_unary("negate", &square);
    let exponential = w.emit_unary("exponential", &negative);
    let far = w.emit_binary("divide", &exponential, &scaled);
    let is_far = w.emit_comparison("GT", &x, &bound);
    let made = w.emit_select(&is_far, &far, &near);
    w.emit_cast(&made, own)
}

/// Appends `√(1 - x²)`, computed as `√((1-x)(1+x))`, which loses fewer digits.
fn emit_sqrt_one_minus_square(w: &mut HloWriter, x: &HloValue) -> HloValue {
    let one = w.emit_constant_like(x, 1.0);
    let (less, more) = (w.emit_binary("subtract", &one, x), w.emit_binary("add", &one, x));
    let product = w.emit_binary("multiply", &less, &more);
    w.emit_unary("sqrt", &product)
}

/// Appends half of `eˣ` and half of `e⁻ˣ`, which do not overflow unless their sum does.
fn emit_half_exponentials(w: &mut HloWriter, x: &HloValue) -> [HloValue; 2] {
    let (half, negative) = (w.emit_constant_like(x, -LN_2), w.emit_unary("negate", x));
    [x.clone(), negative].map(|x| {
        let moved = w.emit_binary("add", &x, &half);
        w.emit_unary("exponential", &moved)
    })
}

/// Appends `sinh x`: the difference of exponentials, or near zero a formula with `eˣ - 1`, which loses no digits.
fn emit_sinh(w: &mut HloWriter, x: &HloValue) -> HloValue {
    let [a, b] = emit_half_exponentials(w, x);
    let far = w.emit_binary("subtract", &a, &b);
    let (less, one) = (w.emit_unary("exponential_minus_one", x), w.emit_constant_like(x, 1.0));
    let more = w.emit_binary("add", &less, &one);
    let quotient = w.emit_binary("divide", &less, &more);
    let sum = w.emit_binary("add", &less, &quotient);
    let near = emit_times_constant(w, &sum, 0.5);
    let size = w.emit_unary("abs", x);
    let is_near = w.emit_comparison("LT", &size, &one);
    w.emit_select(&is_near, &near, &far)
}
