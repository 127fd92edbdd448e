//! The strict interpreter: the meaning of a kernel, with every fault named.
//!
//! [`datum`] typed elements with poison; [`eval`] what pure operations compute, scalar ones in [`lanes`]; [`undefined`] where
//! poison comes from; [`values`] overflow and NaN; [`sort`] sorted lines; [`machine`] memory; [`decisions`] values that decide;
//! [`sharing`] who may touch what; [`walk`] the tile IR. Eager execution of a kernel's Rust body uses the same machine through
//! [`walk::step`].
pub mod datum;
mod decisions;
pub mod eval;
mod fault;
mod indexed;
mod lanes;
mod loads;
pub(crate) mod machine;
mod sharing;
mod sort;
mod undefined;
mod values;
pub mod walk;

use std::io::Write;

pub use datum::Data;
pub use datum::Datum;
pub use fault::Fault;
pub use loads::{Loads, loads};
pub use machine::{Argument, Machine};

/// Prints the output of `debug_print` on standard error. What can't be written there is lost: `eprintln!` would panic.
pub fn print(log: &[String]) {
    let mut to = std::io::stderr().lock();
    for line in log {
        let _ = writeln!(to, "{line}");
    }
}
