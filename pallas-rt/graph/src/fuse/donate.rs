//! Results in the memory of donated parameters, and values in the memory of large temporaries.
use super::cluster::Clusters;
use super::plan::{Lowered, Work};
use crate::graph::{Graph, Var};
use pallas_ir::{Kernel, OperandId, OperandKind, may_share};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Temporaries whose memory is taken over, as a part of the bytes from which on an arena is made smaller.
const PART: usize = 16;

/// Lets results take over the memory of donated parameters that the same kernel reads last, block by block, and values that
/// of large temporaries (`arena` is [`super::Sizes::arena`]).
pub(super) fn share(found: &Clusters<'_>, steps: &mut [Lowered], is_donated: &[bool], arena: usize) {
    let (graph, stored_as) = (found.graph, |v| found.stored_as(v));
    let results: BTreeSet<Var> = graph.results.iter().map(|&r| stored_as(r)).collect();
    let donated = graph.params.iter().zip(is_donated).filter(|(_, donated)| **donated).map(|(p, _)| (*p, true));
    let made = steps.iter().flat_map(|step| &step.outputs).map(|&v| stored_as(v));
    let large = made.filter(|v| graph.ty(*v).bytes() >= (arena / PART).max(1)).map(|v| (v, false));
    let all: Vec<(Var, bool)> = donated.chain(large).filter(|(v, _)| !results.contains(v)).collect();
    for (p, is_param) in all {
        let reads = |step: &Lowered| {
            step.inputs.iter().chain(step.in_place.iter().flatten()).filter(|&&v| stored_as(v) == p).count()
        };
        let Some(last) = steps.iter().rposition(|step| reads(step) > 0) else { continue };
        // A kernel that reads it twice might read one block after another one is overwritten.
        let step = &mut steps[last];
        let Some(input) = step.inputs.iter().position(|&v| stored_as(v) == p).filter(|_| reads(step) == 1) else {
            continue;
        };
        let Work::Kernel { kernel, .. } = &mut step.work else { continue };
        let operands = |kernel: &Kernel, wanted: fn(&OperandKind) -> bool| -> Vec<OperandId> {
            (0..).map(OperandId).zip(&kernel.operands).filter(|(_, o)| wanted(&o.kind)).map(|(id, _)| id).collect()
        };
        let outputs = operands(kernel, |kind| matches!(kind, OperandKind::Output { .. }));
        let aliased: Vec<OperandId> = outputs.iter().filter_map(|&id| alias(kernel, id)).collect();
        let mut inputs = operands(kernel, |kind| matches!(kind, OperandKind::Input | OperandKind::Prefetch));
        inputs.retain(|id| !aliased.contains(id));
        let Some(&from) = inputs.get(input) else { continue };
        let bytes = graph.ty(p).bytes();
        let fits = |found: &(usize, &OperandId)| {
            let (k, id) = (found.0, *found.1);
            let v = stored_as(step.outputs[k]);
            let is_free = step.in_place[k].is_none() && alias(kernel, id).is_none();
            is_free
                && (!is_param || results.contains(&v))
                && graph.ty(v).bytes() == bytes
                && may_share(kernel, from, id)
        };
        let Some((output, &id)) = outputs.iter().enumerate().find(fits) else { continue };
        if let OperandKind::Output { alias, .. } = &mut Arc::make_mut(kernel).operands[id.index()].kind {
            *alias = Some(from);
        }
        step.inputs.remove(input);
        step.in_place[output] = Some(p);
    }
}

fn alias(kernel: &Kernel, id: OperandId) -> Option<OperandId> {
    if let OperandKind::Output { alias, .. } = kernel.operands[id.index()].kind { alias } else { None }
}

/// Donated parameters whose memory no value takes over.
pub(super) struct Spare {
    /// The number of the parameter, its bytes, and the last step that needs it.
    all: Vec<(usize, usize, Option<usize>)>,
}

impl Spare {
    /// `last_use` returns the last step that needs a parameter (`None` if none does), if its memory is free after that.
    pub(super) fn new(graph: &Graph, is_donated: &[bool], last_use: impl Fn(Var) -> Option<Option<usize>>) -> Spare {
        let donated = graph.params.iter().enumerate().filter(|(i, _)| is_donated.get(*i) == Some(&true));
        let all = donated.filter_map(|(i, &p)| last_use(p).map(|last| (i, graph.ty(p).bytes(), last))).collect();
        Spare { all }
    }

    /// The number of a parameter with so many bytes, which no step from `at` on needs.
    pub(super) fn take(&mut self, bytes: usize, at: usize) -> Option<usize> {
        let found = self.all.iter().position(|&(_, own, last)| own == bytes && last.is_none_or(|last| last < at))?;
        Some(self.all.swap_remove(found).0)
    }
}
