//! Loads of later steps are moved before the computation of a step.
//!
//! ```text
//! for s in 0..n { %x = load a[s]; .. %x .. }
//!   ->   %x0 = load a[0]; for s in 0..n carrying %x = %x0 { %y = load a[s + 1]; .. %x ..; yield %y }
//!   ->   %x0 = load a[0]; %x1 = load a[1];
//!        for s in 0..n carrying %x = %x0, %z = %x1 { %y = load a[s + 2]; .. %x ..; yield %z, %y }
//! ```
//!
//! The second form has *depth* 2, the third depth 3: the tiles of this many steps are in flight. Inputs that are
//! loaded in every step of the innermost sequential axis are loaded ahead: those that only products read with depth 2,
//! those whose spec says `buffered` with the depth given there. After the last step, such a load may be outside of the
//! array, where it accesses nothing, or load a tile that nothing reads.
use super::access;
use super::axis::Axis;
use super::rewrite::Rewrite;
use super::simplify::{pure, simplify_marked};
use super::staged::Staged;
use pallas_ir::{Access, Inst, InstId, Kernel, Loc, Op, OperandId, ScalarOp, Type, Value};

/// The depth for operands that only products read.
const USUAL: usize = 2;

/// Moves loads ahead, with at most the depth in `staged`.
pub(super) fn software_pipeline(staged: &mut Staged) {
    let kernel = &staged.kernel;
    let Some(axis) = Axis::innermost(kernel, staged.sequential) else { return };
    let insts = &kernel.region(axis.body).insts;
    let mut ahead = Ahead { k: kernel, axis, loads: vec![] };
    let depth = |i: InstId| ahead.depth(i).map(|depth| depth.min(staged.depth)).filter(|&depth| depth > 1);
    ahead.loads = insts.iter().filter_map(|&i| Some((i, depth(i)?))).collect();
    if ahead.loads.is_empty() {
        return;
    }
    let mut rewrite = Rewrite::of(kernel);
    rewrite.region(kernel.body, &mut |r, inst, loc| ahead.inst(r, inst, loc));
    rewrite.follow(&mut staged.carried);
    staged.fetched = ahead.loads.iter().filter_map(|&(i, depth)| Some((ahead.operand(i)?, depth))).collect();
    staged.kernel = simplify_marked(&rewrite.finish(), &mut staged.carried);
}

/// The loads of a loop that are moved ahead.
struct Ahead<'k> {
    k: &'k Kernel,
    axis: Axis<'k>,
    /// The loads that are moved, each with its depth, which is at least 2.
    loads: Vec<(InstId, usize)>,
}

impl Ahead<'_> {
    /// Returns the operand of an unmasked load; `None` for other instructions.
    fn operand(&self, id: InstId) -> Option<OperandId> {
        match self.k.inst(id).op {
            Op::Load { from, masked: false, .. } => Some(from),
            _ => None,
        }
    }
    /// Returns the depth with which a load should be moved ahead; `None` if it should or can not.
    fn depth(&self, id: InstId) -> Option<usize> {
        let inst = self.k.inst(id);
        let from = self.operand(id)?;
        let moves = self.k.is_constant(from)
            && !self.k.ty(inst.results[0]).is_scalar()
            && inst.args.iter().any(|&v| self.moves(v))
            && inst.args.iter().all(|&v| self.movable(v));
        let usual = || self.only_products(inst.results[0]).then_some(USUAL);
        if moves { self.k.operand(from).buffered.map(|depth| depth as usize).or_else(usual) } else { None }
    }
    /// Returns true if a value depends on the step.
    fn moves(&self, v: Value) -> bool {
        v == self.axis.index()
            || self.axis.defined.get(&v).is_some_and(|&i| self.k.inst(i).args.iter().any(|&v| self.moves(v)))
    }
    /// Returns true if a value depends only on the step and on values that are constant in the loop.
    fn movable(&self, v: Value) -> bool {
        let params = &self.k.region(self.axis.body).params;
        if params[1..].contains(&v) {
            return false;
        }
        let Some(&id) = self.axis.defined.get(&v) else { return true };
        let inst = self.k.inst(id);
        pure(&inst.op) && !matches!(inst.op, Op::Load { .. }) && inst.args.iter().all(|&v| self.movable(v))
    }
    /// Returns true if only products read a value, directly or by way of moved elements.
    fn only_products(&self, v: Value) -> bool {
        let yielded = self.k.regions.iter().any(|r| r.yields.contains(&v));
        let product = |inst: &Inst| match &inst.op {
            Op::Structural(op) => match access(self.k, op, inst) {
                Access::Contract { .. } => true,
                Access::Map(pieces) => pieces.len() == 1 && self.only_products(inst.results[0]),
                _ => false,
            },
            _ => false,
        };
        let mut users = self.k.insts.iter().filter(|inst| inst.args.contains(&v)).peekable();
        !yielded && users.peek().is_some() && users.all(product)
    }

    /// Replaces the loop by one that carries the tiles of later steps.
    fn inst(&self, r: &mut Rewrite<'_>, inst: &Inst, loc: Loc) -> bool {
        if !self.axis.is(inst) {
            return false;
        }
        let deepest = self.loads.iter().map(|&(_, depth)| depth).max().unwrap_or(1);
        let (first, step) = (r.get(inst.args[0]), r.get(inst.args[2]));
        // Before the loop: the tiles of its first steps, load by load.
        let mut heads: Vec<Vec<Value>> = vec![vec![]; self.loads.len()];
        let mut at = first;
        for steps in 0..deepest - 1 {
            if steps > 0 {
                at = r.out.scalar(ScalarOp::Add, &[at, step], Loc::NONE);
            }
            self.fetch(r, at, &|depth| depth > steps + 1, &mut |load, tile| heads[load].push(tile));
        }
        let args = [r.args(inst), heads.concat()].concat();
        let region = self.k.region(self.axis.body);
        let ahead = self.loads.iter().flat_map(|&(i, depth)| vec![self.k.inst(i).results[0]; depth - 1]);
        let types: Vec<Type> = region.params.iter().copied().chain(ahead).map(|v| self.k.ty(v).clone()).collect();
        let params = r.out.begin(&types);
        region.params.iter().zip(&params).for_each(|(&old, &new)| r.set(old, new));
        let step = r.get(inst.args[2]);
        // The values that each load carries: the present step's tile first, the newly loaded tile last.
        let mut carried = params[region.params.len()..].iter().copied();
        let mut queues: Vec<Vec<Value>> =
            self.loads.iter().map(|&(_, depth)| carried.by_ref().take(depth - 1).collect()).collect();
        let mut later = params[0];
        for depth in 2..=deepest {
            later = r.out.scalar(ScalarOp::Add, &[later, step], Loc::NONE);
            self.fetch(r, later, &|own| own == depth, &mut |load, tile| queues[load].push(tile));
        }
        r.set(region.params[0], params[0]);
        for (&(i, _), queue) in self.loads.iter().zip(&queues) {
            r.set(self.k.inst(i).results[0], queue[0]);
        }
        let done = |other: &Inst| self.loads.iter().any(|&(i, _)| std::ptr::eq(self.k.inst(i), other));
        let mut yields = r.region(self.axis.body, &mut |_, inst, _| done(inst));
        yields.extend(queues.iter().flat_map(|queue| &queue[1..]));
        let body = r.out.end(&yields);
        let mut results: Vec<Value> = inst.results.iter().map(|&v| r.define(v)).collect();
        results.extend(types[region.params.len()..].iter().map(|ty| r.out.value(ty.clone())));
        r.out.push(Inst { op: inst.op.clone(), args, results, regions: vec![body] }, loc);
        true
    }
    /// Copies the loads whose depth `wanted` accepts, for the given step; calls `give` with each load's number and its
    /// tile.
    fn fetch(
        &self,
        r: &mut Rewrite<'_>,
        step: Value,
        wanted: &dyn Fn(usize) -> bool,
        give: &mut dyn FnMut(usize, Value),
    ) {
        let loads = || self.loads.iter().enumerate().filter(|(_, (_, depth))| wanted(*depth));
        self.axis.again(r, step, loads().map(|(_, &(i, _))| i).collect());
        loads().for_each(|(load, &(i, _))| give(load, r.get(self.k.inst(i).results[0])));
    }
}
