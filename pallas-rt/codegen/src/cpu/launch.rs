//! A launch: what it is given, and what becomes of it.
use crate::interp::Fault;
use pallas_ir::Literal;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// A launch: sizes by `DimId`, extents of the (parallel) grid and of sequential axes, memory and parameters by `OperandId`.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Size of each dimension.
    pub sizes: &'a [i64],
    /// Programs along each axis.
    pub grid: &'a [i64],
    /// Steps along each sequential axis of the traced grid.
    pub steps: &'a [i64],
    /// Memory of inputs, prefetches and outputs.
    pub memory: &'a [Memory<'a>],
    /// Values of parameters.
    pub params: &'a [Option<Literal>],
}

/// Below this many elementary operations a launch runs on the caller's thread.
pub const INLINE_WORK: usize = 40_000;

/// An operand's memory during a launch.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// First element; null for operands without memory.
    pub(crate) ptr: *mut u8,
    /// The array's extents.
    pub(crate) shape: &'a [usize],
}

impl<'a> Memory<'a> {
    /// The memory of an array of this shape; a null address for an operand without memory.
    ///
    /// # Safety
    /// Until the launch ends the memory is as [`Executable::run`](super::Executable::run) asks.
    pub unsafe fn new(ptr: *mut u8, shape: &'a [usize]) -> Memory<'a> {
        Memory { ptr, shape }
    }
}

// SAFETY: programs of a launch share the memory of its operands; inputs are only read, and programs that run at the
// same time touch different elements of memory that is written ([`apart`](super::apart)).
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

/// The reason why a launch ended early.
#[derive(Debug)]
pub enum Stop {
    /// The kernel is wrong.
    Fault(Fault),
    /// The system cannot provide this many bytes of memory for tiles.
    Memory(usize),
}

/// The outcome of the programs of a launch.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The first program that failed so far. Later ones need not run.
    failed: AtomicI64,
    fault: Mutex<Option<Stop>>,
    /// Lines that programs printed.
    log: Mutex<Vec<(i64, Vec<String>)>>,
}

impl Outcome {
    pub(super) fn new() -> Outcome {
        Outcome { failed: AtomicI64::new(i64::MAX), fault: Mutex::default(), log: Mutex::default() }
    }
    /// True if the result of a program still matters.
    pub(super) fn wants(&self, program: i64) -> bool {
        program < self.failed.load(Ordering::Relaxed)
    }
    pub(super) fn printed(&self, program: i64, lines: Vec<String>) {
        self.log.lock().push((program, lines));
    }
    pub(super) fn failed(&self, program: i64, stop: Stop) {
        let mut first = self.fault.lock();
        if self.failed.fetch_min(program, Ordering::Relaxed) > program {
            *first = Some(stop);
        }
    }
    /// All lines in the order of programs, or the first fault.
    pub(super) fn finish(self) -> Result<Vec<String>, Stop> {
        if let Some(fault) = self.fault.into_inner() {
            return Err(fault);
        }
        let mut log = self.log.into_inner();
        log.sort_by_key(|(p, _)| *p);
        Ok(log.into_iter().flat_map(|(_, lines)| lines).collect())
    }
}
