//! Axes of a mesh, and parts of them.

/// An axis of a mesh, or a part of one. Part `"x":(2)4` has size 4 and comes after parts whose sizes multiply to 2: if
/// axis `x` has size 8, its coordinate along this part is `x % 4`. A whole axis has `pre` 1 and the size of the axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Axis {
    /// Number of the axis in its mesh.
    pub id: u8,
    /// Product of the sizes of the parts before this one, which are slower.
    pub pre: u32,
    /// Size of the axis or the part: the number of its coordinates.
    pub size: u32,
}

/// Result of comparing a list of axes with the beginning of another list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefixRelation {
    /// The first list is no prefix of the second one.
    No,
    /// The first list is a prefix of the second one, and shorter.
    Strict,
    /// Both lists are equal.
    Equal,
}

impl Axis {
    /// Returns the size of the axis or the part, its number of coordinates.
    pub fn len(self) -> usize {
        self.size as usize
    }

    /// Returns true for an axis of size 0, which no mesh has.
    pub fn is_empty(self) -> bool {
        self.size == 0
    }

    /// Returns the `pre` of the part that would follow this one: the product of the sizes of this part and of all parts
    /// before it. The result saturates at 2^32 - 1 for parts that [`Sharding::verify`](crate::Sharding::verify)
    /// refuses.
    pub fn next_pre_size(self) -> u32 {
        self.pre.saturating_mul(self.size)
    }

    /// Returns the first part of this axis that has this size.
    pub fn first_part(self, size: usize) -> Axis {
        Axis { size: size as u32, ..self }
    }

    /// Returns what is left of this axis after its first part, which has this size.
    pub fn without_first_part(self, size: usize) -> Axis {
        let size = size as u32;
        Axis { pre: self.pre * size, size: self.size / size, ..self }
    }

    /// Returns true if the other axis is a part of this one, or equal.
    pub fn contains(self, other: Axis) -> bool {
        self.id == other.id && self.pre <= other.pre && self.next_pre_size() >= other.next_pre_size()
    }

    /// Returns true if the other axis begins with this one, or is equal.
    pub fn is_prefix_of(self, other: Axis) -> bool {
        other.contains(self) && self.pre == other.pre
    }

    /// Returns true if both are the same mesh axis or parts of it, and the intervals from `pre` up to `pre * size` that
    /// they cover intersect.
    pub fn overlaps(self, other: Axis) -> bool {
        self.id == other.id && self.pre < other.next_pre_size() && other.pre < self.next_pre_size()
    }

    /// Returns true if the axes may shard one array: they are axes with different numbers, or parts that occur together
    /// in some division of one axis.
    pub fn can_coexist(self, other: Axis) -> bool {
        if self.id != other.id {
            return true;
        }
        let (low, high) = (self.pre.min(other.pre), self.pre.max(other.pre));
        let (next_low, next_high) =
            (self.next_pre_size().min(other.next_pre_size()), self.next_pre_size().max(other.next_pre_size()));
        if next_low > high {
            next_low.is_multiple_of(high) && high.is_multiple_of(low) && next_high.is_multiple_of(next_low)
        } else {
            high.is_multiple_of(next_low)
        }
    }

    /// Returns the part that both axes have in common; `None` if there is none.
    pub fn overlap(self, other: Axis) -> Option<Axis> {
        if !self.overlaps(other) || !self.can_coexist(other) {
            return None;
        }
        let pre = self.pre.max(other.pre);
        Some(Axis { id: self.id, pre, size: self.next_pre_size().min(other.next_pre_size()) / pre })
    }

    /// Returns the longest first part of this axis that does not overlap `other`; `None` if there is none.
    pub fn prefix_without_overlap(self, other: Axis) -> Option<Axis> {
        match (self.can_coexist(other), self.overlaps(other)) {
            (false, _) => None,
            (true, false) => Some(self),
            (true, true) => (self.pre < other.pre).then(|| self.first_part((other.pre / self.pre) as usize)),
        }
    }

    /// Returns the longest last part of this axis that does not overlap `other`; `None` if there is none.
    pub fn suffix_without_overlap(self, other: Axis) -> Option<Axis> {
        match (self.can_coexist(other), self.overlaps(other)) {
            (false, _) => None,
            (true, false) => Some(self),
            (true, true) => (self.next_pre_size() > other.next_pre_size()).then(|| Axis {
                id: self.id,
                pre: other.next_pre_size(),
                size: self.next_pre_size() / other.next_pre_size(),
            }),
        }
    }

    /// Returns the longest first part of this axis that overlaps none of `others`; `None` if there is none.
    pub fn prefix_without_any_overlap(self, others: &[Axis]) -> Option<Axis> {
        others.iter().try_fold(self, |axis, &other| axis.prefix_without_overlap(other))
    }
}

/// Returns the product of the sizes of the axes.
pub fn product_of_sizes(axes: &[Axis]) -> usize {
    axes.iter().map(|axis| axis.len()).product()
}

/// Appends an axis to a list; if it directly follows the last one as a part of the same axis, both become one part.
pub fn push_merged(axes: &mut Vec<Axis>, axis: Axis) {
    match axes.last_mut() {
        Some(last) if last.id == axis.id && last.next_pre_size() == axis.pre => last.size *= axis.size,
        _ => axes.push(axis),
    }
}

/// Sorts axes by number and part, and joins parts that follow each other.
pub fn sort_and_merge(axes: &mut Vec<Axis>) {
    axes.sort();
    let mut merged = vec![];
    axes.drain(..).for_each(|axis| push_merged(&mut merged, axis));
    *axes = merged;
}

/// Returns true if an axis of `a` overlaps one of `b`.
pub fn has_overlap(a: &[Axis], b: &[Axis]) -> bool {
    a.iter().any(|x| b.iter().any(|&y| x.overlaps(y)))
}

/// Compares `prefix` with the beginning of `axes`: no prefix of it, a shorter prefix, or equal to all of `axes`.
pub fn prefix_relation(prefix: &[Axis], axes: &[Axis]) -> PrefixRelation {
    let Some((last, front)) = prefix.split_last() else {
        return if axes.is_empty() { PrefixRelation::Equal } else { PrefixRelation::Strict };
    };
    match axes.get(front.len()) {
        Some(other) if *front == axes[..front.len()] => match last == other {
            true if prefix.len() == axes.len() => PrefixRelation::Equal,
            _ if last.is_prefix_of(*other) => PrefixRelation::Strict,
            _ => PrefixRelation::No,
        },
        _ => PrefixRelation::No,
    }
}

/// Returns true if `axes` begins with `prefix` and is longer.
pub fn is_strict_prefix(prefix: &[Axis], axes: &[Axis]) -> bool {
    prefix_relation(prefix, axes) == PrefixRelation::Strict
}

/// Returns the axes and parts of axes of `a` that do not overlap `b`, in the order of `a`.
pub fn difference(a: &[Axis], b: &[Axis]) -> Vec<Axis> {
    let mut sorted = b.to_vec();
    sorted.sort_by_key(|axis| (axis.id, axis.pre));
    let mut left = vec![];
    for &axis in a {
        let mut rest = Some(axis);
        while let Some(axis) = rest {
            let Some(&other) = sorted.iter().find(|other| other.overlaps(axis)) else {
                left.push(axis);
                break;
            };
            left.extend(axis.prefix_without_overlap(other));
            rest = axis.suffix_without_overlap(other);
        }
    }
    left
}

/// Shortens a list of axes: `keep` gets each axis and the product of the sizes before it, and returns the axis, a first
/// part of it, or `None`. The list ends at the first axis that isn't returned whole.
pub fn truncate_axes(axes: &mut Vec<Axis>, mut keep: impl FnMut(Axis, usize) -> Option<Axis>) {
    let mut before = 1;
    for i in 0..axes.len() {
        match keep(axes[i], before) {
            Some(kept) if kept == axes[i] => before *= kept.len(),
            kept => {
                axes.truncate(i);
                axes.extend(kept);
                return;
            }
        }
    }
}
