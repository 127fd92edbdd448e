//! The outcome of tuning: the candidates of a call, and which of them runs.
use super::fixed_values::FixedKey;
use crate::{Array, Client};
use pallas_ir::Loc;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Call of a tuned kernel with the candidates for its const generics, as the code that `#[kernel]` generates describes
/// it.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// The kernel's name.
    pub name: &'static str,
    /// The kernel's line.
    pub at: Loc,
    /// The line of the call.
    pub called: Loc,
    /// Names of the tuned const generics.
    pub names: &'static [&'static str],
    /// Values of the tuned const generics, for each candidate.
    pub values: &'static [&'static [u64]],
    /// Values of `#[fixed]` parameters.
    pub fixed: &'a [FixedKey<'a>],
    /// Values of `#[dim]` parameters.
    pub given: &'a [i64],
    /// The call's arrays.
    pub arrays: &'a [&'a Array],
}

/// Outcome of the choice among a call's block sizes: the candidates with their times, the one that runs, and the
/// reason.
#[derive(Clone, PartialEq, Debug)]
pub struct Tuning {
    /// Names of the tuned const generics.
    pub names: &'static [&'static str],
    /// The candidates, in the order of their declaration.
    pub candidates: Vec<Candidate>,
    /// The index of the candidate that runs.
    pub chosen: usize,
    /// The reason why this candidate runs.
    pub why: &'static str,
}

/// Combination of values of the tuned const generics, with its time or the reason why it has none.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// A value for each of the names, in order.
    pub values: &'static [u64],
    /// Its time, or the reason why it has none.
    pub outcome: Outcome,
    /// Bytes of memory that a launch takes besides its arrays, on a GPU including its results; 0 if not determined.
    pub room: u64,
}

/// The time of a candidate, or the reason why it has none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The shortest time of its runs.
    Time(Duration),
    /// The reason why it does not run here.
    Skipped(String),
    /// It was not timed.
    Untimed,
}

impl Tuning {
    /// Returns the index of the chosen candidate if there is memory for it now, else of the fastest timed one that
    /// fits; `None` if none does.
    pub(super) fn fastest_fitting_candidate(&self, client: &Client) -> Option<usize> {
        let fits = |i: &usize| client.has_memory_for(self.candidates[*i].room);
        if fits(&self.chosen) {
            return Some(self.chosen);
        }
        self.timed_candidates().filter(|(_, i)| fits(i)).min().map(|(_, i)| i)
    }

    /// Returns times and indices of the timed candidates.
    pub(super) fn timed_candidates(&self) -> impl Iterator<Item = (Duration, usize)> + '_ {
        self.candidates.iter().enumerate().filter_map(|(i, candidate)| match candidate.outcome {
            Outcome::Time(time) => Some((time, i)),
            Outcome::Skipped(_) | Outcome::Untimed => None,
        })
    }
}

/// Formats names with their values: `BQ = 64, BK = 32`.
pub(super) fn format_sizes(names: &[&str], values: &[u64]) -> String {
    let each: Vec<String> = names.iter().zip(values).map(|(name, n)| format!("{name} = {n}")).collect();
    each.join(", ")
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = format_sizes(self.names, self.candidates[self.chosen].values);
        writeln!(f, "  tuned: {own}, of {} candidates {}", self.candidates.len(), self.why)?;
        for candidate in &self.candidates {
            let sizes = format_sizes(self.names, candidate.values);
            match &candidate.outcome {
                Outcome::Time(time) => writeln!(f, "    {sizes:<28} {:.4} ms", time.as_secs_f64() * 1e3)?,
                Outcome::Skipped(why) => writeln!(f, "    {sizes:<28} skipped: {why}")?,
                Outcome::Untimed => writeln!(f, "    {sizes:<28} not timed")?,
            }
        }
        Ok(())
    }
}
