//! A kernel before and after its placement.
use super::barriers::{AddressResolver, AddressSpace, MemoryId};
use super::buffer_addresses::MemorySizes;
use super::emit::EmittedBody;
use super::place::PlacementPlan;
use crate::target::Target;
use pallas_ir::{Kernel, OperandId};

/// A kernel that is placed and emitted, with its barriers.
pub(super) struct PlacedKernel {
    pub(super) kernel: Kernel,
    pub(super) plan: PlacementPlan,
    pub(super) emitted: EmittedBody,
    pub(super) sizes: MemorySizes,
    /// Maximum number of registers that a thread needs for tiles at the same time.
    pub(super) registers: usize,
    /// Number of sequential axes.
    pub(super) sequential: usize,
    /// Registers that the profile allows for one tile.
    pub(super) most_registers: usize,
    /// Operands that are loaded ahead, each with its depth; and (`wanted`) those that were to be, if all tiles fitted.
    pub(super) fetched: Vec<(OperandId, usize)>,
    pub(super) wanted: Vec<(OperandId, usize)>,
    pub(super) cost: f64,
}

/// The input of placement: the lowered kernel, and how it will be run.
#[derive(Clone, Copy)]
pub(super) struct PlacementInput<'k> {
    pub(super) kernel: &'k Kernel,
    /// Number of sequential axes, which are the kernel's outermost loops.
    pub(super) sequential: usize,
    /// True if scratch keeps its contents between dispatches, so that it is in global memory.
    pub(super) resumed: bool,
    pub(super) target: &'k Target,
    /// Bit mask of the kernel's dimensions whose extent is a multiple of four.
    pub(super) multiples: u64,
}

/// The addresses of a kernel's memory: a plan's ranges for buffers, and one address space for each array.
pub(super) struct PlanAddresses<'a> {
    pub(super) k: &'a Kernel,
    pub(super) plan: &'a PlacementPlan,
}

impl AddressResolver for PlanAddresses<'_> {
    fn address_range(&self, memory: MemoryId) -> (AddressSpace, usize, usize) {
        match memory {
            MemoryId::Buffer(b) => {
                let b = &self.plan.buffers[b];
                (if b.outside { AddressSpace::Scratch } else { AddressSpace::Workgroup(b.cell) }, b.at, b.at + b.words)
            }
            MemoryId::Array(id) => (AddressSpace::Array(id), 0, 1),
        }
    }
    fn memory_name(&self, memory: MemoryId) -> String {
        match memory {
            MemoryId::Buffer(b) => self.plan.buffers[b].name.clone(),
            MemoryId::Array(id) => self.k.operand(OperandId(id)).name.clone(),
        }
    }
}
