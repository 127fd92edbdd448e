//! The rows that devices need of each other's blocks, and the rounds in which they exchange them.
//!
//! ```text
//! x[3..11] of 16 elements on 4 devices:   device 0 has 3 4, device 1 has 5 6, device 2 has 7 8, device 3 has 9 10
//! blocks of x: 0-3, 4-7, 8-11, 12-15      round 1: 2 <- 1 (7), 3 <- 2 (9 10)      round 2: 0 <- 1 (4)
//! ```
//!
//! In a round each device receives rows of at most one other device and sends to at most one, as in a collective permute.
//! The number of rounds is the least possible one: the most blocks that a device sends or receives.
use std::ops::Range;

/// The elements of an operand that rows of a result are, along a sharded dimension: row `j` of the device with coordinate
/// `t` is the element `offset + step * t + stride * j`, if it is in `within`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Read {
    /// The element of the first device's first row.
    pub offset: i64,
    /// The distance between the first rows of neighbouring devices.
    pub step: i64,
    /// The distance between rows.
    pub stride: i64,
    /// The elements that are read; the result has other rows where `j` leads to others.
    pub within: Range<i64>,
}

/// An exchange in which each device sends and receives at most once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Round {
    /// By device, the one whose rows it receives.
    pub sources: Vec<Option<usize>>,
    /// Number of rows that each sends.
    pub rows: usize,
    /// By device, the first row of its block that it sends.
    pub sent: Vec<usize>,
    /// By device, the element that is the first row it receives; the operand's extent if it receives none.
    pub received: Vec<usize>,
}

/// The way in which devices get the rows that they need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// Each device gets all blocks, which are no more than the rounds would bring.
    Gather,
    /// Each device keeps its block if one needs its own, and receives rows in rounds.
    Rounds {
        /// True if a device reads rows of its own block.
        keeps_own: bool,
        /// The exchanges.
        rounds: Vec<Round>,
    },
}

/// The elements of a block that a device needs, as the first and the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Need {
    device: usize,
    block: usize,
    first: i64,
    last: i64,
}

/// The exchanges that bring `rows` rows to each device, of an operand in blocks of `block` elements.
pub(super) fn plan(reads: &[Read], rows: usize, extent: usize, block: usize, devices: usize) -> Plan {
    let (own, mut needs): (Vec<Need>, Vec<Need>) =
        (0..devices).flat_map(|device| needs(reads, device, rows, block)).partition(|need| need.device == need.block);
    // Equal distances come together, so that devices which send alike do so in one round.
    needs.sort_by_key(|need| (need.block as i64 - need.device as i64, need.device));
    let pairs: Vec<(usize, usize)> = needs.iter().map(|need| (need.block, need.device)).collect();
    let numbers = matchings(&pairs, devices);
    let count = numbers.iter().max().map_or(0, |most| most + 1);
    let rounds: Vec<Round> = (0..count)
        .map(|round| {
            let own: Vec<Need> =
                needs.iter().zip(&numbers).filter(|(_, n)| **n == round).map(|(need, _)| *need).collect();
            self::round(&own, extent, block, devices)
        })
        .collect();
    let moved: usize = rounds.iter().map(|round| round.rows).sum();
    // A round takes its time, however few its rows are.
    match count > 1 && moved + count > (devices - 1) * block {
        true => Plan::Gather,
        false => Plan::Rounds { keeps_own: !own.is_empty(), rounds },
    }
}

/// The blocks that a device reads, with the elements that it needs of each.
fn needs(reads: &[Read], device: usize, rows: usize, block: usize) -> Vec<Need> {
    let (block, mut found): (i64, Vec<Need>) = (block as i64, vec![]);
    for read in reads {
        let at = read.offset + read.step * device as i64;
        let Some((first, last)) = ends(at, read.stride, rows, &read.within) else { continue };
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
                None => found.push(Need { device, block: number, first: low, last: high }),
            }
        }
    }
    found
}

/// The least and the greatest of the elements `at + stride * j` for rows `j` that are in a range.
fn ends(at: i64, stride: i64, rows: usize, within: &Range<i64>) -> Option<(i64, i64)> {
    let (apart, most) = (stride.abs(), rows as i64 - 1);
    let (low, high) = if stride < 0 { (at + stride * most, at) } else { (at, at + stride * most) };
    let first = low.max(within.start);
    let first = first + (low - first).rem_euclid(apart);
    let last = high.min(within.end - 1);
    let last = last - (last - low).rem_euclid(apart);
    (most >= 0 && first <= last).then_some((first, last))
}

fn round(needs: &[Need], extent: usize, block: usize, devices: usize) -> Round {
    let rows = needs.iter().map(|need| (need.last - need.first) as usize + 1).max().unwrap_or(0);
    let mut round =
        Round { sources: vec![None; devices], rows, sent: vec![0; devices], received: vec![extent; devices] };
    for need in needs {
        let begin = need.block * block;
        // All send as many rows, so some begin in front of what is needed.
        let first = (need.first as usize - begin).min(block - rows);
        round.sources[need.device] = Some(need.block);
        round.sent[need.block] = first;
        round.received[need.device] = begin + first;
    }
    round
}

/// By pair of a sender and a receiver, the number of a matching that has it: the colouring of the edges of a bipartite graph
/// with as many colours as its largest degree (Kőnig). Pairs get the first number that is free for both, if there is one.
fn matchings(pairs: &[(usize, usize)], devices: usize) -> Vec<usize> {
    let ends = |pair: usize| [pairs[pair].0, pairs[pair].1];
    let mut degree = [vec![0; devices], vec![0; devices]];
    (0..pairs.len()).for_each(|pair| (0..2).for_each(|side| degree[side][ends(pair)[side]] += 1));
    let most = degree.iter().flatten().copied().max().unwrap_or(0);
    let mut taken: Taken = [vec![vec![None; most]; devices], vec![vec![None; most]; devices]];
    let mut numbers = vec![0; pairs.len()];
    for pair in 0..pairs.len() {
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
                exchange(&mut taken, &mut numbers, &ends, own[1], [number, other]);
                number
            }
        };
        numbers[pair] = number;
        (0..2).for_each(|side| taken[side][own[side]][number] = Some(pair));
    }
    numbers
}

/// By side (senders, receivers), device and number, the pair that has the number.
type Taken = [Vec<Vec<Option<usize>>>; 2];

/// Exchanges two numbers along the path of pairs from a receiver on that have them by turns. Then its first one is free.
fn exchange(
    taken: &mut Taken,
    all: &mut [usize],
    ends: &impl Fn(usize) -> [usize; 2],
    receiver: usize,
    two: [usize; 2],
) {
    let (mut path, mut at, mut side, mut next) = (vec![], receiver, 1, two);
    while let Some(pair) = taken[side][at][next[0]] {
        path.push(pair);
        side = 1 - side;
        at = ends(pair)[side];
        next.reverse();
    }
    for &pair in &path {
        (0..2).for_each(|side| taken[side][ends(pair)[side]][all[pair]] = None);
    }
    for &pair in &path {
        all[pair] = if all[pair] == two[0] { two[1] } else { two[0] };
        (0..2).for_each(|side| taken[side][ends(pair)[side]][all[pair]] = Some(pair));
    }
}
