//! `checkpoint`: trades memory for time in reverse mode by computing values of a graph again, as `jax.checkpoint`.
mod remat_policy;

pub use remat_policy::CheckpointPolicy;

use super::ClosedCall;
use super::prelude::*;
use super::samples::{OpSample, SampledOp, sine_product_graph};
use crate::dead_code::without_dead_equations;
use crate::identity::OptimizationBarrier;
use crate::inline::expand_calls;
use crate::transform::vjp;
use pallas_ir::DType;

/// A call of a graph for which reverse mode stores only the values that a policy selects, and computes the others again
/// (`jax.checkpoint`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    /// The function to call.
    pub graph: Graph,
    /// Choice of the graph's values that are stored.
    pub policy: CheckpointPolicy,
}

impl Checkpoint {
    /// Returns a checkpoint of another graph with the same policy.
    fn with_graph(&self, graph: Graph) -> Checkpoint {
        Checkpoint { graph, policy: self.policy.clone() }
    }
}

impl CallInterface for Checkpoint {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.graph)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        self.with_graph(graphs.remove(0)).into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.graph, args)?;
        Ok(self.graph.result_types())
    }
}

impl CallExpansion for Checkpoint {
    /// Returns the graph in forward mode and for the plan, where nothing is computed again; `None` in reverse mode,
    /// where the call stays.
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        matches!(at, ExpansionStage::Jvp | ExpansionStage::Plan).then_some(&self.graph)
    }
}

impl CallText for Checkpoint {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.graph))]
    }
}

impl CallTransformRule for Checkpoint {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        active(&self.graph, is_active)
    }
    fn jvp(&self, _: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        unreachable!("it is expanded before")
    }
    /// Appends a derivative that takes the values that the policy stores, which the forward call gives as additional
    /// results, and computes the others again from the operands. Barriers around the operands keep these equations from
    /// being merged with the forward ones.
    fn vjp(&self, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let graph = expand_calls(&self.graph, &|call| call.expansion_at(ExpansionStage::Vjp));
        let both = vjp(&graph, back.on)?;
        let mut backward = Graph { results: both.results[graph.results.len()..].to_vec(), ..both };

        let takes = backward.params.len();
        let stored = self.stored_values(&graph);
        let mut given: Vec<Var> = (0..backward.types.len() as u32).map(Var).collect();
        for &v in &stored {
            given[v.index()] = backward.param(graph.ty(v).clone());
        }
        let rename = |v: &mut Var| {
            if let Some(&name) = given.get(v.index()) {
                *v = name;
            }
        };
        backward.equations.iter_mut().flat_map(|e| &mut e.args).for_each(rename);
        backward.results.iter_mut().for_each(rename);
        let mut backward = without_dead_equations(backward);
        // Stores only those values that the derivative reads.
        let mut is_read = vec![false; backward.types.len()];
        let read = backward.equations.iter().flat_map(|e| &e.args).chain(&backward.results);
        read.for_each(|v| is_read[v.index()] = true);
        let params = backward.params.split_off(takes);
        let kept: Vec<(Var, Var)> = stored.into_iter().zip(params).filter(|(_, p)| is_read[p.index()]).collect();
        backward.params.extend(kept.iter().map(|(_, p)| *p));

        let mut args: Vec<Var> =
            back.e.args.iter().map(|&arg| back.to.push_valid(OptimizationBarrier, &[arg])).collect();
        args.extend(back.cotangents_of_floats());
        if !kept.is_empty() {
            let types: Vec<Type> = kept.iter().map(|(v, _)| graph.ty(*v).clone()).collect();
            let mut forward = graph;
            forward.results.extend(kept.iter().map(|(v, _)| *v));
            args.extend(back.add_forward_results(self.with_graph(forward), types));
        }
        let mut made = back.to.push_valid_multi_result(ClosedCall(backward), &args).into_iter();
        Ok(back.on.iter().map(|&on| if on { made.next() } else { None }).collect())
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (graph, flags) =
            batched_with_forced_results(&self.graph, has, axis, &self.batch_dependent_results(has, axis))?;
        Ok(to.push_valid_multi_result(self.with_graph(graph), args).into_iter().zip(flags).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        batch_dependent_results(&self.graph, has_batch_axis, axis)
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallAxisStateRule for Checkpoint {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        _: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (graph, gives) = typing.insert_casts(&self.graph, &operand_states)?;
        Ok(CallWithAxisStates { call: self.with_graph(graph).into(), takes: operand_states, gives })
    }
}

impl Checkpoint {
    /// Returns the values that the policy stores. Values that depend on no operand are never stored, but computed
    /// again.
    fn stored_values(&self, graph: &Graph) -> Vec<Var> {
        let mut depends = vec![false; graph.types.len()];
        graph.params.iter().for_each(|p| depends[p.index()] = true);
        let mut all = vec![];
        for e in &graph.equations {
            if e.args.iter().any(|a| depends[a.index()]) {
                e.results.iter().for_each(|r| depends[r.index()] = true);
                if self.policy.saves(&e.op) {
                    all.extend(&e.results);
                }
            }
        }
        all
    }
}

impl SampledOp for Checkpoint {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        let of =
            |policy| OpSample::new(Checkpoint { graph: sine_product_graph(&ty), policy }, &[ty.clone(), ty.clone()]);
        [CheckpointPolicy::Nothing, CheckpointPolicy::Everything, CheckpointPolicy::Dots].map(of).into()
    }
}
