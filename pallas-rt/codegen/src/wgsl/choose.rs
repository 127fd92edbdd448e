//! Chooses the cheapest placement: every thread grid of the profile is emitted, and the costs of the programs are
//! compared.
use super::arena;
use super::emit;
use super::place::matrices::Cell;
use super::place::{Analysis, Home, Pad, Plan};
use super::placed::{Addresses, Placed, Task};
use super::profile::Numbers;
use super::{pipeline, pressure, races, reach, settle, sync};
use crate::passes::Staged;
use crate::target::Target;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::BTreeMap;

/// Returns the cheapest placement. It uses cooperative matrices if a product can, and if they do not make tiles spill
/// more than without. Returns `None` if the kernel's scratch does not fit.
pub(super) fn choose(task: Task<'_>) -> Option<Placed> {
    let plain = Target { matrices: None, ..*task.target };
    let plainly = || best(Task { target: &plain, ..task });
    let Some(placed) = task.target.matrices.and_then(|_| best(task)) else { return plainly() };
    let spill = |placed: &Placed| pipeline::misfit(placed, task.target).0;
    match (placed.plan.fragments.iter().any(Option::is_some), spill(&placed)) {
        (false, _) => plainly(),
        (true, 0) => Some(placed),
        (true, words) => Some(plainly().filter(|p| spill(p) < words).unwrap_or(placed)),
    }
}

/// Returns the cheapest placement with the target's matrices, with its text: tries depths of pipelining, and better
/// arrangements of the rows of buffers.
fn best(task: Task<'_>) -> Option<Placed> {
    let numbers = task.target.profile.numbers();
    let most = task.target.max_threads;
    let small = |grid: &&(u32, u32)| grid.0 * grid.1 <= most;
    let mut grids: Vec<(u32, u32)> = numbers.grids.iter().filter(small).copied().collect();
    if grids.is_empty() {
        grids.push((1, most));
    }
    let none = BTreeMap::new();
    let (mut best, mut wanted): (Option<Cheapest>, Vec<(OperandId, usize)>) = (None, vec![]);
    for depth in pipeline::depths(task) {
        let Some(found) = cheapest(task, &grids, depth) else { continue };
        if wanted.is_empty() {
            wanted.clone_from(&found.placed.fetched);
        }
        let misfit = pipeline::misfit(&found.placed, task.target);
        let done = found.placed.fetched.is_empty() || misfit == (0, 0);
        if best.as_ref().is_none_or(|b| misfit < pipeline::misfit(&b.placed, task.target)) {
            best = Some(found);
        }
        if done {
            break;
        }
    }
    let Cheapest { placed, depth, grid, mut forms } = best?;
    let most = placed.cost;
    let placed = finish(on_grid(task, depth, grid, Want { most, pads: &none, written: true }, &mut forms)?);
    // Pads all rows for which this helps, or as many as there is memory for, and permutes the columns of the other
    // buffers; accepted only if no barrier is added.
    let remedies = reach::remedies(&placed.plan, &placed.emitted.accesses);
    let met = settle::weight(&placed.emitted.nodes, emit::TRIPS);
    let remedied = |longer: usize| {
        let of = |(i, remedy): (usize, &reach::Remedy)| {
            let swizzled = remedy.swizzled.filter(|_| numbers.stage);
            let pad = if i < longer { remedy.longer.or(swizzled) } else { swizzled };
            Some((remedy.of.clone(), pad?))
        };
        let pads = remedies.iter().enumerate().filter_map(of).collect();
        // Accesses to single elements take some more lines than accesses to vectors.
        let want = Want { most: most * 1.02, pads: &pads, written: true };
        let found = finish(on_grid(task, depth, grid, want, &mut forms)?);
        (settle::weight(&found.emitted.nodes, emit::TRIPS) <= met).then_some(found)
    };
    let remedied = if remedies.is_empty() { None } else { (0..=remedies.len()).rev().find_map(remedied) };
    Some(Placed { wanted, ..remedied.unwrap_or(placed) })
}

/// Moves steps so that fewer barriers are needed, and removes those that are not.
fn finish(mut placed: Placed) -> Placed {
    let addresses = Addresses { k: &placed.kernel, plan: &placed.plan };
    settle::settle(&mut placed.emitted.nodes, emit::TRIPS, &addresses);
    races::prune(&mut placed.emitted.nodes, &addresses);
    placed
}

/// The limits of a placement that is tried.
#[derive(Clone, Copy)]
struct Want<'a> {
    /// The maximum cost.
    most: f64,
    /// Arrangement of the rows of buffers, by name.
    pads: &'a BTreeMap<String, Pad>,
    /// True if the text is written; otherwise the placement is only compared.
    written: bool,
}

/// The cheapest placement for one depth of pipelining, without its text, and the parameters that led to it.
struct Cheapest {
    placed: Placed,
    depth: usize,
    grid: (u32, u32),
    forms: Vec<Form>,
}

/// Tries all thread grids for one depth of pipelining.
fn cheapest(task: Task<'_>, grids: &[(u32, u32)], depth: usize) -> Option<Cheapest> {
    let (none, mut forms) = (BTreeMap::new(), vec![]);
    let mut best: Option<(Placed, (u32, u32))> = None;
    for &grid in grids {
        let most = best.as_ref().map_or(f64::INFINITY, |(b, _)| b.cost);
        let want = Want { most, pads: &none, written: false };
        if let Some(placed) = on_grid(task, depth, grid, want, &mut forms).filter(|p| p.cost < most) {
            best = Some((placed, grid));
        }
    }
    let (placed, grid) = best?;
    Some(Cheapest { placed, depth, grid, forms })
}

/// A kernel with some of its scratch promoted to values, and its analysis.
struct Form {
    staged: Staged,
    analysis: Analysis,
}

/// Returns the placement on one grid of threads. Scratch for which there are no registers stays in memory.
fn on_grid(task: Task<'_>, depth: usize, grid: (u32, u32), want: Want<'_>, forms: &mut Vec<Form>) -> Option<Placed> {
    let (kernel, numbers) = (task.kernel, task.target.profile.numbers());
    let all = || (0..kernel.operands.len() as u32).map(OperandId).collect();
    let mut kept: Vec<OperandId> = if numbers.registers == 0 || task.resumed { all() } else { vec![] };
    loop {
        let at = forms.iter().position(|f| f.staged.kept == kept).unwrap_or_else(|| {
            let staged = Staged {
                resumed: task.resumed,
                has_registers: numbers.registers > 0,
                kept: kept.clone(),
                depth,
                ..Staged::new(kernel.clone(), task.sequential)
            };
            let staged = staged.placed();
            let whole = |of| emit::fours(&staged.kernel, of, task.multiples);
            let analysis = Analysis::new(&staged.kernel, numbers, whole, task.target.matrices);
            forms.push(Form { staged, analysis });
            forms.len() - 1
        });
        let Form { staged: Staged { kernel, carried, fetched, .. }, analysis } = &forms[at];
        let plan = analysis.plan(kernel, numbers, grid, want.pads);
        let large = |v: Value| kernel.ty(v).elements() > numbers.registers * plan.threads();
        // Values that loops and branches pass on would be copied from memory to memory; factors of matrices are stored
        // there anyway.
        let handed = |v: Value| plan.defined[v.index()].is_none_or(|i| !kernel.inst(i).regions.is_empty());
        let memory = |v: Value| match plan.homes[v.index()] {
            Home::Buffer(b) => plan.buffers[b].cell.is_bits() || handed(v),
            Home::Fragments => false,
            Home::None | Home::Registers => large(v),
        };
        let mut out: Vec<OperandId> = carried.iter().filter(|(v, _)| memory(*v)).map(|(_, o)| *o).collect();
        if out.is_empty() {
            let placed = fit(task, kernel, plan, numbers, want)?;
            return Some(Placed { fetched: fetched.clone(), ..placed });
        }
        out.extend(&kept);
        out.sort_unstable();
        out.dedup();
        kept = out;
    }
}

/// Emits until every tile that is read across threads has a copy, and the buffers fit; the largest are moved to global
/// memory. Returns `None` if the program costs more than `want.most`, or if the kernel's scratch does not fit.
fn fit(task: Task<'_>, k: &Kernel, mut plan: Plan, numbers: &Numbers, want: Want<'_>) -> Option<Placed> {
    plan.buffers.iter_mut().filter(|b| b.scratch).for_each(|b| b.outside = task.resumed);
    let room = task.target.workgroup_bytes as usize;
    // The storage of buffers is determined before the text is written.
    let mut written = false;
    loop {
        let own = plan.buffers.len();
        let mut emitted = emit::body(k, &mut plan, numbers, task, (want.most, written));
        if emitted.stopped {
            return None;
        }
        if !emitted.wanted.is_empty() {
            plan.buffers.truncate(own);
            emitted.wanted.iter().for_each(|&v| plan.copy(k, v));
            continue;
        }
        if !emitted.singles.is_empty() {
            plan.buffers.truncate(own);
            emitted.singles.iter().for_each(|&b| plan.buffers[b].cell = Cell::Word);
            continue;
        }
        let sizes = arena::place(&mut plan.buffers, &emitted.nodes, emitted.agrees, room);
        if sizes.workgroup_bytes() > room {
            plan.buffers.truncate(own);
            // Matrices are loaded from workgroup memory.
            let movable = |b: &usize| {
                let b = &plan.buffers[*b];
                !b.outside && !b.scratch && b.cell.is_bits()
            };
            match (0..own).filter(movable).max_by_key(|&b| plan.buffers[b].words) {
                Some(largest) => plan.buffers[largest].outside = true,
                None if plan.sorts_outside => return None,
                None => plan.sorts_outside = true,
            }
            continue;
        }
        if want.written && !written {
            plan.buffers.truncate(own);
            written = true;
            continue;
        }
        sync::insert(&mut emitted.nodes, &Addresses { k, plan: &plan });
        let registers = pressure::registers(k, &plan, &emitted.held);
        let (file, price) = numbers.file;
        let spilled = registers.saturating_sub(file) as f64 * price;
        let barrier = if emitted.lockstep { 0.0 } else { numbers.barrier };
        let work = emitted.work + settle::weight(&emitted.nodes, emit::TRIPS) * barrier + spilled;
        let cost = emit::cost(work, emitted.lines, &plan, numbers);
        // The cost may be equal to the maximum.
        return (cost <= want.most).then(|| Placed {
            kernel: k.clone(),
            plan,
            emitted,
            sizes,
            registers,
            sequential: task.sequential,
            most_registers: numbers.registers,
            fetched: vec![],
            wanted: vec![],
            cost,
        });
    }
}
