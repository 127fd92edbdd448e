//! The list of passes that prepare a kernel for a GPU's placement.
use super::gpu_pass_state::PlacementPassState;
use super::{peel, promote_scratch, sink_reductions, software_pipeline, verify_in_debug};

/// A pass before placement, the choice of the memory that each tile has on a GPU: its name, and its function.
pub type PlacementPass = (&'static str, fn(&mut PlacementPassState));

/// The passes from the lowered form to the form that placement reads, in order.
pub const PLACEMENT_PASSES: &[PlacementPass] = &[
    ("peel", peel::peel),
    ("promote", promote_scratch::promote_scratch),
    ("sink_reductions", sink_reductions::sink_reductions),
    ("software_pipeline", software_pipeline::software_pipeline),
];

impl PlacementPassState {
    /// Runs a pass; debug builds verify its result.
    pub fn run(&mut self, (name, pass): PlacementPass) {
        pass(self);
        verify_in_debug(name, &self.kernel);
    }

    /// Runs all passes of [`PLACEMENT_PASSES`].
    pub(crate) fn run_all_passes(mut self) -> PlacementPassState {
        PLACEMENT_PASSES.iter().for_each(|pass| self.run(*pass));
        self
    }
}
