//! Concatenation of operands along an axis.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, RandomKernelGenerator, RuleOperand, Slice, Structural, VmapBatch,
    check_axes, derive::linear_jvp, draw::draw_operand_axis, first_dtype,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, Type};
use std::fmt;

/// Concatenates operands along an axis; all other axes must have equal extents.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Concat {
    /// The axis to concatenate along.
    pub axis: usize,
}

methods! { ($) Concat; }

impl fmt::Display for Concat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "concat axis({})", self.axis)
    }
}

impl Structural for Concat {
    const NAME: &'static str = "concat";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Concat { axis: attributes.value("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        let Some(first) = args.first() else {
            return Err(Diag::new("arity", At::Op, "a concat of no tiles".into(), "at least one"));
        };
        check_axes(Self::NAME, &[self.axis], first)?;
        let mut out = first.to_vec();
        for (i, arg) in args.iter().enumerate().skip(1) {
            let fits = |a: usize| a == self.axis || facts.compare_equal(&first[a], &arg[a]) != SizeComparison::No;
            if arg.len() != first.len() || !(0..first.len()).all(fits) {
                let found = format!("a concat along axis {} of {} and {}", self.axis, shape(first), shape(arg));
                return Err(Diag::new("concat", At::Operand(i), found, "all other axes are the same"));
            }
            out[self.axis] = &out[self.axis] + &arg[self.axis];
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        let first = first_dtype(args)?;
        match args.iter().position(|&d| d != first) {
            None => Ok(first),
            Some(i) => {
                Err(Diag::new("dtype", At::Operand(i), format!("a concat of {first} and {}", args[i]), "cast one"))
            }
        }
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let mut lo = Dim::from(0i64);
        let piece = |(operand, arg): (usize, &&[Dim])| {
            let hi = &lo + &arg[self.axis];
            let shift = &Dim::from(0i64) - &lo;
            let index = |i| {
                if i == self.axis {
                    AffineIndex::from_axis_with_offset(i, shift.clone())
                } else {
                    AffineIndex::from_axis(i)
                }
            };
            let bounds = vec![(self.axis, std::mem::replace(&mut lo, hi.clone()), hi)];
            MapPiece { operand, index: (0..arg.len()).map(index).collect(), bounds }
        };
        AccessForm::Map(args.iter().enumerate().map(piece).collect())
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let all = batch.batch_first_operands(args);
        Some(all[0].apply(Concat { axis: self.axis + 1 }, &all))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let mut start = 0;
        let part = |arg: &RuleOperand<'_, 'g>| {
            let mut at = vec![0; arg.shape.len()];
            at[self.axis] = start;
            start += arg.shape[self.axis].as_number().expect("cotangents have sizes of numbers");
            let slice = Slice { start: at, size: arg.shape.to_vec(), stride: vec![1; arg.shape.len()] };
            Some(cotangent.apply(slice, &[cotangent]))
        };
        args.iter().map(part).collect()
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        let beside = |ty: &Type| {
            ty.shape.len() == x.shape.len() && (0..x.shape.len()).all(|a| a == axis || ty.shape[a] == x.shape[a])
        };
        from.choose_operand(&|ty| ty.dtype == x.dtype && beside(ty))?;
        Some(Concat { axis })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let with = &[("M", 2), ("N", 3), ("K", 4)];
        let dtypes = &[DType::F32, DType::F32];
        vec![
            OpTestCase { op: Concat { axis: 1 }, args: &[&["M", "N"], &["M", "K"]], dtypes, with },
            OpTestCase { op: Concat { axis: 0 }, args: &[&["M"], &["N"], &["M"]], dtypes: &[DType::F32; 3], with },
        ]
    }
}
