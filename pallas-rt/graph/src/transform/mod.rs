//! Transformations of a graph into others that compute its derivatives, or its results for a whole batch.
//!
//! - `active`: which values have a derivative by which parameters;
//! - `jvp`: forward mode;
//! - `batch`: batching, along an additional first axis;
//! - `vjp`: reverse mode;
//! - `calls`: the trait by which calls state these three; `batch_call`: helpers for their batching;
//! - `collective`: derivatives and batching of collectives;
//! - `plain`: plain operations in place of kernels;
//! - `memo`: a cache of what a transformation found out about calls;
//! - `linearity`: checks whether stated tangents are linear;
//! - `split`: splits a derivative into the part that computes residuals and the linear part that uses them.
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

/// Refuses a graph with an array that has more axes or elements than a graph may have, as a transformation may produce.
fn within_limits(graph: &Graph) -> Result<(), Refused> {
    let of = |e: &crate::graph::Equation| {
        e.results
            .iter()
            .try_for_each(|&r| build::within_limits(graph.ty(r)).map_err(|diag| Refused { at: e.loc, diag }))
    };
    graph.equations.iter().try_for_each(of)
}
