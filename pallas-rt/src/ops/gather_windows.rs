//! Windows of arrays that an index selects, as the attributes and operands of a gather or a scatter.
use super::elementwise_broadcast::{GraphOperand, broadcast_shapes, cast, push_elementwise, splat};
use super::index::{Item, expand_items, index, resolve_item};
use super::shape::reshape;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Broadcast, Concat, Gather};
use pallas_ir::{At, DType, Diag, Dim, Literal, ScalarOp, StructuralOp, Type};

/// Treatment of positions in an index that the array does not have, for reading and for writing; `mode` of `jnp.take`
/// and of `x.at[..]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum IndexMode {
    /// Reading gives NaN, `true`, the lowest signed or the highest unsigned integer; writing does nothing.
    Fill,
    /// Reading gives this number; writing does nothing.
    FillWith(f64),
    /// The nearest position that exists.
    Clip,
    /// Positions are counted modulo the extent of the axis.
    Wrap,
}

/// Returns the element that a read at a position outside of the array gives; `None` for a mode that moves the position
/// into the array.
pub(super) fn out_of_range_value(mode: IndexMode, dtype: DType) -> Option<Literal> {
    match mode {
        IndexMode::Fill => Some(match dtype {
            dtype if dtype.is_float() => Literal::new(dtype, f64::NAN),
            dtype if dtype.is_signed() => Literal::lowest(dtype),
            DType::Bool => Literal::new(DType::Bool, 1.0),
            dtype => Literal::highest(dtype),
        }),
        IndexMode::FillWith(x) => Some(Literal::new(dtype, x)),
        IndexMode::Clip | IndexMode::Wrap => None,
    }
}

/// Appends positions along an axis of extent `n` as i32. Those that do not exist are below 0 or from `n` on, unless
/// `mode` wraps them. Negative positions count from the end if `negative_from_end` is true.
///
/// # Errors
/// Elements that are no integers.
pub(super) fn normalize_positions(
    graph: &mut Graph,
    at: Var,
    n: usize,
    mode: IndexMode,
    negative_from_end: bool,
) -> Result<Var, Diag> {
    let dtype = graph.ty(at).dtype;
    if dtype.is_float() || dtype == DType::Bool {
        let message = format!("positions of {}", graph.ty(at));
        let help = "positions are integers; for a mask there are `select`, and `extract` and `compress` with a size";
        return Err(Diag::new("index", At::Op, message, help));
    }
    let n = n as i64;
    let var = GraphOperand::Var;
    let mut at = at;
    if matches!(dtype, DType::U32 | DType::U64 | DType::I64) {
        // Held where i32 has them.
        let low = if dtype.is_signed() { -n - 1 } else { 0 };
        at = match mode {
            IndexMode::Wrap => push_elementwise(graph, ScalarOp::Rem, &[var(at), GraphOperand::Int(n.max(1))])?,
            IndexMode::Fill | IndexMode::FillWith(_) | IndexMode::Clip => {
                push_elementwise(graph, ScalarOp::Clamp, &[var(at), GraphOperand::Int(low), GraphOperand::Int(n)])?
            }
        };
    }
    let at = cast(graph, at, DType::I32)?;
    let at = match mode {
        IndexMode::Wrap => push_elementwise(graph, ScalarOp::Rem, &[var(at), GraphOperand::Int(n.max(1))])?,
        IndexMode::Fill | IndexMode::FillWith(_) | IndexMode::Clip => at,
    };
    if !dtype.is_signed() || !negative_from_end && mode != IndexMode::Wrap {
        return Ok(at);
    }
    let is_negative = push_elementwise(graph, ScalarOp::Lt, &[var(at), GraphOperand::Int(0)])?;
    let counted = push_elementwise(graph, ScalarOp::Add, &[var(at), GraphOperand::Int(n)])?;
    graph.push(ScalarOp::Select, &[is_negative, counted, at])
}

/// Appends positions clamped to those that exist.
pub(super) fn clamp_positions(graph: &mut Graph, at: Var, n: i64) -> Result<Var, Diag> {
    push_elementwise(
        graph,
        ScalarOp::Clamp,
        &[GraphOperand::Var(at), GraphOperand::Int(0), GraphOperand::Int((n - 1).max(0))],
    )
}

/// Access to windows of an array by positions: the treatment of positions that the array does not have, the meaning of
/// negative ones, and whether windows are read or written.
#[derive(Clone, Copy)]
pub(super) struct WindowAccess {
    pub(super) mode: IndexMode,
    /// True if negative positions count from the end.
    pub(super) from_end: bool,
    /// True for a scatter, which skips windows that do not exist; a gather moves them inside of the array.
    pub(super) writes: bool,
}

/// The windows of an array that an index with arrays of positions selects, with the gather that reads them.
pub(super) struct IndexWindows {
    /// The gather that reads the windows at `starts`; reversed, a scatter that writes them.
    pub(super) gather: Gather,
    pub(super) starts: Var,
    /// Shape of the array of windows.
    pub(super) windows_shape: Vec<usize>,
    /// Shape of the result: that of the windows, with the axes that items add.
    pub(super) shape: Vec<usize>,
    /// True for each position whose window exists; `None` if this does not matter.
    exists: Option<Var>,
    /// The axes of the array of windows that positions have.
    axes: Vec<usize>,
}

/// Appends the starts of the windows that items select; ranges must have step 1. `vars` are the items' arrays, in
/// order.
pub(super) fn push_index_windows(
    graph: &mut Graph,
    ty: &Type,
    items: &[Item],
    vars: &[Var],
    access: WindowAccess,
) -> Result<IndexWindows, Diag> {
    let items = expand_items(ty, items)?;
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
        let (first, count, _) = resolve_item(ty, axis, item)?;
        let at = match item {
            Item::Array(_) => {
                let n = ty.shape[axis];
                let at =
                    normalize_positions(graph, *vars.next().expect("one per array"), n, access.mode, access.from_end)?;
                if !access.writes && out_of_range_value(access.mode, ty.dtype).is_some() {
                    let inside = clamp_positions(graph, at, n as i64)?;
                    let is_own =
                        push_elementwise(graph, ScalarOp::Eq, &[GraphOperand::Var(at), GraphOperand::Var(inside)])?;
                    exists = Some(match exists {
                        Some(others) => push_elementwise(
                            graph,
                            ScalarOp::BitAnd,
                            &[GraphOperand::Var(others), GraphOperand::Var(is_own)],
                        )?,
                        None => is_own,
                    });
                }
                Some(if access.writes && access.mode == IndexMode::Clip {
                    clamp_positions(graph, at, n as i64)?
                } else {
                    at
                })
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
    Ok(IndexWindows {
        gather,
        starts,
        windows_shape: made,
        shape,
        exists,
        axes: (0..rank).filter(|&axis| is_axis(axis)).collect(),
    })
}

/// Appends the elements of `x` that `items` select, some of which are arrays of positions: `vars` are their variables,
/// in order. `mode` treats positions that do not exist; negative ones count from the end if `negative_from_end` is
/// true.
pub(super) fn push_gather(
    graph: &mut Graph,
    x: Var,
    items: &[Item],
    vars: &[Var],
    mode: IndexMode,
    negative_from_end: bool,
) -> Result<Var, Diag> {
    // Ranges first: the rest then has whole axes.
    let ranges = expand_items(graph.ty(x), items)?;
    let whole = Item::from(..);
    let is_range = |item: &&Item| !matches!(item, Item::New);
    let own = ranges.iter().filter(is_range);
    let own: Vec<Item> =
        own.map(|item| if let Item::Range { .. } = item { item.clone() } else { whole.clone() }).collect();
    let x = index(graph, x, &own)?;
    let rest = ranges.iter().map(|item| if let Item::Range { .. } = item { whole.clone() } else { item.clone() });
    let ty = graph.ty(x).clone();
    let way = WindowAccess { mode, from_end: negative_from_end, writes: false };
    let places = push_index_windows(graph, &ty, &rest.collect::<Vec<_>>(), vars, way)?;
    let missing = places.gather.collapsed_slice_dims.iter().find(|&&axis| ty.shape[axis] == 0);
    let taken = match missing {
        Some(axis) if !places.windows_shape.contains(&0) && out_of_range_value(mode, ty.dtype).is_none() => {
            let message = format!("positions along axis {axis} of {ty}");
            return Err(Diag::new("index", At::Op, message, "an axis without elements has no positions"));
        }
        Some(_) => splat(
            graph,
            out_of_range_value(mode, ty.dtype).unwrap_or(Literal::new(ty.dtype, 0.0)),
            &places.windows_shape,
        )?,
        None => {
            let taken = graph.push(StructuralOp::from(places.gather), &[x, places.starts])?;
            match (out_of_range_value(mode, ty.dtype), places.exists) {
                (Some(outside), Some(exists)) => {
                    let to = places.windows_shape.iter().map(|&n| Dim::from(n)).collect();
                    let exists = graph.push(StructuralOp::from(Broadcast { to, dims: places.axes }), &[exists])?;
                    let outside = splat(graph, outside, &places.windows_shape)?;
                    graph.push(ScalarOp::Select, &[exists, taken, outside])?
                }
                _ => taken,
            }
        }
    };
    if places.windows_shape == places.shape { Ok(taken) } else { reshape(graph, taken, &places.shape) }
}
