//! Functions whose values are computed again on the way back.
use super::compiled::{client_of, traced};
use super::function::{Function, Given};
use super::trace::{TracedFunction, apply_all};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::Result;
pub use pallas_graph::call::Policy;
use pallas_graph::call::{Checkpoint, Named};
use pallas_ir::Loc;

/// A function whose intermediate values are not stored for the gradient, but computed again on the way back;
/// `jax.checkpoint`. Inside of a [`scan`](super::scan) each step then stores its arguments alone. [`checkpoint_with`]
/// stores some of the values.
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
    checkpoint_with(Policy::Nothing, f)
}

/// As [`checkpoint`], with a policy for the values that are stored; `jax.checkpoint(f, policy=..)`.
///
/// # Errors
/// As [`checkpoint`].
///
/// ```
/// use pallas_rt::{Array, Policy, checkpoint_name, checkpoint_with, grad};
/// let policy = Policy::OnlyNames(vec!["product".into()]);
/// // The tanh is computed again, the product is not.
/// let layer = checkpoint_with(policy, |x: &Array, w: &Array| checkpoint_name(&x.matmul(w), "product").tanh());
/// let loss = grad(move |w: &Array, x: &Array| layer(x, w).map(|y| y.sum(..)));
/// let (x, w) = (Array::from_slice(&[1.0f32], &[1, 1])?, Array::from_slice(&[0.0f32], &[1, 1])?);
/// assert_eq!(loss(&w, &x)?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn checkpoint_with<Args: Tree + 'static, F: Function<Args>>(policy: Policy, f: F) -> F::Boxed<Result<F::Out>> {
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        args.iter().try_for_each(|x| x.check().map(drop))?;
        if !args.iter().any(Array::is_traced) {
            return f.call(&tuple);
        }
        let client = client_of(&args)?;
        let TracedFunction { returned, graph, captured, .. } = traced(&f, &tuple, &args, &client)?;
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        let call = Checkpoint { graph, policy: policy.clone() };
        let results = apply_all(&all, at, &client, |to, v| to.push_all(call, v))?;
        tree::rebuild(&returned, results)
    })
}

/// The array itself, under a name by which a [`Policy`] knows it; `jax.ad_checkpoint.checkpoint_name`. What is computed
/// from the array without its name is not that value.
#[track_caller]
pub fn checkpoint_name(x: &Array, name: impl Into<String>) -> Array {
    if !x.is_traced() {
        return x.clone();
    }
    let name = name.into();
    super::trace::apply(&[x], Loc::caller(), |graph, v| {
        let ty = graph.ty(v[0]).clone();
        graph.push(Named::new(name, ty), v)
    })
}
