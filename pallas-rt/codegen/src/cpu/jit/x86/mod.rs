//! Machine code for x86-64.
//!
//! [`vector`], [`math`] and [`integer`] write operations, [`types`] conversions of element types, [`asm`] encodes
//! instructions. [`links`] writes the links of a chain, [`rotations`] finds rotations among them, [`code`] writes the
//! loops around them with the state in [`compiler`] and the registers and stack of [`frame`]. [`product`] writes small
//! products, [`turns`] loops whose iterations are chains and products; [`memory`] holds the code.
mod asm;
mod code;
mod compiler;
mod frame;
mod integer;
mod links;
mod math;
#[allow(unsafe_code, reason = "runs machine code")]
mod memory;
mod product;
mod rotations;
#[cfg(test)]
#[allow(unsafe_code, reason = "runs machine code")]
mod tests;
mod turns;
mod types;
mod vector;

pub(in super::super) use memory::Code;

use super::super::plan::step::Chain;
use super::super::strips::has_avx2;
use super::form::{Form, Piece};
use vector::Beyond;

/// Returns true if this processor runs the code that is written here, and `PALLAS_CPU_NATIVE=0` is not set.
fn has_code() -> bool {
    // Tests compare with it, and it avoids the code where a mistake in it is suspected.
    let off = std::env::var_os("PALLAS_CPU_NATIVE").is_some_and(|v| v == "0");
    !off && has_avx2() && is_x86_feature_detected!("f16c")
}

/// Compiles the code for these chains, with wide vectors if a row has enough elements for them.
pub(super) fn compile(chains: &[Chain], forms: &[Form]) -> Option<Code> {
    let here = Beyond::here();
    // A few elements take one vector, whatever its width.
    let wide =
        here.wide && forms.iter().any(|form| form.wide) && forms.iter().all(|form| form.wide || form.few.is_some());
    has_code().then(|| code::compile(chains, forms, Beyond { wide, ..here })).flatten()
}

/// Compiles the code for iterations of a loop, without wide vectors.
pub(super) fn compile_turns(chains: &[&Chain], pieces: &[Piece]) -> Option<Code> {
    has_code().then(|| turns::compile(chains, pieces, Beyond { wide: false, ..Beyond::here() })).flatten()
}
