//! First and last steps of the innermost sequential axis leave its loop.
//!
//! ```text
//! for s in 0..n { if s == 0 { A }; B; if s == n - 1 { C } }    ->    A; for s in 0..n { B }; C
//! ```
//!
//! A launch has no axis without steps, so A and C run. A moves only if nothing in front of it touches memory that changes,
//! C only if nothing behind it does; neither if it has loops of its own, so that a region's first loop is still its axis.
use super::rewrite::Rewrite;
use super::simplify::pure;
use pallas_ir::{Inst, InstId, Kernel, Literal, Loc, Op, RegionId, ScalarOp, Value};
use std::collections::BTreeMap;

/// Peels the innermost of the `sequential` axes.
pub fn peel(kernel: &Kernel, sequential: usize) -> Kernel {
    let Some(axis) = innermost(kernel, sequential) else { return kernel.clone() };
    let body = kernel.inst(axis).regions[0];
    let mut defined = BTreeMap::new();
    for &id in &kernel.region(body).insts {
        kernel.inst(id).results.iter().for_each(|&v| {
            defined.insert(v, id);
        });
    }
    let peel = Peel { k: kernel, axis, body, defined };
    let (first, last) = (peel.first(), peel.last());
    if first.is_none() && last.is_none() {
        return kernel.clone();
    }
    let mut rewrite = Rewrite::of(kernel);
    rewrite.region(kernel.body, &mut |r, inst, loc| peel.inst(r, inst, loc, first, last));
    rewrite.finish()
}

/// The loop over the last sequential axis: the first loop of each region down to it.
pub fn innermost(k: &Kernel, sequential: usize) -> Option<InstId> {
    let (mut region, mut found) = (k.body, None);
    for _ in 0..sequential {
        let axis = *k.region(region).insts.iter().find(|&&i| matches!(k.inst(i).op, Op::For { .. }))?;
        (region, found) = (k.inst(axis).regions[0], Some(axis));
    }
    found
}

struct Peel<'k> {
    k: &'k Kernel,
    axis: InstId,
    body: RegionId,
    /// What the loop's own region defines, by instruction.
    defined: BTreeMap<Value, InstId>,
}

impl Peel<'_> {
    fn index(&self) -> Value {
        self.k.region(self.body).params[0]
    }
    fn steps(&self) -> Value {
        self.k.inst(self.axis).args[1]
    }
    /// The guard of the first step.
    fn first(&self) -> Option<InstId> {
        let insts = &self.k.region(self.body).insts;
        let at = insts.iter().position(|&i| !pure(&self.k.inst(i).op))?;
        let quiet = insts[..at].iter().all(|&i| self.steady(&self.k.inst(i).op));
        let zero = |v: Value| self.constant(v) == Some(0);
        (quiet && self.guards(insts[at], &zero)).then_some(insts[at])
    }
    /// The guard of the last step.
    fn last(&self) -> Option<InstId> {
        let insts = &self.k.region(self.body).insts;
        let at = insts.iter().rposition(|&i| !pure(&self.k.inst(i).op))?;
        let end = |v: Value| match self.definition(v) {
            Some(Inst { op: Op::Scalar(ScalarOp::Sub), args, .. }) => {
                args[0] == self.steps() && self.constant(args[1]) == Some(1)
            }
            _ => false,
        };
        self.guards(insts[at], &end).then_some(insts[at])
    }
    /// Whether an instruction is `if index == step { .. }`, perhaps with more conditions, that can move.
    fn guards(&self, id: InstId, step: &dyn Fn(Value) -> bool) -> bool {
        let inst = self.k.inst(id);
        let alone = matches!(inst.op, Op::If)
            && inst.results.is_empty()
            && self.k.region(inst.regions[1]).insts.is_empty()
            && self.implies(inst.args[0], step);
        let mut loops = false;
        self.k.walk(inst.regions.first().copied().unwrap_or(self.body), &mut |_, inner| {
            loops |= matches!(inner.op, Op::For { .. } | Op::While);
        });
        alone && !loops && self.needs(inst).into_iter().all(|v| self.movable(v))
    }
    fn implies(&self, condition: Value, step: &dyn Fn(Value) -> bool) -> bool {
        match self.definition(condition) {
            Some(Inst { op: Op::Scalar(ScalarOp::Eq), args, .. }) => {
                args[0] == self.index() && step(args[1]) || args[1] == self.index() && step(args[0])
            }
            Some(Inst { op: Op::Scalar(ScalarOp::BitAnd), args, .. }) => args.iter().any(|&v| self.implies(v, step)),
            _ => false,
        }
    }
    fn definition(&self, v: Value) -> Option<&Inst> {
        let inside = self.defined.get(&v).map(|&i| self.k.inst(i));
        inside.or_else(|| self.k.insts.iter().find(|inst| inst.results.contains(&v)))
    }
    fn constant(&self, v: Value) -> Option<i64> {
        match self.definition(v)?.op {
            Op::Const(x) => Some(x.as_i64()),
            _ => None,
        }
    }
    /// Values of the loop's region that an instruction and its regions read.
    fn needs(&self, inst: &Inst) -> Vec<Value> {
        let mut found = inst.args.clone();
        for &r in &inst.regions {
            found.extend(&self.k.region(r).yields);
            self.k.walk(r, &mut |_, inner| {
                found.extend(&inner.args);
                inner.regions.iter().for_each(|&r| found.extend(&self.k.region(r).yields));
            });
        }
        found.retain(|v| self.defined.contains_key(v));
        found.sort_unstable();
        found.dedup();
        found
    }
    /// Whether a value can be computed again outside of the loop.
    fn movable(&self, v: Value) -> bool {
        let Some(&id) = self.defined.get(&v) else { return true };
        let inst = self.k.inst(id);
        pure(&inst.op) && self.steady(&inst.op) && inst.args.iter().all(|&v| self.movable(v))
    }
    /// Whether an operation gives the same before and after the kernel's stores.
    fn steady(&self, op: &Op) -> bool {
        !matches!(op, Op::Load { from, .. } if !self.k.is_constant(*from))
    }

    fn inst(&self, r: &mut Rewrite<'_>, inst: &Inst, loc: Loc, first: Option<InstId>, last: Option<InstId>) -> bool {
        if !std::ptr::eq(inst, self.k.inst(self.axis)) {
            return false;
        }
        if let Some(guard) = first {
            let zero = r.out.constant(Literal::int(pallas_ir::DType::I32, 0), Loc::NONE);
            self.step(r, guard, zero);
        }
        let moved = |other: &Inst| [first, last].into_iter().flatten().any(|g| std::ptr::eq(self.k.inst(g), other));
        let body = r.nested(self.body, &mut |_, inst, _| moved(inst));
        let args = inst.args.iter().map(|&v| r.get(v)).collect();
        r.append_nest(inst, args, vec![body], loc);
        if let Some(guard) = last {
            let one = r.out.constant(Literal::int(pallas_ir::DType::I32, 1), Loc::NONE);
            let steps = r.get(self.steps());
            let end = r.out.scalar(ScalarOp::Sub, &[steps, one], Loc::NONE);
            self.step(r, guard, end);
        }
        true
    }
    /// Copies a guard, with the step in place of the index.
    fn step(&self, r: &mut Rewrite<'_>, guard: InstId, step: Value) {
        r.set(self.index(), step);
        let mut again: Vec<InstId> = vec![];
        self.collect(&self.needs(self.k.inst(guard)), &mut again);
        for &id in &self.k.region(self.body).insts {
            if again.contains(&id) {
                r.copy(self.k.inst(id), self.k.loc(id), &mut |_, _, _| false);
            }
        }
        r.copy(self.k.inst(guard), self.k.loc(guard), &mut |_, _, _| false);
    }
    fn collect(&self, values: &[Value], into: &mut Vec<InstId>) {
        for v in values {
            if let Some(&id) = self.defined.get(v)
                && !into.contains(&id)
            {
                into.push(id);
                self.collect(&self.k.inst(id).args, into);
            }
        }
    }
}
