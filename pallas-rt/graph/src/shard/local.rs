//! Operations on blocks.
//!
//! - `flat`: reshapes of dimensions that are sharded unevenly;
//! - `halo`: the rows that devices need of each other's blocks, in rounds; `window`: operations that move elements;
//! - `lookup`: operations that address a sharded operand by data.
mod flat;
mod halo;
mod lookup;
mod window;

pub(crate) use lookup::update;

use super::rule::{Role, Rule};
use crate::build::dims;
use crate::graph::{Graph, Op, Var};
use crate::mesh::axis::{Axis, size};
use crate::mesh::{Collective, DeviceTable, Mesh, Sharding};
use pallas_ir::structural::{Broadcast, Conv, Iota, Pad, Reshape, Scatter, Slice, Transpose};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// An operation whose operands and result are sharded compatibly.
pub(crate) struct Sharded<'a> {
    pub op: Op,
    /// The blocks of the operands.
    pub args: Vec<Var>,
    /// The type of each whole operand, and its sharding.
    pub operands: Vec<(&'a Type, Sharding)>,
    /// The same of the result.
    pub result: (&'a Type, Sharding),
    /// The type of the result's block.
    pub gives: Type,
    /// Axes along which devices have parts of the result, which are combined afterwards.
    pub parts: Vec<Axis>,
}

/// The monoid by which parts of an operation's result are combined.
pub(super) fn monoid(op: &Op, dtype: DType) -> ScalarOp {
    match op {
        Op::Structural(StructuralOp::Reduce(reduce)) => reduce.op,
        Op::Structural(StructuralOp::Scatter(Scatter { op: Some(op), .. })) => *op,
        // Rows that another device has are zeros.
        _ if dtype == DType::Bool => ScalarOp::BitOr,
        _ => ScalarOp::Add,
    }
}

/// Keeps the axes that the operation on blocks can have. Blocks of factors that share a dimension have equal sizes, but for
/// windows, which see the elements that they need; what is not added up is not sharded where it is folded.
pub(super) fn restrict(axes: &mut [Vec<Axis>], rule: &Rule, op: &Op, types: &[&Type]) {
    let is_reshape = matches!(op, Op::Structural(StructuralOp::Reshape(_)));
    for (f, factor) in rule.factors.iter().enumerate() {
        let is_uneven = !is_reshape && factor.role != Role::Permute && !factor.size.is_multiple_of(size(&axes[f]));
        let shares_dim = rule.tensors.iter().flatten().any(|dim| dim.len() > 1 && dim.contains(&f));
        // A dimension that no other one belongs to has a factor of size 1.
        let is_alone = factor.size == 1
            && types
                .iter()
                .zip(&rule.tensors)
                .any(|(ty, dims)| ty.shape.iter().zip(dims).any(|(&n, dim)| n > 1 && dim.contains(&f)));
        if !divides(op, rule, types, f, &axes[f]) || is_uneven && shares_dim || is_alone {
            axes[f].clear();
        }
    }
    clear_behind(axes, rule);
    if is_reshape {
        flat::restrict(axes, rule, types);
        clear_behind(axes, rule);
    }
}

/// Behind a factor that is not sharded completely, blocks would not be adjacent elements.
fn clear_behind(axes: &mut [Vec<Axis>], rule: &Rule) {
    loop {
        let dims = rule.tensors.iter().flatten().flat_map(|dim| dim.windows(2));
        let mut is_split =
            dims.filter(|pair| size(&axes[pair[0]]) != rule.factors[pair[0]].size && !axes[pair[1]].is_empty());
        let Some(pair) = is_split.next() else { return };
        let behind = pair[1];
        drop(is_split);
        axes[behind].clear();
    }
}

/// Returns true if an operation on blocks of a factor is the operation itself, with what `operation` does around it. The
/// factor has these axes; `types` are those of the operands and of the result.
fn divides(op: &Op, rule: &Rule, types: &[&Type], factor: usize, axes: &[Axis]) -> bool {
    let has = |tensor: usize| rule.tensors[tensor].iter().position(|dim| dim.contains(&factor));
    let role = rule.factors[factor].role;
    let result = types.len() - 1;
    if types.iter().any(|ty| ty.shape.contains(&0)) {
        return role == Role::Pass && !matches!(op, Op::Structural(op) if is_moving(op));
    }
    match op {
        Op::Dynamic(op) => op.regions().divides(role, has(result).is_some()),
        Op::Structural(op) => match op {
            StructuralOp::Dot(_) | StructuralOp::Reduce(_) => matches!(role, Role::Pass | Role::Reduce),
            StructuralOp::Gather(_) | StructuralOp::TakeAlong(_) => matches!(role, Role::Pass | Role::Reduce),
            StructuralOp::Scatter(scatter) => match role {
                Role::Pass => true,
                Role::Reduce => scatter.op.is_some(),
                Role::Permute | Role::Replicate => false,
            },
            StructuralOp::Conv(conv) => {
                let is_group = rule.tensors.iter().flatten().any(|dim| dim.len() > 1 && dim.contains(&factor));
                let is_alone = conv.groups == 1 && conv.batch_groups == 1;
                // Examples need no others, and groups of features no other groups.
                let is_batch = conv.batch_groups == 1 && has(0) == Some(conv.lhs[0]);
                let are_groups = conv.batch_groups == 1
                    && conv.groups > 1
                    && rule.tensors[0][conv.lhs[1]].first() == Some(&factor)
                    && rule.factors[factor].size == conv.groups
                    && conv.groups.is_multiple_of(size(axes));
                match role {
                    Role::Pass => is_alone && !is_group || is_batch || are_groups,
                    Role::Reduce => is_alone && has(0) == Some(conv.lhs[1]),
                    Role::Permute => moves(op, types, has(result), axes),
                    Role::Replicate => false,
                }
            }
            StructuralOp::Reshape(_) => matches!(role, Role::Pass | Role::Permute),
            _ if is_moving(op) && role != Role::Replicate => moves(op, types, has(result), axes),
            _ => role == Role::Pass,
        },
        // The rule has sums where they are proven.
        Op::Call(_) => matches!(role, Role::Pass | Role::Reduce),
        _ => role == Role::Pass,
    }
}

fn moves(op: &StructuralOp, types: &[&Type], dim: Option<usize>, axes: &[Axis]) -> bool {
    dim.is_some_and(|dim| window::moves(op, dim, types[types.len() - 1].shape[dim], size(axes)))
}

/// Returns true for operations that may move elements along a dimension that they keep.
fn is_moving(op: &StructuralOp) -> bool {
    use StructuralOp::{Concat, Conv, Pad, ReduceWindow, Reverse, Roll, Slice};
    matches!(op, Slice(_) | Pad(_) | Reverse(_) | Roll(_) | Concat(_) | Conv(_) | ReduceWindow(_))
}

/// The coordinate of the device along axes of a mesh, an i32 scalar.
pub(super) fn coordinate(graph: &mut Graph, mesh: &Arc<Mesh>, axes: &[Axis]) -> Var {
    let table = (0..size(axes) as i32).collect();
    let op = Collective { kind: DeviceTable(table).into(), mesh: mesh.clone(), axes: axes.to_vec() };
    graph.fitting(op, &[])
}

/// Appends an operation on blocks; returns its result.
pub(super) fn operation(graph: &mut Graph, mesh: &Arc<Mesh>, mut work: Sharded<'_>) -> Var {
    mask(graph, mesh, &mut work);
    let mut is_own = None;
    match &work.op {
        Op::Structural(StructuralOp::Gather(gather)) => {
            let windows = gather.windows(work.operands[1].0.shape.len());
            is_own = lookup::own_rows(graph, mesh, &mut work, &windows);
        }
        Op::Structural(StructuralOp::TakeAlong(take)) => {
            let windows = take.gather(work.operands[0].0.shape.len()).windows(work.operands[1].0.shape.len());
            is_own = lookup::own_rows(graph, mesh, &mut work, &windows);
        }
        Op::Structural(StructuralOp::Scatter(scatter)) => {
            let [x, index, updates] = [0, 1, 2].map(|i| work.operands[i].0);
            let windows = scatter.windows(x.shape.len(), index.shape.len(), &updates.dims());
            let op = scatter.op;
            lookup::scatter(graph, mesh, &mut work, &windows, op);
        }
        Op::Dynamic(op) => return op.regions().on_blocks(graph, mesh, &work),
        Op::Structural(StructuralOp::Reshape(_)) => return flat::reshape(graph, mesh, &work),
        Op::Structural(op) if is_moving(op) => {
            if let Some(made) = window::exchange(graph, mesh, &mut work) {
                return made;
            }
        }
        _ => {}
    }
    let op = on_blocks(graph, &work);
    let made = graph.fitting(op, &work.args);
    match is_own {
        Some(is_own) => {
            let zero = graph.splat(Literal::new(work.gives.dtype, 0.0), &work.gives.shape);
            graph.fitting(ScalarOp::Select, &[is_own, made, zero])
        }
        None => made,
    }
}

/// The operation with the extents of blocks among its attributes.
fn on_blocks(graph: &Graph, work: &Sharded<'_>) -> Op {
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
            // A window that was as long as the operand is as long as the block.
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

/// A block with another number of elements along a dimension, which these axes divide: `[extent, count]` are the whole array's
/// and the new one.
pub(crate) fn regrouped(
    graph: &mut Graph,
    mesh: &Arc<Mesh>,
    block: Var,
    dim: usize,
    axes: &[Axis],
    [extent, count]: [usize; 2],
) -> Var {
    if graph.ty(block).shape[dim] == count {
        return block;
    }
    window::regrouped(graph, mesh, block, dim, axes, [extent, count])
}

/// Rows that devices read of an array along a dimension.
pub(super) struct Met {
    pub dim: usize,
    /// Elements of the whole array along it.
    pub extent: usize,
    /// Number of rows of each device.
    pub count: usize,
    /// The first row of the first device.
    pub offset: i64,
    /// Distance between the first rows of neighbours.
    pub step: i64,
}

/// The rows that each device reads; zeros in place of those that the array does not have.
pub(super) fn met(graph: &mut Graph, mesh: &Arc<Mesh>, block: Var, axes: &[Axis], met: &Met) -> Var {
    window::rows_or_zeros(graph, mesh, block, axes, met)
}

/// Replaces what lies beyond the array in the last blocks of operands, where it would be added up.
fn mask(graph: &mut Graph, mesh: &Arc<Mesh>, work: &mut Sharded<'_>) {
    let folded: Vec<(usize, usize)> = match &work.op {
        Op::Structural(StructuralOp::Dot(dot)) => dot.contract.iter().flat_map(|&(i, j)| [(0, i), (1, j)]).collect(),
        Op::Structural(StructuralOp::Reduce(reduce)) => reduce.axes.iter().map(|&axis| (0, axis)).collect(),
        Op::Structural(StructuralOp::Conv(conv)) => vec![(0, conv.lhs[1]), (1, conv.rhs[1])],
        _ => return,
    };
    for (operand, dim) in folded {
        let (ty, sharding) = &work.operands[operand];
        let axes = &sharding.dims[dim].axes;
        if ty.shape[dim].is_multiple_of(size(axes)) {
            continue;
        }
        let neutral = monoid(&work.op, ty.dtype).neutral(ty.dtype).expect("it combines parts");
        let coordinate = coordinate(graph, mesh, axes);
        work.args[operand] = until(graph, work.args[operand], dim, coordinate, ty.shape[dim], neutral);
    }
}

/// An i32 scalar.
fn number(graph: &mut Graph, n: i64) -> Var {
    graph.literal(Literal::int(DType::I32, n))
}

/// An array of this shape whose dimensions `at` are those of `x`.
fn spread(graph: &mut Graph, x: Var, shape: &[usize], at: &[usize]) -> Var {
    if graph.ty(x).shape == shape {
        return x;
    }
    graph.fitting(StructuralOp::from(Broadcast { to: dims(shape), dims: at.to_vec() }), &[x])
}

/// Returns true for each number of an array that is in a range.
fn between(graph: &mut Graph, x: Var, first: i64, end: i64) -> Var {
    let shape = graph.ty(x).shape.clone();
    let [first, end] = [first, end].map(|n| graph.splat(Literal::int(DType::I32, n), &shape));
    let is_behind = graph.fitting(ScalarOp::Ge, &[x, first]);
    let is_before = graph.fitting(ScalarOp::Lt, &[x, end]);
    graph.fitting(ScalarOp::BitAnd, &[is_behind, is_before])
}

/// A block, with a number in place of the elements at positions from `end` on along a dimension.
pub(super) fn until(graph: &mut Graph, x: Var, dim: usize, coordinate: Var, end: usize, with: Literal) -> Var {
    let shape = graph.ty(x).shape.clone();
    let ty = Type::new(DType::I32, &shape[..]);
    let position = iota(graph, dim, &ty, Some(coordinate));
    let end = graph.splat(Literal::int(DType::I32, end as i64), &shape);
    let is_there = graph.fitting(ScalarOp::Lt, &[position, end]);
    let other = graph.splat(with, &shape);
    graph.fitting(ScalarOp::Select, &[is_there, x, other])
}

/// The positions along a dimension of the block with this coordinate.
pub(super) fn iota(graph: &mut Graph, dim: usize, ty: &Type, coordinate: Option<Var>) -> Var {
    let own = graph.fitting(StructuralOp::from(Iota { shape: ty.dims(), axis: dim, dtype: ty.dtype }), &[]);
    let Some(coordinate) = coordinate else { return own };
    let size = graph.literal(Literal::int(DType::I32, ty.shape[dim] as i64));
    let mut first = graph.fitting(ScalarOp::Mul, &[coordinate, size]);
    if ty.dtype != DType::I32 {
        first = graph.fitting(StructuralOp::from(pallas_ir::structural::Cast { to: ty.dtype }), &[first]);
    }
    let first = graph.broadcast(first, &ty.shape).expect("a scalar stretches");
    graph.fitting(ScalarOp::Add, &[own, first])
}

/// Blocks of all members of a group, which lie along a first axis, as one block of this shape: along each dimension that
/// many of them follow each other. What lies beyond the shape is dropped.
pub(super) fn joined(graph: &mut Graph, parts: Var, counts: &[usize], shape: &[usize]) -> Var {
    let block = graph.ty(parts).shape[1..].to_vec();
    let rank = block.len();
    let sharded: Vec<usize> = (0..rank).filter(|&dim| counts[dim] > 1).collect();
    let split: Vec<usize> = sharded.iter().map(|&dim| counts[dim]).chain(block.iter().copied()).collect();
    let x = reshaped(graph, parts, &split);
    // Each count in front of its dimension.
    let order: Vec<usize> = (0..rank)
        .flat_map(|dim| sharded.iter().position(|&d| d == dim).into_iter().chain([sharded.len() + dim]))
        .collect();
    let x = if order.is_sorted() { x } else { graph.fitting(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let whole: Vec<usize> = block.iter().zip(counts).map(|(n, k)| n * k).collect();
    let x = reshaped(graph, x, &whole);
    cropped(graph, x, shape)
}

/// A block without what lies beyond this shape.
pub(super) fn cropped(graph: &mut Graph, x: Var, shape: &[usize]) -> Var {
    let rank = shape.len();
    if graph.ty(x).shape == shape {
        return x;
    }
    let op = Slice { start: vec![0; rank], size: dims(shape), stride: vec![1; rank] };
    graph.fitting(StructuralOp::from(op), &[x])
}

/// A block as parts for the members of a group, along a first axis: each of these dimensions is cut into so many.
pub(super) fn parted(graph: &mut Graph, x: Var, cuts: &[(usize, usize)]) -> Var {
    let shape = graph.ty(x).shape.clone();
    let count = |dim: usize| cuts.iter().find(|cut| cut.0 == dim).map(|cut| cut.1);
    let (mut split, mut front, mut behind) = (vec![], vec![], vec![]);
    for (dim, &n) in shape.iter().enumerate() {
        if let Some(k) = count(dim) {
            front.push(split.len());
            split.push(k);
        }
        behind.push(split.len());
        split.push(n / count(dim).unwrap_or(1));
    }
    let own: Vec<usize> = behind.iter().map(|&axis| split[axis]).collect();
    let x = reshaped(graph, x, &split);
    let order = [front, behind].concat();
    let x = if order.is_sorted() { x } else { graph.fitting(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let members = cuts.iter().map(|cut| cut.1).product();
    reshaped(graph, x, &[&[members], &own[..]].concat())
}

/// A block with `padding` behind it where this shape is larger.
pub(super) fn extended(graph: &mut Graph, x: Var, shape: &[usize], padding: f64) -> Var {
    let ty = graph.ty(x).clone();
    let missing: Vec<usize> = shape.iter().zip(&ty.shape).map(|(n, own)| n.saturating_sub(*own)).collect();
    if missing.iter().all(|&n| n == 0) {
        return x;
    }
    let padding = graph.literal(Literal::new(ty.dtype, padding));
    let op = Pad { low: dims(&vec![0; missing.len()]), high: dims(&missing) };
    graph.fitting(StructuralOp::from(op), &[x, padding])
}

/// The part of a block that belongs to the device, of this shape: along each dimension the one at its coordinate. `padding`
/// is where it extends beyond the block.
pub(super) fn sliced(
    graph: &mut Graph,
    x: Var,
    coordinates: &[Option<Var>],
    shape: &[usize],
    lists: &[Vec<Axis>],
    padding: f64,
) -> Var {
    // The last parts may extend beyond the block.
    let whole: Vec<usize> = shape.iter().zip(lists).map(|(n, list)| n * size(list)).collect();
    let x = extended(graph, x, &whole, padding);
    let starts: Vec<Var> = (coordinates.iter().zip(shape))
        .map(|(coordinate, &n)| match coordinate {
            Some(coordinate) => {
                let size = graph.literal(Literal::int(DType::I32, n as i64));
                graph.fitting(ScalarOp::Mul, &[*coordinate, size])
            }
            None => graph.literal(Literal::int(DType::I32, 0)),
        })
        .collect();
    graph.window(x, shape, &starts)
}

/// A dimension, or each part of one, is cut into parts.
pub(super) struct Cut {
    pub parts: usize,
    /// The number of the part that is kept, an i32 scalar; `None`: all are.
    pub kept: Option<Var>,
}

/// What is kept of a block whose dimensions are cut into parts, these into parts again, and so on.
pub(super) fn cut(graph: &mut Graph, x: Var, cuts: &[Vec<Cut>]) -> Var {
    if cuts.iter().flatten().all(|cut| cut.kept.is_none()) {
        return x;
    }
    let zero = graph.literal(Literal::int(DType::I32, 0));
    let shape = graph.ty(x).shape.clone();
    let (mut split, mut taken, mut starts, mut whole) = (vec![], vec![], vec![], vec![]);
    for (&n, cuts) in shape.iter().zip(cuts) {
        let (mut left, mut kept) = (n, n);
        for cut in cuts {
            left /= cut.parts;
            split.push(cut.parts);
            taken.push(if cut.kept.is_some() { 1 } else { cut.parts });
            starts.push(cut.kept.unwrap_or(zero));
            kept /= if cut.kept.is_some() { cut.parts } else { 1 };
        }
        split.push(left);
        taken.push(left);
        starts.push(zero);
        whole.push(kept);
    }
    let x = reshaped(graph, x, &split);
    let x = graph.window(x, &taken, &starts);
    reshaped(graph, x, &whole)
}

pub(super) fn reshaped(graph: &mut Graph, x: Var, shape: &[usize]) -> Var {
    if graph.ty(x).shape == shape {
        return x;
    }
    graph.fitting(StructuralOp::from(Reshape { to: dims(shape) }), &[x])
}
