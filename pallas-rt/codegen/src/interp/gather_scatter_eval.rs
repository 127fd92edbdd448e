//! Evaluates gathers and scatters of windows at positions given by data.
use super::datum::{Data, Datum, flatten, positions};
use super::scalar_eval::{collect_elements, eval_element};
use pallas_ir::structural::{IndexedWindows, WindowAxis};
use pallas_ir::{At, Diag, Literal, ScalarOp, Type};

/// Returns the starts of the window that has position `at` of the array of windows; `None` if one of them is poison.
fn window_starts(windows: &IndexedWindows, index: &Datum, at: &[usize]) -> Option<Vec<i64>> {
    let start = |k: usize| {
        let mut own = windows.index.iter().map(|&axis| at[axis]);
        let position = |axis| if Some(axis) == windows.vector { k } else { own.next().expect("one per axis") };
        let from = flatten(&(0..index.ty.shape.len()).map(position).collect::<Vec<_>>(), &index.ty.shape);
        (!index.is_poison(from)).then(|| index.data.get(from).as_i64())
    };
    (0..windows.start_vector_length()).map(start).collect()
}

/// Returns the position in the operand of the element at position `at` of the array of windows.
fn operand_position(windows: &IndexedWindows, starts: &[i64], at: &[usize]) -> Vec<usize> {
    let along = |w: &WindowAxis| w.start.map_or(0, |k| starts[k] as usize) + w.axis.map_or(0, |axis| at[axis]);
    windows.axes.iter().map(along).collect()
}

fn undefined_index_error(name: &str) -> Diag {
    let message = format!("an index of {name} is undefined (outside of its array, or uninitialised)");
    Diag::new("poisoned-index", At::Operand(1), message, "mask the indices with `select`")
}

/// Evaluates a gather. Where an index is poison the elements are poison or, if `checked`, it is a fault.
pub(super) fn gather(
    windows: &IndexedWindows,
    checked: bool,
    x: &Datum,
    index: &Datum,
    ty: Type,
) -> Result<Datum, Diag> {
    let last = windows.max_starts(&x.ty.dims());
    let (mut from, mut lost) = (vec![], vec![]);
    for at in positions(&ty.shape) {
        let Some(found) = window_starts(windows, index, &at) else {
            if checked {
                return Err(undefined_index_error("take_along_axis"));
            }
            lost.push(true);
            from.push((0, 0));
            continue;
        };
        lost.push(false);
        let held: Vec<i64> = found.iter().zip(&last).map(|(&start, &last)| start.clamp(0, last)).collect();
        if let Some(k) = (0..held.len()).find(|&k| checked && held[k] != found[k]) {
            let axis = windows.axes.iter().position(|w| w.start == Some(k)).expect("each start has an axis");
            let (start, n) = (found[k], x.ty.shape[axis]);
            let message = format!("index {start} at {at:?} is out of range: axis {axis} has {n} elements");
            return Err(Diag::new("index-range", At::Operand(1), message, "clamp or mask the indices"));
        }
        from.push((0, flatten(&operand_position(windows, &held, &at), &x.ty.shape)));
    }
    if from.is_empty() {
        return Ok(Datum::new(ty.clone(), Data::zeros(ty.dtype, 0)));
    }
    let found = collect_elements(&[x], ty, from.into_iter());
    let poison = (0..lost.len()).map(|i| lost[i] || found.is_poison(i)).collect();
    Ok(found.with_poison(poison))
}

/// Evaluates a scatter: all elements of a window, then those of the next. Updates are folded into the elements of `x`
/// by `op`, or replace them if it is `None`.
pub(super) fn scatter(
    windows: &IndexedWindows,
    op: Option<ScalarOp>,
    x: &Datum,
    index: &Datum,
    updates: &Datum,
) -> Result<Datum, Diag> {
    let last = windows.max_starts(&x.ty.dims());
    let mut out = x.clone();
    let mut poison: Vec<bool> = (0..out.data.len()).map(|i| out.is_poison(i)).collect();
    let mut order: Vec<Vec<usize>> = positions(&updates.ty.shape).collect();
    order.sort_by_key(|at| windows.index.iter().map(|&axis| at[axis]).collect::<Vec<_>>());
    for at in order {
        let found = window_starts(windows, index, &at).ok_or_else(|| undefined_index_error("scatter"))?;
        if found.iter().zip(&last).any(|(start, last)| !(0..=*last).contains(start)) {
            continue;
        }
        let to = flatten(&operand_position(windows, &found, &at), &x.ty.shape);
        let from = flatten(&at, &updates.ty.shape);
        let update: Literal = updates.data.get(from);
        poison[to] = updates.is_poison(from) || op.is_some() && poison[to];
        out.data.set(to, op.map_or(update, |op| eval_element(op, &[out.data.get(to), update])));
    }
    Ok(out.with_poison(poison))
}
