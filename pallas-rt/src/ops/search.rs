//! Positions in sorted arrays, and what follows from them: bins and interpolation.
use super::arrange::{ravel, take_position};
use super::create::push_coordinates;
use super::dtype_promotion::promote_types;
use super::elementwise_broadcast::{GraphOperand, cast, push_elementwise};
use super::formula::{FormulaDtype, push_formula};
use super::join::push_concatenate;
use super::reduce::reduce_widened;
use super::shape::reshape;
use super::sort::{push_axis_slice, push_sort, push_take_along};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp};

/// The position among equal elements at which an element is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Before the equal elements.
    Left,
    /// After the equal elements.
    Right,
}

/// Largest number of elements of a table that are all compared; longer tables are searched by halving.
pub(super) const MAX_LINEAR_SEARCH_ELEMENTS: usize = 64;

/// Appends truth values: true where `a` comes before `b` in a sorted array, whose NaNs are last.
fn is_before(graph: &mut Graph, a: Var, b: Var) -> Result<Var, Diag> {
    let less = push_elementwise(graph, ScalarOp::Lt, &[GraphOperand::Var(a), GraphOperand::Var(b)])?;
    if !graph.ty(a).dtype.is_float() {
        return Ok(less);
    }
    let (a, b) = (graph.push(ScalarOp::Eq, &[a, a])?, graph.push(ScalarOp::Ne, &[b, b])?);
    let last = push_elementwise(graph, ScalarOp::BitAnd, &[GraphOperand::Var(a), GraphOperand::Var(b)])?;
    graph.push(ScalarOp::BitOr, &[less, last])
}

/// Appends the i32 positions at which the elements of `v` belong in `table`, a sorted array of one axis and the same
/// type: before equal elements of the table for `Side::Left`, after them for `Side::Right`.
pub(super) fn push_search_sorted(graph: &mut Graph, table: Var, v: Var, side: Side) -> Result<Var, Diag> {
    let (n, shape) = (graph.ty(table).elements(), graph.ty(v).shape.clone());
    // An element of the table comes before the place of another one.
    let precedes = |graph: &mut Graph, element: Var, v: Var| match side {
        Side::Left => is_before(graph, element, v),
        Side::Right => {
            let is_after = is_before(graph, v, element)?;
            graph.push(ScalarOp::Not, &[is_after])
        }
    };
    if n == 0 {
        return Ok(graph.splat(Literal::int(DType::I32, 0), &shape));
    }
    if n <= MAX_LINEAR_SEARCH_ELEMENTS {
        let wide = [&shape[..], &[1]].concat();
        let column = reshape(graph, v, &wide)?;
        let all = [&shape[..], &[n]].concat();
        let (table, column) = (graph.broadcast(table, &all)?, graph.broadcast(column, &all)?);
        let before = precedes(graph, table, column)?;
        return reduce_widened(graph, ScalarOp::Add, before, &(-1).into());
    }
    let line = ravel(graph, v)?;
    let count = graph.ty(line).elements();
    let mut low = graph.splat(Literal::int(DType::I32, 0), &[count]);
    let mut high = graph.splat(Literal::int(DType::I32, n as i64), &[count]);
    for _ in 0..=n.ilog2() {
        let sum = graph.push(ScalarOp::Add, &[low, high])?;
        let middle = push_elementwise(graph, ScalarOp::Shr, &[GraphOperand::Var(sum), GraphOperand::Int(1)])?;
        let held =
            push_elementwise(graph, ScalarOp::Minimum, &[GraphOperand::Var(middle), GraphOperand::Int(n as i64 - 1)])?;
        let element = push_take_along(graph, table, held, 0)?;
        let is_open = graph.push(ScalarOp::Lt, &[low, high])?;
        let before = precedes(graph, element, line)?;
        let goes_on = graph.push(ScalarOp::BitAnd, &[is_open, before])?;
        let after = push_elementwise(graph, ScalarOp::Add, &[GraphOperand::Var(middle), GraphOperand::Int(1)])?;
        low = graph.push(ScalarOp::Select, &[goes_on, after, low])?;
        high = graph.push(ScalarOp::Select, &[goes_on, high, middle])?;
    }
    reshape(graph, low, &shape)
}

/// Refuses an array `v` that has not exactly one axis, and returns its extent. Messages call the operation `name`, and
/// `v` its operand `operand_number`.
fn check_one_axis(graph: &Graph, name: &str, operand_number: usize, v: Var) -> Result<usize, Diag> {
    match graph.ty(v).shape[..] {
        [n] => Ok(n),
        _ => {
            let message = format!("{name} of {}", graph.ty(v));
            Err(Diag::new("rank", At::Operand(operand_number), message, "an array of one axis"))
        }
    }
}

/// Appends both variables, cast to their common type.
pub(super) fn promote_pair(graph: &mut Graph, a: Var, b: Var) -> Result<[Var; 2], Diag> {
    let dtype = promote_types(graph.ty(a).dtype, graph.ty(b).dtype);
    Ok([cast(graph, a, dtype)?, cast(graph, b, dtype)?])
}

impl Array {
    /// i32 positions in this sorted array of one axis at which elements belong, so that it stays sorted: before or
    /// after equal ones. NaNs belong to the end.
    ///
    /// ```
    /// use pallas_rt::{Array, ops::Side};
    /// let (table, x) = (Array::from_slice(&[1, 2, 2, 3], &[4])?, Array::from_slice(&[2, 0], &[2])?);
    /// assert_eq!(table.searchsorted(&x, Side::Left).to_vec::<i32>()?, [1, 0]);
    /// assert_eq!(table.searchsorted(&x, Side::Right).to_vec::<i32>()?, [3, 0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn searchsorted(&self, elements: &Array, side: Side) -> Array {
        apply(&[self, elements], Loc::caller(), |graph, v| {
            check_one_axis(graph, "searchsorted in a table", 0, v[0])?;
            let [table, v] = promote_pair(graph, v[0], v[1])?;
            push_search_sorted(graph, table, v, side)
        })
    }

    /// i32 numbers of the bins that elements are in. `edges` are in ascending or descending order; an edge belongs to
    /// the bin after it, or with `right` to the bin before it.
    #[track_caller]
    #[must_use]
    pub fn digitize(&self, edges: &Array, right: bool) -> Array {
        apply(&[self, edges], Loc::caller(), |graph, v| {
            let n = check_one_axis(graph, "edges", 1, v[1])?;
            let side = if right { Side::Left } else { Side::Right };
            let [v, edges] = promote_pair(graph, v[0], v[1])?;
            let up = push_search_sorted(graph, edges, v, side)?;
            if n == 0 {
                return Ok(up);
            }
            let turned = super::arrange::flip(graph, edges, vec![0])?;
            let down = push_search_sorted(graph, turned, v, side)?;
            let (first, last) = (take_position(graph, edges, 0, 0)?, take_position(graph, edges, 0, -1)?);
            // NaN is the last of sorted edges.
            let ascends = push_formula(
                graph,
                FormulaDtype::Any,
                [GraphOperand::Var(last), GraphOperand::Var(first)],
                |[last, first], _| last.ge(first) | last.ne(last),
            )?;
            let down = push_elementwise(graph, ScalarOp::Sub, &[GraphOperand::Int(n as i64), GraphOperand::Var(down)])?;
            push_elementwise(
                graph,
                ScalarOp::Select,
                &[GraphOperand::Var(ascends), GraphOperand::Var(up), GraphOperand::Var(down)],
            )
        })
    }

    /// Numbers of elements in the bins between neighbours of sorted edges, as floats. An edge belongs to the bin after
    /// it, the last one to the last bin; NaNs are in none.
    #[track_caller]
    #[must_use]
    pub fn histogram(&self, edges: &Array) -> Array {
        apply(&[self, edges], Loc::caller(), |graph, v| {
            let n = check_one_axis(graph, "edges", 1, v[1])?;
            if n < 2 {
                let message = format!("a histogram of {n} edges");
                return Err(Diag::new("histogram", At::Operand(1), message, "at least two, of one bin"));
            }
            let own = graph.ty(v[0]).dtype;
            let dtype = if own.is_float() { own } else { DType::F32 };
            let (line, edges) = (ravel(graph, v[0])?, cast(graph, v[1], dtype)?);
            let line = cast(graph, line, dtype)?;
            let line = push_sort(graph, line, 0)?;
            let before = push_axis_slice(graph, edges, 0, 0, n - 1)?;
            let before = push_search_sorted(graph, line, before, Side::Left)?;
            let last = push_axis_slice(graph, edges, 0, n - 1, n)?;
            let last = push_search_sorted(graph, line, last, Side::Right)?;
            let inner = push_axis_slice(graph, before, 0, 1, n - 1)?;
            let ends = push_concatenate(graph, &[inner, last], 0)?;
            let counts = graph.push(ScalarOp::Sub, &[ends, before])?;
            cast(graph, counts, dtype)
        })
    }

    /// Linear interpolation between the points `(x, y)` at the elements; `x` is sorted. Before the first point the
    /// value is the first `y`, after the last one the last.
    #[track_caller]
    #[must_use]
    pub fn interp(&self, x: &Array, y: &Array) -> Array {
        apply(&[self, x, y], Loc::caller(), |graph, v| {
            let n = check_one_axis(graph, "points", 1, v[1])?;
            if check_one_axis(graph, "values", 2, v[2])? != n || n == 0 {
                let message = format!("interpolation between points of {} and {}", graph.ty(v[1]), graph.ty(v[2]));
                return Err(Diag::new("interp", At::Operand(2), message, "as many values as points, at least one"));
            }
            let types = v.iter().map(|&v| graph.ty(v).dtype).reduce(promote_types).expect("there are three");
            let dtype = if types.is_float() { types } else { DType::F32 };
            let [at, x, y] = [cast(graph, v[0], dtype)?, cast(graph, v[1], dtype)?, cast(graph, v[2], dtype)?];
            let shape = graph.ty(at).shape.clone();
            let at = ravel(graph, at)?;
            let after = push_search_sorted(graph, x, at, Side::Right)?;
            let mut point = |back: i64| {
                let i = push_elementwise(
                    graph,
                    ScalarOp::Clamp,
                    &[
                        GraphOperand::Var(after),
                        GraphOperand::Int(1.min(n as i64 - 1)),
                        GraphOperand::Int(n as i64 - 1),
                    ],
                )?;
                let i = push_elementwise(
                    graph,
                    ScalarOp::Sub,
                    &[GraphOperand::Var(i), GraphOperand::Int(back.min(n as i64 - 1))],
                )?;
                Ok([push_take_along(graph, x, i, 0)?, push_take_along(graph, y, i, 0)?])
            };
            let ([x0, y0], [x1, y1]) = (point(1)?, point(0)?);
            let ends = [
                take_position(graph, x, 0, 0)?,
                take_position(graph, y, 0, 0)?,
                take_position(graph, x, 0, -1)?,
                take_position(graph, y, 0, -1)?,
            ];
            let inner = [at, x0, y0, x1, y1].map(GraphOperand::Var);
            let inner = push_formula(graph, FormulaDtype::Any, inner, |[at, x0, y0, x1, y1], _| {
                let (dx, is_point) = (x1 - x0, x1.eq(x0));
                let slope = (at - x0) / is_point.select(dx.like(1.0), dx);
                is_point.select(y0, y0 + slope * (y1 - y0))
            })?;
            let all = [inner, at, ends[0], ends[1], ends[2], ends[3]].map(GraphOperand::Var);
            let value = push_formula(graph, FormulaDtype::Any, all, |[y, at, first, before, last, after], _| {
                at.lt(first).select(before, at.gt(last).select(after, y))
            })?;
            reshape(graph, value, &shape)
        })
    }
}

/// Appends the first `size` elements of a line where a mask is true; if there are fewer, then `fill`, or the first of
/// them if that is `None`.
pub(super) fn push_masked_elements(
    graph: &mut Graph,
    line: Var,
    mask: Var,
    size: usize,
    fill: Option<Var>,
) -> Result<Var, Diag> {
    let n = graph.ty(line).elements();
    let counts = cast(graph, mask, DType::I32)?;
    let op = pallas_ir::structural::Cumulative { op: ScalarOp::Add, axis: 0, reverse: false };
    let running = graph.push(pallas_ir::StructuralOp::from(op), &[counts])?;
    let numbers = push_coordinates(graph, &[size], 0, DType::I32)?;
    let wanted = push_elementwise(graph, ScalarOp::Add, &[GraphOperand::Var(numbers), GraphOperand::Int(1)])?;
    let at = push_search_sorted(graph, running, wanted, Side::Left)?;
    let held = push_elementwise(graph, ScalarOp::Minimum, &[GraphOperand::Var(at), GraphOperand::Int(n as i64 - 1)])?;
    let found = push_take_along(graph, line, held, 0)?;
    let exists = push_elementwise(graph, ScalarOp::Lt, &[GraphOperand::Var(at), GraphOperand::Int(n as i64)])?;
    let fill = match fill {
        Some(fill) => fill,
        None if size == 0 => return Ok(found),
        None => take_position(graph, found, 0, 0)?,
    };
    push_elementwise(
        graph,
        ScalarOp::Select,
        &[GraphOperand::Var(exists), GraphOperand::Var(found), GraphOperand::Var(fill)],
    )
}
