//! The interface to builders of tile IR and of graphs, so that a derivative rule is written once for both.
use crate::{ScalarOp, StructuralOp};
use std::cell::RefCell;

/// Name of a value in the builder that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueId(pub u32);

/// An operation that a derivative rule can append.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// An elementwise operation of the scalar table.
    Scalar(ScalarOp),
    /// An operation that changes shapes or positions.
    Structural(StructuralOp),
    /// A constant that is the same everywhere, with shape and type of the operand.
    Like(f64),
    /// A scalar constant of the operand's type.
    Number(f64),
}

/// A builder on which derivative rules run.
pub trait RuleBackend {
    /// Appends an operation and returns its result.
    fn emit(&mut self, op: Term, args: &[ValueId]) -> ValueId;
}

/// A value in a derivative rule: `Copy`, with operators and a method for every scalar operation.
#[derive(Clone, Copy)]
pub struct E<'g> {
    /// The builder that made it.
    pub to: &'g RefCell<dyn RuleBackend>,
    /// Name of the value in that builder.
    pub id: ValueId,
}

/// Result of a derivative formula in the scalar table, for an operand by which the derivative is zero everywhere.
pub struct ZeroTangent;

/// Results that an operand's derivative formula in the scalar table may have: a value, or [`ZeroTangent`].
pub trait Tangent<'g> {
    /// The tangent; `None` for zero.
    fn value(self) -> Option<E<'g>>;
}
impl<'g> Tangent<'g> for E<'g> {
    fn value(self) -> Option<E<'g>> {
        Some(self)
    }
}
impl<'g> Tangent<'g> for ZeroTangent {
    fn value(self) -> Option<E<'g>> {
        None
    }
}

/// Adds `contribution(t)`, for the tangent `t` of an operand, to `sum`, the contributions of other operands. `None`
/// stands for zero: an operand without tangent adds nothing.
pub fn linear<'g, R: Tangent<'g>>(
    sum: Option<E<'g>>,
    operand_tangent: Option<E<'g>>,
    contribution: impl FnOnce(E<'g>) -> R,
) -> Option<E<'g>> {
    match (sum, operand_tangent.and_then(|t| contribution(t).value())) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

impl<'g> E<'g> {
    /// Appends an operation with these arguments.
    #[inline(never)] // derivative rules are cold; inlining this into each doubles ir's build
    pub fn emit(self, op: Term, args: &[E<'g>]) -> E<'g> {
        let ids: Vec<ValueId> = args.iter().map(|a| a.id).collect();
        E { to: self.to, id: self.to.borrow_mut().emit(op, &ids) }
    }
    /// A constant with shape and type of this value.
    pub fn like(self, x: f64) -> E<'g> {
        self.emit(Term::Like(x), &[self])
    }
    /// Zeros with shape and type of this value.
    pub fn zero(self) -> E<'g> {
        self.like(0.0)
    }
}

// Operators and methods of `E`, from the table.
/// Expands an operation to the method or operator of [`E`].
macro_rules! e_method {
    ($Op:ident $name:ident ($x:ident $(, $arg:ident)*) $surface:ident) => {
        impl<'g> E<'g> {
            #[doc = concat!("Appends `", stringify!($name), "`.")]
            pub fn $name(self $(, $arg: E<'g>)*) -> E<'g> { self.emit(Term::Scalar(ScalarOp::$Op), &[self $(, $arg)*]) }
        }
    };
    ($Op:ident $name:ident ($x:ident) operator $Trait:ident) => {
        impl<'g> std::ops::$Trait for E<'g> {
            type Output = E<'g>;
            fn $name(self) -> E<'g> { self.emit(Term::Scalar(ScalarOp::$Op), &[self]) }
        }
    };
    ($Op:ident $name:ident ($x:ident, $arg:ident) operator $Trait:ident) => {
        impl<'g> std::ops::$Trait for E<'g> {
            type Output = E<'g>;
            fn $name(self, $arg: E<'g>) -> E<'g> { self.emit(Term::Scalar(ScalarOp::$Op), &[self, $arg]) }
        }
        impl<'g> std::ops::$Trait<f64> for E<'g> {
            type Output = E<'g>;
            fn $name(self, $arg: f64) -> E<'g> { let b = self.like($arg); self.emit(Term::Scalar(ScalarOp::$Op), &[self, b]) }
        }
        impl<'g> std::ops::$Trait<E<'g>> for f64 {
            type Output = E<'g>;
            fn $name(self, $arg: E<'g>) -> E<'g> { let a = $arg.like(self); a.emit(Term::Scalar(ScalarOp::$Op), &[a, $arg]) }
        }
    };
}
/// Expands all operations to methods and operators of [`E`].
macro_rules! e_methods {
    ($($(#[$doc:meta])+ $Op:ident $name:ident $T:ident $Class:ident ($($arg:ident: $Arg:ident),+) $Out:ident $($surface:ident)+;)*) => {
        $(e_method! { $Op $name ($($arg),+) $($surface)+ })*
    };
}
for_each_scalar_op! { e_methods }
