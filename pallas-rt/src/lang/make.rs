//! Free functions of the kernel language, which make values, combine several, or ask about the launch.
use super::context::{self, Handle};
use super::operand::{Choice, Host, Shape, Staged, to_dims};
use super::operators::emit_elementwise;
use super::tile::{Scalar, Tile, emit_structural};
use pallas_ir::dtype::{Accumulate, Number};
use pallas_ir::{DType, Elem, Literal, Op, ScalarOp, structural as ops};

/// The matrix product `[m, k] · [k, n]`; axes in front of the last two are batch axes of both.
///
/// Products and sums are held in [`Accumulate::Acc`]: f32 for 16-bit floats, i32 for 8- and 16-bit integers, else the
/// element type itself; so is the result.
#[track_caller]
#[must_use]
pub fn dot<T: Number>(a: Tile<T>, b: Tile<T>) -> Tile<<T as Accumulate>::Acc> {
    let rank = a.rank();
    if rank <= 2 || rank != b.rank() {
        return Tile::new(emit_structural(ops::Dot::matmul(T::Acc::DTYPE), &[a.handle, b.handle]));
    }
    let batch: Vec<(usize, usize)> = (0..rank - 2).map(|axis| (axis, axis)).collect();
    dot_general(a, b, &[(rank - 1, rank - 2)], &batch)
}

/// The sum of products over pairs of axes, keeping pairs of batch axes: result `[batch.., free of a.., free of b..]`.
///
/// Accumulates as [`dot`] does.
#[track_caller]
#[must_use]
pub fn dot_general<T: Number>(
    a: Tile<T>,
    b: Tile<T>,
    contract: &[(usize, usize)],
    batch: &[(usize, usize)],
) -> Tile<<T as Accumulate>::Acc> {
    let op = ops::Dot { batch: batch.to_vec(), contract: contract.to_vec(), acc: T::Acc::DTYPE };
    Tile::new(emit_structural(op, &[a.handle, b.handle]))
}

/// `a` where the mask holds, else `b`.
#[track_caller]
#[must_use]
pub fn select<T, M, A, B>(mask: M, a: A, b: B) -> B::Beside<A::Beside<M, T>, T>
where
    T: Elem,
    M: Staged<Elem = bool>,
    A: Choice<T>,
    B: Choice<T>,
{
    emit_elementwise(ScalarOp::Select, &[mask.staged_handle(), a.choice_handle(), b.choice_handle()])
}
/// The larger of two operands, element by element; NaN if either is.
#[track_caller]
#[must_use]
pub fn maximum<T: Number, A: Choice<T>, B: Choice<T>>(a: A, b: B) -> B::Beside<A::Beside<Scalar<T>, T>, T> {
    emit_elementwise(ScalarOp::Maximum, &[a.choice_handle(), b.choice_handle()])
}
/// The smaller of two operands, element by element; NaN if either is.
#[track_caller]
#[must_use]
pub fn minimum<T: Number, A: Choice<T>, B: Choice<T>>(a: A, b: B) -> B::Beside<A::Beside<Scalar<T>, T>, T> {
    emit_elementwise(ScalarOp::Minimum, &[a.choice_handle(), b.choice_handle()])
}

/// A run-time scalar from a host value.
#[track_caller]
#[must_use]
pub fn scalar<T: IntoScalar>(x: T) -> Scalar<T::Element> {
    Scalar::new(super::operand::emit_host_constant::<T::Element, T>(x))
}
/// Host values that become run-time scalars.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` can't become a run-time scalar",
    label = "expected a number or `bool`"
)]
pub trait IntoScalar: Host {
    /// The element type: `usize` becomes `i32`.
    type Element: Elem;
}
macro_rules! into_scalar {
    ($($H:ty)*) => {$(
        impl IntoScalar for $H {
            type Element = $H;
        }
    )*};
}
into_scalar! { f32 f64 half::f16 half::bf16 i8 u8 i16 u16 i32 u32 i64 u64 bool }
impl IntoScalar for usize {
    type Element = i32;
}

/// A tile of this shape with `x` as every element.
#[track_caller]
#[must_use]
pub fn full<T: Elem>(shape: impl Shape, x: impl Choice<T>) -> Tile<T> {
    Scalar::<T>::new(x.choice_handle()).broadcast(shape)
}
/// A tile of zeros.
#[track_caller]
#[must_use]
pub fn zeros<T: Elem>(shape: impl Shape) -> Tile<T> {
    Scalar::<T>::new(context::emit_constant(Literal::new(T::DTYPE, 0.0))).broadcast(shape)
}
/// A tile in which each element is its own coordinate along `axis`.
#[track_caller]
#[must_use]
pub fn iota<T: Number>(shape: impl Shape, axis: usize) -> Tile<T> {
    Tile::new(emit_structural(ops::Iota { shape: to_dims(&shape), axis, dtype: T::DTYPE }, &[]))
}
/// The tiles joined along `axis`, in order.
#[track_caller]
#[must_use]
pub fn concat<T: Elem>(tiles: impl AsRef<[Tile<T>]>, axis: usize) -> Tile<T> {
    let handles: Vec<Handle> = tiles.as_ref().iter().map(|t| t.handle).collect();
    Tile::new(emit_structural(ops::Concat { axis }, &handles))
}
/// Mask of the lower triangle: `row + offset >= column`.
#[track_caller]
#[must_use]
pub fn tril(rows: usize, columns: usize, offset: impl Choice<i32>) -> Tile<bool> {
    diagonal_columns(rows, offset).ge(iota::<i32>([1, columns], 1))
}
/// Mask of the upper triangle: `row + offset <= column`.
#[track_caller]
#[must_use]
pub fn triu(rows: usize, columns: usize, offset: impl Choice<i32>) -> Tile<bool> {
    diagonal_columns(rows, offset).le(iota::<i32>([1, columns], 1))
}
/// For each row, the column of the shifted diagonal, `row + offset`, as a tile of shape `[rows, 1]`.
#[track_caller]
fn diagonal_columns(rows: usize, offset: impl Choice<i32>) -> Tile<i32> {
    emit_elementwise(ScalarOp::Add, &[iota::<i32>([rows, 1], 0).handle, offset.choice_handle()])
}

/// This program's index along a grid axis.
#[track_caller]
#[must_use]
pub fn program_id(axis: usize) -> Scalar<i32> {
    Scalar::new(context::emit(Op::ProgramId(axis), &[]))
}
/// The grid's extent along an axis: a constant where only literals, const generics and static dimensions size it.
#[track_caller]
#[must_use]
pub fn num_programs(axis: usize) -> Scalar<i32> {
    let extent =
        context::with_kernel(|kernel| kernel.grid.get(axis).and_then(|axis| axis.extent.as_number())).flatten();
    Scalar::new(match extent {
        Some(n) => context::emit_constant(Literal::int(DType::I32, n)),
        None => context::emit(Op::NumPrograms(axis), &[]),
    })
}

/// Prints a tile or scalar with a label, once per program. Only the interpreter and the CPU backend print.
#[track_caller]
pub fn debug_print(label: &str, x: impl Staged) {
    context::emit_effect(Op::DebugPrint(label.into()), &[x.staged_handle()]);
}
/// Ends the launch with `message` where the condition is false. Only the interpreter and the CPU backend check it.
#[track_caller]
pub fn debug_assert(condition: impl Choice<bool>, message: &str) {
    let condition = condition.choice_handle();
    context::emit_effect(Op::DebugAssert(message.into()), &[condition]);
}

/// The quotient rounded up, of run-time scalars and host numbers of either sign; `cdiv(-4, 3)` is -1.
#[track_caller]
#[must_use]
pub fn cdiv(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
    let (a, b) = (Scalar::<i32>::new(a.choice_handle()), Scalar::<i32>::new(b.choice_handle()));
    let (whole, rest) = (a / b, a % b);
    // The quotient was rounded towards zero, so down, where the rest has the sign of the divisor.
    whole + (rest.ne(0) & (rest ^ b).ge(0)).cast::<i32>()
}

/// The functions that index maps may use.
pub mod index {
    use super::{Choice, Scalar, ScalarOp, emit_elementwise};

    pub use super::cdiv;

    /// The smaller of two integers.
    #[track_caller]
    pub fn min(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
        emit_elementwise(ScalarOp::Minimum, &[a.choice_handle(), b.choice_handle()])
    }
    /// The larger of two integers.
    #[track_caller]
    pub fn max(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
        emit_elementwise(ScalarOp::Maximum, &[a.choice_handle(), b.choice_handle()])
    }
}
