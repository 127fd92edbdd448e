//! Reversal: elements in opposite order along axes.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch,
    check_arity, check_axes, derive::linear_jvp, derive::shift_axes, draw::draw_operand_axis, first_dtype,
    join_with_commas,
};
use crate::diag::Diag;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Reverses the order of elements along axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reverse {
    /// Axes along which the last element comes first.
    pub axes: Vec<usize>,
}

methods! { ($) Reverse;
    /// Reverses the order of elements along axes.
    fn reverse<T: Elem>(axes: Axes) -> T { Reverse { axes } }
}

impl fmt::Display for Reverse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reverse axes({})", join_with_commas(&self.axes))
    }
}

impl Structural for Reverse {
    const NAME: &'static str = "reverse";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Reverse { axes: attributes.list("axes")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &self.axes, args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let last = |i: usize| &args[0][i] - &Dim::from(1i64);
        let turned = |i: usize| AffineIndex { axis: Some(i), stride: (-1i64).into(), offset: last(i) };
        let index = (0..args[0].len())
            .map(|i| if self.axes.contains(&i) { turned(i) } else { AffineIndex::from_axis(i) })
            .collect();
        AccessForm::Map(vec![MapPiece { operand: 0, index, bounds: vec![] }])
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Reverse { axes: shift_axes(&self.axes) }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        debug_assert_eq!(args.len(), 1);
        vec![Some(cotangent.apply(self.clone(), &[cotangent]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        draw_operand_axis(from).map(|(_, axis)| Reverse { axes: vec![axis] })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let op = Reverse { axes: vec![1] };
        vec![OpTestCase { op, args: &[&["M", "N"]], dtypes: &[DType::F32], with: &[("M", 2), ("N", 3)] }]
    }
}
