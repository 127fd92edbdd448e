//! Functions with a derivative of their own, and functions whose values are computed again on the way back.
use super::compiled::{client_of, traced};
use super::control::{Part, sharing};
use super::function::{Function, Given, Outcome};
use super::trace::{Open, TracedFunction, apply_all, trace, type_of};
use crate::array::Array;
use crate::device::Client;
use crate::error::{Error, Result};
use crate::tree::{self, Tree};
use pallas_graph::call::{Call, Custom};
use pallas_ir::{At, Diag, Loc, Type};

/// A function with a stated reverse-mode derivative; `jax.custom_vjp`.
///
/// `forward` takes the same arguments and returns the function's result and what `backward` needs besides; `backward`
/// takes that and the cotangents of the result, and returns a tuple with a cotangent for each argument: trees like the
/// arguments, with the same types. Cotangents of leaves that are no floats are not read. It has no forward-mode
/// derivative.
///
/// # Errors
/// The functions' own errors; cotangents of other types than the arguments; a gradient by an array that one of the
/// functions captures; those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, custom_vjp, grad};
/// // Rounds, with the gradient of the identity.
/// let rounded = custom_vjp(
///     |x: &Array| x.round_even(),
///     |x: &Array| (x.round_even(), ()),
///     |_: &(), dy: &Array| (dy.clone(),),
/// );
/// let loss = grad(move |x: &Array| rounded(x).map(|y| (&y * &y).sum(..)));
/// let x = Array::from_slice(&[1.2f32, 2.7], &[2])?;
/// assert_eq!(loss(&x)?.to_vec::<f32>()?, [2.0, 6.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn custom_vjp<Args, F, Forward, Residuals, Backward, Cotangents>(
    f: F,
    forward: Forward,
    backward: Backward,
) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    F: Function<Args>,
    Forward: Function<Args, Out = (F::Out, Residuals)>,
    Residuals: Tree,
    Backward: Fn(&Residuals, &F::Out) -> Cotangents + Send + Sync + 'static,
    Cotangents: Outcome<Tree = Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        args.iter().try_for_each(|x| x.check().map(drop))?;
        if !args.iter().any(Array::is_traced) {
            return f.call(&tuple);
        }
        let client = client_of(&args)?;
        let primal = traced(&f, &tuple, &args, &client)?;
        let forward = traced(&forward, &tuple, &args, &client)?;
        let (out, kept) = forward.returned;
        let forward = TracedFunction { returned: (), graph: forward.graph, captured: forward.captured };
        let primal = TracedFunction { returned: (), graph: primal.graph, captured: primal.captured };
        let results = custom_call(&args, at, &client, primal, forward, |residuals, of_results| {
            let residuals = tree::rebuild(&kept, residuals.iter().cloned())?;
            let of_results = tree::rebuild(&out, of_results.iter().cloned())?;
            cotangents(&tuple, &backward(&residuals, &of_results).tree()?, at)
        })?;
        tree::rebuild(&out, results)
    })
}

/// Appends a function with a stated derivative: `primal` gives the results, `forward` the results and the residuals, both
/// from these arguments; `backward` takes residuals and the cotangents of results, and returns those of the arguments.
fn custom_call(
    args: &[Array],
    at: Loc,
    client: &Client,
    primal: TracedFunction<()>,
    forward: TracedFunction<()>,
    backward: impl FnOnce(&[Array], &[Array]) -> Result<Vec<Array>>,
) -> Result<Vec<Array>> {
    let gives = primal.graph.gives();
    let kept = forward.graph.gives().split_off(gives.len().min(forward.graph.results.len()));
    let takes: Vec<Type> = kept.iter().chain(&gives).cloned().collect();
    let backward = trace(client, &takes, |params| {
        let (residuals, of_results) = params.split_at(kept.len());
        Ok(((), backward(residuals, of_results)?))
    })?;
    let part = |TracedFunction { returned: (), graph, captured }, own| Part { graph, own, captured };
    let parts = vec![part(primal, args.len()), part(forward, args.len()), part(backward, takes.len())];
    let (graphs, captured) = sharing(parts);
    let [primal, forward, backward] = graphs.try_into().expect("three functions");
    let custom = Custom { captured: captured.len(), primal, forward, backward };
    let all: Vec<&Array> = captured.iter().chain(args).collect();
    apply_all(&all, at, client, |graph, v| graph.push_all(Call::Custom(custom), v))
}

/// A call that is being traced and will state its gradient; see [`Differentiable`](crate::Differentiable).
pub(crate) struct Stated {
    open: Open,
    client: Client,
    args: Vec<Array>,
}

impl Stated {
    /// Begins the call; returns the arguments in it.
    pub(crate) fn begin(args: Vec<Array>) -> Result<(Stated, Vec<Array>)> {
        let client = client_of(&args)?;
        let (open, inside) = Open::begin(&client, &args.iter().map(type_of).collect::<Vec<_>>());
        Ok((Stated { open, client, args }, inside))
    }

    /// Ends the call, which has these results and residuals.
    pub(crate) fn end(
        self,
        at: Loc,
        results: &[Array],
        residuals: &[Array],
        backward: impl FnOnce(&[Array], &[Array]) -> Result<Vec<Array>>,
    ) -> Result<Vec<Array>> {
        let Stated { open, client, args } = self;
        let forward = open.end(&[results, residuals].concat())?;
        let mut graph = forward.graph.clone();
        graph.results.truncate(results.len());
        let primal = TracedFunction { returned: (), graph, captured: forward.captured.clone() };
        custom_call(&args, at, &client, primal, forward, backward)
    }
}

/// The leaves of cotangents.
///
/// # Errors
/// Another tree than the arguments, or a leaf of another type.
fn cotangents<Args: Tree>(args: &Args, found: &Args, at: Loc) -> Result<Vec<Array>> {
    let refused =
        |message: String, help: &str| Err(Error::operation(at, Diag::new("custom-vjp", At::Op, message, help)));
    let [a, b] = [args, found].map(|tree| tree::structure(tree));
    if a != b {
        return refused(format!("the arguments are {a}, their cotangents {b}"), "return trees like the arguments");
    }
    let leaves = tree::leaves(found);
    for ((x, cotangent), path) in tree::leaves(args).iter().zip(&leaves).zip(tree::paths(args)) {
        cotangent.check()?;
        if type_of(x) != type_of(cotangent) {
            let message = format!("the cotangent `{path}` of {} is {}", type_of(x), type_of(cotangent));
            return refused(message, "a cotangent has the shape and the element type of its argument");
        }
    }
    Ok(leaves)
}

/// A function whose intermediate values are not stored for the gradient, but computed again on the way back;
/// `jax.checkpoint`. Inside of a [`scan`](super::scan) each step then stores its arguments alone.
///
/// # Errors
/// The function's own errors, and those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, checkpoint, grad};
/// let layer = checkpoint(|x: &Array, w: &Array| x.matmul(w).tanh());
/// let loss = grad(move |w: &Array, x: &Array| layer(x, w).map(|y| y.sum(..)));
/// let (x, w) = (Array::from_slice(&[1.0f32], &[1, 1])?, Array::from_slice(&[0.0f32], &[1, 1])?);
/// assert_eq!(loss(&w, &x)?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<F::Out>> {
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        args.iter().try_for_each(|x| x.check().map(drop))?;
        if !args.iter().any(Array::is_traced) {
            return f.call(&tuple);
        }
        let client = client_of(&args)?;
        let TracedFunction { returned, graph, captured } = traced(&f, &tuple, &args, &client)?;
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        let results = apply_all(&all, at, &client, |to, v| to.push_all(Call::Checkpoint(graph), v))?;
        tree::rebuild(&returned, results)
    })
}
