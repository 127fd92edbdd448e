//! Slices: every `stride`-th element of a range along each axis.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, Pad, RandomKernelGenerator, RuleOperand, Structural, VmapBatch,
    check_arity, derive::linear_jvp, draw, first_dtype, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Slice of an operand: elements `start + stride * i` for `i < size` along each axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slice {
    /// Position of the first element along each axis.
    pub start: Vec<i64>,
    /// Number of elements along each axis.
    pub size: Vec<Dim>,
    /// Distance between elements along each axis, at least 1.
    pub stride: Vec<i64>,
}

impl Slice {
    /// Checks that a range with this start, size and stride may be inside of an axis.
    ///
    /// # Errors
    /// It is outside for all sizes.
    pub fn check_bounds(
        dims: &[Dim],
        axis: usize,
        [start, size, stride]: [&Dim; 3],
        facts: &Facts,
    ) -> Result<(), Diag> {
        // The last element is start + stride * (size - 1); an empty range has none.
        let one = Dim::from(1i64);
        let (dim, end) = (&dims[axis], &(start + &(stride * &(size - &one))) + &one);
        if size.as_number() == Some(0) || facts.compare_at_most(&end, dim) != SizeComparison::No {
            return Ok(());
        }
        let found = format!("a slice up to element {end} along axis {axis} of {}", shape(dims));
        Err(Diag::new("slice", At::Operand(0), found, format!("axis {axis} has {dim} elements")))
    }
}

methods! { ($) Slice; }

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "slice start({}) size({}) stride({})",
            join_with_commas(&self.start),
            join_with_commas(&self.size),
            join_with_commas(&self.stride)
        )
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
        check_arity(Self::NAME, args.len(), 1)?;
        let rank = args[0].len();
        if [self.start.len(), self.size.len(), self.stride.len()] != [rank; 3] {
            let found =
                format!("a slice of {} with {} starts and {} sizes", shape(args[0]), self.start.len(), self.size.len());
            return Err(Diag::new("slice", At::Op, found, "one start, size and stride per axis"));
        }
        for (axis, size) in self.size.iter().enumerate() {
            let (start, stride) = (self.start[axis], self.stride[axis]);
            let (starts, strides) = (0..=i64::from(i32::MAX), 1..=i64::from(i32::MAX));
            if !starts.contains(&start) || !strides.contains(&stride) {
                let found = format!("a slice from {start} by {stride} along axis {axis}");
                return Err(Diag::new(
                    "slice",
                    At::Op,
                    found,
                    "starts are at least 0, strides at least 1, both below 2^31",
                ));
            }
            Self::check_bounds(args[0], axis, [&start.into(), size, &stride.into()], facts)?;
        }
        Ok(self.size.clone())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        let index =
            |i: usize| AffineIndex { axis: Some(i), stride: self.stride[i].into(), offset: self.start[i].into() };
        AccessForm::Map(vec![MapPiece {
            operand: 0,
            index: (0..self.start.len()).map(index).collect(),
            bounds: vec![],
        }])
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        let (start, stride) = ([&[0], &self.start[..]].concat(), [&[1], &self.stride[..]].concat());
        Some(x.apply(Slice { start, size: batch.batch_first_shape(&self.size), stride }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        // Along each axis: zeros between the elements, then around them.
        let (mut x, mut shape) = (cotangent, self.size.clone());
        for axis in (0..shape.len()).filter(|&a| self.stride[a] > 1) {
            let (n, stride) = (shape[axis].clone(), Dim::from(self.stride[axis]));
            let (front, back) = (&shape[..axis], &shape[axis + 1..]);
            let apart = |k: &Dim| [front, &[n.clone(), k.clone()], back].concat();
            let mut high = vec![Dim::from(0i64); shape.len() + 1];
            high[axis + 1] = &stride - &Dim::from(1i64);
            let pad = Pad { low: vec![0i64.into(); high.len()], high };
            let padded = x.reshape(&apart(&1i64.into()));
            let merged = padded
                .apply(pad, &[padded, padded.scalar_constant(0.0)])
                .reshape(&[front, &[&n * &stride], back].concat());
            // The zeros after the last element are cut off.
            let reached = &(&(&n - &Dim::from(1i64)) * &stride) + &Dim::from(1i64);
            shape[axis] = reached.max(&Dim::from(0i64));
            let cut = Slice { start: vec![0; shape.len()], size: shape.clone(), stride: vec![1; shape.len()] };
            x = merged.apply(cut, &[merged]);
        }
        let low: Vec<Dim> = self.start.iter().map(|&s| Dim::from(s)).collect();
        let high = (0..shape.len()).map(|a| &(&args[0].shape[a] - &low[a]) - &shape[a]).collect();
        vec![Some(x.apply(Pad { low, high }, &[x, x.scalar_constant(0.0)]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let dims = from.choose_operand(&draw::accepts_any_type)?.shape;
        let start: Vec<usize> = dims.iter().map(|&n| from.draw_below(n)).collect();
        let stride: Vec<usize> = dims.iter().map(|_| 1 + from.draw_below(2)).collect();
        let left: Vec<usize> = (0..dims.len()).map(|a| (dims[a] - start[a]).div_ceil(stride[a])).collect();
        let size = left.into_iter().map(|left| Dim::from(left - from.draw_below(left))).collect();
        let signed = |n: Vec<usize>| n.into_iter().map(|n| n as i64).collect();
        Some(Slice { start: signed(start), size, stride: signed(stride) })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let op = Slice { start: vec![1, 0], size: vec![Dim::from(2i64), Dim::name("N")], stride: vec![2, 1] };
        let all = Slice { start: vec![1, 2], size: vec![Dim::from(2i64), Dim::from(3i64)], stride: vec![3, 2] };
        let case = |op, with| OpTestCase { op, args: &[&["M", "N"]], dtypes: &[DType::F32], with };
        vec![case(op, &[("M", 5), ("N", 3)]), case(all, &[("M", 5), ("N", 9)])]
    }
}
