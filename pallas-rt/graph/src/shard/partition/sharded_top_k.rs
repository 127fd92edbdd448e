//! Argmax, argmin and top-k along a sharded dimension.
//!
//! ```text
//! x: f32[rows, 8000 of 4 devices]   arg_top_k(x) k(2):  each device finds its own two; all see the eight elements with
//!                                   their positions, and find the two among them
//! ```
//!
//! The first of equal elements is selected as in the whole array, because the devices' candidates are in the order of
//! their positions.
use super::{Partitioner, ValueBlock};
use crate::graph::{Op, Var};
use crate::mesh::axis::product_of_sizes;
use crate::shard::local;
use crate::shard::propagation_program::Node;
use pallas_ir::structural::{ArgReduce, ArgTopK, TakeAlong};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp};

/// An argmax, argmin or top-k, which selects positions along one axis.
struct PositionSelection {
    /// The axis along which positions are selected.
    axis: usize,
    /// Number of positions that are selected.
    count: usize,
    /// True if the result keeps the axis.
    keep: bool,
    /// The operation, with the axis kept in its result.
    op: StructuralOp,
    /// An element that is selected after all others, to fill positions beyond the array; `None` if there is no such
    /// element.
    last: Option<Literal>,
}

impl PositionSelection {
    /// Returns the selection that an operation does on elements of this type; `None` for other operations.
    fn from_op(op: &Op, dtype: DType) -> Option<PositionSelection> {
        match op {
            Op::Structural(StructuralOp::ArgReduce(arg)) => Some(PositionSelection {
                axis: arg.axis,
                count: 1,
                keep: arg.keep,
                op: ArgReduce { keep: true, ..arg.clone() }.into(),
                last: Some(if arg.max { Literal::lowest(dtype) } else { Literal::highest(dtype) }),
            }),
            // Negative NaNs are below all numbers here, so no element is selected last.
            Op::Structural(StructuralOp::ArgTopK(top)) => Some(PositionSelection {
                axis: top.axis,
                count: top.k.as_number().and_then(|k| usize::try_from(k).ok())?,
                keep: true,
                op: ArgTopK { axis: top.axis, k: top.k.clone() }.into(),
                last: None,
            }),
            _ => None,
        }
    }
}

impl Partitioner<'_> {
    /// Appends an operation that selects positions along a sharded dimension, and defines the result of its node.
    /// Returns false, without a change, for other operations, or if devices would have to send as many elements as they
    /// have.
    pub(super) fn try_emit_position_selection(&mut self, node: &Node, op: &Op) -> bool {
        let Some(&x) = node.operands.first() else { return false };
        let ty = self.program.ty(x).clone();
        let Some(PositionSelection { axis, count, keep, op, last }) = PositionSelection::from_op(op, ty.dtype) else {
            return false;
        };
        if product_of_sizes(&self.block(x).sharding_for_readers().dims[axis].axes) == 1 {
            return false;
        }
        let ValueBlock { var, sharding, .. } = self.finalize_block(x);
        let axes = sharding.dims[axis].axes.clone();
        let (n, parts, own) = (ty.shape[axis], product_of_sizes(&axes), self.graph().ty(var).shape[axis]);
        let is_even = own * parts == n;
        if parts == 1 || count > own || count * parts >= n || !is_even && last.is_none() {
            return false;
        }
        let coordinate = self.emit_device_coordinate(&axes);
        let var = match last {
            Some(last) if !is_even => local::emit_fill_past_end(self.graph(), var, axis, coordinate, n, last),
            _ => var,
        };
        // The device's own selection, with positions in the whole array.
        let positions = self.graph().push_valid(op.clone(), &[var]);
        let elements = self.graph().push_valid(StructuralOp::from(TakeAlong { axis }), &[var, positions]);
        let shape = self.graph().ty(positions).shape.clone();
        let graph = self.graph();
        let block = graph.i32_literal(own as i64);
        let first = graph.push_valid(ScalarOp::Mul, &[coordinate, block]);
        let first = graph.broadcast(first, &shape).expect("a scalar stretches");
        let positions = graph.push_valid(ScalarOp::Add, &[positions, first]);
        // The selections of all devices, one after the other.
        let mut all = shape.clone();
        all[axis] = count * parts;
        let counts: Vec<usize> = (0..all.len()).map(|dim| if dim == axis { parts } else { 1 }).collect();
        let [elements, positions] = [elements, positions].map(|own: Var| {
            let gathered = self.emit_all_gather(&axes, own);
            local::join_blocks(self.graph(), gathered, &counts, &all)
        });
        let graph = self.graph();
        let among = graph.push_valid(op, &[elements]);
        let mut found = graph.push_valid(StructuralOp::from(TakeAlong { axis }), &[positions, among]);
        let mut result = sharding;
        result.dims[axis].axes.clear();
        if !keep {
            result.dims.remove(axis);
            let mut without = graph.ty(found).shape.clone();
            without.remove(axis);
            found = graph.reshape(found, &without);
        }
        self.define_block_pending_reshard(
            node.results[0],
            ValueBlock { var: found, sharding: result, partial: None, said: None },
        );
        true
    }
}
