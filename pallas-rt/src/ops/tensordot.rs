//! Sums of products over axes.
use super::arrange::{move_axis, ravel};
use super::axes::canonicalize_axis;
use super::dtype_promotion::promote_types;
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise};
use super::formula::{FormulaDtype, push_formula};
use super::matmul::matmul;
use super::shape::{reshape, transpose};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Dot;
use pallas_ir::{At, DType, Diag, Loc, ScalarOp, StructuralOp};

/// Appends the sum of products over the pairs of axes `contract`: the result has the `batch` axes, then the others of
/// `a`, then those of `b`. Sums of f16 and bf16 are computed in f32, and truth values are counted as `or` of `and`.
pub(super) fn contract(
    graph: &mut Graph,
    a: Var,
    b: Var,
    batch: Vec<(usize, usize)>,
    contract: Vec<(usize, usize)>,
) -> Result<Var, Diag> {
    let dtype = promote_types(graph.ty(a).dtype, graph.ty(b).dtype);
    let product = contract_to_accumulator(graph, a, b, batch, contract)?;
    cast(graph, product, dtype)
}

/// Appends the sum of products over the pairs of axes `contract`, with the pairs `batch` kept, and leaves it in the
/// accumulator's type; see [`contract()`].
pub(super) fn contract_to_accumulator(
    graph: &mut Graph,
    a: Var,
    b: Var,
    batch: Vec<(usize, usize)>,
    mut contract: Vec<(usize, usize)>,
) -> Result<Var, Diag> {
    let dtype = promote_types(graph.ty(a).dtype, graph.ty(b).dtype);
    let work = if dtype == DType::Bool { DType::I32 } else { dtype };
    let acc = work.accumulator();
    let (mut a, b) = (cast(graph, a, work)?, cast(graph, b, work)?);
    for &(i, j) in batch.iter().chain(&contract) {
        let (x, y) = (graph.ty(a).shape.get(i), graph.ty(b).shape.get(j));
        if x != y || x.is_none() {
            let message = format!("axis {i} of {} and axis {j} of {}", graph.ty(a), graph.ty(b));
            return Err(Diag::new("contract", At::Operand(1), message, "axes that are multiplied have equal extents"));
        }
    }
    let ranks = [graph.ty(a).shape.len(), graph.ty(b).shape.len()];
    if batch.is_empty() && contract == [(1, 0)] && ranks != [2, 2] {
        // This pair alone is the form of a product of matrices, which other ranks do not have.
        if ranks[0] > 2 {
            a = move_axis(graph, a, 1, ranks[0] - 1)?;
            contract = vec![(ranks[0] - 1, 0)];
        } else {
            a = transpose(graph, a, vec![1, 0])?;
            contract = vec![(0, 0)];
        }
    }
    graph.push(StructuralOp::from(Dot { batch, contract, acc }), &[a, b])
}

/// Declares methods of two arrays by their equations.
macro_rules! products {
    ($($(#[$doc:meta])+ $name:ident |$graph:ident, $a:ident, $b:ident| $equations:expr;)*) => {
        impl Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self, other: &Array) -> Array {
                apply(&[self, other], Loc::caller(), |$graph, v| {
                    let ($a, $b) = (v[0], v[1]);
                    $equations
                })
            }
        )*}
    };
}
products! {
    /// Sum of products over the last axis and the last but one of the other array (its only one); numbers are
    /// multiplied.
    dot |graph, a, b| dot(graph, a, b);
    /// Sum of products of all elements, of arrays with equal numbers of elements.
    vdot |graph, a, b| {
        let (a, b) = (ravel(graph, a)?, ravel(graph, b)?);
        contract(graph, a, b, vec![], vec![(0, 0)])
    };
    /// Sum of products over the last axis of both; numbers are multiplied.
    inner |graph, a, b| {
        let ranks = [a, b].map(|v| graph.ty(v).shape.len());
        if ranks.contains(&0) {
            return push_elementwise(graph, ScalarOp::Mul, &[a, b].map(GraphOperand::Var));
        }
        contract(graph, a, b, vec![], vec![(ranks[0] - 1, ranks[1] - 1)])
    };
    /// All products of an element of one array and an element of the other: a matrix.
    outer |graph, a, b| {
        let rows = graph.ty(a).elements();
        let column = reshape(graph, a, &[rows, 1])?;
        let row = ravel(graph, b)?;
        push_elementwise(graph, ScalarOp::Mul, &[column, row].map(GraphOperand::Var))
    };
    /// The product of a matrix (the last two axes) and a vector (the other array's last axis); other axes broadcast.
    matvec |graph, a, b| {
        let shape = graph.ty(b).shape.clone();
        let column = reshape(graph, b, &[&shape[..], &[1]].concat())?;
        let product = matmul(graph, a, column)?;
        let mut shape = graph.ty(product).shape.clone();
        shape.pop();
        reshape(graph, product, &shape)
    };
    /// The product of a vector (the last axis) and a matrix (the other array's last two axes); other axes broadcast.
    vecmat |graph, a, b| {
        let mut shape = graph.ty(a).shape.clone();
        shape.insert(shape.len().saturating_sub(1), 1);
        let row = reshape(graph, a, &shape)?;
        let product = matmul(graph, row, b)?;
        let mut shape = graph.ty(product).shape.clone();
        shape.remove(shape.len() - 2);
        reshape(graph, product, &shape)
    };
    /// Sum of products over the last axis of both; other axes broadcast.
    vecdot |graph, a, b| {
        let shape = graph.ty(a).shape.clone();
        let (others, last) = shape.split_at(shape.len().saturating_sub(1));
        let row = reshape(graph, a, &[others, &[1], last].concat())?;
        let shape = graph.ty(b).shape.clone();
        let column = reshape(graph, b, &[&shape[..], &[1]].concat())?;
        let product = matmul(graph, row, column)?;
        let shape = graph.ty(product).shape.clone();
        reshape(graph, product, &shape[..shape.len() - 2])
    };
    /// The Kronecker product: each element of the first array times all of the second.
    kron |graph, a, b| {
        let [mut x, mut y] = [a, b].map(|v| graph.ty(v).shape.clone());
        let rank = x.len().max(y.len());
        x.splice(0..0, vec![1; rank - x.len()]);
        y.splice(0..0, vec![1; rank - y.len()]);
        let first = reshape(graph, a, &x.iter().flat_map(|&n| [n, 1]).collect::<Vec<_>>())?;
        let second = reshape(graph, b, &y.iter().flat_map(|&n| [1, n]).collect::<Vec<_>>())?;
        let product =
            push_elementwise(graph, ScalarOp::Mul, &[first, second].map(GraphOperand::Var))?;
        reshape(graph, product, &x.iter().zip(&y).map(|(m, n)| m * n).collect::<Vec<_>>())
    };
    /// The cross product of vectors of three elements (the last axis); other axes broadcast.
    cross |graph, a, b| cross(graph, a, b);
}

fn dot(graph: &mut Graph, a: Var, b: Var) -> Result<Var, Diag> {
    let ranks = [a, b].map(|v| graph.ty(v).shape.len());
    if ranks.contains(&0) {
        return push_elementwise(graph, ScalarOp::Mul, &[a, b].map(GraphOperand::Var));
    }
    contract(graph, a, b, vec![], vec![(ranks[0] - 1, ranks[1].saturating_sub(2))])
}

fn cross(graph: &mut Graph, a: Var, b: Var) -> Result<Var, Diag> {
    let shapes = [a, b].map(|v| graph.ty(v).shape.clone());
    if shapes.iter().any(|shape| shape.last() != Some(&3)) {
        let message = format!("the cross product of {} and {}", graph.ty(a), graph.ty(b));
        return Err(Diag::new("cross", At::Op, message, "the last axis of both has 3 elements"));
    }
    let mut part = |v: Var, i: usize| {
        let axis = graph.ty(v).shape.len() - 1;
        super::arrange::take_position(graph, v, axis, (i % 3) as i64).map(GraphOperand::Var)
    };
    let mut parts = vec![];
    for i in 0..3 {
        parts.push([part(a, i + 1)?, part(b, i + 2)?, part(a, i + 2)?, part(b, i + 1)?]);
    }
    let mut all = vec![];
    for operands in parts {
        let made = push_formula(graph, FormulaDtype::Number, operands, |[a, b, c, d], _| a * b - c * d)?;
        let shape = graph.ty(made).shape.clone();
        all.push(reshape(graph, made, &[&shape[..], &[1]].concat())?);
    }
    super::join::push_concatenate(graph, &all, -1)
}

impl Array {
    /// Sum of products over pairs of axes: axis `own[i]` with axis `others[i]` of the other array. The result has the
    /// remaining axes of the array, then those of the other. `jnp.tensordot` with a number `n` is the last `n` axes
    /// with the first `n`.
    ///
    /// ```
    /// use pallas_rt::{Array, ops::ones, ir::DType};
    /// let (x, y) = (ones(&[2, 3, 4], DType::F32), ones(&[4, 5, 2], DType::F32));
    /// assert_eq!(x.tensordot(&y, &[0, 2], &[2, 0]).shape(), [3, 5]);
    /// ```
    #[track_caller]
    #[must_use]
    pub fn tensordot(&self, other: &Array, own: &[isize], others: &[isize]) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| {
            if own.len() != others.len() {
                let message = format!("tensordot over {} and {} axes", own.len(), others.len());
                return Err(Diag::new("tensordot", At::Op, message, "pairs of axes"));
            }
            let ranks = [v[0], v[1]].map(|v| graph.ty(v).shape.len());
            let pair =
                |(&i, &j): (&isize, &isize)| Ok((canonicalize_axis(i, ranks[0])?, canonicalize_axis(j, ranks[1])?));
            let pairs = own.iter().zip(others).map(pair).collect::<Result<Vec<_>, Diag>>()?;
            contract(graph, v[0], v[1], vec![], pairs)
        })
    }
}
