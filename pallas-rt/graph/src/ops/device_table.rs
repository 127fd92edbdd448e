//! `device_table`: every device gets its own entry of a table of constants.
use super::prelude::collective::*;
use crate::stablehlo::HloAttributes;

/// `-> i32[]`: the table's entry at the device's number in its group. There is no operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceTable(pub Vec<i32>);

impl CollectiveInterface for DeviceTable {
    fn attributes(&self) -> String {
        format!(" {:?}", self.0)
    }
    fn form_for_member(&self, number: usize) -> CollectiveForm {
        CollectiveForm::Constant(self.0.get(number).copied().unwrap_or(0))
    }
    fn check_attributes(&self, members: usize) -> Result<(), (String, &'static str)> {
        match self.0.len() == members {
            true => Ok(()),
            false => Err((format!("{} entries for {members} devices", self.0.len()), "one entry for each device")),
        }
    }
    fn for_dtype(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

impl CollectiveTransposeRule for DeviceTable {
    fn push_operand_cotangent(&self, _: &mut Graph, _: &Collective, _: Var) -> Option<Var> {
        None
    }
}

impl CollectiveHlo for DeviceTable {
    /// Writes a table for all devices, from which a device reads the entry at its partition id.
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, _: &[HloValue], _: &Type) -> HloValue {
        let mesh = &op.mesh;
        let mut of_devices = vec![0; mesh.device_count()];
        (0..mesh.device_count()).for_each(|p| of_devices[mesh.device(p)] = self.0[mesh.index(p, &op.axes)]);
        let all = Type::new(DType::I32, [of_devices.len()]);
        let all = w.emit_op("constant", &[], HloAttributes::I32Elements(of_devices), all);
        let device = w.emit_op("partition_id", &[], HloAttributes::None, Type::scalar(DType::U32));
        let row =
            w.emit_op("dynamic_slice", &[&all, &device], HloAttributes::Sizes(vec![1]), Type::new(DType::I32, [1]));
        w.emit_reshape(&row, &[])
    }
}
