//! Launches of kernels on arrays, through one interface for all devices.
//!
//! Calls of `#[kernel]` functions use this module through `launch`. A kernel made at run time by
//! [`Builder`](pallas_ir::Builder), or from text, is launched directly:
//!
//! ```
//! use pallas_rt::exec::{Argument, Compiled};
//! use pallas_rt::ir::{Builder, Kernel};
//! use pallas_rt::Client;
//!
//! let kernel: Kernel = "
//! kernel double {
//!   dim N
//!   grid cdiv(N, 8) parallel
//!   in x: f32[N] block [8]
//!   out out: f32[N] block [8] empty 0.0
//!   map @x (%0: i32[]) { yield %0 }
//!   map @out (%1: i32[]) { yield %1 }
//!   body {
//!     %2: f32[8] = load @x block[0:8]
//!     %3: f32[8] = add %2, %2
//!     store @out block[0:8] %3
//!   }
//! }".parse().expect("tile IR");
//! let double = Compiled::new(kernel)?;
//! let client = Client::cpu();
//! let x = client.array(&[1.0f32, 2.0, 3.0], &[3])?;
//! let outputs = double.launch(&client, &[3], [Argument::from(&x)])?;
//! assert_eq!(outputs[0].to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), pallas_rt::Error>(())
//! ```
//!
//! - `compiled`: a kernel and its compiled form for each kind of device;
//! - `donate`: outputs in the memory of donated inputs;
//! - `run`: one launch;
//! - `prepared`: launches that repeat with equal geometry.
mod compiled;
mod donate;
#[allow(unsafe_code, reason = "launches of arrays that were checked")]
mod prepared;
#[allow(unsafe_code, reason = "launches of arrays that were checked")]
mod run;
#[cfg(test)]
#[allow(unsafe_code, reason = "an allocator that counts")]
mod tests;

pub(crate) use compiled::Forms;
pub use compiled::{Argument, Compiled};
pub use prepared::Prepared;
pub(crate) use prepared::owned;
pub(crate) use run::{Arrays, Call, interpret, run};
