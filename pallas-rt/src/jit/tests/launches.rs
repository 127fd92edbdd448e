//! How many launches functions take: of a step of training, a block of an encoder, and softmax(q kᵀ) however it is
//! written.
#![allow(clippy::ptr_arg, reason = "a tree of layers, as functions take it")]
use super::random::Dice;
use super::{array, close, numbers};
use crate::jit::count_steps;
use crate::ops::select;
use crate::prelude::*;
use crate::{jit, lower, ops, tree, value_and_grad};

fn zeros(shape: &[usize]) -> Array {
    Client::cpu().zeros(shape, DType::F32).expect("it fits")
}

#[derive(Clone, Tree)]
struct Layer {
    w: Array,
    b: Array,
}

#[derive(Clone, Tree)]
struct State {
    layers: Vec<Layer>,
    means: Vec<Layer>,
    squares: Vec<Layer>,
    t: Array,
}

fn loss(layers: &Vec<Layer>, x: &Array, labels: &Array) -> Array {
    let mut h = x.clone();
    for (i, layer) in layers.iter().enumerate() {
        h = h.matmul(&layer.w) + &layer.b;
        h = if i < 2 { h.relu() } else { h };
    }
    -(h.log_softmax(-1) * labels.one_hot(10, DType::F32)).sum(-1).mean(..)
}

fn adamw(state: &State, x: &Array, labels: &Array) -> Result<(State, Array)> {
    let (value, gradient) = value_and_grad(loss)(&state.layers, x, labels)?;
    let t = &state.t + 1.0;
    let means = tree::map2(&state.means, &gradient, |m, g| Ok(m * 0.9 + g * 0.1))?;
    let squares = tree::map2(&state.squares, &gradient, |s, g| Ok(s * 0.999 + g * g * 0.001))?;
    let left = [0.9f64, 0.999].map(|beta| 1.0 - (&t * beta.ln()).exp());
    let layers = tree::map3(&state.layers, &means, &squares, |p, m, s| {
        Ok(p - ((m / &left[0]) / ((s / &left[1]).sqrt() + 1e-8) + p * 0.01) * 1e-3)
    })?;
    Ok((State { layers, means, squares, t }, value))
}

#[test]
fn a_step_of_training_takes_few() {
    let layer = |[rows, columns]: [usize; 2]| Layer { w: zeros(&[rows, columns]), b: zeros(&[columns]) };
    let layers = || [[784, 512], [512, 512], [512, 10]].map(layer).to_vec();
    let state = State { layers: layers(), means: layers(), squares: layers(), t: zeros(&[]) };
    let labels = Client::cpu().zeros(&[256], DType::I32).expect("it fits");
    let n = count_steps(adamw)(&state, &zeros(&[256, 784]), &labels).expect("it compiles");
    assert!(n <= 14, "{n} launches");
}

const HEADS: usize = 6;

/// A block of a transformer's encoder: attention, and two dense layers, each with a residual and a norm.
fn encoder_block(x: &Array, w: &Vec<Layer>, norms: &[Layer; 2]) -> Array {
    let (batch, length, hidden) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let dense = |x: &Array, layer: &Layer| x.matmul(&layer.w) + &layer.b;
    let heads = |layer| dense(x, layer).reshape(&[batch, length, HEADS, hidden / HEADS]).transpose(&[0, 2, 1, 3]);
    let norm = |x: Array, layer: &Layer| x.standardize(-1, 1e-12) * &layer.w + &layer.b;
    let [q, k, v] = [0, 1, 2].map(|i| heads(&w[i]));
    let scores = q.matmul(&k.transpose(&[0, 1, 3, 2])) * (1.0 / (hidden as f64 / HEADS as f64).sqrt());
    let mixed = scores.softmax(-1).matmul(&v).transpose(&[0, 2, 1, 3]).reshape(x.shape());
    let x = norm(x + dense(&mixed, &w[3]), &norms[0]);
    norm(&x + dense(&dense(&x, &w[4]).gelu(), &w[5]), &norms[1])
}

#[test]
fn a_block_of_an_encoder_takes_few() {
    let layer = |[rows, columns]: [usize; 2]| Layer { w: zeros(&[rows, columns]), b: zeros(&[columns]) };
    let [square, up, down] = [[384, 384], [384, 1536], [1536, 384]];
    let w = [square, square, square, square, up, down].map(layer).to_vec();
    let norms = [(); 2].map(|()| Layer { w: zeros(&[384]), b: zeros(&[384]) });
    let n = count_steps(encoder_block)(&zeros(&[4, 512, 384]), &w, &norms).expect("it compiles");
    assert!(n <= 8, "{n} launches");
}

/// Ways to write softmax(q kᵀ).
#[derive(Clone, Copy, Debug)]
struct Written {
    /// By queries, keys, scores, a division of scores; or not at all.
    scale: usize,
    /// None, by position, an array, an array that holds for all queries.
    mask: usize,
    /// None, of scores, of keys, a number.
    bias: usize,
    /// `softmax`; `exp` or `exp2` of what is below the greatest, over its sum.
    exp: usize,
    /// True if keys are given as columns.
    transposed: bool,
    /// Queries, keys, elements of each.
    sizes: [usize; 3],
    /// Leading axes.
    batch: usize,
}

impl Written {
    fn drawn(seed: u64) -> Written {
        let mut dice = Dice(seed);
        Written {
            scale: dice.below(5),
            mask: dice.below(4),
            bias: dice.below(4),
            exp: dice.below(3),
            transposed: dice.below(2) == 0,
            sizes: [100, 130, 40].map(|n| 1 + dice.below(n)),
            batch: dice.below(3),
        }
    }

    fn lead(&self) -> &'static [usize] {
        &[2, 3][..self.batch]
    }

    fn scores(&self, [q, k, mask, bias]: &[Array; 4]) -> Array {
        let factor = 0.25;
        let q = if self.scale == 0 { q * factor } else { q.clone() };
        let k = if self.scale == 1 { k * factor } else { k.clone() };
        let mut s = if self.transposed { q.matmul(&k) } else { q.matmul(&k.swapaxes(-1, -2)) };
        s = match self.scale {
            2 => s * factor,
            3 => s / (1.0 / factor),
            _ => s,
        };
        if self.bias > 0 {
            s = s + bias;
        }
        match self.mask {
            0 => s,
            1 => {
                let [rows, columns, _] = self.sizes;
                let position = |n: usize, shape: &[usize]| ops::arange(0, n as u32, 1, DType::I32).reshape(shape);
                select(&position(rows, &[rows, 1]).ge(position(columns, &[1, columns])), s, -1e30)
            }
            _ => select(&mask.gt(0.0), s, -1e30),
        }
    }

    fn softmax(&self, arrays: &[Array; 4]) -> Array {
        let s = self.scores(arrays);
        let below = |s: &Array| s - s.max(-1).expand_dims(-1);
        let over_sum = |e: Array| &e / e.sum(-1).expand_dims(-1);
        match self.exp {
            0 => s.softmax(-1),
            1 => over_sum(below(&s).exp()),
            _ => over_sum((below(&s) * std::f64::consts::LOG2_E).exp2()),
        }
    }

    /// q, k, mask, bias.
    fn arrays(&self, client: &Client) -> [Array; 4] {
        let [rows, columns, inner] = self.sizes;
        let mut dice = Dice(7);
        let mut random = |lead: &[usize], shape: [usize; 2]| {
            let shape = [lead, &shape].concat();
            let elements: Vec<f32> =
                (0..shape.iter().product()).map(|_| dice.below(1000) as f32 / 250.0 - 2.0).collect();
            client.array(&elements, &shape).expect("it fits")
        };
        let q = random(self.lead(), [rows, inner]);
        let k = random(self.lead(), if self.transposed { [inner, columns] } else { [columns, inner] });
        let mask = random(&[], if self.mask == 3 { [1, columns] } else { [rows, columns] });
        let bias = match self.bias {
            2 => random(&[], [1, columns]),
            3 => random(&[], [1, 1]),
            _ => random(self.lead(), [rows, columns]),
        };
        [q, k, mask, bias]
    }

    /// softmax(q kᵀ) in f64.
    fn expected(&self, arrays: &[Array; 4]) -> Vec<f64> {
        let [rows, columns, inner] = self.sizes;
        let scales = if self.scale < 4 { 0.25 } else { 1.0 };
        let [q, k, mask, bias] = arrays.each_ref().map(|x| numbers(x).into_iter().map(f64::from).collect::<Vec<_>>());
        let mut found = vec![];
        for b in 0..self.lead().iter().product() {
            for i in 0..rows {
                let score = |j: usize| {
                    let key = |p| if self.transposed { p * columns + j } else { j * inner + p };
                    let term = |p| q[(b * rows + i) * inner + p] * k[b * inner * columns + key(p)];
                    let bias = match self.bias {
                        0 => 0.0,
                        1 => bias[(b * rows + i) * columns + j],
                        2 => bias[j],
                        _ => bias[0],
                    };
                    let sees = match self.mask {
                        0 => true,
                        1 => i >= j,
                        2 => mask[i * columns + j] > 0.0,
                        _ => mask[j] > 0.0,
                    };
                    if sees { (0..inner).map(term).sum::<f64>() * scales + bias } else { -1e30 }
                };
                let scores: Vec<f64> = (0..columns).map(score).collect();
                let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - greatest).exp()).sum();
                found.extend(scores.iter().map(|s| (s - greatest).exp() / sum));
            }
        }
        found
    }
}

/// The product, what stands before it and behind it, and the fold of its rows share a kernel.
#[test]
fn softmax_of_a_product_takes_one() {
    let check = |seed: u64, client: &Client| {
        let written = Written::drawn(seed);
        let arrays = written.arrays(client);
        let f = move |arrays: &[Array; 4]| written.softmax(arrays);
        assert_eq!(count_steps(f)(&arrays).expect("it compiles"), 1, "{seed}: {written:?}");
        close(&jit(f)(&arrays).expect("it runs"), &written.expected(&arrays));
    };
    (0..48).for_each(|seed| check(seed, &Client::cpu()));
    #[cfg(feature = "gpu")]
    if let Some(gpu) = crate::lang::random::gpu() {
        (0..8).for_each(|seed| check(seed, &gpu));
    }
}

/// A function for each reason why a kernel reads a value that another one computes.
#[test]
fn plans_say_why_kernels_are_apart() {
    let x = array(&[0.5; 36], &[6, 6]);
    let at = Client::cpu().array(&[1, 3], &[2]).expect("it fits");
    let plan = |f: fn(&Array, &Array) -> Vec<Array>| lower(f)(&x, &at).expect("it is traced").to_plan();
    let cases: [(&str, String); 9] = [
        ("a step of its own", plan(|x, at| vec![x.at(at).add(1.0).exp()])),
        ("two products", plan(|x, _| vec![x.matmul(x).matmul(x)])),
        ("other blocks", plan(|x, _| vec![x.exp() + x.exp().t()])),
        ("repeated work", plan(|x, _| vec![x.index(0).exp() + x])),
        ("computed by another kernel", plan(|x, _| vec![x.exp().sin().sum(-1), x.exp().sin().sum(0)])),
        ("a table of a gather", plan(|x, at| vec![x.exp().take(at, 0)])),
        ("an alias of memory", {
            plan(|x, _| {
                let flat = x.cumsum(0).reshape(&[36]);
                vec![flat.clone(), flat.sin()]
            })
        }),
        ("a circle", plan(|x, at| vec![x.exp().at(at).add(1.0) + x.exp()])),
        ("a full kernel", plan(|x, _| vec![(0..400).fold(x.clone(), |x, _| x.sin())])),
    ];
    for (reason, text) in cases {
        let step = text.lines().find(|line| line.contains(" of ") && line.contains(&format!(" ({reason})")));
        assert!(step.is_some(), "{reason}:\n{text}");
    }
    let fused = plan(|x, _| vec![x.exp().sum(-1)]);
    assert!(!fused.lines().any(|line| line.contains(" of ") && line.contains('(')), "{fused}");
}

/// The sizes of the blocks that programs have of the first result.
fn blocks(f: fn(&Array) -> Array, shape: &[usize]) -> Vec<Vec<usize>> {
    let x = Client::cpu().shape_dtype(shape, DType::F32).expect("it fits");
    let plan = lower(f)(&x).expect("it is traced").to_plan();
    let of = |line: &str| {
        let (_, sizes) = line.split_once("] block [")?;
        let (sizes, _) = sizes.split_once(']')?;
        Some(sizes.split(", ").map(|n| n.parse().expect("a number")).collect())
    };
    plan.lines().filter(|line| line.trim_start().starts_with("out ")).filter_map(of).collect()
}

/// Elementwise kernels have the same blocks whatever moves elements in front of them.
#[test]
fn blocks_fit_what_a_program_does() {
    let all = blocks(|x| x.flip(0) + x, &[5000, 300]);
    let is_flat = |block: &Vec<usize>| matches!(block[..], [n] if (1 << 13..=1 << 14).contains(&n));
    assert!(all.iter().any(is_flat), "{all:?}");
    // Elements that move along short axes: programs divide the columns, also those of what follows.
    for f in
        [(|x| x.flip(0) + x) as fn(&Array) -> Array, |x| ops::concatenate(&[x, &x.exp()], 0), |x| x.cumsum(0) * 2.0]
    {
        let all = blocks(f, &[64, 3000]);
        assert!(all.len() == 1 && all[0][1] < 3000, "{all:?}");
    }
    // Long pieces of the rows of a matrix that is read once.
    let all = blocks(|x| x.index((0..1, 0..64)).matmul(x), &[64, 50_257]);
    assert!(all.iter().any(|block| block[1] >= 512 && block[1].is_multiple_of(16)), "{all:?}");
}

/// A function of several launches, of which some end with a check where the driver limits loops.
#[cfg(feature = "gpu")]
fn of_several(x: &Array, w: &Array) -> Result<Array> {
    let y = x.matmul(w).tanh();
    let y = y.matmul(&y.softmax(0).t()).cumsum(1).sort(0);
    let y = y.matmul(&y) * 0.01;
    Ok(y.matmul(&y.t()) + y.sum(crate::keep(0)))
}

#[cfg(feature = "gpu")]
#[test]
fn the_launches_of_a_function_are_submitted_together() {
    let Some(client) = crate::lang::random::gpu().and_then(|gpu| gpu.isolated().ok()) else { return };
    let elements: Vec<f32> = (0..40 * 40).map(|i| ((i * 37) % 101) as f32 / 101.0 - 0.5).collect();
    let x = Client::cpu().array(&elements, &[40, 40]).expect("it fits");
    let want = jit(of_several)(&x, &x).expect("it runs").to_vec::<f32>().expect("elements");
    let x = x.to_device(&client).expect("memory");
    let f = jit(of_several);
    let found = f(&x, &x).expect("it runs").to_vec::<f32>().expect("elements");
    assert!(want.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-3), "{want:?} {found:?}");
    assert_eq!(f(&x, &x).expect("it runs").to_vec::<f32>().expect("elements"), found);

    // Kernels without loops.
    let turned = |x: &Array| (0..4).fold(x.clone(), |y, i| y.sin() + y.cos().t() * f64::from(i));
    let want = jit(turned)(&x.to_device(&Client::cpu()).expect("memory")).expect("it runs");
    let turned = jit(turned);
    turned(&x).expect("it runs");
    let before = client.gpu_counters();
    let found = turned(&x).expect("it runs");
    let after = client.gpu_counters();
    assert_eq!(after.submissions - before.submissions, 1);
    assert!(after.dispatches - before.dispatches >= 4, "{after:?}");
    close(&found, &numbers(&want).into_iter().map(f64::from).collect::<Vec<_>>());

    // All steps of a loop; threads have programs of their own.
    let looped =
        jit(|x: &Array| crate::fori_loop(0..5, x, |i: &Array, y: &Array| (y.matmul(y) * 0.01 + i).tanh().softmax(1)));
    let want =
        looped(&x.to_device(&Client::cpu()).expect("memory")).expect("it runs").to_vec::<f32>().expect("elements");
    looped(&x).expect("it runs");
    let before = client.gpu_counters();
    looped(&x).expect("it runs");
    let after = client.gpu_counters();
    assert_eq!(after.submissions - before.submissions, 1);
    assert!(after.dispatches - before.dispatches >= 10, "{after:?}");
    // More steps than numbers that are uploaded at once.
    let rolled = |x: &Array| {
        crate::fori_loop(0..2100, x, |i: &Array, y: &Array| {
            let row = y.index(i % 40) * 0.5;
            y.at((i * 7) % 40).set(row + i.cast(DType::F32) * 1e-3)
        })
    };
    let want_rolled = jit(rolled)(&x.to_device(&Client::cpu()).expect("memory")).expect("it runs");
    close(&jit(rolled)(&x).expect("it runs"), &numbers(&want_rolled).into_iter().map(f64::from).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let found = looped(&x).expect("it runs").to_vec::<f32>().expect("elements");
                    assert!(want.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-4));
                }
            });
        }
    });
}

/// Chains behind moves along the axes of short rows: each operand is read from another place.
#[test]
fn moves_of_short_rows_share_kernels() {
    let client = Client::cpu();
    let mut alone = 0;
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut shape = [1 + dice.below(40), [1, 3, 62, 200, 1100][dice.below(5)], 1 + dice.below(9)];
        if dice.below(8) == 0 {
            shape[dice.below(3)] = 0;
        }
        let n: usize = shape.iter().product();
        let dtype = [DType::F32, DType::Bf16, DType::F16, DType::U8, DType::I32, DType::F64][dice.below(6)];
        let mut x: Vec<f32> = (0..n).map(|_| dice.below(60) as f32).collect();
        if dtype.is_float() && n > 0 {
            x[dice.below(n)] = f32::NAN;
        }
        let given = client.array(&x, &shape).expect("it fits").cast(dtype);
        let (axis, other) = (dice.below(3), dice.below(3));
        let f = move |x: &Array| x.flip(axis as isize) + x.flip(other as isize) * 2.0 + x;
        alone += usize::from(count_steps(f)(&given).expect("it compiles") == 1);
        let found = numbers(&jit(f)(&given).expect("it runs").cast(DType::F32));
        assert_eq!(found.len(), n, "{seed}: {dtype} {shape:?}");
        let flipped = |i: usize, axis: usize| {
            let inner: usize = shape[axis + 1..].iter().product();
            let at = i / inner % shape[axis];
            x[i - at * inner + (shape[axis] - 1 - at) * inner]
        };
        for (i, &y) in found.iter().enumerate() {
            let expected = flipped(i, axis) + flipped(i, other) * 2.0 + x[i];
            let is_same = y == expected || y.is_nan() && expected.is_nan();
            assert!(is_same, "{seed}: {dtype} {shape:?} along {axis} and {other}, element {i}: {y}, not {expected}");
        }
    }
    assert!(alone >= 10, "{alone} of 60 are one kernel");
}

/// The elements of a short scan and those that it takes lie in one array each, of which programs divide the columns.
#[test]
fn associative_scans_of_few_rows_take_one() {
    let x = Client::cpu().shape_dtype(&[3, 50_000], DType::F32).expect("it fits");
    let linear = |a: &Array, b: &Array| {
        let combine = |(a, b): &(Array, Array), (c, d): &(Array, Array)| (a * c, c * b + d);
        crate::associative_scan(&(a.clone(), b.clone()), combine).map(|(_, h)| h)
    };
    assert_eq!(count_steps(linear)(&x, &x).expect("it compiles"), 1);
}

/// Pads along all axes, of arrays that one program would take long for, have many; other operations follow them.
#[test]
fn large_pads_divide_among_programs() {
    let mut sharded = 0;
    for seed in 0..24 {
        let mut dice = Dice(seed);
        let shape = [[60, 70, 9], [1, 18, 4562], [7, 5, 3], [20_011, 1, 2]][dice.below(4)];
        let widths: Vec<(usize, usize)> = (0..3).map(|_| (dice.below(4), dice.below(3))).collect();
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i % 251) as f32).collect();
        let given = array(&x, &shape);
        let with = widths.clone();
        let f = move |x: &Array| (x + 1.0).pad(&with, -2.0) * 2.0;
        let found = jit(f.clone())(&given).expect("it runs");
        let to: Vec<usize> = shape.iter().zip(&widths).map(|(n, (low, high))| n + low + high).collect();
        assert_eq!(found.shape(), to, "{seed}");
        for (i, &y) in numbers(&found).iter().enumerate() {
            let at = [i / to[2] / to[1], i / to[2] % to[1], i % to[2]];
            let from = [0, 1, 2].map(|axis| at[axis].wrapping_sub(widths[axis].0));
            let is_inside = (0..3).all(|axis| from[axis] < shape[axis]);
            let own = is_inside.then(|| x[(from[0] * shape[1] + from[1]) * shape[2] + from[2]] + 1.0);
            assert_eq!(y, own.unwrap_or(-2.0) * 2.0, "{seed}: {shape:?} by {widths:?}, element {i}");
        }
        sharded += usize::from(lower(f)(&given).expect("it is traced").to_plan().contains("kernel pad"));
    }
    assert!(sharded > 4, "{sharded}");
}
