//! Gathers and scatters, whose numbers JAX prints as Python objects.
use super::python::tuple_text;
use pallas_ir::structural::{Gather, Scatter};
use pallas_ir::{DType, ScalarOp};

/// Character that, followed by a digit, holds the place of a variable name in a printed parameter;
/// [`fill_name_placeholders`] puts the name there.
const NAME_PLACEHOLDER: char = '\u{1}';

/// Replaces the placeholders in a printed parameter by names from `fresh`; equal digits get the same name.
pub(super) fn fill_name_placeholders(param: &mut String, mut fresh: impl FnMut() -> String) {
    for place in (0..3).map(|i| format!("{NAME_PLACEHOLDER}{i}")) {
        if param.contains(&place) {
            *param = param.replace(&place, &fresh());
        }
    }
}

pub(super) fn gather_primitive(op: &Gather) -> (String, Vec<String>) {
    let numbers = [
        ("offset_dims", &op.offset_dims),
        ("collapsed_slice_dims", &op.collapsed_slice_dims),
        ("start_index_map", &op.start_index_map),
        ("operand_batching_dims", &op.operand_batching_dims),
        ("start_indices_batching_dims", &op.start_indices_batching_dims),
    ];
    let params = vec![
        dimension_numbers_param("GatherDimensionNumbers", numbers),
        "fill_value=None".into(),
        "indices_are_sorted=False".into(),
        "mode=GatherScatterMode.CLIP".into(),
        format!("slice_sizes={}", tuple_text(&op.slice_sizes)),
        "unique_indices=False".into(),
    ];
    ("gather".into(), params)
}

pub(super) fn scatter_primitive(op: &Scatter, dtype: DType) -> (String, Vec<String>) {
    let numbers = [
        ("update_window_dims", &op.update_window_dims),
        ("inserted_window_dims", &op.inserted_window_dims),
        ("scatter_dims_to_operand_dims", &op.scatter_dims_to_operand_dims),
        ("operand_batching_dims", &op.input_batching_dims),
        ("scatter_indices_batching_dims", &op.scatter_indices_batching_dims),
    ];
    // JAX's words for a few; its primitive for a replacement has no suffix.
    let (name, combined) = match op.op {
        None => ("scatter".to_string(), None),
        Some(ScalarOp::Minimum) => ("scatter-min".into(), Some("min".to_string())),
        Some(ScalarOp::Maximum) => ("scatter-max".into(), Some("max".into())),
        Some(op) => (format!("scatter-{op}"), Some(op.to_string())),
    };
    let ty = format!("{dtype}[]");
    let update = combined.map_or("None".into(), |op| {
        // The names of two parameters and of the result, in order.
        format!("{{ lambda ; {NAME_PLACEHOLDER}0:{ty} {NAME_PLACEHOLDER}1:{ty}. let {NAME_PLACEHOLDER}2:{ty} = {op} {NAME_PLACEHOLDER}0 {NAME_PLACEHOLDER}1 in ({NAME_PLACEHOLDER}2,) }}")
    });
    let params = vec![
        dimension_numbers_param("ScatterDimensionNumbers", numbers),
        "indices_are_sorted=False".into(),
        "mode=GatherScatterMode.FILL_OR_DROP".into(),
        "unique_indices=False".into(),
        "update_consts=()".into(),
        format!("update_jaxpr={update}"),
    ];
    (name, params)
}

fn dimension_numbers_param(class: &str, numbers: [(&str, &Vec<usize>); 5]) -> String {
    let numbers = numbers.map(|(name, axes)| format!("{name}={}", tuple_text(axes)));
    format!("dimension_numbers={class}({})", numbers.join(", "))
}
