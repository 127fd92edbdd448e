//! Laws of random graphs over the whole registry of operations: fused into kernels they give what each operation gives
//! alone, on the CPU and on the strict interpreter; their gradients are differences, in f64.
//!
//! The CPU contracts no product with a sum, so graphs without sums along axes have equal bits fused and not. The order
//! of such sums changes, and the interpreter's functions differ in their last bits: these floats are compared up to a
//! tolerance. Operations with jumps take only values that are equal in both, and floats are kept small.
#![allow(clippy::print_stdout, reason = "how many graphs ran")]
mod calls;
mod draw;

pub(super) use draw::{Dice, drawn, drawn_forward};

use super::super::op_by_op;
use super::super::program::Program;
use crate::DeviceKind;
use crate::prelude::*;
use pallas_graph::transform::vjp;
use pallas_graph::{Graph, Op, verify};
use pallas_ir::{Literal, ScalarOp, StructuralOp, Type};
use std::collections::BTreeMap;

/// Number of graphs: from `PALLAS_RANDOM_GRAPHS`, else a small sample.
pub(super) fn count() -> u64 {
    std::env::var("PALLAS_RANDOM_GRAPHS").map_or(300, |n| n.parse().expect("PALLAS_RANDOM_GRAPHS is a number"))
}

/// Operands for a graph, the same on every client.
pub(super) fn operands(graph: &Graph, client: &Client, seed: u64) -> Vec<Array> {
    let mut dice = Dice(!seed);
    let array = |ty: Type| {
        let numbers: Vec<f64> = (0..ty.elements()).map(|_| dice.below(4001) as f64 / 1000.0 - 2.0).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| Literal::new(ty.dtype, *x).to_bytes()).collect();
        client.array_from_bytes(ty.dtype, &ty.shape, &bytes).expect("it fits")
    };
    graph.param_types().into_iter().map(array).collect()
}

pub(super) fn run(graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    Program::new(graph, client)?.run(&args.iter().collect::<Vec<_>>())
}

/// Each equation by a program of its own.
fn one_at_a_time(graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    op_by_op::run_op_by_op(graph, client, args, &mut |_, _, _| Ok(()))
}

pub(super) fn numbers(x: &Array) -> Vec<f64> {
    let bytes = x.to_bytes().expect("it ran");
    let bits = |b: &[u8]| b.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    bytes.chunks(x.dtype().bytes()).map(|b| Literal { dtype: x.dtype(), bits: bits(b) }.as_f64()).collect()
}

pub(super) fn agree(a: &Array, b: &Array) -> bool {
    let close = |(x, y): (f64, f64)| x == y || a.dtype().is_float() && (x - y).abs() <= 2e-3;
    a.shape() == b.shape() && a.dtype() == b.dtype() && numbers(a).into_iter().zip(numbers(b)).all(close)
}

/// Returns true if a graph adds or multiplies along axes: fusion may divide these among programs in another way.
fn sums(graph: &Graph) -> bool {
    use StructuralOp::{Conv, Cumulative, Dot, Reduce, ReduceWindow};
    graph.equations.iter().any(|e| match &e.op {
        Op::Structural(op) => matches!(op, Conv(_) | Cumulative(_) | Dot(_) | Reduce(_) | ReduceWindow(_)),
        Op::Call(call) => call.graphs().into_iter().any(sums),
        Op::Literal(_) | Op::Scalar(_) | Op::Dynamic(_) | Op::Identity(_) | Op::Collective(_) => false,
    })
}

/// Adds the number of times that a graph, and those that it calls, has each operation.
fn add_operations(graph: &Graph, to: &mut BTreeMap<String, usize>) {
    for e in &graph.equations {
        let name = match &e.op {
            Op::Literal(_) => "literal".into(),
            Op::Structural(op) => op.name().into(),
            Op::Call(call) => call.name().into(),
            Op::Scalar(_) | Op::Dynamic(_) | Op::Identity(_) | Op::Collective(_) => {
                e.op.to_string().split(' ').next().unwrap_or_default().into()
            }
        };
        *to.entry(name).or_default() += 1;
        if let Op::Call(call) = &e.op {
            call.graphs().into_iter().for_each(|graph| add_operations(graph, to));
        }
    }
}

/// The names of all operations that random graphs draw. Kernels have random kernels, and prints show what they are
/// given.
fn registry() -> Vec<String> {
    let calls = ["scan", "while", "case", "custom_vjp", "custom_jvp", "call", "checkpoint", "name"];
    let others = [
        "literal",
        "stop_gradient",
        "optimization_barrier",
        "sharding_constraint",
        "dynamic_slice",
        "dynamic_update_slice",
    ];
    let names = StructuralOp::NAMES.iter().copied().chain(calls).chain(others).map(String::from);
    ScalarOp::ALL.iter().map(ScalarOp::to_string).chain(names).collect()
}

/// Each operation of the registry is drawn; `PALLAS_HISTOGRAM=1` shows how often.
#[test]
fn random_graphs_have_every_operation() {
    let graphs = count().max(600);
    let mut found = registry().into_iter().map(|name| (name, 0)).collect::<BTreeMap<_, _>>();
    (0..graphs).for_each(|seed| add_operations(&drawn(seed, DType::F32, false), &mut found));
    if std::env::var_os("PALLAS_HISTOGRAM").is_some() {
        found.iter().for_each(|(name, n)| println!("{n:7} {name}"));
    }
    let rare: Vec<_> = found.iter().filter(|(_, n)| (**n as u64) < graphs / 100).collect();
    assert!(rare.is_empty(), "of {graphs} graphs few have these operations: {rare:?}");
}

#[test]
fn random_graphs_mean_the_same_fused() {
    let clients = [Client::cpu(), Client::interpreter()];
    let (mut same, mut all) = (0, 0);
    for seed in 0..count() {
        let graph = drawn(seed, DType::F32, false);
        let [cpu, interpreter] = &clients;
        let expected =
            one_at_a_time(&graph, cpu, &operands(&graph, cpu, seed)).unwrap_or_else(|e| panic!("{seed}: {e}\n{graph}"));
        for client in [cpu, interpreter] {
            let found = run(&graph, client, &operands(&graph, client, seed));
            let found = found.unwrap_or_else(|e| panic!("seed {seed} on {client:?}: {e}\n{graph}"));
            for (i, (a, b)) in expected.iter().zip(&found).enumerate() {
                assert!(agree(a, b), "seed {seed}, result {i} on {client:?}:\n{a}\n{b}\n{graph}");
                if client.kind() == DeviceKind::Cpu {
                    let is_same = a.to_bytes() == b.to_bytes();
                    assert!(is_same || sums(&graph), "seed {seed}, result {i} has other bits:\n{a}\n{b}\n{graph}");
                    (same, all) = (same + u32::from(is_same), all + 1);
                }
            }
        }
    }
    println!("random graphs: {} fused, {same} of {all} results bit for bit as one operation at a time", count());
    assert!(same * 100 > all * 95, "{same} of {all}");
}

/// The same on a GPU, if there is one, for a few graphs: each shader takes long to compile on a software adapter.
#[cfg(feature = "gpu")]
#[test]
fn random_graphs_mean_the_same_on_a_gpu() {
    let Some(gpu) = crate::lang::random::gpu() else { return };
    let (cpu, count) = (Client::cpu(), (count() / 30).max(20));
    for seed in 0..count {
        let graph = drawn(seed ^ 0x6b0, DType::F32, false);
        let uses = |dtype: DType| graph.types.iter().any(|ty| ty.dtype == dtype);
        if uses(DType::F64) || uses(DType::I64) || uses(DType::U64) {
            continue;
        }
        let expected =
            run(&graph, &cpu, &operands(&graph, &cpu, seed)).unwrap_or_else(|e| panic!("{seed}: {e}\n{graph}"));
        let found = run(&graph, &gpu, &operands(&graph, &gpu, seed));
        let found = found.unwrap_or_else(|e| panic!("seed {seed} on {gpu:?}: {e}\n{graph}"));
        for (i, (a, b)) in expected.iter().zip(&found).enumerate() {
            assert!(agree(a, b), "seed {seed}, result {i} on {gpu:?}:\n{a}\n{b}\n{graph}");
        }
    }
    println!("random graphs: {count} on {gpu:?}");
}

/// The derivative along a direction, by the gradient and by central differences.
#[test]
fn gradients_of_random_graphs_are_differences() {
    let client = Client::cpu();
    let mut nonzero = 0;
    for seed in 0..count() {
        let mut graph = drawn(seed ^ 0xfeed, DType::F64, true);
        graph.results.retain(|r| graph.types[r.index()].dtype.is_float());
        // The sum of all results, each of which may occur twice.
        let mut total = graph.literal(Literal::new(DType::F64, 0.0));
        for r in graph.results.clone() {
            let axes = (0..graph.ty(r).shape.len()).collect();
            let sum = pallas_ir::structural::Reduce::dropping(ScalarOp::Add, axes);
            let sum = graph.push(StructuralOp::from(sum), &[r]).expect("floats");
            total = graph.push(ScalarOp::Add, &[total, sum]).expect("scalars");
        }
        graph.results = vec![total];
        let wrt: Vec<bool> = graph.param_types().iter().map(|ty| ty.dtype == DType::F64).collect();
        let backward = vjp(&graph, &wrt).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        verify(&backward).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{backward}"));
        let args = operands(&graph, &client, seed);
        let one = client.array(&[1.0f64], &[]).expect("it fits");
        let found = run(&backward, &client, &[&args[..], &[one]].concat())
            .unwrap_or_else(|e| panic!("{seed}: {e}\n{backward}"));
        let mut dice = Dice(seed ^ 0xd1ce);
        let directions: Vec<Vec<f64>> =
            args.iter().map(|x| (0..x.len()).map(|_| dice.below(2001) as f64 / 1000.0 - 1.0).collect()).collect();
        let moved = |h: f64| {
            let all = args.iter().zip(&directions).zip(&wrt).map(|((x, direction), on)| {
                let values: Vec<f64> = numbers(x).iter().zip(direction).map(|(x, d)| x + h * d).collect();
                if *on { client.array(&values, x.shape()).expect("it fits") } else { x.clone() }
            });
            numbers(&run(&graph, &client, &all.collect::<Vec<_>>()).expect("it runs")[0])[0]
        };
        let h = 1e-6;
        let [before, after] = [moved(-h), moved(h)];
        let differences = (after - before) / (2.0 * h);
        // Near a kink the two sides differ.
        let middle = numbers(&found[0])[0];
        let is_kink = ((after - middle) - (middle - before)).abs() > 1e-3 * h;
        let gradients = found[1..].iter().zip(directions.iter().zip(&wrt).filter(|(_, on)| **on).map(|(d, _)| d));
        let along: f64 = gradients.flat_map(|(g, d)| numbers(g).into_iter().zip(d).map(|(g, d)| g * d)).sum();
        nonzero += u32::from(differences.abs() > 1e-3);
        let error = (along - differences).abs() / (1.0 + differences.abs());
        assert!(error < 1e-4 || is_kink, "seed {seed}: {along} by the gradient, {differences} by differences\n{graph}");
    }
    assert!(u64::from(nonzero) * 2 > count(), "{nonzero} of {} gradients are not zero", count());
}
