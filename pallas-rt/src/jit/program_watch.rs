//! Watches on the programs that a thread runs: `check`, `explain` and `cost` look at their kernels, and NaN is searched
//! for.
use super::op_by_op::run_op_by_op;
use super::program::cached_kernel;
use super::trace::type_of;
use crate::array::{Array, Client};
use crate::exec::{self, Compiled};
use crate::nans;
use pallas_device::error::{Error, Result};
use pallas_device::{LaunchGeometry, argument_indices};
use pallas_graph::call::{KernelCall, RunCount};
use pallas_graph::{Equation, Graph, Op};
use pallas_ir::{At, Diag, Kernel, Literal, Loc, OperandKind};
use std::cell::RefCell;
use std::rc::Rc;

/// A kernel that a program would launch, with its sizes, the line of its call and its number of launches, as
/// [`ProgramWatch::Inspect`] passes it on.
pub(crate) struct WatchedKernel {
    pub compiled: Compiled,
    pub geometry: LaunchGeometry,
    pub client: Client,
    /// The line that calls the kernel.
    pub called: Loc,
    /// Number of launches in a run; those of a loop of unknown length, and of each branch, count once.
    pub times: u64,
}

/// A function that compares a kernel's outputs (second list) with those of the strict interpreter (first list).
type CompareOutputs = dyn Fn(&Kernel, &[Array], &[Array]) -> Result<()>;

/// Action that replaces or accompanies each run of a program on a thread, as long as a watch is set there.
pub(crate) enum ProgramWatch {
    /// Programs with kernels do not run: each kernel is passed to this function.
    Inspect(Box<dyn Fn(WatchedKernel)>),
    /// Kernels run on the strict interpreter as well, and this function compares the outputs.
    Check(Box<CompareOutputs>),
}

thread_local! {
    static PROGRAM_WATCH: RefCell<Option<Rc<ProgramWatch>>> = const { RefCell::new(None) };
}

/// Runs `f` while this watch replaces or accompanies each run of a program on its thread; `None` lets programs run as
/// usual, also inside of another watch.
pub(crate) fn with_watch<R>(watch: Option<ProgramWatch>, f: impl FnOnce() -> R) -> R {
    struct RestoreWatch(Option<Rc<ProgramWatch>>);
    impl Drop for RestoreWatch {
        fn drop(&mut self) {
            PROGRAM_WATCH.set(self.0.take());
        }
    }
    let _outer = RestoreWatch(PROGRAM_WATCH.replace(watch.map(Rc::new)));
    f()
}

/// Returns true if programs on this thread do not just run: a watch is set, or their results are checked for NaN.
pub(super) fn is_program_watched() -> bool {
    nans::is_nan_check_on() || PROGRAM_WATCH.with_borrow(Option::is_some)
}

/// Runs a program of this graph by `run`, or as the watch on this thread says.
///
/// # Errors
/// The result of `run`, and what the watch finds.
pub(super) fn run_watched(
    graph: &Graph,
    client: &Client,
    args: &[&Array],
    run: impl FnOnce() -> Result<Vec<Array>>,
) -> Result<Vec<Array>> {
    let watch = PROGRAM_WATCH.with_borrow(Option::clone);
    let has_kernels = || graph.any_op(&|op| KernelCall::of_op(op).is_some());
    match watch.as_deref() {
        Some(ProgramWatch::Inspect(see)) if has_kernels() => {
            for_each_kernel(graph, 1, &mut |call, called, times| {
                let compiled = cached_kernel(&call.kernel);
                let geometry = compiled.launch_geometry(&call.sizes)?;
                see(WatchedKernel { compiled, geometry, client: client.clone(), called, times });
                Ok(())
            })?;
            graph.result_types().iter().map(|ty| client.zeros(&ty.shape, ty.dtype)).collect()
        }
        Some(ProgramWatch::Check(judge)) if has_kernels() => {
            run_op_by_op_unwatched(graph, client, args, &mut |e, args, outputs| {
                let Some(call) = KernelCall::of_op(&e.op) else { return Ok(()) };
                let reference = run_kernel_interpreted(call, args, false).map_err(|error| error.called_at(e.loc))?;
                judge(&call.kernel, &reference, outputs).map_err(|error| error.called_at(e.loc))
            })
        }
        _ if nans::is_nan_check_on() => {
            let results = run()?;
            find_nan_origin(graph, client, args, &results)?;
            Ok(results)
        }
        _ => run(),
    }
}

/// Runs a graph one operation at a time, and calls `observe` after every one. The operations themselves are not
/// watched.
fn run_op_by_op_unwatched(
    graph: &Graph,
    client: &Client,
    args: &[&Array],
    observe: &mut super::op_by_op::EquationObserver<'_>,
) -> Result<Vec<Array>> {
    let args: Vec<Array> = args.iter().copied().cloned().collect();
    with_watch(None, || nans::without_nan_checks(|| run_op_by_op(graph, client, &args, observe)))
}

/// Calls `f` for each kernel of a graph with the line of its call and its number of launches; the graph runs `times`
/// times.
fn for_each_kernel(graph: &Graph, times: u64, f: &mut dyn FnMut(&KernelCall, Loc, u64) -> Result<()>) -> Result<()> {
    for e in &graph.equations {
        if let Some(call) = KernelCall::of_op(&e.op) {
            f(call, e.loc, times)?;
        } else if let Op::Call(call) = &e.op {
            for (runs, graph) in call.graphs_with_run_counts() {
                match runs {
                    RunCount::Never => {}
                    RunCount::Times(n) => for_each_kernel(graph, times.saturating_mul(n as u64), f)?,
                    RunCount::Once | RunCount::Unknown => for_each_kernel(graph, times, f)?,
                }
            }
        }
    }
    Ok(())
}

/// Runs a kernel on the strict interpreter, and returns its outputs; if `finds_nans`, a NaN is an error.
fn run_kernel_interpreted(call: &KernelCall, args: &[Array], finds_nans: bool) -> Result<Vec<Array>> {
    let (client, kernel) = (Client::interpreter(), &call.kernel);
    let geometry = cached_kernel(kernel).launch_geometry(&call.sizes)?;
    let (mut arrays, mut params): (exec::OperandArraysWithDonation, Vec<Option<Literal>>) =
        (vec![None; kernel.operands.len()], vec![None; kernel.operands.len()]);
    let (mut args, mut numbers) = (args.iter(), call.params.iter());
    for i in argument_indices(kernel) {
        match kernel.operands[i].kind {
            OperandKind::Param => params[i] = numbers.next().copied(),
            _ => arrays[i] = args.next().map(|x| x.to_device(&client).map(|x| (x, false))).transpose()?,
        }
    }
    let call = exec::LaunchArguments {
        geometry: &geometry,
        at: Loc::NONE,
        called: Loc::NONE,
        params: &params,
        arrays,
        lent: vec![],
    };
    exec::interpret_kernel(&client, kernel, call, |mut machine| {
        machine.finds_nans = finds_nans;
        pallas_codegen::interp::walk::run_all_programs(&mut machine)?;
        Ok(machine)
    })
}

/// Returns true if one of these arrays has NaN.
fn has_nan<'a>(mut xs: impl Iterator<Item = &'a Array>) -> Result<bool> {
    xs.try_fold(false, |found, x| Ok(found || nans::first_nan_position(x)?.is_some()))
}

/// Looks for the first operation that makes NaN of operands without NaN, if a result has NaN and no argument has.
///
/// # Errors
/// An error `nan` with the operation and its line; in a kernel, the operation in the kernel.
fn find_nan_origin(graph: &Graph, client: &Client, args: &[&Array], results: &[Array]) -> Result<()> {
    if !has_nan(results.iter())? || has_nan(args.iter().copied())? {
        return Ok(());
    }
    let found = run_op_by_op_unwatched(graph, client, args, &mut |e, args, outputs| {
        let made = outputs.iter().map(nans::first_nan_position).collect::<Result<Vec<_>>>()?;
        let Some((output, at)) = made.iter().enumerate().find_map(|(k, at)| Some((k, (*at)?))) else { return Ok(()) };
        if has_nan(args.iter())? {
            return Ok(());
        }
        if let Some(call) = KernelCall::of_op(&e.op) {
            run_kernel_interpreted(call, args, true).map_err(|error| error.called_at(e.loc))?;
        }
        Err(Error::operation(e.loc, nan_diagnostic(e, args, &outputs[output], at)?))
    });
    match found {
        // The operations one by one have no NaN, or cannot run so; only the results show that there is one.
        Ok(_) | Err(Error::Unsupported { .. }) => {
            let message = "a result has NaN, and no argument has".to_string();
            let help =
                "its operations one by one make none, or cannot be looked at: the compiled function rounds otherwise";
            Err(Error::operation(Loc::NONE, Diag::new("nan", At::Op, message, help)))
        }
        Err(error) => Err(error),
    }
}

/// Returns the message about an equation whose output has NaN at the element with the row-major index `element_index`.
fn nan_diagnostic(e: &Equation, args: &[Array], output: &Array, element_index: usize) -> Result<Diag> {
    let element = pallas_codegen::interp::datum::unflatten(element_index, output.shape());
    let name = match KernelCall::of_op(&e.op) {
        Some(call) => format!("kernel `{}`", call.kernel.name),
        None => format!("`{}`", e.op.name()),
    };
    let operands = match &e.op {
        Op::Scalar(_) => {
            let number = |x: &Array| {
                let bytes = x.to_bytes()?;
                Ok(pallas_codegen::interp::Data::from_bytes(x.dtype(), &bytes).get(element_index).to_string())
            };
            args.iter().map(number).collect::<Result<Vec<String>>>()?
        }
        _ => args.iter().map(|x| type_of(x).to_string()).collect(),
    };
    let message = format!(
        "{name} of {} is NaN at element {element:?} of {}, and no operand is",
        operands.join(" and "),
        type_of(output)
    );
    Ok(Diag::new("nan", At::Op, message, "mask what the operation is not defined for before it, with `select`"))
}
