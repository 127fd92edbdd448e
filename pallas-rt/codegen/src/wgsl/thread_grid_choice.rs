//! Chooses the cheapest placement: every thread grid of the profile is emitted, and the costs of the programs are
//! compared.
use super::buffer_addresses;
use super::emit;
use super::place::cooperative_matrices::StorageCell;
use super::place::{PlacementAnalysis, PlacementPlan, RowArrangement, TileStorage};
use super::placed_kernel::{PlacedKernel, PlacementInput, PlanAddresses};
use super::profile::ProfileParameters;
use super::{bank_conflicts, barriers, pipeline, pressure, races, sink_steps};
use crate::passes::PlacementPassState;
use crate::target::Target;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::BTreeMap;

/// Returns the cheapest placement. It uses cooperative matrices if a product can, and if they do not make tiles spill
/// more than without. Returns `None` if the kernel's scratch does not fit.
pub(super) fn choose_placement(task: PlacementInput<'_>) -> Option<PlacedKernel> {
    let plain = Target { matrices: None, ..*task.target };
    let plainly = || search_placement(PlacementInput { target: &plain, ..task });
    let Some(placed) = task.target.matrices.and_then(|_| search_placement(task)) else { return plainly() };
    let spill = |placed: &PlacedKernel| pipeline::spill_counts(placed, task.target).0;
    match (placed.plan.fragments.iter().any(Option::is_some), spill(&placed)) {
        (false, _) => plainly(),
        (true, 0) => Some(placed),
        (true, words) => Some(plainly().filter(|p| spill(p) < words).unwrap_or(placed)),
    }
}

/// Returns the cheapest placement, with its text, and with cooperative matrices where the target has them: tries depths
/// of pipelining, then better arrangements of the rows of buffers. Returns `None` if no placement fits.
fn search_placement(task: PlacementInput<'_>) -> Option<PlacedKernel> {
    let numbers = task.target.profile.parameters();
    let most = task.target.max_threads;
    let small = |grid: &&(u32, u32)| grid.0 * grid.1 <= most;
    let mut grids: Vec<(u32, u32)> = numbers.grids.iter().filter(small).copied().collect();
    if grids.is_empty() {
        grids.push((1, most));
    }
    let none = BTreeMap::new();
    let (mut best, mut wanted): (Option<CheapestPlacement>, Vec<(OperandId, usize)>) = (None, vec![]);
    for depth in pipeline::candidate_depths(task) {
        let Some(found) = find_cheapest_grid(task, &grids, depth) else { continue };
        if wanted.is_empty() {
            wanted.clone_from(&found.placed.fetched);
        }
        let misfit = pipeline::spill_counts(&found.placed, task.target);
        let done = found.placed.fetched.is_empty() || misfit == (0, 0);
        if best.as_ref().is_none_or(|b| misfit < pipeline::spill_counts(&b.placed, task.target)) {
            best = Some(found);
        }
        if done {
            break;
        }
    }
    let CheapestPlacement { placed, depth, grid, mut forms } = best?;
    let most = placed.cost;
    let placed = minimize_barriers(place_on_grid(
        task,
        depth,
        grid,
        PlacementTrial { most, pads: &none, written: true },
        &mut forms,
    )?);
    // Pads all rows for which this helps, or as many as there is memory for, and permutes the columns of the other
    // buffers; accepted only if no barrier is added.
    let remedies = bank_conflicts::find_bank_conflict_fixes(&placed.plan, &placed.emitted.accesses);
    let met = sink_steps::expected_barriers(&placed.emitted.nodes, emit::ASSUMED_TRIP_COUNT);
    let remedied = |longer: usize| {
        let of = |(i, remedy): (usize, &bank_conflicts::BankConflictFix)| {
            let swizzled = remedy.swizzled.filter(|_| numbers.stage);
            let pad = if i < longer { remedy.longer.or(swizzled) } else { swizzled };
            Some((remedy.buffer.clone(), pad?))
        };
        let pads = remedies.iter().enumerate().filter_map(of).collect();
        // Accesses to single elements take some more lines than accesses to vectors.
        let want = PlacementTrial { most: most * 1.02, pads: &pads, written: true };
        let found = minimize_barriers(place_on_grid(task, depth, grid, want, &mut forms)?);
        (sink_steps::expected_barriers(&found.emitted.nodes, emit::ASSUMED_TRIP_COUNT) <= met).then_some(found)
    };
    let remedied = if remedies.is_empty() { None } else { (0..=remedies.len()).rev().find_map(remedied) };
    Some(PlacedKernel { wanted, ..remedied.unwrap_or(placed) })
}

/// Moves steps so that fewer barriers are needed, and removes those that are not.
fn minimize_barriers(mut placed: PlacedKernel) -> PlacedKernel {
    let addresses = PlanAddresses { k: &placed.kernel, plan: &placed.plan };
    sink_steps::sink_movable_steps(&mut placed.emitted.nodes, emit::ASSUMED_TRIP_COUNT, &addresses);
    races::remove_redundant_barriers(&mut placed.emitted.nodes, &addresses);
    placed
}

/// Settings of one placement that is tried: its maximum cost, the arrangements of rows, and the choice to write its
/// text or only to compare it.
#[derive(Clone, Copy)]
struct PlacementTrial<'a> {
    /// The maximum cost.
    most: f64,
    /// Arrangement of the rows of buffers, by name.
    pads: &'a BTreeMap<String, RowArrangement>,
    /// True if the text is written; otherwise the placement is only compared.
    written: bool,
}

/// The cheapest placement for one depth of pipelining, without its text, and the parameters that led to it.
struct CheapestPlacement {
    placed: PlacedKernel,
    depth: usize,
    grid: (u32, u32),
    forms: Vec<AnalyzedKernel>,
}

/// Returns the cheapest placement on any of the thread grids for one depth of pipelining; `None` if the kernel fits on
/// none of them.
fn find_cheapest_grid(
    task: PlacementInput<'_>,
    grids: &[(u32, u32)],
    pipeline_depth: usize,
) -> Option<CheapestPlacement> {
    let (none, mut forms) = (BTreeMap::new(), vec![]);
    let mut best: Option<(PlacedKernel, (u32, u32))> = None;
    for &grid in grids {
        let most = best.as_ref().map_or(f64::INFINITY, |(b, _)| b.cost);
        let want = PlacementTrial { most, pads: &none, written: false };
        if let Some(placed) = place_on_grid(task, pipeline_depth, grid, want, &mut forms).filter(|p| p.cost < most) {
            best = Some((placed, grid));
        }
    }
    let (placed, grid) = best?;
    Some(CheapestPlacement { placed, depth: pipeline_depth, grid, forms })
}

/// A kernel with some of its scratch promoted to values, and its analysis.
struct AnalyzedKernel {
    staged: PlacementPassState,
    analysis: PlacementAnalysis,
}

/// Returns the placement on one grid of threads; scratch for which there are no registers stays in memory. Returns
/// `None` if it costs more than the trial allows, or if the kernel's scratch does not fit; `analyzed_kernels` keeps
/// analyses for later calls.
fn place_on_grid(
    task: PlacementInput<'_>,
    pipeline_depth: usize,
    grid: (u32, u32),
    trial: PlacementTrial<'_>,
    analyzed_kernels: &mut Vec<AnalyzedKernel>,
) -> Option<PlacedKernel> {
    let (kernel, numbers) = (task.kernel, task.target.profile.parameters());
    let all = || (0..kernel.operands.len() as u32).map(OperandId).collect();
    let mut kept: Vec<OperandId> = if numbers.registers == 0 || task.resumed { all() } else { vec![] };
    loop {
        let at = analyzed_kernels.iter().position(|f| f.staged.kept == kept).unwrap_or_else(|| {
            let staged = PlacementPassState {
                resumed: task.resumed,
                has_registers: numbers.registers > 0,
                kept: kept.clone(),
                depth: pipeline_depth,
                ..PlacementPassState::new(kernel.clone(), task.sequential)
            };
            let staged = staged.run_all_passes();
            let whole = |of| emit::can_bind_vec4(&staged.kernel, of, task.multiples);
            let analysis = PlacementAnalysis::new(&staged.kernel, numbers, whole, task.target.matrices);
            analyzed_kernels.push(AnalyzedKernel { staged, analysis });
            analyzed_kernels.len() - 1
        });
        let AnalyzedKernel { staged: PlacementPassState { kernel, carried, fetched, .. }, analysis } =
            &analyzed_kernels[at];
        let plan = analysis.plan_on_grid(kernel, numbers, grid, trial.pads);
        let large = |v: Value| kernel.ty(v).elements() > numbers.registers * plan.thread_count();
        // Values that loops and branches pass on would be copied from memory to memory; factors of matrices are stored
        // there anyway.
        let handed = |v: Value| plan.defined[v.index()].is_none_or(|i| !kernel.inst(i).regions.is_empty());
        let memory = |v: Value| match plan.tile_storage[v.index()] {
            TileStorage::Buffer(b) => plan.buffers[b].cell.has_raw_bits() || handed(v),
            TileStorage::Accumulators => false,
            TileStorage::None | TileStorage::Registers => large(v),
        };
        let mut out: Vec<OperandId> = carried.iter().filter(|(v, _)| memory(*v)).map(|(_, o)| *o).collect();
        if out.is_empty() {
            let placed = emit_until_it_fits(task, kernel, plan, numbers, trial)?;
            return Some(PlacedKernel { fetched: fetched.clone(), ..placed });
        }
        out.extend(&kept);
        out.sort_unstable();
        out.dedup();
        kept = out;
    }
}

/// Emits a kernel until each tile that is read across threads has a copy and all buffers fit workgroup memory, from
/// which the largest are moved to global memory. Returns `None` if the program costs more than `trial` allows, or if
/// the kernel's scratch does not fit.
fn emit_until_it_fits(
    task: PlacementInput<'_>,
    k: &Kernel,
    mut plan: PlacementPlan,
    parameters: &ProfileParameters,
    trial: PlacementTrial<'_>,
) -> Option<PlacedKernel> {
    plan.buffers.iter_mut().filter(|b| b.scratch).for_each(|b| b.outside = task.resumed);
    let room = task.target.workgroup_bytes as usize;
    // The storage of buffers is determined before the text is written.
    let mut written = false;
    loop {
        let own = plan.buffers.len();
        let mut emitted = emit::emit_body(k, &mut plan, parameters, task, (trial.most, written));
        if emitted.stopped {
            return None;
        }
        if !emitted.wanted.is_empty() {
            plan.buffers.truncate(own);
            emitted.wanted.iter().for_each(|&v| plan.add_copy_buffer(k, v));
            continue;
        }
        if !emitted.singles.is_empty() {
            plan.buffers.truncate(own);
            emitted.singles.iter().for_each(|&b| plan.buffers[b].cell = StorageCell::Word);
            continue;
        }
        let sizes =
            buffer_addresses::assign_addresses(&mut plan.buffers, &emitted.nodes, emitted.broadcasts_scalars, room);
        if sizes.workgroup_bytes() > room {
            plan.buffers.truncate(own);
            // Matrices are loaded from workgroup memory.
            let movable = |b: &usize| {
                let b = &plan.buffers[*b];
                !b.outside && !b.scratch && b.cell.has_raw_bits()
            };
            match (0..own).filter(movable).max_by_key(|&b| plan.buffers[b].words) {
                Some(largest) => plan.buffers[largest].outside = true,
                None if plan.sorts_outside => return None,
                None => plan.sorts_outside = true,
            }
            continue;
        }
        if trial.written && !written {
            plan.buffers.truncate(own);
            written = true;
            continue;
        }
        barriers::insert_barriers(&mut emitted.nodes, &PlanAddresses { k, plan: &plan });
        let registers = pressure::max_live_registers(k, &plan, &emitted.read_in_registers);
        let (file, price) = parameters.register_file;
        let spilled = registers.saturating_sub(file) as f64 * price;
        let barrier = if emitted.lockstep { 0.0 } else { parameters.barrier };
        let work =
            emitted.work + sink_steps::expected_barriers(&emitted.nodes, emit::ASSUMED_TRIP_COUNT) * barrier + spilled;
        let cost = emit::estimate_program_cost(work, emitted.lines, &plan, parameters);
        // The cost may be equal to the maximum.
        return (cost <= trial.most).then(|| PlacedKernel {
            kernel: k.clone(),
            plan,
            emitted,
            sizes,
            registers,
            sequential: task.sequential,
            most_registers: parameters.registers,
            fetched: vec![],
            wanted: vec![],
            cost,
        });
    }
}
