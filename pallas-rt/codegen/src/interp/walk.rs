//! Interprets tile IR on a [`Machine`], instruction by instruction.
use super::datum::{Datum, unflatten};
use super::eval;
use super::fault::Fault;
use super::machine::Machine;
use super::scalar_eval;
use super::value_faults;
use pallas_ir::{DType, Inst, InstId, Kernel, Literal, Loc, Op, RegionId, Type, Value};
use std::sync::Arc;

/// Seed of the order of parallel programs: random, but the same in every run, so that a failure repeats.
const SCHEDULE_SEED: u64 = 0x5eed;

/// Runs every program of a traced kernel.
///
/// # Errors
/// The first fault that a program has.
pub fn run_all_programs(machine: &mut Machine) -> Result<(), Fault> {
    let body = machine.kernel().body;
    for steps in machine.schedule(SCHEDULE_SEED) {
        machine.begin_parallel_program();
        for program in steps {
            machine.begin_step(program);
            RegionExecution::new(machine).run_region(body, &[])?;
        }
    }
    Ok(())
}

/// Evaluates an operand's index map for the current step.
///
/// # Errors
/// A prefetched value that the map reads is out of range.
pub(super) fn eval_index_map(machine: &mut Machine, map: RegionId) -> Result<Vec<i64>, Fault> {
    let ids: Vec<Datum> = machine.program.iter().map(|&p| Datum::scalar(Literal::int(DType::I32, p))).collect();
    let index = RegionExecution::new(machine).run_region(map, &ids)?;
    Ok(index.iter().map(|d| d.data.get(0).as_i64()).collect())
}

/// Execution of a region and the regions inside of it, for the current step: the values computed so far.
struct RegionExecution<'m> {
    machine: &'m mut Machine,
    kernel: Arc<Kernel>,
    values: Vec<Option<Datum>>,
}

impl<'m> RegionExecution<'m> {
    fn new(machine: &'m mut Machine) -> Self {
        let kernel = Arc::clone(machine.kernel());
        RegionExecution { values: vec![None; kernel.values.len()], machine, kernel }
    }
    fn get(&self, v: Value) -> &Datum {
        self.values[v.index()].as_ref().expect("the verifier checks dominance")
    }
    /// Executes a region's instructions, and returns the values that it yields.
    fn run_region(&mut self, region: RegionId, params: &[Datum]) -> Result<Vec<Datum>, Fault> {
        let kernel = Arc::clone(&self.kernel);
        let region = kernel.region(region);
        for (&p, x) in region.params.iter().zip(params) {
            self.values[p.index()] = Some(x.clone());
        }
        for &i in &region.insts {
            self.run_inst(i)?;
        }
        Ok(region.yields.iter().map(|&v| self.get(v).clone()).collect())
    }
    /// Executes an instruction.
    fn run_inst(&mut self, id: InstId) -> Result<(), Fault> {
        let kernel = Arc::clone(&self.kernel);
        let (inst, loc) = (kernel.inst(id), kernel.loc(id));
        let results = match &inst.op {
            Op::If => self.run_branch(inst, loc)?,
            Op::For { reverse } => self.run_counted_loop(inst, *reverse, loc)?,
            Op::While => self.run_while(inst, loc)?,
            _ => {
                let args: Vec<Datum> = inst.args.iter().map(|&v| self.get(v).clone()).collect();
                let args: Vec<&Datum> = args.iter().collect();
                let ty = inst.results.first().map(|&v| self.kernel.ty(v).clone());
                run_op(self.machine, &inst.op, &args, ty, loc)?.into_iter().collect()
            }
        };
        for (&v, x) in inst.results.iter().zip(results) {
            self.values[v.index()] = Some(x);
        }
        Ok(())
    }
    fn checked_integer(&self, v: Value, what: &str, loc: Loc) -> Result<i64, Fault> {
        self.machine.checked_integer(self.get(v), what, loc)
    }
    /// Executes a branch, and returns its results.
    fn run_branch(&mut self, inst: &Inst, loc: Loc) -> Result<Vec<Datum>, Fault> {
        let side = if self.checked_integer(inst.args[0], "the condition of this `if`", loc)? != 0 { 0 } else { 1 };
        self.run_region(inst.regions[side], &[])
    }
    /// Executes a counted loop, and returns its results.
    fn run_counted_loop(&mut self, inst: &Inst, reverse: bool, loc: Loc) -> Result<Vec<Datum>, Fault> {
        let bound = |i: usize| self.checked_integer(inst.args[i], "a bound of this `for`", loc);
        let (lo, hi, step) = (bound(0)?, bound(1)?, bound(2)?);
        let trips = trip_count(lo, hi, step).map_err(|m| self.machine.fault_without_help("step", loc, m))?;
        let mut carried: Vec<Datum> = inst.args[3..].iter().map(|&v| self.get(v).clone()).collect();
        for k in 0..trips {
            let k = if reverse { trips - 1 - k } else { k };
            let index = Datum::scalar(Literal::int(DType::I32, lo + k * step));
            carried = self.run_region(inst.regions[0], &[vec![index], carried].concat())?;
        }
        Ok(carried)
    }
    /// Executes a loop with a condition, and returns its results.
    fn run_while(&mut self, inst: &Inst, loc: Loc) -> Result<Vec<Datum>, Fault> {
        let mut carried: Vec<Datum> = inst.args.iter().map(|&v| self.get(v).clone()).collect();
        for turns in 0.. {
            self.machine.check_iteration_limit(turns, loc)?;
            let mut tested = self.run_region(inst.regions[0], &carried)?;
            let go = self.machine.checked_integer(&tested.remove(0), "the condition of this `while`", loc)?;
            if go == 0 {
                return Ok(tested);
            }
            carried = self.run_region(inst.regions[1], &tested)?;
        }
        unreachable!("a turn too many is an error")
    }
}

/// Returns the number of iterations of a `for`.
///
/// # Errors
/// The step is not positive.
pub fn trip_count(lo: i64, hi: i64, step: i64) -> Result<i64, String> {
    if step < 1 {
        return Err(invalid_step_message(step));
    }
    Ok(((hi - lo).max(0) + step - 1) / step)
}
/// Returns the message for a `for` loop whose step, given here, is not positive.
pub fn invalid_step_message(step: i64) -> String {
    format!("the step of this `for` is {step}; it must be at least 1")
}

/// Executes one operation without regions, in interpretation as in eager execution; returns its result, which has the
/// type `ty`, or `None` for a store, print or assertion.
///
/// # Errors
/// The fault that the operation has.
pub fn run_op(
    machine: &mut Machine,
    op: &Op,
    args: &[&Datum],
    ty: Option<Type>,
    loc: Loc,
) -> Result<Option<Datum>, Fault> {
    let int = |x: i64| Datum::scalar(Literal::int(DType::I32, x));
    let typed = || ty.clone().expect("the operation has a result");
    let loaded = args.iter().any(|a| a.loaded) || matches!(op, Op::Param(_) | Op::Prefetch(_) | Op::Load { .. });
    if let (Op::Scalar(op), false) = (op, loaded)
        && let Some((i, n)) = scalar_eval::find_i32_overflow(*op, args, &typed())
    {
        let at = if args.iter().all(|a| a.ty.is_scalar()) {
            String::new()
        } else {
            format!(" at {:?}", unflatten(i, &typed().shape))
        };
        let message = format!("a position{at} is {n}, which no i32 is: it wraps around");
        let help = "positions end at 2^31 - 1; for numbers that shall wrap around, `.cast::<u32>()` first";
        return Err(machine.fault("position", loc, message, help));
    }
    let result = match op {
        Op::Const(x) => Datum::scalar(*x),
        Op::Scalar(op) => scalar_eval::eval_scalar(*op, args, typed()),
        Op::Structural(op) => {
            let located = |d: pallas_ir::Diag| {
                machine.fault_without_help(d.code, loc, format!("{}\n  help: {}", d.message, d.help))
            };
            eval::eval_structural(op, args, typed()).map_err(located)?
        }
        Op::ProgramId(axis) => int(machine.program[*axis]),
        Op::NumPrograms(axis) => int(machine.grid[*axis]),
        Op::NumSteps(axis) => int(machine.steps[*axis]),
        Op::Extent(dim) => int(machine.sizes[dim.index()]),
        Op::Param(o) => Datum::scalar(machine.parameter_value(*o)),
        Op::Prefetch(o) => machine.read_prefetched(*o, args, loc)?,
        Op::Load { from, view, .. } => machine.load(*from, view, args, loc)?,
        Op::Valid { of, view, axis } => machine.valid_mask(*of, view, *axis, args, loc)?,
        Op::Store { to, view, .. } => {
            machine.store(*to, view, args, loc)?;
            return Ok(None);
        }
        Op::DebugPrint(label) => {
            let line = format!("{loc}: program {:?}: {label} = {}", machine.program, format_datum(args[0]));
            machine.log.push(line);
            return Ok(None);
        }
        Op::DebugAssert(message) => {
            if args[0].poison.is_some() {
                return Err(machine.undefined_fault(args[0], "the condition of this assertion", loc));
            }
            if let Some(i) = (0..args[0].data.len()).find(|&i| args[0].data.get(i).as_i64() == 0) {
                let at = unflatten(i, &args[0].ty.shape);
                return Err(machine.fault_without_help(
                    "assert",
                    loc,
                    format!("assertion failed at {at:?}: {message}"),
                ));
            }
            return Ok(None);
        }
        Op::If | Op::For { .. } | Op::While => unreachable!("regions are walked by their owner"),
    };
    value_faults::check_overflow_and_nan(machine, op, args, &result, loc)?;
    // An undefined element of a result comes from the same place as one of an operand.
    let origin = || args.iter().filter(|x| x.poison.is_some()).find_map(|x| x.origin.clone());
    let origin = result.origin.clone().or_else(|| if result.poison.is_some() { origin() } else { None });
    Ok(Some(Datum { origin, loaded, ..result }))
}

/// Formats a value as `debug_print` shows it.
pub fn format_datum(x: &Datum) -> String {
    let element = |i: usize| if x.is_poison(i) { "undefined".to_string() } else { x.data.get(i).to_string() };
    if x.ty.is_scalar() {
        return element(0);
    }
    let shown: Vec<String> = (0..x.data.len().min(64)).map(element).collect();
    format!("{} [{}{}]", x.ty, shown.join(", "), if x.data.len() > 64 { ", .." } else { "" })
}
