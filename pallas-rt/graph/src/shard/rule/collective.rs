//! The sharding rule of collectives in bodies of `shard_map` with both manual and automatic axes.
use super::{Build, Role};
use crate::mesh::Collective;

impl Build<'_> {
    /// Adds the factors of a collective over manual axes: the first axis with parts for or from other devices is not
    /// sharded, all other dimensions correspond.
    pub(super) fn collective(&mut self, op: &Collective) {
        let (takes, gives) = op.parts();
        let (from, to) = (self.shapes[0], self.shapes[1]);
        if takes {
            self.add(from[0], Role::Replicate, &[(0, 0)]);
        }
        if gives {
            self.add(to[0], Role::Replicate, &[(1, 0)]);
        }
        let (first, result) = (usize::from(takes), usize::from(gives));
        for (i, &n) in from[first..].iter().enumerate() {
            self.add(n, Role::Pass, &[(0, first + i), (1, result + i)]);
        }
    }
}
