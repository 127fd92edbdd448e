//! Staging: control flow that stays in place in the user's body.
//!
//! `#[kernel]` turns `if`, `for`, `while`, and `&&` and `||` whose right side is more than a comparison into ordinary
//! Rust that calls methods of a region object. The time at which the region is decided ([`decide`](super::decide))
//! selects a *pass* type. For a host `bool` the pass is uninhabited, so every staged operation after it is unreachable,
//! also for the borrow checker, and the user's code is plain Rust. For a run-time [`Scalar<bool>`] the pass exists
//! while tracing, both sides run once, and the variables that they change are carried through the region.
use super::cmp::Left;
use super::context::{self, EagerRegionMark, Handle};
use super::decide::{AtRunTime, Bound, Changes, Condition, Decision, DecisionKey, Gives, Slot};
pub use super::staged_while::While;
use super::tile::Scalar;
use pallas_ir::{DType, Literal, Loc, RegionId};
use std::marker::PhantomData;
use std::ops::ControlFlow::{self, Break, Continue};

/// Returns the handles of all values in the variables that a region changes.
pub(super) fn read_slot_handles<When>(slots: &[Slot<'_, When>]) -> Vec<Handle> {
    let mut out = vec![];
    slots.iter().for_each(|s| Changes::<When>::handles(&**s, &mut out));
    out
}
/// Gives the variables that a region changes new handles.
pub(super) fn write_slot_handles<When>(slots: &mut [Slot<'_, When>], handles: &[Handle]) {
    let mut from = handles.iter().copied();
    slots.iter_mut().for_each(|s| Changes::<When>::replace_handles(&mut **s, &mut from));
}

/// State of a staged `if`; the expansion of `#[kernel]` calls its methods.
#[derive(Debug)]
pub struct If<When> {
    condition: Option<Handle>,
    side: bool,
    before: Vec<Handle>,
    value: Vec<Handle>,
    then: Option<RegionId>,
    mark: EagerRegionMark,
    loc: Loc,
    when: PhantomData<When>,
}

/// Opens an `if` with the condition `c`.
#[track_caller]
#[inline]
pub fn condition<When: Decision, C: Condition<When>>(c: C) -> If<When> {
    let condition = c.handle();
    let side = condition.is_some() && context::is_tracing() || c.value();
    If::new(condition, side, Loc::caller())
}
/// Opens the region of the right side of `&&` (its first side) or `||` (its second), which runs if the left side does
/// not decide.
#[track_caller]
#[inline]
pub fn short_circuit<When: Decision, L: Left>(left: &L, is_and: bool) -> If<When> {
    let side = match When::pass() {
        Some(_) if context::is_tracing() => true,
        None if When::EVALUATES_BOTH => is_and,
        _ => left.value(),
    };
    If::new(left.handle(), side, Loc::caller())
}

impl<When: Decision> If<When> {
    fn new(condition: Option<Handle>, side: bool, loc: Loc) -> Self {
        If {
            condition,
            side,
            before: vec![],
            value: vec![],
            then: None,
            mark: EagerRegionMark::default(),
            loc,
            when: PhantomData,
        }
    }
    /// Returns a key whose type `When` is the time at which the condition is decided, for functions that infer it.
    pub fn key(&self) -> DecisionKey<When> {
        PhantomData
    }
    /// Returns `Some` if the condition is decided when the kernel runs, so that both sides are staged; `None` if the
    /// host decides it while tracing.
    #[inline]
    pub fn gate(&self) -> Option<When::Pass> {
        When::pass()
    }
    /// Returns true if the first side runs now, and false if the second one does.
    #[inline]
    pub fn side(&self) -> bool {
        self.side
    }
    /// Opens the region of the first side.
    pub fn begin(&mut self, slots: &mut [Slot<'_, When>]) {
        self.before = read_slot_handles(slots);
        self.mark = context::open_eager_region();
        context::begin_traced_region(false, vec![], &[]);
    }
    /// Ends a side: `Break` with the value of the `if`, or `Continue` if the other side has to be recorded.
    #[inline]
    pub fn leave<V: Gives<When>>(&mut self, value: V) -> ControlFlow<V, When::Pass> {
        match When::pass() {
            Some(pass) if self.then.is_none() && context::is_tracing() => {
                Changes::<When>::handles(&value, &mut self.value);
                Continue(pass)
            }
            _ => Break(value),
        }
    }
    /// Closes the first side and opens the second, with the variables' values from before the first.
    pub fn swap(&mut self, slots: &mut [Slot<'_, When>]) {
        let mut yields = std::mem::take(&mut self.value);
        yields.extend(read_slot_handles(slots));
        self.then = Some(context::end_traced_region(&yields, self.loc));
        context::begin_traced_region(false, vec![], &[]);
        self.side = false;
        write_slot_handles(slots, &self.before);
    }
    /// Closes the last side; its value and variables become the region's results. Returns the value.
    pub fn finish<V: Gives<When>>(&mut self, mut value: V, slots: &mut [Slot<'_, When>]) -> V {
        let mut yields = vec![];
        Changes::<When>::handles(&value, &mut yields);
        let own = yields.len();
        yields.extend(read_slot_handles(slots));
        let results = match self.then.take() {
            Some(then) => {
                let (condition, loc) = (self.condition.expect("a run-time condition has a handle"), self.loc);
                let other = context::end_traced_region(&yields, loc);
                context::append_with_regions(&[condition], yields.len(), loc, |b, args| {
                    b.emit_if(args[0], then, other, loc)
                })
            }
            // Eager execution ran one side only.
            None => {
                context::close_eager_region(self.mark, &mut yields, false);
                yields
            }
        };
        let (mine, rest) = results.split_at(own.min(results.len()));
        Changes::<When>::replace_handles(&mut value, &mut mine.iter().copied());
        write_slot_handles(slots, rest);
        value
    }
}

/// A half-open range of indices, over which a staged `for` iterates.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    lo: Handle,
    hi: Handle,
    step: Handle,
    reverse: bool,
}
/// The range `lo..hi` of a staged `for`.
#[track_caller]
pub fn range(lo: impl Bound, hi: impl Bound) -> Range {
    let (lo, hi) = (lo.bound(), hi.bound());
    Range { lo, hi, step: context::emit_constant(Literal::int(DType::I32, 1)), reverse: false }
}
/// The range `lo..=last` of a staged `for`.
#[track_caller]
pub fn range_inclusive(lo: impl Bound, last: impl Bound) -> Range {
    let (lo, hi) = (lo.bound(), last.successor());
    Range { lo, hi, step: context::emit_constant(Literal::int(DType::I32, 1)), reverse: false }
}
impl Range {
    /// The range with only every `step`-th index.
    #[track_caller]
    #[must_use]
    pub fn step_by(self, step: impl Bound) -> Range {
        Range { step: step.bound(), ..self }
    }
    /// The range in reverse order.
    #[must_use]
    pub fn rev(self) -> Range {
        Range { reverse: !self.reverse, ..self }
    }
}

/// State of a staged `for`; the expansion of `#[kernel]` calls its methods.
#[derive(Debug)]
pub struct For {
    range: Range,
    /// Index of the current iteration; -1 before the first.
    at: i64,
    /// In eager mode: the first index, the step, and the number of iterations.
    count: (i64, i64, i64),
    init: Vec<Handle>,
    mark: EagerRegionMark,
    loc: Loc,
}
impl For {
    /// Begins a staged `for` over `range` at the caller's line; in eager mode, reads the bounds and counts the
    /// iterations.
    #[track_caller]
    pub fn new(range: Range) -> For {
        let mut count = (0, 1, 0);
        if !context::is_tracing() {
            // Not through a closure, for which `track_caller` has no effect: a fault must be at the user's line.
            let what = "a bound of this `for`";
            let (lo, hi) = (context::read_eager_integer(range.lo, what), context::read_eager_integer(range.hi, what));
            let step = context::read_eager_integer(range.step, what);
            match pallas_codegen::interp::walk::trip_count(lo, hi, step) {
                Ok(trips) => count = (lo, step, trips),
                Err(message) => {
                    context::record_error(pallas_ir::Diag::new("step", pallas_ir::At::Op, message, ""));
                }
            }
        }
        For { range, at: -1, count, init: vec![], mark: EagerRegionMark::default(), loc: Loc::caller() }
    }
    /// Returns a key whose type says that the loop is decided at run time, for functions that infer it.
    pub fn key(&self) -> DecisionKey<AtRunTime> {
        PhantomData
    }
    /// Begins the next iteration and returns its index; `None` after the last. While tracing there is one iteration.
    pub fn next(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        self.at += 1;
        if context::is_tracing() { self.record_iteration(slots) } else { self.begin_eager_iteration(slots) }
    }
    /// Records the loop while tracing: the first call opens the body and returns the index, the second closes the body,
    /// appends the loop and returns `None`.
    fn record_iteration(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        if self.at == 0 {
            self.init = read_slot_handles(slots);
            let params = context::begin_traced_region(true, context::types_of(&self.init, self.loc), &self.init);
            let (&index, carried) = params.split_first()?;
            write_slot_handles(slots, carried);
            return Some(Scalar::new(index));
        }
        let body = context::end_traced_region(&read_slot_handles(slots), self.loc);
        let Range { lo, hi, step, reverse } = self.range;
        let args: Vec<Handle> = [lo, hi, step].into_iter().chain(self.init.iter().copied()).collect();
        let loc = self.loc;
        let results = context::append_with_regions(&args, self.init.len(), loc, |b, args| {
            b.emit_for([args[0], args[1], args[2]], reverse, &args[3..], body, loc)
        });
        write_slot_handles(slots, &results);
        None
    }
    /// Begins the next iteration in eager mode and returns its index; `None` after the last one or a fault.
    fn begin_eager_iteration(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        let (lo, step, trips) = self.count;
        let more = self.at < trips && context::can_continue_loop();
        advance_eager_loop(&mut self.mark, self.at == 0, more, slots);
        if !more {
            return None;
        }
        let k = if self.range.reverse { trips - 1 - self.at } else { self.at };
        Some(Scalar::new(context::emit_constant(Literal::int(DType::I32, lo + k * step))))
    }
}

/// In eager mode, ends an iteration of a loop (unless `is_first`), and opens the next one if `has_more` is true.
pub(super) fn advance_eager_loop<When>(
    mark: &mut EagerRegionMark,
    is_first: bool,
    has_more: bool,
    slots: &mut [Slot<'_, When>],
) {
    if !is_first {
        let mut carried = read_slot_handles(slots);
        context::close_eager_region(*mark, &mut carried, has_more);
        write_slot_handles(slots, &carried);
    } else if has_more {
        *mark = context::open_eager_region();
    }
}
