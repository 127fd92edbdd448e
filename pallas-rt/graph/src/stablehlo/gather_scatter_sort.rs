//! Translation of gathers, scatters and sorts to StableHLO.
use super::folds::build_combiner_region;
use super::operation::{HloAttributes, HloValue};
use super::writer::HloWriter;
use pallas_ir::structural::{Gather, Scatter, SortOrder};
use pallas_ir::{DType, Type};

/// Returns batching axes of the operand and the indices in pairs, sorted by the operand's axis as StableHLO demands.
fn sort_batching_pairs(operand: &[usize], index: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let mut pairs: Vec<(usize, usize)> = operand.iter().copied().zip(index.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.into_iter().unzip()
}

fn sorted_axes(axes: &[usize]) -> Vec<usize> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    axes
}

/// Appends a gather; returns its result.
pub(super) fn emit_gather(w: &mut HloWriter, op: &Gather, args: &[HloValue], gives: &Type) -> HloValue {
    let (operand_batching_dims, start_indices_batching_dims) =
        sort_batching_pairs(&op.operand_batching_dims, &op.start_indices_batching_dims);
    let collapsed_slice_dims = sorted_axes(&op.collapsed_slice_dims);
    let mut slice_sizes = op.slice_sizes.clone();
    // In an empty batch StableHLO expects windows of extent 0.
    for axis in operand_batching_dims.iter().copied().filter(|&axis| args[0].ty.shape[axis] == 0) {
        slice_sizes[axis] = 0i64.into();
    }
    let op =
        Gather { operand_batching_dims, start_indices_batching_dims, collapsed_slice_dims, slice_sizes, ..op.clone() };
    w.emit_op("gather", &[&args[0], &args[1]], HloAttributes::Gather(op), gives.clone())
}

/// Appends a scatter, with a region that combines two elements or takes the new one.
pub(super) fn emit_scatter(w: &mut HloWriter, op: &Scatter, args: &[HloValue], gives: &Type) -> HloValue {
    let (input_batching_dims, scatter_indices_batching_dims) =
        sort_batching_pairs(&op.input_batching_dims, &op.scatter_indices_batching_dims);
    let inserted_window_dims = sorted_axes(&op.inserted_window_dims);
    let detail = Scatter { input_batching_dims, scatter_indices_batching_dims, inserted_window_dims, ..op.clone() };
    let element = Type::scalar(gives.dtype);
    let region = match op.op {
        Some(op) => build_combiner_region(w, op, gives.dtype),
        None => w.build_region(&[element.clone(), element], |_, args| vec![args[1].clone()]),
    };
    let all: Vec<&HloValue> = args.iter().collect();
    w.emit_op_with_regions("scatter", &all, vec![region], HloAttributes::Scatter(detail), std::slice::from_ref(gives))
        .remove(0)
}

/// Appends a stable sort of arrays by the order of the first one's elements along an axis; returns the sorted arrays.
pub(super) fn emit_sort(w: &mut HloWriter, order: SortOrder, args: &[&HloValue], axis: usize) -> Vec<HloValue> {
    let takes: Vec<Type> = args.iter().flat_map(|x| [x.ty.dtype; 2]).map(Type::scalar).collect();
    let comes_first = w.build_region(&takes, |w, args| {
        let (a, b) = (&args[0], &args[1]);
        vec![match order {
            SortOrder::Ascending => emit_less_than(w, a, b),
            SortOrder::Descending => emit_less_than(w, b, a),
            SortOrder::Largest if a.ty.dtype.is_float() => w.emit_comparison_of_kind("TOTALORDER", "GT", a, b),
            SortOrder::Largest => w.emit_comparison("GT", a, b),
        }]
    });
    let types: Vec<Type> = args.iter().map(|x| x.ty.clone()).collect();
    w.emit_op_with_regions("sort", args, vec![comes_first], HloAttributes::Sort(axis), &types)
}

/// Appends a bool: true if `a` is less than `b`, where NaN is greater than all numbers.
fn emit_less_than(w: &mut HloWriter, a: &HloValue, b: &HloValue) -> HloValue {
    let is_less = w.emit_comparison("LT", a, b);
    if !a.ty.dtype.is_float() {
        return is_less;
    }
    let (is_number, is_nan) = (w.emit_comparison("EQ", a, a), w.emit_comparison("NE", b, b));
    let is_last = w.emit_binary("and", &is_number, &is_nan);
    w.emit_binary("or", &is_less, &is_last)
}

/// Appends the positions of the first elements in an order along an axis, as many as `gives` has.
pub(super) fn emit_first_sorted_positions(
    w: &mut HloWriter,
    order: SortOrder,
    x: &HloValue,
    axis: usize,
    gives: &Type,
) -> HloValue {
    let ty = Type::new(DType::I32, &x.ty.shape[..]);
    let positions = w.emit_op("iota", &[], HloAttributes::Axis(axis), ty);
    let made = emit_sort(w, order, &[x, &positions], axis).remove(1);
    if made.ty == *gives {
        return made;
    }
    w.emit_slice(&made, vec![0; gives.shape.len()], gives.shape.iter().map(|&n| n as i64).collect())
}
