//! Reductions of sums are moved after the loop that accumulates them.
//!
//! ```text
//! for s carrying %l { %l' = %l · %a + sum(%t) }; use %l'
//!   ->   for s carrying %w { %w' = %w · %a + %t }; use sum(%w')
//! ```
//!
//! If every use of a sum is linear (added to another such sum, scaled by a factor that is constant along the axis,
//! carried), the elements may be accumulated instead of their sums. Threads that share a row then combine their values
//! once, not in every step.
use super::gpu_pass_state::PlacementPassState;
use super::rewrite::KernelRewriter;
use super::simplify::simplify_and_track;
use super::variables::{CarriedVariable, carried_variables};
use pallas_ir::structural::Reduce;
use pallas_ir::{
    Dim, Inst, InstId, Kernel, Literal, Loc, Op, OperandId, RegionId, ScalarOp, StructuralOp, Type, Value,
    structural::Broadcast,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum elements of a summed tile that a loop may carry in place of its sum; sums of larger tiles stay inside of the
/// loop.
const MAX_CARRIED_TILE_ELEMENTS: usize = 4096;

/// Moves sums of tiles after the loop that accumulates them, wherever all their uses are linear: the loop then
/// accumulates tiles, which are summed once. Does nothing on devices whose threads do not hold tiles in registers.
pub(super) fn sink_reductions(staged: &mut PlacementPassState) {
    if !staged.has_registers {
        return;
    }
    let (mut kernel, marked) = (staged.kernel.clone(), &mut staged.carried);
    let mut tried = BTreeSet::new();
    while let Some((at, reduce)) = find_sinkable_sums(&kernel).into_iter().find(|(i, _)| !tried.contains(i)) {
        let mut uses = ValueUses::default();
        uses.collect_region(&kernel, kernel.body, 0);
        let delayed = LinearSumUses::find(&kernel, &uses, at, &reduce).map(|class| class.rewrite(marked));
        match delayed {
            // Instructions have new numbers.
            Some(delayed) => (kernel, tried) = (delayed, BTreeSet::new()),
            None => drop(tried.insert(at)),
        }
    }
    staged.kernel = simplify_and_track(&kernel, marked);
}

/// Returns the sums that may be moved after their loop: those of tiles of at most [`MAX_CARRIED_TILE_ELEMENTS`]
/// elements, whatever their uses.
fn find_sinkable_sums(k: &Kernel) -> Vec<(InstId, Reduce)> {
    let mut found = vec![];
    k.walk(k.body, &mut |id, inst| match &inst.op {
        Op::Structural(StructuralOp::Reduce(r))
            if r.op == ScalarOp::Add && k.ty(inst.args[0]).elements() <= MAX_CARRIED_TILE_ELEMENTS =>
        {
            found.push((id, r.clone()));
        }
        _ => {}
    });
    found
}

/// For each value the instructions that use and define it; for each instruction the number of loops around it.
#[derive(Default)]
struct ValueUses {
    users: BTreeMap<Value, Vec<InstId>>,
    definition: BTreeMap<Value, InstId>,
    depth: BTreeMap<InstId, usize>,
    /// For each value: the variables of loops and branches that it belongs to, each as the list of the variable's
    /// values; `None` for a variable of a `while`.
    variables: BTreeMap<Value, Vec<Option<Vec<Value>>>>,
}

impl ValueUses {
    /// Collects the uses in a region; `depth` counts the loops around it.
    fn collect_region(&mut self, k: &Kernel, region: RegionId, depth: usize) {
        for &id in &k.region(region).insts {
            let inst = k.inst(id);
            self.depth.insert(id, depth);
            inst.args.iter().for_each(|&v| self.users.entry(v).or_default().push(id));
            self.definition.extend(inst.results.iter().map(|&v| (v, id)));
            if inst.regions.is_empty() {
                continue;
            }
            for CarriedVariable { start, values } in carried_variables(k, inst) {
                let all: Vec<Value> = start.into_iter().chain(values).collect();
                for &v in &all {
                    let known = (inst.op != Op::While).then(|| all.clone());
                    self.variables.entry(v).or_default().push(known);
                }
            }
            let inner = depth + usize::from(inst.op != Op::If);
            inst.regions.iter().for_each(|&r| self.collect_region(k, r, inner));
        }
    }
}

/// A sum and all values to which it contributes linearly: their copies get the shape of the summed tile ("wide").
struct LinearSumUses<'k> {
    k: &'k Kernel,
    wide: BTreeSet<Value>,
    /// Tiles of zeros from which the sums start.
    zeros: BTreeSet<Value>,
    reduce: Reduce,
    shape: Vec<usize>,
}

impl<'k> LinearSumUses<'k> {
    /// Finds all values to which a sum contributes linearly; `None` if a use of one of them inside of the loop is not
    /// linear, or if the sum is in no loop.
    fn find(k: &'k Kernel, uses: &ValueUses, at: InstId, reduce: &Reduce) -> Option<LinearSumUses<'k>> {
        let sum = k.inst(at);
        let (shape, depth) = (k.ty(sum.args[0]).shape.clone(), uses.depth[&at]);
        let mut class =
            LinearSumUses { k, wide: BTreeSet::new(), zeros: BTreeSet::new(), reduce: reduce.clone(), shape };
        let mut open = vec![sum.results[0]];
        let mut escapes = vec![];
        while let Some(v) = open.pop() {
            if !class.wide.insert(v) {
                continue;
            }
            class.collect_wide_operands(uses, v, &mut open)?;
            for &id in uses.users.get(&v).into_iter().flatten() {
                let user = k.inst(id);
                match &user.op {
                    Op::Scalar(ScalarOp::Add | ScalarOp::Mul) if k.ty(user.results[0]) == k.ty(v) => {
                        open.push(user.results[0]);
                    }
                    Op::For { .. } | Op::While => {}
                    _ => escapes.push(id),
                }
            }
            for variable in uses.variables.get(&v).into_iter().flatten() {
                open.extend(variable.as_ref()?);
            }
        }
        let outside = escapes.iter().all(|id| uses.depth[id] < depth);
        let linear = class.wide.iter().all(|&v| class.is_linear(uses, v));
        (outside && linear && depth > 0).then_some(class)
    }
    /// If `v` is computed on whole tiles in place of their sums, its operands may have to be too: adds those to
    /// `pending`, the values still to be visited. Returns `None` if the operation that defines `v` cannot be computed
    /// on whole tiles.
    fn collect_wide_operands(&mut self, uses: &ValueUses, v: Value, pending: &mut Vec<Value>) -> Option<()> {
        let k = self.k;
        let Some(&id) = uses.definition.get(&v) else { return uses.variables.contains_key(&v).then_some(()) };
        let inst = k.inst(id);
        match &inst.op {
            Op::Structural(StructuralOp::Reduce(r)) => {
                let same = *r == self.reduce && k.ty(inst.args[0]).shape == self.shape;
                same.then_some(())?;
            }
            Op::Scalar(ScalarOp::Add) => pending.extend(&inst.args),
            Op::Scalar(ScalarOp::Mul) | Op::If | Op::For { .. } => {}
            Op::Structural(StructuralOp::Broadcast(_)) if self.is_zero(uses, inst.args[0]) => {
                self.zeros.insert(v);
            }
            _ => return None,
        }
        Some(())
    }
    fn is_zero(&self, uses: &ValueUses, v: Value) -> bool {
        let defined = uses.definition.get(&v).map(|&id| &self.k.inst(id).op);
        matches!(defined, Some(Op::Const(x)) if x.as_f64() == 0.0)
    }
    /// Returns true if `v` is no product, or the product of one value to which the sum contributes and one to which it
    /// does not.
    fn is_linear(&self, uses: &ValueUses, v: Value) -> bool {
        match uses.definition.get(&v).map(|&id| self.k.inst(id)) {
            Some(Inst { op: Op::Scalar(ScalarOp::Mul), args, .. }) => {
                args.iter().filter(|a| self.wide.contains(a)).count() == 1
            }
            _ => true,
        }
    }

    fn rewrite(&self, tracked: &mut Vec<(Value, OperandId)>) -> Kernel {
        let mut rewrite = KernelRewriter::new(self.k);
        let wide = |&v: &Value| (v, Type::new(self.k.ty(v).dtype, self.shape.clone()));
        rewrite.retyped.extend(self.wide.iter().map(wide));
        rewrite.inline_region(self.k.body, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
        rewrite.remap_values(tracked);
        rewrite.finish()
    }
    /// Replaces an instruction that computes one of these values by one on tiles of the summed shape, and gives other
    /// instructions the sums of such tiles as operands. Returns false for an instruction that only has to be copied.
    fn rewrite_inst(&self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        let is_wide = |v: &Value| self.wide.contains(v);
        match &inst.op {
            Op::If | Op::For { .. } | Op::While => return false,
            Op::Structural(StructuralOp::Broadcast(_)) if self.zeros.contains(&inst.results[0]) => {
                let to = self.shape.iter().map(|&n| Dim::from(n as i64)).collect();
                let zero = r.out.constant(Literal::new(self.k.ty(inst.results[0]).dtype, 0.0), loc);
                r.append(Op::Structural(Broadcast::to(to).into()), vec![zero], inst, loc);
            }
            Op::Structural(StructuralOp::Reduce(_)) if is_wide(&inst.results[0]) => {
                let elements = r.mapped_value(inst.args[0]);
                r.map_value(inst.results[0], elements);
            }
            Op::Scalar(_) if is_wide(&inst.results[0]) => return false,
            _ if inst.args.iter().any(is_wide) => {
                let args =
                    inst.args.iter().map(|&v| if is_wide(&v) { self.emit_sum(r, v, loc) } else { r.mapped_value(v) });
                let args = args.collect();
                r.append(inst.op.clone(), args, inst, loc);
            }
            _ => return false,
        }
        true
    }
    /// Emits the sum of the tile that stands for `v` in the copied kernel, which instructions that are not on such
    /// tiles use in place of `v`.
    fn emit_sum(&self, r: &mut KernelRewriter<'_>, v: Value, loc: Loc) -> Value {
        let wide = r.mapped_value(v);
        r.out.emit(Op::Structural(self.reduce.clone().into()), &[wide], loc).expect("it has the axes")
    }
}
