//! From a graph to another: a file each. The rules of single operations are pallas-ir's.
mod vjp;

pub use vjp::vjp;
