//! Directions in which shardings propagate through a barrier.

/// The directions in which shardings propagate through a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flow {
    /// From the barrier's operand to its result.
    Forward,
    /// From the barrier's result to its operand.
    Backward,
    /// In no direction: the barrier stops all shardings.
    None,
    /// In both directions, so the barrier stops nothing. But a sharding that is declared before the barrier does not
    /// oblige a kernel after it, which may have the array gathered. Shardy has no such barrier.
    Both,
}

impl Flow {
    /// Returns the name in Shardy's text.
    pub fn name(self) -> &'static str {
        match self {
            Flow::Forward => "FORWARD",
            Flow::Backward => "BACKWARD",
            Flow::None => "NONE",
            Flow::Both => "BOTH",
        }
    }
}
