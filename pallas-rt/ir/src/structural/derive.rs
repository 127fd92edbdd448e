//! Building blocks of rules for derivatives and batching.
use super::{Broadcast, Cast, Reduce, Reshape, Scatter, StructuralOp, Transpose};
use crate::emit::Term;
use crate::{DType, Dim, E, ScalarOp};

/// An operand in a derivative or `vmap` rule: its value, shape and element type.
#[derive(Clone, Copy)]
pub struct RuleOperand<'a, 'g> {
    /// The operand's value.
    pub value: E<'g>,
    /// The operand's shape; in [`Structural::batched`](super::Structural::batched) without the batch axis.
    pub shape: &'a [Dim],
    /// The operand's element type.
    pub dtype: DType,
}

/// The batch in a `vmap` rule ([`Structural::batched`](super::Structural::batched)): its extent, and its axis in each
/// operand.
#[derive(Clone, Debug)]
pub struct VmapBatch<'a> {
    /// Extent of the batch axis.
    pub size: Dim,
    /// Position of the batch axis in each operand; `None` if the operand does not have it.
    pub axes: &'a [Option<usize>],
}

impl<'g> E<'g> {
    /// Appends the structural operation `op` with the operands `args`, and returns its result.
    pub fn apply(self, op: impl Into<StructuralOp>, args: &[E<'g>]) -> E<'g> {
        self.emit(Term::Structural(op.into()), args)
    }
    /// A scalar constant of this value's type.
    pub fn scalar_constant(self, x: f64) -> E<'g> {
        self.emit(Term::Number(x), &[self])
    }
    /// Appends a reshape of the value to the shape `to`, which keeps the elements in row-major order.
    pub(super) fn reshape(self, to: &[Dim]) -> E<'g> {
        self.apply(Reshape { to: to.to_vec() }, &[self])
    }
    /// Appends a broadcast of the value, a scalar or of the same rank as the result, to the shape `to`.
    pub(super) fn broadcast_to(self, to: &[Dim]) -> E<'g> {
        self.apply(Broadcast::to(to.to_vec()), &[self])
    }
    /// Sums over axes, which stay with extent 1.
    pub(super) fn sum_axes(self, axes: Vec<usize>) -> E<'g> {
        self.apply(Reduce::keeping(ScalarOp::Add, axes), &[self])
    }
}

impl VmapBatch<'_> {
    /// The shape with the batch axis added at the front.
    pub(super) fn batch_first_shape(&self, shape: &[Dim]) -> Vec<Dim> {
        [std::slice::from_ref(&self.size), shape].concat()
    }
    /// Operand `i` with the batch axis in front; broadcast along it if it has none.
    pub(super) fn batch_first_operand<'g>(&self, i: usize, arg: &RuleOperand<'_, 'g>) -> E<'g> {
        let Some(at) = self.axes[i] else {
            let op = Broadcast { to: self.batch_first_shape(arg.shape), dims: (1..=arg.shape.len()).collect() };
            return arg.value.apply(op, &[arg.value]);
        };
        let axes: Vec<usize> = std::iter::once(at).chain((0..=arg.shape.len()).filter(|&a| a != at)).collect();
        if at == 0 { arg.value } else { arg.value.apply(Transpose { axes }, &[arg.value]) }
    }
    /// All operands with the batch axis in front.
    pub(super) fn batch_first_operands<'g>(&self, args: &[RuleOperand<'_, 'g>]) -> Vec<E<'g>> {
        args.iter().enumerate().map(|(i, a)| self.batch_first_operand(i, a)).collect()
    }
}

/// Shifts axis numbers by 1, to make room for a batch axis at position 0.
pub(super) fn shift_axes(axes: &[usize]) -> Vec<usize> {
    axes.iter().map(|a| a + 1).collect()
}

/// The tangent of an operation that is linear in all operands together: the operation on their tangents, with zeros for
/// operands that have none; `None` if no operand has a tangent.
pub(super) fn linear_jvp<'g>(
    op: &(impl Into<StructuralOp> + Clone),
    args: &[RuleOperand<'_, 'g>],
    tangents: &[Option<E<'g>>],
) -> Option<E<'g>> {
    let some = tangents.iter().flatten().next()?;
    let tangents: Vec<E<'g>> = args.iter().zip(tangents).map(|(a, t)| t.unwrap_or_else(|| a.value.zero())).collect();
    Some(some.apply(op.clone(), &tangents))
}

/// The cotangent of an operand whose elements were gathered, some perhaps many times: scatters and adds `cotangent` at
/// their positions, in the accumulator's type, unless there is only one position.
pub(super) fn cotangent_of_gathered<'g>(
    op: Scatter,
    operand: &RuleOperand<'_, 'g>,
    starts_with_shape: (E<'g>, &[Dim]),
    cotangent: E<'g>,
) -> E<'g> {
    let (own, wide, (index, positions)) = (operand.dtype, operand.dtype.accumulator(), starts_with_shape);
    let mut others = (0..positions.len()).filter(|axis| *axis != op.index_vector_dim);
    if wide == own || others.all(|axis| positions[axis].as_number() == Some(1)) {
        return cotangent.apply(op, &[operand.value.zero(), index, cotangent]);
    }
    let cast = |x: E<'g>, to| x.apply(Cast { to }, &[x]);
    let cotangent = cast(cotangent, wide);
    let zeros = cotangent.scalar_constant(0.0).broadcast_to(operand.shape);
    cast(cotangent.apply(op, &[zeros, index, cotangent]), own)
}
