//! Arrays joined, and split.
use super::axes::canonicalize_axis;
use super::dtype_promotion::promote_types;
use super::elementwise_broadcast::{broadcast_shapes, cast};
use super::index::{Item, index};
use super::shape::{insert_axis, reshape};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Concat;
use pallas_ir::{At, Diag, Loc, StructuralOp};
use std::borrow::Borrow;

/// Appends the concatenation of variables, which get one element type.
pub(super) fn push_concatenate(graph: &mut Graph, vars: &[Var], axis: isize) -> Result<Var, Diag> {
    let types = vars.iter().map(|&v| graph.ty(v).dtype);
    let Some(dtype) = types.reduce(promote_types) else {
        return Err(Diag::new("arity", At::Op, "no array to put together".into(), "give at least one"));
    };
    let axis = canonicalize_axis(axis, graph.ty(vars[0]).shape.len())?;
    let mut parts = vec![];
    for &v in vars {
        parts.push(cast(graph, v, dtype)?);
    }
    if parts.len() == 1 { Ok(parts[0]) } else { graph.push(StructuralOp::from(Concat { axis }), &parts) }
}

/// Makes an array by joining arrays along an axis, after each is reshaped to the shape that `joined_shape` returns.
fn join_arrays<A: Borrow<Array>>(
    arrays: &[A],
    at: Loc,
    axis: isize,
    joined_shape: impl Fn(&[usize]) -> Result<Vec<usize>, Diag>,
) -> Array {
    let arrays: Vec<&Array> = arrays.iter().map(Borrow::borrow).collect();
    apply(&arrays, at, |graph, vars| {
        let mut parts = vec![];
        for &v in vars {
            let shape = joined_shape(&graph.ty(v).shape)?;
            parts.push(if graph.ty(v).shape == shape { v } else { reshape(graph, v, &shape)? });
        }
        push_concatenate(graph, &parts, axis)
    })
}

/// Arrays joined along an axis, in order; all other axes agree.
///
/// ```
/// use pallas_rt::{Array, ops::concatenate};
/// let (x, y) = (Array::from_slice(&[1, 2], &[1, 2])?, Array::from_slice(&[3, 4], &[1, 2])?);
/// assert_eq!(concatenate(&[&x, &y], 0).shape(), [2, 2]);
/// assert_eq!(concatenate(&[x, y], -1).to_vec::<i32>()?, [1, 2, 3, 4]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn concatenate<A: Borrow<Array>>(arrays: &[A], axis: isize) -> Array {
    join_arrays(arrays, Loc::caller(), axis, |shape| Ok(shape.to_vec()))
}

/// Arrays of one shape joined along a new axis, at position `axis` of the result.
#[track_caller]
#[must_use]
pub fn stack<A: Borrow<Array>>(arrays: &[A], axis: isize) -> Array {
    let first = arrays.first().map_or(&[][..], |x| x.borrow().shape());
    join_arrays(arrays, Loc::caller(), axis, |shape| {
        if shape != first {
            let message = format!("`stack` of arrays of shapes {first:?} and {shape:?}");
            return Err(Diag::new(
                "shape",
                At::Op,
                message,
                "all have one shape: `concatenate` joins along an axis they have",
            ));
        }
        insert_axis(shape, axis)
    })
}

/// Arrays joined along axis 1, or along axis 0 if they have one axis or none.
#[track_caller]
#[must_use]
pub fn hstack<A: Borrow<Array>>(arrays: &[A]) -> Array {
    let axis = isize::from(arrays.first().is_none_or(|x| x.borrow().rank() > 1));
    join_arrays(arrays, Loc::caller(), axis, |shape| Ok(pad_shape_to_rank(shape, 1)))
}

/// Arrays joined along axis 0; an array of one axis is a row.
#[track_caller]
#[must_use]
pub fn vstack<A: Borrow<Array>>(arrays: &[A]) -> Array {
    join_arrays(arrays, Loc::caller(), 0, |shape| Ok(pad_shape_to_rank(shape, 2)))
}

/// Arrays joined along axis 2; see [`Array::atleast_3d`].
#[track_caller]
#[must_use]
pub fn dstack<A: Borrow<Array>>(arrays: &[A]) -> Array {
    join_arrays(arrays, Loc::caller(), 2, |shape| Ok(pad_shape_to_rank(shape, 3)))
}

/// Arrays joined along axis 1; an array of one axis is a column.
#[track_caller]
#[must_use]
pub fn column_stack<A: Borrow<Array>>(arrays: &[A]) -> Array {
    join_arrays(arrays, Loc::caller(), 1, |shape| {
        Ok(if shape.len() == 1 { vec![shape[0], 1] } else { pad_shape_to_rank(shape, 2) })
    })
}

/// Returns the shape with at least this many axes, up to 3, as NumPy's `atleast_1d` to `atleast_3d` give it.
fn pad_shape_to_rank(shape: &[usize], rank: usize) -> Vec<usize> {
    match (rank, shape) {
        (1, []) => vec![1],
        (2, []) => vec![1, 1],
        (2, &[n]) => vec![1, n],
        (3, []) => vec![1, 1, 1],
        (3, &[n]) => vec![1, n, 1],
        (3, &[m, n]) => vec![m, n, 1],
        _ => shape.to_vec(),
    }
}

/// Arrays broadcast to their common shape.
#[track_caller]
#[must_use]
pub fn broadcast_arrays<A: Borrow<Array>>(arrays: &[A]) -> Vec<Array> {
    let shapes: Vec<Vec<usize>> = arrays.iter().map(|x| x.borrow().shape().to_vec()).collect();
    let at = Loc::caller();
    let each = |x: &A| {
        apply(&[x.borrow()], at, |graph, v| {
            let shape = broadcast_shapes(&shapes)?;
            graph.broadcast(v[0], &shape)
        })
    };
    arrays.iter().map(each).collect()
}

/// The parts of an axis: a number of equal parts, or the positions at which parts begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sections(SectionKind);

#[derive(Clone, PartialEq, Eq, Debug)]
enum SectionKind {
    Equally(usize),
    Positions(Vec<usize>),
}

impl From<usize> for Sections {
    fn from(parts: usize) -> Sections {
        Sections(SectionKind::Equally(parts))
    }
}
impl<const N: usize> From<[usize; N]> for Sections {
    fn from(at: [usize; N]) -> Sections {
        Sections(SectionKind::Positions(at.to_vec()))
    }
}
impl From<&[usize]> for Sections {
    fn from(at: &[usize]) -> Sections {
        Sections(SectionKind::Positions(at.to_vec()))
    }
}

impl Sections {
    /// The number of parts.
    fn count(&self) -> usize {
        match &self.0 {
            // Of no part at all, one holds the mistake.
            SectionKind::Equally(parts) => (*parts).max(1),
            SectionKind::Positions(at) => at.len() + 1,
        }
    }

    /// Returns the first position of part `i`, and the position after its last one, of an axis of `n` elements.
    fn part_bounds(&self, i: usize, n: usize) -> [usize; 2] {
        match &self.0 {
            // The first parts have one more.
            SectionKind::Equally(parts) => [i, i + 1].map(|i| i * (n / parts) + i.min(n % parts)),
            SectionKind::Positions(at) => {
                let bound = |i: usize| if i == 0 { 0 } else { at.get(i - 1).map_or(n, |&at| at.min(n)) };
                [bound(i), bound(i + 1)]
            }
        }
    }
}

impl Array {
    /// Parts along an axis: a number of equal ones, or those that begin at 0 and at the given positions. If the axis
    /// does not divide, each part holds the mistake.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[1, 2, 3, 4, 5, 6], &[6])?;
    /// assert_eq!(x.split(3, 0)[1].to_vec::<i32>()?, [3, 4]);
    /// assert_eq!(x.split([1, 4], 0)[1].to_vec::<i32>()?, [2, 3, 4]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn split(&self, sections: impl Into<Sections>, axis: isize) -> Vec<Array> {
        self.split_into_parts(&sections.into(), axis, true, Loc::caller())
    }

    /// Parts along an axis, whose number need not divide it: the first parts have one element more; see
    /// [`Array::split`].
    #[track_caller]
    #[must_use]
    pub fn array_split(&self, sections: impl Into<Sections>, axis: isize) -> Vec<Array> {
        self.split_into_parts(&sections.into(), axis, false, Loc::caller())
    }

    /// Parts along axis 1, or along axis 0 if there is one axis; see [`Array::split`].
    #[track_caller]
    #[must_use]
    pub fn hsplit(&self, sections: impl Into<Sections>) -> Vec<Array> {
        self.split_into_parts(&sections.into(), isize::from(self.rank() > 1), true, Loc::caller())
    }

    /// Parts along axis 0; see [`Array::split`].
    #[track_caller]
    #[must_use]
    pub fn vsplit(&self, sections: impl Into<Sections>) -> Vec<Array> {
        self.split_into_parts(&sections.into(), 0, true, Loc::caller())
    }

    /// Parts along axis 2; see [`Array::split`].
    #[track_caller]
    #[must_use]
    pub fn dsplit(&self, sections: impl Into<Sections>) -> Vec<Array> {
        self.split_into_parts(&sections.into(), 2, true, Loc::caller())
    }

    /// Makes the parts along an axis; if `is_exact`, a number of parts must divide it.
    fn split_into_parts(&self, sections: &Sections, axis: isize, is_exact: bool, at: Loc) -> Vec<Array> {
        let part = |i: usize| {
            apply(&[self], at, |graph, v| {
                let ty = graph.ty(v[0]).clone();
                let axis = canonicalize_axis(axis, ty.shape.len())?;
                let n = ty.shape[axis];
                if let SectionKind::Equally(parts) = sections.0
                    && (parts == 0 || is_exact && n % parts != 0)
                {
                    let message = format!("{parts} equal parts of {n} elements along axis {axis} of {ty}");
                    let help = "a number that divides the axis; `array_split` takes any";
                    return Err(Diag::new("split", At::Op, message, help));
                }
                let [from, to] = sections.part_bounds(i, n);
                let mut items = vec![Item::from(..); axis];
                items.push((from..to).into());
                index(graph, v[0], &items)
            })
        };
        (0..sections.count()).map(part).collect()
    }

    /// The elements at each position along an axis, without that axis.
    #[track_caller]
    #[must_use]
    pub fn unstack(&self, axis: isize) -> Vec<Array> {
        let at = Loc::caller();
        let part = |i: usize| {
            apply(&[self], at, |graph, v| {
                let axis = canonicalize_axis(axis, graph.ty(v[0]).shape.len())?;
                let mut items = vec![Item::from(..); axis];
                items.push(i.into());
                index(graph, v[0], &items)
            })
        };
        let count = canonicalize_axis(axis, self.rank()).map_or(1, |axis| self.shape()[axis]);
        (0..count).map(part).collect()
    }

    /// The array followed by another one along an axis.
    #[track_caller]
    #[must_use]
    pub fn append(&self, other: &Array, axis: isize) -> Array {
        concatenate(&[self, other], axis)
    }

    /// The array without one position along an axis.
    #[track_caller]
    #[must_use]
    pub fn delete(&self, position: isize, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let (axis, at) = normalize_position(graph, v[0], position, axis, 0)?;
            let before = push_axis_slice(graph, v[0], axis, 0..at)?;
            let after = push_axis_slice(graph, v[0], axis, at + 1..i64::MAX)?;
            push_concatenate(graph, &[before, after], axis as isize)
        })
    }

    /// The array with elements inserted before a position along an axis; they broadcast to one position of it, and get
    /// its element type.
    #[track_caller]
    #[must_use]
    pub fn insert(&self, position: isize, elements: &Array, axis: isize) -> Array {
        apply(&[self, elements], Loc::caller(), |graph, v| {
            let (axis, at) = normalize_position(graph, v[0], position, axis, 1)?;
            let ty = graph.ty(v[0]).clone();
            let mut shape = ty.shape;
            shape.remove(axis);
            let new = cast(graph, v[1], ty.dtype)?;
            let new = graph.broadcast(new, &shape)?;
            shape.insert(axis, 1);
            let new = reshape(graph, new, &shape)?;
            let before = push_axis_slice(graph, v[0], axis, 0..at)?;
            let after = push_axis_slice(graph, v[0], axis, at..i64::MAX)?;
            push_concatenate(graph, &[before, new, after], axis as isize)
        })
    }

    /// The array with at least one axis: a number becomes an array of one element.
    #[track_caller]
    #[must_use]
    pub fn atleast_1d(&self) -> Array {
        join_arrays(&[self], Loc::caller(), 0, |shape| Ok(pad_shape_to_rank(shape, 1)))
    }

    /// The array with at least two axes: `[n]` becomes `[1, n]`.
    #[track_caller]
    #[must_use]
    pub fn atleast_2d(&self) -> Array {
        join_arrays(&[self], Loc::caller(), 0, |shape| Ok(pad_shape_to_rank(shape, 2)))
    }

    /// The array with at least three axes: `[n]` becomes `[1, n, 1]`, and `[m, n]` becomes `[m, n, 1]`.
    #[track_caller]
    #[must_use]
    pub fn atleast_3d(&self) -> Array {
        join_arrays(&[self], Loc::caller(), 0, |shape| Ok(pad_shape_to_rank(shape, 3)))
    }
}

/// Returns the numbers of an axis and of a position along it, both from the front. The axis has `extra_positions` more
/// valid positions than elements.
fn normalize_position(
    graph: &Graph,
    v: Var,
    position: isize,
    axis: isize,
    extra_positions: usize,
) -> Result<(usize, i64), Diag> {
    let ty = graph.ty(v);
    let axis = canonicalize_axis(axis, ty.shape.len())?;
    // The position after the last one has no negative number.
    let last = if position < 0 { 0 } else { extra_positions };
    let Ok(at) = canonicalize_axis(position, ty.shape[axis] + last) else {
        let message = format!("position {position} along axis {axis} of {ty}");
        return Err(Diag::new("index", At::Op, message, "positions count from 0, or from the end as -1, -2 .."));
    };
    Ok((axis, at as i64))
}

/// Appends the elements of `v` whose positions along `axis` are in `range`.
fn push_axis_slice(graph: &mut Graph, v: Var, axis: usize, range: std::ops::Range<i64>) -> Result<Var, Diag> {
    let mut items = vec![Item::from(..); axis];
    items.push(range.into());
    index(graph, v, &items)
}
