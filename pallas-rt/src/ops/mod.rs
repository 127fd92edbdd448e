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
mod at;
mod attention;
mod axes;
mod contract;
mod convolution;
mod create;
mod dynamic;
mod einsum;
mod elementwise;
mod erf_inv;
mod formula;
mod incomplete;
mod index;
mod integers;
mod join;
mod logic;
mod mask;
mod math;
mod nn;
mod places;
mod pool;
mod product;
mod promote;
mod quantile;
mod reduce;
mod running;
mod search;
mod sets;
mod shape;
mod sort;
mod special;
mod take;
#[cfg(test)]
mod tests;
mod triangle;

pub use at::Elements;
pub use attention::{Attention, dot_product_attention};
pub use axes::{Along, Axes, accumulate, keep, reverse};
pub use convolution::{Convolution, Overlap, conv, conv_general_dilated, conv_transpose};
pub use create::{
    Indexing, Nested, arange, array, bartlett, blackman, broadcast_shape, full, geomspace, hamming, hanning, indices,
    linspace, logspace, meshgrid, ones, zeros,
};
pub use einsum::einsum;
pub use elementwise::{Operand, select};
pub(crate) use erf_inv::erf_inv;
pub(crate) use incomplete::random_gamma_grad;
pub use index::{Index, Item, between, by};
pub use join::{Sections, broadcast_arrays, column_stack, concatenate, dstack, hstack, stack, vstack};
pub use pallas_ir::ScalarOp;
pub use places::Mode;
pub use pool::{Padding, Windows};
pub use promote::promote_types;
pub use quantile::Between;
pub use search::Side;
pub use sort::{lexsort, sort_together};
pub use take::{choose, select_first};
pub use triangle::{eye, identity, tri};
