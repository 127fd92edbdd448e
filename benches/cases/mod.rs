//! Cases that are measured: functions of `kernels/cases` with extents, and compositions of kernels to compare them
//! with.
use crate::registry::{self, Call, Extents, Given, entry};
use pallas_kernels::cross_entropy::cross_entropy_of_logits;
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{Options, flash_attention_with_lse};
use pallas_kernels::flash_attention_bias::bias_gradient;
use pallas_kernels::matmul::{Layout, matmul, matmul_with};
use pallas_kernels::softmax::softmax;
use pallas_rt::ir::DType;
use pallas_rt::{Array, Client, DeviceKind, Result, cost};
use std::sync::Arc;

/// A call of a kernel.
pub struct Case {
    pub name: String,
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
    let mut table = Table { client, dtype: DType::F32, cases: vec![] };
    for n in if small { vec![128] } else { vec![256, 1024] }.into_iter().chain(large.then_some(4096)) {
        table.products(n, n)?;
    }
    // A few rows, as when decoding.
    table.products(if small { 128 } else { 4096 }, 1)?;
    table.rows(if small { [64, 256] } else { [if large { 65_536 } else { 4096 }, 1024] })?;
    table.classes(if small { [32, 500, 64] } else { [512, 8000, 512] })?;
    table.attention(if small { [1, 64, 32] } else { [8, 1024, 64] })?;
    table.caches(if small { [4, 2, 64, 32] } else { [32, 8, 8192, 128] })?;
    table.masks(if small { [1, 64, 32] } else { [4, 2048, 64] })?;
    Ok(table.cases)
}

struct Table<'a> {
    client: &'a Client,
    dtype: DType,
    cases: Vec<Case>,
}

impl Table<'_> {
    fn given<'a>(&'a self, extents: &'a Extents) -> Given<'a> {
        Given::new(self.client, self.dtype, extents, numbers)
    }
    /// Adds a case. Its operations are counted by `cost`, unless they are given.
    fn push(&mut self, name: &str, inputs: Vec<Array>, flops: Option<f64>, call: Call) -> Result<()> {
        let flops = match flops {
            Some(flops) => flops,
            None => cost(|| call(&inputs)).map(|c| (c.flops + c.transcendentals) as f64)?,
        };
        let shape = inputs[0].shape().iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let name = if self.dtype == DType::F16 { format!("{name} f16") } else { name.to_string() };
        self.cases.push(Case { name, shape, flops, inputs, call });
        Ok(())
    }
    /// Adds functions.
    fn forward(&mut self, names: &[&str], extents: &Extents) -> Result<()> {
        names.iter().try_for_each(|name| {
            let case = entry(name).case(&self.given(extents))?;
            self.push(name, case.operands, case.flops, case.call)
        })
    }
    /// Adds gradients of functions.
    fn backward(&mut self, names: &[&str], extents: &Extents) -> Result<()> {
        names.iter().try_for_each(|name| {
            let case = entry(name).case(&self.given(extents))?;
            let shape = case.run()?[0].shape().to_vec();
            let Some(backward) = case.backward else { panic!("`{name}` has no gradients") };
            let dy = registry::array(self.client, self.dtype, &shape, &numbers(shape.iter().product(), 0))?;
            let inputs = backward.operands(&case.operands, &dy)?;
            self.push(&format!("{name} backward"), inputs, backward.flops, backward.call)
        })
    }

    /// `m` rows times an n x n matrix in each representation.
    fn products(&mut self, n: usize, m: usize) -> Result<()> {
        let extents = [('n', m), ('k', n), ('m', n), ('q', 128)];
        self.forward(&["matmul", "matmul int8", "matmul int8 weights", "matmul int4 weights"], &extents)?;
        self.dtype = DType::F16;
        self.forward(&["matmul"], &extents)?;
        self.dtype = DType::F32;
        Ok(())
    }

    fn rows(&mut self, [rows, columns]: [usize; 2]) -> Result<()> {
        let extents = [('n', rows), ('d', columns)];
        let differentiated = ["softmax", "log_softmax", "layer_norm", "rms_norm", "swiglu"];
        self.forward(&differentiated, &extents)?;
        self.backward(&differentiated, &extents)?;
        self.forward(&["rotary"], &extents)
    }

    /// Losses over a vocabulary, and its embedding.
    fn classes(&mut self, [n, vocabulary, d]: [usize; 3]) -> Result<()> {
        let extents = [('n', n), ('v', vocabulary), ('d', d)];
        self.forward(&["cross-entropy"], &extents)?;
        self.backward(&["cross-entropy", "cross-entropy of logits"], &extents)?;
        let loss = entry("cross-entropy").case(&self.given(&extents))?;
        let unfused = |a: &[Array]| {
            let z = matmul_with(&a[0], &a[1], Layout { b_transposed: true, ..Layout::default() }, |z| z)?;
            cross_entropy_of_logits(&z, &a[2], &Default::default()).map(|all| <[Array; 2]>::from(all).to_vec())
        };
        self.push("cross-entropy unfused", loss.operands.clone(), loss.flops, Arc::new(unfused))?;
        let [x, w, labels] = [0, 1, 2].map(|i| loss.operands[i].clone());
        // Only the rows asked for are read.
        let rows: Call = Arc::new(move |a| Ok(vec![embedding(&w, &a[1])?]));
        self.push("embedding", vec![x.clone(), labels.clone()], Some(0.0), rows)?;
        let sums: Call = Arc::new(move |a| Ok(vec![embedding_backward(&a[0], &a[1], vocabulary, None)?]));
        self.push("embedding backward", vec![x, labels], Some((n * d) as f64), sums)
    }

    fn attention(&mut self, [heads, positions, d]: [usize; 3]) -> Result<()> {
        let extents = [('b', 1), ('h', heads), ('g', heads), ('s', positions), ('l', positions), ('d', d)];
        self.forward(&["attention", "attention causal"], &extents)?;
        self.backward(&["attention", "attention causal"], &extents)?;
        let attention = entry("attention").case(&self.given(&extents))?;
        self.push("attention unfused", attention.operands.clone(), attention.flops, Arc::new(unfused))?;
        let shape = [1, 1, positions, positions];
        let bias = registry::array(self.client, DType::F32, &shape, &numbers(positions * positions, 0))?;
        let [q, k, v] = [0, 1, 2].map(|i| attention.operands[i].clone());
        let (out, lse) = flash_attention_with_lse(&q, &k, &v, &Options { bias: Some(&bias), ..Options::default() })?;
        // Two products: the scores, and the gradient by probabilities.
        let inputs = vec![q, k, v.clone(), out, lse, v, bias];
        let by_bias: Call = Arc::new(|a| {
            let options = Options { bias: Some(&a[6]), ..Options::default() };
            Ok(vec![bias_gradient([&a[0], &a[1], &a[2]], [&a[3], &a[4]], &a[5], &options)?])
        });
        self.push("attention bias gradient", inputs, attention.flops, by_bias)?;
        self.dtype = DType::F16;
        self.forward(&["attention"], &extents)?;
        self.dtype = DType::F32;
        Ok(())
    }

    /// One query against a long cache, bound by the bytes of keys and values; as many keys in pages, of requests of a
    /// quarter each.
    fn caches(&mut self, [heads, key_heads, keys, d]: [usize; 4]) -> Result<()> {
        let (of_heads, page) = ([('h', heads), ('g', key_heads), ('d', d)], 16);
        self.forward(&["decode"], &[&of_heads[..], &[('b', 1), ('s', 1), ('l', keys)]].concat())?;
        self.forward(&["paged", "paged int8"], &[&of_heads[..], &[('p', keys / page), ('t', page), ('r', 4)]].concat())
    }

    /// Attention under masks of blocks: time over live blocks.
    fn masks(&mut self, [heads, positions, d]: [usize; 3]) -> Result<()> {
        let extents =
            [('b', 1), ('h', heads), ('g', heads), ('s', positions), ('l', positions), ('d', d), ('w', positions / 8)];
        self.forward(&["splash full", "splash causal", "splash window", "splash chunks"], &extents)?;
        self.backward(&["splash causal"], &extents)
    }
}

fn numbers(n: usize, _: usize) -> Vec<f64> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f64 / 1009.0 - 0.5).collect()
}

/// The mathematics of attention as three kernels, with the matrix of scores in memory between them.
fn unfused(x: &[Array]) -> Result<Vec<Array>> {
    let [_, heads, positions, d] = *x[0].shape() else { unreachable!("made above") };
    let flat = |x: &Array| x.reshape(&[heads, positions, d]);
    let scale = 1.0 / (d as f32).sqrt();
    let layout = Layout { b_transposed: true, ..Layout::default() };
    let scores = matmul_with(&flat(&x[0]), &flat(&x[1]), layout, move |s| s * scale)?;
    Ok(vec![matmul(&softmax(&scores)?, &flat(&x[2]))?])
}
