//! Printer of HLO, XLA's own text. HLO's computations read nothing from outside, so the values that a body of a loop or
//! a branch reads there are part of the tuple that it takes; an operation with several results returns a tuple.
use super::operation::{
    ExchangedData, HloAttributes, HloFunction, HloLine, HloOperation, HloRegion, HloValue, decimal_text,
    escaped_string_content, stablehlo_and_hlo_type_names,
};
use super::structural::{dim_extent, dimension_labels};
use pallas_ir::structural::{Conv, Gather, Scatter, WindowDim};
use pallas_ir::{Literal, Type};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Returns the text of a module. Computations are written before those that call them.
pub(super) fn module_text(name: &str, functions: &[HloFunction]) -> String {
    let mut hlo = HloPrinter::default();
    // `main` comes first, and functions after those that they call.
    let (main, called) = functions.split_at(1);
    for function in called.iter().chain(main) {
        let head = if function.is_public { format!("ENTRY %{}", function.name) } else { format!("%{}", function.name) };
        hlo.write_computation(&head, &function.body, None, false);
    }
    format!("HloModule {name}\n\n{}", hlo.done.join("\n"))
}

/// A printer of a module as HLO text, with the computations written so far.
#[derive(Default)]
struct HloPrinter {
    /// Texts of the computations so far.
    done: Vec<String>,
    /// Number of names for computations, tuples and the like so far.
    next: usize,
}

/// Instructions of a computation, each as its name and its text; comments have no name.
type InstructionTexts = Vec<(String, String)>;

impl HloPrinter {
    /// Returns a name that no other value has, with a prefix: XLA refuses names of types, such as `c64`.
    fn fresh_name(&mut self, prefix: &str) -> String {
        self.next += 1;
        format!("{prefix}{}", self.next - 1)
    }

    /// Writes a region as a computation. With `captured` it takes one tuple, of these values and the region's
    /// parameters; with `returns_captured` it also returns the captured values, before its results.
    fn write_computation(
        &mut self,
        head: &str,
        region: &HloRegion,
        captured: Option<&[HloValue]>,
        returns_captured: bool,
    ) {
        let mut all: InstructionTexts = vec![];
        let takes: Vec<String>;
        match captured {
            None => {
                takes = region
                    .params
                    .iter()
                    .map(|x| format!("{}: {}", &value_name(x)[1..], array_type_text(&x.ty)))
                    .collect();
                let param = |(i, x)| (value_name(x), format!("{} parameter({i})", array_type_text(&x.ty)));
                all.extend(region.params.iter().enumerate().map(param));
            }
            Some(captured) => {
                let parts: Vec<&HloValue> = captured.iter().chain(&region.params).collect();
                takes = vec![format!("p: {}", tuple_type_text(&parts))];
                all.push(("%p".into(), format!("{} parameter(0)", tuple_type_text(&parts))));
                all.extend(parts.iter().enumerate().map(|(i, x)| tuple_element_instruction(x, "%p", i)));
            }
        }
        let mut returned: Vec<HloValue> = vec![];
        for line in &region.lines {
            match line {
                HloLine::Comment(label, value) => {
                    all.push((String::new(), format!("// debug_print {label:?} {}", value_name(value))));
                }
                HloLine::Operation(op) if matches!(op.name, "return" | "func.return") => returned = op.args.clone(),
                HloLine::Operation(op) => self.append_operation(op, &mut all),
            }
        }
        if returns_captured {
            returned.splice(0..0, captured.unwrap_or_default().iter().cloned());
        }
        let (root, gives) = match &returned[..] {
            [x] if !returns_captured => (value_name(x), array_type_text(&x.ty)),
            several => {
                let parts: Vec<&HloValue> = several.iter().collect();
                (self.append_tuple(&parts, &mut all), tuple_type_text(&parts))
            }
        };
        let mut text = format!("{head} ({}) -> {gives} {{\n", takes.join(", "));
        for (own, what) in all {
            match (&own[..], own == root) {
                ("", _) => writeln!(text, "  {what}"),
                (own, true) => writeln!(text, "  ROOT {own} = {what}"),
                (own, false) => writeln!(text, "  {own} = {what}"),
            }
            .expect("a string");
        }
        self.done.push(text + "}\n");
    }

    /// Writes a region as a computation with a new name, and returns the name; `captured` and `returns_captured` are
    /// those of [`HloPrinter::write_computation`].
    fn write_region(&mut self, region: &HloRegion, captured: Option<&[HloValue]>, returns_captured: bool) -> String {
        let own = format!("%{}", self.fresh_name("region"));
        self.write_computation(&own, region, captured, returns_captured);
        own
    }

    /// Appends the instructions for an operation.
    fn append_operation(&mut self, op: &HloOperation, instructions: &mut InstructionTexts) {
        let args: Vec<&HloValue> = op.args.iter().collect();
        match (op.name, &op.detail) {
            ("while", _) => self.append_while(op, instructions),
            ("case", _) => self.append_conditional(op, instructions),
            ("constant", HloAttributes::Constant(x)) => self.append_constant(op, *x, instructions),
            ("broadcast_in_dim", HloAttributes::Axes(axes)) => self.append_broadcast(op, axes, instructions),
            ("constant", HloAttributes::I32Elements(row)) => {
                append_instruction(op, &format!("constant({})", braced_list(row)), instructions);
            }
            // HLO has no pads of no axis.
            ("pad", HloAttributes::Pad { low, .. }) if low.is_empty() => {
                append_instruction(op, &format!("copy({})", value_name(args[0])), instructions);
            }
            _ => {
                let mut text = format!("{}({})", hlo_opcode(op.name), join_value_names(&args));
                for attribute in attribute_texts(op) {
                    write!(text, ", {attribute}").expect("a string");
                }
                for region in &op.regions {
                    debug_assert!(free_values(region).is_empty());
                    write!(text, ", to_apply={}", self.write_region(region, None, false)).expect("a string");
                }
                append_instruction(op, &text, instructions);
            }
        }
    }

    /// Appends a tuple of these values; returns its name.
    fn append_tuple(&mut self, parts: &[&HloValue], instructions: &mut InstructionTexts) -> String {
        let own = format!("%{}", self.fresh_name("tuple"));
        instructions.push((own.clone(), format!("{} tuple({})", tuple_type_text(parts), join_value_names(parts))));
        own
    }

    /// Appends a loop, whose tuple has the values that its regions capture and the carried values.
    fn append_while(&mut self, op: &HloOperation, instructions: &mut InstructionTexts) {
        let captured: Vec<HloValue> =
            op.regions.iter().flat_map(free_values).collect::<BTreeMap<_, _>>().into_values().collect();
        let condition = self.write_region(&op.regions[0], Some(&captured), false);
        let body = self.write_region(&op.regions[1], Some(&captured), true);
        let parts: Vec<&HloValue> = captured.iter().chain(&op.args).collect();
        let (own, given) = (format!("%{}", self.fresh_name("loop")), self.append_tuple(&parts, instructions));
        instructions.push((
            own.clone(),
            format!("{} while({given}), condition={condition}, body={body}", tuple_type_text(&parts)),
        ));
        instructions
            .extend(op.results.iter().enumerate().map(|(i, x)| tuple_element_instruction(x, &own, captured.len() + i)));
    }

    /// Appends a branch, each of whose computations takes a tuple of the values that it captures.
    fn append_conditional(&mut self, op: &HloOperation, instructions: &mut InstructionTexts) {
        let (mut given, mut computations) = (vec![value_name(&op.args[0])], vec![]);
        for region in &op.regions {
            let captured: Vec<HloValue> = free_values(region).into_values().collect();
            computations.push(self.write_region(region, Some(&captured), false));
            given.push(self.append_tuple(&captured.iter().collect::<Vec<_>>(), instructions));
        }
        let (given, computations) = (given.join(", "), computations.join(", "));
        append_instruction(op, &format!("conditional({given}), branch_computations={{{computations}}}"), instructions);
    }

    /// Appends a constant: a scalar, or a broadcast of one.
    fn append_constant(&mut self, op: &HloOperation, x: Literal, instructions: &mut InstructionTexts) {
        let number = format!("constant({})", number_text(x));
        if op.results[0].ty.is_scalar() {
            return append_instruction(op, &number, instructions);
        }
        let own = format!("%{}", self.fresh_name("number"));
        instructions.push((own.clone(), format!("{} {number}", array_type_text(&Type::scalar(x.dtype)))));
        append_instruction(op, &format!("broadcast({own}), dimensions={{}}"), instructions);
    }

    /// Appends a broadcast. HLO cannot repeat axes of one element, so these are dropped first, and cannot permute axes,
    /// so they are transposed first.
    fn append_broadcast(&mut self, op: &HloOperation, axes: &[usize], instructions: &mut InstructionTexts) {
        let (x, to) = (&op.args[0], &op.results[0].ty.shape);
        let mut kept: Vec<(usize, usize)> =
            axes.iter().copied().zip(0..).filter(|&(axis, own)| x.ty.shape[own] == to[axis]).collect();
        let shape = |kept: &[(usize, usize)]| kept.iter().map(|&(_, own)| x.ty.shape[own]).collect::<Vec<usize>>();
        let mut from = value_name(x);
        let mut with = |text: String, shape: Vec<usize>, own: &mut Self| {
            let made = format!("%{}", own.fresh_name("moved"));
            instructions.push((made.clone(), format!("{} {text}", array_type_text(&Type::new(x.ty.dtype, shape)))));
            made
        };
        if kept.len() < axes.len() {
            from = with(format!("reshape({from})"), shape(&kept), self);
        }
        if !kept.is_sorted() {
            let before = kept.clone();
            kept.sort_unstable();
            let order: Vec<usize> =
                kept.iter().map(|k| before.iter().position(|b| b == k).expect("the same pairs")).collect();
            from = with(format!("transpose({from}), dimensions={}", braced_list(&order)), shape(&kept), self);
        }
        let axes: Vec<usize> = kept.into_iter().map(|(axis, _)| axis).collect();
        append_instruction(op, &format!("broadcast({from}), dimensions={}", braced_list(&axes)), instructions);
    }
}

/// Appends an operation with this text; several results become parts of its tuple.
fn append_instruction(op: &HloOperation, text: &str, instructions: &mut InstructionTexts) {
    match &op.results[..] {
        [x] => instructions.push((value_name(x), format!("{} {text}", array_type_text(&x.ty)))),
        several => {
            let parts: Vec<&HloValue> = several.iter().collect();
            let own = several.first().map_or_else(|| "%nothing".into(), |x| format!("%v{}", x.id));
            instructions.push((own.clone(), format!("{} {text}", tuple_type_text(&parts))));
            instructions.extend(several.iter().enumerate().map(|(i, x)| tuple_element_instruction(x, &own, i)));
        }
    }
}

/// Returns the instruction that defines a value as the part with index `i` of a tuple.
fn tuple_element_instruction(x: &HloValue, tuple: &str, i: usize) -> (String, String) {
    (value_name(x), format!("{} get-tuple-element({tuple}), index={i}", array_type_text(&x.ty)))
}

/// Returns the values that a region reads from outside, by their numbers.
fn free_values(region: &HloRegion) -> BTreeMap<(usize, Option<usize>), HloValue> {
    let key = |x: &HloValue| (x.id, x.part);
    let mut own: Vec<(usize, Option<usize>)> = region.params.iter().map(key).collect();
    let mut found = BTreeMap::new();
    for line in &region.lines {
        match line {
            HloLine::Comment(_, x) => drop(found.insert(key(x), x.clone())),
            HloLine::Operation(op) => {
                found.extend(op.args.iter().map(|x| (key(x), x.clone())));
                op.regions.iter().for_each(|region| found.extend(free_values(region)));
                own.extend(op.results.iter().map(key));
            }
        }
    }
    own.iter().for_each(|key| drop(found.remove(key)));
    found
}

/// Returns the name of a value: `%v3`, or `%v3.1` for one of several results. HLO's names begin with a letter.
fn value_name(x: &HloValue) -> String {
    x.part.map_or_else(|| format!("%v{}", x.id), |part| format!("%v{}.{part}", x.id))
}

fn join_value_names(values: &[&HloValue]) -> String {
    values.iter().map(|x| value_name(x)).collect::<Vec<_>>().join(", ")
}

/// Returns the text of a type: `f32[2,3]`.
fn array_type_text(ty: &Type) -> String {
    let extents: Vec<String> = ty.shape.iter().map(usize::to_string).collect();
    format!("{}[{}]", stablehlo_and_hlo_type_names(ty.dtype)[1], extents.join(","))
}

/// Returns the type of a tuple of these values: `(f32[2,3], s32[])`.
fn tuple_type_text(parts: &[&HloValue]) -> String {
    format!("({})", parts.iter().map(|x| array_type_text(&x.ty)).collect::<Vec<_>>().join(", "))
}

fn number_text(x: Literal) -> String {
    decimal_text(x).unwrap_or_else(|| match x.as_f64() {
        x if x.is_nan() => "nan".into(),
        x if x > 0.0 => "inf".into(),
        _ => "-inf".into(),
    })
}

/// Returns the text of a list: `{1, 2}`.
fn braced_list<T: ToString>(items: &[T]) -> String {
    format!("{{{}}}", items.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
}

/// Returns HLO's name of the operation that StableHLO calls `name`.
fn hlo_opcode(name: &str) -> String {
    match name {
        "dot_general" => "dot".into(),
        "optimization_barrier" => "opt-barrier".into(),
        "chlo.erf" => "erf".into(),
        "func.call" => "call".into(),
        other => other.replace('_', "-"),
    }
}

/// Returns the texts of an operation's attributes.
fn attribute_texts(op: &HloOperation) -> Vec<String> {
    match &op.detail {
        HloAttributes::None | HloAttributes::Constant(_) | HloAttributes::I32Elements(_) => vec![],
        // HLO is written without sharding annotations, and bodies of `shard_map` only occur in texts with shardings.
        HloAttributes::Sharding(_)
        | HloAttributes::ShardingGroup(_)
        | HloAttributes::BarrierFlow(_)
        | HloAttributes::ManualAxes { .. } => vec![],
        HloAttributes::DeviceGroups { groups, parts, channel } => {
            let groups: Vec<String> = groups.iter().map(|group| braced_list(group)).collect();
            let mut all = vec![format!("channel_id={channel}, replica_groups={}", braced_list(&groups))];
            let is_along = !matches!(parts, ExchangedData::Combined | ExchangedData::FromFirst);
            all.extend(is_along.then(|| "dimensions={0}".into()));
            all.extend(parts.needs_device_ids().then(|| "use_global_device_ids=true".into()));
            all
        }
        HloAttributes::DevicePairs { pairs, channel } => {
            let pairs: Vec<String> = pairs.iter().map(|pair| braced_list(pair)).collect();
            vec![format!("channel_id={channel}, source_target_pairs={}", braced_list(&pairs))]
        }
        HloAttributes::Axis(axis) if op.name == "iota" => vec![format!("iota_dimension={axis}")],
        HloAttributes::Axis(axis) => vec![format!("dimensions={{{axis}}}")],
        HloAttributes::Axes(axes) => vec![format!("dimensions={}", braced_list(axes))],
        HloAttributes::Pad { low, high } => {
            let each: Vec<String> = low.iter().zip(high).map(|(low, high)| format!("{low}_{high}_0")).collect();
            vec![format!("padding={}", each.join("x"))]
        }
        HloAttributes::Slice { start, limit, stride } => {
            let range = |(i, start)| format!("[{start}:{}:{}]", limit[i], stride[i]);
            vec![format!("slice={}", braced_list(&start.iter().enumerate().map(range).collect::<Vec<String>>()))]
        }
        HloAttributes::Sizes(sizes) => vec![format!("dynamic_slice_sizes={}", braced_list(sizes))],
        HloAttributes::Compare { kind, direction } => {
            let kind = (*kind == "TOTALORDER").then(|| format!("type={kind}"));
            [format!("direction={direction}")].into_iter().chain(kind).collect()
        }
        HloAttributes::Dot(dot) => {
            let side = |pairs: &[(usize, usize)]| -> (Vec<usize>, Vec<usize>) { pairs.iter().copied().unzip() };
            let ((batch_a, batch_b), (inner_a, inner_b)) = (side(&dot.batch), side(&dot.contract));
            vec![
                format!("lhs_batch_dims={}, lhs_contracting_dims={}", braced_list(&batch_a), braced_list(&inner_a)),
                format!("rhs_batch_dims={}, rhs_contracting_dims={}", braced_list(&batch_b), braced_list(&inner_b)),
            ]
        }
        HloAttributes::Conv(conv) => convolution_attributes(conv, &op.args[1].ty.shape),
        HloAttributes::Gather(op) => vec![gather_attributes(op)],
        HloAttributes::Scatter(op) => vec![scatter_attributes(op)],
        HloAttributes::Windows(op) => window_attribute(&op.size, &op.windows).into_iter().collect(),
        HloAttributes::Sort(axis) => vec![format!("dimensions={{{axis}}}, is_stable=true")],
        HloAttributes::Call(name) => vec![format!("to_apply=%{name}")],
        HloAttributes::Kernel { name, config, .. } => vec![
            format!("custom_call_target=\"pallas.{}\"", escaped_string_content(name, octal_escape)),
            "api_version=API_VERSION_STATUS_RETURNING".into(),
            format!("backend_config=\"{}\"", escaped_string_content(config, octal_escape)),
        ],
    }
}

/// Returns the text of windows, `window={size=3x3 stride=1x1 pad=0_0x1_1 lhs_dilate=1x1 rhs_dilate=1x1}`; `None`
/// without axes.
fn window_attribute(sizes: &[i64], windows: &[WindowDim]) -> Option<String> {
    let each = |of: &dyn Fn(&WindowDim) -> String| windows.iter().map(of).collect::<Vec<_>>().join("x");
    let sizes = sizes.iter().map(i64::to_string).collect::<Vec<_>>().join("x");
    (!windows.is_empty()).then(|| {
        format!(
            "window={{size={sizes} stride={} pad={} lhs_dilate={} rhs_dilate={}}}",
            each(&|w| w.stride.to_string()),
            each(&|w| format!("{}_{}", w.low, w.high)),
            each(&|w| w.dilation.to_string()),
            each(&|w| w.spacing.to_string())
        )
    })
}

fn convolution_attributes(op: &Conv, rhs_shape: &[usize]) -> Vec<String> {
    let sizes: Vec<i64> = op.rhs[2..].iter().map(|&axis| rhs_shape[axis] as i64).collect();
    let [a, b, out] = dimension_labels(op).map(|letters| letters.concat());
    let mut all: Vec<String> = window_attribute(&sizes, &op.windows).into_iter().collect();
    all.push(format!("dim_labels={a}_{b}->{out}"));
    all.push(format!("feature_group_count={}, batch_group_count={}", op.groups, op.batch_groups));
    all
}

/// Returns the attributes of a gather.
fn gather_attributes(op: &Gather) -> String {
    format!(
        "offset_dims={}, collapsed_slice_dims={}, start_index_map={}, operand_batching_dims={}, \
         start_indices_batching_dims={}, index_vector_dim={}, slice_sizes={}",
        braced_list(&op.offset_dims),
        braced_list(&op.collapsed_slice_dims),
        braced_list(&op.start_index_map),
        braced_list(&op.operand_batching_dims),
        braced_list(&op.start_indices_batching_dims),
        op.index_vector_dim,
        braced_list(&op.slice_sizes.iter().map(dim_extent).collect::<Vec<i64>>())
    )
}

/// Returns the attributes of a scatter.
fn scatter_attributes(op: &Scatter) -> String {
    format!(
        "update_window_dims={}, inserted_window_dims={}, scatter_dims_to_operand_dims={}, input_batching_dims={}, \
         scatter_indices_batching_dims={}, index_vector_dim={}",
        braced_list(&op.update_window_dims),
        braced_list(&op.inserted_window_dims),
        braced_list(&op.scatter_dims_to_operand_dims),
        braced_list(&op.input_batching_dims),
        braced_list(&op.scatter_indices_batching_dims),
        op.index_vector_dim
    )
}

/// Returns the octal escape sequence of a byte in a string.
fn octal_escape(b: u8) -> String {
    format!("\\{b:03o}")
}
