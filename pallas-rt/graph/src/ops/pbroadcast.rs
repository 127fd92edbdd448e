//! `pbroadcast`: every device gets the array of one member of its group.
use super::prelude::collective::*;
use super::{AllReduce, DeviceTable};
use crate::stablehlo::HloAttributes;
use pallas_ir::{Literal, ScalarOp};

/// `T[..] -> T[..]`: the operand of the group's member with this number (`jax.lax.pbroadcast`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pbroadcast(pub usize);

impl CollectiveInterface for Pbroadcast {
    fn attributes(&self) -> String {
        format!(" from({})", self.0)
    }
    fn form_for_member(&self, _: usize) -> CollectiveForm {
        CollectiveForm::FromMember(Some(self.0))
    }
    fn check_attributes(&self, members: usize) -> Result<(), (String, &'static str)> {
        match self.0 < members {
            true => Ok(()),
            false => Err((format!("device {} of a group of {members}", self.0), "devices count from 0")),
        }
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

impl CollectiveTransposeRule for Pbroadcast {
    /// Appends the sum of the cotangents of all members, on the source alone, and zeros on the others.
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var> {
        let ty = to.ty(cotangent).clone();
        let sum = to.push_valid(op.with_kind(AllReduce(ScalarOp::Add)), &[cotangent]);
        let number = to.push_valid(op.with_kind(DeviceTable((0..op.group_size() as i32).collect())), &[]);
        let source = to.i32_literal(self.0 as i64);
        let is_source = to.push_valid(ScalarOp::Eq, &[number, source]);
        let is_source = to.broadcast(is_source, &ty.shape).expect("a scalar stretches");
        let zeros = to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
        Some(to.push_valid(ScalarOp::Select, &[is_source, sum, zeros]))
    }
}

impl CollectiveHlo for Pbroadcast {
    /// Writes the groups with the source first, since StableHLO broadcasts from the first device of a group.
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue {
        let mut groups = op.groups();
        groups.iter_mut().for_each(|group| group[..=self.0].rotate_right(1));
        let detail = HloAttributes::DeviceGroups { groups, parts: ExchangedData::FromFirst, channel: w.next_channel() };
        w.emit_op("collective_broadcast", &[&args[0]], detail, gives.clone())
    }
}
