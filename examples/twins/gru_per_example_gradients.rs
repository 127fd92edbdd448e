//! The gradient of each sequence of a batch by the weights of a gated recurrent unit, none of them longer than 1.
use pallas_rt::array_prelude::*;
use pallas_rt::tree;

#[derive(Clone, Tree)]
struct Gru {
    x: Array,
    h: Array,
    out: Array,
}

fn loss(gru: &Gru, xs: &Array, y: &Array) -> Result<Array> {
    let (h, ()) = scan(&ops::zeros(&[4], F32), xs, |h: &Array, x: &Array| {
        let (xs, hs) = (x.matmul(&gru.x).split(3, 0), h.matmul(&gru.h).split(3, 0));
        let z = (&xs[0] + &hs[0]).sigmoid();
        let n = (&xs[2] + (&xs[1] + &hs[1]).sigmoid() * &hs[2]).tanh();
        ((1 - &z) * n + z * h, ())
    })?;
    Ok((h.matmul(&gru.out) - y).square())
}

fn clipped(gru: &Gru, xs: &Array, y: &Array) -> Result<(Array, Gru)> {
    let slope = grad(loss)(gru, xs, y)?;
    let squares = tree::leaves(&slope).iter().fold(ops::array(0.0), |sum, g| sum + g.square().sum(..));
    let norm = squares.sqrt();
    let slope = tree::map(&slope, |g| Ok(g / norm.maximum(1)))?;
    Ok((norm, slope))
}

pub fn run() -> Result<Vec<Array>> {
    let [a, b, c, d, e] = random::split(random::key(2));
    let normal = |key, shape: &[usize]| random::normal(key, shape, F32);
    let gru = Gru { x: 0.5 * normal(a, &[3, 12]), h: 0.5 * normal(b, &[4, 12]), out: normal(c, &[4]) };
    let (xs, ys) = (normal(d, &[16, 10, 3]), normal(e, &[16]));
    let each = jit(vmap(clipped).in_axes((None, 0, 0)));
    let (norms, slopes) = each(&gru, &xs, &ys)?;
    Ok(vec![norms, slopes.x.mean(0), slopes.h.mean(0), slopes.out.mean(0)])
}
