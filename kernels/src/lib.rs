//! Kernels that are ready to call, a file each: formula, kernel, reference, tests. The [`guide`] says which one to use.
//!
//! The functions named after the operation choose block sizes by the device's [`Target`](pallas_rt::Target) and the
//! kernel by element type; the `_blocks` kernels that they call are public, for callers who choose their own.
//!
//! Those functions are `#[inline]`: a crate compiles the kernels that it calls, for every element type and block size,
//! and no others.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout)]
mod argument_errors;
pub mod attention_options;
pub mod attention_scores;
mod block_sizes;
#[cfg(feature = "graph")]
mod composed_ops;
pub mod cross_entropy;
pub mod cross_entropy_resident;
mod cross_entropy_rows;
pub mod decode_attention;
mod dtype_dispatch;
pub mod element;
pub mod embedding;
pub mod flash_attention;
pub mod flash_attention_backward;
pub mod flash_attention_bias;
pub mod flash_attention_resident;
pub mod flash_attention_whole;
pub mod gated;
pub mod guide;
mod mask_coverage;
pub mod matmul;
pub mod norm;
pub mod norm_backward;
mod online_softmax;
pub mod paged_attention;
pub mod paged_batch;
pub mod paged_cache;
pub mod quantized_matmul;
pub mod rotary;
mod row_blocks;
pub mod softmax;
pub mod softmax_backward;
pub mod splash_attention;
pub mod splash_mask;
