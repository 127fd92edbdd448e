//! Coalescing of accesses: the segments of global memory and the banks of workgroup memory that 32 neighbouring
//! threads access at once.
//!
//! Emission records every access by the text of its coordinates. This module computes the coordinates for each thread
//! of the first group, with loops in their first iteration and blocks at the start of a segment; what all threads have
//! in common does not matter. [`find_bank_conflict_fixes`] pads the rows of buffers, or permutes their columns, until
//! threads do not wait for each other's banks any more.
use super::barriers::MemoryId;
use super::place::{
    PlacementPlan, RowArrangement, Swizzle, TileBuffer, padded_strides, thread_layout::SpreadDirection,
};
use pallas_ir::{Kernel, OperandId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Number of threads of a subgroup, which execute at once, that the analysis assumes.
pub(super) const SUBGROUP_THREADS: usize = 32;
/// Bytes of a segment of global memory, which one memory transaction transfers.
pub(super) const MEMORY_SEGMENT_BYTES: i64 = 128;
/// Number of banks of workgroup memory, each one word wide.
const WORKGROUP_MEMORY_BANKS: i64 = 32;
/// Extent that the analysis assumes for an axis of an array whose extent is known only at the launch.
pub(super) const ASSUMED_DYNAMIC_EXTENT: usize = 1024;
/// Maximum number of padding words after a row in the arrangements that are tried against bank conflicts.
const MAX_ROW_PADDING_WORDS: usize = 16;

/// An access to memory in the shader's text, recorded for the analysis of coalescing and bank conflicts.
#[derive(Clone, Debug)]
pub(super) struct EmittedAccess {
    pub(super) memory: MemoryId,
    /// The line of the user's kernel.
    pub(super) line: u32,
    pub(super) write: bool,
    /// Text of each coordinate, and its stride in elements.
    pub(super) at: Vec<(String, usize)>,
    /// Number of elements that a thread accesses.
    pub(super) width: usize,
    /// Bytes of an element.
    pub(super) bytes: usize,
    /// Number of elements of a block that are adjacent in memory.
    pub(super) run: usize,
    /// Number of threads that take part.
    pub(super) threads: usize,
    /// Number of times that the access is executed.
    pub(super) trips: f64,
    /// True for an operand of a product's inner loop.
    pub(super) product: bool,
}

/// The worst access of one line of the kernel to one array or tile: the number of segments, or of words of one bank,
/// that 32 neighbouring threads access at once, and the smallest possible number.
#[derive(Clone, PartialEq, Debug)]
pub struct AccessReport {
    /// Name of the array, or of the tile, as the user knows it.
    pub name: String,
    /// The line of the user's kernel.
    pub line: u32,
    /// True if the access writes.
    pub write: bool,
    /// True for global memory, where segments are counted; false for workgroup memory, where the words of one bank are
    /// counted.
    pub global: bool,
    /// True if a product's inner loop reads it.
    pub product: bool,
    /// Number of segments or of words of one bank; `None` if it depends on data.
    pub reached: Option<usize>,
    /// The smallest possible number.
    pub ideal: usize,
}

impl fmt::Display for AccessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.write { "written" } else { "read" };
        let place = if self.product { " by a product" } else { "" };
        write!(f, "line {}: {} {how}{place}: ", self.line, self.name)?;
        match (self.global, self.reached) {
            (_, None) => f.write_str("where, depends on data"),
            (true, Some(n)) => {
                let segments = pluralize(n, "segment");
                write!(
                    f,
                    "{segments} of {MEMORY_SEGMENT_BYTES} bytes for {SUBGROUP_THREADS} threads, {} at best",
                    self.ideal
                )
            }
            (false, Some(1)) => f.write_str("no bank conflict"),
            (false, Some(n)) => write!(f, "{n} words of one bank"),
        }
    }
}

/// Returns a number with a noun, in the plural unless the number is 1.
pub(super) fn pluralize<N: fmt::Display + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    format!("{n} {noun}{}", if n == N::from(1) { "" } else { "s" })
}

/// Merges accesses of the same line to the same coordinates of the same memory into one, whose `trips` are the sum of
/// theirs.
pub(super) fn merge_alike_accesses(accesses: Vec<EmittedAccess>) -> Vec<EmittedAccess> {
    let mut at = HashMap::new();
    let mut merged: Vec<EmittedAccess> = vec![];
    for access in accesses {
        let EmittedAccess { memory: of, line, write, product, width, .. } = access;
        let place = at.entry((of, line, write, product, width, access.at.clone())).or_insert(merged.len());
        match merged.get_mut(*place) {
            Some(same) => same.trips += access.trips,
            None => merged.push(access),
        }
    }
    merged
}

/// Reports how well the accesses of neighbouring threads coalesce: for each source line and each array or buffer that
/// it accesses, the access that touches most memory in proportion to the smallest possible amount.
pub(super) fn analyze_coalescing(k: &Kernel, plan: &PlacementPlan, accesses: &[EmittedAccess]) -> Vec<AccessReport> {
    let mut found: Vec<AccessReport> = vec![];
    for access in accesses {
        let (name, global) = match access.memory {
            MemoryId::Array(id) => (k.operand(OperandId(id)).name.clone(), true),
            MemoryId::Buffer(b) => (plan.buffers[b].name.clone(), plan.buffers[b].outside),
        };
        let lanes = lane_element_addresses(plan, access);
        let (reached, ideal) = match (&lanes, global) {
            (None, _) => (None, 1),
            (Some(lanes), true) => (Some(count_accessed_segments(lanes, access)), min_accessed_segments(lanes, access)),
            (Some(lanes), false) => (Some(bank_conflict_degree(&lane_word_addresses(lanes, access), access.width)), 1),
        };
        let EmittedAccess { line, write, product, .. } = *access;
        let new = AccessReport { name: format!("`{name}`"), line, write, global, product, reached, ideal };
        let same = |r: &&mut AccessReport| (&r.name, r.line, r.write, r.product) == (&new.name, line, write, product);
        match found.iter_mut().find(same) {
            Some(old) if access_waste_factor(old) < access_waste_factor(&new) => *old = new,
            Some(_) => {}
            None => found.push(new),
        }
    }
    found
}

/// Returns the number of segments or bank words that are accessed, divided by the smallest possible number; infinity
/// if it depends on data.
fn access_waste_factor(r: &AccessReport) -> f64 {
    r.reached.map_or(f64::INFINITY, |n| n as f64 / r.ideal.max(1) as f64)
}

/// Arrangements of a buffer's rows that have fewer bank conflicts than its present one.
pub(super) struct BankConflictFix {
    /// The buffer's name.
    pub(super) buffer: String,
    /// The best arrangement with words between rows.
    pub(super) longer: Option<RowArrangement>,
    /// The best arrangement with permuted columns, which takes no memory.
    pub(super) swizzled: Option<RowArrangement>,
    /// The time that the better of the two saves, in accesses that wait.
    saves: f64,
}

/// Finds arrangements of the rows of buffers that have fewer bank conflicts, the one that saves most first.
pub(super) fn find_bank_conflict_fixes(plan: &PlacementPlan, accesses: &[EmittedAccess]) -> Vec<BankConflictFix> {
    let row = (0..=MAX_ROW_PADDING_WORDS).map(|row| RowArrangement { row, ..RowArrangement::default() });
    let group = [2, 4, 8, 16, 32]
        .into_iter()
        .flat_map(|rows| [1, 2, 4, 8, 16].map(|group| RowArrangement { group, rows, ..RowArrangement::default() }));
    let longer: Vec<RowArrangement> = row.chain(group).collect();
    let mut remedies = vec![];
    for (b, buffer) in plan.buffers.iter().enumerate() {
        let Some(now) = buffer.pad.filter(|_| !buffer.outside) else { continue };
        let own = accesses.iter().filter(|a| a.memory == MemoryId::Buffer(b));
        let own: Vec<(&EmittedAccess, Vec<Vec<i64>>)> =
            own.filter_map(|a| Some((a, lane_coordinates(plan, a)?))).collect();
        let price = |pad: RowArrangement| -> f64 {
            own.iter().map(|(a, lanes)| a.trips * bank_conflict_cost(buffer, pad, a, lanes)).sum()
        };
        let before = price(now);
        let best = |pads: &[RowArrangement]| {
            let priced = pads.iter().map(|&pad| (price(pad), pad));
            let cheaper = |a: &(f64, RowArrangement), b: &(f64, RowArrangement)| {
                a.0.total_cmp(&b.0).then_with(|| padding_words(buffer, a.1).cmp(&padding_words(buffer, b.1)))
            };
            priced.min_by(cheaper).filter(|(after, _)| *after < before)
        };
        let found = [best(&longer), best(&candidate_swizzles(buffer))];
        let saves = found.iter().flatten().map(|(after, _)| before - after).fold(0.0, f64::max);
        let [longer, swizzled] = found.map(|found| found.map(|(_, pad)| pad));
        if saves > 0.0 {
            remedies.push(BankConflictFix { buffer: buffer.name.clone(), longer, swizzled, saves });
        }
    }
    remedies.sort_by(|a, b| b.saves.total_cmp(&a.saves));
    remedies
}

/// Returns the permutations of a buffer's columns to try against bank conflicts: those that move vectors of four words,
/// and those that move single words.
fn candidate_swizzles(buffer: &TileBuffer) -> Vec<RowArrangement> {
    let columns = buffer.shape[buffer.shape.len() - 1];
    let of = |(unit, rows): (usize, usize)| {
        // As many orders as there are banks, or as a row has units: powers of two.
        let most = WORKGROUP_MEMORY_BANKS as usize / unit;
        let period =
            if columns.is_multiple_of(unit) { most.min(1 << (columns / unit).trailing_zeros().min(5)) } else { 1 };
        let swizzle = Some(Swizzle { unit, period, rows });
        (period > 1).then_some(RowArrangement { swizzle, ..RowArrangement::default() })
    };
    [4, 1].into_iter().flat_map(|unit| [1, 2, 4, 8, 16].map(|rows| (unit, rows))).filter_map(of).collect()
}

/// Returns the number of further turns that bank conflicts cost an access if the buffer's rows have this arrangement;
/// `lane_coords` has the coordinates at which each thread accesses.
fn bank_conflict_cost(
    buffer: &TileBuffer,
    arrangement: RowArrangement,
    access: &EmittedAccess,
    lane_coords: &[Vec<i64>],
) -> f64 {
    let strides = padded_strides(&buffer.shape, arrangement);
    let mut outer = strides[..strides.len() - 1].iter();
    let unit = arrangement.swizzle.map_or(access.width, |s| s.unit);
    // Vectors start at multiples of their size; in other arrangements their elements are accessed one by one.
    let whole = [arrangement.group, unit].iter().chain(&mut outer).all(|n| n.is_multiple_of(access.width));
    let (width, more) = if whole { (access.width, 0) } else { (1, access.width - 1) };
    let lanes: Vec<i64> = lane_coords.iter().filter_map(|at| element_address(at, &strides, arrangement)).collect();
    (bank_conflict_degree(&lanes, width) - 1 + more) as f64
}

/// Returns the number of padding words that an arrangement of rows adds to each matrix (the last two axes) of a buffer.
fn padding_words(buffer: &TileBuffer, arrangement: RowArrangement) -> usize {
    let rows = buffer.shape[buffer.shape.len() - 2];
    rows * arrangement.row + rows.checked_div(arrangement.rows).unwrap_or(0) * arrangement.group
}

/// Returns, for each of up to 32 neighbouring threads, the coordinates of the first element that it accesses; `None` if
/// they depend on data.
fn lane_coordinates(plan: &PlacementPlan, access: &EmittedAccess) -> Option<Vec<Vec<i64>>> {
    let threads = access.threads.min(plan.thread_count()).min(SUBGROUP_THREADS);
    let of = |t: usize| access.at.iter().map(|(c, _)| CoordinateEvaluator { plan, t, rest: c }.evaluate()).collect();
    (0..threads).map(of).collect()
}
/// Returns the index of the element at these coordinates in a buffer with this arrangement of rows; `None` if it is
/// 2^48 or more, which no memory has.
fn element_address(coordinates: &[i64], strides: &[usize], arrangement: RowArrangement) -> Option<i64> {
    let groups = if arrangement.group > 0 {
        coordinates[coordinates.len() - 2] / arrangement.rows as i64 * arrangement.group as i64
    } else {
        0
    };
    let moved = match (arrangement.swizzle, coordinates) {
        (Some(swizzle), [.., row, column]) => swizzle.stored_column(*row, *column) - column,
        _ => 0,
    };
    let along = |(c, s): (&i64, &usize)| c.checked_mul(i64::try_from(*s).ok()?);
    let sum = coordinates.iter().zip(strides).try_fold(groups + moved, |sum, axis| sum.checked_add(along(axis)?));
    sum.filter(|element| element.abs() < 1 << 48)
}
/// Returns the index of the first element that each of up to 32 neighbouring threads accesses; `None` if one depends
/// on data.
fn lane_element_addresses(plan: &PlacementPlan, access: &EmittedAccess) -> Option<Vec<i64>> {
    let strides: Vec<usize> = access.at.iter().map(|(_, s)| *s).collect();
    let pad = match access.memory {
        MemoryId::Buffer(b) => plan.buffers[b].pad.unwrap_or_default(),
        MemoryId::Array(_) => RowArrangement::default(),
    };
    lane_coordinates(plan, access)?.iter().map(|at| element_address(at, &strides, pad)).collect()
}
/// Converts indices of elements, one for each thread, to indices of the words that hold them.
fn lane_word_addresses(element_addresses: &[i64], access: &EmittedAccess) -> Vec<i64> {
    element_addresses.iter().map(|a| a * access.bytes as i64 / 4).collect()
}
/// Returns the number of segments of global memory that the threads access.
fn count_accessed_segments(element_addresses: &[i64], access: &EmittedAccess) -> usize {
    let bytes = access.bytes as i64;
    let ends =
        |a: &i64| [a * bytes / MEMORY_SEGMENT_BYTES, ((a + access.width as i64) * bytes - 1) / MEMORY_SEGMENT_BYTES];
    element_addresses.iter().flat_map(ends).collect::<BTreeSet<i64>>().len()
}
/// Returns the number of segments that the accessed elements would occupy at best: with each run of adjacent elements
/// at the start of a segment.
fn min_accessed_segments(element_addresses: &[i64], access: &EmittedAccess) -> usize {
    let width = access.width as i64;
    let all: BTreeSet<i64> = element_addresses.iter().flat_map(|a| *a..a + width).collect();
    let of = |elements: usize| (elements * access.bytes).div_ceil(MEMORY_SEGMENT_BYTES as usize);
    match access.run.max(1) {
        run if run >= all.len() => of(all.len()),
        run => all.len() / run * of(run) + of(all.len() % run),
    }
}
/// Returns the maximum number of different words of one bank that threads access at once; accesses to several words
/// are executed in several turns, each by a part of the threads.
fn bank_conflict_degree(word_addresses: &[i64], words_per_lane: usize) -> usize {
    let worst = |turn: &[i64]| {
        let words: BTreeSet<i64> = turn.iter().flat_map(|a| *a..a + words_per_lane as i64).collect();
        let mut banks = BTreeMap::<i64, usize>::new();
        words.iter().for_each(|w| *banks.entry(w % WORKGROUP_MEMORY_BANKS).or_default() += 1);
        banks.into_values().max().unwrap_or(1)
    };
    word_addresses.chunks((SUBGROUP_THREADS / words_per_lane).max(1)).map(worst).max().unwrap_or(1)
}

/// Evaluator of a coordinate's text for thread `t`: sums, products, quotients and remainders of positions and numbers.
struct CoordinateEvaluator<'a> {
    plan: &'a PlacementPlan,
    t: usize,
    rest: &'a str,
}

impl CoordinateEvaluator<'_> {
    fn evaluate(mut self) -> Option<i64> {
        // Positions are i32; larger numbers cannot occur, and would overflow below.
        let x = self.evaluate_sum().filter(|x| i32::try_from(*x).is_ok())?;
        self.rest.is_empty().then_some(x)
    }
    /// Reads a sum or difference at the start of the remaining text and returns its value; `None` if the text is no
    /// such expression, depends on data, or its value overflows.
    fn evaluate_sum(&mut self) -> Option<i64> {
        let mut x = self.evaluate_product()?;
        loop {
            match self.try_skip_any(&[" + ", " - "]) {
                Some(" + ") => x = x.checked_add(self.evaluate_product()?)?,
                Some(_) => x = x.checked_sub(self.evaluate_product()?)?,
                None => return Some(x),
            }
        }
    }
    /// Reads a product, quotient or remainder at the start of the remaining text and returns its value; `None` if the
    /// text is no such expression, depends on data, or its value overflows.
    fn evaluate_product(&mut self) -> Option<i64> {
        let mut x = self.evaluate_atom()?;
        loop {
            match self.try_skip_any(&[" * ", " / ", " % "]) {
                Some(" * ") => x = x.checked_mul(self.evaluate_atom()?)?,
                Some(" / ") => x = x.checked_div(self.evaluate_atom()?)?,
                Some(_) => x = x.checked_rem(self.evaluate_atom()?)?,
                None => return Some(x),
            }
        }
    }
    /// Reads an expression in parentheses, a number or a name at the start of the remaining text and returns its
    /// value; `None` for a name that depends on data, and for any other text.
    fn evaluate_atom(&mut self) -> Option<i64> {
        if self.try_skip_any(&["(", "u32(", "i32("]).is_some() {
            let x = self.evaluate_sum()?;
            self.try_skip_any(&[")"])?;
            return Some(x);
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if let Ok(n) = word.trim_end_matches(['u', 'i']).parse() {
            return Some(n);
        }
        let (letter, number) = word.split_at_checked(1)?;
        // The name of a value follows its number.
        let number: Option<usize> = number.split('_').next()?.parse().ok();
        Some(match (letter, number) {
            _ if word == "thread" => self.t as i64,
            ("e", None) => self.t as i64,
            ("c", Some(c)) => {
                let class = self.plan.layout.classes[c];
                let columns = class.grid.1 as usize;
                let thread = match class.along {
                    SpreadDirection::Y => self.t / columns,
                    SpreadDirection::X => self.t % columns,
                    SpreadDirection::NotSpread => 0,
                };
                (thread % class.threads * class.vector) as i64
            }
            // Counters of loops, and scalars, which are the same for all threads.
            ("k" | "t", _) | ("s", Some(_)) => 0,
            _ => return None,
        })
    }
    /// Skips the first of these tokens that the remaining text begins with, and returns it; `None` if it begins with
    /// none.
    fn try_skip_any<'t>(&mut self, tokens: &[&'t str]) -> Option<&'t str> {
        let found = tokens.iter().find(|t| self.rest.starts_with(**t))?;
        self.rest = &self.rest[found.len()..];
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(address: impl Fn(i64) -> i64) -> Vec<i64> {
        (0..SUBGROUP_THREADS as i64).map(address).collect()
    }
    #[test]
    fn banks_are_counted_by_words_and_turns() {
        assert_eq!(bank_conflict_degree(&lanes(|t| t), 1), 1);
        assert_eq!(bank_conflict_degree(&lanes(|_| 7), 1), 1, "one word serves all");
        assert_eq!(bank_conflict_degree(&lanes(|t| 2 * t), 1), 2);
        assert_eq!(bank_conflict_degree(&lanes(|t| 32 * t), 1), 32);
        assert_eq!(bank_conflict_degree(&lanes(|t| 33 * t), 1), 1);
        assert_eq!(bank_conflict_degree(&lanes(|t| 4 * t), 4), 1, "vectors take four turns");
        assert_eq!(bank_conflict_degree(&lanes(|t| 64 * t), 4), 8);
        assert_eq!(bank_conflict_degree(&lanes(|t| 68 * t), 4), 1);
    }
    #[test]
    fn columns_that_change_places_meet_in_no_bank() {
        let columns_of_vectors = |columns: i64, swizzle: Option<Swizzle>| {
            let pad = RowArrangement { swizzle, ..RowArrangement::default() };
            bank_conflict_degree(&lanes(|t| element_address(&[t, 4], &[columns as usize, 1], pad).expect("near")), 4)
        };
        for (columns, period, rows) in [(8, 2, 4), (16, 4, 2), (32, 8, 1), (64, 8, 1), (80, 4, 2)] {
            assert!(columns_of_vectors(columns, None) > 1);
            assert_eq!(columns_of_vectors(columns, Some(Swizzle { unit: 4, period, rows })), 1, "{columns} columns");
        }
    }
    #[test]
    fn segments_are_counted_against_the_fewest() {
        let access = |width, run| EmittedAccess {
            memory: MemoryId::Array(0),
            line: 1,
            write: false,
            at: vec![],
            width,
            bytes: 4,
            run,
            threads: SUBGROUP_THREADS,
            trips: 1.0,
            product: false,
        };
        let check = |lanes: &[i64], access: EmittedAccess, expected| {
            assert_eq!((count_accessed_segments(lanes, &access), min_accessed_segments(lanes, &access)), expected);
        };
        check(&lanes(|t| t), access(1, 64), (1, 1));
        check(&lanes(|t| 4 * t), access(4, 64), (4, 4));
        check(&lanes(|t| t % 8 + 1024 * (t / 8)), access(1, 64), (4, 1));
        check(&lanes(|t| t % 16 + 1024 * (t / 16)), access(1, 16), (2, 2));
        check(&lanes(|t| 1024 * t), access(1, 64), (32, 1));
        check(&lanes(|_| 0), access(1, 64), (1, 1));
    }
}
