//! Arrays that are sharded among the devices of a mesh.
//!
//! - [`Mesh`]: devices along named axes; [`P`]: the axes that shard each dimension; [`NamedSharding`]: both together;
//! - `blocks`: the blocks of an array, cut and put together;
//! - `device_put`: functions that place arrays on meshes; `process_agreement`: a check that processes have equal
//!   elements; `receipt`: the collectives that reduced a value;
//! - [`ShardingPolicy`]: specs by patterns of paths in a tree; `spec_text`: specs as text;
//! - `hlo`: shardings in XLA's text; `picture`: which devices hold each block, `show`: as text, `draw`: as SVG;
//! - `topology_times`: the time of a collective on a machine.
//!
//! A function of `jit` whose arguments are declared to be sharded, or that says how its values are, runs on the mesh:
//! see [`with_sharding_constraint`](crate::with_sharding_constraint).
mod blocks;
mod device_put;
mod draw;
mod hlo;
mod partition_spec;
mod picture;
mod policy;
mod process_agreement;
mod receipt;
mod show;
mod spec_text;
#[cfg(test)]
pub(crate) mod tests;
mod topology_times;

pub(crate) use blocks::{MeshPlacement, ShardingDeclaration, local_device_positions, split_into_blocks};
pub use device_put::{Shard, device_put, make_array_from_callback};
pub(crate) use device_put::{shard_like, shard_with_declaration};
pub use hlo::to_hlo_sharding;
pub use pallas_graph::mesh::{DimSharding, Mesh, PropagationDirection, Sharding};
pub use partition_spec::{
    AxisEntry, AxisSpec, DimSpec, Entry, NamedSharding, P, PartitionSpec, Spec, UNCONSTRAINED, dim, sub_axis,
};
pub use picture::Picture;
pub(crate) use policy::pattern_matches;
pub use policy::{PolicyRule, ShardingPolicy};
#[cfg(test)]
pub(crate) use process_agreement::check_equal_elements;
pub use receipt::Receipt;
pub use show::{TextStyle, visualize_array_sharding, visualize_sharding, wants_color};
pub use topology_times::{Link, Topology};
