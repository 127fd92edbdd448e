//! The passes before a GPU's placement, as one list.
use super::staged::Staged;
use super::{peel, promote, sink_reductions, software_pipeline, verified};

/// A pass before placement: its name, and what it does.
pub type PlacementPass = (&'static str, fn(&mut Staged));

/// From the lowered form to what placement reads.
pub const PLACEMENT: &[PlacementPass] = &[
    ("peel", peel::peel),
    ("promote", promote::promote),
    ("sink_reductions", sink_reductions::sink_reductions),
    ("software_pipeline", software_pipeline::software_pipeline),
];

impl Staged {
    /// Runs a pass. Debug builds verify what it makes.
    pub fn run(&mut self, (name, pass): PlacementPass) {
        pass(self);
        verified(name, &self.kernel);
    }

    /// The form that placement reads.
    pub(crate) fn placed(mut self) -> Staged {
        PLACEMENT.iter().for_each(|pass| self.run(*pass));
        self
    }
}
