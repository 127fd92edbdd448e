//! Branches that are not finite for the elements of a batch that take another one: gradients of the batch against those
//! of one element after the other, which run their own branch alone.
use super::{array, numbers};
use crate::ops::{IndexMode, concatenate};
use crate::prelude::*;
use crate::{Arg, cond, fori_loop, grad, jit, switch, vmap};
use std::sync::Arc;

/// Numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// A function of a row `x` of 3 elements, weights `w`, `[3, 3]`, and a scalar `s`, which may be no number.
#[derive(Clone, Debug)]
enum Body {
    Root,
    Log,
    Inverse,
    Power,
    Scaled,
    LogOfWeight,
    Product,
    LogProduct,
    Row,
    Window,
    Joined,
    Then(Box<[Body; 2]>),
    Loop(Box<Body>),
    Checked(Box<Body>),
    Inner(Box<[Body; 2]>),
    Choice(Box<[Body; 3]>),
}

impl Body {
    fn draw(from: &mut Draw, depth: usize) -> Body {
        let deep = if depth == 0 { 11 } else { 17 };
        let next = |from: &mut Draw| Body::draw(from, depth.saturating_sub(1));
        match from.below(deep) {
            0 => Body::Root,
            1 => Body::Log,
            2 => Body::Inverse,
            3 => Body::Power,
            4 => Body::Scaled,
            5 => Body::LogOfWeight,
            6 => Body::Product,
            7 => Body::LogProduct,
            8 => Body::Row,
            9 => Body::Window,
            10 => Body::Joined,
            11 => Body::Loop(Box::new(next(from))),
            12 => Body::Checked(Box::new(next(from))),
            13 => Body::Inner(Box::new([next(from), next(from)])),
            14 | 15 => Body::Then(Box::new([next(from), next(from)])),
            _ => Body::Choice(Box::new([next(from), next(from), next(from)])),
        }
    }

    fn of(&self, x: &Array, w: &Array, s: &Array) -> Result<Array> {
        Ok(match self {
            Body::Root => x.sqrt(),
            Body::Log => x.log() * s,
            Body::Inverse => s / x,
            Body::Power => x.pow(s),
            Body::Scaled => x * s,
            Body::LogOfWeight => x * s.log(),
            Body::Product => x.matmul(w),
            Body::LogProduct => x.log().matmul(w),
            Body::Row => w.take_with(&x.index(0).floor().cast(DType::I32), 0, IndexMode::Clip),
            Body::Window => w.dynamic_slice_in_dim(x.index(0).floor().cast(DType::I32), 1, 0).reshape(&[3]),
            Body::Joined => {
                let joined = concatenate(&[x.clone(), w.index(0)], 0).log();
                joined.index(..3) * joined.index(3..)
            }
            Body::Then(two) => two[1].of(&two[0].of(x, w, s)?, w, s)?,
            Body::Loop(body) => fori_loop(0..2, x, |_: &Array, x: &Array| body.of(x, w, s))?,
            Body::Checked(body) => {
                let body = body.clone();
                crate::checkpoint(move |x: &Array, w: &Array, s: &Array| body.of(x, w, s))(x, w, s)?
            }
            Body::Inner(two) => {
                cond(&x.sum(..).gt(1.0), x, |x: &Array| two[0].of(x, w, s), |x: &Array| two[1].of(x, w, s))?
            }
            Body::Choice(three) => {
                let number = x.index(0).floor().cast(DType::I32);
                switch(&number, x, three.iter().map(|body| |x: &Array| body.of(x, w, s)))?
            }
        })
    }
}

/// Weights and values of rows from few numbers, so that there are zeros, equal ones and numbers below zero.
fn inputs(from: &mut Draw, rows: usize) -> [Array; 3] {
    let all = [-2.0f32, -1.0, 0.0, 0.5, 1.0, 1.0, 2.0, 3.0];
    let mut some = |n: usize| (0..n).map(|_| from.of(&all)).collect::<Vec<f32>>();
    let (mut x, w, s) = (some(3 * rows), some(9), some(1));
    // All rows take one branch at times.
    if from.below(3) == 0 {
        x = x[..3].repeat(rows);
    }
    [array(&x, &[rows, 3]), array(&w, &[3, 3]), array(&s, &[])]
}

fn same(name: &str, got: &Array, want: &Array) {
    // Which infinities meet a zero depends on the order of sums and products.
    let alike = |a: &f32, b: &f32| !(a.is_finite() || b.is_finite()) || (a - b).abs() <= 1e-4 * (1.0 + b.abs());
    let (got, want) = (numbers(got), numbers(want));
    assert!(got.iter().zip(&want).all(|(a, b)| alike(a, b)), "{name}\n got {got:?}\nwant {want:?}");
}

#[test]
fn gradients_of_batches_are_those_of_each_element() {
    let number = std::env::var("PALLAS_BRANCHES").map_or(60, |n| n.parse().expect("a number"));
    let mut finite = 0;
    for seed in 0..number {
        let from = &mut Draw(seed);
        let body = Body::Inner(Box::new([Body::draw(from, 2), Body::draw(from, 2)]));
        let [x, w, s] = inputs(from, 4);
        let shared = Arc::new(body.clone());
        let of = shared.clone();
        let one = move |x: &Array, w: &Array, s: &Array| of.of(x, w, s);
        let all = vmap(one).in_axes([Some(0), None, None]);
        let batch = move |x: &Array, w: &Array, s: &Array| -> Result<Array> { Ok(all(x, w, s)?.sum(..)) };
        let sum = move |x: &Array, w: &Array, s: &Array| -> Result<Array> { Ok(shared.of(x, w, s)?.sum(..)) };
        let alone = grad(sum).argnums((Arg::<0>, Arg::<1>, Arg::<2>));
        let got = jit(grad(batch).argnums((Arg::<0>, Arg::<1>, Arg::<2>)))(&x, &w, &s)
            .unwrap_or_else(|e| panic!("{body:?}: {e}"));
        let mut want: Option<(Vec<Array>, Array, Array)> = None;
        for row in 0..4 {
            let (dx, dw, ds) = alone(&x.index(row), &w, &s).unwrap_or_else(|e| panic!("{e}"));
            want = Some(match want {
                None => (vec![dx], dw, ds),
                Some((mut rows, w, s)) => {
                    rows.push(dx);
                    (rows, w + dw, s + ds)
                }
            });
        }
        let (rows, dw, ds) = want.expect("there are rows");
        let dx = crate::ops::stack(&rows, 0);
        finite += usize::from(numbers(&dx).iter().chain(&numbers(&dw)).all(|x| x.is_finite()));
        let name = format!("seed {seed}: {body:?}\nx {:?} w {:?} s {:?}", numbers(&x), numbers(&w), numbers(&s));
        for (what, got, want) in [("x", &got.0, &dx), ("w", &got.1, &dw), ("s", &got.2, &ds)] {
            same(&format!("d/d{what} of {name}"), got, want);
        }
    }
    assert!(5 * finite > number as usize, "{finite} of {number} gradients are finite");
}
