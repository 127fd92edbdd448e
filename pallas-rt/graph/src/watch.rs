//! Programs between the stages of the compiler, for those who print, time or verify them.
//!
//! `divide`, `simplify` and `plan` are loops over stages of their own: they hand what each stage made to a [`Watch`].
use crate::graph::Graph;
use std::fmt;

/// Sees the program that each stage makes.
pub trait Watch {
    /// A stage made this.
    fn made(&mut self, stage: &'static str, program: &dyn Made);
}

/// Sees nothing.
impl Watch for () {
    fn made(&mut self, _: &'static str, _: &dyn Made) {}
}

/// A program that a stage made. Its `Display` is its text, which costs nothing until someone reads it.
pub trait Made: fmt::Display {
    /// Checks what can be checked.
    ///
    /// # Errors
    /// The first rule that the program breaks.
    fn verify(&self) -> Result<(), String>;
}

impl Made for Graph {
    fn verify(&self) -> Result<(), String> {
        crate::verify(self)
    }
}
