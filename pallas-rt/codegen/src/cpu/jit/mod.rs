//! Machine code for chains of elementwise operations: values stay in registers between a load and a store, or a fold.
//!
//! ```text
//! for row in from..to
//!     for each chain of a sweep                    addresses of this row; one-element rows go to the stack
//!         for each 8 U columns, each 8, the rest   all links on 8 elements; outputs stored, folds accumulated
//!         folds of the row -> memory
//! ```
//!
//! Vectors have 16 elements where rows are long and the processor has AVX-512.
//!
//! [`x86`] writes the code, for the layouts in [`operand_layouts`]; [`uncompiled_chains`] reports chains without code.
//! Code is compiled when a chain first runs, for the layout that its operands have then. A chain without code (on other
//! processors, or with other operations) runs strip by strip.
//!
//! - Elementwise chains and the folds of their rows run as machine code where the processor has AVX2 and every
//!   operation has instructions here; otherwise they run strip by strip, through functions of the operation table.
//! - Vectors have 16 elements where rows have as many and the processor has AVX-512 with VBMI2 (older ones slow down
//!   for such vectors), 8 otherwise. The order of a fold's sums follows from its shape, not from what shares its
//!   kernel. So code that waits for memory reads wide vectors in halves, which arrive sooner, instead of narrow
//!   vectors. Both widths give the same bits, but for the order of sums, and for subnormal numbers: machine code sets
//!   the processor to flush them to zero while it runs, and restores its control word (Rust code may not run under
//!   another).
//! - `ExplainedKernel::chains_without_code` says which chains have no code, and why; `tests/product/native.rs` lists
//!   those of shipped kernels.
//! - The reason for an assembler of its own, with some fifty instruction forms: strips reach half the speed of a fused
//!   loop at best (layer norm 4096x1024: 1.6 ms against 0.53), Cranelift has no 256-bit vectors, and LLVM is 100 times
//!   the size of this crate.
//! - Rows of a strided block form groups, each with an address of its own. A fold of rows and of axes outside of them
//!   begins with the rows (`cpu/plan/folds`). A store does not end a chain: what follows it in the same shape is
//!   computed while the stored value is in a register.
//! - A loop in a kernel whose iterations are chains and products of a few elements, such as the steps of a scan, is
//!   one function (`cpu/plan/loop_compilation`, `cpu/run/compiled_loops`, `cpu/jit/x86/loop_code`): all iterations but
//!   the first and the last, if their positions move by the same distance each time and no branch is taken in them.
//! - Short rows that are adjacent in memory are processed as one row (`cpu/run/merged_rows`): an operand that has one
//!   element for each row, or one row for all, is copied to a strip first, and folds of columns have a partial result
//!   for each row of the strip.
mod operand_layouts;
mod uncompiled_chains;
#[cfg(not(target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "as where there is code")]
mod unsupported_arch;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(super) use machine::MachineCode;
pub(super) use operand_layouts::{CodeCall, CodeSpecialization, LoopPart, LoopPartKind, OperandAddress, SmallProduct};
pub(super) use uncompiled_chains::report_missing_code;

use super::plan::step::ElementwiseChain;
use machine::{compile_chains, compile_loop};
use std::sync::OnceLock;
#[cfg(not(target_arch = "x86_64"))]
use unsupported_arch as machine;
#[cfg(target_arch = "x86_64")]
use x86 as machine;

/// A cache of the machine code of chains, or of a loop, with an entry for each of the first four combinations of
/// operand layouts in which they ran.
#[derive(Debug)]
pub(super) struct CodeCache<F = CodeSpecialization>([OnceLock<CachedCode<F>>; 4]);

/// An entry of a [`CodeCache`]: the layout of each chain (or part of a loop), and the code for these layouts; `None` if
/// it cannot be compiled.
type CachedCode<F> = (Box<[F]>, Option<MachineCode>);

impl<F> Default for CodeCache<F> {
    fn default() -> Self {
        CodeCache(Default::default())
    }
}

impl<F: Clone + PartialEq> CodeCache<F> {
    /// Returns the code for these `layouts`, compiled at their first use; `None` if it cannot be compiled, or if four
    /// other combinations of layouts came first.
    fn get_or_compile(&self, layouts: &[F], compile: impl Fn() -> Option<MachineCode>) -> Option<&MachineCode> {
        let mut met = self.0.iter().map(|slot| slot.get_or_init(|| (layouts.into(), compile())));
        met.find(|met| *met.0 == *layouts)?.1.as_ref()
    }
}

impl CodeCache {
    /// Returns the code of these chains, each compiled for the operand layout at the same index; `None` if it cannot be
    /// compiled or the cache is full.
    pub(super) fn get_chain_code(
        &self,
        chains: &[ElementwiseChain],
        layouts: &[CodeSpecialization],
    ) -> Option<&MachineCode> {
        self.get_or_compile(layouts, || compile_chains(chains, layouts))
    }
}

impl CodeCache<LoopPart> {
    /// Returns the code for iterations of a loop that consists of these parts, which refer to `chains` by index; `None`
    /// if it cannot be compiled or the cache is full.
    pub(super) fn get_loop_code(&self, chains: &[&ElementwiseChain], parts: &[LoopPart]) -> Option<&MachineCode> {
        self.get_or_compile(parts, || compile_loop(chains, parts))
    }
}
