//! Shared parts of gather and scatter: StableHLO's dimension numbers, and which starts fit.
use super::{Broadcast, Concat, IndexedWindows, Reduce, RuleOperand, WindowAxis, check_axes};
use crate::diag::{At, Diag, shape, size_mismatch_help};
use crate::dim::SizeComparison;
use crate::{DType, Dim, E, Facts, ScalarOp};

/// The dimension numbers of a gather or scatter, under common names.
#[derive(Clone, Copy)]
pub(super) struct DimensionNumbers<'a> {
    /// Name of the operation.
    pub(super) name: &'static str,
    /// Axes of the windows' array that count inside of a window, in the order of the operand's axes.
    pub(super) window: &'a [usize],
    /// Axes of the operand in which windows have extent 1, which the windows' array drops.
    pub(super) dropped: &'a [usize],
    /// Axes of the operand that are parallel with axes of the indices.
    pub(super) batching: &'a [usize],
    /// Axes of the indices that are parallel with the operand's `batching` axes, in the same order.
    pub(super) index_batching: &'a [usize],
    /// For each number of a start vector: the axis of the operand that it addresses.
    pub(super) map: &'a [usize],
    /// Axis of the indices along which start vectors lie; the indices' rank if each index is a vector of one start.
    pub(super) vector: usize,
}

impl DimensionNumbers<'_> {
    /// Returns `Err` with a diagnostic at `at` that consists of the operation's name, the problem `found`, and `help`.
    fn indices_error(&self, at: At, found: String, help: impl Into<String>) -> Result<(), Diag> {
        Err(Diag::new("indices", at, format!("`{}`: {found}", self.name), help))
    }

    /// Axes of an operand of this rank that windows keep: neither dropped nor parallel with the indices.
    pub(super) fn operand_axes_in_windows(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|axis| !self.dropped.contains(axis) && !self.batching.contains(axis)).collect()
    }

    /// Axes of the indices without that of the start vectors.
    fn index_axes_without_vector(&self, index_rank: usize) -> impl Iterator<Item = usize> {
        (0..index_rank).filter(move |&axis| axis != self.vector)
    }

    /// Rank of the windows' array (the result of a gather, the updates of a scatter), for indices of this rank.
    pub(super) fn windows_rank(&self, index_rank: usize) -> usize {
        self.index_axes_without_vector(index_rank).count() + self.window.len()
    }

    /// Checks that the numbers fit an operand and indices of these shapes.
    ///
    /// # Errors
    /// They do not fit.
    pub(super) fn check_shapes(&self, x: &[Dim], index: &[Dim], facts: &Facts) -> Result<(), Diag> {
        let addressed = [self.dropped, self.batching].concat();
        check_axes(self.name, &addressed, x)?;
        check_axes(self.name, &[self.batching, self.map].concat(), x)?;
        check_axes(self.name, self.index_batching, index)?;
        if x.is_empty() {
            return self.indices_error(At::Operand(0), "a scalar has no windows".into(), "");
        }
        let starts = if self.vector == index.len() { Some(1) } else { index.get(self.vector).and_then(Dim::as_number) };
        if starts != Some(self.map.len() as i64) {
            let found = format!("starts of {} axes in indices of {}", self.map.len(), shape(index));
            return self.indices_error(
                At::Operand(1),
                found,
                format!("axis {} has one start for each of them", self.vector),
            );
        }
        if self.batching.len() != self.index_batching.len() || self.index_batching.contains(&self.vector) {
            let found = format!("{} batching axes of the operand and {} of the indices", self.batching.len(), {
                self.index_batching.len()
            });
            return self.indices_error(At::Op, found, "pairs of axes, none of them that of the start vectors");
        }
        for (&a, &b) in self.batching.iter().zip(self.index_batching) {
            if facts.compare_equal(&x[a], &index[b]) == SizeComparison::No {
                let found = format!("axis {a} of {} is parallel with axis {b} of {}", shape(x), shape(index));
                return self.indices_error(At::Operand(1), found, size_mismatch_help(&x[a], &index[b]));
            }
        }
        let (rank, kept) = (self.windows_rank(index.len()), self.operand_axes_in_windows(x.len()).len());
        let ascending = self.window.is_sorted_by(|a, b| a < b) && self.window.last().is_none_or(|&last| last < rank);
        if self.window.len() != kept || !ascending {
            let found = format!("{} axes {:?} of windows with {kept} axes", self.window.len(), self.window);
            return self.indices_error(
                At::Op,
                found,
                format!("ascending axes below {rank}, one for each axis of a window"),
            );
        }
        Ok(())
    }

    /// Origin of each axis of the windows' array (the result of a gather, the updates of a scatter): `Ok` with an axis
    /// of the operand, or `Err` with one of the indices.
    pub(super) fn windows_axis_origins(&self, rank: usize, index_rank: usize) -> Vec<Result<usize, usize>> {
        let (mut kept, mut positions) =
            (self.operand_axes_in_windows(rank).into_iter(), self.index_axes_without_vector(index_rank));
        let axis = |axis| match self.window.contains(&axis) {
            true => Ok(kept.next().expect("as many as windows have")),
            false => Err(positions.next().expect("as many as the indices have")),
        };
        (0..self.windows_rank(index_rank)).map(axis).collect()
    }

    /// Returns the windows that the dimension numbers describe, with `sizes` elements along the axes of the operand,
    /// for indices of rank `index_rank`.
    pub(super) fn windows(&self, sizes: &[Dim], index_rank: usize) -> IndexedWindows {
        let axes = self.windows_axis_origins(sizes.len(), index_rank);
        let index: Vec<usize> = (0..axes.len()).filter(|&axis| axes[axis].is_err()).collect();
        let batch = |axis: usize| {
            let pair = self.batching.iter().position(|&a| a == axis)?;
            axes.iter().position(|from| *from == Err(self.index_batching[pair]))
        };
        let window = |axis: usize| WindowAxis {
            start: self.map.iter().position(|&a| a == axis),
            axis: batch(axis).or_else(|| axes.iter().position(|from| *from == Ok(axis))),
            size: sizes[axis].clone(),
        };
        let vector = (self.vector < index_rank).then_some(self.vector);
        IndexedWindows { axes: (0..sizes.len()).map(window).collect(), index, vector }
    }
}

/// Checks that the indices are i32.
pub(super) fn check_index_dtype(name: &str, index: DType) -> Result<(), Diag> {
    if index == DType::I32 {
        return Ok(());
    }
    Err(Diag::new("dtype", At::Operand(1), format!("`{name}` at positions of {index}"), "the indices are i32"))
}

/// Clamps starts such that their windows are inside of the operand.
pub(super) fn clamp_starts<'g>(windows: &IndexedWindows, operand: &[Dim], index: &RuleOperand<'_, 'g>) -> E<'g> {
    let last = windows.max_starts(operand);
    let highest = match last[..] {
        [] => return index.value,
        [first, ..] if last.iter().all(|&n| n == first) => index.value.like(first as f64),
        _ => {
            let each: Vec<E<'g>> =
                last.iter().map(|&n| index.value.scalar_constant(n as f64).reshape(&[1i64.into()])).collect();
            let all = each[0].apply(Concat { axis: 0 }, &each);
            let axis = windows.vector.expect("vectors of several starts have an axis");
            all.apply(Broadcast { to: index.shape.to_vec(), dims: vec![axis] }, &[all])
        }
    };
    index.value.maximum(index.value.zero()).minimum(highest)
}

/// A bool for each element of the windows' array (the result of a gather, the updates of a scatter), which has shape
/// `shape`: true if its window is inside of the operand.
pub(super) fn in_bounds_mask<'g>(
    windows: &IndexedWindows,
    operand: &[Dim],
    index: &RuleOperand<'_, 'g>,
    shape: &[Dim],
) -> E<'g> {
    let is_held = index.value.eq(clamp_starts(windows, operand, index));
    let mut all = is_held.select(index.value.like(1.0), index.value.zero());
    if let Some(axis) = windows.vector {
        all = all.apply(Reduce::dropping(ScalarOp::Minimum, vec![axis]), &[all]);
    }
    let all = all.apply(Broadcast { to: shape.to_vec(), dims: windows.index.clone() }, &[all]);
    all.gt(all.zero())
}
