//! The CPU backend: native loops over tiles that stay in cache, parallel programs on rayon's threads.
//!
//! ```text
//! lowered kernel --plan--> steps over tiles --run--> parallel programs
//! ```
//!
//! [`plan`] gathers elementwise instructions in chains and decides which tiles need memory of their own, and where it
//! lies in a program's arena; [`shares`] spreads programs over threads, [`run`] executes the steps of one. The work is done by [`gemm`] (products), [`jit`]
//! (elementwise chains in machine code), [`strips`] and [`convert`] (elementwise loops for everything else), [`fold`]
//! (reductions) and [`tile`] (strided memory).
//!
//! No data can make a program touch memory outside of its operands: accesses are clipped to the array when they run.
mod convert;
mod fold;
mod gemm;
mod jit;
mod plan;
mod run;
mod shares;
mod strips;
mod tile;

use crate::interp::Fault;
use pallas_ir::{Kernel, Literal};
use shares::Shares;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// An operand's memory during a launch.
#[derive(Clone, Debug)]
pub struct Memory<'a> {
    /// First element; null for operands without memory.
    pub ptr: *mut u8,
    /// The array's extents.
    pub shape: &'a [usize],
}

// SAFETY: a launch shares its operands' memory among its programs; inputs are only read, and programs write disjoint
// blocks of outputs (the interpreter reports kernels that do not).
unsafe impl Send for Memory<'_> {}
// SAFETY: as above.
unsafe impl Sync for Memory<'_> {}

/// A kernel ready to run on this machine.
pub struct Executable {
    plan: plan::Plan,
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Executable({}, {} bytes a program)", self.plan.kernel.name, self.plan.arena_bytes)
    }
}

/// A launch: sizes by `DimId`, extents of the (parallel) grid, memory and parameters by `OperandId`.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Size of each dimension.
    pub sizes: &'a [i64],
    /// Programs along each axis.
    pub grid: &'a [i64],
    /// Memory of inputs, prefetches and outputs.
    pub memory: &'a [Memory<'a>],
    /// Values of parameters.
    pub params: &'a [Option<Literal>],
}

/// Below this many elementary operations a launch runs on the caller's thread: waking the pool costs 10 µs.
const INLINE_WORK: usize = 40_000;

impl Executable {
    /// Compiles a lowered kernel.
    pub fn compile(kernel: Arc<Kernel>) -> Executable {
        Executable { plan: plan::plan(kernel) }
    }

    /// Bytes that the plan and its machine code hold, estimated: a chain's code is at least a page.
    pub(crate) fn bytes(&self) -> u64 {
        let kernel = &self.plan.kernel;
        (kernel.insts.len() + kernel.values.len()) as u64 * 200 + self.plan.body.steps.len() as u64 * 4096
    }

    /// Bytes that each thread needs for a program's tiles and scratch.
    pub fn bytes_a_program(&self) -> usize {
        self.plan.arena_bytes
    }

    /// Of each elementwise chain that has no machine code, and so runs strip by strip, the shape and the operations that are to
    /// blame. Rows that are not whole vectors may keep others from theirs.
    pub fn without_code(&self) -> Vec<String> {
        jit::missing(&self.plan)
    }

    /// Whether a launch is done sooner than another thread could take it over.
    pub(crate) fn is_little(&self, grid: &[i64]) -> bool {
        let programs: i64 = grid.iter().product();
        self.plan.work.saturating_mul(programs as usize) < INLINE_WORK
    }

    /// How many threads run the programs of such a grid: the caller's alone, where waking others would take longer than
    /// the work; the pool is not even started then.
    pub fn threads(&self, grid: &[i64]) -> usize {
        let programs: i64 = grid.iter().product();
        if programs <= 1 || self.is_little(grid) { 1 } else { rayon::current_num_threads().min(programs as usize) }
    }

    /// Runs every program; returns what the kernel printed.
    ///
    /// # Errors
    /// The first failed `debug_assert`, by program; a loop whose step is not positive.
    pub fn run(&self, launch: &Launch<'_>) -> Result<Vec<String>, Fault> {
        let programs: i64 = launch.grid.iter().product();
        let threads = self.threads(launch.grid);
        // A late thread must not leave the others idle.
        let parts = (threads * 32).min(programs as usize);
        let bound = |part: u32| (i128::from(part) * i128::from(programs) / parts as i128) as i64;
        let shares = Shares::new(parts as u32, threads as u32);
        let outcome = Outcome::new();
        let thread = |t: usize| {
            let ranges = std::iter::from_fn(|| shares.take(t)).map(|part| bound(part)..bound(part + 1));
            run::programs(&self.plan, launch, ranges, &outcome);
        };
        if threads == 1 {
            thread(0);
        } else {
            // The caller is one of the threads: nobody has to be woken for its share.
            rayon::in_place_scope(|scope| {
                (1..threads).for_each(|t| scope.spawn(move |_| thread(t)));
                thread(0);
            });
        }
        outcome.finish()
    }
}

/// What the programs of a launch come to.
#[derive(Debug)]
struct Outcome {
    /// The first program that failed so far. Later ones need not run.
    failed: AtomicI64,
    fault: Mutex<Option<Fault>>,
    /// What programs printed.
    log: Mutex<Vec<(i64, Vec<String>)>>,
}

impl Outcome {
    fn new() -> Outcome {
        Outcome { failed: AtomicI64::new(i64::MAX), fault: Mutex::default(), log: Mutex::default() }
    }
    /// Whether the result of a program still matters.
    fn wants(&self, program: i64) -> bool {
        program < self.failed.load(Ordering::Relaxed)
    }
    fn printed(&self, program: i64, lines: Vec<String>) {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push((program, lines));
    }
    fn failed(&self, program: i64, fault: Fault) {
        let mut first = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.fetch_min(program, Ordering::Relaxed) > program {
            *first = Some(fault);
        }
    }
    /// All lines in the order of programs, or the first fault.
    fn finish(self) -> Result<Vec<String>, Fault> {
        if let Some(fault) = self.fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(fault);
        }
        let mut log = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        log.sort_by_key(|(p, _)| *p);
        Ok(log.into_iter().flat_map(|(_, lines)| lines).collect())
    }
}
