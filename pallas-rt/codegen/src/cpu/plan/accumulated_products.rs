//! Matrix products that are summed in scratch by a loop: the sums need not be set to zeros first, nor copied at the
//! end.
//!
//! ```text
//! for t { if t == 0 { s = zeros }; s += a[t] · b[t]; if t == last { out = s } }
//!   ->  for t { if t == 0 { s is empty and lies in out }; s (+)= a[t] · b[t]; if t == last { out = s } }
//! ```
//!
//! The first product after a [`Step::BeginAccumulation`] sets the empty scratch instead of adding to it. The scratch lies in the
//! output's memory during the loop if nothing else touches either, and if the output's block is the same in every
//! iteration and inside of the array (`run/clamped_access` checks this): then the copy at the end does nothing.
use super::Plan;
use super::step::{LaunchConstant, OperandView, Step, StepBlock};
use crate::passes::lower::is_whole;
use pallas_ir::{Kernel, Op, OperandId, OperandKind, ScalarOp, Value};
use std::collections::{HashMap, HashSet};

/// The kernel's scalars and accesses, which the search for sums of products reads.
struct AccumulationSearch<'a> {
    kernel: &'a Kernel,
    fixed: &'a HashMap<Value, LaunchConstant>,
    roots: &'a [Value],
    /// The scalar operation and arguments that compute each scalar.
    scalars: HashMap<Value, (ScalarOp, &'a [Value])>,
    /// Number of steps in the whole body that touch each operand's memory.
    touches: HashMap<OperandId, usize>,
}

/// Finds the sums of products in a plan's loops, and lets them begin without zeros and end without a copy.
pub(super) fn skip_zeros_and_copies(plan: &mut Plan) {
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
    known.search_block(&mut plan.body, &mut outside);
}

impl AccumulationSearch<'_> {
    fn count_accesses(&mut self, block: &StepBlock) {
        for step in &block.steps {
            if let Some(place) = accessed_view(step) {
                *self.touches.entry(self.kernel.memory_of(place.operand)).or_default() += 1;
            }
            step.blocks().into_iter().for_each(|block| self.count_accesses(block));
        }
    }

    /// Searches the loops of a block; `defined` has the scalars that earlier steps have computed.
    fn search_block(&self, block: &mut StepBlock, defined: &mut HashSet<Value>) {
        for step in &mut block.steps {
            match step {
                Step::ProgramId { to, .. } | Step::Scalar { to, .. } => {
                    defined.insert(*to);
                }
                Step::For { bounds, reverse, index, body, rolled, .. } => {
                    let mut inside = defined.clone();
                    if rolled.is_none() {
                        let counts = !*reverse && self.is_constant(bounds[0], 0) && self.is_constant(bounds[2], 1);
                        self.search_loop(body, *index, counts.then_some(bounds[1]), &inside);
                    }
                    self.search_block(body, &mut inside);
                }
                _ => step.blocks_mut().into_iter().for_each(|block| self.search_block(block, &mut defined.clone())),
            }
        }
    }

    /// Searches the body of a loop. `turns` is the number of iterations, if the loop counts up from 0 in steps of 1.
    fn search_loop(&self, body: &mut StepBlock, index: Value, turns: Option<Value>, outside: &HashSet<Value>) {
        let mut before = outside.clone();
        for at in 0..body.steps.len() {
            if let Step::ProgramId { to, .. } | Step::Scalar { to, .. } = &body.steps[at] {
                before.insert(*to);
            }
            let Some((zeros, place)) = self.find_zero_store(&body.steps[at]) else { continue };
            let operand = place.operand;
            let Some(product) = self.find_product(body, at, operand) else { continue };
            let lend = turns.and_then(|turns| self.find_final_destination(body, at, index, turns, operand, &before));
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
        let count = all.filter(|step| self.touches(step, place.operand)).count();
        (count == 1).then(|| (at, place.clone()))
    }

    /// Finds the product that is added to a scratch operand, if that is the next access of the scratch after step
    /// `after`.
    fn find_product(&self, body: &StepBlock, after: usize, scratch: OperandId) -> Option<usize> {
        let mut touching = (0..body.steps.len()).filter(|&at| self.touches(&body.steps[at], scratch));
        if touching.next() != Some(after) {
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
        // One that is aimed at what it is added to reads nothing else from there.
        let is_product = |step: &Step| matches!(step, Step::Dot(dot) if dot.to == *value && dot.init == Some(*loaded));
        let product = (aim..store).find(|&at| is_product(&body.steps[at]))?;
        let anyone = |step: &Step| step.reads().into_iter().any(reads);
        let alone = body.steps.iter().enumerate().all(|(at, step)| at == product || !any_nested_step(step, &anyone))
            && !body.yields.iter().copied().any(reads);
        let whole = [from, aimed, to].into_iter().all(|place| self.is_whole_scratch(place));
        (whole && alone && stored == value && self.kernel.ty(*value).dtype.bytes() >= 4).then_some(product)
    }

    /// Returns the place to which the loop's last iteration copies a scratch operand, if the scratch can lie there
    /// from the first iteration on.
    fn find_final_destination(
        &self,
        body: &StepBlock,
        first: usize,
        index: Value,
        turns: Value,
        scratch: OperandId,
        before: &HashSet<Value>,
    ) -> Option<OperandView> {
        let Step::If { condition, sides, .. } = &body.steps[first] else { return None };
        if !self.is_iteration_test(*condition, index, |v| self.is_constant(v, 0))
            || self.touches[&scratch] != 5
            || !sides[1].steps.is_empty()
        {
            return None;
        }
        let last = (first + 1..body.steps.len())
            .find(|&at| matches!(&body.steps[at], Step::If { .. }) && self.touches(&body.steps[at], scratch))?;
        let Step::If { condition, sides, .. } = &body.steps[last] else { return None };
        let is_last = |v: Value| match self.scalars.get(&v) {
            Some((ScalarOp::Sub, [n, one])) => *n == turns && self.is_constant(*one, 1),
            _ => false,
        };
        if !self.is_iteration_test(*condition, index, is_last) {
            return None;
        }
        let [Step::Load { from, mask: None, in_place: true, to: loaded, .. }, Step::Store { value, to, mask: None }] =
            &sides[0].steps[..]
        else {
            return None;
        };
        let memory = self.kernel.memory_of(to.operand);
        let same = self.is_whole_scratch(from) && value == loaded && self.shape(to) == self.shape(from);
        let known = to.starts.iter().all(|&v| self.is_loop_invariant(v, index, before));
        (same && known && self.touches[&memory] == 1).then(|| to.clone())
    }

    /// Returns true if `condition` compares the loop's `index` for equality with a value that `which` accepts.
    fn is_iteration_test(&self, condition: Value, index: Value, which: impl Fn(Value) -> bool) -> bool {
        match self.scalars.get(&condition) {
            Some((ScalarOp::Eq, [a, b])) => *a == index && which(*b) || *b == index && which(*a),
            _ => false,
        }
    }

    /// Returns true if a scalar is known before the loop's first iteration touches the scratch, and is the same in
    /// each iteration.
    fn is_loop_invariant(&self, v: Value, index: Value, before: &HashSet<Value>) -> bool {
        let is_known = before.contains(&v) || self.fixed.contains_key(&v);
        is_known
            && v != index
            && self
                .scalars
                .get(&v)
                .is_none_or(|(_, args)| args.iter().all(|&arg| self.is_loop_invariant(arg, index, before)))
    }

    /// Returns true if a step, or one inside of it, accesses the operand's memory.
    fn touches(&self, step: &Step, operand: OperandId) -> bool {
        any_nested_step(step, &|step| {
            accessed_view(step).is_some_and(|place| self.kernel.memory_of(place.operand) == operand)
        })
    }

    /// Returns true if a place is the whole of a scratch operand.
    fn is_whole_scratch(&self, place: &OperandView) -> bool {
        let is_scratch = self.kernel.operand(place.operand).kind == OperandKind::Scratch;
        is_scratch && is_whole(self.kernel, place.operand, &place.view)
    }

    fn shape(&self, place: &OperandView) -> Vec<usize> {
        place.view.axes.iter().filter(|axis| axis.kept).map(|axis| axis.size).collect()
    }

    fn is_zero(&self, v: Value) -> bool {
        matches!(self.fixed.get(&self.roots[v.index()]), Some(LaunchConstant::Constant(x)) if x.bits == 0)
    }

    fn is_constant(&self, v: Value, n: i64) -> bool {
        matches!(self.fixed.get(&v), Some(LaunchConstant::Constant(x)) if x.as_i64() == n)
    }
}

/// Returns the elements of an operand that the step itself accesses.
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
fn any_nested_step(step: &Step, f: &impl Fn(&Step) -> bool) -> bool {
    f(step) || step.blocks().into_iter().any(|block| block.steps.iter().any(|step| any_nested_step(step, f)))
}
