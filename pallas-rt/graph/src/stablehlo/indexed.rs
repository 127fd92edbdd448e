//! Gathers, scatters and sorts.
use super::folds::combines;
use super::structural::size;
use super::writer::{Value, Writer, integer, list};
use pallas_ir::structural::{Gather, Order, Scatter};
use pallas_ir::{DType, Type};

/// Pairs of batching axes in the order of the operand's, which StableHLO demands.
fn paired(operand: &[usize], index: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let mut pairs: Vec<(usize, usize)> = operand.iter().copied().zip(index.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.into_iter().unzip()
}

fn sorted(axes: &[usize]) -> Vec<usize> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    axes
}

pub(super) fn gather(w: &mut Writer, op: &Gather, args: &[Value], gives: &Type) -> Value {
    let (batching, index) = paired(&op.operand_batching_dims, &op.start_indices_batching_dims);
    let attributes = [
        format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = {:?}, collapsed_slice_dims = {:?}, \
             operand_batching_dims = {batching:?}, start_indices_batching_dims = {index:?}, start_index_map = {:?}, \
             index_vector_dim = {}>",
            op.offset_dims,
            sorted(&op.collapsed_slice_dims),
            op.start_index_map,
            op.index_vector_dim
        ),
        list("slice_sizes", &op.slice_sizes.iter().map(size).collect::<Vec<i64>>()),
    ];
    w.op("gather", &[&args[0], &args[1]], &attributes, gives.clone())
}

pub(super) fn scatter(w: &mut Writer, op: &Scatter, args: &[Value], gives: &Type) -> Value {
    let (batching, index) = paired(&op.input_batching_dims, &op.scatter_indices_batching_dims);
    let numbers = format!(
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {:?}, inserted_window_dims = {:?}, \
         input_batching_dims = {batching:?}, scatter_indices_batching_dims = {index:?}, \
         scatter_dims_to_operand_dims = {:?}, index_vector_dim = {}>",
        op.update_window_dims,
        sorted(&op.inserted_window_dims),
        op.scatter_dims_to_operand_dims,
        op.index_vector_dim
    );
    let element = Type::scalar(gives.dtype);
    let region = match op.op {
        Some(op) => combines(w, op, gives.dtype),
        None => w.region(&[element.clone(), element], |_, args| vec![args[1].clone()]),
    };
    let all: Vec<&Value> = args.iter().collect();
    w.operation("scatter", &all, &[region], &[numbers], std::slice::from_ref(gives)).remove(0)
}

/// The arrays in the order of the first one's elements along an axis. The sort is stable.
pub(super) fn sort(w: &mut Writer, order: Order, args: &[&Value], axis: usize) -> Vec<Value> {
    let takes: Vec<Type> = args.iter().flat_map(|x| [x.ty.dtype; 2]).map(Type::scalar).collect();
    let comes_first = w.region(&takes, |w, args| {
        let (a, b) = (&args[0], &args[1]);
        vec![match order {
            Order::Ascending => is_less(w, a, b),
            Order::Descending => is_less(w, b, a),
            Order::Largest if a.ty.dtype.is_float() => w.compare_as("TOTALORDER", "GT", a, b),
            Order::Largest => w.compare("GT", a, b),
        }]
    });
    let attributes = [integer("dimension", axis), "is_stable = true".into()];
    let types: Vec<Type> = args.iter().map(|x| x.ty.clone()).collect();
    w.operation("sort", args, &[comes_first], &attributes, &types)
}

/// That an element is less than another; a NaN is greater than all numbers.
fn is_less(w: &mut Writer, a: &Value, b: &Value) -> Value {
    let is_less = w.compare("LT", a, b);
    if !a.ty.dtype.is_float() {
        return is_less;
    }
    let (is_number, is_nan) = (w.compare("EQ", a, a), w.compare("NE", b, b));
    let is_last = w.binary("and", &is_number, &is_nan);
    w.binary("or", &is_less, &is_last)
}

/// The positions of the first elements along an axis in an order, as many as the result has.
pub(super) fn positions_in_order(w: &mut Writer, order: Order, x: &Value, axis: usize, gives: &Type) -> Value {
    let ty = Type::new(DType::I32, &x.ty.shape[..]);
    let positions = w.op("iota", &[], &[integer("iota_dimension", axis)], ty);
    let made = sort(w, order, &[x, &positions], axis).remove(1);
    if made.ty == *gives {
        return made;
    }
    let rank = gives.shape.len();
    let attributes = [
        list("limit_indices", &gives.shape),
        list("start_indices", &vec![0i64; rank]),
        list("strides", &vec![1i64; rank]),
    ];
    w.op("slice", &[&made], &attributes, gives.clone())
}
