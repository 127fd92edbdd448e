//! Graphs as StableHLO, in MLIR's generic form, and as HLO, in XLA's own text.
//!
//! Each equation becomes the StableHLO operation of the same meaning, or a few of them: [`scalar`] has the elementwise
//! operations, [`structural`], [`folds`] and [`gather_scatter_sort`] those that move and fold elements, [`control`]
//! loops, branches and kernels, [`channel_groups`] the collectives. [`writer`] makes the operations as data
//! ([`operation`]); [`mlir_text`] prints them as StableHLO, [`hlo_text`] as HLO. The page `guide::stablehlo` of
//! pallas-rt lists StableHLO's operations, each printed or excluded with a reason.
#![warn(clippy::wildcard_enum_match_arm)]
mod channel_groups;
mod control;
mod folds;
mod gather_scatter_sort;
mod hlo_text;
mod mlir_text;
mod operation;
mod scalar;
mod structural;
mod writer;

use crate::graph::{Graph, Op};
use crate::mesh::{Mesh, Sharding};
use crate::simplify::inlined;
pub(crate) use channel_groups::CollectiveHlo;
pub(crate) use control::CallHlo;
pub(crate) use folds::build_combiner_region;
use operation::HloFunction;
pub(crate) use operation::{ExchangedData, HloAttributes, HloLine, HloRegion, HloValue};
use pallas_ir::{StructuralOp, Type};
use std::collections::HashMap;
pub(crate) use writer::{HloWriter, IdentityHlo};

impl Graph {
    /// Returns the graph as the text of a StableHLO module with this name, in MLIR's generic form, which XLA compiles:
    /// `@main` takes the parameters and returns the results.
    ///
    /// - Loops and branches are `while` and `case`. Functions that the graph calls are functions of the module.
    /// - A kernel is one `custom_call` whose target is `pallas.` followed by the kernel's name, and whose
    ///   `backend_config` has the kernel's sizes and text. XLA compiles such a module where a target of this name is
    ///   registered; elsewhere call [`without_kernels`](crate::transform::without_kernels) first.
    /// - Collectives of a program that each device of a mesh runs are XLA's collectives over partitions; a partition
    ///   has the number of its device.
    /// - `debug_print` is a comment. `stop_gradient` and the names of values are left out.
    /// - `erf` and `emit_erfc` are operations of CHLO, which StableHLO comes with.
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
        mlir_text::module_text(name, None, &translate_module(self, StableHloTranslator::default()))
    }

    /// Returns the graph as the text of a module in StableHLO and Shardy: that of
    /// [`to_stablehlo`](Graph::to_stablehlo), with sharding annotations as operations of Shardy and with the shardings
    /// of parameters and results on `mesh`. Called functions are inlined. Each operation's location is the number of
    /// its equation: `loc("v3")`. A body of `shard_map` is a `sdy.manual_computation`.
    ///
    /// ```
    /// use pallas_graph::Graph;
    /// use pallas_graph::mesh::{Mesh, Sharding};
    /// use pallas_ir::{DType, ScalarOp, Type};
    /// let mesh = Mesh::new(&[("x", 2)])?;
    /// let mut graph = Graph::default();
    /// let x = graph.param(Type::new(DType::F32, [2]));
    /// let y = graph.push(ScalarOp::Exp, &[x])?;
    /// graph.results.push(y);
    /// let text = graph.to_shardy("f", &mesh, &[Some(Sharding::closed([vec![mesh.axis(0)]]))], &[None]);
    /// assert!(text.contains("%0: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>}"));
    /// # Ok::<(), pallas_ir::Diag>(())
    /// ```
    pub fn to_shardy(
        &self,
        name: &str,
        mesh: &Mesh,
        params: &[Option<Sharding>],
        results: &[Option<Sharding>],
    ) -> String {
        let mut printer = StableHloTranslator::default();
        printer.w.with_shardings = true;
        let mut all = translate_module(&inlined(self), printer);
        let texts = |all: &[Option<Sharding>]| all.iter().map(|s| s.as_ref().map(|s| s.text(mesh))).collect();
        all[0].shardings = [texts(params), texts(results)];
        mlir_text::module_text(name, Some(mesh), &all)
    }

    /// Returns the graph as the text of an HLO module with this name, XLA's own text, which `xla_client` parses. Its
    /// operations are those of [`to_stablehlo`](Graph::to_stablehlo), except that `emit_erfc`, which HLO lacks, is
    /// written as a formula. Bodies of loops and branches are computations whose parameter is a tuple, with the values
    /// that they read from outside.
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
        let mut printer = StableHloTranslator::default();
        printer.w.without_chlo = true;
        hlo_text::module_text(name, &translate_module(self, printer))
    }
}

/// Translates a graph to the functions of a module: `main` first, then those that it calls.
fn translate_module(graph: &Graph, mut translator: StableHloTranslator) -> Vec<HloFunction> {
    let mut all = vec![translator.translate_function(true, "main".into(), graph)];
    all.extend(translator.functions);
    all
}

/// Translates graphs, and the functions that they call, into operations of StableHLO.
#[derive(Default)]
pub(crate) struct StableHloTranslator {
    pub(crate) w: HloWriter,
    /// Functions called so far, in the order of their numbers.
    functions: Vec<HloFunction>,
    /// By body of a called function, its number in `functions`: equal bodies share a function.
    known: HashMap<Graph, usize>,
    /// Number of equations written so far; the next equation's label.
    labels: usize,
    /// Number of sharding groups written so far; groups of the next graph are numbered from here.
    groups: u32,
}

impl StableHloTranslator {
    /// Translates a graph as a function of the module with this name; `is_public` is true for `main` alone.
    fn translate_function(&mut self, is_public: bool, name: String, graph: &Graph) -> HloFunction {
        let params = self.w.new_params(&graph.param_types());
        // The writer's list is replaced and restored here, since equations may add functions with lists of their own.
        let outer = self.w.replace_lines(vec![]);
        let made = self.emit_graph(graph, &params);
        self.w.emit_return("func.return", &made);
        let body = HloRegion { params, lines: self.w.replace_lines(outer) };
        HloFunction { is_public, name, gives: graph.result_types(), shardings: [vec![], vec![]], body }
    }

    /// Appends a graph's equations with `args` as its parameters; returns the values of its results.
    pub(crate) fn emit_graph(&mut self, graph: &Graph, args: &[HloValue]) -> Vec<HloValue> {
        let mut values: Vec<Option<HloValue>> = vec![None; graph.types.len()];
        graph.params.iter().zip(args).for_each(|(p, x)| values[p.index()] = Some(x.clone()));
        let outer = self.w.label;
        let first = self.groups;
        self.groups += graph.sharding_group_count();
        for e in &graph.equations {
            (self.w.label, self.labels) = (self.labels, self.labels + 1);
            let args: Vec<HloValue> = e.args.iter().map(|v| values[v.index()].clone().expect("defined")).collect();
            let gives: Vec<Type> = e.results.iter().map(|&v| graph.ty(v).clone()).collect();
            let made = self.emit_equation(&e.op.with_sharding_groups_shifted(first), &args, &gives);
            e.results.iter().zip(made).for_each(|(r, x)| values[r.index()] = Some(x));
        }
        self.w.label = outer;
        graph.results.iter().map(|r| values[r.index()].clone().expect("a result is defined")).collect()
    }

    /// Appends the operations of one equation, whose results have the types `gives`; returns their values.
    fn emit_equation(&mut self, op: &Op, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let w = &mut self.w;
        vec![match op {
            Op::Literal(x) => w.emit_constant(*x, &[]),
            Op::Scalar(op) => scalar::emit_scalar(w, *op, args),
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let made = structural::emit_broadcast(w, op, &args[0], &gives[0]);
                HloValue { splat: args[0].splat, ..made }
            }
            Op::Structural(op) => structural::emit_structural(w, op, args, &gives[0]),
            // An array of rank 0 is its window.
            Op::Dynamic(op) if gives[0].shape.is_empty() => args[op.array_operand_count() - 1].clone(),
            Op::Dynamic(op) => {
                let detail =
                    op.size_of_read_window().map_or(HloAttributes::None, |size| HloAttributes::Sizes(size.to_vec()));
                w.emit_op(op.name(), &args.iter().collect::<Vec<_>>(), detail, gives[0].clone())
            }
            Op::Identity(op) => op.text().emit_stablehlo(w, &args[0]),
            Op::Collective(op) => op.kind.text().emit_stablehlo(w, op, args, &gives[0]),
            Op::Call(call) => return self.emit_call(call, args, gives),
        }]
    }
}
