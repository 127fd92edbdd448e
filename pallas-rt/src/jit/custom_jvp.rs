//! Functions with a forward-mode derivative of their own.
use super::control_flow::{BodyGraph, unify_captured_arrays};
use super::custom_vjp::call_if_rule_unneeded;
use super::function::{CallArguments, Function, Outcome};
use super::linearize::check_matching_leaves;
use super::recursive_rules;
use super::trace::{TracedFunction, TracedParameter, apply_multi_result, create_array, trace, type_of};
use super::traced::trace_function;
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::call::CustomJvp;
use pallas_graph::transform::{self, NotLinear};
use pallas_ir::{At, Diag, Literal, Loc, Type};

/// A function with stated tangents; `jax.custom_jvp`.
///
/// `rule` takes the tuple of the arguments and the tuple of their tangents, and returns the function's result and its
/// tangent, two trees of equal types. The tangent is linear in the tangents. Tangents of leaves that are no floats are
/// zeros, and those of such results are not read. Reverse mode follows from the rule, and higher derivatives
/// differentiate it. The rule may call the function itself; then it holds for derivatives up to the fourth, and higher
/// ones are those of `f`.
///
/// # Errors
/// The functions' own errors; a tangent that is not linear in the tangents; results of the rule of other types than
/// those of the function; a derivative by an array that one of the functions captures; those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, custom_jvp, grad};
/// // log(1 + exp(x)), whose derivative does not overflow.
/// let log1pexp = custom_jvp(
///     |x: &Array| (x.exp() + 1.0).log(),
///     |(x,): &(Array,), (dx,): &(Array,)| ((x.exp() + 1.0).log(), (1.0 - 1.0 / (x.exp() + 1.0)) * dx),
/// );
/// let slope = grad(move |x: &Array| log1pexp(x));
/// assert_eq!(slope(&Array::from_slice(&[100.0f32], &[])?)?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn custom_jvp<Args, F, Rule, R>(f: F, rule: Rule) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    F: Function<Args>,
    Rule: Fn(&Args, &Args) -> R + Send + Sync + 'static,
    R: Outcome<Tree = (F::Out, F::Out)>,
{
    custom_jvp_at(f, rule, Loc::caller())
}

/// Makes a function with stated tangents, as [`custom_jvp`] does, for messages that name the line `at`.
pub(super) fn custom_jvp_at<Args, F, Rule, R>(f: F, rule: Rule, at: Loc) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    F: Function<Args>,
    Rule: Fn(&Args, &Args) -> R + Send + Sync + 'static,
    R: Outcome<Tree = (F::Out, F::Out)>,
{
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let name = (at, std::any::type_name::<(F, Rule)>());
        if let Some(out) = call_if_rule_unneeded(&f, &tuple, &args, name)? {
            return Ok(out);
        }
        let (out, primal, client) = trace_function(&f, &tuple, &args)?;
        let gives = primal.graph.result_types();
        let types: Vec<Type> = args.iter().map(type_of).collect();
        let floats = args.iter().filter(|x| x.dtype().is_float());
        let takes: Vec<TracedParameter> = args.iter().chain(floats).map(TracedParameter::like_array).collect();
        let _open = recursive_rules::enter_rule(name);
        let both = trace(&client, &takes, |params| {
            let (primals, tangents) = params.split_at(types.len());
            let mut tangents = tangents.iter().cloned();
            let tangent = |ty: &Type| match ty.dtype.is_float() {
                true => tangents.next().expect("one for each argument of floats"),
                false => create_array(&[], at, |graph, _| Ok(graph.splat(Literal::new(ty.dtype, 0.0), &ty.shape))),
            };
            let tangents: Vec<Array> = types.iter().map(tangent).collect();
            let (value, tangent) =
                rule(&tree::rebuild(&tuple, primals.iter().cloned())?, &tree::rebuild(&tuple, tangents)?).tree()?;
            let mut results = check_matching_leaves(&out, &value, &gives, "result of the rule", at)?;
            let mut tangents = check_matching_leaves(&out, &tangent, &gives, "tangent", at)?;
            tangents.retain(|x| x.dtype().is_float());
            results.extend(tangents);
            Ok(results)
        })?;
        tree::rebuild(&out, push_jvp_call(primal, both, &args, at)?)
    })
}

/// Appends the call of a traced function, with its traced rule: from arguments and tangents to results and tangents.
///
/// # Errors
/// Tangents that are not linear in those of the arguments; errors of the device.
fn push_jvp_call(primal: TracedFunction, rule: TracedFunction, args: &[Array], at: Loc) -> Result<Vec<Array>> {
    let results = primal.graph.results.len();
    let takes = args.len() + args.iter().filter(|x| x.dtype().is_float()).count();
    let linear: Vec<bool> = (0..rule.graph.params.len()).map(|i| (args.len()..takes).contains(&i)).collect();
    if let Some(NotLinear { at, op, ty }) = transform::find_nonlinear_result(&rule.graph, &linear, results, false) {
        let message = match op {
            Some(op) => format!("`{op}` makes a stated tangent that is not linear in the tangents"),
            None => format!("a stated tangent of {ty} does not depend on the tangents"),
        };
        let help = "a tangent is a sum of the arguments' tangents, each times what depends on arguments alone";
        return Err(Error::operation(at, Diag::new("not-linear", At::Op, message, help)));
    }
    let (graphs, captured) =
        unify_captured_arrays(vec![BodyGraph::from_traced(primal, args.len()), BodyGraph::from_traced(rule, takes)]);
    let [primal, rule] = graphs.try_into().expect("two functions");
    let call = CustomJvp { captured: captured.len(), primal, rule };
    let all: Vec<&Array> = captured.iter().chain(args).collect();
    apply_multi_result(&all, at, |graph, v| graph.push_multi_result(call, v))
}
