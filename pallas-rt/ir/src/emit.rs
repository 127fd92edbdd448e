//! One builder interface for tile IR and graphs: derivative rules are written against it once.
use crate::{ScalarOp, StructuralOp};
use std::cell::RefCell;

/// A value of whichever builder made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(pub u32);

/// What a derivative rule can append.
#[derive(Clone, PartialEq, Debug)]
pub enum Term {
    /// An elementwise operation.
    Scalar(ScalarOp),
    /// One of the operations that change shapes or positions.
    Structural(StructuralOp),
    /// The same number everywhere, shaped and typed like the operand.
    Like(f64),
    /// A scalar, typed like the operand.
    Number(f64),
}

/// Implemented by whatever derivative rules are run on.
pub trait Emit {
    /// Appends `op`.
    fn emit(&mut self, op: Term, args: &[Id]) -> Id;
}

/// A value in a derivative rule: Copy, with operators and every method of the table.
#[derive(Clone, Copy)]
pub struct E<'g> {
    /// The builder it belongs to.
    pub to: &'g RefCell<dyn Emit>,
    /// Its name there.
    pub id: Id,
}

/// "This operand has no tangent", stated.
pub struct Zero;

/// What a jvp cell may return.
pub trait Tangent<'g> {
    /// The tangent, `None` for zero.
    fn value(self) -> Option<E<'g>>;
}
impl<'g> Tangent<'g> for E<'g> {
    fn value(self) -> Option<E<'g>> {
        Some(self)
    }
}
impl<'g> Tangent<'g> for Zero {
    fn value(self) -> Option<E<'g>> {
        None
    }
}

/// Adds one operand's contribution to a tangent.
pub fn linear<'g, R: Tangent<'g>>(
    sum: Option<E<'g>>,
    t: Option<E<'g>>,
    cell: impl FnOnce(E<'g>) -> R,
) -> Option<E<'g>> {
    match (sum, t.and_then(|t| cell(t).value())) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

impl<'g> E<'g> {
    /// Appends an operation.
    #[inline(never)] // derivative rules are cold; inlining this into each doubles ir's build
    pub fn emit(self, op: Term, args: &[E<'g>]) -> E<'g> {
        let ids: Vec<Id> = args.iter().map(|a| a.id).collect();
        E { to: self.to, id: self.to.borrow_mut().emit(op, &ids) }
    }
    /// The same number everywhere, typed like this value.
    pub fn like(self, x: f64) -> E<'g> {
        self.emit(Term::Like(x), &[self])
    }
    /// Zeros, typed like this value.
    pub fn zero(self) -> E<'g> {
        self.like(0.0)
    }
}

// Operators and methods of `E`, from the table.
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
macro_rules! e_methods {
    ($($(#[$doc:meta])+ $Op:ident $name:ident $T:ident $Class:ident ($($arg:ident: $Arg:ident),+) $Out:ident $($surface:ident)+;)*) => {
        $(e_method! { $Op $name ($($arg),+) $($surface)+ })*
    };
}
for_each_scalar_op! { e_methods }
