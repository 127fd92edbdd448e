//! Operations on blocks: what each device computes from its blocks of an operation's operands.
//!
//! - `block_slicing`: positions along blocks, and cutting and joining of blocks;
//! - `uneven_padding`: neutral elements beyond the array in last blocks, where an operation adds them up;
//! - `uneven_reshape`: reshapes of dimensions that are sharded unevenly;
//! - `halo`: the rows that devices need of each other's blocks, in rounds; `shifted_rows`: operations that move
//!   elements;
//! - `lookup`: operations that address a sharded operand by data.
mod block_slicing;
mod halo;
mod lookup;
mod shifted_rows;
mod uneven_padding;
mod uneven_reshape;

pub(crate) use block_slicing::DeviceGroup;
pub(super) use block_slicing::{
    DimSplit, crop_block, emit_block_iota, emit_device_coordinate, emit_fill_past_end, join_blocks, pad_to_shape,
    slice_device_part, slice_kept_parts, split_and_stack,
};
pub(crate) use lookup::emit_window_update;
pub(crate) use shifted_rows::resize_blocks;
pub(super) use shifted_rows::{RowRange, read_zero_padded_rows};

use super::op_sharding_rule::{FactorRole, ShardingRule};
use super::partition_traits::ShardedOperation;
use crate::graph::{Graph, Op, Var};
use crate::mesh::axis::{Axis, product_of_sizes};
use pallas_ir::structural::{Broadcast, Conv, Scatter, Slice};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};

/// Returns the monoid by which partial results of an operation are combined.
pub(super) fn partial_result_monoid(op: &Op, dtype: DType) -> ScalarOp {
    match op {
        Op::Structural(StructuralOp::Reduce(reduce)) => reduce.op,
        Op::Structural(StructuralOp::Scatter(Scatter { op: Some(op), .. })) => *op,
        // Rows that another device has are zeros, so their sum is the row.
        _ if dtype == DType::Bool => ScalarOp::BitOr,
        _ => ScalarOp::Add,
    }
}

/// Clears the axes of factors that an operation on blocks cannot have. Blocks of factors that share a dimension need
/// equal sizes, except for windows, for which devices read the elements they need; a dimension that is folded is only
/// sharded if partial results can be combined.
pub(super) fn clear_unsupported_axes(axes: &mut [Vec<Axis>], rule: &ShardingRule, op: &Op, types: &[&Type]) {
    let is_reshape = matches!(op, Op::Structural(StructuralOp::Reshape(_)));
    for (f, factor) in rule.factors.iter().enumerate() {
        let is_uneven = !is_reshape
            && factor.role != FactorRole::Permute
            && !factor.size.is_multiple_of(product_of_sizes(&axes[f]));
        let shares_dim = rule.tensors.iter().flatten().any(|dim| dim.len() > 1 && dim.contains(&f));
        // A dimension of more than one element without any other factor has a factor of size 1.
        let is_alone = factor.size == 1
            && types
                .iter()
                .zip(&rule.tensors)
                .any(|(ty, dims)| ty.shape.iter().zip(dims).any(|(&n, dim)| n > 1 && dim.contains(&f)));
        if !can_shard_factor(op, rule, types, f, &axes[f]) || is_uneven && shares_dim || is_alone {
            axes[f].clear();
        }
    }
    clear_noncontiguous_axes(axes, rule);
    if is_reshape {
        uneven_reshape::clear_unsupported_reshape_axes(axes, rule, types);
        clear_noncontiguous_axes(axes, rule);
    }
}

/// Clears the axes of factors after a factor that is not fully sharded: blocks would not be adjacent elements.
fn clear_noncontiguous_axes(axes: &mut [Vec<Axis>], rule: &ShardingRule) {
    loop {
        let dims = rule.tensors.iter().flatten().flat_map(|dim| dim.windows(2));
        let mut is_split = dims
            .filter(|pair| product_of_sizes(&axes[pair[0]]) != rule.factors[pair[0]].size && !axes[pair[1]].is_empty());
        let Some(pair) = is_split.next() else { return };
        let behind = pair[1];
        drop(is_split);
        axes[behind].clear();
    }
}

/// Returns true if `emit_on_blocks` can do an operation on blocks of a factor that is sharded by these axes. `types`
/// are those of the operands and of the result.
fn can_shard_factor(op: &Op, rule: &ShardingRule, types: &[&Type], factor: usize, axes: &[Axis]) -> bool {
    let has = |tensor: usize| rule.tensors[tensor].iter().position(|dim| dim.contains(&factor));
    let role = rule.factors[factor].role;
    let result = types.len() - 1;
    if types.iter().any(|ty| ty.shape.contains(&0)) {
        return role == FactorRole::PassThrough && !matches!(op, Op::Structural(op) if can_move_elements(op));
    }
    match op {
        Op::Dynamic(op) => op.regions().can_shard_factor(role, has(result).is_some()),
        Op::Structural(op) => match op {
            StructuralOp::Dot(_) | StructuralOp::Reduce(_) => {
                matches!(role, FactorRole::PassThrough | FactorRole::Reduce)
            }
            StructuralOp::Gather(_) | StructuralOp::TakeAlong(_) => {
                matches!(role, FactorRole::PassThrough | FactorRole::Reduce)
            }
            StructuralOp::Scatter(scatter) => match role {
                FactorRole::PassThrough => true,
                FactorRole::Reduce => scatter.op.is_some(),
                FactorRole::Permute | FactorRole::Replicate => false,
            },
            StructuralOp::Conv(conv) => {
                let is_group = rule.tensors.iter().flatten().any(|dim| dim.len() > 1 && dim.contains(&factor));
                let is_alone = conv.groups == 1 && conv.batch_groups == 1;
                // Examples of a batch need no others, and groups of features no other groups.
                let is_batch = conv.batch_groups == 1 && has(0) == Some(conv.lhs[0]);
                let are_groups = conv.batch_groups == 1
                    && conv.groups > 1
                    && rule.tensors[0][conv.lhs[1]].first() == Some(&factor)
                    && rule.factors[factor].size == conv.groups
                    && conv.groups.is_multiple_of(product_of_sizes(axes));
                match role {
                    FactorRole::PassThrough => is_alone && !is_group || is_batch || are_groups,
                    FactorRole::Reduce => is_alone && has(0) == Some(conv.lhs[1]),
                    FactorRole::Permute => can_shard_result_dim(op, types, has(result), axes),
                    FactorRole::Replicate => false,
                }
            }
            StructuralOp::Reshape(_) => matches!(role, FactorRole::PassThrough | FactorRole::Permute),
            _ if can_move_elements(op) && role != FactorRole::Replicate => {
                can_shard_result_dim(op, types, has(result), axes)
            }
            _ => role == FactorRole::PassThrough,
        },
        // The rule of a call has reductions only where they are proven to be sums.
        Op::Call(_) => matches!(role, FactorRole::PassThrough | FactorRole::Reduce),
        _ => role == FactorRole::PassThrough,
    }
}

/// Returns true if the operation can be done on blocks along dimension `dim` of the result, which `axes` shard, after
/// devices exchange rows; false for `None`, a factor that the result lacks.
fn can_shard_result_dim(op: &StructuralOp, types: &[&Type], dim: Option<usize>, axes: &[Axis]) -> bool {
    dim.is_some_and(|dim| {
        shifted_rows::can_shard_dim(op, dim, types[types.len() - 1].shape[dim], product_of_sizes(axes))
    })
}

/// Returns true for operations that may move elements along a dimension of operand and result.
fn can_move_elements(op: &StructuralOp) -> bool {
    use StructuralOp::{Concat, Conv, Pad, ReduceWindow, Reverse, Roll, Slice};
    matches!(op, Slice(_) | Pad(_) | Reverse(_) | Roll(_) | Concat(_) | Conv(_) | ReduceWindow(_))
}

/// Appends an operation on blocks, with the transfers of rows between devices that it needs; returns the block of its
/// result.
pub(super) fn emit_on_blocks(graph: &mut Graph, mut work: ShardedOperation<'_>) -> Var {
    uneven_padding::mask_padding(graph, &mut work);
    let mut is_own = None;
    match &work.op {
        Op::Structural(StructuralOp::Gather(gather)) => {
            let windows = gather.windows(work.operands[1].0.shape.len());
            is_own = lookup::localize_gather_starts(graph, &mut work, &windows);
        }
        Op::Structural(StructuralOp::TakeAlong(take)) => {
            let windows = take.to_gather(work.operands[0].0.shape.len()).windows(work.operands[1].0.shape.len());
            is_own = lookup::localize_gather_starts(graph, &mut work, &windows);
        }
        Op::Structural(StructuralOp::Scatter(scatter)) => {
            let [x, index, updates] = [0, 1, 2].map(|i| work.operands[i].0);
            let windows = scatter.windows(x.shape.len(), index.shape.len(), &updates.dims());
            let op = scatter.op;
            lookup::localize_scatter(graph, &mut work, &windows, op);
        }
        Op::Dynamic(op) => return op.regions().emit_on_blocks(graph, &work),
        Op::Structural(StructuralOp::Reshape(_)) => return uneven_reshape::emit_reshape_on_blocks(graph, &work),
        Op::Structural(op) if can_move_elements(op) => {
            if let Some(made) = shifted_rows::exchange_rows(graph, &mut work) {
                return made;
            }
        }
        _ => {}
    }
    let op = with_block_extents(graph, &work);
    let made = graph.push_valid(op, &work.args);
    let Some(is_own) = is_own else { return made };
    let zero = graph.splat(Literal::new(work.gives.dtype, 0.0), &work.gives.shape);
    graph.push_valid(ScalarOp::Select, &[is_own, made, zero])
}

/// Returns the operation with extents of blocks in place of those of whole arrays among its attributes.
fn with_block_extents(graph: &Graph, work: &ShardedOperation<'_>) -> Op {
    let shape: Vec<Dim> = work.gives.dims();
    match &work.op {
        Op::Structural(StructuralOp::Broadcast(broadcast)) => {
            StructuralOp::from(Broadcast { to: shape, dims: broadcast.dims.clone() }).into()
        }
        Op::Structural(StructuralOp::Slice(slice)) => StructuralOp::from(Slice { size: shape, ..slice.clone() }).into(),
        Op::Structural(StructuralOp::Gather(gather)) => {
            let mut gather = gather.clone();
            let x = graph.ty(work.args[0]).shape.clone();
            let windows = gather.windows(graph.ty(work.args[1]).shape.len());
            // A window as long as the operand becomes a window as long as the block.
            for (dim, (size, whole)) in gather.slice_sizes.iter_mut().zip(&work.operands[0].0.shape).enumerate() {
                if size.as_number() == Some(*whole as i64) && windows.axes[dim].axis.is_some() && *whole != 1 {
                    *size = Dim::from(x[dim]);
                }
            }
            StructuralOp::from(gather).into()
        }
        Op::Structural(StructuralOp::Conv(conv)) if conv.groups > 1 => {
            let features = graph.ty(work.args[0]).shape[conv.lhs[1]];
            let groups = conv.groups * features / work.operands[0].0.shape[conv.lhs[1]];
            StructuralOp::from(Conv { groups, ..conv.clone() }).into()
        }
        other => other.clone(),
    }
}
