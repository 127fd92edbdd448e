//! Flash attention: lengths around its blocks, masks, groups of heads, head dimensions, data that is no number.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::flash_attention::{
    Causal, Options, flash_attention, flash_attention_in_blocks, flash_attention_with_lse,
};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;
pub(super) const MASKS: [Causal; 3] = [Causal::No, Causal::FromStart, Causal::FromEnd];

/// Extents, and what the reference needs of the options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    /// Batch, heads, heads of keys, queries, keys, head dimension.
    pub(super) sizes: [usize; 6],
    pub(super) lengths: &'a [usize],
    pub(super) causal: Causal,
    pub(super) scale: f64,
}

impl Case<'_> {
    pub(super) fn q_shape(&self) -> [usize; 4] {
        let [b, h, _, s, _, d] = self.sizes;
        [b, h, s, d]
    }
    pub(super) fn k_shape(&self) -> [usize; 4] {
        let [b, _, g, _, l, d] = self.sizes;
        [b, g, l, d]
    }
    /// Operands q, k, v of test values.
    pub(super) fn operands(&self, client: &Client, dtype: DType) -> [Array; 3] {
        let make = |shape: [usize; 4], seed| array(client, dtype, &shape, &values(shape.iter().product(), seed));
        [make(self.q_shape(), 1), make(self.k_shape(), 2), make(self.k_shape(), 3)]
    }
    pub(super) fn lengths(&self, client: &Client) -> Array {
        let lengths: Vec<i32> = self.lengths.iter().map(|&n| n as i32).collect();
        client.array(&lengths, &[lengths.len()]).expect("it fits")
    }
    pub(super) fn options<'a>(&self, lengths: &'a Array) -> Options<'a> {
        Options { scale: Some(self.scale as f32), causal: self.causal, lengths: Some(lengths), ..Options::default() }
    }
    /// How many keys query i of an element of the batch sees.
    pub(super) fn seen(&self, b: usize, i: usize) -> usize {
        let [_, _, _, s, l, _] = self.sizes;
        let length = self.lengths[b].min(l);
        match self.causal {
            Causal::No => length,
            Causal::FromStart => length.min(i + 1),
            Causal::FromEnd => (i + 1 + length).saturating_sub(s),
        }
    }
    /// Output and log-sum-exp. Dead keys are not looked at.
    pub(super) fn reference(&self, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let [batch, heads, key_heads, s, l, d] = self.sizes;
        let (mut out, mut lse) = (vec![], vec![]);
        for (b, h, i) in (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..s).map(move |i| (b, h, i)))) {
            let end = self.seen(b, i);
            let key = |j: usize| ((b * key_heads + h / (heads / key_heads)) * l + j) * d;
            let row = ((b * heads + h) * s + i) * d;
            let score = |j: usize| (0..d).map(|c| q[row + c] * k[key(j) + c]).sum::<f64>() * self.scale;
            let scores: Vec<f64> = (0..end).map(score).collect();
            let nan = scores.iter().any(|x| x.is_nan());
            let m = if nan { f64::NAN } else { scores.iter().copied().fold(f64::NEG_INFINITY, f64::max) };
            let dead = m == f64::NEG_INFINITY;
            let weights: Vec<f64> = scores.iter().map(|x| if dead { 0.0 } else { (x - m).exp() }).collect();
            let total: f64 = weights.iter().sum();
            lse.push(if dead { m } else { m + total.ln() });
            for c in 0..d {
                let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * v[key(j) + c]).sum();
                out.push(if dead { 0.0 } else { sum / total });
            }
        }
        (out, lse)
    }
    /// Runs the kernel with blocks of [`B`] and compares.
    pub(super) fn check(&self, client: &Client, dtype: DType, [q, k, v]: &[Array; 3]) {
        let lengths = self.lengths(client);
        let options = self.options(&lengths);
        let found = typed!(dtype, E => flash_attention_in_blocks::<E>(q, k, v, &options, [B, B]));
        self.compare(found, [q, k, v], dtype);
    }
    fn compare(&self, found: Result<(Array, Array)>, [q, k, v]: [&Array; 3], dtype: DType) {
        let (out, lse) = found.unwrap_or_else(|e| panic!("{self:?} of {dtype}: {e}"));
        let [_, _, _, _, l, d] = self.sizes;
        let (want_out, want_lse) = self.reference(&doubles(q), &doubles(k), &doubles(v));
        close(&out, &want_out, l.max(d), K, &format!("{self:?} of {dtype}"));
        close(&lse, &want_lse, l.max(d), K, &format!("log-sum-exp, {self:?} of {dtype}"));
    }
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        for ([s, l, d], size) in around([5, 6, 3]) {
            let each = runs(&client, size).iter().flat_map(|&t| MASKS.map(|c| (t, c)));
            // On a GPU one mask per size.
            for (_, (dtype, causal)) in each.enumerate().filter(|(i, _)| !gpu || *i == size % 3) {
                // All keys, some, none.
                let case = Case { sizes: [3, 1, 1, s, l, d], lengths: &[l, l / 2, 0], causal, scale: 0.5 };
                case.check(&client, dtype, &case.operands(&client, dtype));
            }
        }
        for ([batch, heads], _) in around([2, 3]).filter(|(_, size)| !runs(&client, *size).is_empty()) {
            let lengths = vec![3; batch];
            let case = Case { sizes: [batch, heads, 1, 3, 5, 2], lengths: &lengths, causal: Causal::No, scale: 1.0 };
            case.check(&client, DType::F32, &case.operands(&client, DType::F32));
        }
    }
}

#[test]
fn queries_and_keys_of_every_length_under_a_mask() {
    for client in [Client::interpreter(), Client::cpu()] {
        for (s, l) in (0..=2 * B + 1).flat_map(|s| (0..=2 * B + 1).map(move |l| (s, l))) {
            for causal in [Causal::FromStart, Causal::FromEnd] {
                let case = Case { sizes: [2, 1, 1, s, l, 2], lengths: &[l, l.min(3)], causal, scale: 1.0 };
                case.check(&client, DType::F32, &case.operands(&client, DType::F32));
            }
        }
    }
}

#[test]
fn heads_share_keys_in_groups() {
    for client in clients() {
        for (heads, key_heads) in [(1, 1), (4, 4), (6, 2), (6, 3), (5, 1)] {
            let sizes = [2, heads, key_heads, 5, 7, 4];
            let case = Case { sizes, lengths: &[7, 4], causal: Causal::FromEnd, scale: 0.5 };
            case.check(&client, DType::F32, &case.operands(&client, DType::F32));
        }
    }
}

#[test]
fn head_dimensions_through_the_function_that_chooses_blocks() {
    let cpu = Client::cpu();
    for d in [1, 16, 24, 40, 64, 80, 96, 112, 128, 256] {
        for (dtype, (s, l)) in FLOATS.into_iter().zip([(33, 47), (140, 131), (7, 260)]) {
            let scale = 1.0 / (d as f64).sqrt();
            let case = Case { sizes: [1, 2, 1, s, l, d], lengths: &[l], causal: Causal::FromStart, scale };
            let operands = case.operands(&cpu, dtype);
            let [q, k, v] = operands.each_ref();
            let options = Options { causal: case.causal, ..Options::default() };
            case.compare(flash_attention_with_lse(q, k, v, &options), [q, k, v], dtype);
        }
    }
    for (i, [s, l, d]) in drawn(40, 12).enumerate() {
        let (causal, key_heads, dtype) = (MASKS[i % 3], [1, 2, 4][i / 3 % 3], FLOATS[i % 2 + i / 2 % 2]);
        let sizes = [2, 4, key_heads, s, l, d];
        let case = Case { sizes, lengths: &[l, l / 2], causal, scale: 1.0 / (d as f64).sqrt() };
        let operands = case.operands(&cpu, dtype);
        let ([q, k, v], lengths) = (operands.each_ref(), case.lengths(&cpu));
        let options = Options { causal, lengths: Some(&lengths), ..Options::default() };
        case.compare(flash_attention_with_lse(q, k, v, &options), [q, k, v], dtype);
    }
    for client in clients() {
        let case = Case { sizes: [1, 2, 2, 9, 37, 40], lengths: &[20], causal: Causal::No, scale: 0.3 };
        let operands = case.operands(&client, DType::F32);
        let ([q, k, v], lengths) = (operands.each_ref(), case.lengths(&client));
        let options = Options { scale: Some(0.3), lengths: Some(&lengths), ..Options::default() };
        case.compare(flash_attention_with_lse(q, k, v, &options), [q, k, v], DType::F32);
    }
}

/// Programs of a few positions have several batch elements and heads.
#[test]
fn small_attention_of_any_batch_and_heads() {
    let cpu = Client::cpu();
    for (i, [batch, heads, s, l, d]) in drawn(90, 21).enumerate() {
        let (batch, heads, s, d) = (1 + batch % 6, 1 + heads % 12, 1 + s % 33, 1 + d % 40);
        let shared = (1..=heads).filter(|n| heads % n == 0).nth(i % 4).unwrap_or(1);
        let (causal, dtype) = (MASKS[i % 3], FLOATS[i / 3 % 3]);
        let scale = 1.0 / (d as f64).sqrt();
        let case = Case { sizes: [batch, heads, heads / shared, s, l, d], lengths: &vec![l; batch], causal, scale };
        let mut operands = case.operands(&cpu, dtype);
        if i % 5 == 0 {
            // Rows that do not see the last key do not see what it is.
            let k = doubles(&operands[1]);
            let at = k.len() - d;
            operands[1] = array(&cpu, dtype, &case.k_shape(), &with(k, &[(at, f64::NAN)]));
        }
        let [q, k, v] = operands.each_ref();
        let options = Options { causal, ..Options::default() };
        case.compare(flash_attention_with_lse(q, k, v, &options), [q, k, v], dtype);
    }
}

/// `x` with some elements replaced.
fn with(mut x: Vec<f64>, changes: &[(usize, f64)]) -> Vec<f64> {
    changes.iter().for_each(|&(i, y)| x[i] = y);
    x
}

#[test]
fn numbers_that_are_none_go_where_they_are_seen() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let (s, l, d) = (6, 11, 2);
    for client in [Client::interpreter(), Client::cpu()] {
        for causal in MASKS {
            let case = Case { sizes: [1, 1, 1, s, l, d], lengths: &[9], causal, scale: 1.0 };
            let check = |changes: [&[(usize, f64)]; 3]| {
                let make = |shape: [usize; 4], seed: usize| {
                    let x = values(shape.iter().product(), seed);
                    array(&client, DType::F32, &shape, &with(x, changes[seed - 1]))
                };
                let operands = [make(case.q_shape(), 1), make(case.k_shape(), 2), make(case.k_shape(), 3)];
                case.check(&client, DType::F32, &operands);
            };
            // A query: its own row. A key: the rows that see it.
            check([&[(2 * d, nan)], &[], &[]]);
            check([&[], &[(5 * d + 1, nan)], &[]]);
            // Behind the last live key anything may lie.
            check([&[], &[(9 * d, nan), (10 * d, inf)], &[(9 * d, nan), (10 * d + 1, -inf)]]);
            // Values of the last key every row sees at once.
            check([&[], &[], &[(0, nan), (1, -inf)]]);
            // Scores of +inf, of -inf for one key, and of -inf for all keys of a row.
            check([&[(4 * d, 1.0), (4 * d + 1, 0.5)], &[(d, inf), (d + 1, 1.0)], &[]]);
            let ones: Vec<(usize, f64)> = (0..s * d).map(|i| (i, 1.0)).collect();
            check([&ones, &[(3 * d, -inf), (0, -inf)], &[]]);
            check([&[(d, -inf), (d + 1, 0.0)], &(0..l).map(|j| (j * d, 1.0)).collect::<Vec<_>>(), &[]]);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let q = zeros(DType::F32, &[2, 4, 5, 8]);
    let kv = zeros(DType::F32, &[2, 2, 7, 8]);
    let fails = |q: &Array, k: &Array, v: &Array, lengths: Option<&Array>, says: &str| {
        let options = Options { lengths, ..Options::default() };
        let error = flash_attention(q, k, v, &options).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    fails(&zeros(DType::F32, &[4, 5, 8]), &kv, &kv, None, "`q` has shape [4, 5, 8], expected [batch, heads");
    fails(&q, &zeros(DType::F32, &[2, 3, 7, 8]), &kv, None, "4 heads of queries are no multiple of 3 heads of keys");
    fails(&q, &zeros(DType::F32, &[2, 0, 7, 8]), &kv, None, "4 heads of queries are no multiple of 0 heads of keys");
    fails(&q, &kv, &zeros(DType::F32, &[2, 2, 6, 8]), None, "dimension L is 7 in `k` and 6 in `v`");
    fails(&q, &zeros(DType::F32, &[3, 2, 7, 8]), &kv, None, "dimension B is 2 in `q` and 3 in `k`");
    fails(&q, &kv, &zeros(DType::F16, &[2, 2, 7, 8]), None, "`v` holds f32, found an array of f16");
    fails(&q, &kv, &zeros(DType::F32, &[2, 7, 8]), None, "`v`");
    fails(&q, &zeros(DType::F32, &[2, 2, 7, 4]), &kv, None, "dimension D is 8 in `q` and 4 in `k`");
    fails(&q, &zeros(DType::F16, &[2, 2, 7, 8]), &kv, None, "`k` holds f32, found an array of f16");
    fails(&q, &kv, &kv, Some(&zeros(DType::I32, &[3])), "`lengths` has shape [3], expected [2]");
    fails(&q, &kv, &kv, Some(&zeros(DType::F32, &[2])), "`lengths` holds f32, expected i32");
    fails(&zeros(DType::I32, &[2, 4, 5, 8]), &kv, &kv, None, "takes f32, f16 or bf16, found i32");
    // The client goes on working.
    flash_attention(&q, &kv, &kv, &Options::default()).expect("it runs");
}
