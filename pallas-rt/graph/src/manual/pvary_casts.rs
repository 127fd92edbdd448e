//! The states of operations that each device computes from its own values.
use super::{AxisStateInference, shard_map_diag, state_text};
use crate::graph::{Equation, Graph, Op};
use crate::mesh::{AxisStates, ManualAxisState, all_invariant_states};
use pallas_ir::{Diag, ScalarOp, StructuralOp};

impl AxisStateInference {
    /// Casts the operands of an equation to the states over the mesh axes (varying, invariant ..) that `joined_states`
    /// chooses, and records the states of its result. Operands that cannot be cast are an error.
    pub(crate) fn cast_to_joined_states(&mut self, to: &mut Graph, e: &mut Equation) -> Result<(), Diag> {
        let is_constant = match &e.op {
            Op::Structural(StructuralOp::Iota(_)) => true,
            _ => !e.args.is_empty() && e.args.iter().all(|&x| self.is_constant(x)),
        };
        let (operands, gives) = self.joined_states(e)?;
        for (x, wanted) in e.args.iter_mut().zip(&operands) {
            *x = self
                .cast_to_states(to, *x, wanted)
                .map_err(|axis| self.mixed_states_diag(&e.op, axis, wanted[axis]))?;
        }
        self.define_states_and_constancy(e.result(), gives, is_constant);
        Ok(())
    }

    /// Returns the diagnostic for an operation that cannot combine values in `state` with the others along an axis.
    fn mixed_states_diag(&self, op: &Op, axis: usize, state: ManualAxisState) -> Diag {
        let found =
            format!("`{}` of {} and other values over axis `{}`", op.name(), state_text(state), self.mesh.name(axis));
        shard_map_diag(found, "reduce parts of a sum first, `psum`, or cast the other operand, `pcast`")
    }

    /// Returns the states over the mesh axes (varying, invariant ..) that an equation's operands have to be cast to,
    /// and those of its results. Along each axis, a varying operand, or else a reduced one, gives all others and the
    /// results its state; with unreduced operands none is cast, and an operation that is not linear is an error.
    pub(super) fn joined_states(&self, e: &Equation) -> Result<(Vec<AxisStates>, AxisStates), Diag> {
        let mut operands: Vec<AxisStates> = e.args.iter().map(|&x| self.states(x)).collect();
        let mut gives = all_invariant_states(&self.mesh);
        for axis in 0..self.mesh.rank() {
            let has = |state: ManualAxisState| operands.iter().any(|own| own[axis] == state);
            if has(ManualAxisState::Unreduced) {
                if !is_linear_on_unreduced(&e.op, &operands.iter().map(|own| own[axis]).collect::<Vec<_>>()) {
                    return Err(self.mixed_states_diag(&e.op, axis, ManualAxisState::Unreduced));
                }
                gives[axis] = ManualAxisState::Unreduced;
                continue;
            }
            let state = match (has(ManualAxisState::Varying), has(ManualAxisState::Reduced)) {
                (true, _) => ManualAxisState::Varying,
                (false, true) => ManualAxisState::Reduced,
                (false, false) => ManualAxisState::Invariant,
            };
            gives[axis] = state;
            operands.iter_mut().for_each(|own| own[axis] = state);
        }
        Ok((operands, gives))
    }
}

/// Returns true if an operation may be applied to parts of sums (unreduced values) on each device: the sum of its
/// results is its result for the sums. `states` are those of the operands along one axis.
fn is_linear_on_unreduced(op: &Op, states: &[ManualAxisState]) -> bool {
    let all_parts = states.iter().all(|&state| state == ManualAxisState::Unreduced);
    match op {
        Op::Identity(_) => all_parts,
        Op::Scalar(ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg) => all_parts,
        Op::Scalar(ScalarOp::Mul) => {
            matches!(
                states,
                [ManualAxisState::Unreduced, ManualAxisState::Reduced]
                    | [ManualAxisState::Reduced, ManualAxisState::Unreduced]
            )
        }
        Op::Scalar(ScalarOp::Div) => matches!(states, [ManualAxisState::Unreduced, ManualAxisState::Reduced]),
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
