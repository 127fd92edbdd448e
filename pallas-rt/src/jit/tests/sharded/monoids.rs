//! Reductions of every element type by every monoid along sharded dimensions, on every engine, against one device.
use super::{gpu, mesh};
use crate::jit::program::Program;
use crate::ops::QuantileMethod;
use crate::prelude::*;
use crate::sharding::{DimSharding, NamedSharding, P, Sharding};
use crate::{jit, with_sharding_constraint};
use pallas_device::startup::Engine;
use pallas_graph::Graph;
use pallas_ir::structural::Reduce;
use pallas_ir::{ScalarOp, StructuralOp, Type};

/// Elements whose sums and products are exact in every type, in any order.
fn operand(dtype: DType, shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    let all: Vec<f32> = (0..n).map(|i| [1.0, 2.0, -1.0, 0.5, 2.0, 1.0, 0.0][(i * i + i / 3) % 7]).collect();
    let x = Client::cpu().array(&all, shape).expect("it fits");
    if dtype.is_float() { x.cast(dtype) } else { (x * 2.0).abs().cast(dtype) }
}

#[test]
fn every_monoid_of_every_type_on_every_engine() {
    let mesh = mesh(&[("x", 2), ("y", 3)]);
    let cpu = Client::cpu();
    let shape = [7, 6];
    let along = |names: [&[&str]; 2]| {
        let axes = |names: &[&str]| names.iter().map(|name| mesh.find(name).expect("an axis")).collect();
        Sharding { dims: names.map(|names| DimSharding::closed(axes(names))).to_vec(), ..Sharding::replicated(2) }
    };
    let mut count = 0;
    for &dtype in DType::ALL {
        for &op in ScalarOp::ALL.iter().filter(|op| op.is_monoid(dtype)) {
            // All are combined; or each device needs a part of what is combined.
            for (axes, names) in [(vec![0, 1], [&["x", "y"][..], &[]]), (vec![0], [&["y"], &["x"]])] {
                let mut graph = Graph::default();
                let x = graph.param(Type::new(dtype, shape));
                let y = graph.push(StructuralOp::from(Reduce { axes, op, keep: false }), &[x]).expect("a monoid");
                graph.results.push(y);
                let x = operand(dtype, &shape);
                let whole = Program::new(&graph, &cpu).expect("it compiles").run(&[&x]).expect("it runs").remove(0);
                let whole = whole.to_bytes().expect("it ran");
                let params = [Some(along(names))];
                let check = |engine, client: &Client| {
                    let x = x.to_device(client).expect("it is copied");
                    let program = Program::on_engine(engine, &graph, &mesh, &params, client).expect("it compiles");
                    let found = program.run(&[&x]).expect("it runs").remove(0);
                    assert_eq!(found.to_bytes().expect("it ran"), whole, "{engine:?} {client:?}: {graph}");
                };
                check(Engine::Lockstep, &cpu);
                check(Engine::Threads, &cpu);
                check(Engine::Lockstep, &Client::interpreter());
                if let (Some(gpu), DType::F32 | DType::I32 | DType::U32 | DType::Bool) = (gpu(), dtype) {
                    check(Engine::Lockstep, &gpu);
                }
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}

/// Functions of arrays that reduce truth values, or look rows of them up, along dimensions that are sharded.
#[test]
fn functions_of_truths_along_sharded_dimensions() {
    type F = fn(&Array) -> Array;
    let functions: &[(&str, F)] = &[
        ("any", |x| x.is_nan().any(0)),
        ("all", |x| x.is_finite().all(..)),
        ("max of bools", |x| x.gt(0.5).max(0)),
        ("min of bools", |x| x.gt(0.5).min(..)),
        ("sum of bools", |x| x.gt(0.5).sum(0)),
        ("median", |x| x.median(0)),
        ("quantile", |x| x.quantile(0.3, 0, QuantileMethod::Linear)),
        ("nanmedian", |x| x.nanmedian(0)),
        ("nanquantile", |x| x.nanquantile(0.3, 0, QuantileMethod::Nearest)),
        ("nanmean", |x| x.nanmean(0)),
        ("nanstd", |x| x.nanstd(0)),
        ("nanmax", |x| x.nanmax(0)),
        ("nanmin", |x| x.nanmin(..)),
        ("nanargmax", |x| x.nanargmax(0)),
        ("rows of bools", |x| x.gt(0.5).take(&Array::from_slice(&[3, 0, 6, 3], &[4]).expect("it fits"), 0)),
        ("unique rows", |x| x.gt(0.5).sort(0)),
    ];
    let numbers: Vec<f32> = (0..28).map(|i| if i % 9 == 5 { f32::NAN } else { (i * i % 11) as f32 * 0.1 }).collect();
    let with_nan = Client::cpu().array(&numbers, &[7, 4]).expect("it fits");
    let without = with_nan.nan_to_num();
    for devices in [2, 4, 7] {
        let named = NamedSharding::new(&mesh(&[("x", devices)]), P("x"));
        for (name, f) in functions.iter().copied() {
            for x in [&with_nan, &without] {
                let whole = numbers_of(&jit(f)(x).expect("it runs"));
                let named = named.clone();
                let found = jit(move |x: &Array| f(&with_sharding_constraint(x, &named)))(x);
                let found = numbers_of(&found.expect("it runs"));
                let same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() < 1e-6;
                assert!(whole.iter().zip(&found).all(same), "{name} on {devices}: {found:?}, not {whole:?}");
            }
        }
    }
}

fn numbers_of(x: &Array) -> Vec<f32> {
    x.cast(DType::F32).to_vec().expect("it ran")
}
