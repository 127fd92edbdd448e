//! Replaces carried values of scans that count steps by arrays of the counts.
//!
//! ```text
//! %3, %4 = scan { lambda i h . j = add i, 1  k = add h, i    in j, k } %0, %1        %5 = neg %4
//! %4     = scan { lambda h i .               k = add h, i    in k } %1, [%0, %0 + 1, ..]
//! ```
use crate::build::constant_dims;
use crate::call::Scan;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Iota};
use pallas_ir::{DType, Literal, ScalarOp, StructuralOp, Type};

/// Most steps of a scan whose step counter is replaced by an array of the counts, one for each step.
const MAX_COUNTER_ARRAY_LENGTH: usize = 1 << 16;

/// Replaces the step counters that scans of a graph carry by scanned arrays of the counts.
pub(super) fn replace_counters_by_arrays(graph: Graph) -> Graph {
    let is_scan = |e: &Equation| Scan::of_op(&e.op).is_some();
    if !graph.equations.iter().any(is_scan) {
        return graph;
    }
    let mut is_read = vec![false; graph.types.len()];
    let read = graph.equations.iter().flat_map(|e| &e.args).chain(&graph.results);
    read.for_each(|v| is_read[v.index()] = true);
    let mut to = graph.with_equations(vec![]);
    for e in &graph.equations {
        let mut e = e.clone();
        if let Op::Call(call) = &e.op
            && let Some(scan) = Scan::of(call)
        {
            let mut scan = scan.clone();
            replace_scan_counters(&mut to, &mut e, &mut scan, &is_read);
            e.op = scan.into();
        }
        to.equations.push(e);
    }
    to
}

/// Replaces carried values that a step increases by a constant, and that only the body reads, by scanned arrays.
fn replace_scan_counters(to: &mut Graph, e: &mut Equation, scan: &mut Scan, is_read_outside: &[bool]) {
    if scan.length > MAX_COUNTER_ARRAY_LENGTH {
        return;
    }
    for k in (0..scan.carried).rev() {
        let (at, result) = (scan.captured + k, e.results[k]);
        let Some(by) = constant_increment(&scan.body, scan.body.params[at], scan.body.results[k]) else { continue };
        let last = by.checked_mul(scan.length as i64).and_then(|n| i32::try_from(n).ok());
        if is_read_outside[result.index()] || e.results.len() == 1 || last.is_none() {
            continue;
        }
        // A reversed scan begins at the array's last element.
        let (by, first) = if scan.reverse { (-by, by * (scan.length as i64 - 1)) } else { (by, 0) };
        to.at = e.loc;
        let to_shape = constant_dims(&[scan.length]);
        let iota = Iota { dtype: DType::I32, shape: to_shape.clone(), axis: 0 };
        let position = to.push_valid(StructuralOp::from(iota), &[]);
        let [by, first] = [by, first].map(|n| to.splat(Literal::int(DType::I32, n), &[scan.length]));
        let moved = to.push_valid(ScalarOp::Mul, &[position, by]);
        let moved = to.push_valid(ScalarOp::Add, &[moved, first]);
        let init = to.push_valid(StructuralOp::from(Broadcast::to(to_shape)), &[e.args[at]]);
        let array = to.push_valid(ScalarOp::Add, &[init, moved]);
        e.args.remove(at);
        e.args.push(array);
        e.results.remove(k);
        let param = scan.body.params.remove(at);
        scan.body.params.push(param);
        scan.body.results.remove(k);
        scan.carried -= 1;
    }
}

/// Returns the constant that a step adds to a carried i32 scalar; `None` if it does something else with it.
fn constant_increment(body: &Graph, param: Var, result: Var) -> Option<i64> {
    if *body.ty(param) != Type::scalar(DType::I32) {
        return None;
    }
    let made = body.equations.iter().find(|e| e.results.contains(&result))?;
    let other = match (&made.op, &made.args[..]) {
        (Op::Scalar(ScalarOp::Add), &[a, b]) if a == param => b,
        (Op::Scalar(ScalarOp::Add), &[a, b]) if b == param => a,
        _ => return None,
    };
    body.equations.iter().find(|e| e.results.contains(&other)).and_then(|e| match e.op {
        Op::Literal(x) => Some(x.as_i64()),
        _ => None,
    })
}
