//! Every shipped kernel on GPUs with 16, 32 and 48 KiB of workgroup memory, counted without one: with the blocks that it
//! chooses there, no tile leaves for global memory, 32 neighbouring threads wait for no bank in inner loops (for two words of
//! one elsewhere) and touch as few segments of arrays as they can, and those of attention meet three times a step. What
//! cannot be so is listed (`may_leave`, `SPREAD`), with the reason.
use crate::shaders::shipped;
use crate::support::gpu_target;
use pallas_kernels::flash_attention::{self, Causal, Dropout, Options, Window};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::flash_attention_bias::{bias_gradient, sinks_gradient};
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{Layout, matmul_int8, matmul_with};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_kernels::{
    cross_entropy, decode_attention, embedding, norm, norm_backward, softmax, softmax_backward, splash_attention,
};
use pallas_rt::launch::{ExplainedKernel, Explanation};
use pallas_rt::prelude::*;
use pallas_rt::shader::{PlacedTile, Placement};
use std::collections::BTreeSet;

/// A device and an element type, and what is done with each kernel.
struct Calls<'a> {
    client: Client,
    dtype: DType,
    /// Rows of arrays are so much longer than whole vectors, where they may be anything.
    odd: usize,
    see: &'a mut dyn FnMut(&ExplainedKernel),
}

impl Calls<'_> {
    fn call<R>(&mut self, f: impl FnOnce() -> Result<R>) {
        let Explanation { kernels } = explain(f).expect("it is explained");
        kernels.iter().for_each(|kernel| (self.see)(kernel));
    }
    fn zeros(&self, shape: &[usize]) -> Array {
        self.client.zeros(shape, self.dtype).expect("it fits")
    }
    fn floats(&self, shape: &[usize]) -> Array {
        self.client.zeros(shape, DType::F32).expect("it fits")
    }
    fn numbers(&self, shape: &[usize]) -> Array {
        self.client.zeros(shape, DType::I32).expect("it fits")
    }

    fn all(&mut self) {
        self.products();
        self.rows();
        self.elements_and_tables();
        self.losses();
        self.attention();
        self.attention_with_every_option();
        self.attention_under_masks();
        self.attention_of_few_queries();
        self.attention_over_pages();
    }
    fn products(&mut self) {
        let n = 256 + self.odd;
        for [a, b] in [[false, false], [true, false], [false, true], [true, true]] {
            let layout = Layout { a_transposed: a, b_transposed: b };
            let (x, w) = (self.zeros(&[n, n]), self.zeros(&[n, n]));
            self.call(|| matmul_with(&x, &w, layout, |x| x));
            if self.dtype == DType::F32 {
                let bytes = self.client.zeros(&[n, n], DType::I8).expect("it fits");
                self.call(|| matmul_int8(&bytes, &bytes, layout));
            }
        }
        let x = self.zeros(&[64, 128]);
        for (bits, group) in [(Bits::Eight, None), (Bits::Eight, Some(32)), (Bits::Four, None), (Bits::Four, Some(32))]
        {
            let w = quantize(&self.floats(&[128, 128 + self.odd]), bits, group).expect("it is a matrix");
            self.call(|| quantized_matmul(&x, &w));
        }
    }
    fn rows(&mut self) {
        for n in [1024, 8192] {
            let (x, row) = (self.zeros(&[16, n + self.odd]), self.zeros(&[n + self.odd]));
            self.call(|| softmax::softmax(&x));
            self.call(|| softmax_backward::softmax_backward(&x, &x));
            self.call(|| norm::layer_norm(&x, &row, &row, 1e-5));
            self.call(|| norm::rms_norm(&x, &row, 1e-5));
            self.call(|| norm_backward::layer_norm_backward(&x, &row, &x, 1e-5));
            self.call(|| norm_backward::rms_norm_backward(&x, &row, &x, 1e-5));
        }
    }
    fn elements_and_tables(&mut self) {
        let (x, ids) = (self.zeros(&[64, 4096 + self.odd]), self.numbers(&[64]));
        self.call(|| gated(&x, &x, Gate::Gelu));
        self.call(|| gated_backward(&x, &x, &x, Gate::Silu));
        self.call(|| embedding::embedding(&x, &ids));
        self.call(|| embedding::embedding_backward(&x, &ids, 70, None));
        let (heads, angles) = (self.zeros(&[4, 64, 64]), self.floats(&[64, 32]));
        for pairs in [Pairs::Halves, Pairs::Neighbours] {
            self.call(|| rotary(&heads, &angles, &angles, pairs));
            self.call(|| rotary_backward(&heads, &angles, &angles, pairs));
        }
    }
    fn losses(&mut self) {
        let (x, w) = (self.zeros(&[64, 256 + self.odd]), self.zeros(&[512, 256 + self.odd]));
        let (labels, rows) = (self.numbers(&[64]), self.floats(&[64]));
        let (logits, options) = (self.zeros(&[64, 5000 + self.odd]), cross_entropy::Options::default());
        self.call(|| cross_entropy::cross_entropy(&x, &w, &labels, &options));
        self.call(|| cross_entropy::cross_entropy_backward(&x, &w, &labels, &rows, &rows, &options));
        self.call(|| cross_entropy::cross_entropy_of_logits(&logits, &labels, &options));
        self.call(|| cross_entropy::cross_entropy_of_logits_backward(&logits, &labels, &rows, &rows, &options));
        self.call(|| cross_entropy::cross_entropy_lse(&rows));
    }
    fn attention(&mut self) {
        for d in [64, 128] {
            let (x, lse) = (self.zeros(&[1, 2, 256, d]), self.floats(&[1, 2, 256]));
            let options = Options { causal: Causal::FromStart, ..Options::default() };
            self.call(|| flash_attention::flash_attention(&x, &x, &x, &options));
            self.call(|| flash_attention_backward([&x; 3], [&x, &lse], &x, &options));
        }
    }
    fn attention_with_every_option(&mut self) {
        let n = 256 + self.odd;
        let (x, lse, ids) = (self.zeros(&[1, 2, n, 64]), self.floats(&[1, 2, n]), self.numbers(&[1, n]));
        let (bias, sinks) = (self.zeros(&[1, 2, n, n]), self.zeros(&[2]));
        let every = Options {
            causal: Causal::FromEnd,
            window: Window { left: Some(100), right: None },
            segments: Some([&ids, &ids]),
            bias: Some(&bias),
            soft_cap: Some(2.0),
            sinks: Some(&sinks),
            dropout: Some(Dropout { rate: 0.1, seed: 1.into() }),
            ..Options::default()
        };
        self.call(|| flash_attention::flash_attention(&x, &x, &x, &every));
        self.call(|| flash_attention_backward([&x; 3], [&x, &lse], &x, &every));
        self.call(|| bias_gradient([&x; 3], [&x, &lse], &x, &Options { dropout: None, ..every }));
        self.call(|| sinks_gradient([&x, &lse], &x, &sinks));
    }
    fn attention_under_masks(&mut self) {
        let (x, lse) = (self.zeros(&[1, 2, 256, 64]), self.floats(&[1, 2, 256]));
        let masks = [Mask::window(40), Mask::dense(256, 256, |i, j| (i + j) % 5 == 0)];
        let info = MaskInfo::new(&self.client, &masks, [256, 256]).expect("it fits");
        let options = splash_attention::Options { scale: None, soft_cap: None };
        self.call(|| splash_attention::splash_attention(&x, &x, &x, &info, &options));
        self.call(|| splash_attention::splash_attention_backward([&x; 3], [&x, &lse], &x, &info, &options));
    }
    fn attention_of_few_queries(&mut self) {
        for (d, heads) in [(64, 4), (128, 8)] {
            let (q, k) = (self.zeros(&[1, 2 * heads, 1, d]), self.zeros(&[1, 2, 512, d]));
            let options = decode_attention::Options { causal: true, splits: Some(4), ..Default::default() };
            self.call(|| decode_attention::decode_attention(&q, &k, &k, &options));
        }
    }
    fn attention_over_pages(&mut self) {
        for (d, heads, stored) in
            [(64, 8, self.dtype), (128, 8, self.dtype), (128, 16, self.dtype), (128, 8, DType::I8)]
        {
            let cache = PagedCache::new(&self.client, stored, [64, 2, 16, d]).expect("it fits");
            // A prompt and a step.
            let tables: Vec<i32> = (0..64).collect();
            let requests = Requests { tables: &tables, lengths: &[300, 17], starts: &[0, 20, 21] };
            let options = BatchOptions { pages_per_item: Some(8), ..BatchOptions::default() };
            let batch = Batch::new(&cache, heads, requests, options).expect("it is right");
            let (q, new) = (self.zeros(&[21, heads, d]), self.zeros(&[21, 2, d]));
            self.call(|| batch.attend(&q, &cache, &paged_attention::Options::default()));
            self.call(|| cache.clone().append(&batch, &new, &new));
        }
    }
}

/// Kernels that no GPU runs: each has another one there.
const CPU_ONLY: [&str; 10] = [
    "embedding_backward_rows",
    "embedding_rows",
    "cross_entropy_dx_of_parts",
    "cross_entropy_resident",
    "flash_attention_resident",
    "flash_attention_resident_bias",
    "flash_attention_whole",
    "flash_attention_whole_gradients",
    "norm_backward_parts",
    "norm_backward_sums",
];

/// Operands of kernels that reach so many times the segments of the ideal at most.
const SPREAD: [(&str, &[&str], usize); 2] = [
    // It lies as scores do, and threads are as many along a row of scores as keep sums of products in registers.
    ("flash_attention", &["`bias`", "`dbias`"], 4),
    // With segments, rows of padding become zeros on their way, in registers of the threads that hold products.
    ("flash_attention", &["`q`", "`k`", "`v`", "`dout`"], 8),
];

/// True if a tile may leave for global memory: of heads of 128 the scaled queries, so that keys are read once for as many of
/// them as in flash attention's other blocks.
fn may_leave(kernel: &ExplainedKernel, tile: &PlacedTile) -> bool {
    kernel.name == "flash_attention_blocks" && tile.name.contains("(mul)") && tile.ty.ends_with(",128]")
}

/// What is wrong with a placement, if anything.
fn faults(kernel: &ExplainedKernel, placement: &Placement, odd: bool) -> Vec<String> {
    let outside = placement.tiles.iter().filter(|t| t.home.contains("global"));
    let (left, lost): (Vec<_>, Vec<_>) = outside.partition(|t| may_leave(kernel, t));
    let mut found: Vec<String> = lost.iter().map(|t| format!("{} finds no room in workgroup memory", t.name)).collect();
    // `%18 (mul)` lies in `copy_18`.
    let copies: Vec<String> = left.iter().map(|t| t.name.replace('%', "`copy_").replace(" (mul)", "`")).collect();
    for reach in placement.reaches.iter().filter(|r| !copies.contains(&r.name)) {
        let array = kernel.lowered.operands.iter().find(|o| reach.name == format!("`{}`", o.name));
        // Threads are spread for elements of 32 bits.
        let narrow = if array.is_some_and(|o| o.dtype.bytes() < 4) { 2 } else { 1 };
        // Those that hold what a product gives are as many along a row as keep its sums in registers.
        let parts = if odd || reach.write && placement.step.fma > 0.0 { 2 } else { 1 };
        let listed = SPREAD.iter().find(|(name, of, _)| kernel.name.contains(name) && of.contains(&&*reach.name));
        let most = match (reach.global, reach.product) {
            (true, _) => (narrow * parts).max(listed.map_or(1, |l| l.2)) * reach.ideal,
            // No conflict in inner loops.
            (false, true) => 1,
            (false, false) => 2,
        };
        if reach.reached.is_none_or(|n| n > most) {
            found.push(reach.to_string());
        }
    }
    if kernel.name.contains("attention") && placement.step.barriers > 3.0 {
        found.push(format!("{} barriers a step: {:#?}", placement.step.barriers, placement.barriers));
    }
    found
}

/// Variables that a text assigns and never reads.
fn unread(text: &str) -> impl Iterator<Item = String> {
    let words = |line: &str| -> Vec<String> {
        line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    let mut declared = BTreeSet::new();
    let mut read = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        match (line.strip_prefix("var "), line.split_once(" = ")) {
            (Some(rest), None) => drop(declared.insert(words(rest)[0].clone())),
            (_, Some((to, from))) => {
                read.extend(words(from));
                // A whole variable is written; anything else is read on the way.
                if words(to).len() > 1 {
                    read.extend(words(to));
                }
            }
            _ => read.extend(words(line)),
        }
    }
    declared.into_iter().filter(move |name| !read.contains(name))
}

#[test]
fn a_variable_that_is_only_written_is_found() {
    let text = "var a: f32;\nvar b: f32;\na = f32(1);\nb = f32(2);\nout[0u] = b;\n";
    assert_eq!(unread(text).collect::<Vec<_>>(), ["a"]);
}

/// Places all kernels on GPUs with so much workgroup memory, for elements of a type, and rows of arrays so much longer than
/// whole vectors.
fn check(kib: u64, runs: &[(DType, usize)]) {
    let client = Client::cpu_as(gpu_target(kib));
    let (mut seen, mut found) = (BTreeSet::new(), vec![]);
    for &(dtype, odd) in runs {
        let mut see = |kernel: &ExplainedKernel| {
            seen.insert(kernel.name.clone());
            let shader = kernel.shader(&kernel.target, kernel.multiples).expect("it has a shader");
            let mut faults = faults(kernel, &shader.placement, odd != 0);
            faults.extend(unread(&shader.text).map(|name| format!("`{name}` is never read")));
            found.extend(faults.iter().map(|fault| format!("{} of {dtype}, {odd} odd: {fault}", kernel.name)));
        };
        Calls { client: client.clone(), dtype, odd, see: &mut see }.all();
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    if runs.iter().any(|(dtype, _)| *dtype == DType::F16) {
        let called = |name: &String| seen.contains(name) || CPU_ONLY.contains(&name.as_str());
        let forgotten: Vec<String> = shipped().into_iter().map(|(name, _)| name).filter(|name| !called(name)).collect();
        assert!(forgotten.is_empty(), "not called here: {forgotten:?}");
    }
}
#[test]
fn threads_of_gpus_with_16_kib_reach_what_they_must() {
    check(16, &[(DType::F32, 0)]);
}
#[test]
fn threads_of_gpus_with_32_kib_reach_what_they_must() {
    check(32, &[(DType::F32, 0), (DType::F16, 0)]);
}
#[test]
fn threads_of_gpus_with_32_kib_reach_what_they_must_in_odd_rows() {
    check(32, &[(DType::F32, 1)]);
}
#[test]
fn threads_of_gpus_with_48_kib_reach_what_they_must() {
    check(48, &[(DType::F32, 0)]);
}
