//! Products of matrices.
use super::dtype_promotion::promote_types;
use super::elementwise_broadcast::{broadcast_shapes, cast};
use super::shape::reshape;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Dot;
use pallas_ir::{At, Diag, Loc, StructuralOp};

impl Array {
    /// The product of matrices (the last two axes); `jnp.matmul`. An operand of one axis is a row on the left and a
    /// column on the right, and that axis is dropped. Other axes broadcast.
    ///
    /// Sums of f16 and bf16 are computed in f32.
    #[track_caller]
    #[must_use]
    pub fn matmul(&self, other: &Array) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| matmul(graph, v[0], v[1]))
    }
}

/// Appends a product of matrices; see [`Array::matmul`].
pub(super) fn matmul(graph: &mut Graph, a: Var, b: Var) -> Result<Var, Diag> {
    let dtype = promote_types(graph.ty(a).dtype, graph.ty(b).dtype);
    let (a, b) = (cast(graph, a, dtype)?, cast(graph, b, dtype)?);
    let [mut x, mut y] = [a, b].map(|v| graph.ty(v).shape.clone());
    let [is_row, is_column] = [x.len() == 1, y.len() == 1];
    if is_row {
        x.insert(0, 1);
    }
    if is_column {
        y.push(1);
    }
    if x.len() < 2 || y.len() < 2 || x[x.len() - 1] != y[y.len() - 2] {
        let message = format!("matmul of {} and {}", graph.ty(a), graph.ty(b));
        let help = "the last axis of the left side is summed with the last but one of the right side";
        return Err(Diag::new("matmul", At::Operand(1), message, help));
    }
    let batch = broadcast_shapes(&[x[..x.len() - 2].to_vec(), y[..y.len() - 2].to_vec()])?;
    let n = batch.len();
    let mut wide = |v: Var, shape: &[usize]| {
        let v = if graph.ty(v).shape == shape { v } else { reshape(graph, v, shape)? };
        // A matrix beside a batch of matrices needs no copies.
        if shape.len() == 2 { Ok(v) } else { graph.broadcast(v, &[&batch[..], &shape[shape.len() - 2..]].concat()) }
    };
    let (a, b) = (wide(a, &x)?, wide(b, &y)?);
    let (ra, rb) = (graph.ty(a).shape.len(), graph.ty(b).shape.len());
    let shared = if ra == rb { n } else { 0 };
    let acc = dtype.accumulator();
    let dot = Dot { batch: (0..shared).map(|i| (i, i)).collect(), contract: vec![(ra - 1, rb - 2)], acc };
    let product = graph.push(StructuralOp::from(dot), &[a, b])?;
    // A single matrix on the left comes before the batch of the right side.
    let product = if ra < rb {
        let axes = (1..=n).chain([0, n + 1]).collect();
        super::shape::transpose(graph, product, axes)?
    } else {
        product
    };
    let product = cast(graph, product, dtype)?;
    let [rows, columns] = [(!is_row).then(|| x[x.len() - 2]), (!is_column).then(|| y[y.len() - 1])];
    if is_row || is_column {
        let shape: Vec<usize> = batch.into_iter().chain(rows).chain(columns).collect();
        return reshape(graph, product, &shape);
    }
    Ok(product)
}
