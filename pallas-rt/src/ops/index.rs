//! Parts of arrays by positions and ranges.
use super::axes::canonicalize_axis;
use super::gather_windows::{self, IndexMode};
use super::shape::reshape;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Reverse, Slice};
use pallas_ir::{At, Diag, Dim, Loc, StructuralOp, Type};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// One item of an index; see [`Array::index`].
#[derive(Clone, Debug)]
pub enum Item {
    /// One position, whose axis is dropped.
    At(i64),
    /// Every `step`-th position from `start` to before `stop`, as NumPy's `start:stop:step`.
    Range {
        /// First position; `None` for the end at which a range of this direction begins.
        start: Option<i64>,
        /// The position after the last one; `None` for the other end.
        stop: Option<i64>,
        /// Distance between positions, not 0; negative: backwards.
        step: i64,
    },
    /// All axes that no other item names; NumPy's `...`.
    Rest,
    /// A new axis of extent 1; NumPy's `None`.
    New,
    /// An array of positions, whose axes replace the indexed axis in the result.
    Array(Array),
}

/// Items of an index: one item, a tuple of them, or a slice; see [`Array::index`].
#[derive(Clone, Debug)]
pub struct Index(pub(super) Vec<Item>);

/// A range with a step, as NumPy's `start:stop:step`; a negative step goes backwards.
///
/// ```
/// use pallas_rt::{Array, ops::by};
/// let x = Array::from_slice(&[0, 1, 2, 3, 4], &[5])?;
/// assert_eq!(x.index(by(1.., 2)).to_vec::<i32>()?, [1, 3]);
/// assert_eq!(x.index(by(.., -1)).to_vec::<i32>()?, [4, 3, 2, 1, 0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[must_use]
pub fn by(range: impl Into<Item>, step: i64) -> Item {
    match range.into() {
        Item::Range { start, stop, .. } => Item::Range { start, stop, step },
        other => other,
    }
}

/// A range whose ends count from different ends of the axis, or that goes backwards: NumPy's `start:stop`. Where Rust's
/// `1..-1` is written out, clippy takes it for an empty range.
///
/// ```
/// use pallas_rt::{Array, ops::between};
/// let x = Array::from_slice(&[0, 1, 2, 3, 4], &[5])?;
/// assert_eq!(x.index(between(1, -1)).to_vec::<i32>()?, [1, 2, 3]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[must_use]
pub fn between(start: i64, stop: i64) -> Item {
    unit_step_range(Some(start), Some(stop))
}

/// Declares the conversions of Rust's literals to items, and to indices of one item.
macro_rules! items {
    ($($T:ty => |$x:ident| $item:expr;)*) => {$(
        impl From<$T> for Item {
            fn from($x: $T) -> Item {
                $item
            }
        }
        impl From<$T> for Index {
            fn from(x: $T) -> Index {
                Index(vec![x.into()])
            }
        }
    )*};
}
fn unit_step_range(start: Option<i64>, stop: Option<i64>) -> Item {
    Item::Range { start, stop, step: 1 }
}
/// Returns the end of a range with this last position; `None`, the end of the axis, for the last position -1.
fn range_end_after(position: i64) -> Option<i64> {
    (position != -1).then_some(position + 1)
}
items! {
    RangeFull => |_x| unit_step_range(None, None);
    i32 => |x| Item::At(x.into());
    i64 => |x| Item::At(x);
    isize => |x| Item::At(x as i64);
    &Array => |x| Item::Array(x.clone());
    Array => |x| Item::Array(x);
    usize => |x| Item::At(x as i64);
    Range<i32> => |x| unit_step_range(Some(x.start.into()), Some(x.end.into()));
    Range<i64> => |x| unit_step_range(Some(x.start), Some(x.end));
    Range<usize> => |x| unit_step_range(Some(x.start as i64), Some(x.end as i64));
    RangeFrom<i32> => |x| unit_step_range(Some(x.start.into()), None);
    RangeFrom<i64> => |x| unit_step_range(Some(x.start), None);
    RangeFrom<usize> => |x| unit_step_range(Some(x.start as i64), None);
    RangeTo<i32> => |x| unit_step_range(None, Some(x.end.into()));
    RangeTo<i64> => |x| unit_step_range(None, Some(x.end));
    RangeTo<usize> => |x| unit_step_range(None, Some(x.end as i64));
    RangeInclusive<i32> => |x| unit_step_range(Some((*x.start()).into()), range_end_after((*x.end()).into()));
    RangeToInclusive<i32> => |x| unit_step_range(None, range_end_after(x.end.into()));
}
impl From<Item> for Index {
    fn from(item: Item) -> Index {
        Index(vec![item])
    }
}
impl From<&[Item]> for Index {
    fn from(items: &[Item]) -> Index {
        Index(items.to_vec())
    }
}
macro_rules! tuples {
    ($($($T:ident)+;)*) => {$(
        impl<$($T: Into<Item>),+> From<($($T,)+)> for Index {
            #[allow(non_snake_case, reason = "a name for each type")]
            fn from(($($T,)+): ($($T,)+)) -> Index {
                Index(vec![$($T.into()),+])
            }
        }
    )*};
}
tuples! { A; A B; A B C; A B C D; A B C D F; A B C D F G; A B C D F G H; A B C D F G H I; }

/// Returns the positions that a range takes along an axis of `n`: the first one, their number, and the distance.
fn resolve_range(start: Option<i64>, stop: Option<i64>, step: i64, n: i64) -> (i64, i64, i64) {
    // Positions are held within the axis, as in Python: a range that leaves it ends there.
    let [low, high] = if step > 0 { [0, n] } else { [-1, n - 1] };
    let held = |x: i64| (if x < 0 { x.saturating_add(n) } else { x }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (start.map_or(first, held), stop.map_or(last, held));
    let distance = if step > 0 { stop - start } else { start - stop };
    // A longer step than any axis takes one position as well.
    let step = step.clamp(-(1 << 32), 1 << 32);
    (start, (distance.max(0) + step.abs() - 1) / step.abs(), step)
}

/// Returns the items with a whole range for each axis that no item names.
///
/// # Errors
/// Items for more axes than an array of this type has, or several `Rest`.
pub(super) fn expand_items(ty: &Type, items: &[Item]) -> Result<Vec<Item>, Diag> {
    let named = items.iter().filter(|item| !matches!(item, Item::Rest | Item::New)).count();
    let rests = items.iter().filter(|item| matches!(item, Item::Rest)).count();
    if named > ty.shape.len() || rests > 1 {
        let message = format!("an index with {named} positions and ranges of {ty}");
        return Err(Diag::new("index", At::Op, message, "at most one for each axis, and `Rest` once"));
    }
    let rest = || vec![unit_step_range(None, None); ty.shape.len() - named];
    let mut all = vec![];
    for item in items {
        match item {
            Item::Rest => all.extend(rest()),
            _ => all.push(item.clone()),
        }
    }
    if rests == 0 {
        all.extend(rest());
    }
    Ok(all)
}

/// Returns the first position, the number and the distance of the positions that an item takes along an axis.
///
/// # Errors
/// A position that does not exist; a range with step 0.
pub(super) fn resolve_item(ty: &Type, axis: usize, item: &Item) -> Result<(i64, i64, i64), Diag> {
    match *item {
        Item::At(position) => match canonicalize_axis(position as isize, ty.shape[axis]) {
            Ok(at) => Ok((at as i64, 1, 1)),
            Err(_) => {
                let message = format!("position {position} along axis {axis} of {ty}");
                let help = "positions count from 0, or from the end as -1, -2 ..";
                Err(Diag::new("index", At::Op, message, help))
            }
        },
        Item::Range { step: 0, .. } => {
            Err(Diag::new("index", At::Op, "a range with step 0".into(), "at least 1, or -1 and below"))
        }
        Item::Range { start, stop, step } => Ok(resolve_range(start, stop, step, ty.shape[axis] as i64)),
        Item::Rest | Item::New | Item::Array(_) => Ok((0, ty.shape[axis] as i64, 1)),
    }
}

/// Appends the part of an array that items select; none of the items is an array.
pub(super) fn index(graph: &mut Graph, v: Var, items: &[Item]) -> Result<Var, Diag> {
    let ty = graph.ty(v).clone();
    let shape = ty.shape.clone();
    let all = expand_items(&ty, items)?;
    let (mut starts, mut sizes, mut strides, mut backwards, mut out) = (vec![], vec![], vec![], vec![], vec![]);
    for item in all {
        if let Item::New = item {
            out.push(1);
            continue;
        }
        let axis = starts.len();
        let (first, count, step) = resolve_item(&ty, axis, &item)?;
        // Backwards: the same elements forwards, then reversed.
        let lowest = if step > 0 || count == 0 { first.max(0) } else { first + (count - 1) * step };
        if step < 0 && count > 1 {
            backwards.push(axis);
        }
        starts.push(if count == 0 { 0 } else { lowest });
        sizes.push(count as usize);
        // A single element has no distance, which may not be longer than 2^31.
        strides.push(if count > 1 { step.abs() } else { 1 });
        if !matches!(item, Item::At(_)) {
            out.push(count as usize);
        }
    }
    let mut part = v;
    if sizes != shape || strides.iter().any(|&stride| stride != 1) {
        let size = sizes.iter().map(|&n| Dim::from(n)).collect();
        part = graph.push(StructuralOp::from(Slice { start: starts, size, stride: strides }), &[part])?;
    }
    if !backwards.is_empty() {
        part = graph.push(StructuralOp::from(Reverse { axes: backwards }), &[part])?;
    }
    if out == sizes { Ok(part) } else { reshape(graph, part, &out) }
}

/// Returns the arrays among items, in order.
pub(super) fn item_arrays(items: &[Item]) -> Vec<Array> {
    let array = |item: &Item| if let Item::Array(x) = item { Some(x.clone()) } else { None };
    items.iter().filter_map(array).collect()
}

impl Array {
    /// A part of the array: an item for each axis, as in NumPy's square brackets; axes without an item are whole.
    ///
    /// | NumPy | here |
    /// |---|---|
    /// | `x[2]`, `x[-1]` | `x.index(2)`, `x.index(-1)` |
    /// | `x[1:3]`, `x[:-1]`, `x[2:]` | `x.index(1..3)`, `x.index(..-1)`, `x.index(2..)` |
    /// | `x[1:-1]` | `x.index(between(1, -1))` |
    /// | `x[:, 0]` | `x.index((.., 0))` |
    /// | `x[..., 0]` | `x.index((Rest, 0))` |
    /// | `x[None]` | `x.index(New)` |
    /// | `x[1:8:2]`, `x[::-1]`, `x[5:1:-2]` | `x.index(by(1..8, 2))`, `x.index(by(.., -1))`, `x.index(by(between(5, 1), -2))` |
    /// | `x[i, :, j]` by arrays | `x.index((&i, .., &j))` |
    ///
    /// Negative positions count from the end. A range that leaves the axis ends there; a position that does not exist
    /// is a mistake. Arrays of positions broadcast to one shape, which the result has in place of their axes, or in
    /// front if other axes lie between them; there a position that does not exist is moved to the nearest one
    /// ([`take`](Array::take) and [`at`](Array::at) have other ways). The shape of `x[mask]` depends on elements:
    /// [`extract`](Array::extract) with a size, or [`select`](crate::ops::select).
    ///
    /// ```
    /// use pallas_rt::{Array, ops::Item::Rest};
    /// let x = Array::from_slice(&[1, 2, 3, 4, 5, 6], &[2, 3])?;
    /// assert_eq!(x.index((.., 1..)).to_vec::<i32>()?, [2, 3, 5, 6]);
    /// assert_eq!(x.index((Rest, -1)).to_vec::<i32>()?, [3, 6]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn index(&self, items: impl Into<Index>) -> Array {
        let Index(items) = items.into();
        let arrays = item_arrays(&items);
        let operands: Vec<&Array> = std::iter::once(self).chain(&arrays).collect();
        apply(&operands, Loc::caller(), |graph, v| match v {
            [x] => index(graph, *x, &items),
            _ => gather_windows::push_gather(graph, v[0], &items, &v[1..], IndexMode::Clip, true),
        })
    }
}
