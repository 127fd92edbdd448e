//! The time at which a condition is decided, and the values that a region may change, read and yield.
//!
//! The decision is a type, inferred from the condition. [`Undecided`] means that there is none. It keeps rustc from
//! inferring a decision from a variable that only one decision allows: the error would then be at the condition, not at
//! the variable.
use super::context::{self, Handle};
use super::operand::{Host, Takes, emit_host_constant};
use super::tile::{Scalar, Tile};
use pallas_ir::{At, DType, Diag, Elem, Literal, Op, ScalarOp};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::panic::RefUnwindSafe;

/// A boolean that is known on the host, at run time, or for each element.
pub trait Truth {
    /// Returns the boolean on the host; that of a run-time scalar exists only in eager mode.
    #[doc(hidden)]
    fn value(&self) -> bool;
    /// Returns the handle of a run-time value; `None` for a host `bool`.
    #[doc(hidden)]
    fn handle(&self) -> Option<Handle>;
}
impl Truth for bool {
    #[inline]
    fn value(&self) -> bool {
        *self
    }
    fn handle(&self) -> Option<Handle> {
        None
    }
}
/// Condition of an `if` or `while`. The parameter `When` is the time at which it is decided.
///
/// `When` is a parameter, not an associated type: an invalid condition is then reported once, not again for each use of
/// its decision.
#[diagnostic::on_unimplemented(
    message = "a condition must be a `bool` or a run-time `Scalar<bool>`, found `{Self}`",
    label = "this is a `{Self}`",
    note = "choose between tiles with `select(mask, a, b)`, or reduce the mask: `mask.any(..).item()`"
)]
pub trait Condition<When: Decision>: Truth {}
impl Condition<AtTrace> for bool {}
impl Condition<AtRunTime> for Scalar<bool> {}

/// Decision that the host makes once, while the kernel is traced, about a condition that is a `bool`.
#[derive(Clone, Copy, Debug)]
pub enum AtTrace {}
/// Decision that each program makes as it runs, about a condition that is a run-time `Scalar<bool>`.
#[derive(Clone, Copy, Debug)]
pub enum AtRunTime {}
/// Decision for each element of a tile of `bool`s on the left of `&&` or `||`: both sides are computed.
#[derive(Clone, Copy, Debug)]
pub enum Elementwise {}
/// Stands for no decision: no condition has this type, so that rustc can't infer a decision from something other than
/// the condition.
#[derive(Clone, Copy, Debug)]
pub enum Undecided {}

/// The time at which a condition is decided.
pub trait Decision: Sized {
    /// Token without which staging code can't run. The type has values only for decisions at run time, so that rustc
    /// treats staging code as dead elsewhere.
    type Pass;
    /// True if the right side of `&&` and `||` is computed for every value of the left side.
    #[doc(hidden)]
    const EVALUATES_BOTH: bool = false;
    /// Returns the token if the decision is made at run time, else `None`.
    #[doc(hidden)]
    #[inline]
    fn pass() -> Option<Self::Pass> {
        None
    }
}
impl Decision for AtTrace {
    type Pass = Infallible;
}
impl Decision for AtRunTime {
    type Pass = ();
    #[inline]
    fn pass() -> Option<()> {
        Some(())
    }
}
impl Decision for Elementwise {
    type Pass = Infallible;
    const EVALUATES_BOTH: bool = true;
}
impl Decision for Undecided {
    type Pass = Infallible;
}

/// Decisions of regions that `break`, `continue` and `return` may leave.
#[diagnostic::on_unimplemented(
    message = "this can't leave an `if` or `while` that is decided at run time",
    label = "would leave a staged region",
    note = "its condition is a run-time `Scalar<bool>`: both sides are recorded. Put what follows into `else`, or decide with a host `bool`"
)]
pub trait MayLeave {}
impl MayLeave for AtTrace {}
#[diagnostic::do_not_recommend]
impl MayLeave for Elementwise {}
#[diagnostic::do_not_recommend]
impl MayLeave for Undecided {}

/// Decisions of regions in which a variable declared without a value may be assigned its first value.
#[diagnostic::on_unimplemented(
    message = "a variable gets its first value in an `if` or `while` that is decided at run time",
    label = "has no value before",
    note = "give it one where it is declared, as `let mut`; or use the value of the `if` itself: `let y = if .. {{ a }} else {{ b }};`"
)]
pub trait MayDefer {}
impl MayDefer for AtTrace {}
#[diagnostic::do_not_recommend]
impl MayDefer for Elementwise {}
#[diagnostic::do_not_recommend]
impl MayDefer for Undecided {}

/// Values that a staged region can carry from one side or iteration to the next: tiles, scalars, tuples and arrays of
/// them.
pub trait Carry {
    #[doc(hidden)]
    fn collect_handles(&self, out: &mut Vec<Handle>);
    #[doc(hidden)]
    fn assign_handles(&mut self, from: &mut dyn Iterator<Item = Handle>);
}
macro_rules! handles {
    ($($H:ident)*) => {$(
        impl Truth for $H<bool> {
            #[track_caller]
            fn value(&self) -> bool {
                context::read_eager_integer(self.handle, "a condition") != 0
            }
            fn handle(&self) -> Option<Handle> {
                Some(self.handle)
            }
        }
        impl<T: Elem> Carry for $H<T> {
            fn collect_handles(&self, out: &mut Vec<Handle>) {
                out.push(self.handle);
            }
            fn assign_handles(&mut self, from: &mut dyn Iterator<Item = Handle>) {
                if let Some(handle) = from.next() {
                    self.handle = handle;
                }
            }
        }
    )*};
}
handles! { Tile Scalar }
impl Carry for () {
    fn collect_handles(&self, _: &mut Vec<Handle>) {}
    fn assign_handles(&mut self, _: &mut dyn Iterator<Item = Handle>) {}
}
impl<T: Carry, const N: usize> Carry for [T; N] {
    fn collect_handles(&self, out: &mut Vec<Handle>) {
        self.iter().for_each(|x| x.collect_handles(out));
    }
    fn assign_handles(&mut self, from: &mut dyn Iterator<Item = Handle>) {
        self.iter_mut().for_each(|x| x.assign_handles(from));
    }
}
macro_rules! carry_tuple {
    ($($T:ident $t:ident $i:tt),*) => {
        impl<$($T: Carry),*> Carry for ($($T,)*) {
            fn collect_handles(&self, out: &mut Vec<Handle>) { $(self.$i.collect_handles(out);)* }
            fn assign_handles(&mut self, from: &mut dyn Iterator<Item = Handle>) { $(self.$i.assign_handles(from);)* }
        }
    };
}
tuples! { carry_tuple }

/// Values that a region may change: any type if the host decides, types with [`Carry`] if decided at run time.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` can't change in a region that is decided at run time",
    label = "changes here, but is a host `{Self}`",
    note = "tiles, scalars, and tuples and arrays of them can: begin a number with a run-time value (`let mut n = scalar(0);`), and hold the tiles of a struct, `Vec` or `Option` in variables of their own",
    note = "or let the host decide: `#[unroll]`, a condition that is a host `bool`"
)]
pub trait Changes<When> {
    #[doc(hidden)]
    fn handles(&self, _: &mut Vec<Handle>) {}
    #[doc(hidden)]
    fn replace_handles(&mut self, _: &mut dyn Iterator<Item = Handle>) {}
}
impl<T> Changes<AtTrace> for T {}
impl<T> Changes<Elementwise> for T {}
impl<T> Changes<Undecided> for T {}
#[diagnostic::do_not_recommend]
impl<T: Carry> Changes<AtRunTime> for T {
    fn handles(&self, out: &mut Vec<Handle>) {
        self.collect_handles(out);
    }
    fn replace_handles(&mut self, from: &mut dyn Iterator<Item = Handle>) {
        self.assign_handles(from);
    }
}

/// Values that an `if` may yield: any type if the host decides, types with [`Carry`] if decided at run time.
#[diagnostic::on_unimplemented(
    message = "an `if` or `match` that is decided at run time gives a host `{Self}`",
    label = "a host `{Self}`",
    note = "give a run-time value: `scalar(1.0f32)`, `scalar(2)`, a tile, or a tuple or array of them",
    note = "or let the host decide: a condition that is a host `bool`"
)]
pub trait Gives<When>: Changes<When> {}
impl<T> Gives<AtTrace> for T {}
impl<T> Gives<Elementwise> for T {}
impl<T> Gives<Undecided> for T {}
#[diagnostic::do_not_recommend]
impl<T: Carry> Gives<AtRunTime> for T {}

/// Values that a region decided at run time may read: those without interior mutability.
///
/// This trait accepts [`Sync`] types; [`Held::steady`] accepts [`RefUnwindSafe`] types before this trait is considered.
/// `Rc` is only the latter, `dyn Fn + Sync` only the former, and `Cell` neither.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` can change unseen inside a region that is decided at run time",
    label = "used inside the region; its interior mutability can't be staged",
    note = "assign to a `let mut` variable instead; the region carries it",
    note = "a closure in a `dyn Fn(..)` says that it keeps no `Cell` by `dyn Fn(..) + Sync`"
)]
pub trait Steady<When> {}
impl<T> Steady<AtTrace> for T {}
impl<T> Steady<Elementwise> for T {}
impl<T> Steady<Undecided> for T {}
#[diagnostic::do_not_recommend]
impl<T: Sync> Steady<AtRunTime> for T {}

/// A variable that the body of a staged `if`, `for` or `while` reads and does not change.
#[derive(Debug)]
pub struct Held<'a, When, T>(pub DecisionKey<When>, pub &'a T);

impl<'a, When, T: RefUnwindSafe> Held<'a, When, T> {
    /// Borrows the variable; types without [`RefUnwindSafe`] have the method of [`Otherwise`] instead.
    #[inline]
    pub fn steady(&self) -> &'a T {
        self.1
    }
}
/// Second choice of method resolution for `steady` on a [`Held`] variable: types without [`RefUnwindSafe`] have it if
/// they are [`Steady`] for the decision.
pub trait Otherwise<'a, When, T> {
    /// Borrows the variable, whose type has to be [`Steady`] for the decision.
    fn steady(&self) -> &'a T
    where
        T: Steady<When>;
}
impl<'a, When, T> Otherwise<'a, When, T> for Held<'a, When, T> {
    #[inline]
    fn steady(&self) -> &'a T
    where
        T: Steady<When>,
    {
        self.1
    }
}

/// Borrows the variables that a region only reads until its end; rustc names this type if the region changes one of
/// them.
#[derive(Debug)]
pub struct HostValuesStayTheSameWhereDecidedAtRunTime<T>(pub T);
impl<T> Drop for HostValuesStayTheSameWhereDecidedAtRunTime<T> {
    #[inline]
    fn drop(&mut self) {}
}

/// A value that carries a region's decision `When` as a type to the functions that the expansion calls.
pub type DecisionKey<When> = PhantomData<When>;

/// Reference to a variable that the body of a staged `if`, `for` or `while` changes.
pub type Slot<'a, When> = &'a mut (dyn Changes<When> + 'a);

/// Borrows a variable that the region changes, as a [`Slot`].
pub fn slot<'a, When, T: Changes<When> + 'a>(_: DecisionKey<When>, x: &'a mut T) -> Slot<'a, When> {
    x
}
/// Returns `x`, the value of a side of an `if`; rustc checks here that the decision allows its type.
#[inline]
pub fn gives<When, T: Gives<When>>(_: DecisionKey<When>, x: T) -> T {
    x
}
/// Lets rustc check that the decision allows a `break`, `continue` or `return` that leaves the region; the expansion
/// calls it before one.
#[inline]
pub fn leaves_region<When: MayLeave>(_: DecisionKey<When>) {}
/// Lets rustc check that the decision allows the first assignment to a variable declared outside of the region; the
/// expansion calls it before one.
#[inline]
pub fn first_value<When: MayDefer>(_: DecisionKey<When>) {}
/// Returns `p`. The call diverges if `P` is uninhabited, so that the compiler, including the borrow checker, treats
/// the code after it as dead.
#[inline]
pub fn pass<P>(p: P) -> P {
    p
}

/// A bound or step of a staged `for`.
#[diagnostic::on_unimplemented(
    message = "a staged `for` counts over integers, found `{Self}`",
    label = "not an integer bound"
)]
pub trait Bound {
    #[doc(hidden)]
    fn bound(self) -> Handle;
    /// Returns the integer after this one: the exclusive end of a range `lo..=self`.
    #[doc(hidden)]
    fn successor(self) -> Handle;
}
impl Bound for Scalar<i32> {
    fn bound(self) -> Handle {
        self.handle
    }
    #[track_caller]
    fn successor(self) -> Handle {
        if !context::is_tracing()
            && context::read_eager_integer(self.handle, "a bound of this `for`") == i64::from(i32::MAX)
        {
            let message = format!("a staged `for` can't reach {}", i32::MAX);
            return context::record_error(Diag::new(
                "range",
                At::Op,
                message,
                "its variable is an i32, and so is the end after it",
            ));
        }
        let one = context::emit_constant(Literal::int(DType::I32, 1));
        context::emit(Op::Scalar(ScalarOp::Add), &[self.handle, one])
    }
}
#[diagnostic::do_not_recommend]
impl<L: Host> Bound for L
where
    i32: Takes<L>,
{
    #[track_caller]
    fn bound(self) -> Handle {
        emit_host_constant::<i32, L>(self)
    }
    #[track_caller]
    fn successor(self) -> Handle {
        match self.literal(DType::I32) {
            Ok(last) => emit_host_constant::<i32, i64>(last.as_i64() + 1),
            Err(diag) => context::record_error(diag),
        }
    }
}
