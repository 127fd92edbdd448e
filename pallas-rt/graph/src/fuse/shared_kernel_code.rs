//! Code that the kernels of single operations share.
use crate::build::constant_dims;
use crate::graph::Equation;
use pallas_ir::{
    Axis, BlockDim, Builder, DType, Dim, Op as TileOp, Operand, OperandId, OperandKind, RegionId, Semantics, Type, View,
};

/// Gives a kernel a grid of `counts` programs along each axis, which run in any order.
pub(super) fn set_parallel_grid(b: &mut Builder, counts: impl IntoIterator<Item = usize>) {
    let axis = |n| Axis { extent: Dim::from(n), semantics: Semantics::Parallel };
    b.kernel_mut().grid = counts.into_iter().map(axis).collect();
}

/// Makes an index map by which each program has the block with the program's own indices, on a grid of `axes` axes.
pub(super) fn program_index_map(b: &mut Builder, axes: usize) -> RegionId {
    let ids = b.begin(&vec![Type::scalar(DType::I32); axes]);
    b.end(&ids)
}

/// Returns block specs for blocks of these extents.
pub(super) fn block_dims(extents: &[usize]) -> Vec<BlockDim> {
    extents.iter().copied().map(BlockDim::Blocked).collect()
}

/// Returns an operand of this type with these block specs, without a fill.
pub(super) fn build_operand(
    name: impl Into<String>,
    kind: OperandKind,
    ty: &Type,
    block: Vec<BlockDim>,
    map: Option<RegionId>,
) -> Operand {
    Operand {
        name: name.into(),
        kind,
        dtype: ty.dtype,
        dims: constant_dims(&ty.shape),
        block,
        map,
        fill: None,
        buffered: None,
    }
}

/// Appends a copy of the block of operand `from`, which has these extents, to that of operand `to`.
pub(super) fn emit_block_copy(b: &mut Builder, e: &Equation, [from, to]: [OperandId; 2], extents: &[usize]) {
    let view = View::whole(extents);
    let tile = b.emit(TileOp::Load { from, view: view.clone(), masked: false }, &[], e.loc).expect("a whole block");
    b.effect(TileOp::Store { to, view, masked: false }, &[tile], e.loc).expect("a whole block");
}
