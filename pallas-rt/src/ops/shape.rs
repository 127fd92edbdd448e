//! Operations that change shapes, types or positions.
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{broadcast_shapes, cast};
use crate::array::{Array, Extent};
use crate::jit::apply;
use pallas_device::error::Result;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Reshape, Transpose};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, StructuralOp};

/// Appends `v` with its axes reordered: axis `i` of the result is axis `axes[i]` of `v`.
pub(super) fn transpose(graph: &mut Graph, v: Var, axes: Vec<usize>) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Transpose { axes }), &[v])
}

/// Returns a shape with a new axis of extent 1 at position `axis` of the result.
pub(super) fn insert_axis(shape: &[usize], axis: isize) -> Result<Vec<usize>, Diag> {
    let rank = shape.len();
    let at = canonicalize_axis(axis, rank + 1).map_err(|_| {
        let message = format!("a new axis at {axis} of an array of shape {shape:?}");
        Diag::new("axis", At::Op, message, format!("it is at {} to {rank}", -(rank as isize) - 1))
    })?;
    let mut shape = shape.to_vec();
    shape.insert(at, 1);
    Ok(shape)
}

/// Appends the elements of `v`, row-major, under another shape with as many elements.
pub(super) fn reshape(graph: &mut Graph, v: Var, shape: &[usize]) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Reshape { to: shape.iter().map(|&n| Dim::from(n)).collect() }), &[v])
}

impl Array {
    /// An array of these elements, row-major, under another shape, in which one extent may be -1: as many as are left.
    /// There is no copy; in a function that is being traced it is an operation of that function. Rank 0 is
    /// `x.reshape::<usize>(&[])`.
    ///
    /// # Errors
    /// A shape with another number of elements gives an array that holds [`Error::Reshape`](crate::Error::Reshape), or
    /// [`Error::Operation`](crate::Error::Operation) if the array is traced.
    ///
    /// ```
    /// use pallas_rt::{Array, jit};
    /// let rows = jit(|x: &Array| x.reshape(&[-1, 2]).sum(-1));
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    /// assert_eq!(rows(&x)?.to_vec::<f32>()?, [3.0, 7.0]);
    /// let error = x.reshape(&[3, -1]).to_vec::<f32>().unwrap_err().to_string();
    /// assert!(error.contains("shape [4] has 4 elements, [3, -1] has a multiple of 3"), "{error}");
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reshape<E: Extent>(&self, shape: &[E]) -> Array {
        if !self.is_traced() {
            return self.reshape_in_memory(shape);
        }
        match self.resolve_extents(shape) {
            Ok(shape) => apply(&[self], Loc::caller(), |graph, v| reshape(graph, v[0], &shape)),
            Err(error) => self.to_poisoned(error),
        }
    }

    /// The array with axes in another order: axis `i` of the result is axis `axes[i]` of the array.
    #[track_caller]
    #[must_use]
    pub fn transpose(&self, axes: &[isize]) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let rank = graph.ty(v[0]).shape.len();
            let axes = axes.iter().map(|&axis| canonicalize_axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
            transpose(graph, v[0], axes)
        })
    }

    /// The array with its last two axes swapped; `jnp.matrix_transpose`.
    #[track_caller]
    #[must_use]
    pub fn t(&self) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let rank = graph.ty(v[0]).shape.len();
            if rank < 2 {
                let message = format!("the transpose of an array of {}", graph.ty(v[0]));
                return Err(Diag::new("rank", At::Op, message, "it takes two axes or more"));
            }
            transpose(graph, v[0], (0..rank - 2).chain([rank - 1, rank - 2]).collect())
        })
    }

    /// Elements converted to another type; float to integer truncates and saturates, NaN becomes 0.
    #[track_caller]
    #[must_use]
    pub fn cast(&self, to: DType) -> Array {
        apply(&[self], Loc::caller(), |graph, v| cast(graph, v[0], to))
    }

    /// The array stretched to a shape: axes are added in front, and axes of extent 1 repeated.
    #[track_caller]
    #[must_use]
    pub fn broadcast_to(&self, shape: &[usize]) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let own = graph.ty(v[0]).shape.clone();
            if broadcast_shapes(&[own.clone(), shape.to_vec()])? != shape {
                let message = format!("{own:?} does not broadcast to {shape:?}");
                return Err(Diag::new("broadcast", At::Op, message, "each axis is the same or 1"));
            }
            graph.broadcast(v[0], shape)
        })
    }

    /// The number of elements along an axis, an i32 scalar. In a [bounded](crate::transform::Transformed::bounded)
    /// function it is the number in each call. XLA's `get_dimension_size`.
    ///
    /// ```
    /// use pallas_rt::{Array, BoundedSize, jit};
    /// let sizes = [BoundedSize::new("n", 8).axis("0", 0)];
    /// let mean = jit(|x: &Array| x.sum(..) / x.count(0)).bounded(sizes);
    /// assert_eq!(mean(&Array::full(&[3], 2.0f32)?)?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn count(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let shape = graph.ty(v[0]).shape.clone();
            let n = shape[canonicalize_axis(axis, shape.len())?];
            Ok(graph.literal(Literal::int(DType::I32, n as i64)))
        })
    }

    /// The array with a new axis of extent 1 at position `axis` of the result.
    #[track_caller]
    #[must_use]
    pub fn expand_dims(&self, axis: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let shape = insert_axis(&graph.ty(v[0]).shape, axis)?;
            reshape(graph, v[0], &shape)
        })
    }
}
