//! Passes over the tile IR, in the order [`PIPELINE`] runs them.
//!
//! [`lower`] blocks and sequential axes become array positions and loops; [`rewrite`] is how passes copy a kernel.
pub mod lower;
pub mod rewrite;

use pallas_ir::Kernel;

/// A pass: its name in dumps, and what it does.
pub type Pass = (&'static str, fn(&Kernel) -> Kernel);

/// From the traced form to what backends read.
pub const PIPELINE: &[Pass] = &[("lower", lower::lower)];

/// Runs the pipeline.
pub fn run(kernel: &Kernel) -> Kernel {
    PIPELINE.iter().fold(kernel.clone(), |k, (_, pass)| pass(&k))
}
