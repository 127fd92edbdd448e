//! Arrays with axes or elements in another order, repeated, or padded.
use super::Axes;
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{Operand, apply_to_operands, cast_and_broadcast};
use super::index::{Item, index};
use super::shape::{reshape, transpose};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Pad, Reverse, Roll};
use pallas_ir::{At, Diag, Dim, Loc, StructuralOp};

/// Appends the elements in reverse order along axes.
pub(super) fn flip(graph: &mut Graph, v: Var, axes: Vec<usize>) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Reverse { axes }), &[v])
}

/// Appends the array with two axes swapped.
fn swap_axes(graph: &mut Graph, v: Var, a: usize, b: usize) -> Result<Var, Diag> {
    let mut axes: Vec<usize> = (0..graph.ty(v).shape.len()).collect();
    axes.swap(a, b);
    if a == b { Ok(v) } else { transpose(graph, v, axes) }
}

/// Appends the array with an axis moved to another position, while the others stay in order.
pub(super) fn move_axis(graph: &mut Graph, v: Var, from: usize, to: usize) -> Result<Var, Diag> {
    let mut axes: Vec<usize> = (0..graph.ty(v).shape.len()).collect();
    let axis = axes.remove(from);
    axes.insert(to, axis);
    if from == to { Ok(v) } else { transpose(graph, v, axes) }
}

/// Appends `count` copies along an axis: of each element if `is_per_element` is true, else of the whole axis.
fn repeat_along_axis(graph: &mut Graph, v: Var, axis: usize, count: usize, is_per_element: bool) -> Result<Var, Diag> {
    let shape = graph.ty(v).shape.clone();
    let (mut apart, mut merged) = (shape.clone(), shape);
    apart.insert(axis + usize::from(is_per_element), 1);
    merged[axis] = merged[axis].saturating_mul(count);
    let v = reshape(graph, v, &apart)?;
    apart[axis + usize::from(is_per_element)] = count;
    let v = graph.broadcast(v, &apart)?;
    reshape(graph, v, &merged)
}

impl Array {
    /// The array with elements in reverse order along axes.
    #[track_caller]
    #[must_use]
    pub fn flip(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let axes = axes.resolve(graph.ty(v[0]).shape.len())?;
            flip(graph, v[0], axes)
        })
    }

    /// The array with elements in reverse order along axis 1.
    #[track_caller]
    #[must_use]
    pub fn fliplr(&self) -> Array {
        self.flip(1)
    }

    /// The array with elements in reverse order along axis 0.
    #[track_caller]
    #[must_use]
    pub fn flipud(&self) -> Array {
        self.flip(0)
    }

    /// Elements moved by `shift` positions along an axis; those moved past one end reappear at the other.
    #[track_caller]
    #[must_use]
    pub fn roll(&self, shift: i64, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let shape = &graph.ty(v[0]).shape;
            let axis = canonicalize_axis(axis, shape.len())?;
            let shift = shift.rem_euclid(shape[axis].max(1) as i64);
            graph.push(StructuralOp::from(Roll { shift, axis }), v)
        })
    }

    /// The plane of two axes turned by `quarters` of a full turn, from the first axis towards the second.
    #[track_caller]
    #[must_use]
    pub fn rot90(&self, quarters: i64, axes: [isize; 2]) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let rank = graph.ty(v[0]).shape.len();
            let (a, b) = (canonicalize_axis(axes[0], rank)?, canonicalize_axis(axes[1], rank)?);
            if a == b {
                let message = format!("a plane of axis {a} alone");
                return Err(Diag::new("axis", At::Op, message, "two axes that differ"));
            }
            match quarters.rem_euclid(4) {
                0 => Ok(v[0]),
                1 => {
                    let flipped = flip(graph, v[0], vec![b])?;
                    swap_axes(graph, flipped, a, b)
                }
                2 => flip(graph, v[0], vec![a.min(b), a.max(b)]),
                _ => {
                    let swapped = swap_axes(graph, v[0], a, b)?;
                    flip(graph, swapped, vec![b])
                }
            }
        })
    }

    /// The array with two axes swapped.
    #[track_caller]
    #[must_use]
    pub fn swapaxes(&self, a: isize, b: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let rank = graph.ty(v[0]).shape.len();
            let (a, b) = (canonicalize_axis(a, rank)?, canonicalize_axis(b, rank)?);
            swap_axes(graph, v[0], a, b)
        })
    }

    /// The array with an axis moved to another position; the others stay in order.
    #[track_caller]
    #[must_use]
    pub fn moveaxis(&self, from: isize, to: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let rank = graph.ty(v[0]).shape.len();
            let (from, to) = (canonicalize_axis(from, rank)?, canonicalize_axis(to, rank)?);
            move_axis(graph, v[0], from, to)
        })
    }

    /// The array without these axes, which must have extent 1; with `..` without all axes of extent 1.
    #[track_caller]
    #[must_use]
    pub fn squeeze(&self, axes: impl Into<Axes>) -> Array {
        let axes = axes.into();
        apply(&[self], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            let mut dropped = axes.resolve(ty.shape.len())?;
            if axes.is_all() {
                dropped.retain(|&axis| ty.shape[axis] == 1);
            }
            if let Some(axis) = dropped.iter().find(|&&axis| ty.shape[axis] != 1) {
                let message = format!("squeeze of axis {axis} of {ty}");
                return Err(Diag::new("squeeze", At::Op, message, "axes of extent 1"));
            }
            let kept = (0..ty.shape.len()).filter(|axis| !dropped.contains(axis));
            let shape: Vec<usize> = kept.map(|axis| ty.shape[axis]).collect();
            reshape(graph, v[0], &shape)
        })
    }

    /// All elements in row-major order, along one axis.
    #[track_caller]
    #[must_use]
    pub fn ravel(&self) -> Array {
        apply(&[self], Loc::caller(), |graph, v| ravel(graph, v[0]))
    }

    /// The array with each element repeated `count` times along an axis; `jnp.repeat` with one number.
    #[track_caller]
    #[must_use]
    pub fn repeat(&self, count: usize, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
            repeat_along_axis(graph, v[0], axis, count, true)
        })
    }

    /// The whole array repeated along each axis by the numbers `counts`, which are aligned at the last axis.
    #[track_caller]
    #[must_use]
    pub fn tile(&self, counts: &[usize]) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let own = graph.ty(v[0]).shape.clone();
            let rank = own.len().max(counts.len());
            let shape = [vec![1; rank - own.len()], own].concat();
            let mut tiled = reshape(graph, v[0], &shape)?;
            for (i, &count) in counts.iter().enumerate().filter(|(_, count)| **count != 1) {
                tiled = repeat_along_axis(graph, tiled, rank - counts.len() + i, count, false)?;
            }
            Ok(tiled)
        })
    }

    /// The array padded with one value: `widths` has a pair of numbers, before and after, for each axis, or one pair
    /// for all. `jnp.pad` in its mode "constant".
    #[track_caller]
    #[must_use]
    pub fn pad(&self, widths: &[(usize, usize)], value: impl Into<Operand>) -> Array {
        apply_to_operands(&[self.into(), value.into()], Loc::caller(), |graph, operands| {
            let v = operands[0].var().expect("the first operand is an array");
            let ty = graph.ty(v).clone();
            let rank = ty.shape.len();
            let widths = if widths.len() == 1 { vec![widths[0]; rank] } else { widths.to_vec() };
            if widths.len() != rank {
                let message = format!("a pad of {ty} by {} pairs", widths.len());
                return Err(Diag::new("pad", At::Op, message, "one pair, or one for each axis"));
            }
            let value = cast_and_broadcast(graph, 1, operands[1], ty.dtype, &[])?;
            let (low, high) = widths.iter().map(|&(low, high)| (Dim::from(low), Dim::from(high))).unzip();
            graph.push(StructuralOp::from(Pad { low, high }), &[v, value])
        })
    }
}

/// Appends all elements in row-major order along one axis.
pub(super) fn ravel(graph: &mut Graph, v: Var) -> Result<Var, Diag> {
    let count = graph.ty(v).elements();
    reshape(graph, v, &[count])
}

/// Appends the elements at one position along an axis, which is dropped.
pub(super) fn take_position(graph: &mut Graph, v: Var, axis: usize, at: i64) -> Result<Var, Diag> {
    let mut items = vec![Item::from(..); axis];
    items.push(Item::At(at));
    index(graph, v, &items)
}
