//! `checkpoint_name`: gives a value a name, by which checkpoint policies select it.
use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use pallas_ir::DType;

/// A call of the identity function that gives one value a name, by which checkpoint policies select it
/// (`checkpoint_name`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CheckpointName {
    /// The name.
    pub name: String,
    /// The graph that the call stands for: one parameter, which is its result.
    pub graph: Graph,
}

impl CheckpointName {
    /// Makes the call that names a value of type `ty`.
    pub fn new(name: impl Into<String>, ty: Type) -> CheckpointName {
        let mut graph = Graph::default();
        graph.results = vec![graph.param(ty)];
        CheckpointName { name: name.into(), graph }
    }
}

impl CallInterface for CheckpointName {
    /// Returns none, since the identity is not written as a called graph.
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.graph, args)?;
        Ok(self.graph.result_types())
    }
}

impl CallExpansion for CheckpointName {
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        (at == ExpansionStage::Plan).then_some(&self.graph)
    }
}

impl CallText for CheckpointName {
    fn attributes(&self) -> String {
        format!(" {:?}", self.name)
    }
    fn jaxpr_params(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("name={}", self.name)]
    }
}

impl CallTransformRule for CheckpointName {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        is_active.to_vec()
    }
    fn jvp(&self, forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let given = forward.given.to_vec();
        forward.push_unchanged();
        Ok(given)
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        Ok(back.cotangents.to_vec())
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, .. } = batch;
        let ty = to.ty(args[0]).clone();
        let made = to.push_valid_multi_result(CheckpointName::new(&*self.name, ty), args);
        Ok(made.into_iter().zip(has.iter().copied()).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        has_batch_axis.to_vec()
    }
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        Some(has_batch_axis.len())
    }
}

impl CallAxisStateRule for CheckpointName {
    fn insert_casts(
        &self,
        _: &AxisStateInference,
        _: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        Ok(CallWithAxisStates { call: self.clone().into(), takes: operand_states.clone(), gives: operand_states })
    }
}

impl SampledOp for CheckpointName {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        vec![OpSample::new(CheckpointName::new("kept", ty.clone()), &[ty])]
    }
}
