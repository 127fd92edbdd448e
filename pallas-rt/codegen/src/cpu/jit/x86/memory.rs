//! The memory that machine code lies in.
use super::super::form::{Place, Rows};
use memmap2::{Mmap, MmapMut};

/// Machine code of chains.
#[derive(Debug)]
pub(crate) struct Code {
    memory: Mmap,
}

impl Code {
    /// A function over rows; `None` where the system gives no memory to run.
    pub(super) fn new(bytes: &[u8]) -> Option<Code> {
        let mut memory = MmapMut::map_anon(bytes.len()).ok()?;
        memory.copy_from_slice(bytes);
        Some(Code { memory: memory.make_exec().ok()? })
    }
    /// Runs the code over rows.
    ///
    /// # Safety
    /// Every place is one of the chain in the form that the code was made for; operands overlap as the chain says.
    pub(in crate::cpu) unsafe fn run(&self, rows: Rows<'_>) {
        // SAFETY: the memory holds a function of this signature, written by `compile`.
        let function: extern "sysv64" fn(*const Place, usize, usize) =
            unsafe { std::mem::transmute(self.memory.as_ptr()) };
        function(rows.places.as_ptr(), rows.from, rows.to);
    }
    /// Runs so many turns of the code of a loop, which moves the places.
    ///
    /// # Safety
    /// Every place is one of the pieces that the code was made for, in each of these turns; operands overlap as chains say.
    pub(in crate::cpu) unsafe fn run_turns(&self, places: &mut [Place], turns: usize) {
        // SAFETY: the memory holds a function of this signature, written by `compile_turns`.
        let function: extern "sysv64" fn(*mut Place, usize, usize) =
            unsafe { std::mem::transmute(self.memory.as_ptr()) };
        function(places.as_mut_ptr(), 0, turns);
    }
}
