//! Observes the programs between the stages of the compiler, to print, time or verify them.
//!
//! `propagate_and_partition`, `simplify` and `plan` each run a list of stages, and pass the program that a stage made
//! to a [`StageObserver`].
use crate::graph::Graph;
use std::fmt;

/// Gets the program that each stage of the compiler makes.
pub trait StageObserver {
    /// Called after the stage named `stage` made `program`.
    fn observe_stage(&mut self, stage: &'static str, program: &dyn StageOutput);
}

/// Ignores all programs.
impl StageObserver for () {
    fn observe_stage(&mut self, _: &'static str, _: &dyn StageOutput) {}
}

/// A program that a stage made. Its text is written only if its `Display` is used, so unread texts cost nothing.
pub trait StageOutput: fmt::Display {
    /// Checks the rules of the program's form.
    ///
    /// # Errors
    /// The first rule that the program breaks.
    fn verify(&self) -> Result<(), String>;
    /// Returns the program if it is a graph, so that one which a stage left unchanged need not be verified again.
    fn as_graph(&self) -> Option<&Graph>;
}

impl StageOutput for Graph {
    fn verify(&self) -> Result<(), String> {
        crate::verify(self)
    }
    fn as_graph(&self) -> Option<&Graph> {
        Some(self)
    }
}
