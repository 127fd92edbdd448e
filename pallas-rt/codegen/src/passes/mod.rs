//! Passes over the tile IR. [`LOWERING_PASSES`] runs on every kernel, [`PLACEMENT_PASSES`] before a GPU's placement.
//!
//! - [`lower`] replaces blocks by array positions and sequential axes by loops;
//! - [`simplify`] folds constants and removes repeated computations;
//! - [`peel`] moves first and last steps out of their loop;
//! - [`promote_scratch`] replaces scratch by values;
//! - [`sink_reductions`] moves reductions of sums after their loop;
//! - [`software_pipeline`] moves loads one or more steps ahead;
//! - [`split_long_loops`] splits sequential axes into ranges, for several dispatches;
//! - [`block_position_ranges`] computes the range of the positions of blocks;
//! - [`rewrite`] copies a kernel, [`variables`] lists the variables of control flow; all passes use them.
//!
//! The passes for placement are compiled only with the feature `wgsl`, and for unit tests.
pub mod block_position_ranges;
#[cfg(any(feature = "wgsl", test))]
mod gpu_pass_state;
#[cfg(any(feature = "wgsl", test))]
pub(crate) mod liveness;
pub(crate) mod lower;
#[cfg(any(feature = "wgsl", test))]
mod peel;
#[cfg(any(feature = "wgsl", test))]
mod placement;
#[cfg(any(feature = "wgsl", test))]
mod promote_scratch;
pub(crate) mod rewrite;
#[cfg(any(feature = "wgsl", test))]
mod sequential_axis;
pub(crate) mod simplify;
#[cfg(any(feature = "wgsl", test))]
mod sink_reductions;
#[cfg(any(feature = "wgsl", test))]
mod software_pipeline;
#[cfg(any(feature = "wgsl", test))]
pub mod split_long_loops;
#[cfg(test)]
mod tests;
#[cfg(any(feature = "wgsl", test))]
pub(crate) mod variables;

#[cfg(any(feature = "wgsl", test))]
pub use gpu_pass_state::PlacementPassState;
#[cfg(any(feature = "wgsl", test))]
pub use placement::{PLACEMENT_PASSES, PlacementPass};

use pallas_ir::{AccessForm, Dim, Inst, Kernel, StructuralOp};

/// A pass over a kernel: its name in dumps, and its function.
pub type Pass = (&'static str, fn(&Kernel) -> Kernel);

/// The passes from the traced form to the form that backends read.
pub const LOWERING_PASSES: &[Pass] = &[("lower", lower::lower), ("simplify", simplify::simplify)];

/// Runs the pipeline; debug builds verify its input and the result of each pass.
pub fn run_lowering_passes(kernel: &Kernel) -> Kernel {
    verify_in_debug("tracing", kernel);
    LOWERING_PASSES.iter().fold(kernel.clone(), |before, (name, pass)| {
        let after = pass(&before);
        verify_in_debug(name, &after);
        after
    })
}

/// In debug builds, panics if a kernel is not well formed, which is a bug of this crate and not of the user's kernel.
fn verify_in_debug(stage: &str, kernel: &Kernel) {
    if cfg!(debug_assertions)
        && let Err(violation) = pallas_ir::verify(kernel)
    {
        panic!("after {stage}: {violation}\n{kernel}");
    }
}

/// Returns the number of uses of each value by instructions and yields.
pub(crate) fn count_uses(kernel: &Kernel) -> Vec<usize> {
    let mut uses = vec![0; kernel.values.len()];
    kernel.walk(kernel.body, &mut |_, inst| {
        let yields = inst.regions.iter().flat_map(|&r| &kernel.region(r).yields);
        inst.args.iter().chain(yields).for_each(|v| uses[v.index()] += 1);
    });
    uses
}

/// Returns the way in which an instruction's operation reaches the elements of its operands, such as a fold, a
/// contraction or a gather.
pub fn access_form(kernel: &Kernel, op: &StructuralOp, inst: &Inst) -> AccessForm {
    let dims: Vec<Vec<Dim>> = inst.args.iter().map(|&v| kernel.ty(v).dims()).collect();
    let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
    op.access(&dims)
}
