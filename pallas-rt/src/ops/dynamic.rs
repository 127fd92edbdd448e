//! Windows of arrays at run-time positions.
use super::axes::canonicalize_axis;
use super::elementwise_broadcast::{GraphOperand, Operand, apply_to_operands, cast, push_elementwise};
use super::shape::reshape;
use crate::array::Array;
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Var};
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp};

/// Appends a position along an axis of this extent as an i32 scalar; a negative one counts from the end.
/// `operand_number` is that of the position, for messages.
fn normalize_start(graph: &mut Graph, operand_number: usize, given: GraphOperand, extent: usize) -> Result<Var, Diag> {
    let from_end = |at: i64| if at < 0 { at + extent as i64 } else { at };
    let v = match given {
        GraphOperand::Int(at) => {
            return Ok(graph.literal(Literal::int(DType::I32, from_end(at).clamp(0, extent as i64))));
        }
        GraphOperand::Var(v) => v,
        GraphOperand::Float(_) | GraphOperand::Bool(_) => {
            return Err(Diag::new(
                "index",
                At::Operand(operand_number),
                "a position that is no integer".into(),
                "pass an i32 scalar",
            ));
        }
    };
    let ty = graph.ty(v).clone();
    if !ty.is_scalar() || ty.dtype.is_float() || ty.dtype == DType::Bool {
        let message = format!("a position of a window is {ty}");
        return Err(Diag::new("index", At::Operand(operand_number), message, "positions are scalars of integers"));
    }
    let at = cast(graph, v, DType::I32)?;
    let is_negative = push_elementwise(graph, ScalarOp::Lt, &[GraphOperand::Var(at), GraphOperand::Int(0)])?;
    let moved = push_elementwise(graph, ScalarOp::Add, &[GraphOperand::Var(at), GraphOperand::Int(extent as i64)])?;
    graph.push(ScalarOp::Select, &[is_negative, moved, at])
}

/// Appends the positions `given` at which a window begins, one for each axis of `x`, as i32 scalars. Messages call the
/// first of them operand `first_operand_number`.
fn normalize_starts(
    graph: &mut Graph,
    x: Var,
    given: &[GraphOperand],
    first_operand_number: usize,
) -> Result<Vec<Var>, Diag> {
    let shape = graph.ty(x).shape.clone();
    if given.len() != shape.len() {
        let message = format!("{} positions of a window of {}", given.len(), graph.ty(x));
        return Err(Diag::new("arity", At::Op, message, "one position for each axis"));
    }
    given
        .iter()
        .zip(&shape)
        .enumerate()
        .map(|(i, (&at, &n))| normalize_start(graph, first_operand_number + i, at, n))
        .collect()
}

/// Returns the number of an axis, and the positions of a window that begins at `at` along it and at 0 along the others.
fn starts_along_axis(rank: usize, axis: isize, at: GraphOperand) -> Result<(usize, Vec<GraphOperand>), Diag> {
    let axis = canonicalize_axis(axis, rank)?;
    Ok((axis, (0..rank).map(|i| if i == axis { at } else { GraphOperand::Int(0) }).collect()))
}

/// Appends the window of `x` of this size at these positions.
fn push_dynamic_slice(graph: &mut Graph, x: Var, at: &[GraphOperand], size: &[usize]) -> Result<Var, Diag> {
    let starts = normalize_starts(graph, x, at, 1)?;
    graph.push(DynamicSlice { size: size.to_vec() }, &[&[x], &starts[..]].concat())
}

/// Appends `x` with the window at these positions replaced.
fn push_dynamic_update(graph: &mut Graph, x: Var, window: Var, at: &[GraphOperand]) -> Result<Var, Diag> {
    let starts = normalize_starts(graph, x, at, 2)?;
    let dtype = graph.ty(x).dtype;
    let window = cast(graph, window, dtype)?;
    graph.push(DynamicUpdateSlice, &[&[x, window], &starts[..]].concat())
}

/// Returns the variable of an operand; panics if it is a number.
fn expect_var(operand: GraphOperand) -> Var {
    operand.var().expect("the operand was made of an array")
}

impl Array {
    /// The window of this size that begins at these positions, one for each axis; `jax.lax.dynamic_slice`.
    ///
    /// Positions are scalars of integers or numbers; a negative one counts from the end, and a window that would reach
    /// beyond the array is moved to the nearest place inside of it.
    ///
    /// ```
    /// use pallas_rt::ops::Operand;
    /// use pallas_rt::{Array};
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    /// let column = Array::from_slice(&[1i32], &[])?;
    /// let window = x.dynamic_slice([Operand::from(0), (&column).into()], &[2, 2]);
    /// assert_eq!(window.to_vec::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn dynamic_slice<P: Into<Operand>>(&self, starts: impl IntoIterator<Item = P>, size: &[usize]) -> Array {
        let operands: Vec<Operand> = std::iter::once(self.into()).chain(starts.into_iter().map(Into::into)).collect();
        apply_to_operands(&operands, Loc::caller(), |graph, operands| {
            push_dynamic_slice(graph, expect_var(operands[0]), &operands[1..], size)
        })
    }

    /// The window of `size` elements along one axis, whole along the others; `jax.lax.dynamic_slice_in_dim`. See
    /// [`dynamic_slice`](Array::dynamic_slice).
    #[track_caller]
    #[must_use]
    pub fn dynamic_slice_in_dim(&self, start: impl Into<Operand>, size: usize, axis: isize) -> Array {
        apply_to_operands(&[self.into(), start.into()], Loc::caller(), |graph, operands| {
            let x = expect_var(operands[0]);
            let mut shape = graph.ty(x).shape.clone();
            let (axis, at) = starts_along_axis(shape.len(), axis, operands[1])?;
            shape[axis] = size;
            push_dynamic_slice(graph, x, &at, &shape)
        })
    }

    /// The elements at one position along an axis, which is dropped; `jax.lax.dynamic_index_in_dim` without `keepdims`.
    /// See [`dynamic_slice`](Array::dynamic_slice).
    #[track_caller]
    #[must_use]
    pub fn dynamic_index_in_dim(&self, index: impl Into<Operand>, axis: isize) -> Array {
        apply_to_operands(&[self.into(), index.into()], Loc::caller(), |graph, operands| {
            let x = expect_var(operands[0]);
            let mut shape = graph.ty(x).shape.clone();
            let (axis, at) = starts_along_axis(shape.len(), axis, operands[1])?;
            shape[axis] = 1;
            let row = push_dynamic_slice(graph, x, &at, &shape)?;
            shape.remove(axis);
            reshape(graph, row, &shape)
        })
    }

    /// The array with the window that begins at these positions replaced by `window`; `jax.lax.dynamic_update_slice`.
    /// See [`dynamic_slice`](Array::dynamic_slice).
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    /// let (window, at) = (Array::from_slice(&[0.0f32, 0.0], &[2])?, Array::from_slice(&[3i32], &[])?);
    /// // The window lies inside of the array.
    /// assert_eq!(x.dynamic_update_slice(&window, [&at]).to_vec::<f32>()?, [1.0, 2.0, 0.0, 0.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn dynamic_update_slice<P: Into<Operand>>(&self, window: &Array, starts: impl IntoIterator<Item = P>) -> Array {
        let arrays = [Operand::from(self), window.into()];
        let operands: Vec<Operand> = arrays.into_iter().chain(starts.into_iter().map(Into::into)).collect();
        apply_to_operands(&operands, Loc::caller(), |graph, operands| {
            push_dynamic_update(graph, expect_var(operands[0]), expect_var(operands[1]), &operands[2..])
        })
    }

    /// The array with a window along one axis replaced; `jax.lax.dynamic_update_slice_in_dim`. See
    /// [`dynamic_slice`](Array::dynamic_slice).
    #[track_caller]
    #[must_use]
    pub fn dynamic_update_slice_in_dim(&self, window: &Array, start: impl Into<Operand>, axis: isize) -> Array {
        apply_to_operands(&[self.into(), window.into(), start.into()], Loc::caller(), |graph, operands| {
            let x = expect_var(operands[0]);
            let (_, at) = starts_along_axis(graph.ty(x).shape.len(), axis, operands[2])?;
            push_dynamic_update(graph, x, expect_var(operands[1]), &at)
        })
    }

    /// The array with the elements at one position along an axis replaced by `elements`, which lack that axis;
    /// `jax.lax.dynamic_update_index_in_dim`. See [`dynamic_slice`](Array::dynamic_slice).
    #[track_caller]
    #[must_use]
    pub fn dynamic_update_index_in_dim(&self, elements: &Array, index: impl Into<Operand>, axis: isize) -> Array {
        apply_to_operands(&[self.into(), elements.into(), index.into()], Loc::caller(), |graph, operands| {
            let (x, elements) = (expect_var(operands[0]), expect_var(operands[1]));
            let (axis, at) = starts_along_axis(graph.ty(x).shape.len(), axis, operands[2])?;
            let mut shape = graph.ty(elements).shape.clone();
            if axis > shape.len() {
                let message = format!("elements {} of {} along axis {axis}", graph.ty(elements), graph.ty(x));
                return Err(Diag::new("rank", At::Operand(1), message, "they have all axes but that one"));
            }
            shape.insert(axis, 1);
            let window = reshape(graph, elements, &shape)?;
            push_dynamic_update(graph, x, window, &at)
        })
    }
}
