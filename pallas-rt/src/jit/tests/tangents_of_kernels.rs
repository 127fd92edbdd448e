//! Forward mode of kernels: tangents are differences in float64, on the interpreter and on the CPU.
use super::super::program::Program;
use super::super::trace::{TracedParameter, trace};
use crate::{custom_jvp, fori_loop, grad, jacfwd, jit, jvp, linearize, vmap};
use pallas_rt::prelude::*;

/// x·y + sin(x), in the memory of y.
#[kernel(grid = (cdiv(N, 4)))]
fn elementwise(
    #[block([N] => [4], |i| (i,))] x: In<f64>,
    #[block([N] => [4], |i| (i,))] y: In<f64>,
    #[block([N] => [4], |i| (i,), alias = y)] out: Out<f64>,
    by: f64,
) {
    let x = x.load();
    out.store(x * y.load() + x.sin() * by);
}

/// Adds to its input's memory, half of which it leaves as it is.
#[kernel(grid = (cdiv(N, 4)))]
fn half_added(
    #[block([N] => [4], |i| (i,))] x: In<f64>,
    #[block([N] => [4], |i| (i,))] y: In<f64>,
    #[block([N] => [4], |i| (i,), alias = y)] out: Out<f64>,
) {
    out.at(ds(0, 2)).store(x.load().slice([0], [2]).exp() + out.load().slice([2], [2]));
}

/// Rows that a table chooses, times factors that are prefetched; sums in scratch over steps in order.
#[kernel(grid = (R, cdiv(N, 2)), semantics = (parallel, arbitrary))]
fn row_sums(
    #[prefetch([R])] order: Prefetch<i32>,
    #[prefetch([R])] factors: Prefetch<f64>,
    #[block([R, N] => [_, 2], |r, j| (order.at(r), j), fill = 1.0)] x: In<f64>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f64>,
    #[block([R] => [1], |r, _| (r,))] greatest: Out<f64>,
    #[scratch([1])] sum: Scratch<f64>,
    #[scratch([1])] most: Scratch<f64>,
    #[scratch([1])] turns: Scratch<i32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
        most.fill(f64::NEG_INFINITY);
        turns.fill(0);
    }
    let x = x.load();
    sum.store(sum.load() + (x * x).sum(0) * factors.at(program_id(0)));
    most.store(maximum(most.load(), x.max(0)));
    turns.store(turns.load() + 1);
    if program_id(1) == num_programs(1) - 1 {
        out.store(sum.load() / turns.load().cast::<f64>());
        greatest.store(most.load());
    }
}

/// Loops that carry tiles and scalars, masks, branches with results, and a `while` that ends by a computed number.
#[kernel(grid = ())]
fn steps(#[block([N, 4])] x: In<f64>, #[block([N, 4])] out: Out<f64>, #[block([N])] lasts: Out<f64>) {
    for i in 0..N {
        let row = x.at((i, ..));
        let whole = row.load();
        let kept = row.load_masked(whole.gt(0.0), whole.sum(0).item() * 2.0);
        let mut a = kept;
        let mut b = whole.cumsum(0);
        for k in 0..scalar(3) {
            let c = a * 0.5 + b.sin() * k.cast::<f64>();
            b = a;
            a = c;
        }
        let mut n = whole.sum(0).item() * 0.125 + 1.0;
        while n < 3.0 {
            n *= 1.5;
        }
        let turned = if i % 2 == 0 { a * n } else { a + b };
        out.at((i, ..)).store_masked(turned, whole.lt(0.9));
        out.at((i, ..)).store_masked(whole * whole, whole.ge(0.9));
        lasts.at(ds(i, 1)).store((turned.max(0) - n).reshape([1]));
    }
}

/// A product in blocks, with a sort and a gather on the way.
#[kernel(grid = (cdiv(M, 2)))]
fn products(
    #[block([M, K] => [2, K], |i| (i, 0), fill = 0.0)] a: In<f64>,
    #[block([K, 4])] b: In<f64>,
    #[block([M, 4] => [2, 4], |i| (i, 0))] out: Out<f64>,
) {
    let products = dot(a.load(), b.load());
    let turned = products.sort(1) * products.reverse([1]).tanh();
    out.store(select(products.gt(0.0), turned, products.powi(2)));
}

type F = fn(&Vec<Array>) -> Result<Vec<Array>>;

fn doubles(x: &Array) -> Vec<f64> {
    x.to_vec::<f64>().unwrap_or_else(|e| panic!("{e}"))
}

fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 37 + seed * 101 + 7) % 97) as f64 / 48.5 - 1.0).collect()
}

fn operand(client: &Client, shape: &[usize], seed: usize) -> Array {
    client.array(&numbers(shape.iter().product(), seed), shape).expect("it fits")
}

/// The tangents of `f` along a direction, as differences.
fn differences(f: F, x: &[Array], direction: &[Array]) -> Vec<Vec<f64>> {
    let h = 1.0 / 131_072.0;
    let at = |by: f64| {
        let moved = x.iter().zip(direction).map(|(x, d)| match x.dtype() {
            DType::F64 => {
                let moved: Vec<f64> = doubles(x).iter().zip(doubles(d)).map(|(x, d)| x + by * d).collect();
                x.client().array(&moved, x.shape()).expect("it fits")
            }
            _ => x.clone(),
        });
        f(&moved.collect()).unwrap_or_else(|e| panic!("{e}"))
    };
    let slopes =
        |(a, b): (Array, Array)| doubles(&a).iter().zip(doubles(&b)).map(|(a, b)| (a - b) / (2.0 * h)).collect();
    at(h).into_iter().zip(at(-h)).map(slopes).collect()
}

#[track_caller]
fn close(what: &str, found: &Array, want: &[f64], bound: f64) {
    let found = doubles(found);
    assert_eq!(found.len(), want.len(), "{what}");
    let is_close = |(x, y): (&f64, &f64)| (x - y).abs() <= bound * (1.0 + y.abs());
    assert!(found.iter().zip(want).all(is_close), "{what}: {found:?}\n{want:?}");
}

/// The cases: a name, operands, the function.
fn cases(client: &Client) -> Vec<(&'static str, Vec<Array>, F)> {
    let order = client.array(&[2i32, 0, 1], &[3]).expect("it fits");
    let x = |shape: &[usize], seed| operand(client, shape, seed);
    vec![
        ("elementwise", vec![x(&[6], 1), x(&[6], 2)], |x| Ok(vec![elementwise(&x[0], &x[1], 0.5)?])),
        ("in place", vec![x(&[8], 1), x(&[8], 2)], |x| Ok(vec![half_added(&x[0], &x[1])?])),
        ("row sums", vec![order, x(&[3], 3), x(&[3, 5], 4)], |x| Ok(row_sums(&x[0], &x[1], &x[2])?.into_vec())),
        ("steps", vec![x(&[3, 4], 5)], |x| Ok(steps(&x[0])?.into_vec())),
        ("products", vec![x(&[3, 2], 6), x(&[2, 4], 7)], |x| Ok(vec![products(&x[0], &x[1])?])),
    ]
}

trait IntoVec {
    fn into_vec(self) -> Vec<Array>;
}
impl IntoVec for (Array, Array) {
    fn into_vec(self) -> Vec<Array> {
        vec![self.0, self.1]
    }
}

fn direction(x: &[Array]) -> Vec<Array> {
    let along = |(i, x): (usize, &Array)| match x.dtype() {
        DType::F64 => operand(x.client(), x.shape(), 11 + i),
        dtype => x.client().zeros(x.shape(), dtype).expect("it fits"),
    };
    x.iter().enumerate().map(along).collect()
}

#[test]
fn tangents_of_kernels_are_differences() {
    let mut first: Vec<Vec<Vec<f64>>> = vec![];
    for client in [Client::interpreter(), Client::cpu()] {
        for (i, (what, x, f)) in cases(&client).into_iter().enumerate() {
            let d = direction(&x);
            let want = differences(f, &x, &d);
            let values = f(&x).expect("it runs");
            let check = |(y, dy): (Vec<Array>, Vec<Array>)| {
                assert_eq!((y.len(), dy.len()), (values.len(), want.len()), "{what}");
                y.iter().zip(&values).for_each(|(y, value)| close(what, y, &doubles(value), 0.0));
                dy.iter().zip(&want).for_each(|(dy, want)| close(what, dy, want, 1e-8));
                dy.iter().map(doubles).collect::<Vec<_>>()
            };
            // Whole numbers have no tangents: the function captures them.
            let is_float = |x: &&Array| x.dtype() == DType::F64;
            let floats: Vec<Array> = x.iter().filter(is_float).cloned().collect();
            let d = (d.iter().filter(is_float).cloned().collect::<Vec<_>>(),);
            let g = move |floats: &Vec<Array>| {
                let mut floats = floats.iter().cloned();
                let one = |x: &Array| if is_float(&x) { floats.next().expect("as many") } else { x.clone() };
                f(&x.iter().map(one).collect())
            };
            check(jvp(g.clone())(&(floats.clone(),), &d).unwrap_or_else(|e| panic!("{what}: {e}")));
            let (y, along) = linearize(g.clone())(&floats).unwrap_or_else(|e| panic!("{what}: {e}"));
            check((y, along(&d).unwrap_or_else(|e| panic!("{what}: {e}"))));
            let dy = check(jit(jvp(g))(&(floats,), &d).unwrap_or_else(|e| panic!("{what}: {e}")));
            // The same on both devices.
            match first.get(i) {
                None => first.push(dy),
                Some(other) => dy.iter().flatten().zip(other.iter().flatten()).for_each(|(x, y)| {
                    assert!((x - y).abs() <= 1e-13 * (1.0 + y.abs()), "{what}: {x} on the CPU, {y} in the interpreter");
                }),
            }
        }
    }
}

/// The line of the kernel below.
const BITS: u32 = line!() + 3;
/// A float without its lower bits.
#[kernel(grid = (cdiv(N, 4)))]
fn bits(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    let mask = x.bitcast::<u32>() & 0xffff_0000u32;
    let cut = mask.bitcast::<f32>();
    out.store(cut * x);
}

#[kernel(grid = (cdiv(N, 4)))]
fn cubes(#[block([N] => [4], |i| (i,))] x: In<f64>, #[block([N] => [4], |i| (i,))] out: Out<f64>) {
    let x = x.load();
    out.store(x * x * x);
}

/// The numbers of the programs: they depend on no input.
#[kernel(grid = (cdiv(N, 4)))]
fn signs(#[block([N] => [4], |i| (i,))] x: In<f64>, #[block([N] => [4], |i| (i,))] out: Out<i32>) {
    out.store(x.load().gt(0.0).cast::<i32>());
}

fn array(x: &[f64]) -> Array {
    Client::cpu().array(x, &[x.len()]).expect("it fits")
}

#[test]
fn what_has_no_tangent_is_named() {
    let x = Client::cpu().array(&[0.3f32, -0.7], &[2]).expect("it fits");
    let line = line!() + 1;
    let error = jvp(|x: &Array| bits(x))(&(x.clone(),), &(x.clone(),)).expect_err("it has none").to_string();
    assert!(error.contains("the tangent of kernel `bits`: the bits of a float have no tangent"), "{error}");
    // The call, and the operation's line in the kernel.
    let of_bits = BITS + 2;
    assert!(error.contains(&format!("{}:{line}:", file!())), "{error}");
    assert!(error.contains(&format!("{}:{of_bits}:", file!())), "{error}");
    let (y, dy) = jvp(|x: &Array| bits(x.stop_gradient()).map(|y| y * x))(&(x.clone(),), &(x.clone(),))
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(y.to_vec::<f32>(), dy.to_vec::<f32>());
    // In reverse mode a kernel without a rule has no gradient, and neither has its tangent.
    let loss = |x: &Array| cubes(x).map(|y| y.sum(..));
    let x = array(&[0.5, -2.0]);
    let error = grad(loss)(&x).expect_err("no rule").to_string();
    assert!(error.contains("the gradient of kernel `cubes`") && error.contains("custom_vjp"), "{error}");
    let along = move |x: &Array| jvp(loss)(&(x.clone(),), &(x.clone(),)).map(|(_, dy)| dy);
    let error = grad(along)(&x).expect_err("no rule").to_string();
    assert!(error.contains("the gradient of kernel `cubes_jvp`") && error.contains("custom_vjp"), "{error}");
}

#[test]
fn tangents_of_kernels_nest() {
    let x = array(&[0.5, -2.0, 1.5, 3.0, -0.25]);
    let values = doubles(&x);
    let of = |f: fn(f64) -> f64| values.iter().map(|&x| f(x)).collect::<Vec<f64>>();
    let ones = array(&[1.0; 5]);
    let first =
        move |x: &Array| jvp(|x: &Array| cubes(x))(&(x.clone(),), &(x.stop_gradient() * 0.0 + 1.0,)).map(|(_, dy)| dy);
    close("first", &first(&x).expect("it runs"), &of(|x| 3.0 * x * x), 1e-14);
    let (_, second) = jvp(first)(&(x.clone(),), &(ones.clone(),)).unwrap_or_else(|e| panic!("{e}"));
    close("second", &second, &of(|x| 6.0 * x), 1e-14);
    // Jacobians are batches of tangents: still one launch.
    let jacobian = jit(jacfwd(|x: &Array| cubes(x)))(&x).unwrap_or_else(|e| panic!("{e}"));
    let want = |i: usize, j: usize| if i == j { 3.0 * values[i] * values[i] } else { 0.0 };
    close("jacfwd", &jacobian, &(0..25).map(|i| want(i / 5, i % 5)).collect::<Vec<_>>(), 1e-14);
    let traced = trace(&Client::cpu(), &[TracedParameter::like_array(&x)], |params| {
        Ok(vec![jacfwd(|x: &Array| cubes(x))(&params[0])?])
    });
    let graph = traced.expect("it traces").graph;
    assert_eq!(graph.to_string().matches("cubes_jvp").count(), 1, "{graph}");
    assert!(Program::new(&graph, &Client::cpu()).expect("it compiles").step_count() <= 3, "{graph}");
    // In loops, and of batches.
    let looped = |x: &Array| fori_loop(0..2, x, |_: &Array, x: &Array| cubes(x));
    let (_, dy) = jit(jvp(looped))(&(x.clone(),), &(ones.clone(),)).unwrap_or_else(|e| panic!("{e}"));
    close("loop", &dy, &of(|x| 9.0 * x.powi(8)), 1e-14);
    let rows = Client::cpu().array(&numbers(12, 3), &[3, 4]).expect("it fits");
    let (_, dy) = jvp(vmap(|x: &Array| cubes(x)))(&(rows.clone(),), &(rows.clone(),)).unwrap_or_else(|e| panic!("{e}"));
    let each = vmap(|x: &Array| jvp(|x: &Array| cubes(x))(&(x.clone(),), &(x.clone(),)).map(|(_, dy)| dy));
    let want: Vec<f64> = doubles(&rows).iter().map(|x| 3.0 * x.powi(3)).collect();
    close("tangents of a batch", &dy, &want, 1e-14);
    close("a batch of tangents", &jit(each)(&rows).unwrap_or_else(|e| panic!("{e}")), &want, 1e-14);
    // What is not a float depends on nothing.
    let (sign, none) = jvp(|x: &Array| signs(x))(&(x.clone(),), &(ones.clone(),)).expect("it runs");
    assert_eq!((sign.to_vec::<i32>(), none.to_vec::<i32>()), (Ok(vec![1, 0, 1, 1, 0]), Ok(vec![0; 5])));
}

#[test]
fn a_stated_tangent_of_a_kernel_is_taken() {
    let stated =
        custom_jvp(|x: &Array| cubes(x), |(x,): &(Array,), (dx,): &(Array,)| Ok::<_, Error>((cubes(x)?, dx * 7.0)));
    let x = array(&[0.5, -2.0]);
    let (_, dy) = jvp(stated)(&(x.clone(),), &(x.clone(),)).unwrap_or_else(|e| panic!("{e}"));
    close("stated", &dy, &[3.5, -14.0], 1e-14);
}
