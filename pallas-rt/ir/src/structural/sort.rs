//! Sorting: elements in order along an axis, and the positions that they come from.
use super::{
    AccessForm, OpTestCase, RandomKernelGenerator, RuleOperand, SortOrder, Structural, TakeAlong, VmapBatch,
    check_arity, check_axes, draw::draw_operand_axis, first_dtype,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Sorts elements along an axis from the smallest to the largest ([`SortOrder::Ascending`]); equal ones keep their
/// order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sort {
    /// The axis to sort along.
    pub axis: usize,
}

methods! { ($) Sort;
    /// Elements from the smallest to the largest along an axis. The sort is stable; -0 equals +0, and NaNs come last.
    fn sort<T: Elem>(axis: Axis) -> T { Sort { axis } }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sort axis({})", self.axis)
    }
}

impl Structural for Sort {
    const NAME: &'static str = "sort";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Sort { axis: attributes.value("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &[self.axis], args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Sort { axis: self.axis, order: SortOrder::Ascending, positions: false }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Sort { axis: self.axis + 1 }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (x, dx) = (args[0].value, tangents[0]?);
        let positions = x.apply(ArgSort { axis: self.axis, descending: false }, &[x]);
        Some(dx.apply(TakeAlong { axis: self.axis }, &[dx, positions]))
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        Some(Sort { axis: draw_operand_axis(from)?.1 })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |axis| OpTestCase {
            op: Sort { axis },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 3), ("N", 5)],
        };
        vec![case(1), case(0)]
    }
}

/// Positions along an axis, i32, in the order of their elements; those of equal elements ascend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgSort {
    /// The axis to sort along.
    pub axis: usize,
    /// True if the largest element is first ([`SortOrder::Descending`]), else the smallest ([`SortOrder::Ascending`]).
    pub descending: bool,
}

methods! { ($) ArgSort;
    /// i32 positions of the elements from the smallest to the largest along an axis. Those of equal elements ascend; -0
    /// equals +0, and NaNs come last.
    fn argsort<T: Elem>(axis: Axis) -> i32 { ArgSort { axis, descending: false } }
    /// i32 positions of the elements from the largest to the smallest along an axis. Those of equal elements ascend; -0
    /// equals +0, and NaNs come first.
    fn argsort_descending<T: Elem>(axis: Axis) -> i32 { ArgSort { axis, descending: true } }
}

impl fmt::Display for ArgSort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "argsort axis({}) descending({})", self.axis, self.descending)
    }
}

impl Structural for ArgSort {
    const NAME: &'static str = "argsort";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(ArgSort { axis: attributes.value("axis")?, descending: attributes.value("descending")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &[self.axis], args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args).map(|_| DType::I32)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        let order = if self.descending { SortOrder::Descending } else { SortOrder::Ascending };
        AccessForm::Sort { axis: self.axis, order, positions: true }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(ArgSort { axis: self.axis + 1, ..*self }, &[x]))
    }
    fn jvp<'g>(&self, _: &[RuleOperand<'_, 'g>], _: E<'g>, _: &[Option<E<'g>>]) -> Option<E<'g>> {
        None
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        Some(ArgSort { axis: draw_operand_axis(from)?.1, descending: from.draw_below(2) == 0 })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |axis, descending| OpTestCase {
            op: ArgSort { axis, descending },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 3), ("N", 5)],
        };
        vec![case(1, false), case(1, true), case(0, false)]
    }
}

/// Positions, i32, of the `k` largest elements along an axis, the largest first ([`SortOrder::Largest`]); those of
/// equal elements ascend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ArgTopK {
    /// Number of positions to return.
    pub k: Dim,
    /// The axis to search.
    pub axis: usize,
}

methods! { ($) ArgTopK;
    /// i32 positions of the `k` largest elements along an axis, from the largest. Those of equal elements ascend; +0 is
    /// above -0, and a NaN is above all numbers, or below all if its sign is negative.
    fn arg_top_k<T: Elem>(k: Size, axis: Axis) -> i32 { ArgTopK { k, axis } }
}

impl fmt::Display for ArgTopK {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arg_top_k k({}) axis({})", self.k, self.axis)
    }
}

impl Structural for ArgTopK {
    const NAME: &'static str = "arg_top_k";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(ArgTopK { k: attributes.value("k")?, axis: attributes.value("axis")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![&mut self.k]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &[self.axis], args[0])?;
        let n = &args[0][self.axis];
        if facts.compare_at_most(&self.k, n) == SizeComparison::No || self.k.as_number().is_some_and(|k| k < 0) {
            let found = format!("the {} largest elements along axis {} of {}", self.k, self.axis, shape(args[0]));
            return Err(Diag::new("top-k", At::Operand(0), found, format!("there are {n}; `k` is at most as many")));
        }
        let mut result = args[0].to_vec();
        result[self.axis] = self.k.clone();
        Ok(result)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        first_dtype(args).map(|_| DType::I32)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Sort { axis: self.axis, order: SortOrder::Largest, positions: true }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(ArgTopK { axis: self.axis + 1, ..self.clone() }, &[x]))
    }
    fn jvp<'g>(&self, _: &[RuleOperand<'_, 'g>], _: E<'g>, _: &[Option<E<'g>>]) -> Option<E<'g>> {
        None
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>) -> Vec<Option<E<'g>>> {
        vec![None; args.len()]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        Some(ArgTopK { k: ((1 + from.draw_below(x.shape[axis])) as i64).into(), axis })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |axis| OpTestCase {
            op: ArgTopK { k: 2i64.into(), axis },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 3), ("N", 5)],
        };
        vec![case(1), case(0)]
    }
}
