//! From a graph for one device to one program for every device of a mesh.
//!
//! ```text
//! Graph + annotations --view--> Program --import--> --propagate--> a sharding for each value --partition--> Graph of local arrays
//! ```
//!
//! - [`rule`]: the factors that the dimensions of an operation's operands and results share, read off its access form;
//! - `kernel`: the same read off a kernel's blocks and grid, and the kernel for the blocks of one device;
//! - [`view`]: a graph in the form of StableHLO, with bodies of loops that read values from outside;
//! - [`import`]: constants for each use, edges of loops, constraints and groups, before propagation;
//! - [`split`]: the sharding of an array as shardings of factors; [`strategy`]: one step of an operation;
//!   [`propagate()`]: all steps, in the order of Shardy; [`provenance`]: the reasons of its decisions;
//! - [`seen_from()`]: constraints on several meshes of the same devices, all on one of them;
//! - `agree`: one division of each factor of an operation; [`reshard`]: from one sharding to another; `local`: operations on
//!   blocks; [`partition()`]: the graph that every device runs; `submesh`: bodies of `shard_map` that leave axes automatic;
//!   [`united()`]: one graph for all devices. [`divide`] does all of this but the last.
//!
//! The behaviour is Shardy's (<https://github.com/openxla/shardy>), as measured from the version that JAX 0.12.0.1 contains;
//! where its published source differs, the measurement decides.
pub(crate) mod agree;
mod import;
pub(crate) mod local;
pub mod partition;
mod pipeline;
pub mod propagate;
pub mod provenance;
mod regions;
pub mod reshard;
pub mod rule;
mod seen;
pub mod split;
mod strategy;
pub(crate) mod submesh;
pub(crate) mod united;
pub mod view;

pub use crate::refused::Refused;
pub use crate::simplify::inlined;
pub use partition::{Options, Partitioned, Reshard, partition, partition_with};
pub use pipeline::divide;
pub use propagate::{Propagation, propagate, rules};
pub use provenance::{Cause, Chain, Origin, Reason, Slot, Stop, Via};
pub(crate) use regions::CallRegions;
pub use rule::{Factor, Role, Rule};
pub use seen::seen_from;
pub use united::united;
