//! Checks that two graphs come from one function, traced for different sizes.
//!
//! Two operations agree if each element of the smaller result is computed from the same elements of the operands as in
//! the larger one, or from elements that `mask` makes neutral. The elements that exist are always at the start of an
//! array.
use super::GraphMismatch;
use crate::build::constant_dims;
use crate::dynamic::{Dynamic, WindowAccess};
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::{AccessForm, IndexedWindows, LoopNest, MapPiece};
use pallas_ir::{Dim, Loc, StructuralOp, Type};

/// Checks that `other` is the graph of the same function as `bound`, which was traced for the bounds, for other sizes.
///
/// # Errors
/// The first difference.
pub(super) fn check_same_function(bound: &Graph, other: &Graph) -> Result<(), GraphMismatch> {
    let whole = |what| Err(GraphMismatch::new(Loc::NONE, what));
    if bound.params != other.params {
        return whole("the function captures another number of arrays");
    }
    for (a, b) in bound.equations.iter().zip(&other.equations) {
        if a.args != b.args || a.results != b.results || !is_same_equation_kind(bound, a, other, b) {
            return Err(GraphMismatch::new(
                b.loc,
                format!("`{}` for one size is `{}` for another", a.op.name(), b.op.name()),
            ));
        }
        if let (Op::Call(a), Op::Call(b)) = (&a.op, &b.op) {
            a.graphs().into_iter().zip(b.graphs()).try_for_each(|(a, b)| check_same_function(a, b))?;
        }
        let known =
            |graph: &Graph, e: &Equation| -> Vec<Type> { e.args.iter().map(|&v| graph.ty(v).clone()).collect() };
        check_same_op(&a.op, &known(bound, a), &b.op, &known(other, b))
            .map_err(|what| GraphMismatch::new(b.loc, what))?;
    }
    match bound.equations.len() == other.equations.len() && bound.results == other.results {
        true => Ok(()),
        false => whole("the function has another number of operations"),
    }
}

/// Returns true if equation `a` of `a_graph` and equation `b` of `b_graph` have the same kind of operation, and
/// operands and results of the same element types and ranks, with no extent larger in `b`.
fn is_same_equation_kind(a_graph: &Graph, a: &Equation, b_graph: &Graph, b: &Equation) -> bool {
    let kinds = match (&a.op, &b.op) {
        (Op::Literal(a), Op::Literal(b)) => a.dtype == b.dtype,
        (Op::Structural(a), Op::Structural(b)) => a.name() == b.name(),
        (Op::Dynamic(a), Op::Dynamic(b)) => a.name() == b.name(),
        (Op::Call(a), Op::Call(b)) => a.name() == b.name() && a.graphs().len() == b.graphs().len(),
        (a, b) => a == b,
    };
    let same = |v: &crate::Var| {
        let (a, b) = (a_graph.ty(*v), b_graph.ty(*v));
        a.dtype == b.dtype && a.shape.len() == b.shape.len() && a.shape.iter().zip(&b.shape).all(|(a, b)| a >= b)
    };
    kinds && a.args.iter().chain(&a.results).all(same)
}

/// Checks that two operations of the same kind agree in their attributes, on operands of these types.
fn check_same_op(a: &Op, a_types: &[Type], b: &Op, b_types: &[Type]) -> Result<(), String> {
    match (a, b) {
        (Op::Structural(a), Op::Structural(b)) => check_same_structural_op(a, a_types, b, b_types),
        (Op::Dynamic(a), Op::Dynamic(b)) => check_same_window_op(a, a_types, b, b_types),
        (Op::Call(a), Op::Call(b)) => match a.sized() {
            Some(sized) if a.name() == b.name() => sized.check_same_call(b, a_types == b_types),
            _ => Err(format!("`{}` differs", a.name())),
        },
        _ => Ok(()),
    }
}

/// Checks that two structural operations, traced for different sizes, read their operands' elements in the same way,
/// or differ only in where elements begin or end, which the graph for all sizes computes.
fn check_same_structural_op(
    a: &StructuralOp,
    a_types: &[Type],
    b: &StructuralOp,
    b_types: &[Type],
) -> Result<(), String> {
    let shapes = |types: &[Type]| -> Vec<Vec<Dim>> { types.iter().map(|ty| constant_dims(&ty.shape)).collect() };
    let (a_shapes, b_shapes) = (shapes(a_types), shapes(b_types));
    let (a_args, b_args): (Vec<&[Dim]>, Vec<&[Dim]>) =
        (a_shapes.iter().map(|s| &s[..]).collect(), b_shapes.iter().map(|s| &s[..]).collect());
    let result = |op: &StructuralOp, args: &[&[Dim]]| op.infer(args, &pallas_ir::Facts::default()).unwrap_or_default();
    let (a_result, b_result) = (result(a, &a_args), result(b, &b_args));
    let does = match (a.access(&a_args), b.access(&b_args)) {
        (AccessForm::Nest(a_nest), AccessForm::Nest(b_nest)) => {
            let acc = |op: &StructuralOp| if let StructuralOp::Conv(conv) = op { Some(conv.acc) } else { None };
            acc(a) == acc(b) && is_same_nest(&a_nest, &b_nest)
        }
        _ if matches!(a, StructuralOp::Pad(_) | StructuralOp::Slice(_)) => can_mask_start_difference(a, b),
        _ if a.without_sizes() != b.without_sizes() => false,
        // `mask` computes from the sizes where the elements end.
        _ if matches!(a, StructuralOp::Concat(_) | StructuralOp::Reverse(_)) => true,
        (AccessForm::Map(a), AccessForm::Map(b)) => {
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| is_same_piece(a, &a_result, b, &b_result))
        }
        (AccessForm::Flat, AccessForm::Flat) => {
            let number = |dims: &[Dim]| -> Vec<i64> { dims.iter().map(|d| d.as_number().unwrap_or(0)).collect() };
            reshape_keeps_axis_prefixes(
                [&number(a_args[0]), &number(&a_result)],
                [&number(b_args[0]), &number(&b_result)],
            )
        }
        (AccessForm::Gather { windows: a, .. }, AccessForm::Gather { windows: b, .. }) => {
            has_same_windows(&a, a_args[0], &b, b_args[0])
        }
        (AccessForm::Scatter { windows: a, .. }, AccessForm::Scatter { windows: b, .. }) => {
            let is_safe = |axis: usize| {
                let (of_a, of_b) = (&a.axes[axis].size, &b.axes[axis].size);
                let (of_operand, of_other) = (&a_args[0][axis], &b_args[0][axis]);
                match a.axes[axis].start {
                    // A window of one element is either inside or outside, whatever the extent is.
                    Some(_) => of_operand == of_other || of_a.as_number() == Some(1),
                    None => of_a == of_b || (of_a == of_operand && of_b == of_other),
                }
            };
            has_same_windows(&a, a_args[0], &b, b_args[0]) && (0..a.axes.len()).all(is_safe)
        }
        // The attributes are equal, and nothing else in these operations depends on sizes.
        _ => true,
    };
    match does {
        true => Ok(()),
        false => Err(format!("`{}` at the end of an axis whose extent depends on the size", b.name())),
    }
}

/// Returns true if masking can make up for a pad or slice that begins elsewhere in `a` than in `b`, the same operation
/// traced for another size: a graph for all sizes can compute where it begins.
fn can_mask_start_difference(a: &StructuralOp, b: &StructuralOp) -> bool {
    let is_place = |n: &Dim| n.as_number().is_some_and(|n| n >= 0);
    match (a, b) {
        (StructuralOp::Pad(a), StructuralOp::Pad(b)) => {
            a.low.iter().zip(&b.low).all(|(a, b)| a == b || (is_place(a) && is_place(b)))
        }
        (StructuralOp::Slice(a), StructuralOp::Slice(b)) => {
            let moves = |axis: &usize| a.start[*axis] != b.start[*axis];
            a.stride == b.stride && (0..a.start.len()).filter(moves).all(|axis| a.stride[axis] == 1)
        }
        _ => false,
    }
}

/// Returns true if both pieces of a result read the same elements of the same operand, up to the end of the result;
/// `a_result` and `b_result` are the shapes of the results.
fn is_same_piece(a: &MapPiece, a_result: &[Dim], b: &MapPiece, b_result: &[Dim]) -> bool {
    let is_bound = |((a_axis, a_low, a_high), (b_axis, b_low, b_high)): (&(usize, Dim, Dim), &(usize, Dim, Dim))| {
        let is_end = *a_high == a_result[*a_axis] && *b_high == b_result[*b_axis];
        a_axis == b_axis && a_low == b_low && (a_high == b_high || is_end)
    };
    a.operand == b.operand
        && a.index == b.index
        && a.bounds.len() == b.bounds.len()
        && a.bounds.iter().zip(&b.bounds).all(is_bound)
}

/// Returns true if both loop nests read the same positions and combine them alike; their loops may have other extents.
fn is_same_nest(a: &LoopNest, b: &LoopNest) -> bool {
    let roles = |nest: &LoopNest| nest.axes.iter().map(|axis| axis.role).collect::<Vec<_>>();
    roles(a) == roles(b) && a.operands == b.operands && a.result == b.result && a.op == b.op
}

/// Returns true if both operations read or write the same windows of operands of the shapes `a_operand` and
/// `b_operand`. A window that spans an axis may have another size if the axis has; a window with a given start may be
/// shorter by as much as the axis, so that its last start is the same.
fn has_same_windows(a: &IndexedWindows, a_operand: &[Dim], b: &IndexedWindows, b_operand: &[Dim]) -> bool {
    let fits = |axis: usize| {
        let (of_a, of_b) = (&a.axes[axis], &b.axes[axis]);
        let is_size = of_a.size == of_b.size
            || of_a.start.is_none()
            || &a_operand[axis] - &of_a.size == &b_operand[axis] - &of_b.size;
        of_a.start == of_b.start && of_a.axis == of_b.axis && is_size
    };
    a.index == b.index && a.vector == b.vector && (0..a.axes.len()).all(fits)
}

/// Checks that two operations on dynamic windows agree: the windows are equally long, or span the axis, or (reading
/// only) are shorter by as much as the array. A window that is written may not contain elements that do not exist, as
/// these would overwrite others.
fn check_same_window_op(a: &Dynamic, a_types: &[Type], b: &Dynamic, b_types: &[Type]) -> Result<(), String> {
    let window = |op: &Dynamic, types: &[Type]| match op.access() {
        WindowAccess::Read(size) => size.to_vec(),
        WindowAccess::Write => types[1].shape.clone(),
    };
    let reads = a.access() != WindowAccess::Write;
    let (a_window, b_window) = (window(a, a_types), window(b, b_types));
    let fits = |axis: usize| {
        let (a_rest, b_rest) = (a_types[0].shape[axis] - a_window[axis], b_types[0].shape[axis] - b_window[axis]);
        let is_whole = a_rest == 0 && b_rest == 0;
        a_window[axis] == b_window[axis] || is_whole || (reads && a_rest == b_rest)
    };
    match (0..a_window.len()).all(fits) {
        true => Ok(()),
        false => Err(format!("`{}` with a window whose extent depends on the size", b.name())),
    }
}

/// Returns true if a reshape keeps the elements that exist at the start of each axis. That holds if operand and result
/// split into groups of axes with equal numbers of elements, and in each group only the outermost axis differs between
/// the sizes. `a` and `b` are the operand's shapes for both sizes, `a_to` and `b_to` those of the result.
fn reshape_keeps_axis_prefixes([a, a_to]: [&[i64]; 2], [b, b_to]: [&[i64]; 2]) -> bool {
    if a == b && a_to == b_to {
        return true;
    }
    if b.contains(&0) {
        return true;
    }
    let (mut i, mut k) = (0, 0);
    while i < a.len() || k < a_to.len() {
        let (i_first, k_first) = (i, k);
        let (mut from, mut to) = (1, 1);
        // Makes each group as short as possible, with at least one axis on either side while both have axes left.
        loop {
            if from <= to && i < a.len() && (from < to || i == i_first) {
                from *= a[i];
                i += 1;
            } else if k < a_to.len() && (to < from || k == k_first) {
                to *= a_to[k];
                k += 1;
            } else if from < to && i < a.len() {
                from *= a[i];
                i += 1;
            } else {
                break;
            }
        }
        let is_outermost = |a: &[i64], b: &[i64]| {
            let outermost = a.iter().position(|n| *n != 1).unwrap_or(0);
            a.iter().zip(b).enumerate().all(|(axis, (a, b))| a == b || axis == outermost)
        };
        let equal = b[i_first..i].iter().product::<i64>() == b_to[k_first..k].iter().product::<i64>();
        if !equal
            || !is_outermost(&a[i_first..i], &b[i_first..i])
            || !is_outermost(&a_to[k_first..k], &b_to[k_first..k])
        {
            return false;
        }
    }
    true
}
