//! Everything that needs more than one crate: the shipped kernels against float64 references on every device, faults of
//! the strict interpreter, the runtime's promises.
mod accumulated;
mod corpus;
mod disk;
mod early_reads;
#[cfg(feature = "gpu")]
mod emulation;
mod ends;
mod examples;
mod faults;
mod kernels;
#[cfg(feature = "graph")]
mod layouts;
#[cfg(feature = "graph")]
mod looked_up;
mod lost_values;
mod matrices;
mod memory;
mod named;
#[cfg(target_arch = "x86_64")]
mod native;
mod pipeline;
mod reaches;
mod refusals;
mod runtime;
mod safetensors;
mod shaders;
mod special_values;
#[cfg(feature = "graph")]
mod startup;
mod steps;
mod structure;
mod support;
mod tidy;
mod tune;
mod validate;
mod warm;
mod written_again;
