//! The parts of the first and last step of the innermost sequential axis are moved out of its loop.
//!
//! ```text
//! for s in 0..n { if s == 0 { A }; B; if s == n - 1 { C } }    ->    A; for s in 0..n { B }; C
//! ```
//!
//! A launch has no axis without steps, so A and C are executed. A is moved only if nothing before it accesses memory
//! that changes, C only if nothing after it does. Neither is moved if it has loops, so that a region's first loop is
//! still that over its axis.
use super::gpu_pass_state::PlacementPassState;
use super::rewrite::KernelRewriter;
use super::sequential_axis::SequentialLoop;
use super::simplify::{is_pure, simplify};
use pallas_ir::{DType, Inst, InstId, Kernel, Literal, Loc, Op, ScalarOp, Value};

/// Moves `if`s that run only in the first or the last step of the innermost sequential axis out of its loop; does
/// nothing if a dispatch runs a range of the steps, which need not have the first or the last.
pub(super) fn peel(staged: &mut PlacementPassState) {
    if staged.resumed {
        return;
    }
    let kernel = peel_loop(&staged.kernel, staged.sequential);
    staged.kernel = simplify(kernel.as_ref().unwrap_or(&staged.kernel));
}

/// Returns the kernel with the `if`s that run in the first or the last step of its innermost sequential loop moved out
/// of that loop; `None` if neither can be moved. `sequential` is the number of sequential axes.
fn peel_loop(kernel: &Kernel, sequential: usize) -> Option<Kernel> {
    let axis = SequentialLoop::innermost(kernel, sequential)?;
    let peel = LoopPeeling { k: kernel, axis };
    let (first, last) = (peel.find_first_guard(), peel.find_last_guard());
    if first.is_none() && last.is_none() {
        return None;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| peel.rewrite_loop(r, inst, loc, first, last));
    Some(rewrite.finish())
}

/// Peeling of the first and the last step off the loop over the innermost sequential axis.
struct LoopPeeling<'k> {
    k: &'k Kernel,
    axis: SequentialLoop<'k>,
}

impl LoopPeeling<'_> {
    /// Returns the number of steps of the loop.
    fn step_count(&self) -> Value {
        self.k.inst(self.axis.at).args[1]
    }
    /// Returns the `if` that guards the part of the first step, if it can be moved.
    fn find_first_guard(&self) -> Option<InstId> {
        let insts = &self.k.region(self.axis.body).insts;
        let at = insts.iter().position(|&i| !is_pure(&self.k.inst(i).op))?;
        let quiet = insts[..at].iter().all(|&i| self.is_unaffected_by_stores(&self.k.inst(i).op));
        let zero = |v: Value| self.constant(v) == Some(0);
        (quiet && self.is_movable_guard(insts[at], &zero)).then_some(insts[at])
    }
    /// Returns the `if` that guards the part of the last step, if it can be moved.
    fn find_last_guard(&self) -> Option<InstId> {
        let insts = &self.k.region(self.axis.body).insts;
        let at = insts.iter().rposition(|&i| !is_pure(&self.k.inst(i).op))?;
        let end = |v: Value| match self.definition(v) {
            Some(Inst { op: Op::Scalar(ScalarOp::Sub), args, .. }) => {
                args[0] == self.step_count() && self.constant(args[1]) == Some(1)
            }
            _ => false,
        };
        self.is_movable_guard(insts[at], &end).then_some(insts[at])
    }
    /// Returns true if an instruction is `if index == v { .. }`, possibly with further conditions, for a value `v` that
    /// `is_step` accepts, and can be moved out of the loop.
    fn is_movable_guard(&self, id: InstId, is_step: &dyn Fn(Value) -> bool) -> bool {
        let inst = self.k.inst(id);
        let alone = matches!(inst.op, Op::If)
            && inst.results.is_empty()
            && self.k.region(inst.regions[1]).insts.is_empty()
            && self.implies_index_equals(inst.args[0], is_step);
        let mut loops = false;
        self.k.walk(inst.regions.first().copied().unwrap_or(self.axis.body), &mut |_, inner| {
            loops |= matches!(inner.op, Op::For { .. } | Op::While);
        });
        alone && !loops && self.body_values_read(inst).into_iter().all(|v| self.can_recompute_outside_loop(v))
    }
    /// Returns true if a condition can hold only where the loop's index equals a value that `is_step` accepts.
    fn implies_index_equals(&self, condition: Value, is_step: &dyn Fn(Value) -> bool) -> bool {
        match self.definition(condition) {
            Some(Inst { op: Op::Scalar(ScalarOp::Eq), args, .. }) => {
                args[0] == self.axis.index() && is_step(args[1]) || args[1] == self.axis.index() && is_step(args[0])
            }
            Some(Inst { op: Op::Scalar(ScalarOp::BitAnd), args, .. }) => {
                args.iter().any(|&v| self.implies_index_equals(v, is_step))
            }
            _ => false,
        }
    }
    /// Returns the instruction that defines a value, inside of the loop or outside; `None` for parameters of regions.
    fn definition(&self, v: Value) -> Option<&Inst> {
        let inside = self.axis.defined.get(&v).map(|&i| self.k.inst(i));
        inside.or_else(|| self.k.insts.iter().find(|inst| inst.results.contains(&v)))
    }
    fn constant(&self, v: Value) -> Option<i64> {
        match self.definition(v)?.op {
            Op::Const(x) => Some(x.as_i64()),
            _ => None,
        }
    }
    /// Returns the values defined in the loop's body that an instruction and its regions read.
    fn body_values_read(&self, inst: &Inst) -> Vec<Value> {
        let mut found = inst.args.clone();
        for &r in &inst.regions {
            found.extend(&self.k.region(r).yields);
            self.k.walk(r, &mut |_, inner| {
                found.extend(&inner.args);
                inner.regions.iter().for_each(|&r| found.extend(&self.k.region(r).yields));
            });
        }
        found.retain(|v| self.axis.defined.contains_key(v));
        found
    }
    /// Returns true if a value can be recomputed outside of the loop.
    fn can_recompute_outside_loop(&self, v: Value) -> bool {
        let Some(&id) = self.axis.defined.get(&v) else { return true };
        let inst = self.k.inst(id);
        is_pure(&inst.op)
            && self.is_unaffected_by_stores(&inst.op)
            && inst.args.iter().all(|&v| self.can_recompute_outside_loop(v))
    }
    /// Returns true if an operation has the same result before and after the kernel's stores.
    fn is_unaffected_by_stores(&self, op: &Op) -> bool {
        !matches!(op, Op::Load { from, .. } if !self.k.is_constant(*from))
    }

    /// Replaces the loop by the `if` that it ran in the first step, the loop without both `if`s, and the `if` that it
    /// ran in the last step; `first` and `last` are these, `None` where one is not moved. Returns false for any
    /// instruction but the loop.
    fn rewrite_loop(
        &self,
        r: &mut KernelRewriter<'_>,
        inst: &Inst,
        loc: Loc,
        first: Option<InstId>,
        last: Option<InstId>,
    ) -> bool {
        if !self.axis.is_loop_inst(inst) {
            return false;
        }
        if let Some(guard) = first {
            let zero = r.out.constant(Literal::int(DType::I32, 0), Loc::NONE);
            self.copy_guarded_part(r, guard, zero);
        }
        let moved = |other: &Inst| [first, last].into_iter().flatten().any(|g| std::ptr::eq(self.k.inst(g), other));
        let body = r.copy_region(self.axis.body, &mut |_, inst, _| moved(inst));
        let args = r.mapped_args(inst);
        r.append_control_flow(inst.op.clone(), args, vec![body], inst, loc);
        if let Some(guard) = last {
            let one = r.out.constant(Literal::int(DType::I32, 1), Loc::NONE);
            let steps = r.mapped_value(self.step_count());
            let end = r.out.scalar(ScalarOp::Sub, &[steps, one], Loc::NONE);
            self.copy_guarded_part(r, guard, end);
        }
        true
    }
    /// Copies, to the place outside of the loop, the `if` that the instruction `guard` is and the instructions of the
    /// loop's body that it needs, with the value `step` in place of the loop's index.
    fn copy_guarded_part(&self, r: &mut KernelRewriter<'_>, guard: InstId, step: Value) {
        let needed = self.body_values_read(self.k.inst(guard));
        self.axis.copy_for_step(r, step, needed.iter().map(|v| self.axis.defined[v]).chain([guard]).collect());
    }
}
