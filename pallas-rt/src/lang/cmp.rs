//! `a < b` in a kernel is `Cmp(&a).lt(&b)`: an inherent method for tiles and scalars, a trait method for everything
//! else.
//!
//! Handles implement neither `PartialEq` nor `PartialOrd`, whose results would have to be host truth values; helper
//! functions, which no macro rewrites, call the methods: `t.gt(0.0)`.
use super::decide::{AtRunTime, AtTrace, DecisionKey, Elementwise, Truth};
use super::operand::{Choice, Staged, emit_host_constant};
use super::operators::emit_elementwise;
use super::tile::{Scalar, Tile};
use pallas_ir::dtype::Float;
use pallas_ir::{Elem, ScalarOp};

/// The left side of a comparison in a kernel's body: `<` becomes its method `lt`, and so on.
#[derive(Debug)]
pub struct Cmp<'a, A: ?Sized>(pub &'a A);

/// Expands each comparison to methods of tiles and scalars, and to the trait by which host values keep Rust's
/// comparison.
macro_rules! comparisons {
    ($($name:ident $Op:ident $Trait:ident $Std:ident $op:tt)*) => {
        impl<T: Elem> Tile<T> {
            $(#[doc = concat!("`self ", stringify!($op), " other`, element by element.")]
            #[track_caller]
            #[must_use]
            pub fn $name(self, other: impl Choice<T>) -> Tile<bool> { Cmp(&self).$name(&other) })*
        }
        impl<T: Elem> Scalar<T> {
            $(#[doc = concat!("`self ", stringify!($op), " other`.")]
            #[track_caller]
            #[must_use]
            pub fn $name<R: Choice<T>>(self, other: R) -> R::Beside<Scalar<T>, bool> { Cmp(&self).$name(&other) })*
        }
        impl<T: Elem> Cmp<'_, Tile<T>> {
            $(#[doc(hidden)]
            #[track_caller]
            pub fn $name<R: Choice<T>>(&self, other: &R) -> Tile<bool> {
                emit_elementwise(ScalarOp::$Op, &[self.0.handle, other.choice_handle()])
            })*
        }
        impl<T: Elem> Cmp<'_, Scalar<T>> {
            $(#[doc(hidden)]
            #[track_caller]
            pub fn $name<R: Choice<T>>(&self, other: &R) -> R::Beside<Scalar<T>, bool> {
                emit_elementwise(ScalarOp::$Op, &[self.0.handle, other.choice_handle()])
            })*
        }
        $(
            #[doc = concat!("`", stringify!($op), "` of host values, and of a host number against tiles and scalars.")]
            #[diagnostic::on_unimplemented(
                message = "can't compare `{Self}` with `{R}`",
                label = "no comparison of `{Self}` with `{R}`"
            )]
            pub trait $Trait<R: ?Sized, Out> {
                #[doc(hidden)]
                #[track_caller]
                fn $name(&self, other: &R) -> Out;
            }
            #[diagnostic::do_not_recommend]
            impl<A: std::cmp::$Std<R> + ?Sized, R: ?Sized> $Trait<R, bool> for A {
                #[inline]
                fn $name(&self, other: &R) -> bool { *self $op *other }
            }
            left! {
                $Trait $name $Op [] i8 i8; [] u8 u8; [] i16 i16; [] u16 u16; [] i32 i32; [] u32 u32; [] i64 i64; [] u64 u64;
                [] usize i32; [] usize u32; [] f64 f64; [] bool bool; [T: Float] f32 T
            }
        )*
        /// Lets `Cmp(&a).lt(&b)` compile for a left side that is neither a tile nor a scalar.
        pub trait HostCmp {
            /// The left side's type.
            type A: ?Sized;
            $(#[doc(hidden)]
            #[track_caller]
            fn $name<R: ?Sized, Out>(&self, other: &R) -> Out where Self::A: $Trait<R, Out>;)*
        }
        impl<A: ?Sized> HostCmp for Cmp<'_, A> {
            type A = A;
            $(#[track_caller]
            #[inline]
            fn $name<R: ?Sized, Out>(&self, other: &R) -> Out where A: $Trait<R, Out> {
                <A as $Trait<R, Out>>::$name(self.0, other)
            })*
        }
    };
}
/// Implements a comparison of a host number (left) with a tile or scalar of the matching element type (right).
macro_rules! left {
    ($Trait:ident $name:ident $Op:ident $([$($generics:tt)*] $N:ident $T:ident);*) => {$(
        left! { @ $Trait $name $Op [$($generics)*] $N $T Tile }
        left! { @ $Trait $name $Op [$($generics)*] $N $T Scalar }
    )*};
    (@ $Trait:ident $name:ident $Op:ident [$($generics:tt)*] $N:ident $T:ident $H:ident) => {
        impl<$($generics)*> $Trait<$H<$T>, $H<bool>> for $N {
            #[track_caller]
            fn $name(&self, other: &$H<$T>) -> $H<bool> {
                emit_elementwise(ScalarOp::$Op, &[emit_host_constant::<$T, $N>(*self), other.handle])
            }
        }
    };
}
comparisons! {
    lt Lt Less PartialOrd <
    le Le AtMost PartialOrd <=
    gt Gt Greater PartialOrd >
    ge Ge AtLeast PartialOrd >=
    eq Eq Equal PartialEq ==
    ne Ne Unequal PartialEq !=
}

/// The left side of `&&` or `||`, which says whether the right side has to be evaluated.
#[diagnostic::on_unimplemented(
    message = "`&&` and `||` need `bool`s, run-time scalars or tiles of `bool`, found `{Self}`",
    label = "this is a `{Self}`"
)]
pub trait Left: Truth {
    /// Returns true if `b` in `self && b` has to be evaluated, where `b` has no effect besides its value: always for
    /// values of the device, and for a host `bool` that is true.
    #[doc(hidden)]
    fn left_and(&self) -> bool {
        true
    }
    /// Returns true if `b` in `self || b` has to be evaluated, where `b` has no effect besides its value: always for
    /// values of the device, and for a host `bool` that is false.
    #[doc(hidden)]
    fn left_or(&self) -> bool {
        true
    }
}
impl Left for bool {
    #[inline]
    fn left_and(&self) -> bool {
        *self
    }
    #[inline]
    fn left_or(&self) -> bool {
        !*self
    }
}
impl Left for Tile<bool> {}
impl Left for Scalar<bool> {}

/// `a && b` and `a || b`, where `When` is the time at which `a` is decided. Host values and run-time scalars
/// short-circuit, except that a right side without effect is always computed if the left side is a run-time value; for
/// tiles both sides are computed. There is no impl for a host value before a tile: if the host value decided alone,
/// there would be no tile, and the result would have no shape.
#[diagnostic::on_unimplemented(
    message = "can't combine `{Self}` with `{R}` by `&&` or `||`",
    label = "needs `bool`s, run-time scalars or tiles of `bool`; a host value stands after a tile: `tile && host`"
)]
pub trait Logic<R, Out, When>: Sized {
    #[doc(hidden)]
    #[track_caller]
    fn and(self, right: Option<R>) -> Out;
    #[doc(hidden)]
    #[track_caller]
    fn or(self, right: Option<R>) -> Out;
}
/// Computes `left && right`; `right` is `None` if the left side decides alone.
#[track_caller]
#[inline]
pub fn and<L: Logic<R, Out, When>, R, Out, When>(_: DecisionKey<When>, left: L, right: Option<R>) -> Out {
    left.and(right)
}
/// Computes `left || right`; `right` is `None` if the left side decides alone.
#[track_caller]
#[inline]
pub fn or<L: Logic<R, Out, When>, R, Out, When>(_: DecisionKey<When>, left: L, right: Option<R>) -> Out {
    left.or(right)
}
impl Logic<bool, bool, AtTrace> for bool {
    #[inline]
    fn and(self, right: Option<bool>) -> bool {
        right.unwrap_or(false)
    }
    #[inline]
    fn or(self, right: Option<bool>) -> bool {
        right.unwrap_or(true)
    }
}
/// Returns `left` if there is no right side because `left` decides alone, else `left op right`.
#[track_caller]
fn emit_logic<S: Staged>(op: ScalarOp, left: impl Choice<bool>, right: Option<impl Choice<bool>>) -> S {
    match right {
        None => S::from_handle(left.choice_handle()),
        Some(right) => emit_elementwise(op, &[left.choice_handle(), right.choice_handle()]),
    }
}
macro_rules! logic {
    ($($L:ty, $R:ty => $Out:ident $When:ident;)*) => {$(
        impl Logic<$R, $Out<bool>, $When> for $L {
            #[track_caller]
            fn and(self, right: Option<$R>) -> $Out<bool> {
                emit_logic(ScalarOp::BitAnd, self, right)
            }
            #[track_caller]
            fn or(self, right: Option<$R>) -> $Out<bool> {
                emit_logic(ScalarOp::BitOr, self, right)
            }
        }
    )*};
}
logic! {
    Scalar<bool>, Scalar<bool> => Scalar AtRunTime;
    Scalar<bool>, bool => Scalar AtRunTime;
    bool, Scalar<bool> => Scalar AtTrace;
    Tile<bool>, Tile<bool> => Tile Elementwise;
    Tile<bool>, bool => Tile Elementwise;
    Tile<bool>, Scalar<bool> => Tile Elementwise;
    Scalar<bool>, Tile<bool> => Tile Elementwise;
}

/// A value that a `match` in a kernel compares with its patterns; for a reference, the value behind it.
pub trait Matched: Copy {
    /// Returns the value itself, without references.
    #[doc(hidden)]
    #[inline]
    fn matched(&self) -> Self {
        *self
    }
}
impl<T: Elem> Matched for Tile<T> {}
impl<T: Elem> Matched for Scalar<T> {}
macro_rules! matched {
    ($($H:ty)*) => {$(impl Matched for $H {})*};
}
matched! { bool i8 u8 i16 u16 i32 u32 i64 u64 i128 u128 isize usize f32 f64 }
