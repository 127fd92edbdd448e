//! Operands that can be combined: tiles, run-time scalars and host numbers; shapes and axes.
use super::context::{self, Handle};
use super::tile::{Scalar, Tile};
use pallas_ir::dtype::Real;
use pallas_ir::{At, DType, Diag, Dim, Elem, Literal};

/// A tile or a run-time scalar.
#[diagnostic::on_unimplemented(
    message = "expected a tile or a run-time scalar, found `{Self}`",
    label = "not a tile or scalar",
    note = "make a host value a run-time one by `scalar(x)`",
    note = "this is a function on tiles; those on arrays are methods and functions of `pallas_rt::ops`"
)]
pub trait Staged: Copy {
    /// Type of its elements.
    type Elem: Elem;
    /// The same kind of value, a tile or a scalar, with elements of type `U`.
    type Of<U: Elem>: Staged<Elem = U>;
    #[doc(hidden)]
    fn staged_handle(self) -> Handle;
    #[doc(hidden)]
    fn from_handle(handle: Handle) -> Self;
}
macro_rules! handles {
    ($($H:ident)*) => {$(
        impl<T: Elem> Staged for $H<T> {
            type Elem = T;
            type Of<U: Elem> = $H<U>;
            fn staged_handle(self) -> Handle {
                self.handle
            }
            fn from_handle(handle: Handle) -> Self {
                $H::new(handle)
            }
        }
        /// Exists only for rustc's message: a tile or scalar of another element type is no [`Host`], and the message
        /// says only that.
        #[diagnostic::do_not_recommend]
        impl<T, U: Elem> HostOperand<T> for $H<U> {
            fn element_handle(self) -> Handle {
                self.handle
            }
        }
    )*};
}
handles! { Tile Scalar }

/// Host numbers that may stand beside a tile or a scalar.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be combined with the elements beside it",
    label = "no number, nor a tile or scalar of the same elements",
    note = "cast a tile or scalar to the other's elements: `x.cast::<f32>()`"
)]
pub trait Host: Copy {
    /// Returns the number as an element of type `dtype`; an integer out of the type's range is an error.
    #[doc(hidden)]
    fn literal(self, dtype: DType) -> Result<Literal, Diag>;
}
/// Implements [`Host`] for types of numbers, by an expression that makes a literal of the number `$x`.
macro_rules! host {
    ($($($H:ty)+, |$x:ident, $dtype:pat_param| $literal:expr;)*) => {$($(
        #[diagnostic::do_not_recommend]
        impl Host for $H {
            fn literal(self, $dtype: DType) -> Result<Literal, Diag> {
                let $x = self;
                $literal
            }
        }
    )+)*};
}
host! {
    i8 u8 i16 u16 i32 u32 i64 u64 isize usize, |x, dtype| integer_literal(x as i128, dtype);
    f32 half::f16 half::bf16, |x, dtype| Ok(Literal::new(dtype, x.into()));
    f64, |x, dtype| Ok(Literal::new(dtype, x));
    bool, |x, _| Ok(Literal::bool(x));
}

fn integer_literal(x: i128, dtype: DType) -> Result<Literal, Diag> {
    let literal = Literal::int(dtype, x as i64);
    let value = if dtype == DType::U64 { i128::from(literal.bits) } else { i128::from(literal.as_i64()) };
    if value == x || dtype.is_float() {
        return Ok(literal);
    }
    let message = format!("{x} is out of range for {dtype} elements");
    Err(Diag::new("literal", At::Op, message, "cast the tile to a wider type first"))
}

/// An element type that can be combined with host numbers of type `L`.
#[diagnostic::on_unimplemented(
    message = "a host `{L}` can't be mixed with elements of `{Self}`",
    label = "elements are `{Self}`, this is `{L}`",
    note = "write a float literal (`2.0`) beside float tiles and an integer literal beside integer tiles"
)]
pub trait Takes<L> {}
impl<E: Real> Takes<f32> for E {}
impl<E: Real> Takes<f64> for E {}
impl Takes<half::f16> for half::f16 {}
impl Takes<half::bf16> for half::bf16 {}
impl Takes<bool> for bool {}
macro_rules! takes_integers {
    ($($E:ident)*) => {$(takes_integers! { @each $E i8 u8 i16 u16 i32 u32 i64 u64 isize usize })*};
    (@each $E:ident $($L:ident)*) => {$(impl Takes<$L> for $E {})*};
}
takes_integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

/// A host number right of an operator whose left side has elements of type `T`.
#[diagnostic::on_unimplemented(
    message = "elements of `{T}` and `{Self}` can't be combined",
    label = "expected `{T}` elements or a number that fits them, found `{Self}`",
    note = "beside floats write a float literal (`2.0`) or `n as f32`, beside integers one without a point (`2`)"
)]
pub trait HostOperand<T>: Copy {
    #[doc(hidden)]
    fn element_handle(self) -> Handle;
}
#[diagnostic::do_not_recommend]
impl<T: Elem + Takes<L>, L: Host> HostOperand<T> for L {
    #[track_caller]
    fn element_handle(self) -> Handle {
        emit_host_constant::<T, L>(self)
    }
}

/// Emits a constant of element type `T` from a host number; a number out of range is an error of the body.
#[track_caller]
pub(crate) fn emit_host_constant<T: Elem, L: Host>(x: L) -> Handle {
    match x.literal(T::DTYPE) {
        Ok(literal) => context::emit_constant(literal),
        Err(diag) => context::record_error(diag),
    }
}

/// An operand where elements of type `T` are expected: a tile, a run-time scalar or a host number.
#[diagnostic::on_unimplemented(
    message = "elements of `{T}` and `{Self}` can't be combined",
    label = "expected `{T}` elements or a number that fits them, found `{Self}`",
    note = "beside floats write a float literal (`2.0`) or `n as f32`, beside integers one without a point (`2`)",
    note = "cast a tile or scalar to the other's elements: `x.cast::<{T}>()`"
)]
pub trait Choice<T: Elem>: Copy {
    /// Type of the result of combining this operand with a `V`, with elements of type `U`: a tile if either is one.
    type Beside<V: Staged, U: Elem>: Staged<Elem = U>;
    #[doc(hidden)]
    #[track_caller]
    fn choice_handle(self) -> Handle;
}
impl<T: Elem> Choice<T> for Tile<T> {
    type Beside<V: Staged, U: Elem> = Tile<U>;
    fn choice_handle(self) -> Handle {
        self.handle
    }
}
impl<T: Elem> Choice<T> for Scalar<T> {
    type Beside<V: Staged, U: Elem> = V::Of<U>;
    fn choice_handle(self) -> Handle {
        self.handle
    }
}
#[diagnostic::do_not_recommend]
impl<T: Elem + Takes<L>, L: Host> Choice<T> for L {
    type Beside<V: Staged, U: Elem> = V::Of<U>;
    #[track_caller]
    fn choice_handle(self) -> Handle {
        emit_host_constant::<T, L>(self)
    }
}

/// Host sizes, one per axis: a shape, offsets, or strides.
#[diagnostic::on_unimplemented(
    message = "a shape is made of host `usize` sizes, found `{Self}`",
    label = "expected `[usize; N]`, `&[usize]` or `Vec<usize>`"
)]
pub trait Shape {
    #[doc(hidden)]
    fn sizes(&self) -> Vec<usize>;
}
impl<const N: usize> Shape for [usize; N] {
    fn sizes(&self) -> Vec<usize> {
        self.to_vec()
    }
}
impl Shape for &[usize] {
    fn sizes(&self) -> Vec<usize> {
        self.to_vec()
    }
}
impl Shape for Vec<usize> {
    fn sizes(&self) -> Vec<usize> {
        self.clone()
    }
}

/// Converts a shape to the sizes that structural operations have as attributes.
pub(crate) fn to_dims(shape: &impl Shape) -> Vec<Dim> {
    shape.sizes().into_iter().map(Dim::from).collect()
}

/// Axes of a tile: one, several, or `..` for all.
#[diagnostic::on_unimplemented(
    message = "axes are host `usize` numbers, found `{Self}`",
    label = "expected an axis, `[axis, axis]` or `..`"
)]
pub trait Axes {
    /// Returns the numbers of the axes, for a tile with `rank` axes.
    #[doc(hidden)]
    fn axes(self, rank: usize) -> Vec<usize>;
}
impl Axes for usize {
    fn axes(self, _: usize) -> Vec<usize> {
        vec![self]
    }
}
#[diagnostic::do_not_recommend]
impl<S: Shape> Axes for S {
    fn axes(self, _: usize) -> Vec<usize> {
        self.sizes()
    }
}
impl Axes for std::ops::RangeFull {
    fn axes(self, rank: usize) -> Vec<usize> {
        (0..rank).collect()
    }
}
