//! Transformations of a graph into others that compute its derivatives, or its results for a whole batch.
//!
//! - `active_values`: which values have a derivative by which parameters;
//! - `jvp`: forward mode;
//! - `batch`: batching, along an additional first axis;
//! - `vjp`: reverse mode;
//! - `calls`: the trait by which calls state these three; `batch_call`: helpers for their batching;
//! - `collective`: derivatives and batching of collectives;
//! - `kernel_expansion`: plain operations in place of kernels;
//! - `memo`: a cache of what a transformation found out about calls;
//! - `linearity`: checks whether stated tangents are linear;
//! - `partial_eval`: splits a derivative into the part that computes residuals and the linear part that uses them.
mod active_values;
mod batch;
mod batch_call;
mod calls;
mod collective;
mod jvp;
mod kernel_expansion;
mod linearity;
mod memo;
mod partial_eval;
mod rule;
mod vjp;

pub use crate::refusal::TransformError;
pub(crate) use active_values::{active_loop_params, active_results as active, extend_flags_to_fixpoint};
pub(crate) use batch::{
    BatchAxis, BatchedWindows, WindowTransformRule, batched_branch, batched_maybe_forcing_results,
    batched_with_forced_results, repeat_along_new_axis, with_leading_axis,
};
pub use batch::{batched, batched_along};
pub(crate) use batch_call::{
    BatchedCall, add_missing_batch_axes, batch_dependent_results, inline_or_call, push_batch_select,
    refuse_batch_collectives, swap_first_axes,
};
pub(crate) use calls::{CallTransformRule, VjpCall, cotangent_or_zeros, is_float, refuse_captured_tangents};
pub(crate) use collective::CollectiveTransposeRule;
pub(crate) use jvp::JvpCall;
pub use jvp::{jvp, linearize};
pub use kernel_expansion::without_kernels;
pub(crate) use linearity::{CallLinearity, Linearity, LinearityAnalysis};
pub use linearity::{NotLinear, find_nonlinear_result};
pub use partial_eval::split_by_known_params;
pub(crate) use partial_eval::{is_rematerialized, rematerialized_chain};
pub use vjp::{vjp, vjp_of_results};

use crate::build;
use crate::graph::Graph;

/// Refuses a graph with an array that has more axes or elements than a graph may have, as a transformation may produce.
fn check_graph_limits(graph: &Graph) -> Result<(), TransformError> {
    let of = |e: &crate::graph::Equation| {
        e.results.iter().try_for_each(|&r| {
            build::check_array_limits(graph.ty(r)).map_err(|diag| TransformError { at: e.loc, diag })
        })
    };
    graph.equations.iter().try_for_each(of)
}
