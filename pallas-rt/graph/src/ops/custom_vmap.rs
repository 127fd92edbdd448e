//! `custom_vmap`: a function whose batched form the user states, as `jax.custom_batching.custom_vmap`.
use super::prelude::*;
use super::samples::{OpSample, SampledOp, sine_product_graph};
use crate::transform::{batched, jvp, repeat_along_new_axis, with_leading_axis};
use pallas_ir::{At, DType};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of a graph whose batched form is made by a stated rule. Reverse mode differentiates the graph itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomVmap {
    /// The function for one example.
    pub graph: Graph,
    /// The rule that makes the function for a batch.
    pub rule: BatchRule,
}

/// A Rust function that is given a batch and returns the graph for it, with a bool for each result: true if it has the
/// batch axis in front. The graph takes the operands of the call, of which batched ones have an additional first axis.
/// Two rules are equal only if one is a clone of the other.
#[derive(Clone)]
pub struct BatchRule(Arc<dyn BatchFunction>);

/// The batch for which a [`BatchRule`] makes a graph.
#[derive(Clone, Debug)]
pub struct BatchDescription {
    /// Number of examples.
    pub size: usize,
    /// For each operand, true if it has the axis of examples in front.
    pub has: Vec<bool>,
    /// The types of the operands, including that axis.
    pub takes: Vec<Type>,
}

/// The result of a [`BatchRule`]: the graph that computes the results for the whole batch, and for each result true if
/// it has the axis of examples in front.
pub type BatchRuleResult = Result<(Graph, Vec<bool>), TransformError>;

/// The functions that a [`BatchRule`] can hold.
trait BatchFunction: Fn(&BatchDescription) -> BatchRuleResult + Send + Sync {}

impl<F: Fn(&BatchDescription) -> BatchRuleResult + Send + Sync> BatchFunction for F {}

impl BatchRule {
    /// Makes a rule from a Rust function.
    pub fn new(rule: impl Fn(&BatchDescription) -> BatchRuleResult + Send + Sync + 'static) -> BatchRule {
        BatchRule(Arc::new(rule))
    }

    /// Returns the rule for the call with tangents of the parameters for which `is_active` is true: it differentiates
    /// the graphs that this rule makes.
    fn with_tangents(&self, is_active: &[bool]) -> BatchRule {
        let (rule, on) = (self.clone(), is_active.to_vec());
        BatchRule::new(move |batch| rule.graph_with_tangents(batch, &on))
    }

    /// Returns the graph of this rule for a batch, with tangents of the parameters for which `is_active` is true, which
    /// follow the operands in `batch`.
    fn graph_with_tangents(&self, batch: &BatchDescription, is_active: &[bool]) -> BatchRuleResult {
        let n = is_active.len();
        let mut graph = Graph::default();
        let params: Vec<Var> = batch.takes.iter().map(|ty| graph.param(ty.clone())).collect();
        // An operand and its tangent get the batch axis if either of them has it.
        let of_tangents = is_active.iter().enumerate().filter(|(_, on)| **on).map(|(i, _)| i);
        let mut pairs: Vec<(usize, usize)> = of_tangents.zip(n..).collect();
        let has = |i: usize| batch.has[i] || pairs.iter().any(|&(own, tangent)| own == i && batch.has[tangent]);
        let all: Vec<bool> = (0..n).map(has).collect();
        let fitting = |graph: &mut Graph, i: usize, has: bool| match has && !batch.has[i] {
            true => repeat_along_new_axis(graph, params[i], batch.size),
            false => params[i],
        };
        let mut args: Vec<Var> = (0..n).map(|i| fitting(&mut graph, i, all[i])).collect();
        args.extend(pairs.drain(..).map(|(own, tangent)| fitting(&mut graph, tangent, all[own])));
        let takes = args[..n].iter().map(|&v| graph.ty(v).clone()).collect();
        let (primal, flags) = (self.0)(&BatchDescription { size: batch.size, has: all, takes })?;
        let is_float: Vec<bool> = primal.result_types().iter().map(|ty| ty.dtype.is_float()).collect();
        graph.results = graph.inline(&jvp(&primal, is_active)?, &args);
        let tangents = flags.iter().zip(is_float).filter(|(_, is_float)| *is_float).map(|(has, _)| *has);
        let flags = flags.iter().copied().chain(tangents.collect::<Vec<_>>()).collect();
        Ok((graph, flags))
    }
}

impl PartialEq for BatchRule {
    fn eq(&self, other: &BatchRule) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for BatchRule {}
impl Hash for BatchRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}
impl fmt::Debug for BatchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule for batches")
    }
}

impl CallInterface for CustomVmap {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.graph)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        CustomVmap { graph: graphs.remove(0), rule: self.rule.clone() }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.graph, args)?;
        Ok(self.graph.result_types())
    }
}

impl CallExpansion for CustomVmap {
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        matches!(at, ExpansionStage::Vjp | ExpansionStage::Plan).then_some(&self.graph)
    }
}

impl CallText for CustomVmap {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("call={}", text(&self.graph)), format!("rule={:?}", self.rule)]
    }
}

impl CallTransformRule for CustomVmap {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        active(&self.graph, is_active)
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let on = forward.active_operands();
        let graph = jvp(&self.graph, &on)?;
        let args = forward.operands_and_tangents();
        let n = forward.e.results.len();
        // Every result of floats gets a tangent, even if it is zero.
        let floats: Vec<bool> = self.graph.result_types().iter().map(|ty| ty.dtype.is_float()).collect();
        let found = forward.new_result_tangents(&floats);
        let call = CustomVmap { graph, rule: self.rule.with_tangents(&on) };
        Ok(forward.push_with_tangents(call.into(), args, &[n], found))
    }
    fn vjp(&self, _: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        unreachable!("it is expanded before")
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let takes: Vec<Type> = args.iter().map(|&v| to.ty(v).clone()).collect();
        let at = to.at;
        let asked = BatchDescription { size: axis.size, has: has.to_vec(), takes };
        let (graph, flags) = (self.rule.0)(&asked)?;
        let own = self.graph.result_types();
        let gives = |ty: &Type, has: bool| if has { with_leading_axis(ty, axis.size) } else { ty.clone() };
        let wanted: Vec<Type> = own.iter().zip(&flags).map(|(ty, &has)| gives(ty, has)).collect();
        if flags.len() != own.len() || graph.result_types() != wanted {
            let message = format!("the rule gives {:?} in place of {wanted:?}", graph.result_types());
            let help =
                "the results of the function, those for which `out_batched` is true with an axis of examples in front";
            return Err(TransformError { at, diag: Diag::new("custom-vmap", At::Op, message, help) });
        }
        let made = to.inline(&graph, args);
        // A rule may return a result without the axis if it is the same for all examples.
        Ok(made.into_iter().zip(flags).collect())
    }
    fn batch_dependent_results(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.graph.results.len()]
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallAxisStateRule for CustomVmap {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        _: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (graph, gives) = typing.insert_casts(&self.graph, &operand_states)?;
        Ok(CallWithAxisStates {
            call: CustomVmap { graph, rule: self.rule.clone() }.into(),
            takes: operand_states,
            gives,
        })
    }
}

impl SampledOp for CustomVmap {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        let graph = sine_product_graph(&ty);
        let own = graph.clone();
        let rule = BatchRule::new(move |batch| batched(&own, &batch.has, batch.size));
        vec![OpSample::new(CustomVmap { graph, rule }, &[ty.clone(), ty])]
    }
}
