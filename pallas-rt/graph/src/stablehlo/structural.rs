//! Translation of structural operations to StableHLO.
use super::operation::{HloAttributes, HloValue};
use super::writer::HloWriter;
use super::{folds, gather_scatter_sort};
use pallas_ir::structural::{Broadcast, Conv, Dot, Pad, Powi, Roll, Slice, SortOrder};
use pallas_ir::{DType, Dim, ScalarOp, StructuralOp, Type};

/// Appends a structural operation with a result of type `gives`; returns the result.
pub(super) fn emit_structural(w: &mut HloWriter, op: &StructuralOp, args: &[HloValue], gives: &Type) -> HloValue {
    use StructuralOp as S;
    let x = args.first();
    let x = || x.expect("the operation takes an operand");
    let all: Vec<&HloValue> = args.iter().collect();
    match op {
        S::Broadcast(op) => emit_broadcast(w, op, x(), gives),
        S::Concat(op) => w.emit_op("concatenate", &all, HloAttributes::Axis(op.axis), gives.clone()),
        S::Conv(op) => emit_convolution(w, op, args, gives),
        S::Bitcast(_) => emit_bitcast(w, x(), gives),
        S::Cast(op) => w.emit_cast(x(), op.to),
        S::Powi(op) => emit_integer_power(w, op, x()),
        S::Cumulative(op) => folds::emit_cumulative_fold(w, op, x()),
        S::Dot(op) => emit_dot(w, op, args, gives),
        S::Gather(op) => gather_scatter_sort::emit_gather(w, op, args, gives),
        S::Iota(op) => w.emit_op("iota", &[], HloAttributes::Axis(op.axis), gives.clone()),
        S::Pad(op) => emit_pad(w, op, args, gives),
        S::ArgReduce(op) => folds::emit_arg_reduce(w, op, x(), gives),
        S::Reduce(op) => folds::emit_reduce(w, op, x(), gives),
        S::ReduceWindow(op) => folds::emit_reduce_window(w, op, x(), gives),
        S::Reshape(_) => w.emit_reshape(x(), &gives.shape),
        S::Reverse(op) => w.emit_op("reverse", &all, HloAttributes::Axes(op.axes.clone()), gives.clone()),
        S::Roll(op) => emit_roll(w, op, x()),
        S::Scatter(op) => gather_scatter_sort::emit_scatter(w, op, args, gives),
        S::Slice(op) => emit_slice(w, op, x(), gives),
        S::ArgSort(op) => {
            let order = if op.descending { SortOrder::Descending } else { SortOrder::Ascending };
            gather_scatter_sort::emit_first_sorted_positions(w, order, x(), op.axis, gives)
        }
        S::ArgTopK(op) => gather_scatter_sort::emit_first_sorted_positions(w, SortOrder::Largest, x(), op.axis, gives),
        S::Sort(op) => gather_scatter_sort::emit_sort(w, SortOrder::Ascending, &[x()], op.axis).remove(0),
        S::TakeAlong(op) => gather_scatter_sort::emit_gather(w, &op.to_gather(gives.shape.len()), args, gives),
        S::Transpose(op) => w.emit_op("transpose", &all, HloAttributes::Axes(op.axes.clone()), gives.clone()),
    }
}

pub(super) fn emit_broadcast(w: &mut HloWriter, op: &Broadcast, x: &HloValue, gives: &Type) -> HloValue {
    let dims = if x.ty.shape.is_empty() { &[] } else { &op.dims[..] };
    w.emit_op("broadcast_in_dim", &[x], HloAttributes::Axes(dims.to_vec()), gives.clone())
}

/// Returns a size as a number; sizes in graphs are never symbolic.
pub(super) fn dim_extent(n: &Dim) -> i64 {
    n.as_number().expect("a graph has extents of numbers")
}

/// Appends a reinterpretation of the same bits. A bool, which has no bit pattern in StableHLO, is cast to or from a
/// byte of 0 or 1.
fn emit_bitcast(w: &mut HloWriter, x: &HloValue, gives: &Type) -> HloValue {
    match (x.ty.dtype, gives.dtype) {
        (from, to) if from == to => x.clone(),
        (DType::Bool, to) | (_, to @ DType::Bool) => w.emit_cast(x, to),
        _ => w.emit_op("bitcast_convert", &[x], HloAttributes::None, gives.clone()),
    }
}

/// Appends an integer power by repeated multiplication, which is how the operation is defined.
fn emit_integer_power(w: &mut HloWriter, op: &Powi, x: &HloValue) -> HloValue {
    let (mut made, mut square, mut left) = (None, x.clone(), op.exponent.unsigned_abs());
    while left > 0 {
        if left & 1 == 1 {
            made = Some(made.map_or_else(|| square.clone(), |made| w.emit_binary("multiply", &made, &square)));
        }
        left >>= 1;
        if left > 0 {
            square = w.emit_binary("multiply", &square, &square);
        }
    }
    let made = made.unwrap_or_else(|| w.emit_constant_like(x, 1.0));
    if op.exponent < 0 { super::scalar::emit_scalar(w, ScalarOp::Recip, &[made]) } else { made }
}

fn emit_pad(w: &mut HloWriter, op: &Pad, args: &[HloValue], gives: &Type) -> HloValue {
    let sizes = |sizes: &[Dim]| sizes.iter().map(dim_extent).collect::<Vec<i64>>();
    let detail = HloAttributes::Pad { low: sizes(&op.low), high: sizes(&op.high) };
    w.emit_op("pad", &[&args[0], &args[1]], detail, gives.clone())
}

/// Appends a slice, with limits in place of sizes; returns its result.
fn emit_slice(w: &mut HloWriter, op: &Slice, x: &HloValue, gives: &Type) -> HloValue {
    let end = |i: usize| match gives.shape[i] as i64 {
        0 => op.start[i],
        n => op.start[i] + (n - 1) * op.stride[i] + 1,
    };
    // An empty range may start beyond the end.
    let within = |i: usize, n: i64| n.min(x.ty.shape[i] as i64);
    let start: Vec<i64> = op.start.iter().enumerate().map(|(i, &n)| within(i, n)).collect();
    let limit = (0..op.start.len()).map(|i| within(i, end(i))).collect();
    w.emit_op("slice", &[x], HloAttributes::Slice { start, limit, stride: op.stride.clone() }, gives.clone())
}

/// Appends a roll: the concatenation of the elements that wrap around to the front, and all others.
fn emit_roll(w: &mut HloWriter, op: &Roll, x: &HloValue) -> HloValue {
    let n = x.ty.shape[op.axis] as i64;
    let first = op.shift.rem_euclid(n.max(1));
    if first == 0 {
        return x.clone();
    }
    let mut part = |from: i64, to: i64| {
        let mut limit: Vec<i64> = x.ty.shape.iter().map(|&n| n as i64).collect();
        let mut start = vec![0; limit.len()];
        (start[op.axis], limit[op.axis]) = (from, to);
        w.emit_slice(x, start, limit)
    };
    let (front, back) = (part(n - first, n), part(0, n - first));
    w.emit_op("concatenate", &[&front, &back], HloAttributes::Axis(op.axis), x.ty.clone())
}

/// Casts the operands of a product to its accumulator type. Bools are cast to i32, so that the product counts them.
fn widen_operands(w: &mut HloWriter, args: &[HloValue], acc: DType) -> [HloValue; 2] {
    [0, 1].map(|i| {
        let x = w.emit_cast(&args[i], acc);
        if acc == DType::Bool { w.emit_cast(&x, DType::I32) } else { x }
    })
}

/// Appends a product of operands that [`widen_operands`] returned; `write` appends it with the type that it is given. A
/// product of bools is counted in i32 and cast back to bool.
fn emit_narrowed_product(
    w: &mut HloWriter,
    gives: &Type,
    write: impl FnOnce(&mut HloWriter, Type) -> HloValue,
) -> HloValue {
    if gives.dtype != DType::Bool {
        return write(w, gives.clone());
    }
    let counted = write(w, Type::new(DType::I32, &gives.shape[..]));
    w.emit_cast(&counted, DType::Bool)
}

fn emit_dot(w: &mut HloWriter, op: &Dot, args: &[HloValue], gives: &Type) -> HloValue {
    let [a, b] = widen_operands(w, args, op.acc);
    emit_narrowed_product(w, gives, |w, ty| w.emit_op("dot_general", &[&a, &b], HloAttributes::Dot(op.clone()), ty))
}

fn emit_convolution(w: &mut HloWriter, op: &Conv, args: &[HloValue], gives: &Type) -> HloValue {
    let [a, b] = widen_operands(w, args, op.acc);
    emit_narrowed_product(w, gives, |w, ty| w.emit_op("convolution", &[&a, &b], HloAttributes::Conv(op.clone()), ty))
}

/// Returns the labels of the axes of a convolution's two operands and its result: a letter of XLA's texts, or for a
/// spatial axis its number.
pub(super) fn dimension_labels(op: &Conv) -> [Vec<String>; 3] {
    let axes = |axes: &[usize], first: &str, second: &str| {
        let name = |axis: usize| match axes.iter().position(|&a| a == axis) {
            Some(0) => first.to_string(),
            Some(1) => second.to_string(),
            place => (place.expect("all axes have a role") - 2).to_string(),
        };
        (0..axes.len()).map(name).collect()
    };
    [axes(&op.lhs, "b", "f"), axes(&op.rhs, "o", "i"), axes(&op.out, "b", "f")]
}
