//! Axes along which operations move or combine elements.
use super::axis_tiling;
use super::device_limits::DeviceLimits;
use crate::graph::{Equation, Graph};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{AccessForm, IndexedWindows};

/// Fewest columns of a block if programs split the columns: shorter rows leave vectors partly empty.
const MIN_SPLIT_COLUMNS: usize = 64;

/// The axes of an operand or of the result that each program of a kernel has to have whole.
pub(super) enum WholeAxes {
    /// Axes of the operand, which the operation folds.
    Folded(Vec<usize>),
    /// Axes of the result, along which the operation moves or combines elements.
    Moved(Vec<usize>),
    /// Axes of the result, along which the operation copies parts of the operand.
    Copied(Vec<usize>),
    /// None: blocks of the result follow from blocks of the operands.
    Nothing,
}

/// Returns the axes that a structural operation needs whole, read from its access form. For a windowed operation, which
/// has its own rules, these are all axes.
pub(super) fn find_whole_axes(graph: &Graph, e: &Equation, op: &StructuralOp) -> WholeAxes {
    match axis_tiling::access_form(graph, e, op) {
        AccessForm::Map(pieces) => {
            let shapes = axis_tiling::operand_shapes(graph, e);
            let axes = axis_tiling::find_moved_axes(&pieces, &shapes, &graph.ty(e.result()).shape);
            if axes.is_empty() { WholeAxes::Nothing } else { WholeAxes::Moved(axes) }
        }
        AccessForm::Scan { axis, .. } | AccessForm::Sort { axis, .. } => WholeAxes::Moved(vec![axis]),
        AccessForm::Nest(nest) => WholeAxes::Moved((0..nest.result.len()).collect()),
        AccessForm::Fold { axes, .. } => WholeAxes::Folded(axes),
        AccessForm::Arg { axis, .. } => WholeAxes::Folded(vec![axis]),
        AccessForm::Gather { windows, .. } => match gather_lookup_axes(graph, e, &windows) {
            Some(axes) => WholeAxes::Moved(axes),
            None => WholeAxes::Copied(windows.window_axes()),
        },
        AccessForm::Flat
        | AccessForm::Contract { .. }
        | AccessForm::Scatter { .. }
        | AccessForm::Iota { .. }
        | AccessForm::Cast
        | AccessForm::Bitcast
        | AccessForm::Powi(_) => WholeAxes::Nothing,
    }
}

/// Returns the axes of the result along which a gather looks up single elements along one axis of its operand, with all
/// other axes parallel, as `take_along_axis` does; `None` for other gathers.
fn gather_lookup_axes(graph: &Graph, e: &Equation, windows: &IndexedWindows) -> Option<Vec<usize>> {
    let rank = graph.ty(e.result()).shape.len();
    let is_lookup =
        windows.start_vector_length() == 1 && windows.window_axes().is_empty() && windows.axes.len() == rank;
    let is_parallel = |axis: &usize| windows.axes.iter().any(|window| window.axis == Some(*axis));
    is_lookup.then(|| (0..rank).filter(|axis| !is_parallel(axis)).collect())
}

/// Returns true if programs that have these axes whole split the other ones, the columns: if a tile holds enough
/// columns, and does not hold the whole value.
pub(super) fn can_split_columns(whole_axes: &[usize], shape: &[usize], sizes: &DeviceLimits) -> bool {
    let column: usize = whole_axes.iter().map(|&axis| shape[axis]).product();
    column.saturating_mul(MIN_SPLIT_COLUMNS) <= sizes.tile && shape.iter().product::<usize>() > sizes.tile
}
