//! The CPU backend: native loops over tiles that stay in cache, parallel programs on rayon's threads.
//!
//! [`plan`] decides once per kernel where tiles live; [`run`] executes a program; [`transfer`] moves blocks between arrays
//! and tiles; [`strips`] elementwise loops; [`gemm`] products.
mod gemm;
mod plan;
mod run;
mod strips;
mod transfer;

pub use transfer::Memory;

use crate::interp::Fault;
use pallas_ir::{Kernel, Literal};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

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

    /// Runs every program; returns what the kernel printed.
    ///
    /// # Errors
    /// The first failed `debug_assert`, by program.
    pub fn run(&self, launch: &Launch<'_>) -> Result<Vec<String>, Fault> {
        let programs: i64 = launch.grid.iter().product();
        let log = Mutex::new(vec![]);
        let one = |p: i64| {
            let lines = run::program(&self.plan, launch, p)?;
            if !lines.is_empty() {
                log.lock().unwrap_or_else(PoisonError::into_inner).push((p, lines));
            }
            Ok(())
        };
        if programs <= 1 || self.plan.work.saturating_mul(programs as usize) < INLINE_WORK {
            (0..programs).try_for_each(one)?;
        } else {
            (0..programs).into_par_iter().try_for_each(one)?;
        }
        let mut log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
        log.sort_by_key(|(p, _)| *p);
        Ok(log.into_iter().flat_map(|(_, lines)| lines).collect())
    }
}
