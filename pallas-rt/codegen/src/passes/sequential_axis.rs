//! The loop over the innermost sequential axis of a lowered kernel.
use super::rewrite::KernelRewriter;
use pallas_ir::{Inst, InstId, Kernel, Op, RegionId, Value};
use std::collections::BTreeMap;

/// The loop over the innermost sequential axis.
pub(super) struct SequentialLoop<'k> {
    /// The kernel.
    pub k: &'k Kernel,
    /// The loop's instruction.
    pub at: InstId,
    /// The loop's body.
    pub body: RegionId,
    /// Values that instructions of the body define, each with its instruction.
    pub defined: BTreeMap<Value, InstId>,
}

impl<'k> SequentialLoop<'k> {
    /// Finds the loop over the innermost of `sequential_axes` axes: the first loop of each region from the body on;
    /// `None` if there are fewer loops, or no such axis.
    pub(super) fn innermost(k: &'k Kernel, sequential_axes: usize) -> Option<Self> {
        let (mut body, mut found) = (k.body, None);
        for _ in 0..sequential_axes {
            let at = *k.region(body).insts.iter().find(|&&i| matches!(k.inst(i).op, Op::For { .. }))?;
            (body, found) = (k.inst(at).regions[0], Some(at));
        }
        let defined = k.region(body).insts.iter().flat_map(|&i| k.inst(i).results.iter().map(move |&v| (v, i)));
        Some(SequentialLoop { k, at: found?, body, defined: defined.collect() })
    }
    /// Returns the loop's index.
    pub(super) fn index(&self) -> Value {
        self.k.region(self.body).params[0]
    }
    /// Returns true if `inst` is the loop's instruction.
    pub(super) fn is_loop_inst(&self, inst: &Inst) -> bool {
        std::ptr::eq(inst, self.k.inst(self.at))
    }
    /// Copies the instructions `wanted` of the body, and those of it that they depend on, with `step` in place of the
    /// index.
    pub(super) fn copy_for_step(&self, r: &mut KernelRewriter<'_>, step: Value, mut wanted: Vec<InstId>) {
        r.map_value(self.index(), step);
        let mut found = vec![];
        while let Some(id) = wanted.pop() {
            if !found.contains(&id) {
                found.push(id);
                wanted.extend(self.k.inst(id).args.iter().filter_map(|v| self.defined.get(v)));
            }
        }
        for &id in self.k.region(self.body).insts.iter().filter(|id| found.contains(id)) {
            r.copy_inst(self.k.inst(id), self.k.loc(id), &mut |_, _, _| false);
        }
    }
}
