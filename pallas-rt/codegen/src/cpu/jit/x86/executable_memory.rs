//! Executable memory that holds machine code.
use super::super::operand_layouts::{CodeCall, OperandAddress};
use memmap2::{Mmap, MmapMut};

/// Machine code of a function over rows of chains, or over iterations of a loop.
#[derive(Debug)]
pub(crate) struct MachineCode {
    memory: Mmap,
}

impl MachineCode {
    /// Copies code to executable memory; returns `None` if the system gives none.
    pub(super) fn new(bytes: &[u8]) -> Option<MachineCode> {
        let mut memory = MmapMut::map_anon(bytes.len()).ok()?;
        memory.copy_from_slice(bytes);
        Some(MachineCode { memory: memory.make_exec().ok()? })
    }
    /// Runs the machine code of chains over the rows from `call.from` to `call.to`.
    ///
    /// # Safety
    /// The places are those of the chains in the forms that the code was compiled for; operands overlap as the chains
    /// say.
    pub(in crate::cpu) unsafe fn run(&self, call: CodeCall<'_>) {
        // SAFETY: the memory holds a function of this signature, written by `compile_chains`.
        let function: extern "sysv64" fn(*const OperandAddress, usize, usize) =
            unsafe { std::mem::transmute(self.memory.as_ptr()) };
        function(call.places.as_ptr(), call.from, call.to);
    }
    /// Runs `iterations` iterations of the code of a compiled loop, which advances its operands' addresses in `places`.
    ///
    /// # Safety
    /// The places are those of the pieces that the code was compiled for, in each iteration; operands overlap as
    /// chains say.
    pub(in crate::cpu) unsafe fn run_iterations(&self, addresses: &mut [OperandAddress], iterations: usize) {
        // SAFETY: the memory holds a function of this signature, written by `compile_loop`.
        let function: extern "sysv64" fn(*mut OperandAddress, usize, usize) =
            unsafe { std::mem::transmute(self.memory.as_ptr()) };
        function(addresses.as_mut_ptr(), 0, iterations);
    }
}
