//! Evaluates a kernel's index maps symbolically, for known sizes.
use pallas_ir::{Inst, Kernel, Op, RegionId, ScalarOp, Value};
use std::collections::HashMap;

/// The index along one array dimension that a kernel's index map gives a program for its block, as found without
/// running the map: exact for a constant or a program id, else only the kind of value that it depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockIndex {
    /// This number, the same in all programs.
    Number(i64),
    /// The id of the program along a grid axis.
    ProgramId(usize),
    /// Something else that is computed from program ids and sizes.
    Computed,
    /// A value that depends on the elements of a prefetch or on a scalar parameter.
    DataDependent,
}

/// Returns the block index that `map` gives along each dimension. `grid` has the number of programs along each grid
/// axis.
pub(super) fn block_indices(kernel: &Kernel, map: RegionId, grid: &[usize], sizes: &[i64]) -> Vec<BlockIndex> {
    let region = kernel.region(map);
    let mut known: HashMap<Value, BlockIndex> = HashMap::new();
    for (axis, &p) in region.params.iter().enumerate() {
        known.insert(p, BlockIndex::ProgramId(axis));
    }
    for &id in &region.insts {
        let inst = kernel.inst(id);
        let index = evaluate_inst(kernel, inst, &known, grid, sizes);
        known.extend(inst.results.iter().map(|&v| (v, index)));
    }
    region.yields.iter().map(|v| known[v]).collect()
}

/// Returns the block index that one instruction of an index map computes, from those of its operands, `known`; `grid`
/// has the number of programs along each grid axis, and `sizes` the extent of each symbolic dimension.
fn evaluate_inst(
    kernel: &Kernel,
    inst: &Inst,
    known: &HashMap<Value, BlockIndex>,
    grid: &[usize],
    sizes: &[i64],
) -> BlockIndex {
    let args: Vec<BlockIndex> =
        inst.args.iter().map(|v| known.get(v).copied().unwrap_or(BlockIndex::DataDependent)).collect();
    let reads_data = |region: &RegionId| {
        let mut found = false;
        kernel.walk(*region, &mut |_, inst| found |= matches!(inst.op, Op::Prefetch(_) | Op::Param(_)));
        found
    };
    if args.contains(&BlockIndex::DataDependent) || inst.regions.iter().any(reads_data) {
        return BlockIndex::DataDependent;
    }
    match (&inst.op, &args[..]) {
        (Op::Prefetch(_) | Op::Param(_), _) => BlockIndex::DataDependent,
        (Op::Const(x), _) => BlockIndex::Number(x.as_i64()),
        (Op::Extent(dim), _) => BlockIndex::Number(sizes[dim.index()]),
        (Op::NumPrograms(axis), _) => BlockIndex::Number(grid[*axis] as i64),
        (Op::Scalar(op), &[a, b]) => evaluate_binary(*op, a, b, grid),
        _ => BlockIndex::Computed,
    }
}

/// Returns the index that an operation of two indices gives: a number or a program id where that is certain, otherwise
/// `Computed`. `grid` has the number of programs along each grid axis.
fn evaluate_binary(op: ScalarOp, a: BlockIndex, b: BlockIndex, grid: &[usize]) -> BlockIndex {
    use BlockIndex::{Computed, Number, ProgramId};
    // True if all ids along the axis are in 0..n.
    let is_below = |axis: usize, n: i64| grid[axis] as i64 <= n;
    let checked = |n: Option<i64>| n.filter(|&n| i32::try_from(n).is_ok()).map_or(Computed, Number);
    match (op, a, b) {
        (ScalarOp::Add, Number(a), Number(b)) => checked(a.checked_add(b)),
        (ScalarOp::Sub, Number(a), Number(b)) => checked(a.checked_sub(b)),
        (ScalarOp::Mul, Number(a), Number(b)) => checked(a.checked_mul(b)),
        (ScalarOp::Div, Number(a), Number(b)) if a >= 0 && b > 0 => Number(a / b),
        (ScalarOp::Rem, Number(a), Number(b)) if a >= 0 && b > 0 => Number(a % b),
        (ScalarOp::Minimum, Number(a), Number(b)) => Number(a.min(b)),
        (ScalarOp::Maximum, Number(a), Number(b)) => Number(a.max(b)),
        (ScalarOp::Add, ProgramId(axis), Number(0)) | (ScalarOp::Add, Number(0), ProgramId(axis)) => ProgramId(axis),
        // If an axis has one program, its id is 0.
        (ScalarOp::Add, ProgramId(axis), ProgramId(other)) if grid[other] == 1 => ProgramId(axis),
        (ScalarOp::Add, ProgramId(other), ProgramId(axis)) if grid[other] == 1 => ProgramId(axis),
        (ScalarOp::Sub, ProgramId(axis), Number(0)) => ProgramId(axis),
        (ScalarOp::Mul, ProgramId(axis), Number(1)) | (ScalarOp::Mul, Number(1), ProgramId(axis)) => ProgramId(axis),
        (ScalarOp::Mul, ProgramId(axis), Number(_)) | (ScalarOp::Mul, Number(_), ProgramId(axis))
            if grid[axis] == 1 =>
        {
            Number(0)
        }
        (ScalarOp::Mul, ProgramId(_), Number(0)) | (ScalarOp::Mul, Number(0), ProgramId(_)) => Number(0),
        (ScalarOp::Div, ProgramId(axis), Number(1)) => ProgramId(axis),
        (ScalarOp::Div, ProgramId(axis), Number(n)) if is_below(axis, n) => Number(0),
        (ScalarOp::Rem, ProgramId(axis), Number(n)) if is_below(axis, n) => ProgramId(axis),
        (ScalarOp::Rem, ProgramId(_), Number(1)) => Number(0),
        (ScalarOp::Minimum, ProgramId(axis), Number(n)) if is_below(axis, n.saturating_add(1)) => ProgramId(axis),
        (ScalarOp::Maximum, ProgramId(axis), Number(n)) if n <= 0 => ProgramId(axis),
        _ => Computed,
    }
}
