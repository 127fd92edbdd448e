//! Functions as text.
use super::function::{Function, Given};
use super::traced::traced;
use crate::tree::{self, Tree};
use pallas_device::error::Result;

/// The text of a function for arguments like given ones, in the style of JAX 0.12; `jax.make_jaxpr`.
///
/// The function is traced, and neither simplified nor compiled; elements of the arguments do not matter. The text differs
/// from JAX's by design:
///
/// - Functions of `jax.numpy` that JAX traces on their own (`jit[name=_where ..]`) are inlined.
/// - Operands of an elementwise operation have equal shapes, so a broadcast is always to the full shape. JAX lets axes of
///   extent 1 stretch.
/// - `expand_dims` is a `reshape`, and `select` takes a number by way of a `broadcast_in_dim`.
/// - Operations that JAX has no primitive for have their own names: `gelu`, `silu`, `softplus`, `trunc`, `is_nan`,
///   `mul_add`, `roll`, `take_along`, `argsort`, `arg_top_k`. Random numbers are the operations of their generator.
///
/// # Errors
/// The call returns the function's own error, and the first mistake in what its result depends on.
///
/// ```
/// use pallas_rt::ops::select;
/// use pallas_rt::{Array, make_jaxpr};
/// let text = make_jaxpr(|x: &Array| select(&x.gt(0.0), x, 0.5 * x));
/// let expected = "\
/// { lambda ; a:f32[2,3]. let
///     b:bool[2,3] = gt a 0.0:f32[]
///     c:f32[2,3] = mul 0.5:f32[] a
///     d:f32[2,3] = select_n b c a
///   in (d,) }";
/// assert_eq!(text(&Array::full(&[2, 3], 1.0f32)?)?, expected);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn make_jaxpr<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<String>> {
    F::boxed(move |given: Given<'_, Args>| {
        let tuple = (given.tuple)();
        let (_, function, _) = traced(&f, &tuple, &tree::leaves(&tuple))?;
        Ok(function.graph.to_jaxpr(function.captured.len()))
    })
}

/// The number of kernels of a compiled function.
#[cfg(test)]
pub(crate) fn kernels<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<usize>> {
    F::boxed(move |given: Given<'_, Args>| {
        let tuple = (given.tuple)();
        let (_, function, client) = traced(&f, &tuple, &tree::leaves(&tuple))?;
        let input = super::compile::Input::of_graph(function.graph, &client);
        Ok(super::compile::Compilation::new(input).into_program()?.kernels())
    })
}
