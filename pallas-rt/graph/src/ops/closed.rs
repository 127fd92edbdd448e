//! A call of a plain function: the same as its equations in place of the call.
use super::prelude::*;
use super::samples::{OpSample, SampledOp, sine_product_graph};
use pallas_ir::DType;

/// A call of an ordinary function: it means the same as the graph's equations in place of the call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClosedCall(pub Graph);

impl CallInterface for ClosedCall {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.0)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        ClosedCall(graphs.remove(0)).into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.0, args)?;
        Ok(self.0.result_types())
    }
}

impl CallExpansion for ClosedCall {
    fn expansion_at(&self, _: ExpansionStage) -> Option<&Graph> {
        Some(&self.0)
    }
}

impl CallText for ClosedCall {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.0))]
    }
}

impl CallTransformRule for ClosedCall {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        active(&self.0, is_active)
    }
    fn jvp(&self, _: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        unreachable!("it is expanded before")
    }
    fn vjp(&self, _: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        unreachable!("it is expanded before")
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (graph, flags) = batched_with_forced_results(&self.0, has, axis, &self.batch_dependent_results(has, axis))?;
        Ok(to.push_valid_multi_result(ClosedCall(graph), args).into_iter().zip(flags).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        batch_dependent_results(&self.0, has_batch_axis, axis)
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallAxisStateRule for ClosedCall {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        _: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (graph, gives) = typing.insert_casts(&self.0, &operand_states)?;
        Ok(CallWithAxisStates { call: ClosedCall(graph).into(), takes: operand_states, gives })
    }
}

impl SampledOp for ClosedCall {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        vec![OpSample::new(ClosedCall(sine_product_graph(&ty)), &[ty.clone(), ty])]
    }
}
