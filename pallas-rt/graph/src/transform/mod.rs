//! From a graph to others that compute its derivatives, or its results for many operands at once.
//!
//! - `active`: which values depend on which parameters in a way that has a derivative;
//! - `jvp`: forward mode; `jvp_kernel` has the rule of kernels;
//! - `batch`: many operands at once, along an axis more; `batch_control` has the rules of loops and branches,
//!   `batch_kernel` that of kernels;
//! - `vjp`: reverse mode; `control` has the rules of loops and branches, `checkpoint` that of values that
//!   are computed again;
//! - `second`: reverse mode of stated gradients;
//! - `collective`: what devices exchange, and `manual`: the bodies of `shard_map`, in all three;
//! - `plain`: plain operations in place of kernels;
//! - `memo`: what a transformation found out about calls;
//! - `linearity`: whether stated tangents are linear;
//! - `split`: what a linear function stores, and the linear function.
mod active;
mod batch;
mod batch_control;
mod batch_kernel;
mod checkpoint;
mod collective;
mod control;
mod jvp;
mod jvp_kernel;
mod linearity;
mod manual;
mod memo;
mod plain;
mod rule;
mod second;
mod split;
mod vjp;

pub use crate::refused::Refused;
pub(crate) use batch::batched_for;
pub use batch::{batched, batched_along};
pub use jvp::{jvp, linearize};
pub use linearity::{NotLinear, not_linear};
pub use plain::without_kernels;
pub use split::split;
pub use vjp::{vjp, vjp_of};

use crate::build;
use crate::graph::Graph;

/// Refuses a graph with arrays that no kernel takes: the axes or the size of what a rule appends may exceed the limits.
fn within_limits(graph: &Graph) -> Result<(), Refused> {
    let of = |e: &crate::graph::Equation| {
        e.results
            .iter()
            .try_for_each(|&r| build::within_limits(graph.ty(r)).map_err(|diag| Refused { at: e.loc, diag }))
    };
    graph.equations.iter().try_for_each(of)
}
