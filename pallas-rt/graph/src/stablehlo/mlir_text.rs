//! Printer of StableHLO, in MLIR's generic form.
use super::operation::{
    ExchangedData, HloAttributes, HloFunction, HloLine, HloOperation, HloRegion, HloValue, decimal_text,
    escaped_string_content, stablehlo_and_hlo_type_names,
};
use crate::mesh::Mesh;
use pallas_ir::structural::{Conv, Dot, Gather, Scatter, WindowDim};
use pallas_ir::{Literal, Type};
use std::fmt::Write;

/// Returns the text of a module, with its mesh if shardings name one.
pub(super) fn module_text(name: &str, mesh: Option<&Mesh>, functions: &[HloFunction]) -> String {
    let mut text = format!("module @{name} {{\n");
    if let Some(mesh) = mesh {
        writeln!(text, "  sdy.mesh @mesh = {mesh}").expect("a string");
    }
    for function in functions {
        let visibility = if function.is_public { "public" } else { "private" };
        let name = &function.name;
        let takes =
            function.body.params.iter().map(|x| format!("{}: {}", self::value_name(x), tensor_type_text(&x.ty)));
        let takes = append_shardings(takes.collect(), &function.shardings[0]).join(", ");
        let gives = append_shardings(function.gives.iter().map(tensor_type_text).collect(), &function.shardings[1]);
        let gives = match &gives[..] {
            [one] if function.shardings[1].is_empty() => one.clone(),
            all => format!("({})", all.join(", ")),
        };
        writeln!(text, "  func.func {visibility} @{name}({takes}) -> {gives} {{").expect("a string");
        write_lines(&mut text, &function.body.lines, 1);
        text += "  }\n";
    }
    text + "}\n"
}

/// Returns the texts of types, each followed by the attribute for its sharding if it has one; `shardings` may be
/// shorter than `types`.
fn append_shardings(types: Vec<String>, shardings: &[Option<String>]) -> Vec<String> {
    let with = |(i, ty): (usize, String)| match shardings.get(i) {
        Some(Some(sharding)) => format!("{ty} {{sdy.sharding = {}}}", sharding_attribute(sharding)),
        _ => ty,
    };
    types.into_iter().enumerate().map(with).collect()
}

fn sharding_attribute(sharding: &str) -> String {
    format!("#sdy.sharding<@mesh, {sharding}>")
}

/// Writes the operations of a body, indented to this depth.
fn write_lines(text: &mut String, all: &[HloLine], depth: usize) {
    for line in all {
        text.extend(std::iter::repeat_n("  ", depth + 1));
        match line {
            HloLine::Operation(op) => write_operation(text, op, depth),
            HloLine::Comment(label, value) => {
                write!(text, "// debug_print {label:?} {}", value_name(value)).expect("a string");
            }
        }
        text.push('\n');
    }
}

/// Writes an operation on one line, with its regions over several lines.
fn write_operation(text: &mut String, op: &HloOperation, depth: usize) {
    match &op.results[..] {
        [] => {}
        [x] => *text += &format!("{} = ", value_name(x)),
        all => *text += &format!("%{}:{} = ", all[0].id, all.len()),
    }
    let dialect = if op.name.contains('.') { "" } else { "stablehlo." };
    let names: Vec<String> = op.args.iter().map(value_name).collect();
    write!(text, "\"{dialect}{}\"({})", op.name, names.join(", ")).expect("a string");
    for (i, own) in op.regions.iter().enumerate() {
        *text += if i == 0 { " (" } else { ", " };
        write_region(text, own, depth);
    }
    if !op.regions.is_empty() {
        text.push(')');
    }
    let attributes = attribute_texts(op);
    if !attributes.is_empty() {
        write!(text, " {{{}}}", attributes.join(", ")).expect("a string");
    }
    let takes: Vec<String> = op.args.iter().map(|x| tensor_type_text(&x.ty)).collect();
    let gives: Vec<String> = op.results.iter().map(|x| tensor_type_text(&x.ty)).collect();
    let gives = if let [one] = &gives[..] { one.clone() } else { format!("({})", gives.join(", ")) };
    write!(text, " : ({}) -> {gives}", takes.join(", ")).expect("a string");
    if let Some(label) = op.label {
        write!(text, " loc(\"v{label}\")").expect("a string");
    }
}

/// Writes a region between braces, indented to this depth.
fn write_region(text: &mut String, region: &HloRegion, depth: usize) {
    let margin = "  ".repeat(depth + 1);
    *text += "{\n";
    if !region.params.is_empty() {
        let typed = |x: &HloValue| format!("{}: {}", value_name(x), tensor_type_text(&x.ty));
        let params: Vec<String> = region.params.iter().map(typed).collect();
        writeln!(text, "{margin}^bb0({}):", params.join(", ")).expect("a string");
    }
    write_lines(text, &region.lines, depth + 1);
    write!(text, "{margin}}}").expect("a string");
}

/// Returns the name of a value: `%3`, or `%3#1` for one of several results.
fn value_name(x: &HloValue) -> String {
    x.part.map_or_else(|| format!("%{}", x.id), |part| format!("%{}#{part}", x.id))
}

/// Returns the text of an array's type: `tensor<2x3xf32>`.
fn tensor_type_text(ty: &Type) -> String {
    let extents: String = ty.shape.iter().map(|n| format!("{n}x")).collect();
    format!("tensor<{extents}{}>", stablehlo_and_hlo_type_names(ty.dtype)[0])
}

/// Returns the text of a number: floats in decimal, infinities and NaNs as the hexadecimal text of their bits.
fn number_text(x: Literal) -> String {
    decimal_text(x).unwrap_or_else(|| format!("0x{:0width$X}", x.bits, width = 2 * x.dtype.bytes()))
}

/// Returns the text of an attribute that is a list: `name = array<i64: 1, 2>`.
fn list_attribute<T: TryInto<i64> + Copy>(name: &str, items: &[T]) -> String {
    let all: Vec<String> = items.iter().map(|&n| n.try_into().map_or(0, |n| n).to_string()).collect();
    format!("{name} = array<i64{}{}>", if all.is_empty() { "" } else { ": " }, all.join(", "))
}

/// Returns the text of an attribute that is a number: `name = 1 : i64`.
fn integer_attribute(name: &str, n: usize) -> String {
    format!("{name} = {n} : i64")
}

/// Returns the texts of an operation's attributes.
fn attribute_texts(op: &HloOperation) -> Vec<String> {
    match &op.detail {
        HloAttributes::None => vec![],
        HloAttributes::Constant(x) => {
            vec![format!("value = dense<{}> : {}", number_text(*x), tensor_type_text(&op.results[0].ty))]
        }
        HloAttributes::I32Elements(all) => {
            vec![format!("value = dense<{all:?}> : {}", tensor_type_text(&op.results[0].ty))]
        }
        HloAttributes::Axis(axis) => {
            vec![integer_attribute(if op.name == "iota" { "iota_dimension" } else { "dimension" }, *axis)]
        }
        HloAttributes::Axes(axes) => vec![list_attribute(
            match op.name {
                "broadcast_in_dim" => "broadcast_dimensions",
                "transpose" => "permutation",
                _ => "dimensions",
            },
            axes,
        )],
        HloAttributes::Pad { low, high } => vec![
            list_attribute("edge_padding_high", high),
            list_attribute("edge_padding_low", low),
            list_attribute("interior_padding", &vec![0i64; low.len()]),
        ],
        HloAttributes::Slice { start, limit, stride } => {
            vec![
                list_attribute("limit_indices", limit),
                list_attribute("start_indices", start),
                list_attribute("strides", stride),
            ]
        }
        HloAttributes::Sizes(sizes) => vec![list_attribute("slice_sizes", sizes)],
        HloAttributes::Compare { kind, direction } => vec![
            format!("compare_type = #stablehlo<comparison_type {kind}>"),
            format!("comparison_direction = #stablehlo<comparison_direction {direction}>"),
        ],
        HloAttributes::Dot(op) => vec![dot_attribute(op)],
        HloAttributes::Conv(op) => convolution_attributes(op),
        HloAttributes::Gather(op) => gather_attributes(op),
        HloAttributes::Scatter(op) => vec![scatter_attribute(op)],
        HloAttributes::Windows(op) => vec![
            window_attribute("base_dilations", &op.windows, |w| w.dilation),
            padding_attribute(&op.windows),
            window_attribute("window_dilations", &op.windows, |w| w.spacing),
            list_attribute("window_dimensions", &op.size),
            window_attribute("window_strides", &op.windows, |w| w.stride),
        ],
        HloAttributes::Sort(axis) => vec![integer_attribute("dimension", *axis), "is_stable = true".into()],
        HloAttributes::Call(name) => vec![format!("callee = @{name}")],
        HloAttributes::Sharding(sharding) => vec![format!("sharding = {}", sharding_attribute(sharding))],
        HloAttributes::ShardingGroup(group) => vec![format!("group_id = {group} : i64")],
        HloAttributes::BarrierFlow(number) => vec![format!("allowed_direction = {number} : i32")],
        HloAttributes::DeviceGroups { groups, parts, channel } => collective_attributes(groups, *parts, *channel),
        HloAttributes::DevicePairs { pairs, channel } => {
            // MLIR infers a rank of 1 from an empty list.
            let all = if pairs.is_empty() { String::new() } else { format!("{pairs:?}") };
            vec![
                channel_handle(*channel),
                format!("source_target_pairs = dense<{all}> : tensor<{}x2xi64>", pairs.len()),
            ]
        }
        HloAttributes::ManualAxes { takes, gives, axes } => {
            let all = |all: &[String]| all.iter().map(|text| format!("<@mesh, {text}>")).collect::<Vec<_>>().join(", ");
            vec![
                format!("in_shardings = #sdy.sharding_per_value<[{}]>", all(takes)),
                format!("manual_axes = #sdy<manual_axes{{{axes}}}>"),
                format!("out_shardings = #sdy.sharding_per_value<[{}]>", all(gives)),
            ]
        }
        HloAttributes::Kernel { name, config, rule } => {
            let mut all = vec![
                "api_version = 2 : i32".to_string(),
                format!("backend_config = \"{}\"", escaped_string_content(config, hex_escape)),
                format!("call_target_name = \"pallas.{}\"", escaped_string_content(name, hex_escape)),
            ];
            all.extend(rule.iter().map(|rule| format!("sdy.sharding_rule = #sdy.op_sharding_rule<{rule}, custom>")));
            all
        }
    }
}

fn channel_handle(channel: usize) -> String {
    format!("channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>")
}

/// Returns the texts of the attributes of a collective with these groups of device numbers and this channel;
/// `exchanged_data` decides which axes and flags are among them.
fn collective_attributes(groups: &[Vec<usize>], exchanged_data: ExchangedData, channel: usize) -> Vec<String> {
    let (count, members) = (groups.len(), groups[0].len());
    let mut all =
        vec![channel_handle(channel), format!("replica_groups = dense<{groups:?}> : tensor<{count}x{members}xi64>")];
    match exchanged_data {
        ExchangedData::Combined | ExchangedData::FromFirst => {}
        ExchangedData::Gathered => all.push(integer_attribute("all_gather_dim", 0)),
        ExchangedData::Scattered => all.push(integer_attribute("scatter_dimension", 0)),
        ExchangedData::Exchanged => all.extend([
            integer_attribute("concat_dimension", 0),
            integer_attribute("split_count", members),
            integer_attribute("split_dimension", 0),
        ]),
    }
    if exchanged_data.needs_device_ids() {
        all.push("use_global_device_ids".into());
    }
    all
}

fn dot_attribute(op: &Dot) -> String {
    let side = |pairs: &[(usize, usize)]| -> (Vec<usize>, Vec<usize>) { pairs.iter().copied().unzip() };
    let ((batch_a, batch_b), (inner_a, inner_b)) = (side(&op.batch), side(&op.contract));
    format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {batch_a:?}, rhs_batching_dimensions = \
         {batch_b:?}, lhs_contracting_dimensions = {inner_a:?}, rhs_contracting_dimensions = {inner_b:?}>"
    )
}

/// Returns the attributes of a convolution.
fn convolution_attributes(op: &Conv) -> Vec<String> {
    let [lhs, rhs, out] = super::structural::dimension_labels(op).map(|letters| letters.join(", "));
    vec![
        integer_attribute("batch_group_count", op.batch_groups),
        format!("dimension_numbers = #stablehlo.conv<[{lhs}]x[{rhs}]->[{out}]>"),
        integer_attribute("feature_group_count", op.groups),
        window_attribute("lhs_dilation", &op.windows, |w| w.dilation),
        padding_attribute(&op.windows),
        window_attribute("rhs_dilation", &op.windows, |w| w.spacing),
        window_attribute("window_strides", &op.windows, |w| w.stride),
    ]
}

fn window_attribute(name: &str, windows: &[WindowDim], of: fn(&WindowDim) -> i64) -> String {
    list_attribute(name, &windows.iter().map(of).collect::<Vec<_>>())
}

/// Returns the attribute for the padding of windows: `padding = dense<[[1, 1]]> : tensor<1x2xi64>`.
fn padding_attribute(windows: &[WindowDim]) -> String {
    let each: Vec<String> = windows.iter().map(|w| format!("[{}, {}]", w.low, w.high)).collect();
    let numbers = if each.is_empty() { String::new() } else { format!("[{}]", each.join(", ")) };
    format!("padding = dense<{numbers}> : tensor<{}x2xi64>", each.len())
}

/// Returns the attributes of a gather.
fn gather_attributes(op: &Gather) -> Vec<String> {
    vec![
        format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = {:?}, collapsed_slice_dims = {:?}, \
             operand_batching_dims = {:?}, start_indices_batching_dims = {:?}, start_index_map = {:?}, \
             index_vector_dim = {}>",
            op.offset_dims,
            op.collapsed_slice_dims,
            op.operand_batching_dims,
            op.start_indices_batching_dims,
            op.start_index_map,
            op.index_vector_dim
        ),
        list_attribute("slice_sizes", &op.slice_sizes.iter().map(super::structural::dim_extent).collect::<Vec<i64>>()),
    ]
}

/// Returns the attribute of a scatter.
fn scatter_attribute(op: &Scatter) -> String {
    format!(
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {:?}, inserted_window_dims = {:?}, \
         input_batching_dims = {:?}, scatter_indices_batching_dims = {:?}, scatter_dims_to_operand_dims = {:?}, \
         index_vector_dim = {}>",
        op.update_window_dims,
        op.inserted_window_dims,
        op.input_batching_dims,
        op.scatter_indices_batching_dims,
        op.scatter_dims_to_operand_dims,
        op.index_vector_dim
    )
}

/// Returns the hexadecimal escape sequence of a byte in a string.
fn hex_escape(b: u8) -> String {
    format!("\\{b:02X}")
}
