//! What a thread executes, and what a program costs by that.
use super::super::place::Plan;
use super::super::profile::Numbers;

/// Operations that a thread executes; both sides of branches are counted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Counts {
    /// Multiply-adds of products.
    pub fma: f64,
    /// Products of fragments by cooperative matrices: a subgroup's.
    pub fragments: f64,
    /// Words of workgroup memory that products read.
    pub product_words: f64,
    /// Elements of arrays read and written.
    pub global: f64,
    /// Barriers.
    pub barriers: f64,
}

impl Counts {
    /// The operations executed since `before`, divided by the number of times.
    pub(super) fn since(self, before: Counts, times: f64) -> Counts {
        Counts {
            fma: (self.fma - before.fma) / times,
            fragments: (self.fragments - before.fragments) / times,
            product_words: (self.product_words - before.product_words) / times,
            global: (self.global - before.global) / times,
            barriers: (self.barriers - before.barriers) / times,
        }
    }
}

/// Loop iterations of a thread, at most.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Iterations {
    /// Outside of the loops over sequential axes.
    pub outside: u64,
    /// In one step of each sequential axis, outermost first, without the steps of the next one.
    pub axes: Vec<u64>,
    /// There are loops besides whose trips depend on data.
    pub more: bool,
}

impl Iterations {
    /// In `counts` steps of the sequential axes.
    pub fn total(&self, counts: &[i64]) -> u64 {
        let nested = |inner: u64, (own, n): (&u64, &i64)| own.saturating_add(inner).saturating_mul(*n as u64);
        self.axes.iter().zip(counts).rev().fold(0, nested).saturating_add(self.outside)
    }
}

/// Loop trips assumed where they are known at launch only.
pub(in crate::wgsl) const TRIPS: f64 = 8.0;

/// What a program costs whose threads do this work each, in a text of so many lines.
pub(in crate::wgsl) fn cost(work: f64, lines: usize, plan: &Plan, numbers: &Numbers) -> f64 {
    work * plan.threads() as f64 / numbers.parallel + lines as f64 * numbers.line
}
