//! `Tile<T>` and `Scalar<T>`: Copy handles to values of the kernel that runs.
use super::context::{self, Handle};
use pallas_ir::dtype::{Number, Real};
use pallas_ir::{Elem, Op, ScalarOp, StructuralOp, structural as ops};
use std::marker::PhantomData;

/// A block of elements in fast memory: a value of the kernel that runs. Its shape is known while tracing.
///
/// Operators work element by element; axes of extent 1 stretch, scalars and host numbers stand for any shape.
pub struct Tile<T> {
    pub(crate) handle: Handle,
    element: PhantomData<fn() -> T>,
}

/// A run-time scalar: a value of the kernel that runs.
pub struct Scalar<T> {
    pub(crate) handle: Handle,
    element: PhantomData<fn() -> T>,
}

macro_rules! handles {
    ($($H:ident)*) => {$(
        impl<T> Clone for $H<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $H<T> {}
        impl<T> $H<T> {
            pub(crate) fn new(handle: Handle) -> Self {
                $H { handle, element: PhantomData }
            }
        }
        impl<T: Elem> std::fmt::Debug for $H<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match context::type_for_debug(self.handle) {
                    Some(ty) => write!(f, concat!(stringify!($H), " {}"), ty),
                    None => f.write_str(concat!(stringify!($H), " of another kernel")),
                }
            }
        }
        impl<T: Elem> $H<T> {
            /// The elements as type `U`: floats saturate into integers, NaN becomes 0, `bool` is `x != 0`.
            #[track_caller]
            #[must_use]
            pub fn cast<U: Elem>(self) -> $H<U> {
                if T::DTYPE == U::DTYPE {
                    return $H::new(self.handle);
                }
                $H::new(emit_structural(ops::Cast { to: U::DTYPE }, &[self.handle]))
            }
            /// The elements' bits as type `U`, which has the same size.
            #[track_caller]
            #[must_use]
            pub fn bitcast<U: Elem>(self) -> $H<U> {
                $H::new(emit_structural(ops::Bitcast { to: U::DTYPE }, &[self.handle]))
            }
            /// The natural logarithm: `log` by its name in Rust's standard library.
            #[track_caller]
            #[must_use]
            pub fn ln(self) -> $H<T> where T: Real {
                $H::new(context::emit(Op::Scalar(ScalarOp::Log), &[self.handle]))
            }
            /// The elements to an integer power, by repeated multiplication.
            #[track_caller]
            #[must_use]
            pub fn powi(self, exponent: i32) -> $H<T> where T: Number {
                $H::new(emit_structural(ops::Powi { exponent }, &[self.handle]))
            }
        }
    )*};
}
handles! { Tile Scalar }

/// Emits a structural operation, and returns the handle of its result.
#[track_caller]
pub(crate) fn emit_structural(op: impl Into<StructuralOp>, args: &[Handle]) -> Handle {
    context::emit(Op::Structural(op.into()), args)
}

impl<T: Elem> Tile<T> {
    /// Extents; empty once an operation has failed.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        context::type_of(self.handle).map_or(vec![], |t| t.shape)
    }
    /// Number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().len()
    }
}
