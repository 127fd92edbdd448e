//! Determines which programs of a launch may run at the same time: those that touch different elements of all memory
//! that is written.
//!
//! The rules, for every output that a kernel stores to and the input that it aliases:
//!
//! 1. Programs that differ in a parallel axis run at the same time if the spec proves that they touch different
//!    elements: the index along that axis is itself an entry of every index map of that memory, in a dimension divided
//!    into equal blocks, and no access addresses that dimension by a run-time start. This is decided when the kernel is
//!    compiled and costs nothing at a launch.
//! 2. For the other axes a launch of several programs evaluates the index maps, including tables. If no two programs
//!    share a block that one of them stores to, all programs run at the same time.
//! 3. If two programs certainly touch one element, by accesses without a condition or mask, and one of them stores, the
//!    launch is refused with the interpreter's `race`.
//! 4. Otherwise programs that rule 1 does not prove disjoint run in order, on one thread.
use super::launch::{Launch, LaunchError};
use super::run;
use crate::interp::{Datum, Fault, eval};
use crate::passes::lower;
use pallas_ir::{
    Axis, BlockDim, DType, Inst, Kernel, Literal, Loc, Op, OperandId, OperandKind, RegionId, Semantics, Value, View,
    ViewFrame,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum number of blocks that a launch evaluates, and of pairs of blocks that it compares. With more, the programs
/// that the spec does not prove disjoint run in order, on one thread.
const MAX_RACE_CHECKS: usize = 1 << 16;

/// Properties of a kernel by which launches decide which programs may run at the same time.
#[derive(Debug)]
pub(super) struct RaceAnalysis {
    /// The kernel as traced, which has the index maps.
    kernel: Arc<Kernel>,
    /// For each parallel axis, true if the spec proves that its programs touch different elements.
    proven: Vec<bool>,
    /// Memory for which the spec does not prove that programs touch different elements.
    unproven: Vec<WrittenMemory>,
    /// For the last launch whose index maps read no tables: its sizes, and true if its programs touched different
    /// elements.
    last: Mutex<Option<(Vec<i64>, bool)>>,
}

/// Memory that is stored to: an output, and the input that it aliases if there is one.
#[derive(Debug)]
struct WrittenMemory {
    accesses: Vec<Access>,
    /// For each grid axis, true if its index is an entry of every index map and every access stays in that block.
    disjoint_axes: Vec<bool>,
}

/// A load or store of an output, or of the input that the output aliases.
#[derive(Clone, Debug)]
struct Access {
    operand: OperandId,
    view: View,
    stores: bool,
    /// True if every program executes the access, for all of its elements.
    certain: bool,
    loc: Loc,
}

/// Elements that an access of a program may touch: a range (start, end) for each dimension.
struct AccessedRanges<'a> {
    program: Vec<i64>,
    ranges: Vec<(i64, i64)>,
    access: &'a Access,
}

impl RaceAnalysis {
    pub(super) fn new(kernel: Arc<Kernel>) -> RaceAnalysis {
        let all: Vec<WrittenMemory> =
            (0..kernel.operands.len()).filter_map(|o| find_written_memory(&kernel, o)).collect();
        let parallel = |axis: &usize| kernel.grid[*axis].semantics == Semantics::Parallel;
        let axes: Vec<usize> = (0..kernel.grid.len()).filter(parallel).collect();
        let proven: Vec<bool> = axes.iter().map(|&a| all.iter().all(|s| s.disjoint_axes[a])).collect();
        let open = all.into_iter().filter(|s| !axes.iter().all(|&a| s.disjoint_axes[a])).collect();
        RaceAnalysis { proven, unproven: open, last: Mutex::default(), kernel }
    }

    /// Returns for each parallel axis of the launch true if programs that differ in it may run at the same time;
    /// `None` if all programs may.
    ///
    /// # Errors
    /// Two programs certainly touch one element that one of them stores to.
    pub(super) fn find_concurrent_axes(&self, launch: &Launch<'_>) -> Result<Option<Vec<bool>>, LaunchError> {
        let is_single = launch.grid.iter().product::<i64>() <= 1;
        if is_single || self.unproven.is_empty() || self.are_programs_disjoint(launch)? {
            Ok(None)
        } else {
            Ok(Some(self.proven.clone()))
        }
    }

    /// Returns the launch's extents in the order of the traced grid's axes, which differs from that of the lowered
    /// kernel.
    fn traced_grid_extents(&self, launch: &Launch<'_>) -> Vec<i64> {
        let (mut parallel, mut steps) = (launch.grid.iter(), launch.steps.iter());
        let of = |axis: &Axis| match axis.semantics {
            Semantics::Parallel => parallel.next(),
            Semantics::Arbitrary => steps.next(),
        };
        self.kernel.grid.iter().map(of).map(|n| *n.expect("a launch has an extent for each axis")).collect()
    }

    /// Returns true if no two programs share an element that one of them stores to, in all memory for which the spec
    /// does not prove it; false also if that is unknown. The error is the fault `race`.
    fn are_programs_disjoint(&self, launch: &Launch<'_>) -> Result<bool, LaunchError> {
        let mut operands = self.unproven.iter().flat_map(|s| &s.accesses).map(|a| a.operand);
        let by_data = operands.any(|o| lower::has_data_dependent_map(&self.kernel, o));
        let key = || -> Vec<i64> {
            let extents = launch.memory.iter().flat_map(|m| m.shape).map(|&n| n as i64);
            launch.sizes.iter().copied().chain(extents).collect()
        };
        let mut last = self.last.lock();
        if let Some((_, apart)) = last.as_ref().filter(|(sizes, _)| !by_data && *sizes == key()) {
            return Ok(*apart);
        }
        let grid = self.traced_grid_extents(launch);
        let mut apart = true;
        for shared in &self.unproven {
            apart &= match self.find_all_access_ranges(shared, &grid, launch) {
                Some(touched) => self.are_accesses_disjoint(touched)?,
                None => false,
            };
        }
        *last = (!by_data).then(|| (key(), apart));
        Ok(apart)
    }

    /// Returns the elements that the accesses of all programs may touch; `None` if they are unknown, or too many to
    /// examine.
    fn find_all_access_ranges<'a>(
        &self,
        written: &'a WrittenMemory,
        grid: &[i64],
        launch: &Launch<'_>,
    ) -> Option<Vec<AccessedRanges<'a>>> {
        let maps: Vec<RegionId> = written.accesses.iter().filter_map(|a| self.kernel.operand(a.operand).map).collect();
        // One index represents an axis that is proven to separate programs, two an axis that no map reads.
        let needed = |axis: usize| match self.kernel.grid[axis].semantics {
            _ if maps.iter().any(|&m| has_computed_axis_use(&self.kernel, m, axis)) => grid[axis],
            Semantics::Parallel if !written.disjoint_axes[axis] => grid[axis].min(2),
            Semantics::Parallel | Semantics::Arbitrary => grid[axis].min(1),
        };
        let extents: Vec<i64> = (0..grid.len()).map(needed).collect();
        let count = extents.iter().try_fold(written.accesses.len() as i64, |n, &extent| n.checked_mul(extent))?;
        if count > MAX_RACE_CHECKS as i64 {
            return None;
        }
        let mut all = Vec::with_capacity(count as usize);
        // Different steps of a program may have the same block.
        let steps = (0..extents.len()).any(|a| self.kernel.grid[a].semantics == Semantics::Arbitrary && extents[a] > 1);
        let mut seen = HashSet::new();
        for mut rest in 0..extents.iter().product() {
            let mut ids = vec![0; extents.len()];
            for (id, &n) in ids.iter_mut().zip(&extents).rev() {
                (*id, rest) = (rest % n, rest / n);
            }
            let parallel = ids.iter().zip(&self.kernel.grid).filter(|(_, a)| a.semantics == Semantics::Parallel);
            let program: Vec<i64> = parallel.map(|(&id, _)| id).collect();
            for (at, access) in written.accesses.iter().enumerate() {
                let ranges = self.find_access_ranges(access, &ids, grid, launch)?;
                let empty = ranges.iter().any(|(from, to)| from >= to);
                if !empty && (!steps || seen.insert((at, program.clone(), ranges.clone()))) {
                    all.push(AccessedRanges { program: program.clone(), ranges, access });
                }
            }
        }
        Some(all)
    }

    /// Returns true if no two programs share elements that one of them stores to; false also if there are too many
    /// pairs to compare. The error is the fault `race`, if two programs certainly touch one element.
    fn are_accesses_disjoint(&self, mut accesses: Vec<AccessedRanges<'_>>) -> Result<bool, LaunchError> {
        let rank = accesses.first().map_or(0, |t| t.ranges.len());
        let distinct = |k: &usize| accesses.iter().map(|t| t.ranges[*k].0).collect::<HashSet<_>>().len();
        // Sort along the dimension with the most distinct starts, in which the fewest ranges overlap.
        let along = (0..rank).max_by_key(distinct);
        if let Some(k) = along {
            accesses.sort_by_key(|t| t.ranges[k].0);
        }
        let (mut apart, mut pairs) = (true, 0);
        for (i, a) in accesses.iter().enumerate() {
            for b in accesses[i + 1..].iter().take_while(|b| along.is_none_or(|k| b.ranges[k].0 < a.ranges[k].1)) {
                pairs += 1;
                if pairs > MAX_RACE_CHECKS {
                    return Ok(false);
                }
                let shares = a.ranges.iter().zip(&b.ranges).all(|(x, y)| x.0.max(y.0) < x.1.min(y.1));
                if a.program == b.program || !shares || !(a.access.stores || b.access.stores) {
                    continue;
                }
                apart = false;
                if a.access.certain && b.access.certain {
                    return Err(LaunchError::Fault(self.describe_race(a, b)));
                }
            }
        }
        Ok(apart)
    }

    /// Returns the fault for two programs that touch one element, with the code `race`.
    fn describe_race(&self, a: &AccessedRanges<'_>, b: &AccessedRanges<'_>) -> Fault {
        let (writer, other) = if a.access.stores { (a, b) } else { (b, a) };
        let first: Vec<i64> = a.ranges.iter().zip(&b.ranges).map(|(x, y)| x.0.max(y.0)).collect();
        let message = format!(
            "a race: program {:?} stores to element {first:?} of `{}`, which program {:?} {} at {}",
            writer.program,
            self.kernel.operand(writer.access.operand).name,
            other.program,
            if other.access.stores { "stores to" } else { "reads" },
            other.access.loc,
        );
        let (code, kernel, program) = ("race", self.kernel.name.clone(), writer.program.clone());
        let help = "make the axis `arbitrary`, or give each program its own block".into();
        Fault { code, kernel, program, loc: writer.access.loc, message, help }
    }

    /// Returns the elements that an access of the program with these grid indices may touch; `None` if they are
    /// unknown.
    fn find_access_ranges(
        &self,
        access: &Access,
        grid_indices: &[i64],
        grid_extents: &[i64],
        launch: &Launch<'_>,
    ) -> Option<Vec<(i64, i64)>> {
        let operand = self.kernel.operand(access.operand);
        let shape = launch.memory[access.operand.index()].shape;
        let origin = match operand.map {
            Some(map) => self.evaluate_index_map(map, grid_indices, grid_extents, launch)?,
            None => vec![0; shape.len()],
        };
        let mut axes = access.view.axes.iter();
        let mut ranges = vec![];
        for ((&block, &index), &extent) in operand.block.iter().zip(&origin).zip(shape) {
            let first = match block {
                BlockDim::Squeezed => index,
                BlockDim::Blocked(n) => index * n as i64,
                BlockDim::Element { low, .. } => index - low as i64,
            };
            let whole = (0, extent as i64);
            let within = |from: i64, to: i64| (from.max(whole.0), to.min(whole.1));
            let inner = if block.is_kept() || access.view.frame == ViewFrame::Array { axes.next() } else { None };
            ranges.push(match inner {
                _ if access.view.frame == ViewFrame::Array => whole,
                // Such a block is outside of the array: `lower` clamps its position, or the launch is refused.
                _ if i32::try_from(first).is_err() => (0, 0),
                Some(axis) if axis.dynamic => whole,
                Some(axis) if axis.size == 0 => (0, 0),
                Some(axis) => {
                    let from = first + axis.offset;
                    within(from, from + axis.stride * (axis.size as i64 - 1) + 1)
                }
                None => within(first, first + 1),
            });
        }
        Some(ranges)
    }

    /// Evaluates an index map for a program as the interpreter does, and returns its entries; `None` if the map has
    /// control flow.
    fn evaluate_index_map(
        &self,
        map: RegionId,
        grid_indices: &[i64],
        grid_extents: &[i64],
        launch: &Launch<'_>,
    ) -> Option<Vec<i64>> {
        let kernel = &*self.kernel;
        let region = kernel.region(map);
        let int = |x: i64| Literal::int(DType::I32, x);
        let mut values: Vec<(Value, Literal)> =
            region.params.iter().zip(grid_indices).map(|(&v, &id)| (v, int(id))).collect();
        let get = |values: &[(Value, Literal)], v: Value| values.iter().find(|(x, _)| *x == v).map(|(_, x)| *x);
        for &id in &region.insts {
            let Inst { op, args, results, .. } = kernel.inst(id);
            let [to] = results[..] else { return None };
            let args: Vec<Literal> = args.iter().map(|&v| get(&values, v)).collect::<Option<_>>()?;
            let computed = |f: &dyn Fn(&[&Datum]) -> Option<Datum>| {
                let data: Vec<Datum> = args.iter().map(|&x| Datum::scalar(x)).collect();
                f(&data.iter().collect::<Vec<_>>()).map(|d| d.data.get(0))
            };
            let ty = || kernel.ty(to).clone();
            let value = match op {
                Op::Const(x) => *x,
                Op::Scalar(op) => computed(&|args| Some(eval::eval_scalar(*op, args, ty())))?,
                Op::Structural(op) => computed(&|args| eval::eval_structural(op, args, ty()).ok())?,
                Op::ProgramId(axis) => int(grid_indices[*axis]),
                Op::NumPrograms(axis) => int(grid_extents[*axis]),
                Op::NumSteps(_) => return None,
                Op::Extent(dim) => int(launch.sizes[dim.index()]),
                Op::Param(o) => launch.params[o.index()]?,
                Op::Prefetch(o) => {
                    let at = args.iter().map(|x| x.as_i64());
                    // SAFETY: the caller of `Executable::run` guarantees that the memory is valid.
                    unsafe { run::read_clamped_element(&launch.memory[o.index()], kernel.operand(*o).dtype, at) }
                }
                Op::Load { .. } | Op::Store { .. } | Op::Valid { .. } => return None,
                Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_) => return None,
            };
            values.push((to, value));
        }
        region.yields.iter().map(|&v| Some(get(&values, v)?.as_i64())).collect()
    }
}

/// Returns the accesses to an output that is stored to, and to the input that it aliases; `None` for every other
/// operand.
fn find_written_memory(kernel: &Kernel, output: usize) -> Option<WrittenMemory> {
    let OperandKind::Output { alias, .. } = &kernel.operands[output].kind else { return None };
    let of = |o: OperandId| o.index() == output || *alias == Some(o);
    let mut accesses: Vec<Access> = vec![];
    kernel.walk(kernel.body, &mut |id, inst| {
        let (operand, view, masked, stores) = match &inst.op {
            Op::Load { from, view, masked } if of(*from) => (*from, view, *masked, false),
            Op::Store { to, view, masked } if of(*to) => (*to, view, *masked, true),
            _ => return,
        };
        let certain = !masked
            && kernel.region(kernel.body).insts.contains(&id)
            && view.frame == ViewFrame::Block
            && view.axes.iter().all(|a| !a.dynamic && a.stride == 1);
        let access = Access { operand, view: view.clone(), stores, certain, loc: kernel.loc(id) };
        let same = |a: &Access| (a.operand, &a.view, a.stores) == (access.operand, &access.view, access.stores);
        match accesses.iter_mut().find(|a| same(a)) {
            Some(known) if !known.certain => *known = access,
            Some(_) => {}
            None => accesses.push(access),
        }
    });
    if !accesses.iter().any(|a| a.stores) {
        return None;
    }
    let own = (0..kernel.grid.len()).map(|axis| is_axis_disjoint(kernel, &accesses, axis)).collect();
    Some(WrittenMemory { accesses, disjoint_axes: own })
}

/// Returns true if programs that differ along a grid axis touch different elements by these accesses.
fn is_axis_disjoint(kernel: &Kernel, accesses: &[Access], axis: usize) -> bool {
    let Some(dim) = accesses.first().and_then(|a| find_blocked_dimension(kernel, a.operand, axis)) else {
        return false;
    };
    let block = kernel.operand(accesses[0].operand).block[dim];
    accesses.iter().all(|a| {
        let operand = kernel.operand(a.operand);
        let same = find_blocked_dimension(kernel, a.operand, axis) == Some(dim) && operand.block[dim] == block;
        let kept = operand.block[..dim].iter().filter(|b| b.is_kept()).count();
        let still = !block.is_kept() || a.view.axes.get(kept).is_some_and(|view| !view.dynamic);
        same && still && a.view.frame == ViewFrame::Block
    })
}

/// Returns the dimension in which the index along a grid axis selects one of equal blocks, if there is one.
fn find_blocked_dimension(kernel: &Kernel, operand: OperandId, axis: usize) -> Option<usize> {
    let operand = kernel.operand(operand);
    let map = kernel.region(operand.map?);
    let blocks = |k: &usize| !matches!(operand.block[*k], BlockDim::Element { .. });
    (0..map.yields.len()).filter(blocks).find(|&k| map.yields[k] == map.params[axis])
}

/// Returns true if an index map computes with the index of a grid axis, or has it as several entries; false if the
/// index is only one entry, unchanged, or unused. For a sequential axis, any use counts.
fn has_computed_axis_use(kernel: &Kernel, map: RegionId, axis: usize) -> bool {
    let (region, mut used) = (kernel.region(map), 0);
    let id = region.params[axis];
    kernel.walk(map, &mut |_, inst| used += usize::from(inst.args.contains(&id) || inst.op == Op::ProgramId(axis)));
    let entries = region.yields.iter().filter(|&&v| v == id).count();
    used > 0 || entries > 1 || (entries == 1 && kernel.grid[axis].semantics == Semantics::Arbitrary)
}
