//! The description of a launch, and its outcome.
use crate::interp::Fault;
use pallas_ir::Literal;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// A launch of a kernel; slices are indexed by dimension, grid axis or operand.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Size of each dimension, by `DimId`.
    pub sizes: &'a [i64],
    /// Number of programs along each axis of the (parallel) grid.
    pub grid: &'a [i64],
    /// Number of steps along each sequential axis of the traced grid.
    pub steps: &'a [i64],
    /// Memory of inputs, prefetches and outputs, by `OperandId`.
    pub memory: &'a [LaunchMemory<'a>],
    /// Values of parameters, by `OperandId`.
    pub params: &'a [Option<Literal>],
}

/// An operand's memory during a launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchMemory<'a> {
    /// Address of the first element; null for operands without memory.
    pub(crate) ptr: *mut u8,
    /// The array's extents.
    pub(crate) shape: &'a [usize],
}

impl<'a> LaunchMemory<'a> {
    /// Describes the memory of an array of this shape; `ptr` is null for an operand without memory.
    ///
    /// # Safety
    /// Until the launch ends, the memory fulfils the conditions of [`Executable::run`](super::Executable::run).
    pub unsafe fn new(ptr: *mut u8, shape: &'a [usize]) -> LaunchMemory<'a> {
        LaunchMemory { ptr, shape }
    }
}

// SAFETY: programs of a launch share the memory of its operands; inputs are only read, and programs that run at the
// same time touch different elements of memory that is written
// ([`concurrent_programs`](super::concurrent_programs)).
unsafe impl Send for LaunchMemory<'_> {}
// SAFETY: as above.
unsafe impl Sync for LaunchMemory<'_> {}

/// The reason why a launch ended early.
#[derive(Debug)]
pub enum LaunchError {
    /// The kernel has a mistake, such as a failed assertion or a race.
    Fault(Fault),
    /// The system cannot provide this many bytes of memory for tiles.
    OutOfMemory(usize),
}

/// Lines that the programs of a launch have printed, and the first failure.
#[derive(Debug)]
pub(super) struct LaunchOutcome {
    /// Number of the first program that failed so far; later ones need not run.
    failed: AtomicI64,
    fault: Mutex<Option<LaunchError>>,
    /// Lines that programs printed, with the program's number.
    log: Mutex<Vec<(i64, Vec<String>)>>,
}

impl LaunchOutcome {
    pub(super) fn new() -> LaunchOutcome {
        LaunchOutcome { failed: AtomicI64::new(i64::MAX), fault: Mutex::default(), log: Mutex::default() }
    }
    /// Returns true if a program with this number still has to run: neither it nor one with a lower number has failed.
    pub(super) fn should_run(&self, program: i64) -> bool {
        program < self.failed.load(Ordering::Relaxed)
    }
    /// Adds lines that a program printed.
    pub(super) fn record_printed_lines(&self, program: i64, lines: Vec<String>) {
        self.log.lock().push((program, lines));
    }
    /// Records the failure of a program, if no earlier program failed.
    pub(super) fn record_failure(&self, program: i64, error: LaunchError) {
        let mut first = self.fault.lock();
        if self.failed.fetch_min(program, Ordering::Relaxed) > program {
            *first = Some(error);
        }
    }
    /// Returns all printed lines in the order of programs, or the first failure.
    pub(super) fn finish(self) -> Result<Vec<String>, LaunchError> {
        if let Some(fault) = self.fault.into_inner() {
            return Err(fault);
        }
        let mut log = self.log.into_inner();
        log.sort_by_key(|(p, _)| *p);
        Ok(log.into_iter().flat_map(|(_, lines)| lines).collect())
    }
}
