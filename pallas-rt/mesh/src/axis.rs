//! Axes of a mesh, and parts of them.

/// An axis of a mesh, or a part of one: `"x":(2)4` is the part of size 4 that is behind a part of size 2 in front. A whole
/// axis has `pre` 1 and its own size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Axis {
    /// The axis' number in its mesh.
    pub id: u8,
    /// Product of the sizes of the parts in front of this one, which are slower.
    pub pre: u32,
    /// Number of coordinates.
    pub size: u32,
}

/// A list of axes in front of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefix {
    /// It is no prefix.
    No,
    /// It is one, and shorter.
    Strict,
    /// The lists are equal.
    Equal,
}

impl Axis {
    /// Number of coordinates.
    pub fn len(self) -> usize {
        self.size as usize
    }

    /// Returns true for an axis without coordinates, which no mesh has.
    pub fn is_empty(self) -> bool {
        self.size == 0
    }

    /// `pre` of the part behind this one. For a part that no axis has, which [`Sharding::verify`](crate::Sharding::verify)
    /// refuses, it may be 2^32 - 1.
    pub fn next(self) -> u32 {
        self.pre.saturating_mul(self.size)
    }

    /// The first part of this one, of this size.
    pub fn first(self, size: usize) -> Axis {
        Axis { size: size as u32, ..self }
    }

    /// The part behind the first one, which has this size.
    pub fn without_first(self, size: usize) -> Axis {
        let size = size as u32;
        Axis { pre: self.pre * size, size: self.size / size, ..self }
    }

    /// Returns true if it has every part of another axis.
    pub fn contains(self, other: Axis) -> bool {
        self.id == other.id && self.pre <= other.pre && self.next() >= other.next()
    }

    /// Returns true if another axis begins with it.
    pub fn is_prefix_of(self, other: Axis) -> bool {
        other.contains(self) && self.pre == other.pre
    }

    /// Returns true if both have a coordinate in common that is no coordinate of others.
    pub fn overlaps(self, other: Axis) -> bool {
        self.id == other.id && self.pre < other.next() && other.pre < self.next()
    }

    /// Returns true unless they are parts of one axis that no division of it has both of.
    pub fn can_coexist(self, other: Axis) -> bool {
        if self.id != other.id {
            return true;
        }
        let (low, high) = (self.pre.min(other.pre), self.pre.max(other.pre));
        let (next_low, next_high) = (self.next().min(other.next()), self.next().max(other.next()));
        if next_low > high {
            next_low.is_multiple_of(high) && high.is_multiple_of(low) && next_high.is_multiple_of(next_low)
        } else {
            high.is_multiple_of(next_low)
        }
    }

    /// The part that both have; `None` if they have none.
    pub fn overlap(self, other: Axis) -> Option<Axis> {
        if !self.overlaps(other) || !self.can_coexist(other) {
            return None;
        }
        let pre = self.pre.max(other.pre);
        Some(Axis { id: self.id, pre, size: self.next().min(other.next()) / pre })
    }

    /// The longest first part that does not overlap `other`.
    pub fn prefix_without(self, other: Axis) -> Option<Axis> {
        match (self.can_coexist(other), self.overlaps(other)) {
            (false, _) => None,
            (true, false) => Some(self),
            (true, true) => (self.pre < other.pre).then(|| self.first((other.pre / self.pre) as usize)),
        }
    }

    /// The longest last part that does not overlap `other`.
    pub fn suffix_without(self, other: Axis) -> Option<Axis> {
        match (self.can_coexist(other), self.overlaps(other)) {
            (false, _) => None,
            (true, false) => Some(self),
            (true, true) => (self.next() > other.next()).then(|| Axis {
                id: self.id,
                pre: other.next(),
                size: self.next() / other.next(),
            }),
        }
    }

    /// The longest first part that overlaps none of `others`.
    pub fn prefix_without_all(self, others: &[Axis]) -> Option<Axis> {
        others.iter().try_fold(self, |axis, &other| axis.prefix_without(other))
    }
}

/// Number of coordinates of all axes together.
pub fn size(axes: &[Axis]) -> usize {
    axes.iter().map(|axis| axis.len()).product()
}

/// Appends an axis; two parts of one axis that are neighbours become one.
pub fn push(axes: &mut Vec<Axis>, axis: Axis) {
    match axes.last_mut() {
        Some(last) if last.id == axis.id && last.next() == axis.pre => last.size *= axis.size,
        _ => axes.push(axis),
    }
}

/// Sorts by axis; neighbours become one.
pub fn merge(axes: &mut Vec<Axis>) {
    axes.sort();
    let mut merged = vec![];
    axes.drain(..).for_each(|axis| push(&mut merged, axis));
    *axes = merged;
}

/// Returns true if an axis of one list overlaps one of the other.
pub fn overlap(a: &[Axis], b: &[Axis]) -> bool {
    a.iter().any(|x| b.iter().any(|&y| x.overlaps(y)))
}

/// Compares the first list with the beginning of the second one.
pub fn prefix(a: &[Axis], b: &[Axis]) -> Prefix {
    let Some((last, front)) = a.split_last() else {
        return if b.is_empty() { Prefix::Equal } else { Prefix::Strict };
    };
    match b.get(front.len()) {
        Some(other) if *front == b[..front.len()] => match last == other {
            true if a.len() == b.len() => Prefix::Equal,
            _ if last.is_prefix_of(*other) => Prefix::Strict,
            _ => Prefix::No,
        },
        _ => Prefix::No,
    }
}

/// Returns true if a list of axes begins with another, shorter one.
pub fn is_strict_prefix(a: &[Axis], b: &[Axis]) -> bool {
    prefix(a, b) == Prefix::Strict
}

/// The axes of a list without those of another one, with parts of axes.
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
            left.extend(axis.prefix_without(other));
            rest = axis.suffix_without(other);
        }
    }
    left
}

/// Shortens a list where `keep` returns a shorter axis or none; it is given each axis and the size of those in front.
pub fn truncate(axes: &mut Vec<Axis>, mut keep: impl FnMut(Axis, usize) -> Option<Axis>) {
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
