//! Results against numbers that a file of this folder has.
#![allow(dead_code, reason = "no example uses all of it")]
use pallas_rt::{Error, Result};

/// The numbers of a text, one a line.
pub fn numbers(text: &str) -> Vec<f32> {
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// The largest difference to expected numbers, relative to those beyond 1.
///
/// # Errors
/// [`Error::Value`] if it is not below `bound`, or the count differs.
pub fn compare(name: &str, found: &[f32], expected: &[f32], bound: f32) -> Result<f32> {
    if found.len() != expected.len() {
        return Err(wrong(format!("{name}: {} numbers, expected {}", found.len(), expected.len())));
    }
    let differences = found.iter().zip(expected).map(|(x, y)| (x - y).abs() / y.abs().max(1.0));
    // A NaN is a difference too.
    let worst = differences.fold(0.0, |worst, d| if d <= worst { worst } else { d });
    if worst < bound { Ok(worst) } else { Err(wrong(format!("{name}: a difference of {worst:e}, allowed {bound:e}"))) }
}

/// An example's own check that failed.
pub fn wrong(message: String) -> Error {
    Error::Value { message }
}
