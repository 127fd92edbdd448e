//! Positions along blocks, and blocks that are cut and joined.
use crate::build::dims;
use crate::graph::{Graph, Var};
use crate::mesh::axis::{Axis, size};
use crate::mesh::{Collective, DeviceTable, Mesh};
use pallas_ir::structural::{Broadcast, Cast, Iota, Pad, Slice, Transpose};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// Devices that differ along some axes of a mesh alone.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub mesh: &'a Arc<Mesh>,
    pub axes: &'a [Axis],
}

/// The coordinate of the device along axes of a mesh, an i32 scalar.
pub(in crate::shard) fn coordinate(graph: &mut Graph, mesh: &Arc<Mesh>, axes: &[Axis]) -> Var {
    let table = (0..size(axes) as i32).collect();
    let op = Collective { kind: DeviceTable(table).into(), mesh: mesh.clone(), axes: axes.to_vec() };
    graph.fitting(op, &[])
}

/// An array of this shape whose dimensions `at` are those of `x`.
pub(super) fn spread(graph: &mut Graph, x: Var, shape: &[usize], at: &[usize]) -> Var {
    if graph.ty(x).shape == shape {
        return x;
    }
    graph.fitting(StructuralOp::from(Broadcast { to: dims(shape), dims: at.to_vec() }), &[x])
}

/// Returns true for each number of an array that is in a range.
pub(super) fn between(graph: &mut Graph, x: Var, first: i64, end: i64) -> Var {
    let shape = graph.ty(x).shape.clone();
    let [first, end] = [first, end].map(|n| graph.splat(Literal::int(DType::I32, n), &shape));
    let is_behind = graph.fitting(ScalarOp::Ge, &[x, first]);
    let is_before = graph.fitting(ScalarOp::Lt, &[x, end]);
    graph.fitting(ScalarOp::BitAnd, &[is_behind, is_before])
}

/// A block, with a number in place of the elements at positions from `end` on along a dimension.
pub(in crate::shard) fn until(
    graph: &mut Graph,
    x: Var,
    dim: usize,
    coordinate: Var,
    end: usize,
    with: Literal,
) -> Var {
    let shape = graph.ty(x).shape.clone();
    let ty = Type::new(DType::I32, &shape[..]);
    let position = iota(graph, dim, &ty, Some(coordinate));
    let end = graph.splat(Literal::int(DType::I32, end as i64), &shape);
    let is_there = graph.fitting(ScalarOp::Lt, &[position, end]);
    let other = graph.splat(with, &shape);
    graph.fitting(ScalarOp::Select, &[is_there, x, other])
}

/// The positions along a dimension of the block with this coordinate.
pub(in crate::shard) fn iota(graph: &mut Graph, dim: usize, ty: &Type, coordinate: Option<Var>) -> Var {
    let own = graph.fitting(StructuralOp::from(Iota { shape: ty.dims(), axis: dim, dtype: ty.dtype }), &[]);
    let Some(coordinate) = coordinate else { return own };
    let size = graph.int(ty.shape[dim] as i64);
    let mut first = graph.fitting(ScalarOp::Mul, &[coordinate, size]);
    if ty.dtype != DType::I32 {
        first = graph.fitting(StructuralOp::from(Cast { to: ty.dtype }), &[first]);
    }
    let first = graph.broadcast(first, &ty.shape).expect("a scalar stretches");
    graph.fitting(ScalarOp::Add, &[own, first])
}

/// Blocks of all members of a group, which lie along a first axis, as one block of this shape: along each dimension that
/// many of them follow each other. What lies beyond the shape is dropped.
pub(in crate::shard) fn joined(graph: &mut Graph, parts: Var, counts: &[usize], shape: &[usize]) -> Var {
    let block = graph.ty(parts).shape[1..].to_vec();
    let rank = block.len();
    let sharded: Vec<usize> = (0..rank).filter(|&dim| counts[dim] > 1).collect();
    let split: Vec<usize> = sharded.iter().map(|&dim| counts[dim]).chain(block.iter().copied()).collect();
    let x = graph.reshape(parts, &split);
    // Each count in front of its dimension.
    let order: Vec<usize> = (0..rank)
        .flat_map(|dim| sharded.iter().position(|&d| d == dim).into_iter().chain([sharded.len() + dim]))
        .collect();
    let x = if order.is_sorted() { x } else { graph.fitting(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let whole: Vec<usize> = block.iter().zip(counts).map(|(n, k)| n * k).collect();
    let x = graph.reshape(x, &whole);
    cropped(graph, x, shape)
}

/// A block without what lies beyond this shape.
pub(in crate::shard) fn cropped(graph: &mut Graph, x: Var, shape: &[usize]) -> Var {
    let rank = shape.len();
    if graph.ty(x).shape == shape {
        return x;
    }
    let op = Slice { start: vec![0; rank], size: dims(shape), stride: vec![1; rank] };
    graph.fitting(StructuralOp::from(op), &[x])
}

/// A block as parts for the members of a group, along a first axis: each of these dimensions is cut into so many.
pub(in crate::shard) fn parted(graph: &mut Graph, x: Var, cuts: &[(usize, usize)]) -> Var {
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
    let x = graph.reshape(x, &split);
    let order = [front, behind].concat();
    let x = if order.is_sorted() { x } else { graph.fitting(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let members = cuts.iter().map(|cut| cut.1).product();
    graph.reshape(x, &[&[members], &own[..]].concat())
}

/// A block with `padding` behind it where this shape is larger.
pub(in crate::shard) fn extended(graph: &mut Graph, x: Var, shape: &[usize], padding: f64) -> Var {
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
pub(in crate::shard) fn sliced(
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
                let size = graph.int(n as i64);
                graph.fitting(ScalarOp::Mul, &[*coordinate, size])
            }
            None => graph.int(0),
        })
        .collect();
    graph.window(x, shape, &starts)
}

/// A dimension, or each part of one, is cut into parts.
pub(in crate::shard) struct Cut {
    pub parts: usize,
    /// The number of the part that is kept, an i32 scalar; `None`: all are.
    pub kept: Option<Var>,
}

/// What is kept of a block whose dimensions are cut into parts, these into parts again, and so on.
pub(in crate::shard) fn cut(graph: &mut Graph, x: Var, cuts: &[Vec<Cut>]) -> Var {
    if cuts.iter().flatten().all(|cut| cut.kept.is_none()) {
        return x;
    }
    let zero = graph.int(0);
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
    let x = graph.reshape(x, &split);
    let x = graph.window(x, &taken, &starts);
    graph.reshape(x, &whole)
}
