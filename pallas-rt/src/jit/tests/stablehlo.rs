//! StableHLO text: forms of it, the list of StableHLO's operations, and real XLA's results.
#![allow(clippy::print_stdout, reason = "how many modules XLA agrees on")]
use super::calls::graph_of;
use super::random::{drawn, operands, run};
use crate::lang::random as kernels;
use crate::lower;
use crate::prelude::*;
use crate::transform::Lowered;
use pallas_graph::call::{Callback, Case, ClosedCall, KernelCall, OpSample, Scan, While};
use pallas_graph::mesh::{
    AllGather, AllReduce, AllToAll, Collective, CollectiveKind, DeviceTable, Mesh, Pbroadcast, Permute, ReduceScatter,
};
use pallas_graph::transform::vjp;
use pallas_graph::{Graph, Op, OptimizationBarrier, Var};
use pallas_ir::scalar::SignatureType;
use pallas_ir::{Literal, ScalarOp, StructuralOp, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Every operation, in graphs of their own.
fn every_operation() -> Vec<(String, Graph)> {
    let mut all = vec![];
    for &op in ScalarOp::ALL {
        for &dtype in op.row().class.dtypes() {
            let mut graph = Graph::default();
            let dtype_of = |ty: &SignatureType| if let SignatureType::Is(dtype) = ty { *dtype } else { dtype };
            let args: Vec<Var> =
                op.row().operands.iter().map(|(_, ty)| graph.param(Type::new(dtype_of(ty), [3, 40]))).collect();
            let y = graph.push(op, &args).expect("types of the row");
            graph.results.push(y);
            all.push((format!("{op}-{dtype}"), graph));
        }
    }
    for (i, sample) in StructuralOp::samples().into_iter().enumerate() {
        let number = |name: &&str| {
            let size: pallas_ir::Dim = name.parse().expect("a size");
            size.bind(sample.with).as_number().expect("all names have values") as usize
        };
        let mut graph = Graph::default();
        let shapes = sample.args.iter().map(|shape| shape.iter().map(number).collect::<Vec<usize>>());
        let mut args: Vec<Var> =
            shapes.zip(sample.dtypes).map(|(shape, &dtype)| graph.param(Type::new(dtype, shape))).collect();
        let op = sample.op.bind(sample.with);
        if let StructuralOp::TakeAlong(op) = &op {
            let (index, n) = (graph.ty(args[1]).clone(), graph.ty(args[0]).shape[op.axis]);
            let bounds = [0, n as i64 - 1].map(|n| graph.splat(Literal::int(DType::I32, n), &index.shape));
            args[1] = graph.push(ScalarOp::Clamp, &[args[1], bounds[0], bounds[1]]).expect("i32");
        }
        let y = graph.push(op.clone(), &args).expect("a sample fits");
        graph.results.push(y);
        all.push((format!("{}-{i}", op.name()), graph));
    }
    all.extend(calls());
    all
}

/// `x + y` and `x` of scalars.
fn step() -> Graph {
    let mut step = Graph::default();
    let [x, y] = [0, 1].map(|_| step.param(Type::scalar(DType::F32)));
    let sum = step.push(ScalarOp::Add, &[x, y]).expect("floats");
    step.results = vec![sum, x];
    step
}

/// Every exchange of two devices.
fn every_exchange() -> Graph {
    let mesh = Arc::new(Mesh::new(&[("x", 2)]).expect("a mesh"));
    let mut graph = Graph::default();
    let x = graph.param(Type::new(DType::F32, [2, 3]));
    let kinds = [
        CollectiveKind::from(AllGather),
        AllToAll.into(),
        AllReduce(ScalarOp::Add).into(),
        ReduceScatter(ScalarOp::Add).into(),
        Permute(vec![Some(1), None]).into(),
        Pbroadcast(1).into(),
    ];
    for kind in kinds {
        let op = Collective { kind, mesh: mesh.clone(), axes: mesh.axes() };
        let y = graph.push(op, &[x]).expect("it has parts");
        graph.results.push(y);
    }
    let op = Collective { kind: DeviceTable(vec![3, 5]).into(), mesh: mesh.clone(), axes: mesh.axes() };
    let own = graph.push(op, &[]).expect("an entry for each device");
    graph.results.push(own);
    graph
}

fn calls() -> Vec<(String, Graph)> {
    let (scalar, line) = (Type::scalar(DType::F32), Type::new(DType::F32, [5]));
    let made = |name: &str, takes: &[&Type], op: Op| {
        let mut graph = Graph::default();
        let args: Vec<Var> = takes.iter().map(|&ty| graph.param(ty.clone())).collect();
        graph.results = graph.push_multi_result(op, &args).expect("it fits");
        (name.to_string(), graph)
    };
    let scan = |reverse| Scan { body: step(), captured: 0, carried: 1, length: 5, reverse };
    let empty = Scan { length: 0, ..scan(false) };
    let nothing = Type::new(DType::F32, [0]);
    let mut condition = Graph::default();
    let x = condition.param(scalar.clone());
    let bound = condition.literal(Literal::new(DType::F32, 10.0));
    condition.results = vec![condition.push(ScalarOp::Lt, &[x, bound]).expect("floats")];
    let mut body = Graph::default();
    let [y, x] = [0, 1].map(|_| body.param(scalar.clone()));
    let size = body.push(ScalarOp::Exp, &[y]).expect("floats");
    body.results = vec![body.push(ScalarOp::Add, &[x, size]).expect("floats")];
    let repeat = While { condition, body, condition_captured: 0, body_captured: 1 };
    let unary = |op: ScalarOp| {
        let mut graph = Graph::default();
        let x = graph.param(line.clone());
        graph.results = vec![graph.push(op, &[x]).expect("a float")];
        graph
    };
    let branches = vec![unary(ScalarOp::Sin), unary(ScalarOp::Neg), unary(ScalarOp::Exp)];
    let index = Type::scalar(DType::I32);
    let twice = {
        let mut graph = Graph::default();
        let x = graph.param(line.clone());
        let [a, b] = [0, 1].map(|_| graph.push(ClosedCall(unary(ScalarOp::Sin)), &[x]).expect("it fits"));
        graph.results = vec![graph.push(ScalarOp::Add, &[a, b]).expect("floats")];
        ("call".to_string(), graph)
    };
    let own = vec![
        made("scan", &[&scalar, &line], scan(false).into()),
        made("scan-reverse", &[&scalar, &line], scan(true).into()),
        made("scan-empty", &[&scalar, &nothing], empty.into()),
        made("while", &[&scalar, &scalar], repeat.into()),
        made("case", &[&index, &line], Case { branches }.into()),
        made("barrier", &[&line], OptimizationBarrier.into()),
        twice,
    ];
    // Kernels and functions of the host are no operations of XLA's.
    let is_known = |op: &Op| KernelCall::of_op(op).is_none() && Callback::of_op(op).is_none();
    let samples = OpSample::all(DType::F32).into_iter().filter(|sample| is_known(&sample.op)).enumerate();
    let samples = samples.map(|(i, sample)| (format!("sample-{}-{i}", sample.op.name()), graph_of(&sample)));
    own.into_iter().chain(samples).collect()
}

/// The names of the operations in a text, with their numbers.
fn names(text: &str, into: &mut BTreeMap<String, usize>) {
    for part in text.split('"').filter(|part| part.starts_with("stablehlo.") || part.starts_with("chlo.")) {
        *into.entry(part.strip_prefix("stablehlo.").unwrap_or(part).to_string()).or_default() += 1;
    }
}

#[test]
fn a_text_of_several_operations() {
    let client = Client::cpu();
    let (x, w) = (client.full(&[2, 3], 0.5f32).expect("it fits"), client.full(&[3, 4], 0.25f32).expect("it fits"));
    let lowered = lower(|x: &Array, w: &Array| (x.matmul(w) + 1.0).tanh().sum(0))(&x, &w).expect("it is traced");
    let expected = "\
module @lowered {
  func.func public @main(%0: tensor<2x3xf32>, %1: tensor<3x4xf32>) -> tensor<4xf32> {
    %2 = \"stablehlo.dot_general\"(%0, %1) {dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [], \
rhs_batching_dimensions = [], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>} : \
(tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %3 = \"stablehlo.constant\"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
    %4 = \"stablehlo.broadcast_in_dim\"(%3) {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<2x4xf32>
    %5 = \"stablehlo.add\"(%2, %4) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %6 = \"stablehlo.tanh\"(%5) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %7 = \"stablehlo.constant\"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
    %12 = \"stablehlo.reduce\"(%6, %7) ({
    ^bb0(%8: tensor<f32>, %9: tensor<f32>):
      %10 = \"stablehlo.add\"(%8, %9) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      \"stablehlo.return\"(%10) : (tensor<f32>) -> ()
    }) {dimensions = array<i64: 0>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    \"func.return\"(%12) : (tensor<4xf32>) -> ()
  }
}
";
    assert_eq!(lowered.to_stablehlo(), expected);
}

/// What a body of a loop reads from outside, the body of this one its number, is part of the tuple that it takes.
#[test]
fn a_text_of_a_loop_in_hlo() {
    let all = calls();
    let (_, graph) = all.iter().find(|(name, _)| name == "while").expect("a loop");
    expect_test::expect![[r#"
        HloModule f

        %region0 (p: (f32[], f32[])) -> pred[] {
          %p = (f32[], f32[]) parameter(0)
          %v0 = f32[] get-tuple-element(%p), index=0
          %v2 = f32[] get-tuple-element(%p), index=1
          %v3 = f32[] constant(10.0)
          ROOT %v4 = pred[] compare(%v2, %v3), direction=LT
        }

        %region1 (p: (f32[], f32[])) -> (f32[], f32[]) {
          %p = (f32[], f32[]) parameter(0)
          %v0 = f32[] get-tuple-element(%p), index=0
          %v6 = f32[] get-tuple-element(%p), index=1
          %v7 = f32[] exponential(%v0)
          %v8 = f32[] add(%v6, %v7)
          ROOT %tuple2 = (f32[], f32[]) tuple(%v0, %v8)
        }

        ENTRY %main (v0: f32[], v1: f32[]) -> f32[] {
          %v0 = f32[] parameter(0)
          %v1 = f32[] parameter(1)
          %tuple4 = (f32[], f32[]) tuple(%v0, %v1)
          %loop3 = (f32[], f32[]) while(%tuple4), condition=%region0, body=%region1
          ROOT %v10 = f32[] get-tuple-element(%loop3), index=1
        }
    "#]]
    .assert_eq(&graph.to_hlo("f"));
}

/// `stablehlo.md` says of an operation that it is printed if and only if a text has it.
#[test]
fn the_list_of_operations_is_what_is_printed() {
    let table = include_str!("../../../guide/stablehlo.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let (mut printed, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for (name, what) in rows {
        assert!(listed.insert(name), "{name} is listed twice");
        assert!(what.starts_with("excluded: ") || what.starts_with("for "), "{name}: {what}");
        if what.starts_with("for ") {
            printed.insert(name.to_string());
        }
    }
    assert_eq!(listed.len(), 110, "operations of StableHLO, `return`, and two of CHLO");
    let mut found = BTreeMap::new();
    every_operation().iter().for_each(|(_, graph)| names(&graph.to_stablehlo("f"), &mut found));
    names(&every_exchange().to_stablehlo("f"), &mut found);
    // Kernels, which alone become this operation, are not among the samples.
    found.insert("custom_call".into(), 1);
    let found: BTreeSet<String> = found.into_keys().collect();
    assert_eq!(found, printed, "left: texts, right: stablehlo.md");
}

/// Names of the cases of which XLA's results are not compared, with the reason.
fn is_left_out(name: &str, graph: &Graph) -> bool {
    // Elements that are 16-bit floats are rounded after each of XLA's operations, of which one of ours may be several.
    let is_half = |ty: &Type| matches!(ty.dtype, DType::F16 | DType::Bf16);
    name.starts_with("arg") && graph.types.iter().any(is_half)
}

/// Returns true if a graph, or one that it calls, divides integers by no constant: XLA takes `x / x` for 1, also where
/// `x` is
/// 0.
pub(super) fn divides_integers(graph: &Graph) -> bool {
    let definitions = graph.definitions();
    let is_literal = |v: Var| definitions[v.index()].is_some_and(|i| matches!(graph.equations[i].op, Op::Literal(_)));
    graph.equations.iter().any(|e| match &e.op {
        Op::Scalar(ScalarOp::Div) => !graph.ty(e.result()).dtype.is_float() && !is_literal(e.args[1]),
        Op::Call(call) => call.graphs().into_iter().any(divides_integers),
        _ => false,
    })
}

/// An array of a case for `stablehlo.py`.
pub(super) struct Numbers {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    pub(super) fn of(x: &Array) -> Numbers {
        Numbers { dtype: x.dtype(), shape: x.shape().to_vec(), bytes: x.to_bytes().expect("it ran") }
    }
}

/// Writes the arrays of a case for `stablehlo.py`, behind a line about its devices.
pub(super) fn write_numbers(
    folder: &Path,
    name: &str,
    devices: &str,
    takes: &[Numbers],
    gives: &[Numbers],
    tolerance: f64,
) {
    let (mut lines, mut bytes) = (format!("{devices}\n"), vec![]);
    for (x, end) in takes.iter().map(|x| (x, None)).chain(gives.iter().map(|x| (x, Some(tolerance)))) {
        let shape: Vec<String> = x.shape.iter().map(usize::to_string).collect();
        let (kind, end) = end.map_or(("in", String::new()), |tolerance| ("out", format!(" {tolerance:e}")));
        writeln!(lines, "{kind} {} {}{end}", x.dtype, shape.join(",")).expect("a string");
        bytes.extend(&x.bytes);
    }
    std::fs::write(folder.join(format!("{name}.txt")), lines).expect("the folder can be written");
    std::fs::write(folder.join(format!("{name}.bin")), bytes).expect("the folder can be written");
}

/// Runs the cases of a folder by real XLA and removes it; returns the number of texts that agree.
///
/// # Panics
/// Not all of `written` agree.
pub(super) fn check(python: &str, folder: &Path, written: usize) -> usize {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/jit/tests/stablehlo.py");
    let output = std::process::Command::new(python).arg(script).arg(folder).output().expect("it runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let agreement = format!("agreement: {written} of {written}");
    assert_eq!(text.lines().last(), Some(&agreement[..]), "in {}:\n{text}{errors}", folder.display());
    std::fs::remove_dir_all(folder).expect("the folder can be removed");
    written
}

/// Writes a case: both texts of a graph.
fn write(folder: &Path, name: &str, graph: &Graph, args: &[Array], results: &[Array], tolerance: f64) {
    let [takes, gives] = [args, results].map(|all| all.iter().map(Numbers::of).collect::<Vec<_>>());
    write_numbers(folder, name, "devices 1 blocks", &takes, &gives, tolerance);
    let file = |end: &str| folder.join(format!("{name}.{end}"));
    std::fs::write(file("mlir"), graph.to_stablehlo("case")).expect("the folder can be written");
    std::fs::write(file("hlo"), graph.to_hlo("case")).expect("the folder can be written");
}

/// Real XLA's results, if `PALLAS_JAX` is a Python with JAX: of every operation, of random graphs and of their
/// gradients, and of random kernels as plain operations; from StableHLO and from HLO. `PALLAS_RANDOM_GRAPHS` is the
/// number of graphs.
#[test]
fn xla_computes_the_same() {
    let Ok(python) = std::env::var("PALLAS_JAX") else {
        println!("left out: PALLAS_JAX is not set");
        return;
    };
    let count = if std::env::var("PALLAS_RANDOM_GRAPHS").is_ok() { super::random::count() } else { 40 };
    let folder = std::env::temp_dir().join(format!("pallas-stablehlo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut histogram = BTreeMap::new();
    let mut written = 0;
    let mut add = |name: &str, graph: &Graph, seed: u64, tolerance: f64| {
        names(&graph.to_stablehlo("f"), &mut histogram);
        let client = Client::cpu();
        let args = operands(graph, &client, seed);
        let results = run(graph, &client, &args).unwrap_or_else(|e| panic!("{name}: {e}\n{graph}"));
        write(&folder, name, graph, &args, &results, tolerance);
        written += 2;
    };
    for (i, (name, graph)) in
        every_operation().iter().enumerate().filter(|(_, (name, graph))| !is_left_out(name, graph))
    {
        let is_half = graph.types.iter().any(|ty| matches!(ty.dtype, DType::F16 | DType::Bf16));
        add(&format!("op-{name}"), graph, i as u64, if is_half { 2e-2 } else { 1e-5 });
    }
    for seed in 0..count {
        let plain = drawn(seed, DType::F32, false);
        if divides_integers(&plain) {
            continue;
        }
        add(&format!("graph-{seed}"), &plain, seed, 2e-3);
        let mut graph = drawn(seed ^ 0xfeed, DType::F64, true);
        if divides_integers(&graph) {
            continue;
        }
        graph.results.retain(|r| graph.types[r.index()].dtype.is_float());
        let wrt: Vec<bool> = graph.param_types().iter().map(|ty| ty.dtype == DType::F64).collect();
        let backward = vjp(&graph, &wrt).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        add(&format!("gradient-{seed}"), &backward, seed, 1e-9);
    }
    for seed in 0..count / 4 {
        let call = move |x: &Vec<Array>| kernels::call(x.clone(), seed, kernels::STEPS).map(|(a, b, c)| vec![a, b, c]);
        let args = kernels::operands(&Client::cpu(), seed).expect("they fit");
        let lowered = lower(call)(&args).and_then(Lowered::inline_kernels).unwrap_or_else(|e| panic!("{seed}: {e}"));
        if !divides_integers(lowered.graph()) {
            let results = call(&args).unwrap_or_else(|e| panic!("{seed}: {e}"));
            write(&folder, &format!("kernel-{seed}"), lowered.graph(), &args, &results, 8e-5);
            written += 2;
        }
    }
    println!("{histogram:?}\nagreement: {0} of {0}", check(&python, &folder, written));
}
