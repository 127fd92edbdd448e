//! The decision which values of a scan's body are computed before, in or after the loop.
use super::SplitScan;
use crate::call::Scan;
use crate::dead_code::without_dead_equations;
use crate::graph::{Equation, Graph, Op, Var};
use crate::transform::batched_maybe_forcing_results;
use pallas_ir::structural::{Cast, Reduce};
use pallas_ir::{DType, ScalarOp, StructuralOp};
use std::collections::BTreeSet;

/// Most elements of the values of a body that may be split at any operation. A body with larger values is split at
/// products only: elementwise operations take longer if their operands come from memory.
const MAX_SPLIT_BODY_ELEMENTS: usize = 1 << 14;
/// Most multiply-adds of a product that is moved out of the loop: a larger one gains nothing from being computed for
/// all steps at once.
const MAX_MOVED_MULTIPLY_ADDS: usize = 1 << 22;
/// Most elements of the new arrays that splitting a scan may need, for each element of the arrays that the scan has.
const MAX_ARRAY_GROWTH_FACTOR: usize = 4;
/// Most bytes of the new arrays that splitting a scan may need.
const MAX_NEW_ARRAY_BYTES: usize = 64 << 20;

/// The part of a split scan in which a value of the body is computed: before, in or after the loop, or nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoopPhase {
    /// Before the loop, for all steps: the value depends on captured values and arrays alone.
    Before,
    /// In the loop, step by step.
    Within,
    /// After the loop, for all steps: the carried values do not need the value.
    After,
    /// Not at all: it is a part of a sum that is computed over all steps at once.
    Never,
}

/// A carried value to which each step adds something.
struct CarriedSum {
    /// The carried value's number in the scan.
    carried: usize,
    /// The equations from stacked values to what each step adds, in order.
    path: Vec<Equation>,
    /// The operands of the first of these equations, stacked over all steps; without one, the value that is added.
    of: Vec<Var>,
}

/// The decision, for each value of a scan's body, in which part of the split scan it is computed: before, in or after
/// the loop.
pub(super) struct PhaseAssignment<'b> {
    scan: &'b Scan,
    body: &'b Graph,
    definitions: Vec<Option<usize>>,
    /// By variable, when it is computed.
    when: Vec<LoopPhase>,
    /// By variable that is computed before the loop, true if it differs between steps.
    differs: Vec<bool>,
    /// By variable that is computed before the loop, true if it depends on no parameter of the body.
    constant: Vec<bool>,
    /// The carried values that are sums.
    sums: Vec<CarriedSum>,
}

impl<'b> PhaseAssignment<'b> {
    /// Decides for a scan with this body; with `allows_any_operation` any operation may move out of the loop, else only
    /// products with what they need. Returns `None` if values of the body are too large for `allows_any_operation`, or
    /// if the scan carries nothing but sums.
    pub(super) fn new(scan: &'b Scan, body: &'b Graph, allows_any_operation: bool) -> Option<PhaseAssignment<'b>> {
        let count = body.types.len();
        let definitions = body.definitions();
        let (when, differs, constant) = (vec![LoopPhase::Within; count], vec![false; count], vec![false; count]);
        let mut own = PhaseAssignment { scan, body, definitions, when, differs, constant, sums: vec![] };
        own.mark_before_loop(allows_any_operation);
        let is_small = |v: Var| body.ty(v).elements() <= MAX_SPLIT_BODY_ELEMENTS;
        let mut steps =
            (0..count as u32).map(Var).filter(|v| own.differs[v.index()] || own.when[v.index()] == LoopPhase::Within);
        if allows_any_operation && !steps.all(is_small) {
            return None;
        }
        own.mark_carried_sums(allows_any_operation);
        (own.sums.len() < scan.carried).then_some(())?;
        own.mark_after_loop(allows_any_operation);
        Some(own)
    }

    fn definition(&self, v: Var) -> Option<&'b Equation> {
        self.definitions[v.index()].map(|i| &self.body.equations[i])
    }

    fn is_in_phase(&self, v: Var, phase: LoopPhase) -> bool {
        self.when[v.index()] == phase
    }

    /// Returns the number of multiply-adds of a product; `None` for other equations.
    fn count_multiply_adds(&self, e: &Equation) -> Option<usize> {
        let Op::Structural(StructuralOp::Dot(dot)) = &e.op else { return None };
        let summed: usize = dot.contract.iter().map(|p| self.body.ty(e.args[0]).shape[p.0]).product();
        Some(self.body.ty(e.result()).elements().saturating_mul(summed))
    }

    /// Returns true for an operation that can be done for all steps at once.
    fn can_move_out_of_loop(&self, e: &Equation) -> bool {
        use StructuralOp as S;
        match &e.op {
            Op::Literal(_) | Op::Scalar(_) => true,
            Op::Identity(op) => !op.is_kept_in_plans(),
            Op::Structural(S::Dot(_)) => self.count_multiply_adds(e).is_some_and(|n| n <= MAX_MOVED_MULTIPLY_ADDS),
            Op::Structural(op) => matches!(
                op,
                S::Cast(_)
                    | S::Bitcast(_)
                    | S::Powi(_)
                    | S::Broadcast(_)
                    | S::Reshape(_)
                    | S::Transpose(_)
                    | S::Reduce(_)
                    | S::Slice(_)
                    | S::Concat(_)
                    | S::Pad(_)
                    | S::Reverse(_)
                    | S::Iota(_)
            ),
            Op::Dynamic(_) | Op::Collective(_) | Op::Call(_) => false,
        }
    }

    /// Marks values that do not depend on carried values as computed before the loop. Without `allows_any_operation`,
    /// values that differ between steps are only marked if they are products, or if products are computed from them.
    fn mark_before_loop(&mut self, allows_any_operation: bool) {
        let (fixed, arrays) = (self.scan.captured, self.scan.captured + self.scan.carried);
        for (i, p) in self.body.params.iter().enumerate() {
            if i < fixed || i >= arrays {
                self.when[p.index()] = LoopPhase::Before;
                self.differs[p.index()] = i >= arrays;
            }
        }
        for e in &self.body.equations {
            if self.can_move_out_of_loop(e) && e.args.iter().all(|&a| self.is_in_phase(a, LoopPhase::Before)) {
                let r = e.result().index();
                self.when[r] = LoopPhase::Before;
                self.differs[r] = e.args.iter().any(|a| self.differs[a.index()]);
                self.constant[r] = e.args.iter().all(|a| self.constant[a.index()]);
            }
        }
        if allows_any_operation {
            return;
        }
        // Keep only products, and what they are computed from.
        let mut is_needed = vec![false; self.body.types.len()];
        for e in self.body.equations.iter().rev() {
            let r = e.results[0];
            if !self.is_in_phase(r, LoopPhase::Before) || !self.differs[r.index()] {
                continue;
            }
            if is_needed[r.index()] || self.count_multiply_adds(e).is_some() {
                e.args.iter().for_each(|a| is_needed[a.index()] = true);
            } else {
                e.results.iter().for_each(|r| self.when[r.index()] = LoopPhase::Within);
            }
        }
    }

    /// Finds the carried values that are sums over the steps, and marks the values between what is summed and the sum
    /// with [`LoopPhase::Never`], because such a sum is computed over all steps at once. Without `allows_any_operation`
    /// only sums of products count.
    fn mark_carried_sums(&mut self, allows_any_operation: bool) {
        let body = self.body;
        let mut uses = vec![0usize; body.types.len()];
        body.equations.iter().flat_map(|e| &e.args).chain(&body.results).for_each(|v| uses[v.index()] += 1);
        for carried in 0..self.scan.carried {
            let (p, r) = (body.params[self.scan.captured + carried], body.results[carried]);
            if uses[p.index()] != 1 || uses[r.index()] != 1 || !body.ty(p).dtype.is_float() {
                continue;
            }
            let more = match self.definition(r) {
                Some(Equation { op: Op::Scalar(ScalarOp::Add), args, .. }) if args[0] == p => args[1],
                Some(Equation { op: Op::Scalar(ScalarOp::Add), args, .. }) if args[1] == p => args[0],
                _ => continue,
            };
            let (mut path, mut of) = (vec![], vec![more]);
            while let Some(e) = self.definition(of[0]).filter(|e| of.len() == 1 && uses[e.result().index()] == 1) {
                match &e.op {
                    Op::Structural(StructuralOp::Transpose(_) | StructuralOp::Reshape(_)) => {}
                    Op::Structural(StructuralOp::Cast(Cast { to }))
                        if is_narrowing_float_cast(*to, body.ty(e.args[0]).dtype) => {}
                    Op::Structural(StructuralOp::Dot(_)) if self.can_move_out_of_loop(e) => {}
                    Op::Structural(StructuralOp::Reduce(Reduce { op: ScalarOp::Add, keep: false, .. })) => {}
                    _ => break,
                }
                path.insert(0, e.clone());
                of.clone_from(&e.args);
                if !matches!(
                    e.op,
                    Op::Structural(StructuralOp::Transpose(_) | StructuralOp::Reshape(_) | StructuralOp::Cast(_))
                ) {
                    break;
                }
            }
            let is_product = path.first().is_some_and(|e| self.count_multiply_adds(e).is_some());
            if allows_any_operation || is_product {
                let gone = path.iter().map(Equation::result).chain([r]);
                gone.for_each(|v| self.when[v.index()] = LoopPhase::Never);
                self.sums.push(CarriedSum { carried, path, of });
            }
        }
    }

    /// Returns true if the carried value with this number stays in the loop, as it is no sum that can be computed over
    /// all steps at once.
    fn stays_carried(&self, carried: usize) -> bool {
        !self.sums.iter().any(|sum| sum.carried == carried)
    }

    /// Marks the values that carried values do not need as computed after the loop; without `allows_any_operation`,
    /// only products and what depends on them.
    fn mark_after_loop(&mut self, allows_any_operation: bool) {
        let body = self.body;
        let mut is_needed = vec![false; body.types.len()];
        let carried = (0..self.scan.carried).filter(|&k| self.stays_carried(k));
        carried.for_each(|k| is_needed[body.results[k].index()] = true);
        for e in body.equations.iter().rev() {
            if !self.is_in_phase(e.results[0], LoopPhase::Within) {
                continue;
            }
            if !self.can_move_out_of_loop(e) || e.results.iter().any(|r| is_needed[r.index()]) {
                e.args.iter().for_each(|a| is_needed[a.index()] = true);
            } else {
                self.when[e.result().index()] = LoopPhase::After;
            }
        }
        if allows_any_operation {
            return;
        }
        // Keep only products, and what depends on them.
        for e in &body.equations {
            let depends = e.args.iter().any(|&a| self.is_in_phase(a, LoopPhase::After));
            if self.is_in_phase(e.results[0], LoopPhase::After) && !depends && self.count_multiply_adds(e).is_none() {
                self.when[e.result().index()] = LoopPhase::Within;
            }
        }
    }

    /// Returns the equations that are computed at this time, and the values that they and `wanted` need from earlier
    /// times. Constants, broadcasts and reshapes from earlier times are computed again instead.
    fn collect_phase_equations(
        &self,
        phase: LoopPhase,
        wanted: impl Iterator<Item = Var>,
    ) -> (Vec<Equation>, Vec<Var>) {
        let own = self.body.equations.iter().filter(|e| self.is_in_phase(e.results[0], phase)).cloned();
        let mut equations: Vec<Equation> = own.collect();
        let (mut again, mut inputs, mut seen) = (vec![], vec![], BTreeSet::new());
        let wanted: Vec<Var> = equations.iter().flat_map(|e| e.args.clone()).chain(wanted).collect();
        for v in wanted.into_iter().filter(|&v| !self.is_in_phase(v, phase)) {
            self.add_demanded_value(v, phase, &mut again, &mut inputs, &mut seen);
        }
        again.append(&mut equations);
        (again, inputs)
    }

    /// Returns true for an equation that is computed again where its result is needed.
    fn is_recomputed(&self, e: &Equation) -> bool {
        use StructuralOp::{Broadcast, Reshape};
        self.constant[e.results[0].index()] || matches!(e.op, Op::Structural(Broadcast(_) | Reshape(_)))
    }

    /// Adds a value from an earlier time to `inputs`, or the equations that compute it again to `recomputed`.
    fn add_demanded_value(
        &self,
        v: Var,
        phase: LoopPhase,
        recomputed: &mut Vec<Equation>,
        inputs: &mut Vec<Var>,
        seen: &mut BTreeSet<Var>,
    ) {
        if !seen.insert(v) {
            return;
        }
        match self.definition(v).filter(|e| self.is_recomputed(e)) {
            Some(e) => {
                for &a in e.args.iter().filter(|&&a| !self.is_in_phase(a, phase)) {
                    self.add_demanded_value(a, phase, recomputed, inputs, seen);
                }
                recomputed.push(e.clone());
            }
            None => inputs.push(v),
        }
    }

    /// Splits the scan as decided; `None` if that gains nothing, or needs too much memory.
    pub(super) fn try_split(&self) -> Option<SplitScan> {
        let (scan, body) = (self.scan, self.body);
        let graph = |equations| Graph { types: body.types.clone(), equations, ..Graph::default() };
        let stacks = &body.results[scan.carried..];
        let sums = self.sums.iter().flat_map(|sum| &sum.of);
        let made: Vec<Var> = stacks.iter().chain(sums).copied().collect();
        let (equations, inputs) = self.collect_phase_equations(LoopPhase::After, made.iter().copied());
        let mut after = graph(equations);
        (after.params, after.results) = (inputs, made);

        let stored: Vec<Var> =
            after.params.iter().copied().filter(|&v| self.is_in_phase(v, LoopPhase::Within)).collect();
        let carried: Vec<usize> = (0..scan.carried).filter(|&k| self.stays_carried(k)).collect();
        let results: Vec<Var> = carried.iter().map(|&k| body.results[k]).chain(stored.iter().copied()).collect();
        let (equations, inputs) = self.collect_phase_equations(LoopPhase::Within, results.iter().copied());
        let (arrays, captured): (Vec<Var>, Vec<Var>) = inputs.into_iter().partition(|v| self.differs[v.index()]);
        let mut within = graph(equations);
        within.results = results;
        let own = carried.iter().map(|&k| body.params[scan.captured + k]);
        within.params = captured.iter().copied().chain(own).chain(arrays.iter().copied()).collect();

        let is_param = |v: &Var| self.definitions[v.index()].is_none();
        let early: BTreeSet<Var> = captured.iter().chain(&arrays).chain(&after.params).copied().collect();
        let early: Vec<Var> =
            early.into_iter().filter(|v| self.is_in_phase(*v, LoopPhase::Before) && !is_param(v)).collect();
        let mut before = graph(self.collect_phase_equations(LoopPhase::Before, early.iter().copied()).0);
        let fixed = scan.captured + scan.carried;
        before.params = [&body.params[..scan.captured], &body.params[fixed..]].concat();
        before.results = early;
        let before = without_dead_equations(before);

        // The equations that leave the loop, and the new arrays.
        let late = after.equations.iter().filter(|e| self.is_in_phase(e.results[0], LoopPhase::After));
        let moved = before.equations.iter().chain(late).any(|e| !self.is_recomputed(e));
        if !moved && self.sums.is_empty() {
            return None;
        }
        let new = arrays.iter().filter(|v| !is_param(v)).chain(stored.iter().filter(|v| !stacks.contains(v)));
        let late = after.results.iter().filter(|v| self.is_in_phase(**v, LoopPhase::After) && !stacks.contains(v));
        let new: BTreeSet<Var> = new.chain(late).copied().collect();
        let elements = |all: &mut dyn Iterator<Item = &Var>| all.map(|v| body.ty(*v).elements()).sum::<usize>();
        let bytes: usize = new.iter().map(|v| body.ty(*v).bytes()).sum();
        let has = elements(&mut body.params[fixed..].iter()) + elements(&mut stacks.iter());
        if elements(&mut new.iter()) > MAX_ARRAY_GROWTH_FACTOR * has
            || bytes.saturating_mul(scan.length) > MAX_NEW_ARRAY_BYTES
        {
            return None;
        }

        let which: Vec<bool> = before.params.iter().map(|p| self.differs[p.index()]).collect();
        let (all_before, has) = batched_maybe_forcing_results(&before, &which, scan.length, false).ok()?;
        debug_assert!(before.results.iter().zip(has).all(|(v, has)| self.differs[v.index()] == has));
        let which: Vec<bool> =
            after.params.iter().map(|&v| self.is_in_phase(v, LoopPhase::Within) || self.differs[v.index()]).collect();
        let (all_after, _) = batched_maybe_forcing_results(&after, &which, scan.length, true).ok()?;
        Some(SplitScan {
            captured: captured.len(),
            inits: carried,
            sums: self.sums.iter().map(|sum| (sum.carried, sum.path.clone(), sum.of.len())).collect(),
            params: before.params.clone(),
            early: before.results.clone(),
            late: after.params.clone(),
            before: all_before,
            within,
            after: all_after,
            scan: scan.clone(),
        })
    }
}

/// Returns true if a cast between floats only drops digits, so that it can follow a sum instead of preceding it.
fn is_narrowing_float_cast(to: DType, from: DType) -> bool {
    from.is_float() && to.is_float() && from.bytes() >= to.bytes()
}
