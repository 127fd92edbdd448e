//! From a graph to others that compute its derivatives, or its results for many operands at once.
//!
//! - `active`: which values depend on which parameters in a way that has a derivative;
//! - `jvp`: forward mode;
//! - `batch`: many operands at once, along an axis more;
//! - `vjp`: reverse mode;
//! - `calls`: what every call has rules for, `batch_call`: what those for many operands are made of;
//! - `collective`: what devices exchange, in all three;
//! - `plain`: plain operations in place of kernels;
//! - `memo`: what a transformation found out about calls;
//! - `linearity`: whether stated tangents are linear;
//! - `split`: what a linear function stores, and the linear function.
mod active;
mod batch;
mod batch_call;
mod calls;
mod collective;
mod jvp;
mod linearity;
mod memo;
mod plain;
mod rule;
mod split;
mod vjp;

pub use crate::refused::Refused;
pub(crate) use active::{carried, fixpoint, of_graph as active};
pub(crate) use batch::{
    BatchAxis, OwnWindows, WindowRule, batched_at_least, batched_branch, batched_for, stretched, wider,
};
pub use batch::{batched, batched_along};
pub(crate) use batch_call::{Batch, agrees, choose, differing, inlined, swapped, widened};
pub(crate) use calls::{Backward, CallRule, is_float, no_tangents, or_zeros};
pub(crate) use collective::CollectiveRule;
pub(crate) use jvp::Forward;
pub use jvp::{jvp, linearize};
pub(crate) use linearity::{Analysis, CallLinear, Linearity};
pub use linearity::{NotLinear, not_linear};
pub use plain::without_kernels;
pub use split::split;
pub(crate) use split::{is_remade, sources};
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
