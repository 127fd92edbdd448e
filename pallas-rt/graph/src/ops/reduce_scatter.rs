//! `reduce_scatter`: every device gets its part of the sum, or another reduction, of the arrays of its group.
use super::AllGather;
use super::prelude::collective::*;
use crate::mesh::SentPart;
use crate::stablehlo::build_combiner_region;
use pallas_ir::ScalarOp;

/// `T[k, ..] -> T[..]` in a group of `k` devices: the result of member `j` is row `j` of all members' operands,
/// combined by this monoid in the order of the members' numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceScatter(pub ScalarOp);

impl CollectiveInterface for ReduceScatter {
    fn attributes(&self) -> String {
        format!(" {}", self.0)
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::Fold(self.0, SentPart::Part)
    }
    fn check_attributes(&self, _: usize) -> Result<(), (String, &'static str)> {
        Ok(())
    }
    fn for_dtype(&self, dtype: DType) -> CollectiveKind {
        ReduceScatter(self.0.monoid_for_dtype(dtype)).into()
    }
}

impl CollectiveTransposeRule for ReduceScatter {
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        Some(to.push_valid(op.with_kind(AllGather), &[cotangent]))
    }
}

impl CollectiveHlo for ReduceScatter {
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let region = build_combiner_region(w, self.0, gives.dtype);
        let detail = w.collective_attributes(op, ExchangedData::Scattered);
        let row = Type::new(gives.dtype, [&[1], &gives.shape[..]].concat());
        let made = w.emit_op_with_regions("reduce_scatter", &[&args[0]], vec![region], detail, &[row]).remove(0);
        w.emit_reshape(&made, &gives.shape)
    }
}
