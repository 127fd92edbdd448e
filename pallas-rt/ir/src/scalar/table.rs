//! The scalar operations, one row each. Nothing else lists them.
use super::shader::{ASIN, DIV, ERF, ERFC, EXPM1, LOG1P, POW, REM, SINH, TANH};
use super::{fast_math, special};

/// Computes the larger or smaller of two floats: NaN if one is NaN; for two zeros the zero with the joined bits of
/// both. Has no branches, so that loops become vectors.
macro_rules! extreme {
    ($T:ident, $is_first:expr, $of_bits:tt, $a:ident, $b:ident) => {{
        let one = if $is_first { $a } else { $b };
        let one = if $a == $b { $T::from_bits($a.to_bits() $of_bits $b.to_bits()) } else { one };
        if $a.is_nan() { $a } else { one }
    }};
}

scalar_ops! {
    /// Sum; integers wrap.
    Add = add<T: Number>(a: T, b: T) -> y: T {
        eval float: a + b, int: a.wrapping_add(b);
        cpu  same;
        wgsl "({a} + {b})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold Zero "subgroupAdd";
        jvp  |da| da, |db| db;
        rust operator Add;
    }
    /// Difference; integers wrap.
    Sub = sub<T: Number>(a: T, b: T) -> y: T {
        eval float: a - b, int: a.wrapping_sub(b);
        cpu  same;
        wgsl "({a} - {b})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |da| da, |db| -db;
        rust operator Sub;
    }
    /// Product; integers wrap.
    Mul = mul<T: Number>(a: T, b: T) -> y: T {
        eval float: a * b, int: a.wrapping_mul(b);
        cpu  same;
        wgsl "({a} * {b})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold One "subgroupMul";
        jvp  |da| da * b, |db| a * db;
        rust operator Mul;
    }
    /// Quotient; integers truncate, and a zero divisor gives all ones.
    Div = div<T: Number>(a: T, b: T) -> y: T {
        eval float: a / b, int: if b == 0 { !0 } else { a.wrapping_div(b) };
        cpu  same;
        wgsl float: "({a} / {b})", int: "div_{T}({a}, {b})" Finite(3) with DIV;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |da| da / b, |db| -(db * y / b);
        rust operator Div;
    }
    /// Remainder with the sign of `a`; a zero divisor gives `a` for integers.
    Rem = rem<T: Number>(a: T, b: T) -> y: T {
        eval float: a % b, int: if b == 0 { a } else { a.wrapping_rem(b) };
        cpu  same;
        wgsl float: "({a} % {b})", int: "rem_{T}({a}, {b})" Finite(8) with REM;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |da| da, |db| -(db * ((a - y) / b).round());
        rust operator Rem;
    }
    /// `a` to the power `b`; at `a = 0` the logarithm in the derivative by `b` counts as 0.
    Pow = pow<T: Real>(a: T, b: T) -> y: T {
        eval float: a.powf(b);
        cpu  same;
        wgsl "pow_{T}({a}, {b})" Finite(64) with POW;
        nan  Chosen;
        cost transcendental 1;
        fold none;
        jvp  |da| da * (b * a.pow(b - 1.0)), |db| db * (y * a.eq(a.zero()).select(a.like(1.0), a).log());
        rust method;
    }
    /// The smaller of two; -0 is below +0 (IEEE 754-2019), and NaN propagates. On a GPU the zero may have either sign.
    /// Equal operands get half of the derivative each.
    Minimum = minimum<T: Number>(a: T, b: T) -> y: T {
        eval float: extreme!(T, a < b, |, a, b), int: a.min(b);
        cpu  same;
        wgsl "min({a}, {b})" Finite(0);
        nan  Propagates;
        cost arithmetic 1;
        fold Highest "subgroupMin";
        jvp  |da| a.lt(b).select(da, a.eq(b).select(da * 0.5, da.zero())),
             |db| b.lt(a).select(db, a.eq(b).select(db * 0.5, db.zero()));
        rust method;
    }
    /// The larger of two; +0 is above -0 (IEEE 754-2019), and NaN propagates. On a GPU the zero may have either sign.
    /// Equal operands get half of the derivative each.
    Maximum = maximum<T: Number>(a: T, b: T) -> y: T {
        eval float: extreme!(T, a > b, &, a, b), int: a.max(b);
        cpu  same;
        wgsl "max({a}, {b})" Finite(0);
        nan  Propagates;
        cost arithmetic 1;
        fold Lowest "subgroupMax";
        jvp  |da| b.lt(a).select(da, a.eq(b).select(da * 0.5, da.zero())),
             |db| a.lt(b).select(db, a.eq(b).select(db * 0.5, db.zero()));
        rust method;
    }
    /// Negation; integers wrap.
    Neg = neg<T: Signed>(x: T) -> y: T {
        eval float: -x, int: x.wrapping_neg();
        cpu  same;
        wgsl "(-{x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |dx| -dx;
        rust operator Neg;
    }
    /// Absolute value; the lowest integer stays as it is.
    Abs = abs<T: Signed>(x: T) -> y: T {
        eval float: x.abs(), int: x.wrapping_abs();
        cpu  same;
        wgsl "abs({x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |dx| x.ge(x.zero()).select(dx, -dx);
        rust method;
    }
    /// Natural exponential `eˣ`.
    Exp = exp<T: Real>(x: T) -> y: T {
        eval float: x.exp();
        cpu  f32: fast_math::exp(x), rel 3e-7, abs 2e-38;
        wgsl "exp({x})" Finite(4);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * y;
        rust method;
    }
    /// Natural logarithm; NaN below zero.
    Log = log<T: Real>(x: T) -> y: T {
        eval float: x.ln();
        cpu  f32: fast_math::log(x), rel 1e-7, abs 0.0;
        wgsl "log({x})" Finite(4);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx / x;
        rust method;
    }
    /// Hyperbolic tangent.
    Tanh = tanh<T: Real>(x: T) -> y: T {
        eval float: x.tanh();
        cpu  f32: fast_math::tanh(x), rel 5e-7, abs 2e-45;
        wgsl "tanh_{T}({x})" Finite(8) with TANH;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * ((1.0 - y) * (1.0 + y));
        rust method;
    }
    /// Error function.
    Erf = erf<T: Real>(x: T) -> y: T {
        eval float: special::erf(x as f64) as T;
        cpu  f32: fast_math::erf(x), rel 5e-7, abs 2e-45;
        wgsl "erf_{T}({x})" Finite(8) with ERF;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * (-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI;
        rust method;
    }
    /// Gaussian error linear unit `x·Φ(x)`.
    Gelu = gelu<T: Real>(x: T) -> y: T {
        eval float: (0.5 * x as f64 * special::erfc(-x as f64 * std::f64::consts::FRAC_1_SQRT_2)) as T;
        cpu  f32: fast_math::gelu(x), rel 1e-5, abs 1e-37;
        wgsl "({T}(0.5) * {x} * erfc_{T}({x} * {T}(-0.70710678)))" Finite(1024) with ERFC;
        nan  Propagates;
        cost arithmetic 3, transcendental 1;
        fold none;
        jvp  |dx| dx * ((x * -0.5f64.sqrt()).erfc() * 0.5 + x * (x * x * -0.5).exp() * 0.398_942_280_401_432_7);
        rust method;
    }
    /// Square root; NaN below zero.
    Sqrt = sqrt<T: Real>(x: T) -> y: T {
        eval float: x.sqrt();
        cpu  same;
        wgsl "sqrt({x})" Finite(3);
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |dx| dx * 0.5 / y;
        rust method;
    }
    /// Largest whole number not above `x`.
    Floor = floor<T: Real>(x: T) -> y: T {
        eval float: x.floor();
        cpu  same;
        wgsl "floor({x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Nearest whole number, ties to even.
    Round = round<T: Real>(x: T) -> y: T {
        eval float: x.round_ties_even();
        cpu  same;
        wgsl "round({x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Bitwise, or logical, and.
    BitAnd = bitand<T: Bits>(a: T, b: T) -> y: T {
        eval int: a & b, bool: a & b;
        cpu  same;
        wgsl "({a} & {b})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold Ones;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust operator BitAnd;
    }
    /// Left shift by `b` bits; 0 if `b` is negative or at least the width.
    Shl = shl<T: Int>(a: T, b: T) -> y: T {
        eval int: a.checked_shl((b as u64).min(64) as u32).unwrap_or(0);
        cpu  same;
        wgsl "(({a} << min(u32({b}), 31u)) << u32(u32({b}) > 31u))" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust operator Shl;
    }
    /// True if `a` is less than `b`.
    Lt = lt<T: Number>(a: T, b: T) -> y: bool {
        eval float: a < b, int: a < b;
        cpu  same;
        wgsl "({a} < {b})" Finite(0);
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// True if `a` is at most `b`.
    Le = le<T: Number>(a: T, b: T) -> y: bool {
        eval float: a <= b, int: a <= b;
        cpu  same;
        wgsl "({a} <= {b})" Finite(0);
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// True if two values are equal; NaN equals nothing.
    Eq = eq<T: Any>(a: T, b: T) -> y: bool {
        eval float: a == b, int: a == b, bool: a == b;
        cpu  same;
        wgsl "({a} == {b})" Finite(0);
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// `a` where the condition holds, else `b`.
    Select = select<T: Any>(c: bool, a: T, b: T) -> y: T {
        eval float: if c { a } else { b }, int: if c { a } else { b }, bool: if c { a } else { b };
        cpu  same;
        wgsl "select({b}, {a}, {c})" Exact;
        nan  Chosen;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |da| c.select(da, da.zero()), |db| c.select(db.zero(), db);
        rust function;
    }
    /// `x` limited to `lo` to `hi`; where `x` equals a bound the derivative is that of `x`.
    Clamp = clamp<T: Number>(x: T, lo: T, hi: T) -> y: T {
        eval float: if x < lo { lo } else if x > hi { hi } else { x }, int: if x < lo { lo } else if x > hi { hi } else { x };
        cpu  same;
        wgsl "select(select({x}, {hi}, {x} > {hi}), {lo}, {x} < {lo})" Finite(0);
        nan  Chosen;
        cost arithmetic 2;
        fold none;
        jvp  |dx| lo.le(x).select(x.le(hi).select(dx, dx.zero()), dx.zero()),
             |dlo| x.lt(lo).select(dlo, dlo.zero()),
             |dhi| x.lt(lo).select(dhi.zero(), hi.lt(x).select(dhi, dhi.zero()));
        rust method;
    }
    /// True if `x` is not a number.
    IsNan = is_nan<T: Real>(x: T) -> y: bool {
        eval float: x.is_nan();
        cpu  same;
        wgsl "((bitcast<u32>({x}) & 0x7fffffffu) > 0x7f800000u)" Exact;
        nan  Tests;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// The bits of an `f32`.
    ToBits = to_bits<T: Single>(x: T) -> y: u32 {
        eval float: x.to_bits();
        cpu  same;
        wgsl "bitcast<u32>({x})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Number of one bits.
    CountOnes = count_ones<T: Int>(x: T) -> y: T {
        eval int: x.count_ones() as T;
        cpu  same;
        wgsl "countOneBits({x})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Bitwise, or logical, not.
    Not = not<T: Bits>(x: T) -> y: T {
        eval int: !x, bool: !x;
        cpu  same;
        wgsl int: "(~{x})", bool: "(!{x})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust operator Not;
    }
    /// Exponential to base 2.
    Exp2 = exp2<T: Real>(x: T) -> y: T {
        eval float: x.exp2();
        cpu  f32: fast_math::exp2(x), rel 3e-7, abs 2e-38;
        wgsl "exp2({x})" Finite(4);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * y * std::f64::consts::LN_2;
        rust method;
    }
    /// Logarithm to base 2; NaN below zero.
    Log2 = log2<T: Real>(x: T) -> y: T {
        eval float: x.log2();
        cpu  f32: fast_math::log(x) * std::f32::consts::LOG2_E, rel 2e-7, abs 0.0;
        wgsl "log2({x})" Finite(4);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx / (x * std::f64::consts::LN_2);
        rust method;
    }
    /// `ln(1 + x)`, accurate near zero.
    Log1p = log1p<T: Real>(x: T) -> y: T {
        eval float: x.ln_1p();
        cpu  f32: fast_math::log1p(x), rel 4e-7, abs 0.0;
        wgsl "log1p_{T}({x})" Finite(8) with LOG1P;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx / (x + 1.0);
        rust method;
    }
    /// `eˣ - 1`, accurate near zero.
    Expm1 = expm1<T: Real>(x: T) -> y: T {
        eval float: x.exp_m1();
        cpu  f32: fast_math::expm1(x), rel 4e-7, abs 2e-45;
        wgsl "expm1_{T}({x})" Finite(16) with EXPM1;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * (y + 1.0);
        rust method;
    }
    /// Reciprocal square root.
    Rsqrt = rsqrt<T: Real>(x: T) -> y: T {
        eval float: 1.0 / x.sqrt();
        cpu  same;
        wgsl "inverseSqrt({x})" Finite(4);
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |dx| dx * -0.5 * y / x;
        rust method;
    }
    /// Reciprocal.
    Recip = recip<T: Real>(x: T) -> y: T {
        eval float: 1.0 / x;
        cpu  same;
        wgsl "({T}(1.0) / {x})" Finite(3);
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |dx| -(dx * y * y);
        rust method;
    }
    /// Sine of radians.
    Sin = sin<T: Real>(x: T) -> y: T {
        eval float: x.sin();
        cpu  same;
        wgsl "sin({x})" Finite(4096);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * x.cos();
        rust method;
    }
    /// Cosine of radians.
    Cos = cos<T: Real>(x: T) -> y: T {
        eval float: x.cos();
        cpu  same;
        wgsl "cos({x})" Finite(4096);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| -(dx * x.sin());
        rust method;
    }
    /// Tangent of radians.
    Tan = tan<T: Real>(x: T) -> y: T {
        eval float: x.tan();
        cpu  same;
        wgsl "tan({x})" Finite(8192);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * (y * y + 1.0);
        rust method;
    }
    /// Hyperbolic sine.
    Sinh = sinh<T: Real>(x: T) -> y: T {
        eval float: x.sinh();
        cpu  f32: fast_math::sinh(x), rel 4e-7, abs 2e-45;
        wgsl "sinh_{T}({x})" Finite(64) with SINH;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * x.cosh();
        rust method;
    }
    /// Hyperbolic cosine.
    Cosh = cosh<T: Real>(x: T) -> y: T {
        eval float: x.cosh();
        cpu  f32: fast_math::cosh(x), rel 3e-7, abs 0.0;
        wgsl "cosh({x})" Finite(64);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx * x.sinh();
        rust method;
    }
    /// Arcsine; NaN outside of [-1, 1].
    Asin = asin<T: Real>(x: T) -> y: T {
        eval float: x.asin();
        cpu  f32: fast_math::asin(x), rel 4e-7, abs 2e-45;
        wgsl "asin_{T}({x})" Finite(4096) with ASIN;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx / (1.0 - x * x).sqrt();
        rust method;
    }
    /// Arccosine; NaN outside of [-1, 1].
    Acos = acos<T: Real>(x: T) -> y: T {
        eval float: x.acos();
        cpu  f32: fast_math::acos(x), rel 4e-7, abs 0.0;
        wgsl "acos({x})" Finite(4096);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| -(dx / (1.0 - x * x).sqrt());
        rust method;
    }
    /// Arctangent.
    Atan = atan<T: Real>(x: T) -> y: T {
        eval float: x.atan();
        cpu  f32: fast_math::atan(x), rel 4e-7, abs 2e-45;
        wgsl "atan({x})" Finite(4096);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| dx / (x * x + 1.0);
        rust method;
    }
    /// Angle of the point (b, a): arctangent of `a / b` in the right quadrant.
    Atan2 = atan2<T: Real>(a: T, b: T) -> y: T {
        eval float: a.atan2(b);
        cpu  f32: fast_math::atan2(a, b), rel 4e-7, abs 1e-38;
        wgsl "select(atan2({a}, {b}), {a}, {a} == {T}(0.0) && {b} == {T}(0.0))" Finite(4096);
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |da| da * (b / (a * a + b * b)), |db| -(db * (a / (a * a + b * b)));
        rust method;
    }
    /// Complementary error function `1 - erf(x)`.
    Erfc = erfc<T: Real>(x: T) -> y: T {
        eval float: special::erfc(x as f64) as T;
        cpu  f32: fast_math::erfc(x), rel 4e-7, abs 2e-38;
        wgsl "erfc_{T}({x})" Finite(1024) with ERFC;
        nan  Propagates;
        cost transcendental 1;
        fold none;
        jvp  |dx| -(dx * (-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI);
        rust method;
    }
    /// Logistic sigmoid `1 / (1 + e⁻ˣ)`.
    Logistic = logistic<T: Real>(x: T) -> y: T {
        eval float: 1.0 / (1.0 + (-x).exp());
        cpu  f32: fast_math::logistic(x), rel 3e-7, abs 2e-38;
        wgsl "({T}(1.0) / ({T}(1.0) + exp(-{x})))" Finite(16);
        nan  Propagates;
        cost arithmetic 3, transcendental 1;
        fold none;
        jvp  |dx| dx * y * (1.0 - y);
        rust method;
    }
    /// Sigmoid linear unit `x·logistic(x)`.
    Silu = silu<T: Real>(x: T) -> y: T {
        eval float: x / (1.0 + (-x).exp());
        cpu  f32: x / (1.0 + fast_math::exp(-x)), rel 3e-7, abs 1e-35;
        wgsl "({x} / ({T}(1.0) + exp(-{x})))" Finite(16);
        nan  Propagates;
        cost arithmetic 3, transcendental 1;
        fold none;
        // A large `x` would multiply the rounding of `1 - logistic(x)`, which is 0 beyond 40 in every type.
        jvp  |dx| dx * (x.logistic() * (1.0 + x.minimum(x.like(40.0)) * (1.0 - x.logistic())));
        rust method;
    }
    /// `ln(1 + eˣ)`.
    Softplus = softplus<T: Real>(x: T) -> y: T {
        eval float: if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() };
        cpu  f32: fast_math::softplus(x), rel 1e-6, abs 2e-38;
        wgsl "(max({x}, {T}(0.0)) + log1p_{T}(exp(-abs({x}))))" Finite(16) with LOG1P;
        nan  Propagates;
        cost arithmetic 3, transcendental 2;
        fold none;
        jvp  |dx| dx * x.logistic();
        rust method;
    }
    /// Smallest whole number not below `x`.
    Ceil = ceil<T: Real>(x: T) -> y: T {
        eval float: x.ceil();
        cpu  same;
        wgsl "ceil({x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Whole part, towards zero.
    Trunc = trunc<T: Real>(x: T) -> y: T {
        eval float: x.trunc();
        cpu  same;
        wgsl "trunc({x})" Exact;
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// -1, 0 or 1 with the sign of `x`; NaN stays NaN.
    Sign = sign<T: Signed>(x: T) -> y: T {
        eval float: if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x }, int: x.signum();
        cpu  same;
        wgsl "sign({x})" Finite(0);
        nan  Propagates;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
    /// Fused `a * b + c`; integers wrap.
    Fma = mul_add<T: Number>(a: T, b: T, c: T) -> y: T {
        eval float: a.mul_add(b, c), int: a.wrapping_mul(b).wrapping_add(c);
        cpu  same;
        wgsl float: "fma({a}, {b}, {c})", int: "({a} * {b} + {c})" Finite(2);
        nan  Propagates;
        cost arithmetic 2;
        fold none;
        jvp  |da| da * b, |db| a * db, |dc| dc;
        rust method;
    }
    /// Bitwise, or logical, or.
    BitOr = bitor<T: Bits>(a: T, b: T) -> y: T {
        eval int: a | b, bool: a | b;
        cpu  same;
        wgsl "({a} | {b})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold Zero;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust operator BitOr;
    }
    /// Bitwise, or logical, exclusive or.
    BitXor = bitxor<T: Bits>(a: T, b: T) -> y: T {
        eval int: a ^ b, bool: a ^ b;
        cpu  same;
        wgsl int: "({a} ^ {b})", bool: "({a} != {b})" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold Zero;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust operator BitXor;
    }
    /// Right shift by `b` bits, which brings in the sign; nothing but the sign is left if `b` is negative or at least
    /// the width.
    Shr = shr<T: Int>(a: T, b: T) -> y: T {
        eval int: a.checked_shr((b as u64).min(64) as u32).unwrap_or(a.wrapping_shr(u32::MAX) >> 1);
        cpu  same;
        wgsl "(({a} >> min(u32({b}), 31u)) >> u32(u32({b}) > 31u))" Exact;
        nan  Opaque;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust operator Shr;
    }
    /// True if `a` is greater than `b`.
    Gt = gt<T: Number>(a: T, b: T) -> y: bool {
        eval float: a > b, int: a > b;
        cpu  same;
        wgsl "({a} > {b})" Finite(0);
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// True if `a` is at least `b`.
    Ge = ge<T: Number>(a: T, b: T) -> y: bool {
        eval float: a >= b, int: a >= b;
        cpu  same;
        wgsl "({a} >= {b})" Finite(0);
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// True if two values differ; NaN differs from everything.
    Ne = ne<T: Any>(a: T, b: T) -> y: bool {
        eval float: a != b, int: a != b, bool: a != b;
        cpu  same;
        wgsl "(!({a} == {b}))" Finite(0);
        nan  Tests;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent, |_| ZeroTangent;
        rust comparison;
    }
    /// True if `x` is neither infinite nor NaN.
    IsFinite = is_finite<T: Real>(x: T) -> y: bool {
        eval float: x.is_finite();
        cpu  same;
        wgsl "((bitcast<u32>({x}) & 0x7f800000u) != 0x7f800000u)" Exact;
        nan  False;
        cost arithmetic 1;
        fold none;
        jvp  |_| ZeroTangent;
        rust method;
    }
}
