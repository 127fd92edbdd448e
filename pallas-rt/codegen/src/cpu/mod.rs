//! The CPU backend: native loops over tiles that stay in the caches; programs run in parallel on rayon's threads.
//!
//! ```text
//! lowered kernel --plan--> steps over tiles --run--> parallel programs
//! ```
//!
//! [`plan`] combines elementwise instructions into chains, and assigns memory in a program's arena to the tiles that
//! need it. [`concurrent_programs`] determines which programs may run at the same time, [`work_stealing`] distributes
//! them over the threads of a [`thread_team`], and [`run`] executes the steps of one program. The computations are in
//! [`gemm`] (products), [`jit`] (elementwise chains in machine code), [`strips`] and [`convert`] (all other elementwise
//! loops), [`fold`] (reductions), [`nonfinite_search`], [`sort`], [`tile`] (strided memory), [`row_copies`],
//! [`indexed_lines`] and [`window_starts`] (elements and windows at positions given by data).
//!
//! No data can make a program touch memory outside of its operands: accesses are clipped to the array when they run.
//!
//! - No input data makes a backend access memory outside of an operand: positions are clipped to the array, prefetched
//!   and gathered indices are clamped. So are positions that a shader reads back from its own memory, since a driver
//!   may have stopped the loop that writes them.
//! - A position that follows from program ids, sizes and constants fits an i32: the interpreter faults (`position`)
//!   where its arithmetic wraps around.
//! - Sums of products in scratch are neither set to zeros nor copied to the output (`cpu/plan/accumulated_products`).
//!   The first product of a loop sets them, and the scratch is in the output's block if nothing else accesses either,
//!   the block is the same in every iteration, and it is inside of the array, which is known when the program runs
//!   (`cpu/run/clamped_access`).
//! - Rows that a kernel looks up in an array which it does not write, and that only products of a few rows read, such
//!   as the pages of a key-value cache, are not copied (`cpu/plan/in_place_gathers`, `cpu/run/in_place_windows`). The
//!   product reads several at a time in place, with sums in registers, and prefetches those that follow
//!   (`gemm::few_rows::dot_paged`). Other steps and products with more rows read a copy, which is made then.
//! - Long looked-up rows that only elementwise operations read, such as those of an embedding, are not copied either:
//!   machine code runs row by row, each from its own address; rows outside of the array are one row of the fill value.
//!   Strips read a copy.
//! - A block that extends past its array's end is copied and filled, and its result is stored from a copy. Two kinds of
//!   steps read it in the array's memory instead, and nothing past the end (`cpu/plan/past_end_tiles`,
//!   `cpu/run/past_end_products`). Gathers cut their windows to what the arrays have, since the block of a table is all
//!   of its rows. Products with zeros past the end multiply what exists, so that a matrix whose extents no block
//!   divides is not copied to be read once. A zero times an infinity is NaN: if the other operand has one, the
//!   product's rows or columns past the end are NaN, as they would be.
//! - A concatenation that is only stored is stored part by part, so that each part is computed in the array
//!   (`cpu/plan/concats`).
//! - Tiles with elements in another order and very short rows, such as a reversed axis of three pairs, are copied
//!   before a chain reads them (`cpu/plan/build/row_major_copies`).
#[allow(unsafe_code, reason = "reads tables of the launch")]
mod concurrent_programs;
#[allow(unsafe_code, reason = "loops compiled for the machine's vectors; bits copied between types")]
mod convert;
#[allow(unsafe_code, reason = "loops over raw lines")]
mod extreme_positions;
#[allow(unsafe_code, reason = "loops over raw rows")]
mod fold;
#[allow(unsafe_code, reason = "micro-kernels over raw matrices")]
mod gemm;
#[allow(unsafe_code, reason = "strided memory")]
mod indexed_lines;
#[allow(unsafe_code, reason = "loops over raw memory")]
mod interior_boxes;
mod jit;
#[allow(unsafe_code, reason = "addresses of the caller's; programs share the memory of a launch")]
mod launch;
#[allow(unsafe_code, reason = "loops over raw rows")]
mod nonfinite_search;
mod plan;
#[allow(unsafe_code, reason = "copies between raw rows")]
mod row_copies;
#[allow(unsafe_code, reason = "tiles are raw memory")]
mod run;
mod sort;
#[allow(unsafe_code, reason = "loops compiled for the machine's vectors; raw memory as slices")]
mod strips;
mod thread_count;
#[allow(unsafe_code, reason = "threads borrow what their caller holds")]
pub mod thread_team;
mod thresholds;
#[allow(unsafe_code, reason = "copies between raw tiles")]
mod tile;
#[allow(unsafe_code, reason = "loops over raw positions")]
mod window_starts;
mod work_stealing;

pub use launch::{Launch, LaunchError, LaunchMemory};
pub use thread_count::MIN_THREADED_OPERATIONS;
pub use thresholds::Thresholds;

use launch::LaunchOutcome;
use pallas_ir::Kernel;
use parking_lot::Mutex;
use std::sync::Arc;
use thread_team::LaunchThreads;
use work_stealing::WorkShares;

/// A kernel compiled for this machine's processor.
pub struct Executable {
    plan: plan::Plan,
    apart: concurrent_programs::RaceAnalysis,
    /// State for launches with the sizes and the grid of the last launch.
    last: Mutex<Option<Arc<PreparedLaunch>>>,
}

/// State shared by launches with equal sizes and grid, in which the memory of tiles and scalars is already resolved. A
/// launch that runs on the caller's thread alone allocates nothing.
struct PreparedLaunch {
    sizes: Box<[i64]>,
    grid: Box<[i64]>,
    states: run::IdleThreadStates,
}

/// An order of the programs of a grid in which only those that differ in some axes may run at the same time. `outer`
/// has those axes, `inner` the others: for each its extent, and the distance of neighbours in the row-major order of
/// programs.
struct ProgramOrder {
    outer: Vec<[i64; 2]>,
    inner: Vec<[i64; 2]>,
}

impl ProgramOrder {
    fn new(grid: &[i64], concurrent_axes: &[bool]) -> ProgramOrder {
        let (mut order, mut stride) = (ProgramOrder { outer: vec![], inner: vec![] }, 1);
        for (&extent, &outer) in grid.iter().zip(concurrent_axes).rev() {
            if outer { &mut order.outer } else { &mut order.inner }.push([extent, stride]);
            stride *= extent;
        }
        order
    }
    /// Returns the programs that one thread runs in order: those at a given position, in row-major order, along the
    /// axes whose programs may run at the same time.
    fn sequential_programs(&self, outer_position: i64) -> impl Iterator<Item = i64> + '_ {
        let place = |axes: &[[i64; 2]], mut rest: i64| {
            let step = |&[extent, stride]: &[i64; 2]| {
                let at = rest % extent * stride;
                rest /= extent;
                at
            };
            axes.iter().map(step).sum::<i64>()
        };
        let first = place(&self.outer, outer_position);
        let count: i64 = self.inner.iter().map(|[extent, _]| extent).product();
        (0..count).map(move |k| first + place(&self.inner, k))
    }
}

impl Executable {
    /// Compiles a kernel from its lowered form; the traced form, whose index maps show which programs may race, is kept
    /// too. Both are verified in every build, since programs access raw memory by their types.
    pub fn compile(traced: Arc<Kernel>, lowered: Arc<Kernel>, thresholds: &'static Thresholds) -> Executable {
        if let Err(violation) = pallas_ir::verify(&traced).and_then(|()| pallas_ir::verify_lowered(&lowered)) {
            panic!("the CPU backend was given a kernel that is not well formed: {violation}");
        }
        Executable {
            apart: concurrent_programs::RaceAnalysis::new(traced),
            plan: plan::build_plan(lowered, thresholds),
            last: Mutex::default(),
        }
    }

    /// Estimates the bytes of the plan and its machine code, assuming a page for the code of each step.
    pub fn estimate_plan_bytes(&self) -> u64 {
        let kernel = &self.plan.kernel;
        (kernel.insts.len() + kernel.values.len()) as u64 * 200 + self.plan.body.steps.len() as u64 * 4096
    }

    /// Returns the bytes that each thread needs for a program's tiles and scratch.
    pub fn bytes_per_program(&self) -> usize {
        self.plan.arena_bytes
    }

    /// Returns the steps of a program as text.
    pub fn plan_text(&self) -> String {
        self.plan.to_string()
    }

    /// Describes each elementwise chain that has no machine code on this machine, and therefore runs strip by strip.
    pub fn describe_uncompiled_chains(&self) -> Vec<String> {
        jit::report_missing_code(&self.plan)
    }

    /// Runs every program of a launch on the given threads; returns the lines that the kernel printed.
    ///
    /// # Safety
    /// `launch` has an entry per dimension, grid axis and operand of the kernel. The memory of inputs, prefetches and
    /// outputs holds their shapes, aligned to elements and initialised; nothing else writes inputs or accesses outputs
    /// meanwhile. Outputs share memory with no other operand but the input that they alias.
    ///
    /// # Errors
    /// The first failed `debug_assert`, by program; a loop whose step is not positive; programs that write the same
    /// elements ([`concurrent_programs`]); no memory for tiles.
    #[allow(unsafe_code, reason = "the caller vouches for raw memory")]
    pub unsafe fn run(
        &self,
        launch: &Launch<'_>,
        launch_threads: &dyn LaunchThreads,
    ) -> Result<Vec<String>, LaunchError> {
        #[cfg(guarded)]
        return run::guard_pages::run_guarded(&self.plan.kernel, launch, |launch| {
            self.run_on_threads(launch, launch_threads)
        });
        #[cfg(not(guarded))]
        self.run_on_threads(launch, launch_threads)
    }

    /// Runs every program of a launch, on the given threads if there is enough work, else on the calling thread alone.
    fn run_on_threads(
        &self,
        launch: &Launch<'_>,
        launch_threads: &dyn LaunchThreads,
    ) -> Result<Vec<String>, LaunchError> {
        let order = self.apart.find_concurrent_axes(launch)?.map(|at_once| ProgramOrder::new(launch.grid, &at_once));
        let units: i64 = match &order {
            None => launch.grid.iter().product(),
            Some(order) => order.outer.iter().map(|[extent, _]| extent).product(),
        };
        let threads = thread_count::thread_count(
            units,
            self.operation_count(launch.grid),
            launch_threads.min_shared_operations(),
        );
        let (prepared, outcome) = (self.get_or_prepare_launch(launch.sizes, launch.grid), LaunchOutcome::new());
        let run = |units: &mut dyn Iterator<Item = i64>| match &order {
            None => run::run_programs(&self.plan, &prepared.states, launch, units, &outcome),
            Some(order) => {
                let programs = units.flat_map(|unit| order.sequential_programs(unit));
                run::run_programs(&self.plan, &prepared.states, launch, programs, &outcome);
            }
        };
        if threads == 1 {
            run(&mut (0..units));
            return outcome.finish();
        }
        // There are many shares, so that one late thread does not leave the others idle.
        let parts = (threads * 32).min(units as usize);
        let bound = |part: u32| (i128::from(part) * i128::from(units) / parts as i128) as i64;
        let shares = WorkShares::new(parts as u32, threads as u32);
        let thread = |t: usize| {
            let parts = std::iter::from_fn(|| shares.take_part(t));
            run(&mut parts.flat_map(|part| bound(part)..bound(part + 1)));
        };
        launch_threads.share_work(threads, &thread);
        outcome.finish()
    }

    /// Returns the state that launches over these sizes and this grid share: that of the last launch, or a new one.
    fn get_or_prepare_launch(&self, sizes: &[i64], grid: &[i64]) -> Arc<PreparedLaunch> {
        let mut last = self.last.lock();
        match &*last {
            Some(prepared) if *prepared.sizes == *sizes && *prepared.grid == *grid => prepared.clone(),
            _ => {
                let prepared =
                    PreparedLaunch { sizes: sizes.into(), grid: grid.into(), states: run::IdleThreadStates::default() };
                last.insert(Arc::new(prepared)).clone()
            }
        }
    }
}
