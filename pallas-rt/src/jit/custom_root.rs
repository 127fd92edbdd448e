//! Roots of functions, with derivatives by the implicit function theorem.
use super::compile::convert_transform_error;
use super::custom_jvp::custom_jvp_at;
use super::function::Outcome;
use super::linearize::check_matching_leaves;
use super::trace::{TracedFunction, TracedParameter, apply_multi_result, trace, type_of};
use super::traced::common_client;
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::{Graph, transform};
use pallas_ir::{At, Diag, Loc, Type};
use std::sync::Arc;

/// Returns the tree `x` with `f(x) = 0` that a solver finds; `jax.lax.custom_root`.
///
/// `f` takes and returns trees with the structure, shapes and element types of `guess`, which are floating-point types.
/// `solve` takes `f` and the guess, and returns the root, by any method: its steps are not differentiated. The
/// derivatives by the arrays that `f` captures follow from the implicit function theorem: `tangent_solve` takes the
/// linear function `g`, the derivative of `f` at the root, and `y`, and returns the `x` with `g(x) = y`. That is linear
/// in `y`. For reverse mode it consists of operations that have a transpose, so it has no
/// [`while_loop`](super::while_loop()). The guess has a derivative of zero. `solve` may return a pair of the root and
/// another tree, such as its number of steps, whose derivative is zero; the call then returns that pair (`has_aux` in
/// JAX). Derivatives up to the fourth are implicit; higher ones are those of `solve`.
///
/// # Errors
/// The functions' own errors; a guess that is not of floating-point type; a residual, a root or a solution of another
/// structure, shape or element type than the guess; a tangent solution that is not linear; a derivative by an array
/// that one of the solvers captures.
///
/// ```
/// use pallas_rt::{Array, Error, custom_root, fori_loop, grad};
/// // Square roots by Newton's method.
/// let root = |a: &Array| {
///     custom_root(
///         |x: &Array| x * x - a,
///         &a.ones_like(),
///         |f, guess| fori_loop(0..20, guess, |_, x: &Array| Ok::<_, Error>(x - f(x)? / (x * 2.0))),
///         |g, y| Ok(y / g(&y.ones_like())?),
///     )
/// };
/// let a = Array::from_slice(&[4.0f32, 9.0], &[2])?;
/// assert_eq!(root(&a)?.to_vec::<f32>()?, [2.0, 3.0]);
/// let slope = grad(move |a: &Array| root(a).map(|x| x.sum(..)))(&a)?.to_vec::<f32>()?;
/// assert!((slope[0] - 0.25).abs() < 1e-6 && (slope[1] - 1.0 / 6.0).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
///
/// With the number of steps:
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::{custom_root, ops, while_loop};
/// let a = Array::from_slice(&[2.0f32], &[])?;
/// let (x, steps) = custom_root(
///     |x: &Array| x * x - &a,
///     &a,
///     |f, guess| {
///         while_loop(
///             &(guess.clone(), ops::zeros(&[], DType::I32)),
///             |(x, _): &(Array, Array)| Ok::<_, Error>(f(x)?.abs().gt(1e-6)),
///             |(x, n): &(Array, Array)| Ok::<_, Error>((x - f(x)? / (x * 2.0), n + 1)),
///         )
///     },
///     |g, y| Ok(y / g(&y.ones_like())?),
/// )?;
/// assert!((x.to_vec::<f32>()?[0] - 2f32.sqrt()).abs() < 1e-6);
/// assert!((3..6).contains(&steps.to_vec::<i32>()?[0]));
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn custom_root<X, O, F, R, S, T>(f: F, guess: &X, solve: S, tangent_solve: T) -> Result<O>
where
    X: Tree + Send + Sync + 'static,
    O: Solution<X>,
    F: FnOnce(&X) -> R,
    R: Outcome<Tree = X>,
    S: Fn(&dyn Fn(&X) -> Result<X>, &X) -> Result<O> + Send + Sync + 'static,
    T: Fn(&dyn Fn(&X) -> Result<X>, &X) -> Result<X> + Send + Sync + 'static,
{
    let at = Loc::caller();
    let args = tree::leaves(guess);
    let client = common_client(&args)?;
    let types: Vec<Type> = args.iter().map(type_of).collect();
    if let Some(ty) = types.iter().find(|ty| !ty.dtype.is_float()) {
        let message = format!("the guess of a root of {ty}");
        return Err(Error::operation(at, Diag::new("root", At::Op, message, "roots are of floating-point types")));
    }
    let takes: Vec<TracedParameter> = args.iter().map(TracedParameter::like_array).collect();
    let TracedFunction { graph, captured, .. } = trace(&client, &takes, |params| {
        let x = tree::rebuild(guess, params.iter().cloned())?;
        check_matching_leaves(&x, &f(&x).tree()?, &types, "residual", at)
    })?;
    let function = RootProblem { types, graph, solve, tangent_solve, at };
    solve_differentiable(&Arc::new(function), &captured, guess)
}

/// Result of a solver: the root, or a pair of the root and another tree (`has_aux` in JAX).
pub trait Solution<X>: Tree + Send + Sync + 'static {
    /// Returns the root in a solver's result, without the other tree.
    #[doc(hidden)]
    fn root(&self) -> &X;
    /// Returns the tangent of this result, whose root has the tangent `root_tangent`: the leaves of the other tree, if
    /// there is one, get zeros.
    #[doc(hidden)]
    fn tangent(&self, root_tangent: X) -> Result<Self>;
}

impl<X: Tree + Send + Sync + 'static> Solution<X> for X {
    fn root(&self) -> &X {
        self
    }
    fn tangent(&self, root: X) -> Result<X> {
        Ok(root)
    }
}

impl<X: Tree + Send + Sync + 'static, Aux: Tree + Send + Sync + 'static> Solution<X> for (X, Aux) {
    fn root(&self) -> &X {
        &self.0
    }
    fn tangent(&self, root: X) -> Result<(X, Aux)> {
        Ok((root, tree::map(&self.1, |x| Ok(x.zeros_like()))?))
    }
}

/// A function whose root is sought, with the solvers.
struct RootProblem<S, T> {
    /// The types of the leaves of its argument, which are the graph's first parameters.
    types: Vec<Type>,
    /// The function's graph; its parameters are the leaves of the argument, then the arrays that the function captured.
    graph: Graph,
    solve: S,
    tangent_solve: T,
    at: Loc,
}

/// Solves `problem` from `guess`, with a derivative by `captured` (the arrays that the function captures) from the
/// implicit function theorem. The derivative's rule calls this function again, for higher derivatives.
fn solve_differentiable<X, O, S, T>(problem: &Arc<RootProblem<S, T>>, captured: &Vec<Array>, guess: &X) -> Result<O>
where
    X: Tree + Send + Sync + 'static,
    O: Solution<X>,
    S: Fn(&dyn Fn(&X) -> Result<X>, &X) -> Result<O> + Send + Sync + 'static,
    T: Fn(&dyn Fn(&X) -> Result<X>, &X) -> Result<X> + Send + Sync + 'static,
{
    let (of_value, of_rule) = (problem.clone(), problem.clone());
    let value = move |captured: &Vec<Array>, guess: &X| {
        let RootProblem { types, graph, solve, at, .. } = &*of_value;
        let f = |x: &X| apply_graph(graph, x, captured, &[], types, *at);
        let solution = solve(&f, guess)?;
        check_matching_leaves(guess, solution.root(), types, "root", *at)?;
        Ok::<_, Error>(solution)
    };
    let rule = move |(captured, guess): &(Vec<Array>, X), (d_captured, _): &(Vec<Array>, X)| {
        let RootProblem { types, graph, tangent_solve, at, .. } = &*of_rule;
        let solution = solve_differentiable::<X, O, S, T>(&of_rule, captured, guess)?;
        let root = solution.root();
        let is_float = |i: usize| graph.ty(graph.params[i]).dtype.is_float();
        // The derivative of the function alone, by some of its parameters.
        let by = |which: &dyn Fn(usize) -> bool| {
            let flags: Vec<bool> = (0..graph.params.len()).map(|i| which(i) && is_float(i)).collect();
            let mut forward = transform::jvp(graph, &flags).map_err(convert_transform_error)?;
            forward.results.drain(..graph.results.len());
            Ok::<_, Error>(forward)
        };
        let (by_captured, by_x) = (by(&|i| i >= types.len())?, by(&|i| i < types.len())?);
        let tangents: Vec<Array> = d_captured.iter().filter(|x| x.dtype().is_float()).cloned().collect();
        let moved = apply_graph(&by_captured, root, captured, &tangents, types, *at)?;
        let along = |dx: &X| {
            let dx = check_matching_leaves(root, dx, types, "tangent of a root", *at)?;
            apply_graph(&by_x, root, captured, &dx, types, *at)
        };
        let tangent = tangent_solve(&along, &tree::map(&moved, |x| Ok(-x))?)?;
        check_matching_leaves(root, &tangent, types, "tangent of a root", *at)?;
        let tangent = solution.tangent(tangent)?;
        Ok::<_, Error>((solution, tangent))
    };
    custom_jvp_at(value, rule, problem.at)(captured, guess)
}

/// Calls a graph on the leaves of `x`, then `captured`, then `trailing`, such as tangents; returns its results as a
/// tree like `x`, whose leaves have these `types`.
fn apply_graph<X: Tree>(
    graph: &Graph,
    x: &X,
    captured: &[Array],
    trailing: &[Array],
    types: &[Type],
    at: Loc,
) -> Result<X> {
    let own = check_matching_leaves(x, x, types, "argument of a function whose root is sought", at)?;
    let all: Vec<&Array> = own.iter().chain(captured).chain(trailing).collect();
    let outs = apply_multi_result(&all, at, |to, vars| Ok(to.inline(graph, vars)))?;
    tree::rebuild(x, outs)
}
