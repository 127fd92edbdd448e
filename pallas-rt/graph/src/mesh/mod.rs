//! Meshes of devices, and what a graph says about arrays on them.
//!
//! - [`Mesh`], [`Axis`], [`Sharding`], [`CollectiveForm`]: from crate `pallas-mesh`;
//! - [`ShardingConstraint`], [`ShardingGroup`], [`PropagationBarrier`]: statements about the sharding of a value;
//! - [`Collective`]: an operation on the arrays of several devices; [`ManualAxisState`]: whether devices have equal
//!   values inside of a `shard_map`.
mod flow;
mod state;

pub use crate::collective::{
    AllGather, AllReduce, AllToAll, Collective, CollectiveKind, DeviceTable, Pbroadcast, Pcast, Permute, ReduceScatter,
};
pub use crate::identity::{PropagationBarrier, ShardingConstraint, ShardingGroup};
pub use flow::PropagationDirection;
pub use pallas_mesh::{
    Axis, CollectiveForm, DimSharding, Mesh, MeshSharding, SentPart, Sharding, axes_text, axis, difference,
    product_of_sizes,
};
pub use state::{AxisStates, ManualAxisState, all_invariant_states};
