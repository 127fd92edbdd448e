//! Lookup of elements along an axis by a tile of indices.
use super::{
    AccessForm, Gather, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch, check_arity, check_axes,
    derive::cotangent_of_gathered, draw::draw_operand_axis,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp, Type};
use std::fmt;

/// Lookup of elements along an axis: `result[.., i, ..] = x[.., index[.., i, ..], ..]`; `x` and `index` have equal
/// extents along all other axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TakeAlong {
    /// The axis to look up along.
    pub axis: usize,
}

methods! { ($) TakeAlong;
    /// Looks up elements along an axis: `result[.., i, ..] = self[.., index[.., i, ..], ..]`.
    fn take_along_axis<T: Elem>(index: Index, axis: Axis) -> T { TakeAlong { axis } }
}

impl TakeAlong {
    /// The same operation as a gather, for operands of this rank: all other axes are parallel.
    pub fn to_gather(&self, rank: usize) -> Gather {
        let others: Vec<usize> = (0..rank).filter(|&axis| axis != self.axis).collect();
        Gather {
            offset_dims: vec![],
            collapsed_slice_dims: vec![self.axis],
            operand_batching_dims: others.clone(),
            start_indices_batching_dims: others,
            start_index_map: vec![self.axis],
            index_vector_dim: rank,
            slice_sizes: vec![1i64.into(); rank],
        }
    }
}

impl fmt::Display for TakeAlong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "take_along_axis axis({})", self.axis)
    }
}

impl Structural for TakeAlong {
    const NAME: &'static str = "take_along_axis";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(TakeAlong { axis: attributes.value("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        let (x, index) = (args[0], args[1]);
        check_axes(Self::NAME, &[self.axis], x)?;
        let fits = |a: usize| a == self.axis || facts.compare_equal(&x[a], &index[a]) != SizeComparison::No;
        if x.len() != index.len() || !(0..x.len()).all(fits) {
            let found = format!("`take_along_axis` along axis {} of {} by {}", self.axis, shape(x), shape(index));
            return Err(Diag::new(
                "take",
                At::Operand(1),
                found,
                "all other axes are the same; `.broadcast(..)` the index",
            ));
        }
        if facts.compare_at_most(&1i64.into(), &x[self.axis]) == SizeComparison::No
            && index[self.axis].as_number() != Some(0)
        {
            let found = format!("`take_along_axis` along axis {} of {}", self.axis, shape(x));
            return Err(Diag::new("take", At::Operand(0), found, "an axis without elements has none to take"));
        }
        Ok(index.to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        match args {
            [x, DType::I32] => Ok(*x),
            _ => Err(Diag::new("dtype", At::Operand(1), format!("`take_along_axis` of {args:?}"), "the index is i32")),
        }
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        AccessForm::Gather { windows: self.to_gather(args[0].len()).windows(args[1].len()), checked: true }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        // Nothing can be looked up in an operand without elements.
        let is_empty = args[0].shape.iter().any(|n| n.as_number() == Some(0));
        if batch.axes[0].is_none() && !is_empty {
            // The operand is not broadcast, so that its cotangent is a single array.
            return self.to_gather(args[0].shape.len()).batched(args, batch);
        }
        let all = batch.batch_first_operands(args);
        Some(all[0].apply(TakeAlong { axis: self.axis + 1 }, &all))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let dx = tangents[0]?;
        Some(dx.apply(self.clone(), &[dx, args[1].value]))
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let add = self.to_gather(args[0].shape.len()).matching_scatter(Some(ScalarOp::Add));
        vec![Some(cotangent_of_gathered(add, &args[0], (args[1].value, args[1].shape), cotangent)), None]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        let beside = |ty: &Type| {
            ty.shape.len() == x.shape.len() && (0..x.shape.len()).all(|a| a == axis || ty.shape[a] == x.shape[a])
        };
        from.choose_operand(&|ty| ty.dtype == DType::I32 && beside(ty))?;
        from.clamp_last_operand(x.shape[axis]);
        Some(TakeAlong { axis })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let dtypes = &[DType::F32, DType::I32];
        let with = &[("M", 2), ("N", 3), ("K", 4)];
        vec![
            OpTestCase { op: TakeAlong { axis: 1 }, args: &[&["M", "N"], &["M", "K"]], dtypes, with },
            OpTestCase { op: TakeAlong { axis: 0 }, args: &[&["N", "M", "2"], &["K", "M", "2"]], dtypes, with },
        ]
    }
}
