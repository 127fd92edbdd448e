//! Evaluates a kernel's index maps symbolically, for known sizes.
use pallas_ir::{Inst, Kernel, Op, RegionId, ScalarOp, Value};
use std::collections::HashMap;

/// The index of a program's block along a dimension, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Index {
    /// This number, the same in all programs.
    Number(i64),
    /// The id of the program along a grid axis.
    Id(usize),
    /// Something else that is computed from program ids and sizes.
    Computed,
    /// A value that depends on the elements of a prefetch or on a scalar parameter.
    Data,
}

/// Returns the block index that `map` gives along each dimension. `grid` has the number of programs along each grid
/// axis.
pub(super) fn block_indices(kernel: &Kernel, map: RegionId, grid: &[usize], sizes: &[i64]) -> Vec<Index> {
    let region = kernel.region(map);
    let mut known: HashMap<Value, Index> = HashMap::new();
    for (axis, &p) in region.params.iter().enumerate() {
        known.insert(p, Index::Id(axis));
    }
    for &id in &region.insts {
        let inst = kernel.inst(id);
        let index = of(kernel, inst, &known, grid, sizes);
        known.extend(inst.results.iter().map(|&v| (v, index)));
    }
    region.yields.iter().map(|v| known[v]).collect()
}

/// Returns the index that an instruction computes from the `known` ones.
fn of(kernel: &Kernel, inst: &Inst, known: &HashMap<Value, Index>, grid: &[usize], sizes: &[i64]) -> Index {
    let args: Vec<Index> = inst.args.iter().map(|v| known.get(v).copied().unwrap_or(Index::Data)).collect();
    let reads_data = |region: &RegionId| {
        let mut found = false;
        kernel.walk(*region, &mut |_, inst| found |= matches!(inst.op, Op::Prefetch(_) | Op::Param(_)));
        found
    };
    if args.contains(&Index::Data) || inst.regions.iter().any(reads_data) {
        return Index::Data;
    }
    match (&inst.op, &args[..]) {
        (Op::Prefetch(_) | Op::Param(_), _) => Index::Data,
        (Op::Const(x), _) => Index::Number(x.as_i64()),
        (Op::Extent(dim), _) => Index::Number(sizes[dim.index()]),
        (Op::NumPrograms(axis), _) => Index::Number(grid[*axis] as i64),
        (Op::Scalar(op), &[a, b]) => binary(*op, a, b, grid),
        _ => Index::Computed,
    }
}

/// Returns the index that an operation of two indices gives, if it is a number or a program id.
fn binary(op: ScalarOp, a: Index, b: Index, grid: &[usize]) -> Index {
    use Index::{Computed, Id, Number};
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
        (ScalarOp::Add, Id(axis), Number(0)) | (ScalarOp::Add, Number(0), Id(axis)) => Id(axis),
        // If an axis has one program, its id is 0.
        (ScalarOp::Add, Id(axis), Id(other)) if grid[other] == 1 => Id(axis),
        (ScalarOp::Add, Id(other), Id(axis)) if grid[other] == 1 => Id(axis),
        (ScalarOp::Sub, Id(axis), Number(0)) => Id(axis),
        (ScalarOp::Mul, Id(axis), Number(1)) | (ScalarOp::Mul, Number(1), Id(axis)) => Id(axis),
        (ScalarOp::Mul, Id(axis), Number(_)) | (ScalarOp::Mul, Number(_), Id(axis)) if grid[axis] == 1 => Number(0),
        (ScalarOp::Mul, Id(_), Number(0)) | (ScalarOp::Mul, Number(0), Id(_)) => Number(0),
        (ScalarOp::Div, Id(axis), Number(1)) => Id(axis),
        (ScalarOp::Div, Id(axis), Number(n)) if is_below(axis, n) => Number(0),
        (ScalarOp::Rem, Id(axis), Number(n)) if is_below(axis, n) => Id(axis),
        (ScalarOp::Rem, Id(_), Number(1)) => Number(0),
        (ScalarOp::Minimum, Id(axis), Number(n)) if is_below(axis, n.saturating_add(1)) => Id(axis),
        (ScalarOp::Maximum, Id(axis), Number(n)) if n <= 0 => Id(axis),
        _ => Computed,
    }
}
