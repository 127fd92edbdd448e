//! One way in for every launch: a kernel with its numbers and arrays goes in, outputs come out.
//!
//! Calls of `#[kernel]` functions come here from `launch`. A kernel made at run time by [`Builder`](pallas_ir::Builder)
//! comes here by itself:
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
//! - `compiled`: a kernel and its forms on each kind of device;
//! - `donate`: outputs in the memory of donated inputs;
//! - `run`: one launch;
//! - `prepared`: launches that repeat with equal numbers.
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
