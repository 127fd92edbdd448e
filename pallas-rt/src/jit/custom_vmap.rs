//! Functions with a stated batching rule.
use super::custom_vjp::call_if_rule_unneeded;
use super::function::{CallArguments, Function, Outcome};
use super::recursive_rules;
use super::trace::{TracedParameter, apply_multi_result, trace_with_value};
use super::traced::trace_function;
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::call::{BatchDescription, BatchRule, CustomVmap};
use pallas_graph::transform::TransformError;
use pallas_ir::{At, Diag, Loc, Type};

/// A function that states what [`vmap`](super::vmap()) makes of it; `jax.custom_batching.custom_vmap`.
///
/// In a batch, `rule` is called in place of the function: with the number of examples, with a bool for each leaf of the
/// arguments, and with the tuple of the arguments. Leaves for which the bool is true have an axis of examples in front;
/// the others are the same for all examples. The rule returns the function's result for all examples. Each leaf of it
/// has an axis of examples in front, or, if it is the same for all of them, none. The rule may call the function
/// itself.
///
/// Everywhere else the function is what it would be without a rule. The rule is differentiated for batches of tangents,
/// so it also makes the batch of a [`jvp`](super::jvp()). Batches of gradients are those of the function itself; JAX
/// refuses them.
///
/// # Errors
/// The functions' own errors; at the batch, leaves of another shape or element type, and a rule that captures an array
/// of a function that is being traced, or one with elements: those are arguments; those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::ops::ones;
/// use pallas_rt::{Array, custom_vmap, vmap};
/// // The sums of all rows by one product of matrices.
/// let total = custom_vmap(
///     |x: &Array| x.sum(..),
///     |n: usize, _: &[bool], (x,): &(Array,)| x.matmul(&ones(&[x.shape()[1], 1], x.dtype())).reshape(&[n]),
/// );
/// let rows = Array::from_slice(&[1.0f32, 2., 3., 4., 5., 6.], &[2, 3])?;
/// assert_eq!(vmap(total)(&rows)?.to_vec::<f32>()?, [6.0, 15.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn custom_vmap<Args, F, Rule, R>(f: F, rule: Rule) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + Send + Sync + 'static,
    F: Function<Args>,
    F::Out: Send + Sync + 'static,
    Rule: Fn(usize, &[bool], &Args) -> R + Send + Sync + 'static,
    R: Outcome<Tree = F::Out>,
{
    let (at, rule) = (Loc::caller(), std::sync::Arc::new(rule));
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let name = (at, std::any::type_name::<(F, Rule)>());
        if let Some(out) = call_if_rule_unneeded(&f, &tuple, &args, name)? {
            return Ok(out);
        }
        let (out, function, client) = trace_function(&f, &tuple, &args)?;
        // Compiled functions keep these trees: they have neither elements nor the client's memory.
        let noted = client.without_use_count();
        let outline = |x: &Array| Ok(Array::new_abstract(x.dtype(), x.shape(), &noted));
        let stated = StatedBatchingRule {
            rule: rule.clone(),
            args: tree::map(&tuple, outline)?,
            out: tree::map(&out, outline)?,
            gives: function.graph.result_types(),
            captured: function.captured.len(),
            client: client.clone(),
            name,
        };
        let rule = BatchRule::new(move |batch| stated.trace_for_batch(batch));
        let all: Vec<&Array> = args.iter().chain(&function.captured).collect();
        let call = CustomVmap { graph: function.graph, rule };
        tree::rebuild(&out, apply_multi_result(&all, at, |graph, v| graph.push_multi_result(call, v))?)
    })
}

/// A batching rule, and the trees of the function that it belongs to.
struct StatedBatchingRule<Args, Out, Rule> {
    rule: std::sync::Arc<Rule>,
    args: Args,
    out: Out,
    /// The types of the results of one example.
    gives: Vec<Type>,
    /// Number of arrays that the function captures.
    captured: usize,
    client: Client,
    /// The name of the rule: the line that states it, and its type.
    name: (Loc, &'static str),
}

impl<Args, Out, Rule, R> StatedBatchingRule<Args, Out, Rule>
where
    Args: Tree,
    Out: Tree,
    Rule: Fn(usize, &[bool], &Args) -> R,
    R: Outcome<Tree = Out>,
{
    /// Traces the rule for a batch; returns its graph, and for each result, true if it has an axis of examples.
    fn trace_for_batch(
        &self,
        batch: &BatchDescription,
    ) -> std::result::Result<(pallas_graph::Graph, Vec<bool>), TransformError> {
        let at = self.name.0;
        let refused = |error| match error {
            Error::Operation(e) => TransformError { at: e.called, diag: e.diag },
            other => TransformError { at, diag: batching_rule_diag(other.to_string()) },
        };
        let takes: Vec<TracedParameter> =
            batch.takes.iter().map(|ty| TracedParameter::with_states(ty.clone(), None)).collect();
        let own = takes.len() - self.captured;
        let _open = recursive_rules::enter_rule(self.name);
        let made = trace_with_value(&self.client, &takes, |params| {
            let args = tree::rebuild(&self.args, params[..own].iter().cloned())?;
            let made = (self.rule)(batch.size, &batch.has[..own], &args).tree()?;
            let [expected, found] = [tree::structure(&self.out), tree::structure(&made)];
            if expected != found {
                return Err(Error::operation(
                    at,
                    batching_rule_diag(format!("the rule of {expected} returns {found}")),
                ));
            }
            let leaves = tree::leaves(&made);
            leaves.iter().try_for_each(|x| x.check().map(drop))?;
            let has = leaves.iter().zip(&self.gives).map(|(x, ty)| x.shape().len() > ty.shape.len()).collect();
            Ok((has, leaves))
        });
        let (has, made): (Vec<bool>, _) = made.map_err(refused)?;
        if !made.captured.is_empty() {
            let message = "the rule of a `custom_vmap` captures an array".to_string();
            return Err(TransformError { at, diag: batching_rule_diag(message) });
        }
        Ok((made.graph, has))
    }
}

fn batching_rule_diag(message: String) -> Diag {
    let help = "the rule returns the function's result for all examples, and takes every array as an argument";
    Diag::new("custom-vmap", At::Op, message, help)
}
