//! Operations on arrays: methods of [`Array`], with the meaning of `jax.numpy` where nothing else is said.
//!
//! Every operation appends to a graph where an operand is traced, and runs at once elsewhere ([`jit`](crate::jit)). None
//! returns a `Result`, so that operators can be used: a mistake makes a *poisoned* array, which every later operation
//! passes on, and which functions that read elements return as an error, with the line of the mistake.
//!
//! - `elementwise`: the operation table, with NumPy's broadcasting and the promotion of `promote`;
//! - `axes`: axes as arguments;
//! - `reduce`, `shape`, `product`, `nn`: methods by what they do.
mod axes;
mod elementwise;
mod nn;
mod product;
mod promote;
mod reduce;
mod shape;

pub use axes::{Axes, keep};
pub use elementwise::{Operand, select};
pub use promote::promote_types;
