//! Directions of propagation.

/// The directions in which shardings go through a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flow {
    /// From the operand to the result.
    Forward,
    /// From the result to the operand.
    Backward,
    /// Nowhere.
    None,
    /// Both ways. It stops nothing, but what is declared of an array in front of it is no demand on a kernel behind it, which
    /// may have the array gathered. Shardy has no such barrier.
    Both,
}

impl Flow {
    /// Shardy's name.
    pub fn name(self) -> &'static str {
        match self {
            Flow::Forward => "FORWARD",
            Flow::Backward => "BACKWARD",
            Flow::None => "NONE",
            Flow::Both => "BOTH",
        }
    }
}
