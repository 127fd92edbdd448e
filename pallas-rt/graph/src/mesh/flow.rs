//! Directions in which shardings propagate through an operation.
use PropagationDirection::{Backward, Both, Forward, None};

/// The directions in which shardings propagate through an operation or a barrier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PropagationDirection {
    /// In no direction: such a barrier stops all shardings.
    None,
    /// From operands to results.
    Forward,
    /// From results to operands.
    Backward,
    /// In both directions; a barrier of this kind stops nothing. But a sharding that is declared before the barrier
    /// does not oblige a kernel after it, which may have the array gathered. Shardy has no such barrier.
    Both,
}

impl PropagationDirection {
    /// Returns the directions of either one.
    pub(crate) fn union(self, other: PropagationDirection) -> PropagationDirection {
        match (self, other) {
            (Forward, Backward) | (Backward, Forward) => Both,
            _ => self.max(other),
        }
    }

    /// Returns the directions that both have.
    pub(crate) fn intersection(self, other: PropagationDirection) -> PropagationDirection {
        match (self, other) {
            (Forward, Backward) | (Backward, Forward) => None,
            _ => self.min(other),
        }
    }

    /// Returns the name in Shardy's text.
    pub fn name(self) -> &'static str {
        match self {
            Forward => "FORWARD",
            Backward => "BACKWARD",
            None => "NONE",
            Both => "BOTH",
        }
    }
}
