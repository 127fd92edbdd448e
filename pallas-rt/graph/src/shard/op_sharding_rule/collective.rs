//! The sharding rule of collectives in bodies of `shard_map` with both manual and automatic axes.
use super::{FactorRole, RuleBuilder};
use crate::mesh::Collective;

impl RuleBuilder<'_> {
    /// Adds the factors of a collective in a body of `shard_map`: dimensions of operand and result correspond, except a
    /// first dimension with one part for each device, which stays unsharded.
    pub(super) fn add_collective_factors(&mut self, op: &Collective) {
        let (takes, gives) = op.has_operand_and_result_member_axes();
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
