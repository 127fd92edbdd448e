//! Running folds, differences, and reductions with more arguments.
use super::axes::{Axes, ScanAxis, canonicalize_axis};
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise};
use super::formula::{FormulaDtype, push_formula};
use super::index::{Item, index};
use super::reduce::{check_has_elements, reduce, reduce_widened, replace_nan};
use super::shape::{reshape, transpose};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{ArgReduce, Cumulative};
use pallas_ir::{At, DType, Diag, Loc, ScalarOp, StructuralOp};

/// Appends a running fold along an axis; truth values are counted as i32.
fn push_cumulative(graph: &mut Graph, op: ScalarOp, v: Var, along: ScanAxis) -> Result<Var, Diag> {
    let axis = along.resolve_axis(graph.ty(v).shape.len())?;
    let is_bool = graph.ty(v).dtype == DType::Bool;
    let v = if is_bool { cast(graph, v, DType::I32)? } else { v };
    graph.push(StructuralOp::from(Cumulative { op, axis, reverse: along.is_reversed() }), &[v])
}

/// Declares methods of one axis and a direction by their equations.
macro_rules! along {
    ($($(#[$doc:meta])+ $name:ident |$graph:ident, $v:ident, $along:ident| $equations:expr;)*) => {
        impl Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self, axis: impl Into<ScanAxis>) -> Array {
                let $along = axis.into();
                apply(&[self], Loc::caller(), |$graph, v| {
                    let $v = v[0];
                    $equations
                })
            }
        )*}
    };
}
along! {
    /// Running sum along an axis, from its end with [`reverse`](super::reverse); truth values are counted as i32.
    cumsum |graph, v, along| push_cumulative(graph, ScalarOp::Add, v, along);
    /// Running product along an axis, from its end with [`reverse`](super::reverse).
    cumprod |graph, v, along| push_cumulative(graph, ScalarOp::Mul, v, along);
    /// Running maximum along an axis, from its end with [`reverse`](super::reverse); `jax.lax.cummax`.
    cummax |graph, v, along| push_cumulative(graph, ScalarOp::Maximum, v, along);
    /// Running minimum along an axis, from its end with [`reverse`](super::reverse); `jax.lax.cummin`.
    cummin |graph, v, along| push_cumulative(graph, ScalarOp::Minimum, v, along);
    /// Running sum along an axis of the elements that are not NaN, from its end with [`reverse`](super::reverse).
    nancumsum |graph, v, along| {
        let v = replace_nan(graph, v, 0.0)?;
        push_cumulative(graph, ScalarOp::Add, v, along)
    };
    /// Running product along an axis of the elements that are not NaN, from its end with [`reverse`](super::reverse).
    nancumprod |graph, v, along| {
        let v = replace_nan(graph, v, 1.0)?;
        push_cumulative(graph, ScalarOp::Mul, v, along)
    };
}

/// Appends the position of the largest (`is_max`) or smallest element that is not NaN; -1 where all are.
fn nan_arg_reduce(graph: &mut Graph, v: Var, axis: isize, is_max: bool) -> Result<Var, Diag> {
    check_has_elements(graph, if is_max { "nanargmax" } else { "nanargmin" }, v, &axis.into())?;
    let axis = canonicalize_axis(axis, graph.ty(v).shape.len())?;
    let arg = ArgReduce { max: is_max, axis, keep: false };
    if !graph.ty(v).dtype.is_float() {
        let v = if graph.ty(v).dtype == DType::Bool { cast(graph, v, DType::U8)? } else { v };
        return graph.push(StructuralOp::from(arg), &[v]);
    }
    let numbers = replace_nan(graph, v, if is_max { f64::NEG_INFINITY } else { f64::INFINITY })?;
    let position = graph.push(StructuralOp::from(arg), &[numbers])?;
    let is_number = graph.push(ScalarOp::Eq, &[v, v])?;
    let any = reduce(graph, ScalarOp::BitOr, is_number, &(axis as isize).into())?;
    push_elementwise(
        graph,
        ScalarOp::Select,
        &[GraphOperand::Var(any), GraphOperand::Var(position), GraphOperand::Int(-1)],
    )
}

/// Appends the elements of `v` along `axis` from position `from` up to but without `to`; a negative `to` counts from
/// the end, `None` is the end.
fn push_axis_slice(graph: &mut Graph, v: Var, axis: usize, from: i64, to: Option<i64>) -> Result<Var, Diag> {
    let mut items = vec![Item::from(..); axis];
    items.push(Item::Range { start: Some(from), stop: to, step: 1 });
    index(graph, v, &items)
}

impl Array {
    /// Position of the largest element along an axis that is not NaN, i32; -1 where all are NaN.
    #[track_caller]
    #[must_use]
    pub fn nanargmax(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| nan_arg_reduce(graph, v[0], axis, true))
    }

    /// Position of the smallest element along an axis that is not NaN, i32; -1 where all are NaN.
    #[track_caller]
    #[must_use]
    pub fn nanargmin(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| nan_arg_reduce(graph, v[0], axis, false))
    }

    /// `ln(sum(exp(x)))` of all elements up to each one along an axis, from its end with [`reverse`](super::reverse),
    /// without overflow; `jax.lax.cumlogsumexp`. Integers are taken as f32; 16-bit floats are computed in f32.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[500.0f32, 500.0, -500.0], &[3])?.cumlogsumexp(0).to_vec::<f32>()?;
    /// assert_eq!(x[0], 500.0);
    /// assert!((x[1] - 500.0 - 2f32.ln()).abs() < 1e-4 && x[2] == x[1]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn cumlogsumexp(&self, axis: impl Into<ScanAxis>) -> Array {
        let along = axis.into();
        let own = if self.dtype().is_float() { self.dtype() } else { DType::F32 };
        let wide = apply(&[self], Loc::caller(), |graph, v| {
            along.resolve_axis(graph.ty(v[0]).shape.len())?;
            cast(graph, v[0], own.accumulator())
        });
        along
            .to_associative_scan()
            .run(&wide, |a: &Array, b: &Array| a.logaddexp(b))
            .unwrap_or_else(|error| Array::new_poisoned(error, self.client().clone(), own, self.shape()))
            .cast(own)
    }

    /// Differences of neighbours along an axis, `order` times over; of truth values, true where they differ.
    #[track_caller]
    #[must_use]
    pub fn diff(&self, order: usize, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            let mut x = v[0];
            // Of nothing there are no differences, which are the same for any order.
            for _ in 0..order.min(graph.ty(x).shape[axis]) {
                let (after, before) =
                    (push_axis_slice(graph, x, axis, 1, None)?, push_axis_slice(graph, x, axis, 0, Some(-1))?);
                let op = if graph.ty(x).dtype == DType::Bool { ScalarOp::Ne } else { ScalarOp::Sub };
                x = push_elementwise(graph, op, &[GraphOperand::Var(after), GraphOperand::Var(before)])?;
            }
            Ok(x)
        })
    }

    /// Integral along an axis by the trapezoidal rule, for points at this distance.
    #[track_caller]
    #[must_use]
    pub fn trapezoid(&self, distance: f64, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            let (after, before) =
                (push_axis_slice(graph, v[0], axis, 1, None)?, push_axis_slice(graph, v[0], axis, 0, Some(-1))?);
            let pairs = [GraphOperand::Var(after), GraphOperand::Var(before)];
            let areas = push_formula(graph, FormulaDtype::Float, pairs, |[a, b], _| (a + b) * (distance * 0.5))?;
            reduce(graph, ScalarOp::Add, areas, &(axis as isize).into())
        })
    }

    /// Mean over axes of weighted elements; weights have the array's shape, or one axis if the mean is over one.
    #[track_caller]
    #[must_use]
    pub fn average(&self, axes: impl Into<Axes>, weights: &Array) -> Array {
        let axes = axes.into();
        apply(&[self, weights], Loc::caller(), |graph, v| {
            let (shape, own) = (graph.ty(v[0]).shape.clone(), graph.ty(v[1]).shape.clone());
            let along = axes.resolve(shape.len())?;
            let wide = match along[..] {
                _ if own == shape => v[1],
                [axis] if own == [shape[axis]] => {
                    let mut to = vec![1; shape.len()];
                    to[axis] = shape[axis];
                    reshape(graph, v[1], &to)?
                }
                _ => {
                    let message = format!("weights of shape {own:?} for an average of {shape:?}");
                    let help = "weights have the array's shape, or one axis, that of the average";
                    return Err(Diag::new("average", At::Operand(1), message, help));
                }
            };
            let pair = [GraphOperand::Var(v[0]), GraphOperand::Var(wide)];
            let products = push_formula(graph, FormulaDtype::Float, pair, |[x, weight], _| x * weight)?;
            let weights = push_formula(graph, FormulaDtype::Float, [pair[1], pair[0]], |[weight, _], _| weight)?;
            let sum = reduce(graph, ScalarOp::Add, products, &axes)?;
            let all = reduce(graph, ScalarOp::Add, weights, &axes)?;
            push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(sum), GraphOperand::Var(all)])
        })
    }

    /// Vector norm of an order over axes, which are dropped: `sum(|x|^p)^(1/p)`; the largest magnitude for infinity,
    /// the smallest for -infinity, the number of elements that are not 0 for 0.
    #[track_caller]
    #[must_use]
    pub fn vector_norm(&self, order: f64, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let size = push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(v[0])], |[x], _| x.abs())?;
            if order.is_infinite() {
                if order < 0.0 {
                    return reduce(graph, ScalarOp::Minimum, size, &axes);
                }
                // JAX begins with 0, which shares the slope where all elements are 0.
                let most = reduce(graph, ScalarOp::Maximum, size, &axes)?;
                return push_elementwise(
                    graph,
                    ScalarOp::Maximum,
                    &[GraphOperand::Var(most), GraphOperand::Float(0.0)],
                );
            }
            if order == 0.0 {
                let truth = cast(graph, size, DType::Bool)?;
                let dtype = graph.ty(size).dtype;
                let count = reduce_widened(graph, ScalarOp::Add, truth, &axes)?;
                return cast(graph, count, dtype);
            }
            let powers =
                push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(size)], |[x], _| x.pow(x.like(order)))?;
            let sum = reduce(graph, ScalarOp::Add, powers, &axes)?;
            push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(sum)], |[x], _| x.pow(x.like(1.0 / order)))
        })
    }

    /// Covariances of the rows of a matrix, or the variance of one axis, divided by one less than their length;
    /// `jnp.cov`.
    #[track_caller]
    #[must_use]
    pub fn cov(&self) -> Array {
        apply(&[self], Loc::caller(), |graph, v| push_covariances(graph, v[0]))
    }

    /// Correlation coefficients of the rows of a matrix.
    #[track_caller]
    #[must_use]
    pub fn corrcoef(&self) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let all = push_covariances(graph, v[0])?;
            if graph.ty(all).is_scalar() {
                return push_elementwise(graph, ScalarOp::Div, &[all, all].map(GraphOperand::Var));
            }
            let diagonal = super::triangle::diagonal(graph, all, 0, 0, 1)?;
            let spread = push_elementwise(graph, ScalarOp::Sqrt, &[GraphOperand::Var(diagonal)])?;
            let column = reshape(graph, spread, &[graph.ty(spread).elements(), 1])?;
            let operands = [GraphOperand::Var(all), GraphOperand::Var(column), GraphOperand::Var(spread)];
            push_formula(graph, FormulaDtype::Float, operands, |[x, a, b], _| {
                (x / a / b).maximum(x.like(-1.0)).minimum(x.like(1.0))
            })
        })
    }

    /// The polynomial with these coefficients, from that of the highest power, at `x`; `jnp.polyval`.
    #[track_caller]
    #[must_use]
    pub fn polyval(&self, x: &Array) -> Array {
        apply(&[self, x], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            let [count] = ty.shape[..] else {
                return Err(Diag::new(
                    "polyval",
                    At::Operand(0),
                    format!("coefficients of {ty}"),
                    "they have one axis",
                ));
            };
            let pair = [GraphOperand::Var(v[1]), GraphOperand::Var(v[0])];
            let dtype = super::elementwise_broadcast::common_dtype(graph, &pair);
            let x = cast(graph, v[1], dtype)?;
            let shape = graph.ty(x).shape.clone();
            let coefficient = |graph: &mut Graph, i: usize| super::arrange::take_position(graph, v[0], 0, i as i64);
            if count == 0 {
                return Ok(graph.splat(pallas_ir::Literal::new(dtype, 0.0), &shape));
            }
            // The first coefficient is not added to 0 times `x`, which may be infinite.
            let first = coefficient(graph, 0)?;
            let first = cast(graph, first, dtype)?;
            let mut value = graph.broadcast(first, &shape)?;
            for i in 1..count {
                let operands =
                    [GraphOperand::Var(value), GraphOperand::Var(x), GraphOperand::Var(coefficient(graph, i)?)];
                value = push_formula(graph, FormulaDtype::Any, operands, |[value, x, coefficient], _| {
                    value * x + coefficient
                })?;
            }
            Ok(value)
        })
    }
}

/// Appends the covariances of the rows of a matrix, or the variance of one axis.
fn push_covariances(graph: &mut Graph, v: Var) -> Result<Var, Diag> {
    let ty = graph.ty(v).clone();
    if ty.shape.len() > 2 || ty.shape.is_empty() {
        return Err(Diag::new("cov", At::Op, format!("covariances of {ty}"), "one axis, or the rows of a matrix"));
    }
    let centre = super::reduce::mean(graph, v, &super::keep(-1))?;
    let centred = push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Var(v), GraphOperand::Var(centre)])?;
    let count = ty.shape[ty.shape.len() - 1];
    let turned = if ty.shape.len() == 2 { transpose(graph, centred, vec![1, 0])? } else { centred };
    let products = super::matmul::matmul(graph, centred, turned)?;
    push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(products), GraphOperand::Float(count as f64 - 1.0)])
}
