//! Replacement of a permute of whole blocks, where axes of one dimension change their order only because some of them
//! leave it.
//!
//! ```text
//! "x"=2, "y"=2, [8, 4]:  [{"y", "x"}, {}] -> [{"x"}, {"y"}]
//! reshape [2, 2, 2, 4]   [{"y"}, {"x"}, {}, {}]
//! all_to_all {"y"}: 0->3 [{}, {"x"}, {}, {"y"}]
//! all_to_all {"x"}: 1->0 [{"x"}, {}, {}, {"y"}]
//! reshape [8, 4]         [{"x"}, {"y"}]
//! ```
//!
//! Each axis shards a part of the dimension that the reshape makes, and axes that remain move to the first parts. This
//! is Shardy's pass `sdy-optimize-collectives`, which takes such steps also where they move more than the permute did.
use super::reshard_search::align_axes;
use super::{ReshardStep, ReshardSteps, closed_sharding, normalized_axes};
use crate::mesh::Sharding;
use crate::mesh::axis::{Axis, product_of_sizes, push_merged};

/// Returns steps to the same sharding without the permute; `None` where that is impossible or moves more elements.
pub(super) fn replace_permute_step(shape: &[usize], from: &Sharding, steps: &ReshardSteps) -> Option<ReshardSteps> {
    let at = steps.iter().position(|(step, _)| *step == ReshardStep::Permute)?;
    let count = steps[at + 1..].iter().take_while(|(step, _)| matches!(step, ReshardStep::AllToAll { .. })).count();
    let end = at + 1 + count;
    let before = if at == 0 { normalized_axes(from) } else { steps[at - 1].1.axes() };
    let permuted = steps[at].1.axes();
    let mut changed = (0..shape.len()).filter(|&dim| before[dim] != permuted[dim]);
    let (dim, None) = (changed.next()?, changed.next()) else { return None };

    let mut moving = SplitDimArray::new(shape, dim, &before, &permuted[dim], &from.unreduced)?;
    for (step, _) in &steps[at + 1..end] {
        let ReshardStep::AllToAll { axes, from, to } = step else { return None };
        moving.translate_all_to_all(axes, *from, *to)?;
    }
    moving.move_to_first_parts(&steps[end - 1].1.dims[dim].axes)?;
    let mut all = steps[..at].to_vec();
    all.extend(moving.steps);
    all.push((ReshardStep::Reshape(shape.to_vec()), steps[end - 1].1.clone()));
    all.extend_from_slice(&steps[end..]);
    Some(all)
}

/// An array in which a reshape has split one dimension into parts, each of which one axis shards, with the steps so
/// far.
struct SplitDimArray<'a> {
    /// The dimension of the original array that is split.
    dim: usize,
    /// The axis that shards each part at first.
    parts: Vec<Axis>,
    /// Shape of the array with the dimension split.
    shape: Vec<usize>,
    /// By dimension of the split array, the axes that shard it now.
    current: Vec<Vec<Axis>>,
    /// Axes along which devices have partial sums, which no step changes.
    unreduced: &'a [Axis],
    /// The steps so far, with shardings of the split array.
    steps: ReshardSteps,
}

impl<'a> SplitDimArray<'a> {
    /// Splits dimension `dim` at the axes that shard it in `before` and, after the permute, in `permuted`; returns
    /// `None` if it is no multiple of their sizes or there are none.
    fn new(
        shape: &[usize],
        dim: usize,
        before: &[Vec<Axis>],
        permuted: &[Axis],
        unreduced: &'a [Axis],
    ) -> Option<Self> {
        let parts = align_axes(&before[dim], permuted);
        let [front @ .., _] = &parts[..] else { return None };
        if !shape[dim].is_multiple_of(product_of_sizes(&parts)) {
            return None;
        }
        let extents = front.iter().map(|axis| axis.size as usize).chain([shape[dim] / product_of_sizes(front)]);
        let shape: Vec<usize> =
            shape[..dim].iter().copied().chain(extents).chain(shape[dim + 1..].iter().copied()).collect();
        let mut current = before.to_vec();
        current.splice(dim..=dim, parts.iter().map(|&axis| vec![axis]));
        let steps = vec![(ReshardStep::Reshape(shape.clone()), closed_sharding(&current, unreduced))];
        Some(SplitDimArray { dim, parts, shape, current, unreduced, steps })
    }

    /// Appends the all-to-all of the split array that corresponds to one of the whole array; returns `None` if none
    /// does.
    fn translate_all_to_all(&mut self, axes: &[Axis], from: usize, to: usize) -> Option<()> {
        let &[axis] = axes else { return None };
        let place = |dim: usize| match dim.cmp(&self.dim) {
            std::cmp::Ordering::Less => Some(dim),
            std::cmp::Ordering::Greater => Some(dim + self.parts.len() - 1),
            std::cmp::Ordering::Equal => None,
        };
        let to = place(to)?;
        let from = match place(from) {
            Some(from) => from,
            None => self.dim + self.parts.iter().position(|&part| part == axis)?,
        };
        self.emit_all_to_all(axis, from, to)
    }

    /// Appends an all-to-all of one axis; returns `None` if the axis is not the last one of dimension `from`.
    fn emit_all_to_all(&mut self, axis: Axis, from: usize, to: usize) -> Option<()> {
        let last = self.current[from].pop()?;
        if last != axis {
            return None;
        }
        push_merged(&mut self.current[to], axis);
        self.steps.push((
            ReshardStep::AllToAll { axes: vec![axis], from, to },
            closed_sharding(&self.current, self.unreduced),
        ));
        Some(())
    }

    /// Appends all-to-alls that move the axes `final_axes`, which shard the dimension afterwards, to its first parts in
    /// order; returns `None` if that is impossible or moves more elements than the permute would have.
    fn move_to_first_parts(&mut self, final_axes: &[Axis]) -> Option<()> {
        let end = align_axes(final_axes, &self.parts);
        let extents = &self.shape[self.dim..][..self.parts.len()];
        // The blocks of the dimension have to be those of its parts.
        let fits = |(i, axis): (usize, &Axis)| match extents.get(i) {
            Some(&extent) if i + 1 == end.len() => extent.is_multiple_of(axis.size as usize),
            extent => extent == Some(&(axis.size as usize)),
        };
        if !end.iter().enumerate().all(fits) {
            return None;
        }
        let mut moved = 0.0;
        while let Some((to, axis)) = (end.iter().enumerate())
            .find(|&(to, _)| self.current[self.dim + to].is_empty())
            .map(|(to, &axis)| (self.dim + to, axis))
        {
            let from = self.dim + self.parts.iter().position(|&part| part == axis)?;
            self.emit_all_to_all(axis, from, to)?;
            // Compared with the permute, which would have moved whole blocks.
            moved += 1.0 - 1.0 / f64::from(axis.size);
        }
        let is_ordered = end.iter().enumerate().all(|(i, &axis)| self.current[self.dim + i] == [axis]);
        (is_ordered && moved <= 1.0).then_some(())
    }
}
