//! Loops and branches as operations: their bodies are traced once, so the size of a program does not depend on the
//! number of steps.
mod carry_check;

use super::axis_names;
use super::function::Outcome;
use super::trace::{TracedFunction, TracedParameter, apply_multi_result, trace, trace_with_value, type_of};
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use carry_check::check_carried;
use pallas_device::error::{Error, Result};
use pallas_graph::call::{Case, While};
use pallas_graph::{Graph, Var, call};
use pallas_ir::{At, DType, Diag, Loc, Type};

/// Options of [`scan`]: its direction, the number of steps where no array gives it, and the number of steps per
/// iteration.
///
/// ```
/// use pallas_rt::{Array, Scan};
/// // Sums from the end.
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
/// let start = Array::from_slice(&[0.0f32], &[])?;
/// let (total, sums) = Scan::new().reverse(true).run(&start, &x, |sum: &Array, x: &Array| {
///     let sum = sum + x;
///     (sum.clone(), sum)
/// })?;
/// assert_eq!((total.to_vec::<f32>()?, sums.to_vec::<f32>()?), (vec![6.0], vec![6.0, 5.0, 3.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scan {
    length: Option<usize>,
    reverse: bool,
    unroll: usize,
}

impl Scan {
    /// Returns the default options: forward, as many steps as the arrays have elements, one step per iteration.
    pub fn new() -> Scan {
        Scan::default()
    }

    /// Sets the number of steps, which a scan without arrays needs.
    #[must_use]
    pub fn length(mut self, steps: usize) -> Scan {
        self.length = Some(steps);
        self
    }

    /// Sets the direction: true scans from the last element to the first.
    #[must_use]
    pub fn reverse(mut self, reverse: bool) -> Scan {
        self.reverse = reverse;
        self
    }

    /// Sets the number of steps per iteration, which have no loop between them: kernels may then span several steps,
    /// and the program is larger. The results are the same.
    #[must_use]
    pub fn unroll(mut self, steps: usize) -> Scan {
        self.unroll = steps;
        self
    }

    /// Runs the scan; see [`scan`].
    ///
    /// # Errors
    /// As [`scan`].
    #[track_caller]
    pub fn run<C, X, Y, R>(self, init: &C, xs: &X, step: impl FnOnce(&C, &X) -> R) -> Result<(C, Y)>
    where
        C: Tree,
        X: Tree,
        Y: Tree,
        R: Outcome<Tree = (C, Y)>,
    {
        let at = Loc::caller();
        let (carried, arrays) = (tree::leaves(init), tree::leaves(xs));
        let client = first_client_or_default(carried.iter().chain(&arrays))?;
        let length = self.step_count(&arrays, &|| tree::paths(xs), at)?;
        let takes = scan_parameters(&carried, &arrays);
        let (y, traced) = trace_with_value(&client, &takes, |params| {
            let (c, x) = params.split_at(carried.len());
            let x = tree::rebuild(xs, x.iter().cloned())?;
            let (c, y) = step(&tree::rebuild(init, c.iter().cloned())?, &x).tree()?;
            let mut results = check_carried(init, &c, at)?;
            results.extend(tree::leaves(&y));
            Ok((y, results))
        })?;
        let (last, stacks) = self.push_scan(traced, &carried, &arrays, length, at)?;
        Ok((tree::rebuild(init, last)?, tree::rebuild(&y, stacks)?))
    }

    /// Number of steps of a scan over these arrays: the extent of their first axes, or the stated length.
    ///
    /// # Errors
    /// Arrays whose first axes differ, or are not as long as it was said; an array without axis; no number at all.
    fn step_count(&self, arrays: &[Array], paths: &dyn Fn() -> Vec<String>, at: Loc) -> Result<usize> {
        let refused = |message: String, help: &str| Err(Error::operation(at, Diag::new("scan", At::Op, message, help)));
        let mut length = self.length;
        for (x, path) in arrays.iter().zip(paths()) {
            x.check()?;
            match (x.shape().first(), length) {
                (Some(&n), Some(known)) if n != known => {
                    let message =
                        format!("{}{} in a scan of {known} steps", leaf_message_prefix("array", &path), type_of(x));
                    return refused(message, "the first axes of all arrays are equal, and the length if it is given");
                }
                (None, _) => {
                    let message = format!(
                        "{}{}, which a scan reads element by element, has no axis",
                        leaf_message_prefix("array", &path),
                        type_of(x)
                    );
                    return refused(message, "what each step reads is captured or carried");
                }
                (Some(&n), _) => length = Some(n),
            }
        }
        match length {
            Some(length) => Ok(length),
            None => refused("a scan without arrays".into(), "give the number of steps: `Scan::new().length(n)`"),
        }
    }

    /// Appends the scan of a traced step; returns the last carried arrays, and the stacked results of all steps.
    fn push_scan(
        &self,
        step: TracedFunction,
        carried: &[Array],
        arrays: &[Array],
        length: usize,
        at: Loc,
    ) -> Result<(Vec<Array>, Vec<Array>)> {
        let TracedFunction { graph, captured, .. } = step;
        let body = move_captured_first(graph, carried.len() + arrays.len());
        let args: Vec<&Array> = captured.iter().chain(carried).chain(arrays).collect();
        let call = call::Scan { body, captured: captured.len(), carried: carried.len(), length, reverse: self.reverse };
        let mut results = apply_multi_result(&args, at, |graph, v| graph.push_scan(call, v, self.unroll))?;
        let stacks = results.split_off(carried.len());
        Ok((results, stacks))
    }
}

/// Parameters of a scan's step: the carried arrays, and one element (no first axis) of each scanned array.
fn scan_parameters(carried: &[Array], arrays: &[Array]) -> Vec<TracedParameter> {
    let element = |x: &Array| TracedParameter::with_type_like(Type::new(x.dtype(), &x.shape()[1..]), x);
    carried.iter().map(TracedParameter::like_array).chain(arrays.iter().map(element)).collect()
}

/// Calls `step` for each index of the first axis of the arrays in `xs`, and carries a value from step to step;
/// `lax.scan`.
///
/// `step` takes the carried value (`init`, then what the previous step returned) and the elements at this index. It
/// returns the next carried value, of the same tree and types, and a tree whose leaves are stacked along a new first
/// axis. It is traced once. Captured arrays are the same in each step, and so are the random numbers of a captured key:
/// see [`random`](crate::random).
///
/// # Errors
/// The step's own error; arrays whose first axes differ; a step that returns another tree or other types than it takes;
/// errors of the device.
///
/// ```
/// use pallas_rt::{Array, grad, scan};
/// // A recurrent net: the gradient passes through all steps.
/// let loss = grad(|w: &Array, x: &Array| {
///     let start = x.sum(..) * 0.0;
///     let (last, _) = scan(&start, x, |h: &Array, x: &Array| ((h * w + x).tanh(), ()))?;
///     Ok::<_, pallas_rt::Error>(last)
/// });
/// let w = Array::from_slice(&[0.5f32], &[])?;
/// let x = Array::from_slice(&[0.1f32, 0.2, 0.3], &[3])?;
/// assert!(loss(&w, &x)?.to_vec::<f32>()?[0] > 0.0);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn scan<C, X, Y, R>(init: &C, xs: &X, step: impl FnOnce(&C, &X) -> R) -> Result<(C, Y)>
where
    C: Tree,
    X: Tree,
    Y: Tree,
    R: Outcome<Tree = (C, Y)>,
{
    Scan::new().run(init, xs, step)
}

/// Returns an error unless `condition` is a bool scalar; `code` and `function` are for its message.
fn check_scalar_bool(condition: &Array, code: &'static str, function: &str, at: Loc) -> Result<()> {
    condition.check()?;
    if type_of(condition) == Type::scalar(DType::Bool) {
        return Ok(());
    }
    let message = format!("the condition of a `{function}` is {}", type_of(condition));
    Err(Error::operation(at, Diag::new(code, At::Op, message, "it is a bool scalar: reduce it by `all` or `any`")))
}

/// Calls `step` with each number of `range` (an i32 scalar) and the value that the previous step returned, `init` at
/// first; `lax.fori_loop` with fixed bounds. It is traced once, and has derivatives.
///
/// # Errors
/// As [`scan`]; bounds that are no i32.
///
/// ```
/// use pallas_rt::{Array, fori_loop};
/// let one = Array::from_slice(&[1i32], &[])?;
/// let factorial = fori_loop(1..6, &one, |i: &Array, x: &Array| x * i)?;
/// assert_eq!(factorial.to_vec::<i32>()?, [120]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn fori_loop<C, R>(range: std::ops::Range<i64>, init: &C, step: impl FnOnce(&Array, &C) -> R) -> Result<C>
where
    C: Tree + Send + Sync + 'static,
    R: Outcome<Tree = C>,
{
    let at = Loc::caller();
    if i32::try_from(range.start).is_err() || i32::try_from(range.end).is_err() {
        let message = format!("a loop over {range:?}");
        return Err(Error::operation(at, Diag::new("range", At::Op, message, "bounds are i32")));
    }
    let client = first_client_or_default(tree::leaves(init).iter())?;
    let first = Array::from_slice(&[range.start as i32], &[])?.to_device(&client)?;
    let steps = Scan::new().length((range.end - range.start).max(0) as usize);
    let ((_, last), ()) = steps.run(&(first, init.clone()), &(), |(i, c): &(Array, C), ()| {
        let next = step(i, c).tree()?;
        check_carried(c, &next, at)?;
        Ok::<_, Error>(((i + 1, next), ()))
    })?;
    Ok(last)
}

/// Replaces a value, `init` at first, by `step` of it as long as `condition` of it is true; `lax.while_loop`.
///
/// `condition` returns a bool scalar, which the host reads before each step. Both functions are traced once. There is
/// no reverse mode, which would store residuals of an unbounded number of steps; forward derivatives exist.
///
/// # Errors
/// The functions' own errors; a condition of another type; a step that returns another tree or other types than it
/// takes; errors of the device.
///
/// ```
/// use pallas_rt::{Array, while_loop};
/// // The first power of 3 beyond 1000.
/// let one = Array::from_slice(&[1i32], &[])?;
/// let power = while_loop(&one, |x: &Array| x.le(1000), |x: &Array| x * 3)?;
/// assert_eq!(power.to_vec::<i32>()?, [2187]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn while_loop<C, P, R>(init: &C, condition: impl FnOnce(&C) -> P, step: impl FnOnce(&C) -> R) -> Result<C>
where
    C: Tree,
    P: Outcome<Tree = Array>,
    R: Outcome<Tree = C>,
{
    let at = Loc::caller();
    let carried = tree::leaves(init);
    let client = first_client_or_default(carried.iter())?;
    let takes: Vec<TracedParameter> = carried.iter().map(TracedParameter::like_array).collect();
    let given = |params: &[Array]| tree::rebuild(init, params.iter().cloned());
    let condition = trace(&client, &takes, |params| {
        let goes_on = condition(&given(params)?).tree()?;
        check_scalar_bool(&goes_on, "while", "while_loop", at)?;
        Ok(vec![goes_on])
    })?;
    let body = trace(&client, &takes, |params| check_carried(init, &step(&given(params)?).tree()?, at))?;
    tree::rebuild(init, push_while(condition, body, &carried, at)?)
}

/// Appends a `while` loop of a traced condition and a traced step; returns the last carried arrays.
fn push_while(condition: TracedFunction, body: TracedFunction, carried: &[Array], at: Loc) -> Result<Vec<Array>> {
    let args: Vec<&Array> = condition.captured.iter().chain(&body.captured).chain(carried).collect();
    let call = While {
        condition_captured: condition.captured.len(),
        body_captured: body.captured.len(),
        condition: move_captured_first(condition.graph, carried.len()),
        body: move_captured_first(body.graph, carried.len()),
    };
    apply_multi_result(&args, at, |graph, v| graph.push_multi_result(call, v))
}

/// Calls one of two functions: the first if `condition`, a bool scalar, is true; `lax.cond`. Both are traced, and
/// return equal trees with equal types; one of them runs.
///
/// # Errors
/// The functions' own errors; a condition of another type; results that differ; errors of the device.
///
/// ```
/// use pallas_rt::{Array, cond};
/// let x = Array::from_slice(&[2.0f32], &[])?;
/// let y = cond(&x.gt(1.0), &x, |x: &Array| x * 10.0, |x: &Array| x - 1.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [20.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn cond<A, R, S>(
    condition: &Array,
    args: &A,
    yes: impl FnOnce(&A) -> R,
    no: impl FnOnce(&A) -> S,
) -> Result<R::Tree>
where
    A: Tree,
    R: Outcome,
    S: Outcome<Tree = R::Tree>,
{
    let at = Loc::caller();
    check_scalar_bool(condition, "cond", "cond", at)?;
    let number = condition.cast(DType::I32);
    let all: Vec<Branch<'_, A, R::Tree>> = vec![Box::new(|args| no(args).tree()), Box::new(|args| yes(args).tree())];
    push_branches(&number, args, all, &|i| format!("the function for {}", i == 1), at)
}

/// Calls `functions[number]`, where `number` is an i32 scalar that is clamped to the valid range; `lax.switch`. All
/// functions are traced, and return equal trees with equal types; one of them runs.
///
/// # Errors
/// The functions' own errors; no function; a number of another type; results that differ; errors of the device.
///
/// ```
/// use pallas_rt::{Array, switch};
/// let x = Array::from_slice(&[2.0f32], &[])?;
/// let number = Array::from_slice(&[1i32], &[])?;
/// let functions: [fn(&Array) -> Array; 3] = [|x| x + 1.0, |x| x * 10.0, |x| -x];
/// assert_eq!(switch(&number, &x, functions)?.to_vec::<f32>()?, [20.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn switch<A, R, F>(number: &Array, args: &A, functions: impl IntoIterator<Item = F>) -> Result<R::Tree>
where
    A: Tree,
    R: Outcome,
    F: FnOnce(&A) -> R,
{
    let at = Loc::caller();
    let boxed = |f: F| -> Branch<'_, A, R::Tree> { Box::new(move |args: &A| f(args).tree()) };
    push_branches(number, args, functions.into_iter().map(boxed).collect(), &|i| format!("branch {i}"), at)
}

/// A branch of a [`cond`] or [`switch`].
type Branch<'a, A, T> = Box<dyn FnOnce(&A) -> Result<T> + 'a>;

/// Returns the words that name a leaf in front of its type in a message: ``array `x.y` of `` for the noun `what` =
/// "array" and the path `x.y`; empty for an empty path.
fn leaf_message_prefix(what: &str, path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{what} `{path}` of ").trim_start().into() }
}

/// Text that names a leaf of a result: its path, or "the result" for an empty path.
fn result_leaf_name(path: &str) -> String {
    if path.is_empty() { "the result".into() } else { format!("`{path}`") }
}

/// Traces the branches of a [`cond`] or [`switch`], checks that they return alike arrays, and appends the operation
/// that runs the one with this number. `branch_name` names a branch in messages.
fn push_branches<A: Tree, T: Tree>(
    number: &Array,
    args: &A,
    branches: Vec<Branch<'_, A, T>>,
    branch_name: &dyn Fn(usize) -> String,
    at: Loc,
) -> Result<T> {
    let refused = |message: String, help: &str| Error::operation(at, Diag::new("switch", At::Op, message, help));
    number.check()?;
    if type_of(number) != Type::scalar(DType::I32) {
        let message = format!("the number of a branch is {}", type_of(number));
        return Err(refused(message, "it is an i32 scalar"));
    }
    let operands = tree::leaves(args);
    let client = first_client_or_default([number].into_iter().chain(&operands))?;
    let takes: Vec<TracedParameter> = operands.iter().map(TracedParameter::like_array).collect();
    let one = |branch: Branch<'_, A, T>| {
        trace_with_value(&client, &takes, |params| {
            let out = branch(&tree::rebuild(args, params.iter().cloned())?)?;
            let results = tree::leaves(&out);
            Ok((out, results))
        })
    };
    let (outs, traced): (Vec<T>, Vec<TracedFunction>) =
        branches.into_iter().map(one).collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let Some(first) = traced.first() else {
        return Err(refused("a switch without functions".into(), "give at least one"));
    };
    for (i, other) in traced.iter().enumerate().skip(1) {
        let [a, b] = [&outs[0], &outs[i]].map(|out| tree::structure(out));
        if a != b {
            let message = format!("{} returns {a}, {} {b}", branch_name(0), branch_name(i));
            return Err(refused(message, "all branches return equal trees"));
        }
        let (a, b) = (first.graph.result_types(), other.graph.result_types());
        if let Some(leaf) = a.iter().zip(&b).position(|(a, b)| a != b) {
            let path = result_leaf_name(&tree::paths(&outs[0])[leaf]);
            let message = format!("{path} is {} in {} and {} in {}", a[leaf], branch_name(0), b[leaf], branch_name(i));
            return Err(refused(message, "all branches return arrays of equal types"));
        }
        if let Some(leaf) = (0..a.len()).find(|&leaf| first.states[leaf] != other.states[leaf]) {
            let path = result_leaf_name(&tree::paths(&outs[0])[leaf]);
            let text = |states: &Option<_>| states.as_deref().map_or(String::new(), axis_names::describe_varying_axes);
            let (a, b) = (text(&first.states[leaf]), text(&other.states[leaf]));
            let message = format!("{path} is {a} in {} and {b} in {}", branch_name(0), branch_name(i));
            return Err(refused(message, "`pvary` the one that devices have alike over the axis"));
        }
    }
    let takes = takes.len();
    let (graphs, captured) =
        unify_captured_arrays(traced.into_iter().map(|branch| BodyGraph::from_traced(branch, takes)).collect());
    let args: Vec<&Array> = [number].into_iter().chain(&captured).chain(&operands).collect();
    let case = Case { branches: graphs };
    let results = apply_multi_result(&args, at, |graph, v| graph.push_multi_result(case, v))?;
    tree::rebuild(&outs[0], results)
}

/// A traced function that becomes the body of an operation, such as a branch.
pub(super) struct BodyGraph {
    /// Graph whose parameters are the function's own ones, then those that stand for captured arrays.
    pub graph: Graph,
    /// Number of the function's own parameters.
    pub own: usize,
    /// Arrays that the function captures.
    pub captured: Vec<Array>,
}

impl BodyGraph {
    /// Makes a body of a traced function whose first `own_parameter_count` parameters are its own; the others stand for
    /// captured arrays.
    pub(super) fn from_traced(function: TracedFunction, own_parameter_count: usize) -> BodyGraph {
        BodyGraph { graph: function.graph, own: own_parameter_count, captured: function.captured }
    }
}

/// Gives all bodies the same captured arrays: returns their graphs, each with the captured arrays of all `bodies` as
/// first parameters, and these arrays.
pub(super) fn unify_captured_arrays(bodies: Vec<BodyGraph>) -> (Vec<Graph>, Vec<Array>) {
    let captured: Vec<Array> = bodies.iter().flat_map(|part| part.captured.clone()).collect();
    let mut before = 0;
    let shared = |part: BodyGraph| {
        let (first, count) = (before, part.captured.len());
        before += count;
        let mut graph = part.graph;
        let own: Vec<Var> = graph.params.split_off(part.own);
        let all: Vec<Var> = (0..captured.len())
            .map(|k| match k.checked_sub(first).and_then(|k| own.get(k)) {
                Some(&v) => v,
                None => graph.var(type_of(&captured[k])),
            })
            .collect();
        graph.params.splice(0..0, all);
        graph
    };
    let graphs = bodies.into_iter().map(shared).collect();
    (graphs, captured)
}

/// Client of the first array, or the default one if there are none.
fn first_client_or_default<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Client> {
    arrays.into_iter().next().map_or_else(Client::from_env, |x| Ok(x.client().clone()))
}

/// Moves the parameters after the first `own_parameter_count` ones, which stand for captured arrays, to the front.
fn move_captured_first(mut graph: Graph, own_parameter_count: usize) -> Graph {
    let captured: Vec<Var> = graph.params.split_off(own_parameter_count);
    graph.params.splice(0..0, captured);
    graph
}
