//! Writes graphs as text in the style of JAX 0.12's jaxprs.
#![warn(clippy::wildcard_enum_match_arm)]
mod indexed;
mod python;
mod windows;

use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::axes_text;
use pallas_ir::structural::{ArgReduce, Broadcast, Cumulative, Dot, Iota, Pad, Reduce, Slice, Sort};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use python::{numpy_dtype_name, tuple_text, typed_literal_text};

/// Maximum number of columns of a printed line.
const MAX_LINE_COLUMNS: usize = 80;

impl Graph {
    /// Prints the graph in the style of JAX 0.12: primitives have JAX's names, parameters are in brackets, and literals
    /// stand where they are used. The last `constant_count` parameters are printed before the semicolon, as values that
    /// a function captured.
    ///
    /// ```
    /// use pallas_graph::Graph;
    /// use pallas_ir::{DType, ScalarOp, Type};
    /// let mut graph = Graph::default();
    /// let x = graph.param(Type::new(DType::F32, [2]));
    /// let y = graph.push(ScalarOp::Exp, &[x])?;
    /// graph.results.push(y);
    /// assert_eq!(graph.to_jaxpr(0), "{ lambda ; a:f32[2]. let b:f32[2] = exp a in (b,) }");
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn to_jaxpr(&self, constant_count: usize) -> String {
        JaxprPrinter::new(self).print_jaxpr(constant_count)
    }
}

/// An equation in the form in which JAX prints it.
struct PrintedEquation {
    /// The variables that it defines, with their types: `b:f32[2]`.
    binder: String,
    name: String,
    params: Vec<String>,
    args: Vec<String>,
}

/// The state of printing one graph.
struct JaxprPrinter<'g> {
    graph: &'g Graph,
    /// For each variable, the number that all its elements are known to be.
    literals: Vec<Option<Literal>>,
    /// For each variable, true if a printed equation reads it or it is a result.
    is_read: Vec<bool>,
    /// For each variable, its name, once it has one.
    names: Vec<Option<String>>,
    /// Number of names given so far.
    next: usize,
}

impl<'g> JaxprPrinter<'g> {
    /// Finds the variables that are printed as literals, and those that are read, which need names.
    fn new(graph: &'g Graph) -> JaxprPrinter<'g> {
        let n = graph.types.len();
        let mut printer =
            JaxprPrinter { graph, literals: vec![None; n], is_read: vec![false; n], names: vec![None; n], next: 0 };
        for e in &graph.equations {
            let of_broadcast = || printer.literals[e.args[0].index()];
            let is_broadcast = matches!(e.op, Op::Structural(StructuralOp::Broadcast(_)));
            let found = if let Op::Literal(x) = e.op { Some(x) } else { is_broadcast.then(of_broadcast).flatten() };
            e.results.iter().for_each(|r| printer.literals[r.index()] = found);
        }
        graph.results.iter().for_each(|r| printer.is_read[r.index()] = true);
        for e in graph.equations.iter().rev() {
            for (i, arg) in e.args.iter().enumerate() {
                if printer.inlined_literal(e, i).is_none() {
                    printer.is_read[arg.index()] = true;
                }
            }
        }
        printer
    }

    fn is_scalar(&self, v: Var) -> bool {
        self.graph.ty(v).is_scalar()
    }

    /// Returns the literal printed in place of operand number `operand`. In elementwise operations it may stand beside
    /// an array of any shape, except in a selection, which takes arrays of one shape.
    fn inlined_literal(&self, e: &Equation, operand: usize) -> Option<Literal> {
        let own = |v: Var| self.literals[v.index()];
        let stretches = matches!(&e.op, Op::Scalar(op) if *op != ScalarOp::Select);
        let has_array = e.args.iter().any(|&v| own(v).is_none());
        own(e.args[operand]).filter(|_| self.is_scalar(e.args[operand]) || stretches && has_array)
    }

    /// Returns the name of a variable: a, b, .. z, ba, bb and so on, in the order in which variables are printed.
    fn var_name(&mut self, v: Var) -> String {
        if self.names[v.index()].is_none() {
            self.names[v.index()] = Some(self.next_name());
        }
        self.names[v.index()].clone().expect("it was made")
    }

    /// Returns the next unused name.
    fn next_name(&mut self) -> String {
        let (mut n, mut letters) = (self.next, vec![]);
        self.next += 1;
        loop {
            letters.push(char::from(b'a' + (n % 26) as u8));
            n /= 26;
            if n == 0 {
                return letters.into_iter().rev().collect();
            }
        }
    }

    fn binder(&mut self, v: Var) -> String {
        format!("{}:{}", self.var_name(v), self.graph.ty(v))
    }

    /// Returns the printed lines of an equation: two for a reduction that keeps its axes, none for a literal.
    fn printed_equations(&mut self, e: &Equation) -> Vec<PrintedEquation> {
        let is_unread_splat = e.results.iter().any(|r| self.literals[r.index()].is_some() && !self.is_read[r.index()]);
        if matches!(e.op, Op::Literal(_)) || is_unread_splat {
            return vec![];
        }
        let operand = |i: usize| match self.inlined_literal(e, i) {
            Some(x) => typed_literal_text(x),
            None => self.var_name(e.args[i]),
        };
        let mut args: Vec<String> = (0..e.args.len()).map(operand).collect();
        if let Some((dropping, back)) = self.split_keepdims_reduction(e) {
            // The type of the reduction before its axes are added again.
            let name = self.next_name();
            let (primitive, params) = self.primitive_and_params(&dropping, &mut args);
            let shape: Vec<usize> = back.iter().map(|&axis| self.graph.ty(e.result()).shape[axis]).collect();
            let ty = Type::new(self.graph.ty(e.result()).dtype, shape);
            let first = PrintedEquation { binder: format!("{name}:{ty}"), name: primitive, params, args };
            let params = vec![format!("broadcast_dimensions={}", tuple_text(&back))];
            let binder = self.result_binder(e.result());
            return vec![first, PrintedEquation { binder, name: "broadcast_in_dim".into(), params, args: vec![name] }];
        }
        let (name, mut params) = self.primitive_and_params(e, &mut args);
        let binders: Vec<String> = e.results.iter().map(|&r| self.result_binder(r)).collect();
        params.iter_mut().for_each(|param| indexed::fill_name_placeholders(param, || self.next_name()));
        vec![PrintedEquation { binder: binders.join(" "), name, params, args }]
    }

    /// Returns the binder of a result, `var_name:type`; a result that nothing reads has `_` as its name.
    fn result_binder(&mut self, v: Var) -> String {
        if self.is_read[v.index()] { self.binder(v) } else { format!("_:{}", self.graph.ty(v)) }
    }

    /// Splits a reduction that keeps its axes with extent 1, as JAX has none: returns one that drops them, and the axes
    /// that are left. `None` for other equations.
    fn split_keepdims_reduction(&self, e: &Equation) -> Option<(Equation, Vec<usize>)> {
        let rank = self.graph.ty(*e.args.first()?).shape.len();
        let (op, axes) = if let Op::Structural(StructuralOp::Reduce(op @ Reduce { keep: true, axes, .. })) = &e.op {
            (StructuralOp::from(Reduce { keep: false, ..op.clone() }), axes.clone())
        } else if let Op::Structural(StructuralOp::ArgReduce(op @ ArgReduce { keep: true, axis, .. })) = &e.op {
            (StructuralOp::from(ArgReduce { keep: false, ..op.clone() }), vec![*axis])
        } else {
            return None;
        };
        if axes.is_empty() {
            return None;
        }
        let back = (0..rank).filter(|axis| !axes.contains(axis)).collect();
        Some((Equation { op: Op::Structural(op), ..e.clone() }, back))
    }

    /// Returns JAX's name of an operation and the texts of its parameters, and puts `args`, the texts of its operands,
    /// into JAX's order.
    fn primitive_and_params(&self, e: &Equation, args: &mut [String]) -> (String, Vec<String>) {
        let op = match &e.op {
            Op::Literal(_) => unreachable!("a literal has no line"),
            Op::Identity(op) => {
                let (name, param) = op.data().jaxpr_name_and_param();
                return (name.into(), param.into_iter().collect());
            }
            Op::Collective(op) => return (op.name().into(), vec![format!("axes=({})", axes_text(&op.axes, &op.mesh))]),
            Op::Dynamic(op) => {
                let param = op.size_of_read_window().map(|size| format!("slice_sizes={}", tuple_text(size)));
                return (op.name().into(), param.into_iter().collect());
            }
            Op::Call(call) => {
                let text = |graph: &Graph| graph.to_jaxpr(0).replace('\n', "\n      ");
                return (call.name().into(), call.text().jaxpr_params(&text));
            }
            Op::Scalar(op) => return scalar_primitive(*op, self.graph.ty(e.args[0]).dtype, args),
            Op::Structural(StructuralOp::Conv(op)) => return windows::conv_primitive(op, self.graph, e),
            Op::Structural(op) => op,
        };
        structural_primitive(op, self.graph, e).unwrap_or_else(|| non_jax_primitive(op))
    }

    /// Returns the whole text: on one line if it fits, otherwise with a line for each equation.
    fn print_jaxpr(mut self, constant_count: usize) -> String {
        let graph = self.graph;
        let (params, captured) = graph.params.split_at(graph.params.len().saturating_sub(constant_count));
        let captured: Vec<String> = captured.iter().map(|&v| self.binder(v)).collect();
        let params: Vec<String> = params.iter().map(|&v| self.binder(v)).collect();
        let lines: Vec<PrintedEquation> = graph.equations.iter().flat_map(|e| self.printed_equations(e)).collect();
        let result = |&v: &Var| match self.literals[v.index()].filter(|_| self.is_scalar(v)) {
            Some(x) => typed_literal_text(x),
            None => self.var_name(v),
        };
        let results: Vec<String> = graph.results.iter().map(result).collect();
        let end = if results.len() == 1 { ",)" } else { ")" };

        let flat: Vec<String> = lines.iter().map(PrintedEquation::one_line_text).collect();
        let whole = format!(
            "{{ lambda {}; {}. let {} in ({}{end}",
            captured.join(" "),
            params.join(" "),
            flat.join("; "),
            results.join(", ")
        );
        if whole.chars().count() <= MAX_LINE_COLUMNS {
            return whole + " }";
        }
        let mut page = ColumnWriter { text: "{ lambda ".into(), column: 9 };
        page.write_wrapped(&captured, "", 4);
        page.write("; ");
        page.write_wrapped(&params, "", 4);
        page.write(". let");
        for line in &lines {
            page.break_line(4);
            line.write(&mut page);
        }
        if lines.is_empty() {
            page.break_line(4);
        }
        page.break_line(2);
        page.write("in (");
        page.write_wrapped(&results, ",", 4);
        page.write(end);
        page.text + " }"
    }
}

impl PrintedEquation {
    fn binder_and_primitive(&self) -> String {
        format!("{} = {}", self.binder, self.name)
    }

    fn params_text(&self) -> String {
        if self.params.is_empty() { String::new() } else { format!("[{}]", self.params.join(" ")) }
    }

    fn one_line_text(&self) -> String {
        format!("{}{} {}", self.binder_and_primitive(), self.params_text(), self.args.join(" "))
    }

    /// Writes the line; parameters that do not fit on it get a line each.
    fn write(&self, page: &mut ColumnWriter) {
        page.write(&self.binder_and_primitive());
        let params = self.params_text();
        if page.column + params.chars().count() <= MAX_LINE_COLUMNS {
            page.write(&params);
        } else {
            page.write("[");
            for param in &self.params {
                page.break_line(6);
                page.write(param);
            }
            page.break_line(4);
            page.write("]");
        }
        page.write(" ");
        page.write_wrapped(&self.args, "", 6);
    }
}

/// Text under construction, with the column at which it ends.
struct ColumnWriter {
    text: String,
    column: usize,
}

impl ColumnWriter {
    fn write(&mut self, text: &str) {
        self.text += text;
        self.column += text.chars().count();
    }

    fn break_line(&mut self, indent: usize) {
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    /// Writes items with spaces between them, and breaks the line where no space fits. As in JAX's printer, an item
    /// itself may extend beyond the width.
    fn write_wrapped(&mut self, items: &[String], separator: &str, indent: usize) {
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.write(separator);
                if self.column < MAX_LINE_COLUMNS {
                    self.write(" ");
                } else {
                    self.break_line(indent);
                }
            }
            self.write(item);
        }
    }
}

/// Returns the name and parameters of an elementwise operation: those of JAX's primitive with the same meaning, or the
/// operation's own name if JAX has none. Puts `args`, the texts of the operands, into the order of that primitive.
fn scalar_primitive(op: ScalarOp, dtype: DType, args: &mut [String]) -> (String, Vec<String>) {
    let mut params = vec![];
    let name = match op.name() {
        "minimum" => "min",
        "maximum" => "max",
        "bitand" => "and",
        "bitor" => "or",
        "bitxor" => "xor",
        "shl" => "shift_left",
        "shr" if dtype.is_signed() => "shift_right_arithmetic",
        "shr" => "shift_right_logical",
        "count_ones" => "population_count",
        "round" => {
            params.push("rounding_method=1".into());
            "round"
        }
        "recip" => {
            params.push("y=-1".into());
            "integer_pow"
        }
        "to_bits" => {
            params.push("new_dtype=uint32".into());
            "bitcast_convert_type"
        }
        "select" => {
            args.swap(1, 2);
            "select_n"
        }
        "clamp" => {
            args.swap(0, 1);
            "clamp"
        }
        other => other,
    };
    (name.into(), params)
}

/// Returns the name and parameters of JAX's primitive for a structural operation; `None` if JAX has none.
fn structural_primitive(op: &StructuralOp, graph: &Graph, e: &Equation) -> Option<(String, Vec<String>)> {
    let ty = graph.ty(e.result());
    let made = |name: &str, params: &[(&str, String)]| {
        Some((name.to_string(), params.iter().map(|(key, value)| format!("{key}={value}")).collect()))
    };
    #[allow(clippy::wildcard_enum_match_arm, reason = "an operation that JAX lacks has its own name and attributes")]
    match op {
        StructuralOp::Cast(_) => made(
            "convert_element_type",
            &[("new_dtype", numpy_dtype_name(ty.dtype).into()), ("weak_type", "False".into())],
        ),
        StructuralOp::Bitcast(_) => made("bitcast_convert_type", &[("new_dtype", numpy_dtype_name(ty.dtype).into())]),
        StructuralOp::Powi(op) => made("integer_pow", &[("y", op.exponent.to_string())]),
        StructuralOp::Broadcast(Broadcast { dims, .. }) => match &dims[..graph.ty(e.args[0]).shape.len()] {
            [] => made("broadcast_in_dim", &[]),
            dims => made("broadcast_in_dim", &[("broadcast_dimensions", tuple_text(dims))]),
        },
        StructuralOp::Reshape(_) => made(
            "reshape",
            &[("dimensions", "None".into()), ("new_sizes", tuple_text(&ty.shape)), ("sharding", "None".into())],
        ),
        StructuralOp::Transpose(op) => made("transpose", &[("permutation", tuple_text(&op.axes))]),
        StructuralOp::Reverse(op) => made("rev", &[("dimensions", tuple_text(&op.axes))]),
        StructuralOp::Concat(op) => made("concatenate", &[("dimension", op.axis.to_string())]),
        StructuralOp::Iota(Iota { axis, .. }) => made(
            "iota",
            &[
                ("dimension", axis.to_string()),
                ("dtype", numpy_dtype_name(ty.dtype).into()),
                ("shape", tuple_text(&ty.shape)),
                ("sharding", "None".into()),
            ],
        ),
        StructuralOp::Pad(Pad { low, high }) => {
            let axes: Vec<String> = low.iter().zip(high).map(|(low, high)| format!("({low}, {high}, 0)")).collect();
            made("pad", &[("padding_config", tuple_text(&axes))])
        }
        StructuralOp::Slice(Slice { start, size, stride }) => {
            let number = |d: &Dim| d.as_number().expect("a graph has extents of numbers");
            let end = |i: usize| {
                if number(&size[i]) == 0 { start[i] } else { start[i] + (number(&size[i]) - 1) * stride[i] + 1 }
            };
            let ends: Vec<i64> = (0..start.len()).map(end).collect();
            let strides = if stride.iter().all(|&s| s == 1) { "None".into() } else { tuple_text(stride) };
            made(
                "slice",
                &[("limit_indices", tuple_text(&ends)), ("start_indices", tuple_text(start)), ("strides", strides)],
            )
        }
        StructuralOp::Dot(Dot { batch, contract, acc }) => {
            let side = |pairs: &[(usize, usize)]| {
                let list = |axes: Vec<usize>| format!("{axes:?}");
                let (a, b) = pairs.iter().copied().unzip();
                format!("({}, {})", list(a), list(b))
            };
            let numbers = format!("({}, {})", side(contract), side(batch));
            made(
                "dot_general",
                &[("dimension_numbers", numbers), ("preferred_element_type", numpy_dtype_name(*acc).into())],
            )
        }
        StructuralOp::Reduce(Reduce { op, axes, .. }) => {
            let axes = ("axes", tuple_text(axes));
            let sharding = ("out_sharding", "None".to_string());
            match op.name() {
                "add" => made("reduce_sum", &[axes, sharding]),
                "maximum" => made("reduce_max", &[axes, sharding]),
                "minimum" => made("reduce_min", &[axes, sharding]),
                "mul" => made("reduce_prod", &[axes]),
                "bitand" => made("reduce_and", &[axes]),
                "bitor" => made("reduce_or", &[axes]),
                "bitxor" => made("reduce_xor", &[axes]),
                _ => None,
            }
        }
        StructuralOp::ArgReduce(ArgReduce { max, axis, .. }) => {
            let name = if *max { "argmax" } else { "argmin" };
            made(name, &[("axes", tuple_text(&[axis])), ("index_dtype", "int32".into())])
        }
        StructuralOp::Sort(Sort { axis }) => {
            made("sort", &[("dimension", axis.to_string()), ("is_stable", "True".into()), ("num_keys", "1".into())])
        }
        StructuralOp::Cumulative(Cumulative { op, axis, reverse }) => {
            let name = match op.name() {
                "add" => "cumsum",
                "mul" => "cumprod",
                "maximum" => "cummax",
                "minimum" => "cummin",
                _ => return None,
            };
            let reverse = if *reverse { "True" } else { "False" };
            made(name, &[("axis", axis.to_string()), ("reverse", reverse.into())])
        }
        StructuralOp::Gather(op) => Some(indexed::gather_primitive(op)),
        StructuralOp::Scatter(op) => Some(indexed::scatter_primitive(op, ty.dtype)),
        StructuralOp::ReduceWindow(op) => windows::reduce_window_primitive(op),
        _ => None,
    }
}

/// Returns the name and parameters of an operation that JAX lacks: for `roll axis(1) shift(2)` the printed equation has
/// `roll[axis=1 shift=2]`.
fn non_jax_primitive(op: &StructuralOp) -> (String, Vec<String>) {
    let text = op.to_string();
    let attributes = text.strip_prefix(op.name()).unwrap_or(&text);
    let attribute = |part: &str| {
        let (key, value) = part.trim().split_once('(')?;
        Some(format!("{key}={}", if value.contains(',') { format!("({value})") } else { value.to_string() }))
    };
    (op.name().into(), attributes.split(')').filter_map(attribute).collect())
}
