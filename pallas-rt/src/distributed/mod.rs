//! Meshes over several processes, and programs that differ from device to device.
//!
//! - `job`: the processes of a job; `device_program`: a program that calls collectives itself; `check`: the self-check
//!   of a mesh;
//! - `metric`: numbers that differ from process to process, and reduced ones with the receipts of their collectives.
mod check;
mod device_program;
mod job;
mod metric;
#[cfg(test)]
mod tests;

pub use check::{SelfCheck, self_check};
pub use device_program::{Member, StartedCollective, run};
pub use job::{Distributed, initialize};
pub use metric::{Local, Metric, Receipt, metric};
