//! The region object of a staged `while`.
use super::context::{self, EagerRegionMark, Handle};
use super::decide::{Condition, Decision, DecisionKey, Slot};
use super::stage::{advance_eager_loop, read_slot_handles, write_slot_handles};
use pallas_ir::{Loc, RegionId};
use std::marker::PhantomData;

/// State of a staged `while`; the expansion of `#[kernel]` calls its methods.
#[derive(Debug)]
pub struct While<When> {
    rounds: u64,
    mark: EagerRegionMark,
    init: Vec<Handle>,
    test: Option<RegionId>,
    tested: Option<Handle>,
    loc: Loc,
    when: PhantomData<When>,
}
impl<When: Decision> While<When> {
    /// Begins a staged `while` at the caller's line, before its first iteration.
    #[track_caller]
    #[allow(clippy::new_without_default, reason = "it stands for a place in the source")]
    pub fn new() -> Self {
        let (mark, loc) = (EagerRegionMark::default(), Loc::caller());
        While { rounds: 0, mark, init: vec![], test: None, tested: None, loc, when: PhantomData }
    }
    /// Returns a key whose type `When` is the time at which the loop's condition is decided, for functions that infer
    /// it.
    pub fn key(&self) -> DecisionKey<When> {
        PhantomData
    }
    /// Returns `Some` if the loop's condition is decided when the kernel runs, so that the loop is staged; `None` if
    /// the host decides it while tracing.
    #[inline]
    pub fn gate(&self) -> Option<When::Pass> {
        When::pass()
    }
    /// Begins an iteration, before its condition; `slots` are the variables that the loop changes. Returns false at the
    /// second call while tracing, which appends the recorded loop; in eager mode it always returns true.
    pub fn head(&mut self, slots: &mut [Slot<'_, When>]) -> bool {
        self.rounds += 1;
        if !context::is_tracing() {
            advance_eager_loop(&mut self.mark, self.rounds == 1, true, slots);
            context::check_iteration_limit(self.rounds - 1, self.loc);
            return true;
        }
        if self.rounds == 1 {
            self.init = read_slot_handles(slots);
            let params = context::begin_traced_region(false, context::types_of(&self.init, self.loc), &self.init);
            write_slot_handles(slots, &params);
            return true;
        }
        let body = context::end_traced_region(&read_slot_handles(slots), self.loc);
        let test = self.test.take().expect("the condition was recorded");
        let loc = self.loc;
        let init = std::mem::take(&mut self.init);
        let results =
            context::append_with_regions(&init, init.len(), loc, |b, args| b.emit_while(args, test, body, loc));
        write_slot_handles(slots, &results);
        false
    }
    /// Takes the condition and returns true if the caller has to run the body now: in a trace, to record it; otherwise
    /// if the condition is true.
    #[track_caller]
    #[inline]
    pub fn condition<C: Condition<When>>(&mut self, c: C) -> bool {
        self.tested = c.handle();
        self.tested.is_some() && context::is_tracing()
            || c.value() && (self.tested.is_none() || context::can_continue_loop())
    }
    /// Closes the condition and opens the body, with the variables as the condition left them.
    pub fn body(&mut self, slots: &mut [Slot<'_, When>]) {
        if !context::is_tracing() {
            return;
        }
        let carried = read_slot_handles(slots);
        let mut yields: Vec<Handle> = self.tested.into_iter().collect();
        yields.extend(&carried);
        let types = context::types_of(&carried, self.loc);
        self.test = Some(context::end_traced_region(&yields, self.loc));
        let params = context::begin_traced_region(false, types, &carried);
        write_slot_handles(slots, &params);
    }
}
