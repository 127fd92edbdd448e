//! Finds how devices can divide a kernel: which grid axes they can split, and which array dimensions are sharded with
//! them.
//!
//! ```text
//! kernel scores {
//!   grid cdiv(S, 8) parallel, cdiv(L, 8) arbitrary
//!   in q: f32[S, D] block [8, D]     at (i, 0)
//!   in k: f32[L, D] block [8, D]     at (j, 0)
//!   out o: f32[S, D] block [8, D]    at (i, 0)
//! }
//! ([i, j], [k, j])->([i, j]) {i=S, j=D, k=L} need_replication={j, k}
//! ```
//!
//! Devices divide the programs of a parallel grid axis if one dimension of each result has a block for each of them,
//! and those of a sequential grid axis if the kernel is proven to be a plain sum over them: devices then have parts of
//! the results, which are combined after the kernel. Arrays that have a block of that size for each program are sharded
//! alike, in whole blocks; all others are whole on every device, which finds its blocks by the global program ids.
//!
//! A kernel's rule (`kernel/sharding_rule`) is read off its index maps, for the sizes of the call: a grid axis of
//! parallel programs is a factor if it cuts one dimension of each result, and its shards are whole blocks; an axis of
//! sequential programs is one if the body is proven to be a plain sum (`tiling/sum`), also one whose steps pass over
//! windows of the accumulator in a loop; everything else needs replication, with a reason as text. An operand that no
//! program reads shares no factor with others, and is replaced by zeros. The kernel for a device is another kernel
//! (`tiling/device_kernel`), so that no backend knows of sharding: its arrays have the sizes of the device's blocks,
//! and an additional prefetch operand has the global id of the device's first program along each sharded axis, from
//! which ids, masks and loads beyond the array follow. What a user declared to be sharded and a kernel cannot divide is
//! refused (`kernel/kernel_partition`), unless a barrier that lets shardings pass both ways says that it may be
//! gathered (`launch::may_gather`).
mod device_kernel;
mod index;
mod sum;

pub(super) use device_kernel::{ShardedAxis, device_kernel_call};

use super::KernelCall;
use index::{BlockIndex, block_indices};
use pallas_ir::{BlockDim, Kernel, Op, Operand, OperandId, OperandKind, Semantics};
use sum::{GridSum, find_plain_sum};

/// A grid axis whose programs devices can divide among them, and the array dimensions that it cuts into blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ShardableAxis {
    /// Number of elements of each dimension that the axis cuts.
    pub size: usize,
    /// Number of elements of a block along that dimension.
    pub block: usize,
    /// Number of programs along the grid axis; each has one block.
    pub programs: usize,
    /// For a sequential axis, the sum over its programs that the kernel is proven to compute: devices that divide it
    /// have partial results. `None` for a parallel axis.
    pub sum: Option<GridSum>,
}

/// The ways in which devices can divide the operands and results of a kernel by the programs of its grid.
#[derive(Clone, Debug)]
pub(super) struct KernelShardability {
    /// The kernel's inputs and prefetches, followed by its outputs; the other fields use this order.
    pub operands: Vec<OperandId>,
    /// For each operand and each dimension, the grid axis whose programs cut it, or the reason why devices cannot shard
    /// the dimension.
    pub dims: Vec<Vec<Result<usize, String>>>,
    /// For each grid axis, how devices can divide it; `None` if they cannot.
    pub axes: Vec<Option<ShardableAxis>>,
    /// For each operand, false for an input that no program reads, such as an optional argument that this kernel does
    /// not use.
    pub is_read: Vec<bool>,
}

impl KernelShardability {
    /// Returns how devices can divide the operands and results of the call's kernel, for the sizes of the call.
    pub(super) fn from_call(call: &KernelCall) -> KernelShardability {
        let kernel = &*call.kernel;
        let is_result = |o: &Operand| matches!(o.kind, OperandKind::Output { .. });
        let mut operands: Vec<OperandId> = kernel.arrays().map(|(id, _)| id).collect();
        operands.sort_by_key(|&id| is_result(kernel.operand(id)));
        let shapes: Vec<&[usize]> = call.takes.iter().chain(&call.gives).map(|ty| &ty.shape[..]).collect();
        let sizes: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &d.name[..]).zip(call.sizes.iter().copied()).collect();
        let programs = |axis: &pallas_ir::Axis| axis.extent.evaluate(&sizes).map_or(0, |n| n.max(0) as usize);
        let grid: Vec<usize> = kernel.grid.iter().map(programs).collect();
        let found: Vec<Vec<Result<BlockedDim, String>>> =
            operands.iter().map(|&id| operand_blocked_dims(kernel, id, &grid, &call.sizes)).collect();
        let all = ShardabilityAnalysis { kernel, operands: &operands, takes: call.takes.len(), shapes, grid, found };
        let axes: Vec<Result<ShardableAxis, String>> =
            (0..kernel.grid.len()).map(|axis| all.analyze_axis(axis)).collect();
        let dims = (0..operands.len()).map(|t| all.shardable_dims(t, &axes)).collect();
        let is_read = operands.iter().map(|&id| is_result(kernel.operand(id)) || is_operand_read(kernel, id)).collect();
        KernelShardability { dims, axes: axes.into_iter().map(Result::ok).collect(), operands, is_read }
    }
}

/// Returns true if a program reads the operand, or an output has its memory.
fn is_operand_read(kernel: &Kernel, operand: OperandId) -> bool {
    let mut found = kernel.memory_of(operand) != operand;
    let maps = kernel.operands.iter().filter_map(|operand| operand.map);
    for region in maps.chain([kernel.body]) {
        kernel.walk(region, &mut |_, inst| {
            found |= match inst.op {
                Op::Load { from: id, .. } | Op::Valid { of: id, .. } | Op::Prefetch(id) => id == operand,
                _ => false,
            }
        });
    }
    found
}

/// An array dimension that is cut into one block for each program along a grid axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockedDim {
    axis: usize,
    block: usize,
}

/// Returns for each dimension of an operand the grid axis that cuts it and the block size, or the reason why none does.
fn operand_blocked_dims(
    kernel: &Kernel,
    id: OperandId,
    grid: &[usize],
    sizes: &[i64],
) -> Vec<Result<BlockedDim, String>> {
    let operand = kernel.operand(id);
    let whole = || Err("each program reads or writes the same part of it".to_string());
    if operand.kind == OperandKind::Prefetch {
        return operand.dims.iter().map(|_| Err("programs read a prefetch at any position".into())).collect();
    }
    let Some(map) = operand.map else { return operand.dims.iter().map(|_| whole()).collect() };
    let indices = block_indices(kernel, map, grid, sizes);
    let cut = |(index, block): (BlockIndex, &BlockDim)| match (index, *block) {
        (BlockIndex::DataDependent, _) => Err("data decide which of its blocks a program has".into()),
        (BlockIndex::Number(_), _) => whole(),
        (_, BlockDim::Element { .. }) => Err("its blocks are at positions of elements, and may overlap".into()),
        (BlockIndex::ProgramId(axis), block) => Ok(BlockedDim { axis, block: block.size() }),
        (BlockIndex::Computed, _) => Err("its block index is more than one program id".into()),
    };
    indices.into_iter().zip(&operand.block).map(cut).collect()
}

/// A kernel with the blocks of all its operands, from which it is found along which grid axes devices can divide the
/// programs.
struct ShardabilityAnalysis<'a> {
    kernel: &'a Kernel,
    operands: &'a [OperandId],
    /// Number of inputs and prefetches; the outputs follow them in `operands`.
    takes: usize,
    shapes: Vec<&'a [usize]>,
    grid: Vec<usize>,
    found: Vec<Vec<Result<BlockedDim, String>>>,
}

impl ShardabilityAnalysis<'_> {
    fn array_name(&self, array: usize) -> &str {
        &self.kernel.operand(self.operands[array]).name
    }

    /// Returns the dimensions of array number `array` that a grid axis cuts, each with its extent and block size.
    fn dims_cut_by(&self, array: usize, grid_axis: usize) -> Vec<(usize, [usize; 2])> {
        let own = self.found[array].iter().enumerate();
        own.filter_map(|(dim, cut)| match cut {
            Ok(cut) if cut.axis == grid_axis => Some((dim, [self.shapes[array][dim], cut.block])),
            _ => None,
        })
        .collect()
    }

    /// Returns how devices can divide a grid axis, or the reason why they cannot.
    fn analyze_axis(&self, grid_axis: usize) -> Result<ShardableAxis, String> {
        let programs = self.grid[grid_axis];
        if self.grid.contains(&0) {
            return Err("no program runs".into());
        }
        if self.kernel.grid[grid_axis].semantics == Semantics::Arbitrary {
            return self.analyze_summed_axis(grid_axis);
        }
        let mut common: Option<(usize, [usize; 2])> = None;
        for t in self.takes..self.operands.len() {
            let name = self.array_name(t);
            let (dim, sizes) = match self.dims_cut_by(t, grid_axis)[..] {
                [only] => only,
                [] => {
                    return Err(format!(
                        "no dimension of the result `{name}` has its blocks along grid axis {grid_axis}"
                    ));
                }
                _ => return Err(format!("grid axis {grid_axis} cuts two dimensions of the result `{name}`")),
            };
            match common {
                Some((first, other)) if other != sizes => {
                    let first = self.array_name(first);
                    return Err(format!(
                        "along grid axis {grid_axis} the result `{first}` has blocks of {} of {}, `{name}` of {} of {}",
                        other[1], other[0], sizes[1], sizes[0]
                    ));
                }
                _ => common = Some((t, sizes)),
            }
            self.check_alias_blocks_match(t, grid_axis, dim)?;
        }
        let Some((_, [size, block])) = common else { return Err("the kernel has no result".into()) };
        check_one_block_per_program(grid_axis, programs, [size, block])?;
        Ok(ShardableAxis { size, block, programs, sum: None })
    }

    /// Returns how devices can divide a sequential axis over which the kernel computes a sum, or the reason why they
    /// cannot.
    fn analyze_summed_axis(&self, grid_axis: usize) -> Result<ShardableAxis, String> {
        let Some(sum) = find_plain_sum(self.kernel, grid_axis) else {
            return Err(format!(
                "programs along grid axis {grid_axis} run in order, and are not proven to compute a plain sum"
            ));
        };
        // Blocks that no program writes keep an input's elements, which would be added once for each device.
        if let Some(t) = (self.takes..self.operands.len()).find(|&t| !self.is_fully_written(t, grid_axis)) {
            return Err(format!(
                "programs along other axes than {grid_axis} do not write all blocks of `{}`",
                self.array_name(t)
            ));
        }
        let cut = (0..self.takes).find_map(|t| Some(self.dims_cut_by(t, grid_axis).first()?.1));
        let Some([size, block]) = cut else {
            return Err(format!("no operand has its blocks along grid axis {grid_axis}"));
        };
        check_one_block_per_program(grid_axis, self.grid[grid_axis], [size, block])?;
        Ok(ShardableAxis { size, block, programs: self.grid[grid_axis], sum: Some(sum) })
    }

    /// Returns true if programs write every block of result number `array`, whatever their id along `grid_axis`, and
    /// the result has no alias.
    fn is_fully_written(&self, array: usize, grid_axis: usize) -> bool {
        let operand = self.kernel.operand(self.operands[array]);
        let is_covered = |dim: usize| {
            let (size, block) = (self.shapes[array][dim], operand.block[dim]);
            match self.found[array][dim] {
                Ok(cut) => {
                    cut.axis != grid_axis
                        && check_one_block_per_program(cut.axis, self.grid[cut.axis], [size, cut.block]).is_ok()
                }
                Err(_) => !matches!(block, BlockDim::Element { .. }) && size <= block.size(),
            }
        };
        matches!(operand.kind, OperandKind::Output { alias: None, .. }) && (0..operand.block.len()).all(is_covered)
    }

    /// Checks that a result which takes over the memory of an input has dimension `dim` cut by `grid_axis` exactly as
    /// that input has.
    fn check_alias_blocks_match(&self, array: usize, grid_axis: usize, dim: usize) -> Result<(), String> {
        let OperandKind::Output { alias: Some(input), .. } = self.kernel.operand(self.operands[array]).kind else {
            return Ok(());
        };
        let taken = self.operands.iter().position(|&id| id == input).expect("an alias names an input");
        match self.found[taken][dim] == self.found[array][dim] && self.dims_cut_by(taken, grid_axis).len() == 1 {
            true => Ok(()),
            false => {
                let (result, input) = (self.array_name(array), self.array_name(taken));
                Err(format!("the result `{result}` takes over `{input}`, whose blocks are elsewhere"))
            }
        }
    }

    /// Returns for each dimension of array number `array` the grid axis by which devices can shard it, or the reason
    /// why they cannot.
    fn shardable_dims(&self, array: usize, axes: &[Result<ShardableAxis, String>]) -> Vec<Result<usize, String>> {
        let mut seen = vec![];
        let dim = |(dim, cut): (usize, &Result<BlockedDim, String>)| {
            let BlockedDim { axis, block } = cut.clone()?;
            let tiled = axes[axis].clone()?;
            if (self.shapes[array][dim], block) != (tiled.size, tiled.block) {
                return Err(format!(
                    "it has blocks of {block} of {} along grid axis {axis}, others have blocks of {} of {}",
                    self.shapes[array][dim], tiled.block, tiled.size
                ));
            }
            if seen.contains(&axis) {
                return Err(format!("grid axis {axis} cuts another dimension of it, too"));
            }
            seen.push(axis);
            Ok(axis)
        };
        self.found[array].iter().enumerate().map(dim).collect()
    }
}

/// Checks that there are as many programs as blocks along a dimension: one program for each block.
fn check_one_block_per_program(grid_axis: usize, programs: usize, [size, block]: [usize; 2]) -> Result<(), String> {
    let blocks = size.div_ceil(block.max(1));
    match block > 0 && blocks == programs {
        true => Ok(()),
        false => Err(format!("{programs} programs along grid axis {grid_axis} have {blocks} blocks")),
    }
}
