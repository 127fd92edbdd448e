//! Laws of every call and operation on a window of the registry, on its samples: on the CPU and the strict interpreter,
//! by whole programs and one operation at a time, it computes the same; tangents and gradients are differences, batches
//! are loops, files hold it.
use super::super::op_by_op;
use super::random::{Dice, agree, numbers, operands, run};
use crate::prelude::*;
use pallas_graph::call::{Callback, OpSample, Print, ShardMap};
use pallas_graph::simplify::simplify;
use pallas_graph::transform::{batched, jvp, vjp};
use pallas_graph::{Graph, Op, Var, text_format, verify};
use pallas_ir::Type;

/// The operation with its operands as parameters.
pub(super) fn graph_of(sample: &OpSample) -> Graph {
    let mut graph = Graph::default();
    let args: Vec<Var> = sample.takes.iter().map(|ty| graph.param(ty.clone())).collect();
    graph.results = graph.push_multi_result(sample.op.clone(), &args).expect("a sample fits");
    verify(&graph).expect("a sample is a graph");
    graph
}

fn is_float(graph: &Graph) -> Vec<bool> {
    graph.param_types().iter().map(|ty| ty.dtype.is_float()).collect()
}

/// Calls `f` for each sample with operands of its graph.
fn each(dtype: DType, mut f: impl FnMut(&OpSample, &Graph, Vec<Array>)) {
    for (i, sample) in OpSample::all(dtype).iter().enumerate() {
        let graph = graph_of(sample);
        let args = operands(&graph, &Client::cpu(), i as u64);
        f(sample, &graph, args);
    }
}

#[test]
fn every_operation_has_samples() {
    let found: Vec<String> = OpSample::all(DType::F32).iter().map(|sample| sample.op.name()).collect();
    // One would show something, the other runs on a mesh alone.
    let without = ["debug_print", "shard_map"];
    let kinds = std::collections::BTreeSet::from_iter(&found).len();
    assert_eq!(kinds + without.len(), OpSample::NAMES.len(), "{found:?} of {:?}", OpSample::NAMES);
    let is_without = |sample: OpSample| Print::of_op(&sample.op).is_some() || ShardMap::of_op(&sample.op).is_some();
    assert!(!OpSample::all(DType::F32).into_iter().any(is_without));
}

#[test]
fn calls_mean_the_same_everywhere() {
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
        each(dtype, |_, graph, args| {
            let cpu = Client::cpu();
            let whole = run(graph, &cpu, &args).unwrap_or_else(|e| panic!("{e}\n{graph}"));
            let single = op_by_op::run_op_by_op(graph, &cpu, &args, &mut |_, _, _| Ok(()));
            let interpreter = Client::interpreter();
            let own: Vec<Array> = args
                .iter()
                .map(|x| {
                    interpreter.array_from_bytes(x.dtype(), x.shape(), &x.to_bytes().expect("it ran")).expect("it fits")
                })
                .collect();
            let interpreted = run(graph, &interpreter, &own);
            for found in [single, interpreted] {
                let found = found.unwrap_or_else(|e| panic!("{e}\n{graph}"));
                assert!(whole.iter().zip(&found).all(|(a, b)| agree(a, b)), "{whole:?} {found:?}\n{graph}");
            }
        });
    }
}

/// The derivative along a direction, by a mode and by central differences.
fn differences(graph: &Graph, args: &[Array], directions: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let client = Client::cpu();
    let h = 1e-6;
    let moved = |h: f64| {
        let all = args.iter().zip(directions).map(|(x, direction)| match x.dtype().is_float() {
            true => {
                let values: Vec<f64> = numbers(x).iter().zip(direction).map(|(x, d)| x + h * d).collect();
                client.array(&values, x.shape()).expect("it fits")
            }
            false => x.clone(),
        });
        run(graph, &client, &all.collect::<Vec<_>>()).expect("it runs")
    };
    let (before, after) = (moved(-h), moved(h));
    let of = |(a, b): (&Array, &Array)| numbers(a).iter().zip(numbers(b)).map(|(a, b)| (b - a) / (2.0 * h)).collect();
    before.iter().zip(&after).map(of).collect()
}

#[test]
fn tangents_and_gradients_are_differences() {
    let client = Client::cpu();
    each(DType::F64, |sample, graph, args| {
        let on = is_float(graph);
        let mut dice = Dice(7);
        let directions: Vec<Vec<f64>> =
            args.iter().map(|x| (0..x.len()).map(|_| dice.below(2001) as f64 / 1000.0 - 1.0).collect()).collect();
        let along = |i: usize| client.array(&directions[i], args[i].shape()).expect("it fits");
        let tangents: Vec<Array> = (0..args.len()).filter(|&i| on[i]).map(along).collect();
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + b.abs()));
        match jvp(graph, &on) {
            Ok(both) => {
                assert!(sample.has_tangents, "{graph}");
                verify(&both).expect("a graph");
                let found = run(&both, &client, &[&args[..], &tangents].concat()).expect("it runs");
                let expected = differences(graph, &args, &directions);
                for (found, expected) in found[graph.results.len()..].iter().zip(&expected) {
                    assert!(close(&numbers(found), expected), "{found} {expected:?}\n{both}");
                }
            }
            Err(refused) => assert!(!sample.has_tangents, "{refused:?}\n{graph}"),
        }
        match vjp(graph, &on) {
            Ok(both) => {
                assert!(sample.has_gradient, "{graph}");
                verify(&both).expect("a graph");
                // The results' own directions are their cotangents.
                let cotangent = |ty: &Type| {
                    let all: Vec<f64> = (0..ty.elements()).map(|_| dice.below(2001) as f64 / 1000.0 - 1.0).collect();
                    client.array(&all, &ty.shape).expect("it fits")
                };
                let cotangents: Vec<Array> = graph.result_types().iter().map(cotangent).collect();
                let found = run(&both, &client, &[&args[..], &cotangents].concat()).expect("it runs");
                let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let gradients = found[graph.results.len()..].iter().zip(&tangents);
                let by_gradient: f64 = gradients.map(|(g, d)| product(&numbers(g), &numbers(d))).sum();
                let expected = differences(graph, &args, &directions);
                let expected: f64 = expected.iter().zip(&cotangents).map(|(d, c)| product(d, &numbers(c))).sum();
                assert!(close(&[by_gradient], &[expected]), "{by_gradient} {expected}\n{both}");
            }
            Err(refused) => assert!(!sample.has_gradient, "{refused:?}\n{graph}"),
        }
    });
}

/// Any operands may have an axis of examples; the others are the same for all.
#[test]
fn batches_are_loops() {
    const SIZE: usize = 3;
    let client = Client::cpu();
    each(DType::F32, |_, graph, args| {
        for mask in 1..1usize << args.len() {
            let has: Vec<bool> = (0..args.len()).map(|i| mask >> i & 1 == 1).collect();
            let (both, flags) = batched(graph, &has, SIZE).unwrap_or_else(|e| panic!("{e:?}\n{graph}"));
            verify(&both).unwrap_or_else(|e| panic!("{e}\n{both}"));
            let all = operands(&both, &client, mask as u64);
            let found = run(&both, &client, &all).unwrap_or_else(|e| panic!("{e}\n{both}"));
            let example = |x: &Array, k: usize| {
                let (bytes, shape) = (x.to_bytes().expect("it ran"), &x.shape()[1..]);
                let n = bytes.len() / SIZE;
                client.array_from_bytes(x.dtype(), shape, &bytes[k * n..(k + 1) * n]).expect("it fits")
            };
            for k in 0..SIZE {
                let one: Vec<Array> =
                    all.iter().zip(&has).map(|(x, &has)| if has { example(x, k) } else { x.clone() }).collect();
                let expected = run(graph, &client, &one).expect("it runs");
                for ((found, &has), expected) in found.iter().zip(&flags).zip(&expected) {
                    let found = if has { example(found, k) } else { found.clone() };
                    assert!(agree(&found, expected), "example {k}: {found} {expected}\n{both}");
                }
            }
        }
    });
}

/// A file has what `simplify` leaves.
#[test]
fn files_hold_operations() {
    each(DType::F32, |_, graph, _| {
        let calls_host = |e: &pallas_graph::Equation| Callback::of_op(&e.op).is_some();
        if graph.equations.iter().any(calls_host) {
            return;
        }
        let text = text_format::print(graph);
        let again = text_format::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again.to_string(), simplify(graph).to_string(), "{text}");
        assert_eq!(text_format::print(&again), text);
    });
}

/// The text of an operation begins with its name, and has the graphs that it calls.
#[test]
fn texts_name_operations() {
    each(DType::F32, |sample, graph, _| {
        let (text, jaxpr) = (graph.to_string(), graph.to_jaxpr(0));
        let name = sample.op.name();
        assert!(text.contains(&format!("= {name}")), "{text}");
        assert!(jaxpr.contains(&name) || jaxpr.contains("pallas_call"), "{jaxpr}");
        let graphs = if let Op::Call(call) = &sample.op { call.graphs() } else { vec![] };
        let inner: usize = graphs.iter().map(|graph| graph.equations.len()).sum();
        assert!(text.lines().count() > inner, "{text}");
    });
}
