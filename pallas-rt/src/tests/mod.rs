//! Tests of pallas-device that take arrays and kernels.
#[cfg(feature = "graph")]
mod collectives;
#[cfg(feature = "gpu")]
#[allow(unsafe_code, reason = "jobs trust their caller with the shader")]
mod gpu;
mod source;
mod timeline;
