//! Operations on blocks.
use super::rule::Rule;
use crate::dynamic::Dynamic;
use crate::graph::{Graph, Op, Var};
use crate::mesh::axis::{Axis, size};
use crate::mesh::{Collective, Exchange, Mesh, Sharding};
use pallas_ir::structural::{Broadcast, Iota, Pad, Reshape, Slice, Transpose};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// An operation whose operands and result are divided compatibly.
pub(super) struct Divided<'a> {
    pub op: &'a Op,
    /// The blocks of the operands.
    pub args: Vec<Var>,
    /// The type of each whole operand, and its sharding.
    pub operands: Vec<(&'a Type, Sharding)>,
    /// The type of the result's block.
    pub gives: Type,
}

/// The monoid by which parts of an operation's result are combined.
pub(super) fn monoid(op: &Op) -> ScalarOp {
    match op {
        Op::Structural(StructuralOp::Reduce(reduce)) => reduce.op,
        _ => ScalarOp::Add,
    }
}

/// Returns true if devices can have parts of an operation's result, which are combined afterwards.
pub(super) fn adds_up(op: &Op) -> bool {
    match op {
        Op::Structural(StructuralOp::Dot(_) | StructuralOp::Reduce(_)) => true,
        Op::Structural(StructuralOp::Conv(conv)) => conv.groups == 1 && conv.batch_groups == 1,
        _ => false,
    }
}

/// Returns true if an operation on blocks of a pass-through factor is the same operation.
pub(super) fn divides(op: &Op, rule: &Rule, factor: usize) -> bool {
    match op {
        // Positions in the divided dimension are those of the whole array.
        Op::Structural(StructuralOp::Scatter(_)) => rule.tensors[2].iter().flatten().any(|&f| f == factor),
        Op::Structural(StructuralOp::Conv(conv)) => {
            let is_group = rule.tensors.iter().flatten().any(|dim| dim.len() > 1 && dim.contains(&factor));
            conv.groups == 1 && conv.batch_groups == 1 && !is_group
        }
        // A shift by sizes alone: elements move along it.
        Op::Structural(StructuralOp::Pad(pad)) => {
            let is_moved = |dim: usize| [&pad.low[dim], &pad.high[dim]].iter().any(|n| n.as_number() != Some(0));
            (0..pad.low.len()).all(|dim| !rule.tensors[0][dim].contains(&factor) || !is_moved(dim))
        }
        Op::Structural(StructuralOp::Slice(slice)) => {
            let is_moved = |dim: usize| slice.start[dim] != 0 || slice.stride[dim] != 1;
            (0..slice.start.len()).all(|dim| !rule.tensors[0][dim].contains(&factor) || !is_moved(dim))
        }
        _ => true,
    }
}

/// The coordinate of the device along axes of a mesh, an i32 scalar.
pub(super) fn coordinate(graph: &mut Graph, mesh: &Arc<Mesh>, axes: &[Axis]) -> Var {
    let table = (0..size(axes) as i32).collect();
    let op = Collective { kind: Exchange::Table(table), mesh: mesh.clone(), axes: axes.to_vec() };
    graph.fitting(op, &[])
}

/// Appends an operation on blocks; returns its result.
pub(super) fn operation(graph: &mut Graph, mesh: &Arc<Mesh>, mut work: Divided<'_>) -> Var {
    mask(graph, mesh, &mut work);
    let Divided { op, args, gives, .. } = work;
    let shape: Vec<Dim> = gives.dims();
    let op: Op = match op {
        Op::Structural(StructuralOp::Broadcast(broadcast)) => {
            StructuralOp::from(Broadcast { to: shape, dims: broadcast.dims.clone() }).into()
        }
        Op::Structural(StructuralOp::Reshape(_)) => StructuralOp::from(Reshape { to: shape }).into(),
        Op::Structural(StructuralOp::Slice(slice)) => StructuralOp::from(Slice { size: shape, ..slice.clone() }).into(),
        Op::Structural(StructuralOp::Gather(gather)) => {
            let mut gather = gather.clone();
            let x = graph.ty(args[0]).shape.clone();
            let windows = gather.windows(graph.ty(args[1]).shape.len());
            // A window that was as long as the operand is as long as the block.
            for (dim, (size, whole)) in gather.slice_sizes.iter_mut().zip(&work.operands[0].0.shape).enumerate() {
                if size.as_number() == Some(*whole as i64) && windows.axes[dim].axis.is_some() && *whole != 1 {
                    *size = Dim::from(x[dim]);
                }
            }
            StructuralOp::from(gather).into()
        }
        Op::Dynamic(Dynamic::Slice { .. }) => Dynamic::Slice { size: gives.shape.clone() }.into(),
        other => other.clone(),
    };
    graph.fitting(op, &args)
}

/// Replaces what lies beyond the array in the last blocks of operands, where it would be added up.
fn mask(graph: &mut Graph, mesh: &Arc<Mesh>, work: &mut Divided<'_>) {
    let folded: Vec<(usize, usize)> = match work.op {
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
        let neutral = monoid(work.op).neutral(ty.dtype).expect("it combines parts");
        let coordinate = coordinate(graph, mesh, axes);
        work.args[operand] = until(graph, work.args[operand], dim, coordinate, ty.shape[dim], neutral);
    }
}

/// A block, with a number in place of the elements at positions from `end` on along a dimension.
fn until(graph: &mut Graph, x: Var, dim: usize, coordinate: Var, end: usize, with: Literal) -> Var {
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
    let divided: Vec<usize> = (0..rank).filter(|&dim| counts[dim] > 1).collect();
    let split: Vec<usize> = divided.iter().map(|&dim| counts[dim]).chain(block.iter().copied()).collect();
    let x = reshaped(graph, parts, &split);
    // Each count in front of its dimension.
    let order: Vec<usize> = (0..rank)
        .flat_map(|dim| divided.iter().position(|&d| d == dim).into_iter().chain([divided.len() + dim]))
        .collect();
    let x = if order.is_sorted() { x } else { graph.fitting(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let whole: Vec<usize> = block.iter().zip(counts).map(|(n, k)| n * k).collect();
    let x = reshaped(graph, x, &whole);
    if whole == shape {
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

/// The part of a block that belongs to the device, of this shape: along each dimension the one at its coordinate.
pub(super) fn sliced(
    graph: &mut Graph,
    x: Var,
    coordinates: &[Option<Var>],
    shape: &[usize],
    lists: &[Vec<Axis>],
) -> Var {
    let own = graph.ty(x).shape.clone();
    // The last parts may extend beyond the block.
    let missing: Vec<usize> =
        (0..own.len()).map(|dim| (shape[dim] * size(&lists[dim])).saturating_sub(own[dim])).collect();
    let mut x = x;
    if missing.iter().any(|&n| n > 0) {
        let zero = graph.literal(Literal::new(graph.ty(x).dtype, 0.0));
        let op = Pad { low: dims(&vec![0; own.len()]), high: dims(&missing) };
        x = graph.fitting(StructuralOp::from(op), &[x, zero]);
    }
    let starts: Vec<Var> = (coordinates.iter().zip(shape))
        .map(|(coordinate, &n)| match coordinate {
            Some(coordinate) => {
                let size = graph.literal(Literal::int(DType::I32, n as i64));
                graph.fitting(ScalarOp::Mul, &[*coordinate, size])
            }
            None => graph.literal(Literal::int(DType::I32, 0)),
        })
        .collect();
    graph.fitting(Dynamic::Slice { size: shape.to_vec() }, &[&[x], &starts[..]].concat())
}

fn reshaped(graph: &mut Graph, x: Var, shape: &[usize]) -> Var {
    if graph.ty(x).shape == shape {
        return x;
    }
    graph.fitting(StructuralOp::from(Reshape { to: dims(shape) }), &[x])
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}
