//! Guarded memory for `tests/sanitize.sh` (`--cfg guarded`): every operand and every tile ends at an inaccessible page.
//! Sanitizers do not instrument machine code; here it faults at the first byte past the end.
use super::super::launch::{Launch, LaunchMemory};
use crate::raw;
use pallas_ir::{Kernel, OperandKind};
use std::collections::HashMap;

/// Bytes of a page of memory.
const PAGE_BYTES: usize = 4096;
/// Value of the bytes before an operand, checked at the end: a change shows an access before the start.
const GUARD_BYTE: u8 = 0xa5;

/// Memory in a mapping of its own that ends at an inaccessible page.
pub(super) struct GuardedMemory {
    mapping: *mut u8,
    length: usize,
    pub(super) start: *mut u8,
}

impl GuardedMemory {
    /// Maps memory for `bytes` bytes that end at an inaccessible page.
    pub(super) fn new(bytes: usize) -> GuardedMemory {
        let length = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        // SAFETY: a new mapping; its last page is made inaccessible, and the others are filled.
        unsafe {
            let (access, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let mapping = libc::mmap(std::ptr::null_mut(), length + PAGE_BYTES, access, private, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED, "no memory for {bytes} bytes");
            let mapping = mapping.cast::<u8>();
            assert_eq!(libc::mprotect(mapping.add(length).cast(), PAGE_BYTES, libc::PROT_NONE), 0);
            mapping.write_bytes(GUARD_BYTE, length);
            GuardedMemory { mapping, length, start: mapping.add(length - bytes) }
        }
    }
}

impl Drop for GuardedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by this value; the bytes before the elements are part of it.
        unsafe {
            let before = raw::slice(self.mapping, self.start.offset_from_unsigned(self.mapping));
            let touched = before.iter().rposition(|byte| *byte != GUARD_BYTE);
            libc::munmap(self.mapping.cast(), self.length + PAGE_BYTES);
            assert!(touched.is_none() || std::thread::panicking(), "a byte before an operand or a tile was written");
        }
    }
}

/// Runs a launch on guarded copies of its operands' memory, and copies the outputs back.
pub(in super::super) fn run_guarded<R>(kernel: &Kernel, launch: &Launch<'_>, run: impl FnOnce(&Launch<'_>) -> R) -> R {
    let memory: &[LaunchMemory<'_>] = launch.memory;
    // Operands that share memory share a copy. An empty operand shares none, although it may begin where another one
    // does.
    let mut copies: HashMap<(*mut u8, bool), GuardedMemory> = HashMap::new();
    let bytes = |i: usize| memory[i].shape.iter().product::<usize>() * kernel.operands[i].dtype.bytes();
    let mut guarded = memory.to_vec();
    for (i, own) in guarded.iter_mut().enumerate().filter(|(_, own)| !own.ptr.is_null()) {
        let copy = copies.entry((own.ptr, bytes(i) == 0)).or_insert_with(|| {
            let copy = GuardedMemory::new(bytes(i));
            // SAFETY: both hold the operand's bytes.
            unsafe { copy.start.copy_from_nonoverlapping(own.ptr, bytes(i)) };
            copy
        });
        own.ptr = copy.start;
    }
    let result = run(&Launch { memory: &guarded, ..*launch });
    for (i, operand) in kernel.operands.iter().enumerate() {
        if matches!(operand.kind, OperandKind::Output { .. }) {
            // SAFETY: as above.
            unsafe { memory[i].ptr.copy_from_nonoverlapping(guarded[i].ptr, bytes(i)) };
        }
    }
    result
}
