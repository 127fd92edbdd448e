//! Replaces products of vectors by elementwise operations and sums, which share kernels with the equations around them.
//!
//! ```text
//! dot batch(0-0) contract(1-1) a: f32[b, k], b: f32[b, k]      sum over axis 1 of mul a b
//! dot batch(0-0) a: f32[b], b: f32[b, n]                       mul (broadcast a) b
//! ```
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Cast, Dot, Reduce, Transpose};
use pallas_ir::{DType, ScalarOp, StructuralOp};

/// Replaces products that multiply no matrices, such as those of two vectors, by elementwise products and sums.
pub(super) fn replace_vector_products(graph: Graph) -> Graph {
    rewrite_each_equation(graph, |to, e| match &e.op {
        Op::Structural(StructuralOp::Dot(dot)) => emit_elementwise_product(to, e, dot),
        _ => None,
    })
}

/// Appends a product that multiplies no matrices as an elementwise product and a sum; returns `None` for other
/// products.
fn emit_elementwise_product(to: &mut GraphRewriter, e: &Equation, dot: &Dot) -> Option<Var> {
    let shapes = [0, 1].map(|side| to.graph.ty(e.args[side]).shape.clone());
    let axes = |pairs: &[(usize, usize)], side: usize| -> Vec<usize> {
        pairs.iter().map(|p| if side == 0 { p.0 } else { p.1 }).collect()
    };
    let extents = |axes: &[usize], side: usize| -> Vec<usize> { axes.iter().map(|&axis| shapes[side][axis]).collect() };
    let free = [0, 1].map(|side| dot.free_axes(side, shapes[side].len()));
    let batch = extents(&axes(&dot.batch, 0), 0);
    let summed = extents(&axes(&dot.contract, 0), 0);
    let count = |extents: &[usize]| extents.iter().product::<usize>();
    let own = [0, 1].map(|side| extents(&free[side], side));
    let is_one = own.iter().map(|own| count(own) == 1).collect::<Vec<_>>();
    let is_scaled = count(&summed) == 1 && is_one.contains(&true);
    let is_folded = count(&batch) > 1 && !is_one.contains(&false);
    if dot.acc == DType::Bool || !(is_scaled || is_folded) || shapes.iter().any(|s| s.contains(&0)) {
        return None;
    }
    // The axes of the elementwise product: batch axes, free axes of both sides, and those that are summed.
    let all = [&batch[..], &own[0], &own[1], &summed].concat();
    let first = [batch.len(), batch.len() + own[0].len()];
    let last = first[1] + own[1].len();
    let factors = [0, 1].map(|side| {
        let order = [axes(&dot.batch, side), free[side].clone(), axes(&dot.contract, side)].concat();
        let mut v = e.args[side];
        if !order.is_sorted() {
            v = to.append(StructuralOp::from(Transpose { axes: order }), &[v]);
        }
        if to.graph.ty(v).dtype != dot.acc {
            v = to.append(StructuralOp::from(Cast { to: dot.acc }), &[v]);
        }
        let own = first[side]..first[side] + own[side].len();
        let dims_of = (0..batch.len()).chain(own).chain(last..all.len()).collect();
        to.append(StructuralOp::from(Broadcast { to: constant_dims(&all), dims: dims_of }), &[v])
    });
    let mut made = to.append(ScalarOp::Mul, &factors);
    if !summed.is_empty() {
        made = to.append(StructuralOp::from(Reduce::dropping(ScalarOp::Add, (last..all.len()).collect())), &[made]);
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_ir::Type;

    /// Returns the names of the operations that replace a product of arrays of these shapes, without those that only
    /// change shapes.
    fn names(a: &[usize], b: &[usize], batch: &[(usize, usize)], contract: &[(usize, usize)]) -> Vec<&'static str> {
        let mut graph = Graph::default();
        let args = [a, b].map(|shape| graph.param(Type::new(DType::F32, shape.to_vec())));
        let dot = Dot { batch: batch.to_vec(), contract: contract.to_vec(), acc: DType::F32 };
        graph.results = vec![graph.push(StructuralOp::from(dot), &args).expect("it fits")];
        let wanted = graph.ty(graph.results[0]).clone();
        let found = replace_vector_products(graph.clone());
        assert_eq!(crate::verify(&found), Ok(()));
        assert_eq!(*found.ty(found.results[0]), wanted);
        let name = |e: &Equation| match &e.op {
            Op::Structural(StructuralOp::Dot(_)) => Some("dot"),
            Op::Structural(StructuralOp::Reduce(_)) => Some("sum"),
            Op::Scalar(ScalarOp::Mul) => Some("mul"),
            _ => None,
        };
        found.equations.iter().filter_map(name).collect()
    }

    #[test]
    fn products_of_vectors_in_batches_are_elementwise() {
        assert_eq!(names(&[4, 5], &[4, 5], &[(0, 0)], &[(1, 1)]), ["mul", "sum"]);
        assert_eq!(names(&[5, 4, 1], &[4, 1, 5], &[(1, 0)], &[(0, 2)]), ["mul", "sum"]);
        assert_eq!(names(&[4], &[4, 5], &[(0, 0)], &[]), ["mul"]);
        assert_eq!(names(&[3, 1], &[1, 1], &[], &[(1, 0)]), ["mul", "sum"]);
        // One sum, matrices, and arrays without elements.
        assert_eq!(names(&[5], &[5], &[], &[(0, 0)]), ["dot"]);
        assert_eq!(names(&[4, 3], &[4, 5], &[(0, 0)], &[]), ["dot"]);
        assert_eq!(names(&[4, 5], &[4, 5], &[(0, 0)], &[]), ["dot"]);
        assert_eq!(names(&[4, 0], &[4, 0], &[(0, 0)], &[(1, 1)]), ["dot"]);
    }
}
