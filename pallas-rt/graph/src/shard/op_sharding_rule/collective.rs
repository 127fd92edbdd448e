//! The sharding rule of collectives in bodies of `shard_map` with both manual and automatic axes.
use super::{FactorRole, RuleBuilder};
use crate::mesh::Collective;

impl RuleBuilder<'_> {
    /// Adds the factors of a collective over manual axes: the first axis with parts for or from other devices is not
    /// sharded, all other dimensions correspond.
    pub(super) fn add_collective_factors(&mut self, op: &Collective) {
        let (takes, gives) = op.has_member_axes();
        let (from, to) = (self.shapes[0], self.shapes[1]);
        if takes {
            self.add_factor(from[0], FactorRole::Replicate, &[(0, 0)]);
        }
        if gives {
            self.add_factor(to[0], FactorRole::Replicate, &[(1, 0)]);
        }
        let (first, result) = (usize::from(takes), usize::from(gives));
        for (i, &n) in from[first..].iter().enumerate() {
            self.add_factor(n, FactorRole::PassThrough, &[(0, first + i), (1, result + i)]);
        }
    }
}
