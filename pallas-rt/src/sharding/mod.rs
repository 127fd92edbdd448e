//! Arrays that are divided among the devices of a mesh.
//!
//! - [`Mesh`]: devices along named axes; [`P`]: the axes that divide each dimension; [`NamedSharding`]: both together;
//! - `blocks`: the blocks of an array, cut and put together;
//! - `place`: arrays on meshes, and what is said about them;
//! - `show`: shardings as pictures.
//!
//! A function of `jit` whose arguments are declared to be divided, or that says how its values are, runs on the mesh: see
//! [`with_sharding_constraint`](crate::with_sharding_constraint).
mod blocks;
mod place;
mod show;
mod spec;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use blocks::{Placement, cut};
pub use pallas_graph::mesh::{DimSharding, Mesh, Sharding};
pub use place::{Shard, device_put, make_array_from_callback};
pub use show::visualize_sharding;
pub use spec::{
    AxisEntry, AxisSpec, DimSpec, Entry, NamedSharding, P, PartitionSpec, Spec, UNCONSTRAINED, dim, sub_axis,
};
