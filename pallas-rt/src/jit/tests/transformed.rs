//! Laws of transformations of random graphs: a batch is a loop over its examples, tangents are differences, and both
//! modes of derivatives agree.
#![allow(clippy::print_stdout, reason = "how many graphs ran")]
use super::random::{Dice, agree, count, drawn, drawn_forward, numbers, operands, run};
use crate::prelude::*;
use pallas_graph::call::{Case, Scan};
use pallas_graph::transform::{batched, jvp, linearize, vjp};
use pallas_graph::{Graph, Op, verify};

/// Arrays along a new first axis.
fn stacked(client: &Client, parts: &[&Array]) -> Array {
    let shape = [&[parts.len()], parts[0].shape()].concat();
    let bytes: Vec<u8> = parts.iter().flat_map(|x| x.to_bytes().expect("it ran")).collect();
    client.array_from_bytes(parts[0].dtype(), &shape, &bytes).expect("it fits")
}

/// Element `i` of the first axis.
fn element(client: &Client, x: &Array, i: usize) -> Array {
    let bytes = x.to_bytes().expect("it ran");
    let n = bytes.len() / x.shape()[0];
    client.array_from_bytes(x.dtype(), &x.shape()[1..], &bytes[i * n..(i + 1) * n]).expect("it fits")
}

/// That a graph gives for a batch what it gives for each example, for a random set of operands that differ; returns how
/// many results had to be compared.
fn is_a_loop(graph: &Graph, client: &Client, seed: u64) -> usize {
    let mut dice = Dice(seed ^ 0xba7c);
    let size = 1 + dice.below(3);
    let which: Vec<bool> = graph.params.iter().map(|_| dice.below(2) == 0).collect();
    let (batch, has) = batched(graph, &which, size).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
    verify(&batch).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{batch}"));
    let mut examples: Vec<Vec<Array>> = (0..size).map(|k| operands(graph, client, seed ^ (k as u64) << 32)).collect();
    let first = examples[0].clone();
    for example in &mut examples {
        for ((x, same), &differs) in example.iter_mut().zip(&first).zip(&which) {
            if !differs {
                *x = same.clone();
            }
        }
    }
    let all: Vec<Array> = (0..which.len())
        .map(|i| match which[i] {
            true => stacked(client, &examples.iter().map(|example| &example[i]).collect::<Vec<_>>()),
            false => first[i].clone(),
        })
        .collect();
    let found = run(&batch, client, &all).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{batch}"));
    for (k, example) in examples.iter().enumerate() {
        let expected = run(graph, client, example).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
        for (i, (want, found)) in expected.iter().zip(&found).enumerate() {
            let own = if has[i] { element(client, found, k) } else { found.clone() };
            assert!(agree(want, &own), "seed {seed}, example {k}, result {i}:\n{want}\n{own}\n{graph}\n{batch}");
        }
    }
    has.iter().filter(|has| **has).count()
}

/// Numbers of scans, of branches, and of windows.
fn kinds(graph: &Graph) -> [usize; 3] {
    let count = |f: fn(&Op) -> bool| graph.equations.iter().filter(|e| f(&e.op)).count();
    [
        count(|op| matches!(op, Op::Call(call) if Scan::of(call).is_some())),
        count(|op| Case::of_op(op).is_some()),
        count(|op| matches!(op, Op::Dynamic(_))),
    ]
}

#[test]
fn batches_of_random_graphs_are_loops() {
    let client = Client::cpu();
    let (mut compared, mut seen) = (0, [0; 3]);
    for seed in 0..count() {
        let graph = drawn(seed ^ 0xbead, DType::F32, false);
        compared += is_a_loop(&graph, &client, seed);
        seen.iter_mut().zip(kinds(&graph)).for_each(|(sum, n)| *sum += n);
    }
    println!("random graphs: {} batched, {compared} results, scans, branches and windows: {seen:?}", count());
    assert!(compared as u64 > 4 * count() && seen.iter().all(|&n| n as u64 > count() / 10), "{compared} {seen:?}");
}

#[test]
fn batches_of_random_gradients_are_loops() {
    let client = Client::cpu();
    let mut compared = 0;
    for seed in 0..count() / 2 {
        let mut graph = if seed % 2 == 0 {
            drawn(seed ^ 0x6ead, DType::F64, true)
        } else {
            drawn_forward(seed ^ 0x6ead, DType::F64)
        };
        graph.results.retain(|r| graph.types[r.index()].dtype.is_float());
        let wrt: Vec<bool> = graph.param_types().iter().map(|ty| ty.dtype == DType::F64).collect();
        let derivative = if seed % 2 == 0 { vjp(&graph, &wrt) } else { jvp(&graph, &wrt) };
        let derivative = derivative.unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        compared += is_a_loop(&derivative, &client, seed);
    }
    println!("random graphs: {} derivatives batched, {compared} results", count() / 2);
    assert!(compared as u64 > 2 * count(), "{compared}");
}

/// The tangent along a direction, by central differences; and both modes of derivatives for a random cotangent.
#[test]
fn tangents_of_random_graphs_are_differences() {
    let client = Client::cpu();
    let mut nonzero = 0;
    for seed in 0..count() / 2 {
        let mut graph = drawn_forward(seed ^ 0x7a6e, DType::F64);
        graph.results.retain(|r| graph.types[r.index()].dtype.is_float());
        if seed % 3 == 0 {
            // The derivatives of a batch.
            let mut dice = Dice(seed ^ 0xd1f);
            let which: Vec<bool> = graph.params.iter().map(|_| dice.below(2) == 0).collect();
            graph = batched(&graph, &which, 1 + dice.below(3)).unwrap_or_else(|e| panic!("seed {seed}: {e:?}")).0;
        }
        let on: Vec<bool> = graph.param_types().iter().map(|ty| ty.dtype == DType::F64).collect();
        let forward = jvp(&graph, &on).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        verify(&forward).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{forward}"));
        let mut dice = Dice(seed ^ 0xd1ce);
        let mut like = |x: &Array| {
            let numbers: Vec<f64> = (0..x.len()).map(|_| dice.below(2001) as f64 / 1000.0 - 1.0).collect();
            client.array(&numbers, x.shape()).expect("it fits")
        };
        let args = operands(&graph, &client, seed);
        let directions: Vec<Array> = args.iter().zip(&on).filter(|(_, on)| **on).map(|(x, _)| like(x)).collect();
        let found = run(&forward, &client, &[&args[..], &directions].concat())
            .unwrap_or_else(|e| panic!("{seed}: {e}\n{forward}"));
        let (values, tangents) = found.split_at(graph.results.len());
        let cotangents: Vec<Array> = values.iter().map(&mut like).collect();
        let dot = |a: &[Array], b: &[Array]| -> f64 {
            let pairs = a.iter().zip(b).flat_map(|(a, b)| numbers(a).into_iter().zip(numbers(b)));
            pairs.map(|(a, b)| a * b).sum()
        };
        let along = dot(&cotangents, tangents);
        let (known, rest) = linearize(&graph, &on).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        for part in [&known, &rest] {
            verify(part).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{part}"));
        }
        let stored = run(&known, &client, &args).expect("it runs").split_off(values.len());
        let sharded = run(&rest, &client, &[&stored[..], &directions].concat()).expect("it runs");
        let is_same = |(a, b): (&Array, &Array)| agree(a, b);
        assert!(sharded.iter().zip(tangents).all(is_same), "seed {seed}\n{graph}\n{known}\n{rest}");

        let backward = vjp(&graph, &on).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{graph}"));
        let back = run(&backward, &client, &[&args[..], &cotangents].concat())
            .unwrap_or_else(|e| panic!("{seed}: {e}\n{backward}"));
        let reverse = dot(&back[values.len()..], &directions);
        let scale: f64 = directions.iter().zip(&back[values.len()..]).map(|(a, b)| dot(&[a.abs()], &[b.abs()])).sum();
        let error = (along - reverse).abs() / (1.0 + scale);
        assert!(error < 1e-9, "seed {seed}: {along} forwards, {reverse} in reverse\n{graph}");

        let moved = |h: f64| {
            let mut steps = directions.iter();
            let all = args.iter().zip(&on).map(|(x, on)| match on {
                true => x + steps.next().expect("one for each float") * h,
                false => x.clone(),
            });
            dot(&cotangents, &run(&graph, &client, &all.collect::<Vec<_>>()).expect("it runs"))
        };
        let h = 1e-6;
        let [before, after] = [moved(-h), moved(h)];
        let (differences, middle) = ((after - before) / (2.0 * h), dot(&cotangents, values));
        // Near a kink the two sides differ.
        let is_kink = ((after - middle) - (middle - before)).abs() > 1e-3 * h;
        nonzero += u32::from(differences.abs() > 1e-3);
        let error = (along - differences).abs() / (1.0 + differences.abs());
        assert!(error < 1e-4 || is_kink, "seed {seed}: {along} by tangents, {differences} by differences\n{graph}");
    }
    println!("random graphs: {} with tangents, {nonzero} not zero", count() / 2);
    assert!(u64::from(nonzero) * 4 > count(), "{nonzero} of {} tangents are not zero", count() / 2);
}
