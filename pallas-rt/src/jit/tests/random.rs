//! Laws of random graphs over the whole registry of operations: fused into kernels they give what each operation gives
//! alone, on the CPU and on the strict interpreter; their gradients are differences, in f64.
//!
//! Fusion changes the order of sums, and products and sums may be contracted, so floats are compared up to a tolerance.
//! Operations with jumps take only values that are equal in both, and floats are kept small.
#![allow(clippy::print_stdout, reason = "how many graphs ran")]
use super::super::program::Program;
use crate::prelude::*;
use pallas_graph::call::{Call, Case, Scan};
use pallas_graph::transform::vjp;
use pallas_graph::{Dynamic, Graph, Op, Var, verify};
use pallas_ir::scalar::Ty;
use pallas_ir::structural::{Broadcast, Draw};
use pallas_ir::{Literal, ScalarOp, StructuralOp, Type};

/// Largest magnitude of a float.
const LIMIT: f64 = 3.0;
/// Equations of a graph, besides those that keep floats small.
const STEPS: usize = 14;

/// Number of graphs: from `PALLAS_RANDOM_GRAPHS`, else a small sample.
pub(super) fn count() -> u64 {
    std::env::var("PALLAS_RANDOM_GRAPHS").map_or(600, |n| n.parse().expect("PALLAS_RANDOM_GRAPHS is a number"))
}

pub(super) struct Dice(pub(super) u64);
impl Dice {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// A graph that is being drawn.
struct Pool {
    dice: Dice,
    graph: Graph,
    /// Values so far, with true for those that are bit-equal however they are computed.
    made: Vec<(Var, bool)>,
    float: DType,
    shape: Vec<usize>,
    /// Only operations that have a derivative almost everywhere.
    smooth: bool,
    /// True for the body of a loop or a branch, which has none in turn.
    is_body: bool,
}

/// Chooses operands for a structural operation.
struct Offer<'a> {
    pool: &'a mut Pool,
    args: Vec<(Var, bool)>,
}

impl Draw for Offer<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.pool.dice.below(n)
    }
    fn operand(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<Type> {
        let found = self.pool.any(fits)?;
        self.args.push(found);
        Some(self.pool.graph.ty(found.0).clone())
    }
    fn constant(&mut self, x: Literal) {
        let v = self.pool.graph.literal(x);
        self.args.push((v, true));
    }
    fn within(&mut self, end: usize) {
        let Some((last, exact)) = self.args.pop() else { return };
        let ty = self.pool.graph.ty(last).clone();
        let bound = |graph: &mut Graph, n: i64| graph.splat(Literal::int(ty.dtype, n), &ty.shape);
        let (low, high) = (bound(&mut self.pool.graph, 0), bound(&mut self.pool.graph, end as i64 - 1));
        let inside = self.pool.graph.push(ScalarOp::Clamp, &[last, low, high]).expect("it fits");
        self.args.push((inside, exact));
    }
    fn dtype(&mut self) -> DType {
        let all = [self.pool.float, self.pool.float, DType::I32, DType::U8, DType::Bool];
        self.pool.dice.pick(&all)
    }
    fn shape(&mut self) -> Vec<usize> {
        self.pool.shape.clone()
    }
}

impl Pool {
    fn new(seed: u64, float: DType, smooth: bool) -> Pool {
        let mut dice = Dice(seed);
        let shape = vec![1 + dice.below(7), 1 + dice.below(9)];
        let mut pool =
            Pool { dice, graph: Graph::default(), made: vec![], float, shape: shape.clone(), smooth, is_body: false };
        let [m, n] = [shape[0], shape[1]];
        let floats: [&[usize]; 6] = [&[m, n], &[m, n], &[n, m], &[n], &[1, n], &[]];
        let integers: [&[usize]; 3] = [&[m, n], &[n], &[]];
        let types = floats.map(|shape| Type::new(float, shape)).into_iter();
        for ty in types.chain(integers.map(|shape| Type::new(DType::I32, shape))) {
            let v = pool.graph.param(ty);
            pool.made.push((v, true));
        }
        pool
    }

    /// A value that fits, more often a late one.
    fn any(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<(Var, bool)> {
        let fitting: Vec<_> = self.made.iter().copied().filter(|(v, _)| fits(self.graph.ty(*v))).collect();
        let last = fitting.len().checked_sub(1)?;
        let [a, b] = [0, 1].map(|_| self.dice.below(last + 1));
        Some(fitting[a.max(b)])
    }

    fn step(&mut self) {
        match self.dice.below(24) {
            0 | 1 => return self.window(),
            2 if !self.is_body => return self.call(),
            _ => {}
        }
        if self.dice.below(2) == 0 {
            let op = self.dice.pick(ScalarOp::ALL);
            return self.scalar(op);
        }
        let draw = self.dice.pick(StructuralOp::DRAWS);
        let mut offer = Offer { pool: self, args: vec![] };
        let Some(op) = draw(&mut offer) else { return };
        let args = offer.args;
        self.push(op.into(), &args);
    }

    /// An elementwise operation of values that are broadcast to the first one's shape if they are not of it.
    fn scalar(&mut self, op: ScalarOp) {
        let first = self.any(&|_| true).expect("there are parameters");
        let Type { dtype, shape } = self.graph.ty(first.0).clone();
        let mut args = vec![];
        for (i, (_, ty)) in op.row().operands.iter().enumerate() {
            let dtype = if let Ty::Is(dtype) = ty { *dtype } else { dtype };
            let fits = |ty: &Type| ty.dtype == dtype && (ty.shape == shape || ty.shape.is_empty());
            let found = if i == 0 && self.graph.ty(first.0).dtype == dtype { Some(first) } else { self.any(&fits) };
            let Some((v, exact)) = found else { return };
            let v = match self.graph.ty(v).shape == shape {
                true => v,
                false => {
                    let to = Broadcast::to(Type::new(dtype, shape.clone()).dims());
                    self.graph.push(StructuralOp::from(to), &[v]).expect("a scalar fits")
                }
            };
            args.push((v, exact));
        }
        self.push(op.into(), &args);
    }

    /// A window of a value, or a value with another one in a window, at positions that may be out of range.
    fn window(&mut self) {
        let Some(x) = self.any(&|ty| !ty.shape.is_empty()) else { return };
        let Type { dtype, shape } = self.graph.ty(x.0).clone();
        let mut args = vec![x];
        let op = if self.dice.below(2) == 0 {
            Dynamic::Slice { size: shape.iter().map(|&n| 1 + self.dice.below(n)).collect() }
        } else {
            let is_smaller = |size: &[usize]| size.len() == shape.len() && size.iter().zip(&shape).all(|(a, b)| a <= b);
            let Some(window) = self.any(&|ty| ty.dtype == dtype && is_smaller(&ty.shape)) else { return };
            args.push(window);
            Dynamic::Update
        };
        for n in shape {
            args.push(match self.any(&|ty| *ty == Type::scalar(DType::I32)) {
                Some((v, exact)) if self.dice.below(2) == 0 => (v, exact),
                _ => {
                    let position = self.dice.below(n + 4) as f64 - 2.0;
                    (self.graph.literal(Literal::new(DType::I32, position)), true)
                }
            });
        }
        self.push(op.into(), &args);
    }

    /// A scan or a branch, whose bodies are drawn likewise.
    fn call(&mut self) {
        let some: Vec<(Var, bool)> = (0..3).filter_map(|_| self.any(&|ty| ty.shape.len() < 3)).collect();
        let of_type = |pool: &Pool, v: Var| pool.graph.ty(v).clone();
        let (call, args) = if self.dice.below(3) == 0 {
            let Some(index) = self.any(&|ty| *ty == Type::scalar(DType::I32)) else { return };
            let takes: Vec<Type> = some.iter().map(|(v, _)| of_type(self, *v)).collect();
            let gives = [takes[0].clone(), takes[1].clone()];
            let branches = (0..1 + self.dice.below(3)).map(|_| self.body(&takes, &gives, 0)).collect();
            (Call::Case(Case { branches }), [&[index], &some[..]].concat())
        } else {
            let Some(array) = self.any(&|ty| !ty.shape.is_empty()) else { return };
            let carried = 1 + self.dice.below(2);
            let mut takes: Vec<Type> = some.iter().map(|(v, _)| of_type(self, *v)).collect();
            let ty = of_type(self, array.0);
            takes.push(Type::new(ty.dtype, &ty.shape[1..]));
            let captured = some.len() - carried;
            let stacks = self.dice.below(3);
            let body = self.body(&takes, &takes[captured..some.len()], stacks);
            let (length, reverse) = (ty.shape[0], self.dice.below(2) == 0);
            (Call::Scan(Scan { body, captured, carried, length, reverse }), [&some[..], &[array]].concat())
        };
        let exact = args.iter().all(|(_, exact)| *exact);
        let vars: Vec<Var> = args.iter().map(|(v, _)| *v).collect();
        let made = self.graph.push_all(Op::from(call), &vars).expect("it fits");
        for v in made {
            // Floats of a body are small; whether they are bit-equal is not known.
            let is_float = self.graph.ty(v).dtype.is_float();
            self.made.push((v, exact && !is_float));
        }
    }

    /// A graph of a few operations that takes and gives these types, and gives some others.
    fn body(&mut self, takes: &[Type], gives: &[Type], more: usize) -> Graph {
        let dice = Dice(self.dice.below(usize::MAX) as u64);
        let (float, shape, smooth) = (self.float, self.shape.clone(), self.smooth);
        let mut pool = Pool { dice, graph: Graph::default(), made: vec![], float, shape, smooth, is_body: true };
        for ty in takes {
            let v = pool.graph.param(ty.clone());
            // Floats that steps compute are not bit-equal.
            pool.made.push((v, !ty.dtype.is_float()));
        }
        (0..8).for_each(|_| pool.step());
        for ty in gives {
            let (v, _) = pool.any(&|own| own == ty).expect("a parameter has the type");
            pool.graph.results.push(v);
        }
        for _ in 0..more {
            let (v, _) = pool.any(&|_| true).expect("there are parameters");
            pool.graph.results.push(v);
        }
        pool.graph
    }

    fn push(&mut self, op: Op, args: &[(Var, bool)]) {
        use ScalarOp::{Abs, Clamp, IsFinite, Maximum, Minimum, Neg, Select};
        use StructuralOp::{ArgReduce, ArgSort, ArgTopK, Bitcast, Cast, Powi};
        let jumps = match &op {
            Op::Scalar(op) => !matches!(op, Neg | Abs | Minimum | Maximum | Clamp | Select) && !is_smooth(*op),
            Op::Structural(op) => {
                matches!(op, ArgReduce(_) | ArgSort(_) | ArgTopK(_) | Bitcast(_) | Cast(_) | Powi(_))
            }
            Op::Literal(_) | Op::StopGradient | Op::Barrier | Op::Dynamic(_) | Op::Call(_) => false,
        };
        let floats = args.iter().filter(|(v, _)| self.graph.ty(*v).dtype.is_float());
        let exact = floats.clone().all(|(_, exact)| *exact);
        if jumps && (!exact || self.smooth && floats.count() > 0) {
            return;
        }
        let vars: Vec<Var> = args.iter().map(|(v, _)| *v).collect();
        let before = self.graph.equations.len();
        let Ok(result) = self.graph.push(op.clone(), &vars) else { return };
        let ty = self.graph.ty(result).clone();
        if ty.elements() > 4096 || ty.shape.len() > 5 || ty.dtype.is_float() && ty.dtype != self.float {
            self.graph.equations.truncate(before);
            return;
        }
        if !ty.dtype.is_float() {
            return self.made.push((result, exact));
        }
        // Undefined and large values become small ones, the same in every execution.
        let number = |graph: &mut Graph, x: f64| graph.splat(Literal::new(ty.dtype, x), &ty.shape);
        let small = match is_smooth_op(&op) {
            true => result,
            false => {
                let is_finite = self.graph.push(IsFinite, &[result]).expect("a float");
                let half = number(&mut self.graph, 0.5);
                self.graph.push(Select, &[is_finite, result, half]).expect("it fits")
            }
        };
        let bounds = [-LIMIT, LIMIT].map(|x| number(&mut self.graph, x));
        let small = self.graph.push(Clamp, &[small, bounds[0], bounds[1]]).expect("it fits");
        use StructuralOp::{Conv, Cumulative, Dot, Reduce, ReduceWindow, Scatter};
        let moved = match &op {
            Op::Scalar(op) => matches!(op, Neg | Abs | Minimum | Maximum | Clamp | Select),
            Op::Structural(Conv(_) | Cumulative(_) | Dot(_) | Powi(_) | Reduce(_) | ReduceWindow(_) | Scatter(_)) => {
                false
            }
            Op::Structural(_) => true,
            Op::Literal(_) | Op::StopGradient | Op::Barrier | Op::Dynamic(_) | Op::Call(_) => true,
        };
        self.made.push((small, exact && moved));
    }

    /// The graph, whose results are what nothing reads, and some others.
    fn finish(mut self) -> Graph {
        let uses = self.graph.uses();
        let made: Vec<Var> = self.made.iter().map(|(v, _)| *v).collect();
        let graph = &mut self.graph;
        graph.results = made.iter().copied().filter(|v| uses[v.index()].is_empty()).collect();
        let more = made[self.dice.below(made.len())];
        self.graph.results.push(more);
        self.graph
    }
}

/// Operations whose results are finite and without jumps for small operands.
fn is_smooth(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Add | Sub | Mul | Sin | Cos | Tanh | Erf | Erfc | Exp | Logistic | Gelu | Silu | Softplus | Atan | Fma)
}
fn is_smooth_op(op: &Op) -> bool {
    match op {
        Op::Scalar(op) => is_smooth(*op),
        Op::Structural(op) => {
            matches!(op, StructuralOp::Dot(_) | StructuralOp::Transpose(_) | StructuralOp::Reshape(_))
        }
        Op::Literal(_) | Op::StopGradient | Op::Barrier | Op::Dynamic(_) | Op::Call(_) => true,
    }
}

pub(super) fn drawn(seed: u64, float: DType, smooth: bool) -> Graph {
    let mut pool = Pool::new(seed, float, smooth);
    for _ in 0..8 * STEPS {
        if pool.made.len() < 8 + STEPS {
            pool.step();
        }
    }
    let graph = pool.finish();
    verify(&graph).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
    graph
}

/// Operands for a graph, the same on every client.
pub(super) fn operands(graph: &Graph, client: &Client, seed: u64) -> Vec<Array> {
    let mut dice = Dice(!seed);
    let array = |ty: Type| {
        let numbers: Vec<f64> = (0..ty.elements()).map(|_| dice.below(4001) as f64 / 1000.0 - 2.0).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| Literal::new(ty.dtype, *x).to_bytes()).collect();
        client.array_from_bytes(ty.dtype, &ty.shape, &bytes).expect("it fits")
    };
    graph.takes().into_iter().map(array).collect()
}

pub(super) fn run(graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    Program::new(graph, client)?.run(&args.iter().collect::<Vec<_>>())
}

/// Each equation by a program of its own, loops and branches step by step.
fn one_at_a_time(graph: &Graph, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    let mut made: Vec<Option<Array>> = vec![None; graph.types.len()];
    graph.params.iter().zip(args).for_each(|(p, x)| made[p.index()] = Some(x.clone()));
    for e in &graph.equations {
        let args: Vec<Array> = e.args.iter().map(|a| made[a.index()].clone().expect("defined")).collect();
        let found = match &e.op {
            Op::Call(call) => called(call, client, &args)?,
            op => {
                let mut single = Graph::default();
                let params: Vec<Var> = e.args.iter().map(|a| single.param(graph.ty(*a).clone())).collect();
                let result = single.push(op.clone(), &params).expect("it fits");
                single.results.push(result);
                run(&single, client, &args)?
            }
        };
        e.results.iter().zip(found).for_each(|(r, x)| made[r.index()] = Some(x));
    }
    Ok(graph.results.iter().map(|r| made[r.index()].clone().expect("defined")).collect())
}

fn called(call: &Call, client: &Client, args: &[Array]) -> Result<Vec<Array>> {
    match call {
        Call::Scan(scan) => {
            let (captured, rest) = args.split_at(scan.captured);
            let (carried, arrays) = rest.split_at(scan.carried);
            let gives = scan.body.gives();
            let mut carried = carried.to_vec();
            let mut stacks: Vec<Vec<u8>> = vec![vec![]; gives.len() - scan.carried];
            let steps: Vec<usize> = (0..scan.length).collect();
            let steps = if scan.reverse { steps.into_iter().rev().collect() } else { steps };
            for i in steps {
                let element = |x: &Array| {
                    let bytes = x.to_bytes().expect("it ran");
                    let n = bytes.len() / scan.length;
                    client.array_from_bytes(x.dtype(), &x.shape()[1..], &bytes[i * n..(i + 1) * n]).expect("it fits")
                };
                let elements: Vec<Array> = arrays.iter().map(element).collect();
                let mut made = one_at_a_time(&scan.body, client, &[captured, &carried, &elements].concat())?;
                for (stack, x) in stacks.iter_mut().zip(made.split_off(scan.carried)) {
                    let row = x.to_bytes()?;
                    let at = if scan.reverse { 0 } else { stack.len() };
                    stack.splice(at..at, row);
                }
                carried = made;
            }
            let stacks = stacks
                .iter()
                .zip(&gives[scan.carried..])
                .map(|(bytes, ty)| client.array_from_bytes(ty.dtype, &[&[scan.length], &ty.shape[..]].concat(), bytes));
            carried.extend(stacks.collect::<Result<Vec<_>>>()?);
            Ok(carried)
        }
        Call::Case(case) => {
            let number = args[0].to_vec::<i32>()?[0].clamp(0, case.branches.len() as i32 - 1);
            one_at_a_time(&case.branches[number as usize], client, &args[1..])
        }
        _ => unreachable!("none is drawn"),
    }
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

#[test]
fn random_graphs_mean_the_same_fused() {
    let clients = [Client::cpu(), Client::interpreter()];
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
            }
        }
    }
    println!("random graphs: {} fused", count());
}

/// The same on a GPU, if there is one, for a few graphs: each shader takes long to compile on a software adapter.
#[cfg(feature = "gpu")]
#[test]
fn random_graphs_mean_the_same_on_a_gpu() {
    let Some(gpu) = crate::lang::random::gpu() else { return };
    let (cpu, count) = (Client::cpu(), count() / 30);
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
        let wrt: Vec<bool> = graph.takes().iter().map(|ty| ty.dtype == DType::F64).collect();
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
