//! `all_to_all`: every device sends each member of its group a part of its array.
use super::prelude::collective::*;
use crate::mesh::SentPart;

/// `T[k, ..] -> T[k, ..]` in a group of `k` devices: in the result of member `j`, row `i` is row `j` of member `i`'s
/// operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllToAll;

impl CollectiveInterface for AllToAll {
    fn attributes(&self) -> String {
        String::new()
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::Stack(SentPart::Part)
    }
    fn check_attributes(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        AllToAll.into()
    }
}

impl CollectiveTransposeRule for AllToAll {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(to.push_valid(op.clone(), &[cotangent]))
    }
}

impl CollectiveHlo for AllToAll {
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let detail = w.collective_attributes(op, ExchangedData::Exchanged);
        w.emit_op("all_to_all", &[&args[0]], detail, gives.clone())
    }
}
