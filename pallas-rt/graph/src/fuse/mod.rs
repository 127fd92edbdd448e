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
//! ([`Work`]); `windows` has kernels for windows. A scatter is a step of its own (`scatter`), which changes its operand
//! in place; so is a large pad along many axes (`padded`). `alone` makes the clusters of such steps, and `parts` has
//! code that their kernels share.
//!
//! Long reductions are folds of parts, followed by folds of the results (`stages`). `order` finds circles of clusters,
//! and `apart` has the reasons why equations do not share a kernel. `memory` packs the values that are no results into
//! one arena; `schedule` and `rematerialize` keep it small. `donate` lets results take over the memory of parameters.
//! `shown` has the texts of clusters, steps and memory, and verifies them. A cluster holds at most one `dot`, so that
//! its blocks suit that one; on a GPU it sums the product panel by panel (`panels`, `in_panels`).
mod alone;
mod apart;
mod blocks;
pub(crate) mod cluster;
mod copies;
pub(crate) mod cut;
mod donate;
mod grow;
mod in_panels;
pub(crate) mod kinds;
pub(crate) mod lower;
mod memory;
mod merge;
mod moves;
mod order;
mod padded;
mod panels;
mod parts;
mod pipeline;
mod plan;
mod rematerialize;
mod scatter;
mod schedule;
mod shown;
mod sizes;
pub(crate) mod stages;
mod text;
mod windowed;
mod windows;

pub use apart::Apart;
pub use cut::Cut;
pub use memory::{ALIGNMENT, moved};
pub(crate) use pipeline::{CallStep, Lowering};
pub use pipeline::{plan, plan_watched};
pub(crate) use plan::Lowered;
pub use plan::{Held, Place, Plan, Region, Step, Work};
pub use sizes::Sizes;
