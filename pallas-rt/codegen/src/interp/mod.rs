//! The strict interpreter, which defines the meaning of a kernel and reports every fault.
//!
//! [`datum`] has typed elements with poison; [`eval`] evaluates pure structural operations, [`scalar_eval`] scalar
//! ones, [`sort`] sorts; [`undefined`] describes where poison comes from; [`value_faults`] finds overflow and NaN;
//! [`machine`] is the memory; [`control_checks`] checks values that control something; [`race_detector`] finds races;
//! [`walk`] interprets the tile IR. Eager execution of a kernel's Rust body uses the same machine through
//! [`walk::run_op`].
mod control_checks;
pub mod datum;
pub mod eval;
mod fault;
mod gather_scatter_eval;
mod load_counts;
pub(crate) mod machine;
mod race_detector;
mod scalar_eval;
mod sort;
mod undefined;
mod value_faults;
pub mod walk;

use std::io::Write;

pub use datum::Data;
pub use datum::Datum;
pub use fault::Fault;
pub use load_counts::{LoadCounts, count_loads};
pub use machine::{Argument, Machine};

/// Prints the output of `debug_print` on standard error. Errors of writing are ignored, where `eprintln!` would panic.
pub fn print_debug_lines(log: &[String]) {
    let mut to = std::io::stderr().lock();
    for line in log {
        let _ = writeln!(to, "{line}");
    }
}
