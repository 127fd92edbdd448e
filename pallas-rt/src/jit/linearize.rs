//! Forward mode (`jvp`), and the linear functions of tangents and of cotangents that `linearize`, `vjp` and
//! `linear_transpose` return.
use super::compile::convert_transform_error;
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, apply_multi_result, type_of};
use super::traced::trace_function;
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::transform::{self, NotLinear};
use pallas_graph::{Graph, Var};
use pallas_ir::{At, Diag, Literal, Loc, Type};

/// A function of primals and tangents that returns a value and its tangent; see [`jvp`].
pub type Jvp<Args, Out> = Box<dyn Fn(&Args, &Args) -> Result<(Out, Out)> + Send + Sync>;

/// A linear function of trees, together with the values that it needs; see [`vjp`] and [`linearize`].
pub type LinearMap<A, B> = Box<dyn Fn(&A) -> Result<B> + Send + Sync>;

/// A function's value and its directional derivative: the Jacobian-vector product, by forward mode.
///
/// It takes the tuple of the arguments and the tuple of their tangents, which have the same types. Integers have no
/// tangent: those given for them are not read, and those of results are zeros. Every operation has a forward
/// derivative, [`while_loop`](super::while_loop) as well.
///
/// # Errors
/// The call returns an error if the tangents are another tree or have other types; and the errors of
/// [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, jvp};
/// let f = jvp(|x: &Array, y: &Array| x * x * y);
/// let number = |x: f32| Array::from_slice(&[x], &[]);
/// let (value, tangent) = f(&(number(3.0)?, number(2.0)?), &(number(1.0)?, number(0.5)?))?;
/// assert_eq!((value.to_vec::<f32>()?, tangent.to_vec::<f32>()?), (vec![18.0], vec![16.5]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jvp<Args, F>(f: F) -> Jvp<Args, F::Out>
where
    Args: Tree + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    Box::new(move |primals: &Args, tangents: &Args| {
        let args = tree::leaves(primals);
        args.iter().try_for_each(|x| x.check().map(drop))?;
        let tangents = retain_floats(check_matching_leaves(primals, tangents, &array_types(&args), "tangent", at)?);
        let (out, TracedFunction { graph, captured, .. }, _) = trace_function(&f, primals, &args)?;
        let forward =
            transform::jvp(&graph, &leading_float_mask(&graph, args.len())).map_err(convert_transform_error)?;
        let all: Vec<&Array> = args.iter().chain(&captured).chain(&tangents).collect();
        let gives = graph.result_types();
        let mut outs = apply_multi_result(&all, at, |graph, vars| {
            let mut outs = graph.inline(&forward, vars);
            let tangents = outs.split_off(gives.len());
            outs.extend(insert_integer_tangents(graph, &gives, tangents));
            Ok(outs)
        })?;
        let tangents = outs.split_off(gives.len());
        Ok((tree::rebuild(&out, outs)?, tree::rebuild(&out, tangents)?))
    })
}

/// A function's value, and the function from tangents of its arguments to the tangent of its result at this point. The
/// value and what the linear function needs are computed once; then it can be called many times. Each call computes
/// loops and branches again.
///
/// # Errors
/// As [`jvp`].
///
/// ```
/// use pallas_rt::{Array, linearize};
/// let f = linearize(|x: &Array| x.exp());
/// let (value, along) = f(&Array::from_slice(&[0.0f32, 1.0], &[2])?)?;
/// assert_eq!(value.to_vec::<f32>()?[0], 1.0);
/// let tangent = along(&(Array::from_slice(&[3.0f32, 0.0], &[2])?,))?;
/// assert_eq!(tangent.to_vec::<f32>()?, [3.0, 0.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[expect(clippy::type_complexity, reason = "all of it is what the call returns")]
pub fn linearize<Args, F>(f: F) -> F::Boxed<Result<(F::Out, LinearMap<Args, F::Out>)>>
where
    Args: Tree + Send + Sync + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let (out, TracedFunction { graph, captured, .. }, _) = trace_function(&f, &tuple, &args)?;
        let parts =
            transform::linearize(&graph, &leading_float_mask(&graph, args.len())).map_err(convert_transform_error)?;
        let (gives, takes) = (graph.result_types(), array_types(&args));
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        let (value, rest) = LinearPart::new(&all, parts, gives.len(), at)?;
        let value = tree::rebuild(&out, value)?;
        let map = move |tangents: &Args| {
            let tangents = retain_floats(check_matching_leaves(&tuple, tangents, &takes, "tangent", at)?);
            let found = rest.call(&tangents, |graph, found| insert_integer_tangents(graph, &gives, found))?;
            tree::rebuild(&out, found)
        };
        Ok((value, Box::new(map) as LinearMap<Args, F::Out>))
    })
}

/// A function's value, and the function from a cotangent of its result to those of its arguments, a tuple: the
/// vector-Jacobian product, by reverse mode. What both need is computed once.
///
/// A cotangent is a tree like the result; elements of its integers are not read. Cotangents of arguments of integers
/// are zeros.
///
/// # Errors
/// The call returns the errors of [`grad`](super::grad); the linear function if the cotangent is another tree or has
/// other types.
///
/// ```
/// use pallas_rt::{Array, vjp};
/// let f = vjp(|x: &Array, y: &Array| x * y);
/// let (x, y) = (Array::from_slice(&[1.0f32, 2.0], &[2])?, Array::from_slice(&[3.0f32, 4.0], &[2])?);
/// let (value, back) = f(&x, &y)?;
/// assert_eq!(value.to_vec::<f32>()?, [3.0, 8.0]);
/// let (dx, dy) = back(&Array::from_slice(&[1.0f32, 10.0], &[2])?)?;
/// assert_eq!((dx.to_vec::<f32>()?, dy.to_vec::<f32>()?), (vec![3.0, 40.0], vec![1.0, 20.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[expect(clippy::type_complexity, reason = "all of it is what the call returns")]
pub fn vjp<Args, F>(f: F) -> F::Boxed<Result<(F::Out, LinearMap<F::Out, Args>)>>
where
    Args: Tree + Send + Sync + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let (out, TracedFunction { graph, captured, .. }, _) = trace_function(&f, &tuple, &args)?;
        let backward =
            transform::vjp(&graph, &leading_parameters_mask(&graph, args.len())).map_err(convert_transform_error)?;
        let gives = graph.result_types();
        let parts = transform::split_by_known_params(&backward, graph.params.len(), gives.len());
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        let (value, rest) = LinearPart::new(&all, parts, gives.len(), at)?;
        let value = tree::rebuild(&out, value)?;
        let map = move |cotangent: &F::Out| {
            let given = retain_floats(check_matching_leaves(&out, cotangent, &gives, "cotangent", at)?);
            let found = rest.call(&given, |_, found| found)?;
            tree::rebuild(&tuple, found)
        };
        Ok((value, Box::new(map) as LinearMap<F::Out, Args>))
    })
}

/// The transpose of a linear function: from a cotangent of its result to those of its arguments, a tuple;
/// `jax.linear_transpose`.
///
/// Arguments and results are arrays of floating-point types. Of the arguments only the types are used: the function is
/// not computed at them. It is linear in all arguments together, and so are its loops and branches. An array that it
/// captures counts as a number other than zero, so a term of zeros is made inside of the function.
///
/// # Errors
/// The call returns an error if the function is not linear in its arguments, by its operations, if an argument or a
/// result is not of floating-point type, and the errors of [`vjp`]; the linear function if the cotangent is another
/// tree or has other types.
///
/// ```
/// use pallas_rt::{Array, linear_transpose};
/// let x = Array::from_slice(&[0.0f32; 3], &[3])?;
/// let back = linear_transpose(|x: &Array| x.index(1..) * 2.0)(&x)?;
/// let (dx,) = back(&Array::from_slice(&[1.0f32, 10.0], &[2])?)?;
/// assert_eq!(dx.to_vec::<f32>()?, [0.0, 2.0, 20.0]);
/// assert!(linear_transpose(|x: &Array| x * x)(&x).is_err());
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn linear_transpose<Args, F>(f: F) -> F::Boxed<Result<LinearMap<F::Out, Args>>>
where
    Args: Tree + Send + Sync + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: CallArguments<'_, Args>| {
        let wrong =
            |at: Loc, message: String, help: &str| Error::operation(at, Diag::new("transpose", At::Op, message, help));
        let of_floats = |types: &[Type], what: &str| match types.iter().find(|ty| !ty.dtype.is_float()) {
            None => Ok(()),
            Some(ty) => {
                let message = format!("the transpose of a function with {what} of {ty}");
                Err(wrong(at, message, "it is linear in arrays of floating-point types"))
            }
        };
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        args.iter().try_for_each(|x| x.check().map(drop))?;
        of_floats(&array_types(&args), "an argument")?;
        let (out, TracedFunction { graph, captured, .. }, _) = trace_function(&f, &tuple, &args)?;
        let (gives, by) = (graph.result_types(), leading_parameters_mask(&graph, args.len()));
        of_floats(&gives, "a result")?;
        if let Some(NotLinear { at: line, op, ty }) = transform::find_nonlinear_result(&graph, &by, 0, true) {
            let message = match op {
                Some(op) => format!("`{op}` makes a result that is not linear in the arguments"),
                None => format!("a result of {ty} does not depend on the arguments, and is not linear in them"),
            };
            let line = if line == Loc::NONE { at } else { line };
            return Err(wrong(line, message, "`vjp` takes functions of all kinds"));
        }
        let backward = transform::vjp(&graph, &by).map_err(convert_transform_error)?;
        let (mut known, waiting) = transform::split_by_known_params(&backward, graph.params.len(), gives.len());
        // The value at the arguments is not needed.
        known.results.drain(..gives.len());
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        let (_, rest) = LinearPart::new(&all, (known, waiting), 0, at)?;
        let map = move |cotangent: &F::Out| {
            let given = check_matching_leaves(&out, cotangent, &gives, "cotangent", at)?;
            tree::rebuild(&tuple, rest.call(&given, |_, found| found)?)
        };
        Ok(Box::new(map) as LinearMap<F::Out, Args>)
    })
}

/// Linear part of a split graph: from tangents (or cotangents) to those of the results, with the residuals that it
/// reads, which the other part has computed.
struct LinearPart {
    graph: Graph,
    stored: Vec<Array>,
    at: Loc,
}

impl LinearPart {
    /// Runs `known`, the part of a split graph that needs no tangents; returns its first `result_count` results, and
    /// the linear part `graph` with the other results as its residuals.
    fn new(
        args: &[&Array],
        (known, graph): (Graph, Graph),
        result_count: usize,
        at: Loc,
    ) -> Result<(Vec<Array>, LinearPart)> {
        let mut made = apply_multi_result(args, at, |graph, vars| Ok(graph.inline(&known, vars)))?;
        let stored = made.split_off(result_count);
        Ok((made, LinearPart { graph, stored, at }))
    }

    /// Runs the linear part on these tangents or cotangents; `finish_results` takes its results, may add equations, and
    /// returns the final ones.
    fn call(
        &self,
        tangents: &[Array],
        finish_results: impl FnOnce(&mut Graph, Vec<Var>) -> Vec<Var>,
    ) -> Result<Vec<Array>> {
        let all: Vec<&Array> = self.stored.iter().chain(tangents).collect();
        apply_multi_result(&all, self.at, |graph, vars| {
            let found = graph.inline(&self.graph, vars);
            Ok(finish_results(graph, found))
        })
    }
}

fn array_types(arrays: &[Array]) -> Vec<Type> {
    arrays.iter().map(type_of).collect()
}

/// For each parameter of a graph, true if it is one of the first `n`.
fn leading_parameters_mask(graph: &Graph, n: usize) -> Vec<bool> {
    (0..graph.params.len()).map(|i| i < n).collect()
}

/// For each parameter of a graph, true if it is one of the first `n` and of floating-point type, so that it has a
/// tangent.
fn leading_float_mask(graph: &Graph, n: usize) -> Vec<bool> {
    graph.params.iter().enumerate().map(|(i, &p)| i < n && graph.ty(p).dtype.is_float()).collect()
}

/// Keeps those tangents or cotangents in `all` that are of floating-point type; others are not read.
fn retain_floats(mut all: Vec<Array>) -> Vec<Array> {
    all.retain(|x| x.dtype().is_float());
    all
}

/// Adds zeros as tangents of results of integer type to `tangents`, which has those of floating-point type;
/// `result_types` are the types of all results.
fn insert_integer_tangents(graph: &mut Graph, result_types: &[Type], tangents: Vec<Var>) -> Vec<Var> {
    let mut tangents = tangents.into_iter();
    let one = |ty: &Type| match ty.dtype.is_float() {
        true => tangents.next().expect("one for each result of floats"),
        false => graph.splat(Literal::new(ty.dtype, 0.0), &ty.shape),
    };
    result_types.iter().map(one).collect()
}

/// Checks that the tree `given` (a tangent, a cotangent .. as `what` says) has the structure of `expected` and leaves
/// of these types; returns its leaves.
///
/// # Errors
/// A tree of another structure; a leaf of another type; the error of a poisoned one.
pub(super) fn check_matching_leaves<T: Tree>(
    expected: &T,
    given: &T,
    types: &[Type],
    what: &'static str,
    at: Loc,
) -> Result<Vec<Array>> {
    let wrong = |message: String, help: &str| Error::operation(at, Diag::new(what, At::Op, message, help));
    let [a, b] = [expected, given].map(|tree| tree::structure(tree));
    if a != b {
        return Err(wrong(format!("the {what} of {a} is {b}"), "it is a tree of the same structure"));
    }
    let leaves = tree::leaves(given);
    leaves.iter().try_for_each(|x| x.check().map(drop))?;
    match leaves.iter().zip(types).zip(tree::paths(expected)).find(|((x, ty), _)| type_of(x) != **ty) {
        None => Ok(leaves),
        Some(((x, ty), path)) => {
            let of = if path.is_empty() { format!("{ty}") } else { format!("`{path}` of {ty}") };
            let message = format!("the {what} of {of} is {}", type_of(x));
            Err(wrong(message, "it has the same element type and shape"))
        }
    }
}
