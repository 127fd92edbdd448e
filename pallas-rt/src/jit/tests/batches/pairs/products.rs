//! Products in any position, convolutions, and what stands between them.
use super::{Drawn, Family, Fill, floats, loss, weights};
use pallas_rt::ops::{self, Convolution, Padding, einsum};
use pallas_rt::prelude::*;
use pallas_rt::{Array, checkpoint, custom_jvp, custom_vjp, keep};

pub(super) const FAMILIES: &[Family] = &[
    ("perceptron", |dice| {
        let [b, d, h, c] = [dice.size(32, 512), dice.size(16, 512), dice.size(32, 512), dice.size(2, 64)];
        let f = |w: &[Array], x: &[Array]| {
            let h = (x[0].matmul(&w[0]) + &w[1]).tanh();
            let h = (h.matmul(&w[2]) + &w[3]).relu();
            Ok((h.matmul(&w[4]) - &x[1]).square().sum(-1))
        };
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h], &[h, h], &[h], &[h, c]]),
            example: floats([&[d], &[c]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("weights on the left", |dice| {
        let [b, m, k] = [dice.size(32, 512), dice.size(16, 512), dice.size(16, 512)];
        Drawn {
            batch: b,
            weights: weights([&[m, k], &[m, m]]),
            example: floats([&[k]], 1.0),
            one: loss(|w, x| Ok(w[1].matmul(&w[0].matmul(&x[0]).tanh()).square().sum(..))),
            many: loss(|w, x| {
                let h = x[0].matmul(&w[0].t()).tanh();
                Ok(h.matmul(&w[1].t()).square().sum(-1))
            }),
        }
    }),
    ("matrices times weights", |dice| {
        let [b, l, k, n] = [dice.size(16, 128), dice.size(2, 64), dice.size(16, 256), dice.size(16, 256)];
        let f = |w: &[Array], x: &[Array]| Ok((x[0].matmul(&w[0]) + &w[1]).tanh().square().sum([-2, -1]));
        Drawn {
            batch: b,
            weights: weights([&[k, n], &[n]]),
            example: floats([&[l, k]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("weights times matrices", |dice| {
        let [b, m, k, n] = [dice.size(16, 128), dice.size(16, 256), dice.size(16, 256), dice.size(2, 64)];
        let f = |w: &[Array], x: &[Array]| {
            let h = w[0].matmul(&x[0]).tanh();
            Ok(w[1].matmul(&h).square().sum([-2, -1]))
        };
        Drawn {
            batch: b,
            weights: weights([&[m, k], &[m, m]]),
            example: floats([&[k, n]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("bilinear form", |dice| {
        let [b, m, n] = [dice.size(32, 512), dice.size(16, 256), dice.size(16, 256)];
        Drawn {
            batch: b,
            weights: weights([&[m, n]]),
            example: floats([&[m], &[n]], 1.0),
            one: loss(|w, x| Ok(einsum("i,ij,j->", &[&x[0], &w[0], &x[1]]).square())),
            many: loss(|w, x| Ok(einsum("bi,ij,bj->b", &[&x[0], &w[0], &x[1]]).square())),
        }
    }),
    ("transposed einsum", |dice| {
        let [b, m, k, n] = [dice.size(16, 128), dice.size(8, 128), dice.size(8, 128), dice.size(8, 128)];
        Drawn {
            batch: b,
            weights: weights([&[k, n]]),
            example: floats([&[m, k]], 1.0),
            one: loss(|w, x| Ok(einsum("mk,kn->nm", &[&x[0], &w[0]]).tanh().square().sum([-2, -1]))),
            many: loss(|w, x| Ok(einsum("bmk,kn->bnm", &[&x[0], &w[0]]).tanh().square().sum([-2, -1]))),
        }
    }),
    ("projection to heads", |dice| {
        let [b, l, d] = [dice.size(4, 32), dice.size(8, 64), dice.size(32, 128)];
        let [h, k] = [dice.size(2, 8), dice.size(8, 32)];
        Drawn {
            batch: b,
            weights: weights([&[d, h, k], &[h, k, d]]),
            example: floats([&[l, d]], 1.0),
            one: loss(|w, x| {
                let y = einsum("ld,dhk->hlk", &[&x[0], &w[0]]).tanh();
                Ok(einsum("hlk,hkd->ld", &[&y, &w[1]]).square().sum([-2, -1]))
            }),
            many: loss(|w, x| {
                let y = einsum("bld,dhk->bhlk", &[&x[0], &w[0]]).tanh();
                Ok(einsum("bhlk,hkd->bld", &[&y, &w[1]]).square().sum([-2, -1]))
            }),
        }
    }),
    ("product for each head", |dice| {
        let [b, h, d, e] = [dice.size(16, 256), dice.size(2, 16), dice.size(8, 64), dice.size(8, 64)];
        Drawn {
            batch: b,
            weights: weights([&[h, d, e]]),
            example: floats([&[h, d]], 1.0),
            one: loss(|w, x| Ok(einsum("hd,hde->he", &[&x[0], &w[0]]).tanh().square().sum([-2, -1]))),
            many: loss(|w, x| Ok(einsum("bhd,hde->bhe", &[&x[0], &w[0]]).tanh().square().sum([-2, -1]))),
        }
    }),
    ("convolution", |dice| {
        let [b, n, i, o] = [dice.size(4, 32), dice.size(8, 28), dice.size(2, 32), dice.size(4, 32)];
        Drawn {
            batch: b,
            weights: weights([&[3, 3, i, o]]),
            example: floats([&[n, n, i]], 1.0),
            one: loss(|w, x| Ok(image(&x[0].expand_dims(0), &w[0]).tanh().square().sum(..))),
            many: loss(|w, x| Ok(image(&x[0], &w[0]).tanh().square().sum([1, 2, 3]))),
        }
    }),
    ("convolution of sequences", |dice| {
        let [b, n, i, o] = [dice.size(8, 64), dice.size(16, 128), dice.size(2, 32), dice.size(4, 32)];
        let f = |x: &Array, w: &Array| {
            let options = Convolution {
                padding: Padding::Same,
                dimension_numbers: ["NWC", "WIO", "NWC"],
                ..Convolution::default()
            };
            ops::conv_general_dilated(x, w, &options).relu()
        };
        Drawn {
            batch: b,
            weights: weights([&[5, i, o], &[3, o, o]]),
            example: floats([&[n, i]], 1.0),
            one: loss(move |w, x| Ok(f(&f(&x[0].expand_dims(0), &w[0]), &w[1]).square().sum(..))),
            many: loss(move |w, x| Ok(f(&f(&x[0], &w[0]), &w[1]).square().sum([1, 2]))),
        }
    }),
    ("layer norm", |dice| {
        let [b, l, d] = [dice.size(8, 64), dice.size(4, 64), dice.size(16, 256)];
        let f = |w: &[Array], x: &[Array]| {
            let h = x[0].standardize(-1, 1e-5) * &w[0] + &w[1];
            Ok(h.matmul(&w[2]).tanh().square().sum([-2, -1]))
        };
        Drawn {
            batch: b,
            weights: weights([&[d], &[d], &[d, d]]),
            example: floats([&[l, d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("attention", |dice| {
        let [b, l, d] = [dice.size(4, 32), dice.size(8, 64), dice.size(16, 128)];
        let f = |w: &[Array], x: &[Array]| {
            let x = &x[0];
            let scale = (x.shape()[x.shape().len() - 1] as f64).sqrt();
            let [q, k, v] = [0, 1, 2].map(|i| x.matmul(&w[i]));
            let rank = k.shape().len();
            let mut axes: Vec<isize> = (0..rank as isize).collect();
            axes.swap(rank - 2, rank - 1);
            let scores = q.matmul(&k.transpose(&axes)) / scale;
            let out = scores.softmax(-1).matmul(&v).matmul(&w[3]);
            Ok((out + x).square().sum([-2, -1]))
        };
        Drawn {
            batch: b,
            weights: weights([&[d, d], &[d, d], &[d, d], &[d, d]]),
            example: floats([&[l, d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("cross entropy", |dice| {
        let [b, d, c] = [dice.size(32, 512), dice.size(16, 256), dice.size(8, 512)];
        let f = |w: &[Array], x: &[Array]| {
            let logits = x[0].matmul(&w[0]) + &w[1];
            Ok(-(logits.log_softmax(-1) * x[1].one_hot(w[1].len(), DType::F32)).sum(-1))
        };
        Drawn {
            batch: b,
            weights: weights([&[d, c], &[c]]),
            example: vec![(vec![d], Fill::Floats(1.0)), (vec![], Fill::Below(c))],
            one: loss(f),
            many: loss(f),
        }
    }),
    ("computed again", |dice| {
        let [b, d, h] = [dice.size(32, 256), dice.size(16, 256), dice.size(32, 256)];
        let f = |w: &[Array], x: &[Array]| {
            let layer = |x: &Array, w: &Array| checkpoint(|x: &Array, w: &Array| x.matmul(w).tanh().sin())(x, w);
            let h = layer(&layer(&x[0], &w[0])?, &w[1])?;
            Ok(h.square().sum(-1))
        };
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h, h]]),
            example: floats([&[d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
    ("stated gradient", |dice| {
        let [b, d, h] = [dice.size(32, 256), dice.size(16, 256), dice.size(32, 256)];
        // A layer that states its gradient by weights and inputs.
        let of = |by_weights: fn(&Array, &Array) -> Array| {
            loss(move |w, x| {
                let layer = custom_vjp(
                    |x: &Array, w: &Array| x.matmul(w).tanh(),
                    |x: &Array, w: &Array| {
                        let y = x.matmul(w).tanh();
                        (y.clone(), (x.clone(), w.clone(), y))
                    },
                    move |(x, w, y): &(Array, Array, Array), dy: &Array| {
                        let d = dy * (1.0 - y * y);
                        (d.matmul(&w.t()), by_weights(x, &d))
                    },
                );
                Ok(layer(&x[0], &w[0])?.matmul(&w[1]).square().sum(-1))
            })
        };
        Drawn {
            batch: b,
            weights: weights([&[d, h], &[h, h]]),
            example: floats([&[d]], 1.0),
            one: of(|x, d| x.outer(d)),
            many: of(|x, d| x.t().matmul(d)),
        }
    }),
    ("stated tangents", |dice| {
        let [b, d, h] = [dice.size(32, 256), dice.size(16, 256), dice.size(32, 256)];
        let f = |w: &[Array], x: &[Array]| {
            let softplus = custom_jvp(
                |x: &Array, a: &Array| (x.exp() + a.exp()).log(),
                |(x, a): &(Array, Array), (dx, da): &(Array, Array)| {
                    let y = (x.exp() + a.exp()).log();
                    (y.clone(), (x - &y).exp() * dx + (a - &y).exp() * da)
                },
            );
            let h = x[0].matmul(&w[0]);
            let a = w[1].broadcast_to(h.shape());
            Ok(softplus(&h, &a)?.square().sum(-1))
        };
        Drawn { batch: b, weights: weights([&[d, h], &[h]]), example: floats([&[d]], 1.0), one: loss(f), many: loss(f) }
    }),
    ("distances to prototypes", |dice| {
        let [b, n, d] = [dice.size(16, 256), dice.size(4, 64), dice.size(8, 64)];
        Drawn {
            batch: b,
            weights: weights([&[n, d]]),
            example: floats([&[d]], 1.0),
            one: loss(|w, x| Ok((&w[0] - &x[0]).square().sum(-1).min(..))),
            many: loss(|w, x| Ok((&w[0] - x[0].expand_dims(1)).square().sum(-1).min(-1))),
        }
    }),
    ("gate", |dice| {
        let [b, l, d] = [dice.size(8, 64), dice.size(4, 32), dice.size(16, 128)];
        let f = |w: &[Array], x: &[Array]| {
            let rms = (x[0].square().mean(keep(-1)) + 1e-6).sqrt();
            let h = &x[0] / rms * &w[0];
            let y = (h.matmul(&w[1]).silu() * h.matmul(&w[2])).matmul(&w[3]);
            Ok((y + &x[0]).square().sum([-2, -1]))
        };
        Drawn {
            batch: b,
            weights: weights([&[d], &[d, 2 * d], &[d, 2 * d], &[2 * d, d]]),
            example: floats([&[l, d]], 1.0),
            one: loss(f),
            many: loss(f),
        }
    }),
];

fn image(x: &Array, w: &Array) -> Array {
    let options =
        Convolution { padding: Padding::Same, dimension_numbers: ["NHWC", "HWIO", "NHWC"], ..Convolution::default() };
    ops::conv_general_dilated(x, w, &options)
}
