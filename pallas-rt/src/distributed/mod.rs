//! Meshes over several processes, and programs that differ from device to device.
//!
//! - `job`: the processes of a job; `member`: a program that calls collectives itself; `check`: the self-check of a
//!   mesh;
//! - `metric`: numbers that differ from process to process, and reduced ones with the receipts of their collectives.
mod check;
mod job;
mod member;
mod metric;
#[cfg(test)]
mod tests;

pub use check::{SelfCheck, self_check};
pub use job::{Distributed, initialize};
pub use member::{Begun, Member, run};
pub use metric::{Local, Metric, Receipt, metric};
