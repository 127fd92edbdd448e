//! What the passes before a GPU's placement read and change.
use pallas_ir::{Kernel, OperandId, Value};

/// A lowered kernel, how it will run, and what the passes of [`PLACEMENT`](super::PLACEMENT) record of it.
#[derive(Clone, Debug)]
pub struct Staged {
    /// The kernel.
    pub kernel: Kernel,
    /// Sequential axes: its outermost loops.
    pub sequential: usize,
    /// True if a dispatch runs a range of the steps, so that none is known to be the first or the last.
    pub resumed: bool,
    /// True if threads hold tiles in registers.
    pub has_registers: bool,
    /// Scratch that stays memory.
    pub kept: Vec<OperandId>,
    /// Greatest number of steps whose tiles are on their way at once.
    pub depth: usize,
    /// Values that were stored to scratch, or that loops and branches carry in its place.
    pub carried: Vec<(Value, OperandId)>,
    /// Operands that are fetched ahead, each to its depth.
    pub fetched: Vec<(OperandId, usize)>,
}

impl Staged {
    /// A kernel that runs whole, with tiles in registers and a tile of each operand at once.
    pub fn new(kernel: Kernel, sequential: usize) -> Staged {
        let (kept, carried, fetched) = Default::default();
        Staged { kernel, sequential, resumed: false, has_registers: true, kept, depth: 1, carried, fetched }
    }
}
