//! Translation of elementwise operations to StableHLO.
use super::operation::{HloAttributes, Value};
use super::writer::HloWriter;
use pallas_ir::{DType, Literal, ScalarOp, Type};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E};

/// Appends an elementwise operation; returns its result. One that StableHLO lacks becomes a formula; `erf` and `erfc`
/// are operations of CHLO, a dialect that comes with StableHLO.
pub(super) fn scalar(w: &mut HloWriter, op: ScalarOp, args: &[Value]) -> Value {
    use ScalarOp::*;
    let x = &args[0];
    let second = args.get(1);
    let y = || second.expect("the operation takes two operands");
    match op {
        Add => w.binary("add", x, y()),
        Sub => w.binary("subtract", x, y()),
        Mul => w.binary("multiply", x, y()),
        Div => w.binary("divide", x, y()),
        Rem => w.binary("remainder", x, y()),
        Pow => w.binary("power", x, y()),
        Minimum => w.binary("minimum", x, y()),
        Maximum => w.binary("maximum", x, y()),
        Atan2 => w.binary("atan2", x, y()),
        BitAnd => w.binary("and", x, y()),
        BitOr => w.binary("or", x, y()),
        BitXor => w.binary("xor", x, y()),
        Shl => w.binary("shift_left", x, y()),
        Shr if x.ty.dtype.is_signed() => w.binary("shift_right_arithmetic", x, y()),
        Shr => w.binary("shift_right_logical", x, y()),
        Lt => w.compare("LT", x, y()),
        Le => w.compare("LE", x, y()),
        Gt => w.compare("GT", x, y()),
        Ge => w.compare("GE", x, y()),
        Eq => w.compare("EQ", x, y()),
        Ne => w.compare("NE", x, y()),
        IsNan => w.compare("NE", x, x),
        IsFinite => w.emit_op("is_finite", &[x], HloAttributes::None, Type::new(DType::Bool, &x.ty.shape[..])),
        Select => w.select(x, y(), &args[2]),
        Clamp => clamp(w, x, y(), &args[2]),
        Fma => {
            let product = w.binary("multiply", x, y());
            w.binary("add", &product, &args[2])
        }
        Neg => w.unary("negate", x),
        Abs => w.unary("abs", x),
        Exp => w.unary("exponential", x),
        Log => w.unary("log", x),
        Tanh => w.unary("tanh", x),
        Sqrt => w.unary("sqrt", x),
        Rsqrt => w.unary("rsqrt", x),
        Floor => w.unary("floor", x),
        Ceil => w.unary("ceil", x),
        Round => w.unary("round_nearest_even", x),
        Sin => w.unary("sine", x),
        Cos => w.unary("cosine", x),
        Tan => w.unary("tan", x),
        Log1p => w.unary("log_plus_one", x),
        Expm1 => w.unary("exponential_minus_one", x),
        Logistic => w.unary("logistic", x),
        Sign => w.unary("sign", x),
        Not => w.unary("not", x),
        CountOnes => w.unary("popcnt", x),
        ToBits => w.emit_op("bitcast_convert", &[x], HloAttributes::None, Type::new(DType::U32, &x.ty.shape[..])),
        Erf => w.unary("chlo.erf", x),
        Erfc => erfc(w, x),
        Exp2 => {
            let scaled = emit_times_constant(w, x, LN_2);
            w.unary("exponential", &scaled)
        }
        Log2 => {
            let log = w.unary("log", x);
            emit_times_constant(w, &log, LOG2_E)
        }
        Recip => {
            let one = w.emit_constant_like(x, 1.0);
            w.binary("divide", &one, x)
        }
        Gelu => {
            let scaled = emit_times_constant(w, x, -FRAC_1_SQRT_2);
            let tail = erfc(w, &scaled);
            let half = emit_times_constant(w, x, 0.5);
            w.binary("multiply", &half, &tail)
        }
        Silu => {
            let negative = w.unary("negate", x);
            let (exponential, one) = (w.unary("exponential", &negative), w.emit_constant_like(x, 1.0));
            let below = w.binary("add", &one, &exponential);
            w.binary("divide", x, &below)
        }
        Softplus => {
            let (zero, size) = (w.emit_constant_like(x, 0.0), w.unary("abs", x));
            let negative = w.unary("negate", &size);
            let exponential = w.unary("exponential", &negative);
            let (above, below) = (w.binary("maximum", x, &zero), w.unary("log_plus_one", &exponential));
            w.binary("add", &above, &below)
        }
        Sinh => sinh(w, x),
        Cosh => {
            let [a, b] = emit_half_exponentials(w, x);
            w.binary("add", &a, &b)
        }
        Asin => {
            let root = emit_sqrt_one_minus_square(w, x);
            let (one, two) = (w.emit_constant_like(x, 1.0), w.emit_constant_like(x, 2.0));
            let below = w.binary("add", &one, &root);
            let half = w.binary("atan2", x, &below);
            w.binary("multiply", &two, &half)
        }
        Acos => {
            // 2·atan2(√(1-x), √(1+x)), which is accurate at both ends.
            let (one, two) = (w.emit_constant_like(x, 1.0), w.emit_constant_like(x, 2.0));
            let (less, more) = (w.binary("subtract", &one, x), w.binary("add", &one, x));
            let (a, b) = (w.unary("sqrt", &less), w.unary("sqrt", &more));
            let half = w.binary("atan2", &a, &b);
            w.binary("multiply", &two, &half)
        }
        Atan => {
            let one = w.emit_constant_like(x, 1.0);
            w.binary("atan2", x, &one)
        }
        Trunc => {
            let (zero, up, down) = (w.emit_constant_like(x, 0.0), w.unary("ceil", x), w.unary("floor", x));
            let is_negative = w.compare("LT", x, &zero);
            w.select(&is_negative, &up, &down)
        }
    }
}

/// Appends the product of a value and a constant.
fn emit_times_constant(w: &mut HloWriter, x: &Value, factor: f64) -> Value {
    let factor = w.emit_constant_like(x, factor);
    w.binary("multiply", x, &factor)
}

/// Appends StableHLO's clamp if the bounds are known to be in order. Otherwise it appends selects: for bounds in the
/// wrong order the graph's clamp gives the lower one, StableHLO's the upper one.
fn clamp(w: &mut HloWriter, x: &Value, low: &Value, high: &Value) -> Value {
    let in_order = |(a, b): (Literal, Literal)| {
        if a.dtype.is_float() { a.as_f64() <= b.as_f64() } else { a.as_i64() <= b.as_i64() }
    };
    if low.splat.zip(high.splat).is_some_and(in_order) && x.ty.dtype != DType::U64 {
        return w.emit_op("clamp", &[low, x, high], HloAttributes::None, x.ty.clone());
    }
    let (is_below, is_above) = (w.compare("LT", x, low), w.compare("GT", x, high));
    let held = w.select(&is_above, high, x);
    w.select(&is_below, low, &held)
}

/// Appends CHLO's `erfc`, or a formula if CHLO must not be used: `1 - erf` up to 2.5, above it the continued fraction
/// `e^(-x²) / √π / (x + 1/2 / (x + 2/2 / (x + ..)))`. The formula is computed in f64, as `1 - erf` loses digits.
fn erfc(w: &mut HloWriter, x: &Value) -> Value {
    if !w.without_chlo {
        return w.unary("chlo.erfc", x);
    }
    let (own, x) = (x.ty.dtype, w.cast(x, DType::F64));
    let (erf, one, bound) = (w.unary("chlo.erf", &x), w.emit_constant_like(&x, 1.0), w.emit_constant_like(&x, 2.5));
    let near = w.binary("subtract", &one, &erf);
    // Smaller arguments, whose fraction is not used, would divide by zero.
    let large = w.binary("maximum", &x, &bound);
    let mut below = large.clone();
    for k in (1..24).rev() {
        let half = w.emit_constant_like(&x, f64::from(k) / 2.0);
        let part = w.binary("divide", &half, &below);
        below = w.binary("add", &large, &part);
    }
    let (square, scaled) =
        (w.binary("multiply", &large, &large), emit_times_constant(w, &below, std::f64::consts::PI.sqrt()));
    let negative = w.unary("negate", &square);
    let exponential = w.unary("exponential", &negative);
    let far = w.binary("divide", &exponential, &scaled);
    let is_far = w.compare("GT", &x, &bound);
    let made = w.select(&is_far, &far, &near);
    w.cast(&made, own)
}

/// Appends `√(1 - x²)`, computed as `√((1-x)(1+x))`, which loses fewer digits.
fn emit_sqrt_one_minus_square(w: &mut HloWriter, x: &Value) -> Value {
    let one = w.emit_constant_like(x, 1.0);
    let (less, more) = (w.binary("subtract", &one, x), w.binary("add", &one, x));
    let product = w.binary("multiply", &less, &more);
    w.unary("sqrt", &product)
}

/// Appends half of `eˣ` and half of `e⁻ˣ`, which do not overflow unless their sum does.
fn emit_half_exponentials(w: &mut HloWriter, x: &Value) -> [Value; 2] {
    let (half, negative) = (w.emit_constant_like(x, -LN_2), w.unary("negate", x));
    [x.clone(), negative].map(|x| {
        let moved = w.binary("add", &x, &half);
        w.unary("exponential", &moved)
    })
}

/// Appends `sinh x`: the difference of exponentials, or near zero a formula with `eˣ - 1`, which loses no digits.
fn sinh(w: &mut HloWriter, x: &Value) -> Value {
    let [a, b] = emit_half_exponentials(w, x);
    let far = w.binary("subtract", &a, &b);
    let (less, one) = (w.unary("exponential_minus_one", x), w.emit_constant_like(x, 1.0));
    let more = w.binary("add", &less, &one);
    let quotient = w.binary("divide", &less, &more);
    let sum = w.binary("add", &less, &quotient);
    let near = emit_times_constant(w, &sum, 0.5);
    let size = w.unary("abs", x);
    let is_near = w.compare("LT", &size, &one);
    w.select(&is_near, &near, &far)
}
