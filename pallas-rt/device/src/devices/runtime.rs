//! The trait that kinds of devices implement: memory, and launches of kernels.
use super::buffer::Buffer;
use super::client::Client;
use super::ledger::MemoryLedger;
use super::lowered_cache::KernelSource;
use super::name::Device;
use super::storage::{BufferStorage, InitialContents};
use crate::error::Result;
use pallas_ir::{At, Diag, Kernel, Literal, Loc, Operand, OperandKind, Semantics};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// The implementation of a kind of device: CPU, interpreter or wgpu adapters. A [`Client`] owns one.
pub trait Runtime: Any + Send + Sync {
    /// Name and limits of the device.
    fn device(&self) -> &Device;

    /// The accounting of the device's memory.
    fn ledger(&self) -> &Arc<MemoryLedger>;

    /// Allocates at least `bytes` bytes with the given initial contents.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory), [`Error::Limit`](crate::Error::Limit); nothing is reserved then.
    fn allocate(self: Arc<Self>, bytes: usize, first: InitialContents) -> Result<BufferStorage>;

    /// Returns memory to the system that was freed and is kept for reuse.
    fn release_kept_memory(&self);

    /// Waits until all work launched so far is done.
    ///
    /// # Errors
    /// The first error of that work that has not been reported yet; a lost device.
    fn wait(&self) -> Result<()>;

    /// Begins a series of launches of this thread, which may be submitted together at the matching
    /// [`end_submission`](Runtime::end_submission); calls nest.
    #[cfg(feature = "mesh")]
    fn begin_submission(&self) {}

    /// Ends the series that [`begin_submission`](Runtime::begin_submission) began, and submits its launches.
    ///
    /// # Errors
    /// The driver refuses it.
    #[cfg(feature = "mesh")]
    fn end_submission(&self) -> Result<()> {
        Ok(())
    }

    /// Returns true if the device is permanently lost.
    #[allow(dead_code, reason = "for the wgpu runtime, which a build may lack")]
    fn is_lost(&self) -> bool {
        false
    }

    /// Compiles a kernel to the form that devices of this kind run, which all of them share.
    fn compile(&self, source: Arc<KernelSource>) -> Box<dyn Executable>;
}

/// A kernel compiled for one kind of device.
pub trait Executable: Any + Send + Sync {
    /// Number of bytes that a launch needs besides its arrays; on a GPU including its results.
    ///
    /// # Errors
    /// The device cannot run it.
    fn memory_needed(&self, client: &Client, geometry: &LaunchGeometry) -> Result<u64>;

    /// Estimated size of the compiled form in bytes.
    fn estimated_compiled_bytes(&self) -> u64;

    /// Launches all programs; there must be at least one. The work may go on after this returns.
    ///
    /// # Errors
    /// A fault of the kernel, or a device error.
    ///
    /// # Safety
    /// Each buffer has the bytes of its operand's shape. The caller has exclusive access to the outputs' buffers:
    /// nothing else reads or writes them before this returns.
    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()>;
}

/// All sizes of a launch: launches with equal geometry differ only in their arrays and parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LaunchGeometry {
    /// Size of each named dimension, indexed by `DimId`.
    pub sizes: Vec<i64>,
    /// Extents of the traced kernel's grid.
    pub grid: Vec<i64>,
    /// Extents of the parallel axes: the grid of the lowered kernel.
    pub parallel: Vec<i64>,
    /// Extents of the sequential axes, outermost first.
    pub sequential: Vec<i64>,
    /// Shape of each operand's array; the block's shape for scratch; empty for parameters.
    pub shapes: Vec<Vec<usize>>,
}

impl LaunchGeometry {
    /// Creates the geometry of a launch on a grid whose axes have these semantics.
    ///
    /// # Errors
    /// More programs than an i32 can number.
    pub fn new(
        sizes: Vec<i64>,
        grid: Vec<i64>,
        semantics: impl Iterator<Item = Semantics> + Clone,
        shapes: Vec<Vec<usize>>,
    ) -> Result<LaunchGeometry, Diag> {
        // An empty grid has no program, however long its other axes are.
        let empty = grid.contains(&0);
        let programs = grid.iter().filter(|_| !empty).try_fold(1i64, |product, &n| product.checked_mul(n));
        if programs.is_none_or(|n| n > i64::from(i32::MAX)) {
            let message = format!("a grid of {grid:?} has more than 2^31 - 1 programs");
            return Err(Diag::new("grid", At::Op, message, "use larger blocks, or several launches"));
        }
        let of = |wanted| semantics.clone().zip(&grid).filter(move |(s, _)| *s == wanted).map(|(_, &n)| n).collect();
        let (parallel, sequential) = (of(Semantics::Parallel), of(Semantics::Arbitrary));
        Ok(LaunchGeometry { sizes, grid, parallel, sequential, shapes })
    }

    /// Returns true if the grid has no programs.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// A table indexed by operand, allocated on the heap only if it is long.
pub type ByOperand<T> = SmallVec<[T; 16]>;

/// The arguments of one launch of a kernel.
pub struct Launch<'a> {
    /// The kernel in traced form.
    pub kernel: &'a Kernel,
    /// Source position of the kernel, for errors without a position of their own.
    pub at: Loc,
    /// Source position of the call, for errors of work that continues after it.
    pub called: Loc,
    /// Sizes of the launch.
    pub geometry: &'a LaunchGeometry,
    /// Values of parameters, indexed by operand.
    pub params: &'a [Option<Literal>],
    /// Memory of arrays, indexed by operand; an input that an output aliases has the output's memory.
    pub buffers: &'a [Option<&'a Buffer>],
}

/// Kernel name and grid of a launch, for a timeline.
pub(super) fn describe_launch(kernel: &Kernel, geometry: &LaunchGeometry) -> (String, String) {
    (kernel.name.clone(), format!("grid {:?}", geometry.grid))
}

/// Indices of the operands that a caller passes, in order: inputs, prefetch operands and parameters.
pub fn argument_indices(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let input = |kind: &OperandKind| !matches!(kind, OperandKind::Output { .. } | OperandKind::Scratch);
    (0..kernel.operands.len()).filter(move |&i| input(&kernel.operands[i].kind))
}

/// Indices of a kernel's outputs, in order.
pub fn output_indices(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let output = |kind: &OperandKind| matches!(kind, OperandKind::Output { .. });
    (0..kernel.operands.len()).filter(move |&i| output(&kernel.operands[i].kind))
}

/// Bit set of the kernel's dimensions: bit i is 1 if dimension i occurs in the last axis of an array of rank 2 or more
/// and its size is a multiple of 4 in this launch.
pub fn find_multiples_of_four(kernel: &Kernel, geometry: &LaunchGeometry) -> u64 {
    let rows = |name: &str| {
        let last = |o: &Operand| o.dims.len() > 1 && o.dims.last().is_some_and(|d| d.names().iter().any(|n| n == name));
        kernel.arrays().any(|(_, o)| last(o))
    };
    let sizes = geometry.sizes.iter().enumerate();
    let told = sizes.filter(|&(i, n)| i < 64 && n % 4 == 0 && rows(&kernel.dims[i].name));
    told.map(|(i, _)| 1 << i).sum()
}
