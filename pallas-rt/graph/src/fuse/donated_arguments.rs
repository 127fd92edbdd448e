//! Reuse of memory: results in that of donated parameters, and values in that of large temporaries.
use super::cluster::ClusteredGraph;
use super::plan::{LoweredStep, StepOp};
use crate::graph::{Graph, Var};
use pallas_ir::{Kernel, OperandId, OperandKind, may_share_memory};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Divisor of `min_large_arena_bytes` that gives the fewest bytes of a temporary whose memory is taken over.
const MIN_REUSED_TEMPORARY_DIVISOR: usize = 16;

/// Lets the result of a kernel take over, block by block, the memory of an operand that the kernel is the last to read:
/// of donated parameters for results of the graph, and of large temporaries for other values. `min_large_arena_bytes`
/// is the device's limit [`DeviceLimits::arena`](super::DeviceLimits::arena).
pub(super) fn alias_outputs_to_inputs(
    found: &ClusteredGraph<'_>,
    steps: &mut [LoweredStep],
    is_donated: &[bool],
    min_large_arena_bytes: usize,
) {
    let (graph, stored_as) = (found.graph, |v| found.storage_value(v));
    let results: BTreeSet<Var> = graph.results.iter().map(|&r| stored_as(r)).collect();
    let donated = graph.params.iter().zip(is_donated).filter(|(_, donated)| **donated).map(|(p, _)| (*p, true));
    let made = steps.iter().flat_map(|step| &step.outputs).map(|&v| stored_as(v));
    let large = made
        .filter(|v| graph.ty(*v).bytes() >= (min_large_arena_bytes / MIN_REUSED_TEMPORARY_DIVISOR).max(1))
        .map(|v| (v, false));
    let all: Vec<(Var, bool)> = donated.chain(large).filter(|(v, _)| !results.contains(v)).collect();
    for (p, is_param) in all {
        let reads = |step: &LoweredStep| {
            step.inputs.iter().chain(step.in_place.iter().flatten()).filter(|&&v| stored_as(v) == p).count()
        };
        let Some(last) = steps.iter().rposition(|step| reads(step) > 0) else { continue };
        // A kernel that reads it twice might read one block after another one is overwritten.
        let step = &mut steps[last];
        let Some(input) = step.inputs.iter().position(|&v| stored_as(v) == p).filter(|_| reads(step) == 1) else {
            continue;
        };
        let StepOp::Kernel { kernel, .. } = &mut step.work else { continue };
        let operands = |kernel: &Kernel, wanted: fn(&OperandKind) -> bool| -> Vec<OperandId> {
            (0..).map(OperandId).zip(&kernel.operands).filter(|(_, o)| wanted(&o.kind)).map(|(id, _)| id).collect()
        };
        let outputs = operands(kernel, |kind| matches!(kind, OperandKind::Output { .. }));
        let aliased: Vec<OperandId> = outputs.iter().filter_map(|&id| aliased_input(kernel, id)).collect();
        let mut inputs = operands(kernel, |kind| matches!(kind, OperandKind::Input | OperandKind::Prefetch));
        inputs.retain(|id| !aliased.contains(id));
        let Some(&from) = inputs.get(input) else { continue };
        let bytes = graph.ty(p).bytes();
        let fits = |found: &(usize, &OperandId)| {
            let (k, id) = (found.0, *found.1);
            let v = stored_as(step.outputs[k]);
            let is_free = step.in_place[k].is_none() && aliased_input(kernel, id).is_none();
            is_free
                && (!is_param || results.contains(&v))
                && graph.ty(v).bytes() == bytes
                && may_share_memory(kernel, from, id)
        };
        let Some((output, &id)) = outputs.iter().enumerate().find(fits) else { continue };
        if let OperandKind::Output { alias, .. } = &mut Arc::make_mut(kernel).operands[id.index()].kind {
            *alias = Some(from);
        }
        step.inputs.remove(input);
        step.in_place[output] = Some(p);
    }
}

/// Returns the input whose memory output `id` of a kernel takes over; `None` if the output has memory of its own, or
/// `id` is no output.
fn aliased_input(kernel: &Kernel, id: OperandId) -> Option<OperandId> {
    if let OperandKind::Output { alias, .. } = kernel.operands[id.index()].kind { alias } else { None }
}

/// Donated parameters whose memory no value has taken over yet.
pub(super) struct DonatedBuffers {
    /// The number of each parameter, its bytes, and the last step that needs it.
    all: Vec<(usize, usize, Option<usize>)>,
}

impl DonatedBuffers {
    /// Collects donated parameters. `last_use` returns the last step that needs a parameter (`Some(None)` if none
    /// does), or `None` if its memory cannot be reused after that.
    pub(super) fn new(
        graph: &Graph,
        is_donated: &[bool],
        last_use: impl Fn(Var) -> Option<Option<usize>>,
    ) -> DonatedBuffers {
        let donated = graph.params.iter().enumerate().filter(|(i, _)| is_donated.get(*i) == Some(&true));
        let all = donated.filter_map(|(i, &p)| last_use(p).map(|last| (i, graph.ty(p).bytes(), last))).collect();
        DonatedBuffers { all }
    }

    /// Returns the number of a parameter with exactly `bytes` bytes that no step from `step` on needs, and removes it;
    /// `None` if there is no such parameter.
    pub(super) fn take_unused_param(&mut self, bytes: usize, step: usize) -> Option<usize> {
        let found = self.all.iter().position(|&(_, own, last)| own == bytes && last.is_none_or(|last| last < step))?;
        Some(self.all.swap_remove(found).0)
    }
}
