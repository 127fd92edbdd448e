//! Block-sparse attention: every kind of mask and their combinations, gradients, what is loaded, what is refused.
use super::naive::{attend, product};
use super::{B, FLOATS, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::splash_attention::{
    Options, attention_in_blocks, gradients_in_blocks, splash_attention, splash_attention_backward,
    splash_attention_with_lse,
};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::DeviceKind;
use pallas_rt::interpreter::count_loads;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 32.0;

/// A mask of rules that positions do not tell.
fn scattered(queries: usize, keys: usize) -> Mask {
    Mask::dense(queries, keys, |i, j| (i * 5 + j * 3) % 7 < 2 && j / 4 != i / 4)
}

/// Masks of one or several heads, with a name for messages.
fn masks(queries: usize, keys: usize) -> Vec<(&'static str, Vec<Mask>)> {
    let local = |left, right, offset| Mask::Local { left, right, offset };
    vec![
        ("full", vec![Mask::Full]),
        ("causal", vec![Mask::causal()]),
        ("causal with an offset", vec![Mask::Causal { offset: 3 }]),
        ("causal that leaves rows without keys", vec![Mask::Causal { offset: -5 }]),
        ("window", vec![Mask::window(2)]),
        ("local on both sides", vec![local(Some(1), Some(4), 2)]),
        ("local on one side", vec![local(None, Some(1), 0)]),
        ("chunks", vec![Mask::Chunked { size: 3 }]),
        ("causal in chunks", vec![Mask::Chunked { size: 5 } & Mask::causal()]),
        ("parts that matter in some blocks", vec![(Mask::Chunked { size: 8 } | Mask::window(2)) & Mask::causal()]),
        ("or", vec![Mask::window(1) | Mask::Local { left: Some(9), right: Some(-7), offset: 0 }]),
        ("not", vec![!Mask::window(6)]),
        ("nothing", vec![Mask::causal() & !Mask::causal()]),
        ("array", vec![scattered(queries, keys)]),
        ("array and causal", vec![scattered(queries, keys) & Mask::causal()]),
        ("one for each head", vec![Mask::window(1), Mask::causal(), Mask::window(1), Mask::Full]),
        (
            "arrays among the heads",
            vec![scattered(queries, keys), Mask::causal(), Mask::Full, Mask::Chunked { size: 4 }],
        ),
        ("more than are computed", (0..6).map(Mask::window).collect()),
        (
            "bounds at the ends of i32",
            vec![
                Mask::Causal { offset: i32::MAX },
                local(Some(3), Some(i32::MAX), 1),
                local(Some(i32::MAX), Some(i32::MAX), i32::MIN),
                local(Some(i32::MAX), Some(2), 0) | Mask::Causal { offset: i32::MIN },
            ],
        ),
    ]
}

struct Case {
    /// Batch, heads, heads of keys, queries, keys, head dimension.
    sizes: [usize; 6],
    heads: Vec<Mask>,
    name: &'static str,
    soft_cap: Option<f32>,
}

impl Case {
    fn operands(&self, client: &Client, dtype: DType) -> [Array; 3] {
        let [b, h, g, s, l, d] = self.sizes;
        let make = |shape: [usize; 4], seed| array(client, dtype, &shape, &values(shape.iter().product(), seed));
        [make([b, h, s, d], 1), make([b, g, l, d], 2), make([b, g, l, d], 3)]
    }
    fn options(&self) -> Options {
        Options { scale: Some(0.5), soft_cap: self.soft_cap }
    }
    fn shape(&self) -> [usize; 2] {
        [self.sizes[3], self.sizes[4]]
    }
    /// Rows of queries with the rows of keys that each sees.
    fn rows(&self) -> impl Iterator<Item = (usize, Vec<usize>)> + '_ {
        let [b, h, g, s, l, _] = self.sizes;
        (0..b * h * s).map(move |at| {
            let (batch, head, i) = (at / s / h, at / s % h, at % s);
            let first = (batch * g + head / (h / g)) * l;
            (at, (0..l).filter(|&j| self.heads[head].sees(i, j)).map(|j| first + j).collect())
        })
    }
    fn forward(&self, [q, k, v]: [&[f64]; 3]) -> (Vec<f64>, Vec<f64>) {
        let d = self.sizes[5];
        let (mut out, mut lse) = (vec![], vec![]);
        for (at, seen) in self.rows() {
            let seen = seen.iter().map(|j| (&k[j * d..][..d], &v[j * d..][..d]));
            let (row, total) = attend(&q[at * d..][..d], seen, 0.5, self.soft_cap);
            out.extend(row);
            lse.push(total);
        }
        (out, lse)
    }
    fn backward(&self, [q, k, v, dout]: [&[f64]; 4]) -> [Vec<f64>; 3] {
        let d = self.sizes[5];
        let (out, lse) = self.forward([q, k, v]);
        let mut gradients = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
        for (at, seen) in self.rows() {
            let [q, dout, out] = [q, dout, &out].map(|x| &x[at * d..][..d]);
            let delta = product(dout, out);
            for j in seen {
                let [k, v] = [k, v].map(|x| &x[j * d..][..d]);
                let (mut s, mut slope) = (product(q, k) * 0.5, 1.0);
                if let Some(cap) = self.soft_cap.map(f64::from) {
                    let t = (s / cap).tanh();
                    (s, slope) = (cap * t, 1.0 - t * t);
                }
                let p = (s - lse[at]).exp();
                let ds = p * (product(dout, v) - delta) * slope * 0.5;
                for c in 0..d {
                    gradients[0][at * d + c] += ds * k[c];
                    gradients[1][j * d + c] += ds * q[c];
                    gradients[2][j * d + c] += p * dout[c];
                }
            }
        }
        gradients
    }
    fn compare(&self, found: Result<(Array, Array)>, operands: &[Array; 3]) {
        let what = format!("{} of {} {:?}", self.name, operands[0].dtype(), self.sizes);
        let (out, lse) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        let [q, k, v] = operands.each_ref().map(doubles);
        let (want, want_lse) = self.forward([&q, &k, &v]);
        close(&out, &want, self.sizes[4].max(self.sizes[5]), K, &what);
        close(&lse, &want_lse, self.sizes[4].max(self.sizes[5]), K, &format!("log-sum-exp, {what}"));
    }
    /// The result and log-sum-exp as the reference has them, and the gradient that comes in.
    fn results(&self, client: &Client, operands: &[Array; 3]) -> [Array; 3] {
        let ([q, k, v], dtype) = (operands.each_ref().map(doubles), operands[0].dtype());
        let (out, lse) = self.forward([&q, &k, &v]);
        let shape = operands[0].shape();
        let dout = array(client, dtype, shape, &values(out.len(), 4));
        [array(client, dtype, shape, &out), array(client, DType::F32, &shape[..3], &lse), dout]
    }
    fn compare_gradients(&self, found: Result<(Array, Array, Array)>, operands: &[Array; 3], dout: &Array) {
        let what = format!("{} of {} {:?}", self.name, operands[0].dtype(), self.sizes);
        let (dq, dk, dv) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        let [q, k, v] = operands.each_ref().map(doubles);
        let want = self.backward([&q, &k, &v, &doubles(dout)]);
        let [_, h, g, s, l, d] = self.sizes;
        for (name, (found, want)) in ["dq", "dk", "dv"].iter().zip([dq, dk, dv].iter().zip(&want)) {
            close(found, want, s.max(l).max(d) * h / g.max(1), K, &format!("{name}, {what}"));
        }
    }
    /// Forward and backward with blocks of [`B`].
    fn check(&self, client: &Client, dtype: DType) {
        let operands = self.operands(client, dtype);
        let info = MaskInfo::in_blocks(client, &self.heads, self.shape(), [B, B]).expect("it fits");
        let ([q, k, v], options) = (operands.each_ref(), self.options());
        self.compare(typed!(dtype, E => attention_in_blocks::<E, B, B>(q, k, v, &info, &options)), &operands);
        let [out, lse, dout] = self.results(client, &operands);
        let found = typed!(dtype, E => gradients_in_blocks::<E, B, B>([q, k, v], [&out, &lse], &dout, &info, &options));
        self.compare_gradients(found, &operands, &dout);
    }
}

#[test]
fn every_mask_forward_and_backward() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        // Whole blocks, and edges in both directions.
        for [s, l] in [[12, 12], [9, 14], [14, 9]] {
            for (i, (name, mut heads)) in masks(s, l).into_iter().enumerate() {
                if gpu && (l != 14 || i % 5 != 4) {
                    continue;
                }
                let several = heads.len() > 1;
                if !several {
                    heads = vec![heads[0].clone(); 2];
                }
                let sizes =
                    [1 + usize::from(i == 1), heads.len(), if i % 2 == 0 { heads.len() / 2 } else { 1 }, s, l, 3];
                let case = Case { sizes, heads, name, soft_cap: (i % 3 == 0).then_some(0.8) };
                case.check(&client, FLOATS[i % 3]);
            }
        }
    }
}

#[test]
fn queries_and_keys_of_every_number() {
    for client in [Client::interpreter(), Client::cpu()] {
        for (s, l) in (0..=2 * B + 1).flat_map(|n| [(n, 6), (6, n)]) {
            let heads = vec![Mask::causal(), Mask::Local { left: Some(2), right: Some(3), offset: 1 }];
            Case { sizes: [1, 2, 1, s, l, 2], heads, name: "two", soft_cap: None }.check(&client, DType::F32);
        }
    }
}

#[test]
fn through_the_functions_that_choose_blocks() {
    let cpu = Client::cpu();
    for (dtype, (d, [s, l])) in FLOATS.into_iter().zip([(16, [300, 200]), (40, [130, 400]), (64, [256, 256])]) {
        let heads = vec![Mask::window(70), Mask::causal() & Mask::Chunked { size: 150 }];
        let case = Case { sizes: [1, 2, 1, s, l, d], heads, name: "chosen", soft_cap: None };
        let operands = case.operands(&cpu, dtype);
        let ([q, k, v], options) = (operands.each_ref(), case.options());
        let info = MaskInfo::new(&cpu, &case.heads, [s, l]).expect("it fits");
        assert!(info.live_blocks() < info.blocks());
        case.compare(splash_attention_with_lse(q, k, v, &info, &options), &operands);
        let [out, lse, dout] = case.results(&cpu, &operands);
        let found = splash_attention_backward([q, k, v], [&out, &lse], &dout, &info, &options);
        case.compare_gradients(found, &operands, &dout);
    }
}

#[test]
fn masked_blocks_are_neither_loaded_nor_visited() {
    let client = Client::interpreter();
    let (s, l, d) = (4 * B, 6 * B, 2);
    let whole = |i: usize, j: usize| j / B == (i / B * 3) % 6;
    let masks =
        [Mask::causal(), Mask::window(2), Mask::dense(s, l, whole), Mask::Full, Mask::causal() & !Mask::causal()];
    for mask in masks {
        let case = Case { sizes: [1, 1, 1, s, l, d], heads: vec![mask.clone()], name: "loads", soft_cap: None };
        let block_is_live = |i: usize, j: usize| (0..B * B).any(|at| mask.sees(i * B + at / B, j * B + at % B));
        let live =
            (0..s / B).flat_map(|i| (0..l / B).map(move |j| (i, j))).filter(|&(i, j)| block_is_live(i, j)).count();
        let info = MaskInfo::in_blocks(&client, &case.heads, [s, l], [B, B]).expect("it fits");
        assert_eq!((info.live_blocks(), info.blocks()), (live, 24), "{mask:?}");

        let operands = case.operands(&client, DType::F32);
        let ([q, k, v], options) = (operands.each_ref(), case.options());
        let (found, loaded) = count_loads(|| attention_in_blocks::<f32, B, B>(q, k, v, &info, &options));
        found.expect("it runs");
        let of =
            |kernel: &str, operand: &str| loaded.get(&(kernel.into(), operand.into())).copied().unwrap_or(0) as usize;
        for operand in ["k", "v"] {
            assert_eq!(of("splash_attention_blocks", operand), live * B * d, "{operand} under {mask:?}");
        }
        // A mask of whole blocks, or one that is computed, is not loaded.
        assert_eq!(of("splash_attention_blocks", "partial"), 0);

        let [out, lse, dout] = case.results(&client, &operands);
        let (found, loaded) =
            count_loads(|| gradients_in_blocks::<f32, B, B>([q, k, v], [&out, &lse], &dout, &info, &options));
        found.expect("it runs");
        let of =
            |kernel: &str, operand: &str| loaded.get(&(kernel.into(), operand.into())).copied().unwrap_or(0) as usize;
        for (kernel, operand) in [("dq", "k"), ("dq", "v"), ("dkv", "q"), ("dkv", "dout")] {
            let found = of(&format!("splash_attention_{kernel}"), operand);
            assert_eq!(found, live * B * d, "{operand} of {kernel} under {mask:?}");
        }
    }
}

#[test]
fn masks_combine() {
    let (s, l) = (9, 11);
    let (a, b) = (Mask::window(3), scattered(s, l));
    let (and, or, not) = (a.clone() & b.clone(), a.clone() | b.clone(), !b.clone());
    for (i, j) in (0..s).flat_map(|i| (0..l).map(move |j| (i, j))) {
        assert_eq!(and.sees(i, j), a.sees(i, j) && b.sees(i, j));
        assert_eq!(or.sees(i, j), a.sees(i, j) || b.sees(i, j));
        assert_eq!(not.sees(i, j), !b.sees(i, j));
        assert_eq!(a.sees(i, j), j <= i && j + 3 >= i);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let info = MaskInfo::new(&cpu, &vec![Mask::causal(); 4], [5, 7]).expect("it fits");
    let (q, kv) = (zeros(DType::F32, &[2, 4, 5, 8]), zeros(DType::F32, &[2, 2, 7, 8]));
    let fails = |q: &Array, k: &Array, v: &Array, options: Options, says: &str| {
        let error = splash_attention(q, k, v, &info, &options).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    let plain = Options::default();
    fails(&zeros(DType::F32, &[4, 5, 8]), &kv, &kv, plain, "`q` has shape [4, 5, 8], expected [batch, heads");
    fails(
        &zeros(DType::F32, &[2, 2, 5, 8]),
        &kv,
        &kv,
        plain,
        "masks of 4 heads and [5, 7] queries and keys for 2 heads",
    );
    fails(&zeros(DType::F32, &[2, 4, 6, 8]), &kv, &kv, plain, "for 4 heads, 6 queries and 7 keys");
    fails(&q, &zeros(DType::F32, &[2, 3, 7, 8]), &kv, plain, "4 heads of queries are no multiple of 3 heads of keys");
    fails(&q, &kv, &zeros(DType::F32, &[2, 2, 7, 4]), plain, "dimension D is 8 in `q` and 4 in `v`");
    fails(&q, &zeros(DType::F16, &[2, 2, 7, 8]), &kv, plain, "`k` holds f32, found an array of f16");
    fails(&zeros(DType::I32, &[2, 4, 5, 8]), &kv, &kv, plain, "takes f32, f16 or bf16, found i32");
    fails(&q, &kv, &kv, Options { soft_cap: Some(-1.0), ..plain }, "`soft_cap` is -1, expected a positive number");
    splash_attention(&q, &kv, &kv, &info, &plain).expect("it runs");

    let refused = |masks: &[Mask], block: [usize; 2], says: &str| {
        let error = MaskInfo::in_blocks(&cpu, masks, [5, 7], block).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    refused(
        &[Mask::Full & !Mask::dense(7, 5, |_, _| true)],
        [4, 4],
        "a mask of shape [7, 5] for [5, 7] queries and keys",
    );
    refused(&[Mask::Full, Mask::Chunked { size: 0 }], [4, 4], "chunks of 0 keys");
    refused(&[Mask::Full], [4, 0], "blocks of [4, 0]");
    refused(&[], [4, 4], "there are no masks, expected one for each head");
    for size in [0, -3] {
        refused(&[Mask::Chunked { size }], [4, 4], &format!("chunks of {size} keys"));
        assert!(!Mask::Chunked { size }.sees(0, 0));
    }
    let odd = MaskInfo::in_blocks(&cpu, &vec![Mask::Full; 4], [5, 7], [3, 5]).expect("it fits");
    let error = splash_attention(&q, &kv, &kv, &odd, &plain).expect_err("it is refused").to_string();
    assert!(error.contains("no kernel was compiled for blocks of [3, 5]"), "{error}");
    let error = attention_in_blocks::<f32, 4, 4>(&q, &kv, &kv, &odd, &plain).expect_err("it is refused").to_string();
    assert!(error.contains("masks in blocks of [3, 5] for a kernel of blocks of [4, 4]"), "{error}");
}
