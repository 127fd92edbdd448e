//! `all_gather`: every device gets the arrays of all members of its group.
use super::ReduceScatter;
use super::prelude::collective::*;
use crate::mesh::SentPart;
use pallas_ir::ScalarOp;

/// `T[..] -> T[k, ..]` in a group of `k` devices: the operands of all members along a new first axis, in the order of
/// their numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllGather;

impl CollectiveInterface for AllGather {
    fn attributes(&self) -> String {
        String::new()
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::Stack(SentPart::Whole)
    }
    fn check_attributes(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        AllGather.into()
    }
}

impl CollectiveTransposeRule for AllGather {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(to.push_valid(op.with_kind(ReduceScatter(ScalarOp::Add)), &[cotangent]))
    }
}

impl CollectiveHlo for AllGather {
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let row = w.emit_reshape(&args[0], &[&[1], &args[0].ty.shape[..]].concat());
        let detail = w.collective_attributes(op, ExchangedData::Gathered);
        w.emit_op("all_gather", &[&row], detail, gives.clone())
    }
}
