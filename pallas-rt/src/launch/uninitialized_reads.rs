//! Finds memory that a program reads though nothing has written it, in the tile IR of a traced kernel.
//!
//! The macro finds a read in front of every store, and `if program_id(axis) == n { s.fill(0.0) }`. This check does not
//! depend on the spelling of a condition: it follows a few programs of a grid with their ids. Values that the ids do
//! not determine (data, parameters) are unknown, and unknown counts as right: only a kernel that certainly gives an
//! undefined result for some sizes is refused.
use super::bind::CallSizes;
use super::spec::KernelSpec;
use pallas_codegen::interp::eval;
use pallas_ir::{
    AccessForm, At, DType, Diag, Inst, InstId, Kernel, Literal, Loc, Op, OperandId, OperandKind, RegionId, ScalarOp,
    Semantics, StructuralOp, Value, ViewFrame,
};

/// Maximum number of instructions that are followed for one grid; beyond it nothing is reported.
const MAX_FOLLOWED_INSTRUCTIONS: usize = 1_000_000;
/// Number of first steps along the sequential axes that are followed one by one; all steps between these and the last
/// one are evaluated once, with unknown program ids along these axes.
const MAX_FOLLOWED_STEPS: i64 = 4;

/// Knowledge about a value while a program is evaluated: its number, or that its elements are undefined, or nothing.
#[derive(Clone, Copy, PartialEq)]
enum ValueFact {
    /// A scalar with this value.
    Number(Literal),
    /// Elements that nothing has written; this instruction read them from this memory.
    Undefined(OperandId, InstId),
    /// Nothing is known.
    Unknown,
}

/// The first use of undefined elements that decides a result.
struct EarlyRead {
    memory: OperandId,
    read: InstId,
    /// The `if` whose stores this program skipped.
    skipped: Option<InstId>,
}

/// Finds a program that certainly reads an output or scratch before anything is stored there, and uses what it read.
///
/// # Errors
/// `early-read` with the user's line: the condition that leaves the store to other programs, else the read.
pub(super) fn check_early_reads(kernel: &Kernel, spec: &KernelSpec, sizes: &CallSizes) -> Result<(), (Loc, Diag)> {
    let mut loads = false;
    kernel.walk(kernel.body, &mut |_, inst| {
        loads |= matches!(inst.op, Op::Load { from, .. } if is_undefined_at_start(kernel, from));
    });
    if !loads {
        return Ok(());
    }
    let Some(found) = grids_to_check(kernel, spec, sizes)
        .into_iter()
        .find_map(|(extents, grid)| find_early_read(kernel, extents, grid))
    else {
        return Ok(());
    };
    let operand = kernel.operand(found.memory);
    let output = operand.kind != OperandKind::Scratch;
    let (what, name) = (if output { "output" } else { "scratch" }, &operand.name);
    let parallel = |&axis: &usize| kernel.grid[axis].semantics == Semantics::Parallel;
    let begun = found.skipped.and_then(|skipped| {
        let axis = program_id_axes(kernel, kernel.inst(skipped).args[0]).into_iter().find(parallel)?;
        Some((kernel.loc(skipped), axis))
    });
    let (loc, message, help) = match begun {
        Some((loc, axis)) => (
            loc,
            format!(
                "{what} `{name}` is begun by one program of axis {axis}, which is parallel: the others read nothing"
            ),
            early_read_help(kernel, found.memory, axis),
        ),
        None => (
            kernel.loc(found.read),
            format!("{what} `{name}` is read before it is written"),
            match output {
                true => "an output holds nothing at first: store to it, or read an `In`".to_string(),
                false => "scratch holds nothing at a program's first step: store to it first".to_string(),
            },
        ),
    };
    Err((loc, Diag::new("early-read", At::Op, message, help)))
}

/// Returns true if an operand's memory holds nothing when a program begins.
fn is_undefined_at_start(kernel: &Kernel, operand: OperandId) -> bool {
    matches!(kernel.operand(operand).kind, OperandKind::Scratch | OperandKind::Output { alias: None, .. })
}

/// Returns the advice for memory that one program along the parallel axis `axis` initializes, under a test of its
/// program id, and the other programs only read.
fn early_read_help(kernel: &Kernel, memory: OperandId, axis: usize) -> String {
    let mut others = (0..kernel.grid.len()).filter(|&other| other != axis);
    let chooses = kernel.operand(memory).map.is_some_and(|map| {
        let chosen = kernel.region(map).params[axis];
        let mut read = kernel.region(map).yields.contains(&chosen);
        kernel.walk(map, &mut |_, inst| read |= inst.args.contains(&chosen));
        read
    });
    match others.clone().find(|&other| kernel.grid[other].semantics == Semantics::Arbitrary) {
        Some(steps) => format!("its steps run along axis {steps}, which is `arbitrary`: test `program_id({steps})`"),
        None if chooses && others.next().is_some() => format!(
            "axis {axis} chooses its block: test the axis along which programs share a block, and make that `arbitrary`"
        ),
        None => "steps that share memory run in order: make the axis `arbitrary` in `semantics = (..)`".to_string(),
    }
}

/// Returns the grid axes from whose program ids a scalar is computed.
fn program_id_axes(kernel: &Kernel, value: Value) -> Vec<usize> {
    let (mut axes, mut open, mut seen) = (vec![], vec![value], vec![]);
    while let Some(value) = open.pop() {
        if seen.contains(&value) {
            continue;
        }
        seen.push(value);
        kernel.walk(kernel.body, &mut |_, inst| {
            if inst.results.contains(&value) {
                match inst.op {
                    Op::ProgramId(axis) => axes.push(axis),
                    _ => {
                        open.extend(&inst.args);
                        open.extend(inst.regions.iter().flat_map(|&r| &kernel.region(r).yields));
                    }
                }
            }
        });
    }
    axes
}

/// Returns pairs of dimension sizes and grid extents to check: those of the call, then equal sizes that the kernel
/// allows and that give each axis several programs.
fn grids_to_check(kernel: &Kernel, spec: &KernelSpec, sizes: &CallSizes) -> Vec<(Vec<i64>, Vec<i64>)> {
    let mut found = vec![(sizes.geometry.sizes.clone(), sizes.geometry.grid.clone())];
    let several = |grid: &[i64]| {
        grid.iter().zip(&kernel.grid).all(|(&n, axis)| (2..=1 << 20).contains(&n) || axis.extent.as_number() == Some(n))
    };
    for size in (0..24).map(|k| 1i64 << k) {
        let named: Vec<(&str, i64)> = kernel.dims.iter().map(|d| (d.name.as_str(), d.size.unwrap_or(size))).collect();
        let number = |d: &pallas_ir::Dim| d.bind(&named).as_number();
        let allowed = spec.assume.iter().all(|(a, b)| number(a).is_some() && number(a) == number(b));
        let grid: Option<Vec<i64>> = kernel.grid.iter().map(|axis| number(&axis.extent)).collect();
        if let (true, Some(grid)) = (allowed, grid)
            && several(&grid)
        {
            found.push((named.iter().map(|n| n.1).collect(), grid));
            break;
        }
    }
    found
}

/// Follows the first, second and last program of each parallel axis through their steps; returns the first use of
/// undefined elements.
fn find_early_read(kernel: &Kernel, extents: Vec<i64>, grid: Vec<i64>) -> Option<EarlyRead> {
    let parallel = |axis: usize| kernel.grid[axis].semantics == Semantics::Parallel;
    let ends = |n: i64, few: i64| -> Vec<i64> { (0..n.min(few)).chain((n > few).then_some(n - 1)).collect() };
    let numbers: Vec<Vec<i64>> =
        (0..grid.len()).map(|axis| if parallel(axis) { ends(grid[axis], 2) } else { vec![0] }).collect();
    let steps: i64 = (0..grid.len()).filter(|&axis| !parallel(axis)).fold(1, |n, axis| n.saturating_mul(grid[axis]));
    let mut follow = EarlyReadFinder {
        kernel,
        extents,
        grid,
        program: vec![],
        values: vec![],
        memory: vec![],
        found: None,
        budget: MAX_FOLLOWED_INSTRUCTIONS,
    };
    for lane in cartesian_product(&numbers) {
        follow.memory = vec![OperandMemoryFacts::default(); kernel.operands.len()];
        // All steps of few, else those along the innermost axis up to the fourth, whatever happens between, and the
        // last.
        for step in ends(steps, MAX_FOLLOWED_STEPS) {
            if step >= MAX_FOLLOWED_STEPS {
                follow.program = (0..lane.len()).map(|axis| parallel(axis).then_some(lane[axis])).collect();
                follow.follow_region(kernel.body, &[], false);
            }
            let mut rest = step;
            follow.program = lane.iter().map(|&p| Some(p)).collect();
            for axis in (0..lane.len()).rev().filter(|&axis| !parallel(axis)) {
                follow.program[axis] = Some(rest % follow.grid[axis]);
                rest /= follow.grid[axis];
            }
            follow.follow_region(kernel.body, &[], true);
            if follow.found.is_some() || follow.budget == 0 {
                return follow.found.filter(|_| follow.budget > 0);
            }
        }
    }
    None
}

/// Returns every combination of one number for each axis.
fn cartesian_product(numbers: &[Vec<i64>]) -> Vec<Vec<i64>> {
    numbers.iter().fold(vec![vec![]], |all, axis| {
        all.iter().flat_map(|begun| axis.iter().map(|&n| [&begun[..], &[n]].concat())).collect()
    })
}

/// Knowledge about the memory of an operand while a program is evaluated: whether something may have been stored to it,
/// and an `if` that left a store out.
#[derive(Clone, Copy, Default)]
struct OperandMemoryFacts {
    /// True if something may have been stored to it.
    written: bool,
    /// The first `if` of which this program did not take the side that stores to it.
    skipped: Option<InstId>,
}

/// Search for a read of undefined memory in one program of a grid, with what is known about its values and memory.
struct EarlyReadFinder<'k> {
    kernel: &'k Kernel,
    extents: Vec<i64>,
    grid: Vec<i64>,
    /// The program's ids, one per grid axis; `None` if unknown.
    program: Vec<Option<i64>>,
    values: Vec<ValueFact>,
    memory: Vec<OperandMemoryFacts>,
    found: Option<EarlyRead>,
    budget: usize,
}

impl EarlyReadFinder<'_> {
    fn fact_of(&self, v: Value) -> ValueFact {
        self.values[v.index()]
    }
    /// Evaluates the instructions of a region on what is known about its parameters, and returns what is known about
    /// its yields. `is_certain_to_run` is true if the program certainly runs it.
    fn follow_region(&mut self, region: RegionId, params: &[ValueFact], is_certain_to_run: bool) -> Vec<ValueFact> {
        self.values.resize(self.kernel.values.len(), ValueFact::Unknown);
        let region = self.kernel.region(region);
        for (i, p) in region.params.iter().enumerate() {
            self.values[p.index()] = params.get(i).copied().unwrap_or(ValueFact::Unknown);
        }
        for &id in &region.insts {
            if self.found.is_some() || self.budget == 0 {
                break;
            }
            self.budget -= 1;
            let inst = self.kernel.inst(id);
            let results = self.follow_inst(id, inst, is_certain_to_run);
            for (i, v) in inst.results.iter().enumerate() {
                self.values[v.index()] = results.get(i).copied().unwrap_or(ValueFact::Unknown);
            }
        }
        region.yields.iter().map(|&v| self.fact_of(v)).collect()
    }
    /// Records a use of `x` that decides a result, if `x` is undefined and the program certainly gets here.
    fn record_use(&mut self, x: ValueFact, is_certain_to_run: bool) {
        if let (ValueFact::Undefined(memory, read), true) = (x, is_certain_to_run) {
            let skipped = self.memory[memory.index()].skipped;
            self.found.get_or_insert(EarlyRead { memory, read, skipped });
        }
    }
    /// Evaluates an instruction, and returns what is known about its results. `is_certain_to_run` is true if the
    /// program certainly gets here.
    fn follow_inst(&mut self, id: InstId, inst: &Inst, is_certain_to_run: bool) -> Vec<ValueFact> {
        let int = |x: i64| ValueFact::Number(Literal::int(DType::I32, x));
        vec![match &inst.op {
            Op::Const(x) => ValueFact::Number(*x),
            Op::ProgramId(axis) => self.program[*axis].map_or(ValueFact::Unknown, int),
            Op::NumPrograms(axis) => int(self.grid[*axis]),
            Op::Extent(dim) => int(self.extents[dim.index()]),
            Op::Scalar(op) => self.scalar_fact(*op, inst),
            Op::Structural(op) => self.structural_fact(op, inst),
            Op::Load { from, view, masked } => {
                let nothing = is_undefined_at_start(self.kernel, *from) && !self.memory[from.index()].written;
                let elements = view.shape().iter().all(|&n| n > 0);
                // Scratch has the same axes in both frames; an access of a block outside of its array is none.
                let inside = view.frame == ViewFrame::Block || self.kernel.operand(*from).kind == OperandKind::Scratch;
                match nothing && !masked && elements && inside {
                    true => ValueFact::Undefined(*from, id),
                    false => ValueFact::Unknown,
                }
            }
            Op::Store { to, masked, view } => {
                let value = self.fact_of(inst.args[0]);
                let undefined = matches!(value, ValueFact::Undefined(..));
                let output = matches!(self.kernel.operand(*to).kind, OperandKind::Output { .. });
                if output && !masked && view.axes.iter().all(|a| !a.dynamic) {
                    self.record_use(value, is_certain_to_run);
                }
                self.memory[to.index()].written |= !undefined || output;
                return vec![];
            }
            Op::If => return self.follow_if(id, inst, is_certain_to_run),
            Op::For { reverse } => return self.follow_for(inst, *reverse, is_certain_to_run),
            Op::While => return self.follow_while(inst, is_certain_to_run),
            Op::Param(_) | Op::Prefetch(_) | Op::Valid { .. } | Op::NumSteps(_) => ValueFact::Unknown,
            Op::DebugPrint(_) | Op::DebugAssert(_) => return vec![],
        }]
    }
    /// Returns what is known about the result of a scalar operation: it is undefined if it certainly depends on an
    /// undefined operand.
    fn scalar_fact(&self, op: ScalarOp, inst: &Inst) -> ValueFact {
        let args: Vec<ValueFact> = inst.args.iter().map(|&v| self.fact_of(v)).collect();
        let undefined = |x: &ValueFact| matches!(x, ValueFact::Undefined(..));
        if op == ScalarOp::Select {
            return match args[0] {
                ValueFact::Undefined(..) => args[0],
                ValueFact::Number(mask) => args[if mask.bits != 0 { 1 } else { 2 }],
                ValueFact::Unknown if undefined(&args[1]) && undefined(&args[2]) => args[1],
                ValueFact::Unknown => ValueFact::Unknown,
            };
        }
        if let Some(x) = args.iter().find(|x| undefined(x)) {
            return *x;
        }
        let number = |x: &ValueFact| if let ValueFact::Number(x) = x { Some(*x) } else { None };
        match args.iter().map(number).collect::<Option<Vec<Literal>>>() {
            Some(known) if inst.args.iter().all(|&v| self.kernel.ty(v).is_scalar()) => {
                ValueFact::Number(eval::eval_element(op, &known))
            }
            _ => ValueFact::Unknown,
        }
    }
    /// Returns what is known about the result of a structural operation: it is undefined if it certainly depends on
    /// undefined operands.
    fn structural_fact(&self, op: &StructuralOp, inst: &Inst) -> ValueFact {
        let args: Vec<ValueFact> = inst.args.iter().map(|&v| self.fact_of(v)).collect();
        let some = inst.args.iter().all(|&v| self.kernel.ty(v).elements() > 0);
        let Some(undefined) = args.iter().copied().find(|x| matches!(x, ValueFact::Undefined(..))).filter(|_| some)
        else {
            return ValueFact::Unknown;
        };
        let all = args.iter().all(|x| matches!(x, ValueFact::Undefined(..)));
        let reads = match pallas_codegen::passes::access_form(self.kernel, op, inst) {
            AccessForm::Contract { .. } => true,
            AccessForm::Map(_)
            | AccessForm::Flat
            | AccessForm::Fold { .. }
            | AccessForm::Scan { .. }
            | AccessForm::Arg { .. } => all,
            AccessForm::Sort { .. } | AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_) => all,
            AccessForm::Nest(_) | AccessForm::Gather { .. } | AccessForm::Scatter { .. } | AccessForm::Iota { .. } => {
                false
            }
        };
        if reads { undefined } else { ValueFact::Unknown }
    }
    /// Evaluates the side of an `if` that is taken, or both if that is unknown. `is_certain_to_run` is true if the
    /// program certainly gets here.
    fn follow_if(&mut self, id: InstId, inst: &Inst, is_certain_to_run: bool) -> Vec<ValueFact> {
        let condition = self.fact_of(inst.args[0]);
        self.record_use(condition, is_certain_to_run);
        let ValueFact::Number(taken) = condition else {
            inst.regions.iter().for_each(|&side| _ = self.follow_region(side, &[], false));
            return vec![];
        };
        let (taken, left) = if taken.bits != 0 { (0, 1) } else { (1, 0) };
        let (kernel, memory) = (self.kernel, &mut self.memory);
        kernel.walk(inst.regions[left], &mut |_, inst| {
            if let Op::Store { to, .. } = inst.op {
                let memory = &mut memory[to.index()];
                memory.skipped = memory.skipped.or((!memory.written).then_some(id));
            }
        });
        self.follow_region(inst.regions[taken], &[], is_certain_to_run)
    }
    /// Evaluates the first iteration of a `for` with known bounds, that of the highest index if `reverse`, then its
    /// body with unknown values. `is_certain_to_run` is true if the program certainly gets here.
    fn follow_for(&mut self, inst: &Inst, reverse: bool, is_certain_to_run: bool) -> Vec<ValueFact> {
        let bounds: Vec<ValueFact> = inst.args[..3].iter().map(|&v| self.fact_of(v)).collect();
        bounds.iter().for_each(|&bound| self.record_use(bound, is_certain_to_run));
        let number = |x: &ValueFact| if let ValueFact::Number(x) = x { Some(x.as_i64()) } else { None };
        let start: Vec<ValueFact> = inst.args[3..].iter().map(|&v| self.fact_of(v)).collect();
        let turns = match bounds.iter().map(number).collect::<Option<Vec<i64>>>().as_deref() {
            Some(&[lo, hi, step]) => {
                pallas_codegen::interp::walk::trip_count(lo, hi, step).ok().map(|turns| (lo, step, turns))
            }
            _ => None,
        };
        if let Some((lo, step, turns)) = turns {
            if turns == 0 {
                return start;
            }
            let index = ValueFact::Number(Literal::int(DType::I32, if reverse { lo + (turns - 1) * step } else { lo }));
            let carried = self.follow_region(inst.regions[0], &[vec![index], start].concat(), is_certain_to_run);
            if turns == 1 {
                return carried;
            }
        }
        self.follow_region(inst.regions[0], &[], false);
        vec![]
    }
    /// Evaluates the first test of a `while`, then its body and test with unknown values. `is_certain_to_run` is true
    /// if the program certainly gets here.
    fn follow_while(&mut self, inst: &Inst, is_certain_to_run: bool) -> Vec<ValueFact> {
        let start: Vec<ValueFact> = inst.args.iter().map(|&v| self.fact_of(v)).collect();
        let tested = self.follow_region(inst.regions[0], &start, is_certain_to_run);
        if let Some(&goes) = tested.first() {
            self.record_use(goes, is_certain_to_run);
            if matches!(goes, ValueFact::Number(goes) if goes.bits == 0) {
                return tested[1..].to_vec();
            }
        }
        for region in [inst.regions[1], inst.regions[0]] {
            self.follow_region(region, &[], false);
        }
        vec![]
    }
}
