//! Convolutions and windowed reductions in the words of JAX.
use super::python::tuple_text;
use crate::graph::{Equation, Graph};
use pallas_ir::structural::{Conv, ReduceWindow, WindowDim};

/// Returns a Python tuple with what `of` gives for each window.
fn window_tuple_text<T: std::fmt::Display>(windows: &[WindowDim], of: impl Fn(&WindowDim) -> T) -> String {
    tuple_text(&windows.iter().map(of).collect::<Vec<_>>())
}

fn padding_text(windows: &[WindowDim]) -> String {
    window_tuple_text(windows, |w| format!("({}, {})", w.low, w.high))
}

/// Returns the name `conv_general_dilated` and the parameters of a convolution, as JAX prints them.
pub(super) fn conv_primitive(op: &Conv, graph: &Graph, e: &Equation) -> (String, Vec<String>) {
    let [made, from] = [e.result(), e.args[0]].map(|v| graph.ty(v).dtype);
    let Conv { windows, groups, batch_groups, lhs, rhs, out, .. } = op;
    let [lhs, rhs, out] = [lhs, rhs, out].map(|axes| tuple_text(axes));
    let wider = if made == from { "None" } else { super::python::numpy_dtype_name(made) };
    let params = vec![
        format!("batch_group_count={batch_groups}"),
        format!("dimension_numbers=ConvDimensionNumbers(lhs_spec={lhs}, rhs_spec={rhs}, out_spec={out})"),
        format!("feature_group_count={groups}"),
        format!("lhs_dilation={}", window_tuple_text(windows, |w| w.dilation)),
        "out_sharding=None".into(),
        format!("padding={}", padding_text(windows)),
        "precision=None".into(),
        format!("preferred_element_type={wider}"),
        format!("rhs_dilation={}", window_tuple_text(windows, |w| w.spacing)),
        format!("window_strides={}", window_tuple_text(windows, |w| w.stride)),
    ];
    ("conv_general_dilated".into(), params)
}

/// Returns JAX's name of a windowed reduction, such as `reduce_window_sum`, and its parameters; `None` for other
/// monoids than sum, maximum and minimum, for which JAX has no named primitive.
pub(super) fn reduce_window_primitive(op: &ReduceWindow) -> Option<(String, Vec<String>)> {
    let ReduceWindow { op, size, windows } = op;
    let name = match op.name() {
        "add" => "reduce_window_sum",
        "maximum" => "reduce_window_max",
        "minimum" => "reduce_window_min",
        _ => return None,
    };
    let params = vec![
        format!("base_dilation={}", window_tuple_text(windows, |w| w.dilation)),
        format!("padding={}", padding_text(windows)),
        format!("window_dilation={}", window_tuple_text(windows, |w| w.spacing)),
        format!("window_dimensions={}", tuple_text(size)),
        format!("window_strides={}", window_tuple_text(windows, |w| w.stride)),
    ];
    Some((name.into(), params))
}
