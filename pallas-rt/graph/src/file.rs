//! Graphs as text that can be read again: a line for each equation, called graphs first.
//!
//! ```text
//! Text     = Kernel* Graph+                                 the last graph is the whole
//! Kernel   = "kernel" lines, then as many lines of tile IR
//! Graph    = "graph", then "param" Var Type,* Equation* "result" Var*
//! Equation = "let" (Var Type)* "=" Op "of" Var*
//! Op       = "literal" dtype number | "stop_gradient" | "optimization_barrier" | "scalar" name | "structural" text
//!          | "dynamic_slice" n* | "dynamic_update_slice" | "scan" graph captured carried length forward|reverse
//!          | "while" graph graph n n | "case" graph* | "debug_print" "x" the label's bytes in hex, n*
//!          | "call" kernel "sizes" n* "params" (dtype number)*
//! ```
//!
//! Kernels and graphs are numbered in their own order, and mentioned after they stand there, so that none contains itself. A
//! graph is mentioned once, so that what a text stands for is no larger than the text.
//! Lines of the user's are not in it, nor what [`simplify()`](crate::simplify::simplify) expands.
use crate::call::{Call, Case, KernelCall, Print, Scan, While};
use crate::dynamic::Dynamic;
use crate::graph::{Equation, Graph, Op, Var};
use crate::simplify::simplify;
use crate::verify::verify_equations;
use pallas_ir::{DType, Kernel, Literal, OperandKind, ScalarOp, StructuralOp, Type};
use std::fmt::{Display, Write};
use std::sync::Arc;

/// Variables of one graph in a text at most.
const MOST: usize = 1 << 22;
/// Most graphs inside of each other: passes walk over them recursively.
const DEEPEST: usize = 256;

/// A graph, simplified, as text that [`parse`] reads.
pub fn print(graph: &Graph) -> String {
    let mut printer = Printer::default();
    printer.graph(&simplify(graph));
    printer.kernels + &printer.graphs
}

#[derive(Default)]
struct Printer {
    kernels: String,
    kernel_count: usize,
    graphs: String,
    graph_count: usize,
}

fn joined<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|x| format!(" {x}")).collect()
}

fn number(x: &Literal) -> String {
    format!("{} {x}", x.dtype)
}

impl Printer {
    /// Writes a graph after those that it calls; returns its number.
    fn graph(&mut self, graph: &Graph) -> usize {
        let typed = |v: &Var| format!("{} {}", v.0, graph.ty(*v));
        let mut text = format!("graph\nparam{}\n", joined(graph.params.iter().map(typed)));
        for e in &graph.equations {
            let (results, op) = (joined(e.results.iter().map(typed)), self.op(&e.op));
            let written = writeln!(text, "let{results} = {op} of{}", joined(e.args.iter().map(|v| v.0)));
            written.expect("a string takes all");
        }
        self.graphs += &format!("{text}result{}\n", joined(graph.results.iter().map(|v| v.0)));
        self.graph_count += 1;
        self.graph_count - 1
    }

    fn op(&mut self, op: &Op) -> String {
        match op {
            Op::Literal(x) => format!("literal {}", number(x)),
            Op::StopGradient | Op::Barrier => op.to_string(),
            Op::Scalar(op) => format!("scalar {op}"),
            Op::Structural(op) => format!("structural {op}"),
            Op::Dynamic(Dynamic::Slice { size }) => format!("dynamic_slice{}", joined(size)),
            Op::Dynamic(Dynamic::Update) => "dynamic_update_slice".into(),
            Op::Annotation(annotation) => annotation.to_string(),
            Op::Collective(op) => op.to_string(),
            Op::Call(call) => match &**call {
                Call::Scan(Scan { body, captured, carried, length, reverse }) => {
                    let direction = if *reverse { "reverse" } else { "forward" };
                    format!("scan {} {captured} {carried} {length} {direction}", self.graph(body))
                }
                Call::While(While { condition, body, condition_captured, body_captured }) => {
                    let (condition, body) = (self.graph(condition), self.graph(body));
                    format!("while {condition} {body} {condition_captured} {body_captured}")
                }
                Call::Case(Case { branches }) => {
                    format!("case{}", joined(branches.iter().map(|branch| self.graph(branch)).collect::<Vec<_>>()))
                }
                Call::Kernel(call) => {
                    let text = call.kernel.to_string();
                    self.kernels += &format!("kernel {}\n{}\n", text.lines().count(), text.trim_end());
                    self.kernel_count += 1;
                    let (sizes, params) = (joined(&call.sizes), joined(call.params.iter().map(number)));
                    format!("call {} sizes{sizes} params{params}", self.kernel_count - 1)
                }
                Call::Print(print) => {
                    let label: String = print.label.bytes().map(|b| format!("{b:02x}")).collect();
                    format!("debug_print x{label}{}", joined(&print.batches))
                }
                Call::Custom(_) | Call::Closed(_) | Call::Checkpoint(_) | Call::CustomJvp(_) | Call::Named(_) => {
                    unreachable!("`simplify` expands {}", call.name())
                }
                Call::ShardMap(_) | Call::Callback(_) => {
                    unreachable!("a function with a {} is not saved", call.name())
                }
            },
        }
    }
}

/// Reads what [`print()`] wrote.
///
/// # Errors
/// The first line that is not understood, with its number from 1, or the rule that a graph breaks.
pub fn parse(text: &str) -> Result<Graph, String> {
    let mut parser = Parser { lines: text.lines().enumerate(), kernels: vec![], graphs: vec![] };
    while let Some((at, line)) = parser.lines.next() {
        parser.item(line).map_err(|message| format!("line {}: {message}", at + 1))?;
    }
    match parser.graphs.pop() {
        Some(Some((graph, _))) => Ok(graph),
        Some(None) | None => Err("it has no graph".into()),
    }
}

struct Parser<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    kernels: Vec<Arc<Kernel>>,
    /// Graphs that no call has yet, each with the number of graphs inside of each other.
    graphs: Vec<Option<(Graph, usize)>>,
}

/// The words of a line.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("expected {what} at the end"))
    }
    fn value<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("expected {what}, found `{word}`"))
    }
    fn rest<T: std::str::FromStr>(&mut self, what: &str) -> Result<Vec<T>, String> {
        let mut all = vec![];
        while self.0.clone().next().is_some() {
            all.push(self.value(what)?);
        }
        Ok(all)
    }
    fn literal(&mut self) -> Result<Literal, String> {
        let dtype: DType = self.value("an element type")?;
        let word = self.word("a number")?;
        Literal::parse(dtype, word).ok_or_else(|| format!("`{word}` is no {dtype}"))
    }
    /// A variable with its type.
    fn typed(&mut self) -> Result<(Var, Type), String> {
        let v = self.value("a variable").map(Var)?;
        let word = self.word("a type")?;
        let ty = type_of(word).ok_or_else(|| format!("`{word}` is no type"))?;
        Ok((v, ty))
    }
}

/// `f32[2,3]`
pub fn type_of(text: &str) -> Option<Type> {
    let (dtype, shape) = text.strip_suffix(']')?.split_once('[')?;
    let extent = |n: &str| n.trim().parse::<usize>().ok();
    let shape = if shape.is_empty() { Some(vec![]) } else { shape.split(',').map(extent).collect() }?;
    Some(Type::new(dtype.parse::<DType>().ok()?, shape))
}

impl Parser<'_> {
    fn item(&mut self, line: &str) -> Result<(), String> {
        if line == "graph" {
            let mut depth = 1;
            let graph = self.graph(&mut depth)?;
            if depth > DEEPEST {
                return Err(format!("more than {DEEPEST} graphs stand inside of each other"));
            }
            // Those that it calls were verified where they stand.
            verify_equations(&graph)?;
            self.graphs.push(Some((graph, depth)));
            return Ok(());
        }
        let count = line.strip_prefix("kernel ").and_then(|n| n.parse::<usize>().ok());
        let count = count.ok_or_else(|| format!("expected `graph` or `kernel`, found `{line}`"))?;
        let mut text = String::new();
        for _ in 0..count {
            let (_, line) = self.lines.next().ok_or("the kernel ends early")?;
            text.push_str(line);
            text.push('\n');
        }
        let kernel: Kernel = text.parse().map_err(|e| format!("{e}"))?;
        pallas_ir::verify(&kernel).map_err(|e| e.to_string())?;
        self.kernels.push(Arc::new(kernel));
        Ok(())
    }

    /// The graph of the next lines. `depth` grows with that of the graphs that it calls.
    fn graph(&mut self, depth: &mut usize) -> Result<Graph, String> {
        let mut types: Vec<Option<Type>> = vec![];
        let mut define = |(v, ty): (Var, Type)| {
            if v.index() >= MOST {
                return Err(format!("{v} is larger than any variable"));
            }
            if types.len() <= v.index() {
                types.resize(v.index() + 1, None);
            }
            types[v.index()] = Some(ty);
            Ok(v)
        };
        let mut graph = Graph::default();
        let mut is_begun = false;
        loop {
            let (at, line) = self.lines.next().ok_or("the graph ends early")?;
            let place = |message: String| format!("(line {}) {message}", at + 1);
            let mut words = Words(line.split_whitespace());
            match words.word("a line").map_err(place)? {
                "param" if !is_begun => {
                    is_begun = true;
                    while words.0.clone().next().is_some() {
                        graph.params.push(words.typed().and_then(&mut define).map_err(place)?);
                    }
                }
                "let" if is_begun => {
                    let body = line.trim_start().strip_prefix("let").unwrap_or_default();
                    let (results, rest) = body.split_once('=').ok_or_else(|| place("expected `=`".into()))?;
                    let (op, args) = rest.rsplit_once(" of").ok_or_else(|| place("expected `of`".into()))?;
                    let mut words = Words(results.split_whitespace());
                    let mut results = vec![];
                    while words.0.clone().next().is_some() {
                        results.push(words.typed().and_then(&mut define).map_err(place)?);
                    }
                    let args = Words(args.split_whitespace()).rest("a variable").map_err(place)?;
                    let args: Vec<Var> = args.into_iter().map(Var).collect();
                    let op = self.op(op.trim(), depth).map_err(place)?;
                    graph.equations.push(Equation { op, args, results, loc: graph.at });
                }
                "result" if is_begun => {
                    graph.results = words.rest("a variable").map_err(place)?.into_iter().map(Var).collect();
                    // Numbers that the passes left out define nothing.
                    let scalar = || Type::scalar(DType::F32);
                    graph.types = types.into_iter().map(|ty| ty.unwrap_or_else(scalar)).collect();
                    return Ok(graph);
                }
                other => return Err(place(format!("`{other}` is not expected here"))),
            }
        }
    }

    /// The graph of a number, for the call that mentions it.
    fn graph_of(&mut self, number: usize, depth: &mut usize) -> Result<Graph, String> {
        let found = self.graphs.get_mut(number).ok_or_else(|| format!("there is no graph {number} above"))?;
        let (graph, own) = found.take().ok_or_else(|| format!("graph {number} is mentioned twice"))?;
        *depth = (own + 1).max(*depth);
        Ok(graph)
    }

    fn op(&mut self, text: &str, depth: &mut usize) -> Result<Op, String> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut words = Words(rest.split_whitespace());
        let op: Op = match name {
            "literal" => Op::Literal(words.literal()?),
            "stop_gradient" => Op::StopGradient,
            "optimization_barrier" => Op::Barrier,
            "scalar" => words.value::<ScalarOp>("an operation")?.into(),
            "structural" => return Ok(rest.parse::<StructuralOp>()?.into()),
            "dynamic_slice" => Dynamic::Slice { size: words.rest("an extent")? }.into(),
            "dynamic_update_slice" => Dynamic::Update.into(),
            "sharding_constraint" | "sharding_group" | "propagation_barrier" => Op::Annotation(text.parse()?),
            "scan" => {
                let body = self.graph_of(words.value("a graph")?, depth)?;
                let [captured, carried, length] = [(); 3].map(|()| words.value("a number"));
                let reverse = match words.word("a direction")? {
                    "forward" => false,
                    "reverse" => true,
                    other => return Err(format!("expected `forward` or `reverse`, found `{other}`")),
                };
                Call::Scan(Scan { body, captured: captured?, carried: carried?, length: length?, reverse }).into()
            }
            "while" => {
                let [condition, body] = [(); 2].map(|()| self.graph_of(words.value("a graph")?, depth));
                let [condition_captured, body_captured] = [(); 2].map(|()| words.value("a number"));
                Call::While(While {
                    condition: condition?,
                    body: body?,
                    condition_captured: condition_captured?,
                    body_captured: body_captured?,
                })
                .into()
            }
            "case" => {
                let numbers: Vec<usize> = words.rest("a graph")?;
                let branches = numbers.into_iter().map(|n| self.graph_of(n, depth)).collect::<Result<_, _>>()?;
                Call::Case(Case { branches }).into()
            }
            "debug_print" => {
                let text = words.word("a label")?;
                let digits =
                    text.strip_prefix('x').filter(|digits| digits.is_ascii() && digits.len().is_multiple_of(2));
                let byte = |digits: &str, i: usize| u8::from_str_radix(&digits[i..i + 2], 16).ok();
                let bytes =
                    digits.and_then(|d| (0..d.len()).step_by(2).map(|i| byte(d, i)).collect::<Option<Vec<u8>>>());
                let label = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                let label = label.ok_or_else(|| format!("`{text}` is no label"))?;
                Call::Print(Print { label, batches: words.rest("an extent")? }).into()
            }
            "call" => Call::Kernel(self.kernel_call(&mut words)?).into(),
            other => return Err(format!("there is no operation `{other}`")),
        };
        match words.0.next() {
            None => Ok(op),
            Some(more) => Err(format!("`{more}` after the operation")),
        }
    }

    fn kernel_call(&self, words: &mut Words<'_>) -> Result<KernelCall, String> {
        let number: usize = words.value("a kernel")?;
        let kernel = self.kernels.get(number).ok_or_else(|| format!("there is no kernel {number} above"))?.clone();
        let expect = |word: &str, wanted: &str| {
            if word == wanted { Ok(()) } else { Err(format!("expected `{wanted}`, found `{word}`")) }
        };
        expect(words.word("`sizes`")?, "sizes")?;
        let mut sizes: Vec<i64> = vec![];
        for _ in &kernel.dims {
            sizes.push(words.value("an extent")?);
        }
        if sizes.iter().any(|&n| n < 0) {
            return Err("an extent is negative".into());
        }
        expect(words.word("`params`")?, "params")?;
        let mut params = vec![];
        for operand in kernel.operands.iter().filter(|operand| operand.kind == OperandKind::Param) {
            let x = words.literal()?;
            if x.dtype != operand.dtype {
                return Err(format!("`{}` of {} is given as {}", operand.name, operand.dtype, x.dtype));
            }
            params.push(x);
        }
        let shape = |i: usize| -> Result<Type, String> {
            let operand = &kernel.operands[i];
            let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &*d.name).zip(sizes.iter().copied()).collect();
            let extent = |dim: &pallas_ir::Dim| {
                let n = dim.evaluate(&names).map_err(|e| format!("`{}` has no shape: {e}", operand.name))?;
                usize::try_from(n).map_err(|_| format!("`{}` has no shape", operand.name))
            };
            Ok(Type::new(operand.dtype, operand.dims.iter().map(extent).collect::<Result<Vec<_>, _>>()?))
        };
        let of = |wanted: fn(&OperandKind) -> bool| -> Result<Vec<Type>, String> {
            (0..kernel.operands.len()).filter(|&i| wanted(&kernel.operands[i].kind)).map(shape).collect()
        };
        let takes = of(|kind| matches!(kind, OperandKind::Input | OperandKind::Prefetch))?;
        let gives = of(|kind| matches!(kind, OperandKind::Output { .. }))?;
        Ok(KernelCall { kernel, sizes, params, takes, gives })
    }
}

#[cfg(test)]
mod tests {
    use super::{DEEPEST, parse};

    /// Graphs of which each branches between so many of the one above.
    fn branches(levels: usize, mentions: usize) -> String {
        let mut text = "graph\nparam 0 f32[2]\nlet 1 f32[2] = scalar sin of 0\nresult 1\n".to_string();
        for level in 0..levels {
            let above = vec![level.to_string(); mentions].join(" ");
            text += "graph\nparam 0 f32[2]\nlet 2 i32[] = literal i32 0 of\n";
            text += &format!("let 1 f32[2] = case {above} of 2 0\nresult 1\n");
        }
        text
    }

    #[test]
    fn a_text_stands_for_no_more_than_it_has() {
        assert!(parse(&branches(DEEPEST - 1, 1)).is_ok());
        for (levels, mentions, expected) in [(DEEPEST, 1, "inside of each other"), (60, 2, "mentioned twice")] {
            let refused = parse(&branches(levels, mentions)).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
