//! The graph of array operations: what `jit` traces, `grad` transforms and a device runs as a few tile kernels.
//!
//! Read [`graph`] first: its page is the grammar. Data flows in one direction:
//!
//! ```text
//! traced function --> Graph --transform--> Graph --simplify--> Graph --fuse--> Plan: kernels in an order, and their
//!                                                                              memory
//! ```
//!
//! - [`graph`]: the graph; [`build`](Graph::push) appends to it, `display`, `jaxpr` and `stablehlo` print it,
//!   [`verify`] checks it, [`text_format`] prints and reads it;
//! - [`call`]: loops and branches, which call other graphs (`ops/scan/unroll`: several steps in one), and functions of
//!   the host (`ops/pure_callback`); [`Dynamic`]: windows at positions that are computed at run time;
//! - [`ops`]: operations that have a file each;
//! - [`transform`]: from a graph to its derivatives, or to its results for a batch;
//! - [`bounded`]: from graphs of a function for several sizes to one for all sizes up to a bound;
//! - [`mesh`]: devices, and what a graph says about the sharding of arrays among them; [`shard`]: from a graph for one
//!   device to one program for all devices of a mesh;
//! - [`simplify`]: from a graph to an equal one with fewer equations;
//! - [`fuse`]: which equations share a kernel, the kernels, their order, and where values are stored.
//!
//! The crate depends on pallas-ir and pallas-mesh alone, so no part of it can ask for a device.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout)]
pub mod bounded;
mod build;
pub mod call;
mod collective;
mod dead_code;
mod display;
mod dynamic;
pub mod fuse;
pub mod graph;
mod identity;
mod inline;
mod jaxpr;
pub mod manual;
pub mod mesh;
mod ops;
mod refusal;
pub mod shard;
pub mod simplify;
mod stablehlo;
mod stage_watch;
pub mod text_format;
pub mod transform;
mod verify;

pub use build::check_arrays_indexable;
pub use dynamic::{Dynamic, DynamicSlice, DynamicUpdateSlice, WindowAccess};
pub use graph::{Equation, Graph, Op, Var};
pub use identity::{Identity, OptimizationBarrier, StopGradient};
pub use stage_watch::{StageObserver, StageOutput};
pub use verify::verify;
