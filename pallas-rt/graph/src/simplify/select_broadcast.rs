//! Computes an operation on a select between broadcast values before the broadcast.
//!
//! ```text
//! mul (select c (broadcast a) (broadcast b)) (broadcast w)
//! select c (broadcast (mul a w)) (broadcast (mul b w))
//! ```
//!
//! A row of a table with one row is such a select: between the row and NaN, where the row's number is out of range.
use super::rewrite::{GraphRewriter, rewrite_each_equation};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::Broadcast;
use pallas_ir::{ScalarOp, StructuralOp};

/// Fewest elements of a select's result for each element of the smaller arrays that are computed before the broadcast;
/// with fewer, an operation on the select is not rewritten.
const MIN_BROADCAST_FACTOR: usize = 8;

/// Rewrites elementwise operations of a graph on selects between broadcasts, so that they are computed before the
/// broadcasts.
pub(super) fn compute_selects_before_broadcasts(graph: Graph) -> Graph {
    let uses = graph.read_counts();
    rewrite_each_equation(graph, |to, e| rewrite_select_operand(to, e, &uses))
}

/// The operand of a broadcast, with the axes of the result to which its axes are mapped.
struct BroadcastOperand {
    /// The value that is broadcast.
    value: Var,
    /// By axis of the value with more than one element, the axis of the broadcast.
    axes: Vec<usize>,
}

/// Appends an elementwise operation with a select among its operands as a select between broadcasts of smaller results;
/// returns `None` for other operations, or if that saves too little.
fn rewrite_select_operand(to: &mut GraphRewriter, e: &Equation, uses: &[usize]) -> Option<Var> {
    let is_elementwise = matches!(e.op, Op::Scalar(_) | Op::Structural(StructuralOp::Cast(_)));
    let is_choice =
        |v: Var| definition_through_reshapes(to, v).is_some_and(|made| made.op == Op::Scalar(ScalarOp::Select));
    let at = (0..e.args.len()).find(|&i| is_elementwise && uses[e.args[i].index()] == 1 && is_choice(e.args[i]))?;
    let &[which, yes, no] = &definition_through_reshapes(to, e.args[at])?.args[..] else { return None };
    let shape = to.graph.ty(e.result()).shape.clone();
    if to.graph.ty(which).shape != shape {
        return None;
    }
    let others = e.args.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &v)| v);
    let cores = [yes, no]
        .into_iter()
        .chain(others)
        .map(|v| find_broadcast_operand(to, v))
        .collect::<Option<Vec<BroadcastOperand>>>()?;
    let mut axes: Vec<usize> = cores.iter().flat_map(|core| core.axes.iter().copied()).collect();
    axes.sort_unstable();
    axes.dedup();
    let own: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
    if own.iter().product::<usize>() * MIN_BROADCAST_FACTOR > shape.iter().product() {
        return None;
    }
    let mut small = cores.into_iter().map(|core| {
        let own_of = |axes: &[usize]| axes.iter().map(|&axis| shape[axis]).collect::<Vec<_>>();
        let value = to.reshape_if_needed(core.value, &own_of(&core.axes));
        let at = core.axes.iter().filter_map(|axis| axes.iter().position(|other| other == axis)).collect();
        if core.axes == axes {
            value
        } else {
            to.append(StructuralOp::from(Broadcast { to: constant_dims(&own), dims: at }), &[value])
        }
    });
    let (yes, no) = (small.next()?, small.next()?);
    let others: Vec<Var> = small.collect();
    let sides = [yes, no].map(|side| {
        let mut args = others.clone();
        args.insert(at, side);
        let made = to.append(e.op.clone(), &args);
        to.append(StructuralOp::from(Broadcast { to: constant_dims(&shape), dims: axes.clone() }), &[made])
    });
    Some(to.append(ScalarOp::Select, &[which, sides[0], sides[1]]))
}

/// Returns the equation that defines a value, looking through reshapes that keep the shape, which passes write for
/// replaced equations.
fn definition_through_reshapes(to: &GraphRewriter, v: Var) -> Option<&Equation> {
    let made = to.definition(v)?;
    match made.op {
        Op::Structural(StructuralOp::Reshape(_)) if to.graph.ty(made.args[0]) == to.graph.ty(v) => {
            definition_through_reshapes(to, made.args[0])
        }
        _ => Some(made),
    }
}

/// Returns the operand of the broadcast that defines a value; `None` if the value is no broadcast, or if the operand's
/// axes of more than one element change their order.
fn find_broadcast_operand(to: &GraphRewriter, v: Var) -> Option<BroadcastOperand> {
    let Equation { op: Op::Structural(StructuralOp::Broadcast(op)), args, .. } = definition_through_reshapes(to, v)?
    else {
        return None;
    };
    let from = &to.graph.ty(args[0]).shape;
    let axes: Vec<usize> = op.dims.iter().zip(from).filter(|(_, n)| **n != 1).map(|(&axis, _)| axis).collect();
    axes.is_sorted().then_some(BroadcastOperand { value: args[0], axes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_ir::{DType, Literal, Type};

    /// Returns a graph that adds a number to a select between a row and NaN, multiplies the sum by another row and
    /// casts it.
    fn chain(rows: usize, which: &[usize], is_read: bool) -> Graph {
        let mut graph = Graph::default();
        let which = graph.param(Type::new(DType::Bool, which));
        let (x, w) = (graph.param(Type::new(DType::F32, [5])), graph.param(Type::new(DType::F32, [1, 5])));
        let shape = [rows, 5];
        let mut to = |op: StructuralOp, v| graph.push(op, &[v]).expect("it fits");
        let which = to(Broadcast { to: constant_dims(&shape), dims: vec![0, 1] }.into(), which);
        let mut x = to(Broadcast { to: constant_dims(&shape), dims: vec![1] }.into(), x);
        for _ in 0..2 {
            x = to(pallas_ir::structural::Reshape { to: constant_dims(&shape) }.into(), x);
        }
        let w = to(Broadcast::to(constant_dims(&shape)).into(), w);
        let [nan, one] = [f64::NAN, 1.0].map(|x| graph.splat(Literal::new(DType::F32, x), &shape));
        let chosen = graph.push(ScalarOp::Select, &[which, x, nan]).expect("it fits");
        let sum = graph.push(ScalarOp::Add, &[one, chosen]).expect("it fits");
        let product = graph.push(ScalarOp::Mul, &[sum, w]).expect("it fits");
        let cast = graph.push(StructuralOp::from(pallas_ir::structural::Cast { to: DType::Bf16 }), &[product]);
        graph.results = vec![cast.expect("it fits")];
        graph.results.extend(is_read.then_some(chosen));
        graph
    }

    #[test]
    fn operations_on_a_choice_of_rows_are_those_of_rows() {
        for (graph, most) in
            [(chain(100, &[100, 1], false), 5), (chain(7, &[7, 1], false), 35), (chain(100, &[100, 1], true), 500)]
        {
            let simple = crate::dead_code::without_dead_equations(compute_selects_before_broadcasts(graph.clone()));
            let sizes = simple.equations.iter().filter(|e| matches!(e.op, Op::Scalar(ScalarOp::Add | ScalarOp::Mul)));
            let sizes: Vec<usize> = sizes.map(|e| simple.ty(e.result()).shape.iter().product()).collect();
            assert_eq!(sizes.iter().max(), Some(&most), "{simple}");
            assert_eq!(simple.ty(simple.results[0]), graph.ty(graph.results[0]));
        }
    }
}
