//! Attention in float64 as the formulas have it, one score after the other, with every option; and its gradients.
use crate::support::values;
use pallas_kernels::flash_attention::{Causal, Dropout, Seed, Window};

/// q, k, v, bias and sinks; the latter are empty where there are none.
pub(super) type Tensors = [Vec<f64>; 5];

/// What attention is computed of.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    /// Batch, heads, heads of keys, queries, keys, head dimension.
    pub(super) sizes: [usize; 6],
    pub(super) scale: f64,
    pub(super) causal: Causal,
    pub(super) window: Window,
    pub(super) lengths: Option<Vec<usize>>,
    pub(super) segments: Option<[Vec<i32>; 2]>,
    /// Batch elements and heads of the bias.
    pub(super) bias: Option<[usize; 2]>,
    pub(super) soft_cap: Option<f64>,
    pub(super) sinks: bool,
    pub(super) dropout: Option<Dropout<'static>>,
}

/// A live score of a row: its key, where it lies in k and in the bias, its probability, tanh of the soft-cap, and what
/// dropout multiplies it by.
struct Live {
    key: usize,
    bias: usize,
    p: f64,
    tanh: f64,
    kept: f64,
}

/// What dropout multiplies the probability of row n and key j by.
pub(super) fn kept(Dropout { rate, seed }: Dropout<'_>, n: usize, j: usize) -> f64 {
    let Seed::Number(seed) = seed else { unreachable!("the reference has numbers") };
    let random = word([(seed >> 32) as u32, seed as u32], [n as u32, j as u32]);
    if f64::from(random) < f64::from(rate) * 2f64.powi(32) { 0.0 } else { 1.0 / (1.0 - f64::from(rate)) }
}

/// Threefry-2x32's first word.
fn word([a, b]: [u32; 2], [mut x, mut y]: [u32; 2]) -> u32 {
    let keys = [a, b, a ^ b ^ 0x1bd1_1bda];
    x = x.wrapping_add(keys[0]);
    y = y.wrapping_add(keys[1]);
    for round in 0..20 {
        x = x.wrapping_add(y);
        y = y.rotate_left([13, 15, 26, 6, 17, 29, 16, 24][round % 8]) ^ x;
        if round % 4 == 3 {
            let group = round / 4 + 1;
            x = x.wrapping_add(keys[group % 3]);
            y = y.wrapping_add(keys[(group + 1) % 3]).wrapping_add(group as u32);
        }
    }
    x
}

fn product(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

impl Scene {
    pub(super) fn shapes(&self) -> [Vec<usize>; 5] {
        let [b, h, g, s, l, d] = self.sizes;
        let bias = self.bias.map_or(vec![0], |[bb, bh]| vec![bb, bh, s, l]);
        [vec![b, h, s, d], vec![b, g, l, d], vec![b, g, l, d], bias, vec![if self.sinks { h } else { 0 }]]
    }
    pub(super) fn tensors(&self) -> Tensors {
        let mut seed = 0;
        self.shapes().map(|shape| {
            seed += 1;
            values(shape.iter().product(), seed)
        })
    }
    fn rows(&self) -> impl Iterator<Item = (usize, [usize; 3])> {
        let [batch, heads, _, queries, ..] = self.sizes;
        let at = move |n: usize| [n / queries / heads, n / queries % heads, n % queries];
        (0..batch * heads * queries).map(move |n| (n, at(n)))
    }
    pub(super) fn sees(&self, b: usize, i: usize, j: usize) -> bool {
        let [_, _, _, queries, keys, _] = self.sizes;
        let length = self.lengths.as_ref().map_or(keys, |lengths| lengths[b]);
        let position = i as i64 + if self.causal == Causal::FromEnd { length as i64 - queries as i64 } else { 0 };
        let behind = j as i64 - position;
        let of = |numbers: &[i32], at: usize| Some(numbers[at]).filter(|number| *number >= 0);
        let both = |[own, theirs]: &[Vec<i32>; 2]| [of(own, b * queries + i), of(theirs, b * keys + j)];
        let same = self.segments.as_ref().map(both).is_none_or(|[own, theirs]| own.is_some() && own == theirs);
        j < length
            && same
            && (self.causal == Causal::No || behind <= 0)
            && self.window.left.is_none_or(|left| -behind <= left as i64)
            && self.window.right.is_none_or(|right| behind <= right as i64)
    }
    /// The live scores of row `n`, and its log-sum-exp.
    fn row(&self, n: usize, [b, h, i]: [usize; 3], [q, k, _, bias, sinks]: &Tensors) -> (Vec<Live>, f64) {
        let [_, heads, key_heads, queries, keys, d] = self.sizes;
        let mut live = vec![];
        for j in (0..keys).filter(|&j| self.sees(b, i, j)) {
            let key = ((b * key_heads + h / (heads / key_heads)) * keys + j) * d;
            let raw = product(&q[n * d..][..d], &k[key..][..d]) * self.scale;
            let (mut score, tanh) = match self.soft_cap {
                Some(cap) => (cap * (raw / cap).tanh(), (raw / cap).tanh()),
                None => (raw, 0.0),
            };
            let [bb, bh] = self.bias.unwrap_or([1, 1]);
            let at = ((b % bb * bh + h % bh) * queries + i) * keys + j;
            score += bias.get(at).copied().unwrap_or(0.0);
            let kept = self.dropout.map_or(1.0, |dropout| kept(dropout, n, j));
            live.push(Live { key, bias: at, p: score, tanh, kept });
        }
        let sink = sinks.get(h).copied();
        let most = live.iter().map(|x| x.p).chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = live.iter().map(|x| x.p).chain(sink).map(|s| (s - most).exp()).sum();
        let lse = if most == f64::NEG_INFINITY { most } else { most + sum.ln() };
        live.iter_mut().for_each(|x| x.p = (x.p - lse).exp());
        (live, lse)
    }
    /// Output and log-sum-exp.
    pub(super) fn forward(&self, x: &Tensors) -> (Vec<f64>, Vec<f64>) {
        let d = self.sizes[5];
        let (mut out, mut all) = (vec![], vec![]);
        for (n, at) in self.rows() {
            let (live, lse) = self.row(n, at, x);
            out.extend((0..d).map(|c| live.iter().map(|l| l.p * l.kept * x[2][l.key + c]).sum::<f64>()));
            all.push(lse);
        }
        (out, all)
    }
    /// Gradients by all operands.
    pub(super) fn backward(&self, x: &Tensors, dout: &[f64]) -> Tensors {
        let d = self.sizes[5];
        let [q, k, v, _, sinks] = x;
        let mut gradients = x.each_ref().map(|x| vec![0.0; x.len()]);
        for (n, at) in self.rows() {
            let (live, lse) = self.row(n, at, x);
            let dout = &dout[n * d..][..d];
            let by_p: Vec<f64> = live.iter().map(|l| l.kept * product(dout, &v[l.key..][..d])).collect();
            let delta: f64 = live.iter().zip(&by_p).map(|(l, dp)| l.p * dp).sum();
            for (l, dp) in live.iter().zip(by_p) {
                let ds = l.p * (dp - delta);
                let dx = ds * (1.0 - l.tanh * l.tanh) * self.scale;
                for c in 0..d {
                    gradients[0][n * d + c] += dx * k[l.key + c];
                    gradients[1][l.key + c] += dx * q[n * d + c];
                    gradients[2][l.key + c] += l.p * l.kept * dout[c];
                }
                if let Some(g) = gradients[3].get_mut(l.bias) {
                    *g += ds;
                }
            }
            if let Some(sink) = sinks.get(at[1]) {
                gradients[4][at[1]] -= (sink - lse).exp() * delta;
            }
        }
        gradients
    }
}
