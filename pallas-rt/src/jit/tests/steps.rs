//! What scans compute for all steps at once: drawn bodies against the same steps written out.
use super::random::{Dice, numbers};
use super::sharded::mesh;
use crate::prelude::*;
use crate::sharding::{NamedSharding, PartitionSpec, device_put};
use crate::{Scan, grad, jit, lower, ops, value_and_grad, vmap};
use std::sync::Arc;

/// Rows and columns of the values of a drawn body.
const ROWS: usize = 3;
const COLUMNS: usize = 4;

/// A drawn body, as data: operations on a list of values of `[ROWS, COLUMNS]`, which begins with the carried value h,
/// the elements x and y, and a captured value.
#[derive(Clone, Debug)]
struct Body {
    /// The operation, and its operands in the list.
    operations: Vec<(usize, [usize; 2])>,
    /// The next h; whether the others that are carried are sums, and of which values; stacks.
    next: usize,
    sums: Vec<(usize, [usize; 2])>,
    stacks: Vec<usize>,
}

impl Body {
    fn draw(dice: &mut Dice) -> Body {
        let mut count = 4;
        let mut operations = vec![];
        for _ in 0..2 + dice.below(7) {
            operations.push((dice.below(12), [0; 2].map(|_| dice.below(count))));
            count += 1;
        }
        let mut pick = || dice.below(count);
        let next = pick();
        let sums = (0..4).map(|_| (pick(), [pick(), pick()])).collect();
        Body { operations, next, sums, stacks: vec![pick(), pick()] }
    }

    /// Carried: h, and the sums of `[COLUMNS, COLUMNS]`, `[COLUMNS]`, `[ROWS, COLUMNS]` and `[]`.
    fn step(&self, [w, b]: [&Array; 2], carried: &[Array], [x, y]: [&Array; 2]) -> (Vec<Array>, Vec<Array>) {
        let shape = [ROWS, COLUMNS];
        let mut all = vec![carried[0].clone(), x.clone(), y.expand_dims(1).broadcast_to(&shape)];
        all.push(b.broadcast_to(&shape));
        for &(operation, [i, j]) in &self.operations {
            let (p, q) = (&all[i], &all[j]);
            all.push(match operation {
                0 | 1 => p.matmul(w).tanh(),
                2 => p.matmul(&w.t()) * 0.5,
                3 => (p + q) * 0.5,
                4 => p * q,
                5 => p - q.sum(-1).expand_dims(1) * 0.1,
                6 => p.flip(1),
                7 => (p * -0.3).exp(),
                8 => p.cumsum(0) * 0.3,
                9 => ops::select(&p.gt(q), p, q * 0.5),
                10 => p.matmul(&q.t().matmul(q)).tanh(),
                _ => ops::concatenate(&[&p.index(1..), &q.index(..1)], 0),
            });
        }
        let mut next = vec![all[self.next].tanh() * 0.5 + x];
        for (k, (c, &(kind, [i, j]))) in carried[1..].iter().zip(&self.sums).enumerate() {
            let (p, q) = (&all[i], &all[j]);
            let more = match k {
                0 if kind % 2 == 0 => p.t().matmul(q),
                0 => p.t().matmul(q).t(),
                1 => p.sum(0),
                2 => p.clone(),
                _ => (p * q).sum(..),
            };
            // Also what is no sum.
            next.push(match kind % 5 {
                4 => c * 0.5 + more,
                3 => more + c,
                _ => c + more,
            });
        }
        let mut stacks: Vec<Array> = self.stacks.iter().map(|&i| all[i].clone()).collect();
        // A sum that steps read.
        if self.sums[2].0 % 5 == 2 {
            stacks[0] = &stacks[0] + &carried[3];
        }
        (next, stacks)
    }
}

/// Operands: w, b, the carried values, arrays.
fn operands(length: usize, dtype: DType, dice: &mut Dice) -> Vec<Array> {
    let shapes: [&[usize]; 9] = [
        &[COLUMNS, COLUMNS],
        &[COLUMNS],
        &[ROWS, COLUMNS],
        &[COLUMNS, COLUMNS],
        &[COLUMNS],
        &[ROWS, COLUMNS],
        &[],
        &[length, ROWS, COLUMNS],
        &[length, ROWS],
    ];
    let array = |shape: &&[usize]| {
        let x: Vec<f32> = (0..shape.iter().product()).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect();
        Client::cpu().array(&x, shape).expect("it fits").cast(dtype)
    };
    shapes.iter().map(array).collect()
}

fn run(body: &Arc<Body>, unroll: usize, reverse: bool) -> impl Fn(&Vec<Array>) -> Result<Vec<Array>> + 'static {
    let body = body.clone();
    move |all: &Vec<Array>| {
        let scan = Scan::new().unroll(unroll).reverse(reverse);
        let (init, xs) = (all[2..7].to_vec(), all[7..].to_vec());
        let step = |c: &Vec<Array>, x: &Vec<Array>| body.step([&all[0], &all[1]], c, [&x[0], &x[1]]);
        let (last, stacks) = scan.run(&init, &xs, step)?;
        Ok(last.into_iter().chain(stacks).collect())
    }
}

fn loss(results: &[Array]) -> Array {
    let sum = |x: &Array| (x.cast(DType::F32) * 0.3).sin().sum(..);
    results.iter().map(sum).reduce(|a, b| a + b).expect("there are results")
}

#[track_caller]
fn equal(found: &[Array], want: &[Array], tolerance: f64, about: &str) {
    assert_eq!(found.len(), want.len());
    for (i, (a, b)) in found.iter().zip(want).enumerate() {
        assert_eq!((a.shape(), a.dtype()), (b.shape(), b.dtype()), "{about}, result {i}");
        let [a, b] = [a, b].map(numbers);
        let most = b.iter().fold(1.0f64, |most, x| most.max(x.abs()));
        let close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= tolerance * most || x.is_nan() && y.is_nan();
        assert!(a.iter().zip(&b).all(close), "{about}, result {i}:\n{a:?}\n{b:?}");
    }
}

#[test]
fn drawn_bodies_are_their_steps() {
    for seed in 0..60 {
        let mut dice = Dice(seed + 1);
        let (body, reverse) = (Arc::new(Body::draw(&mut dice)), dice.below(2) == 0);
        let length = [1, 2, 3, 5, 9, 12][dice.below(6)];
        // Sums of 16-bit floats are rounded once instead of in each step.
        let (dtype, tolerance) = if seed % 3 == 0 { (DType::Bf16, 0.06) } else { (DType::F32, 2e-5) };
        let all = operands(length, dtype, &mut dice);
        let about = format!("{seed}: {length} steps of {dtype}, reverse {reverse}, {body:?}");
        let found = jit(run(&body, 1, reverse))(&all).unwrap_or_else(|e| panic!("{about}: {e}"));
        let want = jit(run(&body, 100, reverse))(&all).expect("it runs");
        equal(&found, &want, tolerance, &about);
        let slope = |unroll: usize| {
            let f = run(&body, unroll, reverse);
            jit(grad(move |all: &Vec<Array>| Ok::<_, Error>(loss(&f(all)?))))(&all)
                .unwrap_or_else(|e| panic!("{about}: {e}"))
        };
        equal(&slope(1), &slope(100), 4.0 * tolerance, &format!("gradient of {about}"));
    }
}

#[test]
fn drawn_bodies_nest_in_batches() {
    for seed in 0..12 {
        let mut dice = Dice(seed + 1000);
        let (body, length) = (Arc::new(Body::draw(&mut dice)), 4);
        let examples: Vec<Vec<Array>> = (0..2).map(|_| operands(length, DType::F32, &mut dice)).collect();
        let both: Vec<Array> = (0..9).map(|i| ops::stack(&[&examples[0][i], &examples[1][i]], 0)).collect();
        let found = jit(vmap(run(&body, 1, false)))(&both).expect("it runs");
        for (k, all) in examples.iter().enumerate() {
            let want = jit(run(&body, 100, false))(all).expect("it runs");
            let own: Vec<Array> = found.iter().map(|x| x.index(k as i64)).collect();
            equal(&own, &want, 2e-5, &format!("{seed}, example {k}: {body:?}"));
        }
    }
}

/// Operands are sharded along drawn dimensions, also that of the steps.
#[test]
fn drawn_bodies_on_meshes_are_their_steps() {
    let mesh = mesh(&[("x", 2), ("y", 2)]);
    for seed in 0..20 {
        let mut dice = Dice(seed + 2000);
        let (body, reverse) = (Arc::new(Body::draw(&mut dice)), dice.below(2) == 0);
        let all = operands([2, 4, 6][dice.below(3)], DType::F32, &mut dice);
        let put = |x: &Array| {
            let mut free = vec!["x", "y"];
            let dims = x.shape().iter().map(|n| match n % 2 == 0 && dice.below(2) == 0 {
                true => free.pop().unwrap_or_default(),
                false => "",
            });
            let spec = dims
                .map(|axis| if axis.is_empty() { "{}".into() } else { format!("{{\"{axis}\"}}") })
                .collect::<Vec<_>>()
                .join(", ");
            let spec: PartitionSpec = format!("[{spec}]").parse().expect("a spec");
            device_put(x, &NamedSharding::new(&mesh, spec)).expect("it is placed")
        };
        let sharded: Vec<Array> = all.iter().map(put).collect();
        let about = format!("{seed}: reverse {reverse}, {body:?}");
        let found = jit(run(&body, 1, reverse))(&sharded).unwrap_or_else(|e| panic!("{about}: {e}"));
        let want = jit(run(&body, 100, reverse))(&all).expect("it runs");
        equal(&found, &want, 2e-5, &about);
        let slope = |unroll: usize, all: &Vec<Array>| {
            let f = run(&body, unroll, reverse);
            jit(grad(move |all: &Vec<Array>| Ok::<_, Error>(loss(&f(all)?))))(all)
                .unwrap_or_else(|e| panic!("{about}: {e}"))
        };
        equal(&slope(1, &sharded), &slope(100, &all), 8e-5, &format!("gradient of {about}"));
    }
}

/// What is not finite stays so: no step's value reaches another one's.
#[test]
fn values_that_are_not_finite_stay_in_their_steps() {
    let cell = |w: &Array, all: &Vec<Array>, unroll: usize| {
        let (last, ys) = Scan::new().unroll(unroll).run(&all[0], &all[1], |h: &Array, x: &Array| {
            let h = (x.matmul(w) + h * 0.5).maximum(-3.0);
            (h.clone(), (x.exp().sum(-1), h.log()))
        })?;
        Ok::<_, Error>(vec![last, ys.0, ys.1])
    };
    let w = Client::cpu().array(&[1.0f32, -1.0, 0.5, 2.0], &[2, 2]).expect("it fits");
    let h = Client::cpu().array(&[1.0f32, 2.0], &[1, 2]).expect("it fits");
    let x = [0.0, 1.0, f32::INFINITY, 1.0, f32::NAN, 2.0, -0.0, 1e30];
    let x = Client::cpu().array(&x, &[4, 1, 2]).expect("it fits");
    let all = vec![h, x];
    let found = jit(move |w: &Array, all: &Vec<Array>| cell(w, all, 1))(&w, &all).expect("it runs");
    let want = jit(move |w: &Array, all: &Vec<Array>| cell(w, all, 9))(&w, &all).expect("it runs");
    equal(&found, &want, 1e-6, "not finite");
}

/// The part of a plan's text that is a loop on the host or a kernel of several steps.
fn loops(plan: &str) -> Vec<&str> {
    plan.split("\nkernel ").filter(|kernel| kernel.contains(" arbitrary\n")).collect()
}

#[test]
fn products_of_elements_are_made_at_once() {
    let net = |w: &Array, v: &Array, xs: &Array| {
        let (last, _) = Scan::new().run(&(xs.index(0) * 0.0), xs, |h: &Array, x: &Array| {
            let h = (x.matmul(v) + h.matmul(w)).tanh();
            (h.clone(), h)
        })?;
        Ok::<_, Error>(last.square().sum(..))
    };
    let shape = |shape: &[usize]| Client::cpu().shape_dtype(shape, DType::F32).expect("it fits");
    let (w, xs) = (shape(&[8, 8]), shape(&[20, 3, 8]));
    let plan = lower(net)(&w, &w, &xs).expect("it is traced").to_plan();
    let own = loops(&plan);
    assert_eq!(own.len(), 1, "{plan}");
    assert_eq!(own[0].matches("= dot ").count(), 1, "{plan}");
    // Backwards the sums of gradients are products of all steps, and so is the gradient of the elements.
    let by_all = move |all: &[Array; 3]| net(&all[0], &all[1], &all[2]);
    let plan = lower(grad(by_all))(&[w.clone(), w, xs]).expect("it is traced").to_plan();
    let own = loops(&plan);
    assert_eq!(own.len(), 2, "{plan}");
    assert!(own.iter().all(|text| text.matches("= dot ").count() == 1), "{plan}");
}

#[test]
fn what_would_need_more_memory_stays_in_its_step() {
    let shape = |shape: &[usize]| Client::cpu().shape_dtype(shape, DType::F32).expect("it fits");
    // A table of all pairs in each step.
    let pairs = |xs: &Array| {
        Scan::new().run(&xs.index(0).expand_dims(1), xs, |h: &Array, x: &Array| {
            let all = (x.expand_dims(1) * x.expand_dims(0)).exp();
            ((h * 0.5 + all.sum(1).expand_dims(1)), ())
        })
    };
    let lowered = lower(move |xs: &Array| pairs(xs).map(|(h, ())| h))(&shape(&[500, 64])).expect("it is traced");
    let arena = lowered.memory_analysis().temporary_bytes;
    assert!(arena < 500 * 64 * 64 * 4, "{arena} bytes");
    // Gradients of parts of a batch, whose parts are to need memory one after the other.
    let parts = |w: &Array, xs: &Array| {
        let (sum, ()) = Scan::new().run(&(w * 0.0), xs, |sum: &Array, x: &Array| {
            let hidden = x.matmul(w).tanh();
            ((sum + x.t().matmul(&hidden)), ())
        })?;
        Ok::<_, Error>(sum)
    };
    let plan = lower(parts)(&shape(&[16, 16]), &shape(&[50, 64, 16])).expect("it is traced").to_plan();
    assert!(plan.contains("tanh") && (plan.contains(" steps of ") || !loops(&plan).is_empty()), "{plan}");
}

/// An element of a stack of states follows from the element of the hoisted product that it replaces.
#[test]
fn stacks_take_the_memory_of_hoisted_products() {
    let shape = |shape: &[usize]| Client::cpu().shape_dtype(shape, DType::F32).expect("it fits");
    let states = |w: &Array, xs: &Array| {
        let (_, all) = Scan::new().run(&(xs.index(0) * 0.0), xs, |h: &Array, x: &Array| {
            let h = (x.matmul(w) + h.matmul(w)).tanh();
            (h.clone(), h)
        })?;
        Ok::<_, Error>(all)
    };
    // The first is a kernel of many steps, the second a loop of kernels.
    for (steps, batch, width) in [(64, 3, 16), (64, 32, 256)] {
        let (w, xs) = (shape(&[width, width]), shape(&[steps, batch, width]));
        let row = batch * width * 4;
        let one = lower(states)(&w, &xs).expect("it is traced").memory_analysis().temporary_bytes;
        assert!(one < 4 * row + 4096, "{one} bytes, a row has {row}");
        if width < 256 {
            // Few of the bytes of gradients are those of stacks.
            continue;
        }
        // The states, those before them, and what gradients are multiplied by are kept; the products are not.
        let loss = move |w: &Array, xs: &Array| Ok::<_, Error>(states(w, xs)?.square().mean(..));
        let both = lower(value_and_grad(loss))(&w, &xs).expect("it is traced");
        let (plan, both) = (both.to_plan(), both.memory_analysis().temporary_bytes);
        assert!(both < (3 * steps + 12) * row, "{both} bytes, a row has {row}\n{plan}");
    }
}

/// A stack that takes over an array's memory must not be written before the array is read.
#[test]
fn stacks_that_do_not_follow_from_an_array_have_their_own_memory() {
    // States before the step, in reverse; what was read is read again beside it.
    let f = |w: &Array, xs: &Array| {
        let hoisted = xs.matmul(w);
        let step = |h: &Array, x: &Array| {
            let next = (x + h.matmul(w)).tanh();
            (next, (h.clone(), h * 2.0 + x))
        };
        let (last, (before, sums)) = Scan::new().reverse(true).run(&(xs.index(0) * 0.0), &hoisted, step)?;
        Ok::<_, Error>(vec![last, before, sums])
    };
    for (batch, width) in [(3, 16), (32, 256)] {
        let numbers_of = |count: usize, by: f32| (0..count).map(move |i| ((i * 7919) % 613) as f32 * by - 300.0 * by);
        let array = |shape: &[usize], by: f32| {
            let all: Vec<f32> = numbers_of(shape.iter().product(), by).collect();
            Client::cpu().array(&all, shape).expect("it fits")
        };
        let (w, xs) = (array(&[width, width], 2e-4), array(&[9, batch, width], 3e-3));
        let found = jit(f)(&w, &xs).expect("it runs");
        let want = f(&w, &xs).expect("it runs");
        equal(&found, &want, 1e-4, "states");
    }
}

#[test]
fn a_single_step_is_no_loop() {
    let f = |h: &Array, xs: &Array| Scan::new().run(h, xs, |h: &Array, x: &Array| (h * 0.5 + x, h.t().matmul(x)));
    let x = Client::cpu().array(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]).expect("it fits");
    let xs = x.expand_dims(0);
    let plan = lower(f)(&x, &xs).expect("it is traced").to_plan();
    assert!(loops(&plan).is_empty() && !plan.contains(" steps of "), "{plan}");
    let (last, stack) = jit(f)(&x, &xs).expect("it runs");
    assert_eq!(numbers(&last), [1.5, 3.0, 4.5, 6.0]);
    assert_eq!((stack.shape(), numbers(&stack)), (&[1, 2, 2][..], vec![10.0, 14.0, 14.0, 20.0]));
}

/// Products that shrink reach 0 along either axis, where the least subnormal number would stay.
#[test]
fn running_products_reach_zero() {
    for (shape, axis, last) in [([300, 32], 0, 299 * 32), ([32, 300], 1, 299)] {
        let x = super::array(&[0.7; 300 * 32], &shape);
        let found = super::numbers(&jit(move |x: &Array| x.cumprod(axis))(&x).expect("it runs"));
        assert!(found[0] == 0.7 && found[last] == 0.0, "along axis {axis}: {} and {}", found[0], found[last]);
    }
}
