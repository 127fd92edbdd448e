//! Computes equal expressions once.
//!
//! ```text
//! %1 = exp %0  %2 = exp %0  %3 = add %1, %2
//! %1 = exp %0               %3 = add %1, %1
//! ```
//!
//! The order of a sum's or product's operands makes no other expression.
use crate::call::has_effect;
use crate::graph::{Graph, Op, Var};
use std::collections::HashMap;

pub(super) fn common(mut graph: Graph) -> Graph {
    let mut first: HashMap<(Op, Vec<Var>), Vec<Var>> = HashMap::new();
    let mut same: Vec<Var> = (0..graph.types.len() as u32).map(Var).collect();
    let mut equations = vec![];
    for mut e in std::mem::take(&mut graph.equations) {
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        if has_effect(&e.op) {
            equations.push(e);
            continue;
        }
        let mut args = e.args.clone();
        if matches!(&e.op, Op::Scalar(op) if op.row().fold.is_some()) {
            args.sort_unstable();
        }
        let known = first.entry((e.op.clone(), args)).or_insert_with(|| e.results.clone());
        e.results.iter().zip(&*known).for_each(|(own, &known)| same[own.index()] = known);
        if *known == e.results {
            equations.push(e);
        }
    }
    graph.results.iter_mut().for_each(|r| *r = same[r.index()]);
    Graph { equations, ..graph }
}
