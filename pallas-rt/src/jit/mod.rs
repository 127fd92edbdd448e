//! Functions of arrays, compiled as a whole: `jit`, and transformations that take a function and give one.
//!
//! ```text
//! f --trace--> Graph --value_and_grad--> Graph --simplify, fuse--> Plan --program--> launches
//! ```
//!
//! - `trace`: the graphs that are being traced, and the operations on arrays that append to them;
//! - `function`: functions of up to eight trees;
//! - `compiled`: `jit`, its cache and counters;
//! - `gradient`: reverse mode;
//! - `control`: loops and branches;
//! - `kernel`: kernels as operations; `custom`: functions with a derivative of their own;
//! - `inspect`: functions as text;
//! - `program`: a plan with its memory, ready to run.
//!
//! Only `trace` reads a thread-local.
mod compiled;
mod control;
mod custom;
mod function;
mod gradient;
mod inspect;
mod kernel;
mod program;
#[cfg(test)]
mod tests;
mod trace;

pub use compiled::jit;
pub use control::{Scan, cond, fori_loop, scan, switch, while_loop};
pub(crate) use custom::{Stated, StatedBackward};
pub use custom::{checkpoint, custom_vjp};
pub use function::{Function, Outcome};
pub use gradient::{First, grad, value_and_grad};
#[cfg(test)]
pub(crate) use inspect::kernels;
pub use inspect::make_jaxpr;
pub(crate) use kernel::kernel_call;
pub(crate) use trace::{apply, is_tracing, make};
