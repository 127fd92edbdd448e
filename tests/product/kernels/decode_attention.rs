//! Decode attention: numbers of queries, keys and splits around each other, groups of heads, lengths, what is refused.
use super::naive::attend;
use super::{B, FLOATS, drawn, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::attention_scores::Rules;
use pallas_kernels::decode_attention::{
    Options, combine_splits, decode_attention, decode_attention_splits, decode_attention_with_lse,
};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;

#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    /// Batch, heads, heads of keys, queries, keys, head dimension.
    sizes: [usize; 6],
    lengths: &'a [usize],
    causal: bool,
    soft_cap: Option<f32>,
}

impl Case<'_> {
    fn operands(&self, client: &Client, dtype: DType) -> [Array; 3] {
        let [b, h, g, s, l, d] = self.sizes;
        let make = |shape: [usize; 4], seed| array(client, dtype, &shape, &values(shape.iter().product(), seed));
        [make([b, h, s, d], 1), make([b, g, l, d], 2), make([b, g, l, d], 3)]
    }
    fn lengths(&self, client: &Client) -> Array {
        let lengths: Vec<i32> = self.lengths.iter().map(|&n| n as i32).collect();
        client.array(&lengths, &[lengths.len()]).expect("it fits")
    }
    fn compare(&self, found: Result<(Array, Array)>, [q, k, v]: &[Array; 3], scale: f64) {
        let what = format!("{self:?} of {}", q.dtype());
        let (out, lse) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        let [_, h, g, s, l, d] = self.sizes;
        let [q, k, v] = [q, k, v].map(doubles);
        let (mut want, mut want_lse) = (vec![], vec![]);
        for (at, q) in q.chunks(d).enumerate() {
            let (b, head, i) = (at / s / h, at / s % h, at % s);
            let length = self.lengths[b].min(l);
            let end = if self.causal { (length + i + 1).saturating_sub(s) } else { length };
            let first = (b * g + head / (h / g)) * l;
            let row = |x: &'_ [f64], j: usize| -> Vec<f64> { x[(first + j) * d..][..d].to_vec() };
            let seen: Vec<_> = (0..end).map(|j| (row(&k, j), row(&v, j))).collect();
            let (out, lse) = attend(q, seen.iter().map(|(k, v)| (&k[..], &v[..])), scale, self.soft_cap);
            want.extend(out);
            want_lse.push(lse);
        }
        close(&out, &want, l.max(d), K, &what);
        close(&lse, &want_lse, l.max(d), K, &format!("log-sum-exp, {what}"));
    }
    /// The two kernels with blocks of [`B`] keys.
    fn check(&self, client: &Client, dtype: DType, splits: usize) {
        let operands = self.operands(client, dtype);
        let [b, h, g, s, l, d] = self.sizes;
        let ([q, k, v], rows) = (operands.each_ref(), h / g * s);
        let steps = l.div_ceil(B).div_ceil(splits);
        let rules = Rules { soft_cap: self.soft_cap.map(f32::to_bits), ..Rules::default() };
        let found = typed!(dtype, E => (|| {
            let q = &q.reshape(&[b, g, 1, rows, d]);
            let (out, lse) = decode_attention_splits::<E>(
                q, k, v, &self.lengths(client), 0.5, s as i32, self.causal, rules, splits, steps, B)?;
            let parts: Vec<i32> = (0..b * g).flat_map(|at| [at * splits, 1, splits].map(|x| x as i32)).collect();
            let parts = client.array(&parts, &[b * g, 3])?;
            let (out, lse) = combine_splits::<E>(
                &parts, &out.reshape(&[b * g * splits, rows, d]), &lse.reshape(&[b * g * splits, rows]), splits)?;
            Ok((out.reshape(&[b, h, s, d]), lse.reshape(&[b, h, s])))
        })());
        self.compare(found, &operands, 0.5);
    }
}

#[test]
fn keys_and_splits_of_every_number() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        for l in 0..=3 * B + 1 {
            for (splits, dtype) in (1..=4).zip(FLOATS.into_iter().cycle()).filter(|(p, _)| !gpu || (l + p) % 13 == 0) {
                let case = Case { sizes: [3, 4, 2, 1, l, 3], lengths: &[l, l / 2, 0], causal: false, soft_cap: None };
                case.check(&client, dtype, splits);
            }
        }
    }
}

#[test]
fn several_queries_continue_the_cache() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        for (s, l) in (1..=6).flat_map(|s| [(s, 5), (s, 13)]).filter(|(s, l)| !gpu || (*s, *l) == (3, 13)) {
            // Also more queries than keys: the first ones see none.
            let case = Case { sizes: [2, 6, 2, s, l, 4], lengths: &[l, 2], causal: true, soft_cap: Some(0.7) };
            case.check(&client, DType::F32, 2);
        }
    }
}

#[test]
fn through_the_function_that_chooses_splits() {
    for client in [Client::cpu(), Client::interpreter()] {
        let large = client.kind() == DeviceKind::Cpu;
        let sizes: Vec<[usize; 6]> = if large {
            let small = drawn(40, 11).map(|[g, l, d]| [2, 2 * (g % 4 + 1), g % 4 + 1, g % 6 + 1, l, d]);
            let large = [[1, 8, 2, 1, 3001, 64], [2, 6, 1, 5, 700, 40], [1, 3, 3, 64, 300, 16], [1, 7, 1, 33, 520, 8]];
            large.into_iter().chain(small).collect()
        } else {
            vec![[2, 4, 2, 3, 300, 3]]
        };
        for (sizes, dtype) in sizes.into_iter().zip(FLOATS.into_iter().cycle()) {
            let l = sizes[4];
            for (splits, causal) in [(None, false), (Some(3), true)] {
                let case = Case { sizes, lengths: &[l, l / 3][..sizes[0]], causal, soft_cap: None };
                let operands = case.operands(&client, dtype);
                let ([q, k, v], lengths) = (operands.each_ref(), case.lengths(&client));
                let options = Options { causal, splits, lengths: Some(&lengths), ..Options::default() };
                case.compare(decode_attention_with_lse(q, k, v, &options), &operands, 1.0 / (sizes[5] as f64).sqrt());
            }
        }
    }
    if let Some(client) = crate::support::gpu() {
        let case = Case { sizes: [1, 4, 2, 1, 70, 8], lengths: &[70], causal: false, soft_cap: None };
        let operands = case.operands(&client, DType::F16);
        let options = Options { splits: Some(2), ..Options::default() };
        let [q, k, v] = operands.each_ref();
        case.compare(decode_attention_with_lse(q, k, v, &options), &operands, 1.0 / 8f64.sqrt());
    }
}

#[test]
fn what_lies_behind_the_last_key_does_not_matter() {
    for client in [Client::interpreter(), Client::cpu()] {
        for (l, length) in [(9, 7), (8, 8), (12, 1), (5, 0)] {
            let lengths = [length];
            let case = Case { sizes: [1, 2, 1, 1, l, 2], lengths: &lengths, causal: false, soft_cap: None };
            let clean = case.operands(&client, DType::F32);
            let soiled = clean.each_ref().map(|x| {
                let mut values = doubles(x);
                if x.shape()[2] == l {
                    values[length * 2..].fill(f64::NAN);
                }
                array(&client, DType::F32, x.shape(), &values)
            });
            let ([q, k, v], lengths) = (soiled.each_ref(), case.lengths(&client));
            let options = Options { scale: Some(0.5), lengths: Some(&lengths), ..Options::default() };
            case.compare(decode_attention_with_lse(q, k, v, &options), &clean, 0.5);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let (q, kv) = (zeros(DType::F32, &[2, 4, 1, 8]), zeros(DType::F32, &[2, 2, 7, 8]));
    let fails = |q: &Array, k: &Array, v: &Array, lengths: Option<&Array>, says: &str| {
        let options = Options { lengths, ..Options::default() };
        let error = decode_attention(q, k, v, &options).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    fails(&zeros(DType::F32, &[4, 1, 8]), &kv, &kv, None, "`q` has shape [4, 1, 8], expected [batch, heads");
    fails(&zeros(DType::F32, &[2, 4, 65, 8]), &kv, &kv, None, "65 queries per sequence are more than 64");
    fails(&q, &zeros(DType::F32, &[2, 3, 7, 8]), &kv, None, "4 heads of queries are no multiple of 3 heads of keys");
    fails(&q, &zeros(DType::F32, &[2, 0, 7, 8]), &kv, None, "4 heads of queries are no multiple of 0 heads of keys");
    fails(&q, &kv, &zeros(DType::F32, &[2, 2, 6, 8]), None, "dimension L is 7 in `k` and 6 in `v`");
    fails(&q, &zeros(DType::F16, &[2, 2, 7, 8]), &kv, None, "`k` holds f32, found an array of f16");
    fails(&q, &kv, &kv, Some(&zeros(DType::I32, &[3])), "dimension B is 2 in `q` and 3 in `lengths`");
    fails(&zeros(DType::I32, &[2, 4, 1, 8]), &kv, &kv, None, "takes f32, f16 or bf16, found i32");
    decode_attention(&q, &kv, &kv, &Options::default()).expect("it runs");
    // Nothing to attend to, and nobody who attends.
    for (q, kv) in [([2, 4, 1, 8], [2, 2, 0, 8]), ([0, 4, 1, 8], [0, 2, 7, 8]), ([2, 4, 0, 8], [2, 2, 7, 8])] {
        let (q, kv) = (zeros(DType::F16, &q), zeros(DType::F16, &kv));
        let out = decode_attention(&q, &kv, &kv, &Options::default()).expect("it runs");
        assert!(out.shape() == q.shape() && doubles(&out).iter().all(|&x| x == 0.0));
    }
}
