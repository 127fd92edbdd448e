//! `a < b` in a kernel is `Cmp(&a).lt(&b)`: an inherent method for tiles and scalars, a trait method for everything else.
//!
//! Handles implement neither `PartialEq` nor `PartialOrd`, whose results would have to be host truth values; helper
//! functions, which no macro rewrites, call the methods: `t.gt(0.0)`.
use super::context::{self, Handle};
use super::tile::{Host, Scalar, Takes, Tile, host_constant};
use pallas_ir::dtype::Float;
use pallas_ir::{DType, Elem, Literal, Op, ScalarOp};

/// The left side of a comparison.
#[derive(Debug)]
pub struct Cmp<'a, A: ?Sized>(pub &'a A);

/// What may stand right of a comparison with elements `T`.
#[diagnostic::on_unimplemented(
    message = "can't compare elements of `{T}` with `{Self}`",
    label = "expected `{T}` elements or a number, found `{Self}`",
    note = "cast one side: `x.cast::<{T}>()`"
)]
pub trait Comparable<T> {
    /// The mask, when the left side is a tile.
    type FromTile;
    /// The result, when the left side is a scalar.
    type FromScalar;
    #[doc(hidden)]
    #[track_caller]
    fn operand(&self) -> Handle;
    #[doc(hidden)]
    fn with_tile(h: Handle) -> Self::FromTile;
    #[doc(hidden)]
    fn with_scalar(h: Handle) -> Self::FromScalar;
}
impl<T: Elem> Comparable<T> for Tile<T> {
    type FromTile = Tile<bool>;
    type FromScalar = Tile<bool>;
    fn operand(&self) -> Handle {
        self.handle
    }
    fn with_tile(h: Handle) -> Tile<bool> {
        Tile::new(h)
    }
    fn with_scalar(h: Handle) -> Tile<bool> {
        Tile::new(h)
    }
}
impl<T: Elem> Comparable<T> for Scalar<T> {
    type FromTile = Tile<bool>;
    type FromScalar = Scalar<bool>;
    fn operand(&self) -> Handle {
        self.handle
    }
    fn with_tile(h: Handle) -> Tile<bool> {
        Tile::new(h)
    }
    fn with_scalar(h: Handle) -> Scalar<bool> {
        Scalar::new(h)
    }
}
#[diagnostic::do_not_recommend]
impl<T: Elem + Takes<L>, L: Host> Comparable<T> for L {
    type FromTile = Tile<bool>;
    type FromScalar = Scalar<bool>;
    #[track_caller]
    fn operand(&self) -> Handle {
        host_constant::<T, L>(*self)
    }
    fn with_tile(h: Handle) -> Tile<bool> {
        Tile::new(h)
    }
    fn with_scalar(h: Handle) -> Scalar<bool> {
        Scalar::new(h)
    }
}

#[track_caller]
fn compare(op: ScalarOp, a: Handle, b: Handle) -> Handle {
    context::emit(Op::Scalar(op), &[a, b])
}

/// One comparison -> methods of tiles and scalars, and the trait through which host values keep their own.
macro_rules! comparisons {
    ($($name:ident $Op:ident $Trait:ident $Std:ident $op:tt)*) => {
        impl<T: Elem> Tile<T> {
            $(#[doc = concat!("`self ", stringify!($op), " other`, element by element.")]
            #[track_caller]
            pub fn $name<R: Comparable<T>>(self, other: R) -> R::FromTile { Cmp(&self).$name(&other) })*
        }
        impl<T: Elem> Scalar<T> {
            $(#[doc = concat!("`self ", stringify!($op), " other`.")]
            #[track_caller]
            pub fn $name<R: Comparable<T>>(self, other: R) -> R::FromScalar { Cmp(&self).$name(&other) })*
        }
        impl<T: Elem> Cmp<'_, Tile<T>> {
            $(#[doc(hidden)]
            #[track_caller]
            pub fn $name<R: Comparable<T>>(&self, other: &R) -> R::FromTile {
                R::with_tile(compare(ScalarOp::$Op, self.0.handle, other.operand()))
            })*
        }
        impl<T: Elem> Cmp<'_, Scalar<T>> {
            $(#[doc(hidden)]
            #[track_caller]
            pub fn $name<R: Comparable<T>>(&self, other: &R) -> R::FromScalar {
                R::with_scalar(compare(ScalarOp::$Op, self.0.handle, other.operand()))
            })*
        }
        $(
            #[doc = concat!("`", stringify!($op), "` of host values, and of a host number against tiles and scalars.")]
            #[diagnostic::on_unimplemented(
                message = "can't compare `{Self}` with `{R}`",
                label = "no comparison of `{Self}` with `{R}`"
            )]
            pub trait $Trait<R: ?Sized> {
                /// The result.
                type Out;
                #[doc(hidden)]
                #[track_caller]
                fn $name(&self, other: &R) -> Self::Out;
            }
            #[diagnostic::do_not_recommend]
            impl<A: std::cmp::$Std<R> + ?Sized, R: ?Sized> $Trait<R> for A {
                type Out = bool;
                #[inline]
                fn $name(&self, other: &R) -> bool { *self $op *other }
            }
            left! { $Trait $name $Op i32 i32; u32 u32; usize i32; usize u32; f64 f64 }
            impl<T: Float> $Trait<Tile<T>> for f32 {
                type Out = Tile<bool>;
                #[track_caller]
                fn $name(&self, other: &Tile<T>) -> Tile<bool> {
                    let own = context::constant(Literal::new(T::DTYPE, f64::from(*self)));
                    Tile::new(compare(ScalarOp::$Op, own, other.handle))
                }
            }
            impl<T: Float> $Trait<Scalar<T>> for f32 {
                type Out = Scalar<bool>;
                #[track_caller]
                fn $name(&self, other: &Scalar<T>) -> Scalar<bool> {
                    let own = context::constant(Literal::new(T::DTYPE, f64::from(*self)));
                    Scalar::new(compare(ScalarOp::$Op, own, other.handle))
                }
            }
        )*
        /// Brings the comparisons of everything that is no tile or scalar into method position.
        pub trait HostCmp {
            /// The left side's type.
            type A: ?Sized;
            $(#[doc(hidden)]
            #[track_caller]
            fn $name<R: ?Sized>(&self, other: &R) -> <Self::A as $Trait<R>>::Out where Self::A: $Trait<R>;)*
        }
        impl<A: ?Sized> HostCmp for Cmp<'_, A> {
            type A = A;
            $(#[track_caller]
            #[inline]
            fn $name<R: ?Sized>(&self, other: &R) -> <A as $Trait<R>>::Out where A: $Trait<R> {
                <A as $Trait<R>>::$name(self.0, other)
            })*
        }
    };
}
/// A host number on the left of its own element type.
macro_rules! left {
    ($Trait:ident $name:ident $Op:ident $($H:ident $T:ident);*) => {$(
        impl $Trait<Tile<$T>> for $H {
            type Out = Tile<bool>;
            #[track_caller]
            fn $name(&self, other: &Tile<$T>) -> Tile<bool> {
                Tile::new(compare(ScalarOp::$Op, host_constant::<$T, $H>(*self), other.handle))
            }
        }
        impl $Trait<Scalar<$T>> for $H {
            type Out = Scalar<bool>;
            #[track_caller]
            fn $name(&self, other: &Scalar<$T>) -> Scalar<bool> {
                Scalar::new(compare(ScalarOp::$Op, host_constant::<$T, $H>(*self), other.handle))
            }
        }
    )*};
}
comparisons! {
    lt Lt Less PartialOrd <
    le Le AtMost PartialOrd <=
    gt Gt Greater PartialOrd >
    ge Ge AtLeast PartialOrd >=
    eq Eq Equal PartialEq ==
    ne Ne Unequal PartialEq !=
}

/// The left side of `&&` and `||`: whether the right one is needed.
#[diagnostic::on_unimplemented(
    message = "`&&` and `||` need `bool`s, run-time scalars or tiles of `bool`, found `{Self}`",
    label = "this is a `{Self}`"
)]
pub trait Left {
    #[doc(hidden)]
    fn left_and(&self) -> bool;
    #[doc(hidden)]
    fn left_or(&self) -> bool;
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
macro_rules! always_needed {
    ($($T:ident)*) => {$(
        impl Left for $T<bool> {
            fn left_and(&self) -> bool {
                true
            }
            fn left_or(&self) -> bool {
                true
            }
        }
    )*};
}
always_needed! { Tile Scalar }

/// `a && b`, `a || b`: host truth values short-circuit, run-time ones are both computed.
#[diagnostic::on_unimplemented(
    message = "can't combine `{Self}` with `{R}` by `&&` or `||`",
    label = "needs `bool`s, run-time scalars or tiles of `bool`"
)]
pub trait Logic<R>: Sized {
    /// The result.
    type Out;
    #[doc(hidden)]
    #[track_caller]
    fn and(self, right: Option<R>) -> Self::Out;
    #[doc(hidden)]
    #[track_caller]
    fn or(self, right: Option<R>) -> Self::Out;
}
impl Logic<bool> for bool {
    type Out = bool;
    #[inline]
    fn and(self, right: Option<bool>) -> bool {
        right.unwrap_or(false)
    }
    #[inline]
    fn or(self, right: Option<bool>) -> bool {
        right.unwrap_or(true)
    }
}
/// A side of a logical operation as a value.
trait Truth {
    #[track_caller]
    fn truth(self) -> Handle;
}
impl Truth for bool {
    #[track_caller]
    fn truth(self) -> Handle {
        context::constant(Literal::bool(self))
    }
}
impl Truth for Scalar<bool> {
    fn truth(self) -> Handle {
        self.handle
    }
}
impl Truth for Tile<bool> {
    fn truth(self) -> Handle {
        self.handle
    }
}
macro_rules! logic {
    ($($L:ty, $R:ty => $Out:ident;)*) => {$(
        impl Logic<$R> for $L {
            type Out = $Out<bool>;
            #[track_caller]
            fn and(self, right: Option<$R>) -> $Out<bool> {
                let Some(right) = right else { return $Out::new(context::constant(Literal::new(DType::Bool, 0.0))) };
                $Out::new(context::emit(Op::Scalar(ScalarOp::BitAnd), &[self.truth(), right.truth()]))
            }
            #[track_caller]
            fn or(self, right: Option<$R>) -> $Out<bool> {
                let Some(right) = right else { return $Out::new(context::constant(Literal::new(DType::Bool, 1.0))) };
                $Out::new(context::emit(Op::Scalar(ScalarOp::BitOr), &[self.truth(), right.truth()]))
            }
        }
    )*};
}
logic! {
    Scalar<bool>, Scalar<bool> => Scalar;
    Scalar<bool>, bool => Scalar;
    bool, Scalar<bool> => Scalar;
    Tile<bool>, Tile<bool> => Tile;
    Tile<bool>, bool => Tile;
    bool, Tile<bool> => Tile;
    Tile<bool>, Scalar<bool> => Tile;
    Scalar<bool>, Tile<bool> => Tile;
}
