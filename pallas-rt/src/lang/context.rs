//! The kernel being run or traced on this thread, and the one door through which every operation passes.
//!
//! Only an expansion of `#[kernel]` enters a context. In *trace* mode an operation is appended to the tile IR; in
//! *eager* mode it is computed at once by the strict interpreter, so that a debugger steps through the user's own
//! lines.
use pallas_codegen::interp::{Datum, Fault, Machine, walk};
use pallas_ir::structural::Cast;
use pallas_ir::{At, Builder, DType, Diag, Kernel, Literal, Loc, Op, RegionId, Type, Value};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

/// Identity of a value: its id, the context it belongs to, and the region that computed it. Poisoned handles have no
/// value.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    value: Value,
    generation: u32,
    region: u32,
}

/// Value of a handle whose operation failed.
const POISONED_VALUE: Value = Value(u32::MAX);

/// The first error in a kernel's body, with the user's line that caused it.
#[derive(Clone, Debug)]
pub(crate) struct BodyMistake {
    /// The diagnostic.
    pub diag: Diag,
    /// The user's line.
    pub loc: Loc,
}

/// Mode of a context: operations are recorded, or computed at once.
enum ContextMode {
    Trace(Builder),
    Eager(EagerState),
}

/// State of eager execution: the launch's interpreter, borrowed for one program step, and the values computed so far.
struct EagerState {
    machine: Machine,
    values: Vec<Datum>,
    fault: Option<Fault>,
}

/// The kernel call whose body runs on this thread.
struct KernelContext {
    generation: u32,
    mode: ContextMode,
    /// Ids of the open regions, outermost first. A value is usable while the region that computed it is open.
    open: Vec<u32>,
    /// Id of the region that was opened last.
    regions: u32,
    mistake: Option<BodyMistake>,
    /// The line at which the kernel was called.
    entered: Loc,
}

thread_local! {
    static CURRENT_CONTEXT: RefCell<Option<KernelContext>> = const { RefCell::new(None) };
    static IS_TRACING: Cell<bool> = const { Cell::new(false) };
}
static NEXT_CALL_GENERATION: AtomicU32 = AtomicU32::new(1);

/// The line at which the running kernel was called; `None` if no kernel's body runs on this thread.
pub(crate) fn running_call_loc() -> Option<Loc> {
    CURRENT_CONTEXT.with_borrow(|c| c.as_ref().map(|c| c.entered))
}

/// Returns true if operations are recorded; false in eager mode and outside of kernels.
pub(crate) fn is_tracing() -> bool {
    IS_TRACING.get()
}

/// Runs `f` while operations are appended to `builder`.
///
/// # Errors
/// The first mistake of the body.
pub(crate) fn trace_body(builder: Builder, call_loc: Loc, f: impl FnOnce()) -> Result<Builder, BodyMistake> {
    let (context, panic) = run_in_context(ContextMode::Trace(builder), call_loc, f);
    match (context.mistake, panic, context.mode) {
        (Some(mistake), ..) => Err(mistake),
        (None, Some(panic), _) => resume_unwind(panic),
        (None, None, ContextMode::Trace(builder)) => Ok(builder),
        (None, None, ContextMode::Eager(_)) => unreachable!("the mode does not change"),
    }
}

/// Runs `f`, the body of one program step, and computes its operations at once on `machine`.
///
/// # Errors
/// The step's first fault, or a mistake of the body as a fault.
pub(crate) fn run_eagerly(machine: Machine, call_loc: Loc, f: impl FnOnce()) -> Result<Machine, Fault> {
    let (context, panic) =
        run_in_context(ContextMode::Eager(EagerState { machine, values: vec![], fault: None }), call_loc, f);
    let ContextMode::Eager(EagerState { machine, fault, .. }) = context.mode else {
        unreachable!("the mode does not change")
    };
    match (fault, context.mistake, panic) {
        (Some(fault), ..) => Err(fault),
        (None, Some(m), _) => Err(machine.fault_without_help(m.diag.code, m.loc, m.diag.to_string())),
        (None, None, Some(panic)) => resume_unwind(panic),
        (None, None, None) => Ok(machine),
    }
}

/// Runs the body `f` in a new context; returns the context and the body's panic, if any. After the body's first error
/// tiles have no shape, so later panics may be consequences of it.
fn run_in_context(mode: ContextMode, call_loc: Loc, f: impl FnOnce()) -> (KernelContext, Option<Box<dyn Any + Send>>) {
    let outer_tracing = IS_TRACING.replace(matches!(mode, ContextMode::Trace(_)));
    let generation = NEXT_CALL_GENERATION.fetch_add(1, Ordering::Relaxed);
    let outer = CURRENT_CONTEXT.replace(Some(KernelContext {
        generation,
        mode,
        open: vec![0],
        regions: 0,
        mistake: None,
        entered: call_loc,
    }));
    let panic = catch_unwind(AssertUnwindSafe(f)).err();
    IS_TRACING.set(outer_tracing);
    (CURRENT_CONTEXT.replace(outer).expect("kernels inside of this one put it back"), panic)
}

impl KernelContext {
    fn handle(&self, value: Value) -> Handle {
        Handle { value, generation: self.generation, region: *self.open.last().expect("the body is open") }
    }
    fn open_region(&mut self) {
        self.regions += 1;
        self.open.push(self.regions);
    }
    /// Returns true if the handle's value is of this kernel and its region is open.
    fn can_use(&self, h: &Handle) -> bool {
        h.generation == self.generation && self.open.contains(&h.region)
    }
    /// Records an error of the body, unless an earlier one is recorded.
    fn record_error(&mut self, diag: Diag, loc: Loc) {
        self.mistake.get_or_insert(BodyMistake { diag, loc });
    }
    /// Returns the values of handles; `None` if one is poisoned, or of another kernel call or a closed region, which is
    /// an error.
    fn resolve_handles(&mut self, args: &[Handle], loc: Loc) -> Option<Vec<Value>> {
        if let Some(stale) = args.iter().find(|a| a.value != POISONED_VALUE && !self.can_use(a)) {
            if stale.generation == self.generation {
                let message = "a tile is used outside of the branch or the turn of a loop that computed it".to_string();
                let help = "compute it before the `if` or loop, or assign it to a `let mut` variable declared there";
                self.record_error(Diag::new("stale-handle", At::Op, message, help), loc);
            } else {
                self.report_stale_use("tile", loc);
            }
            return None;
        }
        args.iter().all(|a| a.value != POISONED_VALUE).then(|| args.iter().map(|a| a.value).collect())
    }
    /// Reports the use of a value or block of another kernel call.
    fn report_stale_use(&mut self, what: &str, loc: Loc) {
        let message = format!("a {what} of another kernel call is used in the one made at {}", self.entered);
        let help = format!("{what}s live only while their kernel runs; return arrays");
        self.record_error(Diag::new("stale-handle", At::Op, message, help), loc);
    }
    fn emit(&mut self, op: Op, args: &[Handle], loc: Loc) -> Option<Value> {
        let args = self.resolve_handles(args, loc)?;
        match &mut self.mode {
            ContextMode::Eager(eager) => eager.emit_accumulating(&op, &args, loc),
            ContextMode::Trace(builder) => builder.append(op, &args, loc).unwrap_or_else(|diag| {
                self.record_error(diag, loc);
                None
            }),
        }
    }
    fn kernel(&self) -> &Kernel {
        match &self.mode {
            ContextMode::Trace(builder) => builder.kernel(),
            ContextMode::Eager(eager) => eager.machine.kernel(),
        }
    }
    fn type_of(&self, h: Handle) -> Option<Type> {
        if h.value == POISONED_VALUE || !self.can_use(&h) {
            return None;
        }
        Some(match &self.mode {
            ContextMode::Trace(builder) => builder.kernel().ty(h.value).clone(),
            ContextMode::Eager(eager) => eager.values[h.value.index()].ty.clone(),
        })
    }
}

impl EagerState {
    /// Computes an operation and returns its result, if any. A fold that accumulates in a wider type is computed
    /// between two casts, as in [`Builder::append`].
    fn emit_accumulating(&mut self, op: &Op, args: &[Value], loc: Loc) -> Option<Value> {
        let (Op::Structural(fold), &[x]) = (op, args) else { return self.emit(op, args, loc) };
        let own = self.values[x.index()].ty.dtype;
        let Some(to) = fold.accumulator(&[own]) else { return self.emit(op, args, loc) };
        let cast = |to| Op::Structural(Cast { to }.into());
        let x = self.emit(&cast(to), &[x], loc)?;
        let y = self.emit(op, &[x], loc)?;
        self.emit(&cast(own), &[y], loc)
    }
    /// Computes an operation by the interpreter. After the first fault nothing is computed: later operations see
    /// poisoned handles.
    fn emit(&mut self, op: &Op, args: &[Value], loc: Loc) -> Option<Value> {
        if self.fault.is_some() {
            return None;
        }
        let data: Vec<&Datum> = args.iter().map(|v| &self.values[v.index()]).collect();
        let types: Vec<&Type> = data.iter().map(|d| &d.ty).collect();
        let step = pallas_ir::infer(self.machine.kernel(), op, &types)
            .map_err(|d| self.machine.fault_without_help(d.code, loc, d.to_string()))
            .and_then(|ty| walk::run_op(&mut self.machine, op, &data, ty, loc));
        self.ok_or_record_fault(step)?.map(|d| self.push_value(d))
    }
    /// Returns what an interpreter's step gave; `None` if it failed, which records the fault if it is the first.
    fn ok_or_record_fault<T>(&mut self, step: Result<T, Fault>) -> Option<T> {
        match step {
            Ok(result) => Some(result),
            Err(fault) => {
                self.fault.get_or_insert(fault);
                None
            }
        }
    }
    fn push_value(&mut self, d: Datum) -> Value {
        self.values.push(d);
        Value(self.values.len() as u32 - 1)
    }
}

/// Runs `f` on the current context; outside of a kernel the result is `None`.
fn with_context<R>(f: impl FnOnce(&mut KernelContext) -> R) -> Option<R> {
    CURRENT_CONTEXT.with_borrow_mut(|c| c.as_mut().map(f))
}

/// The handle of an operation that failed, or was used outside of a kernel.
pub(crate) const POISONED_HANDLE: Handle = Handle { value: POISONED_VALUE, generation: 0, region: 0 };

/// Appends (trace) or computes (eager) an operation and returns the handle of its result.
///
/// A mistake is kept with the caller's line and gives a poisoned handle, which later operations pass on.
#[track_caller]
pub(crate) fn emit(op: Op, args: &[Handle]) -> Handle {
    let loc = Loc::caller();
    let emitted = with_context(|c| c.emit(op, args, loc).map_or(POISONED_HANDLE, |v| c.handle(v)));
    emitted.unwrap_or_else(|| {
        panic!("{loc}: a tile operation outside of a kernel: tiles exist only while `#[kernel]` code runs")
    })
}

/// Appends (trace) or computes (eager) an operation that has no result, such as a store.
#[track_caller]
pub(crate) fn emit_effect(op: Op, args: &[Handle]) {
    let loc = Loc::caller();
    with_context(|c| c.emit(op, args, loc));
}

/// Records an error of the body at the caller's line, and returns a poisoned handle.
#[track_caller]
pub(crate) fn record_error(diag: Diag) -> Handle {
    record_error_at(diag, Loc::caller())
}

/// Records an error of the body at `loc`, and returns a poisoned handle.
pub(crate) fn record_error_at(diag: Diag, loc: Loc) -> Handle {
    with_context(|c| c.record_error(diag, loc));
    POISONED_HANDLE
}

/// Emits a constant, whose element type is that of the literal.
#[track_caller]
pub(crate) fn emit_constant(x: Literal) -> Handle {
    emit(Op::Const(x), &[])
}

/// Returns a value's type; `None` if its handle is poisoned, or of another kernel call or a closed region, which is an
/// error.
#[track_caller]
pub(crate) fn type_of(h: Handle) -> Option<Type> {
    let loc = Loc::caller();
    with_context(|c| c.resolve_handles(&[h], loc).and_then(|_| c.type_of(h))).flatten()
}
/// Returns a value's type for its `Debug` text; `None`, without an error, for a handle of another kernel call.
pub(crate) fn type_for_debug(h: Handle) -> Option<Type> {
    with_context(|c| c.type_of(h)).flatten()
}

/// Id of the running kernel call, which its refs record; 0 outside of kernels.
pub(crate) fn running_call_generation() -> u32 {
    with_context(|c| c.generation).unwrap_or(0)
}
/// Returns true if `generation` (of a ref) is that of the running kernel call; if not, records an error of the body.
#[track_caller]
pub(crate) fn check_same_kernel_call(generation: u32) -> bool {
    let loc = Loc::caller();
    with_context(|c| {
        let own = generation == c.generation;
        if !own {
            c.report_stale_use("block", loc);
        }
        own
    })
    .unwrap_or(true)
}

/// Number of instructions traced so far, which [`named`] takes as `before`; 0 in eager mode.
pub fn so_far() -> usize {
    with_context(|c| match &c.mode {
        ContextMode::Trace(builder) => builder.kernel().insts.len(),
        ContextMode::Eager(_) => 0,
    })
    .unwrap_or(0)
}

/// Returns `value`, and gives the result of the last instruction traced since `before` the variable's name.
///
/// `let sum = x.sum(1);` becomes `let sum = named("sum", so_far(), x.sum(1));`, whatever the type of the value is.
pub fn named<T>(name: &str, before: usize, value: T) -> T {
    with_context(|c| {
        let ContextMode::Trace(builder) = &mut c.mode else { return };
        let kernel = builder.kernel_mut();
        if kernel.insts.len() > before
            && let Some(&[result]) = kernel.insts.last().map(|inst| &inst.results[..])
        {
            kernel.name_value(result, Some(name));
        }
    });
    value
}

/// Applies `f` to the running kernel, to read its declarations; `None` outside of kernels.
pub(crate) fn with_kernel<R>(f: impl FnOnce(&Kernel) -> R) -> Option<R> {
    with_context(|c| f(c.kernel()))
}

/// Returns the value of an integer or boolean scalar in eager mode, and 0 after a failure. `what` names it in messages.
#[track_caller]
pub(crate) fn read_eager_integer(h: Handle, what: &str) -> i64 {
    let loc = Loc::caller();
    let value = with_context(|c| {
        let value = c.resolve_handles(&[h], loc)?[0];
        let ContextMode::Eager(eager) = &mut c.mode else { return None };
        let decided = eager.machine.checked_integer(&eager.values[value.index()], what, loc);
        eager.ok_or_record_fault(decided)
    });
    value.flatten().unwrap_or(0)
}

/// Records a fault if an eager `while` at `loc` has begun more `iterations` than the limit.
pub(crate) fn check_iteration_limit(iterations: u64, loc: Loc) {
    with_context(|c| {
        if let ContextMode::Eager(eager) = &mut c.mode {
            let turn = eager.machine.check_iteration_limit(iterations, loc);
            eager.ok_or_record_fault(turn);
        }
    });
}

/// Returns false if eager execution has failed, so that loops of the body end; true while tracing.
pub(crate) fn can_continue_loop() -> bool {
    with_context(|c| match &c.mode {
        ContextMode::Eager(eager) => eager.fault.is_none() && c.mistake.is_none(),
        ContextMode::Trace(_) => true,
    })
    .unwrap_or(false)
}

/// The state of eager execution at the start of a region, to which [`close_eager_region`] returns: numbers of open
/// regions and values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EagerRegionMark {
    regions: usize,
    values: usize,
}

/// Opens a region (a side of an `if`, or an iteration of a loop) in eager mode, and returns the mark with which
/// [`close_eager_region`] frees its values. While tracing it only returns an empty mark.
pub(crate) fn open_eager_region() -> EagerRegionMark {
    with_context(|c| {
        let ContextMode::Eager(eager) = &c.mode else { return EagerRegionMark::default() };
        let mark = EagerRegionMark { regions: c.open.len(), values: eager.values.len() };
        c.open_region();
        mark
    })
    .unwrap_or_default()
}

/// Closes the region of eager execution opened at `mark`, and those nested in it. Their values are freed, except
/// `kept_handles`, which get new handles: in the enclosing region or, if `opens_next`, in the region of the next
/// iteration, which is then opened.
pub(crate) fn close_eager_region(mark: EagerRegionMark, kept_handles: &mut [Handle], opens_next: bool) {
    with_context(|c| {
        let kept: Vec<Option<Datum>> = kept_handles
            .iter()
            .map(|h| match &c.mode {
                ContextMode::Eager(eager)
                    if h.value != POISONED_VALUE && c.can_use(h) && h.value.index() >= mark.values =>
                {
                    Some(eager.values[h.value.index()].clone())
                }
                _ => None,
            })
            .collect();
        c.open.truncate(mark.regions);
        if opens_next {
            c.open_region();
        }
        let ContextMode::Eager(eager) = &mut c.mode else { return };
        eager.values.truncate(mark.values);
        let values: Vec<Option<Value>> = kept.into_iter().map(|datum| datum.map(|d| eager.push_value(d))).collect();
        for (h, value) in kept_handles.iter_mut().zip(values) {
            if let Some(value) = value {
                *h = c.handle(value);
            }
        }
    });
}

/// Returns the types of the values of `handles`. A handle that can't be used here is an error of the region at `loc`.
pub(crate) fn types_of(handles: &[Handle], loc: Loc) -> Vec<Type> {
    with_context(|c| {
        c.resolve_handles(handles, loc);
        // After an error a value may have no type; any type lets the trace continue.
        handles.iter().map(|&h| c.type_of(h).unwrap_or(Type::scalar(DType::I32))).collect()
    })
    .unwrap_or_default()
}

/// Opens a region of the trace and returns its parameters: an i32 if `has_index`, then one for each of `types`, which
/// gets the name of the value of `named_like` at its position.
pub(crate) fn begin_traced_region(has_index: bool, types: Vec<Type>, named_like: &[Handle]) -> Vec<Handle> {
    with_context(|c| {
        let ContextMode::Trace(builder) = &mut c.mode else { return vec![] };
        let index: Vec<Type> = has_index.then(|| Type::scalar(DType::I32)).into_iter().collect();
        let params = builder.begin(&[&index[..], &types].concat());
        // A variable that a loop carries keeps its name.
        for (&param, h) in params[index.len()..].iter().zip(named_like) {
            builder.kernel_mut().copy_name(param, h.value);
        }
        c.open_region();
        params.into_iter().map(|value| c.handle(value)).collect()
    })
    .unwrap_or_default()
}

/// Closes the innermost region of the trace, which yields `yields`, and returns its id. Errors are reported at `loc`.
pub(crate) fn end_traced_region(yields: &[Handle], loc: Loc) -> RegionId {
    with_context(|c| {
        let yields = c.resolve_handles(yields, loc);
        match &mut c.mode {
            ContextMode::Trace(b) => {
                c.open.pop();
                b.end(&yields.unwrap_or_default())
            }
            ContextMode::Eager(_) => RegionId(0),
        }
    })
    .unwrap_or(RegionId(0))
}

/// Appends an instruction with regions (`if`, `for`, `while`) by `append_instruction`, and returns the handles of its
/// results, `result_count` in number.
pub(crate) fn append_with_regions(
    args: &[Handle],
    result_count: usize,
    loc: Loc,
    append_instruction: impl FnOnce(&mut Builder, &[Value]) -> Result<Vec<Value>, Diag>,
) -> Vec<Handle> {
    with_context(|c| {
        let args = c.resolve_handles(args, loc);
        let failed = vec![POISONED_HANDLE; result_count];
        // After a mistake regions may lack their yields: nothing more is appended.
        let (Some(args), None, ContextMode::Trace(b)) = (args, &c.mistake, &mut c.mode) else { return failed };
        match append_instruction(b, &args) {
            Ok(values) => values.into_iter().map(|v| c.handle(v)).collect(),
            Err(diag) => {
                c.record_error(diag, loc);
                failed
            }
        }
    })
    .unwrap_or_default()
}
