//! Rules of calls for derivatives and batches, and what they are made of.
use super::{Batch, BatchAxis, Forward, Refused};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::{At, Diag, Literal, Type};

/// Rules of a call for derivatives and batches. No method has a default.
pub(crate) trait CallRule {
    /// The results that depend on operands that are `on` in a way that has a derivative.
    fn active(&self, on: &[bool]) -> Vec<bool>;
    /// Appends the call with tangents; returns those of its results, `None` for zero.
    ///
    /// # Errors
    /// It has no such derivative.
    fn jvp(&self, forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused>;
    /// The cotangents of the operands; `None` for zero.
    ///
    /// # Errors
    /// It has no such derivative.
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused>;
    /// Appends the call for many operands at once; the results, and for each true if it has the axis.
    ///
    /// # Errors
    /// Arrays that would be too large; a collective where not all elements take part.
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused>;
    /// The results that differ between elements if these operands do.
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool>;
    /// In a branch that some elements of a batch take: the number of the first operand whose cotangents are selected, so that
    /// elements that take another branch add nothing to them; those of operands in front of it are passed on as they are. `None`
    /// for a call that selects them itself.
    fn guards_from(&self, has: &[bool]) -> Option<usize>;
}

/// A call in reverse mode.
pub(crate) struct Backward<'a> {
    /// The graph that is continued backwards.
    pub to: &'a mut Graph,
    /// The number of the call's equation in it.
    pub(super) at: usize,
    /// The call's equation.
    pub e: &'a Equation,
    /// By operand, true if its cotangent is asked for.
    pub on: &'a [bool],
    /// By result, its cotangent; `None` for zero.
    pub cotangents: &'a [Option<Var>],
}

impl Backward<'_> {
    /// The cotangents of the results, zeros where there are none.
    pub(crate) fn all_cotangents(&mut self) -> Vec<Var> {
        self.cotangents_of(|_| true)
    }

    /// The cotangents of the results of floating-point types, zeros where there are none.
    pub(crate) fn cotangents_of_floats(&mut self) -> Vec<Var> {
        self.cotangents_of(is_float)
    }

    fn cotangents_of(&mut self, is_asked: impl Fn(&Type) -> bool) -> Vec<Var> {
        let all: Vec<(Type, Option<Var>)> =
            self.e.results.iter().zip(self.cotangents).map(|(&r, &c)| (self.to.ty(r).clone(), c)).collect();
        all.into_iter().filter(|(ty, _)| is_asked(ty)).map(|(ty, c)| or_zeros(self.to, c, &ty)).collect()
    }

    /// Puts another call in place of the call, which has results of these types besides; returns those.
    pub(crate) fn gives_more(&mut self, call: impl Into<Op>, types: Vec<Type>) -> Vec<Var> {
        let more: Vec<Var> = types.into_iter().map(|ty| self.to.var(ty)).collect();
        let changed = &mut self.to.equations[self.at];
        changed.op = call.into();
        changed.results.extend(&more);
        more
    }
}

pub(crate) fn is_float(ty: &Type) -> bool {
    ty.dtype.is_float()
}

/// The cotangent of a value, zeros if there is none.
pub(crate) fn or_zeros(to: &mut Graph, cotangent: Option<Var>, ty: &Type) -> Var {
    cotangent.unwrap_or_else(|| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape))
}

/// Refuses tangents of arrays that a function with stated tangents captures.
pub(crate) fn no_tangents(captured: &[bool], e: &Equation) -> Result<(), Refused> {
    if !captured.contains(&true) {
        return Ok(());
    }
    let message = "a function with a stated derivative captures an array that the derivative is asked for".to_string();
    let help = "pass the array as an argument, or capture its `stop_gradient`";
    Err(Refused { at: e.loc, diag: Diag::new("custom-captured", At::Op, message, help) })
}
