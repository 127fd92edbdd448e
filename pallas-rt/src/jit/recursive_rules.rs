//! Stated derivative rules that call the function that they belong to.
//!
//! The forward rule of `custom_vjp` may call `f(x)` and return also what the derivative needs, as in JAX's first
//! example, and `f` then states the rule again: tracing it would never end. The rule inside of the rule matters to the
//! second derivative, the one inside of that to the third, so after [`MAX_NESTED_RULES`] of them the function alone is
//! traced.
use pallas_ir::Loc;
use std::cell::RefCell;

/// Maximum number of times that a rule is traced inside of itself, and so the highest order of derivatives that follows
/// the rule; beyond it the function is traced without its rule.
const MAX_NESTED_RULES: usize = 4;

/// Identity of a derivative rule: the line that states it, and the types of its functions.
type RuleId = (Loc, &'static str);

thread_local! {
    /// The derivative rules that are being traced on this thread, innermost last; one inside of itself is listed again.
    static RULES_BEING_TRACED: RefCell<Vec<RuleId>> = const { RefCell::new(vec![]) };
}

/// A guard of a rule that is being traced; dropping it ends the trace of the rule.
pub(super) struct RuleGuard(());

impl Drop for RuleGuard {
    fn drop(&mut self) {
        RULES_BEING_TRACED.with_borrow_mut(|open| open.pop());
    }
}

/// Records that the derivative rule `rule` is being traced, until the guard is dropped.
pub(super) fn enter_rule(rule: RuleId) -> RuleGuard {
    RULES_BEING_TRACED.with_borrow_mut(|open| open.push(rule));
    RuleGuard(())
}

/// Returns true if a rule is being traced inside of itself [`MAX_NESTED_RULES`] times, so that the function is traced
/// without its rule.
pub(super) fn has_max_rule_nesting(rule: RuleId) -> bool {
    RULES_BEING_TRACED.with_borrow(|open| open.iter().filter(|known| **known == rule).count() >= MAX_NESTED_RULES)
}
