//! The part of a block of queries and keys that a mask sees.
use crate::splash_mask::Mask;
use std::ops::Range;

/// Part of a block of queries and keys that is seen: every pair, some or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockCoverage {
    Full,
    Partial,
    Empty,
}

impl Mask {
    /// Returns how much of a block is seen, exactly: evaluates each element if the bounds do not decide.
    pub(crate) fn exact_coverage(&self, queries: Range<usize>, keys: Range<usize>) -> BlockCoverage {
        match self.coverage_bounds(&queries, &keys) {
            BlockCoverage::Partial if matches!(self, Mask::Dense(_) | Mask::And(_) | Mask::Or(_) | Mask::Not(_)) => {
                // Combined masks may see nothing, or all, of a block that each of them sees in part.
                let mut seen = queries.flat_map(|i| keys.clone().map(move |j| (i, j))).map(|(i, j)| self.sees(i, j));
                let first = seen.next().unwrap_or(false);
                match (first, seen.all(|s| s == first)) {
                    (true, true) => BlockCoverage::Full,
                    (false, true) => BlockCoverage::Empty,
                    _ => BlockCoverage::Partial,
                }
            }
            part => part,
        }
    }

    /// Returns how much of a block is seen, by its corners; for combined and dense masks `Partial` means unknown.
    fn coverage_bounds(&self, queries: &Range<usize>, keys: &Range<usize>) -> BlockCoverage {
        let [q, k] = [queries, keys].map(|r| (r.start as i64, r.end as i64 - 1));
        // The range of `key - query` in the block.
        let (least, most) = (k.0 - q.1, k.1 - q.0);
        let band = |low: i64, high: i64| match () {
            () if least >= low && most <= high => BlockCoverage::Full,
            () if most < low || least > high => BlockCoverage::Empty,
            () => BlockCoverage::Partial,
        };
        match self {
            Mask::Full => BlockCoverage::Full,
            Mask::Causal { offset } => band(i64::MIN, i64::from(*offset)),
            Mask::Local { left, right, offset } => {
                let offset = i64::from(*offset);
                let low = left.map_or(i64::MIN, |n| offset - i64::from(n));
                band(low, right.map_or(i64::MAX, |n| offset + i64::from(n)))
            }
            Mask::Chunked { size } => {
                let size = i64::from(*size);
                let (a, b) = ((q.0 / size, q.1 / size), (k.0 / size, k.1 / size));
                match () {
                    () if a.1 < b.0 || b.1 < a.0 => BlockCoverage::Empty,
                    () if a.0 == a.1 && a == b => BlockCoverage::Full,
                    () => BlockCoverage::Partial,
                }
            }
            Mask::Dense(_) => BlockCoverage::Partial,
            Mask::And(both) => match both.each_ref().map(|m| m.coverage_bounds(queries, keys)) {
                [BlockCoverage::Full, BlockCoverage::Full] => BlockCoverage::Full,
                [BlockCoverage::Empty, _] | [_, BlockCoverage::Empty] => BlockCoverage::Empty,
                _ => BlockCoverage::Partial,
            },
            Mask::Or(both) => match both.each_ref().map(|m| m.coverage_bounds(queries, keys)) {
                [BlockCoverage::Empty, BlockCoverage::Empty] => BlockCoverage::Empty,
                [BlockCoverage::Full, _] | [_, BlockCoverage::Full] => BlockCoverage::Full,
                _ => BlockCoverage::Partial,
            },
            Mask::Not(mask) => match mask.coverage_bounds(queries, keys) {
                BlockCoverage::Full => BlockCoverage::Empty,
                BlockCoverage::Empty => BlockCoverage::Full,
                BlockCoverage::Partial => BlockCoverage::Partial,
            },
        }
    }

    /// Simplifies the mask for a block: drops operands of combinations that have no effect there.
    pub(crate) fn simplify_for_block(&self, queries: &Range<usize>, keys: &Range<usize>) -> Mask {
        let parts = |both: &[Mask; 2]| {
            both.each_ref().map(|m| (m.coverage_bounds(queries, keys), m.simplify_for_block(queries, keys)))
        };
        match self {
            Mask::And(both) => match parts(both) {
                [(BlockCoverage::Full, _), (_, rest)] | [(_, rest), (BlockCoverage::Full, _)] => rest,
                [(_, a), (_, b)] => a & b,
            },
            Mask::Or(both) => match parts(both) {
                [(BlockCoverage::Empty, _), (_, rest)] | [(_, rest), (BlockCoverage::Empty, _)] => rest,
                [(_, a), (_, b)] => a | b,
            },
            Mask::Not(mask) => !mask.simplify_for_block(queries, keys),
            Mask::Full | Mask::Causal { .. } | Mask::Local { .. } | Mask::Chunked { .. } | Mask::Dense(_) => {
                self.clone()
            }
        }
    }
}
