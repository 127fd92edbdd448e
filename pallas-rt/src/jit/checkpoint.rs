//! Functions whose values are recomputed in the backward pass.
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, apply_multi_result};
use super::traced::trace_function;
use super::transformed::{Transformation, Transformed, box_call};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::Result;
pub use pallas_graph::call::CheckpointPolicy;
use pallas_graph::call::{self, CheckpointName};
use pallas_ir::Loc;
use std::sync::Arc;

/// A function whose intermediate values are not stored for the gradient, but recomputed in the backward pass;
/// `jax.checkpoint`. Inside of a [`scan`](super::scan) each step then stores its arguments alone.
/// [`policy`](Transformed::policy) stores some of the values.
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
pub fn checkpoint<Args: Tree + 'static, F: Function<Args>>(f: F) -> Transformed<Args, F, Checkpoint> {
    Transformed::new(f, Checkpoint::default(), Loc::caller())
}

/// Option of [`checkpoint()`]: the policy that chooses the intermediate values which are stored for the gradient.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    policy: CheckpointPolicy,
}

/// Option of [`checkpoint()`].
impl<Args: Tree + 'static, F: Function<Args>> Transformed<Args, F, Checkpoint> {
    /// Chooses the intermediate values that are stored for the gradient.
    ///
    /// ```
    /// use pallas_rt::{Array, CheckpointPolicy, checkpoint, checkpoint_name, grad};
    /// // The tanh is computed again, the product is not.
    /// let layer = |x: &Array, w: &Array| checkpoint_name(&x.matmul(w), "product").tanh();
    /// let layer = checkpoint(layer).policy(CheckpointPolicy::OnlyNames(vec!["product".into()]));
    /// let loss = grad(move |w: &Array, x: &Array| layer(x, w).map(|y| y.sum(..)));
    /// let (x, w) = (Array::from_slice(&[1.0f32], &[1, 1])?, Array::from_slice(&[0.0f32], &[1, 1])?);
    /// assert_eq!(loss(&w, &x)?.to_vec::<f32>()?, [1.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn policy(self, policy: CheckpointPolicy) -> Self {
        self.map_options(|_| Checkpoint { policy })
    }
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for Checkpoint {
    type Out = F::Out;
    type Call = F::Boxed<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, options, given| call_checkpointed(f, given, options, at))
    }
}

/// Calls the function; if an argument is traced, as an operation that is recomputed in the backward pass.
fn call_checkpointed<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    given: &CallArguments<'_, Args>,
    options: &Checkpoint,
    at: Loc,
) -> Result<F::Out> {
    let tuple = (given.tuple)();
    let args = tree::leaves(&tuple);
    args.iter().try_for_each(|x| x.check().map(drop))?;
    if !args.iter().any(Array::is_traced) {
        return f.call(&tuple);
    }
    let (out, TracedFunction { graph, captured, .. }, _) = trace_function(f, &tuple, &args)?;
    let all: Vec<&Array> = args.iter().chain(&captured).collect();
    let call = call::Checkpoint { graph, policy: options.policy.clone() };
    let results = apply_multi_result(&all, at, |to, v| to.push_multi_result(call, v))?;
    tree::rebuild(&out, results)
}

/// Names an array, so that a [`CheckpointPolicy`] can store it, and returns it; `jax.ad_checkpoint.checkpoint_name`.
/// The name holds for the returned array: a value computed from `x` itself does not use it.
#[track_caller]
pub fn checkpoint_name(x: &Array, name: impl Into<String>) -> Array {
    if !x.is_traced() {
        return x.clone();
    }
    let name = name.into();
    super::trace::apply(&[x], Loc::caller(), |graph, v| {
        let ty = graph.ty(v[0]).clone();
        graph.push(CheckpointName::new(name, ty), v)
    })
}
