//! Engines that exchange arrays among the devices of a mesh, and what they exchange.
pub use pallas_device::collective::{CollectiveInProgress, Collectives, ResolvedCollective, Ticket};
pub use pallas_graph::mesh::{
    AllGather, AllReduce, AllToAll, CollectiveForm, CollectiveKind, DeviceTable, Pbroadcast, Permute, ReduceScatter,
    SentPart,
};

use pallas_graph::mesh::Collective;
use pallas_ir::{Loc, Type};

/// Converts a collective of a graph to the form that engines run; results have the type `result_type`, `at` is the
/// user's line.
pub(crate) fn resolve_collective(op: &Collective, result_type: &Type, at: Loc) -> ResolvedCollective {
    ResolvedCollective::new(op.name(), &op.mesh, &op.axes, op.member_forms(), result_type, at)
}
