//! Elements in order.
use super::arrange::flip;
use super::axes::canonicalize_axis;
use super::index::{Item, index};
use super::join::push_concatenate;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{ArgSort, ArgTopK, Sort, TakeAlong};
use pallas_ir::{At, Diag, Loc, ScalarOp, StructuralOp};
use std::borrow::Borrow;

/// Appends the elements in ascending order along an axis.
pub(super) fn push_sort(graph: &mut Graph, v: Var, axis: usize) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Sort { axis }), &[v])
}

/// Appends the i32 positions of the elements along an axis in ascending order, or descending if `descending`.
fn push_argsort(graph: &mut Graph, v: Var, axis: usize, descending: bool) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(ArgSort { axis, descending }), &[v])
}

/// Appends the i32 positions of the `k` largest elements along an axis, from the largest.
fn push_arg_top_k(graph: &mut Graph, v: Var, k: usize, axis: usize) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(ArgTopK { k: k.into(), axis }), &[v])
}

/// Appends the elements at these positions along an axis; all positions must exist.
pub(super) fn push_take_along(graph: &mut Graph, v: Var, at: Var, axis: usize) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(TakeAlong { axis }), &[v, at])
}

/// Appends the elements of `v` along `axis` from position `from` up to but without `to`.
pub(super) fn push_axis_slice(graph: &mut Graph, v: Var, axis: usize, from: usize, to: usize) -> Result<Var, Diag> {
    let mut items = vec![Item::from(..); axis];
    items.push(Item::from(from as i64..to as i64));
    index(graph, v, &items)
}

/// Appends the positions that put elements in stable order by keys, of which the first one decides, then the second
/// one, and so on.
fn push_lexsort(graph: &mut Graph, keys: &[Var], axis: usize) -> Result<Var, Diag> {
    let mut order = None;
    for &key in keys.iter().rev() {
        order = Some(match order {
            None => push_argsort(graph, key, axis, false)?,
            Some(before) => {
                let key = push_take_along(graph, key, before, axis)?;
                let next = push_argsort(graph, key, axis, false)?;
                push_take_along(graph, before, next, axis)?
            }
        });
    }
    order.ok_or_else(|| Diag::new("arity", At::Op, "no key to sort by".into(), "give at least one"))
}

/// Refuses arrays of different shapes and an empty list; returns the common shape.
fn check_same_shape(graph: &Graph, vars: &[Var]) -> Result<Vec<usize>, Diag> {
    let Some(&first) = vars.first() else {
        return Err(Diag::new("arity", At::Op, "no array to sort".into(), "give at least one"));
    };
    let shape = &graph.ty(first).shape;
    match vars.iter().position(|&v| graph.ty(v).shape != *shape) {
        None => Ok(shape.clone()),
        Some(i) => {
            let message = format!("arrays of shapes {shape:?} and {:?} are sorted together", graph.ty(vars[i]).shape);
            Err(Diag::new("shape", At::Operand(i), message, "all have one shape; `broadcast_to` makes it"))
        }
    }
}

/// Appends elements that sort in the reverse order of those of `v`: `!x` or `-x`.
fn push_reversed_sort_keys(graph: &mut Graph, v: Var) -> Result<Var, Diag> {
    let op = if graph.ty(v).dtype.is_float() { ScalarOp::Neg } else { ScalarOp::Not };
    graph.push(op, &[v])
}

impl Array {
    /// Elements from the smallest to the largest along an axis. The sort is stable; -0 equals +0, and NaNs come last.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[3.0f32, f32::NAN, -1.0, 2.0], &[4])?;
    /// assert_eq!(x.sort(-1).to_vec::<f32>()?[..3], [-1.0, 2.0, 3.0]);
    /// assert_eq!(x.argsort(-1).to_vec::<i32>()?, [2, 3, 0, 1]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn sort(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_sort(graph, v[0], axis)
        })
    }

    /// Elements from the largest to the smallest along an axis: those of [`sort`](Array::sort) in reverse, so NaNs come
    /// first; `jnp.sort(x, descending=True)`.
    #[track_caller]
    #[must_use]
    pub fn sort_descending(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            let sorted = push_sort(graph, v[0], axis)?;
            flip(graph, sorted, vec![axis])
        })
    }

    /// i32 positions of the elements from the smallest to the largest along an axis; those of equal elements ascend. -0
    /// equals +0, and NaNs come last.
    #[track_caller]
    #[must_use]
    pub fn argsort(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_argsort(graph, v[0], axis, false)
        })
    }

    /// i32 positions of the elements from the largest to the smallest along an axis; those of equal elements ascend. -0
    /// equals +0, and NaNs come first; `jnp.argsort(x, descending=True)`.
    #[track_caller]
    #[must_use]
    pub fn argsort_descending(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_argsort(graph, v[0], axis, true)
        })
    }

    /// The `k` largest elements along an axis from the largest, and their i32 positions, of which those of equal
    /// elements ascend; `jax.lax.top_k`. +0 is above -0; a NaN is above all numbers, or below all if its sign is
    /// negative.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[3, 1, 3, 2], &[4])?;
    /// let (values, positions) = x.top_k(3, -1);
    /// assert_eq!((values.to_vec::<i32>()?, positions.to_vec::<i32>()?), (vec![3, 3, 2], vec![0, 2, 3]));
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn top_k(&self, k: usize, axis: isize) -> (Array, Array) {
        let at = Loc::caller();
        let positions = apply(&[self], at, |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_arg_top_k(graph, v[0], k, axis)
        });
        let values = apply(&[self, &positions], at, |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_take_along(graph, v[0], v[1], axis)
        });
        (values, positions)
    }

    /// Elements arranged along an axis around the one that a sort would put at position `kth`: before it the smaller
    /// ones from the smallest, after it the larger ones from the largest. A NaN is above all numbers, or below all if
    /// its sign is negative.
    #[track_caller]
    #[must_use]
    pub fn partition(&self, kth: isize, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let (axis, n, kth) = resolve_kth_position(graph, v[0], kth, axis)?;
            let turned = push_reversed_sort_keys(graph, v[0])?;
            let (low, high) =
                (push_arg_top_k(graph, turned, kth + 1, axis)?, push_arg_top_k(graph, v[0], n - kth - 1, axis)?);
            let parts = [push_take_along(graph, v[0], low, axis)?, push_take_along(graph, v[0], high, axis)?];
            push_concatenate(graph, &parts, axis as isize)
        })
    }

    /// i32 positions of the elements arranged along an axis around the one that a sort would put at position `kth`:
    /// those up to it from the smallest element, all others in ascending order of position.
    #[track_caller]
    #[must_use]
    pub fn argpartition(&self, kth: isize, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let (axis, n, kth) = resolve_kth_position(graph, v[0], kth, axis)?;
            let turned = push_reversed_sort_keys(graph, v[0])?;
            let all = push_arg_top_k(graph, turned, n, axis)?;
            let (low, high) =
                (push_axis_slice(graph, all, axis, 0, kth + 1)?, push_axis_slice(graph, all, axis, kth + 1, n)?);
            let high = push_sort(graph, high, axis)?;
            push_concatenate(graph, &[low, high], axis as isize)
        })
    }
}

/// Returns the number of an axis, its extent, and the position `kth` from the front; refuses those that do not exist.
fn resolve_kth_position(graph: &Graph, v: Var, kth: isize, axis: isize) -> Result<(usize, usize, usize), Diag> {
    let shape = &graph.ty(v).shape;
    let axis = canonicalize_axis(axis, shape.len())?;
    let n = shape[axis];
    let from_front = if kth < 0 { kth + n as isize } else { kth };
    if !(0..n as isize).contains(&from_front) {
        let message = format!("position {kth} along axis {axis} of {shape:?}");
        return Err(Diag::new("partition", At::Operand(0), message, format!("positions are from -{n} to {n} - 1")));
    }
    Ok((axis, n, from_front as usize))
}

/// Arrays of one shape in the stable order of the first `keys` of them along an axis: the first one decides, then the
/// second one, and so on; `jax.lax.sort(operands, num_keys=keys)`.
///
/// ```
/// use pallas_rt::{Array, ops::sort_together};
/// let (x, y) = (Array::from_slice(&[2, 1, 2], &[3])?, Array::from_slice(&[0.5f32, 1.5, 2.5], &[3])?);
/// let sorted = sort_together(&[x, y], 1, 0);
/// assert_eq!(sorted[1].to_vec::<f32>()?, [1.5, 0.5, 2.5]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn sort_together<A: Borrow<Array>>(arrays: &[A], keys: usize, axis: isize) -> Vec<Array> {
    let at = Loc::caller();
    let arrays: Vec<&Array> = arrays.iter().map(Borrow::borrow).collect();
    let positions = apply(&arrays, at, |graph, v| {
        let axis = canonicalize_axis(axis, check_same_shape(graph, v)?.len())?;
        let Some(keys) = v.get(..keys) else {
            let message = format!("{keys} keys of {} arrays", v.len());
            return Err(Diag::new("arity", At::Op, message, "keys are the first of the arrays"));
        };
        push_lexsort(graph, keys, axis)
    });
    let taken = |x: &&Array| {
        apply(&[x, &positions], at, |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            push_take_along(graph, v[0], v[1], axis)
        })
    };
    arrays.iter().map(taken).collect()
}

/// i32 positions in the stable order of keys of one shape along an axis: the last key decides, then the one before it,
/// and so on; `jnp.lexsort`.
#[track_caller]
#[must_use]
pub fn lexsort<A: Borrow<Array>>(keys: &[A], axis: isize) -> Array {
    let keys: Vec<&Array> = keys.iter().rev().map(Borrow::borrow).collect();
    apply(&keys, Loc::caller(), |graph, v| {
        let axis = canonicalize_axis(axis, check_same_shape(graph, v)?.len())?;
        push_lexsort(graph, v, axis)
    })
}
