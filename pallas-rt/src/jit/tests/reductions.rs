//! Long reductions, which take several stages: their values, launches and gradients.
use super::random::Dice;
use super::{array, close, numbers};
use crate::jit::count_steps;
use crate::prelude::*;
use crate::{disable_jit, grad, jit, keep, lower};

/// How elements are folded.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fold {
    Sum,
    Max,
    Min,
    Any,
    All,
    ArgMax,
    ArgMin,
}
use Fold::{All, Any, ArgMax, ArgMin, Max, Min, Sum};

impl Fold {
    fn of(self, x: &Array, axes: &[usize], keeps: bool) -> Array {
        let signed: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
        let axes = || if keeps { keep(&signed[..]) } else { (&signed[..]).into() };
        match self {
            Sum => x.sum(axes()),
            Max => x.max(axes()),
            Min => x.min(axes()),
            Any => x.gt(2.5).any(axes()),
            All => x.gt(-2.5).all(axes()),
            ArgMax => x.argmax(signed[0]),
            ArgMin => x.argmin(signed[0]),
        }
    }

    /// What follows from the elements that one element of the result is folded from, in their order.
    fn expected(self, x: &[f64]) -> f64 {
        let nan = x.iter().position(|x| x.is_nan());
        let extreme = |sign: f64| {
            let most = x.iter().map(|x| x * sign).fold(f64::NEG_INFINITY, f64::max);
            nan.unwrap_or_else(|| x.iter().position(|x| x * sign == most).expect("it is one of them"))
        };
        match self {
            Sum => x.iter().sum(),
            Max => x[extreme(1.0)],
            Min => x[extreme(-1.0)],
            Any => f64::from(u8::from(x.iter().any(|x| *x > 2.5))),
            All => f64::from(u8::from(x.iter().all(|x| *x > -2.5))),
            ArgMax => extreme(1.0) as f64,
            ArgMin => extreme(-1.0) as f64,
        }
    }
}

/// The elements that each element of the result is folded from.
fn groups(x: &[f32], shape: &[usize], axes: &[usize]) -> Vec<Vec<f64>> {
    let kept = |axis: &usize| !axes.contains(axis);
    let mut all = vec![vec![]; (0..shape.len()).filter(kept).map(|axis| shape[axis]).product()];
    let (last, width) = (shape.len() - 1, shape[shape.len() - 1]);
    for (row, numbers) in x.chunks(width.max(1)).enumerate() {
        let numbers = numbers.iter().map(|&x| f64::from(x));
        let (mut rest, mut at, mut stride) = (row, 0, if kept(&last) { width } else { 1 });
        for axis in (0..last).rev() {
            if kept(&axis) {
                at += rest % shape[axis] * stride;
                stride *= shape[axis];
            }
            rest /= shape[axis];
        }
        if kept(&last) {
            all[at..].iter_mut().zip(numbers).for_each(|(group, x)| group.push(x));
        } else {
            all[at].extend(numbers);
        }
    }
    all
}

/// Numbers of which many are equal, so that a position is that of the first, and few are NaN or the extremes.
fn elements(dice: &mut Dice, n: usize) -> Vec<f32> {
    let special = [f32::NAN, 3.0, -3.0, f32::NEG_INFINITY][dice.below(4)];
    let at = dice.below(n);
    let number = |i: usize, dice: &mut Dice| if i == at { special } else { dice.below(41) as f32 / 10.0 - 2.0 };
    (0..n).map(|i| number(i, dice)).collect()
}

#[test]
fn long_reductions_fold_every_element_once() {
    let client = Client::cpu();
    let mut staged = 0;
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let fold = [Sum, Sum, Max, Min, Any, All, ArgMax, ArgMin][dice.below(8)];
        // One axis is long, and seldom a multiple of what programs take.
        let rank = 1 + dice.below(3);
        let mut shape: Vec<usize> = (0..rank).map(|_| 1 + dice.below(4)).collect();
        let long = dice.below(rank);
        shape[long] = [70_001, 98_304, 131_072, 300_007, 3_001, 9_973][dice.below(6)];
        if rank > 1 && dice.below(3) == 0 {
            shape[(long + 1) % rank] = [8, 37, 64][dice.below(3)];
        }
        let mut axes = vec![long];
        if !matches!(fold, ArgMax | ArgMin) {
            axes.extend((0..rank).filter(|&axis| axis != long && dice.below(2) == 0));
        }
        let keeps = dice.below(3) == 0;
        let x = elements(&mut dice, shape.iter().product());
        let given = client.array(&x, &shape).expect("it fits");
        let say = || format!("{seed}: {fold:?} of {shape:?} along {axes:?}");
        let along = axes.clone();
        let f = move |x: &Array| fold.of(x, &along, keeps);
        let launches = count_steps(f.clone())(&given).expect("it compiles");
        staged += usize::from(launches > 1);
        let result = f(&given);
        let found = result.cast(DType::F64).to_vec::<f64>().unwrap_or_else(|e| panic!("{}: {e}", say()));
        let groups = groups(&x, &shape, &axes);
        assert_eq!(found.len(), groups.len(), "{}", say());
        for (i, (found, group)) in found.into_iter().zip(&groups).enumerate() {
            let want = fold.expected(group);
            let bound = if fold == Sum { 1e-5 * group.iter().map(|x| x.abs()).sum::<f64>() } else { 0.0 };
            let is_right = found == want || found.is_nan() && want.is_nan() || (found - want).abs() <= bound;
            assert!(is_right, "{}, element {i}: {found}, not {want}", say());
        }
        // The same bits in a function with others before and after it.
        let together = jit({
            let f = f.clone();
            move |x: &Array| f(&(x * 0.5)).cast(DType::F32) + 1.0
        })(&given);
        let apart = f(&(&given * 0.5)).cast(DType::F32) + 1.0;
        let [together, apart] = [together.expect("it runs"), apart].map(|x| x.to_bytes().expect("it ran"));
        assert!(together == apart, "{}: other bits in a function", say());
    }
    assert!(staged > 30, "{staged} of 60 take stages");
}

/// Programs have a part of an axis between others that are folded, so that rows of their blocks lie in groups.
#[test]
fn folds_along_any_axes_are_those_of_their_elements() {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I32, U8};
    let client = Client::cpu();
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let rank = 3 + dice.below(3);
        let mut shape: Vec<usize> = (0..rank).map(|_| 1 + dice.below(9)).collect();
        shape[rank - 1] = [1, 2, 7, 8, 25, 33, 64, 130][dice.below(8)];
        let middle = 1 + dice.below(rank - 2);
        shape[middle] = [3, 71, 200, 513][dice.below(4)];
        let mut axes: Vec<usize> = (0..rank).filter(|&axis| axis != middle && dice.below(4) > 0).collect();
        if axes.is_empty() {
            axes.push([0, middle, rank - 1][dice.below(3)]);
        }
        // Long columns, few of them.
        if dice.below(4) == 0 {
            shape = vec![64 + dice.below(400), [1, 1, 2, 5][dice.below(4)], 1 + dice.below(12)];
            axes = vec![0];
        }
        let rank = shape.len();
        if dice.below(10) == 0 {
            let kept: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
            shape[kept[dice.below(kept.len())]] = 0;
        }
        let dtype = [F32, F32, F32, Bf16, Bf16, F16, F64, I32, I8, U8, Bool][dice.below(11)];
        let n: usize = shape.iter().product();
        let mut x: Vec<f32> = (0..n).map(|_| dice.below(41) as f32 / 8.0 - 2.0).collect();
        if !dtype.is_float() {
            let most = if dtype == Bool { 2.0 } else { 50.0 };
            x.iter_mut().for_each(|x| *x = (*x * 8.0 + 16.0) % most);
        } else if n > 0 && dice.below(3) == 0 {
            x[dice.below(n)] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][dice.below(3)];
        }
        let given = client.array(&x, &shape).expect("it fits").cast(dtype);
        let signed: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
        let f = jit(move |x: &Array| -> Result<Vec<Array>> {
            let (along, kept) = (&signed[..], || keep(&signed[..]));
            if dtype == Bool {
                return Ok(vec![x.any(along), x.ne(x.any(kept())), x.cast(I32).sum(along), x.all(along)]);
            }
            let most = x.max(kept());
            let last = if dtype.is_float() { (x - &most).exp().sum(along) } else { x.cast(I32).sum(along) };
            Ok(vec![x.max(along), most - x, last, x.min(along)])
        });
        let found = f(&given).expect("it runs");
        let found: Vec<Vec<f64>> = found.iter().map(|x| x.cast(F64).to_vec().expect("it ran")).collect();
        let folded = groups(&x, &shape, &axes);
        let say = |i: usize| format!("{seed}: {dtype} {shape:?} along {axes:?}, element {i}");
        // Where each element's group is.
        let numbers: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let places = groups(&numbers, &shape, &axes);
        let counts: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!(counts, [folded.len(), n, folded.len(), folded.len()], "{}", say(0));
        let is_near = |x: f64, y: f64, bound: f64| x == y || (x - y).abs() <= bound || x.is_nan() && y.is_nan();
        for (i, (group, places)) in folded.iter().zip(&places).enumerate() {
            let (most, least) = (Max.expected(group), Min.expected(group));
            assert!(is_near(found[0][i], most, 0.0), "{}: {}, not {most}", say(i), found[0][i]);
            assert!(is_near(found[3][i], least, 0.0), "{}: {}, not {least}", say(i), found[3][i]);
            for (x, at) in group.iter().zip(places) {
                let (own, want) = (found[1][*at as usize], most - x);
                assert!(is_near(own, want, 0.0), "{}: {own}, not {want}", say(i));
            }
            let term = |x: &f64| if dtype.is_float() { (x - most).exp() } else { *x };
            let sum: f64 = group.iter().map(term).sum();
            let bound = match dtype {
                F32 | F64 => 1e-5 * sum,
                Bf16 | F16 => 1e-2 * sum,
                _ => 0.0,
            };
            assert!(is_near(found[2][i], sum, bound), "{}: {}, not {sum}", say(i), found[2][i]);
        }
    }
}

#[test]
fn interpreted_stages_read_nothing_outside() {
    let client = Client::interpreter();
    let n = 70_001;
    let x: Vec<f32> = (0..n).map(|i| -1.0 - ((i * 7919) % 100) as f32).collect();
    let x = client.array(&x, &[n]).expect("it fits");
    // Zero is greater than every element.
    assert_eq!(numbers(&x.max(0)), [-1.0]);
    assert_eq!(
        x.argmin(0).to_vec::<i32>().expect("it runs"),
        [(0..n as i32).find(|i| (i * 7919) % 100 == 99).expect("one")]
    );
}

/// The number of launches, and of programs of the first.
fn launches(f: impl Fn(&Array) -> Array + Send + Sync + Clone + 'static, shape: &[usize]) -> (usize, usize) {
    let x = Client::cpu().zeros(shape, DType::F32).expect("it fits");
    let plan = lower(f.clone())(&x).expect("it is traced").to_plan();
    let first = plan.lines().find(|line| line.contains(" of ")).expect("a step");
    let extents = first.split(['[', ']']).nth(1).expect("extents of its grid");
    let programs =
        extents.split(", ").filter(|n| !n.is_empty()).map(|n| n.parse::<usize>().expect("a number")).product();
    (count_steps(f)(&x).expect("it compiles"), programs)
}

#[test]
fn long_reductions_divide_among_programs() {
    let n = 1 << 20;
    assert_eq!(launches(|x| x.sum(..), &[n]), (2, 64));
    // What it is folded from is computed with it, and what follows with the last stage.
    assert_eq!(launches(|x| (x.square().sum(..) / 3.0).sqrt(), &[n]), (2, 64));
    assert_eq!(launches(|x| x.mean(..), &[1024, 1024]), (2, 64));
    assert_eq!(launches(|x| x.sum(0), &[n / 64, 64]).0, 2);
    assert_eq!(launches(|x| x.argmax(0), &[n]).0, 2);
    // Where the last part is filled up too.
    assert_eq!(launches(|x| x.square().sum(..), &[1_000_003]), (2, 62));
    // Of short ones, and of those that enough programs divide, all is folded at once.
    assert_eq!(launches(|x| x.sum(..), &[1 << 14]).0, 1);
    assert_eq!(launches(|x| x.sum(1), &[1000, 1000]), (1, 1000));
    assert_eq!(launches(|x| x.sum(0), &[500, 500]).0, 1);
    // Parts of long columns have whole rows, which lie side by side in memory.
    assert_eq!(launches(|x| x.sum(0), &[1000, 1000]), (2, 20 * 1000));
}

#[test]
fn long_reductions_have_gradients() {
    let n = 100_003;
    let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 201) as f32 / 100.0 - 1.0).collect();
    let x = array(&x, &[n]);
    let squares = jit(grad(|x: &Array| x.square().sum(..)))(&x).expect("it runs");
    close(&squares, &numbers(&x).iter().map(|x| 2.0 * f64::from(*x)).collect::<Vec<_>>());
    // The greatest elements share it.
    let greatest = jit(grad(|x: &Array| x.max(..)))(&x).expect("it runs");
    let most = numbers(&x).into_iter().fold(f32::NEG_INFINITY, f32::max);
    let count = numbers(&x).iter().filter(|x| **x == most).count() as f64;
    let want = |x: &f32| if *x == most { 1.0 / count } else { 0.0 };
    close(&greatest, &numbers(&x).iter().map(want).collect::<Vec<_>>());
    let f = |x: &Array| x.logsumexp(..);
    let _apart = disable_jit();
    let sum: f64 = numbers(&x).iter().map(|x| f64::from(*x).exp()).sum();
    close(&f(&x), &[sum.ln()]);
    close(&grad(f)(&x).expect("it runs"), &numbers(&x).iter().map(|x| f64::from(*x).exp() / sum).collect::<Vec<_>>());
}
