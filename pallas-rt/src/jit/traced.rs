//! Functions of trees, traced for the arguments of a call.
use super::function::Function;
use super::trace::{TracedFunction, TracedParameter, trace_with_value};
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_device::{JIT_TRACES, timeline};
use std::sync::atomic::Ordering::Relaxed;

/// The name of a parameter in messages: an argument by its path, or an array that the function captures.
pub(super) fn parameter_name(i: usize, paths: &dyn Fn() -> Vec<String>) -> String {
    let paths = paths();
    match paths.get(i) {
        Some(path) => format!("argument `{path}`"),
        None => format!("captured array {}", i - paths.len()),
    }
}

/// The client of arguments, or the default one if there are none.
///
/// # Errors
/// The error that an argument holds; arguments on several clients.
pub(super) fn common_client(args: &[Array]) -> Result<Client> {
    args.iter().try_for_each(|x| x.check().map(drop))?;
    let client = args.first().map_or_else(Client::from_env, |x| Ok(x.client().clone()))?;
    args.iter().enumerate().try_for_each(|(i, x)| x.check_client(&client, &|| format!("leaf {i} of the arguments")))?;
    Ok(client)
}

/// Traces a function of trees for arguments with these leaves; returns the function's result, of which only the
/// structure matters, its trace, and the arguments' client.
///
/// # Errors
/// Those of [`common_client`]; the function's own, and the first error of an operation that its results depend on.
pub(super) fn trace_function<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    args: &[Array],
) -> Result<(F::Out, TracedFunction, Client)> {
    let client = common_client(args)?;
    let (out, traced) = trace_function_with_parameters(
        f,
        tuple,
        &args.iter().map(TracedParameter::like_array).collect::<Vec<TracedParameter>>(),
        &client,
    )?;
    Ok((out, traced, client))
}

/// Traces a function for arguments like `tuple`, whose leaves become these parameters; returns also the function's
/// result, of which only the structure matters.
pub(super) fn trace_function_with_parameters<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    parameters: &[TracedParameter],
    client: &Client,
) -> Result<(F::Out, TracedFunction)> {
    JIT_TRACES.fetch_add(1, Relaxed);
    timeline::run_in_span(
        timeline::SpanKind::Trace,
        || (F::name().into(), parameter_types_text(parameters)),
        || {
            trace_with_value(client, parameters, |params| {
                let out = f.call(&tree::rebuild(tuple, params.iter().cloned())?)?;
                let results = tree::leaves(&out);
                Ok((out, results))
            })
        },
    )
}

/// The types of parameters as text.
fn parameter_types_text(parameters: &[TracedParameter]) -> String {
    parameters.iter().map(|taken| taken.ty.to_string()).collect::<Vec<_>>().join(", ")
}
