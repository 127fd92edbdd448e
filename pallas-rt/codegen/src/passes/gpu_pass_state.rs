//! The data that the passes before a GPU's placement read and change.
use pallas_ir::{Kernel, OperandId, Value};

/// A lowered kernel, how it will be run, and what the passes of [`PLACEMENT_PASSES`](super::PLACEMENT_PASSES) record
/// about it for placement, the choice of the memory that each tile has on a GPU.
#[derive(Clone, Debug)]
pub struct PlacementPassState {
    /// The kernel.
    pub kernel: Kernel,
    /// Number of sequential axes, which are the kernel's outermost loops.
    pub sequential: usize,
    /// True if a dispatch runs a range of the steps, so that none is known to be the first or the last.
    pub resumed: bool,
    /// True if threads can hold tiles in registers.
    pub has_registers: bool,
    /// Scratch operands that are not promoted to values.
    pub kept: Vec<OperandId>,
    /// Maximum number of steps whose tiles are in flight at once.
    pub depth: usize,
    /// Values that were stored to scratch, or that loops and branches carry in place of scratch, with the scratch
    /// operand.
    pub carried: Vec<(Value, OperandId)>,
    /// Operands that are loaded ahead, each with its depth.
    pub fetched: Vec<(OperandId, usize)>,
}

impl PlacementPassState {
    /// Creates the state for the passes before placement, on a kernel with this number of sequential axes whose steps
    /// all run in one dispatch; tiles may be in registers, and no loads are issued ahead.
    pub fn new(kernel: Kernel, sequential_axes: usize) -> PlacementPassState {
        let (kept, carried, fetched) = Default::default();
        PlacementPassState {
            kernel,
            sequential: sequential_axes,
            resumed: false,
            has_registers: true,
            kept,
            depth: 1,
            carried,
            fetched,
        }
    }
}
