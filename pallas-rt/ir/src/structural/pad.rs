//! Padding of a tile with a scalar.
use super::{
    AccessForm, AffineIndex, Broadcast, MapPiece, OpTestCase, RandomKernelGenerator, RuleOperand, Slice, Structural,
    VmapBatch, check_arity, derive::linear_jvp, draw, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, Literal};
use std::fmt;

/// Adds `low` elements before and `high` elements after each axis; their value is operand 1.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pad {
    /// Number of elements added before each axis.
    pub low: Vec<Dim>,
    /// Number of elements added after each axis.
    pub high: Vec<Dim>,
}

methods! { ($) Pad;
    /// Adds `low` elements of `value` before each axis and `high` after it.
    fn pad<T: Elem>(low: Sizes, high: Sizes, value: Value) -> T { Pad { low, high } }
}

impl fmt::Display for Pad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pad low({}) high({})", join_with_commas(&self.low), join_with_commas(&self.high))
    }
}

impl Structural for Pad {
    const NAME: &'static str = "pad";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Pad { low: attributes.list("low")?, high: attributes.list("high")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.low.iter_mut().chain(&mut self.high).collect()
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        if !args[1].is_empty() {
            return Err(Diag::new(
                "pad",
                At::Operand(1),
                format!("a pad value of shape {}", shape(args[1])),
                "a scalar",
            ));
        }
        if self.low.len() != args[0].len() || self.high.len() != args[0].len() {
            let found =
                format!("a pad of {} with {} low and {} high sizes", shape(args[0]), self.low.len(), self.high.len());
            return Err(Diag::new("pad", At::Op, found, "one of each per axis"));
        }
        if let Some(n) = self.low.iter().chain(&self.high).find(|d| d.as_number().is_some_and(|n| n < 0)) {
            return Err(Diag::new("pad", At::Op, format!("a pad by {n}"), "at least 0; `slice` takes elements away"));
        }
        Ok((0..self.low.len()).map(|i| &(&self.low[i] + &args[0][i]) + &self.high[i]).collect())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        match args {
            [x, value] if x == value => Ok(*x),
            _ => Err(Diag::new("dtype", At::Operand(1), format!("a pad of {args:?}"), "the value has the tile's type")),
        }
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let rank = self.low.len();
        let index = (0..rank).map(|i| AffineIndex::from_axis_with_offset(i, &Dim::from(0i64) - &self.low[i])).collect();
        let bounds = (0..rank).map(|i| (i, self.low[i].clone(), &self.low[i] + &args[0][i])).collect();
        AccessForm::Map(vec![
            MapPiece { operand: 0, index, bounds },
            MapPiece { operand: 1, index: vec![], bounds: vec![] },
        ])
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        let zero = [Dim::from(0i64)];
        let pad = Pad { low: [&zero, &self.low[..]].concat(), high: [&zero, &self.high[..]].concat() };
        if batch.axes[1].is_none() {
            return Some(x.apply(pad, &[x, args[1].value]));
        }
        // Each example has its own value: it is selected where the padded tile of ones is 0.
        let inside = x.like(1.0).apply(pad.clone(), &[x.like(1.0), x.scalar_constant(0.0)]);
        let rows = args[0].shape.iter().zip(&self.low).zip(&self.high).map(|((n, low), high)| &(low + n) + high);
        let to: Vec<Dim> = [batch.size.clone()].into_iter().chain(rows).collect();
        let value = args[1].value.apply(Broadcast { to, dims: vec![0] }, &[args[1].value]);
        let padded = x.apply(pad, &[x, x.scalar_constant(0.0)]);
        Some(inside.ne(inside.zero()).select(padded, value))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let start = self.low.iter().map(|d| d.as_number().expect("cotangents have sizes of numbers")).collect();
        let inside = Slice { start, size: args[0].shape.to_vec(), stride: vec![1; self.low.len()] };
        let x = cotangent.apply(inside, &[cotangent]);
        let sum = |x: E<'g>| x.sum_axes((0..self.low.len()).collect()).reshape(&[]);
        vec![Some(x), Some(sum(cotangent) - sum(x))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let x = from.choose_operand(&draw::accepts_any_type)?;
        from.append_constant(Literal::new(x.dtype, 1.0));
        let mut sizes = |below| x.shape.iter().map(|_| Dim::from(from.draw_below(below))).collect();
        Some(Pad { low: sizes(2), high: sizes(3) })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let op = Pad { low: vec![1i64.into(), 0i64.into()], high: vec![Dim::name("P"), 2i64.into()] };
        let dtypes = &[DType::F32, DType::F32];
        vec![OpTestCase { op, args: &[&["M", "N"], &[]], dtypes, with: &[("M", 2), ("N", 3), ("P", 2)] }]
    }
}
