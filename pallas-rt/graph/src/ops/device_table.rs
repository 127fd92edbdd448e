//! `device_table`: every device gets its own entry of a table of constants.
use super::prelude::collective::*;
use crate::stablehlo::Detail;

/// `-> i32[]`: the table's entry at the device's number in its group. There is no operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceTable(pub Vec<i32>);

impl Kind for DeviceTable {
    fn attributes(&self) -> String {
        format!(" {:?}", self.0)
    }
    fn form(&self, number: usize) -> Form {
        Form::Number(self.0.get(number).copied().unwrap_or(0))
    }
    fn check(&self, members: usize) -> Result<(), (String, &'static str)> {
        match self.0.len() == members {
            true => Ok(()),
            false => Err((format!("{} entries for {members} devices", self.0.len()), "one entry for each device")),
        }
    }
    fn of_elements(&self, _: DType) -> CollectiveKind {
        self.clone().into()
    }
}

impl CollectiveRule for DeviceTable {
    fn transposed(&self, _: &mut Graph, _: &Collective, _: Var) -> Option<Var> {
        None
    }
}

impl CollectiveHlo for DeviceTable {
    /// Writes a table for all devices, from which a device reads the entry at its partition id.
    fn stablehlo(&self, w: &mut Writer, op: &Collective, _: &[Value], _: &Type) -> Value {
        let mesh = &op.mesh;
        let mut of_devices = vec![0; mesh.devices()];
        (0..mesh.devices()).for_each(|p| of_devices[mesh.device(p)] = self.0[mesh.index(p, &op.axes)]);
        let all = Type::new(DType::I32, [of_devices.len()]);
        let all = w.op("constant", &[], Detail::Numbers(of_devices), all);
        let device = w.op("partition_id", &[], Detail::None, Type::scalar(DType::U32));
        let row = w.op("dynamic_slice", &[&all, &device], Detail::Sizes(vec![1]), Type::new(DType::I32, [1]));
        w.reshape(&row, &[])
    }
}
