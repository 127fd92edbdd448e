//! Exchanges among the devices of a mesh, and the bodies that they run on their blocks.
//!
//! Devices have their own numbers in groups and pairs, and every exchange a channel: XLA takes them for the partitions of one
//! program.
use super::Printer;
use super::folds::combines;
use super::operation::{Detail, Region, Value};
use super::writer::Writer;
use crate::call::ShardMap;
use crate::mesh::{Collective, Exchange, Sharding, names};
use pallas_ir::{DType, Type};

/// Writes an exchange; its operand, if it has one, is `args[0]`.
pub(super) fn collective(w: &mut Writer, op: &Collective, args: &[Value], gives: &Type) -> Value {
    match &op.kind {
        Exchange::Table(table) => own_number(w, op, table),
        Exchange::Cast { .. } => args[0].clone(),
        Exchange::AllGather => {
            let row = w.reshape(&args[0], &[&[1], &args[0].ty.shape[..]].concat());
            let detail = Detail::Groups { groups: groups(op), dimension: Some(0), channel: w.channel() };
            w.op("all_gather", &[&row], detail, gives.clone())
        }
        Exchange::AllToAll => {
            let detail = Detail::Groups { groups: groups(op), dimension: Some(0), channel: w.channel() };
            w.op("all_to_all", &[&args[0]], detail, gives.clone())
        }
        Exchange::AllReduce(monoid) => {
            let region = combines(w, *monoid, gives.dtype);
            let detail = Detail::Groups { groups: groups(op), dimension: None, channel: w.channel() };
            w.operation("all_reduce", &[&args[0]], vec![region], detail, std::slice::from_ref(gives)).remove(0)
        }
        Exchange::ReduceScatter(monoid) => {
            let region = combines(w, *monoid, gives.dtype);
            let detail = Detail::Groups { groups: groups(op), dimension: Some(0), channel: w.channel() };
            let row = Type::new(gives.dtype, [&[1], &gives.shape[..]].concat());
            let made = w.operation("reduce_scatter", &[&args[0]], vec![region], detail, &[row]).remove(0);
            w.reshape(&made, &gives.shape)
        }
        Exchange::Permute(sources) => {
            let of_group = |group: Vec<usize>| {
                let pair = |(to, from): (usize, &Option<usize>)| from.map(|from| [group[from], group[to]]);
                sources.iter().enumerate().filter_map(pair).collect::<Vec<_>>()
            };
            let pairs = groups(op).into_iter().flat_map(of_group).collect();
            let detail = Detail::Pairs { pairs, channel: w.channel() };
            w.op("collective_permute", &[&args[0]], detail, gives.clone())
        }
    }
}

/// The devices of each group, in the order of their numbers in it.
fn groups(op: &Collective) -> Vec<Vec<usize>> {
    let mesh = &op.mesh;
    let first = (0..mesh.devices()).filter(|&position| mesh.index(position, &op.axes) == 0);
    first.map(|p| mesh.group(p, &op.axes).into_iter().map(|p| mesh.device(p)).collect()).collect()
}

/// The entry of a table that has the device's number, as an `i32` scalar.
fn own_number(w: &mut Writer, op: &Collective, table: &[i32]) -> Value {
    let mesh = &op.mesh;
    let mut of_devices = vec![0; mesh.devices()];
    (0..mesh.devices()).for_each(|p| of_devices[mesh.device(p)] = table[mesh.index(p, &op.axes)]);
    let all = Type::new(DType::I32, [of_devices.len()]);
    let all = w.op("constant", &[], Detail::Numbers(of_devices), all);
    let device = w.op("partition_id", &[], Detail::None, Type::scalar(DType::U32));
    let row = w.op("dynamic_slice", &[&all, &device], Detail::Sizes(vec![1]), Type::new(DType::I32, [1]));
    w.reshape(&row, &[])
}

impl Printer {
    /// A body on blocks. Without shardings, the text has no mesh.
    pub(super) fn shard_map(&mut self, map: &ShardMap, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let all: Vec<&Value> = args.iter().collect();
        if !self.w.with_shardings {
            let detail = Detail::Kernel { name: "shard_map".into(), config: map.body.to_string(), rule: None };
            return self.w.operation("custom_call", &all, vec![], detail, gives);
        }
        let params = self.w.params(&map.body.takes());
        let outer = self.w.turn(vec![]);
        let made = self.graph(&map.body, &params);
        self.w.end("sdy.return", &made);
        let body = Region { params, lines: self.w.turn(outer) };
        let texts = |all: &[Sharding]| all.iter().map(|sharding| sharding.text(&map.mesh)).collect();
        let manual: Vec<_> = map.mesh.axes().into_iter().zip(&map.manual).filter(|(_, is)| **is).collect();
        let axes = names(&manual.into_iter().map(|(axis, _)| axis).collect::<Vec<_>>(), &map.mesh);
        let detail = Detail::Manual { takes: texts(&map.takes), gives: texts(&map.gives), axes };
        self.w.operation("sdy.manual_computation", &all, vec![body], detail, gives)
    }
}
