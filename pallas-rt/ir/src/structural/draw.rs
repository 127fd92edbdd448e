//! The interface between an operation and the generator of random kernels.
use crate::{DType, Literal, Type};

/// A generator of random kernels, as [`draw`](super::Structural::draw) of an operation uses it: it draws numbers, and
/// chooses the operands in order.
pub trait RandomKernelGenerator {
    /// Draws a number below `n`; 0 if `n` is 0.
    fn draw_below(&mut self, n: usize) -> usize;
    /// Chooses a value whose type fits as the next operand; `None` if no value does.
    fn choose_operand(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<Type>;
    /// Appends a scalar constant as the next operand.
    fn append_constant(&mut self, x: Literal);
    /// Brings the elements of the last chosen operand, which are i32, into `0..end`.
    fn clamp_last_operand(&mut self, end: usize);
    /// Draws an element type that the kernel's devices support.
    fn draw_dtype(&mut self) -> DType;
    /// Shape of most tiles of the kernel.
    fn common_shape(&mut self) -> Vec<usize>;
}

/// Accepts a value of any type as an operand.
pub(super) fn accepts_any_type(_: &Type) -> bool {
    true
}

/// Chooses an operand with at least one axis, and draws one of its axes.
pub(super) fn draw_operand_axis(from: &mut dyn RandomKernelGenerator) -> Option<(Type, usize)> {
    let x = from.choose_operand(&|ty| !ty.is_scalar())?;
    let axis = from.draw_below(x.shape.len());
    Some((x, axis))
}

/// Draws a monoid that is defined on an element type.
pub(super) fn draw_monoid(from: &mut dyn RandomKernelGenerator, dtype: DType) -> Option<crate::ScalarOp> {
    let defined = |op: &crate::ScalarOp| op.row().fold.is_some() && op.row().class.dtypes().contains(&dtype);
    let monoids: Vec<crate::ScalarOp> = crate::ScalarOp::ALL.iter().copied().filter(defined).collect();
    monoids.get(from.draw_below(monoids.len())).copied()
}

/// Returns true for a shape of 1 to 4096 elements.
pub(super) fn is_small_shape(shape: &[crate::Dim]) -> bool {
    let n = shape.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_number()?));
    n.is_some_and(|n| (1..=4096).contains(&n))
}
