//! Common subexpression elimination: equal operations on equal operands are computed once.
//!
//! ```text
//! %1 = exp %0  %2 = exp %0  %3 = add %1, %2
//! %1 = exp %0               %3 = add %1, %1
//! ```
//!
//! Sums and products are equal if their operands are equal in any order.
use crate::call::has_effect;
use crate::graph::{Graph, Op, Var};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

/// An operation with its operands, as the key by which equal operations are found.
#[derive(PartialEq, Eq)]
struct ExpressionKey(Op, Vec<Var>);

impl Hash for ExpressionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Called graphs are compared only if the operands are equal: hashing them would take long, as each is part of
        // all around it.
        match &self.0 {
            Op::Call(call) => call.name().hash(state),
            op => op.hash(state),
        }
        self.1.hash(state);
    }
}

/// Replaces each equation that repeats an earlier one by the results of that one.
pub(super) fn eliminate_common_subexpressions(mut graph: Graph) -> Graph {
    let mut first: HashMap<ExpressionKey, Vec<Var>> = HashMap::new();
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
        let known = first.entry(ExpressionKey(e.op.clone(), args)).or_insert_with(|| e.results.clone());
        e.results.iter().zip(&*known).for_each(|(own, &known)| same[own.index()] = known);
        if *known == e.results {
            equations.push(e);
        }
    }
    graph.results.iter_mut().for_each(|r| *r = same[r.index()]);
    Graph { equations, ..graph }
}
