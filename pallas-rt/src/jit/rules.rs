//! Stated rules of derivatives that call the function that they belong to.
//!
//! The forward rule of `custom_vjp` may be `f(x)` and what the derivative needs, as in JAX's first example, and `f` then
//! states the rule again: tracing it would never end. The rule inside of the rule matters to the second derivative, the one
//! inside of that to the third, so after [`ORDERS`] of them the function alone is traced.
use pallas_ir::Loc;
use std::cell::RefCell;

/// The order of derivatives up to which a rule inside of itself is followed.
const ORDERS: usize = 4;

/// The name of a rule: where it is stated, and the types of its functions.
type Rule = (Loc, &'static str);

thread_local! {
    /// The rules that are being traced, innermost last.
    static OPEN: RefCell<Vec<Rule>> = const { RefCell::new(vec![]) };
}

/// A rule that is being traced.
pub(super) struct Open(());

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.pop());
    }
}

/// Begins to trace a rule.
pub(super) fn open(rule: Rule) -> Open {
    OPEN.with_borrow_mut(|open| open.push(rule));
    Open(())
}

/// Returns true if a rule is being traced inside of itself so often that the function counts as one without it.
pub(super) fn is_nested(rule: Rule) -> bool {
    OPEN.with_borrow(|open| open.iter().filter(|known| **known == rule).count() >= ORDERS)
}
