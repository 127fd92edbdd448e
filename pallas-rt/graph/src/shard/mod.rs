//! From a graph for one device to one program for every device of a mesh.
//!
//! ```text
//! Graph + annotations --view--> RegionGraph --import--> --propagate--> a sharding for each value
//!     --partition--> Graph of local arrays
//! ```
//!
//! - [`op_sharding_rule`]: the factors that the dimensions of an operation's operands and results share, read from its
//!   access form;
//! - `ops/kernel/tiling`: the factors of a kernel, read from its blocks and grid, and the kernel for the blocks of one
//!   device;
//! - [`propagation_program`]: a graph in the form of StableHLO, with bodies of loops that read values from outside;
//! - `import`: copies of constants for each use, edges of loops, constraints and groups, made before propagation;
//! - [`factor_shardings`]: the sharding of an array as shardings of factors; `strategy`: one step of an operation;
//!   [`propagate()`]: all steps, in the order of Shardy; [`provenance`]: the reasons of its decisions;
//! - [`translate_constraints()`]: translation of constraints on several meshes of the same devices to one of the
//!   meshes;
//! - `factor_axes`: one sharding for each factor of an operation; [`reshard`]: from one sharding to another; `local`:
//!   operations on blocks; [`partition()`]: the graph that every device runs; `submesh`: bodies of `shard_map` that
//!   leave axes automatic; [`expand_to_all_devices()`]: one graph for all devices; `program_text`: the program and its
//!   shardings as verified text. [`propagate_and_partition()`] runs the steps up to [`partition()`].
//!
//! The behaviour is Shardy's (<https://github.com/openxla/shardy>), as measured from the version that JAX 0.12.0.1
//! contains; where its published source differs, the measurement decides.
//!
//! **Meshes.** A graph may say how its values are sharded among the devices of a mesh (`pallas_graph::mesh`):
//! annotations are identity operations, so transformations treat them like any other, and `simplify` drops them where a
//! function runs on one device. A function of `jit` whose arguments are declared to be sharded, or that has
//! annotations, is partitioned (`pallas_graph::shard`) between tracing and fusion:
//!
//! ```text
//! Graph --view--> StableHLO's form --import--> --propagate--> a sharding for each value
//!     --partition--> one Graph of blocks for every device
//! ```
//!
//! `propagation_program` has bodies of loops as regions that read values from outside, and scans as `while`, because
//! propagation depends on the order of operations and uses in StableHLO's text: Shardy's decisions are matched value by
//! value. `op_sharding_rule` reads the factors that dimensions share from an operation's access form, so no operation
//! has a sharding rule of its own. `import` copies constants for each use and puts an edge after each result of a loop
//! or branch; `propagate` visits operations in Shardy's order, by the user's priorities and five stages.
//!
//! `partition` then makes operations compatible one by one: `factor_axes` decides how their factors are sharded,
//! `reshard` converts values from one sharding to another, and `local` writes operations on blocks. `reshard` takes the
//! steps that Shardy takes before it optimizes collectives, with three changes: `reshard/axis_reorder` replaces
//! permutes of whole blocks; axes are moved before slices where that needs no permute; and a dimension that is whole
//! before or after is padded, while it is sharded, to the extent that the other sharding needs, so that the axes in
//! between divide it evenly. Partial sums stay uncombined until an operation reads them, so that they may be scattered
//! instead of reduced and a device adds up only the part that it keeps. A value with a single reader is converted
//! directly to the sharding that this reader needs. Operations that move elements along a sharded dimension receive the
//! rows of other devices in rounds (`local/halo`: a colouring of the pairs of senders and receivers with as few colours
//! as possible), then read them by position (`local/shifted_rows`). So do reshapes of unevenly sharded dimensions,
//! whose blocks are rows of consecutive elements (`local/uneven_reshape`). Operations that address a sharded operand by
//! data look up their own rows (`local/lookup`). A scan stays a scan. Elements of a last block beyond the array are
//! arbitrary, and are replaced only where they would be added up.
//!
//! Two kinds of operations do not follow their sharding rule: positions of extremes (`partition/sharded_top_k`), for
//! which each device contributes candidates, and convolutions whose second operand is sharded along spatial dimensions
//! (`partition/sharded_kernel_convolution`), which give partial sums.
mod constraint_meshes;
pub(crate) mod factor_axes;
pub mod factor_shardings;
mod import;
pub(crate) mod local;
pub mod op_sharding_rule;
pub mod partition;
mod partition_traits;
mod pipeline;
mod program_text;
pub mod propagate;
pub mod propagation_program;
pub mod provenance;
pub mod reshard;
mod strategy;
pub(crate) mod submesh;
pub(crate) mod virtual_mesh;

pub use crate::refusal::TransformError;
pub use crate::simplify::inlined;
pub use constraint_meshes::translate_constraints;
pub use op_sharding_rule::{Factor, FactorRole, ShardingRule};
pub use partition::{PartitionOptions, PartitionedGraph, Reshard, partition, partition_with};
pub(crate) use partition_traits::{ShardableCall, ShardableIdentity, ShardableWindow, ShardedOperation};
pub use pipeline::propagate_and_partition;
pub use propagate::{Propagation, propagate, sharding_rules_by_node};
pub use provenance::{
    AxisCause, CauseChain, PropagationLink, PropagationOrigin, PropagationStop, PropagationStopReason, ValueOrResult,
};
pub use virtual_mesh::expand_to_all_devices;
