//! Arrays that are sharded among the devices of a mesh.
//!
//! - [`Mesh`]: devices along named axes; [`P`]: the axes that shard each dimension; [`NamedSharding`]: both together;
//! - `blocks`: the blocks of an array, cut and put together;
//! - `place`: functions that place arrays on meshes; `alike`: a check that processes have equal elements; `receipt`:
//!   the collectives that reduced a value;
//! - [`ShardingPolicy`]: specs by patterns of paths in a tree; `text`: specs as text;
//! - `hlo`: shardings in XLA's text; `picture`: which devices hold each block, `show`: as text, `draw`: as SVG;
//! - `topology`: the time of a collective on a machine.
//!
//! A function of `jit` whose arguments are declared to be sharded, or that says how its values are, runs on the mesh: see
//! [`with_sharding_constraint`](crate::with_sharding_constraint).
mod alike;
mod blocks;
mod draw;
mod hlo;
mod picture;
mod place;
mod policy;
mod receipt;
mod show;
mod spec;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod topology;

#[cfg(test)]
pub(crate) use alike::check_alike;
pub(crate) use blocks::{Declaration, Placement, cut, positions};
pub use hlo::to_hlo_sharding;
pub use pallas_graph::mesh::{DimSharding, Flow, Mesh, Sharding};
pub use picture::Picture;
pub use place::{Shard, device_put, make_array_from_callback};
pub(crate) use place::{placed, placed_like};
pub(crate) use policy::matches;
pub use policy::{PolicyRule, ShardingPolicy};
pub use receipt::Receipt;
pub use show::{TextStyle, visualize_array_sharding, visualize_sharding, wants_color};
pub use spec::{
    AxisEntry, AxisSpec, DimSpec, Entry, NamedSharding, P, PartitionSpec, Spec, UNCONSTRAINED, dim, sub_axis,
};
pub use topology::{Link, Topology};
