//! Reads and writes at positions, and operations along an axis.
use super::{Drawn, Family, Fill, floats, loss, weights};
use pallas_rt::Array;
use pallas_rt::ops::{arange, concatenate, zeros};
use pallas_rt::prelude::*;

pub(super) const FAMILIES: &[Family] = &[
    ("embedding", |dice| {
        let [b, l, v, d] = [dice.size(8, 64), dice.size(8, 64), dice.size(64, 2048), dice.size(8, 128)];
        let f = |w: &[Array], x: &[Array]| {
            let h = w[0].take(&x[0], 0).mean(-2);
            Ok(h.matmul(&w[1]).tanh().square().sum(-1))
        };
        Drawn {
            batch: b,
            weights: weights([&[v, d], &[d, d]]),
            example: vec![(vec![l], Fill::Below(v))],
            one: loss(f),
            many: loss(f),
        }
    }),
    ("columns by position", |dice| {
        let [b, l, n] = [dice.size(8, 128), dice.size(4, 64), dice.size(16, 256)];
        Drawn {
            batch: b,
            weights: weights([&[n]]),
            example: vec![(vec![n], Fill::Floats(1.0)), (vec![l], Fill::Below(n))],
            one: loss(|w, x| Ok((&x[0] * &w[0]).take(&x[1], 0).square().sum(..))),
            many: loss(|w, x| Ok((&x[0] * &w[0]).take_along_axis(&x[1], 1).square().sum(-1))),
        }
    }),
    ("histogram", |dice| {
        let [b, l, n] = [dice.size(8, 64), dice.size(8, 128), dice.size(8, 256)];
        Drawn {
            batch: b,
            weights: weights([&[l]]),
            example: vec![(vec![l], Fill::Floats(1.0)), (vec![l], Fill::Below(n))],
            one: loss(move |w, x| Ok(zeros(&[n], DType::F32).at(&x[1]).add(&x[0] * &w[0]).square().sum(..))),
            many: loss(move |w, x| {
                let row = arange(0.0, b as f64, 1.0, DType::I32).expand_dims(1);
                Ok(zeros(&[b, n], DType::F32).at((&row, &x[1])).add(&x[0] * &w[0]).square().sum(-1))
            }),
        }
    }),
    ("sorted", |dice| {
        let [b, n] = [dice.size(8, 128), dice.size(8, 128)];
        let f = |w: &[Array], x: &[Array]| Ok(((&x[0] * &w[0]).sort(-1) * &w[1]).sum(-1).tanh());
        Drawn { batch: b, weights: weights([&[n], &[n]]), example: floats([&[n]], 1.0), one: loss(f), many: loss(f) }
    }),
    ("running sums", |dice| {
        let [b, n, d] = [dice.size(8, 64), dice.size(8, 128), dice.size(4, 32)];
        let f = |w: &[Array], x: &[Array]| Ok((x[0].matmul(&w[0]).cumsum(-2) * &w[1]).tanh().sum([-2, -1]));
        Drawn {
            batch: b,
            weights: weights([&[d, d], &[d]]),
            example: floats([&[n, d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("joined with weights", |dice| {
        let [b, n, d] = [dice.size(8, 128), dice.size(4, 32), dice.size(8, 128)];
        Drawn {
            batch: b,
            weights: weights([&[1, d], &[d, d]]),
            example: floats([&[n, d]], 1.0),
            one: loss(|w, x| {
                let h = concatenate(&[&w[0], &x[0]], 0);
                Ok(h.matmul(&w[1]).tanh().square().sum(..))
            }),
            many: loss(|w, x| {
                let first = w[0].broadcast_to(&[x[0].shape()[0], 1, w[0].shape()[1]]);
                let h = concatenate(&[&first, &x[0]], 1);
                Ok(h.matmul(&w[1]).tanh().square().sum([1, 2]))
            }),
        }
    }),
];
