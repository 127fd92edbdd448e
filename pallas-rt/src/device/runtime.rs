//! The trait of devices: memory, and launches of kernels.
use super::client::Client;
use super::host::HostMemory;
use super::ledger::Ledger;
use super::name::Device;
use super::source::Source;
use crate::error::Result;
use pallas_ir::{At, Diag, Kernel, Literal, Loc, Operand, OperandKind, Semantics};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// A kind of device. The CPU, the interpreter and wgpu adapters implement it; a [`Client`] owns one.
pub(crate) trait Runtime: Any + Send + Sync {
    /// The device's name and limits.
    fn device(&self) -> &Device;

    /// The account of its memory.
    fn ledger(&self) -> &Arc<Ledger>;

    /// At least `bytes` bytes: zeros if `zeroed`, else with unspecified contents.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory), [`Error::Limit`](crate::Error::Limit); nothing is booked then.
    fn allocate(self: Arc<Self>, bytes: usize, zeroed: bool) -> Result<Storage>;

    /// Gives freed memory that is kept for reuse back to the system.
    fn release_kept_memory(&self);

    /// Waits until everything launched so far is done.
    ///
    /// # Errors
    /// The first error of that work which no one was told of yet; a lost device.
    fn wait(&self) -> Result<()>;

    /// Is true if the device is gone for good.
    #[allow(dead_code, reason = "for the wgpu runtime, which a build may lack")]
    fn is_lost(&self) -> bool {
        false
    }

    /// A kernel in the form that devices of this kind run. Devices of one kind share it.
    fn compile(&self, source: Arc<Source>) -> Box<dyn Executable>;
}

/// A kernel compiled for one kind of device.
pub(crate) trait Executable: Any + Send + Sync {
    /// Bytes that a launch takes besides its arrays; on a GPU with its results.
    ///
    /// # Errors
    /// The device cannot run it.
    fn memory_needed(&self, client: &Client, geometry: &Geometry) -> Result<u64>;

    /// Bytes that the compiled form holds, roughly.
    fn bytes(&self) -> u64;

    /// Runs every program of a launch with at least one. The work may not have ended when this returns.
    ///
    /// # Errors
    /// A fault of the kernel, or trouble of the device.
    ///
    /// # Safety
    /// Each buffer has the bytes of its operand's shape. The caller has those of outputs for itself: nobody else reads or
    /// writes them before this returns.
    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()>;
}

/// The memory of a buffer.
pub(crate) enum Storage {
    /// Bytes that the host can address.
    Host(HostMemory),
    /// Bytes of a device behind a driver.
    Device(Box<dyn DeviceMemory>),
}

/// Memory that the host reads and writes by copies.
pub(crate) trait DeviceMemory: Any + Send + Sync {
    /// Copies the first `bytes` bytes to the host, after all work launched so far.
    fn read(&self, bytes: usize) -> Result<Vec<u8>>;

    /// Overwrites the bytes from the start, after all work launched so far.
    fn write(&self, bytes: &[u8]) -> Result<()>;

    /// Overwrites the first `bytes` bytes with those of other memory of the same device; the host does not wait.
    fn copy_from(&self, other: &dyn DeviceMemory, bytes: usize) -> Result<()>;
}

/// The numbers of a launch: calls with equal numbers differ in their arrays and parameters alone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Geometry {
    /// Size of each dimension, by `DimId`.
    pub sizes: Vec<i64>,
    /// Extents of the grid.
    pub grid: Vec<i64>,
    /// Extents of its parallel axes: the grid of the lowered kernel.
    pub parallel: Vec<i64>,
    /// Extents of its sequential axes, outermost first.
    pub sequential: Vec<i64>,
    /// Shape of the array of each operand; of scratch its block; empty for parameters.
    pub shapes: Vec<Vec<usize>>,
}

impl Geometry {
    /// The numbers of a launch on a grid whose axes have these semantics.
    ///
    /// # Errors
    /// More programs than have an i32 for their number.
    pub(crate) fn new(
        sizes: Vec<i64>,
        grid: Vec<i64>,
        semantics: impl Iterator<Item = Semantics> + Clone,
        shapes: Vec<Vec<usize>>,
    ) -> Result<Geometry, Diag> {
        let programs = grid.iter().try_fold(1i64, |product, &n| product.checked_mul(n));
        if programs.is_none_or(|n| n > i64::from(i32::MAX)) {
            let message = format!("a grid of {grid:?} has more than 2^31 - 1 programs");
            return Err(Diag::new("grid", At::Op, message, "use larger blocks, or several launches"));
        }
        let of = |wanted| semantics.clone().zip(&grid).filter(move |(s, _)| *s == wanted).map(|(_, &n)| n).collect();
        let (parallel, sequential) = (of(Semantics::Parallel), of(Semantics::Arbitrary));
        Ok(Geometry { sizes, grid, parallel, sequential, shapes })
    }

    /// Is true if there is no program to run.
    pub(crate) fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// A table by operand, in memory from the heap only where there are many.
pub(crate) type ByOperand<T> = SmallVec<[T; 16]>;

/// One launch of a kernel.
pub(crate) struct Launch<'a> {
    /// The kernel as traced.
    pub kernel: &'a Kernel,
    /// The kernel's own line, for errors that have no other.
    pub at: Loc,
    /// Its numbers.
    pub geometry: &'a Geometry,
    /// Values of parameters, by operand.
    pub params: &'a [Option<Literal>],
    /// Memory of arrays, by operand; an input that an output aliases has that output's.
    pub buffers: &'a [Option<&'a super::Buffer>],
}

/// The operands that a call of a kernel gives, in order: inputs, prefetches and parameters.
pub(crate) fn inputs(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let input = |kind: &OperandKind| !matches!(kind, OperandKind::Output { .. } | OperandKind::Scratch);
    (0..kernel.operands.len()).filter(move |&i| input(&kernel.operands[i].kind))
}

/// The outputs of a kernel, in order.
pub(crate) fn outputs(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let output = |kind: &OperandKind| matches!(kind, OperandKind::Output { .. });
    (0..kernel.operands.len()).filter(move |&i| output(&kernel.operands[i].kind))
}

/// Dimensions, bit by bit, that rows of arrays have and that are multiples of four in this launch.
pub(crate) fn multiples(kernel: &Kernel, geometry: &Geometry) -> u64 {
    let rows = |name: &str| {
        let last = |o: &Operand| o.dims.len() > 1 && o.dims.last().is_some_and(|d| d.names().iter().any(|n| n == name));
        kernel.arrays().any(|(_, o)| last(o))
    };
    let sizes = geometry.sizes.iter().enumerate();
    let told = sizes.filter(|&(i, n)| i < 64 && n % 4 == 0 && rows(&kernel.dims[i].name));
    told.map(|(i, _)| 1 << i).sum()
}
