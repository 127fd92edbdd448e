//! Broadcast: operand axes are mapped to axes of another shape.
use super::{
    AccessForm, AffineIndex, MapPiece, OpTestCase, RandomKernelGenerator, Reduce, RuleOperand, Structural, Transpose,
    VmapBatch, check_arity, check_axes,
    derive::{linear_jvp, shift_axes},
    first_dtype, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp, Type};
use std::fmt;

/// Broadcast to a shape, `result[i, j] = x[j]` for `dims` of `[1]`: each axis of the operand has extent 1 or that of
/// its axis in the result. A scalar, which has no axis, fits every shape and all `dims`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Broadcast {
    /// Shape of the result.
    pub to: Vec<Dim>,
    /// Axis of the result for each axis of the operand. All axes in order is the default for equal ranks, and is not in
    /// text.
    pub dims: Vec<usize>,
}

methods! { ($) Broadcast;
    /// Stretches axes of extent 1 to `shape`.
    fn broadcast<T: Elem>(shape: Sizes) -> T { Broadcast::to(shape) }
}

impl Broadcast {
    /// Creates the broadcast of a scalar, or of an operand with the result's rank.
    pub fn to(to: Vec<Dim>) -> Self {
        Broadcast { dims: (0..to.len()).collect(), to }
    }
    /// A bool for each axis of an operand of shape `of`: true if the broadcast stretches it from extent 1.
    fn stretch_flags(&self, of: &[Dim]) -> impl Iterator<Item = bool> {
        of.iter().zip(&self.dims).map(|(n, &axis)| is_unit_extent(n) && !is_unit_extent(&self.to[axis]))
    }
}

impl fmt::Display for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broadcast to({})", join_with_commas(&self.to))?;
        match self.dims.iter().copied().eq(0..self.to.len()) {
            true => Ok(()),
            false => write!(f, " dims({})", join_with_commas(&self.dims)),
        }
    }
}

/// Returns true for extent 1.
fn is_unit_extent(d: &Dim) -> bool {
    d.as_number() == Some(1)
}

impl Structural for Broadcast {
    const NAME: &'static str = "broadcast";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        let equal = Broadcast::to(attributes.list("to")?);
        Ok(if attributes.has("dims") { Broadcast { dims: attributes.list("dims")?, ..equal } } else { equal })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.to.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        let mapped = args[0].len() == self.dims.len();
        if mapped {
            check_axes(Self::NAME, &self.dims, &self.to)?;
        }
        let fits = |(a, &axis): (&Dim, &usize)| {
            is_unit_extent(a) || facts.compare_equal(a, &self.to[axis]) != SizeComparison::No
        };
        if !(args[0].is_empty() || mapped && args[0].iter().zip(&self.dims).all(fits)) {
            let found = format!("{} does not broadcast to {}", shape(args[0]), shape(&self.to));
            let help = match self.dims.len() == self.to.len() {
                true => "ranks are equal, and each axis is 1 or the same".into(),
                false => {
                    format!("its axes are ({}) of the result, and each is 1 or the same", join_with_commas(&self.dims))
                }
            };
            return Err(Diag::new("broadcast", At::Operand(0), found, help));
        }
        Ok(self.to.clone())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let axes = self.stretch_flags(args[0]).zip(&self.dims);
        let index = axes
            .map(|(stretched, &axis)| if stretched { AffineIndex::zero() } else { AffineIndex::from_axis(axis) })
            .collect();
        AccessForm::Map(vec![MapPiece { operand: 0, index, bounds: vec![] }])
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        let dims = [vec![0], shift_axes(&self.dims[..args[0].shape.len()])].concat();
        Some(x.apply(Broadcast { to: batch.batch_first_shape(&self.to), dims }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear_jvp(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let (of, mut sum) = (args[0].shape, cotangent);
        let dims = &self.dims[..of.len()];
        let others: Vec<usize> = (0..self.to.len()).filter(|axis| !dims.contains(axis)).collect();
        if !others.is_empty() {
            sum = sum.apply(Reduce::dropping(ScalarOp::Add, others), &[sum]);
        }
        if !dims.is_sorted() {
            // The sum has the operand's axes in the result's order.
            let axes = dims.iter().map(|axis| dims.iter().filter(|other| *other < axis).count()).collect();
            sum = sum.apply(Transpose { axes }, &[sum]);
        }
        let stretched = self.stretch_flags(of).enumerate().filter_map(|(axis, stretched)| stretched.then_some(axis));
        vec![Some(sum.sum_axes(stretched.collect()))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let mut to = from.common_shape();
        if from.draw_below(2) == 0 {
            to.insert(from.draw_below(to.len() + 1), 1 + from.draw_below(3));
        }
        // Any order of the axes, of which the operand has the first.
        let mut rest: Vec<usize> = (0..to.len()).collect();
        let mut dims: Vec<usize> = (0..to.len()).map(|_| rest.remove(from.draw_below(rest.len()))).collect();
        let fits = |ty: &Type| {
            ty.shape.len() <= to.len() && ty.shape.iter().zip(&dims).all(|(&n, &axis)| n == 1 || n == to[axis])
        };
        let x = from.choose_operand(&fits)?;
        dims.truncate(x.shape.len());
        let to = to.into_iter().map(Dim::from).collect();
        Some(if x.is_scalar() { Broadcast::to(to) } else { Broadcast { to, dims } })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |to: &[&str], dims: &[usize], args| OpTestCase {
            op: Broadcast { to: to.iter().map(|n| Dim::name(n)).collect(), dims: dims.to_vec() },
            args,
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 3), ("K", 4)],
        };
        vec![
            case(&["M", "N"], &[0, 1], &[&["M", "1"]]),
            case(&["M", "N"], &[0, 1], &[&[]]),
            case(&["M", "N"], &[], &[&[]]),
            case(&["M", "N"], &[0], &[&["M"]]),
            case(&["M", "N"], &[1, 0], &[&["N", "1"]]),
            case(&["M", "N", "K"], &[2, 0], &[&["K", "M"]]),
            case(&["M", "N", "K"], &[1, 2, 0], &[&["1", "K", "M"]]),
        ]
    }
}
