//! Scalar operations (rows of the scalar table) as operators and methods of tiles and scalars.
//!
//! Right of an operator a host number may have any type that the element type takes; left of it only the type of the
//! element's own literals, since Rust does not allow a blanket impl for the left side. In a kernel's body sizes may
//! also be left operands.
use super::context::{self, Handle};
use super::operand::{Choice, Host, HostOperand, Staged, emit_host_constant};
use super::tile::{Scalar, Tile};
use pallas_ir::dtype::{Bits, Float, Int, Number, Real, Signed, Single};
use pallas_ir::{Op, ScalarOp};

/// Emits a scalar operation element by element. `S` is the type of its result: a tile if any operand is one.
#[track_caller]
pub(crate) fn emit_elementwise<S: Staged>(op: ScalarOp, args: &[Handle]) -> S {
    S::from_handle(context::emit(Op::Scalar(op), args))
}

/// Implements a binary operator for all combinations of tiles, scalars and host numbers. `$Left` are host numbers as
/// left operands, each with its own element type; `f32` is a left operand for elements of the class `$Float`.
macro_rules! binary {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $left:tt $float:tt) => {
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Tile Tile Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Tile Scalar Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Scalar Tile Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Scalar Scalar Scalar }
        binary! { @host $Op $name $Class $Trait Tile $left $float }
        binary! { @host $Op $name $Class $Trait Scalar $left $float }
    };
    (@pair [$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $L:ident $R:ident $Out:ident) => {
        impl<T: $Class> std::ops::$Trait<$R<T>> for $L<T> {
            type Output = $Out<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self, other: $R<T>) -> $Out<T> {
                emit_elementwise(ScalarOp::$Op, &[self.handle, other.handle])
            }
        }
    };
    (@host $Op:ident $name:ident $Class:ident $Trait:ident $H:ident [$($Left:ident)*] [$($Float:ident)?]) => {
        impl<T: $Class, N: Host + HostOperand<T>> std::ops::$Trait<N> for $H<T> {
            type Output = $H<T>;
            #[track_caller]
            fn $name(self, other: N) -> $H<T> {
                emit_elementwise(ScalarOp::$Op, &[self.handle, other.element_handle()])
            }
        }
        $(binary! { @left $Op $name $Trait $H [] $Left, $Left })*
        // Not for `usize` itself: the type of a literal left operand would be ambiguous. The macro borrows sizes there.
        binary! { @left $Op $name $Trait $H [] &usize, i32 }
        binary! { @left $Op $name $Trait $H [] &usize, u32 }
        // Not for f64, whose literals would lose digits.
        $(binary! { @left $Op $name $Trait $H [T: $Float] f32, T })?
    };
    (@left $Op:ident $name:ident $Trait:ident $H:ident [$($generics:tt)*] $Left:ty, $T:ident) => {
        impl<$($generics)*> std::ops::$Trait<$H<$T>> for $Left {
            type Output = $H<$T>;
            #[track_caller]
            fn $name(self, other: $H<$T>) -> $H<$T> {
                emit_elementwise(ScalarOp::$Op, &[emit_host_constant::<$T, _>(self.to_owned()), other.handle])
            }
        }
    };
}

/// Implements assignment operators for tiles and scalars.
macro_rules! assigning {
    ($($Class:ident $Trait:ident $name:ident $Assign:ident $assign:ident;)*) => {$(
        assigning! { @ $Class $Trait $name $Assign $assign Tile }
        assigning! { @ $Class $Trait $name $Assign $assign Scalar }
    )*};
    (@ $Class:ident $Trait:ident $name:ident $Assign:ident $assign:ident $H:ident) => {
        impl<T: $Class, R> std::ops::$Assign<R> for $H<T>
        where
            $H<T>: std::ops::$Trait<R, Output = $H<T>>,
        {
            #[track_caller]
            fn $assign(&mut self, other: R) {
                *self = std::ops::$Trait::$name(*self, other);
            }
        }
    };
}
assigning! {
    Number Add add AddAssign add_assign;
    Number Sub sub SubAssign sub_assign;
    Number Mul mul MulAssign mul_assign;
    Number Div div DivAssign div_assign;
    Number Rem rem RemAssign rem_assign;
    Bits BitAnd bitand BitAndAssign bitand_assign;
    Bits BitOr bitor BitOrAssign bitor_assign;
    Bits BitXor bitxor BitXorAssign bitxor_assign;
    Int Shl shl ShlAssign shl_assign;
    Int Shr shr ShrAssign shr_assign;
}

/// Implements a unary operator for tiles and scalars.
macro_rules! unary {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $H:ident) => {
        impl<T: $Class> std::ops::$Trait for $H<T> {
            type Output = $H<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self) -> $H<T> {
                emit_elementwise(ScalarOp::$Op, &[self.handle])
            }
        }
    };
}

/// Makes a scalar operation a method of tiles and scalars. Further operands may be tiles, scalars or numbers.
macro_rules! method {
    ($doc:tt $Op:ident $name:ident $Class:ident $Out:ident) => {
        method! { @ $doc $Op $name $Class $Out [] Scalar<$Out> }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $Out:ident $a:ident) => {
        method! { @ $doc $Op $name $Class $Out [A $a] A::Beside<Scalar<T>, $Out> }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $Out:ident $a:ident $b:ident) => {
        method! { @ $doc $Op $name $Class $Out [A $a B $b] B::Beside<A::Beside<Scalar<T>, T>, $Out> }
    };
    (@ [$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Out:ident [$($A:ident $a:ident)*] $OfScalar:ty) => {
        impl<T: $Class> Tile<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self $(, $a: impl Choice<T>)*) -> Tile<$Out> {
                emit_elementwise(ScalarOp::$Op, &[self.handle $(, $a.choice_handle())*])
            }
        }
        impl<T: $Class> Scalar<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name<$($A: Choice<T>),*>(self $(, $a: $A)*) -> $OfScalar {
                emit_elementwise(ScalarOp::$Op, &[self.handle $(, $a.choice_handle())*])
            }
        }
    };
}

/// Implements a row of the scalar table as the operator or method that the row names.
macro_rules! surface {
    // Comparisons are implemented separately, in `cmp`.
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident comparison) => {};
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident function) => {};
    ($doc:tt $Op:ident $name:ident $Class:ident ($x:ident: T) $Out:ident operator $Trait:ident) => {
        unary! { $doc $Op $name $Class $Trait Tile }
        unary! { $doc $Op $name $Class $Trait Scalar }
    };
    ($doc:tt $Op:ident $name:ident Number $sig:tt $Out:ident operator $Trait:ident) => {
        binary! { $doc $Op $name Number $Trait [f64 i8 u8 i16 u16 i32 u32 i64 u64] [Float] }
    };
    ($doc:tt $Op:ident $name:ident Bits $sig:tt $Out:ident operator $Trait:ident) => {
        binary! { $doc $Op $name Bits $Trait [i8 u8 i16 u16 i32 u32 i64 u64 bool] [] }
    };
    ($doc:tt $Op:ident $name:ident Int $sig:tt $Out:ident operator $Trait:ident) => {
        binary! { $doc $Op $name Int $Trait [i8 u8 i16 u16 i32 u32 i64 u64] [] }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident ($x:ident: T $(, $arg:ident: T)*) $Out:ident method) => {
        method! { $doc $Op $name $Class $Out $($arg)* }
    };
}
macro_rules! surfaces {
    ($($(#[$doc:meta])+ $Op:ident $name:ident $T:ident $Class:ident $sig:tt $Out:ident $surface:ident $($Trait:ident)?;)*) => {
        $(surface! { [$(#[$doc])+] $Op $name $Class $sig $Out $surface $($Trait)? })*
    };
}
pallas_ir::for_each_scalar_op! { surfaces }
