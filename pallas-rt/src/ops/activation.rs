//! Activation functions; `jax.nn`.
use super::Axes;
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{GraphOperand, push_elementwise};
use super::formula::{FormulaDtype, formulas, push_formula};
use super::index::{Item, index};
use super::reduce::{mean, variance};
use crate::array::Array;
use crate::jit::apply;
use pallas_ir::{At, Diag, E, Loc, ScalarOp};
use std::f64::consts;

formulas! {
    /// `max(x, 0)`; its derivative at 0 is 0.
    Number relu(x) => x.le(x.zero()).select(x.zero(), x);
    /// `min(max(x, 0), 6)`; its derivative at 0 and 6 is 0.
    Number relu6(x) => relu6(x);
    /// `x` above zero, `slope * x` below; `jax.nn` has a slope of 0.01.
    Float leaky_relu(x; slope: f64) => x.ge(x.zero()).select(x, x * slope);
    /// `x` above zero, `alpha * (eˣ - 1)` below; `jax.nn` has an alpha of 1.
    Float elu(x; alpha: f64) => elu(x, alpha);
    /// The scaled exponential linear unit of self-normalizing networks.
    Float selu(x) => elu(x, 1.673_263_242_354_377_2) * 1.050_700_987_355_480_5;
    /// `max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)`; `jax.nn` has an alpha of 1.
    Float celu(x; alpha: f64) => x.maximum(x.zero()) + (x.minimum(x.zero()) / alpha).expm1() * alpha;
    /// The approximation of `gelu` by `tanh`, which is the default of `jax.nn.gelu`.
    Float gelu_tanh(x) => {
        let inner = (x + x * x * x * 0.044_715) * (consts::FRAC_2_SQRT_PI * consts::FRAC_1_SQRT_2);
        x * 0.5 * (inner.tanh() + 1.0)
    };
    /// `1 / (1 + e⁻ˣ)`.
    Float sigmoid(x) => x.logistic();
    /// `ln(1 / (1 + e⁻ˣ))`.
    Float log_sigmoid(x) => -(-x).softplus();
    /// `ln(1 - e⁻ˣ)` for `x` above zero.
    Float log1mexp(x) => {
        let is_small = x.lt(x.like(consts::LN_2));
        let (near, far) = (is_small.select(x, x.like(0.5)), is_small.select(x.like(1.0), x));
        is_small.select(near.expm1().log() - near, (-(-far).exp()).log1p())
    };
    /// `x / (1 + |x|)`.
    Float soft_sign(x) => x / (x.abs() + 1.0);
    /// `x * tanh(ln(1 + eˣ))`.
    Float mish(x) => x * x.softplus().tanh();
    /// `x` clamped to [-1, 1]; its derivative at -1 and 1 is 1.
    Number hard_tanh(x) => {
        let (low, high) = (x.like(-1.0), x.like(1.0));
        x.gt(high).select(high, x.lt(low).select(low, x))
    };
    /// `relu6(x + 3) / 6`.
    Float hard_sigmoid(x) => relu6(x + 3.0) / 6.0;
    /// `x * hard_sigmoid(x)`.
    Float hard_silu(x) => x * (relu6(x + 3.0) / 6.0);
    /// `(x + sqrt(x² + b)) / 2`; `jax.nn` has a b of 4.
    Float squareplus(x; b: f64) => (x + (x * x + b).sqrt()) * 0.5;
    /// 0 up to -1, `x` from 1, and `(x + 1)² / 4` between them.
    Float sparse_plus(x) => {
        let between = (x + 1.0) * (x + 1.0) * 0.25;
        x.le(x.like(-1.0)).select(x.zero(), x.ge(x.like(1.0)).select(x, between))
    };
    /// `(x + 1) / 2` clamped to [0, 1].
    Float sparse_sigmoid(x) => ((x + 1.0) * 0.5).maximum(x.zero()).minimum(x.like(1.0));
}

fn elu(x: E<'_>, alpha: f64) -> E<'_> {
    // The exponential is of numbers that do not overflow: an infinity would make the derivative NaN.
    let below = x.gt(x.zero()).select(x.zero(), x);
    x.gt(x.zero()).select(x, below.expm1() * alpha)
}

fn relu6(x: E<'_>) -> E<'_> {
    let high = x.like(6.0);
    x.le(x.zero()).select(x.zero(), x.ge(high).select(high, x))
}

impl Array {
    /// The first half along an axis times the `sigmoid` of the second half.
    #[track_caller]
    #[must_use]
    pub fn glu(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            let axis = canonicalize_axis(axis, ty.shape.len())?;
            let n = ty.shape[axis] as i64;
            if n % 2 != 0 {
                let message = format!("glu along axis {axis} of {ty}");
                return Err(Diag::new("glu", At::Op, message, "the axis has an even number of elements"));
            }
            let mut half = |range: Item| {
                let mut items = vec![Item::from(..); axis];
                items.push(range);
                index(graph, v[0], &items)
            };
            let (a, b) = (half((..n / 2).into())?, half((n / 2..).into())?);
            push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(a), GraphOperand::Var(b)], |[a, b], _| {
                a * b.logistic()
            })
        })
    }

    /// Elements normalized to mean 0 and variance 1 along axes: `(x - mean) / sqrt(var + epsilon)`; `jax.nn` has an
    /// epsilon of 1e-5.
    #[track_caller]
    #[must_use]
    pub fn standardize(&self, axes: impl Into<Axes>, epsilon: f64) -> Array {
        let axes = super::keep(axes);
        apply(&[self], Loc::caller(), |graph, v| {
            let (centre, spread) = (mean(graph, v[0], &axes)?, variance(graph, v[0], &axes)?);
            let centred =
                push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(v[0]), GraphOperand::Var(centre)])?;
            push_formula(
                graph,
                FormulaDtype::Float,
                [GraphOperand::Var(centred), GraphOperand::Var(spread)],
                |[x, var], _| x * (var + epsilon).rsqrt(),
            )
        })
    }
}
