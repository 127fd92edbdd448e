//! The CPU backend: native loops over tiles that stay in cache, parallel programs on rayon's threads.
//!
//! ```text
//! lowered kernel --plan--> steps over tiles --run--> parallel programs
//! ```
//!
//! [`plan`] gathers elementwise instructions in chains and decides which tiles need memory of their own, and where it
//! lies in a program's arena; [`run`] executes the steps of a program. The work is done by [`gemm`] (products), [`jit`]
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
mod strips;
mod tile;

use crate::interp::Fault;
use pallas_ir::{Kernel, Literal};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// An operand's memory during a launch.
#[derive(Clone, Debug)]
pub struct Memory {
    /// First element; null for operands without memory.
    pub ptr: *mut u8,
    /// The array's extents.
    pub shape: Vec<usize>,
}

// SAFETY: a launch shares its operands' memory among its programs; inputs are only read, and programs write disjoint
// blocks of outputs (the interpreter reports kernels that do not).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

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
    pub memory: &'a [Memory],
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

    /// Bytes that each thread needs for a program's tiles and scratch.
    pub fn bytes_a_program(&self) -> usize {
        self.plan.arena_bytes
    }

    /// Runs every program; returns what the kernel printed.
    ///
    /// # Errors
    /// The first failed `debug_assert`, by program; a loop whose step is not positive.
    pub fn run(&self, launch: &Launch<'_>) -> Result<Vec<String>, Fault> {
        let programs: i64 = launch.grid.iter().product();
        let log = Mutex::new(vec![]);
        let some = |programs: std::ops::Range<i64>| {
            run::programs(&self.plan, launch, programs, &mut |p, lines| {
                log.lock().unwrap_or_else(PoisonError::into_inner).push((p, lines));
            })
        };
        let inline = programs <= 1 || self.plan.work.saturating_mul(programs as usize) < INLINE_WORK;
        if inline {
            some(0..programs)?;
        } else {
            // Few tasks a thread: each prepares an arena, and a late one must not leave the others idle.
            let tasks = (rayon::current_num_threads() * 16).min(programs as usize);
            let bound = |t: usize| (t as i128 * i128::from(programs) / tasks as i128) as i64;
            (0..tasks).into_par_iter().with_max_len(1).try_for_each(|t| some(bound(t)..bound(t + 1)))?;
        }
        let mut log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
        log.sort_by_key(|(p, _)| *p);
        Ok(log.into_iter().flat_map(|(_, lines)| lines).collect())
    }
}
