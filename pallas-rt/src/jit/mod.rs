//! Functions of arrays, compiled as a whole: `jit`, and transformations that take a function and give one.
//!
//! ```text
//! f --trace--> Graph --value_and_grad--> Graph --simplify, fuse--> Plan --program--> launches
//! ```
//!
//! - `trace`: the graphs that are being traced, and the operations on arrays that append to them;
//! - `function`: functions of up to eight trees;
//! - `compiled`: `jit`, its cache and counters;
//! - `gradient`: reverse mode; `linear`: tangents, and functions of tangents and cotangents;
//! - `jacobian`: all derivatives of arrays by arrays;
//! - `vmap`: one call for many arguments;
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
mod jacobian;
mod kernel;
mod linear;
mod program;
#[cfg(test)]
mod tests;
mod trace;
mod vmap;

pub use compiled::jit;
pub use control::{Scan, cond, fori_loop, scan, switch, while_loop};
pub(crate) use custom::{Stated, StatedBackward};
pub use custom::{checkpoint, custom_vjp};
pub use function::{Function, Outcome};
pub use gradient::{First, grad, value_and_grad, value_and_grad_aux};
#[cfg(test)]
pub(crate) use inspect::kernels;
pub use inspect::make_jaxpr;
pub use jacobian::{hessian, jacfwd, jacrev};
pub(crate) use kernel::kernel_call;
pub use linear::{Jvp, LinearMap, jvp, linearize, vjp};
pub(crate) use trace::{apply, is_tracing, make};
pub use vmap::{vmap, vmap_axes};
