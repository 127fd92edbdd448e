//! Costs of functions on meshes that need not be there: exchanges against those of the steps that run, memory, times
//! against formulas; and pages about functions.
use super::super::planning::StepPlan;
use super::super::program::Program;
use super::programs::{planned, sharded};
use crate::markup::tests::check_markup;
use crate::plan::{MeshComparison, Shardings};
use crate::prelude::*;
use crate::sharding::tests::draw::{Config, Dice, draw};
use crate::sharding::{Link, Mesh, NamedSharding, P, PartitionSpec, Topology};
use crate::{Arg, cond, grad, partitioned, scan, while_loop, with_sharding_constraint};
use pallas_graph::fuse::{Plan, StepOp};
use pallas_graph::shard::{PartitionedGraph, inlined};
use pallas_ir::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

fn mesh(axes: &[(&str, usize)]) -> Arc<Mesh> {
    Arc::new(Mesh::new(axes).expect("a mesh"))
}

fn shaped(shape: &[usize]) -> Array {
    Client::cpu().shape_dtype(shape, DType::F32).expect("it fits")
}

/// A machine with equal rings along all axes of a mesh.
fn rings(mesh: &Mesh) -> Topology {
    (0..mesh.rank()).fold(Topology::new(1e12, 1e11), |all, axis| all.link(mesh.name(axis), Link::ring(1e9, 1e-6)))
}

/// Bytes that the exchanges of a plan's steps send along each set of axes, as they run: a loop's in each of its steps.
fn sent(plan: &Plan, times: usize, all: &mut BTreeMap<Vec<String>, usize>) {
    for step in &plan.steps {
        match &step.work {
            StepOp::Collective { op, ty, .. } if op.communicates() => {
                // The operand by the result: parts for the members are gathered or left out.
                let k = op.group_size();
                let operand = match op.name() {
                    "all_gather" => Type::new(ty.dtype, &ty.shape[1..]),
                    "reduce_scatter" => Type::new(ty.dtype, [&[k], &ty.shape[..]].concat()),
                    _ => ty.clone(),
                };
                let axes = op.axes.iter().map(|axis| op.mesh.name(usize::from(axis.id)).to_string()).collect();
                *all.entry(axes).or_default() += op.bytes_sent_per_device(&operand) * times;
            }
            StepOp::For { body, length, .. } => sent(body, times * length, all),
            StepOp::While { condition, body, .. } => {
                sent(condition, times, all);
                sent(body, times, all);
            }
            StepOp::Case { branches } => branches.iter().for_each(|branch| sent(branch, times, all)),
            StepOp::Kernel { .. } | StepOp::Collective { .. } | StepOp::Print { .. } | StepOp::Callback { .. } => {}
        }
    }
}

/// Bytes by axes and memory of random programs are those of the steps that run on their meshes.
#[test]
fn random_programs_send_what_is_planned() {
    let plain = Config { open: true, operations: 12, ..Config::default() };
    let kinds = [plain, Config { uneven: true, control: true, windows: true, groups: true, kernels: true, ..plain }];
    let mut collectives = 0;
    for (i, config) in kinds.into_iter().enumerate() {
        let mut dice = Dice(70 + i as u64);
        for _ in 0..40 {
            let drawn = draw(&mut dice, &config);
            let graph = inlined(&drawn.graph);
            let (_, partitioned) = sharded(&graph, &drawn.mesh, &drawn.params).expect("no declaration is a kernel's");
            let PartitionedGraph { graph: local, .. } = partitioned;
            let found = StepPlan::from_local_graph(&local, &drawn.mesh, &rings(&drawn.mesh));
            let mut counted = BTreeMap::new();
            let (simplified, plan) = planned(&local, &Client::cpu());
            sent(&plan, 1, &mut counted);
            let by_axes = found.by_axes();
            let planned: BTreeMap<Vec<String>, usize> =
                by_axes.iter().map(|(axes, own)| (axes.clone(), own.bytes)).collect();
            assert_eq!(planned, counted, "{simplified}");
            assert!(by_axes.values().all(|own| own.seconds > 0.0 || own.bytes == 0), "{by_axes:?}");
            let program =
                Program::for_mesh(&drawn.graph, &drawn.mesh, &drawn.params, &Client::cpu()).expect("it compiles");
            assert_eq!(found.memory.temporary_bytes, program.temporary_bytes());
            collectives += found.collectives.len();
        }
    }
    assert!(collectives > 100, "{collectives}");
}

/// A perceptron in the way of Megatron: columns of the first matrix, rows of the second one, over `model`.
fn mlp(mesh: &Arc<Mesh>) -> impl Fn(&Array, &Array, &Array) -> Array + Clone + use<> {
    let named = |spec: PartitionSpec| NamedSharding::new(mesh, spec);
    let (rows, columns, inner) = (named(P(("data", None))), named(P((None, "model"))), named(P(("model", None))));
    move |x, w1, w2| {
        let x = with_sharding_constraint(x, &rows);
        let (w1, w2) = (with_sharding_constraint(w1, &columns), with_sharding_constraint(w2, &inner));
        x.matmul(&w1).relu().matmul(&w2)
    }
}

/// The gradients of its sum of squares by both matrices.
fn step(mesh: &Arc<Mesh>) -> impl Fn(&Array, &Array, &Array) -> Result<(Array, Array)> + Clone + use<> {
    let f = mlp(mesh);
    move |x, w1, w2| {
        let (f, x) = (f.clone(), x.clone());
        let loss = move |w1: &Array, w2: &Array| f(&x, w1, w2).square().sum(..);
        Ok((grad(loss.clone()).argnums(Arg::<0>)(w1, w2)?, grad(loss).argnums(Arg::<1>)(w1, w2)?))
    }
}

/// Exchanges, operations and memory of a perceptron by formulas, on a mesh of 4,096 devices.
#[test]
fn a_perceptron_by_formulas() {
    let (batch, width, hidden, data, model) = (8192, 1024, 4096, 256, 16);
    let mesh = mesh(&[("data", data), ("model", model)]);
    let [x, w1, w2] = [[batch, width], [width, hidden], [hidden, width]].map(|shape| shaped(&shape));
    let found = partitioned(mlp(&mesh))(&x, &w1, &w2).expect("it is traced");
    let (flops, bandwidth, link, latency) = (1e12, 1e11, 1e9, 1e-6);
    let plan = found.plan(&rings(&mesh)).expect("it fits");
    let (rows, columns) = (batch / data, hidden / model);
    let bytes = 2 * (rows * width * 4).div_ceil(model) * (model - 1);
    let model_axis = vec!["model".to_string()];
    assert_eq!(plan.by_axes().keys().collect::<Vec<_>>(), [&model_axis]);
    assert_eq!(plan.by_axes()[&model_axis].bytes, bytes);
    assert_eq!(found.collectives().iter().map(|exchange| exchange.bytes).sum::<usize>(), bytes);
    assert_eq!(plan.count("all_reduce", &["model"]), 1);
    assert_eq!(plan.count("all_reduce", &["data"]), 0);
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
    let half = (model / 2) as f64;
    close(plan.collective_seconds(), bytes as f64 / (2.0 * link) + 2.0 * half * latency);
    // Two products, and a comparison and a choice for each hidden number.
    assert_eq!(plan.work.flops, (2 * 2 * rows * width * columns + 2 * rows * columns) as u64);
    // Operands and results once, what is between them twice, and the parts of sums twice more.
    let values = [rows * width, width * columns, columns * width, 2 * rows * columns, 3 * rows * width];
    assert_eq!(plan.work.bytes_accessed, 4 * values.iter().sum::<usize>() as u64);
    close(plan.compute_seconds, (plan.work.flops as f64 / flops).max(plan.work.bytes_accessed as f64 / bandwidth));
    close(plan.seconds(), plan.compute_seconds + plan.collective_seconds());
    close(plan.overlapped_seconds(), plan.compute_seconds.max(plan.collective_seconds()));
    let arguments = 4 * (rows * width + 2 * width * columns);
    assert_eq!((plan.memory.argument_bytes, plan.memory.output_bytes), (arguments, 4 * rows * width));
    assert!(plan.fits());
    let small = rings(&mesh).memory(plan.memory_bytes() as u64 - 1);
    assert!(!found.plan(&small).expect("it fits the mesh").fits());
    assert_eq!(found.memory_analysis(), plan.memory);
    check_markup(&plan.to_svg());
    let text = plan.to_string();
    assert!(text.contains("collectives along model: 1 with 240.00 KiB"), "{text}");
}

/// The rankings of the guide's page `planning`, each with its numbers by hand.
#[test]
fn meshes_are_ranked_as_by_hand() {
    let rank = |sizes: [usize; 3], links: [Link; 2], memory: Option<u64>| {
        let [batch, width, hidden] = sizes;
        let [x, w1, w2] = [[batch, width], [width, hidden], [hidden, width]].map(|shape| shaped(&shape));
        let machine = links.iter().zip(["data", "model"]);
        let machine = machine.fold(Topology::new(1e14, 1e12), |all, (link, axis)| all.link(axis, link.clone()));
        let machine = memory.map_or(machine.clone(), |bytes| machine.memory(bytes));
        let plan = |(data, model)| -> Result<StepPlan> {
            let mesh = mesh(&[("data", data), ("model", model)]);
            partitioned(step(&mesh))(&x, &w1, &w2)?.plan(&machine)
        };
        [(8, 1), (4, 2), (2, 4), (1, 8)].into_iter().map(plan).collect::<Result<MeshComparison>>().expect("they fit")
    };
    let order = |all: &MeshComparison| all.plans().iter().map(|plan| plan.mesh.size(0)).collect::<Vec<_>>();
    let ring = || Link::ring(1e10, 0.0);
    // Bytes of the gradients of two matrices along `data`, and of one sum of activations along `model`.
    for (sizes, expected) in [([256, 1024, 4096], vec![1, 2, 4, 8]), ([65536, 256, 256], vec![8, 4, 2, 1])] {
        let all = rank(sizes, [ring(), ring()], None);
        let [batch, width, hidden] = sizes;
        for plan in all.plans() {
            let [data, model] = [0, 1].map(|axis| plan.mesh.size(axis));
            let bytes = |axis: &str| plan.by_axes().get(&vec![axis.to_string()]).map_or(0, |own| own.bytes);
            let reduced = |elements: usize, k: usize| 2 * (4 * elements).div_ceil(k) * (k - 1);
            assert_eq!(bytes("data"), 2 * reduced(width * hidden / model, data), "{plan}");
            assert_eq!(bytes("model"), reduced(batch / data * width, model), "{plan}");
        }
        assert_eq!(order(&all), expected, "{all}");
    }
    // With slow links along `data` the exchanges of gradients decide.
    let all = rank([65536, 256, 256], [Link::switch(1e7, 0.0), Link::ring(1e12, 0.0)], None);
    assert_eq!(order(&all), [1, 2, 4, 8], "{all}");
    // What does not fit in memory is last.
    let sizes = [65536, 256, 256];
    let free = rank(sizes, [ring(), ring()], None);
    let least = free.plans().iter().map(StepPlan::memory_bytes).min().expect("there are plans") as u64;
    let limited = rank(sizes, [ring(), ring()], Some(least));
    assert_eq!(limited.best().map(|plan| plan.memory_bytes() as u64), Some(least));
    assert!(limited.plans()[1..].iter().all(|plan| !plan.fits()), "{limited}");
    assert!(limited.to_string().contains("does not fit"));
    assert!(rank(sizes, [ring(), ring()], Some(1)).best().is_none());
    check_markup(&limited.to_svg());
    check_markup(&MeshComparison::from_iter([]).to_svg());
}

/// Two kinds of loops around a product whose sums are reduced, and a branch.
fn loops(mesh: &Arc<Mesh>, steps: usize) -> Result<Shardings> {
    let named = NamedSharding::new(mesh, P((None, "a<b\">&'")));
    let f = move |x: &Array, w: &Array| {
        let w = with_sharding_constraint(w, &named);
        let turn = |x: &Array| x.matmul(&w).matmul(&w.t()).tanh();
        let numbers = crate::ops::zeros(&[steps], DType::F32);
        let (x, _) = scan(x, &numbers, |x: &Array, number: &Array| (turn(x), number + 1.0))?;
        let x = while_loop(&x, |x: &Array| x.sum(..).lt(1.0), |x: &Array| turn(x))?;
        cond(&x.sum(..).gt(0.0), &x, |x: &Array| turn(x), Array::clone)
    };
    partitioned(f)(&shaped(&[4, 8]), &shaped(&[8, 8]))
}

/// Scans count all their steps, other loops one and say so; the page shows what is inside, and escapes names.
#[test]
fn loops_multiply_what_is_in_them() {
    let mesh = mesh(&[("a<b\">&'", 4)]);
    let plans: Vec<StepPlan> =
        [1, 12].map(|steps| loops(&mesh, steps).expect("it is traced").plan(&rings(&mesh)).expect("it fits")).into();
    let (one, many) = (&plans[0], &plans[1]);
    let axis = vec!["a<b\">&'".to_string()];
    let [first, second] = [one, many].map(|plan| plan.by_axes()[&axis]);
    // In the scan, in the other loop and in the branch.
    assert_eq!((first.collectives, second.collectives), (3, 14), "{many}");
    assert_eq!(first.bytes * 14, second.bytes * 3);
    assert!((first.seconds * 14.0 / (second.seconds * 3.0) - 1.0).abs() < 1e-9);
    // The product of 4 rows and 8 x 2 numbers, twice in each step.
    let product = 2 * 4 * 8 * 2;
    let inside = (many.work.flops - one.work.flops) / 11;
    assert!((2 * product..2 * product + 200).contains(&inside), "{inside}");
    assert!(many.work.bytes_accessed > one.work.bytes_accessed);
    assert_eq!(many.unknown_loops, 1);
    assert!(many.to_string().contains("1 loops of unknown length"), "{many}");
    let page = loops(&mesh, 12).expect("it is traced").to_html();
    check_markup(&page);
    for part in [
        "Body of scan",
        "of while",
        "Graph 1 of case",
        "a&lt;b&quot;&gt;&amp;&#39;",
        "id=\"exchange-2\"",
        "#exchange-2",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("a<b") && !page.contains("<script"), "names are escaped");
    check_markup(&many.to_svg());
}

/// Links of a page lead to parts of it that are there, each once.
#[test]
fn links_of_a_page_lead_somewhere() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let [x, w1, w2] = [[64, 128], [128, 512], [512, 128]].map(|shape| shaped(&shape));
    let page = partitioned(step(&mesh))(&x, &w1, &w2).expect("it is traced").to_html();
    check_markup(&page);
    let parts = |before: &str| -> Vec<&str> {
        page.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or_default()).collect()
    };
    let ids = parts(" id=\"");
    for link in parts("href=\"#") {
        assert_eq!(ids.iter().filter(|id| **id == link).count(), 1, "{link}");
    }
    assert!(page.contains("planning.rs:") && page.contains("along data"), "lines and axes");
    let why = "`model` divides dimension 1\n  with_sharding_constraint [{}, {&quot;model&quot;}] at ";
    assert!(page.contains(why), "provenance");
    // A function without exchanges.
    let rows = NamedSharding::new(&mesh, P("data"));
    let page =
        partitioned(move |x: &Array| with_sharding_constraint(x, &rows) * 2.0)(&x).expect("it is traced").to_html();
    check_markup(&page);
    assert!(page.contains("There are none"));
}

#[test]
fn topologies_that_do_not_fit_are_named() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let [x, w1, w2] = [[8, 16], [16, 32], [32, 16]].map(|shape| shaped(&shape));
    let found = partitioned(mlp(&mesh))(&x, &w1, &w2).expect("it is traced");
    let text = found.plan(&Topology::new(1.0, 1.0)).expect_err("no links").to_string();
    assert!(text.contains("no links along the axis `data`") && text.contains("planning.rs"), "{text}");
}
