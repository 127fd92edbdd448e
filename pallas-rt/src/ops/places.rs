//! Windows of arrays that an index selects, as the attributes and operands of a gather or a scatter.
use super::elementwise::{Meets, broadcast_shapes, cast, meet, splat};
use super::index::{Item, along, expanded, index};
use super::shape::reshape;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Broadcast, Concat, Gather};
use pallas_ir::{At, DType, Diag, Dim, Literal, ScalarOp, StructuralOp, Type};

/// The meaning of a position that does not exist.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mode {
    /// Reading gives NaN, `true`, the lowest signed or the highest unsigned integer; writing does nothing.
    Fill,
    /// Reading gives this number; writing does nothing.
    FillWith(f64),
    /// The nearest position that exists.
    Clip,
    /// Positions are counted modulo the extent of the axis.
    Wrap,
}

/// Returns the element that reading a position that does not exist gives; `None` if it is one of the array's.
pub(super) fn outside(mode: Mode, dtype: DType) -> Option<Literal> {
    match mode {
        Mode::Fill => Some(match dtype {
            dtype if dtype.is_float() => Literal::new(dtype, f64::NAN),
            dtype if dtype.is_signed() => Literal::lowest(dtype),
            DType::Bool => Literal::new(DType::Bool, 1.0),
            dtype => Literal::highest(dtype),
        }),
        Mode::FillWith(x) => Some(Literal::new(dtype, x)),
        Mode::Clip | Mode::Wrap => None,
    }
}

/// Appends positions along an axis of extent `n` as i32. Those that do not exist are below 0 or from `n` on, unless
/// `mode` wraps them. Negative positions count from the end if `from_end` is true.
///
/// # Errors
/// Elements that are no integers.
pub(super) fn positions(graph: &mut Graph, at: Var, n: usize, mode: Mode, from_end: bool) -> Result<Var, Diag> {
    let dtype = graph.ty(at).dtype;
    if dtype.is_float() || dtype == DType::Bool {
        let message = format!("positions of {}", graph.ty(at));
        let help = "positions are integers; for a mask there are `select`, and `extract` and `compress` with a size";
        return Err(Diag::new("index", At::Op, message, help));
    }
    let n = n as i64;
    let var = Meets::Var;
    let mut at = at;
    if matches!(dtype, DType::U32 | DType::U64 | DType::I64) {
        // Held where i32 has them.
        let low = if dtype.is_signed() { -n - 1 } else { 0 };
        at = match mode {
            Mode::Wrap => meet(graph, ScalarOp::Rem, &[var(at), Meets::Int(n.max(1))])?,
            Mode::Fill | Mode::FillWith(_) | Mode::Clip => {
                meet(graph, ScalarOp::Clamp, &[var(at), Meets::Int(low), Meets::Int(n)])?
            }
        };
    }
    let at = cast(graph, at, DType::I32)?;
    let at = match mode {
        Mode::Wrap => meet(graph, ScalarOp::Rem, &[var(at), Meets::Int(n.max(1))])?,
        Mode::Fill | Mode::FillWith(_) | Mode::Clip => at,
    };
    if !dtype.is_signed() || !from_end && mode != Mode::Wrap {
        return Ok(at);
    }
    let is_negative = meet(graph, ScalarOp::Lt, &[var(at), Meets::Int(0)])?;
    let counted = meet(graph, ScalarOp::Add, &[var(at), Meets::Int(n)])?;
    graph.push(ScalarOp::Select, &[is_negative, counted, at])
}

/// Appends positions clamped to those that exist.
pub(super) fn held(graph: &mut Graph, at: Var, n: i64) -> Result<Var, Diag> {
    meet(graph, ScalarOp::Clamp, &[Meets::Var(at), Meets::Int(0), Meets::Int((n - 1).max(0))])
}

/// The use of windows: the meaning of their positions, and whether they are read or written.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) mode: Mode,
    /// True if negative positions count from the end.
    pub(super) from_end: bool,
    /// True for a scatter, which skips windows that do not exist; a gather moves them inside of the array.
    pub(super) writes: bool,
}

/// The windows that items with arrays select.
pub(super) struct Places {
    /// The gather that reads the windows at `starts`; reversed, a scatter that writes them.
    pub(super) gather: Gather,
    pub(super) starts: Var,
    /// Shape of the array of windows.
    pub(super) made: Vec<usize>,
    /// Shape of the result: that of the windows, with the axes that items add.
    pub(super) shape: Vec<usize>,
    /// True for each position whose window exists; `None` if this does not matter.
    exists: Option<Var>,
    /// The axes of the array of windows that positions have.
    axes: Vec<usize>,
}

/// Appends the starts of the windows that items select; ranges must have step 1. `vars` are the items' arrays, in
/// order.
pub(super) fn places(graph: &mut Graph, ty: &Type, items: &[Item], vars: &[Var], way: Way) -> Result<Places, Diag> {
    let items = expanded(ty, items)?;
    let shapes: Vec<Vec<usize>> = vars.iter().map(|&v| graph.ty(v).shape.clone()).collect();
    let common = broadcast_shapes(&shapes)?;
    let (mut vars, mut axis) = (vars.iter(), 0);
    let (mut starts, mut map, mut collapsed, mut sizes) = (vec![], vec![], vec![], vec![]);
    // Extents of the windows' axes; those in front of the positions; the places of items that positions replace.
    let (mut offsets, mut named, mut exists) = (vec![], vec![], None);
    let mut shape = vec![];
    for (place, item) in items.iter().enumerate() {
        if let Item::New = item {
            shape.push(1);
            continue;
        }
        let (first, count, _) = along(ty, axis, item)?;
        let at = match item {
            Item::Array(_) => {
                let n = ty.shape[axis];
                let at = positions(graph, *vars.next().expect("one per array"), n, way.mode, way.from_end)?;
                if !way.writes && outside(way.mode, ty.dtype).is_some() {
                    let inside = held(graph, at, n as i64)?;
                    let is_own = meet(graph, ScalarOp::Eq, &[Meets::Var(at), Meets::Var(inside)])?;
                    exists = Some(match exists {
                        Some(others) => meet(graph, ScalarOp::BitAnd, &[Meets::Var(others), Meets::Var(is_own)])?,
                        None => is_own,
                    });
                }
                Some(if way.writes && way.mode == Mode::Clip { held(graph, at, n as i64)? } else { at })
            }
            _ if count as usize == ty.shape[axis] && !matches!(item, Item::At(_)) => None,
            _ => Some(splat(graph, Literal::int(DType::I32, first), &[])?),
        };
        let is_position = matches!(item, Item::Array(_) | Item::At(_));
        if let Some(at) = at {
            starts.push(at);
            map.push(axis);
        }
        if is_position {
            collapsed.push(axis);
            named.push((place, offsets.len(), shape.len()));
            sizes.push(1);
        } else {
            sizes.push(count as usize);
            offsets.push(count as usize);
            shape.push(count as usize);
        }
        axis += 1;
    }
    // Positions replace their axes where these are neighbours, else they are in front.
    let is_together = named.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1);
    let &(_, before, before_shape) = named.first().filter(|_| is_together).unwrap_or(&(0, 0, 0));
    shape.splice(before_shape..before_shape, common.iter().copied());
    let rank = offsets.len() + common.len();
    let is_axis = |axis: usize| (before..before + common.len()).contains(&axis);
    let mut made = offsets.clone();
    made.splice(before..before, common.iter().copied());
    // Start vectors have an axis of their own, as in JAX.
    let mut parts = vec![];
    for start in starts {
        let start = graph.broadcast(start, &common)?;
        let to = common.iter().chain(&[1]).map(|&n| Dim::from(n)).collect();
        let op = Broadcast { to, dims: (0..common.len()).collect() };
        parts.push(graph.push(StructuralOp::from(op), &[start])?);
    }
    let starts = match parts[..] {
        [one] => one,
        _ => graph.push(StructuralOp::from(Concat { axis: common.len() }), &parts)?,
    };
    let exists = match exists {
        Some(v) => Some(graph.broadcast(v, &common)?),
        None => None,
    };
    let gather = Gather {
        offset_dims: (0..rank).filter(|&axis| !is_axis(axis)).collect(),
        collapsed_slice_dims: collapsed,
        operand_batching_dims: vec![],
        start_indices_batching_dims: vec![],
        start_index_map: map,
        index_vector_dim: common.len(),
        slice_sizes: sizes.into_iter().map(Dim::from).collect(),
    };
    Ok(Places { gather, starts, made, shape, exists, axes: (0..rank).filter(|&axis| is_axis(axis)).collect() })
}

/// Appends the elements that items with arrays select; `vars` are these arrays, in order.
pub(super) fn read(
    graph: &mut Graph,
    x: Var,
    items: &[Item],
    vars: &[Var],
    mode: Mode,
    from_end: bool,
) -> Result<Var, Diag> {
    // Ranges first: the rest then has whole axes.
    let ranges = expanded(graph.ty(x), items)?;
    let whole = Item::from(..);
    let is_range = |item: &&Item| !matches!(item, Item::New);
    let own = ranges.iter().filter(is_range);
    let own: Vec<Item> =
        own.map(|item| if let Item::Range { .. } = item { item.clone() } else { whole.clone() }).collect();
    let x = index(graph, x, &own)?;
    let rest = ranges.iter().map(|item| if let Item::Range { .. } = item { whole.clone() } else { item.clone() });
    let ty = graph.ty(x).clone();
    let way = Way { mode, from_end, writes: false };
    let places = places(graph, &ty, &rest.collect::<Vec<_>>(), vars, way)?;
    let missing = places.gather.collapsed_slice_dims.iter().find(|&&axis| ty.shape[axis] == 0);
    let taken = match missing {
        Some(axis) if !places.made.contains(&0) && outside(mode, ty.dtype).is_none() => {
            let message = format!("positions along axis {axis} of {ty}");
            return Err(Diag::new("index", At::Op, message, "an axis without elements has no positions"));
        }
        Some(_) => splat(graph, outside(mode, ty.dtype).unwrap_or(Literal::new(ty.dtype, 0.0)), &places.made)?,
        None => {
            let taken = graph.push(StructuralOp::from(places.gather), &[x, places.starts])?;
            match (outside(mode, ty.dtype), places.exists) {
                (Some(outside), Some(exists)) => {
                    let to = places.made.iter().map(|&n| Dim::from(n)).collect();
                    let exists = graph.push(StructuralOp::from(Broadcast { to, dims: places.axes }), &[exists])?;
                    let outside = splat(graph, outside, &places.made)?;
                    graph.push(ScalarOp::Select, &[exists, taken, outside])?
                }
                _ => taken,
            }
        }
    };
    if places.made == places.shape { Ok(taken) } else { reshape(graph, taken, &places.shape) }
}
