//! Second-order reverse mode: the gradient of a stated gradient, for a function that also has tangents.
//!
//! The stated gradient `G(x, c) = J(x)ᵀ c` is often a kernel, which has tangents and no transpose. No transpose is
//! needed: the derivative of `⟨G(x, c), u⟩ = ⟨c, J(x) u⟩` by `x` is a product with a symmetric matrix (second
//! derivatives), so it is the tangent of `G` along `u`; by `c` it is the tangent of the function along `u`.
//!
//! ```text
//! function     y, r = forward(x)                residuals r: what the stated gradient needs
//! gradient     g = backward(r, c)
//! second       y', r' = jvp(forward)(x; u)      of c: y'      of x: jvp(backward)(r, c; r')
//! ```
use super::CustomVjp;
use crate::dead_code::without_dead_equations;
use crate::graph::{Graph, Var};
use crate::refusal::TransformError;
use crate::transform::{is_float, jvp};
use pallas_ir::{Literal, Type};

/// Returns the function with its residuals as additional results; its gradient ignores the cotangents of the residuals.
pub(super) fn with_residuals(custom: &CustomVjp) -> CustomVjp {
    let (results, captured) = (custom.primal.results.len(), custom.captured);
    let of_residuals = custom.forward.result_types().split_off(results);
    let mut forward = custom.forward.clone();
    forward.results.extend_from_within(results..);
    let mut backward = Graph::default();
    let own = add_params(&mut backward, &custom.backward.param_types()[..captured + of_residuals.len()]);
    let of_results = add_params(&mut backward, &custom.primal.result_types());
    // Cotangents of residuals are unused: `differentiable_gradient` attributes their contribution to the arguments.
    add_params(&mut backward, &of_residuals);
    backward.results = backward.inline(&custom.backward, &[own, of_results].concat());
    CustomVjp { primal: custom.forward.clone(), forward, backward, ..custom.clone() }
}

/// Returns the stated gradient as a function that states a gradient itself. Its operands, of which the residuals count
/// as captured, are
/// `captured.., residuals.., arguments.., a cotangent of each result..`.
///
/// # Errors
/// A kernel in either graph that has no tangent.
pub(super) fn differentiable_gradient(custom: &CustomVjp) -> Result<CustomVjp, TransformError> {
    let CustomVjp { captured, forward, backward, .. } = custom;
    let (captured, results) = (*captured, custom.primal.result_types());
    let arguments = forward.param_types().split_off(captured);
    let residuals = forward.result_types().split_off(results.len());
    let outer = backward.param_types()[..captured].to_vec();

    // The results of `primal` are the cotangents of the arguments.
    let mut primal = Graph::default();
    let own = add_params(&mut primal, &[&outer[..], &residuals].concat());
    let of_arguments = add_params(&mut primal, &arguments);
    let of_results = add_params(&mut primal, &results);
    primal.results = primal.inline(backward, &[&own[..], &of_results].concat());
    let mut kept = primal.clone();
    kept.results.extend(of_arguments.iter().chain(&of_results));

    let mut second = Graph::default();
    let own = add_params(&mut second, &outer);
    let known = add_params(&mut second, &residuals);
    let given = add_params(&mut second, &arguments);
    let cotangents = add_params(&mut second, &results);
    let along = add_params(&mut second, &arguments);
    let floats = |types: &[Type]| -> Vec<bool> { types.iter().map(is_float).collect() };
    let of_floats = |vars: &[Var], types: &[Type]| -> Vec<Var> {
        vars.iter().zip(types).filter(|(_, ty)| is_float(ty)).map(|(&v, _)| v).collect()
    };
    let on = [vec![false; captured], floats(&arguments)].concat();
    let tangents = jvp(forward, &on)?;
    let args = [&own[..], &given, &of_floats(&along, &arguments)].concat();
    let made = second.inline(&tangents, &args).split_off(results.len() + residuals.len());
    let (of_results, of_residuals) = made.split_at(floats(&results).iter().filter(|is| **is).count());
    let on = [vec![false; captured], floats(&residuals), vec![false; results.len()]].concat();
    let tangents = jvp(backward, &on)?;
    let args = [&own[..], &known, &cotangents, of_residuals].concat();
    let of_arguments = second.inline(&tangents, &args).split_off(arguments.len());
    let all = [(&arguments, of_arguments), (&results, of_results.to_vec())];
    for (types, found) in all {
        let mut found = found.into_iter();
        for ty in types {
            let cotangent = match is_float(ty) {
                true => found.next().expect("a tangent of each float"),
                false => second.splat(Literal::new(ty.dtype, 0.0), &ty.shape),
            };
            second.results.push(cotangent);
        }
    }
    Ok(CustomVjp {
        captured: captured + residuals.len(),
        known: residuals.len(),
        has_tangents: true,
        primal,
        forward: kept,
        backward: without_dead_equations(second),
    })
}

/// Adds a parameter of each type.
fn add_params(graph: &mut Graph, types: &[Type]) -> Vec<Var> {
    types.iter().map(|ty| graph.param(ty.clone())).collect()
}
