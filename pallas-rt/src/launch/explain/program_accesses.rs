//! Follows programs of a grid with their ids: the blocks that each sees, and its accesses in program order.
//!
//! Values that ids and sizes determine are computed; data and parameters are unknown.
use pallas_codegen::interp::{Datum, eval, walk};
use pallas_device::LaunchGeometry;
use pallas_ir::{BlockDim, DType, Inst, InstId, Kernel, Literal, Loc, Op, OperandId, RegionId, Semantics, Value, View};

/// Maximum number of accesses of a program that are listed.
const MAX_LISTED_ACCESSES: usize = 48;
/// Maximum number of instructions that are followed for one program.
const MAX_FOLLOWED_INSTRUCTIONS: usize = 20_000;

/// The blocks and accesses of one program.
pub(super) struct FollowedProgram {
    /// Its program ids, one per grid axis.
    pub ids: Vec<i64>,
    /// For each operand, the first element of its block in each dimension of the array; `None` if data chooses it.
    pub blocks: Vec<Vec<Option<i64>>>,
    pub accesses: Vec<OperandAccess>,
    /// True if it has more accesses than are listed.
    pub is_cut: bool,
}

/// A load, a store, or a read of a prefetched element.
pub(super) struct OperandAccess {
    pub operand: OperandId,
    pub stores: bool,
    /// For each dimension of the array, the first element (`None` if data chooses it) and the number of elements.
    pub elements: Vec<(Option<i64>, i64)>,
    /// True inside of a branch or loop of which it is unknown whether it runs, or how often.
    pub is_conditional: bool,
    pub at: Loc,
}

/// Returns the ids of programs in order (steps of a parallel program follow each other), and the number of all
/// programs. Of more than `max_programs` programs only the first and the last are returned, `max_programs` in all.
pub(super) fn program_order(kernel: &Kernel, geometry: &LaunchGeometry, max_programs: i64) -> (Vec<Vec<i64>>, i64) {
    let axes = 0..geometry.grid.len();
    let is_parallel = |&axis: &usize| kernel.grid[axis].semantics == Semantics::Parallel;
    let slowest: Vec<usize> = axes.clone().filter(is_parallel).chain(axes.filter(|axis| !is_parallel(axis))).collect();
    let total: i64 = geometry.grid.iter().product();
    let ids = |mut number: i64| {
        let mut ids = vec![0; slowest.len()];
        for &axis in slowest.iter().rev() {
            (ids[axis], number) = (number % geometry.grid[axis], number / geometry.grid[axis]);
        }
        ids
    };
    let last = if total > max_programs { max_programs / 4 } else { 0 };
    ((0..total.min(max_programs) - last).chain(total - last..total).map(ids).collect(), total)
}

/// Evaluates the program with these ids as far as ids and sizes determine its values, and lists its blocks and
/// accesses.
pub(super) fn follow_program(kernel: &Kernel, geometry: &LaunchGeometry, ids: Vec<i64>) -> FollowedProgram {
    let values = vec![None; kernel.values.len()];
    let program = FollowedProgram { ids, blocks: vec![], accesses: vec![], is_cut: false };
    let mut follow =
        ProgramFollower { kernel, geometry, program, values, is_conditional: false, budget: MAX_FOLLOWED_INSTRUCTIONS };
    for operand in &kernel.operands {
        let numbers: Vec<KnownScalar> = follow.program.ids.iter().map(|&n| known_int(n)).collect();
        let index =
            operand.map.map_or(vec![known_int(0); operand.block.len()], |map| follow.follow_region(map, &numbers));
        let first = |(&block, index): (&BlockDim, &KnownScalar)| {
            let index = index.map(Literal::as_i64)?;
            Some(match block {
                BlockDim::Squeezed => index,
                BlockDim::Blocked(n) => index * n as i64,
                BlockDim::Element { low, .. } => index - low as i64,
            })
        };
        let block = operand.block.iter().zip(&index).map(first).collect();
        follow.program.blocks.push(block);
    }
    // Tables that maps read are no accesses of the body.
    follow.program.accesses.clear();
    follow.follow_region(kernel.body, &[]);
    follow.program
}

/// A scalar's value; `None` if program ids and sizes do not determine it.
type KnownScalar = Option<Literal>;

fn known_int(n: i64) -> KnownScalar {
    Some(Literal::int(DType::I32, n))
}

/// Evaluation of one program of a grid, with the values known so far and the accesses found.
struct ProgramFollower<'k> {
    kernel: &'k Kernel,
    geometry: &'k LaunchGeometry,
    program: FollowedProgram,
    /// The known value of each [`Value`].
    values: Vec<KnownScalar>,
    is_conditional: bool,
    /// Instructions that may still be followed.
    budget: usize,
}

impl ProgramFollower<'_> {
    fn known_value(&self, v: Value) -> KnownScalar {
        self.values[v.index()]
    }

    /// Evaluates the instructions of a region with these values of its parameters, lists their accesses, and returns
    /// the values that it yields.
    fn follow_region(&mut self, region: RegionId, params: &[KnownScalar]) -> Vec<KnownScalar> {
        let region = self.kernel.region(region);
        for (i, p) in region.params.iter().enumerate() {
            self.values[p.index()] = params.get(i).copied().flatten();
        }
        for &id in &region.insts {
            if self.budget == 0 {
                self.program.is_cut = true;
                break;
            }
            self.budget -= 1;
            let inst = self.kernel.inst(id);
            let results = self.follow_inst(id, inst);
            for (i, v) in inst.results.iter().enumerate() {
                self.values[v.index()] = results.get(i).copied().flatten();
            }
        }
        region.yields.iter().map(|&v| self.known_value(v)).collect()
    }

    /// Evaluates a region of which it is unknown whether it runs, or how often, and lists its accesses as conditional.
    fn follow_conditional_region(&mut self, region: RegionId) {
        let before = std::mem::replace(&mut self.is_conditional, true);
        self.follow_region(region, &[]);
        self.is_conditional = before;
    }

    /// Evaluates an instruction, lists its accesses, and returns the values of its results as far as they are known.
    fn follow_inst(&mut self, id: InstId, inst: &Inst) -> Vec<KnownScalar> {
        vec![match &inst.op {
            Op::Const(x) => Some(*x),
            Op::ProgramId(axis) => known_int(self.program.ids[*axis]),
            Op::NumPrograms(axis) => known_int(self.geometry.grid[*axis]),
            Op::Extent(dim) => known_int(self.geometry.sizes[dim.index()]),
            Op::Scalar(_) | Op::Structural(_) => self.compute_scalar(inst),
            Op::Load { from, view, .. } => {
                self.record_view_access(id, *from, view, false, &inst.args);
                None
            }
            Op::Store { to, view, .. } => {
                self.record_view_access(id, *to, view, true, &inst.args[1..]);
                None
            }
            Op::Prefetch(of) => {
                let elements = inst.args.iter().map(|&v| (self.known_value(v).map(Literal::as_i64), 1)).collect();
                self.record_access(id, *of, false, elements);
                None
            }
            Op::If => match self.known_value(inst.args[0]) {
                Some(taken) => return self.follow_region(inst.regions[usize::from(taken.bits == 0)], &[]),
                None => {
                    inst.regions.iter().for_each(|&side| self.follow_conditional_region(side));
                    None
                }
            },
            Op::For { reverse } => return self.follow_for(inst, *reverse),
            Op::While => {
                inst.regions.iter().for_each(|&region| self.follow_conditional_region(region));
                None
            }
            Op::Param(_) | Op::Valid { .. } | Op::NumSteps(_) | Op::DebugPrint(_) | Op::DebugAssert(_) => None,
        }]
    }

    /// Computes the result of a scalar instruction, if its operands are known.
    fn compute_scalar(&self, inst: &Inst) -> KnownScalar {
        let ty = self.kernel.ty(inst.results[0]);
        let args: Vec<Datum> =
            inst.args.iter().map(|&v| self.known_value(v).map(Datum::scalar)).collect::<Option<_>>()?;
        let args: Vec<&Datum> = args.iter().collect();
        match &inst.op {
            _ if !ty.is_scalar() => None,
            Op::Scalar(op) => Some(eval::eval_scalar(*op, &args, ty.clone()).data.get(0)),
            Op::Structural(op) => eval::eval_structural(op, &args, ty.clone()).ok().map(|x| x.data.get(0)),
            _ => None,
        }
    }

    /// Evaluates all iterations of a `for`, the last one first if `reverse`, and returns the values of its results;
    /// with unknown bounds its body once, as conditional.
    fn follow_for(&mut self, inst: &Inst, reverse: bool) -> Vec<KnownScalar> {
        let number = |i: usize| self.known_value(inst.args[i]).map(Literal::as_i64);
        let turns = match [number(0), number(1), number(2)] {
            [Some(lo), Some(hi), Some(step)] => walk::trip_count(lo, hi, step).ok().map(|turns| (lo, step, turns)),
            _ => None,
        };
        let Some((lo, step, turns)) = turns else {
            self.follow_conditional_region(inst.regions[0]);
            return vec![];
        };
        let mut carried: Vec<KnownScalar> = inst.args[3..].iter().map(|&v| self.known_value(v)).collect();
        for k in 0..turns {
            if self.budget == 0 {
                return vec![];
            }
            let k = if reverse { turns - 1 - k } else { k };
            carried = self.follow_region(inst.regions[0], &[vec![known_int(lo + k * step)], carried].concat());
        }
        carried
    }

    /// Lists an access of the part of an operand's block that `view` selects; `starts` are its run-time starts.
    fn record_view_access(&mut self, id: InstId, operand: OperandId, view: &View, is_store: bool, starts: &[Value]) {
        let (block, origin) = (&self.kernel.operand(operand).block, &self.program.blocks[operand.index()]);
        let (mut axes, mut starts) = (view.axes.iter(), starts.iter());
        let mut elements = vec![];
        for (dim, &first) in block.iter().zip(origin) {
            elements.push(match dim.is_kept().then(|| axes.next()).flatten() {
                None => (first, 1),
                Some(axis) => {
                    let start = if axis.dynamic {
                        starts.next().map(|&v| self.known_value(v).map(Literal::as_i64))
                    } else {
                        None
                    };
                    let first = first.and_then(|first| Some(first + axis.offset + start.unwrap_or(Some(0))?));
                    (first, axis.stride * (axis.size as i64 - 1).max(0) + i64::from(axis.size > 0))
                }
            });
        }
        self.record_access(id, operand, is_store, elements);
    }

    /// Lists an access, if fewer than [`MAX_LISTED_ACCESSES`] are listed.
    fn record_access(&mut self, id: InstId, operand: OperandId, is_store: bool, elements: Vec<(Option<i64>, i64)>) {
        let ProgramFollower { kernel, is_conditional, .. } = *self;
        match self.program.accesses.len() < MAX_LISTED_ACCESSES {
            true => {
                let at = kernel.loc(id);
                self.program.accesses.push(OperandAccess { operand, stores: is_store, elements, is_conditional, at });
            }
            false => self.program.is_cut = true,
        }
    }
}
