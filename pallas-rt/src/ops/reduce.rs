//! Reductions.
use super::axes::{Axes, canonicalize_axis};
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise};
use super::formula::{FormulaDtype, push_formula};
use super::shape::reshape;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, StopGradient, Var};
use pallas_ir::structural::{ArgReduce, Reduce};
use pallas_ir::{At, DType, Diag, Loc, ScalarOp, StructuralOp};

/// Appends a reduction by `op`. Truth values have the order false, true.
pub(super) fn reduce(graph: &mut Graph, op: ScalarOp, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let ty = graph.ty(v);
    let op = op.monoid_for_dtype(ty.dtype);
    graph.push(StructuralOp::from(Reduce { op, axes: axes.resolve(ty.shape.len())?, keep: axes.keeps_axes() }), &[v])
}

/// Appends a sum or a product, in a type of 32 bits for truth values and narrower integers.
pub(super) fn reduce_widened(graph: &mut Graph, op: ScalarOp, v: Var, axes: &Axes) -> Result<Var, Diag> {
    let wide = match graph.ty(v).dtype {
        dtype if axes.has_requested_dtype() => dtype,
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        dtype => dtype,
    };
    let v = cast(graph, v, wide)?;
    reduce(graph, op, v, axes)
}

/// Appends the largest or smallest element.
///
/// # Errors
/// Axes without elements: these have no largest one.
fn reduce_extremum(graph: &mut Graph, op: ScalarOp, v: Var, axes: &Axes) -> Result<Var, Diag> {
    check_has_elements(graph, if op == ScalarOp::Maximum { "max" } else { "min" }, v, axes)?;
    reduce(graph, op, v, axes)
}

/// Refuses an operation along axes without elements, as JAX does.
pub(super) fn check_has_elements(graph: &Graph, name: &str, v: Var, axes: &Axes) -> Result<(), Diag> {
    let ty = graph.ty(v);
    match axes.resolve(ty.shape.len())?.into_iter().find(|&axis| ty.shape[axis] == 0) {
        Some(axis) => {
            let found = format!("`{name}` along axis {axis} of {ty}, which has no elements");
            Err(Diag::new("empty", At::Op, found, "nothing has no largest or smallest element"))
        }
        None => Ok(()),
    }
}

/// Appends equations on floats in the type that accumulates them; their result is rounded to the operand's type, f32
/// for integers.
pub(super) fn with_accumulator_type(
    graph: &mut Graph,
    v: Var,
    equations: impl FnOnce(&mut Graph, Var) -> Result<Var, Diag>,
) -> Result<Var, Diag> {
    let dtype = graph.ty(v).dtype;
    let own = if dtype.is_float() { dtype } else { DType::F32 };
    let v = cast(graph, v, own.accumulator())?;
    let result = equations(graph, v)?;
    cast(graph, result, own)
}

/// Declares methods of axes by their equations.
macro_rules! reductions {
    ($($(#[$doc:meta])+ $name:ident |$graph:ident, $v:ident, $axes:ident| $equations:expr;)*) => {
        impl Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self, axes: impl Into<Axes>) -> Array {
                let axes = axes.into();
                apply(&[self], Loc::caller(), |$graph, v| {
                    let ($v, $axes) = (axes.cast_operand($graph, v[0])?, &axes);
                    $equations
                })
            }
        )*}
    };
}
reductions! {
    /// Sum over axes, which are dropped; [`keep`](crate::keep) keeps them. `bool` and narrow integers are summed in 32
    /// bits, `f16` and `bf16` in `f32`, whose sum is rounded; [`accumulate`](crate::ops::accumulate) names another
    /// type.
    sum |graph, v, axes| reduce_widened(graph, ScalarOp::Add, v, axes);
    /// Product over axes, which are dropped; computed in the types of [`sum`](Array::sum).
    prod |graph, v, axes| reduce_widened(graph, ScalarOp::Mul, v, axes);
    /// Largest element over axes, which are dropped; NaN if an element is NaN; an error over no elements.
    max |graph, v, axes| reduce_extremum(graph, ScalarOp::Maximum, v, axes);
    /// Smallest element over axes, which are dropped; NaN if an element is NaN; an error over no elements.
    min |graph, v, axes| reduce_extremum(graph, ScalarOp::Minimum, v, axes);
    /// True where any element along axes is not 0; the axes are dropped.
    any |graph, v, axes| {
        let v = cast(graph, v, DType::Bool)?;
        reduce(graph, ScalarOp::BitOr, v, axes)
    };
    /// True where every element along axes is not 0; the axes are dropped.
    all |graph, v, axes| {
        let v = cast(graph, v, DType::Bool)?;
        reduce(graph, ScalarOp::BitAnd, v, axes)
    };
    /// Mean over axes, which are dropped; NaN over no elements. Integers are taken as f32.
    mean |graph, v, axes| mean(graph, v, axes);
    /// Variance over axes, which are dropped: the mean of squared differences from the mean.
    var |graph, v, axes| variance(graph, v, axes);
    /// Standard deviation over axes, which are dropped: the square root of the variance.
    std |graph, v, axes| with_accumulator_type(graph, v, |graph, v| {
        let variance = variance(graph, v, axes)?;
        push_elementwise(graph, ScalarOp::Sqrt, &[GraphOperand::Var(variance)])
    });
    /// Euclidean norm over axes, which are dropped: the square root of the sum of squares. `jnp.linalg.norm`.
    norm |graph, v, axes| with_accumulator_type(graph, v, |graph, v| {
        let squares = graph.push(ScalarOp::Mul, &[v, v])?;
        let sum = reduce(graph, ScalarOp::Add, squares, axes)?;
        push_elementwise(graph, ScalarOp::Sqrt, &[GraphOperand::Var(sum)])
    });
    /// Difference of the largest and the smallest element over axes, which are dropped.
    ptp |graph, v, axes| {
        let (most, least) = (reduce_extremum(graph, ScalarOp::Maximum, v, axes)?, reduce_extremum(graph, ScalarOp::Minimum, v, axes)?);
        push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(most), GraphOperand::Var(least)])
    };
    /// Number of elements along axes that are not 0, i32; the axes are dropped.
    count_nonzero |graph, v, axes| {
        let truth = cast(graph, v, DType::Bool)?;
        reduce_widened(graph, ScalarOp::Add, truth, axes)
    };
    /// `ln(sum(exp(x)))` over axes, which are dropped, without overflow.
    logsumexp |graph, v, axes| logsumexp(graph, v, axes);
    /// `ln(mean(exp(x)))` over axes, which are dropped, without overflow.
    logmeanexp |graph, v, axes| {
        let shape = graph.ty(v).shape.clone();
        let count: usize = axes.resolve(shape.len())?.iter().map(|&axis| shape[axis]).product();
        with_accumulator_type(graph, v, |graph, v| {
            let sum = logsumexp(graph, v, axes)?;
            push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(sum), GraphOperand::Float((count as f64).ln())])
        })
    };
    /// Sum over axes of the elements that are not NaN.
    nansum |graph, v, axes| {
        let v = replace_nan(graph, v, 0.0)?;
        reduce_widened(graph, ScalarOp::Add, v, axes)
    };
    /// Product over axes of the elements that are not NaN.
    nanprod |graph, v, axes| {
        let v = replace_nan(graph, v, 1.0)?;
        reduce_widened(graph, ScalarOp::Mul, v, axes)
    };
    /// Largest element over axes that is not NaN; NaN where all are.
    nanmax |graph, v, axes| reduce_nan_extremum(graph, ScalarOp::Maximum, v, axes);
    /// Smallest element over axes that is not NaN; NaN where all are.
    nanmin |graph, v, axes| reduce_nan_extremum(graph, ScalarOp::Minimum, v, axes);
    /// Mean over axes of the elements that are not NaN; NaN where all are.
    nanmean |graph, v, axes| nan_mean(graph, v, axes);
    /// Variance over axes of the elements that are not NaN; NaN where all are.
    nanvar |graph, v, axes| nan_variance(graph, v, axes);
    /// Standard deviation over axes of the elements that are not NaN; NaN where all are.
    nanstd |graph, v, axes| with_accumulator_type(graph, v, |graph, v| {
        let variance = nan_variance(graph, v, axes)?;
        push_elementwise(graph, ScalarOp::Sqrt, &[GraphOperand::Var(variance)])
    });
}

/// Appends the array with each NaN replaced by a number.
pub(super) fn replace_nan(graph: &mut Graph, v: Var, number: f64) -> Result<Var, Diag> {
    if !graph.ty(v).dtype.is_float() {
        return Ok(v);
    }
    push_formula(graph, FormulaDtype::Any, [GraphOperand::Var(v)], |[x], _| x.is_nan().select(x.like(number), x))
}

/// Appends truth values: true where elements are not NaN.
fn is_not_nan(graph: &mut Graph, v: Var) -> Result<Var, Diag> {
    graph.push(ScalarOp::Eq, &[v, v])
}

/// Appends the largest or smallest element that is not NaN; NaN where all are.
fn reduce_nan_extremum(graph: &mut Graph, op: ScalarOp, v: Var, axes: &Axes) -> Result<Var, Diag> {
    check_has_elements(graph, if op == ScalarOp::Maximum { "nanmax" } else { "nanmin" }, v, axes)?;
    if !graph.ty(v).dtype.is_float() {
        return reduce(graph, op, v, axes);
    }
    let neutral = if op == ScalarOp::Maximum { f64::NEG_INFINITY } else { f64::INFINITY };
    let numbers = replace_nan(graph, v, neutral)?;
    let (most, is_number) = (reduce(graph, op, numbers, axes)?, is_not_nan(graph, v)?);
    let any = reduce(graph, ScalarOp::BitOr, is_number, axes)?;
    push_elementwise(
        graph,
        ScalarOp::Select,
        &[GraphOperand::Var(any), GraphOperand::Var(most), GraphOperand::Float(f64::NAN)],
    )
}

/// Appends the mean of the elements that are not NaN; NaN where all are.
fn nan_mean(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    with_accumulator_type(graph, v, |graph, v| {
        let (numbers, is_number) = (replace_nan(graph, v, 0.0)?, is_not_nan(graph, v)?);
        let (sum, count) =
            (reduce(graph, ScalarOp::Add, numbers, axes)?, reduce_widened(graph, ScalarOp::Add, is_number, axes)?);
        push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(sum), GraphOperand::Var(count)])
    })
}

/// Appends the variance of the elements that are not NaN; NaN where all are.
fn nan_variance(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    with_accumulator_type(graph, v, |graph, v| {
        let centre = nan_mean(graph, v, &super::keep(axes.clone()))?;
        // Before they are squared: the derivative of a square at NaN is NaN.
        let distances = push_formula(
            graph,
            FormulaDtype::Float,
            [GraphOperand::Var(v), GraphOperand::Var(centre)],
            |[x, mean], _| x.is_nan().select(x.zero(), x - mean),
        )?;
        let squares = graph.push(ScalarOp::Mul, &[distances, distances])?;
        let is_number = is_not_nan(graph, v)?;
        let (sum, count) =
            (reduce(graph, ScalarOp::Add, squares, axes)?, reduce_widened(graph, ScalarOp::Add, is_number, axes)?);
        push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(sum), GraphOperand::Var(count)])
    })
}

/// Appends `ln(sum(exp(x)))`; the largest element is subtracted first, so that nothing overflows.
fn logsumexp(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    with_accumulator_type(graph, v, |graph, v| {
        let most = reduce(graph, ScalarOp::Maximum, v, &super::keep(axes.clone()))?;
        // An infinity minus itself would be NaN.
        let most = push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(most)], |[x], _| {
            x.is_finite().select(x, x.zero())
        })?;
        let most = graph.push(StopGradient, &[most])?;
        let e = push_formula(
            graph,
            FormulaDtype::Float,
            [GraphOperand::Var(v), GraphOperand::Var(most)],
            |[x, most], _| (x - most).exp(),
        )?;
        let sum = reduce(graph, ScalarOp::Add, e, axes)?;
        let most = reshape(graph, most, &graph.ty(sum).shape.clone())?;
        push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(sum), GraphOperand::Var(most)], |[sum, most], _| {
            sum.log() + most
        })
    })
}

impl Array {
    /// Position of the largest element along an axis, i32: of equal elements the first; of a NaN, if there is one.
    #[track_caller]
    #[must_use]
    pub fn argmax(&self, axis: isize) -> Array {
        self.arg_reduce(axis, true, Loc::caller())
    }

    /// Position of the smallest element along an axis, i32: of equal elements the first; of a NaN, if there is one.
    #[track_caller]
    #[must_use]
    pub fn argmin(&self, axis: isize) -> Array {
        self.arg_reduce(axis, false, Loc::caller())
    }

    /// Makes the positions of the largest (`is_max`) or smallest elements along an axis.
    fn arg_reduce(&self, axis: isize, is_max: bool, at: Loc) -> Array {
        apply(&[self], at, |graph, v| {
            check_has_elements(graph, if is_max { "argmax" } else { "argmin" }, v[0], &axis.into())?;
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            let x = match graph.ty(v[0]).dtype {
                DType::Bool => cast(graph, v[0], DType::U8)?,
                _ => v[0],
            };
            graph.push(StructuralOp::from(ArgReduce { max: is_max, axis, keep: false }), &[x])
        })
    }
}

/// Appends the variance over `axes`, the mean squared distance from the mean, computed in the accumulator's type and
/// rounded to the type of `v`, or f32 for integers.
pub(super) fn variance(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    with_accumulator_type(graph, v, |graph, v| {
        let centre = mean(graph, v, &super::keep(axes.clone()))?;
        let centred = push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(v), GraphOperand::Var(centre)])?;
        let squares = graph.push(ScalarOp::Mul, &[centred, centred])?;
        mean(graph, squares, axes)
    })
}

/// Appends the mean over `axes`, computed in the accumulator's type and rounded to the type of `v`, or f32 for
/// integers.
pub(super) fn mean(graph: &mut Graph, v: Var, axes: &Axes) -> Result<Var, Diag> {
    with_accumulator_type(graph, v, |graph, v| {
        let shape = graph.ty(v).shape.clone();
        let count: usize = axes.resolve(shape.len())?.iter().map(|&axis| shape[axis]).product();
        let sum = reduce(graph, ScalarOp::Add, v, axes)?;
        push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(sum), GraphOperand::Float(count as f64)])
    })
}
