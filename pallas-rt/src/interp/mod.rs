//! The strict interpreter: the meaning of a kernel, with every fault named.
//!
//! [`datum`] typed elements with poison; [`eval`] what pure operations compute; [`sort`] sorted lines; [`machine`] memory;
//! [`sharing`] who may touch what; [`walk`] the tile IR. Eager execution of a kernel's Rust body uses the same machine
//! through [`walk::step`].
pub(crate) mod datum;
pub(crate) mod eval;
mod fault;
mod indexed;
mod loads;
pub(crate) mod machine;
mod sharing;
mod sort;
pub mod walk;

pub use datum::Data;
pub(crate) use datum::Datum;
pub(crate) use fault::Fault;
pub use loads::{Loads, loads};
pub use machine::{Argument, Machine};

/// Prints the output of a kernel's `debug_print`.
#[allow(clippy::print_stderr, reason = "the user asked to see it")]
pub(crate) fn print(log: &[String]) {
    log.iter().for_each(|line| eprintln!("{line}"));
}
