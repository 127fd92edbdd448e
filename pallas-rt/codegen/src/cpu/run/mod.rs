//! Runs programs of a plan on a thread.
//!
//! [`clamped_access`] has loads and stores; [`chain`] elementwise operations in strips, [`native`] in machine code;
//! [`compiled_loops`] loops in machine code; [`reductions_and_moves`] reductions and moved elements; [`gather_scatter`]
//! windows at positions given by data, [`in_place_windows`] those that are read without a copy; [`contractions`]
//! contractions, [`past_end_products`] those whose operands end early; [`nest`] convolutions and windowed reductions,
//! in the order in memory that [`convolution_layout`] chooses; [`sort`] sorts. [`thread_state`] is the state of a
//! thread, [`spacing`] how rows lie in memory. This file has the control flow.
mod chain;
mod clamped_access;
mod compiled_loops;
mod contractions;
mod convolution_gemm;
mod convolution_layout;
mod gather_scatter;
#[cfg(guarded)]
pub(super) mod guard_pages;
mod in_place_windows;
mod merged_rows;
mod native;
mod nest;
mod past_end_products;
mod reductions_and_moves;
mod row_sums;
mod sort;
mod spacing;
mod sweep;
mod thread_state;

pub(super) use clamped_access::read_clamped_element;
pub(super) use thread_state::IdleThreadStates;

use super::launch::{Launch, LaunchError, LaunchOutcome};
use super::plan::Plan;
use super::plan::step::{Step, StepBlock};
use super::strips::{StripFn, slice, slice_mut};
use super::tile::{self, MAX_RANK, StridedTile};
use crate::interp::{Datum, walk};
use pallas_ir::Value;
use std::cell::Cell;
use thread_state::{ProgramRunner, ThreadBuffers, grow_buffer_to};

thread_local! {
    /// Buffers of this thread; taken while it runs programs.
    static THREAD_BUFFERS: Cell<Option<Box<ThreadBuffers>>> = const { Cell::new(None) };
}

/// Bytes after which addresses alias in the processor: a load waits for a store to another array whose address differs
/// by a multiple of this.
const ALIASING_DISTANCE_BYTES: usize = 4096;

/// Returns an address from `start` on that is half of [`ALIASING_DISTANCE_BYTES`] past a multiple of that distance,
/// where large arrays begin: so loads do not wait for stores to those.
fn nonaliasing_address(start: *mut u8) -> *mut u8 {
    start.wrapping_add((start as usize).wrapping_neg() % ALIASING_DISTANCE_BYTES + ALIASING_DISTANCE_BYTES / 2)
}

/// Runs these programs of the launch's grid, which are numbered row-major. A program may fail: by an assertion, or by
/// a loop whose step is not positive. Prints and failures go to `outcome`.
pub(super) fn run_programs(
    plan: &Plan,
    states: &IdleThreadStates,
    launch: &Launch<'_>,
    programs: impl Iterator<Item = i64>,
    outcome: &LaunchOutcome,
) {
    let mut programs = programs.peekable();
    let Some(&first) = programs.peek() else { return };
    // Also after a panic: pending non-temporal stores would otherwise reach memory that another owner has by then.
    let _settled = tile::NonTemporalFence;
    // Taken, not borrowed: a program that waits for the pool may find itself running another launch.
    let mut buffers = THREAD_BUFFERS.take().unwrap_or_default();
    buffers.forget_all_windows();
    buffers.ends.clear();
    let arena = match grow_buffer_to(&mut buffers.arena, plan.arena_bytes + 2 * ALIASING_DISTANCE_BYTES) {
        Ok(start) => nonaliasing_address(start),
        Err(stop) => return outcome.record_failure(first, stop),
    };
    let mut state = states.lock().pop().unwrap_or_default();
    if state.arena.is_null() {
        state.prepare_for_launch_sizes(plan, launch);
    }
    state.bind_memory(plan, launch, arena);
    let mut run = ProgramRunner { plan, launch, state, buffers: &mut buffers, log: vec![] };
    for p in programs {
        if !outcome.should_run(p) {
            continue;
        }
        run.set_program_ids(p);
        let result = run.run_block(&plan.body);
        if !run.log.is_empty() {
            outcome.record_printed_lines(p, std::mem::take(&mut run.log));
        }
        if let Err(stop) = result {
            // Results that the failed program has redirected refer to memory of this launch.
            run.state.is_redirected.fill(false);
            run.state.operands.iter_mut().for_each(|operand| operand.is_empty = false);
            outcome.record_failure(p, stop);
        }
    }
    // A process can have some tens of thousands of mappings only.
    #[cfg(guarded)]
    run.state.guards.clear();
    states.lock().push(run.state);
    THREAD_BUFFERS.set(Some(buffers));
}

impl<'a> ProgramRunner<'a> {
    /// Sets the grid indices of the program with this row-major number.
    fn set_program_ids(&mut self, program: i64) {
        let mut rest = program;
        for (id, n) in self.state.ids.iter_mut().zip(self.launch.grid).rev() {
            (*id, rest) = (rest % n, rest / n);
        }
    }

    // ---- steps

    fn run_block(&mut self, block: &'a StepBlock) -> Result<(), LaunchError> {
        block.steps.iter().try_for_each(|s| self.run_step(s))
    }

    /// Runs one step.
    fn run_step(&mut self, step: &'a Step) -> Result<(), LaunchError> {
        match step {
            Step::ProgramId { axis, to } => self.set_scalar_int(*to, self.state.ids[*axis]),
            Step::Scalar { strip, args, to } => self.run_scalar_op(*strip, args, *to),
            Step::Chain(chain) => self.run_chains(std::slice::from_ref(chain), &chain.codes)?,
            Step::FusedChains(sweep) => self.run_chains(&sweep.chains, &sweep.codes)?,
            Step::Restride { from, axes, to } => {
                self.state.tiles[to.index()] = self.restride(*from, axes, self.shape(*to).len());
                if !self.buffers.ends.is_empty() {
                    self.record_transposed_overhang(*from, axes, *to);
                }
            }
            Step::Reshape { from, to } => self.reshape(*from, *to),
            Step::Iota { table, axis, to } => {
                let mut tile =
                    StridedTile { start: self.state.tables[*table].as_mut_ptr().cast(), strides: [0; MAX_RANK] };
                tile.strides[*axis] = 1;
                self.state.tiles[to.index()] = tile;
            }
            Step::CopyBoxes { parts, to } => self.copy_boxes(parts, *to),
            Step::Fold { fold, start, from, axes, to } => self.fold(*fold, *start, *from, axes, *to)?,
            Step::Scan { fold, from, axis, reverse, to } => self.scan(*fold, *from, *axis, *reverse, *to),
            Step::ArgMinMax { max, from, axis, to } => self.run_arg_min_max(*max, *from, *axis, *to),
            Step::Gather(step) => self.gather(step),
            Step::Scatter { windows, updates, fold } => self.scatter(windows, *updates, *fold),
            Step::SumRows(step) => self.scatter_add_rows(step)?,
            Step::Sort { from, axis, order, positions, to } => self.sort(*from, *axis, *order, *positions, *to)?,
            Step::Dot(dot) => self.dot(dot)?,
            Step::LoopNests(nested) => self.run_loop_nests(nested)?,
            Step::Load { from, mask, fill, in_place, open, to } => {
                self.load(from, *mask, *fill, in_place.then_some(*open), *to);
            }
            Step::Store { value, to, mask } => self.store(*value, to, *mask),
            Step::RedirectResult { value, at, open } => self.redirect_result(*value, at, *open),
            Step::BeginAccumulation { sums, lend } => self.begin_accumulation(*sums, lend.as_ref()),
            Step::Valid { of, axis, to } => self.write_valid_mask(of, *axis, *to),
            Step::Prefetch { of, index, to } => self.read_prefetched(*of, index, *to),
            Step::If { .. } | Step::For { .. } | Step::While { .. } => self.run_control_flow(step)?,
            Step::Print { label, of, loc } => {
                let shown = walk::format_datum(&self.datum(*of));
                self.log.push(format!("{loc}: program {:?}: {label} = {shown}", self.state.ids));
            }
            Step::Assert { message, of, loc } => {
                let d = self.datum(*of);
                if let Some(i) = (0..d.data.len()).find(|&i| d.data.get(i).as_i64() == 0) {
                    let at = crate::interp::datum::unflatten(i, &d.ty.shape);
                    return Err(self.fault("assert", *loc, format!("assertion failed at {at:?}: {message}")));
                }
            }
        }
        Ok(())
    }

    /// Runs an operation on scalars.
    fn run_scalar_op(&mut self, strip: StripFn, args: &[Value], to: Value) {
        let out = self.result_tile(to);
        // SAFETY: scalars' tiles hold one element each; the result's cell is its own.
        unsafe {
            let arg = |v: Value| slice(self.ty(v).dtype, self.tile(v).start, 1);
            let out = slice_mut(self.ty(to).dtype, out.start, 1);
            match *args {
                [a] => strip(&[arg(a)], out, 1),
                [a, b] => strip(&[arg(a), arg(b)], out, 1),
                _ => strip(&args.iter().map(|&v| arg(v)).collect::<Vec<_>>(), out, 1),
            }
        }
    }

    // ---- control flow

    /// Runs a branch or a loop.
    fn run_control_flow(&mut self, step: &'a Step) -> Result<(), LaunchError> {
        match step {
            Step::If { condition, sides, to } => {
                let side = &sides[usize::from(self.scalar_int(*condition) == 0)];
                self.run_block(side)?;
                self.assign_values(to, &side.yields);
            }
            Step::For { bounds, reverse, index, carried, init, body, to, rolled, loc } => {
                let [lo, hi, by] = bounds.map(|v| self.scalar_int(v));
                let trips = walk::trip_count(lo, hi, by).map_err(|m| self.fault("step", *loc, m))?;
                self.assign_values(carried, init);
                let at = |k: i64| lo + (if *reverse { trips - 1 - k } else { k }) * by;
                let mut k = 0;
                while k < trips {
                    self.set_scalar_int(*index, at(k));
                    self.run_block(body)?;
                    self.assign_values(carried, &body.yields);
                    k += 1;
                    let rolled = rolled.as_ref().filter(|_| k == 1);
                    if rolled.is_some_and(|rolled| self.run_jit_loop(rolled, body, *index, trips, &at).is_some()) {
                        k = trips - 1;
                    }
                }
                to.iter().zip(carried).for_each(|(t, c)| self.state.tiles[t.index()] = self.state.tiles[c.index()]);
            }
            Step::While { init, tested, test, carried, body, to } => {
                self.assign_values(tested, init);
                loop {
                    self.run_block(test)?;
                    self.assign_values(carried, &test.yields[1..]);
                    if self.scalar_int(test.yields[0]) == 0 {
                        break;
                    }
                    self.run_block(body)?;
                    self.assign_values(tested, &body.yields);
                }
                to.iter().zip(carried).for_each(|(t, c)| self.state.tiles[t.index()] = self.state.tiles[c.index()]);
            }
            _ => unreachable!("called for control flow"),
        }
        Ok(())
    }

    /// Copies values to other values, as if all copies happened at the same time.
    fn assign_values(&mut self, to: &[Value], from: &[Value]) {
        // Sources in a target's memory (variables that changed places) are copied aside first.
        let crossed = from.iter().enumerate().any(|(i, &f)| {
            let root = self.plan.roots[f.index()];
            f != to[i] && to.iter().enumerate().any(|(k, &t)| t == root && (k != i || !self.has_same_tile(f, t)))
        });
        if crossed {
            let aside: Vec<Datum> = from.iter().map(|&v| self.datum(v)).collect();
            for (&t, d) in to.iter().zip(&aside) {
                let (bytes, own) = (d.data.to_bytes(), self.result_tile(t));
                // SAFETY: a value's own memory holds its bytes, which are contiguous.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), own.start, bytes.len()) };
            }
            return;
        }
        for (&t, &f) in to.iter().zip(from) {
            if f == t {
                continue;
            }
            let (source, own) = (self.tile(f), self.result_tile(t));
            // SAFETY: both hold the shape; a value alive at once with another overlaps it nowhere.
            unsafe { tile::copy(&source, &own, self.shape(t), self.element_bytes(t)) };
        }
    }
    /// Returns true if both values have the same memory with the same strides.
    fn has_same_tile(&self, a: Value, b: Value) -> bool {
        let (x, y) = (self.tile(a), self.tile(b));
        x.start == y.start && x.strides == y.strides
    }
}
