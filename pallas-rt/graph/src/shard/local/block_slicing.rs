//! Operations that cut and join blocks, and compute positions along them.
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use crate::mesh::axis::{Axis, product_of_sizes};
use crate::mesh::{Collective, DeviceTable, Mesh};
use pallas_ir::structural::{Broadcast, Cast, Iota, Pad, Slice, Transpose};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// A group of a collective: devices with equal coordinates along all axes of a mesh except some.
#[derive(Clone, Copy)]
pub(crate) struct DeviceGroup<'a> {
    /// The mesh of the devices.
    pub mesh: &'a Arc<Mesh>,
    /// The axes along which the devices of the group differ.
    pub axes: &'a [Axis],
}

/// Appends the device's coordinate along axes of a mesh, an i32 scalar.
pub(in crate::shard) fn emit_device_coordinate(graph: &mut Graph, mesh: &Arc<Mesh>, axes: &[Axis]) -> Var {
    let table = (0..product_of_sizes(axes) as i32).collect();
    let op = Collective { kind: DeviceTable(table).into(), mesh: mesh.clone(), axes: axes.to_vec() };
    graph.push_valid(op, &[])
}

/// Appends a broadcast of `x` to `shape`; dimension `k` of `x` becomes dimension `result_dims[k]` of the result.
pub(super) fn emit_broadcast(graph: &mut Graph, x: Var, shape: &[usize], result_dims: &[usize]) -> Var {
    if graph.ty(x).shape == shape {
        return x;
    }
    graph.push_valid(StructuralOp::from(Broadcast { to: constant_dims(shape), dims: result_dims.to_vec() }), &[x])
}

/// Appends a bool for each element of an i32 array: true if it is at least `first` and less than `end`.
pub(super) fn emit_range_mask(graph: &mut Graph, x: Var, first: i64, end: i64) -> Var {
    let shape = graph.ty(x).shape.clone();
    let [first, end] = [first, end].map(|n| graph.splat(Literal::int(DType::I32, n), &shape));
    let is_behind = graph.push_valid(ScalarOp::Ge, &[x, first]);
    let is_before = graph.push_valid(ScalarOp::Lt, &[x, end]);
    graph.push_valid(ScalarOp::BitAnd, &[is_behind, is_before])
}

/// Appends the device's block with `fill` in place of the elements whose position in the whole array along `dim` is
/// `end` or greater. `coordinate` is the device's coordinate along the axes that shard the dimension.
pub(in crate::shard) fn emit_fill_past_end(
    graph: &mut Graph,
    x: Var,
    dim: usize,
    coordinate: Var,
    end: usize,
    fill: Literal,
) -> Var {
    let shape = graph.ty(x).shape.clone();
    let ty = Type::new(DType::I32, &shape[..]);
    let position = emit_block_iota(graph, dim, &ty, Some(coordinate));
    let end = graph.splat(Literal::int(DType::I32, end as i64), &shape);
    let is_there = graph.push_valid(ScalarOp::Lt, &[position, end]);
    let other = graph.splat(fill, &shape);
    graph.push_valid(ScalarOp::Select, &[is_there, x, other])
}

/// Appends positions along a dimension in an array of type `ty`: those in the whole array, for the device's block with
/// this coordinate; without one, from 0 on.
pub(in crate::shard) fn emit_block_iota(graph: &mut Graph, dim: usize, ty: &Type, coordinate: Option<Var>) -> Var {
    let own = graph.push_valid(StructuralOp::from(Iota { shape: ty.dims(), axis: dim, dtype: ty.dtype }), &[]);
    let Some(coordinate) = coordinate else { return own };
    let size = graph.i32_literal(ty.shape[dim] as i64);
    let mut first = graph.push_valid(ScalarOp::Mul, &[coordinate, size]);
    if ty.dtype != DType::I32 {
        first = graph.push_valid(StructuralOp::from(Cast { to: ty.dtype }), &[first]);
    }
    let first = graph.broadcast(first, &ty.shape).expect("a scalar stretches");
    graph.push_valid(ScalarOp::Add, &[own, first])
}

/// Joins the blocks of all members of a group, which are stacked along the first axis of `parts`, to one of this shape:
/// `counts` says how many blocks follow each other along each dimension. Elements beyond the shape are dropped.
pub(in crate::shard) fn join_blocks(graph: &mut Graph, parts: Var, counts: &[usize], shape: &[usize]) -> Var {
    let block = graph.ty(parts).shape[1..].to_vec();
    let rank = block.len();
    let sharded: Vec<usize> = (0..rank).filter(|&dim| counts[dim] > 1).collect();
    let split: Vec<usize> = sharded.iter().map(|&dim| counts[dim]).chain(block.iter().copied()).collect();
    let x = graph.reshape(parts, &split);
    // Each count comes before its dimension.
    let order: Vec<usize> = (0..rank)
        .flat_map(|dim| sharded.iter().position(|&d| d == dim).into_iter().chain([sharded.len() + dim]))
        .collect();
    let x = if order.is_sorted() { x } else { graph.push_valid(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let whole: Vec<usize> = block.iter().zip(counts).map(|(n, k)| n * k).collect();
    let x = graph.reshape(x, &whole);
    crop_block(graph, x, shape)
}

/// Cuts off the elements of a block that are beyond this shape.
pub(in crate::shard) fn crop_block(graph: &mut Graph, x: Var, shape: &[usize]) -> Var {
    let rank = shape.len();
    if graph.ty(x).shape == shape {
        return x;
    }
    let op = Slice { start: vec![0; rank], size: constant_dims(shape), stride: vec![1; rank] };
    graph.push_valid(StructuralOp::from(op), &[x])
}

/// Cuts a block into parts for the members of a group, stacked along a new first axis. Each pair has a dimension and
/// the number of parts into which it is cut.
pub(in crate::shard) fn split_and_stack(graph: &mut Graph, x: Var, cuts: &[(usize, usize)]) -> Var {
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
    let x = if order.is_sorted() { x } else { graph.push_valid(StructuralOp::from(Transpose { axes: order }), &[x]) };
    let members = cuts.iter().map(|cut| cut.1).product();
    graph.reshape(x, &[&[members], &own[..]].concat())
}

/// Appends `padding` at the end of each dimension of a block up to this shape.
pub(in crate::shard) fn pad_to_shape(graph: &mut Graph, x: Var, shape: &[usize], padding: f64) -> Var {
    let ty = graph.ty(x).clone();
    let missing: Vec<usize> = shape.iter().zip(&ty.shape).map(|(n, own)| n.saturating_sub(*own)).collect();
    if missing.iter().all(|&n| n == 0) {
        return x;
    }
    let padding = graph.literal(Literal::new(ty.dtype, padding));
    let op = Pad { low: constant_dims(&vec![0; missing.len()]), high: constant_dims(&missing) };
    graph.push_valid(StructuralOp::from(op), &[x, padding])
}

/// Returns the device's part, of shape `shape`, of block `x`: along each dimension the part at its coordinate, or all
/// of the dimension if the coordinate is `None`. `dim_axes` has the axes that cut each dimension; `padding` fills parts
/// beyond the block.
pub(in crate::shard) fn slice_device_part(
    graph: &mut Graph,
    x: Var,
    coordinates: &[Option<Var>],
    shape: &[usize],
    dim_axes: &[Vec<Axis>],
    padding: f64,
) -> Var {
    // The last parts may extend beyond the block, so it is padded.
    let whole: Vec<usize> = shape.iter().zip(dim_axes).map(|(n, list)| n * product_of_sizes(list)).collect();
    let x = pad_to_shape(graph, x, &whole, padding);
    let starts: Vec<Var> = (coordinates.iter().zip(shape))
        .map(|(coordinate, &n)| match coordinate {
            Some(coordinate) => {
                let size = graph.i32_literal(n as i64);
                graph.push_valid(ScalarOp::Mul, &[*coordinate, size])
            }
            None => graph.i32_literal(0),
        })
        .collect();
    graph.push_dynamic_slice(x, shape, &starts)
}

/// A cut of a dimension, or of each part of one, into equal parts, and which of them is kept.
pub(in crate::shard) struct DimSplit {
    /// Number of parts into which the dimension is cut.
    pub parts: usize,
    /// The index of the part that is kept, an i32 scalar; `None` if all are kept.
    pub kept: Option<Var>,
}

/// Appends the part that is kept of a block whose dimensions are cut into parts, these into parts again, and so on.
pub(in crate::shard) fn slice_kept_parts(graph: &mut Graph, x: Var, cuts: &[Vec<DimSplit>]) -> Var {
    if cuts.iter().flatten().all(|cut| cut.kept.is_none()) {
        return x;
    }
    let zero = graph.i32_literal(0);
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
    let x = graph.push_dynamic_slice(x, &taken, &starts);
    graph.reshape(x, &whole)
}
