//! Elements picked by an index tile along an axis.
use super::{Access, Sample, Structural, arity, axes_exist};
use crate::diag::{At, Diag, shape};
use crate::dim::Verdict;
use crate::parse::Attributes;
use crate::{DType, Dim, Facts};
use std::fmt;

/// `result[.., i, ..] = x[.., index[.., i, ..], ..]`; the other axes agree, or are 1 in `x`'s index.
#[derive(Clone, PartialEq, Debug)]
pub struct TakeAlong {
    /// The axis.
    pub axis: usize,
}

impl fmt::Display for TakeAlong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "take_along_axis axis({})", self.axis)
    }
}

impl Structural for TakeAlong {
    const NAME: &'static str = "take_along_axis";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(TakeAlong { axis: attributes.one("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        arity(Self::NAME, args.len(), 2)?;
        let (x, index) = (args[0], args[1]);
        axes_exist(Self::NAME, &[self.axis], x)?;
        let fits = |a: usize| a == self.axis || facts.same(&x[a], &index[a]) != Verdict::No;
        if x.len() != index.len() || !(0..x.len()).all(fits) {
            let found = format!("`take_along_axis` along axis {} of {} by {}", self.axis, shape(x), shape(index));
            return Err(Diag::new(
                "take",
                At::Operand(1),
                found,
                "all other axes are the same; `.broadcast(..)` the index",
            ));
        }
        Ok(index.to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        match args {
            [x, DType::I32] => Ok(*x),
            _ => Err(Diag::new("dtype", At::Operand(1), format!("`take_along_axis` of {args:?}"), "the index is i32")),
        }
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Take { axis: self.axis }
    }
    fn samples() -> Vec<Sample<Self>> {
        let dtypes = &[DType::F32, DType::I32];
        let with = &[("M", 2), ("N", 3), ("K", 4)];
        vec![Sample { op: TakeAlong { axis: 1 }, args: &[&["M", "N"], &["M", "K"]], dtypes, with }]
    }
}
