//! The states of operations that each device computes from its own values.
use super::{Typing, text, wrong};
use crate::graph::{Equation, Graph, Op};
use crate::mesh::{State, States, invariant};
use pallas_ir::{Diag, ScalarOp, StructuralOp};

impl Typing {
    /// Casts the operands of an equation to common states, which its result then has.
    pub(crate) fn join(&mut self, to: &mut Graph, e: &mut Equation) -> Result<(), Diag> {
        let is_constant = match &e.op {
            Op::Structural(StructuralOp::Iota(_)) => true,
            _ => !e.args.is_empty() && e.args.iter().all(|&x| self.is_constant(x)),
        };
        let (operands, gives) = self.joined(e)?;
        for (x, wanted) in e.args.iter_mut().zip(&operands) {
            *x = self.cast(to, *x, wanted).map_err(|axis| self.mixed(&e.op, axis, wanted[axis]))?;
        }
        self.define_as(e.result(), gives, is_constant);
        Ok(())
    }

    /// Returns the diagnostic for an operation that cannot combine values in `state` with the others along an axis.
    fn mixed(&self, op: &Op, axis: usize, state: State) -> Diag {
        let found = format!("`{}` of {} and other values over axis `{}`", op.name(), text(state), self.mesh.name(axis));
        wrong(found, "reduce parts of a sum first, `psum`, or cast the other operand, `pcast`")
    }

    /// Returns the states to which the operands have to be cast, and those of the results.
    pub(super) fn joined(&self, e: &Equation) -> Result<(Vec<States>, States), Diag> {
        let mut operands: Vec<States> = e.args.iter().map(|&x| self.states(x)).collect();
        let mut gives = invariant(&self.mesh);
        for axis in 0..self.mesh.rank() {
            let has = |state: State| operands.iter().any(|own| own[axis] == state);
            if has(State::Unreduced) {
                if !is_linear(&e.op, &operands.iter().map(|own| own[axis]).collect::<Vec<_>>()) {
                    return Err(self.mixed(&e.op, axis, State::Unreduced));
                }
                gives[axis] = State::Unreduced;
                continue;
            }
            let state = match (has(State::Varying), has(State::Reduced)) {
                (true, _) => State::Varying,
                (false, true) => State::Reduced,
                (false, false) => State::Invariant,
            };
            gives[axis] = state;
            operands.iter_mut().for_each(|own| own[axis] = state);
        }
        Ok((operands, gives))
    }
}

/// Returns true if an operation may be applied to parts of sums (unreduced values) on each device: the sum of its
/// results is its result for the sums. `states` are those of the operands along one axis.
fn is_linear(op: &Op, states: &[State]) -> bool {
    let all_parts = states.iter().all(|&state| state == State::Unreduced);
    match op {
        Op::Identity(_) => all_parts,
        Op::Scalar(ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg) => all_parts,
        Op::Scalar(ScalarOp::Mul) => {
            matches!(states, [State::Unreduced, State::Reduced] | [State::Reduced, State::Unreduced])
        }
        Op::Scalar(ScalarOp::Div) => matches!(states, [State::Unreduced, State::Reduced]),
        Op::Structural(op) => {
            let moves = match op {
                StructuralOp::Reduce(reduce) => reduce.op == ScalarOp::Add,
                StructuralOp::Reshape(_)
                | StructuralOp::Transpose(_)
                | StructuralOp::Broadcast(_)
                | StructuralOp::Slice(_)
                | StructuralOp::Reverse(_)
                | StructuralOp::Cast(_)
                | StructuralOp::Concat(_) => true,
                _ => false,
            };
            all_parts && moves
        }
        _ => false,
    }
}
