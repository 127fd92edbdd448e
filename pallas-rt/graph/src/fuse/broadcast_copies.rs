//! Copies of a broadcast that several equations read, one for each of them.
//!
//! ```text
//! y = broadcast x; a = f(y); b = g(y)    ->    y = broadcast x; a = f(y); z = broadcast x; b = g(z)
//! ```
//!
//! Clusters that read one broadcast would store it, although its operand is smaller and computing it again costs
//! nothing. Within a cluster `lower` makes equal broadcasts once. A single element that follows from a short fold, such
//! as the last stage of a long one, is computed again too: that costs less than a kernel that has to wait for it.
use super::equation_kinds::{is_always_inlined, is_short_fold, is_standalone_op};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Limits for broadcasts of a single element: most equations that are computed again, and most equations that read it.
const MAX_COPIED_EQUATIONS_AND_READERS: [usize; 2] = [8, 8];

/// Returns the graph with a copy of each broadcast for every equation whose kernel may compute it.
pub(super) fn copy_broadcasts(graph: &Graph) -> Cow<'_, Graph> {
    let (definitions, uses) = (graph.definitions(), graph.uses());
    // By broadcast, the equations that are copied.
    let mut copies: BTreeMap<Var, Vec<usize>> = BTreeMap::new();
    for (i, e) in graph.equations.iter().enumerate() {
        let is_broadcast = matches!(e.op, Op::Structural(StructuralOp::Broadcast(_)));
        if !is_broadcast || is_always_inlined(graph, &definitions, e) || uses[e.result().index()].len() < 2 {
            continue;
        }
        let (from, to) = (graph.ty(e.args[0]).elements(), graph.ty(e.result()).elements());
        // Copies for many readers, as of the words of a random key, would fill kernels, whose size is limited.
        let again = if from > 1 || uses[e.result().index()].len() > MAX_COPIED_EQUATIONS_AND_READERS[1] {
            vec![]
        } else {
            find_short_fold_equations(graph, &definitions, e)
        };
        if from < to && (from > 1 || !again.is_empty()) {
            copies.insert(e.result(), [again, vec![i]].concat());
        }
    }
    if copies.is_empty() {
        return Cow::Borrowed(graph);
    }
    let mut to = graph.with_equations(vec![]);
    // By variable, true if it has a reader; results have one from the beginning.
    let mut is_read = vec![false; graph.types.len()];
    graph.results.iter().for_each(|v| is_read[v.index()] = true);
    for e in &graph.equations {
        let mut e = e.clone();
        for arg in &mut e.args {
            let Some(again) = copies.get(arg).filter(|_| !is_standalone_op(&e.op)) else { continue };
            if std::mem::replace(&mut is_read[arg.index()], true) {
                let mut own: BTreeMap<Var, Var> = BTreeMap::new();
                for copy in again.iter().map(|&i| &graph.equations[i]) {
                    let args: Vec<Var> = copy.args.iter().map(|v| *own.get(v).unwrap_or(v)).collect();
                    to.at = copy.loc;
                    own.insert(copy.result(), to.push_valid(copy.op.clone(), &args));
                }
                *arg = own[arg];
            }
        }
        to.equations.push(e);
    }
    to.at = graph.at;
    Cow::Owned(to)
}

/// Returns the equations that compute the single element of a broadcast from short folds, in order; none if there are
/// too many, or if it does not depend on a fold.
fn find_short_fold_equations(graph: &Graph, definitions: &[Option<usize>], broadcast: &Equation) -> Vec<usize> {
    let (mut again, mut stack, mut has_fold) = (BTreeSet::new(), broadcast.args.clone(), false);
    while let Some(v) = stack.pop() {
        let Some(i) = definitions[v.index()] else { continue };
        let e = &graph.equations[i];
        let is_fold = is_short_fold(graph, e);
        let is_single =
            matches!(e.op, Op::Scalar(_) | Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Cast(_)));
        let is_single = is_single && graph.ty(e.result()).elements() == 1;
        if is_always_inlined(graph, definitions, e) || !(is_fold || is_single) || !again.insert(i) {
            continue;
        }
        has_fold |= is_fold;
        if !is_fold {
            stack.extend(&e.args);
        }
    }
    if has_fold && again.len() <= MAX_COPIED_EQUATIONS_AND_READERS[0] { again.into_iter().collect() } else { vec![] }
}
