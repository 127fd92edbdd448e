//! The state of a thread that runs programs: its buffers, the memory of values and operands, and scalars.
use super::super::convert::normalize_bool;
use super::super::gemm::PackingBuffers;
use super::super::jit::{CodeSpecialization, OperandAddress};
use super::super::launch::{Launch, LaunchError};
use super::super::plan::Plan;
use super::super::plan::step::LaunchConstant;
use super::super::tile::{self, MAX_RANK, StridedTile};
use super::chain::ChainAccess;
use super::convolution_gemm::ProductBuffers;
#[cfg(guarded)]
use super::guard_pages::GuardedMemory;
use super::merged_rows::BufferedOperand;
use super::native::{ChainOperandLayout, UnevenlySpacedOperand};
use super::spacing::UncopiedWindows;
use crate::interp::{Data, Datum, Fault};
use pallas_ir::{Literal, Loc, OperandKind, Type, Value};
use parking_lot::Mutex;

/// A block of 64 bytes, aligned so that vectors in a buffer of such blocks do not cross cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CacheLine([u64; 8]);

/// Makes the buffer at least `min_bytes` bytes long and returns its address. Its contents are lost if it grows.
pub(super) fn grow_buffer_to(buffer: &mut Vec<CacheLine>, min_bytes: usize) -> Result<*mut u8, LaunchError> {
    let lines = min_bytes.div_ceil(64).max(1);
    if buffer.len() < lines {
        buffer.clear();
        buffer.try_reserve_exact(lines).map_err(|_| LaunchError::OutOfMemory(min_bytes))?;
        buffer.resize(lines, CacheLine([0; 8]));
    }
    Ok(buffer.as_mut_ptr().cast())
}

/// A tile that refers to an array's memory and extends past the array's end: its extents inside of the array, and the
/// value that elements past the end have.
#[derive(Clone, Copy)]
pub(super) struct OverhangingTile {
    pub(super) of: Value,
    pub(super) extents: [usize; MAX_RANK],
    pub(super) fill: Option<Literal>,
}

/// Buffers that a thread keeps between launches.
#[derive(Default)]
pub(super) struct ThreadBuffers {
    pub(super) arena: Vec<CacheLine>,
    pub(super) strips: Vec<CacheLine>,
    pub(super) layouts: FusedChainLayouts,
    /// Operands of a product copied to another order of axes, and its result before it is rounded.
    pub(super) operands: [Vec<CacheLine>; 3],
    /// Operands of a product converted to another type.
    pub(super) wide: [Vec<CacheLine>; 2],
    pub(super) packing: PackingBuffers<f32>,
    /// Buffers of the products of which a convolution consists.
    pub(super) parts: ProductBuffers<f32>,
    pub(super) int8: PackingBuffers<i32>,
    /// Packed right sides of the products of a loop that runs as machine code.
    pub(super) fixed: Vec<CacheLine>,
    pub(super) pages: Vec<UncopiedWindows>,
    /// Tiles in an array's memory that extend past the array's end.
    pub(super) ends: Vec<OverhangingTile>,
}

/// Memory addresses and layouts of the operands and results of chains that run as one step.
#[derive(Default)]
pub(super) struct FusedChainLayouts {
    pub(super) reaches: Vec<ChainAccess>,
    pub(super) places: Vec<OperandAddress>,
    pub(super) forms: Vec<CodeSpecialization>,
    pub(super) lies: Vec<Option<ChainOperandLayout>>,
    pub(super) spread: Vec<UnevenlySpacedOperand>,
    pub(super) bound: Vec<BufferedOperand>,
    /// Addresses of the operands of rows that are processed in several parts at once; see `run/merged_rows`.
    pub(super) woven: Vec<OperandAddress>,
}

/// Minimum bytes of a large array, whose first parts have left the caches before a later step reads them.
const MIN_LARGE_ARRAY_BYTES: usize = 8 << 20;

/// States that no thread is using, kept for the next launch with the same sizes and grid.
pub(in super::super) type IdleThreadStates = Mutex<Vec<ThreadState>>;

/// State of a thread that runs programs of a launch; the next launch reuses most of it.
#[derive(Default)]
pub(in super::super) struct ThreadState {
    /// Index of the current program along each grid axis.
    pub(super) ids: Vec<i64>,
    /// Memory of the operands, by operand.
    pub(super) operands: Vec<BoundOperand>,
    /// The memory that each value has at present.
    pub(super) tiles: Vec<StridedTile>,
    /// The memory that each value owns: its place in the arena, or a scalar's cell.
    pub(super) owned_tiles: Vec<StridedTile>,
    /// True for each value whose next definition keeps the memory that a `Step::RedirectResult` has assigned to it.
    pub(super) is_redirected: Vec<bool>,
    /// Memory of the scalars, eight bytes each.
    pub(super) cells: Vec<u64>,
    pub(super) tables: Vec<Vec<u64>>,
    /// The start of the arena; null before the first launch.
    pub(super) arena: *mut u8,
    #[cfg(guarded)]
    pub(super) guards: Vec<GuardedMemory>,
}

// SAFETY: pointers to arenas and operands are resolved anew before each launch; the others point to the state's own
// vectors.
unsafe impl Send for ThreadState {}

/// An operand's address and extents in this launch.
#[derive(Default)]
pub(super) struct BoundOperand {
    pub(super) start: *mut u8,
    pub(super) shape: Vec<usize>,
    pub(super) strides: [isize; MAX_RANK],
    /// Bytes of an element.
    pub(super) bytes: usize,
    /// True if the array is too large for the caches, so that stores to it bypass them.
    pub(super) is_large: bool,
    /// The address of a scratch operand's own memory; `start` may point elsewhere for a while.
    pub(super) home: *mut u8,
    /// True for a scratch operand without contents, which the next product sets.
    pub(super) is_empty: bool,
}

impl ThreadState {
    /// Sets the state that depends only on the launch's sizes and grid: scalars that are the same for all programs,
    /// tables of indices, and the sizes of operands' elements.
    pub(super) fn prepare_for_launch_sizes(&mut self, plan: &Plan, launch: &Launch<'_>) {
        let kernel = &plan.kernel;
        self.ids = vec![0; launch.grid.len()];
        self.operands.resize_with(kernel.operands.len(), BoundOperand::default);
        for (own, declared) in self.operands.iter_mut().zip(&kernel.operands) {
            own.bytes = declared.dtype.bytes();
        }
        self.cells = vec![0; kernel.values.len()];
        self.is_redirected = vec![false; kernel.values.len()];
        for &(v, ref fixed) in &plan.fixed {
            let int = |x: i64| Literal::int(kernel.ty(v).dtype, x).bits;
            self.cells[v.index()] = match *fixed {
                LaunchConstant::Constant(x) => normalize_bool(x).bits,
                LaunchConstant::NumPrograms(axis) => int(launch.grid[axis]),
                LaunchConstant::NumSteps(axis) => int(launch.steps[axis]),
                LaunchConstant::Extent(dim) => int(launch.sizes[dim.index()]),
            };
        }
        let tables = plan.tables.iter().map(|&(dtype, count)| {
            let mut bytes: Vec<u8> = (0..count).flat_map(|i| Literal::int(dtype, i as i64).to_bytes()).collect();
            bytes.resize(bytes.len().next_multiple_of(8).max(8), 0);
            bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
        });
        self.tables = tables.collect();
    }

    /// Sets the addresses and parameters of a launch. Addresses in the arena are computed again only if it has moved.
    pub(super) fn bind_memory(&mut self, plan: &Plan, launch: &Launch<'_>, arena: *mut u8) {
        #[cfg(guarded)]
        self.guards.clear();
        if self.arena != arena || cfg!(guarded) {
            self.arena = arena;
            self.owned_tiles = (0..self.cells.len()).map(|v| self.owned_tile(plan, v)).collect();
            self.tiles.clone_from(&self.owned_tiles);
        }
        for (i, declared) in plan.kernel.operands.iter().enumerate() {
            let own = &mut self.operands[i];
            let shape = (declared.kind != OperandKind::Scratch).then(|| launch.memory[i].shape);
            let is_new = own.shape.is_empty() || shape.is_some_and(|shape| own.shape != shape);
            if is_new {
                own.shape = shape.map_or_else(|| declared.block_shape(), <[usize]>::to_vec);
            }
            // Scratch may have lain elsewhere.
            if is_new || shape.is_none() {
                own.strides = StridedTile::contiguous(own.start, &own.shape).strides;
            }
            let bytes = own.bytes * own.shape.iter().product::<usize>();
            own.is_large = bytes >= MIN_LARGE_ARRAY_BYTES;
            let start = match shape {
                Some(_) => launch.memory[i].ptr,
                None => self.arena_address(plan.scratch[i], bytes),
            };
            let own = &mut self.operands[i];
            (own.start, own.home, own.is_empty) = (start, start, false);
        }
        for &(v, o) in &plan.params {
            self.cells[v.index()] = launch.params[o.index()].map_or(0, |x| normalize_bool(x).bits);
        }
    }

    /// Returns the memory that a value owns.
    fn owned_tile(&mut self, plan: &Plan, v: usize) -> StridedTile {
        let ty = &plan.kernel.values[v];
        match plan.slots[v] {
            Some(slot) => StridedTile::contiguous(self.arena_address(slot, ty.bytes()), &ty.shape),
            // SAFETY: one cell a value.
            None => StridedTile { start: unsafe { self.cells.as_mut_ptr().add(v) }.cast(), strides: [0; MAX_RANK] },
        }
    }

    /// Returns the address of `bytes` bytes at `offset` in the arena or, when memory is guarded, of a mapping of their
    /// own.
    #[allow(unused_variables, reason = "the arena has room for the bytes, and a mapping needs no place")]
    fn arena_address(&mut self, offset: usize, bytes: usize) -> *mut u8 {
        #[cfg(guarded)]
        {
            let own = GuardedMemory::new(bytes);
            let start = own.start;
            self.guards.push(own);
            start
        }
        // SAFETY: slots and scratch are inside of the arena.
        #[cfg(not(guarded))]
        unsafe {
            self.arena.add(offset)
        }
    }
}

/// A thread's execution of programs of a launch.
pub(super) struct ProgramRunner<'a> {
    pub(super) plan: &'a Plan,
    pub(super) launch: &'a Launch<'a>,
    pub(super) state: ThreadState,
    pub(super) buffers: &'a mut ThreadBuffers,
    pub(super) log: Vec<String>,
}

impl<'a> ProgramRunner<'a> {
    pub(super) fn ty(&self, v: Value) -> &'a Type {
        self.plan.kernel.ty(v)
    }
    pub(super) fn shape(&self, v: Value) -> &'a [usize] {
        &self.ty(v).shape
    }
    pub(super) fn element_bytes(&self, v: Value) -> usize {
        self.ty(v).dtype.bytes()
    }
    pub(super) fn tile(&self, v: Value) -> StridedTile {
        self.state.tiles[v.index()]
    }
    /// Returns the memory for a value that a step is about to compute: its own, unless a
    /// [`Step::RedirectResult`](super::super::plan::step::Step::RedirectResult) has redirected it.
    pub(super) fn result_tile(&mut self, v: Value) -> StridedTile {
        if std::mem::take(&mut self.state.is_redirected[v.index()]) {
            return self.tile(v);
        }
        let own = self.state.owned_tiles[v.index()];
        self.state.tiles[v.index()] = own;
        own
    }
    /// Returns the bits of a scalar.
    pub(super) fn scalar_bits(&self, v: Value) -> u64 {
        let start = self.tile(v).start;
        // SAFETY: a scalar's tile holds one element of its type.
        unsafe {
            match self.element_bytes(v) {
                1 => u64::from(start.read()),
                2 => u64::from(start.cast::<u16>().read()),
                4 => u64::from(start.cast::<u32>().read()),
                _ => start.cast::<u64>().read(),
            }
        }
    }
    /// Returns the value of an integer scalar.
    pub(super) fn scalar_int(&self, v: Value) -> i64 {
        Literal { dtype: self.ty(v).dtype, bits: self.scalar_bits(v) }.as_i64()
    }
    /// Sets a scalar to these bits.
    pub(super) fn set_scalar_bits(&mut self, v: Value, bits: u64) {
        let own = self.result_tile(v);
        // SAFETY: scalars own a cell of eight bytes; little-endian machines read any width at its start.
        unsafe { own.start.cast::<u64>().write(bits) };
    }
    /// Sets an integer scalar.
    pub(super) fn set_scalar_int(&mut self, v: Value, x: i64) {
        self.set_scalar_bits(v, Literal::int(self.ty(v).dtype, x).bits);
    }
    /// Returns a copy of a tile, for printing.
    pub(super) fn datum(&self, v: Value) -> Datum {
        let ty = self.ty(v);
        let mut bytes = vec![0; ty.bytes()];
        let to = StridedTile::contiguous(bytes.as_mut_ptr(), &ty.shape);
        // SAFETY: `bytes` holds the tile. (Its rows may be unaligned, so elements are copied as bytes.)
        unsafe { tile::copy_unaligned(&self.tile(v), &to, &ty.shape, ty.dtype.bytes()) };
        Datum::new(ty.clone(), Data::from_bytes(ty.dtype, &bytes))
    }
    /// Returns a fault of the kernel in the current program, at this source line.
    pub(super) fn fault(&self, code: &'static str, loc: Loc, message: String) -> LaunchError {
        let kernel = self.plan.kernel.name.clone();
        LaunchError::Fault(Fault { code, kernel, program: self.state.ids.clone(), loc, message, help: String::new() })
    }
}
