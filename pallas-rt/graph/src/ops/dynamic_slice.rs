//! `dynamic_slice`: reads a window of an array.
use super::DynamicUpdateSlice;
use super::prelude::window::*;
use crate::build::constant_dims;
use pallas_ir::StructuralOp;
use pallas_ir::structural::Gather;

/// The window of this size of the first operand, at positions that are the other operands (`jax.lax.dynamic_slice`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicSlice {
    /// Extents of the window.
    pub size: Vec<usize>,
}

impl WindowInterface for DynamicSlice {
    fn access(&self) -> WindowAccess<'_> {
        WindowAccess::Read(&self.size)
    }
}

impl WindowTransformRule for DynamicSlice {
    /// Returns the operation, with its array operands, that computes the cotangent of the array: `zeros` with
    /// `cotangent` in the window.
    fn cotangent_operations(&self, cotangent: Var, zeros: Var, _: &Type) -> Vec<(Dynamic, Vec<Var>)> {
        vec![(DynamicUpdateSlice.into(), vec![zeros, cotangent])]
    }
    fn with_leading_axis(&self, size: usize) -> Dynamic {
        DynamicSlice { size: [&[size], &self.size[..]].concat() }.into()
    }
    fn batched(&self, to: &mut Graph, own: BatchedWindows<'_>) -> Var {
        let batch = usize::from(own.has[0]);
        let gather = Gather {
            offset_dims: (1..=self.size.len()).collect(),
            collapsed_slice_dims: vec![],
            operand_batching_dims: vec![0; batch],
            start_indices_batching_dims: vec![0; batch],
            start_index_map: own.moved.iter().map(|axis| axis + batch).collect(),
            index_vector_dim: 1,
            slice_sizes: constant_dims(&[&vec![1; batch][..], &self.size[..]].concat()),
        };
        to.push_valid(StructuralOp::from(gather), &[own.arrays[0], own.index])
    }
}

impl ShardableWindow for DynamicSlice {
    /// Adds the sharding factors. A dimension that the window does not span must be whole on each device.
    fn add_factors(&self, build: &mut RuleBuilder<'_>) {
        let (x, result) = (build.shapes[0], build.first_result());
        for (dim, (&n, &size)) in x.iter().zip(&self.size).enumerate() {
            let role = if size == n { FactorRole::PassThrough } else { FactorRole::Replicate };
            build.add_maybe_blocked_factor(n, role, size != n, &[(0, dim), (result, dim)]);
        }
    }
    fn can_shard_factor(&self, role: FactorRole, _: bool) -> bool {
        role == FactorRole::PassThrough
    }
    fn emit_on_blocks(&self, graph: &mut Graph, work: &ShardedOperation<'_>) -> Var {
        graph.push_valid(DynamicSlice { size: work.gives.shape.clone() }, &work.args)
    }
}

impl SerializableOp for DynamicSlice {
    fn print(&self, _: &mut text_format::Printer) -> String {
        text_format::join_spaced(&self.size)
    }
    fn parse(_: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<DynamicSlice, String> {
        Ok(DynamicSlice { size: words.parse_rest("an extent")? })
    }
}

impl SampledOp for DynamicSlice {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let at = Type::scalar(DType::I32);
        let takes = |shape: &[usize]| [vec![Type::new(dtype, shape)], vec![at.clone(); shape.len()]].concat();
        let of = |size: &[usize], shape: &[usize]| OpSample::new(DynamicSlice { size: size.to_vec() }, &takes(shape));
        vec![of(&[2], &[5]), of(&[2, 3], &[3, 3])]
    }
}
