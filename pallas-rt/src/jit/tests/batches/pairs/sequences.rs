//! Loops and branches.
use super::{Drawn, Family, Fill, floats, loss, weights};
use pallas_rt::ops::{select, zeros};
use pallas_rt::prelude::*;
use pallas_rt::{Array, cond, fori_loop, scan};

/// Steps of a recurrent net over a first axis.
fn recurrent(w: &[Array], xs: &Array, start: &Array) -> Result<Array> {
    let step = |h: &Array, x: &Array| {
        let h = (x.matmul(&w[0]) + h.matmul(&w[1]) + &w[2]).tanh();
        (h.clone(), h)
    };
    Ok(scan(start, xs, step)?.0)
}

fn gated(w: &[Array], xs: &Array, start: &Array) -> Result<Array> {
    let step = |h: &Array, x: &Array| {
        let z = (x.matmul(&w[0]) + h.matmul(&w[1])).sigmoid();
        let r = (x.matmul(&w[2]) + h.matmul(&w[3])).sigmoid();
        let n = (x.matmul(&w[4]) + &r * h.matmul(&w[5])).tanh();
        let h: Array = (1.0 - &z) * n + z * h;
        (h.clone(), h.square().sum(-1))
    };
    Ok(scan(start, xs, step)?.1.sum(0))
}

/// The field of a neural differential equation, integrated by the midpoint rule.
fn flow(w: &[Array], x: &Array) -> Result<Array> {
    let field = |x: &Array| (x.matmul(&w[0]) + &w[1]).tanh().matmul(&w[2]);
    fori_loop(0..8, x, |_: &Array, x: &Array| {
        let half = x + field(x) * 0.0625;
        x + field(&half) * 0.125
    })
}

pub(super) const FAMILIES: &[Family] = &[
    ("recurrent net", |dice| {
        let [b, t, d, h] = [dice.size(8, 64), dice.size(4, 32), dice.size(8, 64), dice.size(16, 128)];
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h, h], &[h]]),
            example: floats([&[t, d]], 1.0),
            one: loss(move |w, x| Ok(recurrent(w, &x[0], &zeros(&[h], DType::F32))?.square().sum(-1))),
            many: loss(move |w, x| {
                Ok(recurrent(w, &x[0].swapaxes(0, 1), &zeros(&[b, h], DType::F32))?.square().sum(-1))
            }),
        }
    }),
    ("gated recurrent net", |dice| {
        let [b, t, d, h] = [dice.size(8, 64), dice.size(4, 32), dice.size(8, 64), dice.size(16, 128)];
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h, h], &[d, h], &[h, h], &[d, h], &[h, h]]),
            example: floats([&[t, d]], 1.0),
            one: loss(move |w, x| gated(w, &x[0], &zeros(&[h], DType::F32))),
            many: loss(move |w, x| gated(w, &x[0].swapaxes(0, 1), &zeros(&[b, h], DType::F32))),
        }
    }),
    ("neural differential equation", |dice| {
        let [b, d, h] = [dice.size(32, 256), dice.size(4, 64), dice.size(16, 128)];
        let f = |w: &[Array], x: &[Array]| Ok(flow(w, &x[0])?.square().sum(-1));
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h], &[h, d]]),
            example: floats([&[d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("layers in a scan", |dice| {
        let [b, n, d] = [dice.size(16, 128), dice.size(2, 6), dice.size(16, 128)];
        let f = |w: &[Array], x: &[Array]| {
            let layer = |h: &Array, w: &Array| (h + h.matmul(w).tanh(), ());
            Ok(scan(&x[0], &w[0], layer)?.0.square().sum(-1))
        };
        let mut weights = weights([&[n, d, d]]);
        weights[0].1 = Fill::Floats(1.0 / (d as f32).sqrt());
        Drawn { batch: b, weights, example: floats([&[d]], 1.0), one: loss(f), many: loss(f) }
    }),
    ("branch of all", |dice| {
        let [b, d, h] = [dice.size(16, 256), dice.size(16, 128), dice.size(16, 128)];
        let f = |w: &[Array], x: &[Array]| {
            let args = (x[0].clone(), w[0].clone(), w[1].clone());
            let h = cond(
                &w[1].sum(..).gt(0.0),
                &args,
                |(x, w, v): &(Array, Array, Array)| (x.matmul(w) + v).tanh(),
                |(x, w, v): &(Array, Array, Array)| (x.matmul(w) - v).sin(),
            )?;
            Ok(h.square().sum(-1))
        };
        Drawn { batch: b, weights: weights([&[d, h], &[h]]), example: floats([&[d]], 1.0), one: loss(f), many: loss(f) }
    }),
    ("branch of each", |dice| {
        let [b, d, h] = [dice.size(16, 256), dice.size(16, 128), dice.size(16, 128)];
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[d, h]]),
            example: floats([&[d]], 1.0),
            one: loss(|w, x| {
                let args = (x[0].clone(), w[0].clone(), w[1].clone());
                let h = cond(
                    &x[0].sum(..).gt(0.0),
                    &args,
                    |(x, w, _): &(Array, Array, Array)| x.matmul(w).tanh(),
                    |(x, _, v): &(Array, Array, Array)| x.matmul(v).sin(),
                )?;
                Ok(h.square().sum(-1))
            }),
            many: loss(|w, x| {
                let is_first = x[0].sum(-1).gt(0.0).expand_dims(1);
                Ok(select(&is_first, x[0].matmul(&w[0]).tanh(), x[0].matmul(&w[1]).sin()).square().sum(-1))
            }),
        }
    }),
];
