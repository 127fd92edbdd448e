//! Sets of elements. Their sizes depend on elements, so results have a size that is given.
use super::arrange::ravel;
use super::elementwise_broadcast::{GraphOperand, Operand, apply_to_operands, cast, push_elementwise};
use super::join::push_concatenate;
use super::reduce::reduce;
use super::search::{MAX_LINEAR_SEARCH_ELEMENTS, Side, promote_pair, push_masked_elements, push_search_sorted};
use super::shape::reshape;
use super::sort::{push_axis_slice, push_sort, push_take_along};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, Diag, Literal, Loc, ScalarOp};

/// Appends truth values: true where an element of a sorted line is the first of equal ones; all NaNs are equal.
fn first_of_equal_mask(graph: &mut Graph, line: Var) -> Result<Var, Diag> {
    let n = graph.ty(line).elements();
    let first = graph.splat(Literal::bool(true), &[n.min(1)]);
    if n < 2 {
        return Ok(first);
    }
    let (before, own) = (push_axis_slice(graph, line, 0, 0, n - 1)?, push_axis_slice(graph, line, 0, 1, n)?);
    let mut differs = graph.push(ScalarOp::Ne, &[before, own])?;
    if graph.ty(line).dtype.is_float() {
        let is_number = graph.push(ScalarOp::Eq, &[before, before])?;
        differs = graph.push(ScalarOp::BitAnd, &[differs, is_number])?;
    }
    push_concatenate(graph, &[first, differs], 0)
}

/// Appends truth values: true where an element equals one of a set, which has the same type.
fn push_membership(graph: &mut Graph, v: Var, set: Var) -> Result<Var, Diag> {
    let (shape, set) = (graph.ty(v).shape.clone(), ravel(graph, set)?);
    let n = graph.ty(set).elements();
    if n <= MAX_LINEAR_SEARCH_ELEMENTS {
        let column = reshape(graph, v, &[&shape[..], &[1]].concat())?;
        let same = push_elementwise(graph, ScalarOp::Eq, &[GraphOperand::Var(column), GraphOperand::Var(set)])?;
        return reduce(graph, ScalarOp::BitOr, same, &(-1).into());
    }
    let (set, line) = (push_sort(graph, set, 0)?, ravel(graph, v)?);
    let at = push_search_sorted(graph, set, line, Side::Left)?;
    let at = push_elementwise(graph, ScalarOp::Minimum, &[GraphOperand::Var(at), GraphOperand::Int(n as i64 - 1)])?;
    let found = push_take_along(graph, set, at, 0)?;
    let same = graph.push(ScalarOp::Eq, &[found, line])?;
    reshape(graph, same, &shape)
}

/// Appends the first `size` elements of a set in ascending order: the different elements of `candidates` for which
/// `belongs` returns true (`None`: all of them). If there are fewer, then `fill`, or the smallest.
fn push_set_members(
    graph: &mut Graph,
    candidates: Var,
    size: usize,
    fill: Option<GraphOperand>,
    belongs: impl FnOnce(&mut Graph, Var) -> Result<Option<Var>, Diag>,
) -> Result<Var, Diag> {
    let line = ravel(graph, candidates)?;
    let ty = graph.ty(line).clone();
    let fill = match fill {
        Some(fill) => Some(super::elementwise_broadcast::cast_and_broadcast(graph, 0, fill, ty.dtype, &[])?),
        None => None,
    };
    if ty.elements() == 0 {
        return match fill {
            Some(fill) => graph.broadcast(fill, &[size]),
            None if size == 0 => Ok(line),
            None => {
                let message = format!("{size} elements of a set without any");
                Err(Diag::new("set", At::Operand(0), message, "give a `fill`, or a size of 0"))
            }
        };
    }
    let line = push_sort(graph, line, 0)?;
    let mut mask = first_of_equal_mask(graph, line)?;
    if let Some(own) = belongs(graph, line)? {
        mask = graph.push(ScalarOp::BitAnd, &[mask, own])?;
    }
    push_masked_elements(graph, line, mask, size, fill)
}

/// Makes an array by appending `equations` on sets to a graph: they get the variables of the sets and the operand that
/// fills the result if there are fewer elements.
fn apply_to_sets(
    arrays: &[&Array],
    fill: Option<Operand>,
    at: Loc,
    equations: impl FnOnce(&mut Graph, &[Var], Option<GraphOperand>) -> Result<Var, Diag>,
) -> Array {
    let count = arrays.len();
    let operands: Vec<Operand> = arrays.iter().map(|&x| Operand::from(x)).chain(fill).collect();
    apply_to_operands(&operands, at, |graph, x| {
        let vars: Vec<Var> = x[..count].iter().filter_map(|x| x.var()).collect();
        if let Some(GraphOperand::Var(v)) = x.get(count)
            && !graph.ty(*v).is_scalar()
        {
            let message = format!("a set filled with {}", graph.ty(*v));
            return Err(Diag::new("set", At::Operand(count), message, "a number, or an array of rank 0"));
        }
        equations(graph, &vars, x.get(count).copied())
    })
}

impl Array {
    /// True where an element equals one of `set`; a NaN equals none.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let (x, set) = (Array::from_slice(&[1, 2, 3], &[3])?, Array::from_slice(&[3, 1], &[2])?);
    /// assert_eq!(x.is_in(&set).to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn is_in(&self, set: &Array) -> Array {
        apply(&[self, set], Loc::caller(), |graph, v| {
            let [v, set] = promote_pair(graph, v[0], v[1])?;
            push_membership(graph, v, set)
        })
    }

    /// The first `size` different elements in ascending order; if there are fewer, then `fill`, or the smallest. All
    /// NaNs are one element.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[3, 1, 3], &[3])?;
    /// assert_eq!(x.unique(4, None).to_vec::<i32>()?, [1, 3, 1, 1]);
    /// assert_eq!(x.unique(4, Some(0.into())).to_vec::<i32>()?, [1, 3, 0, 0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn unique(&self, size: usize, fill: Option<Operand>) -> Array {
        apply_to_sets(&[self], fill, Loc::caller(), |graph, v, fill| {
            push_set_members(graph, v[0], size, fill, |_, _| Ok(None))
        })
    }

    /// The first `size` different elements of both arrays in ascending order; if there are fewer, then `fill`, or the
    /// smallest.
    #[track_caller]
    #[must_use]
    pub fn union(&self, other: &Array, size: usize, fill: Option<Operand>) -> Array {
        apply_to_sets(&[self, other], fill, Loc::caller(), |graph, v, fill| {
            let all = ravel_and_join(graph, v)?;
            push_set_members(graph, all, size, fill, |_, _| Ok(None))
        })
    }

    /// The first `size` different elements that both arrays have, in ascending order; if there are fewer, then `fill`,
    /// or the smallest.
    #[track_caller]
    #[must_use]
    pub fn intersect(&self, other: &Array, size: usize, fill: Option<Operand>) -> Array {
        apply_to_sets(&[self, other], fill, Loc::caller(), |graph, v, fill| {
            let [own, other] = promote_pair(graph, v[0], v[1])?;
            push_set_members(graph, own, size, fill, |graph, line| push_membership(graph, line, other).map(Some))
        })
    }

    /// The first `size` different elements that the other array does not have, in ascending order; if there are fewer,
    /// then `fill`, or 0.
    #[track_caller]
    #[must_use]
    pub fn set_difference(&self, other: &Array, size: usize, fill: Option<Operand>) -> Array {
        let fill = fill.unwrap_or(Operand::Int(0));
        apply_to_sets(&[self, other], Some(fill), Loc::caller(), |graph, v, fill| {
            let dtype = graph.ty(v[0]).dtype;
            let [own, other] = promote_pair(graph, v[0], v[1])?;
            let found = push_set_members(graph, own, size, fill, |graph, line| {
                let others = push_membership(graph, line, other)?;
                graph.push(ScalarOp::Not, &[others]).map(Some)
            })?;
            cast(graph, found, dtype)
        })
    }

    /// The first `size` different elements that one of the arrays has, but not both, in ascending order; if there are
    /// fewer, then `fill`, or the smallest.
    #[track_caller]
    #[must_use]
    pub fn symmetric_difference(&self, other: &Array, size: usize, fill: Option<Operand>) -> Array {
        apply_to_sets(&[self, other], fill, Loc::caller(), |graph, v, fill| {
            let [own, other] = promote_pair(graph, v[0], v[1])?;
            let all = ravel_and_join(graph, v)?;
            push_set_members(graph, all, size, fill, |graph, line| {
                let sides = [push_membership(graph, line, own)?, push_membership(graph, line, other)?];
                graph.push(ScalarOp::BitXor, &sides).map(Some)
            })
        })
    }
}

/// Appends the elements of two arrays, joined along one axis.
fn ravel_and_join(graph: &mut Graph, v: &[Var]) -> Result<Var, Diag> {
    let parts = [ravel(graph, v[0])?, ravel(graph, v[1])?];
    push_concatenate(graph, &parts, 0)
}
