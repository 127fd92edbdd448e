//! Staging: control flow that stays in place in the user's body.
//!
//! `#[kernel]` turns `if`, `for` and `while` into ordinary Rust whose steps ask a region object. The type of the
//! condition selects a *pass*: for a host `bool` the pass is uninhabited, so every staged step behind it is unreachable,
//! to the borrow checker as well, and the user's code is plain Rust. For a run-time [`Scalar<bool>`] the pass exists while
//! tracing, both sides run once, and what changes is carried through the region.
use super::context::{self, Handle, Mark};
use super::operand::{Host, Takes, host_constant};
pub use super::repeat::While;
use super::tile::{Scalar, Tile};
use pallas_ir::{DType, Elem, Literal, Loc, RegionId};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::ControlFlow::{self, Break, Continue};

/// What an `if` or `while` may test, and when it is decided.
///
/// The decision is a parameter, not an associated type: a wrong condition is then reported once, not again for each use
/// of its decision.
#[diagnostic::on_unimplemented(
    message = "a condition must be a `bool` or a run-time `Scalar<bool>`, found `{Self}`",
    label = "this is a `{Self}`",
    note = "choose between tiles with `select(mask, a, b)`, or reduce the mask: `mask.any(..).item()`"
)]
pub trait Condition<When: Decision>: Sized {
    #[doc(hidden)]
    fn value(&self) -> bool;
    #[doc(hidden)]
    fn handle(&self) -> Option<Handle>;
}
impl Condition<AtTrace> for bool {
    #[inline]
    fn value(&self) -> bool {
        *self
    }
    fn handle(&self) -> Option<Handle> {
        None
    }
}
impl Condition<AtRunTime> for Scalar<bool> {
    fn value(&self) -> bool {
        context::decide(self.handle, "a condition") != 0
    }
    fn handle(&self) -> Option<Handle> {
        Some(self.handle)
    }
}

/// Decided by the host, once, while the kernel is traced.
#[derive(Clone, Copy, Debug)]
pub enum AtTrace {}
/// Decided by each program as it runs.
#[derive(Clone, Copy, Debug)]
pub enum AtRunTime {}

/// When a condition is decided.
pub trait Decision: Sized {
    /// Exists only where a region is decided at run time.
    type Pass;
    #[doc(hidden)]
    fn pass() -> Option<Self::Pass>;
}
impl Decision for AtTrace {
    type Pass = Infallible;
    #[inline]
    fn pass() -> Option<Infallible> {
        None
    }
}
impl Decision for AtRunTime {
    type Pass = ();
    #[inline]
    fn pass() -> Option<()> {
        Some(())
    }
}

/// Regions that `break`, `continue` and `return` may leave.
#[diagnostic::on_unimplemented(
    message = "this can't leave an `if` or `while` that is decided at run time",
    label = "would leave a staged region",
    note = "its condition is a run-time `Scalar<bool>`: both sides are recorded. Put what follows into `else`, or decide with a host `bool`"
)]
pub trait MayLeave {}
impl MayLeave for AtTrace {}

/// Regions in which a variable declared without a value may get one.
#[diagnostic::on_unimplemented(
    message = "a variable gets its first value in an `if` or `while` that is decided at run time",
    label = "has no value before",
    note = "give it one where it is declared, as `let mut`; or use the value of the `if` itself: `let y = if .. {{ a }} else {{ b }};`"
)]
pub trait MayDefer {}
impl MayDefer for AtTrace {}

/// What a staged region can carry from one side or iteration to the next: tiles, scalars, tuples and arrays of them.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` is a host value and can't change in a region that is decided at run time",
    label = "changes here, but is a host `{Self}`",
    note = "make it a run-time value (`scalar(0)`), or use `#[unroll]` or a host condition"
)]
pub trait Carry {
    #[doc(hidden)]
    fn collect(&self, out: &mut Vec<Handle>);
    #[doc(hidden)]
    fn assign(&mut self, from: &mut dyn Iterator<Item = Handle>);
}
macro_rules! carry_handle {
    ($($T:ident)*) => {$(
        impl<T: Elem> Carry for $T<T> {
            fn collect(&self, out: &mut Vec<Handle>) {
                out.push(self.handle);
            }
            fn assign(&mut self, from: &mut dyn Iterator<Item = Handle>) {
                if let Some(handle) = from.next() {
                    self.handle = handle;
                }
            }
        }
    )*};
}
carry_handle! { Tile Scalar }
impl Carry for () {
    fn collect(&self, _: &mut Vec<Handle>) {}
    fn assign(&mut self, _: &mut dyn Iterator<Item = Handle>) {}
}
impl<T: Carry, const N: usize> Carry for [T; N] {
    fn collect(&self, out: &mut Vec<Handle>) {
        self.iter().for_each(|x| x.collect(out));
    }
    fn assign(&mut self, from: &mut dyn Iterator<Item = Handle>) {
        self.iter_mut().for_each(|x| x.assign(from));
    }
}
macro_rules! carry_tuple {
    ($($T:ident $i:tt),*) => {
        impl<$($T: Carry),*> Carry for ($($T,)*) {
            fn collect(&self, out: &mut Vec<Handle>) { $(self.$i.collect(out);)* }
            fn assign(&mut self, from: &mut dyn Iterator<Item = Handle>) { $(self.$i.assign(from);)* }
        }
    };
}
carry_tuple! { A 0 }
carry_tuple! { A 0, B 1 }
carry_tuple! { A 0, B 1, C 2 }
carry_tuple! { A 0, B 1, C 2, D 3 }
carry_tuple! { A 0, B 1, C 2, D 3, E 4 }
carry_tuple! { A 0, B 1, C 2, D 3, E 4, F 5 }

/// [`Carry`] where the region is decided at run time; anything where the host decides.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` is a host value and can't change in a region that is decided at run time",
    label = "changes here, but is a host `{Self}`",
    note = "make it a run-time value (`scalar(0)`), or use `#[unroll]` or a host condition"
)]
pub trait Changes<When> {
    #[doc(hidden)]
    fn handles(&self, out: &mut Vec<Handle>);
    #[doc(hidden)]
    fn put_back(&mut self, from: &mut dyn Iterator<Item = Handle>);
}
impl<T> Changes<AtTrace> for T {
    fn handles(&self, _: &mut Vec<Handle>) {}
    fn put_back(&mut self, _: &mut dyn Iterator<Item = Handle>) {}
}
#[diagnostic::do_not_recommend]
impl<T: Carry> Changes<AtRunTime> for T {
    fn handles(&self, out: &mut Vec<Handle>) {
        self.collect(out);
    }
    fn put_back(&mut self, from: &mut dyn Iterator<Item = Handle>) {
        self.assign(from);
    }
}

/// What a region decided at run time may read: nothing that can change behind a shared reference.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` can change unseen inside a region that is decided at run time",
    label = "used inside the region; its interior mutability can't be staged",
    note = "assign to a `let mut` variable instead; the region carries it"
)]
pub trait Steady<When> {}
impl<T: ?Sized> Steady<AtTrace> for T {}
#[diagnostic::do_not_recommend]
impl<T: Sync + ?Sized> Steady<AtRunTime> for T {}

/// Names a region's decision in the expansion.
#[derive(Debug)]
pub struct Key<When>(PhantomData<When>);
impl<When> Key<When> {
    pub(super) fn new() -> Self {
        Key(PhantomData)
    }
}
impl<When> Clone for Key<When> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<When> Copy for Key<When> {}

/// A variable that a region changes.
pub type Slot<'a, When> = &'a mut (dyn Changes<When> + 'a);

/// Marks a variable as changed by the region.
pub fn slot<'a, When, T: Changes<When> + 'a>(_: Key<When>, x: &'a mut T) -> Slot<'a, When> {
    x
}
/// Holds a variable that the region only reads.
#[inline]
pub fn steady<When, T: Steady<When> + ?Sized>(_: Key<When>, x: &T) -> &T {
    x
}
/// Stands before a `break`, `continue` or `return` that leaves the region.
#[inline]
pub fn leaves_region<When: MayLeave>(_: Key<When>) {}
/// Stands before the first assignment to a variable from outside of the region.
#[inline]
pub fn first_value<When: MayDefer>(_: Key<When>) {}
/// Diverges when `P` is uninhabited: the compiler, borrow checker included, drops what follows.
#[inline]
pub fn pass<P>(p: P) -> P {
    p
}
/// Ends the borrow of what the region only read.
#[inline]
pub fn thaw<G>(_: G) {}

pub(super) fn read<When>(slots: &[Slot<'_, When>]) -> Vec<Handle> {
    let mut out = vec![];
    slots.iter().for_each(|s| Changes::<When>::handles(&**s, &mut out));
    out
}
pub(super) fn write<When>(slots: &mut [Slot<'_, When>], handles: &[Handle]) {
    let mut from = handles.iter().copied();
    slots.iter_mut().for_each(|s| Changes::<When>::put_back(&mut **s, &mut from));
}

/// A staged `if`.
#[derive(Debug)]
pub struct If<When> {
    condition: Option<Handle>,
    side: bool,
    before: Vec<Handle>,
    value: Vec<Handle>,
    then: Option<(RegionId, usize)>,
    mark: Mark,
    loc: Loc,
    when: PhantomData<When>,
}

/// Opens an `if`.
#[track_caller]
#[inline]
pub fn condition<When: Decision, C: Condition<When>>(c: C) -> If<When> {
    let condition = c.handle();
    let side = condition.is_some() && context::tracing() || c.value();
    let (mark, loc) = (Mark::default(), Loc::caller());
    If { condition, side, before: vec![], value: vec![], then: None, mark, loc, when: PhantomData }
}

impl<When: Decision> If<When> {
    /// Names the decision.
    pub fn key(&self) -> Key<When> {
        Key::new()
    }
    /// Whether both sides are recorded.
    #[inline]
    pub fn gate(&self) -> Option<When::Pass> {
        When::pass()
    }
    /// The side that runs now.
    #[inline]
    pub fn side(&self) -> bool {
        self.side
    }
    /// Opens the region of the first side.
    pub fn begin(&mut self, slots: &mut [Slot<'_, When>]) {
        self.before = read(slots);
        self.mark = context::open();
        context::begin(false, vec![], &[]);
    }
    /// After a side: its value, or on to the other side.
    #[inline]
    pub fn leave<V: Changes<When>>(&mut self, value: V) -> ControlFlow<V, When::Pass> {
        match When::pass() {
            Some(pass) if self.then.is_none() && context::tracing() => {
                Changes::<When>::handles(&value, &mut self.value);
                Continue(pass)
            }
            _ => Break(value),
        }
    }
    /// Closes the first side and opens the second, from the same variables.
    pub fn swap(&mut self, slots: &mut [Slot<'_, When>]) {
        let mut yields = std::mem::take(&mut self.value);
        yields.extend(read(slots));
        self.then = Some((context::end(&yields, self.loc), yields.len()));
        context::begin(false, vec![], &[]);
        self.side = false;
        write(slots, &self.before);
    }
    /// Closes the last side: the value and the variables are now the region's results.
    pub fn finish<V: Changes<When>>(&mut self, mut value: V, slots: &mut [Slot<'_, When>]) -> V {
        let mut yields = vec![];
        Changes::<When>::handles(&value, &mut yields);
        let own = yields.len();
        yields.extend(read(slots));
        let results = match self.then.take() {
            Some((then, _)) => {
                let (condition, loc) = (self.condition.expect("a run-time condition has a handle"), self.loc);
                let other = context::end(&yields, loc);
                context::nest(&[condition], yields.len(), loc, |b, args| b.emit_if(args[0], then, other, loc))
            }
            // Eager: one side ran.
            None => {
                context::close(self.mark, &mut yields, false);
                yields
            }
        };
        let (mine, rest) = results.split_at(own.min(results.len()));
        Changes::<When>::put_back(&mut value, &mut mine.iter().copied());
        write(slots, rest);
        value
    }
}

/// A bound or step of a staged `for`.
#[diagnostic::on_unimplemented(
    message = "a staged `for` counts over integers, found `{Self}`",
    label = "not an integer bound"
)]
pub trait Bound {
    #[doc(hidden)]
    fn bound(self) -> Handle;
}
impl Bound for Scalar<i32> {
    fn bound(self) -> Handle {
        self.handle
    }
}
#[diagnostic::do_not_recommend]
impl<L: Host> Bound for L
where
    i32: Takes<L>,
{
    #[track_caller]
    fn bound(self) -> Handle {
        host_constant::<i32, L>(self)
    }
}

/// A half-open range of a staged `for`.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    lo: Handle,
    hi: Handle,
    step: Handle,
    reverse: bool,
}
/// `lo..hi`
#[track_caller]
pub fn range(lo: impl Bound, hi: impl Bound) -> Range {
    let (lo, hi) = (lo.bound(), hi.bound());
    Range { lo, hi, step: context::constant(Literal::int(DType::I32, 1)), reverse: false }
}
impl Range {
    /// Every `step`-th.
    #[track_caller]
    #[must_use]
    pub fn step_by(self, step: impl Bound) -> Range {
        Range { step: step.bound(), ..self }
    }
    /// Backwards.
    #[must_use]
    pub fn rev(self) -> Range {
        Range { reverse: !self.reverse, ..self }
    }
}

/// A staged `for`.
#[derive(Debug)]
pub struct For {
    range: Range,
    /// Iterations begun.
    at: i64,
    /// Eager: lo, step, iterations.
    count: (i64, i64, i64),
    init: Vec<Handle>,
    mark: Mark,
    loc: Loc,
}
impl For {
    /// Opens the loop.
    #[track_caller]
    pub fn new(range: Range) -> For {
        let mut count = (0, 1, 0);
        if !context::tracing() {
            let value = |h| context::decide(h, "a bound of this `for`");
            let (lo, hi, step) = (value(range.lo), value(range.hi), value(range.step));
            match crate::interp::walk::trip_count(lo, hi, step) {
                Ok(trips) => count = (lo, step, trips),
                Err(message) => {
                    context::blame(pallas_ir::Diag::new("step", pallas_ir::At::Op, message, ""));
                }
            }
        }
        For { range, at: -1, count, init: vec![], mark: Mark::default(), loc: Loc::caller() }
    }
    /// Names the decision.
    pub fn key(&self) -> Key<AtRunTime> {
        Key(PhantomData)
    }
    /// The next iteration's index; while tracing there is one iteration.
    pub fn next(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        self.at += 1;
        if context::tracing() { self.record(slots) } else { self.iterate(slots) }
    }
    fn record(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        if self.at == 0 {
            self.init = read(slots);
            let params = context::begin(true, context::types(&self.init, self.loc), &self.init);
            let (&index, carried) = params.split_first()?;
            write(slots, carried);
            return Some(Scalar::new(index));
        }
        let body = context::end(&read(slots), self.loc);
        let Range { lo, hi, step, reverse } = self.range;
        let args: Vec<Handle> = [lo, hi, step].into_iter().chain(self.init.iter().copied()).collect();
        let loc = self.loc;
        let results = context::nest(&args, self.init.len(), loc, |b, args| {
            b.emit_for([args[0], args[1], args[2]], reverse, &args[3..], body, loc)
        });
        write(slots, &results);
        None
    }
    fn iterate(&mut self, slots: &mut [Slot<'_, AtRunTime>]) -> Option<Scalar<i32>> {
        let (lo, step, trips) = self.count;
        let more = self.at < trips && context::healthy();
        turn(&mut self.mark, self.at == 0, more, slots);
        if !more {
            return None;
        }
        let k = if self.range.reverse { trips - 1 - self.at } else { self.at };
        Some(Scalar::new(context::constant(Literal::int(DType::I32, lo + k * step))))
    }
}

/// Eager: ends a turn of a loop, and opens the next one if there are `more`.
pub(super) fn turn<When>(mark: &mut Mark, first: bool, more: bool, slots: &mut [Slot<'_, When>]) {
    if !first {
        let mut carried = read(slots);
        context::close(*mark, &mut carried, more);
        write(slots, &carried);
    } else if more {
        *mark = context::open();
    }
}
