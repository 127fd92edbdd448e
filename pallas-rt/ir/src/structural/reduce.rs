//! Reductions: folds over axes, which stay with extent 1 or are dropped.
use super::{
    AccessForm, Broadcast, Cumulative, OpTestCase, Pad, RandomKernelGenerator, RuleOperand, Slice, Structural,
    VmapBatch, check_arity, check_axes, check_monoid, derive::shift_axes, draw, draw::draw_operand_axis,
    join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// Reduction of axes by a monoid: `result[i, 0]`, or `result[i]`, is the fold of `x[i, k]` over k; of no elements the
/// neutral element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reduce {
    /// The monoid: an operation with a `fold` cell in the table.
    pub op: ScalarOp,
    /// The axes that are folded.
    pub axes: Vec<usize>,
    /// True if the axes stay with extent 1; else the result drops them.
    pub keep: bool,
}

impl Reduce {
    /// Creates a reduction whose axes stay with extent 1.
    pub fn keeping(op: ScalarOp, axes: Vec<usize>) -> Self {
        Reduce { op, axes, keep: true }
    }
    /// Creates a reduction that drops its axes.
    pub fn dropping(op: ScalarOp, axes: Vec<usize>) -> Self {
        Reduce { op, axes, keep: false }
    }
    /// Broadcasts the result to the operand's shape.
    fn broadcast_to_operand<'g>(&self, y: E<'g>, shape: &[Dim]) -> E<'g> {
        let dims = (0..shape.len()).filter(|axis| self.keep || !self.axes.contains(axis)).collect();
        y.apply(Broadcast { to: shape.to_vec(), dims }, &[y])
    }
}

methods! { ($) Reduce;
    /// Sum over axes, which stay with extent 1.
    fn sum<T: Number>(axes: Axes) -> T { Reduce::keeping(ScalarOp::Add, axes) }
    /// Product over axes, which stay with extent 1.
    fn prod<T: Number>(axes: Axes) -> T { Reduce::keeping(ScalarOp::Mul, axes) }
    /// Largest element over axes, which stay with extent 1; -inf (or the lowest integer) over nothing.
    fn max<T: Number>(axes: Axes) -> T { Reduce::keeping(ScalarOp::Maximum, axes) }
    /// Smallest element over axes, which stay with extent 1; inf (or the highest integer) over nothing.
    fn min<T: Number>(axes: Axes) -> T { Reduce::keeping(ScalarOp::Minimum, axes) }
    /// True where any element along axes is true; the axes stay with extent 1.
    fn any<T: Bool>(axes: Axes) -> T { Reduce::keeping(ScalarOp::BitOr, axes) }
    /// True where every element along axes is true; the axes stay with extent 1.
    fn all<T: Bool>(axes: Axes) -> T { Reduce::keeping(ScalarOp::BitAnd, axes) }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reduce op({}) axes({}){}", self.op, join_with_commas(&self.axes), keep_attribute_text(self.keep))
    }
}

/// The attribute `keep` as text; only written if the axes are dropped.
fn keep_attribute_text(keep: bool) -> &'static str {
    if keep { "" } else { " keep(false)" }
}
/// Parses the attribute `keep`, which is true if it is not written.
fn parse_keep_attribute(attributes: &Attributes<'_>) -> Result<bool, String> {
    if attributes.has("keep") { attributes.value("keep") } else { Ok(true) }
}

/// Returns the shape of the result of the reduction `name` of one operand over `axes`: they stay with extent 1 if
/// `keep`, and are dropped otherwise.
fn infer_reduced_shape(name: &str, axes: &[usize], keep: bool, args: &[&[Dim]]) -> Result<Vec<Dim>, Diag> {
    check_arity(name, args.len(), 1)?;
    check_axes(name, axes, args[0])?;
    let size = |(axis, n): (usize, &Dim)| match axes.contains(&axis) {
        true => keep.then(|| 1i64.into()),
        false => Some(n.clone()),
    };
    Ok(args[0].iter().enumerate().filter_map(size).collect())
}

/// Products, for each element, of those before it along an axis, or with `reverse` of those after it.
fn exclusive_cumprod<'g>(x: E<'g>, shape: &[Dim], axis: usize, reverse: bool) -> E<'g> {
    if shape[axis].as_number() == Some(0) {
        return x;
    }
    let products = x.apply(Cumulative { op: ScalarOp::Mul, axis, reverse }, &[x]);
    let (mut start, mut size) = (vec![0; shape.len()], shape.to_vec());
    start[axis] = i64::from(reverse);
    size[axis] = &size[axis] - &Dim::from(1i64);
    let cut = products.apply(Slice { start, size, stride: vec![1; shape.len()] }, &[products]);
    let (mut low, mut high) = (vec![Dim::from(0i64); shape.len()], vec![Dim::from(0i64); shape.len()]);
    if reverse {
        high[axis] = 1i64.into()
    } else {
        low[axis] = 1i64.into()
    }
    cut.apply(Pad { low, high }, &[cut, cut.scalar_constant(1.0)])
}

impl Structural for Reduce {
    const NAME: &'static str = "reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Reduce {
            op: attributes.value("op")?,
            axes: attributes.list("axes")?,
            keep: parse_keep_attribute(attributes)?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        infer_reduced_shape(Self::NAME, &self.axes, self.keep, args)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_monoid(Self::NAME, self.op, args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Fold { op: self.op, axes: self.axes.clone() }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Reduce { axes: shift_axes(&self.axes), ..self.clone() }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], y: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (x, dx) = (args[0].value, tangents[0]?);
        let sum = |x: E<'g>| x.apply(Reduce { op: ScalarOp::Add, ..self.clone() }, &[x]);
        match self.op {
            ScalarOp::Add => Some(sum(dx)),
            ScalarOp::Minimum | ScalarOp::Maximum => {
                // Equal extreme elements share the derivative.
                let chosen = x.eq(self.broadcast_to_operand(y, args[0].shape));
                let count = sum(chosen.select(x.like(1.0), x.zero()));
                Some(sum(chosen.select(dx, dx.zero())) / count)
            }
            ScalarOp::Mul => {
                // Axis by axis, each factor's tangent times the factors before and after it, which divides by no zeros.
                let (mut x, mut dx, mut shape) = (x, dx, args[0].shape.to_vec());
                for &axis in &self.axes {
                    let others = exclusive_cumprod(x, &shape, axis, false) * exclusive_cumprod(x, &shape, axis, true);
                    dx = (dx * others).sum_axes(vec![axis]);
                    x = x.apply(Reduce::keeping(ScalarOp::Mul, vec![axis]), &[x]);
                    shape[axis] = 1i64.into();
                }
                Some(if self.keep { dx } else { sum(dx) })
            }
            _ => None,
        }
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        vec![(self.op == ScalarOp::Add).then(|| self.broadcast_to_operand(cotangent, args[0].shape))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        let op = draw::draw_monoid(from, x.dtype)?;
        let mut axes = vec![axis];
        axes.extend((0..x.shape.len()).filter(|&other| other != axis && from.draw_below(4) == 0));
        Some(Reduce { op, axes, keep: from.draw_below(2) == 0 })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |op, axes, keep| OpTestCase {
            op: Reduce { op, axes, keep },
            args: &[&["M", "N", "K"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 3), ("K", 2)],
        };
        let both = |keep| {
            [
                case(ScalarOp::Add, vec![1], keep),
                case(ScalarOp::Add, vec![0, 1, 2], keep),
                case(ScalarOp::Maximum, vec![0], keep),
                case(ScalarOp::Minimum, vec![2, 0], keep),
                case(ScalarOp::Mul, vec![0, 1], keep),
            ]
        };
        [true, false].into_iter().flat_map(both).collect()
    }
}

/// i32 position of the largest (or smallest) element along an axis: of equal elements the first; a NaN wins.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgReduce {
    /// True if the largest element is sought, else the smallest.
    pub max: bool,
    /// The axis to search.
    pub axis: usize,
    /// True if the axis stays with extent 1; else the result drops it.
    pub keep: bool,
}

methods! { ($) ArgReduce;
    /// i32 position of the largest element along an axis, which stays with extent 1: of equal ones the first; a NaN
    /// wins.
    fn argmax<T: Number>(axis: Axis) -> i32 { ArgReduce { max: true, axis, keep: true } }
    /// i32 position of the smallest element along an axis, which stays with extent 1: of equal ones the first; a NaN
    /// wins.
    fn argmin<T: Number>(axis: Axis) -> i32 { ArgReduce { max: false, axis, keep: true } }
}

impl fmt::Display for ArgReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arg_reduce max({}) axis({}){}", self.max, self.axis, keep_attribute_text(self.keep))
    }
}

impl Structural for ArgReduce {
    const NAME: &'static str = "arg_reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        let keep = parse_keep_attribute(attributes)?;
        Ok(ArgReduce { max: attributes.value("max")?, axis: attributes.value("axis")?, keep })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        let out = infer_reduced_shape(Self::NAME, &[self.axis], self.keep, args)?;
        if args[0][self.axis].as_number() == Some(0) {
            let found = format!("`arg_reduce` along axis {} of {}", self.axis, shape(args[0]));
            return Err(Diag::new("empty", At::Operand(0), found, "an empty axis has no extreme element"));
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_monoid(Self::NAME, ScalarOp::Maximum, args).map(|_| DType::I32)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Arg { max: self.max, axis: self.axis }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(ArgReduce { axis: self.axis + 1, ..*self }, &[x]))
    }
    fn jvp<'g>(&self, _: &[RuleOperand<'_, 'g>], _: E<'g>, _: &[Option<E<'g>>]) -> Option<E<'g>> {
        None
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let x = from.choose_operand(&|ty| !ty.is_scalar() && ty.dtype != DType::Bool)?;
        Some(ArgReduce {
            max: from.draw_below(2) == 0,
            axis: from.draw_below(x.shape.len()),
            keep: from.draw_below(2) == 0,
        })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |axis, keep| OpTestCase {
            op: ArgReduce { max: true, axis, keep },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 3)],
        };
        vec![case(1, true), case(1, false), case(0, false)]
    }
}
