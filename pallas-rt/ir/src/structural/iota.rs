//! Coordinates along an axis.
use super::{
    AccessForm, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch, check_arity, check_axes,
    join_with_commas,
};
use crate::diag::{At, Diag};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Creates a tile whose elements are their coordinate along an axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Iota {
    /// Shape of the result.
    pub shape: Vec<Dim>,
    /// The axis that is counted along.
    pub axis: usize,
    /// Element type of the result: a number type.
    pub dtype: DType,
}

methods! { ($) Iota; }

impl fmt::Display for Iota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iota shape({}) axis({}) dtype({})", join_with_commas(&self.shape), self.axis, self.dtype)
    }
}

impl Structural for Iota {
    const NAME: &'static str = "iota";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Iota {
            shape: attributes.list("shape")?,
            axis: attributes.value("axis")?,
            dtype: attributes.value("dtype")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.shape.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 0)?;
        check_axes(Self::NAME, &[self.axis], &self.shape)?;
        Ok(self.shape.clone())
    }
    fn dtype(&self, _: &[DType]) -> Result<DType, Diag> {
        if self.dtype == DType::Bool {
            return Err(Diag::new("dtype", At::Op, "an iota of bool".into(), "a number type"));
        }
        Ok(self.dtype)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Iota { axis: self.axis }
    }
    fn batched<'g>(&self, _: &[RuleOperand<'_, 'g>], _: &VmapBatch<'_>) -> Option<E<'g>> {
        None
    }
    fn jvp<'g>(&self, _: &[RuleOperand<'_, 'g>], _: E<'g>, _: &[Option<E<'g>>]) -> Option<E<'g>> {
        None
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let shape = from.common_shape();
        let axis = from.draw_below(shape.len());
        Some(Iota { shape: shape.into_iter().map(Dim::from).collect(), axis, dtype: from.draw_dtype() })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let op = Iota { shape: vec![Dim::name("M"), Dim::name("N")], axis: 1, dtype: DType::I32 };
        vec![OpTestCase { op, args: &[], dtypes: &[], with: &[("M", 2), ("N", 3)] }]
    }
}
