//! The next step's tiles are fetched before this step computes.
//!
//! ```text
//! for s in 0..n { %x = load a[s]; .. %x .. }
//!   ->   %x0 = load a[0]; for s in 0..n carrying %x = %x0 { %y = load a[s + 1]; .. %x ..; yield %y }
//! ```
//!
//! For inputs that only products read, loaded in every step of the innermost sequential axis. Behind the last step a load
//! may lie outside of the array, where it touches nothing, or fetch what nobody reads.
use super::peel::innermost;
use super::rewrite::Rewrite;
use super::simplify::{pure, simplify_marked};
use pallas_ir::{Access, Inst, InstId, Kernel, Loc, Op, RegionId, ScalarOp, Type, Value};
use std::collections::BTreeMap;

/// Fetches ahead in a kernel some of whose values are marked.
pub fn prefetch<T: Copy>(kernel: &Kernel, sequential: usize, marked: &mut Vec<(Value, T)>) -> Kernel {
    let Some(axis) = innermost(kernel, sequential) else { return kernel.clone() };
    let body = kernel.inst(axis).regions[0];
    let insts = &kernel.region(body).insts;
    let defined = insts.iter().flat_map(|&i| kernel.inst(i).results.iter().map(move |&v| (v, i))).collect();
    let mut ahead = Ahead { k: kernel, axis, body, defined, loads: vec![] };
    ahead.loads = insts.iter().copied().filter(|&i| ahead.suits(i)).collect();
    if ahead.loads.is_empty() {
        return kernel.clone();
    }
    let mut rewrite = Rewrite::of(kernel);
    rewrite.region(kernel.body, &mut |r, inst, loc| ahead.inst(r, inst, loc));
    rewrite.follow(marked);
    simplify_marked(&rewrite.finish(), marked)
}

struct Ahead<'k> {
    k: &'k Kernel,
    axis: InstId,
    body: RegionId,
    /// What the loop's own region defines.
    defined: BTreeMap<Value, InstId>,
    loads: Vec<InstId>,
}

impl Ahead<'_> {
    fn suits(&self, id: InstId) -> bool {
        let inst = self.k.inst(id);
        let Op::Load { from, masked: false, .. } = &inst.op else { return false };
        self.k.is_constant(*from)
            && !self.k.ty(inst.results[0]).is_scalar()
            && inst.args.iter().any(|&v| self.moves(v))
            && inst.args.iter().all(|&v| self.movable(v))
            && self.only_products(inst.results[0])
    }
    /// Whether a value depends on the step.
    fn moves(&self, v: Value) -> bool {
        let index = self.k.region(self.body).params[0];
        v == index || self.defined.get(&v).is_some_and(|&i| self.k.inst(i).args.iter().any(|&v| self.moves(v)))
    }
    /// Whether a value follows from the step and from what the loop does not change.
    fn movable(&self, v: Value) -> bool {
        let params = &self.k.region(self.body).params;
        if params[1..].contains(&v) {
            return false;
        }
        let Some(&id) = self.defined.get(&v) else { return true };
        let inst = self.k.inst(id);
        pure(&inst.op) && !matches!(inst.op, Op::Load { .. }) && inst.args.iter().all(|&v| self.movable(v))
    }
    fn only_products(&self, v: Value) -> bool {
        let yielded = self.k.regions.iter().any(|r| r.yields.contains(&v));
        let product = |inst: &Inst| match &inst.op {
            Op::Structural(op) => {
                let dims: Vec<_> = inst.args.iter().map(|&v| self.k.ty(v).dims()).collect();
                let dims: Vec<_> = dims.iter().map(|d| &d[..]).collect();
                match op.access(&dims) {
                    Access::Contract { .. } => true,
                    Access::Map(pieces) => pieces.len() == 1 && self.only_products(inst.results[0]),
                    _ => false,
                }
            }
            _ => false,
        };
        let mut users = self.k.insts.iter().filter(|inst| inst.args.contains(&v)).peekable();
        !yielded && users.peek().is_some() && users.all(product)
    }

    fn inst(&self, r: &mut Rewrite<'_>, inst: &Inst, loc: Loc) -> bool {
        if !std::ptr::eq(inst, self.k.inst(self.axis)) {
            return false;
        }
        let first = r.get(inst.args[0]);
        let mut args: Vec<Value> = inst.args.iter().map(|&v| r.get(v)).collect();
        args.extend(self.fetch(r, first));
        let region = self.k.region(self.body);
        let loaded = self.loads.iter().map(|&i| self.k.inst(i).results[0]);
        let types: Vec<Type> =
            region.params.iter().copied().chain(loaded.clone()).map(|v| self.k.ty(v).clone()).collect();
        let params = r.out.begin(&types);
        region.params.iter().zip(&params).for_each(|(&old, &new)| r.set(old, new));
        let step = r.get(inst.args[2]);
        let next = r.out.scalar(ScalarOp::Add, &[params[0], step], Loc::NONE);
        let fetched = self.fetch(r, next);
        r.set(region.params[0], params[0]);
        loaded.zip(&params[region.params.len()..]).for_each(|(old, &new)| r.set(old, new));
        let done = |other: &Inst| self.loads.iter().any(|&i| std::ptr::eq(self.k.inst(i), other));
        let mut yields = r.region(self.body, &mut |_, inst, _| done(inst));
        yields.extend(fetched);
        let body = r.out.end(&yields);
        let mut results: Vec<Value> = inst.results.iter().map(|&v| r.define(v)).collect();
        results.extend(types[region.params.len()..].iter().map(|ty| r.out.value(ty.clone())));
        r.out.push(Inst { op: inst.op.clone(), args, results, regions: vec![body] }, loc);
        true
    }
    /// The loads of a step.
    fn fetch(&self, r: &mut Rewrite<'_>, step: Value) -> Vec<Value> {
        r.set(self.k.region(self.body).params[0], step);
        let mut again = vec![];
        let mut open: Vec<InstId> = self.loads.clone();
        while let Some(id) = open.pop() {
            again.push(id);
            open.extend(self.k.inst(id).args.iter().filter_map(|v| self.defined.get(v)));
        }
        for &id in &self.k.region(self.body).insts {
            if again.contains(&id) {
                r.copy(self.k.inst(id), self.k.loc(id), &mut |_, _, _| false);
            }
        }
        self.loads.iter().map(|&i| r.get(self.k.inst(i).results[0])).collect()
    }
}
