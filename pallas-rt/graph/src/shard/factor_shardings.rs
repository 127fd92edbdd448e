//! Conversion of the sharding of an array to shardings of the factors of its dimensions, and back.
use super::op_sharding_rule::{Factor, gcd};
use crate::mesh::axis::{Axis, PrefixRelation, prefix_relation, product_of_sizes, push_merged};
use crate::mesh::{DimSharding, Sharding};

/// Sharding of one factor of an array's dimensions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FactorSharding {
    /// The axes that shard the factor.
    pub axes: Vec<Axis>,
    /// Axes of the dimension that do not divide the factor's size; they come after its axes.
    pub overflow: Vec<Axis>,
    /// True if propagation may not add axes.
    pub is_closed: bool,
    /// True if it is the last factor of a dimension.
    pub is_minor: bool,
}

/// Sharding of an array, as shardings of the factors of its dimensions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FactorShardings {
    /// The factors, in the order of the dimensions: the index of each in the rule, and its sharding.
    pub parts: Vec<(usize, FactorSharding)>,
    /// Axes that must not shard any dimension, as in [`Sharding`].
    pub replicated: Vec<Axis>,
    /// Axes along which devices have partial sums, as in [`Sharding`].
    pub unreduced: Vec<Axis>,
}

impl FactorShardings {
    /// Distributes the axes of each dimension of a sharding among the dimension's factors, `dim_factors`: factors are
    /// filled one after the other, with a part of an axis where the axis is longer than what is left of the factor. An
    /// array without a sharding is open, or closed if `is_closed` is true.
    pub fn from_sharding(
        dim_factors: &[Vec<usize>],
        sharding: Option<&Sharding>,
        factors: &[Factor],
        is_closed: bool,
    ) -> FactorShardings {
        let mut split = FactorShardings::default();
        for (dim, own) in dim_factors.iter().enumerate() {
            let given = sharding.map(|s| &s.dims[dim]);
            let is_closed = given.map_or(is_closed, |given| !given.open);
            split.distribute_dim_axes(own, given.map_or(&[], |given| &given.axes), is_closed, factors);
        }
        if let Some(sharding) = sharding {
            split.replicated.clone_from(&sharding.replicated);
            split.unreduced.clone_from(&sharding.unreduced);
        }
        split
    }

    /// Distributes the mesh axes of one dimension among its factors, the outermost first: each gets axes, or parts of
    /// axes, up to its size, and the last one all that are left. `is_closed` says that propagation may not add axes to
    /// the dimension.
    fn distribute_dim_axes(&mut self, dim_factors: &[usize], axes: &[Axis], is_closed: bool, factors: &[Factor]) {
        // The axes that are left, in reverse order.
        let mut left: Vec<Axis> = axes.iter().rev().copied().collect();
        for (k, &factor) in dim_factors.iter().enumerate() {
            let part = self.get_or_insert(factor);
            part.is_minor = k + 1 == dim_factors.len();
            part.is_closed = is_closed;
            if part.is_minor {
                left.drain(..).rev().for_each(|axis| push_merged(&mut part.axes, axis));
                return;
            }
            let mut room = factors[factor].size;
            while let Some(axis) = left.pop() {
                let common = gcd(room, axis.len());
                if axis.size != 1 && common == 1 {
                    left.push(axis);
                    break;
                }
                room /= common;
                part.axes.push(axis.first_part(common));
                if axis.len() > common {
                    left.push(axis.without_first_part(common));
                }
            }
            if room > 1 && !left.is_empty() {
                left.drain(..).rev().for_each(|axis| push_merged(&mut part.overflow, axis));
                // The next factor would come after axes that are no part of it.
                if let Some(&next) = dim_factors.get(k + 1) {
                    let part = self.get_or_insert(next);
                    part.is_minor = k + 2 == dim_factors.len();
                    part.is_closed = true;
                }
                return;
            }
        }
    }

    /// Returns the sharding of an array whose dimensions have the factors `dims`. Axes after a factor that is not fully
    /// sharded are dropped.
    pub fn to_sharding(&self, dims: &[Vec<usize>], factors: &[Factor]) -> Sharding {
        let dims = dims.iter().map(|own| {
            let (mut dim, mut is_closed) = (DimSharding::default(), false);
            for &factor in own {
                let Some(part) = self.get(factor) else { break };
                is_closed |= part.is_closed;
                append_merged_axes(&mut dim.axes, &part.axes);
                append_merged_axes(&mut dim.axes, &part.overflow);
                if !part.overflow.is_empty() || product_of_sizes(&part.axes) < factors[factor].size {
                    break;
                }
            }
            DimSharding { open: !is_closed, ..dim }
        });
        Sharding { dims: dims.collect(), replicated: self.replicated.clone(), unreduced: self.unreduced.clone() }
    }

    /// Returns the sharding of a factor; `None` if the array does not have the factor.
    pub fn get(&self, factor: usize) -> Option<&FactorSharding> {
        self.parts.iter().find(|(own, _)| *own == factor).map(|(_, part)| part)
    }

    /// Returns the sharding of a factor, to change it; `None` if the array does not have the factor.
    pub fn get_mut(&mut self, factor: usize) -> Option<&mut FactorSharding> {
        self.parts.iter_mut().find(|(own, _)| *own == factor).map(|(_, part)| part)
    }

    /// Returns the sharding of a factor, which is added if the array does not have it.
    fn get_or_insert(&mut self, factor: usize) -> &mut FactorSharding {
        let known = self.parts.iter().position(|(own, _)| *own == factor);
        let at = known.unwrap_or_else(|| {
            self.parts.push((factor, FactorSharding::default()));
            self.parts.len() - 1
        });
        &mut self.parts[at].1
    }

    /// Replaces the axes of a factor by a longer list that begins with them; returns false, without a change, if the
    /// list does not or the array does not have the factor.
    pub(super) fn try_extend_axes(&mut self, factor: usize, axes: &[Axis]) -> bool {
        match self.get_mut(factor) {
            Some(part) if prefix_relation(&part.axes, axes) == PrefixRelation::Strict => {
                part.axes = axes.to_vec();
                true
            }
            _ => false,
        }
    }

    /// Number of blocks into which the array is sharded.
    pub(super) fn block_count(&self) -> usize {
        self.parts.iter().map(|(_, part)| product_of_sizes(&part.axes) * product_of_sizes(&part.overflow)).product()
    }
}

/// Appends mesh axes to a list. If the first of them is the part of a mesh axis that directly follows the part at the
/// list's end, both become one entry.
fn append_merged_axes(axes: &mut Vec<Axis>, more: &[Axis]) {
    if let Some((&first, rest)) = more.split_first() {
        push_merged(axes, first);
        axes.extend(rest);
    }
}
