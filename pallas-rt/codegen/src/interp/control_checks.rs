//! Checks of values that control something (branches, loops, masks, starts of views): none of them may be undefined.
use super::datum::Datum;
use super::fault::Fault;
use super::machine::Machine;
use pallas_ir::{Literal, Loc};
use std::sync::LazyLock;

/// Maximum iterations of one `while`, after which the interpreter reports it as endless; `PALLAS_INTERPRET_TURNS`
/// changes it.
const MAX_WHILE_ITERATIONS: u64 = 1_000_000;

impl Machine {
    /// Returns the integer value of a scalar on which control flow or an access depends (such as a loop bound or a
    /// start of a view); `what` names it in the fault.
    ///
    /// # Errors
    /// The scalar is poison.
    pub fn checked_integer(&self, x: &Datum, what: &str, loc: Loc) -> Result<i64, Fault> {
        x.literal().map(Literal::as_i64).ok_or_else(|| self.undefined_fault(x, what, loc))
    }
    /// Checks the number of iterations that a `while` has begun.
    ///
    /// # Errors
    /// There are more than `PALLAS_INTERPRET_TURNS` or [`MAX_WHILE_ITERATIONS`], so that the `while` counts as endless.
    pub fn check_iteration_limit(&self, iterations: u64, loc: Loc) -> Result<(), Fault> {
        static WHILE_ITERATION_LIMIT: LazyLock<Result<u64, String>> =
            LazyLock::new(|| match std::env::var("PALLAS_INTERPRET_TURNS") {
                Ok(value) => value.parse().map_err(|_| value),
                Err(_) => Ok(MAX_WHILE_ITERATIONS),
            });
        let (code, message, help) = match &*WHILE_ITERATION_LIMIT {
            Ok(most) if iterations <= *most => return Ok(()),
            Ok(most) => (
                "endless",
                format!("this `while` has run {most} turns, and its condition still holds"),
                "its body has to change what the condition tests; PALLAS_INTERPRET_TURNS=n allows n turns",
            ),
            Err(value) => {
                ("environment", format!("PALLAS_INTERPRET_TURNS={value} is not understood"), "a number of turns")
            }
        };
        Err(self.fault(code, loc, message, help))
    }
    /// Returns the starts of a window or view as integers; it is a fault if one is poison.
    pub(super) fn checked_starts(&self, starts: &[&Datum], loc: Loc) -> Result<Vec<i64>, Fault> {
        starts.iter().map(|a| self.checked_integer(a, "a view's start", loc)).collect()
    }
    /// Returns the elements of a mask; it is a fault if one is poison.
    pub(super) fn checked_mask(&self, mask: &Datum, loc: Loc) -> Result<Vec<bool>, Fault> {
        if mask.poison.is_some() {
            return Err(self.undefined_fault(mask, "an element of the mask", loc));
        }
        Ok((0..mask.data.len()).map(|i| mask.data.get(i).as_i64() != 0).collect())
    }
}
