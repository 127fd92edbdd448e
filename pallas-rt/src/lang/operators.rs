//! The rows of the scalar table as operators and methods of tiles and scalars.
//!
//! A host number stands right of an operator as any number its element type takes, left of it only as the element's own
//! literal type: a blanket impl on the left is not possible in Rust. In a kernel's body sizes stand on the left as well.
use super::context::{self, Handle};
use super::operand::{Choice, Host, HostOperand, Staged, host_constant};
use super::tile::{Scalar, Tile};
use pallas_ir::dtype::{Bits, Float, Int, Number, Real, Signed, Single};
use pallas_ir::{Op, ScalarOp};

/// Emits a row; a tile results if any operand is one.
#[track_caller]
pub(crate) fn elementwise<S: Staged>(op: ScalarOp, args: &[Handle]) -> S {
    S::from_handle(context::emit(Op::Scalar(op), args))
}

/// A binary operator -> impls for every mix of tiles, scalars and host numbers, and the assigning operator.
macro_rules! binary {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident [$($Left:ident)*] $($floats:ident)?) => {
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Tile Tile Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Tile Scalar Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Scalar Tile Tile }
        binary! { @pair [$(#[$doc])+] $Op $name $Class $Trait Scalar Scalar Scalar }
        binary! { @right $Op $name $Class $Trait $Assign $assign Tile }
        binary! { @right $Op $name $Class $Trait $Assign $assign Scalar }
        $(binary! { @left $Op $name $Trait $Left, $Left Tile }
        binary! { @left $Op $name $Trait $Left, $Left Scalar })*
        // Not for `usize` itself: a literal on the left could then be either. The macro borrows a size there.
        binary! { @left $Op $name $Trait &usize, i32 Tile }
        binary! { @left $Op $name $Trait &usize, i32 Scalar }
        binary! { @left $Op $name $Trait &usize, u32 Tile }
        binary! { @left $Op $name $Trait &usize, u32 Scalar }
        $(binary! { @$floats $Op $name $Trait Tile }
        binary! { @$floats $Op $name $Trait Scalar })?
    };
    (@pair [$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $L:ident $R:ident $Out:ident) => {
        impl<T: $Class> std::ops::$Trait<$R<T>> for $L<T> {
            type Output = $Out<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self, other: $R<T>) -> $Out<T> {
                elementwise(ScalarOp::$Op, &[self.handle, other.handle])
            }
        }
    };
    (@right $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident $L:ident) => {
        impl<T: $Class, H: Host + HostOperand<T>> std::ops::$Trait<H> for $L<T> {
            type Output = $L<T>;
            #[track_caller]
            fn $name(self, other: H) -> $L<T> {
                elementwise(ScalarOp::$Op, &[self.handle, other.element()])
            }
        }
        impl<T: $Class, R> std::ops::$Assign<R> for $L<T>
        where
            $L<T>: std::ops::$Trait<R, Output = $L<T>>,
        {
            #[track_caller]
            fn $assign(&mut self, other: R) {
                *self = std::ops::$Trait::$name(*self, other);
            }
        }
    };
    (@left $Op:ident $name:ident $Trait:ident $H:ty, $T:ident $R:ident) => {
        impl std::ops::$Trait<$R<$T>> for $H {
            type Output = $R<$T>;
            #[track_caller]
            fn $name(self, other: $R<$T>) -> $R<$T> {
                elementwise(ScalarOp::$Op, &[host_constant::<$T, _>(self.to_owned()), other.handle])
            }
        }
    };
    // An `f32` literal left of f32, f16 and bf16 elements. Not of f64, whose literals would lose digits.
    (@floats $Op:ident $name:ident $Trait:ident $R:ident) => {
        impl<T: Float> std::ops::$Trait<$R<T>> for f32 {
            type Output = $R<T>;
            #[track_caller]
            fn $name(self, other: $R<T>) -> $R<T> {
                elementwise(ScalarOp::$Op, &[host_constant::<T, f32>(self), other.handle])
            }
        }
    };
}

/// A unary operator -> impls for tiles and scalars.
macro_rules! unary {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $H:ident) => {
        impl<T: $Class> std::ops::$Trait for $H<T> {
            type Output = $H<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self) -> $H<T> {
                elementwise(ScalarOp::$Op, &[self.handle])
            }
        }
    };
}

/// A row that is a method -> methods of tiles and scalars. Further operands may be tiles, scalars or numbers.
macro_rules! method {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Out:ident) => {
        impl<T: $Class> Tile<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self) -> Tile<$Out> {
                elementwise(ScalarOp::$Op, &[self.handle])
            }
        }
        impl<T: $Class> Scalar<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self) -> Scalar<$Out> {
                elementwise(ScalarOp::$Op, &[self.handle])
            }
        }
    };
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Out:ident $a:ident) => {
        impl<T: $Class> Tile<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self, $a: impl Choice<T>) -> Tile<$Out> {
                elementwise(ScalarOp::$Op, &[self.handle, $a.choice()])
            }
        }
        impl<T: $Class> Scalar<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name<A: Choice<T>>(self, $a: A) -> A::Beside<Scalar<T>, $Out> {
                elementwise(ScalarOp::$Op, &[self.handle, $a.choice()])
            }
        }
    };
    ([$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Out:ident $a:ident $b:ident) => {
        impl<T: $Class> Tile<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self, $a: impl Choice<T>, $b: impl Choice<T>) -> Tile<$Out> {
                elementwise(ScalarOp::$Op, &[self.handle, $a.choice(), $b.choice()])
            }
        }
        impl<T: $Class> Scalar<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name<A: Choice<T>, B: Choice<T>>(
                self,
                $a: A,
                $b: B,
            ) -> B::Beside<A::Beside<Scalar<T>, T>, $Out> {
                elementwise(ScalarOp::$Op, &[self.handle, $a.choice(), $b.choice()])
            }
        }
    };
}

/// A row -> what it is in Rust.
macro_rules! surface {
    // Comparisons have rules of their own (`cmp`).
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident comparison) => {};
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident function) => {};
    ($doc:tt $Op:ident $name:ident $Class:ident ($x:ident: T) $Out:ident operator $Trait:ident) => {
        unary! { $doc $Op $name $Class $Trait Tile }
        unary! { $doc $Op $name $Class $Trait Scalar }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Add) => {
        surface! { @number $doc $Op $name $Class Add AddAssign add_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Sub) => {
        surface! { @number $doc $Op $name $Class Sub SubAssign sub_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Mul) => {
        surface! { @number $doc $Op $name $Class Mul MulAssign mul_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Div) => {
        surface! { @number $doc $Op $name $Class Div DivAssign div_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Rem) => {
        surface! { @number $doc $Op $name $Class Rem RemAssign rem_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator BitAnd) => {
        surface! { @bits $doc $Op $name $Class BitAnd BitAndAssign bitand_assign bool }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator BitOr) => {
        surface! { @bits $doc $Op $name $Class BitOr BitOrAssign bitor_assign bool }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator BitXor) => {
        surface! { @bits $doc $Op $name $Class BitXor BitXorAssign bitxor_assign bool }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Shl) => {
        surface! { @bits $doc $Op $name $Class Shl ShlAssign shl_assign }
    };
    ($doc:tt $Op:ident $name:ident $Class:ident $sig:tt $Out:ident operator Shr) => {
        surface! { @bits $doc $Op $name $Class Shr ShrAssign shr_assign }
    };
    (@number $doc:tt $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident) => {
        binary! { $doc $Op $name $Class $Trait $Assign $assign [f64 i8 u8 i16 u16 i32 u32 i64 u64] floats }
    };
    (@bits $doc:tt $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident $($bool:ident)?) => {
        binary! { $doc $Op $name $Class $Trait $Assign $assign [i8 u8 i16 u16 i32 u32 i64 u64 $($bool)?] }
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
