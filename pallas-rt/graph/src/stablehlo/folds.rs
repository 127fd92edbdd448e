//! Translation of reductions and windowed folds to StableHLO, in which a region combines two elements.
use super::operation::{HloAttributes, HloRegion, HloValue};
use super::scalar::emit_scalar;
use super::writer::HloWriter;
use pallas_ir::structural::{ArgReduce, Cumulative, Reduce, ReduceWindow, WindowDim};
use pallas_ir::{DType, Literal, ScalarOp, Type};

/// Returns the region of an operation that combines two scalars of this type.
pub(crate) fn build_combiner_region(w: &mut HloWriter, op: ScalarOp, dtype: DType) -> HloRegion {
    w.build_region(&[Type::scalar(dtype), Type::scalar(dtype)], |w, args| vec![emit_scalar(w, op, args)])
}

/// Appends the neutral element of a monoid.
fn emit_neutral_element(w: &mut HloWriter, op: ScalarOp, dtype: DType) -> HloValue {
    w.emit_constant(op.neutral(dtype).expect("a monoid of this type"), &[])
}

/// Returns the shape of a type without these axes.
fn shape_without_axes(ty: &Type, axes: &[usize]) -> Vec<usize> {
    ty.shape.iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, &n)| n).collect()
}

pub(super) fn emit_reduce(w: &mut HloWriter, op: &Reduce, x: &HloValue, gives: &Type) -> HloValue {
    let (start, region) = (emit_neutral_element(w, op.op, x.ty.dtype), build_combiner_region(w, op.op, x.ty.dtype));
    let ty = Type::new(x.ty.dtype, shape_without_axes(&x.ty, &op.axes));
    let made = w
        .emit_op_with_regions("reduce", &[x, &start], vec![region], HloAttributes::Axes(op.axes.clone()), &[ty])
        .remove(0);
    w.emit_reshape(&made, &gives.shape)
}

/// Appends an argmax or argmin, as a reduction of elements with their positions. The first NaN wins, then the first of
/// equal elements.
pub(super) fn emit_arg_reduce(w: &mut HloWriter, op: &ArgReduce, x: &HloValue, gives: &Type) -> HloValue {
    let dtype = x.ty.dtype;
    let ends = if op.max { Literal::lowest(dtype) } else { Literal::highest(dtype) };
    let (start, zero) = (w.emit_constant(ends, &[]), w.emit_index_constant(0));
    let positions = w.emit_op("iota", &[], HloAttributes::Axis(op.axis), Type::new(DType::I32, &x.ty.shape[..]));
    let [value, number] = [dtype, DType::I32].map(Type::scalar);
    let takes = [value.clone(), number.clone(), value.clone(), number.clone()];
    let region = w.build_region(&takes, |w, args| {
        let [a, i, b, j] = args else { unreachable!("it takes four") };
        let mut wins = w.emit_comparison(if op.max { "GT" } else { "LT" }, a, b);
        if dtype.is_float() {
            let is_nan = w.emit_comparison("NE", a, a);
            wins = w.emit_binary("or", &wins, &is_nan);
        }
        let (is_equal, is_first) = (w.emit_comparison("EQ", a, b), w.emit_comparison("LT", i, j));
        let is_first = w.emit_binary("and", &is_equal, &is_first);
        let own = w.emit_binary("or", &wins, &is_first);
        vec![w.emit_select(&wins, a, b), w.emit_select(&own, i, j)]
    });
    let shape = shape_without_axes(&x.ty, &[op.axis]);
    let types = [dtype, DType::I32].map(|dtype| Type::new(dtype, &shape[..]));
    let args = [x, &positions, &start, &zero];
    let made = w.emit_op_with_regions("reduce", &args, vec![region], HloAttributes::Axes(vec![op.axis]), &types);
    w.emit_reshape(&made[1], &gives.shape)
}

/// Appends a windowed fold; returns its result.
pub(super) fn emit_reduce_window(w: &mut HloWriter, op: &ReduceWindow, x: &HloValue, gives: &Type) -> HloValue {
    if gives.shape.is_empty() {
        return x.clone();
    }
    let (start, region) = (emit_neutral_element(w, op.op, x.ty.dtype), build_combiner_region(w, op.op, x.ty.dtype));
    let Some((x, windows)) = crop_negative_padding(w, &op.windows, x) else {
        let neutral = op.op.neutral(x.ty.dtype).expect("a monoid of this type");
        return w.emit_constant(neutral, &gives.shape);
    };
    let (args, gives) = ([&x, &start], std::slice::from_ref(gives));
    w.emit_op_with_regions(
        "reduce_window",
        &args,
        vec![region],
        HloAttributes::Windows(ReduceWindow { windows, ..op.clone() }),
        gives,
    )
    .remove(0)
}

/// Cuts off the elements of a windowed fold's operand that negative padding removes; returns the operand, and windows
/// without such padding, or `None` if no element is left. XLA crashes on windows of one element with negative padding.
fn crop_negative_padding(w: &mut HloWriter, windows: &[WindowDim], x: &HloValue) -> Option<(HloValue, Vec<WindowDim>)> {
    let (mut start, mut limit) = (vec![], vec![]);
    let mut windows = windows.to_vec();
    for (window, &n) in windows.iter_mut().zip(&x.ty.shape) {
        // Elements are `dilation` positions apart. Find those that stay, and the positions that remain before the first
        // and after the last one.
        let (n, apart) = (n as i64, window.dilation);
        let (first, last) = ((-window.low).max(0), (n - 1) * apart - (-window.high).max(0));
        let (from, to) = ((first + apart - 1) / apart, last.div_euclid(apart) + 1);
        if n > 0 && from >= to {
            return None;
        }
        if n > 0 && window.low < 0 {
            window.low = from * apart - first;
        }
        if n > 0 && window.high < 0 {
            window.high = last - (to - 1) * apart;
        }
        start.push(if n > 0 { from } else { 0 });
        limit.push(if n > 0 { to } else { 0 });
    }
    let is_whole = start.iter().zip(&limit).zip(&x.ty.shape).all(|((from, to), &n)| to - from == n as i64);
    Some((if is_whole { x.clone() } else { w.emit_slice(x, start, limit) }, windows))
}

/// Appends a cumulative fold, as windows as long as the axis that begin or end outside of it.
pub(super) fn emit_cumulative_fold(w: &mut HloWriter, op: &Cumulative, x: &HloValue) -> HloValue {
    let n = x.ty.shape[op.axis] as i64;
    if n == 0 {
        return x.clone();
    }
    let (mut size, mut windows) = (vec![1; x.ty.shape.len()], vec![WindowDim::PLAIN; x.ty.shape.len()]);
    size[op.axis] = n;
    let (low, high) = if op.reverse { (0, n - 1) } else { (n - 1, 0) };
    windows[op.axis] = WindowDim { low, high, ..WindowDim::PLAIN };
    emit_reduce_window(w, &ReduceWindow { op: op.op, size, windows }, x, &x.ty)
}
