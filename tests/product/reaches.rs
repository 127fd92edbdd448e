//! Every shipped kernel on GPUs with 16, 32 and 48 KiB of workgroup memory, counted without one: with the blocks that
//! it chooses there, no tile leaves for global memory, 32 neighbouring threads wait for no bank in inner loops (for two
//! words of one elsewhere) and touch as few segments of arrays as they can, and those of attention meet three times a
//! step. What cannot be so is listed (`may_leave`, `SPREAD`), with the reason.
use crate::cases::{self, Entry, Extents, Given, entry};
use crate::shaders::shipped;
use crate::support::gpu_target;
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
    fn call(&mut self, entries: &[Entry], extents: &Extents) {
        for entry in entries {
            let case = entry.case(&Given::new(&self.client, self.dtype, extents, cases::zeros));
            let found = case.and_then(|case| explain(|| case.run_all()));
            let Explanation { kernels } = found.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            kernels.iter().for_each(|kernel| (self.see)(kernel));
        }
    }
    fn one(&mut self, name: &str, extents: &Extents) {
        self.call(std::slice::from_ref(entry(name)), extents);
    }

    fn all(&mut self) {
        let odd = self.odd;
        let square = [('n', 256 + odd), ('k', 256 + odd), ('m', 256 + odd)];
        self.call(cases::PRODUCTS, &square);
        if self.dtype == DType::F32 {
            self.call(cases::BYTES, &square);
        }
        let weights = [('n', 64), ('k', 128), ('m', 128 + odd), ('q', 32)];
        self.call(cases::QUANTISED, &weights[..3]);
        self.call(cases::QUANTISED, &weights);
        for d in [1024, 8192] {
            self.call(cases::ROWS, &[('n', 16), ('d', d + odd)]);
        }
        let rows = [('n', 64), ('d', 4096 + odd), ('v', 70)];
        self.call(cases::GATES, &rows);
        self.call(cases::TABLES, &rows);
        self.call(cases::ROTARY, &[('h', 4), ('n', 64), ('d', 64)]);
        for v in [512, 5000 + odd] {
            self.call(cases::LOSSES, &[('n', 64), ('d', 256 + odd), ('v', v)]);
        }
        self.attention();
    }
    fn attention(&mut self) {
        let of = |n: usize, d: usize| {
            [('b', 1), ('h', 2), ('g', 2), ('s', n), ('l', n), ('d', d), ('y', 1), ('z', 2), ('w', 100)]
        };
        self.one("attention causal", &of(256, 64));
        self.one("attention causal", &of(256, 128));
        self.one("attention with every option", &of(256 + self.odd, 64));
        self.one("splash of unlike heads", &of(256, 64));
        self.one("splash of arrays", &of(256, 64));
        for (h, d) in [(8, 64), (16, 128)] {
            self.one("decode in parts", &[('b', 1), ('h', h), ('g', 2), ('s', 1), ('l', 512), ('d', d), ('a', 4)]);
        }
        for (h, d) in [(8, 64), (8, 128), (16, 128)] {
            // A prompt and a step.
            let pages = [('p', 64), ('g', 2), ('t', 16), ('d', d), ('h', h), ('r', 2), ('c', 20), ('a', 8)];
            self.call(cases::PAGES, &pages);
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

/// True if a tile may leave for global memory: of heads of 128 the scaled queries, so that keys are read once for as
/// many of them as in flash attention's other blocks.
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

/// Places all kernels on GPUs with so much workgroup memory, for elements of a type, and rows of arrays so much longer
/// than whole vectors.
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
