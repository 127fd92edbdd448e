//! Graphs as StableHLO, in MLIR's generic form, and as HLO, in XLA's own text.
//!
//! Each equation becomes the StableHLO operation of the same form, or a few of them: [`scalar`] has the elementwise
//! operations, [`structural`], [`folds`] and [`indexed`] those that move and fold elements, [`control`] loops, branches and
//! kernels. They are data ([`operation`]), made by [`writer`]; [`mlir`] prints them as StableHLO, [`hlo`] as HLO. The page
//! `guide::stablehlo` of pallas-rt lists StableHLO's operations, each printed or excluded with a reason.
#![warn(clippy::wildcard_enum_match_arm)]
mod control;
mod folds;
mod hlo;
mod indexed;
mod mlir;
mod operation;
mod scalar;
mod structural;
mod writer;

use crate::dynamic::Dynamic;
use crate::graph::{Graph, Op};
use operation::{Detail, Function, Region, Value};
use pallas_ir::{DType, Literal, StructuralOp, Type};
use std::collections::HashMap;
use writer::Writer;

impl Graph {
    /// The graph as a StableHLO module of this name, in MLIR's generic form: `@main` takes the parameters and returns the
    /// results. It is text that XLA compiles.
    ///
    /// - Loops and branches are `while` and `case`. Functions that are called stay functions.
    /// - A kernel is one `custom_call` of the target `pallas.` and its name, whose `backend_config` has its sizes and its
    ///   text. XLA compiles such a module where a target of this name is registered; elsewhere after
    ///   [`without_kernels`](crate::transform::without_kernels).
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
        mlir::module(name, &functions(self, false))
    }

    /// The graph as an HLO module of this name, XLA's own text, as `xla_client` parses it. Its operations are those of
    /// [`to_stablehlo`](Graph::to_stablehlo), but that the function `erfc` is a formula, as HLO has none. Bodies of loops
    /// and branches are computations, which take what they read from outside as parts of a tuple.
    ///
    /// ```
    /// use pallas_graph::Graph;
    /// use pallas_ir::{DType, ScalarOp, Type};
    /// let mut graph = Graph::default();
    /// let x = graph.param(Type::new(DType::F32, [2]));
    /// let y = graph.push(ScalarOp::Exp, &[x])?;
    /// graph.results.push(y);
    /// let text = "\
    /// HloModule f
    ///
    /// ENTRY %main (v0: f32[2]) -> f32[2] {
    ///   %v0 = f32[2] parameter(0)
    ///   ROOT %v1 = f32[2] exponential(%v0)
    /// }
    /// ";
    /// assert_eq!(graph.to_hlo("f"), text);
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn to_hlo(&self, name: &str) -> String {
        hlo::module(name, &functions(self, true))
    }
}

/// The functions of a module: first `main`, then those that are called.
fn functions(graph: &Graph, without_chlo: bool) -> Vec<Function> {
    let mut printer = Printer::default();
    printer.w.without_chlo = without_chlo;
    let mut all = vec![printer.function(true, "main".into(), graph)];
    all.extend(printer.functions);
    all
}

/// Writes graphs, and the functions that they call.
#[derive(Default)]
struct Printer {
    w: Writer,
    /// Functions that are called.
    functions: Vec<Function>,
    /// Their numbers: equal graphs are one function.
    known: HashMap<Graph, usize>,
}

impl Printer {
    fn function(&mut self, is_public: bool, name: String, graph: &Graph) -> Function {
        let params = self.w.params(&graph.takes());
        // The list is exchanged by hand, since equations may add functions in turn.
        let outer = self.w.turn(vec![]);
        let made = self.graph(graph, &params);
        self.w.end("func.return", &made);
        let body = Region { params, lines: self.w.turn(outer) };
        Function { is_public, name, gives: graph.gives(), body }
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
        Dynamic::Slice { size } => w.op("dynamic_slice", &all, Detail::Sizes(size.clone()), gives.clone()),
        Dynamic::Update => w.op("dynamic_update_slice", &all, Detail::None, gives.clone()),
    }
}

/// An `i32` scalar.
fn position(w: &mut Writer, n: usize) -> Value {
    w.constant(Literal::int(DType::I32, n as i64), &[])
}
