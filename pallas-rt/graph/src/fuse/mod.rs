//! From a graph to a few tile kernels.
//!
//! ```text
//! Graph --stages, copies, grow, merge--> equations that share a kernel --lower--> ir::Kernel each
//!       --schedule, memory--> their order, and where values are stored
//! ```
//!
//! `pipeline` has these stages in order; `plan` the plan that they make, `cluster` the clusters, `sizes` the numbers of the device.
//!
//! A cluster grows from one equation backwards (`grow`). Each value in it has a [`Cut`] for each axis: divided among the programs
//! of a kernel along an axis of its grid, or whole in each program. The cut of a result determines those of the operands
//! ([`cut`]), so what a program computes follows from the tiling of the cluster's result. The kernel then consists of the
//! same operations on blocks ([`lower`]), whose sizes are those of `blocks`.
//!
//! Literals, arrays with the same number everywhere, and `iota` belong to no cluster: they are made wherever they are used
//! ([`kinds`]). Calls and windows at positions known when they run are steps of their own ([`Work`]); `windows` has kernels for
//! windows. A scatter is one too (`scatter`): it changes its operand in place; and so is a large pad along many axes (`padded`). `alone` makes their clusters,
//! and `parts` has the parts that their kernels share.
//!
//! Long reductions are folds of parts, and of what those give (`stages`). `order` finds circles of clusters, and `apart`
//! has the reasons why equations do not share a kernel. `memory` packs the values that are no results into one arena;
//! `schedule` and `rematerialize` keep it small. `donate` lets results take over the memory of parameters.
//! `shown` has the texts of clusters, steps and memory, and verifies them.
//! A cluster holds at most one `dot`, so that its blocks suit that one; on a GPU it sums a panel at a time (`panels`, `in_panels`).
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
