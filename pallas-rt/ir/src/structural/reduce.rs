//! Folds over axes, which stay with extent 1.
use super::{
    Access, Arg, Batch, Cumulative, Draw, Pad, Sample, Slice, Structural, arity, axes_exist, derive::behind, draw,
    draw::along, list, monoid,
};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// `result[i, 0] = op over k of x[i, k]`; nothing to fold gives the neutral element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reduce {
    /// A monoid: a row with a `fold` cell.
    pub op: ScalarOp,
    /// Axes folded.
    pub axes: Vec<usize>,
}

methods! { ($) Reduce;
    /// Sum over axes, which stay with extent 1.
    fn sum<T: Number>(axes: Axes) -> T { Reduce { op: ScalarOp::Add, axes } }
    /// Product over axes, which stay with extent 1.
    fn prod<T: Number>(axes: Axes) -> T { Reduce { op: ScalarOp::Mul, axes } }
    /// Largest element over axes, which stay with extent 1; -inf (or the lowest integer) over nothing.
    fn max<T: Number>(axes: Axes) -> T { Reduce { op: ScalarOp::Maximum, axes } }
    /// Smallest element over axes, which stay with extent 1; inf (or the highest integer) over nothing.
    fn min<T: Number>(axes: Axes) -> T { Reduce { op: ScalarOp::Minimum, axes } }
    /// True where any element along axes is true; the axes stay with extent 1.
    fn any<T: Bool>(axes: Axes) -> T { Reduce { op: ScalarOp::BitOr, axes } }
    /// True where every element along axes is true; the axes stay with extent 1.
    fn all<T: Bool>(axes: Axes) -> T { Reduce { op: ScalarOp::BitAnd, axes } }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reduce op({}) axes({})", self.op, list(&self.axes))
    }
}

fn collapsed(name: &str, axes: &[usize], args: &[&[Dim]]) -> Result<Vec<Dim>, Diag> {
    arity(name, args.len(), 1)?;
    axes_exist(name, axes, args[0])?;
    let mut out = args[0].to_vec();
    axes.iter().for_each(|&a| out[a] = 1i64.into());
    Ok(out)
}

/// The product of the elements in front of each along an axis, or behind it.
fn excluded<'g>(x: E<'g>, shape: &[Dim], axis: usize, reverse: bool) -> E<'g> {
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
    cut.apply(Pad { low, high }, &[cut, cut.number(1.0)])
}

impl Structural for Reduce {
    const NAME: &'static str = "reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Reduce { op: attributes.one("op")?, axes: attributes.list("axes")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        collapsed(Self::NAME, &self.axes, args)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        monoid(Self::NAME, self.op, args)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Fold { op: self.op, axes: self.axes.clone() }
    }
    fn batched<'g>(&self, args: &[Arg<'_, 'g>], batch: &Batch<'_>) -> Option<E<'g>> {
        let x = batch.front(0, &args[0]);
        Some(x.apply(Reduce { op: self.op, axes: behind(&self.axes) }, &[x]))
    }
    fn jvp<'g>(&self, args: &[Arg<'_, 'g>], y: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (x, dx) = (args[0].value, tangents[0]?);
        match self.op {
            ScalarOp::Add => Some(dx.summed(self.axes.clone())),
            ScalarOp::Minimum | ScalarOp::Maximum => {
                // Ties share.
                let chosen = x.eq(y.stretched(args[0].shape));
                let count = chosen.select(x.like(1.0), x.zero()).summed(self.axes.clone());
                Some(chosen.select(dx, dx.zero()).summed(self.axes.clone()) / count)
            }
            ScalarOp::Mul => {
                // Axis by axis, each factor's tangent times the factors in front of and behind it: no division by zeros.
                let (mut x, mut dx, mut shape) = (x, dx, args[0].shape.to_vec());
                for &axis in &self.axes {
                    let others = excluded(x, &shape, axis, false) * excluded(x, &shape, axis, true);
                    dx = (dx * others).summed(vec![axis]);
                    x = x.apply(Reduce { op: ScalarOp::Mul, axes: vec![axis] }, &[x]);
                    shape[axis] = 1i64.into();
                }
                Some(dx)
            }
            _ => None,
        }
    }
    fn transpose<'g>(&self, args: &[Arg<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        vec![(self.op == ScalarOp::Add).then(|| cotangent.stretched(args[0].shape))]
    }
    fn draw(from: &mut dyn Draw) -> Option<Self> {
        let (x, axis) = along(from)?;
        Some(Reduce { op: draw::monoid(from, x.dtype)?, axes: vec![axis] })
    }
    fn samples() -> Vec<Sample<Self>> {
        let case = |op, axes| Sample {
            op: Reduce { op, axes },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 3)],
        };
        vec![
            case(ScalarOp::Add, vec![1]),
            case(ScalarOp::Add, vec![0, 1]),
            case(ScalarOp::Maximum, vec![0]),
            case(ScalarOp::Minimum, vec![1, 0]),
            case(ScalarOp::Mul, vec![0, 1]),
        ]
    }
}

/// i32 position of the largest (or smallest) element along an axis: the first of ties; a NaN wins.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgReduce {
    /// Largest, else smallest.
    pub max: bool,
    /// The axis.
    pub axis: usize,
}

methods! { ($) ArgReduce;
    /// i32 position of the largest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    fn argmax<T: Number>(axis: Axis) -> i32 { ArgReduce { max: true, axis } }
    /// i32 position of the smallest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    fn argmin<T: Number>(axis: Axis) -> i32 { ArgReduce { max: false, axis } }
}

impl fmt::Display for ArgReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arg_reduce max({}) axis({})", self.max, self.axis)
    }
}

impl Structural for ArgReduce {
    const NAME: &'static str = "arg_reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(ArgReduce { max: attributes.one("max")?, axis: attributes.one("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        let out = collapsed(Self::NAME, &[self.axis], args)?;
        if args[0][self.axis].as_number() == Some(0) {
            let found = format!("`arg_reduce` along axis {} of {}", self.axis, shape(args[0]));
            return Err(Diag::new("empty", At::Operand(0), found, "an empty axis has no extreme element"));
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        monoid(Self::NAME, ScalarOp::Maximum, args).map(|_| DType::I32)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Arg { max: self.max, axis: self.axis }
    }
    fn batched<'g>(&self, args: &[Arg<'_, 'g>], batch: &Batch<'_>) -> Option<E<'g>> {
        let x = batch.front(0, &args[0]);
        Some(x.apply(ArgReduce { max: self.max, axis: self.axis + 1 }, &[x]))
    }
    fn jvp<'g>(&self, _: &[Arg<'_, 'g>], _: E<'g>, _: &[Option<E<'g>>]) -> Option<E<'g>> {
        None
    }
    fn transpose<'g>(&self, args: &[Arg<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn Draw) -> Option<Self> {
        let x = from.operand(&|ty| !ty.is_scalar() && ty.dtype != DType::Bool)?;
        Some(ArgReduce { max: from.below(2) == 0, axis: from.below(x.shape.len()) })
    }
    fn samples() -> Vec<Sample<Self>> {
        let with = &[("M", 2), ("N", 3)];
        vec![Sample { op: ArgReduce { max: true, axis: 1 }, args: &[&["M", "N"]], dtypes: &[DType::F32], with }]
    }
}
