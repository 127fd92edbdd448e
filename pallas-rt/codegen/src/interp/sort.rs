//! Evaluates sorts of lines, by comparing elements.
use super::datum::{Data, Datum, positions as coordinates, strided_position, strides};
use pallas_ir::structural::SortOrder;
use pallas_ir::{DType, Literal, Type};
use std::cmp::Ordering;

/// Returns the first elements of each line along an axis in order, or their positions if `returns_positions`. Poison
/// anywhere in a line makes all of its results poison.
pub(super) fn sorted(x: &Datum, axis: usize, order: SortOrder, returns_positions: bool, ty: Type) -> Datum {
    let (from, to, n) = (strides(&x.ty.shape), strides(&ty.shape), x.ty.shape[axis]);
    let mut data = Data::zeros(ty.dtype, ty.elements());
    let mut poison = vec![false; ty.elements()];
    let mut lines = ty.shape.clone();
    lines[axis] = lines[axis].min(1);
    for line in coordinates(&lines) {
        let (first, result) = (strided_position(&line, &from), strided_position(&line, &to));
        let element = |k: usize| x.data.get(first + k * from[axis]);
        let mut order_of: Vec<usize> = (0..n).collect();
        order_of.sort_by(|&a, &b| compare(order, element(a), element(b)));
        let is_poison = (0..n).any(|k| x.is_poison(first + k * from[axis]));
        for (i, k) in order_of.into_iter().take(ty.shape[axis]).enumerate() {
            let at = result + i * to[axis];
            data.set(at, if returns_positions { Literal::int(DType::I32, k as i64) } else { element(k) });
            poison[at] = is_poison;
        }
    }
    Datum::new(ty, data).with_poison(if x.poison.is_some() { poison } else { vec![] })
}

/// Compares two elements in the given order.
fn compare(order: SortOrder, a: Literal, b: Literal) -> Ordering {
    match order {
        SortOrder::Ascending => compare_ascending(a, b),
        SortOrder::Descending => compare_ascending(b, a),
        SortOrder::Largest if a.dtype.is_float() => total_order_key(b).cmp(&total_order_key(a)),
        SortOrder::Largest => compare_ascending(b, a),
    }
}

/// Compares two elements in ascending order; both zeros are equal, NaNs are equal and last.
pub(super) fn compare_ascending(a: Literal, b: Literal) -> Ordering {
    if a.dtype.is_float() {
        let (a, b) = (a.as_f64(), b.as_f64());
        return a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    }
    // Compared as integers, since f64 cannot represent all 64-bit values.
    if a.dtype == DType::U64 { a.bits.cmp(&b.bits) } else { a.as_i64().cmp(&b.as_i64()) }
}

/// Returns an integer that orders floats of one type by the total order of IEEE 754.
fn total_order_key(x: Literal) -> i64 {
    let bits = (x.bits << (64 - 8 * x.dtype.bytes())) as i64;
    if bits < 0 { !(bits ^ i64::MIN) } else { bits }
}
