//! The loop of the innermost sequential axis.
use super::rewrite::Rewrite;
use pallas_ir::{Inst, InstId, Kernel, Op, RegionId, Value};
use std::collections::BTreeMap;

/// The loop over the last sequential axis.
pub(super) struct Axis<'k> {
    /// The kernel.
    pub k: &'k Kernel,
    /// The loop.
    pub at: InstId,
    /// Its region.
    pub body: RegionId,
    /// Values that the loop's own region defines, by instruction.
    pub defined: BTreeMap<Value, InstId>,
}

impl<'k> Axis<'k> {
    /// The innermost of the `sequential` axes: the first loop of each region down to it.
    pub(super) fn innermost(k: &'k Kernel, sequential: usize) -> Option<Self> {
        let (mut body, mut found) = (k.body, None);
        for _ in 0..sequential {
            let at = *k.region(body).insts.iter().find(|&&i| matches!(k.inst(i).op, Op::For { .. }))?;
            (body, found) = (k.inst(at).regions[0], Some(at));
        }
        let defined = k.region(body).insts.iter().flat_map(|&i| k.inst(i).results.iter().map(move |&v| (v, i)));
        Some(Axis { k, at: found?, body, defined: defined.collect() })
    }
    /// The loop's index.
    pub(super) fn index(&self) -> Value {
        self.k.region(self.body).params[0]
    }
    /// Returns true for the loop itself.
    pub(super) fn is(&self, inst: &Inst) -> bool {
        std::ptr::eq(inst, self.k.inst(self.at))
    }
    /// Copies instructions of the loop's region, and the instructions of it that they depend on, with `step` as the
    /// index.
    pub(super) fn again(&self, r: &mut Rewrite<'_>, step: Value, mut wanted: Vec<InstId>) {
        r.set(self.index(), step);
        let mut found = vec![];
        while let Some(id) = wanted.pop() {
            if !found.contains(&id) {
                found.push(id);
                wanted.extend(self.k.inst(id).args.iter().filter_map(|v| self.defined.get(v)));
            }
        }
        for &id in self.k.region(self.body).insts.iter().filter(|id| found.contains(id)) {
            r.copy(self.k.inst(id), self.k.loc(id), &mut |_, _, _| false);
        }
    }
}
