//! Stated derivative rules that call the function that they belong to.
//!
//! The forward rule of `custom_vjp` may call `f(x)` and return also what the derivative needs, as in JAX's first
//! example, and `f` then states the rule again: tracing it would never end. The rule inside of the rule matters to the
//! second derivative, the one inside of that to the third, so after [`ORDERS`] of them the function alone is traced.
use pallas_ir::Loc;
use std::cell::RefCell;

/// Maximum depth to which a rule inside of itself is traced, which is the highest order of derivatives that follows it.
const ORDERS: usize = 4;

/// The name of a rule: the line that states it, and the types of its functions.
type Rule = (Loc, &'static str);

thread_local! {
    /// The rules that are being traced, innermost last.
    static OPEN: RefCell<Vec<Rule>> = const { RefCell::new(vec![]) };
}

/// A guard of a rule that is being traced; dropping it ends the trace of the rule.
pub(super) struct Open(());

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.pop());
    }
}

/// Begins to trace a rule, until the guard is dropped.
pub(super) fn open(rule: Rule) -> Open {
    OPEN.with_borrow_mut(|open| open.push(rule));
    Open(())
}

/// Returns true if a rule is being traced inside of itself [`ORDERS`] times, so that the function is traced without its
/// rule.
pub(super) fn is_nested(rule: Rule) -> bool {
    OPEN.with_borrow(|open| open.iter().filter(|known| **known == rule).count() >= ORDERS)
}
