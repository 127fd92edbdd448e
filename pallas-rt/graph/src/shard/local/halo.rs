//! The rows that devices need of each other's blocks, and the rounds of permutes that bring them.
//!
//! ```text
//! x[3..11] of 16 elements on 4 devices:   device 0 has 3 4, device 1 has 5 6, device 2 has 7 8, device 3 has 9 10
//! blocks of x: 0-3, 4-7, 8-11, 12-15      round 1: 2 <- 1 (7), 3 <- 2 (9 10)      round 2: 0 <- 1 (4)
//! ```
//!
//! In a round each device receives rows of at most one other device and sends to at most one, as in a collective
//! permute. The number of rounds is the least possible one: the most blocks that a device sends or receives.
use std::ops::Range;

/// The elements of an operand that rows of a result are, along a sharded dimension: row `j` of the device with
/// coordinate `t` is the element `offset + step * t + stride * j`, if that is in `within`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AffineRead {
    /// The element that is the first row of the first device.
    pub offset: i64,
    /// Distance between the first rows of neighbouring devices.
    pub step: i64,
    /// Distance between the elements of adjacent rows.
    pub stride: i64,
    /// The elements that are read; rows for which the formula gives other elements are not read.
    pub within: Range<i64>,
}

/// A permute: each device sends rows to at most one device, and receives rows of at most one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PermuteRound {
    /// By device, the device whose rows it receives.
    pub sources: Vec<Option<usize>>,
    /// Number of rows that each device sends, the same for all.
    pub rows: usize,
    /// By device, the index in its block of the first row that it sends.
    pub sent: Vec<usize>,
    /// By device, the element of the operand that is the first row it receives; the operand's extent if it receives
    /// none.
    pub received: Vec<usize>,
}

/// The communication by which devices get the rows that they need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum HaloPlan {
    /// An all-gather: each device gets all blocks, which are no more rows than the rounds would bring.
    Gather,
    /// Rounds of permutes, in addition to the rows of the device's own block.
    Rounds {
        /// True if any device reads rows of its own block.
        keeps_own: bool,
        /// The permutes, in order.
        rounds: Vec<PermuteRound>,
    },
}

/// The range of rows that a device needs of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NeededRows {
    /// The device that needs the rows.
    device: usize,
    /// The device that has the block.
    block: usize,
    /// The first of the rows, as an element of the whole operand.
    first: i64,
    /// The last of the rows, as an element of the whole operand.
    last: i64,
}

/// Plans the communication that brings `row_count` rows to each of `device_count` devices, of an operand with this
/// extent in blocks of `block_extent` elements.
pub(super) fn plan_halo_exchange(
    reads: &[AffineRead],
    row_count: usize,
    extent: usize,
    block_extent: usize,
    device_count: usize,
) -> HaloPlan {
    let (own, mut needs): (Vec<NeededRows>, Vec<NeededRows>) = (0..device_count)
        .flat_map(|device| find_needed_rows(reads, device, row_count, block_extent))
        .partition(|need| need.device == need.block);
    // Devices at an equal distance to their senders are sorted together, so that one round serves them.
    needs.sort_by_key(|need| (need.block as i64 - need.device as i64, need.device));
    let pairs: Vec<(usize, usize)> = needs.iter().map(|need| (need.block, need.device)).collect();
    let numbers = assign_permute_rounds(&pairs, device_count);
    let count = numbers.iter().max().map_or(0, |most| most + 1);
    let rounds: Vec<PermuteRound> = (0..count)
        .map(|round| {
            let own: Vec<NeededRows> =
                needs.iter().zip(&numbers).filter(|(_, n)| **n == round).map(|(need, _)| *need).collect();
            self::build_permute_round(&own, extent, block_extent, device_count)
        })
        .collect();
    let moved: usize = rounds.iter().map(|round| round.rows).sum();
    // The price of a round, however few its rows are, counts as one row.
    match count > 1 && moved + count > (device_count - 1) * block_extent {
        true => HaloPlan::Gather,
        false => HaloPlan::Rounds { keeps_own: !own.is_empty(), rounds },
    }
}

/// Returns the blocks that a device reads, each with the range of rows that it needs of it.
fn find_needed_rows(reads: &[AffineRead], device: usize, row_count: usize, block_extent: usize) -> Vec<NeededRows> {
    let (block, mut found): (i64, Vec<NeededRows>) = (block_extent as i64, vec![]);
    for read in reads {
        let at = read.offset + read.step * device as i64;
        let Some((first, last)) = strided_bounds(at, read.stride, row_count, &read.within) else { continue };
        let apart = read.stride.abs();
        for number in first / block..=last / block {
            // The nearest elements of the read that are in this block.
            let (low, high) = (first.max(number * block), last.min((number + 1) * block - 1));
            let (low, high) = (low + (first - low).rem_euclid(apart), high - (high - first).rem_euclid(apart));
            if low > high {
                continue;
            }
            let number = number as usize;
            match found.iter_mut().find(|need| need.block == number) {
                Some(need) => (need.first, need.last) = (need.first.min(low), need.last.max(high)),
                None => found.push(NeededRows { device, block: number, first: low, last: high }),
            }
        }
    }
    found
}

/// Returns the smallest and the largest of the elements `at + stride * j` for rows `j` that are in `within`; `None` if
/// none is.
fn strided_bounds(at: i64, stride: i64, rows: usize, within: &Range<i64>) -> Option<(i64, i64)> {
    let (apart, most) = (stride.abs(), rows as i64 - 1);
    let (low, high) = if stride < 0 { (at + stride * most, at) } else { (at, at + stride * most) };
    let first = low.max(within.start);
    let first = first + (low - first).rem_euclid(apart);
    let last = high.min(within.end - 1);
    let last = last - (last - low).rem_euclid(apart);
    (most >= 0 && first <= last).then_some((first, last))
}

/// Returns the permute that meets these needs, of which each device has at most one as sender and one as receiver.
fn build_permute_round(needs: &[NeededRows], extent: usize, block_extent: usize, device_count: usize) -> PermuteRound {
    let rows = needs.iter().map(|need| (need.last - need.first) as usize + 1).max().unwrap_or(0);
    let mut round = PermuteRound {
        sources: vec![None; device_count],
        rows,
        sent: vec![0; device_count],
        received: vec![extent; device_count],
    };
    for need in needs {
        let begin = need.block * block_extent;
        // All devices send the same number of rows, so some begin before the rows that are needed.
        let first = (need.first as usize - begin).min(block_extent - rows);
        round.sources[need.device] = Some(need.block);
        round.sent[need.block] = first;
        round.received[need.device] = begin + first;
    }
    round
}

/// Assigns each pair of a sender and a receiver to a round, such that no device sends or receives twice in a round: the
/// colouring of the edges of a bipartite graph with as many colours as its largest degree (Kőnig). A pair gets the
/// first round that is free for both devices, if there is one.
fn assign_permute_rounds(sender_receiver_pairs: &[(usize, usize)], devices: usize) -> Vec<usize> {
    let ends = |pair: usize| [sender_receiver_pairs[pair].0, sender_receiver_pairs[pair].1];
    let mut degree = [vec![0; devices], vec![0; devices]];
    (0..sender_receiver_pairs.len()).for_each(|pair| (0..2).for_each(|side| degree[side][ends(pair)[side]] += 1));
    let most = degree.iter().flatten().copied().max().unwrap_or(0);
    let mut taken: RoundAssignments = [vec![vec![None; most]; devices], vec![vec![None; most]; devices]];
    let mut numbers = vec![0; sender_receiver_pairs.len()];
    for pair in 0..sender_receiver_pairs.len() {
        let own = ends(pair);
        let free = |side: usize| {
            let row: &Vec<Option<usize>> = &taken[side][own[side]];
            (0..most).filter(|&number| row[number].is_none())
        };
        let both = free(0).find(|&number| taken[1][own[1]][number].is_none());
        let number = match both {
            Some(number) => number,
            None => {
                let [number, other] = [0, 1].map(|side| free(side).next().expect("it is in fewer pairs"));
                swap_alternating_path(&mut taken, &mut numbers, &ends, own[1], [number, other]);
                number
            }
        };
        numbers[pair] = number;
        (0..2).for_each(|side| taken[side][own[side]][number] = Some(pair));
    }
    numbers
}

/// By side (senders, receivers), device and round, the pair that is assigned to the round.
type RoundAssignments = [Vec<Vec<Option<usize>>>; 2];

/// Exchanges the two rounds `swapped_rounds` along the path of pairs from `receiver` that are assigned to them
/// alternately, so that the first of both becomes free for the receiver.
fn swap_alternating_path(
    assignments: &mut RoundAssignments,
    pair_rounds: &mut [usize],
    ends: &impl Fn(usize) -> [usize; 2],
    receiver: usize,
    swapped_rounds: [usize; 2],
) {
    let (mut path, mut at, mut side, mut next) = (vec![], receiver, 1, swapped_rounds);
    while let Some(pair) = assignments[side][at][next[0]] {
        path.push(pair);
        side = 1 - side;
        at = ends(pair)[side];
        next.reverse();
    }
    for &pair in &path {
        (0..2).for_each(|side| assignments[side][ends(pair)[side]][pair_rounds[pair]] = None);
    }
    for &pair in &path {
        pair_rounds[pair] = if pair_rounds[pair] == swapped_rounds[0] { swapped_rounds[1] } else { swapped_rounds[0] };
        (0..2).for_each(|side| assignments[side][ends(pair)[side]][pair_rounds[pair]] = Some(pair));
    }
}
