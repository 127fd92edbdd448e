//! Folds over axes, which stay with extent 1.
use super::{Access, Sample, Structural, arity, axes_exist, list, monoid};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, Facts, ScalarOp};
use std::fmt;

/// `result[i, 0] = op over k of x[i, k]`; nothing to fold gives the neutral element.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduce {
    /// A monoid: add, mul, minimum, maximum, bitand, bitor.
    pub op: ScalarOp,
    /// Axes folded.
    pub axes: Vec<usize>,
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reduce op({}) axes({})", self.op, list(&self.axes))
    }
}

fn collapsed(name: &str, axes: &[usize], args: &[&[Dim]]) -> Result<Vec<Dim>, Diag> {
    arity(name, args.len(), 1)?;
    axes_exist(name, axes, args[0])?;
    let mut out = args[0].to_vec();
    axes.iter().for_each(|&a| out[a] = 1i64.into());
    Ok(out)
}

impl Structural for Reduce {
    const NAME: &'static str = "reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Reduce { op: attributes.one("op")?, axes: attributes.list("axes")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        collapsed(Self::NAME, &self.axes, args)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        monoid(Self::NAME, self.op, args)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Fold { op: self.op, axes: self.axes.clone() }
    }
    fn samples() -> Vec<Sample<Self>> {
        let case = |op, axes| Sample {
            op: Reduce { op, axes },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 3)],
        };
        vec![case(ScalarOp::Add, vec![1]), case(ScalarOp::Maximum, vec![0]), case(ScalarOp::Mul, vec![0, 1])]
    }
}

/// i32 position of the largest (or smallest) element along an axis: the first of ties; a NaN wins.
#[derive(Clone, PartialEq, Debug)]
pub struct ArgReduce {
    /// Largest, else smallest.
    pub max: bool,
    /// The axis.
    pub axis: usize,
}

impl fmt::Display for ArgReduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arg_reduce max({}) axis({})", self.max, self.axis)
    }
}

impl Structural for ArgReduce {
    const NAME: &'static str = "arg_reduce";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(ArgReduce { max: attributes.one("max")?, axis: attributes.one("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        let out = collapsed(Self::NAME, &[self.axis], args)?;
        if args[0][self.axis].as_number() == Some(0) {
            let found = format!("`arg_reduce` along axis {} of {}", self.axis, shape(args[0]));
            return Err(Diag::new("empty", At::Operand(0), found, "an empty axis has no extreme element"));
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        monoid(Self::NAME, ScalarOp::Maximum, args).map(|_| DType::I32)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        Access::Arg { max: self.max, axis: self.axis }
    }
    fn samples() -> Vec<Sample<Self>> {
        let with = &[("M", 2), ("N", 3)];
        vec![Sample { op: ArgReduce { max: true, axis: 1 }, args: &[&["M", "N"]], dtypes: &[DType::F32], with }]
    }
}
