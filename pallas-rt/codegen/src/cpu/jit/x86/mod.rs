//! Machine code for x86-64.
//!
//! [`vector`], [`math`] and [`integer`] write operations, [`types`] conversions of element types, [`assembler`] encodes
//! instructions. [`chain_links`] writes the links of a chain, [`rotations`] finds rotations among them, [`row_loops`]
//! writes the loops around them with the state in [`compiler`] and the registers and stack of [`frame`]. [`product`]
//! writes small products, [`loop_code`] loops whose iterations are chains and products; [`executable_memory`] holds the
//! code.
mod assembler;
mod chain_links;
mod compiler;
#[allow(unsafe_code, reason = "runs machine code")]
mod executable_memory;
mod frame;
mod integer;
mod loop_code;
mod math;
mod product;
mod rotations;
mod row_loops;
#[cfg(test)]
#[allow(unsafe_code, reason = "runs machine code")]
mod tests;
mod types;
mod vector;

pub(in super::super) use executable_memory::MachineCode;

use super::super::plan::step::ElementwiseChain;
use super::super::strips::has_avx2;
use super::operand_layouts::{CodeSpecialization, LoopPart};
use vector::CpuFeatures;

/// Returns true if this processor runs the code that is written here, and `PALLAS_CPU_NATIVE=0` is not set.
fn can_run_jit_code() -> bool {
    // Tests compare with it, and it avoids the code where a mistake in it is suspected.
    let off = std::env::var_os("PALLAS_CPU_NATIVE").is_some_and(|v| v == "0");
    !off && has_avx2() && is_x86_feature_detected!("f16c")
}

/// Compiles the code for these chains, with wide vectors if a row has enough elements for them. Returns `None` if this
/// processor cannot run such code, or if an operation has no instructions here.
pub(super) fn compile_chains(chains: &[ElementwiseChain], forms: &[CodeSpecialization]) -> Option<MachineCode> {
    let here = CpuFeatures::detect();
    // A few elements take one vector, whatever its width.
    let wide = here.wide
        && forms.iter().any(|form| form.wide)
        && forms.iter().all(|form| form.wide || form.unrolled_columns.is_some());
    can_run_jit_code().then(|| row_loops::compile(chains, forms, CpuFeatures { wide, ..here })).flatten()
}

/// Compiles the code for iterations of a loop, without wide vectors. Returns `None` if this processor cannot run such
/// code, or if the parts of the loop cannot be compiled.
pub(super) fn compile_loop(chains: &[&ElementwiseChain], parts: &[LoopPart]) -> Option<MachineCode> {
    can_run_jit_code()
        .then(|| loop_code::compile(chains, parts, CpuFeatures { wide: false, ..CpuFeatures::detect() }))
        .flatten()
}
