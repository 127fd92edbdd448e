//! Stands for machine code on processors for which there is none.
use super::super::plan::step::ElementwiseChain;
use super::operand_layouts::{CodeCall, CodeSpecialization, LoopPart, OperandAddress};

/// Machine code, of which no value exists on this processor.
#[derive(Debug)]
pub(crate) enum MachineCode {}

impl MachineCode {
    /// Runs the code over rows of chains.
    ///
    /// # Safety
    /// None: no value exists to call it with.
    pub(in super::super) unsafe fn run(&self, _: CodeCall<'_>) {
        match *self {}
    }
    /// Runs iterations of the code of a loop.
    ///
    /// # Safety
    /// None: no value exists to call it with.
    pub(in super::super) unsafe fn run_iterations(&self, _: &mut [OperandAddress], _: usize) {
        match *self {}
    }
}

pub(super) fn compile_chains(_: &[ElementwiseChain], _: &[CodeSpecialization]) -> Option<MachineCode> {
    None
}
pub(super) fn compile_loop(_: &[&ElementwiseChain], _: &[LoopPart]) -> Option<MachineCode> {
    None
}
