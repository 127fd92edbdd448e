//! The trait that devices implement: memory, and launches of kernels.
use super::buffer::Buffer;
use super::client::Client;
use super::ledger::Ledger;
use super::name::Device;
use super::source::Source;
use super::storage::{First, Storage};
use crate::error::Result;
use pallas_ir::{At, Diag, Kernel, Literal, Loc, Operand, OperandKind, Semantics};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// A kind of device, implemented by the CPU, the interpreter and wgpu adapters. A [`Client`] owns one.
pub trait Runtime: Any + Send + Sync {
    /// The device's name and limits.
    fn device(&self) -> &Device;

    /// The accounting of its memory.
    fn ledger(&self) -> &Arc<Ledger>;

    /// Allocates at least `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory), [`Error::Limit`](crate::Error::Limit); nothing is reserved then.
    fn allocate(self: Arc<Self>, bytes: usize, first: First) -> Result<Storage>;

    /// Returns freed memory that is kept for reuse to the system.
    fn release_kept_memory(&self);

    /// Waits until all work launched so far has finished.
    ///
    /// # Errors
    /// The first error of that work that has not been reported yet; a lost device.
    fn wait(&self) -> Result<()>;

    /// Says that this thread launches several kernels, which may be submitted together, until as many
    /// [`end_program`](Runtime::end_program).
    #[cfg(feature = "mesh")]
    fn begin_program(&self) {}

    /// Submits what this thread launched since [`begin_program`](Runtime::begin_program).
    ///
    /// # Errors
    /// The driver refuses it.
    #[cfg(feature = "mesh")]
    fn end_program(&self) -> Result<()> {
        Ok(())
    }

    /// Returns true if the device is permanently lost.
    #[allow(dead_code, reason = "for the wgpu runtime, which a build may lack")]
    fn is_lost(&self) -> bool {
        false
    }

    /// A kernel in the form that devices of this kind run. Devices of one kind share it.
    fn compile(&self, source: Arc<Source>) -> Box<dyn Executable>;
}

/// A kernel compiled for one kind of device.
pub trait Executable: Any + Send + Sync {
    /// Bytes that a launch takes besides its arrays; on a GPU including its results.
    ///
    /// # Errors
    /// The device cannot run it.
    fn memory_needed(&self, client: &Client, geometry: &Geometry) -> Result<u64>;

    /// Estimated bytes of the compiled form.
    fn bytes(&self) -> u64;

    /// Runs every program of a launch that has at least one. The work may not have finished when this returns.
    ///
    /// # Errors
    /// A fault of the kernel, or a device error.
    ///
    /// # Safety
    /// Each buffer has the bytes of its operand's shape. The caller has exclusive access to those of outputs: nothing
    /// else reads or writes them before this returns.
    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()>;
}

/// The geometry of a launch: calls with equal geometry differ only in their arrays and parameters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Geometry {
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
    /// Returns the geometry of a launch on a grid whose axes have these semantics.
    ///
    /// # Errors
    /// More programs than an i32 can number.
    pub fn new(
        sizes: Vec<i64>,
        grid: Vec<i64>,
        semantics: impl Iterator<Item = Semantics> + Clone,
        shapes: Vec<Vec<usize>>,
    ) -> Result<Geometry, Diag> {
        // An empty grid has no program, however long its other axes are.
        let empty = grid.contains(&0);
        let programs = grid.iter().filter(|_| !empty).try_fold(1i64, |product, &n| product.checked_mul(n));
        if programs.is_none_or(|n| n > i64::from(i32::MAX)) {
            let message = format!("a grid of {grid:?} has more than 2^31 - 1 programs");
            return Err(Diag::new("grid", At::Op, message, "use larger blocks, or several launches"));
        }
        let of = |wanted| semantics.clone().zip(&grid).filter(move |(s, _)| *s == wanted).map(|(_, &n)| n).collect();
        let (parallel, sequential) = (of(Semantics::Parallel), of(Semantics::Arbitrary));
        Ok(Geometry { sizes, grid, parallel, sequential, shapes })
    }

    /// Returns true if there is no program to run.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// A table by operand, allocated on the heap only if it is long.
pub type ByOperand<T> = SmallVec<[T; 16]>;

/// One launch of a kernel.
pub struct Launch<'a> {
    /// The kernel as traced.
    pub kernel: &'a Kernel,
    /// The kernel's own line, for errors that have no other.
    pub at: Loc,
    /// The line of the call, for errors of work that goes on after it.
    pub called: Loc,
    /// Its geometry.
    pub geometry: &'a Geometry,
    /// Values of parameters, by operand.
    pub params: &'a [Option<Literal>],
    /// Memory of arrays, by operand; an input that an output aliases has the memory of the output.
    pub buffers: &'a [Option<&'a Buffer>],
}

/// The name and the grid of a launch, for a timeline.
pub(super) fn described(kernel: &Kernel, geometry: &Geometry) -> (String, String) {
    (kernel.name.clone(), format!("grid {:?}", geometry.grid))
}

/// The operands that a call of a kernel passes, in order: inputs, prefetches and parameters.
pub fn inputs(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let input = |kind: &OperandKind| !matches!(kind, OperandKind::Output { .. } | OperandKind::Scratch);
    (0..kernel.operands.len()).filter(move |&i| input(&kernel.operands[i].kind))
}

/// The outputs of a kernel, in order.
pub fn outputs(kernel: &Kernel) -> impl Iterator<Item = usize> + Clone + '_ {
    let output = |kind: &OperandKind| matches!(kind, OperandKind::Output { .. });
    (0..kernel.operands.len()).filter(move |&i| output(&kernel.operands[i].kind))
}

/// Returns a bit for each dimension: 1 if rows of arrays have that dimension and it is a multiple of four in this
/// launch.
pub fn multiples(kernel: &Kernel, geometry: &Geometry) -> u64 {
    let rows = |name: &str| {
        let last = |o: &Operand| o.dims.len() > 1 && o.dims.last().is_some_and(|d| d.names().iter().any(|n| n == name));
        kernel.arrays().any(|(_, o)| last(o))
    };
    let sizes = geometry.sizes.iter().enumerate();
    let told = sizes.filter(|&(i, n)| i < 64 && n % 4 == 0 && rows(&kernel.dims[i].name));
    told.map(|(i, _)| 1 << i).sum()
}
