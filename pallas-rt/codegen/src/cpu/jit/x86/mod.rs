//! Machine code for x86-64.
//!
//! [`vector`], [`math`] and [`integer`] know operations, [`types`] element types, [`asm`] their encoding, [`links`] the order of
//! a chain and [`rotations`] in it, [`code`] the loops around it with the state of a [`compiler`] in a [`frame`], [`product`]
//! small products, [`turns`] loops whose turns are chains and products, [`memory`] where code lies.
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

fn has_code() -> bool {
    // What tests compare with, and a way around a suspected mistake.
    let off = std::env::var_os("PALLAS_CPU_NATIVE").is_some_and(|v| v == "0");
    !off && has_avx2() && is_x86_feature_detected!("f16c")
}

pub(super) fn compile(chains: &[Chain], forms: &[Form]) -> Option<Code> {
    let here = Beyond::here();
    // A few elements take one vector of any width.
    let wide =
        here.wide && forms.iter().any(|form| form.wide) && forms.iter().all(|form| form.wide || form.few.is_some());
    has_code().then(|| code::compile(chains, forms, Beyond { wide, ..here })).flatten()
}

pub(super) fn compile_turns(chains: &[&Chain], pieces: &[Piece]) -> Option<Code> {
    has_code().then(|| turns::compile(chains, pieces, Beyond { wide: false, ..Beyond::here() })).flatten()
}
