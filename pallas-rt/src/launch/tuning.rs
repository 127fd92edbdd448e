//! The outcome of tuning: the candidates of a call, and which of them runs.
use super::key::FixedKey;
use crate::{Array, Client};
use pallas_ir::Loc;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A tuned call, as the expansion describes it.
#[derive(Debug)]
pub struct Candidates<'a> {
    /// The kernel's name.
    pub name: &'static str,
    /// The kernel's line.
    pub at: Loc,
    /// The line of the call.
    pub called: Loc,
    /// The tuned const generics.
    pub names: &'static [&'static str],
    /// Their values, candidate by candidate.
    pub values: &'static [&'static [u64]],
    /// `#[fixed]` parameters.
    pub fixed: &'a [FixedKey<'a>],
    /// `#[dim]` parameters.
    pub given: &'a [i64],
    /// The call's arrays.
    pub arrays: &'a [&'a Array],
}

/// The selection of a call's block sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Tuning {
    /// The tuned const generics.
    pub names: &'static [&'static str],
    /// The candidates, in the order of their declaration.
    pub candidates: Vec<Candidate>,
    /// The index of the candidate that runs.
    pub chosen: usize,
    /// Why.
    pub why: &'static str,
}

/// A combination of sizes.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// In the order of the names.
    pub values: &'static [u64],
    /// Its time, or the reason why it has none.
    pub outcome: Outcome,
    /// Bytes of memory that a launch takes besides its arrays, on a GPU with its results; 0 for one that was not looked at.
    pub room: u64,
}

/// The time of a candidate, or the reason why it has none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The shortest of its runs.
    Time(Duration),
    /// It does not run here, and why.
    Skipped(String),
    /// Nobody timed it.
    Untimed,
}

impl Tuning {
    /// The fastest candidate that memory has room for now: the one that was chosen, if it can be.
    pub(super) fn within(&self, client: &Client) -> Option<usize> {
        let fits = |i: &usize| client.has_room(self.candidates[*i].room);
        if fits(&self.chosen) {
            return Some(self.chosen);
        }
        self.timed().filter(|(_, i)| fits(i)).min().map(|(_, i)| i)
    }

    /// Times of the timed candidates, and their indices.
    pub(super) fn timed(&self) -> impl Iterator<Item = (Duration, usize)> + '_ {
        self.candidates.iter().enumerate().filter_map(|(i, candidate)| match candidate.outcome {
            Outcome::Time(time) => Some((time, i)),
            Outcome::Skipped(_) | Outcome::Untimed => None,
        })
    }
}

/// `BQ = 64, BK = 32`
pub(super) fn sizes(names: &[&str], values: &[u64]) -> String {
    let each: Vec<String> = names.iter().zip(values).map(|(name, n)| format!("{name} = {n}")).collect();
    each.join(", ")
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = sizes(self.names, self.candidates[self.chosen].values);
        writeln!(f, "  tuned: {own}, of {} candidates {}", self.candidates.len(), self.why)?;
        for candidate in &self.candidates {
            let sizes = sizes(self.names, candidate.values);
            match &candidate.outcome {
                Outcome::Time(time) => writeln!(f, "    {sizes:<28} {:.4} ms", time.as_secs_f64() * 1e3)?,
                Outcome::Skipped(why) => writeln!(f, "    {sizes:<28} skipped: {why}")?,
                Outcome::Untimed => writeln!(f, "    {sizes:<28} not timed")?,
            }
        }
        Ok(())
    }
}
