//! From a graph to a few tile kernels.
//!
//! ```text
//! Graph --stages, copies, grow, merge--> equations that share a kernel --lower--> ir::Kernel each
//!       --schedule, memory--> their order, and where values are stored
//! ```
//!
//! `pipeline` runs these stages in order; `plan` has the plan that they make, `cluster` the clusters, `sizes` the
//! limits of the device.
//!
//! A cluster grows from one equation backwards (`grow`). Each value in it has a [`Cut`] for each axis: split among the
//! programs of a kernel along an axis of its grid, or whole in each program. The cut of a result determines those of
//! the operands ([`cut`]), so all that a program computes follows from the tiling of the cluster's result. The kernel
//! then consists of the same operations on blocks ([`lower`]), whose sizes `blocks` chooses.
//!
//! Literals, arrays with the same number everywhere, and `iota` belong to no cluster: they are made wherever they are
//! used ([`kinds`]). Calls, and windows at positions that are only known at run time, are steps of their own
//! ([`StepOp`]); `windows` has kernels for windows. A scatter is a step of its own (`scatter`), which changes its operand
//! in place; so is a large pad along many axes (`padded`). `alone` makes the clusters of such steps, and `parts` has
//! code that their kernels share.
//!
//! Long reductions are folds of parts, followed by folds of the results (`stages`). `order` finds circles of clusters,
//! and `apart` has the reasons why equations do not share a kernel. `memory` packs the values that are no results into
//! one arena; `schedule` and `rematerialize` keep it small. `donate` lets results take over the memory of parameters.
//! `shown` has the texts of clusters, steps and memory, and verifies them. A cluster holds at most one `dot`, so that
//! its blocks suit that one; on a GPU it sums the product panel by panel (`panels`, `in_panels`).
mod arena_packing;
mod broadcast_copies;
pub(crate) mod cluster;
mod cluster_blocks;
mod convolution_cuts;
mod device_limits;
mod donated_arguments;
mod dynamic_window_kernels;
pub(crate) mod equation_kinds;
mod grow;
mod large_pads;
pub(crate) mod lower;
mod merge;
mod moves;
pub(crate) mod operand_cuts;
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

pub use arena_packing::{REGION_ALIGNMENT_BYTES, find_movable_results};
pub use device_limits::DeviceLimits;
pub use operand_cuts::AxisTiling;
pub(crate) use pipeline::{CallLoweringContext, CallStep};
pub use pipeline::{plan, plan_watched};
pub(crate) use plan::LoweredStep;
pub use plan::{ArenaRegion, ArenaValue, MemoryLocation, Plan, PlanStep, StepOp};
pub use unfused_reasons::UnfusedReason;
