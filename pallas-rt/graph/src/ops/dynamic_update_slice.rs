//! `dynamic_update_slice`: replaces a window of an array.
use super::DynamicSlice;
use super::prelude::window::*;
use pallas_ir::StructuralOp;
use pallas_ir::structural::Scatter;

/// The first operand with a window replaced by the second operand, at positions that are the other operands
/// (`jax.lax.dynamic_update_slice`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicUpdateSlice;

impl WindowInterface for DynamicUpdateSlice {
    fn access(&self) -> WindowAccess<'_> {
        WindowAccess::Write
    }
}

impl WindowTransformRule for DynamicUpdateSlice {
    /// Returns the operations, with their array operands, that compute the cotangents: for the array, `cotangent` with
    /// zeros in the window; for the update, the window of `cotangent`.
    fn cotangent_operations(&self, cotangent: Var, zeros: Var, window: &Type) -> Vec<(Dynamic, Vec<Var>)> {
        let of_part = DynamicSlice { size: window.shape.clone() };
        vec![(DynamicUpdateSlice.into(), vec![cotangent, zeros]), (of_part.into(), vec![cotangent])]
    }
    fn with_leading_axis(&self, _: usize) -> Dynamic {
        DynamicUpdateSlice.into()
    }
    fn batched(&self, to: &mut Graph, own: BatchedWindows<'_>) -> Var {
        let rank = to.ty(own.arrays[0]).shape.len() - usize::from(own.has[0]);
        let scatter = Scatter {
            update_window_dims: (1..=rank).collect(),
            inserted_window_dims: vec![],
            input_batching_dims: vec![0],
            scatter_indices_batching_dims: vec![0],
            scatter_dims_to_operand_dims: own.moved.iter().map(|axis| axis + 1).collect(),
            index_vector_dim: 1,
            op: None,
        };
        let [x, updates] = [0, 1].map(|i| own.batched_array(to, i));
        to.push_valid(StructuralOp::from(scatter), &[x, own.index, updates])
    }
}

impl ShardableWindow for DynamicUpdateSlice {
    /// Adds the sharding factors. Along an axis that the window does not span, its elements are sent to the blocks that
    /// contain them.
    fn add_factors(&self, build: &mut RuleBuilder<'_>) {
        let (x, part, result) = (build.shapes[0], build.shapes[1], build.first_result());
        for (dim, (&n, &m)) in x.iter().zip(part).enumerate() {
            if n == m {
                build.add_factor(n, FactorRole::PassThrough, &[(0, dim), (1, dim), (result, dim)]);
            } else {
                build.add_factor(n, FactorRole::Permute, &[(0, dim), (result, dim)]);
                build.add_factor(m, FactorRole::Permute, &[(1, dim)]);
            }
        }
    }
    fn can_shard_factor(&self, role: FactorRole, in_result: bool) -> bool {
        role == FactorRole::PassThrough || in_result
    }
    fn emit_on_blocks(&self, graph: &mut Graph, work: &ShardedOperation<'_>) -> Var {
        emit_window_update(graph, work).unwrap_or_else(|| graph.push_valid(DynamicUpdateSlice, &work.args))
    }
}

impl SerializableOp for DynamicUpdateSlice {
    fn print(&self, _: &mut text_format::Printer) -> String {
        String::new()
    }
    fn parse(_: &mut text_format::Parser<'_>, _: &mut text_format::Words<'_>) -> Result<DynamicUpdateSlice, String> {
        Ok(DynamicUpdateSlice)
    }
}

impl SampledOp for DynamicUpdateSlice {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let at = Type::scalar(DType::I32);
        let [x, part] = [[3, 3], [2, 3]].map(|shape| Type::new(dtype, shape));
        vec![OpSample::new(DynamicUpdateSlice, &[x, part, at.clone(), at])]
    }
}
