//! Removes arrays of scans that hold nothing of their own: stacked results with equal elements, and scanned arrays
//! whose elements along the first axis are all equal.
//!
//! ```text
//! %1, %2, %3 = scan { .. in h, y, y } %0   %4 = exp %3        (a carried value and two stacks of the same)
//! %1, %2     = scan { .. in h, y } %0      %4 = exp %2
//!
//! %2 = broadcast to(128, 8) %1             %3 = scan { lambda x . .. } %2
//!                                          %3 = scan { lambda a . x = broadcast to(8) a  .. } %1
//! ```
use crate::call::Scan;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::Broadcast;
use pallas_ir::{Literal, StructuralOp};
use std::collections::HashMap;

/// Removes scanned arrays and stacked results with equal elements from the scans of a graph.
pub(super) fn remove_redundant_scan_arrays(mut graph: Graph) -> Graph {
    capture_scanned_broadcasts(&mut graph);
    merge_equal_stacked_results(&mut graph);
    graph
}

/// Replaces a scanned array that is a broadcast along the scanned axis: the scan captures the operand of the broadcast,
/// and its body makes the element of each step.
fn capture_scanned_broadcasts(graph: &mut Graph) {
    // By variable with equal elements along its first axis: the operand and the broadcast of which each element is the
    // result.
    let mut repeated: HashMap<Var, (Var, Broadcast)> = HashMap::new();
    let mut literals: HashMap<Var, Literal> = HashMap::new();
    for e in &mut graph.equations {
        if let Op::Structural(StructuralOp::Broadcast(op)) = &e.op {
            let rank = graph.types[e.args[0].index()].shape.len();
            if !op.to.is_empty() && !op.dims[..rank].contains(&0) {
                let dims = op.dims[..rank].iter().map(|axis| axis - 1).collect();
                repeated.insert(e.result(), (e.args[0], Broadcast { to: op.to[1..].to_vec(), dims }));
            }
        }
        if let Op::Literal(x) = e.op {
            literals.insert(e.result(), x);
        }
        let Some(scan) = Scan::of_op(&e.op) else { continue };
        let arrays = scan.captured + scan.carried..e.args.len();
        if !e.args[arrays.clone()].iter().any(|a| repeated.contains_key(a)) {
            continue;
        }
        let mut scan = scan.clone();
        let equation = |op, args, result| Equation { op, args, results: vec![result], loc: e.loc };
        let (params, args) = (std::mem::take(&mut scan.body.params), std::mem::take(&mut e.args));
        let (mut captured, mut others, mut made) = (vec![], vec![], vec![]);
        for (i, (param, arg)) in params.into_iter().zip(args).enumerate() {
            match repeated.get(&arg).filter(|_| arrays.contains(&i)) {
                Some((source, element)) => {
                    let own = scan.body.var(graph.types[source.index()].clone());
                    match literals.get(source) {
                        Some(x) => made.push(equation(Op::Literal(*x), vec![], own)),
                        None => captured.push((own, *source)),
                    }
                    made.push(equation(Op::Structural(element.clone().into()), vec![own], param));
                }
                None if i < scan.captured => captured.push((param, arg)),
                None => others.push((param, arg)),
            }
        }
        scan.captured = captured.len();
        (scan.body.params, e.args) = captured.into_iter().chain(others).unzip();
        scan.body.equations.splice(0..0, made);
        e.op = scan.into();
    }
}

/// Lets readers of a stacked result read the first one with the same elements.
fn merge_equal_stacked_results(graph: &mut Graph) {
    let mut same: Vec<Var> = (0..graph.types.len() as u32).map(Var).collect();
    for e in &mut graph.equations {
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        let Some(Scan { body, carried, .. }) = Scan::of_op(&e.op) else { continue };
        for (i, made) in body.results.iter().enumerate().skip(*carried) {
            let first = body.results[*carried..].iter().position(|other| other == made).expect("itself") + carried;
            same[e.results[i].index()] = e.results[first];
        }
    }
    graph.results.iter_mut().for_each(|r| *r = same[r.index()]);
}
