//! The list of passes that prepare a kernel for a GPU's placement.
use super::staged::Staged;
use super::{peel, promote, sink_reductions, software_pipeline, verified};

/// A pass before placement: its name, and its function.
pub type PlacementPass = (&'static str, fn(&mut Staged));

/// The passes from the lowered form to the form that placement reads, in order.
pub const PLACEMENT: &[PlacementPass] = &[
    ("peel", peel::peel),
    ("promote", promote::promote),
    ("sink_reductions", sink_reductions::sink_reductions),
    ("software_pipeline", software_pipeline::software_pipeline),
];

impl Staged {
    /// Runs a pass; debug builds verify its result.
    pub fn run(&mut self, (name, pass): PlacementPass) {
        pass(self);
        verified(name, &self.kernel);
    }

    /// Runs all passes of [`PLACEMENT`].
    pub(crate) fn placed(mut self) -> Staged {
        PLACEMENT.iter().for_each(|pass| self.run(*pass));
        self
    }
}
