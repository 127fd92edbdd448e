//! Functions on meshes of virtual devices, against the same functions on one device.
#![allow(clippy::print_stdout, reason = "how many programs agree")]
use super::super::program::Program;
use super::numbers;
use super::programs::sharded;
use crate::lang::random::gpu;
use crate::prelude::*;
use crate::sharding::tests::draw::{self, Config, Drawn};
use crate::sharding::{Mesh, NamedSharding, P, PartitionSpec, Sharding, UNCONSTRAINED, device_put, dim};
use crate::{
    Arg, BoundedSize, grad, jit, jit_misses, lower, partitioned, random, value_and_grad, vmap, with_sharding_constraint,
};
use pallas_device::startup::Engine;
use pallas_graph::Graph;
use pallas_graph::shard::propagation_program::RegionGraph as View;
use pallas_graph::shard::{PartitionOptions, inlined, partition_with, propagate};
use pallas_ir::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

mod collectives;
mod laws;
mod monoids;
mod retraces;
mod texts;
mod views;

pub(super) use draw::Dice;

pub(super) fn mesh(axes: &[(&str, usize)]) -> Arc<Mesh> {
    Arc::new(Mesh::new(axes).expect("a mesh"))
}

/// An operand of a random program.
pub(super) fn operand(dice: &mut Dice, ty: &Type) -> Array {
    let n: usize = ty.shape.iter().product();
    let cpu = Client::cpu();
    let mut draw = |least: f32, steps: usize, step: f32| {
        let all: Vec<f32> = (0..n).map(|_| dice.below(steps) as f32 * step + least).collect();
        cpu.array(&all, &ty.shape).expect("it fits")
    };
    match ty.dtype {
        DType::F32 => draw(-1.0, 2001, 0.001),
        dtype if dtype.is_float() => draw(-1.0, 2001, 0.001).cast(dtype),
        DType::Bool => draw(0.0, 2, 1.0).cast(DType::Bool),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => draw(0.0, 12, 1.0).cast(ty.dtype),
        dtype => draw(-2.0, 12, 1.0).cast(dtype),
    }
}

/// The greatest difference between blocks and the parts of the whole array that they are, relative to the largest
/// element.
pub(super) fn difference(whole: &[f32], array: &Array, mesh: &Mesh) -> f32 {
    let (shape, sharding) = (array.shape(), array.sharding().expect("it is sharded"));
    let local = sharding.local_shape(shape);
    let scale = whole.iter().fold(1.0f32, |m, x| if x.is_finite() { m.max(x.abs()) } else { m });
    let mut worst = 0.0f32;
    for (position, block) in array.addressable_shards().expect("it has blocks").iter().enumerate() {
        let place: Vec<usize> = sharding.dims.iter().map(|dim| mesh.index(position, &dim.axes)).collect();
        for (i, x) in numbers(block).into_iter().enumerate() {
            let (mut rest, mut at, mut stride, mut is_inside) = (i, 0, 1, true);
            for dim in (0..shape.len()).rev() {
                let coordinate = place[dim] * local[dim] + rest % local[dim];
                rest /= local[dim];
                is_inside &= coordinate < shape[dim];
                at += coordinate * stride;
                stride *= shape[dim];
            }
            if is_inside {
                let y = whole[at];
                let same = x == y || x.is_nan() && y.is_nan();
                let d = if same { 0.0 } else { (x - y).abs() / scale };
                worst = if d.is_nan() { f32::INFINITY } else { worst.max(d) };
            }
        }
    }
    worst
}

/// A program whose blocks have a large number, or not a number, wherever they extend beyond arrays.
fn with_garbage(graph: &Graph, mesh: &Arc<Mesh>, params: &[Option<Sharding>]) -> Program {
    let graph = inlined(graph);
    let found = propagate(View::from_graph(&graph), params, &vec![None; graph.results.len()]);
    let count = graph.equations.len();
    let padding = if count.is_multiple_of(2) { 7e7 } else { f64::NAN };
    // Arrays are small: half of the programs add up in two steps as if they were large.
    let worth_a_collective = if count % 4 < 2 { 0 } else { PartitionOptions::default().collective_cost_bytes };
    let made = partition_with(&found, mesh, PartitionOptions { padding, collective_cost_bytes: worth_a_collective })
        .expect("no declaration is a kernel's");
    Program::of_partitioned(Engine::Lockstep, &graph, (found, made), &Client::cpu()).expect("it compiles")
}

/// Runs a random program on one device and on its mesh; returns the greatest difference.
fn run(drawn: &Drawn, dice: &mut Dice) -> f32 {
    let cpu = Client::cpu();
    let args: Vec<Array> = drawn.graph.param_types().iter().map(|ty| operand(dice, ty)).collect();
    let args: Vec<&Array> = args.iter().collect();
    let one = Program::new(&drawn.graph, &cpu).expect("it compiles").run(&args).expect("it runs");
    let all = with_garbage(&drawn.graph, &drawn.mesh, &drawn.params).run(&args).expect("it runs");
    // A thread for each device gives the same bits.
    if dice.below(2) == 0 {
        let [lockstep, threads] = [Engine::Lockstep, Engine::Threads].map(|engine| {
            let program = Program::on_engine(engine, &drawn.graph, &drawn.mesh, &drawn.params, &cpu);
            program.expect("it compiles").run(&args).expect("it runs")
        });
        for (a, b) in lockstep.iter().zip(&threads) {
            let blocks = |x: &Array| -> Vec<Vec<u8>> {
                x.addressable_shards()
                    .expect("it has blocks")
                    .iter()
                    .map(|x| x.data.to_bytes().expect("read"))
                    .collect()
            };
            assert_eq!(blocks(a), blocks(b), "{}", drawn.text());
        }
    }
    one.iter().zip(&all).map(|(a, b)| difference(&numbers(a), b, &drawn.mesh)).fold(0.0, f32::max)
}

/// Number of random programs of each kind.
fn count() -> usize {
    std::env::var("PALLAS_SHARDINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn random_programs_on_meshes_are_those_on_one_device() {
    let plain = Config { open: true, priorities: true, operations: 12, ..Config::default() };
    let kinds = [
        ("even", plain),
        ("uneven", Config { uneven: true, ..plain }),
        ("control", Config { control: true, ..plain }),
        ("windows", Config { windows: true, ..plain }),
        ("kernels", Config { kernels: true, uneven: true, ..plain }),
        (
            "all",
            Config { kernels: true, uneven: true, control: true, windows: true, groups: true, barriers: true, ..plain },
        ),
    ];
    let mut shown: Vec<String> = vec![];
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut total, mut shards) = (0, 0);
    for (i, (name, config)) in kinds.into_iter().enumerate() {
        let mut dice = Dice(900 + i as u64);
        for k in 0..count() {
            let drawn = draw::draw(&mut dice, &config);
            total += 1;
            if config.kernels {
                let (_, made) = sharded(&inlined(&drawn.graph), &drawn.mesh, &drawn.params).expect("it is partitioned");
                shards += made.graph.to_string().matches("_shard sizes").count();
            }
            let worst = run(&drawn, &mut dice);
            if worst > 2e-4 {
                shown.push(format!("{name} {k}: {worst}\n{}", drawn.text()));
            } else {
                *found.entry(name).or_default() += 1;
            }
        }
    }
    let agreed: usize = found.values().sum();
    println!("agreement: {agreed} of {total} programs {found:?}, {shards} kernels on shards");
    assert!(shards >= count() / 2, "{shards} kernels on shards");
    assert!(shown.is_empty(), "{}", shown[..shown.len().min(2)].join("\n"));
}

/// Clients without threads for virtual devices run what all of them do as one program.
#[test]
fn random_programs_on_meshes_of_other_clients() {
    let config = Config {
        uneven: true,
        open: true,
        control: true,
        windows: true,
        kernels: true,
        operations: 8,
        ..Config::default()
    };
    let clients: Vec<Client> = [Client::interpreter()].into_iter().chain(gpu()).collect();
    for (i, client) in clients.iter().enumerate() {
        let mut dice = Dice(950 + i as u64);
        let mut collectives = 0;
        for _ in 0..count().div_ceil(5) {
            let drawn = draw::draw(&mut dice, &config);
            let args: Vec<Array> = drawn.graph.param_types().iter().map(|ty| operand(&mut dice, ty)).collect();
            let on = |client: &Client| -> Vec<Array> {
                let args: Vec<Array> = args.iter().map(|x| x.to_device(client).expect("it is copied")).collect();
                let program = Program::for_mesh(&drawn.graph, &drawn.mesh, &drawn.params, client).expect("it compiles");
                program.run(&args.iter().collect::<Vec<_>>()).expect("it runs")
            };
            let (whole, found) = (on(&Client::cpu()), on(client));
            for (a, b) in whole.iter().zip(&found) {
                assert_eq!(a.sharding(), b.sharding());
                collectives += usize::from(b.placement().is_some_and(|placement| !placement.receipts.is_empty()));
                let worst = difference(&numbers(a), b, &drawn.mesh);
                assert!(worst < 2e-4, "{client:?}: {worst}\n{}", drawn.text());
            }
        }
        assert!(collectives > 0);
    }
}

/// Two products, of which the first is sharded by columns and the second by rows.
fn mlp(mesh: &Arc<Mesh>) -> impl Fn(&Array, &Array, &Array) -> Array + Clone + use<> {
    let named = |spec| NamedSharding::new(mesh, spec);
    let (rows, columns, inner) = (named(P("data")), named(P((None, "model"))), named(P("model")));
    move |x, w1, w2| {
        let x = with_sharding_constraint(x, &rows);
        let (w1, w2) = (with_sharding_constraint(w1, &columns), with_sharding_constraint(w2, &inner));
        x.matmul(&w1).relu().matmul(&w2)
    }
}

fn mlp_operands() -> [Array; 3] {
    let mut dice = Dice(3);
    [[8usize, 16], [16, 32], [32, 16]].map(|shape| operand(&mut dice, &Type::new(DType::F32, shape)))
}

#[test]
fn a_perceptron_needs_one_exchange() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let [x, w1, w2] = mlp_operands();
    let found = partitioned(mlp(&mesh))(&x, &w1, &w2).expect("it is traced");
    let collectives = found.collectives();
    assert_eq!(collectives.len(), 1, "{collectives:?}");
    assert_eq!((collectives[0].name, &collectives[0].axes[..]), ("all_reduce", &["model".to_string()][..]));
    assert_eq!(found.results()[0].text(&mesh), "[{\"data\"}, {}]");
    let f = mlp(&mesh);
    let y = jit(f)(&x, &w1, &w2).expect("it runs");
    let whole = jit(|x: &Array, w1: &Array, w2: &Array| x.matmul(w1).relu().matmul(w2))(&x, &w1, &w2).expect("it runs");
    assert!(difference(&numbers(&whole), &y, &mesh) < 1e-5);
    assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [2, 1]);
}

/// Weights over one axis of two that divide the batch: a gradient is scattered along that one, and the parts are added
/// up along the other, where arrays are large enough for two exchanges.
#[test]
fn gradients_of_large_weights_are_scattered_first() {
    let mesh = mesh(&[("data", 2), ("fsdp", 4)]);
    let step = |w: &Array, x: &Array| {
        let g = grad(|w: &Array, x: &Array| x.matmul(w).square().mean(..))(w, x)?;
        Ok::<_, Error>(w - g * 0.5)
    };
    for (n, expected) in [(16, [0, 1, 0]), (256, [1, 0, 1])] {
        let drawn = |seed, shape: [usize; 2]| random::normal(random::key(seed), &shape, DType::F32);
        let (w, x) = (drawn(1, [n, n]), drawn(2, [16, n]));
        let put = |x: &Array, spec| device_put(x, &NamedSharding::new(&mesh, spec)).expect("it is sharded");
        let (own, batch) = (put(&w, P("fsdp")), put(&x, P((["data", "fsdp"],))));
        let found = partitioned(step)(&own, &batch).expect("it is traced");
        let count = |name: &str, axes: &[&str]| {
            found.collectives().iter().filter(|one| one.name == name && one.axes == axes).count()
        };
        let all = [("reduce_scatter", &["fsdp"][..]), ("all_reduce", &["data", "fsdp"]), ("all_reduce", &["data"])];
        assert_eq!(all.map(|(name, axes)| count(name, axes)), expected, "{n}: {:?}", found.collectives());
        let (one, all) = (jit(step)(&w, &x).expect("it runs"), jit(step)(&own, &batch).expect("it runs"));
        assert!(difference(&numbers(&one), &all, &mesh) < 1e-5);
    }
}

#[test]
fn gradients_and_batches_are_those_of_one_device() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let [x, w1, w2] = mlp_operands();
    let sharded = mlp(&mesh);
    let step = jit(move |w1: &Array, w2: &Array, x: &Array| {
        let f = sharded.clone();
        let loss = move |w1: &Array, w2: &Array, x: &Array| f(x, w1, w2).square().mean(..);
        let (value, first) = value_and_grad(loss.clone())(w1, w2, x)?;
        Ok::<_, Error>((value, first, grad(loss).argnums(Arg::<1>)(w1, w2, x)?))
    });
    let one = jit(|w1: &Array, w2: &Array, x: &Array| {
        let loss = |w1: &Array, w2: &Array, x: &Array| x.matmul(w1).relu().matmul(w2).square().mean(..);
        let (value, first) = value_and_grad(loss)(w1, w2, x)?;
        Ok::<_, Error>((value, first, grad(loss).argnums(Arg::<1>)(w1, w2, x)?))
    });
    let ((v, a, b), (value, first, second)) =
        (step(&w1, &w2, &x).expect("it runs"), one(&w1, &w2, &x).expect("it runs"));
    assert!((numbers(&v)[0] - numbers(&value)[0]).abs() < 1e-5);
    assert!(difference(&numbers(&first), &a, &mesh) < 1e-5 && difference(&numbers(&second), &b, &mesh) < 1e-5);
    // The gradient of what is sharded by columns is sharded by columns.
    assert_eq!(a.sharding().expect("it is sharded").blocks_per_dim(), [1, 4]);
    // A batch of constraints says nothing about the batch.
    let rows = NamedSharding::new(&mesh, P("model"));
    let scaled = jit(vmap(move |x: &Array| with_sharding_constraint(x, &rows).exp()));
    let y = scaled(&x).expect("it runs");
    assert!(difference(&numbers(&x.exp()), &y, &mesh) < 1e-6);
    assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [1, 4]);
}

/// Each device makes the numbers of its own block, whatever the mesh.
#[test]
fn random_numbers_are_those_of_one_device() {
    let draws: [fn() -> Array; 6] = [
        || random::normal(random::key(7), &[6, 10], DType::F32),
        || random::uniform(random::key(8), &[6, 10], DType::F32),
        || random::bits(random::key(9), &[6, 10], DType::U32).cast(DType::F32),
        || random::randint(random::fold_in(random::key(1), 5), &[6, 10], -7, 900, DType::I32).cast(DType::F32),
        || random::gumbel(random::split_into(random::key(3), 2).remove(1), &[6, 10], DType::F32),
        || random::bernoulli(random::key(4), 0.25, &[6, 10]).cast(DType::F32),
    ];
    let zero = Client::cpu().full(&[], 0.0f32).expect("it fits");
    for axes in [[("x", 2), ("y", 2)], [("x", 3), ("y", 2)], [("x", 6), ("y", 5)]] {
        let mesh = mesh(&axes);
        for draw in draws {
            let sharding = NamedSharding::new(&mesh, P(("x", "y")));
            let found = jit(move |x: &Array| with_sharding_constraint(&(draw() + x), &sharding))(&zero);
            let (found, whole) = (found.expect("it runs"), jit(move |x: &Array| draw() + x)(&zero).expect("it runs"));
            assert_eq!(found.sharding().expect("it is sharded").blocks_per_dim(), [axes[0].1, axes[1].1]);
            assert_eq!(numbers(&found), numbers(&whole));
        }
    }
}

/// The text of a whole function, with what its arguments and constraints declare, gives XLA's partitioner the shardings
/// that are found here.
#[test]
fn shardy_reads_the_text_of_a_function() {
    let Some(python) = std::env::var_os("PALLAS_JAX") else { return };
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let x = Client::cpu().full(&[8, 16], 0.5f32).expect("it fits");
    let w = Client::cpu().full(&[16, 8], 0.5f32).expect("it fits");
    let x =
        device_put(&x, &NamedSharding::new(&mesh, P((dim("data").priority(1), UNCONSTRAINED)))).expect("it is placed");
    let w =
        device_put(&w, &NamedSharding::new(&mesh, P((UNCONSTRAINED, dim("model").priority(0))))).expect("it is placed");
    let columns = NamedSharding::new(&mesh, P((UNCONSTRAINED, dim("model").open().priority(2))));
    let f = move |x: &Array, w: &Array| with_sharding_constraint(&x.matmul(w).tanh(), &columns).index((.., ..4));
    let found = partitioned(f)(&x, &w).expect("it is traced");
    let text = found.to_shardy_text();
    for part in ["{\"data\"}p1", "{\"model\"}]", "{\"model\", ?}p2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/graph/tests/shardy/shardy.py");
    let mut child = std::process::Command::new(python)
        .args([script, "collectives"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("Python starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("it is piped"), text.as_bytes()).expect("it reads");
    let lines = String::from_utf8(child.wait_with_output().expect("Python ends").stdout).expect("text");
    let result =
        lines.lines().find_map(|line| line.strip_prefix("RESULT 0 ")).unwrap_or_else(|| panic!("{lines}\n{text}"));
    let own = format!("#sdy.sharding<@mesh, {}>", found.results()[0].text(&mesh));
    assert_eq!(result, own, "{text}");
}

/// Propagation divides an open dimension, and leaves a closed one alone.
#[test]
fn open_dimensions_are_sharded_further() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let x = Client::cpu().array(&(0..64).map(|i| i as f32).collect::<Vec<_>>(), &[8, 8]).expect("it fits");
    let rows = device_put(&x, &NamedSharding::new(&mesh, P("data"))).expect("it is placed");
    let with = |spec: PartitionSpec| {
        let named = NamedSharding::new(&mesh, spec);
        let f = move |x: &Array| with_sharding_constraint(x, &named) + 1.0;
        let y = jit(f)(&rows).expect("it runs");
        assert_eq!(numbers(&y), numbers(&(&x + 1.0)));
        y.sharding().expect("it is sharded").blocks_per_dim()
    };
    assert_eq!(with(P((UNCONSTRAINED, "model"))), [2, 4]);
    assert_eq!(with(P((None, "model"))), [1, 4]);
    assert_eq!(with(P(UNCONSTRAINED)), [2, 1]);
    assert_eq!(with(P((dim("model").open(), None))), [4, 1]);
    // A dimension that an array leaves open is divided by what a function does with it.
    let open = device_put(&x, &NamedSharding::new(&mesh, P((dim("data"), UNCONSTRAINED)))).expect("it is placed");
    let columns = device_put(&x, &NamedSharding::new(&mesh, P((None, "model")))).expect("it is placed");
    let y = jit(|x: &Array, y: &Array| x + y)(&open, &columns).expect("it runs");
    assert_eq!(numbers(&y), numbers(&(&x + &x)));
    assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [2, 4]);
}

/// Two declarations want one axis for different dimensions of the sum; the stronger priority has it.
#[test]
fn priorities_decide_between_declarations() {
    let mesh = mesh(&[("model", 4)]);
    let x = Client::cpu().array(&(0..64).map(|i| i as f32).collect::<Vec<_>>(), &[8, 8]).expect("it fits");
    let parts = |rows: u32, columns: u32| {
        let put = |spec| device_put(&x, &NamedSharding::new(&mesh, spec)).expect("it is placed");
        let (a, b) = (put(P(dim("model").priority(rows))), put(P((None, dim("model").priority(columns)))));
        let y = jit(|a: &Array, b: &Array| a + b)(&a, &b).expect("it runs");
        assert_eq!(numbers(&y), numbers(&(&x + &x)));
        y.sharding().expect("it is sharded").blocks_per_dim()
    };
    assert_eq!(parts(0, 1), [4, 1]);
    assert_eq!(parts(1, 0), [1, 4]);
    assert_eq!(parts(7, 3), [1, 4]);
}

/// One compilation for all lengths on a mesh: arguments, values and captured arrays are sharded as long as the bound.
#[test]
fn bounded_functions_on_meshes() {
    let mesh = mesh(&[("data", 2), ("model", 2)]);
    let put = |x: &Array, spec: PartitionSpec| device_put(x, &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let counted = |n: usize| -> Array {
        let all: Vec<f32> = (0..n * 4).map(|i| i as f32 * 0.125 - 1.0).collect();
        Client::cpu().array(&all, &[n, 4]).expect("it fits")
    };
    let (w, rows) = (counted(4), NamedSharding::new(&mesh, P("data")));
    let sharded = put(&w, P((None, "model")));
    let f = |w: Array, rows: Option<NamedSharding>| {
        move |x: &Array| {
            let y = x.matmul(&w).tanh();
            let y = rows.as_ref().map_or(y.clone(), |rows| with_sharding_constraint(&y, rows));
            (&y * 2.0, y.sum(0), y.softmax(0))
        }
    };
    let size = [BoundedSize::new("n", 8).axis("0", 0)];
    let plain = jit(f(w, None));
    let bounded = jit(f(sharded, Some(rows))).bounded(size);
    let line = line!() - 1;
    for n in [8, 2, 6, 4, 2, 8] {
        let x = counted(n);
        let (found, expected) = (bounded(&put(&x, P("data"))).expect("it runs"), plain(&x).expect("it runs"));
        assert_eq!(found.0.sharding().expect("it is on the mesh").blocks_per_dim(), [2, 1], "n = {n}");
        for (a, b) in [(found.0, expected.0), (found.1, expected.1), (found.2, expected.2)] {
            assert_eq!(a.shape(), b.shape());
            let worst = numbers(&a).iter().zip(&numbers(&b)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "n = {n}: {worst}");
        }
    }
    // On one line of its own.
    let misses = jit_misses();
    let own = misses.iter().filter(|miss| miss.at.file.ends_with("tests/sharded.rs") && miss.at.line == line);
    assert_eq!(own.count(), 1);
}

#[test]
fn mistakes_of_shardings_are_named() {
    let mesh = mesh(&[("data", 2), ("model", 4)]);
    let x = Client::cpu().full(&[6, 8], 1.0f32).expect("it fits");
    let error = |spec| device_put(&x, &NamedSharding::new(&mesh, spec)).expect_err("a mistake").to_string();
    let texts = [
        (error(P("rows")), "`rows` is no axis of the mesh"),
        (error(P(("data", "data"))), "axis `data` divides an array of f32[6,8] twice"),
        (error(P(("data", None, None))), "a spec of 3 entries for an array of f32[6,8]"),
        (error(P("model")), "dimension 0 of an array of f32[6,8] in 4 parts"),
        (error(P(dim(None).priority(1))), "a priority of dimension 0, which nothing divides"),
    ];
    for (text, part) in texts {
        assert!(text.contains(part) && text.contains("sharded.rs"), "{text}");
    }
}

/// Donated arguments, and compilation ahead of time.
#[test]
fn other_ways_to_compile() {
    let mesh = mesh(&[("data", 2)]);
    let rows = NamedSharding::new(&mesh, P("data"));
    let f = move |x: &Array| with_sharding_constraint(x, &rows) * 3.0;
    let x = || Client::cpu().array(&[1.0f32, 2.0, 3.0, 4.0], &[4]).expect("it fits");
    let ahead = lower(f.clone())(&x()).expect("it is traced").compile().expect("it compiles");
    let donating = jit(move |x: &Array| f(x)).donate_argnums(Arg::<0>);
    for y in [ahead(&x()).expect("it runs"), donating(x()).expect("it runs")] {
        assert_eq!(numbers(&y), [3.0, 6.0, 9.0, 12.0]);
        assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [2]);
    }
}

/// A graph of no equations, and one whose results are its parameters.
#[test]
fn results_that_are_arguments() {
    let mesh = mesh(&[("x", 2)]);
    let mut graph = Graph::default();
    let p = graph.param(Type::new(DType::F32, [4]));
    graph.results = vec![p, p];
    let declared = vec![Some(Sharding::closed([vec![mesh.axis(0)]]))];
    let program = Program::for_mesh(&graph, &mesh, &declared, &Client::cpu()).expect("it compiles");
    let x = Client::cpu().array(&[1.0f32, 2.0, 3.0, 4.0], &[4]).expect("it fits");
    for y in program.run(&[&x]).expect("it runs") {
        assert_eq!(numbers(&y), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// Outside of functions a constraint divides as `device_put` does, with its mistakes.
#[test]
fn constraints_at_once_are_those_of_device_put() {
    let mesh = mesh(&[("data", 4)]);
    let x = Client::cpu().full(&[6, 2], 1.0f32).expect("it fits");
    let named = NamedSharding::new(&mesh, P("data"));
    let found = with_sharding_constraint(&x, &named).to_vec::<f32>().expect_err("6 rows in 4 parts").to_string();
    let put = device_put(&x, &named).expect_err("6 rows in 4 parts").to_string();
    let message = "dimension 0 of an array of f32[6,2] in 4 parts";
    assert!(found.contains(message) && put.contains(message), "{found}\n{put}");
    assert!(found.contains(file!()), "{found}");
}
