//! Sums over an axis wait until the end of their loop.
//!
//! ```text
//! for s carrying %l { %l' = %l · %a + sum(%t) }; use %l'
//!   ->   for s carrying %w { %w' = %w · %a + %t }; use sum(%w')
//! ```
//!
//! As long as every use of a sum is linear (added to another such sum, scaled by what is constant along the axis, carried),
//! the elements may be added instead; threads that share a row then meet once, not in every step.
use super::rewrite::Rewrite;
use super::simplify::simplify_marked;
use pallas_ir::structural::Reduce;
use pallas_ir::{
    Dim, Inst, InstId, Kernel, Literal, Loc, Op, RegionId, ScalarOp, StructuralOp, Type, Value, structural::Broadcast,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most elements of what a loop carries in place of a sum.
const WIDE: usize = 4096;

/// Delays every sum that can wait, in a kernel some of whose values are marked.
pub fn delay<T: Copy>(kernel: &Kernel, marked: &mut Vec<(Value, T)>) -> Kernel {
    let mut kernel = kernel.clone();
    let mut tried = BTreeSet::new();
    while let Some((at, reduce)) = sums(&kernel).into_iter().find(|(i, _)| !tried.contains(i)) {
        let delayed = Class::of(&kernel, &Uses::of(&kernel), at, &reduce).map(|class| class.rewrite(marked));
        match delayed {
            // Instructions are numbered anew.
            Some(delayed) => (kernel, tried) = (delayed, BTreeSet::new()),
            None => drop(tried.insert(at)),
        }
    }
    simplify_marked(&kernel, marked)
}

fn sums(k: &Kernel) -> Vec<(InstId, Reduce)> {
    let mut found = vec![];
    k.walk(k.body, &mut |id, inst| match &inst.op {
        Op::Structural(StructuralOp::Reduce(r)) if r.op == ScalarOp::Add && k.ty(inst.args[0]).elements() <= WIDE => {
            found.push((id, r.clone()));
        }
        _ => {}
    });
    found
}

/// Who uses and who defines each value, and in how many loops.
struct Uses {
    users: BTreeMap<Value, Vec<InstId>>,
    definition: BTreeMap<Value, Definition>,
    depth: BTreeMap<InstId, usize>,
    /// The instruction whose region yields a value.
    yielded: BTreeMap<Value, Vec<InstId>>,
}

#[derive(Clone, Copy)]
enum Definition {
    Result(InstId),
    /// A parameter of the instruction's region.
    Param(InstId),
}

impl Uses {
    fn of(k: &Kernel) -> Uses {
        let mut uses = Uses {
            users: BTreeMap::new(),
            definition: BTreeMap::new(),
            depth: BTreeMap::new(),
            yielded: BTreeMap::new(),
        };
        uses.region(k, k.body, 0);
        uses
    }
    fn region(&mut self, k: &Kernel, region: RegionId, depth: usize) {
        for &id in &k.region(region).insts {
            let inst = k.inst(id);
            self.depth.insert(id, depth);
            inst.args.iter().for_each(|&v| self.users.entry(v).or_default().push(id));
            self.definition.extend(inst.results.iter().map(|&v| (v, Definition::Result(id))));
            let inner = depth + usize::from(!matches!(inst.op, Op::If));
            for &r in &inst.regions {
                self.definition.extend(k.region(r).params.iter().map(|&v| (v, Definition::Param(id))));
                k.region(r).yields.iter().for_each(|&v| self.yielded.entry(v).or_default().push(id));
                self.region(k, r, inner);
            }
        }
    }
}

/// A sum and everything it flows into linearly: these become wide.
struct Class<'k> {
    k: &'k Kernel,
    wide: BTreeSet<Value>,
    /// Zeros from which the sums start.
    zeros: BTreeSet<Value>,
    reduce: Reduce,
    shape: Vec<usize>,
}

impl<'k> Class<'k> {
    /// The class of a sum; None: some use of it is not linear, in the loop itself.
    fn of(k: &'k Kernel, uses: &Uses, at: InstId, reduce: &Reduce) -> Option<Class<'k>> {
        let sum = k.inst(at);
        let (shape, depth) = (k.ty(sum.args[0]).shape.clone(), uses.depth[&at]);
        let mut class = Class { k, wide: BTreeSet::new(), zeros: BTreeSet::new(), reduce: reduce.clone(), shape };
        let mut open = vec![sum.results[0]];
        let mut escapes = vec![];
        while let Some(v) = open.pop() {
            if !class.wide.insert(v) {
                continue;
            }
            class.sources(uses, v, &mut open)?;
            for &id in uses.users.get(&v).into_iter().flatten() {
                let user = k.inst(id);
                match &user.op {
                    Op::Scalar(ScalarOp::Add | ScalarOp::Mul) if k.ty(user.results[0]) == k.ty(v) => {
                        open.push(user.results[0]);
                    }
                    Op::For { .. } => open.extend(carried(k, user, v, &user.args[3..])),
                    Op::While => return None,
                    _ => escapes.push(id),
                }
            }
            for &id in uses.yielded.get(&v).into_iter().flatten() {
                let owner = k.inst(id);
                if matches!(owner.op, Op::While) {
                    return None;
                }
                for &r in &owner.regions {
                    let at = |(i, y): (usize, &Value)| (*y == v).then(|| owner.results[i]);
                    open.extend(k.region(r).yields.iter().enumerate().filter_map(at));
                }
            }
        }
        let outside = escapes.iter().all(|id| uses.depth[id] < depth);
        let linear = class.wide.iter().all(|&v| class.is_linear(uses, v));
        (outside && linear && depth > 0).then_some(class)
    }
    /// What must be wide for `v` to be.
    fn sources(&mut self, uses: &Uses, v: Value, open: &mut Vec<Value>) -> Option<()> {
        let k = self.k;
        let definition = uses.definition.get(&v)?;
        match *definition {
            Definition::Param(id) => {
                let owner = k.inst(id);
                let params = &k.region(*owner.regions.first()?).params;
                if !matches!(owner.op, Op::For { .. }) {
                    return None;
                }
                let i = params.iter().position(|p| *p == v)?.checked_sub(1)?;
                open.extend([owner.args[3 + i], k.region(owner.regions[0]).yields[i], owner.results[i]]);
            }
            Definition::Result(id) => {
                let inst = k.inst(id);
                match &inst.op {
                    Op::Structural(StructuralOp::Reduce(r)) => {
                        let same = *r == self.reduce && k.ty(inst.args[0]).shape == self.shape;
                        same.then_some(())?;
                    }
                    Op::Scalar(ScalarOp::Add) => open.extend(&inst.args),
                    Op::Scalar(ScalarOp::Mul) => {}
                    Op::If | Op::For { .. } => {
                        let i = inst.results.iter().position(|r| *r == v)?;
                        open.extend(inst.regions.iter().map(|&r| k.region(r).yields[i]));
                        if matches!(inst.op, Op::For { .. }) {
                            open.extend([inst.args[3 + i], k.region(inst.regions[0]).params[1 + i]]);
                        }
                    }
                    Op::Structural(StructuralOp::Broadcast(_)) if self.is_zero(uses, inst.args[0]) => {
                        self.zeros.insert(v);
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }
    fn is_zero(&self, uses: &Uses, v: Value) -> bool {
        match uses.definition.get(&v) {
            Some(Definition::Result(id)) => {
                matches!(self.k.inst(*id).op, Op::Const(x) if x.as_f64() == 0.0)
            }
            _ => false,
        }
    }
    /// Products have one wide factor.
    fn is_linear(&self, uses: &Uses, v: Value) -> bool {
        match uses.definition[&v] {
            Definition::Result(id) if matches!(self.k.inst(id).op, Op::Scalar(ScalarOp::Mul)) => {
                let args = &self.k.inst(id).args;
                args.iter().filter(|a| self.wide.contains(a)).count() == 1
            }
            _ => true,
        }
    }

    fn rewrite<T: Copy>(&self, marked: &mut Vec<(Value, T)>) -> Kernel {
        let mut rewrite = Rewrite::of(self.k);
        rewrite.region(self.k.body, &mut |r, inst, loc| self.inst(r, inst, loc));
        rewrite.follow(marked);
        rewrite.finish()
    }
    fn inst(&self, r: &mut Rewrite<'_>, inst: &Inst, loc: Loc) -> bool {
        let is_wide = |v: &Value| self.wide.contains(v);
        match &inst.op {
            Op::If | Op::For { .. } | Op::While => {
                let args: Vec<Value> = inst.args.iter().map(|&v| r.get(v)).collect();
                let regions = inst.regions.iter().map(|&region| self.region(r, region)).collect();
                let results = inst.results.iter().map(|&v| self.define(r, v)).collect();
                r.out.push(Inst { op: inst.op.clone(), args, results, regions }, loc);
            }
            Op::Structural(StructuralOp::Broadcast(_)) if self.zeros.contains(&inst.results[0]) => {
                let to = self.shape.iter().map(|&n| Dim::from(n as i64)).collect();
                let zero = r.out.constant(Literal::new(self.k.ty(inst.results[0]).dtype, 0.0), loc);
                let zeros = r.out.emit(Op::Structural(Broadcast { to }.into()), &[zero], loc);
                r.set(inst.results[0], zeros.expect("a scalar has any shape"));
            }
            Op::Structural(StructuralOp::Reduce(_)) if is_wide(&inst.results[0]) => {
                let elements = r.get(inst.args[0]);
                r.set(inst.results[0], elements);
            }
            Op::Scalar(op) if inst.results.iter().any(is_wide) => {
                let args: Vec<Value> = inst.args.iter().map(|&v| r.get(v)).collect();
                let new = r.out.scalar(*op, &args, loc);
                r.set(inst.results[0], new);
            }
            _ if inst.args.iter().any(is_wide) => {
                let args = inst.args.iter().map(|&v| if is_wide(&v) { self.narrow(r, v, loc) } else { r.get(v) });
                let args: Vec<Value> = args.collect();
                let results = inst.results.iter().map(|&v| self.define(r, v)).collect();
                r.out.push(Inst { op: inst.op.clone(), args, results, regions: vec![] }, loc);
            }
            _ => return false,
        }
        true
    }
    /// The sum of what stands for it.
    fn narrow(&self, r: &mut Rewrite<'_>, v: Value, loc: Loc) -> Value {
        let wide = r.get(v);
        r.out.emit(Op::Structural(self.reduce.clone().into()), &[wide], loc).expect("it has the axes")
    }
    fn region(&self, r: &mut Rewrite<'_>, region: RegionId) -> RegionId {
        let params = self.k.region(region).params.clone();
        let types: Vec<Type> = params.iter().map(|&p| self.ty(p)).collect();
        let new = r.out.begin(&types);
        params.iter().zip(new).for_each(|(&p, n)| r.set(p, n));
        let yields = r.region(region, &mut |r, inst, loc| self.inst(r, inst, loc));
        r.out.end(&yields)
    }
    fn ty(&self, v: Value) -> Type {
        let ty = self.k.ty(v);
        if self.wide.contains(&v) { Type::new(ty.dtype, self.shape.clone()) } else { ty.clone() }
    }
    fn define(&self, r: &mut Rewrite<'_>, old: Value) -> Value {
        let new = r.out.value(self.ty(old));
        r.set(old, new);
        new
    }
}

/// Parameter and result of a loop that start from `v`.
fn carried<'a>(k: &'a Kernel, user: &'a Inst, v: Value, init: &'a [Value]) -> impl Iterator<Item = Value> + 'a {
    let params = &k.region(user.regions[0]).params[1..];
    let at = move |(i, x): (usize, &Value)| (*x == v).then(|| [params[i], user.results[i]]);
    init.iter().enumerate().filter_map(at).flatten()
}
