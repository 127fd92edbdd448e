//! The division of a kernel among devices, as its blocks and its grid allow it.
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
//! Devices divide the programs of a parallel grid axis if one dimension of each result has a block for each of them, and those
//! of a sequential grid axis if the kernel is proven to be a plain sum over them: devices then have parts of the results, which
//! are combined after the kernel. Arrays that have a block of that size for each program are sharded alike, in whole blocks; all
//! others are whole on every device, which finds its blocks by the global program ids.
//!
//! A kernel's rule is read off its index maps, for the sizes of the call (`shard/kernel`): a grid axis of parallel programs is
//! a factor if it cuts one dimension of each result, and its shards are whole blocks; an axis of sequential programs is one if
//! the body is proven to be a plain sum (`kernel/sum`), also one whose steps pass over windows of the accumulator in a loop;
//! everything else needs replication, with a reason as text. An operand that no program reads shares no factor with others, and
//! is replaced by zeros. The kernel for a device is another kernel (`kernel/local`), so that no backend knows of it: it has the
//! sizes of blocks, and one prefetch more with the number of the device's first program along each sharded axis, from which
//! ids, masks and loads beyond the array follow. What a user declared to be sharded and a kernel cannot divide is refused
//! (`partition/kernel`), unless a barrier that lets shardings pass both ways says that it may be gathered
//! (`launch::may_gather`).
mod index;
mod local;
mod sum;

pub(super) use local::{Share, local};

use super::KernelCall;
use index::{Index, block_indices};
use pallas_ir::{BlockDim, Kernel, Op, Operand, OperandId, OperandKind, Semantics};
use sum::{Sum, plain_sum};

/// A grid axis whose programs devices can divide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tiled {
    /// Elements of the dimensions that it tiles.
    pub size: usize,
    /// Elements of a block.
    pub block: usize,
    /// Number of programs.
    pub programs: usize,
    /// The sum over the programs that the kernel computes, if the axis is sequential: devices have parts of the results.
    pub sum: Option<Sum>,
}

/// The division of operands and results by the programs of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    /// The inputs and prefetches, then the outputs.
    pub operands: Vec<OperandId>,
    /// By operand, then by result, and by dimension: the grid axis whose programs divide it, or the reason why devices
    /// cannot.
    pub dims: Vec<Vec<Result<usize, String>>>,
    /// By grid axis.
    pub axes: Vec<Option<Tiled>>,
    /// By operand and result, false for one that no program reads: it stands for an option that a kernel does without.
    pub is_read: Vec<bool>,
}

impl Tiling {
    /// The tiling of a kernel with its sizes.
    pub(super) fn of(call: &KernelCall) -> Tiling {
        let kernel = &*call.kernel;
        let is_result = |o: &Operand| matches!(o.kind, OperandKind::Output { .. });
        let mut operands: Vec<OperandId> = kernel.arrays().map(|(id, _)| id).collect();
        operands.sort_by_key(|&id| is_result(kernel.operand(id)));
        let shapes: Vec<&[usize]> = call.takes.iter().chain(&call.gives).map(|ty| &ty.shape[..]).collect();
        let sizes: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &d.name[..]).zip(call.sizes.iter().copied()).collect();
        let programs = |axis: &pallas_ir::Axis| axis.extent.evaluate(&sizes).map_or(0, |n| n.max(0) as usize);
        let grid: Vec<usize> = kernel.grid.iter().map(programs).collect();
        let found: Vec<Vec<Result<BlockedDim, String>>> =
            operands.iter().map(|&id| cuts(kernel, id, &grid, &call.sizes)).collect();
        let all = All { kernel, operands: &operands, takes: call.takes.len(), shapes, grid, found };
        let axes: Vec<Result<Tiled, String>> = (0..kernel.grid.len()).map(|axis| all.axis(axis)).collect();
        let dims = (0..operands.len()).map(|t| all.dims(t, &axes)).collect();
        let is_read = operands.iter().map(|&id| is_result(kernel.operand(id)) || reads(kernel, id)).collect();
        Tiling { dims, axes: axes.into_iter().map(Result::ok).collect(), operands, is_read }
    }
}

/// Returns true if a program reads an operand, or a result has its memory.
fn reads(kernel: &Kernel, operand: OperandId) -> bool {
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

/// A dimension with one block for each program along a grid axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockedDim {
    axis: usize,
    block: usize,
}

/// The cut of each dimension of an operand, or what it has instead.
fn cuts(kernel: &Kernel, id: OperandId, grid: &[usize], sizes: &[i64]) -> Vec<Result<BlockedDim, String>> {
    let operand = kernel.operand(id);
    let whole = || Err("each program reads or writes the same part of it".to_string());
    if operand.kind == OperandKind::Prefetch {
        return operand.dims.iter().map(|_| Err("programs read a prefetch at any position".into())).collect();
    }
    let Some(map) = operand.map else { return operand.dims.iter().map(|_| whole()).collect() };
    let indices = block_indices(kernel, map, grid, sizes);
    let cut = |(index, block): (Index, &BlockDim)| match (index, *block) {
        (Index::Data, _) => Err("data decide which of its blocks a program has".into()),
        (Index::Number(_), _) => whole(),
        (_, BlockDim::Element { .. }) => Err("its blocks are at positions of elements, and may overlap".into()),
        (Index::Id(axis), block) => Ok(BlockedDim { axis, block: block.size() }),
        (Index::Computed, _) => Err("its block index is more than one program id".into()),
    };
    indices.into_iter().zip(&operand.block).map(cut).collect()
}

/// All operands and results, with what is known of them.
struct All<'a> {
    kernel: &'a Kernel,
    operands: &'a [OperandId],
    /// Number of operands; results are behind them.
    takes: usize,
    shapes: Vec<&'a [usize]>,
    grid: Vec<usize>,
    found: Vec<Vec<Result<BlockedDim, String>>>,
}

impl All<'_> {
    fn name(&self, t: usize) -> &str {
        &self.kernel.operand(self.operands[t]).name
    }

    /// The dimensions of an array that a grid axis cuts, with their sizes and blocks.
    fn cut_by(&self, t: usize, axis: usize) -> Vec<(usize, [usize; 2])> {
        let own = self.found[t].iter().enumerate();
        own.filter_map(|(dim, cut)| match cut {
            Ok(cut) if cut.axis == axis => Some((dim, [self.shapes[t][dim], cut.block])),
            _ => None,
        })
        .collect()
    }

    /// The division along a grid axis, or the reason why there is none.
    fn axis(&self, axis: usize) -> Result<Tiled, String> {
        let programs = self.grid[axis];
        if self.grid.contains(&0) {
            return Err("no program runs".into());
        }
        if self.kernel.grid[axis].semantics == Semantics::Arbitrary {
            return self.summed(axis);
        }
        let mut common: Option<(usize, [usize; 2])> = None;
        for t in self.takes..self.operands.len() {
            let name = self.name(t);
            let (dim, sizes) = match self.cut_by(t, axis)[..] {
                [only] => only,
                [] => return Err(format!("no dimension of the result `{name}` has its blocks along grid axis {axis}")),
                _ => return Err(format!("grid axis {axis} cuts two dimensions of the result `{name}`")),
            };
            match common {
                Some((first, other)) if other != sizes => {
                    let first = self.name(first);
                    return Err(format!(
                        "along grid axis {axis} the result `{first}` has blocks of {} of {}, `{name}` of {} of {}",
                        other[1], other[0], sizes[1], sizes[0]
                    ));
                }
                _ => common = Some((t, sizes)),
            }
            self.check_alias(t, axis, dim)?;
        }
        let Some((_, [size, block])) = common else { return Err("the kernel has no result".into()) };
        covered(axis, programs, [size, block])?;
        Ok(Tiled { size, block, programs, sum: None })
    }

    /// The division of the terms of a sum.
    fn summed(&self, axis: usize) -> Result<Tiled, String> {
        let Some(sum) = plain_sum(self.kernel, axis) else {
            return Err(format!(
                "programs along grid axis {axis} run in order, and are not proven to compute a plain sum"
            ));
        };
        // What a result has from an input would be added up as well.
        if let Some(t) = (self.takes..self.operands.len()).find(|&t| !self.is_written(t, axis)) {
            return Err(format!("programs along other axes than {axis} do not write all blocks of `{}`", self.name(t)));
        }
        let cut = (0..self.takes).find_map(|t| Some(self.cut_by(t, axis).first()?.1));
        let Some([size, block]) = cut else {
            return Err(format!("no operand has its blocks along grid axis {axis}"));
        };
        covered(axis, self.grid[axis], [size, block])?;
        Ok(Tiled { size, block, programs: self.grid[axis], sum: Some(sum) })
    }

    /// Returns true if each block of a result belongs to programs along other axes than this one, and is one of its own.
    fn is_written(&self, t: usize, axis: usize) -> bool {
        let operand = self.kernel.operand(self.operands[t]);
        let is_covered = |dim: usize| {
            let (size, block) = (self.shapes[t][dim], operand.block[dim]);
            match self.found[t][dim] {
                Ok(cut) => cut.axis != axis && covered(cut.axis, self.grid[cut.axis], [size, cut.block]).is_ok(),
                Err(_) => !matches!(block, BlockDim::Element { .. }) && size <= block.size(),
            }
        };
        matches!(operand.kind, OperandKind::Output { alias: None, .. }) && (0..operand.block.len()).all(is_covered)
    }

    /// A result that takes over an input has its blocks where that has them.
    fn check_alias(&self, t: usize, axis: usize, dim: usize) -> Result<(), String> {
        let OperandKind::Output { alias: Some(input), .. } = self.kernel.operand(self.operands[t]).kind else {
            return Ok(());
        };
        let taken = self.operands.iter().position(|&id| id == input).expect("an alias names an input");
        match self.found[taken][dim] == self.found[t][dim] && self.cut_by(taken, axis).len() == 1 {
            true => Ok(()),
            false => {
                let (result, input) = (self.name(t), self.name(taken));
                Err(format!("the result `{result}` takes over `{input}`, whose blocks are elsewhere"))
            }
        }
    }

    /// The grid axis of each dimension of an array, or the reason why devices cannot divide it.
    fn dims(&self, t: usize, axes: &[Result<Tiled, String>]) -> Vec<Result<usize, String>> {
        let mut seen = vec![];
        let dim = |(dim, cut): (usize, &Result<BlockedDim, String>)| {
            let BlockedDim { axis, block } = cut.clone()?;
            let tiled = axes[axis].clone()?;
            if (self.shapes[t][dim], block) != (tiled.size, tiled.block) {
                return Err(format!(
                    "it has blocks of {block} of {} along grid axis {axis}, others have blocks of {} of {}",
                    self.shapes[t][dim], tiled.block, tiled.size
                ));
            }
            if seen.contains(&axis) {
                return Err(format!("grid axis {axis} cuts another dimension of it, too"));
            }
            seen.push(axis);
            Ok(axis)
        };
        self.found[t].iter().enumerate().map(dim).collect()
    }
}

/// Checks that a program has each block of a dimension.
fn covered(axis: usize, programs: usize, [size, block]: [usize; 2]) -> Result<(), String> {
    let blocks = size.div_ceil(block.max(1));
    match block > 0 && blocks == programs {
        true => Ok(()),
        false => Err(format!("{programs} programs along grid axis {axis} have {blocks} blocks")),
    }
}
