//! Diagonals and triangles of matrices.
use super::arrange::{move_axis, ravel};
use super::axes::canonicalize_axis;
use super::create::push_coordinates;
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise};
use super::index::{Item, index};
use super::reduce::reduce_widened;
use super::shape::reshape;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Pad, Slice};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp, Type};

/// Appends truth values of a matrix: `comparison` compares row + `k` with the column.
fn push_index_comparison(
    graph: &mut Graph,
    comparison: ScalarOp,
    [rows, columns]: [usize; 2],
    k: i64,
) -> Result<Var, Diag> {
    let row = push_coordinates(graph, &[rows, columns], 0, DType::I32)?;
    let column = push_coordinates(graph, &[rows, columns], 1, DType::I32)?;
    let bound = (rows + columns) as i64;
    let row =
        push_elementwise(graph, ScalarOp::Add, &[GraphOperand::Var(row), GraphOperand::Int(k.clamp(-bound, bound))])?;
    push_elementwise(graph, comparison, &[GraphOperand::Var(row), GraphOperand::Var(column)])
}

/// A matrix with ones on the diagonal `k` places right of the main one, and zeros elsewhere.
#[track_caller]
#[must_use]
pub fn eye(rows: usize, columns: usize, k: i64, dtype: DType) -> Array {
    apply(&[], Loc::caller(), |graph, _| {
        let ones = push_index_comparison(graph, ScalarOp::Eq, [rows, columns], k)?;
        cast(graph, ones, dtype)
    })
}

/// The identity matrix of `n` rows.
#[track_caller]
#[must_use]
pub fn identity(n: usize, dtype: DType) -> Array {
    eye(n, n, 0, dtype)
}

/// A matrix with ones on and below the diagonal `k` places right of the main one, and zeros elsewhere.
#[track_caller]
#[must_use]
pub fn tri(rows: usize, columns: usize, k: i64, dtype: DType) -> Array {
    apply(&[], Loc::caller(), |graph, _| {
        let ones = push_index_comparison(graph, ScalarOp::Ge, [rows, columns], k)?;
        cast(graph, ones, dtype)
    })
}

/// Appends the elements of the last two axes where `comparison` of row + `k` and the column is true, and zeros
/// elsewhere.
fn push_triangle(graph: &mut Graph, v: Var, comparison: ScalarOp, k: i64) -> Result<Var, Diag> {
    let ty = graph.ty(v).clone();
    let [.., rows, columns] = ty.shape[..] else {
        return Err(Diag::new("rank", At::Op, format!("a triangle of {ty}"), "it takes two axes or more"));
    };
    let kept = push_index_comparison(graph, comparison, [rows, columns], k)?;
    let zero = graph.literal(Literal::new(ty.dtype, 0.0));
    push_elementwise(graph, ScalarOp::Select, &[GraphOperand::Var(kept), GraphOperand::Var(v), GraphOperand::Var(zero)])
}

/// Appends the diagonal of two axes, which becomes the last axis.
pub(super) fn diagonal(graph: &mut Graph, v: Var, offset: i64, rows: isize, columns: isize) -> Result<Var, Diag> {
    let ty = graph.ty(v).clone();
    let rank = ty.shape.len();
    let (rows, columns) = (canonicalize_axis(rows, rank)?, canonicalize_axis(columns, rank)?);
    if rows == columns {
        let message = format!("the diagonal of axis {rows} alone of {ty}");
        return Err(Diag::new("axis", At::Op, message, "two axes that differ"));
    }
    let last = move_axis(graph, v, rows, rank - 1)?;
    let last = move_axis(graph, last, columns - usize::from(columns > rows), rank - 1)?;
    let (m, n) = (ty.shape[rows] as i64, ty.shape[columns] as i64);
    let count = if offset < 0 { (m + offset).min(n) } else { (n - offset).min(m) }.max(0);
    // Row-major, neighbours on the diagonal are a row and an element apart.
    let others = graph.ty(last).shape[..rank - 2].to_vec();
    let flat = reshape(graph, last, &[&others[..], &[(m * n) as usize]].concat())?;
    let first = if count == 0 { 0 } else { offset.max(0) + (-offset).max(0) * n };
    let start = [vec![0; others.len()], vec![first]].concat();
    let size = others.iter().copied().chain([count as usize]).map(Dim::from).collect();
    let stride = [vec![1; others.len()], vec![if count > 1 { n + 1 } else { 1 }]].concat();
    graph.push(StructuralOp::from(Slice { start, size, stride }), &[flat])
}

/// Appends a matrix with these elements on the diagonal `k` places right of the main one, and zeros elsewhere.
fn push_diagonal_matrix(graph: &mut Graph, v: Var, k: i64) -> Result<Var, Diag> {
    let ty = graph.ty(v).clone();
    let more = usize::try_from(k.unsigned_abs()).unwrap_or(usize::MAX);
    let n = ty.shape[0].saturating_add(more);
    let zero = graph.literal(Literal::new(ty.dtype, 0.0));
    let pad = Pad { low: vec![0i64.into()], high: vec![Dim::from(more)] };
    let long = graph.push(StructuralOp::from(pad), &[v, zero])?;
    // The shorter of both coordinates numbers the elements.
    let wide = if k < 0 {
        graph.broadcast(long, &[n, n])?
    } else {
        let column = reshape(graph, long, &[n, 1])?;
        graph.broadcast(column, &[n, n])?
    };
    let on = push_index_comparison(graph, ScalarOp::Eq, [n, n], k)?;
    push_elementwise(
        graph,
        ScalarOp::Select,
        &[GraphOperand::Var(on), GraphOperand::Var(wide), GraphOperand::Var(zero)],
    )
}

impl Array {
    /// Elements of the last two axes on and below the diagonal `k` places right of the main one; zeros above it.
    #[track_caller]
    #[must_use]
    pub fn tril(&self, k: i64) -> Array {
        apply(&[self], Loc::caller(), |graph, v| push_triangle(graph, v[0], ScalarOp::Ge, k))
    }

    /// Elements of the last two axes on and above the diagonal `k` places right of the main one; zeros below it.
    #[track_caller]
    #[must_use]
    pub fn triu(&self, k: i64) -> Array {
        apply(&[self], Loc::caller(), |graph, v| push_triangle(graph, v[0], ScalarOp::Le, k))
    }

    /// The diagonal of two axes, `offset` places right of the main one; it becomes the last axis.
    #[track_caller]
    #[must_use]
    pub fn diagonal(&self, offset: i64, rows: isize, columns: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| diagonal(graph, v[0], offset, rows, columns))
    }

    /// Sum of the diagonal of two axes, `offset` places right of the main one.
    #[track_caller]
    #[must_use]
    pub fn trace(&self, offset: i64, rows: isize, columns: isize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let diagonal = diagonal(graph, v[0], offset, rows, columns)?;
            reduce_widened(graph, ScalarOp::Add, diagonal, &(-1).into())
        })
    }

    /// The diagonal of a matrix, `k` places right of the main one; of one axis, the matrix with its elements on that
    /// diagonal.
    #[track_caller]
    #[must_use]
    pub fn diag(&self, k: i64) -> Array {
        apply(&[self], Loc::caller(), |graph, v| match graph.ty(v[0]).shape.len() {
            1 => push_diagonal_matrix(graph, v[0], k),
            2 => diagonal(graph, v[0], k, 0, 1),
            _ => {
                let message = format!("diag of {}", graph.ty(v[0]));
                Err(Diag::new("rank", At::Op, message, "one axis or two; `diagonal` takes more"))
            }
        })
    }

    /// The matrix with all elements on a diagonal, `k` places right of the main one.
    #[track_caller]
    #[must_use]
    pub fn diagflat(&self, k: i64) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let flat = ravel(graph, v[0])?;
            push_diagonal_matrix(graph, flat, k)
        })
    }

    /// Powers of the elements of one axis as columns, from the highest, `count` of them; `jnp.vander`.
    #[track_caller]
    #[must_use]
    pub fn vander(&self, count: usize) -> Array {
        apply(&[self], Loc::caller(), |graph, v| {
            let ty = graph.ty(v[0]).clone();
            let [n] = ty.shape[..] else {
                return Err(Diag::new("rank", At::Op, format!("vander of {ty}"), "it takes one axis"));
            };
            let gives = Type::new(ty.dtype, [n, count]);
            if !gives.is_indexable() {
                let message = format!("{gives} has more than 2^31 - 1 elements");
                return Err(Diag::new("size", At::Op, message, "take fewer powers"));
            }
            let column = reshape(graph, v[0], &[n, 1])?;
            let mut columns = vec![];
            for power in (0..count as i64).rev() {
                columns.push(push_elementwise(
                    graph,
                    ScalarOp::Pow,
                    &[GraphOperand::Var(column), GraphOperand::Int(power)],
                )?);
            }
            if columns.is_empty() {
                return index(graph, column, &[Item::from(..), Item::from(..0)]);
            }
            super::join::push_concatenate(graph, &columns, 1)
        })
    }
}
