//! Reshape: the same elements in row-major order with another shape.
use super::{
    AccessForm, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch, check_arity, derive::linear_jvp,
    draw, first_dtype, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Changes the shape, with the same elements in row-major order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reshape {
    /// Shape of the result, which has as many elements as the operand.
    pub to: Vec<Dim>,
}

methods! { ($) Reshape;
    /// Changes the shape, with the same elements in row-major order.
    fn reshape<T: Elem>(shape: Sizes) -> T { Reshape { to: shape } }
}

impl fmt::Display for Reshape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reshape to({})", join_with_commas(&self.to))
    }
}

impl Structural for Reshape {
    const NAME: &'static str = "reshape";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Reshape { to: attributes.list("to")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.to.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        let count = |dims: &[Dim]| dims.iter().fold(Dim::from(1i64), |n, d| &n * d);
        let (have, want) = (count(args[0]), count(&self.to));
        if facts.compare_equal(&have, &want) == SizeComparison::No {
            let found = format!("{} has {have} elements, {} has {want}", shape(args[0]), shape(&self.to));
            return Err(Diag::new("reshape", At::Operand(0), found, "a reshape keeps the number of elements"));
        }
        Ok(self.to.clone())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Flat
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        Some(batch.batch_first_operand(0, &args[0]).reshape(&batch.batch_first_shape(&self.to)))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        vec![Some(cotangent.reshape(args[0].shape))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let mut to = from.choose_operand(&draw::accepts_any_type)?.shape;
        let by = from.draw_below(to.len());
        to.rotate_left(by);
        Some(Reshape { to: to.into_iter().map(Dim::from).collect() })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let op = Reshape { to: vec![&Dim::name("M") * &Dim::name("N")] };
        vec![OpTestCase { op, args: &[&["M", "N"]], dtypes: &[DType::F32], with: &[("M", 2), ("N", 3)] }]
    }
}
