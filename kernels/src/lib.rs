//! Kernels ready to call.
pub mod flash_attention;
