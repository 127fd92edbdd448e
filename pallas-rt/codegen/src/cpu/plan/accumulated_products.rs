//! Matrix products that are summed in scratch by a loop: the sums need not be set to zeros first, nor copied at the
//! end.
//!
//! ```text
//! for t { if t == 0 { s = zeros }; s += a[t] · b[t]; if t == last { out = s } }
//!   ->  for t { if t == 0 { s is empty and lies in out }; s (+)= a[t] · b[t]; if t == last { out = s } }
//! ```
//!
//! The first product after a [`Step::BeginAccumulation`] sets the empty scratch instead of adding to it. The scratch
//! lies in the output's memory during the loop if nothing else touches either, and if the output's block is the same in
//! every iteration and inside of the array (`run/clamped_access` checks this): then the copy at the end does nothing.
use super::Plan;
use super::step::{LaunchConstant, OperandView, Step, StepBlock};
use crate::passes::lower::is_whole_scratch_view;
use pallas_ir::{Kernel, Op, OperandId, OperandKind, ScalarOp, Value};
use std::collections::{HashMap, HashSet};

/// Search for matrix products that a kernel's loops add up in a scratch operand: the kernel's scalars and accesses that
/// it looks at.
struct AccumulationSearch<'a> {
    kernel: &'a Kernel,
    fixed: &'a HashMap<Value, LaunchConstant>,
    roots: &'a [Value],
    /// The scalar operation and arguments that compute each scalar.
    scalars: HashMap<Value, (ScalarOp, &'a [Value])>,
    /// Number of steps in the whole body that touch each operand's memory.
    touches: HashMap<OperandId, usize>,
}

/// Makes products that a loop adds up in a scratch operand begin without zeros in it, and end without a copy out of it,
/// where this is possible.
pub(super) fn elide_zeros_and_copies(plan: &mut Plan) {
    if plan.kernel.operands.iter().all(|operand| operand.kind != OperandKind::Scratch) {
        return;
    }
    let kernel = plan.kernel.clone();
    let mut known = AccumulationSearch {
        kernel: &kernel,
        fixed: &plan.fixed.iter().copied().collect(),
        roots: &plan.roots,
        scalars: HashMap::new(),
        touches: HashMap::new(),
    };
    for region in &kernel.regions {
        for inst in region.insts.iter().map(|&i| kernel.inst(i)) {
            if let Op::Scalar(op) = inst.op {
                known.scalars.insert(inst.results[0], (op, &inst.args));
            }
        }
    }
    known.count_accesses(&plan.body);
    let mut outside = HashSet::new();
    known.mark_accumulations_in_block(&mut plan.body, &mut outside);
}

impl AccumulationSearch<'_> {
    fn count_accesses(&mut self, block: &StepBlock) {
        for step in &block.steps {
            if let Some(place) = accessed_view(step) {
                *self.touches.entry(self.kernel.memory_of(place.operand)).or_default() += 1;
            }
            step.nested_blocks().into_iter().for_each(|block| self.count_accesses(block));
        }
    }

    /// Looks in all loops of a block for matrix products that are summed in scratch, and lets the first product set the
    /// scratch. `defined_before` has the scalars that earlier steps have computed, and grows by those of the block.
    fn mark_accumulations_in_block(&self, block: &mut StepBlock, defined_before: &mut HashSet<Value>) {
        for step in &mut block.steps {
            match step {
                Step::ProgramId { to, .. } | Step::Scalar { to, .. } => {
                    defined_before.insert(*to);
                }
                Step::For { bounds, reverse, index, body, rolled, .. } => {
                    let mut inside = defined_before.clone();
                    if rolled.is_none() {
                        let counts =
                            !*reverse && self.equals_constant(bounds[0], 0) && self.equals_constant(bounds[2], 1);
                        self.mark_accumulations_in_loop(body, *index, counts.then_some(bounds[1]), &inside);
                    }
                    self.mark_accumulations_in_block(body, &mut inside);
                }
                _ => step
                    .nested_blocks_mut()
                    .into_iter()
                    .for_each(|block| self.mark_accumulations_in_block(block, &mut defined_before.clone())),
            }
        }
    }

    /// Finds in a loop's body each scratch operand that an `if` sets to zeros and a matrix product then adds to, and
    /// lets the product set it instead. `trip_count` is the number of iterations, given only if the loop counts up from
    /// 0 in steps of 1; `defined_outside` has the scalars computed before the loop.
    fn mark_accumulations_in_loop(
        &self,
        body: &mut StepBlock,
        index: Value,
        trip_count: Option<Value>,
        defined_outside: &HashSet<Value>,
    ) {
        let mut before = defined_outside.clone();
        for at in 0..body.steps.len() {
            if let Step::ProgramId { to, .. } | Step::Scalar { to, .. } = &body.steps[at] {
                before.insert(*to);
            }
            let Some((zeros, place)) = self.find_zero_store(&body.steps[at]) else { continue };
            let operand = place.operand;
            let Some(product) = self.find_accumulating_product(body, at, operand) else { continue };
            let lend =
                trip_count.and_then(|turns| self.find_final_destination(body, at, index, turns, operand, &before));
            if let Step::If { sides, .. } = &mut body.steps[at] {
                sides[0].steps[zeros] = Step::BeginAccumulation { sums: operand, lend };
            }
            if let Step::Dot(dot) = &mut body.steps[product] {
                dot.begins = Some(operand);
            }
        }
    }

    /// Finds the step of a branch that stores zeros to a whole scratch operand, if the branch does not touch that
    /// otherwise.
    fn find_zero_store(&self, step: &Step) -> Option<(usize, OperandView)> {
        let Step::If { sides, .. } = step else { return None };
        let (at, place) = sides[0].steps.iter().enumerate().find_map(|(at, step)| match step {
            Step::Store { value, to, mask: None } if self.is_whole_scratch(to) && self.is_zero(*value) => {
                Some((at, to))
            }
            _ => None,
        })?;
        let all = [&sides[0], &sides[1]].into_iter().flat_map(|side| &side.steps);
        let count = all.filter(|step| self.accesses_operand(step, place.operand)).count();
        (count == 1).then(|| (at, place.clone()))
    }

    /// Returns the position of the product that is added to a scratch operand; `None` unless that is the next access of
    /// the scratch after the step `zeroing_step`.
    fn find_accumulating_product(&self, body: &StepBlock, zeroing_step: usize, scratch: OperandId) -> Option<usize> {
        let mut touching = (0..body.steps.len()).filter(|&at| self.accesses_operand(&body.steps[at], scratch));
        if touching.next() != Some(zeroing_step) {
            return None;
        }
        let [load, aim, store] = [touching.next()?, touching.next()?, touching.next()?];
        let (
            Step::Load { from, mask: None, to: loaded, in_place: true, .. },
            Step::RedirectResult { value, at: aimed, .. },
        ) = (&body.steps[load], &body.steps[aim])
        else {
            return None;
        };
        let Step::Store { value: stored, to, mask: None } = &body.steps[store] else { return None };
        let reads = |v: Value| self.roots[v.index()] == *loaded;
        // One that is redirected to what it is added to reads nothing else from there.
        let is_product = |step: &Step| matches!(step, Step::Dot(dot) if dot.to == *value && dot.init == Some(*loaded));
        let product = (aim..store).find(|&at| is_product(&body.steps[at]))?;
        let anyone = |step: &Step| step.reads().into_iter().any(reads);
        let alone = body.steps.iter().enumerate().all(|(at, step)| at == product || !any_step_within(step, &anyone))
            && !body.yields.iter().copied().any(reads);
        let whole = [from, aimed, to].into_iter().all(|place| self.is_whole_scratch(place));
        (whole && alone && stored == value && self.kernel.ty(*value).dtype.bytes() >= 4).then_some(product)
    }

    /// Returns the place to which the loop's last iteration copies a scratch operand, if the scratch can lie there
    /// from the first iteration on.
    fn find_final_destination(
        &self,
        body: &StepBlock,
        zeroing_step: usize,
        index: Value,
        trip_count: Value,
        scratch: OperandId,
        defined_before: &HashSet<Value>,
    ) -> Option<OperandView> {
        let Step::If { condition, sides, .. } = &body.steps[zeroing_step] else { return None };
        if !self.is_index_equality_test(*condition, index, |v| self.equals_constant(v, 0))
            || self.touches[&scratch] != 5
            || !sides[1].steps.is_empty()
        {
            return None;
        }
        let last = (zeroing_step + 1..body.steps.len()).find(|&at| {
            matches!(&body.steps[at], Step::If { .. }) && self.accesses_operand(&body.steps[at], scratch)
        })?;
        let Step::If { condition, sides, .. } = &body.steps[last] else { return None };
        let is_last = |v: Value| match self.scalars.get(&v) {
            Some((ScalarOp::Sub, [n, one])) => *n == trip_count && self.equals_constant(*one, 1),
            _ => false,
        };
        if !self.is_index_equality_test(*condition, index, is_last) {
            return None;
        }
        let [Step::Load { from, mask: None, in_place: true, to: loaded, .. }, Step::Store { value, to, mask: None }] =
            &sides[0].steps[..]
        else {
            return None;
        };
        let memory = self.kernel.memory_of(to.operand);
        let same = self.is_whole_scratch(from) && value == loaded && self.view_shape(to) == self.view_shape(from);
        let known = to.starts.iter().all(|&v| self.is_loop_invariant(v, index, defined_before));
        (same && known && self.touches[&memory] == 1).then(|| to.clone())
    }

    /// Returns true if `condition` compares the loop's `index` for equality with a value that `accepts` returns true
    /// for.
    fn is_index_equality_test(&self, condition: Value, index: Value, accepts: impl Fn(Value) -> bool) -> bool {
        match self.scalars.get(&condition) {
            Some((ScalarOp::Eq, [a, b])) => *a == index && accepts(*b) || *b == index && accepts(*a),
            _ => false,
        }
    }

    /// Returns true if a scalar has the same value in each iteration of the loop, and that value is known before the
    /// first iteration accesses the scratch: it is in `defined_before`, or constant during the launch.
    fn is_loop_invariant(&self, v: Value, index: Value, defined_before: &HashSet<Value>) -> bool {
        let is_known = defined_before.contains(&v) || self.fixed.contains_key(&v);
        is_known
            && v != index
            && self
                .scalars
                .get(&v)
                .is_none_or(|(_, args)| args.iter().all(|&arg| self.is_loop_invariant(arg, index, defined_before)))
    }

    /// Returns true if a step, or one inside of it, accesses the operand's memory.
    fn accesses_operand(&self, step: &Step, operand: OperandId) -> bool {
        any_step_within(step, &|step| {
            accessed_view(step).is_some_and(|place| self.kernel.memory_of(place.operand) == operand)
        })
    }

    /// Returns true if a place is the whole of a scratch operand.
    fn is_whole_scratch(&self, place: &OperandView) -> bool {
        let is_scratch = self.kernel.operand(place.operand).kind == OperandKind::Scratch;
        is_scratch && is_whole_scratch_view(self.kernel, place.operand, &place.view)
    }

    fn view_shape(&self, place: &OperandView) -> Vec<usize> {
        place.view.axes.iter().filter(|axis| axis.kept).map(|axis| axis.size).collect()
    }

    fn is_zero(&self, v: Value) -> bool {
        matches!(self.fixed.get(&self.roots[v.index()]), Some(LaunchConstant::Constant(x)) if x.bits == 0)
    }

    fn equals_constant(&self, v: Value, n: i64) -> bool {
        matches!(self.fixed.get(&v), Some(LaunchConstant::Constant(x)) if x.as_i64() == n)
    }
}

/// Returns the view through which the step itself loads from an operand, stores to it, redirects a result to it or
/// tests positions in it; `None` for other steps.
fn accessed_view(step: &Step) -> Option<&OperandView> {
    match step {
        Step::Load { from: place, .. }
        | Step::Store { to: place, .. }
        | Step::RedirectResult { at: place, .. }
        | Step::Valid { of: place, .. } => Some(place),
        _ => None,
    }
}

/// Returns true if `f` holds for the step or for one inside of it.
fn any_step_within(step: &Step, f: &impl Fn(&Step) -> bool) -> bool {
    f(step) || step.nested_blocks().into_iter().any(|block| block.steps.iter().any(|step| any_step_within(step, f)))
}
