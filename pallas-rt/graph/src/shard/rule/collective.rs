//! The rule of collectives in bodies that leave axes automatic.
use super::{Build, Role};
use crate::mesh::Collective;

impl Build<'_> {
    /// A collective over axes that are manual: parts for or from other devices are whole, other dimensions are alike.
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
