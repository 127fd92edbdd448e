//! `dynamic_update_slice`: replaces a window of an array.
use super::DynamicSlice;
use super::prelude::window::*;
use pallas_ir::StructuralOp;
use pallas_ir::structural::Scatter;

/// The first operand with a window replaced by the second operand, at positions that are the other operands
/// (`jax.lax.dynamic_update_slice`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicUpdateSlice;

impl Windowed for DynamicUpdateSlice {
    fn access(&self) -> WindowAccess<'_> {
        WindowAccess::Write
    }
}

impl WindowRule for DynamicUpdateSlice {
    /// Returns the cotangents: zeros in the window for the array that was overwritten, the window itself for the
    /// update.
    fn transposed(&self, cotangent: Var, zeros: Var, window: &Type) -> Vec<(Dynamic, Vec<Var>)> {
        let of_part = DynamicSlice { size: window.shape.clone() };
        vec![(DynamicUpdateSlice.into(), vec![cotangent, zeros]), (of_part.into(), vec![cotangent])]
    }
    fn along(&self, _: usize) -> Dynamic {
        DynamicUpdateSlice.into()
    }
    fn batched(&self, to: &mut Graph, own: OwnWindows<'_>) -> Var {
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
        let [x, updates] = [0, 1].map(|i| own.with_axis(to, i));
        to.fitting(StructuralOp::from(scatter), &[x, own.index, updates])
    }
}

impl WindowRegions for DynamicUpdateSlice {
    /// Adds the sharding factors. Along an axis that the window does not span, its elements are sent to the blocks that
    /// contain them.
    fn rule(&self, build: &mut Build<'_>) {
        let (x, part, result) = (build.shapes[0], build.shapes[1], build.result());
        for (dim, (&n, &m)) in x.iter().zip(part).enumerate() {
            if n == m {
                build.add(n, Role::Pass, &[(0, dim), (1, dim), (result, dim)]);
            } else {
                build.add(n, Role::Permute, &[(0, dim), (result, dim)]);
                build.add(m, Role::Permute, &[(1, dim)]);
            }
        }
    }
    fn divides(&self, role: Role, in_result: bool) -> bool {
        role == Role::Pass || in_result
    }
    fn on_blocks(&self, graph: &mut Graph, work: &Sharded<'_>) -> Var {
        update(graph, work).unwrap_or_else(|| graph.fitting(DynamicUpdateSlice, &work.args))
    }
}

impl Saved for DynamicUpdateSlice {
    fn print(&self, _: &mut file::Printer) -> String {
        String::new()
    }
    fn parse(_: &mut file::Parser<'_>, _: &mut file::Words<'_>) -> Result<DynamicUpdateSlice, String> {
        Ok(DynamicUpdateSlice)
    }
}

impl Sampled for DynamicUpdateSlice {
    fn samples(dtype: DType) -> Vec<Sample> {
        let at = Type::scalar(DType::I32);
        let [x, part] = [[3, 3], [2, 3]].map(|shape| Type::new(dtype, shape));
        vec![Sample::of(DynamicUpdateSlice, &[x, part, at.clone(), at])]
    }
}
