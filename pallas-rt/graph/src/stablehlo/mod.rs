//! Graphs as StableHLO text, in MLIR's generic form.
//!
//! Each equation becomes the operation of the same form, or a few of them: [`scalar`] has the elementwise operations,
//! [`structural`] those that move and fold elements, [`control`] loops, branches and kernels.
//!
#![doc = include_str!("../../stablehlo.md")]
#![warn(clippy::wildcard_enum_match_arm)]
mod control;
mod folds;
mod indexed;
mod scalar;
mod structural;
mod writer;

use crate::dynamic::Dynamic;
use crate::graph::{Graph, Op};
use pallas_ir::{DType, Literal, StructuralOp, Type};
use std::collections::HashMap;
use writer::{Value, Writer, list, results, typed};

impl Graph {
    /// The graph as a StableHLO module of this name, in MLIR's generic form: `@main` takes the parameters and returns the
    /// results. It is text that XLA compiles.
    ///
    /// - Loops and branches are `while` and `case`. Functions that are called stay functions.
    /// - A kernel is one `custom_call` of the target `pallas.` and its name, whose `backend_config` has its sizes and its
    ///   text. XLA compiles such a module where a target of this name is registered.
    /// - `debug_print` is a comment. `stop_gradient` and the names of values leave nothing.
    /// - `erf` and `erfc` are operations of CHLO, which StableHLO comes with.
    ///
    /// ```
    /// use pallas_graph::Graph;
    /// use pallas_ir::{DType, ScalarOp, Type};
    /// let mut graph = Graph::default();
    /// let x = graph.param(Type::new(DType::F32, [2]));
    /// let y = graph.push(ScalarOp::Exp, &[x])?;
    /// graph.results.push(y);
    /// let text = "\
    /// module @f {
    ///   func.func public @main(%0: tensor<2xf32>) -> tensor<2xf32> {
    ///     %1 = \"stablehlo.exponential\"(%0) : (tensor<2xf32>) -> tensor<2xf32>
    ///     \"func.return\"(%1) : (tensor<2xf32>) -> ()
    ///   }
    /// }
    /// ";
    /// assert_eq!(graph.to_stablehlo("f"), text);
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn to_stablehlo(&self, name: &str) -> String {
        let mut printer = Printer::default();
        let main = printer.function("public", "main", self);
        format!("module @{name} {{\n{main}{}}}\n", printer.functions.concat())
    }
}

/// Writes graphs, and the functions that they call.
#[derive(Default)]
struct Printer {
    w: Writer,
    /// Texts of functions that are called.
    functions: Vec<String>,
    /// Their numbers: equal graphs are one function.
    known: HashMap<Graph, usize>,
}

impl Printer {
    /// The text of a function.
    fn function(&mut self, visibility: &str, name: &str, graph: &Graph) -> String {
        let params = self.w.params(&graph.takes());
        let head = format!("  func.func {visibility} @{name}({}) -> {} {{\n", typed(&params), results(&graph.gives()));
        let depth = self.w.depth();
        // The page is exchanged by hand, since equations may add functions in turn.
        let outer = self.w.turn(String::new(), 1);
        let made = self.graph(graph, &params);
        self.w.operation("func.return", &made.iter().collect::<Vec<_>>(), &[], &[], &[]);
        let body = self.w.turn(outer, depth);
        format!("{head}{body}  }}\n")
    }

    /// Writes the equations of a graph for these operands; returns its results.
    fn graph(&mut self, graph: &Graph, args: &[Value]) -> Vec<Value> {
        let mut values: Vec<Option<Value>> = vec![None; graph.types.len()];
        graph.params.iter().zip(args).for_each(|(p, x)| values[p.index()] = Some(x.clone()));
        for e in &graph.equations {
            let args: Vec<Value> = e.args.iter().map(|v| values[v.index()].clone().expect("defined")).collect();
            let gives: Vec<Type> = e.results.iter().map(|&v| graph.ty(v).clone()).collect();
            let made = self.equation(&e.op, &args, &gives);
            e.results.iter().zip(made).for_each(|(r, x)| values[r.index()] = Some(x));
        }
        graph.results.iter().map(|r| values[r.index()].clone().expect("a result is defined")).collect()
    }

    fn equation(&mut self, op: &Op, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let w = &mut self.w;
        vec![match op {
            Op::Literal(x) => w.constant(*x, &[]),
            Op::StopGradient => args[0].clone(),
            Op::Barrier => w.unary("optimization_barrier", &args[0]),
            Op::Scalar(op) => scalar::scalar(w, *op, args),
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let made = structural::broadcast(w, op, &args[0], &gives[0]);
                Value { splat: args[0].splat, ..made }
            }
            Op::Structural(op) => structural::structural(w, op, args, &gives[0]),
            Op::Dynamic(op) => dynamic(w, op, args, &gives[0]),
            Op::Call(call) => return self.call(call, args, gives),
        }]
    }
}

/// Writes an operation on a window at positions that are operands.
fn dynamic(w: &mut Writer, op: &Dynamic, args: &[Value], gives: &Type) -> Value {
    let all: Vec<&Value> = args.iter().collect();
    match op {
        _ if gives.shape.is_empty() => args[op.arrays() - 1].clone(),
        Dynamic::Slice { size } => w.op("dynamic_slice", &all, &[list("slice_sizes", size)], gives.clone()),
        Dynamic::Update => w.op("dynamic_update_slice", &all, &[], gives.clone()),
    }
}

/// An `i32` scalar.
fn position(w: &mut Writer, n: usize) -> Value {
    w.constant(Literal::int(DType::I32, n as i64), &[])
}
