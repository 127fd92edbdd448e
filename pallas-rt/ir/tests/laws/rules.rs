//! Laws of the structural operations' rules: tangents, cotangents and batches, over every sample of every operation.
use crate::oracle::shaped::{Arrays, Value, arg, get, number, put, structural};
use crate::registry::Values;
use pallas_ir::structural::{OpTestCase, VmapBatch};
use pallas_ir::{DType, Dim, E, StructuralOp, Type};
use std::cell::RefCell;

/// Numbers in (0.2, 0.9) that no two positions share; an index stays inside of 3 elements.
fn numbers(n: usize, seed: usize, dtype: DType) -> Vec<f64> {
    let raw = |i: usize| (i * 7919 + seed * 104_729 + 13) % 1009;
    (0..n).map(|i| if dtype.is_float() { 0.2 + 0.7 * raw(i) as f64 / 1009.0 } else { (raw(i) % 3) as f64 }).collect()
}

fn value(shape: &[Dim], dtype: DType, seed: usize) -> Value {
    let n = shape.iter().map(number).product();
    Value { shape: shape.to_vec(), data: numbers(n, seed, dtype), dtype }
}

/// The operation for numbers, and operands.
fn operands(sample: &OpTestCase<StructuralOp>) -> (StructuralOp, Vec<Value>) {
    let size = |name: &&str| name.parse::<Dim>().expect("a size").bind(sample.with);
    let shapes = sample.args.iter().map(|shape| shape.iter().map(size).collect::<Vec<_>>());
    let values = shapes.zip(sample.dtypes).enumerate().map(|(i, (shape, &dtype))| value(&shape, dtype, i + 1));
    (sample.op.bind(sample.with), values.collect())
}

fn apply(op: &StructuralOp, args: &[Value]) -> Value {
    structural(op, &args.iter().collect::<Vec<_>>())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[test]
fn every_operation_has_samples() {
    for name in StructuralOp::NAMES {
        assert!(StructuralOp::samples().iter().any(|s| s.op.name() == *name), "`{name}` has no sample");
    }
}

/// The tangent by the rule, for a tangent of one operand.
fn tangent(op: &StructuralOp, args: &[Value], i: usize, dx: &Value) -> Option<Vec<f64>> {
    let g = RefCell::new(Arrays::default());
    let operands: Vec<_> = args.iter().map(|a| arg(&g, a)).collect();
    let y = put(&g, apply(op, args));
    let tangents: Vec<Option<E<'_>>> = (0..args.len()).map(|k| (k == i).then(|| put(&g, dx.clone()))).collect();
    let made = get(&g, op.jvp(&operands, y, &tangents)?);
    assert_eq!(made.shape, get(&g, y).shape, "{op}: a tangent is shaped as its value");
    Some(made.data)
}

#[test]
fn jvp_is_finite_differences() {
    const STEP: f64 = 1e-6;
    for sample in StructuralOp::samples() {
        let (op, args) = operands(&sample);
        for i in (0..args.len()).filter(|&i| args[i].dtype.is_float()) {
            let dx = value(&args[i].shape, args[i].dtype, 9);
            let moved = |by: f64| {
                let mut args = args.clone();
                args[i].data.iter_mut().zip(&dx.data).for_each(|(x, d)| *x += by * d);
                apply(&op, &args)
            };
            // Bits, positions and whole numbers have no slope.
            let smooth = moved(0.0).dtype.is_float();
            let (up, down) = (moved(STEP).data, moved(-STEP).data);
            let got = tangent(&op, &args, i, &dx);
            assert_eq!(got.is_some(), smooth, "{op}, operand {i}");
            for (k, got) in got.into_iter().flatten().enumerate() {
                let want = (up[k] - down[k]) / (2.0 * STEP);
                assert!(
                    (got - want).abs() <= 1e-6 * (1.0 + want.abs()),
                    "{op}, operand {i}, element {k}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn jvp_of_products_knows_zeros() {
    for sample in StructuralOp::samples().into_iter().filter(|s| s.op.to_string().contains("op(mul)")) {
        let (op, mut args) = operands(&sample);
        args[0].data[1] = 0.0;
        let dx = value(&args[0].shape, args[0].dtype, 9);
        let got = tangent(&op, &args, 0, &dx).expect("products have slopes");
        assert!(got.iter().all(|x| x.is_finite()) && got.iter().any(|x| *x != 0.0), "{op}: {got:?}");
    }
}

#[test]
fn ties_share_the_slope() {
    for sample in StructuralOp::samples().into_iter().filter(|s| s.op.name() == "reduce") {
        let (op, mut args) = operands(&sample);
        args[0].data.fill(0.5);
        let dx = Value { data: vec![1.0; args[0].data.len()], ..args[0].clone() };
        let extreme = ["minimum", "maximum"].iter().any(|m| op.to_string().contains(m));
        let got = tangent(&op, &args, 0, &dx).expect("floats have slopes");
        assert!(!extreme || got.iter().all(|x| (x - 1.0).abs() < 1e-12), "{op}: {got:?}");
    }
}

/// True if a sum of operands gives the sum of results, but for what the other operands give alone.
fn additive(op: &StructuralOp, args: &[Value], i: usize) -> bool {
    let other = value(&args[i].shape, args[i].dtype, 17).data;
    let with = |x: Vec<f64>| {
        let mut args = args.to_vec();
        args[i].data = x;
        apply(op, &args).data
    };
    let own = &args[i].data;
    let sum = with(own.iter().zip(&other).map(|(a, b)| a + b).collect());
    let (own, none) = (with(own.clone()), with(vec![0.0; own.len()]));
    let other = with(other);
    (0..sum.len()).all(|k| (sum[k] + none[k] - own[k] - other[k]).abs() < 1e-9)
}

#[test]
fn transpose_is_jvp_turned_round() {
    for sample in StructuralOp::samples() {
        let (op, args) = operands(&sample);
        let y = apply(&op, &args);
        let dy = value(&y.shape, y.dtype, 5);
        let g = RefCell::new(Arrays::default());
        let operands: Vec<_> = args.iter().map(|a| arg(&g, a)).collect();
        let cotangents = op.transpose(&operands, put(&g, dy.clone()));
        assert_eq!(cotangents.len(), args.len(), "{op}: one cotangent an operand");
        for (i, cotangent) in cotangents.into_iter().enumerate() {
            let float = args[i].dtype.is_float() && y.dtype.is_float();
            let Some(cotangent) = cotangent else {
                assert!(!float || !additive(&op, &args, i), "{op} is linear in operand {i}");
                continue;
            };
            assert!(float, "{op}: operand {i} has no cotangent");
            let dx = value(&args[i].shape, args[i].dtype, 11);
            let forward = tangent(&op, &args, i, &dx).expect("linear operations have slopes");
            let back = get(&g, cotangent);
            assert_eq!(back.shape, args[i].shape, "{op}: a cotangent is shaped as its operand");
            let (a, b) = (dot(&forward, &dy.data), dot(&dx.data, &back.data));
            assert!((a - b).abs() <= 1e-9 * (1.0 + a.abs()), "{op}, operand {i}: {a} {b}");
        }
    }
}

/// A value with one axis more, at every place, from the values along it.
fn stacked(parts: &[Value], at: usize) -> Value {
    let mut shape = parts[0].shape.clone();
    shape.insert(at, Dim::from(parts.len()));
    let outer: usize = shape[..at].iter().map(number).product();
    let inner: usize = shape[at + 1..].iter().map(number).product();
    let element = |i: usize| parts[i / inner % parts.len()].data[i / (inner * parts.len()) * inner + i % inner];
    Value { data: (0..outer * parts.len() * inner).map(element).collect(), shape, dtype: parts[0].dtype }
}

/// Checks that an operation on operands with an axis more is a loop over it, for every set of such operands, with the
/// axis at the front and at the back. `part` gives operand `i` of element `k`.
fn is_a_loop(op: &StructuralOp, args: &[Value], part: &dyn Fn(usize, usize) -> Value) {
    const SIZE: usize = 2;
    for set in 1..1usize << args.len() {
        for back in [false, true] {
            let g = RefCell::new(Arrays::default());
            let chosen = |i: usize| set >> i & 1 == 1;
            let axis = |i: usize| chosen(i).then(|| if back { args[i].shape.len() } else { 0 });
            let axes: Vec<Option<usize>> = (0..args.len()).map(axis).collect();
            let part = |i: usize, k: usize| if chosen(i) { part(i, k) } else { args[i].clone() };
            let mut operands = vec![];
            for (i, a) in args.iter().enumerate() {
                let parts: Vec<Value> = (0..SIZE).map(|k| part(i, k)).collect();
                let whole = axes[i].map_or(a.clone(), |at| stacked(&parts, at));
                operands.push(pallas_ir::structural::RuleOperand {
                    value: put(&g, whole),
                    shape: &a.shape,
                    dtype: a.dtype,
                });
            }
            let batch = VmapBatch { size: Dim::from(SIZE), axes: &axes };
            let made = op.batched(&operands, &batch).unwrap_or_else(|| panic!("{op} has operands"));
            let one = |k: usize| apply(op, &(0..args.len()).map(|i| part(i, k)).collect::<Vec<_>>());
            let want = stacked(&(0..SIZE).map(one).collect::<Vec<_>>(), 0);
            let got = get(&g, made);
            assert_eq!(got.shape, want.shape, "{op}, {axes:?}");
            let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-12 || a.is_nan() && b.is_nan();
            assert!(got.data.iter().zip(&want.data).all(near), "{op}, {axes:?}: {:?} {:?}", got.data, want.data);
        }
    }
}

#[test]
fn batched_is_a_loop() {
    for sample in StructuralOp::samples() {
        let (op, args) = operands(&sample);
        is_a_loop(&op, &args, &|i, k| value(&args[i].shape, args[i].dtype, 20 + i + 7 * k));
    }
}

#[test]
fn batches_of_drawn_operations_are_loops() {
    let shapes: [&[usize]; 6] = [&[], &[3], &[2, 3], &[1, 3], &[3, 2], &[3, 1, 2]];
    let all: Vec<Type> = DType::ALL.iter().flat_map(|&dtype| shapes.map(|shape| Type::new(dtype, shape))).collect();
    for (draw, name) in StructuralOp::DRAWS.iter().zip(StructuralOp::NAMES) {
        let mut compared = 0;
        for seed in 0..60 {
            let mut from = Values { all: all.clone(), seed, taken: vec![], ends: vec![] };
            let Some(op) = draw(&mut from) else { continue };
            let Values { taken, ends, .. } = from;
            let dtypes: Vec<DType> = taken.iter().map(|ty| ty.dtype).collect();
            if taken.is_empty() || op.dtype(&dtypes).is_err() {
                continue;
            }
            let drawn = |i: usize, seed: usize| {
                let mut value = value(&taken[i].dims(), taken[i].dtype, seed);
                let end = ends.iter().find(|(at, _)| *at == i).map(|(_, end)| *end);
                let most = end.or((taken[i].dtype == DType::Bool).then_some(2));
                value.data.iter_mut().for_each(|x| *x = most.map_or(*x, |most| *x % most as f64));
                value
            };
            let args: Vec<Value> = (0..taken.len()).map(|i| drawn(i, i + seed as usize)).collect();
            is_a_loop(&op, &args, &|i, k| drawn(i, 20 + i + 7 * k + seed as usize));
            compared += 1;
        }
        assert!(compared >= 15 || *name == "iota", "{name}: {compared} of 60 draws");
    }
}
