//! `all_reduce`: every device gets the sum, or another reduction, of the arrays of its group.
use super::Pcast;
use super::prelude::collective::*;
use crate::mesh::{ManualAxisState, SentPart};
use crate::stablehlo::build_combiner_region;
use pallas_ir::ScalarOp;

/// `T[..] -> T[..]`: the operands of all members of a group, combined by this monoid in the order of the members'
/// numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllReduce(pub ScalarOp);

impl CollectiveInterface for AllReduce {
    fn attributes(&self) -> String {
        format!(" {}", self.0)
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::Fold(self.0, SentPart::Whole)
    }
    fn check_attributes(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn for_dtype(&self, dtype: DType) -> CollectiveKind {
        AllReduce(self.0.monoid_for_dtype(dtype)).into()
    }
}

impl CollectiveTransposeRule for AllReduce {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        let op = match op.mesh.is_batch() {
            // Values have no states along a batch axis, so each example gets the sum of all cotangents.
            true => op.clone(),
            // On devices the result is invariant and the operand varying: the transpose of a sum is a cast.
            false => op.with_kind(Pcast { from: ManualAxisState::Invariant, to: ManualAxisState::Varying }),
        };
        Some(to.push_valid(op, &[cotangent]))
    }
}

impl CollectiveHlo for AllReduce {
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let region = build_combiner_region(w, self.0, gives.dtype);
        let detail = w.collective_attributes(op, ExchangedData::Combined);
        w.emit_op_with_regions("all_reduce", &[&args[0]], vec![region], detail, std::slice::from_ref(gives)).remove(0)
    }
}
