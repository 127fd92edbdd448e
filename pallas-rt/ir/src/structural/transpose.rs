//! Transposition: axes in another order.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch,
    check_arity, check_axes, derive::linear_jvp, derive::shift_axes, draw, first_dtype, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Permutes axes: result axis `i` is operand axis `axes[i]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Transpose {
    /// A permutation of the operand's axes: for each result axis the operand's.
    pub axes: Vec<usize>,
}

methods! { ($) Transpose;
    /// Permutes axes: result axis `i` is axis `axes[i]`.
    fn transpose<T: Elem>(axes: Axes) -> T { Transpose { axes } }
}

impl fmt::Display for Transpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transpose axes({})", join_with_commas(&self.axes))
    }
}

impl Structural for Transpose {
    const NAME: &'static str = "transpose";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Transpose { axes: attributes.list("axes")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        if self.axes.len() != args[0].len() {
            let found = format!("a transpose of {} by axes ({})", shape(args[0]), join_with_commas(&self.axes));
            return Err(Diag::new("transpose", At::Op, found, "name each axis once; `t()` is for two axes"));
        }
        check_axes(Self::NAME, &self.axes, args[0])?;
        Ok(self.axes.iter().map(|&a| args[0][a].clone()).collect())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        let to = |axis| self.axes.iter().position(|&a| a == axis).expect("a permutation");
        let index = (0..self.axes.len()).map(|axis| AffineIndex::from_axis(to(axis))).collect();
        AccessForm::Map(vec![MapPiece { operand: 0, index, bounds: vec![] }])
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Transpose { axes: [vec![0], shift_axes(&self.axes)].concat() }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let back = |axis| self.axes.iter().position(|&a| a == axis).expect("a permutation");
        let axes = (0..args[0].shape.len()).map(back).collect();
        vec![Some(cotangent.apply(Transpose { axes }, &[cotangent]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let rank = from.choose_operand(&draw::accepts_any_type)?.shape.len();
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.rotate_left(from.draw_below(rank));
        Some(Transpose { axes })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let with = &[("M", 2), ("N", 3), ("K", 4)];
        let op = Transpose { axes: vec![2, 0, 1] };
        vec![OpTestCase { op, args: &[&["M", "N", "K"]], dtypes: &[DType::F32], with }]
    }
}
