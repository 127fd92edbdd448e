//! Functions that are compiled once for all lengths up to a bound, against the same functions compiled for each length.
//! Elements that do not exist are NaN here, or the highest integer, so that any influence of them shows.
use super::random::Dice;
use super::{array, numbers};
use crate::ops::{Convolution, Padding, ScalarOp, Windows, arange, concatenate, conv_general_dilated, select};
use crate::prelude::*;
use crate::transform::Miss;
use crate::{
    BoundedSize, checkpoint, cond, fori_loop, grad, jit, jit_misses, keep, random, scan, value_and_grad, vmap,
};
use parking_lot::Mutex;

/// A function of `x`, `[n, 3]`, and weights `[3, 3]`, which gives `[n, 3]`.
type Rows = fn(&Array, &Array) -> Result<Array>;

/// Functions that have one compilation for all lengths.
const MEMBERS: &[(&str, Rows)] = &[
    ("product", |x, w| Ok(x.matmul(w).tanh())),
    ("contraction", |x, w| Ok(x.matmul(&x.t().matmul(&x.matmul(w))).tanh())),
    ("mean", |x, w| Ok(x - x.mean(keep(0)) * w.sum(..))),
    ("count", |x, w| Ok(x - x.sum(keep(0)) / x.count(0) + w.index(0))),
    ("count in Rust", |x, w| Ok(x * w.max(..) - x.sum(keep(0)) * (1.0 / (1.0 + x.shape()[0] as f32)))),
    ("variance", |x, w| Ok(x / (x.var(keep(0)) + 1.0).sqrt() * w.index(1))),
    ("softmax over rows", |x, w| Ok((x * w.index(2)).softmax(0))),
    ("softmax over columns", |x, w| Ok(x.matmul(w).softmax(1))),
    ("attention", |x, w| Ok(x.matmul(w).matmul(&x.t()).softmax(1).matmul(x))),
    ("causal attention", |x, w| {
        let n = x.shape()[0];
        let at = arange(0, n as f64, 1, DType::I32);
        let sees = at.expand_dims(1).ge(at.expand_dims(0));
        Ok(select(&sees, x.matmul(w).matmul(&x.t()), -1e9).softmax(1).matmul(x))
    }),
    ("extremes", |x, w| Ok(x * w.min(..) - x.max(keep(0)) + x.min(keep(0)))),
    ("product of rows", |x, w| Ok(x + (x * 0.3).prod(keep(0)) * w.sum(0))),
    ("running sum", |x, w| Ok((x * 0.1).cumsum(0) + w.index(0))),
    ("sorted", |x, w| Ok(x.sort(0) * w.index(0))),
    ("sorted down", |x, w| Ok(x.matmul(w).sort_descending(0))),
    ("sorted positions", |x, w| Ok(x.take_along_axis(&x.argsort(0), 0) + w.index(0))),
    ("largest", |x, w| {
        let (best, at) = x.t().top_k(1, 1);
        Ok(x * best.t() + at.t().cast(DType::F32) * w.index(0))
    }),
    (
        "position of the largest",
        |x, w| Ok(x + x.argmax(0).cast(DType::F32) - x.argmin(0).cast(DType::F32) * w.index(0)),
    ),
    ("row of the largest", |x, w| Ok(x + x.take(&x.index((.., 0)).argmax(0), 0) * w.index(0))),
    ("last row", |x, w| Ok(x.matmul(w) - x.take(&(x.count(0) - 1), 0))),
    ("rows at computed places", |x, w| {
        let at = (x.index((.., 0)) * 5.0).cast(DType::I32);
        Ok(x.take(&at, 0) * w.index(2))
    }),
    ("rows at computed places, or the nearest", |x, w| {
        let at = (x.index((.., 0)) * 12.0).cast(DType::I32);
        Ok(x.index((at, ..)) * w.index(2) + x.index((x.index((.., 1)) * 9.0).max(..).cast(DType::I32)))
    }),
    ("weights at computed places", |x, w| Ok(x + w.take(&(x.index((.., 1)).abs() * 2.0).cast(DType::I32), 0))),
    ("scattered to weights", |x, w| {
        let at = (x.index((.., 0)).abs() * 2.0).cast(DType::I32);
        Ok(x.matmul(&w.at(at).add(x.tanh())))
    }),
    ("scattered to rows", |x, w| {
        let at = (x.index((.., 0)).abs() * 3.0).cast(DType::I32);
        Ok((x * 0.0).at(at).add(x.matmul(w)))
    }),
    ("rows in front", |x, w| {
        let n = x.shape()[0];
        Ok(concatenate(&[&w.index(0).expand_dims(0), x], 0).cumsum(0).index((..n as i64, ..)))
    }),
    ("shifted", |x, w| Ok(x.pad(&[(2, 0), (0, 0)], 0.5).index((..x.shape()[0] as i64, ..)) * w.index(0) + x)),
    ("flat", |x, w| Ok(x.matmul(w).reshape(&[x.len()]).cumsum(0).reshape(x.shape()))),
    ("without the first row", |x, w| Ok(x - x.index((1.., ..)).sum(keep(0)) * w.index(0))),
    ("one-dimensional convolution", |x, w| {
        let options = Convolution {
            padding: Padding::Explicit(vec![(1, 1)]),
            dimension_numbers: ["NWC", "WIO", "NWC"],
            ..Convolution::default()
        };
        let window = w.expand_dims(1).broadcast_to(&[3, 3, 3]);
        Ok(conv_general_dilated(&x.expand_dims(0), &window, &options).squeeze(0))
    }),
    ("windows", |x, w| {
        let windows = Windows {
            window_dimensions: &[3, 1],
            padding: Padding::Explicit(vec![(1, 1), (0, 0)]),
            ..Windows::default()
        };
        Ok(x.reduce_window(ScalarOp::Maximum, &windows) + x.reduce_window(ScalarOp::Add, &windows) * w.index(0))
    }),
    ("flip", |x, w| Ok(x.flip(0) * w.index(0) - x)),
    ("flip both", |x, w| Ok(x.flip([0, 1]).matmul(w))),
    ("row behind", |x, w| Ok(concatenate(&[x, &w.index(0).expand_dims(0)], 0).cumsum(0).index((1.., ..)))),
    ("rows behind rows", |x, w| {
        let all = concatenate(&[x, &x.matmul(w), &w.index(0).expand_dims(0), &(x * 2.0)], 0);
        Ok(all.index((-(x.shape()[0] as i64).., ..)) + all.cumsum(0).max(keep(0)) + x)
    }),
    ("row at the end", |x, w| Ok(x * x.index(-1) + w.index(-1))),
    ("padded behind", |x, w| Ok(x + x.pad(&[(1, 2), (0, 0)], 0.25).sum(keep(0)) * w.index(0))),
    ("differences", |x, w| Ok(x * x.diff(1, 0).square().sum(keep(0)) + w.index(0))),
    ("scan over rows", |x, w| {
        let (last, all) = scan(&w.index(0), x, |h: &Array, x: &Array| {
            let h = (h * 0.5 + x).tanh();
            (h.clone(), h)
        })?;
        Ok(all + last)
    }),
    ("scan of weights", |x, w| {
        let (last, ()) = scan(x, w, |h: &Array, w: &Array| ((h + w).tanh() - (h * w).mean(keep(0)), ()))?;
        Ok(last)
    }),
    ("loop", |x, w| fori_loop(0..3, x, |i: &Array, h: &Array| (h * i + x.mean(keep(0))).matmul(w).tanh())),
    // Another number than 0, which is what sums of centred rows round to.
    ("branch", |x, w| cond(&x.sum(..).gt(0.1), x, |x: &Array| x - x.mean(keep(0)), |x: &Array| x.matmul(w))),
    ("computed again", |x, w| checkpoint(|x: &Array, w: &Array| x.matmul(w).softmax(0))(x, w)),
    ("rows one by one", |x, w| vmap(|x: &Array| (x * 2.0).softmax(0))(x).map(|y| y + w.index(0))),
    ("gradient inside", |x, w| grad(|x: &Array| (x.tanh().sum(0) * x.mean(0)).sum(..))(x).map(|y| y * w.index(0))),
    ("random numbers", |x, w| {
        let noise = random::uniform(random::key(7), x.shape(), DType::F32);
        Ok(x + noise - w.index(0))
    }),
];

/// Functions that are compiled for each length, since their operations or their gradient's differ.
const ALONE: &[(&str, Rows)] = &[
    ("roll", |x, w| Ok(x.roll(1, 0) * w.index(0))),
    ("running maximum", |x, w| Ok(x.cummax(0) * w.index(1))),
    ("second rows", |x, w| Ok(x.matmul(w) + x.index((crate::ops::by(.., 2), ..)).sum(keep(0)))),
    ("loop in Rust", |x, w| Ok((0..x.shape()[0]).fold(x * w.index(0), |y, i| y + x.index(i as i64)))),
    ("captures", |x, w| {
        let n = x.shape()[0];
        Ok(x * w.index(0) + Array::from_vec((0..n).map(|i| i as f32).collect(), &[n, 1])?)
    }),
];

/// Functions that have one compilation for all lengths but 4.
const BUT_ONE: &[(&str, Rows)] = &[
    ("another number", |x, w| Ok(x * w.index(0) * if x.shape()[0] == 4 { 0.5 } else { 2.0 })),
    ("another order", |x, w| Ok(if x.shape()[0] == 4 { x.sort(0) } else { x.sort_descending(0) } * w.index(0))),
    ("another position", |x, w| {
        let at = if x.shape()[0] == 4 { x.argmin(0) } else { x.argmax(0) };
        Ok(x * at.cast(DType::F32) + w.index(0))
    }),
    ("another fold", |x, w| Ok(x + if x.shape()[0] == 4 { x.min(keep(0)) } else { x.max(keep(0)) } * w.index(0))),
    ("another axis", |x, w| {
        let (a, b) = (x.index((..3, ..)), w.clone());
        Ok(x + if x.shape()[0] == 4 { a.matmul(&b) } else { a.t().matmul(&b) }.sum(0))
    }),
    ("another operation", |x, w| Ok(if x.shape()[0] == 4 { x.sin() } else { x.cos() } * w.index(0))),
];

const BOUND: usize = 9;

fn size() -> [BoundedSize; 1] {
    [BoundedSize::new("n", BOUND).axis("0", 0)]
}

fn operands(dice: &mut Dice, n: usize) -> (Array, Array) {
    let mut draw = |len: usize| -> Vec<f32> { (0..len).map(|_| dice.below(2001) as f32 / 1000.0 - 1.0).collect() };
    (array(&draw(3 * n), &[n, 3]), array(&draw(9), &[3, 3]))
}

/// The misses of a function of this line after another miss.
fn misses_since(last: Option<&Miss>, line: u32) -> Vec<Miss> {
    let mut all = jit_misses();
    if let Some(at) = all.iter().rposition(|miss| Some(miss) == last) {
        all.drain(..=at);
    }
    all.into_iter().filter(|miss| miss.at.file == file!() && miss.at.line == line).collect()
}

/// Tests that count compilations of one line.
static ALONE_HERE: Mutex<()> = Mutex::new(());

/// Values and gradients of a function, and the number of compilations: compiled for this length alone and for all.
fn compare(
    name: &str,
    f: impl Fn(&Array, &Array) -> Result<Array> + Copy + Send + Sync + 'static,
    lengths: &[usize],
    dice: &mut Dice,
) -> usize {
    let loss = move |x: &Array, w: &Array| {
        let y = f(x, w)?;
        // Each element has a part of its own in the sum.
        let weight = arange(1, y.len() as f64 + 1.0, 1, DType::F32).reshape(y.shape()).sin();
        Ok::<_, Error>((&y * weight).sum(..))
    };
    let both = move |x: &Array, w: &Array| {
        let gradient = value_and_grad(move |x: &(Array, Array)| loss(&x.0, &x.1))(&(x.clone(), w.clone()))?;
        Ok::<_, Error>((f(x, w)?, gradient))
    };
    let own = jit(both);
    let _alone = ALONE_HERE.lock();
    let (all, line) = (jit(both).bounded(size()), line!());
    let mut compiled = 0;
    for &n in lengths {
        let (x, w) = operands(dice, n);
        let (want, (value, (dx, dw))) = own(&x, &w).unwrap_or_else(|e| panic!("{name}, {n}: {e}"));
        let last = jit_misses().pop();
        let (y, (found, (found_dx, found_dw))) = all(&x, &w).unwrap_or_else(|e| panic!("{name}, {n}: {e}"));
        // An axis of one element is one that is broadcast, so short lengths may have other operations.
        compiled += if n > 2 { misses_since(last.as_ref(), line).len() } else { 0 };
        for (what, a, b) in
            [("y", &y, &want), ("value", &found, &value), ("dx", &found_dx, &dx), ("dw", &found_dw, &dw)]
        {
            assert_eq!(a.shape(), b.shape(), "{name}, {n}: {what}");
            let is_close =
                |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-4 * (1.0 + b.abs()) || a.is_nan() && b.is_nan();
            let (a, b) = (numbers(a), numbers(b));
            assert!(a.iter().zip(&b).all(is_close), "{name}, {n}: {what}: {a:?}\n{b:?}");
        }
    }
    compiled
}

#[test]
fn functions_are_compiled_once_for_all_lengths() {
    let mut dice = Dice(7);
    let count = |(name, f): &(&'static str, Rows)| (*name, compare(name, *f, &[4, 9, 3, 7, 5, 4, 1, 2], &mut dice));
    let found: Vec<(&str, usize)> = MEMBERS.iter().map(count).filter(|(_, compiled)| *compiled != 1).collect();
    assert_eq!(found, [], "compilations");
}

#[test]
fn other_functions_are_compiled_for_each_length() {
    let mut dice = Dice(8);
    let count = |(name, f): &(&'static str, Rows)| (*name, compare(name, *f, &[4, 9, 3, 4, 2], &mut dice));
    let found: Vec<(&str, usize)> = ALONE.iter().map(count).filter(|(_, compiled)| *compiled != 3).collect();
    assert_eq!(found, [], "compilations");
}

#[test]
fn lengths_with_other_operations_are_compiled_alone() {
    let mut dice = Dice(9);
    let count = |(name, f): &(&'static str, Rows)| (*name, compare(name, *f, &[5, 4, 9, 7, 4], &mut dice));
    let found: Vec<(&str, usize)> = BUT_ONE.iter().map(count).filter(|(_, compiled)| *compiled != 2).collect();
    assert_eq!(found, [], "compilations");
}

/// Functions that jump where their operand changes by a rounding error.
fn jumps(name: &str) -> bool {
    name.contains("computed places") || name.contains("of the largest") || name.starts_with("scattered")
}

#[test]
fn functions_of_functions_are_compiled_once() {
    let count = std::env::var("PALLAS_RANDOM_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let mut others = vec![];
    for seed in 0..count {
        let mut dice = Dice(seed);
        let mut drawn = [0; 3].map(|_| dice.below(MEMBERS.len()));
        while drawn[1..].iter().any(|&i| jumps(MEMBERS[i].0)) {
            drawn = drawn.map(|_| dice.below(MEMBERS.len()));
        }
        let name = drawn.map(|i| MEMBERS[i].0).join(", then ");
        let f = move |x: &Array, w: &Array| drawn.iter().try_fold(x.clone(), |x, &i| Ok((MEMBERS[i].1)(&x, w)?.tanh()));
        let compiled = compare(&name, f, &[5, 3, 9, 7, 2], &mut dice);
        others.extend((compiled != 1).then_some(name));
    }
    assert_eq!(others, Vec::<String>::new(), "compiled more than once");
}

/// Calls a function of a matrix `[n, m]` and one `[n, 2]` with two sizes, and returns the reasons for its compilations.
fn with_two_sizes<T: crate::tree::Tree + Send + Sync + 'static>(f: fn(&(Array,), &Array) -> Result<T>) -> Vec<String> {
    let sizes = [BoundedSize::new("n", 6).axis("0.0", 0).axis("1", 0), BoundedSize::new("m", 5).axis("0", 1)];
    let _alone = ALONE_HERE.lock();
    let own = jit(f);
    let (all, line) = (jit(f).bounded(sizes), line!());
    let last = jit_misses().pop();
    let mut dice = Dice(3);
    for (n, m) in [(3, 5), (6, 5), (2, 5), (3, 5), (4, 4), (6, 3), (6, 5)] {
        let mut draw = |shape: [usize; 2]| {
            let elements: Vec<f32> = (0..shape[0] * shape[1]).map(|_| dice.below(100) as f32 / 10.0 - 5.0).collect();
            array(&elements, &shape)
        };
        let (x, y) = ((draw([n, m]),), draw([n, 2]));
        let (a, b) = (own(&x, &y).expect("it runs"), all(&x, &y).expect("it runs"));
        for (a, b) in crate::tree::leaves(&a).iter().zip(&crate::tree::leaves(&b)) {
            assert_eq!(a.shape(), b.shape(), "{n} {m}");
            let want: Vec<f64> = numbers(a).into_iter().map(f64::from).collect();
            super::close(b, &want);
        }
    }
    let missed = misses_since(last.as_ref(), line);
    missed.iter().map(|miss| miss.reasons.last().expect("a reason").to_string()).collect()
}

#[test]
fn two_sizes_have_one_compilation() {
    let reasons = with_two_sizes(|x: &(Array,), y: &Array| {
        let x = &x.0;
        let square = x.t().matmul(x).matmul(&x.t().matmul(y)) / x.count(0);
        Ok((square, x.mean(1), x.sum(..) / x.count(1), x.max(..), concatenate(&[&x.t(), &x.t().flip(1)], 1).cumsum(1)))
    });
    assert_eq!(reasons, ["first call"]);
    // Rows of another width do not lie at the start of the flat array.
    let reasons = with_two_sizes(|x: &(Array,), _| Ok(x.0.reshape(&[x.0.len()])));
    assert_eq!(reasons.len(), 5);
    assert!(reasons.iter().all(|why| why.contains("bounded.rs") && why.contains("`reshape`")), "{reasons:?}");
}

#[test]
fn integers_have_one_compilation() {
    let f = |x: &Array, at: &Array| {
        let counts = at.bincount(4);
        let best = x.cast(DType::I32).argmax(0);
        let sorted = (x * 9.0).cast(DType::I32).sort(0).cast(DType::I32);
        let bits = (x * 100.0).cast(DType::I32) & 7;
        let each = x.segment_sum(at, 4);
        let is_any = x.gt(0.9).any(0);
        (counts, best, sorted, bits.min(0), (each, is_any, x.cast(DType::I32).prod(0), x.le(0.9).all(0)))
    };
    let own = jit(f);
    let all = jit(f).bounded([BoundedSize::new("n", 8).axis("0", 0).axis("1", 0)]);
    let mut dice = Dice(5);
    for n in [5, 8, 1, 6, 3, 0] {
        let x: Vec<f32> = (0..2 * n).map(|_| dice.below(400) as f32 / 100.0 - 2.0).collect();
        let at: Vec<i32> = (0..n).map(|_| dice.below(4) as i32).collect();
        let (x, at) = (array(&x, &[n, 2]), Client::cpu().array(&at, &[n]).expect("it fits"));
        let (a, b) = match (own(&x, &at), all(&x, &at)) {
            (Ok(a), Ok(b)) => (a, b),
            // There is no largest of no elements.
            (Err(a), Err(b)) if n == 0 => {
                assert_eq!(a.to_string(), b.to_string());
                continue;
            }
            (a, b) => panic!("{n}: {:?} {:?}", a.err(), b.err()),
        };
        for (a, b) in crate::tree::leaves(&a).iter().zip(&crate::tree::leaves(&b)) {
            assert_eq!(
                (a.shape(), a.to_bytes().expect("elements")),
                (b.shape(), b.to_bytes().expect("elements")),
                "{n}"
            );
        }
    }
}

#[test]
fn no_elements_are_a_length_too() {
    let f = |x: &Array| (x.sum(..), x.cumsum(0), x.matmul(&x.t()), x.count(0));
    let all = jit(f).bounded(size());
    for n in [3, 0, 9, 0] {
        let (sum, running, square, count) = all(&array(&vec![2.0; 3 * n], &[n, 3])).expect("it runs");
        assert_eq!((numbers(&sum), running.shape(), square.shape()), (vec![6.0 * n as f32], &[n, 3][..], &[n, n][..]));
        assert_eq!(count.to_vec::<i32>().expect("a number"), [n as i32]);
    }
}

#[kernel(grid = (cdiv(N, 4)))]
fn doubled(#[block([N, 3] => [4, 3], |i| (i, 0))] x: In<f32>, #[block([N, 3] => [4, 3], |i| (i, 0))] out: Out<f32>) {
    out.store(x.load() * 2.0);
}

#[test]
fn kernels_on_other_arrays_have_one_compilation() {
    let f = |x: &Array, w: &Array| Ok::<_, Error>(x.matmul(&doubled(w)?));
    let (all, line) = (jit(f).bounded(size()), line!());
    let last = jit_misses().pop();
    for n in [3, 5] {
        let y = all(&array(&vec![1.0; 3 * n], &[n, 3]), &array(&[0.5; 9], &[3, 3])).expect("it runs");
        assert_eq!(numbers(&y), vec![3.0; 3 * n]);
    }
    assert_eq!(misses_since(last.as_ref(), line).len(), 1);
    let (all, line) = (jit(|x: &Array| doubled(x)).bounded(size()), line!());
    for n in [3, 5] {
        assert_eq!(numbers(&all(&array(&vec![1.0; 3 * n], &[n, 3])).expect("it runs")), vec![2.0; 3 * n]);
    }
    let missed = misses_since(last.as_ref(), line);
    assert!(missed.len() == 2 && missed[0].to_string().contains("kernel `doubled` has other sizes"), "{missed:?}");
}

#[test]
fn calls_of_traced_functions_are_traced_with_them() {
    let mean = std::sync::Arc::new(jit(|x: &Array| x.mean(..)).bounded(size()));
    let inner = mean.clone();
    let slope = jit(grad(move |x: &Array| inner(x)));
    let x = array(&[1.0; 12], &[4, 3]);
    assert_eq!(numbers(&slope(&x).expect("it runs")), vec![1.0 / 12.0; 12]);
    assert_eq!(numbers(&mean(&x).expect("it runs")), [1.0]);
    let error = slope(&array(&[1.0; 30], &[10, 3])).expect_err("over the bound").to_string();
    assert!(error.contains("size `n` is 10, at most 9 were declared: `0` of f32[10,3]"), "{error}");
}

#[test]
fn mistakes_in_sizes_are_named() {
    let pair = (array(&[0.0; 6], &[2, 3]), array(&[0.0; 3], &[3]));
    let message = |sizes: Vec<BoundedSize>| {
        let f = jit(|x: &(Array, Array)| x.0.sum(..) + x.1.sum(..)).bounded(sizes);
        f(&pair).expect_err("a mistake").to_string()
    };
    let new = BoundedSize::new;
    for (sizes, expected) in [
        (vec![new("n", 0).axis("0.0", 0)], "size `n` is at most 0"),
        (vec![new("n", 4)], "size `n` has no axis"),
        (vec![new("n", 4).axis("1", 0)], "size `n` of `1`: the arguments have 0.0, 0.1"),
        (vec![new("n", 4).axis("0.1", 1)], "size `n` of axis 1 of `0.1`, which is f32[3]"),
        (vec![new("n", 4).axis("0.1", 0), new("m", 4).axis("0", 0)], "axis 0 of `0.1` has size `n` and `m`"),
        (vec![new("n", 4).axis("0", 0)], "size `n` is 2 in `0.0` of f32[2,3] and 3 in `0.1` of f32[3]"),
        (vec![new("n", 2).axis("0.1", 0)], "size `n` is 3, at most 2 were declared: `0.1` of f32[3]"),
    ] {
        let found = message(sizes);
        assert!(found.contains(expected) && found.contains("bounded.rs"), "{found}");
    }
}

#[test]
fn all_devices_ignore_what_does_not_exist() {
    let clients = vec![Client::interpreter()];
    #[cfg(feature = "gpu")]
    let clients = clients.into_iter().chain(crate::lang::random::gpu());
    for client in clients {
        let mut dice = Dice(11);
        for (name, f) in MEMBERS.iter().step_by(3) {
            let (own, all) = (jit(*f), jit(*f).bounded(size()));
            for n in [4, 3] {
                let (x, w) = operands(&mut dice, n);
                let [x, w] = [x, w].map(|x| x.to_device(&client).expect("memory"));
                let (a, b) = (own(&x, &w).expect("it runs"), all(&x, &w).unwrap_or_else(|e| panic!("{name}: {e}")));
                let want: Vec<f64> = numbers(&a).into_iter().map(f64::from).collect();
                super::close(&b, &want);
            }
        }
    }
}
