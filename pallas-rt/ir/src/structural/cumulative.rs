//! Running folds.
use super::{Access, Sample, Structural, arity, axes_exist, monoid};
use crate::diag::Diag;
use crate::parse::Attributes;
use crate::{DType, Dim, Facts, ScalarOp};
use std::fmt;

/// `result[i] = x[0] op .. op x[i]` along an axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Cumulative {
    /// A monoid: add, mul, minimum, maximum.
    pub op: ScalarOp,
    /// The axis.
    pub axis: usize,
    /// From the end.
    pub reverse: bool,
}

impl fmt::Display for Cumulative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cumulative op({}) axis({}) reverse({})", self.op, self.axis, self.reverse)
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
    fn samples() -> Vec<Sample<Self>> {
        let case = |op, reverse| Sample {
            op: Cumulative { op, axis: 1, reverse },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 5)],
        };
        vec![case(ScalarOp::Add, false), case(ScalarOp::Maximum, true)]
    }
}
