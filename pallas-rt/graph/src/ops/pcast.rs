//! `pcast`: a change of the state of a value inside of a `shard_map`.
use super::prelude::collective::*;
use super::{AllReduce, DeviceTable};
use crate::mesh::State;
use pallas_ir::{Literal, ScalarOp};

/// `T[..] -> T[..]`: the operand, regarded as a value in another state (varying, invariant, unreduced or reduced). It
/// occurs only in a [`ShardMap`](crate::call::ShardMap), where derivatives need it; devices do nothing for it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pcast {
    /// The state of the operand.
    pub from: State,
    /// The state of the result.
    pub to: State,
}

impl Kind for Pcast {
    fn attributes(&self) -> String {
        format!(" {} to {}", self.from.name(), self.to.name())
    }
    fn form(&self, _: usize) -> Form {
        Form::Own
    }
    fn check(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn of_elements(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

/// Returns the state that the cotangent of a value in a state has.
fn dual(state: State) -> State {
    match state {
        State::Unreduced => State::Reduced,
        State::Reduced => State::Unreduced,
        state => state,
    }
}

/// Appends parts whose sum is `x`, a value that is equal on all devices: `x` on the first device of each group, zeros
/// on others.
fn of_first(to: &mut Graph, op: &Collective, x: Var) -> Var {
    let ty = to.ty(x).clone();
    let number = to.fitting(op.like(DeviceTable((0..op.members() as i32).collect())), &[]);
    let zero = to.int(0);
    let is_first = to.fitting(ScalarOp::Eq, &[number, zero]);
    let is_first = to.broadcast(is_first, &ty.shape).expect("a scalar stretches");
    let zeros = to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
    to.fitting(ScalarOp::Select, &[is_first, x, zeros])
}

impl CollectiveRule for Pcast {
    fn transposed(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(match (dual(self.to), dual(self.from)) {
            (_, State::Invariant) => to.fitting(op.like(AllReduce(ScalarOp::Add)), &[cotangent]),
            (State::Invariant, _) => of_first(to, op, cotangent),
            (from, state) => to.fitting(op.like(Pcast { from, to: state }), &[cotangent]),
        })
    }
}

impl CollectiveHlo for Pcast {
    fn stablehlo(&self, _: &mut Writer, _: &Collective, args: &[Value], _: &Type) -> Value {
        args[0].clone()
    }
}
