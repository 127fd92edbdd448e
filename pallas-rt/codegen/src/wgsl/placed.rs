//! A kernel before and after its placement.
use super::arena::Sizes;
use super::emit::Emitted;
use super::place::Plan;
use super::sync::{Memory, Ranges, Space};
use crate::target::Target;
use pallas_ir::{Kernel, OperandId};

/// A kernel that is placed, emitted and has its barriers.
pub(super) struct Placed {
    pub(super) kernel: Kernel,
    pub(super) plan: Plan,
    pub(super) emitted: Emitted,
    pub(super) sizes: Sizes,
    /// Registers of tiles a thread holds at once.
    pub(super) registers: usize,
    /// Sequential axes.
    pub(super) sequential: usize,
    /// Registers the profile grants one tile.
    pub(super) most_registers: usize,
    /// Operands fetched ahead, each to its depth; and those that were to be, if all fitted.
    pub(super) fetched: Vec<(OperandId, usize)>,
    pub(super) wanted: Vec<(OperandId, usize)>,
    pub(super) cost: f64,
}

/// The input of placement: the lowered kernel and how it will run.
#[derive(Clone, Copy)]
pub(super) struct Task<'k> {
    pub(super) kernel: &'k Kernel,
    /// Sequential axes: its outermost loops.
    pub(super) sequential: usize,
    /// Scratch keeps its contents between dispatches: it is global memory.
    pub(super) resumed: bool,
    pub(super) target: &'k Target,
    /// A bit for each dimension of the kernel: 1 where its extent is a multiple of four.
    pub(super) multiples: u64,
}

/// Addresses of a plan's memory.
pub(super) struct Addresses<'a> {
    pub(super) k: &'a Kernel,
    pub(super) plan: &'a Plan,
}

impl Ranges for Addresses<'_> {
    fn range(&self, memory: Memory) -> (Space, usize, usize) {
        match memory {
            Memory::Buffer(b) => {
                let b = &self.plan.buffers[b];
                (if b.outside { Space::Scratch } else { Space::Workgroup(b.cell) }, b.at, b.at + b.words)
            }
            Memory::Array(id) => (Space::Array(id), 0, 1),
        }
    }
    fn name(&self, memory: Memory) -> String {
        match memory {
            Memory::Buffer(b) => self.plan.buffers[b].name.clone(),
            Memory::Array(id) => self.k.operand(OperandId(id)).name.clone(),
        }
    }
}
