//! Operations on arrays: methods of [`Array`](crate::Array) and functions, with the meaning of `jax.numpy` where
//! nothing else is said.
//!
//! Every operation appends to a graph where an operand is traced, and runs at once elsewhere ([`jit`](crate::jit())).
//! None returns a `Result`, so that operators can be used: a mistake makes a *poisoned* array, which every later
//! operation passes on, and which functions that read elements return as an error, with the line of the mistake.
//!
//! Operands of elementwise operations broadcast as in NumPy, and get one element type by [`promote_types`]. Where
//! `jax.numpy` has optional arguments, the functions here take what is used most; the table says so.
#![doc = include_str!("surface.md")]

mod activation;
mod arrange;
mod attention;
mod axes;
mod convolution;
mod create;
mod cumulative;
mod dtype_promotion;
mod dynamic;
mod einsum;
mod elementwise_broadcast;
mod erf_inv;
mod formula;
mod gather_windows;
mod incomplete;
mod index;
mod indexed_update;
mod integers;
mod join;
mod logic;
mod mask;
mod math;
mod matmul;
mod nn;
mod pool;
mod quantile;
mod reduce;
mod search;
mod sets;
mod shape;
mod sort;
mod special;
mod take;
mod tensordot;
#[cfg(test)]
mod tests;
mod triangle;

pub use attention::{Attention, dot_product_attention};
pub use axes::{Axes, ScanAxis, accumulate, keep, reverse};
pub use convolution::{Convolution, ConvolveMode, conv, conv_general_dilated, conv_transpose};
pub use create::{
    Indexing, Nested, arange, array, bartlett, blackman, broadcast_shape, full, geomspace, hamming, hanning, indices,
    linspace, logspace, meshgrid, ones, zeros,
};
pub use dtype_promotion::promote_types;
pub use einsum::einsum;
pub use elementwise_broadcast::{Operand, select};
pub(crate) use erf_inv::erf_inv;
pub use gather_windows::IndexMode;
pub(crate) use incomplete::random_gamma_grad;
pub use index::{Index, Item, between, by};
pub use indexed_update::IndexedElements;
pub use join::{Sections, broadcast_arrays, column_stack, concatenate, dstack, hstack, stack, vstack};
pub use pallas_ir::ScalarOp;
pub use pool::{Padding, Windows};
pub use quantile::QuantileMethod;
pub use search::Side;
pub use sort::{lexsort, sort_together};
pub use take::{choose, select_first};
pub use triangle::{eye, identity, tri};
