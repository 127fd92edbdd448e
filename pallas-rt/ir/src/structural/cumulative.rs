//! Running folds.
use super::{Access, Arg, Batch, Draw, Pad, Sample, Slice, Structural, arity, axes_exist, draw, draw::along, monoid};
use crate::diag::Diag;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// `result[i] = x[0] op .. op x[i]` along an axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cumulative {
    /// A monoid: a row with a `fold` cell.
    pub op: ScalarOp,
    /// The axis.
    pub axis: usize,
    /// From the end.
    pub reverse: bool,
}

methods! { ($) Cumulative;
    /// Running sum along an axis.
    fn cumsum<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Add, axis, reverse: false } }
    /// Running product along an axis.
    fn cumprod<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Mul, axis, reverse: false } }
    /// Running maximum along an axis.
    fn cummax<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Maximum, axis, reverse: false } }
    /// Running minimum along an axis.
    fn cummin<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Minimum, axis, reverse: false } }
}

impl fmt::Display for Cumulative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cumulative op({}) axis({}) reverse({})", self.op, self.axis, self.reverse)
    }
}

impl Cumulative {
    /// The element `by` places before each, in the direction of the fold.
    fn moved<'g>(&self, x: E<'g>, shape: &[Dim], by: i64, outside: f64) -> E<'g> {
        let (mut start, mut size) = (vec![0; shape.len()], shape.to_vec());
        start[self.axis] = if self.reverse { by } else { 0 };
        size[self.axis] = &size[self.axis] - &Dim::from(by);
        let cut = x.apply(Slice { start, size, stride: vec![1; shape.len()] }, &[x]);
        let (mut low, mut high) = (vec![Dim::from(0i64); shape.len()], vec![Dim::from(0i64); shape.len()]);
        if self.reverse {
            high[self.axis] = by.into()
        } else {
            low[self.axis] = by.into()
        }
        cut.apply(Pad { low, high }, &[cut, cut.number(outside)])
    }
}

impl Structural for Cumulative {
    const NAME: &'static str = "cumulative";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Cumulative { op: attributes.one("op")?, axis: attributes.one("axis")?, reverse: attributes.one("reverse")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        arity(Self::NAME, args.len(), 1)?;
        axes_exist(Self::NAME, &[self.axis], args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        monoid(Self::NAME, self.op, args)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Scan { op: self.op, axis: self.axis, reverse: self.reverse }
    }
    fn batched<'g>(&self, args: &[Arg<'_, 'g>], batch: &Batch<'_>) -> Option<E<'g>> {
        let x = batch.front(0, &args[0]);
        Some(x.apply(Cumulative { axis: self.axis + 1, ..self.clone() }, &[x]))
    }
    fn jvp<'g>(&self, args: &[Arg<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (mut x, mut dx) = (args[0].value, tangents[0]?);
        if self.op == ScalarOp::Add {
            return Some(dx.apply(self.clone(), &[dx]));
        }
        // Runs of twice the length, from two of half of it: values and tangents together.
        let n = args[0].shape[self.axis].as_number().expect("tangents have sizes of numbers");
        let mut length = 1;
        while length < n {
            let neutral = self.op.neutral(DType::F64).expect("a monoid").as_f64();
            let (other, d) =
                (self.moved(x, args[0].shape, length, neutral), self.moved(dx, args[0].shape, length, 0.0));
            (x, dx) = match self.op {
                ScalarOp::Mul => (x * other, dx * other + x * d),
                ScalarOp::Minimum => (x.minimum(other), x.le(other).select(dx, d)),
                _ => (x.maximum(other), x.ge(other).select(dx, d)),
            };
            length *= 2;
        }
        Some(dx)
    }
    fn transpose<'g>(&self, args: &[Arg<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        debug_assert_eq!(args.len(), 1);
        let back = Cumulative { reverse: !self.reverse, ..self.clone() };
        vec![(self.op == ScalarOp::Add).then(|| cotangent.apply(back, &[cotangent]))]
    }
    fn draw(from: &mut dyn Draw) -> Option<Self> {
        let (x, axis) = along(from)?;
        Some(Cumulative { op: draw::monoid(from, x.dtype)?, axis, reverse: from.below(2) == 0 })
    }
    fn samples() -> Vec<Sample<Self>> {
        let case = |op, reverse| Sample {
            op: Cumulative { op, axis: 1, reverse },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 5)],
        };
        vec![
            case(ScalarOp::Add, false),
            case(ScalarOp::Add, true),
            case(ScalarOp::Mul, false),
            case(ScalarOp::Mul, true),
            case(ScalarOp::Minimum, false),
            case(ScalarOp::Maximum, true),
        ]
    }
}
