//! The choice of one list of axes for each factor of an operation, so that operands and results are sharded alike.
//!
//! ```text
//! all agree                                   that list
//! two arrays, whose dimensions are factors    the list of the better array, and of the other one what is left
//! else                                        one after the other the lists that most elements have
//! ```
//!
//! Axes of factors that cannot be sharded go to a factor that can, if all arrays have it: work is shared instead of
//! repeated.
use super::factor_shardings::FactorShardings;
use super::op_sharding_rule::{FactorRole, ShardingRule, gcd};
use crate::mesh::axis::{Axis, has_overlap, is_strict_prefix, prefix_relation, product_of_sizes, push_merged};
use crate::mesh::{Mesh, Sharding, axis};
use std::cmp::Ordering;

/// Returns the mesh axes for each factor of an operation, which all its arrays then share, from the shardings that the
/// arrays have now: axes that are equal already, else those of the preferred one of two arrays whose dimensions are
/// one factor each, else the best lists of all arrays. `elements` is the number of elements of each array.
pub(super) fn find_common_factor_axes(
    array_shardings: &[FactorShardings],
    rule: &ShardingRule,
    elements: &[usize],
    mesh: &Mesh,
) -> Vec<Vec<Axis>> {
    if let Some(axes) = find_equal_axes(array_shardings, rule) {
        return axes;
    }
    let arrays: Vec<usize> = (0..rule.tensors.len()).filter(|&t| !rule.tensors[t].is_empty()).collect();
    let replicated: Vec<usize> =
        (0..rule.factors.len()).filter(|&f| rule.factors[f].role == FactorRole::Replicate).collect();
    let is_plain = rule.tensors.iter().flatten().all(|dim| dim.len() == 1);
    if let ([a, b], true, true) = (&arrays[..], replicated.is_empty(), is_plain) {
        return keep_preferred_sharding(array_shardings, rule, elements, [*a, *b]);
    }
    let mut axes = choose_axes_by_majority(array_shardings, rule, elements, mesh);
    for f in replicated {
        let left = std::mem::take(&mut axes[f]);
        distribute_to_batch_factors(left, f, &mut axes, rule, &arrays);
    }
    axes
}

/// Returns the axes of each factor if all arrays have the same ones, and no axis occurs twice.
fn find_equal_axes(array_shardings: &[FactorShardings], rule: &ShardingRule) -> Option<Vec<Vec<Axis>>> {
    let mut seen: Vec<Axis> = vec![];
    let mut all = vec![];
    for (f, factor) in rule.factors.iter().enumerate() {
        let mut lists = array_shardings.iter().filter_map(|split| split.get(f)).map(|part| &part.axes);
        let first = lists.next().cloned().unwrap_or_default();
        let is_sharded = !first.is_empty() && factor.role == FactorRole::Replicate;
        if is_sharded || lists.any(|list| *list != first) || has_overlap(&first, &seen) {
            return None;
        }
        seen.extend(&first);
        all.push(first);
    }
    Some(all)
}

/// Returns the axes for two arrays whose dimensions are one factor each. The better array keeps its sharding: the one
/// without transfers between neighbours, then the larger one, then the one in more blocks.
fn keep_preferred_sharding(
    array_shardings: &[FactorShardings],
    rule: &ShardingRule,
    elements: &[usize],
    arrays: [usize; 2],
) -> Vec<Vec<Axis>> {
    let is_moved = |t: usize| {
        array_shardings[t]
            .parts
            .iter()
            .any(|(f, part)| rule.factors[*f].role == FactorRole::Permute && !part.axes.is_empty())
    };
    let key = |t: usize| (!is_moved(t), elements[t], array_shardings[t].block_count());
    let [first, second] = arrays;
    let (better, other) = if key(first) >= key(second) { (first, second) } else { (second, first) };
    let mut axes = vec![vec![]; rule.factors.len()];
    let mut used = vec![];
    for (f, part) in &array_shardings[better].parts {
        axes[*f].clone_from(&part.axes);
        used.extend(&part.axes);
    }
    for (f, part) in &array_shardings[other].parts {
        if array_shardings[better].get(*f).is_none() {
            axes[*f].clone_from(&part.axes);
            truncate_at_overlap(&mut axes[*f], &used);
        }
    }
    axes
}

/// Shortens a list at the first axis that overlaps one of `others`; returns true if it became shorter.
fn truncate_at_overlap(axes: &mut Vec<Axis>, others: &[Axis]) -> bool {
    let before = axes.clone();
    axis::truncate_axes(axes, |axis, _| axis.prefix_without_any_overlap(others));
    *axes != before
}

/// A list of axes that a factor could get.
struct AxesCandidate {
    /// The factor that could get the axes.
    factor: usize,
    /// The axes, a prefix of those that some array has for the factor.
    axes: Vec<Axis>,
    /// Elements of the arrays whose lists for the factor begin with it.
    elements: usize,
    /// Number of blocks into which it would split the factor in addition to the axes chosen so far.
    parts: usize,
}

impl AxesCandidate {
    /// Compares two candidates for the next choice, of which the greater is preferred: by elements of the arrays that
    /// have the axes, then the factor's role (pass-through, reduction, permutation, replication), then the number of
    /// blocks. Ties are broken by the order of factors, the number of axes and their names.
    fn compare_preference(&self, other: &AxesCandidate, rule: &ShardingRule, mesh: &Mesh) -> Ordering {
        let cost = |c: &AxesCandidate| match rule.factors[c.factor].role {
            FactorRole::PassThrough => 3,
            FactorRole::Reduce => 2,
            FactorRole::Permute => 1,
            FactorRole::Replicate => 0,
        };
        let key = |c: &AxesCandidate| (c.elements, cost(c), c.parts, c.factor, c.axes.len());
        let name = |axis: &Axis| (mesh.name(usize::from(axis.id)).to_string(), axis.pre, axis.size);
        key(self).cmp(&key(other)).then_with(|| self.axes.iter().map(name).cmp(other.axes.iter().map(name)))
    }
}

/// Returns the axes for each factor: takes again and again the best of the lists that arrays have for factors, and
/// shortens or drops those that it excludes. A factor that comes after another one in a dimension has to wait until the
/// whole extent of that one is sharded.
fn choose_axes_by_majority(
    array_shardings: &[FactorShardings],
    rule: &ShardingRule,
    elements: &[usize],
    mesh: &Mesh,
) -> Vec<Vec<Axis>> {
    let mut candidates: Vec<AxesCandidate> = vec![];
    for (factor, part) in array_shardings.iter().flat_map(|split| &split.parts) {
        for n in 1..=part.axes.len() {
            let axes = &part.axes[..n];
            if !candidates.iter().any(|c| c.factor == *factor && c.axes == axes) {
                candidates.push(AxesCandidate {
                    factor: *factor,
                    axes: axes.to_vec(),
                    elements: 0,
                    parts: product_of_sizes(axes),
                });
            }
        }
    }
    for (split, &n) in array_shardings.iter().zip(elements) {
        for (factor, part) in &split.parts {
            let begins = |c: &&mut AxesCandidate| {
                c.factor == *factor && prefix_relation(&c.axes, &part.axes) != axis::PrefixRelation::No
            };
            candidates.iter_mut().filter(begins).for_each(|c| c.elements += n);
        }
    }
    let mut waits_for: Vec<Vec<usize>> = vec![vec![]; rule.factors.len()];
    for dim in rule.tensors.iter().flatten() {
        dim.windows(2).for_each(|pair| waits_for[pair[1]].push(pair[0]));
    }
    let mut taken: Vec<Vec<Axis>> = vec![vec![]; rule.factors.len()];
    loop {
        let ready = candidates.iter().enumerate().filter(|(_, c)| waits_for[c.factor].is_empty());
        let Some((best, _)) = ready.max_by(|(_, a), (_, b)| a.compare_preference(b, rule, mesh)) else { return taken };
        let AxesCandidate { factor, axes, .. } = candidates.swap_remove(best);
        if product_of_sizes(&axes) == rule.factors[factor].size {
            waits_for.iter_mut().for_each(|waits| waits.retain(|&other| other != factor));
        }
        taken[factor].clone_from(&axes);
        candidates.retain_mut(|c| {
            let fits = match c.factor == factor {
                true => is_strict_prefix(&axes, &c.axes),
                false => !truncate_at_overlap(&mut c.axes, &axes) || c.axes != taken[c.factor],
            };
            // Measured: the axes that the factor already has count again when another factor's candidate is chosen.
            c.parts = product_of_sizes(&c.axes) / if c.factor == factor { product_of_sizes(&axes) } else { 1 };
            fits
        });
    }
}

/// Gives the axes `leftover_axes` of `factor`, which cannot be sharded, to the factors that all arrays in
/// `array_indices` have, as far as they divide these evenly; does nothing if one of the arrays lacks `factor`.
fn distribute_to_batch_factors(
    mut leftover_axes: Vec<Axis>,
    factor: usize,
    axes: &mut [Vec<Axis>],
    rule: &ShardingRule,
    array_indices: &[usize],
) {
    let is_everywhere = |f: usize| array_indices.iter().all(|&t| rule.tensors[t].iter().flatten().any(|&own| own == f));
    if !is_everywhere(factor) {
        return;
    }
    for (f, own) in axes.iter_mut().enumerate() {
        let (n, parts) = (rule.factors[f].size, product_of_sizes(own));
        if rule.factors[f].role != FactorRole::PassThrough || !is_everywhere(f) || n == 0 || !n.is_multiple_of(parts) {
            continue;
        }
        let mut room = n / parts;
        while let Some(&axis) = leftover_axes.first().filter(|axis| room.is_multiple_of(axis.len())) {
            push_merged(own, axis);
            room /= axis.len();
            leftover_axes.remove(0);
        }
    }
}

/// Returns the axes for each factor of a reshape some of whose axes do not divide a factor and overflow into the next
/// one. If both sides have equal lists including these, they are taken; otherwise the axes of the side in more blocks
/// are distributed among the factors of both sides.
pub(super) fn find_common_reshape_axes(array_shardings: &[FactorShardings], rule: &ShardingRule) -> Vec<Vec<Axis>> {
    let all_of = |side: usize, f: usize| {
        array_shardings[side].get(f).map(|part| {
            let mut all = part.axes.clone();
            part.overflow.iter().for_each(|&axis| push_merged(&mut all, axis));
            all
        })
    };
    let lists: Vec<[Option<Vec<Axis>>; 2]> =
        (0..rule.factors.len()).map(|f| [0, 1].map(|side| all_of(side, f))).collect();
    let is_equal = |[a, b]: &[Option<Vec<Axis>>; 2]| match (a, b) {
        (Some(a), Some(b)) => a == b,
        (a, b) => a.iter().chain(b).all(Vec::is_empty),
    };
    if lists.iter().all(is_equal) {
        return lists.into_iter().map(|[a, b]| a.or(b).unwrap_or_default()).collect();
    }
    let better = usize::from(array_shardings[0].block_count() < array_shardings[1].block_count());
    let all: Vec<Axis> = lists.iter().filter_map(|list| list[better].as_ref()).flatten().copied().collect();
    let sides: Vec<FactorShardings> = (0..2)
        .map(|side| {
            let (spread, left) = distribute_over_factors(&array_shardings[side], &all, side, rule);
            let mut joined = spread.to_sharding(&rule.tensors[side], &rule.factors);
            // Measured: axes that fit nowhere shard the last dimension.
            if let Some(dim) = joined.dims.last_mut() {
                left.into_iter().for_each(|axis| push_merged(&mut dim.axes, axis));
            }
            FactorShardings::from_sharding(&rule.tensors[side], Some(&joined), &rule.factors, true)
        })
        .collect();
    let common = |a: &[Axis], b: &[Axis]| {
        let mut axes = vec![];
        for (x, y) in a.iter().zip(b) {
            match x == y {
                true => axes.push(*x),
                false => {
                    let shorter = if x.is_prefix_of(*y) { Some(*x) } else { Some(*y).filter(|y| y.is_prefix_of(*x)) };
                    axes.extend(shorter.filter(|_| x.can_coexist(*y)));
                    break;
                }
            }
        }
        axes
    };
    (0..rule.factors.len())
        .map(|f| match (sides[0].get(f), sides[1].get(f)) {
            (Some(a), Some(b)) => common(&a.axes, &b.axes),
            (Some(part), None) | (None, Some(part)) => part.axes.clone(),
            (None, None) => vec![],
        })
        .collect()
}

/// Distributes axes among the factors of an array, in order; returns its sharding, and the axes from the first one that
/// fits nowhere.
fn distribute_over_factors(
    array_sharding: &FactorShardings,
    axes: &[Axis],
    array: usize,
    rule: &ShardingRule,
) -> (FactorShardings, Vec<Axis>) {
    let mut to = array_sharding.clone();
    let order: Vec<usize> =
        rule.tensors[array].iter().flatten().copied().filter(|&f| array_sharding.get(f).is_some()).collect();
    let mut room: Vec<usize> = order.iter().map(|&f| rule.factors[f].size).collect();
    for (_, part) in &mut to.parts {
        part.axes.clear();
        part.overflow.clear();
    }
    let mut left: Vec<Axis> = axes.iter().rev().copied().collect();
    'axes: while let Some(mut axis) = left.pop() {
        loop {
            let mut is_used = false;
            for (i, &f) in order.iter().enumerate().filter(|(i, _)| room[*i] > 1).collect::<Vec<_>>() {
                let common = gcd(room[i], axis.len());
                if common == 1 && axis.size != 1 {
                    continue;
                }
                is_used = true;
                let part = to.get_mut(f).expect("it has the factor");
                push_merged(&mut part.axes, axis.first_part(common));
                room[i] /= common;
                if axis.len() == common {
                    continue 'axes;
                }
                axis = axis.without_first_part(common);
            }
            if !is_used {
                left.push(axis);
                break 'axes;
            }
        }
    }
    left.reverse();
    (to, left)
}

/// Returns the sharding of array number `array` of a rule when each factor is sharded by its list in `axes`; replicated
/// and unreduced axes are those of `sharding`.
pub(crate) fn sharding_from_factor_axes(
    rule: &ShardingRule,
    array: usize,
    sharding: &Sharding,
    axes: &[Vec<Axis>],
) -> Sharding {
    let mut split = FactorShardings::from_sharding(&rule.tensors[array], Some(sharding), &rule.factors, true);
    for (f, part) in &mut split.parts {
        part.axes.clone_from(&axes[*f]);
        part.overflow.clear();
    }
    split.to_sharding(&rule.tensors[array], &rule.factors).without_choices()
}
