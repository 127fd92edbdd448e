//! Quantiles: elements at fractions of the sorted elements.
use super::Axes;
use super::elementwise_broadcast::{GraphOperand, Operand, apply_to_operands, cast, push_elementwise, splat};
use super::formula::{FormulaDtype, push_formula};
use super::reduce::reduce;
use super::shape::{reshape, transpose};
use super::sort::{push_sort, push_take_along};
use crate::array::Array;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp};

/// Method that gives the value of a quantile which lies between two elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuantileMethod {
    /// The weighted mean of the two.
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The mean of the two.
    Midpoint,
    /// The nearer one; the lower one in the middle.
    Nearest,
}

/// Options of a quantile: the axes, the interpolation between elements, the treatment of NaN, and the unit of the
/// fractions.
struct QuantileOptions<'a> {
    axes: &'a Axes,
    between: QuantileMethod,
    /// True if NaNs are left out; else they make the result NaN.
    skips_nan: bool,
    /// True if fractions are given in hundredths.
    percent: bool,
}

impl Array {
    /// Elements at fractions `q` of the sorted elements over axes, which are dropped; NaN if one is NaN. `q` is a
    /// number from 0 to 1, or an array of at most one axis, which the result has first. Integers are taken as f32.
    ///
    /// ```
    /// use pallas_rt::{Array, ops::QuantileMethod};
    /// let x = Array::from_slice(&[1.0f32, 2.0, 4.0, 3.0], &[4])?;
    /// assert_eq!(x.quantile(0.5, .., QuantileMethod::Linear).to_vec::<f32>()?, [2.5]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn quantile(&self, q: impl Into<Operand>, axes: impl Into<Axes>, between: QuantileMethod) -> Array {
        quantile(self, q.into(), &axes.into(), between, [false, false], Loc::caller())
    }

    /// Quantiles of the elements that are not NaN; NaN where all are. See [`quantile`](Array::quantile).
    #[track_caller]
    #[must_use]
    pub fn nanquantile(&self, q: impl Into<Operand>, axes: impl Into<Axes>, between: QuantileMethod) -> Array {
        quantile(self, q.into(), &axes.into(), between, [true, false], Loc::caller())
    }

    /// Quantiles at `q` hundredths; see [`quantile`](Array::quantile).
    #[track_caller]
    #[must_use]
    pub fn percentile(&self, q: impl Into<Operand>, axes: impl Into<Axes>, between: QuantileMethod) -> Array {
        quantile(self, q.into(), &axes.into(), between, [false, true], Loc::caller())
    }

    /// Quantiles at `q` hundredths of the elements that are not NaN; see [`nanquantile`](Array::nanquantile).
    #[track_caller]
    #[must_use]
    pub fn nanpercentile(&self, q: impl Into<Operand>, axes: impl Into<Axes>, between: QuantileMethod) -> Array {
        quantile(self, q.into(), &axes.into(), between, [true, true], Loc::caller())
    }

    /// Median over axes, which are dropped: the mean of the two middle elements; NaN if an element is NaN.
    #[track_caller]
    #[must_use]
    pub fn median(&self, axes: impl Into<Axes>) -> Array {
        quantile(self, Operand::Float(0.5), &axes.into(), QuantileMethod::Midpoint, [false, false], Loc::caller())
    }

    /// Median over axes of the elements that are not NaN; NaN where all are.
    #[track_caller]
    #[must_use]
    pub fn nanmedian(&self, axes: impl Into<Axes>) -> Array {
        quantile(self, Operand::Float(0.5), &axes.into(), QuantileMethod::Midpoint, [true, false], Loc::caller())
    }
}

fn quantile(
    x: &Array,
    q: Operand,
    axes: &Axes,
    between: QuantileMethod,
    [skips_nan, percent]: [bool; 2],
    at: Loc,
) -> Array {
    let quantile = QuantileOptions { axes, between, skips_nan, percent };
    apply_to_operands(&[x.into(), q], at, |graph, x| quantile.push_quantiles(graph, x[0], x[1]))
}

impl QuantileOptions<'_> {
    /// Appends the quantiles of `x` at `q`.
    fn push_quantiles(&self, graph: &mut Graph, x: GraphOperand, q: GraphOperand) -> Result<Var, Diag> {
        let x = x.var().expect("the first operand is an array");
        let x = if graph.ty(x).dtype.is_float() { x } else { cast(graph, x, DType::F32)? };
        let dtype = graph.ty(x).dtype;
        // Fractions and means are computed in f32 at least.
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let q = self.push_fractions(graph, q, wide)?;
        let (shape, axes) = (graph.ty(x).shape.clone(), self.axes.resolve(graph.ty(x).shape.len())?);
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let line: usize = axes.iter().map(|&axis| shape[axis]).product();
        let outer: Vec<usize> = kept.iter().map(|&axis| shape[axis]).collect();
        let count = graph.ty(q).shape.first().copied();
        let with = |last: usize| [&outer[..], &[last]].concat();
        if line == 0 {
            let message = format!("a quantile over no elements of {shape:?}");
            return Err(Diag::new("empty", At::Operand(0), message, "axes of quantiles have elements"));
        }
        let turned = transpose(graph, x, kept.iter().chain(&axes).copied().collect())?;
        let mut lines = reshape(graph, turned, &with(line))?;
        let last = super::keep(-1);
        let is_nan = graph.push(ScalarOp::Ne, &[lines, lines])?;
        let numbers = if self.skips_nan {
            let is_number = graph.push(ScalarOp::Not, &[is_nan])?;
            let ones = cast(graph, is_number, wide)?;
            // NaN that is skipped has no slope.
            lines = push_elementwise(
                graph,
                ScalarOp::Select,
                &[GraphOperand::Var(is_number), GraphOperand::Var(lines), GraphOperand::Float(f64::NAN)],
            )?;
            reduce(graph, ScalarOp::Add, ones, &last)?
        } else {
            let any = reduce(graph, ScalarOp::BitOr, is_nan, &last)?;
            lines = push_elementwise(
                graph,
                ScalarOp::Select,
                &[GraphOperand::Var(any), GraphOperand::Float(f64::NAN), GraphOperand::Var(lines)],
            )?;
            splat(graph, Literal::new(wide, line as f64), &with(1))?
        };
        let lines = push_sort(graph, lines, outer.len())?;
        let place =
            push_formula(graph, FormulaDtype::Any, [GraphOperand::Var(q), GraphOperand::Var(numbers)], |[q, n], _| {
                q * (n - n.like(1.0))
            })?;
        let mut neighbour = |op: ScalarOp| {
            let near = graph.push(op, &[place])?;
            let held = push_formula(
                graph,
                FormulaDtype::Any,
                [GraphOperand::Var(near), GraphOperand::Var(numbers)],
                |[at, n], _| at.minimum(n - n.like(1.0)).maximum(n.zero()),
            )?;
            let at = cast(graph, held, DType::I32)?;
            Ok((near, push_take_along(graph, lines, at, outer.len())?))
        };
        let ((floor, low), (_, high)) = (neighbour(ScalarOp::Floor)?, neighbour(ScalarOp::Ceil)?);
        let weight = graph.push(ScalarOp::Sub, &[place, floor])?;
        let all = [low, high, weight].map(GraphOperand::Var);
        let value = match self.between {
            QuantileMethod::Lower => low,
            QuantileMethod::Higher => high,
            QuantileMethod::Linear => {
                let low = cast(graph, low, wide)?;
                let high = cast(graph, high, wide)?;
                push_formula(
                    graph,
                    FormulaDtype::Any,
                    [GraphOperand::Var(low), GraphOperand::Var(high), all[2]],
                    |[low, high, weight], _| low * (weight.like(1.0) - weight) + high * weight,
                )?
            }
            QuantileMethod::Midpoint => {
                push_formula(graph, FormulaDtype::Any, [all[0], all[1]], |[a, b], _| (a + b) * 0.5)?
            }
            QuantileMethod::Nearest => {
                let is_low = push_elementwise(graph, ScalarOp::Le, &[all[2], GraphOperand::Float(0.5)])?;
                graph.push(ScalarOp::Select, &[is_low, low, high])?
            }
        };
        let value = cast(graph, value, dtype)?;
        let mut to = outer.clone();
        if self.axes.keeps_axes() {
            to = (0..shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] }).collect();
        }
        let Some(count) = count else { return reshape(graph, value, &to) };
        let rank = outer.len();
        let front = transpose(graph, value, std::iter::once(rank).chain(0..rank).collect())?;
        reshape(graph, front, &[&[count], &to[..]].concat())
    }

    /// Appends the points `q` of the quantiles as fractions from 0 to 1 in `dtype`; percentages are divided by 100.
    /// Refuses truth values and arrays of more than one axis.
    fn push_fractions(&self, graph: &mut Graph, q: GraphOperand, dtype: DType) -> Result<Var, Diag> {
        let q = match q {
            GraphOperand::Var(v) => {
                let ty = graph.ty(v).clone();
                if ty.shape.len() > 1 || ty.dtype == DType::Bool {
                    let message = format!("quantiles at {ty}");
                    return Err(Diag::new("quantile", At::Operand(1), message, "a number, or an array of one axis"));
                }
                cast(graph, v, dtype)?
            }
            GraphOperand::Float(q) => graph.literal(Literal::new(dtype, q)),
            GraphOperand::Int(q) => graph.literal(Literal::new(dtype, q as f64)),
            GraphOperand::Bool(q) => {
                let message = format!("quantiles at {q}");
                return Err(Diag::new("quantile", At::Operand(1), message, "a number, or an array of one axis"));
            }
        };
        if !self.percent {
            return Ok(q);
        }
        push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(q), GraphOperand::Float(100.0)])
    }
}
