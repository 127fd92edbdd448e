//! Cases that are measured: a row for each kernel, with its operands.
use pallas_kernels::cross_entropy::{
    self, cross_entropy, cross_entropy_backward, cross_entropy_of_logits, cross_entropy_of_logits_backward,
};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::flash_attention_bias::bias_gradient;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{Layout, matmul, matmul_int8, matmul_with};
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, tables};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_kernels::{softmax, softmax_backward, splash_attention};
use pallas_rt::ir::DType;
use pallas_rt::prelude::f16;
use pallas_rt::{Array, Client, DeviceKind, Result, cost};

type Call = Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>;

/// A call of a kernel.
pub struct Case {
    pub name: &'static str,
    pub shape: String,
    /// Operations: multiplications, additions, exponentials.
    pub flops: f64,
    pub inputs: Vec<Array>,
    pub call: Call,
}

impl Case {
    /// Calls it.
    pub fn run(&self) -> Result<Vec<Array>> {
        (self.call)(&self.inputs)
    }
    /// Bytes that have to be read and written at least.
    pub fn bytes(&self, outputs: &[Array]) -> usize {
        self.inputs.iter().chain(outputs).map(|x| x.len() * x.dtype().bytes()).sum()
    }
}

/// Every case, on smaller arrays for software adapters and where asked for, on larger ones for GPUs.
pub fn all(client: &Client, small: bool) -> Result<Vec<Case>> {
    let small = small || client.device().software;
    let large = client.kind() == DeviceKind::Gpu && !small;
    let mut table = Table { client, cases: vec![] };
    for n in if small { vec![128] } else { vec![256, 1024] }.into_iter().chain(large.then_some(4096)) {
        table.products(n, n)?;
    }
    // A few rows, as when decoding.
    table.products(if small { 128 } else { 4096 }, 1)?;
    table.rows(if small { [64, 256] } else { [if large { 65_536 } else { 4096 }, 1024] })?;
    table.classes(if small { [32, 500, 64] } else { [512, 8000, 512] })?;
    table.attention(if small { [1, 1, 64, 32] } else { [1, 8, 1024, 64] })?;
    table.caches(if small { [4, 2, 64, 32] } else { [32, 8, 8192, 128] })?;
    table.masks(if small { [1, 1, 64, 32] } else { [1, 4, 2048, 64] })?;
    Ok(table.cases)
}

struct Table<'a> {
    client: &'a Client,
    cases: Vec<Case>,
}

fn one(x: Result<Array>) -> Result<Vec<Array>> {
    x.map(|x| vec![x])
}
fn two(x: Result<(Array, Array)>) -> Result<Vec<Array>> {
    x.map(|(x, y)| vec![x, y])
}
fn three(x: Result<(Array, Array, Array)>) -> Result<Vec<Array>> {
    x.map(|(x, y, z)| vec![x, y, z])
}

impl Table<'_> {
    /// Adds a case. Its operations are counted by `cost`, unless they are given.
    fn add(
        &mut self,
        name: &'static str,
        inputs: &[&Array],
        flops: Option<f64>,
        call: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    ) -> Result<()> {
        let inputs: Vec<Array> = inputs.iter().map(|&x| x.clone()).collect();
        let flops = match flops {
            Some(flops) => flops,
            None => cost(|| call(&inputs)).map(|c| (c.flops + c.transcendentals) as f64)?,
        };
        let shape = inputs[0].shape().iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        self.cases.push(Case { name, shape, flops, inputs, call: Box::new(call) });
        Ok(())
    }

    /// `m` rows times an n x n matrix in each representation.
    fn products(&mut self, n: usize, m: usize) -> Result<()> {
        let (x, w) = (self.numbers(&[m, n])?, self.numbers(&[n, n])?);
        let flops = Some(2.0 * (m * n * n) as f64);
        self.add("matmul", &[&x, &w], flops, |a| one(matmul(&a[0], &a[1])))?;
        let [x16, w16] = [self.halves(&[m, n])?, self.halves(&[n, n])?];
        self.add("matmul f16", &[&x16, &w16], flops, |a| one(matmul(&a[0], &a[1])))?;
        let (bytes, byte_weights) = (self.bytes(&[m, n])?, self.bytes(&[n, n])?);
        self.add("matmul int8", &[&bytes, &byte_weights], flops, |a| {
            one(matmul_int8(&a[0], &a[1], Layout::default()))
        })?;
        for (name, bits) in [("matmul int8 weights", Bits::Eight), ("matmul int4 weights", Bits::Four)] {
            let q = quantize(&w, bits, Some(128))?;
            self.add(name, &[&x, &q.values.clone()], flops, move |a| one(quantized_matmul(&a[0], &q)))?;
        }
        Ok(())
    }

    fn rows(&mut self, [rows, columns]: [usize; 2]) -> Result<()> {
        let (x, dy) = (self.numbers(&[rows, columns])?, self.numbers(&[rows, columns])?);
        let (gamma, beta) = (self.numbers(&[columns])?, self.numbers(&[columns])?);
        let (cos, sin) = tables(self.client, 0, rows, columns, 10_000.0)?;
        self.add("softmax", &[&x], None, |a| one(softmax::softmax(&a[0])))?;
        self.add("softmax backward", &[&x, &dy], None, |a| one(softmax_backward::softmax_backward(&a[0], &a[1])))?;
        self.add("log_softmax", &[&x], None, |a| one(softmax::log_softmax(&a[0])))?;
        self.add("log_softmax backward", &[&x, &dy], None, |a| {
            one(softmax_backward::log_softmax_backward(&a[0], &a[1]))
        })?;
        self.add("layer_norm", &[&x, &gamma, &beta], None, |a| one(layer_norm(&a[0], &a[1], &a[2], 1e-5)))?;
        self.add("layer_norm backward", &[&x, &gamma, &dy], None, |a| {
            three(layer_norm_backward(&a[0], &a[1], &a[2], 1e-5))
        })?;
        self.add("rms_norm", &[&x, &gamma], None, |a| one(rms_norm(&a[0], &a[1], 1e-5)))?;
        self.add("rms_norm backward", &[&x, &gamma, &dy], None, |a| two(rms_norm_backward(&a[0], &a[1], &a[2], 1e-5)))?;
        self.add("rotary", &[&x, &cos, &sin], None, |a| one(rotary(&a[0], &a[1], &a[2], Pairs::Halves)))?;
        self.add("swiglu", &[&x, &dy], None, |a| one(gated(&a[0], &a[1], Gate::Silu)))?;
        self.add("swiglu backward", &[&x, &dy, &x], None, |a| two(gated_backward(&a[0], &a[1], &a[2], Gate::Silu)))
    }

    /// Losses over a vocabulary, and its embedding.
    fn classes(&mut self, [n, vocabulary, d]: [usize; 3]) -> Result<()> {
        let (x, w, dloss) = (self.numbers(&[n, d])?, self.numbers(&[vocabulary, d])?, self.numbers(&[n])?);
        let labels: Vec<i32> = (0..n).map(|i| (i * 7919 % vocabulary) as i32).collect();
        let labels = self.client.array(&labels, &[n])?;
        let options = cross_entropy::Options::default();
        let product = 2.0 * (n * vocabulary * d) as f64;
        let forward = move |a: &[Array]| two(cross_entropy(&a[0], &a[1], &a[2], &options));
        self.add("cross-entropy", &[&x, &w, &labels], Some(product), forward)?;
        let (_, lse) = cross_entropy(&x, &w, &labels, &options)?;
        let backward = move |a: &[Array]| two(cross_entropy_backward(&a[0], &a[1], &a[2], &a[3], &a[4], &options));
        self.add("cross-entropy backward", &[&x, &w, &labels, &lse, &dloss], Some(4.0 * product), backward)?;
        let unfused = move |a: &[Array]| {
            let z = matmul_with(&a[0], &a[1], Layout { b_transposed: true, ..Layout::default() }, |z| z)?;
            two(cross_entropy_of_logits(&z, &a[2], &options))
        };
        self.add("cross-entropy unfused", &[&x, &w, &labels], Some(product), unfused)?;
        let z = self.numbers(&[n, vocabulary])?;
        self.add("cross-entropy of logits backward", &[&z, &labels, &lse, &dloss], None, move |a| {
            one(cross_entropy_of_logits_backward(&a[0], &a[1], &a[2], &a[3], &options))
        })?;
        // Only the rows asked for are read.
        self.add("embedding", &[&x, &labels], Some(0.0), {
            let w = w.clone();
            move |a| one(embedding(&w, &a[1]))
        })?;
        self.add("embedding backward", &[&x, &labels], Some((n * d) as f64), move |a| {
            one(embedding_backward(&a[0], &a[1], vocabulary, None))
        })
    }

    fn attention(&mut self, shape: [usize; 4]) -> Result<()> {
        let [_, heads, positions, d] = shape;
        let (q, k, v) = (self.numbers(&shape)?, self.numbers(&shape)?, self.numbers(&shape)?);
        let flops = 4.0 * (heads * positions * positions * d) as f64;
        for (name, backward, causal, share) in [
            ("attention", "attention backward", Causal::No, 1.0),
            ("attention causal", "attention causal backward", Causal::FromStart, 0.5),
        ] {
            let options = move || Options { causal, ..Options::default() };
            let forward = move |a: &[Array]| one(flash_attention(&a[0], &a[1], &a[2], &options()));
            self.add(name, &[&q, &k, &v], Some(flops * share), forward)?;
            let (out, lse) = flash_attention_with_lse(&q, &k, &v, &options())?;
            self.add(backward, &[&q, &k, &v, &out, &lse, &v], Some(2.5 * flops * share), move |a| {
                three(flash_attention_backward([&a[0], &a[1], &a[2]], [&a[3], &a[4]], &a[5], &options()))
            })?;
        }
        let bias = self.numbers(&[1, 1, positions, positions])?;
        let (out, lse) = flash_attention_with_lse(&q, &k, &v, &Options { bias: Some(&bias), ..Options::default() })?;
        // Two products: the scores, and the gradient by probabilities.
        self.add("attention bias gradient", &[&q, &k, &v, &out, &lse, &v, &bias], Some(flops), |a| {
            let options = Options { bias: Some(&a[6]), ..Options::default() };
            one(bias_gradient([&a[0], &a[1], &a[2]], [&a[3], &a[4]], &a[5], &options))
        })?;
        let halves = [self.halves(&shape)?, self.halves(&shape)?, self.halves(&shape)?];
        self.add("attention f16", &halves.each_ref(), Some(flops), |a| {
            one(flash_attention(&a[0], &a[1], &a[2], &Options::default()))
        })?;
        self.add("attention unfused", &[&q, &k, &v], Some(flops), |a| one(unfused(&a[0], &a[1], &a[2])))
    }

    /// One query against a long cache: bound by the bytes of keys and values.
    fn caches(&mut self, [heads, key_heads, keys, d]: [usize; 4]) -> Result<()> {
        let flops = Some(4.0 * (heads * keys * d) as f64);
        let q = self.numbers(&[1, heads, 1, d])?;
        let (k, v) = (self.numbers(&[1, key_heads, keys, d])?, self.numbers(&[1, key_heads, keys, d])?);
        self.add("decode", &[&q, &k, &v], flops, |a| {
            one(decode_attention(&a[0], &a[1], &a[2], &decode_attention::Options::default()))
        })?;
        // As many keys in pages, of requests of a quarter each.
        let (requests, page) = (4, 16);
        let pages = keys / page;
        let shape = [pages, key_heads, page, d];
        let cache = PagedCache { k: k.reshape(&shape), v: v.reshape(&shape), scales: None };
        let tables: Vec<i32> = (0..pages).map(|j| (j * 7 % pages) as i32).collect();
        let step = Requests { tables: &tables, lengths: &[(keys / requests) as i32; 4], starts: &[0, 1, 2, 3, 4] };
        let batch = Batch::new(&cache, heads, step, BatchOptions::default())?;
        let q = self.numbers(&[requests, heads, d])?;
        for (name, cache) in [("paged", cache), ("paged int8", PagedCache::new(self.client, DType::I8, shape)?)] {
            let batch = batch.clone();
            self.add(name, &[&q, &cache.k.clone(), &cache.v.clone()], flops, move |a| {
                one(batch.attend(&a[0], &cache, &paged_attention::Options::default()))
            })?;
        }
        Ok(())
    }

    /// Attention under masks of blocks: time over live blocks.
    fn masks(&mut self, shape: [usize; 4]) -> Result<()> {
        let [_, heads, positions, d] = shape;
        let (q, k, v) = (self.numbers(&shape)?, self.numbers(&shape)?, self.numbers(&shape)?);
        let window = positions as i32 / 8;
        for (name, mask) in [
            ("splash full", Mask::Full),
            ("splash causal", Mask::causal()),
            ("splash window", Mask::window(window)),
            ("splash chunks", Mask::Chunked { size: 2 * window }),
        ] {
            let info = MaskInfo::new(self.client, &vec![mask; heads], [positions, positions])?;
            let [rows, columns] = info.block_size();
            let flops = 4.0 * (info.live_blocks() * rows * columns * d) as f64;
            let options = splash_attention::Options::default();
            if name == "splash causal" {
                let (out, lse) = splash_attention::splash_attention_with_lse(&q, &k, &v, &info, &options)?;
                let info = info.clone();
                self.add("splash causal backward", &[&q, &k, &v, &out, &lse, &v], Some(2.5 * flops), move |a| {
                    let (operands, results) = ([&a[0], &a[1], &a[2]], [&a[3], &a[4]]);
                    three(splash_attention::splash_attention_backward(operands, results, &a[5], &info, &options))
                })?;
            }
            self.add(name, &[&q, &k, &v], Some(flops), move |a| {
                one(splash_attention::splash_attention(&a[0], &a[1], &a[2], &info, &options))
            })?;
        }
        Ok(())
    }

    fn numbers(&self, shape: &[usize]) -> Result<Array> {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
        self.client.array(&x, shape)
    }
    /// The numbers above as f16.
    fn halves(&self, shape: &[usize]) -> Result<Array> {
        let n: usize = shape.iter().product();
        let x = (0..n).map(|i| f16::from_f32((i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5));
        self.client.array(&x.collect::<Vec<_>>(), shape)
    }
    fn bytes(&self, shape: &[usize]) -> Result<Array> {
        let x: Vec<u8> =
            (0..shape.iter().product()).map(|i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
        self.client.array_from_bytes(DType::I8, shape, &x)
    }
}

/// The mathematics of attention as three kernels, with the matrix of scores in memory between them.
fn unfused(q: &Array, k: &Array, v: &Array) -> Result<Array> {
    let [_, heads, positions, d] = *q.shape() else { unreachable!("made above") };
    let flat = |x: &Array| x.reshape(&[heads, positions, d]);
    let scale = 1.0 / (d as f32).sqrt();
    let layout = Layout { b_transposed: true, ..Layout::default() };
    let scores = matmul_with(&flat(q), &flat(k), layout, move |s| s * scale)?;
    matmul(&softmax::softmax(&scores)?, &flat(v))
}
