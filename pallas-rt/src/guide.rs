//! The guide: from a first kernel to reading what is compiled. Its code runs as tests. When to use which of the kernels
//! that are ready to call is in the guide of pallas-kernels, `pallas_kernels::guide`.
//!
//! | page | what |
//! |---|---|
//! | [`from_pallas`], [`from_triton`] | the words of Pallas, Triton and CUDA beside those of this crate |
//! | [`first_kernel`] | blocks, the grid, what happens at a call, Rust as the meta-language |
//! | [`index_maps`] | which block a program sees; edges; windows that overlap |
//! | [`control_flow`] | `if`, `for` and `while` over host numbers and over scalars |
//! | [`scratch`] | sequential grid axes, scratch memory, several outputs |
//! | [`prefetch`] | tables that choose blocks, ragged rows |
//! | [`debugging`] | a wrong number: where to look first, and what the strict interpreter finds |
//! | [`tuning`] | block sizes by measurement |
//! | [`faster`] | one kernel from slow to near the roofline, step by step |
//! | [`explain`] | reading tile IR, estimates and shaders |
//! | [`devices`] | clients, memory, order, failures, what GPUs do with NaN |
//! | [`numerics`] | types in which folds accumulate, ties, division by zero, conversions, NaN |
//! | [`faq`] | short answers |
//! | [`glossary`] | the word for each idea, and where it comes from |
//!
//! Functions of arrays (feature `graph`):
//!
//! | page | what |
//! |---|---|
//! | `arrays` | from NumPy and JAX to `Array` |
//! | `functions` | `jit`, what is traced and when again |
//! | `derivatives` | gradients, forward mode, Jacobians |
//! | `batches_and_loops` | `vmap`, `scan`, `while_loop`, `cond` |
//! | `kernels_in_functions` | kernels as operations, and their gradients |
//! | `compiled` | reading what was compiled: texts, plans, misses, timelines |
//! | `sharding` | functions on a mesh of devices: what users declare, what propagates, what is exchanged |
//! | `pictures` | shardings as tables, SVG and pages |
//! | `planning` | exchanges, memory and time on meshes that are not there |
//! | `startup` | what a process is started with, the cache on disk, compile time |
//! | `distributed` | several processes and machines, programs that differ from device to device, metrics |
//! | `stablehlo` | the operations of StableHLO: what is printed as each, and what is excluded |
//!
//! `random` has a page on random numbers.

/// Declares the pages: an empty module with the page of its name in `pallas-rt/guide` as its text.
macro_rules! pages {
    ($($page:ident: $title:literal,)*) => {$(
        #[doc = concat!($title, "\n\n", include_str!(concat!("../guide/", stringify!($page), ".md")))]
        pub mod $page {}
    )*};
}
pages! {
    from_pallas: "Coming from Pallas.",
    from_triton: "From Triton or CUDA.",
    first_kernel: "A first kernel.",
    index_maps: "Index maps and edges.",
    control_flow: "Control flow.",
    scratch: "Scratch and sequential grids.",
    prefetch: "Scalar prefetch.",
    debugging: "Debug a wrong number.",
    tuning: "Block sizes by measurement.",
    faster: "Make it faster.",
    explain: "Reading `explain`.",
    devices: "Devices, memory and failures.",
    numerics: "Numerics.",
    faq: "Questions and answers.",
}

#[doc = concat!("Glossary.\n\n", include_str!("../../WORDS.md"))]
pub mod glossary {}

#[cfg(feature = "graph")]
pages! {
    arrays: "From NumPy and JAX to arrays.",
    functions: "Functions of arrays and `jit`.",
    derivatives: "Gradients and other derivatives.",
    batches_and_loops: "Batches and loops.",
    kernels_in_functions: "Kernels in functions.",
    compiled: "Reading what was compiled.",
    sharding: "Functions on a mesh of devices.",
    pictures: "Pictures of shardings.",
    planning: "Planning for many devices.",
    startup: "Startup and cache.",
    distributed: "Several machines.",
    stablehlo: "Operations of StableHLO.",
}
