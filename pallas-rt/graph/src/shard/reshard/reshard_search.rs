//! The search for the steps from one sharding to another one, with the moves of Shardy in Shardy's order.
//!
//! Each round slices first, because later steps then move less; permutes blocks where other axes of the same size are
//! to shard a dimension; moves axes between dimensions by all-to-alls; and gathers last. One round is enough where
//! sizes of axes are powers of two and no dimension has to be whole in between.
use super::{ReshardStep, ReshardSteps, closed_sharding};
use crate::mesh::axis::{Axis, product_of_sizes, push_merged};
use crate::shard::op_sharding_rule::gcd;

/// Number of rounds after which the search fails. Shardy needs more than one where sizes of axes do not divide each
/// other.
const MAX_SEARCH_ROUNDS: usize = 8;

/// The difference between the sharding that an array has now and the one that it is to have, with the steps so far. The
/// search ends when it is empty.
///
/// The axes of both are split so that each of one is equal to one of the other or does not overlap it.
pub(super) struct ReshardSearch<'a> {
    /// Shape of the whole array.
    shape: &'a [usize],
    /// By dimension, the axes that shard it now, without the first ones that are already as wanted.
    present: Vec<Vec<Axis>>,
    /// By dimension, the axes that are to shard it, without the first ones that already do.
    wanted: Vec<Vec<Axis>>,
    /// By dimension, all axes that shard it now.
    current: Vec<Vec<Axis>>,
    /// By dimension, the axes of the wanted sharding.
    end: &'a [Vec<Axis>],
    /// By dimension, true if all its axes have to leave it together before others may shard it. Until then no axis is
    /// moved to it.
    must_be_whole: Vec<bool>,
    /// Axes along which devices have partial sums, which no step changes.
    unreduced: &'a [Axis],
    /// The steps so far, each with the sharding after it.
    steps: ReshardSteps,
}

/// An end of the list of axes that shard a dimension.
#[derive(Clone, Copy)]
enum ListEnd {
    Front,
    Back,
}

impl<'a> ReshardSearch<'a> {
    /// Returns the difference of the shardings `old` and `new`. `must_be_whole` is true for dimensions that have to be
    /// whole in between.
    pub(super) fn new(
        shape: &'a [usize],
        old: &[Vec<Axis>],
        new: &'a [Vec<Axis>],
        must_be_whole: Vec<bool>,
        unreduced: &'a [Axis],
    ) -> Self {
        let (from, to) = (old.concat(), new.concat());
        let present = old.iter().map(|axes| align_axes(axes, &to)).collect();
        let wanted = new.iter().map(|axes| align_axes(axes, &from)).collect();
        let mut difference = ReshardSearch {
            shape,
            present,
            wanted,
            current: old.to_vec(),
            end: new,
            must_be_whole,
            unreduced,
            steps: vec![],
        };
        (0..shape.len()).for_each(|dim| difference.drop_equal_prefixes(dim));
        difference
    }

    /// Returns the steps to the wanted sharding; `None` if the moves do not lead there.
    pub(super) fn find_steps(self) -> Option<ReshardSteps> {
        self.search_rounds(true)
    }

    /// Returns the steps to the wanted sharding with the slice of every round last, so that axes which are moved to a
    /// dimension come before sliced ones; `None` if the moves do not lead there.
    pub(super) fn find_steps_slicing_last(self) -> Option<ReshardSteps> {
        self.search_rounds(false)
    }

    /// Tries slices, permutes, all-to-alls and gathers in turn, in at most `MAX_SEARCH_ROUNDS` rounds, and returns the
    /// steps; `None` if they do not reach the wanted sharding. If `slices_first` slices come first in a round, else
    /// last.
    fn search_rounds(mut self, slices_first: bool) -> Option<ReshardSteps> {
        for _ in 0..MAX_SEARCH_ROUNDS {
            if self.is_finished() {
                break;
            }
            if slices_first {
                self.emit_slice();
            }
            if !self.must_be_whole.contains(&true) && self.needs_permute() {
                self.emit_permute();
            }
            // Axes that arrive in order first, or else a dimension would have to be permuted afterwards.
            self.emit_all_to_alls(true);
            self.emit_all_to_alls(false);
            self.emit_gather();
            if !slices_first {
                self.emit_slice();
            }
        }
        (self.is_finished() && self.current == self.end).then_some(self.steps)
    }

    fn rank(&self) -> usize {
        self.shape.len()
    }

    fn is_finished(&self) -> bool {
        self.present.iter().chain(&self.wanted).all(Vec::is_empty)
    }

    /// Returns true if the axis shards any dimension now, apart from those that are already as wanted.
    fn is_present(&self, axis: Axis) -> bool {
        self.present.iter().flatten().any(|&other| other == axis)
    }

    /// Returns the dimension that an axis is to shard, and its index among the axes that are still wanted there; `None`
    /// if it is wanted nowhere, or in a blocked dimension.
    fn wanted_position(&self, axis: Axis) -> Option<(usize, usize)> {
        let at = |axes: &Vec<Axis>| axes.iter().position(|&other| other == axis);
        let mut open = self.wanted.iter().enumerate().filter(|(dim, _)| !self.must_be_whole[*dim]);
        open.find_map(|(dim, axes)| Some((dim, at(axes)?)))
    }

    /// Appends a step after which the array has the current axes.
    fn push_step(&mut self, step: ReshardStep) {
        self.steps.push((step, closed_sharding(&self.current, self.unreduced)));
    }

    /// Removes the leading axes that already shard a dimension as wanted from its lists of present and of wanted axes,
    /// unless it has to be whole in between.
    fn drop_equal_prefixes(&mut self, dim: usize) {
        if self.must_be_whole[dim] {
            return;
        }
        let (present, wanted) = (&mut self.present[dim], &mut self.wanted[dim]);
        let equal = present.iter().zip(wanted.iter()).take_while(|(a, b)| a == b).count();
        present.drain(..equal);
        wanted.drain(..equal);
    }

    /// Moves axes from `available` to one end of a dimension's list as long as they fit, and returns them.
    /// `growth_left` is the factor by which the number of blocks may still grow; axes that do not fit are skipped.
    fn place_fitting_axes(
        &mut self,
        dim: usize,
        end: ListEnd,
        growth_left: &mut usize,
        available: &mut Vec<Axis>,
    ) -> Vec<Axis> {
        let (mut taken, mut i) = (vec![], 0);
        while i < available.len() {
            let Some((fits, rest)) = take_fitting_part(available[i], growth_left) else {
                i += 1;
                continue;
            };
            available.remove(i);
            taken.push(fits);
            if let Some(rest) = rest {
                available.insert(0, rest);
                self.wanted.iter_mut().for_each(|axes| *axes = align_axes(axes, &[fits]));
            }
        }
        let at = match end {
            ListEnd::Front => 0,
            ListEnd::Back => self.present[dim].len(),
        };
        self.present[dim].splice(at..at, taken.iter().copied());
        taken
    }
}

/// Slices, by which axes begin to shard a dimension.
impl ReshardSearch<'_> {
    /// Appends a slice by wanted axes that shard no dimension yet, up to the number of blocks that each dimension is to
    /// have: in a dimension that an all-to-all will move together with them, else in the dimension where they are
    /// wanted, else in any dimension.
    fn emit_slice(&mut self) {
        // By dimension, the factor by which the number of blocks may grow. If it grew more, a later step would have to
        // move axes away.
        let blocks = self
            .present
            .iter()
            .zip(&self.wanted)
            .map(|(present, wanted)| (product_of_sizes(present), product_of_sizes(wanted)));
        let mut room: Vec<usize> = blocks.map(|(present, wanted)| wanted / gcd(present, wanted)).collect();
        let mut sliced = vec![vec![]; self.rank()];
        let open: Vec<usize> = (0..self.rank()).filter(|&dim| !self.must_be_whole[dim]).collect();
        for &source in &open {
            for axis in self.axes_to_slice_at_source(source, &mut room) {
                self.present[source].push(axis);
                push_merged(&mut self.current[source], axis);
                push_merged(&mut sliced[source], axis);
            }
        }
        let mut elsewhere = vec![];
        for &dim in &open {
            let mut i = 0;
            while i < self.wanted[dim].len() {
                let axis = self.wanted[dim][i];
                i += 1;
                if self.is_present(axis) {
                    continue;
                }
                let Some((fits, rest)) = take_fitting_part(axis, &mut room[dim]) else {
                    elsewhere.push(axis);
                    continue;
                };
                self.present[dim].push(fits);
                push_merged(&mut self.current[dim], fits);
                push_merged(&mut sliced[dim], fits);
                self.wanted[dim][i - 1] = fits;
                if let Some(rest) = rest {
                    self.wanted[dim].insert(i, rest);
                    elsewhere.push(rest);
                    i += 1;
                }
            }
            self.drop_equal_prefixes(dim);
        }
        for &dim in &open {
            for axis in self.place_fitting_axes(dim, ListEnd::Back, &mut room[dim], &mut elsewhere) {
                push_merged(&mut self.current[dim], axis);
                push_merged(&mut sliced[dim], axis);
            }
        }
        if sliced.iter().any(|axes| !axes.is_empty()) {
            self.push_step(ReshardStep::AllSlice(sliced));
        }
    }

    /// Returns the axes to slice in dimension `source`, because an all-to-all will move its last axes to a dimension
    /// where these axes are wanted directly after them. Sliced in that dimension, they would come before the axes that
    /// are moved there, and a permute would be needed.
    fn axes_to_slice_at_source(&self, source: usize, growth_left: &mut [usize]) -> Vec<Axis> {
        let present = &self.present[source];
        let last = present.last().filter(|_| self.wanted[source].is_empty());
        let Some((target, index)) = last.and_then(|&axis| self.wanted_position(axis)) else { return vec![] };
        if !self.present[target].is_empty() {
            return vec![];
        }
        let (before, after) = self.wanted[target].split_at(index + 1);
        let added: Vec<Axis> = after.iter().copied().take_while(|&axis| !self.is_present(axis)).collect();
        let in_order = present.iter().rev().zip(before.iter().rev()).take_while(|(a, b)| a == b).count();
        let (others, moving) = present.split_at(present.len() - in_order);
        let is_out_of_order =
            others.iter().any(|&axis| self.wanted_position(axis).is_some_and(|(dim, _)| dim == target));
        let blocks = product_of_sizes(&self.current[source]) * product_of_sizes(&added);
        if added.is_empty() || is_out_of_order || !self.shape[source].is_multiple_of(blocks) {
            return vec![];
        }
        growth_left[target] /= product_of_sizes(moving) * product_of_sizes(&added);
        added
    }
}

/// Permutes, which replace the axes that shard dimensions.
impl ReshardSearch<'_> {
    /// Returns true if a permute brings axes to where they are wanted, or makes an all-to-all possible: another axis is
    /// wanted at the front of a dimension, axes are out of order, or an axis that is wanted nowhere can be replaced by
    /// one that is missing.
    fn needs_permute(&self) -> bool {
        let divides = |(a, b): (&Axis, &Axis)| is_either_multiple(a.len(), b.len());
        let mut fronts =
            self.present.iter().zip(&self.wanted).map(|(present, wanted)| present.first().zip(wanted.first()));
        let missing = self.wanted.iter().flatten().rfind(|&&axis| !self.is_present(axis));
        let unwanted = self.present.iter().flatten().rfind(|&&axis| self.wanted_position(axis).is_none());
        fronts.any(|front| front.is_some_and(divides))
            || (0..self.rank()).any(|dim| self.is_out_of_order(dim))
            || missing.zip(unwanted).is_some_and(divides)
    }

    /// Returns true if axes of a dimension cannot leave it by all-to-alls and gathers alone: axes for the same
    /// dimension are separated or in another order than there, an axis is wanted at a later place in this dimension, or
    /// an axis that is wanted nowhere comes after one that has to leave first.
    fn is_out_of_order(&self, dim: usize) -> bool {
        let (mut last, mut seen) = (None, vec![]);
        for &axis in &self.present[dim] {
            let place = self.wanted_position(axis);
            match place {
                Some((target, index)) => {
                    let follows = last.is_some_and(|(dim, i)| dim == target && i + 1 == index);
                    if (target == dim || seen.contains(&target)) && !follows {
                        return true;
                    }
                    seen.push(target);
                }
                None if last.is_some() && self.wanted[dim].is_empty() => return true,
                None => {}
            }
            last = place;
        }
        false
    }

    /// Appends a permute that replaces the axes of each dimension without a change of its number of blocks. The new
    /// axes are first those wanted there; then those wanted elsewhere, which all-to-alls will move; before these come
    /// axes wanted nowhere, which the last step gathers.
    fn emit_permute(&mut self) {
        let everywhere = self.wanted.concat();
        let (mut room, mut elsewhere, mut unwanted) = (vec![], vec![], vec![]);
        for dim in 0..self.rank() {
            let mut old = std::mem::take(&mut self.present[dim]);
            remove_suffix(&mut self.current[dim], &old);
            let blocks = product_of_sizes(&old);
            let mut left = blocks;
            for axis in take_fitting_prefix(&mut self.wanted[dim], &mut left) {
                push_merged(&mut self.current[dim], axis);
            }
            elsewhere.extend(&self.wanted[dim]);
            // Axes with the size of those just placed are replaced by them; the others stay here if there is room.
            old.retain(|axis| !everywhere.contains(axis));
            let replaced = take_fitting_prefix(&mut old, &mut (blocks / left));
            unwanted.push([old, replaced].concat());
            room.push(left);
        }
        for (dim, room) in room.iter_mut().enumerate() {
            self.place_fitting_axes(dim, ListEnd::Back, room, &mut elsewhere);
        }
        for (dim, (room, unwanted)) in room.iter_mut().zip(&mut unwanted).enumerate() {
            self.place_fitting_axes(dim, ListEnd::Front, room, unwanted);
        }
        let mut unwanted = unwanted.concat();
        for (dim, room) in room.iter_mut().enumerate() {
            self.place_fitting_axes(dim, ListEnd::Front, room, &mut unwanted);
        }
        for (current, present) in self.current.iter_mut().zip(&self.present) {
            present.iter().for_each(|&axis| push_merged(current, axis));
        }
        self.push_step(ReshardStep::Permute);
    }
}

/// All-to-alls, which move axes between dimensions, and gathers, by which axes leave them.
impl ReshardSearch<'_> {
    /// Appends all-to-alls that move the last axes of each dimension to the dimension where they are wanted, all of
    /// them in one. With `in_order`, only axes that are the next ones wanted there are moved.
    fn emit_all_to_alls(&mut self, in_order: bool) {
        for source in 0..self.rank() {
            while let Some(&last) = self.present[source].last() {
                let Some((target, _)) = self.wanted_position(last).filter(|(dim, _)| *dim != source) else { break };
                let is_moving = |&axis: &Axis| self.wanted_position(axis).is_some_and(|(dim, _)| dim == target);
                let count = self.present[source].iter().rev().take_while(|axis| is_moving(axis)).count();
                let start = self.present[source].len() - count;
                if self.must_be_whole[source] && start > 0 {
                    break;
                }
                if in_order && !self.wanted[target].starts_with(&self.present[source][start..]) {
                    break;
                }
                self.must_be_whole[source] = false;
                let moved = self.present[source].split_off(start);
                remove_suffix(&mut self.current[source], &moved);
                let mut axes = vec![];
                for &axis in &moved {
                    push_merged(&mut axes, axis);
                    push_merged(&mut self.current[target], axis);
                }
                self.present[target].extend(moved);
                self.drop_equal_prefixes(target);
                self.push_step(ReshardStep::AllToAll { axes, from: source, to: target });
            }
        }
    }

    /// Appends an all-gather of the last axes of each dimension that are wanted nowhere, and of all axes of a dimension
    /// that has to be whole in between, which it is afterwards.
    fn emit_gather(&mut self) {
        let mut gathered = vec![vec![]; self.rank()];
        for (dim, gathered) in gathered.iter_mut().enumerate() {
            let is_kept = |&axis: &Axis| !self.must_be_whole[dim] && self.wanted_position(axis).is_some();
            let kept = self.present[dim].iter().rposition(is_kept).map_or(0, |last| last + 1);
            let axes = self.present[dim].split_off(kept);
            remove_suffix(&mut self.current[dim], &axes);
            axes.into_iter().for_each(|axis| push_merged(gathered, axis));
        }
        self.must_be_whole.fill(false);
        if gathered.iter().any(|axes| !axes.is_empty()) {
            self.push_step(ReshardStep::AllGather(gathered));
        }
    }
}

/// Returns true if one of the numbers is a multiple of the other one.
fn is_either_multiple(a: usize, b: usize) -> bool {
    a.is_multiple_of(b) || b.is_multiple_of(a)
}

/// Returns the first part of an axis that fits, and what is left of the axis. `growth_left` is the factor by which the
/// number of blocks may still grow; it is reduced by the size of the part. Returns `None` if there is no room or the
/// sizes do not divide each other.
fn take_fitting_part(axis: Axis, growth_left: &mut usize) -> Option<(Axis, Option<Axis>)> {
    if *growth_left <= 1 || !is_either_multiple(axis.len(), *growth_left) {
        return None;
    }
    if *growth_left >= axis.len() {
        *growth_left /= axis.len();
        return Some((axis, None));
    }
    let first = std::mem::replace(growth_left, 1);
    Some((axis.first_part(first), Some(axis.without_first_part(first))))
}

/// Removes axes from the front of a list as long as they fit into `growth_left`, the last one in part if it is too
/// long; returns them.
fn take_fitting_prefix(axes: &mut Vec<Axis>, growth_left: &mut usize) -> Vec<Axis> {
    let mut taken = vec![];
    while let Some((fits, rest)) = axes.first().and_then(|&axis| take_fitting_part(axis, growth_left)) {
        axes.splice(..1, rest);
        taken.push(fits);
    }
    taken
}

/// Removes the axes `suffix` from the end of a list; they may be parts of the axes there.
fn remove_suffix(axes: &mut Vec<Axis>, suffix: &[Axis]) {
    for &part in suffix.iter().rev() {
        if let Some(axis) = axes.pop() {
            axes.extend(axis.prefix_without_overlap(part));
        }
    }
}

/// Splits axes into parts, each of which equals an axis of `others`, is contained in one, or overlaps none of them.
pub(in crate::shard) fn align_axes(axes: &[Axis], others: &[Axis]) -> Vec<Axis> {
    let mut parts = vec![];
    for &axis in axes {
        let mut rest = Some(axis);
        while let Some(axis) = rest {
            let divides = |other: &&Axis| other.overlaps(axis) && other.can_coexist(axis) && !other.contains(axis);
            let Some(&first) = others.iter().filter(divides).min() else {
                parts.push(axis);
                break;
            };
            parts.extend(axis.prefix_without_overlap(first));
            parts.extend(axis.overlap(first));
            rest = axis.suffix_without_overlap(first);
        }
    }
    parts
}
