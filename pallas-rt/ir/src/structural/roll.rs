//! Circular shift of elements along an axis.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch,
    check_arity, check_axes, derive::linear_jvp, draw::draw_operand_axis, first_dtype,
};
use crate::diag::Diag;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Circular shift along an axis of extent `n`: `result[i] = x[(i - shift) mod n]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Roll {
    /// Number of positions that each element moves towards the end; negative: towards the front.
    pub shift: i64,
    /// The axis to shift along.
    pub axis: usize,
}

methods! { ($) Roll;
    /// Each element moved by `shift` positions along an axis; elements moved past one end reappear at the other.
    fn roll<T: Elem>(shift: Offset, axis: Axis) -> T { Roll { shift, axis } }
}

impl fmt::Display for Roll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "roll shift({}) axis({})", self.shift, self.axis)
    }
}

impl Structural for Roll {
    const NAME: &'static str = "roll";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Roll { shift: attributes.value("shift")?, axis: attributes.value("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &[self.axis], args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let n = args[0][self.axis].as_number().expect("an access form has sizes of numbers");
        let first = self.shift.rem_euclid(n.max(1));
        let piece = |offset: i64, bounds| {
            let index = |i| {
                if i == self.axis {
                    AffineIndex::from_axis_with_offset(i, offset.into())
                } else {
                    AffineIndex::from_axis(i)
                }
            };
            MapPiece { operand: 0, index: (0..args[0].len()).map(index).collect(), bounds }
        };
        // The elements that wrapped around to the front, if there are any, then all others.
        let entered = (first > 0).then(|| piece(n - first, vec![(self.axis, 0i64.into(), first.into())]));
        let moved = piece(-first, vec![(self.axis, first.into(), n.into())]);
        AccessForm::Map(entered.into_iter().chain([moved]).collect())
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Roll { axis: self.axis + 1, ..*self }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        debug_assert_eq!(args.len(), 1);
        vec![Some(cotangent.apply(Roll { shift: -self.shift, ..*self }, &[cotangent]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        Some(Roll { shift: from.draw_below(2 * x.shape[axis] + 1) as i64 - x.shape[axis] as i64, axis })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |shift, axis| OpTestCase {
            op: Roll { shift, axis },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 5)],
        };
        vec![case(2, 1), case(-7, 1), case(1, 0), case(5, 1)]
    }
}
