//! `dynamic_slice`: reads a window of an array.
use super::DynamicUpdateSlice;
use super::prelude::window::*;
use crate::build::dims;
use pallas_ir::StructuralOp;
use pallas_ir::structural::Gather;

/// The window of this size of the first operand, at positions that are the other operands (`jax.lax.dynamic_slice`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicSlice {
    /// Extents of the window.
    pub size: Vec<usize>,
}

impl Windowed for DynamicSlice {
    fn access(&self) -> WindowAccess<'_> {
        WindowAccess::Read(&self.size)
    }
}

impl WindowRule for DynamicSlice {
    /// Returns the cotangent of the array: zeros everywhere but in the window.
    fn transposed(&self, cotangent: Var, zeros: Var, _: &Type) -> Vec<(Dynamic, Vec<Var>)> {
        vec![(DynamicUpdateSlice.into(), vec![zeros, cotangent])]
    }
    fn along(&self, size: usize) -> Dynamic {
        DynamicSlice { size: [&[size], &self.size[..]].concat() }.into()
    }
    fn batched(&self, to: &mut Graph, own: OwnWindows<'_>) -> Var {
        let batch = usize::from(own.has[0]);
        let gather = Gather {
            offset_dims: (1..=self.size.len()).collect(),
            collapsed_slice_dims: vec![],
            operand_batching_dims: vec![0; batch],
            start_indices_batching_dims: vec![0; batch],
            start_index_map: own.moved.iter().map(|axis| axis + batch).collect(),
            index_vector_dim: 1,
            slice_sizes: dims(&[&vec![1; batch][..], &self.size[..]].concat()),
        };
        to.fitting(StructuralOp::from(gather), &[own.arrays[0], own.index])
    }
}

impl WindowRegions for DynamicSlice {
    /// Adds the sharding factors. A dimension that the window does not span must be whole on each device.
    fn rule(&self, build: &mut Build<'_>) {
        let (x, result) = (build.shapes[0], build.result());
        for (dim, (&n, &size)) in x.iter().zip(&self.size).enumerate() {
            let role = if size == n { Role::Pass } else { Role::Replicate };
            build.add_blocked(n, role, size != n, &[(0, dim), (result, dim)]);
        }
    }
    fn divides(&self, role: Role, _: bool) -> bool {
        role == Role::Pass
    }
    fn on_blocks(&self, graph: &mut Graph, work: &Sharded<'_>) -> Var {
        graph.fitting(DynamicSlice { size: work.gives.shape.clone() }, &work.args)
    }
}

impl Saved for DynamicSlice {
    fn print(&self, _: &mut file::Printer) -> String {
        file::joined(&self.size)
    }
    fn parse(_: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<DynamicSlice, String> {
        Ok(DynamicSlice { size: words.rest("an extent")? })
    }
}

impl Sampled for DynamicSlice {
    fn samples(dtype: DType) -> Vec<Sample> {
        let at = Type::scalar(DType::I32);
        let takes = |shape: &[usize]| [vec![Type::new(dtype, shape)], vec![at.clone(); shape.len()]].concat();
        let of = |size: &[usize], shape: &[usize]| Sample::of(DynamicSlice { size: size.to_vec() }, &takes(shape));
        vec![of(&[2], &[5]), of(&[2, 3], &[3, 3])]
    }
}
