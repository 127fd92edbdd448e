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
//! [`ir::kernel`](pallas_ir::kernel) is the grammar; `explain` prints kernels in it. The same kernel by `Builder`:
//!
//! ```
//! use pallas_rt::exec::Compiled;
//! use pallas_rt::ir::*;
//!
//! let mut b = Builder::new("double");
//! b.dim("N", None);
//! let extent = Dim::name("N").cdiv(&Dim::from(8usize));
//! b.kernel_mut().grid.push(Axis { extent, semantics: Semantics::Parallel });
//! let [x, out] = [
//!     ("x", OperandKind::Input),
//!     ("out", OperandKind::Output { empty: Literal::new(DType::F32, 0.0), alias: None }),
//! ]
//! .map(|(name, kind)| {
//!     // The index map: program i sees block i.
//!     let i = b.begin(&[Type::scalar(DType::I32)]);
//!     let map = Some(b.end(&i));
//!     let (dims, block) = (vec![Dim::name("N")], vec![BlockDim::Blocked(8)]);
//!     b.operand(Operand { name: name.into(), kind, dtype: DType::F32, dims, block, map, fill: None, buffered: None })
//! });
//! let view = View::whole(&[8]);
//! let load = Op::Load { from: x, view: view.clone(), masked: false };
//! let tile = b.emit(load, &[], Loc::NONE).expect("a whole block");
//! let sum = b.emit(Op::Scalar(ScalarOp::Add), &[tile, tile], Loc::NONE).expect("equal types");
//! b.effect(Op::Store { to: out, view, masked: false }, &[sum], Loc::NONE).expect("a whole block");
//! let double = Compiled::new(b.finish())?;
//! # let client = pallas_rt::Client::cpu();
//! # let x = client.array(&[1.0f32, 2.0, 3.0], &[3])?;
//! # assert_eq!(double.launch(&client, &[3], [x.into()])?[0].to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), pallas_rt::Error>(())
//! ```
//!
//! - `compiled`: a kernel and its compiled form for each kind of device;
//! - `output_aliases`: outputs in the memory of donated inputs;
//! - `run`: one launch;
//! - `prepared`: launches that repeat with equal geometry.
mod compiled;
mod launch_cost;
mod output_aliases;
#[allow(unsafe_code, reason = "launches of arrays that were checked")]
mod prepared;
#[allow(unsafe_code, reason = "launches of arrays that were checked")]
mod run;
#[cfg(test)]
mod tests;

pub use compiled::{Argument, Compiled};
pub(crate) use compiled::{CPU_METHOD_THRESHOLDS, CompiledForms};
pub use launch_cost::Cost;
pub(crate) use launch_cost::{estimate_instruction_costs, estimate_launch_cost};
pub use prepared::Prepared;
pub(crate) use prepared::exclusive_output_buffer;
pub(crate) use run::{LaunchArguments, OperandArraysWithDonation, interpret_kernel, run_kernel};
