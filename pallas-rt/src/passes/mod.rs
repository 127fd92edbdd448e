//! Passes over the tile IR, in the order [`PIPELINE`] runs them.
//!
//! [`lower`] blocks and sequential axes become array positions and loops; [`simplify`] constants and repetitions go;
//! [`peel`] first and last steps leave their loop; [`promote`] scratch becomes values;
//! [`delay`] sums wait until their loop ends; [`prefetch`] loads run a step ahead; [`resume`]
//! sequential axes run range by range; [`rewrite`] is how passes copy a kernel.
pub mod delay;
pub mod liveness;
pub mod lower;
pub mod peel;
pub mod prefetch;
pub mod promote;
pub mod resume;
pub mod rewrite;
pub mod simplify;
#[cfg(test)]
pub(crate) mod tests;

use pallas_ir::Kernel;

/// A pass: its name in dumps, and what it does.
pub type Pass = (&'static str, fn(&Kernel) -> Kernel);

/// From the traced form to what backends read.
pub const PIPELINE: &[Pass] = &[("lower", lower::lower), ("simplify", simplify::simplify)];

/// Runs the pipeline; debug builds verify what goes in and what each pass makes.
pub fn run(kernel: &Kernel) -> Kernel {
    verified("tracing", kernel);
    PIPELINE.iter().fold(kernel.clone(), |before, (name, pass)| {
        let after = pass(&before);
        verified(name, &after);
        after
    })
}

/// Stops at a kernel that is not well formed: a mistake in this crate, not in the user's kernel.
fn verified(stage: &str, kernel: &Kernel) {
    if cfg!(debug_assertions)
        && let Err(violation) = pallas_ir::verify(kernel)
    {
        panic!("after {stage}: {violation}\n{kernel}");
    }
}
