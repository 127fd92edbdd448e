//! Every `stride`-th element of a range along each axis.
use super::{Access, Index, Piece, Sample, Structural, arity, list, same_dtype};
use crate::diag::{At, Diag, shape};
use crate::dim::Verdict;
use crate::parse::Attributes;
use crate::{DType, Dim, Facts};
use std::fmt;

/// Elements `start + stride * i`, `i < size`, along each axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// First element.
    pub start: Vec<i64>,
    /// Number of elements.
    pub size: Vec<Dim>,
    /// Distance, at least 1.
    pub stride: Vec<i64>,
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice start({}) size({}) stride({})", list(&self.start), list(&self.size), list(&self.stride))
    }
}

impl Structural for Slice {
    const NAME: &'static str = "slice";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Slice {
            start: attributes.list("start")?,
            size: attributes.list("size")?,
            stride: attributes.list("stride")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.size.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        arity(Self::NAME, args.len(), 1)?;
        let rank = args[0].len();
        if [self.start.len(), self.size.len(), self.stride.len()] != [rank; 3] {
            let found =
                format!("a slice of {} with {} starts and {} sizes", shape(args[0]), self.start.len(), self.size.len());
            return Err(Diag::new("slice", At::Op, found, "one start, size and stride per axis"));
        }
        for (axis, (dim, size)) in args[0].iter().zip(&self.size).enumerate() {
            let (start, stride) = (self.start[axis], self.stride[axis]);
            if start < 0 || stride < 1 {
                let found = format!("a slice from {start} by {stride} along axis {axis}");
                return Err(Diag::new("slice", At::Op, found, "starts are at least 0, strides at least 1"));
            }
            // The last element is start + stride * (size - 1); an empty slice has none.
            let end = &(&Dim::from(stride) * &(size - &Dim::from(1i64))) + &Dim::from(start + 1);
            if size.as_number() != Some(0) && facts.at_most(&end, dim) == Verdict::No {
                let found = format!("a slice up to element {end} along axis {axis} of {}", shape(args[0]));
                return Err(Diag::new("slice", At::Operand(0), found, format!("axis {axis} has {dim} elements")));
            }
        }
        Ok(self.size.clone())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        same_dtype(args)
    }
    fn access(&self, _: &[&[Dim]]) -> Access {
        let index = |i: usize| Index { axis: Some(i), stride: self.stride[i].into(), offset: self.start[i].into() };
        Access::Map(vec![Piece { operand: 0, index: (0..self.start.len()).map(index).collect(), bounds: vec![] }])
    }
    fn samples() -> Vec<Sample<Self>> {
        let op = Slice { start: vec![1, 0], size: vec![Dim::from(2i64), Dim::name("N")], stride: vec![2, 1] };
        vec![Sample { op, args: &[&["M", "N"]], dtypes: &[DType::F32], with: &[("M", 5), ("N", 3)] }]
    }
}
