//! One step of propagation: how the shardings of an operation's operands and results extend each other.
//!
//! Shardy's aggressive strategy, which its default pipeline runs alone. For each factor the longest list of axes with which
//! all arrays agree is found; then each array takes as much of it as it can.
use super::rule::{Factor, Rule, gcd};
use super::split::{Part, Split};
use crate::mesh::axis::{Axis, Prefix, is_strict_prefix, prefix, size, truncate};

/// The direction in which shardings go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Direction {
    None,
    Forward,
    Backward,
    Both,
}

impl Direction {
    pub(super) fn union(self, other: Direction) -> Direction {
        match (self, other) {
            (Direction::Forward, Direction::Backward) | (Direction::Backward, Direction::Forward) => Direction::Both,
            _ => self.max(other),
        }
    }

    pub(super) fn intersection(self, other: Direction) -> Direction {
        match (self, other) {
            (Direction::Forward, Direction::Backward) | (Direction::Backward, Direction::Forward) => Direction::None,
            _ => self.min(other),
        }
    }
}

/// Extends the shardings of operands and results; returns, by array, true if it has changed. `direction` is asked for each
/// factor.
pub(super) fn aggressive(
    splits: &mut [Split],
    rule: &Rule,
    direction: &dyn Fn(usize) -> Direction,
    is_elementwise: bool,
) -> Vec<bool> {
    let (factors, operands) = (&rule.factors, rule.operands);
    let mut is_updated = vec![false; splits.len()];
    let agreed: Vec<Vec<Axis>> = (0..factors.len()).map(|f| agreed(splits, operands, f, direction(f))).collect();
    if agreed.iter().all(Vec::is_empty) {
        return is_updated;
    }
    let order = order(splits, factors, &agreed, is_elementwise);
    for i in (operands..splits.len()).chain(0..operands) {
        for &f in &order {
            let Some(part) = splits[i].get(f) else { continue };
            let mut axes = agreed[f].clone();
            truncate(&mut axes, |axis, before| within(axis, &splits[i], part, before, factors[f].size));
            if !is_strict_prefix(&part.axes, &axes) {
                continue;
            }
            truncate(&mut axes, |axis, _| across(axis, &splits[i], f));
            if axes.is_empty() {
                continue;
            }
            if i < operands && is_elementwise {
                // An operand is sharded no further than the result.
                for result in &splits[operands..] {
                    if let Some(part) = result.get(f).filter(|part| is_strict_prefix(&part.axes, &axes)) {
                        axes.clone_from(&part.axes);
                    }
                }
            }
            is_updated[i] |= splits[i].expand(f, &axes);
        }
    }
    is_updated
}

/// The factors in the order in which they are extended: first those of the largest array that has all axes agreed on.
fn order(splits: &[Split], factors: &[Factor], agreed: &[Vec<Axis>], is_elementwise: bool) -> Vec<usize> {
    // By factor, the number of elements of that array, and which one it is.
    let mut source: Vec<Option<(usize, usize)>> = vec![None; factors.len()];
    for (i, split) in splits.iter().enumerate() {
        let elements: usize = split.parts.iter().map(|(f, _)| factors[*f].size).product();
        for (f, part) in &split.parts {
            let has = !agreed[*f].is_empty() && prefix(&agreed[*f], &part.axes) != Prefix::No;
            if has && source[*f].is_none_or(|(most, _)| elements > most) {
                source[*f] = Some((elements, i));
            }
        }
    }
    let mut order: Vec<usize> = (0..factors.len()).collect();
    order.sort_by_key(|&f| {
        let parts = if is_elementwise { size(&agreed[f]) } else { 0 };
        let (elements, i) = source[f].unzip();
        (std::cmp::Reverse(elements), std::cmp::Reverse(parts), i, f)
    });
    order
}

/// The longest list of axes that the arrays with a factor agree on. Only a list of the side that shardings come from may
/// add axes to it.
pub(super) fn agreed(splits: &[Split], operands: usize, factor: usize, direction: Direction) -> Vec<Axis> {
    let (before, after) = splits.split_at(operands);
    let (first, second) = match direction {
        Direction::None => return vec![],
        Direction::Backward => (after, before),
        Direction::Forward | Direction::Both => (before, after),
    };
    let (mut axes, mut grows) = (vec![], true);
    for part in first.iter().filter_map(|split| split.get(factor)) {
        (axes, grows) = common(&axes, &part.axes, grows);
    }
    grows &= direction == Direction::Both;
    for part in second.iter().filter_map(|split| split.get(factor)) {
        (axes, grows) = common(&axes, &part.axes, grows);
    }
    axes
}

/// The common first axes of two lists, and, if one is a prefix of the other, the longer one, if the first may grow; then
/// also true if it still may.
fn common(old: &[Axis], new: &[Axis], grows: bool) -> (Vec<Axis>, bool) {
    let mut axes = vec![];
    let shared = old.len().min(new.len());
    for i in 0..shared {
        let (a, b) = (old[i], new[i]);
        if a == b {
            axes.push(a);
        } else if b.is_prefix_of(a) {
            if i + 1 < new.len() {
                axes.push(b);
                return (axes, false);
            }
            axes.push(a);
        } else if a.is_prefix_of(b) {
            if !grows || i + 1 < old.len() {
                axes.push(a);
                return (axes, false);
            }
            axes.push(b);
        } else {
            return (axes, false);
        }
    }
    axes.extend(&old[shared..]);
    if grows {
        axes.extend(&new[shared..]);
    }
    (axes, grows)
}

/// The first part of an axis that divides no other factor of an array.
fn across(axis: Axis, split: &Split, factor: usize) -> Option<Axis> {
    split
        .parts
        .iter()
        .filter(|(other, _)| *other != factor)
        .try_fold(axis, |axis, (_, part)| axis.prefix_without_all(&part.overflow)?.prefix_without_all(&part.axes))
}

/// The first part of an axis that may divide a factor of an array, which axes of size `before` divide already.
pub(super) fn within(axis: Axis, split: &Split, part: &Part, before: usize, factor: usize) -> Option<Axis> {
    let axis = axis.prefix_without_all(&split.replicated)?.prefix_without_all(&split.unreduced)?;
    if part.axes.iter().any(|own| own.contains(axis)) {
        return Some(axis);
    }
    if !part.is_closed && part.overflow.is_empty() {
        if part.is_minor {
            return Some(axis);
        }
        if factor.is_multiple_of(before) {
            match gcd(factor / before, axis.len()) {
                1 if axis.size != 1 => {}
                common => return Some(axis.first(common)),
            }
        }
    }
    part.axes.last().copied().filter(|last| last.is_prefix_of(axis))
}
