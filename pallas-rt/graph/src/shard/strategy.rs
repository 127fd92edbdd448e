//! One step of propagation, in which the shardings of an operation's operands and results extend each other.
//!
//! This is Shardy's aggressive strategy, the only one in its default pipeline. For each factor it finds the longest
//! list of axes on which all arrays agree; then each array takes as much of it as it can.
use super::factor_shardings::{FactorSharding, FactorShardings};
use super::op_sharding_rule::{Factor, ShardingRule, gcd};
use crate::mesh::PropagationDirection;
use crate::mesh::axis::{Axis, PrefixRelation, is_strict_prefix, prefix_relation, product_of_sizes, truncate_axes};

/// Extends the shardings of operands and results, given the direction for each factor; returns by array true if it has
/// changed. With `is_elementwise`, operands are sharded no further than results, and factors with more shards come
/// first in a tie.
pub(super) fn propagate_aggressively(
    splits: &mut [FactorShardings],
    rule: &ShardingRule,
    direction: &dyn Fn(usize) -> PropagationDirection,
    is_elementwise: bool,
) -> Vec<bool> {
    let (factors, operands) = (&rule.factors, rule.operands);
    let mut is_updated = vec![false; splits.len()];
    let agreed: Vec<Vec<Axis>> =
        (0..factors.len()).map(|f| compatible_major_axes(splits, operands, f, direction(f))).collect();
    if agreed.iter().all(Vec::is_empty) {
        return is_updated;
    }
    let order = order_factors(splits, factors, &agreed, is_elementwise);
    for i in (operands..splits.len()).chain(0..operands) {
        for &f in &order {
            let Some(part) = splits[i].get(f) else { continue };
            let mut axes = agreed[f].clone();
            truncate_axes(&mut axes, |axis, before| {
                prefix_fitting_factor(axis, &splits[i], part, before, factors[f].size)
            });
            if !is_strict_prefix(&part.axes, &axes) {
                continue;
            }
            truncate_axes(&mut axes, |axis, _| prefix_without_other_factors(axis, &splits[i], f));
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
            is_updated[i] |= splits[i].try_extend_axes(f, &axes);
        }
    }
    is_updated
}

/// Returns the factors in the order in which their shardings are extended by further axes: the larger the array that
/// already has all axes agreed on for a factor, the earlier. Elementwise operations put more shards first in a tie.
fn order_factors(
    splits: &[FactorShardings],
    factors: &[Factor],
    agreed: &[Vec<Axis>],
    is_elementwise: bool,
) -> Vec<usize> {
    // By factor, the number of elements of that array, and its index.
    let mut source: Vec<Option<(usize, usize)>> = vec![None; factors.len()];
    for (i, split) in splits.iter().enumerate() {
        let elements: usize = split.parts.iter().map(|(f, _)| factors[*f].size).product();
        for (f, part) in &split.parts {
            let has = !agreed[*f].is_empty() && prefix_relation(&agreed[*f], &part.axes) != PrefixRelation::No;
            if has && source[*f].is_none_or(|(most, _)| elements > most) {
                source[*f] = Some((elements, i));
            }
        }
    }
    let mut order: Vec<usize> = (0..factors.len()).collect();
    order.sort_by_key(|&f| {
        let parts = if is_elementwise { product_of_sizes(&agreed[f]) } else { 0 };
        let (elements, i) = source[f].unzip();
        (std::cmp::Reverse(elements), std::cmp::Reverse(parts), i, f)
    });
    order
}

/// Returns the longest list of leading axes on which all arrays with factor number `factor` agree. Only arrays on the
/// side from which `direction` propagates may add axes to it; the first `operand_count` arrays are operands, the others
/// results.
pub(super) fn compatible_major_axes(
    splits: &[FactorShardings],
    operand_count: usize,
    factor: usize,
    direction: PropagationDirection,
) -> Vec<Axis> {
    let (before, after) = splits.split_at(operand_count);
    let (first, second) = match direction {
        PropagationDirection::None => return vec![],
        PropagationDirection::Backward => (after, before),
        PropagationDirection::Forward | PropagationDirection::Both => (before, after),
    };
    let (mut axes, mut grows) = (vec![], true);
    for part in first.iter().filter_map(|split| split.get(factor)) {
        (axes, grows) = common_major_axes(&axes, &part.axes, grows);
    }
    grows &= direction == PropagationDirection::Both;
    for part in second.iter().filter_map(|split| split.get(factor)) {
        (axes, grows) = common_major_axes(&axes, &part.axes, grows);
    }
    axes
}

/// Returns the leading axes on which two lists agree; axes that only `old` has after them are added, those of `new` if
/// `may_extend` is true. The returned bool is true if further lists may still add axes.
fn common_major_axes(old: &[Axis], new: &[Axis], may_extend: bool) -> (Vec<Axis>, bool) {
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
            if !may_extend || i + 1 < old.len() {
                axes.push(a);
                return (axes, false);
            }
            axes.push(b);
        } else {
            return (axes, false);
        }
    }
    axes.extend(&old[shared..]);
    if may_extend {
        axes.extend(&new[shared..]);
    }
    (axes, may_extend)
}

/// Returns the first part of an axis that shards no other factor of an array; `None` if there is none.
fn prefix_without_other_factors(axis: Axis, split: &FactorShardings, factor: usize) -> Option<Axis> {
    split.parts.iter().filter(|(other, _)| *other != factor).try_fold(axis, |axis, (_, part)| {
        axis.prefix_without_any_overlap(&part.overflow)?.prefix_without_any_overlap(&part.axes)
    })
}

/// Returns the prefix of `axis` by which an array may be sharded along a factor of size `factor_size`, after axes of
/// total size `size_before`; `None` if there is none. `split` has the array's shardings by all factors, `part` that by
/// this one.
pub(super) fn prefix_fitting_factor(
    axis: Axis,
    split: &FactorShardings,
    part: &FactorSharding,
    size_before: usize,
    factor_size: usize,
) -> Option<Axis> {
    let axis = axis.prefix_without_any_overlap(&split.replicated)?.prefix_without_any_overlap(&split.unreduced)?;
    if part.axes.iter().any(|own| own.contains(axis)) {
        return Some(axis);
    }
    if !part.is_closed && part.overflow.is_empty() {
        if part.is_minor {
            return Some(axis);
        }
        if factor_size.is_multiple_of(size_before) {
            match gcd(factor_size / size_before, axis.len()) {
                1 if axis.size != 1 => {}
                common => return Some(axis.first_part(common)),
            }
        }
    }
    part.axes.last().copied().filter(|last| last.is_prefix_of(axis))
}
