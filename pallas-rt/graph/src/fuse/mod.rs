//! From a graph to a few tile kernels.
//!
//! ```text
//! Graph --split_reductions, broadcast_copies, grow, merge--> equations that share a kernel --lower--> ir::Kernel each
//!       --schedule, arena_packing--> their order, and where values are stored
//! ```
//!
//! `pipeline` runs these stages in order; `plan` has the plan that they make, `cluster` the clusters, `device_limits`
//! the limits of the device.
//!
//! A cluster grows from one equation backwards (`grow`). Each value in it has an
//! [`AxisTiling`] for each axis: split among the programs of a kernel along an axis of its
//! grid, or whole in each program. The tiling of a result determines those of the operands ([`axis_tiling`]), so all
//! that a program computes follows from the tiling of the cluster's result. The kernel then consists of the same
//! operations on blocks ([`lower`]), whose sizes `cluster_blocks` chooses.
//!
//! Literals, arrays with the same number everywhere, and iotas belong to no cluster: they are made wherever
//! they are used ([`equation_kinds`]). Calls, and windows at positions that are only known at run time, are steps of
//! their own ([`StepOp`]); `dynamic_window_kernels` has kernels for windows. A scatter is a step of its own
//! (`scatter`), which changes its operand in place; so is a large pad along many axes (`large_pads`).
//! `standalone_steps` makes the clusters of such steps, and `shared_kernel_code` has code that their kernels share.
//!
//! Long reductions are folds of parts, followed by folds of the results (`split_reductions`). `topological_order` finds
//! cycles of clusters, and `unfused_reasons` has the reasons why equations do not share a kernel. `arena_packing` packs
//! the values that are no results into one arena; `schedule` and `rematerialize` keep it small. `donated_arguments`
//! lets results take over the memory of parameters. `stage_texts` has the texts of clusters, steps and memory, and
//! verifies them. A cluster holds at most one `dot`, so that its blocks suit that one; on a GPU it sums the product
//! panel by panel (`panels`, `panel_kernel`).
mod arena_packing;
pub(crate) mod axis_tiling;
mod broadcast_copies;
pub(crate) mod cluster;
mod cluster_blocks;
mod convolution_blocks;
mod device_limits;
mod donated_arguments;
mod dynamic_window_kernels;
pub(crate) mod equation_kinds;
mod grow;
mod large_pads;
pub(crate) mod lower;
mod merge;
mod moves;
mod panel_kernel;
mod panels;
mod pipeline;
mod plan;
mod plan_text;
mod rematerialize;
mod scatter;
mod schedule;
mod shared_kernel_code;
pub(crate) mod split_reductions;
mod stage_texts;
mod standalone_steps;
mod topological_order;
mod unfused_reasons;

pub use arena_packing::{REGION_ALIGNMENT_BYTES, find_movable_result_memory};
pub use axis_tiling::AxisTiling;
pub use device_limits::DeviceLimits;
pub(crate) use pipeline::{CallLoweringContext, LowerableCall};
pub use pipeline::{plan, plan_watched};
pub(crate) use plan::LoweredStep;
pub use plan::{ArenaRegion, ArenaValue, MemoryLocation, Plan, PlanStep, StepOp};
pub use unfused_reasons::UnfusedReason;
