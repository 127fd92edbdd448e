//! Functions with a reverse-mode derivative of their own.
use super::control_flow::{BodyGraph, unify_captured_arrays};
use super::function::{CallArguments, Function, Outcome};
use super::linearize::check_matching_leaves;
use super::recursive_rules;
use super::trace::{TraceGuard, TracedFunction, TracedParameter, apply_multi_result, trace, type_of};
use super::traced::{common_client, trace_function};
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::Graph;
use pallas_graph::call::CustomVjp;
use pallas_graph::mesh::AxisStates;
use pallas_ir::{At, Diag, Loc, Type};

/// A function with a stated reverse-mode derivative; `jax.custom_vjp`.
///
/// `forward` takes the same arguments and returns the function's result and the residuals that `backward` needs;
/// `backward` takes the residuals and the cotangents of the result, and returns a tuple with a cotangent for each
/// argument: trees like the arguments, with the same types. Cotangents of leaves that are no floats are not read. The
/// function has no forward-mode derivative. `forward` and `backward` may call the function itself; then its rule holds
/// for derivatives up to the fourth, and higher ones are those of `f`.
///
/// # Errors
/// The functions' own errors; cotangents of other types than the arguments; a gradient by an array that one of the
/// functions captures; those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, custom_vjp, grad};
/// // Rounds, with the gradient of the identity.
/// let rounded = custom_vjp(
///     |x: &Array| x.round(),
///     |x: &Array| (x.round(), ()),
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
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let rule = (at, std::any::type_name::<(F, Forward, Backward)>());
        if let Some(out) = call_if_rule_unneeded(&f, &tuple, &args, rule)? {
            return Ok(out);
        }
        let (own, primal, client) = trace_function(&f, &tuple, &args)?;
        let _open = recursive_rules::enter_rule(rule);
        let ((out, residuals), with_residuals, _) = trace_function(&forward, &tuple, &args)?;
        check_forward_result(&own, &out, &primal.graph, &with_residuals.graph, at)?;
        let takes = backward_parameters(&primal, &with_residuals);
        let kept = takes.len() - primal.graph.results.len();
        let (primal, with_residuals) =
            (BodyGraph::from_traced(primal, args.len()), BodyGraph::from_traced(with_residuals, args.len()));
        let types: Vec<Type> = args.iter().map(type_of).collect();
        let function = CustomVjpParts { args, primal, forward: with_residuals };
        let derivative = trace(&client, &takes, |params| {
            let (of_residuals, of_results) = params.split_at(kept);
            let residuals = tree::rebuild(&residuals, of_residuals.iter().cloned())?;
            let of_results = tree::rebuild(&out, of_results.iter().cloned())?;
            let found = backward(&residuals, &of_results).tree()?;
            check_matching_leaves(&tuple, &found, &types, "cotangent", at)
        })?;
        let results = function.push_call(derivative, false, at)?;
        tree::rebuild(&out, results)
    })
}

/// Calls `f` directly if its derivative rule is not needed: neither an argument nor an array that it captures is
/// traced, or the rule, which its line and the type of its functions identify, is being traced inside of itself as
/// often as it may. `None` if the rule is needed.
///
/// # Errors
/// The error that an argument holds; the function's own.
pub(super) fn call_if_rule_unneeded<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    args: &[Array],
    rule: (Loc, &'static str),
) -> Result<Option<F::Out>> {
    args.iter().try_for_each(|x| x.check().map(drop))?;
    if recursive_rules::has_max_rule_nesting(rule) {
        return f.call(tuple).map(Some);
    }
    if args.iter().any(Array::is_traced) {
        return Ok(None);
    }
    let out = f.call(tuple)?;
    Ok((!tree::leaves(&out).iter().any(Array::is_traced)).then_some(out))
}

/// Returns an error if the result of `forward` has another tree or other types than that of the function.
fn check_forward_result<T: Tree>(
    result: &T,
    forward_result: &T,
    function: &Graph,
    forward: &Graph,
    at: Loc,
) -> Result<()> {
    let wrong = |message: String| {
        let help = "`forward` returns what the function returns, and what `backward` needs: `(result, residuals)`";
        Err(Error::operation(at, Diag::new("custom-vjp", At::Op, message, help)))
    };
    let [a, b] = [result, forward_result].map(|tree| tree::structure(tree));
    if a != b {
        return wrong(format!("the function returns {a}, and `forward` {b}"));
    }
    let (gives, found) = (function.result_types(), forward.result_types());
    match gives.iter().zip(&found).zip(tree::paths(result)).find(|((a, b), _)| a != b) {
        None => Ok(()),
        Some(((a, b), path)) => {
            let path = if path.is_empty() { "a result".into() } else { format!("`{path}`") };
            wrong(format!("{path} of {a} is {b} by `forward`"))
        }
    }
}

/// The parameters of the derivative: the residuals, then a cotangent of each result.
fn backward_parameters(primal: &TracedFunction, forward: &TracedFunction) -> Vec<TracedParameter> {
    let of = |states: &[Option<AxisStates>], types: Vec<Type>| -> Vec<TracedParameter> {
        types.into_iter().zip(states).map(|(ty, states)| TracedParameter::with_states(ty, states.clone())).collect()
    };
    let results = primal.graph.results.len();
    let mut all = of(&forward.states, forward.graph.result_types());
    all.drain(..results.min(all.len()));
    all.extend(of(&primal.states, primal.graph.result_types()));
    all
}

/// Traced parts of a function with a stated reverse-mode derivative: its arguments, the function itself, and the one
/// that also returns residuals.
struct CustomVjpParts {
    args: Vec<Array>,
    /// The graph from the arguments to the results.
    primal: BodyGraph,
    /// The graph from the arguments to the results and the residuals.
    forward: BodyGraph,
}

impl CustomVjpParts {
    /// Appends the call with its traced derivative `backward`; returns its results. `has_tangents` is true if forward
    /// mode differentiates the primal function.
    fn push_call(self, backward: TracedFunction, has_tangents: bool, at: Loc) -> Result<Vec<Array>> {
        let CustomVjpParts { args, primal, forward } = self;
        let takes = forward.graph.results.len();
        let (graphs, captured) = unify_captured_arrays(vec![primal, forward, BodyGraph::from_traced(backward, takes)]);
        let [primal, forward, backward] = graphs.try_into().expect("three functions");
        let custom = CustomVjp { captured: captured.len(), known: 0, has_tangents, primal, forward, backward };
        let all: Vec<&Array> = captured.iter().chain(&args).collect();
        apply_multi_result(&all, at, |graph, v| graph.push_multi_result(custom, v))
    }
}

/// A call that is being traced and will state its gradient; see [`Differentiable`](crate::Differentiable).
pub(crate) struct GradientTrace {
    open: TraceGuard,
    client: Client,
    args: Vec<Array>,
    /// The results of the function without its gradient, and its trace, if that is another function.
    primal: Option<(Vec<Array>, TracedFunction)>,
}

/// The derivative of a call that states its gradient, while the derivative is being traced.
pub(crate) struct BackwardTrace {
    open: TraceGuard,
    function: CustomVjpParts,
}

impl GradientTrace {
    /// Begins to trace the call; returns the traced arguments in it.
    pub(crate) fn begin(args: Vec<Array>) -> Result<(GradientTrace, Vec<Array>)> {
        let client = common_client(&args)?;
        let (open, inside) =
            TraceGuard::begin(&client, &args.iter().map(TracedParameter::like_array).collect::<Vec<_>>());
        Ok((GradientTrace { open, client, args, primal: None }, inside))
    }

    /// Ends the trace of the function without residuals, which has these results, and begins that of the one with
    /// residuals; returns its traced arguments.
    pub(crate) fn begin_forward(self, results: &[Array]) -> Result<(GradientTrace, Vec<Array>)> {
        let primal = (results.to_vec(), self.open.end(results)?);
        let (stated, inside) = GradientTrace::begin(self.args)?;
        Ok((GradientTrace { primal: Some(primal), ..stated }, inside))
    }

    /// Ends the trace of the call, which has these results and residuals, and begins that of its derivative; returns
    /// the traced residuals and cotangents of the results that the derivative takes.
    pub(crate) fn end(
        self,
        results: &[Array],
        residuals: &[Array],
        at: Loc,
    ) -> Result<(BackwardTrace, Vec<Array>, Vec<Array>)> {
        let GradientTrace { open, client, args, primal } = self;
        let both = open.end(&[results, residuals].concat())?;
        let primal = match primal {
            Some((own, primal)) => {
                check_forward_result(&own, &results.to_vec(), &primal.graph, &both.graph, at)?;
                primal
            }
            None => {
                let mut graph = both.graph.clone();
                graph.results.truncate(results.len());
                TracedFunction { graph, captured: both.captured.clone(), states: both.states.clone() }
            }
        };
        let (takes, kept) = (backward_parameters(&primal, &both), residuals.len());
        let (primal, forward) = (BodyGraph::from_traced(primal, args.len()), BodyGraph::from_traced(both, args.len()));
        let function = CustomVjpParts { forward, args, primal };
        let (open, mut residuals) = TraceGuard::begin(&client, &takes);
        let cotangents = residuals.split_off(kept);
        Ok((BackwardTrace { open, function }, residuals, cotangents))
    }
}

impl BackwardTrace {
    /// Ends the trace of the derivative, which returns these cotangents of the arguments; returns the results of the
    /// call.
    pub(crate) fn end(self, cotangents: &[Array], at: Loc) -> Result<Vec<Array>> {
        let backward = self.open.end(cotangents)?;
        self.function.push_call(backward, true, at)
    }
}
