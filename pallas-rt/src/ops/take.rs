//! Elements selected by arrays of positions.
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{
    GraphOperand, Operand, apply_to_operands, broadcast_shapes, cast, cast_and_broadcast, splat,
};
use super::gather_windows::{IndexMode, clamp_positions, normalize_positions, push_gather};
use super::index::Item;
use super::indexed_update::row_scatter;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Gather;
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp, StructuralOp, Type};
use std::borrow::Borrow;

/// Returns the gather of elements at positions along an axis; along all other axes array and positions correspond.
fn batched_gather(rank: usize, axis: usize) -> Gather {
    let others: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
    Gather {
        offset_dims: vec![],
        collapsed_slice_dims: vec![axis],
        operand_batching_dims: others.clone(),
        start_indices_batching_dims: others,
        start_index_map: vec![axis],
        index_vector_dim: rank,
        slice_sizes: vec![1i64.into(); rank],
    }
}

/// Appends the array `x` and the positions `at` along `axis`, broadcast to each other along all other axes; returns
/// both and the number of the axis from the front. `name` names the operation in messages.
fn broadcast_positions(
    graph: &mut Graph,
    name: &str,
    [x, at]: [Var; 2],
    axis: isize,
) -> Result<(Var, Var, usize), Diag> {
    let (ty, at_ty) = (graph.ty(x).clone(), graph.ty(at).clone());
    let axis = canonicalize_axis(axis, ty.shape.len())?;
    if at_ty.shape.len() != ty.shape.len() || at_ty.dtype.is_float() || at_ty.dtype == DType::Bool {
        let message = format!("{name} of {ty} by {at_ty}");
        return Err(Diag::new("take", At::Operand(1), message, "integers of the same rank"));
    }
    let [mut from, mut to] = [ty.shape, at_ty.shape];
    let (n, count) = (std::mem::replace(&mut from[axis], 1), std::mem::replace(&mut to[axis], 1));
    let mut common = broadcast_shapes(&[from, to])?;
    common[axis] = n;
    let x = graph.broadcast(x, &common)?;
    common[axis] = count;
    let at = graph.broadcast(at, &common)?;
    Ok((x, at, axis))
}

impl Array {
    /// Elements at positions along an axis, which the axes of the positions replace in the result. Negative positions
    /// count from the end; one that does not exist gives NaN, as [`IndexMode::Fill`] says.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let at = Array::from_slice(&[1, 0, -1], &[3])?;
    /// assert_eq!(x.take(&at, 1).to_vec::<f32>()?, [2.0, 1.0, 2.0, 4.0, 3.0, 4.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn take(&self, positions: &Array, axis: isize) -> Array {
        self.take_with(positions, axis, IndexMode::Fill)
    }

    /// Elements at positions along an axis, where `mode` says what a position that does not exist means; see
    /// [`take`](Array::take). With [`IndexMode::Clip`] negative positions are moved to the first one.
    #[track_caller]
    #[must_use]
    pub fn take_with(&self, positions: &Array, axis: isize, mode: IndexMode) -> Array {
        apply(&[self, positions], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            let mut items = vec![Item::from(..); axis];
            items.push(Item::Array(positions.clone()));
            push_gather(graph, v[0], &items, &v[1..], mode, mode != IndexMode::Clip)
        })
    }

    /// `result[.., i, ..] = self[.., positions[.., i, ..], ..]` along an axis; the other axes broadcast. Negative
    /// positions count from the end. As in JAX, a position that does not exist gives NaN, `true`, the lowest signed or
    /// the highest unsigned integer; of an axis without elements there are zeros.
    #[track_caller]
    #[must_use]
    pub fn take_along_axis(&self, positions: &Array, axis: isize) -> Array {
        apply(&[self, positions], Loc::caller(), |graph, v| {
            let (x, at, axis) = broadcast_positions(graph, "take_along_axis", [v[0], v[1]], axis)?;
            let Type { dtype, shape } = graph.ty(x).clone();
            let at = self::normalize_positions(graph, at, shape[axis], IndexMode::Fill, true)?;
            let to = graph.ty(at).shape.clone();
            if shape.contains(&0) {
                return splat(graph, Literal::new(dtype, 0.0), &to);
            }
            let outside = splat(
                graph,
                super::gather_windows::out_of_range_value(IndexMode::Fill, dtype).expect("it has one"),
                &to,
            )?;
            let held = clamp_positions(graph, at, shape[axis] as i64)?;
            let exists = graph.push(ScalarOp::Eq, &[at, held])?;
            let taken = graph.push(StructuralOp::from(batched_gather(shape.len(), axis)), &[x, at])?;
            graph.push(ScalarOp::Select, &[exists, taken, outside])
        })
    }

    /// The array with `result[.., positions[.., i, ..], ..] = elements[.., i, ..]` along an axis; the other axes of the
    /// positions are the array's, or 1. Positions that do not exist are skipped.
    #[track_caller]
    #[must_use]
    pub fn put_along_axis(&self, positions: &Array, elements: impl Into<Operand>, axis: isize) -> Array {
        let operands = [self.into(), positions.into(), elements.into()];
        apply_to_operands(&operands, Loc::caller(), |graph, operands| {
            let [Some(own), Some(at)] = [operands[0].var(), operands[1].var()] else { unreachable!("they are arrays") };
            let (x, at, axis) = broadcast_positions(graph, "put_along_axis", [own, at], axis)?;
            if graph.ty(x).shape != graph.ty(own).shape {
                let message = format!("put_along_axis into {} at {}", graph.ty(own), graph.ty(at));
                return Err(Diag::new("put", At::Operand(1), message, "all other axes are the array's, or 1"));
            }
            let Type { dtype, shape } = graph.ty(x).clone();
            let at = self::normalize_positions(graph, at, shape[axis], IndexMode::Fill, true)?;
            super::indexed_update::check_update_dtype(graph, operands[2], dtype)?;
            let elements = cast_and_broadcast(graph, 2, operands[2], dtype, &graph.ty(at).shape.clone())?;
            if graph.ty(x).elements() == 0 {
                return Ok(x);
            }
            graph.push(StructuralOp::from(batched_gather(shape.len(), axis).matching_scatter(None)), &[x, at, elements])
        })
    }
}

/// Elements of several arrays, which broadcast to one shape: `index` has the number of the array for each position, and
/// `mode` treats numbers that no array has.
///
/// ```
/// use pallas_rt::{Array, ops::{IndexMode, choose}};
/// let (x, y) = (Array::from_slice(&[1, 2], &[2])?, Array::from_slice(&[3, 4], &[2])?);
/// let at = Array::from_slice(&[1, 0], &[2])?;
/// assert_eq!(choose(&at, &[x, y], IndexMode::Clip).to_vec::<i32>()?, [3, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn choose<A: Borrow<Array>>(index: &Array, arrays: &[A], mode: IndexMode) -> Array {
    let all: Vec<&Array> = std::iter::once(index).chain(arrays.iter().map(Borrow::borrow)).collect();
    apply(&all, Loc::caller(), |graph, v| {
        let shapes: Vec<Vec<usize>> = v.iter().map(|&v| graph.ty(v).shape.clone()).collect();
        let common = broadcast_shapes(&shapes)?;
        let types = v[1..].iter().map(|&v| graph.ty(v).dtype);
        let Some(dtype) = types.reduce(super::promote_types) else {
            return Err(Diag::new("arity", At::Op, "no array to choose from".into(), "give at least one"));
        };
        let at = normalize_positions(graph, v[0], v.len() - 1, mode, false)?;
        let at = if mode == IndexMode::Clip { clamp_positions(graph, at, v.len() as i64 - 1)? } else { at };
        let at = graph.broadcast(at, &common)?;
        // The last one, and each in front of it where its number is.
        let mut made = None;
        for (i, &x) in v[1..].iter().enumerate().rev() {
            let x = cast(graph, x, dtype)?;
            let x = graph.broadcast(x, &common)?;
            made = Some(match made {
                None => x,
                Some(others) => {
                    let is_own = super::elementwise_broadcast::push_elementwise(
                        graph,
                        ScalarOp::Eq,
                        &[GraphOperand::Var(at), GraphOperand::Int(i as i64)],
                    )?;
                    graph.push(ScalarOp::Select, &[is_own, x, others])?
                }
            });
        }
        made.ok_or_else(|| Diag::new("arity", At::Op, "no array to choose from".into(), "give at least one"))
    })
}

/// Elements of the first array whose condition is true, of `default` where none is; `jnp.select`.
#[track_caller]
#[must_use]
pub fn select_first<A: Borrow<Array>>(conditions: &[A], arrays: &[A], default: impl Into<Operand>) -> Array {
    let all = conditions.iter().chain(arrays).map(|x| Operand::from(x.borrow()));
    let operands: Vec<Operand> = all.chain([default.into()]).collect();
    apply_to_operands(&operands, Loc::caller(), |graph, operands| {
        let (conditions, arrays) = operands.split_at(conditions.len());
        if conditions.len() + 1 != arrays.len() {
            let message = format!("{} conditions of {} arrays", conditions.len(), arrays.len() - 1);
            return Err(Diag::new("arity", At::Op, message, "one condition for each array"));
        }
        let Some((&default, arrays)) = arrays.split_last() else { unreachable!("there is a default") };
        let dtype = super::elementwise_broadcast::common_dtype(graph, &[arrays, &[default]].concat());
        let shape = super::elementwise_broadcast::common_shape(graph, operands)?;
        let mut made = cast_and_broadcast(graph, operands.len() - 1, default, dtype, &shape)?;
        for (i, (&condition, &x)) in conditions.iter().zip(arrays).enumerate().rev() {
            let condition = cast_and_broadcast(graph, i, condition, DType::Bool, &shape)?;
            let x = cast_and_broadcast(graph, conditions.len() + i, x, dtype, &shape)?;
            made = graph.push(ScalarOp::Select, &[condition, x, made])?;
        }
        Ok(made)
    })
}

impl Array {
    /// Sums of the rows that have the same number in `segments`, which has a number for each row; rows whose number is
    /// not below `count` are left out. `jax.ops.segment_sum`.
    #[track_caller]
    #[must_use]
    pub fn segment_sum(&self, segments: &Array, count: usize) -> Array {
        apply(&[self, segments], Loc::caller(), |graph, v| {
            push_segment_reduce(graph, ScalarOp::Add, [v[0], v[1]], count)
        })
    }

    /// Products of the rows that have the same number in `segments`, 1 over no rows; see
    /// [`segment_sum`](Array::segment_sum).
    #[track_caller]
    #[must_use]
    pub fn segment_prod(&self, segments: &Array, count: usize) -> Array {
        apply(&[self, segments], Loc::caller(), |graph, v| {
            push_segment_reduce(graph, ScalarOp::Mul, [v[0], v[1]], count)
        })
    }

    /// Largest elements of the rows that have the same number in `segments`, -inf or the lowest integer over no rows;
    /// see [`segment_sum`](Array::segment_sum).
    #[track_caller]
    #[must_use]
    pub fn segment_max(&self, segments: &Array, count: usize) -> Array {
        apply(&[self, segments], Loc::caller(), |graph, v| {
            push_segment_reduce(graph, ScalarOp::Maximum, [v[0], v[1]], count)
        })
    }

    /// Smallest elements of the rows that have the same number in `segments`, inf or the highest integer over no rows;
    /// see [`segment_sum`](Array::segment_sum).
    #[track_caller]
    #[must_use]
    pub fn segment_min(&self, segments: &Array, count: usize) -> Array {
        apply(&[self, segments], Loc::caller(), |graph, v| {
            push_segment_reduce(graph, ScalarOp::Minimum, [v[0], v[1]], count)
        })
    }
}

/// Appends a fold by `op` of the rows that have the same number in `segments`.
fn push_segment_reduce(graph: &mut Graph, op: ScalarOp, [x, segments]: [Var; 2], count: usize) -> Result<Var, Diag> {
    let (ty, of) = (graph.ty(x).clone(), graph.ty(segments).clone());
    if of.shape.len() != 1 || ty.shape.first() != of.shape.first() {
        let message = format!("the segments of {ty} are {of}");
        return Err(Diag::new("segments", At::Operand(1), message, "one number for each row"));
    }
    let Some(neutral) = op.neutral(ty.dtype) else {
        return Err(Diag::new("dtype", At::Operand(0), format!("segments of {ty}"), "cast it to numbers"));
    };
    let mut shape = ty.shape.clone();
    shape[0] = count;
    let at = normalize_positions(graph, segments, count, IndexMode::Fill, false)?;
    if ty.elements() == 0 || count == 0 {
        return splat(graph, neutral, &shape);
    }
    // A scatter rounds at each step: sums of 16-bit floats are made in f32.
    let wide = op.accumulator(ty.dtype).unwrap_or(ty.dtype);
    let (x, start) = (cast(graph, x, wide)?, op.neutral(wide).unwrap_or(neutral));
    let start = splat(graph, start, &shape)?;
    let made = graph.push(StructuralOp::from(row_scatter(Some(op), ty.shape.len() - 1)), &[start, at, x])?;
    cast(graph, made, ty.dtype)
}
