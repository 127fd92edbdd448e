//! The graphs that are being traced on this thread, and operations on arrays: appended to a graph where an operand is
//! traced, else run at once.
use super::axis_names;
use super::compile::{Compilation, CompilationInput, convert_transform_error};
use super::program::Program;
use super::sharded::{DeclaredShardings, OperandShardings, operand_shardings};
use crate::array::{Array, ArrayContents, Client, TracedValue};
use pallas_device::Lru;
use pallas_device::error::{Error, Result};
use pallas_graph::manual::AxisStateInference;
use pallas_graph::mesh::{AxisStates, Mesh, MeshSharding};
use pallas_graph::{Graph, Var, check_arrays_indexable};
use pallas_ir::{DType, Diag, Loc, Type};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

/// A function that is being traced: the graph so far, and the outer arrays that it captures.
struct OpenTrace {
    id: u32,
    graph: Graph,
    client: Client,
    /// Arrays from outside of the function that it uses, with the parameters that stand for them.
    captured: Vec<(Array, Var)>,
    /// Inside of a `shard_map`, the states (varying, invariant, unreduced) of its values; `None` outside of one.
    typing: Option<AxisStateInference>,
    /// Size of the longest axis of a mesh that its arguments or constraints name; 1 without a mesh.
    longest_axis: usize,
}

/// A parameter of a function that is being traced: its type, its states inside of a `shard_map`, and the longest axis
/// of its mesh.
#[derive(Clone, Debug)]
pub(super) struct TracedParameter {
    pub ty: Type,
    /// Inside of a `shard_map`, by axis, whether the value differs between devices; `None` for equal values.
    pub states: Option<AxisStates>,
    /// Size of the longest axis of the mesh that it is declared on; 1 without a declaration.
    pub longest_axis: usize,
}

impl TracedParameter {
    /// A parameter with the type, states and mesh of an array.
    pub(super) fn like_array(x: &Array) -> TracedParameter {
        TracedParameter::with_type_like(type_of(x), x)
    }

    /// A parameter of type `ty`, with the states and mesh of the array `like`.
    pub(super) fn with_type_like(ty: Type, like: &Array) -> TracedParameter {
        TracedParameter { ty, states: manual_axis_states(like), longest_axis: longest_declared_mesh_axis_size(like) }
    }

    /// A parameter of type `ty` that is declared on no mesh: a whole array (`None`), or a block in these states.
    pub(super) fn with_states(ty: Type, states: Option<AxisStates>) -> TracedParameter {
        TracedParameter { ty, states, longest_axis: 1 }
    }
}

/// Returns by axis of the mesh of the innermost `shard_map` the state of a value: varying, invariant, unreduced or
/// reduced; `None` outside of one.
pub(crate) fn manual_axis_states(x: &Array) -> Option<AxisStates> {
    OPEN_TRACES.with_borrow(|traces| manual_axis_states_in(traces, x))
}

fn manual_axis_states_in(traces: &[OpenTrace], x: &Array) -> Option<AxisStates> {
    let ArrayContents::Traced(traced) = x.contents() else { return None };
    let trace = traces.iter().find(|trace| trace.id == traced.trace)?;
    trace.typing.as_ref().map(|typing| typing.states(Var(traced.value)))
}

thread_local! {
    /// The functions that are being traced on this thread, the innermost last.
    static OPEN_TRACES: RefCell<Vec<OpenTrace>> = const { RefCell::new(vec![]) };
}
static NEXT_TRACE_ID: AtomicU32 = AtomicU32::new(0);

/// Graph of a traced function, with the arrays that the function captures and the states of its results along mesh
/// axes.
pub(super) struct TracedFunction {
    /// Graph of the function; its last parameters stand for the captured arrays.
    pub graph: Graph,
    pub captured: Vec<Array>,
    /// By result, its states along the axes of the mesh; `None` outside of a `shard_map`.
    pub states: Vec<Option<AxisStates>>,
}

/// A trace in progress. Dropping it closes the trace and all that began inside of it, also after an error or a panic.
pub(super) struct TraceGuard {
    id: u32,
    /// Traces belong to a thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for TraceGuard {
    fn drop(&mut self) {
        OPEN_TRACES.with_borrow_mut(|traces| {
            let depth = traces.iter().position(|trace| trace.id == self.id);
            traces.truncate(depth.unwrap_or(traces.len()));
        });
    }
}

impl TraceGuard {
    /// Begins to trace a function with these parameters; returns the trace, and the arrays to call the function with.
    pub(super) fn begin(client: &Client, parameters: &[TracedParameter]) -> (TraceGuard, Vec<Array>) {
        let id = NEXT_TRACE_ID.fetch_add(1, Relaxed);
        let mut graph = Graph::default();
        let params: Vec<Var> = parameters.iter().map(|taken| graph.param(taken.ty.clone())).collect();
        let mut typing =
            axis_names::innermost_mesh_and_manual_axes().map(|(mesh, manual)| AxisStateInference::new(&mesh, &manual));
        if let Some(typing) = &mut typing {
            for (&p, taken) in params.iter().zip(parameters) {
                taken.states.iter().for_each(|states| typing.define_states(p, states.clone()));
            }
        }
        // Compiled functions keep traced arrays, which must not count as a use of the client.
        let client = client.without_use_count();
        let params: Vec<Array> = params.into_iter().map(|v| traced_array(&graph, v, id, &client)).collect();
        let parts = parameters.iter().map(|taken| taken.longest_axis).max().unwrap_or(1);
        let trace = OpenTrace { id, graph, client, captured: vec![], typing, longest_axis: parts };
        OPEN_TRACES.with_borrow_mut(|traces| traces.push(trace));
        (TraceGuard { id, _not_send: PhantomData }, params)
    }

    /// Ends the trace of a function that returned `results`; returns its graph.
    ///
    /// # Errors
    /// The first error of an operation that the results depend on; a trace that is not the innermost one.
    pub(super) fn end(self, results: &[Array]) -> Result<TracedFunction> {
        if OPEN_TRACES.with_borrow(|traces| traces.last().is_none_or(|innermost| innermost.id != self.id)) {
            let message = "a call ends while one that began inside of it, or around it, is still open; help: end calls in the \
                           reverse order of their beginnings";
            return Err(Error::Traced { message: message.into() });
        }
        let results = results.iter().map(|x| find_or_capture_variable(x, Loc::NONE)).collect::<Result<Vec<Var>>>()?;
        let done = OPEN_TRACES.with_borrow_mut(|traces| traces.pop()).expect("it is open");
        record_longest_mesh_axis_size(done.longest_axis);
        let captured = done.captured.into_iter().map(|(array, _)| array).collect();
        let states = results.iter().map(|&r| done.typing.as_ref().map(|typing| typing.states(r))).collect();
        Ok(TracedFunction { graph: Graph { results, ..done.graph }, captured, states })
    }
}

/// Returns the number of devices along the longest axis of the mesh that an array is declared on; 1 without a
/// declaration.
fn longest_declared_mesh_axis_size(x: &Array) -> usize {
    let declared = x.placement().filter(|placement| placement.declared.is_some());
    declared.map_or(1, |placement| longest_mesh_axis_size(&placement.mesh))
}

fn longest_mesh_axis_size(mesh: &Mesh) -> usize {
    mesh.axes().iter().map(|axis| axis.size as usize).max().unwrap_or(1)
}

/// Records that the innermost traced function uses a mesh whose longest axis has `size` devices.
fn record_longest_mesh_axis_size(size: usize) {
    OPEN_TRACES.with_borrow_mut(|traces| {
        traces.last_mut().into_iter().for_each(|trace| trace.longest_axis = trace.longest_axis.max(size))
    });
}

/// Records that the innermost traced function uses this mesh.
pub(super) fn record_mesh_use(mesh: &Mesh) {
    record_longest_mesh_axis_size(longest_mesh_axis_size(mesh));
}

/// Returns the number of devices along the longest axis of the meshes that functions being traced use; 1 without a
/// mesh.
pub(crate) fn longest_traced_mesh_axis_size() -> usize {
    OPEN_TRACES.with_borrow(|traces| traces.iter().map(|trace| trace.longest_axis).max().unwrap_or(1))
}

/// Traces a function with these parameters.
///
/// # Errors
/// The function's error, or the first error of an operation that its results depend on.
pub(super) fn trace(
    client: &Client,
    parameters: &[TracedParameter],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<TracedFunction> {
    trace_boxed(client, parameters, Box::new(f))
}

/// Traces a function that returns a value beside its arrays; returns this value and the traced function.
pub(super) fn trace_with_value<R>(
    client: &Client,
    parameters: &[TracedParameter],
    f: impl FnOnce(&[Array]) -> Result<(R, Vec<Array>)>,
) -> Result<(R, TracedFunction)> {
    let mut returned = None;
    let traced = trace(client, parameters, |params| {
        let (own, results) = f(params)?;
        returned = Some(own);
        Ok(results)
    })?;
    Ok((returned.expect("the function returned"), traced))
}

/// A boxed function of arrays: code that calls it is compiled once, not for each closure of a program.
type ArrayFunction<'a> = Box<dyn FnOnce(&[Array]) -> Result<Vec<Array>> + 'a>;

fn trace_boxed(client: &Client, parameters: &[TracedParameter], f: ArrayFunction<'_>) -> Result<TracedFunction> {
    let (open, params) = TraceGuard::begin(client, parameters);
    open.end(&f(&params)?)
}

fn traced_array(graph: &Graph, v: Var, trace_id: u32, client: &Client) -> Array {
    let Type { dtype, shape } = graph.ty(v);
    Array::from_traced_value(*dtype, shape, TracedValue { trace: trace_id, value: v.0, client: client.clone() })
}

/// The type of an array.
pub(super) fn type_of(x: &Array) -> Type {
    Type::new(x.dtype(), x.shape())
}

/// Returns the variable of an array in the innermost graph: its own one, or for an array from outside the parameter
/// that stands for it, which is added if there is none.
///
/// # Errors
/// An array of a function whose trace is over, with the line `at` that uses it; the error of a poisoned array.
fn find_or_capture_variable(x: &Array, at: Loc) -> Result<Var> {
    x.check()?;
    OPEN_TRACES.with_borrow_mut(|traces| {
        if let ArrayContents::Traced(traced) = x.contents()
            && !traces.iter().any(|trace| trace.id == traced.trace)
        {
            let place = if at == Loc::NONE { String::new() } else { format!("{at}: ") };
            if x.is_abstract() {
                let ty = type_of(x);
                let help = "pass it to a function of `eval_shape` or `lower` as an argument";
                let message = format!("{place}an array of {ty} that has a shape and an element type alone; help: {help}");
                return Err(Error::Traced { message });
            }
            let message = format!(
                "{place}an array of {} outlived the function that was traced, or is used on another thread; help: return it \
                 from that function",
                type_of(x)
            );
            return Err(Error::Traced { message });
        }
        let states = manual_axis_states_in(traces, x);
        let top = traces.last_mut().expect("a function is being traced");
        if let ArrayContents::Traced(traced) = x.contents()
            && traced.trace == top.id
        {
            return Ok(Var(traced.value));
        }
        if let Some((_, v)) = top.captured.iter().find(|(known, _)| is_same_value(known, x)) {
            return Ok(*v);
        }
        let v = top.graph.param(type_of(x));
        if let (Some(typing), Some(states)) = (&mut top.typing, states) {
            typing.define_states(v, states);
        }
        top.captured.push((x.clone(), v));
        top.longest_axis = top.longest_axis.max(longest_declared_mesh_axis_size(x));
        Ok(v)
    })
}

/// Returns true if two arrays are one value: a buffer with equal types, a sharded array, or a variable of a trace.
fn is_same_value(a: &Array, b: &Array) -> bool {
    match (a.contents(), b.contents()) {
        (ArrayContents::InMemory(a_buffer), ArrayContents::InMemory(b_buffer)) => {
            Arc::ptr_eq(a_buffer, b_buffer) && type_of(a) == type_of(b)
        }
        (ArrayContents::Sharded(a), ArrayContents::Sharded(b)) => Arc::ptr_eq(a, b),
        (ArrayContents::Traced(a), ArrayContents::Traced(b)) => (a.trace, a.value) == (b.trace, b.value),
        _ => false,
    }
}

/// A boxed closure that appends equations to a graph, and returns their results.
type AppendEquations<'a> = Box<dyn FnOnce(&mut Graph) -> Result<Vec<Var>, Diag> + 'a>;

/// Appends equations to the innermost graph, and returns arrays for their results.
///
/// # Errors
/// The error of `f`; inside of a `shard_map`, an operation that does not take its operands in their states along the
/// mesh's axes (varying, unreduced ..).
fn append_equations(at: Loc, f: AppendEquations<'_>) -> Result<Vec<Array>> {
    OPEN_TRACES.with_borrow_mut(|traces| {
        let OpenTrace { id, graph, client, typing, .. } = traces.last_mut().expect("a function is being traced");
        graph.at = at;
        let first = graph.equations.len();
        let made = f(graph).map_err(|diag| Error::operation(at, diag))?;
        if let Some(typing) = typing {
            let made = graph.equations.split_off(first);
            made.into_iter().try_for_each(|e| typing.push_with_casts(graph, e)).map_err(convert_transform_error)?;
        }
        Ok(made.into_iter().map(|v| traced_array(graph, v, *id, client)).collect())
    })
}

/// Compiled programs of single operations that run at once. Those of clients that are no longer used are dropped.
static SINGLE_OP_PROGRAMS: LazyLock<Lru<SingleOpKey, Arc<Program>>> =
    LazyLock::new(|| Lru::new(|program| program.estimated_bytes()));

/// Key of a single operation's program: its client, its graph, and the shardings of operands that its result follows.
type SingleOpKey = (Client, Graph, Option<OperandShardings>);

/// A boxed closure that appends an operation on these operands to a graph, and returns its result or results. Boxed, so
/// that code that calls it is compiled once, not for each operation.
type BuildEquations<'a, R> = Box<dyn FnOnce(&mut Graph, &[Var]) -> Result<R, Diag> + 'a>;

/// The sharding constraint whose result is this traced array, its line, and its operand; `None` for any other array.
pub(super) fn sharding_constraint_of(x: &Array) -> Option<(MeshSharding, Loc, Array)> {
    let ArrayContents::Traced(traced) = x.contents() else { return None };
    OPEN_TRACES.with_borrow(|traces| {
        let OpenTrace { id, graph, client, .. } = traces.iter().find(|trace| trace.id == traced.trace)?;
        let equation = graph.equations.iter().rev().find(|e| e.results == [Var(traced.value)])?;
        let placed = equation.op.sharding_constraint()?.clone();
        Some((placed, equation.loc, traced_array(graph, equation.args[0], *id, client)))
    })
}

/// Number of sharding groups in the innermost graph.
pub(super) fn sharding_group_count() -> u32 {
    OPEN_TRACES.with_borrow(|traces| traces.last().map_or(0, |trace| trace.graph.sharding_group_count()))
}

/// Returns true inside of a function that is being traced.
pub(crate) fn is_tracing() -> bool {
    OPEN_TRACES.with_borrow(|traces| !traces.is_empty())
}

/// Applies an operation that makes an array without reading one, such as a range. Inside of a function that is being
/// traced it is a part of that function even if no operand is traced; elsewhere it runs at once, as in [`apply`].
pub(crate) fn create_array(
    args: &[&Array],
    at: Loc,
    equations: impl FnOnce(&mut Graph, &[Var]) -> Result<Var, Diag>,
) -> Array {
    if !is_tracing() {
        return apply(args, at, equations);
    }
    only_result_or_poisoned(append_to_innermost_graph(args, at, as_multi_result(Box::new(equations))), args)
}

/// Applies an operation to arrays. It is appended to the innermost graph if an operand is traced, or if there are no
/// operands while a function is being traced; else it runs at once, on the client of the first operand. After an error,
/// or if an operand holds one, the result is an array that holds the error.
pub(crate) fn apply(
    args: &[&Array],
    at: Loc,
    equations: impl FnOnce(&mut Graph, &[Var]) -> Result<Var, Diag>,
) -> Array {
    apply_single_result(args, at, Box::new(equations))
}

fn apply_single_result(args: &[&Array], at: Loc, equations: BuildEquations<'_, Var>) -> Array {
    only_result_or_poisoned(apply_boxed_operation(args, at, as_multi_result(equations)), args)
}

/// Returns the client of the innermost function that is being traced on this thread; `None` outside of one.
pub(crate) fn innermost_trace_client() -> Option<Client> {
    OPEN_TRACES.with_borrow(|traces| traces.last().map(|trace| trace.client.clone()))
}

fn as_multi_result(equations: BuildEquations<'_, Var>) -> BuildEquations<'_, Vec<Var>> {
    Box::new(|graph, vars| Ok(vec![equations(graph, vars)?]))
}

/// Returns the only result of an operation on `args`; after an error an array that holds it, with the type of the first
/// operand.
fn only_result_or_poisoned(results: Result<Vec<Array>>, args: &[&Array]) -> Array {
    match results {
        Ok(mut made) => made.remove(0),
        Err(error) => poisoned_result(error, args),
    }
}

/// Appends an operation to the innermost graph; operands from outside of it become its parameters.
fn append_to_innermost_graph(args: &[&Array], at: Loc, equations: BuildEquations<'_, Vec<Var>>) -> Result<Vec<Array>> {
    // Traced operands come first: on another thread there is no graph for the others.
    args.iter().filter(|x| x.is_traced()).try_for_each(|x| find_or_capture_variable(x, at).map(drop))?;
    let vars = args.iter().map(|x| find_or_capture_variable(x, at)).collect::<Result<Vec<Var>>>()?;
    append_equations(at, Box::new(|graph| equations(graph, &vars)))
}

/// Applies an operation with several results to arrays: it is traced if an operand is, else it runs at once; see
/// [`apply`].
///
/// # Errors
/// The error of the operation or of an operand; operands on several clients.
pub(super) fn apply_multi_result(
    args: &[&Array],
    at: Loc,
    equations: impl FnOnce(&mut Graph, &[Var]) -> Result<Vec<Var>, Diag>,
) -> Result<Vec<Array>> {
    apply_boxed_operation(args, at, Box::new(equations))
}

/// Appends an operation to the innermost graph, or runs it at once; see [`apply`] for the choice.
fn apply_boxed_operation(args: &[&Array], at: Loc, equations: BuildEquations<'_, Vec<Var>>) -> Result<Vec<Array>> {
    let chosen;
    let client = match args.first() {
        Some(x) => x.client(),
        None => {
            chosen = innermost_trace_client().map_or_else(Client::from_env, Ok)?;
            &chosen
        }
    };
    args.iter().try_for_each(|x| x.check().map(drop))?;
    args.iter().try_for_each(|x| x.check_client(client, &|| "an operand".into())).map_err(|e| e.called_at(at))?;
    if args.iter().any(|x| x.is_traced()) || args.is_empty() && is_tracing() {
        return append_to_innermost_graph(args, at, equations);
    }
    let mut graph = Graph::default();
    let params: Vec<Var> = args.iter().map(|x| graph.param(type_of(x))).collect();
    graph.results = equations(&mut graph, &params).map_err(|diag| Error::operation(at, diag))?;
    run_single_op(graph, client, args).map_err(|error| error.called_at(at))
}

/// Runs the graph of a single operation, whose compiled program is cached. The caller adds its line to errors.
///
/// # Errors
/// Sizes that no launch can have; what the program returns.
pub(super) fn run_single_op(graph: Graph, client: &Client, args: &[&Array]) -> Result<Vec<Array>> {
    let key = (client.without_use_count(), graph, operand_shardings(args));
    let program = match SINGLE_OP_PROGRAMS.get(&key) {
        Some(program) => program,
        None => {
            check_arrays_indexable(&key.1).map_err(|(_, diag)| Error::operation(Loc::NONE, diag))?;
            let declared = match &key.2 {
                Some(followed) => DeclaredShardings::from_operands(followed),
                None => DeclaredShardings::from_constraints(&key.1)?,
            };
            let program = Arc::new(
                Compilation::new(CompilationInput { declared, ..CompilationInput::from_graph(key.1.clone(), client) })
                    .into_program()?,
            );
            SINGLE_OP_PROGRAMS.retain(|(client, ..)| client.is_in_use());
            SINGLE_OP_PROGRAMS.get_or_insert(key, program)
        }
    };
    program.run(args)
}

/// An array that holds an error, with the type and client of the first operand.
fn poisoned_result(error: Error, args: &[&Array]) -> Array {
    let ty = args.first().map_or(Type::scalar(DType::F32), |x| type_of(x));
    let client = args.first().map_or_else(Client::cpu, |x| x.client().clone());
    Array::new_poisoned(error, client, ty.dtype, &ty.shape)
}
