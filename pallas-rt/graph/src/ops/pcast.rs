//! `pcast`: a change of the state of a value inside of a `shard_map`.
use super::prelude::collective::*;
use super::{AllReduce, DeviceTable};
use crate::mesh::ManualAxisState;
use pallas_ir::{Literal, ScalarOp};

/// `T[..] -> T[..]`: the operand, regarded as a value in another state (varying, invariant, unreduced or reduced). It
/// occurs only in a [`ShardMap`](crate::call::ShardMap), where derivatives need it; devices do nothing for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pcast {
    /// The state of the operand.
    pub from: ManualAxisState,
    /// The state of the result.
    pub to: ManualAxisState,
}

impl CollectiveInterface for Pcast {
    fn attributes(&self) -> String {
        format!(" {} to {}", self.from.name(), self.to.name())
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::Own
    }
    fn check_attributes(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

/// Returns the state of the cotangent of a value in `state`: unreduced and reduced are exchanged, varying and
/// invariant stay.
fn cotangent_state(state: ManualAxisState) -> ManualAxisState {
    match state {
        ManualAxisState::Unreduced => ManualAxisState::Reduced,
        ManualAxisState::Reduced => ManualAxisState::Unreduced,
        state => state,
    }
}

/// Appends parts whose sum is `x`, a value that is equal on all devices: `x` on the first device of each group, zeros
/// on others.
fn keep_on_first_device(to: &mut Graph, op: &Collective, x: Var) -> Var {
    let ty = to.ty(x).clone();
    let number = to.push_valid(op.with_kind(DeviceTable((0..op.group_size() as i32).collect())), &[]);
    let zero = to.i32_literal(0);
    let is_first = to.push_valid(ScalarOp::Eq, &[number, zero]);
    let is_first = to.broadcast(is_first, &ty.shape).expect("a scalar stretches");
    let zeros = to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
    to.push_valid(ScalarOp::Select, &[is_first, x, zeros])
}

impl CollectiveTransposeRule for Pcast {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(match (cotangent_state(self.to), cotangent_state(self.from)) {
            (_, ManualAxisState::Invariant) => to.push_valid(op.with_kind(AllReduce(ScalarOp::Add)), &[cotangent]),
            (ManualAxisState::Invariant, _) => keep_on_first_device(to, op, cotangent),
            (from, state) => to.push_valid(op.with_kind(Pcast { from, to: state }), &[cotangent]),
        })
    }
}

impl CollectiveHlo for Pcast {
    fn emit_stablehlo(&self, _: &mut HloWriter, _: &Collective, args: &[HloValue], _: &Type) -> HloValue {
        args[0].clone()
    }
}
