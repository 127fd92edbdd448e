//! The trait by which calls state their derivatives and batching, and the helpers of its implementations.
use super::{BatchAxis, BatchedCall, JvpCall, TransformError};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::{At, Diag, Literal, Type};

/// The rules by which a call is differentiated and batched. No method has a default.
pub(crate) trait CallTransformRule {
    /// Returns for each result whether it has a derivative by the operands for which `is_active` is true.
    fn active_results(&self, is_active: &[bool]) -> Vec<bool>;
    /// Appends the call together with its tangents; returns the tangents of its results, `None` for zero.
    ///
    /// # Errors
    /// A call without forward-mode derivative, or one that cannot be differentiated with these tangents.
    fn jvp(&self, forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError>;
    /// Appends the backward pass of the call; returns the cotangents of its operands, `None` for zero.
    ///
    /// # Errors
    /// A call without reverse-mode derivative, or one that cannot be differentiated by these operands.
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError>;
    /// Appends the call for all elements of a batch at once; returns the results, and for each true if it has the batch
    /// axis.
    ///
    /// # Errors
    /// Arrays that would be too large; a collective over the batch axis in which not all elements take part.
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError>;
    /// Returns for each result whether it differs between the elements of a batch, if the operands for which
    /// `has_batch_axis` is true do.
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool>;
    /// In a branch that only some elements of a batch take: returns the index of the first operand whose cotangents
    /// have to be cleared for the elements that take another branch; operands before it need no change. The number of
    /// operands if none has to change; `None` for a call that clears them itself.
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize>;
}

/// A call that is differentiated in reverse mode.
pub(crate) struct VjpCall<'a> {
    /// The graph that the backward pass is appended to.
    pub to: &'a mut Graph,
    /// The index of the call's equation in `to`.
    pub(super) at: usize,
    /// The call's equation.
    pub e: &'a Equation,
    /// For each operand, true if its cotangent is needed.
    pub on: &'a [bool],
    /// For each result, its cotangent; `None` for zero.
    pub cotangents: &'a [Option<Var>],
}

impl VjpCall<'_> {
    /// Returns the cotangents of all results, as zeros where there are none.
    pub(crate) fn all_cotangents(&mut self) -> Vec<Var> {
        self.cotangents_of(|_| true)
    }

    /// Returns the cotangents of the results of floating-point types, as zeros where there are none.
    pub(crate) fn cotangents_of_floats(&mut self) -> Vec<Var> {
        self.cotangents_of(is_float)
    }

    /// Returns the cotangents of the results whose type satisfies `is_wanted`, as zeros where there are none.
    fn cotangents_of(&mut self, is_wanted: impl Fn(&Type) -> bool) -> Vec<Var> {
        let all: Vec<(Type, Option<Var>)> =
            self.e.results.iter().zip(self.cotangents).map(|(&r, &c)| (self.to.ty(r).clone(), c)).collect();
        all.into_iter().filter(|(ty, _)| is_wanted(ty)).map(|(ty, c)| cotangent_or_zeros(self.to, c, &ty)).collect()
    }

    /// Replaces the forward call by one that has additional results of these types after its own; returns the
    /// additional results.
    pub(crate) fn add_forward_results(&mut self, call: impl Into<Op>, types: Vec<Type>) -> Vec<Var> {
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

/// Returns `cotangent`, or zeros of type `ty` if there is none.
pub(crate) fn cotangent_or_zeros(to: &mut Graph, cotangent: Option<Var>, ty: &Type) -> Var {
    cotangent.unwrap_or_else(|| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape))
}

/// Refuses tangents of captured arrays, for a function with a stated derivative by its arguments alone. `has_tangent`
/// says for each captured array whether it has a tangent.
pub(crate) fn refuse_captured_tangents(has_tangent: &[bool], e: &Equation) -> Result<(), TransformError> {
    if !has_tangent.contains(&true) {
        return Ok(());
    }
    let message = "a function with a stated derivative captures an array that the derivative is asked for".to_string();
    let help = "pass the array as an argument, or capture its `stop_gradient`";
    Err(TransformError { at: e.loc, diag: Diag::new("custom-captured", At::Op, message, help) })
}
