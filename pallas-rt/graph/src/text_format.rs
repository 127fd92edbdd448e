//! Graphs as text that can be read again: a line for each equation, called graphs first.
//!
//! ```text
//! Text     = Kernel* Graph+                                 the last graph is the whole
//! Kernel   = "kernel" lines, then as many lines of tile IR
//! Graph    = "graph", then "param" Var Type,* Equation* "result" Var*
//! Equation = "let" (Var Type)* "=" Op "of" Var*
//! Op       = "literal" dtype number | "optimization_barrier" | "scalar" name | "structural" text
//!          | "dynamic_slice" n* | "dynamic_update_slice" | "scan" graph captured carried length forward|reverse
//!          | "while" graph graph n n | "case" graph* | "debug_print" "x" the label's bytes in hex, n*
//!          | "kernel" kernel "sizes" n* "params" (dtype number)*
//! ```
//!
//! Kernels and graphs are numbered separately, in the order in which they stand in the text. An equation can only refer
//! to earlier ones, so that none contains itself. A graph is referred to at most once, so that the graph that a text
//! describes is no larger than the text. Lines of the user's program are not saved, and functions that
//! [`simplify()`](crate::simplify::simplify) expands are saved expanded.
use crate::graph::{Equation, Graph, Op, Var};
use crate::identity::OptimizationBarrier;
use crate::simplify::simplify;
use crate::verify::verify_equations;
use pallas_ir::{DType, Kernel, Literal, ScalarOp, StructuralOp, Type};
use std::fmt::{Display, Write};
use std::sync::Arc;

/// Maximum number of variables of one graph in a text.
const MAX_GRAPH_VARIABLES: usize = 1 << 22;
/// Maximum nesting depth of graphs in a text, since passes walk over nested graphs recursively.
const MAX_GRAPH_DEPTH: usize = 256;

/// Simplifies a graph and writes it as text that [`parse`] reads.
pub fn print(graph: &Graph) -> String {
    let mut printer = Printer::default();
    printer.write_graph(&simplify(graph));
    printer.kernels + &printer.graphs
}

/// Operations that files can hold: how they are written and read. No method has a default.
pub(crate) trait SerializableOp {
    /// Returns the words that follow the operation's name, with a space in front of each.
    fn print(&self, p: &mut Printer) -> String;
    /// Reads an operation from the words that [`print`](SerializableOp::print) wrote.
    fn parse(p: &mut Parser<'_>, words: &mut Words<'_>) -> Result<Self, String>
    where
        Self: Sized;
}

/// The text under construction: kernels and graphs written so far.
#[derive(Default)]
pub(crate) struct Printer {
    kernels: String,
    kernel_count: usize,
    graphs: String,
    graph_count: usize,
}

/// Returns all items as text, with a space in front of each.
pub(crate) fn join_spaced<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|x| format!(" {x}")).collect()
}

/// Returns a constant as text: its element type, then the number.
pub(crate) fn literal_text(x: &Literal) -> String {
    format!("{} {x}", x.dtype)
}

impl Printer {
    /// Writes a graph, after the graphs that it calls; returns its index in the text.
    pub(crate) fn write_graph(&mut self, graph: &Graph) -> usize {
        let typed = |v: &Var| format!("{} {}", v.0, graph.ty(*v));
        let mut text = format!("graph\nparam{}\n", join_spaced(graph.params.iter().map(typed)));
        for e in &graph.equations {
            let (results, op) = (join_spaced(e.results.iter().map(typed)), self.write_op(&e.op));
            let written = writeln!(text, "let{results} = {op} of{}", join_spaced(e.args.iter().map(|v| v.0)));
            written.expect("a string takes all");
        }
        self.graphs += &format!("{text}result{}\n", join_spaced(graph.results.iter().map(|v| v.0)));
        self.graph_count += 1;
        self.graph_count - 1
    }

    /// Writes a kernel; returns its index in the text.
    pub(crate) fn write_kernel(&mut self, kernel: &Kernel) -> usize {
        let text = kernel.to_string();
        self.kernels += &format!("kernel {}\n{}\n", text.lines().count(), text.trim_end());
        self.kernel_count += 1;
        self.kernel_count - 1
    }

    /// Returns the text of an operation, after writing the graphs and kernels that it refers to.
    fn write_op(&mut self, op: &Op) -> String {
        match op {
            Op::Literal(x) => format!("literal {}", literal_text(x)),
            Op::Scalar(op) => format!("scalar {op}"),
            Op::Structural(op) => format!("structural {op}"),
            Op::Dynamic(op) => format!("{}{}", op.name(), op.saved().print(self)),
            Op::Identity(op) => op.to_string(),
            Op::Collective(op) => op.to_string(),
            Op::Call(call) => match call.saved() {
                Some((word, saved)) => format!("{word}{}", saved.print(self)),
                None => unreachable!("`simplify` expands {}", call.name()),
            },
        }
    }
}

/// Reads what [`print()`] wrote.
///
/// # Errors
/// The first line that is not understood, with its number from 1, or the rule that a graph breaks.
pub fn parse(text: &str) -> Result<Graph, String> {
    let mut parser = Parser { lines: text.lines().enumerate(), kernels: vec![], graphs: vec![], depth: 0 };
    while let Some((at, line)) = parser.lines.next() {
        parser.parse_graph_or_kernel(line).map_err(|message| format!("line {}: {message}", at + 1))?;
    }
    match parser.graphs.pop() {
        Some(Some((graph, _))) => Ok(graph),
        Some(None) | None => Err("it has no graph".into()),
    }
}

/// A text that is being read, with the kernels and graphs read so far.
pub(crate) struct Parser<'a> {
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    kernels: Vec<Arc<Kernel>>,
    /// Graphs read so far, each with its nesting depth; `None` for one that a call already refers to.
    graphs: Vec<Option<(Graph, usize)>>,
    /// Nesting depth of the graph that is being read.
    depth: usize,
}

/// The words of a line that are not read yet.
pub(crate) struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn next_word(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("expected {expected} at the end"))
    }
    pub(crate) fn parse_next<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T, String> {
        let word = self.next_word(expected)?;
        word.parse().map_err(|_| format!("expected {expected}, found `{word}`"))
    }
    pub(crate) fn parse_rest<T: std::str::FromStr>(&mut self, expected: &str) -> Result<Vec<T>, String> {
        self.read_all(|words| words.parse_next(expected))
    }
    /// Applies `read` until no word is left, and returns what it read.
    fn read_all<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let mut all = vec![];
        while self.0.clone().next().is_some() {
            all.push(read(self)?);
        }
        Ok(all)
    }
    pub(crate) fn parse_literal(&mut self) -> Result<Literal, String> {
        let dtype: DType = self.parse_next("an element type")?;
        let word = self.next_word("a number")?;
        Literal::parse(dtype, word).ok_or_else(|| format!("`{word}` is no {dtype}"))
    }
    pub(crate) fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.next_word(&format!("`{wanted}`"))? {
            word if word == wanted => Ok(()),
            word => Err(format!("expected `{wanted}`, found `{word}`")),
        }
    }
    /// Reads a variable followed by its type.
    fn parse_typed_var(&mut self) -> Result<(Var, Type), String> {
        let v = self.parse_next("a variable").map(Var)?;
        let word = self.next_word("a type")?;
        let ty = parse_type(word).ok_or_else(|| format!("`{word}` is no type"))?;
        Ok((v, ty))
    }
}

/// Reads a type such as `f32[2,3]`; `None` if the text is none.
pub fn parse_type(text: &str) -> Option<Type> {
    let (dtype, shape) = text.strip_suffix(']')?.split_once('[')?;
    let extent = |n: &str| n.trim().parse::<usize>().ok();
    let shape = if shape.is_empty() { Some(vec![]) } else { shape.split(',').map(extent).collect() }?;
    Some(Type::new(dtype.parse::<DType>().ok()?, shape))
}

impl Parser<'_> {
    /// Reads the graph or kernel that begins with this line.
    fn parse_graph_or_kernel(&mut self, line: &str) -> Result<(), String> {
        if line == "graph" {
            self.depth = 1;
            let graph = self.parse_graph()?;
            if self.depth > MAX_GRAPH_DEPTH {
                return Err(format!("more than {MAX_GRAPH_DEPTH} graphs stand inside of each other"));
            }
            // The graphs that it calls were verified when they were read.
            verify_equations(&graph)?;
            self.graphs.push(Some((graph, self.depth)));
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

    /// Reads the graph on the lines after `graph`, up to its `result` line.
    fn parse_graph(&mut self) -> Result<Graph, String> {
        let mut types: Vec<Option<Type>> = vec![];
        let mut define = |(v, ty): (Var, Type)| {
            if v.index() >= MAX_GRAPH_VARIABLES {
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
            match words.next_word("a line").map_err(place)? {
                "param" if !is_begun => {
                    is_begun = true;
                    graph.params =
                        words.read_all(|words| words.parse_typed_var().and_then(&mut define)).map_err(place)?;
                }
                "let" if is_begun => {
                    let body = line.trim_start().strip_prefix("let").unwrap_or_default();
                    let (results, rest) = body.split_once('=').ok_or_else(|| place("expected `=`".into()))?;
                    let (op, args) = rest.rsplit_once(" of").ok_or_else(|| place("expected `of`".into()))?;
                    let mut words = Words(results.split_whitespace());
                    let results =
                        words.read_all(|words| words.parse_typed_var().and_then(&mut define)).map_err(place)?;
                    let args = Words(args.split_whitespace()).parse_rest("a variable").map_err(place)?;
                    let args: Vec<Var> = args.into_iter().map(Var).collect();
                    let op = self.parse_op(op.trim()).map_err(place)?;
                    graph.equations.push(Equation { op, args, results, loc: graph.at });
                }
                "result" if is_begun => {
                    graph.results = words.parse_rest("a variable").map_err(place)?.into_iter().map(Var).collect();
                    // Variables that passes removed define nothing, so any type will do.
                    let scalar = || Type::scalar(DType::F32);
                    graph.types = types.into_iter().map(|ty| ty.unwrap_or_else(scalar)).collect();
                    return Ok(graph);
                }
                other => return Err(place(format!("`{other}` is not expected here"))),
            }
        }
    }

    /// Takes the graph at an index of the text for the one call that refers to it.
    pub(crate) fn take_graph(&mut self, index: usize) -> Result<Graph, String> {
        let found = self.graphs.get_mut(index).ok_or_else(|| format!("there is no graph {index} above"))?;
        let (graph, own) = found.take().ok_or_else(|| format!("graph {index} is mentioned twice"))?;
        self.depth = (own + 1).max(self.depth);
        Ok(graph)
    }

    /// Reads an operation with its attributes.
    fn parse_op(&mut self, text: &str) -> Result<Op, String> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut words = Words(rest.split_whitespace());
        let op: Op = match name {
            "literal" => Op::Literal(words.parse_literal()?),
            "optimization_barrier" => OptimizationBarrier.into(),
            "scalar" => words.parse_next::<ScalarOp>("an operation")?.into(),
            "structural" => return Ok(rest.parse::<StructuralOp>()?.into()),
            other => match Op::parse(other, self, &mut words) {
                Some(op) => op?,
                None => return Err(format!("there is no operation `{other}`")),
            },
        };
        match words.0.next() {
            None => Ok(op),
            Some(more) => Err(format!("`{more}` after the operation")),
        }
    }

    /// Returns the kernel at an index of the text.
    pub(crate) fn kernel_at(&self, index: usize) -> Result<Arc<Kernel>, String> {
        self.kernels.get(index).cloned().ok_or_else(|| format!("there is no kernel {index} above"))
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_GRAPH_DEPTH, parse};

    /// Text of graphs, each of which branches `mentions` ways to the graph before it.
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
        assert!(parse(&branches(MAX_GRAPH_DEPTH - 1, 1)).is_ok());
        for (levels, mentions, expected) in [(MAX_GRAPH_DEPTH, 1, "inside of each other"), (60, 2, "mentioned twice")] {
            let refused = parse(&branches(levels, mentions)).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
