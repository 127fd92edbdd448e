//! `reduce_scatter`: every device gets its part of the sum, or another reduction, of the arrays of its group.
use super::AllGather;
use super::prelude::collective::*;
use crate::mesh::Piece;
use crate::stablehlo::combines;
use pallas_ir::ScalarOp;

/// `T[k, ..] -> T[..]` in a group of `k` devices: the parts at the device's number along the first axis of each
/// member's operand, combined by this monoid in the order of the members' numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceScatter(pub ScalarOp);

impl Kind for ReduceScatter {
    fn attributes(&self) -> String {
        format!(" {}", self.0)
    }
    fn form(&self, _: usize) -> Form {
        Form::Fold(self.0, Piece::Part)
    }
    fn check(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn of_elements(&self, dtype: DType) -> CollectiveKind {
        ReduceScatter(self.0.monoid_of(dtype)).into()
    }
}

impl CollectiveRule for ReduceScatter {
    fn transposed(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(to.fitting(op.like(AllGather), &[cotangent]))
    }
}

impl CollectiveHlo for ReduceScatter {
    fn stablehlo(&self, w: &mut Writer, op: &Collective, args: &[Value], gives: &Type) -> Value {
        let region = combines(w, self.0, gives.dtype);
        let detail = w.groups(op, Parts::Scattered);
        let row = Type::new(gives.dtype, [&[1], &gives.shape[..]].concat());
        let made = w.operation("reduce_scatter", &[&args[0]], vec![region], detail, &[row]).remove(0);
        w.reshape(&made, &gives.shape)
    }
}
