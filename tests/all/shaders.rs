//! Every shipped kernel's shader, in every float type, for every kind of device, passes naga's validator and its SPIR-V, MSL
//! and HLSL writers, and the race checker.
//!
//! The groups call them all; a kernel of `kernels/src` that no group calls fails a test.
use crate::kernels::typed;
use crate::validate::validate;
use pallas_kernels::flash_attention::{Causal, Dropout, Options, Window, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::{block_sizes, gradients_in_blocks};
use pallas_kernels::flash_attention_bias::{bias_gradient_in_blocks, sinks_gradient};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{Layout, matmul_int8, matmul_with};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_kernels::{
    cross_entropy, decode_attention, embedding, matmul, norm, norm_backward, softmax, softmax_backward,
    splash_attention,
};
use pallas_rt::Explanation;
use pallas_rt::prelude::*;
use pallas_rt::wgsl::{Audit, Counts, Limits, PlacedTile, Placement, Profile, Reach, audit};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// What is done with the kernels of a call.
type See<'a> = &'a dyn Fn(&Explanation);
/// Calls of shipped kernels on arrays of an element type.
type Group = fn(See<'_>, DType);

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Names the groups, and makes a test of each for each element type.
macro_rules! groups {
    ($($group:ident)*) => {
        const GROUPS: &[Group] = &[$($group),*];
        $(mod $group {
            use pallas_rt::prelude::DType;
            #[test]
            fn shaders_are_valid_everywhere_in_f32() {
                super::$group(&super::validate_all, DType::F32);
            }
            #[test]
            fn shaders_are_valid_everywhere_in_f16() {
                super::$group(&super::validate_all, DType::F16);
            }
            #[test]
            fn shaders_are_valid_everywhere_in_bf16() {
                super::$group(&super::validate_all, DType::Bf16);
            }
        })*
    };
}
groups! {
    products quantised_products rows gradients_of_rows losses tables attention gradients_of_attention gradients_in_one_pass
    attention_with_every_option gradients_with_every_option gradients_of_a_bias attention_of_few_queries
    attention_over_pages attention_under_masks
}

/// For every kind of device: a kernel's shader is valid, its threads meet where they must, and nowhere else.
fn validate_all(explanation: &Explanation) {
    assert!(!explanation.kernels.is_empty());
    for (kernel, profile) in explanation.kernels.iter().flat_map(|k| Profile::ALL.map(|p| (k, p))) {
        // Blocks are the CPU's here.
        let plain = Limits { workgroup_bytes: 256 << 10, ..Limits::default_of(profile) };
        let more = Limits { lanes: Some(8), multiples: u64::MAX, ..plain };
        for limits in [plain, more] {
            let (shader, audit) = audit(&kernel.lowered, kernel.sequential, &limits).expect("it has a shader");
            validate(&shader.text);
            assert_eq!(audit.barriers, shader.placement.barriers.len());
            let expected = Audit { barriers: audit.barriers, ..Audit::default() };
            assert_eq!(audit, expected, "{}\n{}", profile.name(), shader.text);
        }
    }
}

/// Every `#[kernel]` of `kernels/src`: its name, and whether it has an element type as parameter.
fn shipped() -> Vec<(String, bool)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/src");
    let files = std::fs::read_dir(folder).expect("a folder of the repository").map(|f| f.expect("an entry").path());
    let mut found = vec![];
    for file in files {
        let text = std::fs::read_to_string(file).expect("text");
        for (at, _) in text.match_indices("\n#[kernel") {
            let kernel = &text[at..];
            let head = &kernel[kernel.find("fn ").expect("a function") + 3..];
            let head = &head[..head.find('(').expect("parameters")];
            let name = head.split('<').next().expect("a name");
            found.push((name.to_owned(), head.contains("<E: ")));
        }
    }
    found
}

#[test]
fn no_shipped_kernel_is_forgotten() {
    let seen: RefCell<BTreeMap<String, BTreeSet<String>>> = RefCell::default();
    let see = |explanation: &Explanation| {
        for kernel in &explanation.kernels {
            let types = kernel.lowered.operands.iter().map(|o| o.dtype.to_string());
            seen.borrow_mut().entry(kernel.name.clone()).or_default().extend(types);
        }
    };
    GROUPS.iter().for_each(|group| FLOATS.iter().for_each(|&dtype| group(&see, dtype)));
    let shipped = shipped();
    assert!(shipped.len() > 40, "the kernels are found: {shipped:?}");
    for (name, generic) in shipped {
        let seen = seen.borrow();
        let types = seen.get(&name).unwrap_or_else(|| panic!("no group calls `{name}`: its shader is never validated"));
        let missing = FLOATS.iter().find(|dtype| generic && !types.contains(&dtype.to_string()));
        assert_eq!(missing, None, "no group calls `{name}` with that type");
    }
}

/// Shows the kernels of a call.
fn call<R>(see: See<'_>, f: impl FnOnce() -> Result<R>) {
    see(&explain(f).expect("it is explained"));
}
fn zeros(dtype: DType, shape: &[usize]) -> Array {
    Client::cpu().zeros(dtype, shape).expect("it fits")
}

fn products(see: See<'_>, dtype: DType) {
    for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
        let layout = Layout { a_transposed: a, b_transposed: b };
        let (x, y) = (zeros(dtype, if a { &[6, 9] } else { &[9, 6] }), zeros(dtype, if b { &[7, 6] } else { &[6, 7] }));
        call(see, || matmul_with(&x, &y, layout, |x| x));
        if dtype == DType::F32 && a == b {
            let x = zeros(DType::I8, &[9, 9]);
            call(see, || matmul_int8(&x, &x, layout));
        }
    }
}

fn quantised_products(see: See<'_>, dtype: DType) {
    let w = zeros(DType::F32, &[70, 9]);
    for bits in [Bits::Eight, Bits::Four] {
        for group in [None, Some(32)] {
            let w = quantize(&w, bits, group).expect("it is a matrix");
            call(see, || quantized_matmul(&zeros(dtype, &[5, 70]), &w));
        }
    }
}

fn rows(see: See<'_>, dtype: DType) {
    // Short rows are a block, long ones are swept.
    for n in [9, 5000] {
        let (x, parameter) = (zeros(dtype, &[3, n]), zeros(dtype, &[n]));
        call(see, || softmax::softmax(&x));
        call(see, || softmax::log_softmax(&x));
        call(see, || norm::layer_norm(&x, &parameter, &parameter, 1e-5));
        call(see, || norm::rms_norm(&x, &parameter, 1e-5));
    }
    let x = zeros(dtype, &[2, 5, 8]);
    call(see, || gated(&x, &x, Gate::Gelu));
    for pairs in [Pairs::Halves, Pairs::Neighbours] {
        let angles = zeros(DType::F32, &[5, 4]);
        call(see, || rotary(&x, &angles, &angles, pairs));
        call(see, || rotary_backward(&x, &angles, &angles, pairs));
    }
}

fn gradients_of_rows(see: See<'_>, dtype: DType) {
    for n in [9, 5000] {
        let (x, parameter) = (zeros(dtype, &[3, n]), zeros(dtype, &[n]));
        call(see, || softmax_backward::softmax_backward(&x, &x));
        call(see, || softmax_backward::log_softmax_backward(&x, &x));
        call(see, || norm_backward::layer_norm_backward(&x, &parameter, &x, 1e-5));
        call(see, || norm_backward::rms_norm_backward(&x, &parameter, &x, 1e-5));
    }
    let x = zeros(dtype, &[2, 5, 8]);
    call(see, || gated_backward(&x, &x, &x, Gate::Silu));
}

fn losses(see: See<'_>, dtype: DType) {
    let (x, w, labels) = (zeros(dtype, &[5, 70]), zeros(dtype, &[9, 70]), zeros(DType::I32, &[5]));
    let (rows, options) = (zeros(DType::F32, &[5]), cross_entropy::Options::default());
    call(see, || cross_entropy::cross_entropy(&x, &w, &labels, &options));
    call(see, || cross_entropy::cross_entropy_backward(&x, &w, &labels, &rows, &rows, &options));
    call(see, || cross_entropy::cross_entropy_of_logits(&x, &labels, &options));
    call(see, || cross_entropy::cross_entropy_of_logits_backward(&x, &labels, &rows, &rows, &options));
}

fn tables(see: See<'_>, dtype: DType) {
    let (x, w, labels) = (zeros(dtype, &[5, 70]), zeros(dtype, &[9, 70]), zeros(DType::I32, &[5]));
    call(see, || embedding::embedding(&w, &labels));
    call(see, || embedding::embedding_backward(&x, &labels, 9, None));
}

/// Attention without options, and causal.
fn attention(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, _], options| {
        typed!(dtype, E => call(see, || flash_attention_in_blocks::<E, 16, 16>(q, k, k, options)));
    });
}
fn gradients_of_attention(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, lse], options| {
        typed!(dtype, E => call(see, || gradients_in_blocks::<E, 16, 16>([q, k, k], [q, lse], q, options)));
    });
}
fn gradients_in_one_pass(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, lse], options| {
        typed!(dtype, E => call(see, || resident_gradients::<E, 16, 16>([q, k, k], [q, lse], q, options)));
    });
}
fn plain_and_causal(dtype: DType, f: impl Fn([&Array; 3], &Options<'_>)) {
    let (q, k, lse) = (zeros(dtype, &[1, 2, 9, 8]), zeros(dtype, &[1, 2, 7, 8]), zeros(DType::F32, &[1, 2, 9]));
    for causal in [Causal::No, Causal::FromStart] {
        f([&q, &k, &lse], &Options { causal, ..Options::default() });
    }
}

fn attention_with_every_option(see: See<'_>, dtype: DType) {
    with_every_option(dtype, |[q, k, v], _, every| {
        typed!(dtype, E => call(see, || flash_attention_in_blocks::<E, 16, 16>(q, k, v, every)));
    });
}

fn gradients_with_every_option(see: See<'_>, dtype: DType) {
    with_every_option(dtype, |operands, lse, every| {
        let (q, results) = (operands[0], [operands[0], lse]);
        typed!(dtype, E => call(see, || gradients_in_blocks::<E, 16, 16>(operands, results, q, every)));
        call(see, || sinks_gradient(results, q, every.sinks.expect("there are")));
    });
}

fn gradients_of_a_bias(see: See<'_>, dtype: DType) {
    with_every_option(dtype, |operands, lse, every| {
        let (q, results) = (operands[0], [operands[0], lse]);
        let options = Options { dropout: None, ..*every };
        typed!(dtype, E => call(see, || bias_gradient_in_blocks::<E, 16, 16>(operands, results, q, &options)));
    });
}

/// Calls with q, k and v, a log-sum-exp, and all options of attention at once.
fn with_every_option(dtype: DType, call: impl Fn([&Array; 3], &Array, &Options<'_>)) {
    let (q, k, lse) = (zeros(dtype, &[1, 2, 9, 8]), zeros(dtype, &[1, 1, 7, 8]), zeros(DType::F32, &[1, 2, 9]));
    let (bias, sinks) = (zeros(dtype, &[1, 2, 9, 7]), zeros(dtype, &[2]));
    let segments = [zeros(DType::I32, &[1, 9]), zeros(DType::I32, &[1, 7])];
    let every = Options {
        causal: Causal::FromEnd,
        window: Window { left: Some(3), right: None },
        segments: Some(segments.each_ref()),
        bias: Some(&bias),
        soft_cap: Some(2.0),
        sinks: Some(&sinks),
        dropout: Some(Dropout { rate: 0.1, seed: 1 }),
        ..Options::default()
    };
    call([&q, &k, &k], &lse, &every);
}

fn attention_of_few_queries(see: See<'_>, dtype: DType) {
    let (q, k) = (zeros(dtype, &[1, 4, 3, 8]), zeros(dtype, &[1, 2, 70, 8]));
    let options = decode_attention::Options { causal: true, splits: Some(2), ..Default::default() };
    call(see, || decode_attention::decode_attention(&q, &k, &k, &options));
}

fn attention_over_pages(see: See<'_>, dtype: DType) {
    for stored in [dtype, DType::I8] {
        let cache = PagedCache::new(&Client::cpu(), stored, [9, 2, 4, 8]).expect("it fits");
        let requests = Requests { tables: &[0, 1, 2, 8, 4, 5], lengths: &[9, 12], starts: &[0, 1, 4] };
        let options = BatchOptions { window: Some(5), pages_per_item: Some(1) };
        let batch = Batch::new(&cache, 4, requests, options).expect("it is right");
        let (q, new) = (zeros(dtype, &[4, 4, 8]), zeros(dtype, &[4, 2, 8]));
        call(see, || batch.attend(&q, &cache, &paged_attention::Options::default()));
        call(see, || cache.clone().append(&batch, &new, &new));
    }
}

fn attention_under_masks(see: See<'_>, dtype: DType) {
    let x = zeros(dtype, &[1, 2, 150, 8]);
    // Masks that are computed, and one that is an array.
    for mask in [Mask::window(40), Mask::dense(150, 150, |i, j| (i + j) % 5 == 0)] {
        let info = MaskInfo::in_blocks(&Client::cpu(), &[mask, Mask::Full], [150, 150], [16, 16]).expect("it fits");
        let options = splash_attention::Options { scale: None, soft_cap: Some(3.0) };
        call(see, || {
            let (out, lse) = splash_attention::splash_attention_with_lse(&x, &x, &x, &info, &options)?;
            splash_attention::splash_attention_backward([&x; 3], [&out, &lse], &x, &info, &options)
        });
    }
}

/// The placements of the kernels that `f` calls on a GPU with so much workgroup memory: for arrays of any size, and for rows
/// of whole vectors.
fn placed<R>(kib: u64, f: impl FnOnce() -> Result<R>) -> Vec<[Placement; 2]> {
    let explanation = explain(f).expect("it is explained");
    let plain = Limits { workgroup_bytes: kib << 10, ..Limits::default_of(Profile::Gpu) };
    let mut both = vec![];
    for kernel in &explanation.kernels {
        let placed = |limits: Limits| kernel.shader(&limits).expect("it has a shader").placement;
        let (ragged, vectors) = (placed(plain), placed(Limits { multiples: u64::MAX, ..plain }));
        // Threads that hold what a product gives are eight along a row: its result's ragged rows go out in fourths.
        let parts = if ragged.step.fma > 0.0 { 4 } else { 2 };
        reaches_no_more_than_it_must(&ragged, |reach| if reach.write { parts * reach.ideal } else { 2 * reach.ideal });
        reaches_no_more_than_it_must(&vectors, |reach| reach.ideal * if reach.write { parts / 2 } else { 1 });
        both.push([ragged, vectors]);
    }
    both
}

/// No product waits for a bank, nothing waits for more than two words of one; threads share segments of arrays.
fn reaches_no_more_than_it_must(placement: &Placement, segments: impl Fn(&Reach) -> usize) {
    // What found no room is in the program's own scratch.
    let arrays = |r: &&Reach| !r.global || !r.name.contains("copy");
    for reach in placement.reaches.iter().filter(arrays) {
        let most = match (reach.global, reach.product) {
            (true, _) => segments(reach),
            (false, product) => 2 - usize::from(product),
        };
        assert!(reach.reached.is_some_and(|n| n <= most), "{reach}\n{placement}");
    }
    assert!(placement.reaches.iter().any(|r| r.global), "{placement}");
}

/// Rows become columns.
#[kernel(grid = (cdiv(R, 32), cdiv(C, 32)))]
fn turned(
    #[block([R, C] => [32, 32], |i, j| (i, j))] x: In<f32>,
    #[block([C, R] => [32, 32], |i, j| (j, i))] out: Out<f32>,
) {
    out.store(x.load().t() * 2.0);
}

#[test]
fn a_transposition_on_a_gpu_reads_and_writes_rows() {
    let x = Client::cpu().zeros(DType::F32, &[64, 64]).expect("it fits");
    for placement in placed(16, || turned(&x)).iter().flatten() {
        assert_eq!(placement.barriers.len(), 1, "{placement}");
    }
    if let Some(gpu) = crate::support::gpu() {
        let numbers: Vec<f32> = (0..33 * 70).map(|i| i as f32).collect();
        let found = turned(gpu.array(&numbers, &[33, 70]).expect("it fits")).expect("it runs");
        let found = found.to_vec::<f32>().expect("it runs");
        assert!((0..33 * 70).all(|i| found[i] == 2.0 * numbers[i % 33 * 70 + i / 33]));
    }
}

#[test]
fn row_kernels_on_a_gpu_stay_in_registers() {
    let cpu = Client::cpu();
    for dtype in [DType::F32, DType::F16] {
        let zeros = |shape: &[usize]| cpu.zeros(dtype, shape).expect("it fits");
        let (x, row, long) = (zeros(&[8, 1024]), zeros(&[1, 1024]), zeros(&[8, 4096]));
        let mut all = vec![];
        if dtype == DType::F32 {
            all.extend(placed(16, || softmax::softmax_whole_rows::<f32, 4>(&x, false)));
            all.extend(placed(16, || softmax::softmax_whole_rows::<f32, 1>(&long, true)));
            all.extend(placed(16, || norm::layer_norm_whole_rows::<f32, 4>(&x, &row, &row, 1e-5)));
            all.extend(placed(16, || softmax::softmax_statistics::<f32, 8, 1024>(&long)));
            all.extend(placed(16, || norm::row_moment::<f32, 8, 1024>(&x, &zeros(&[8, 1]), 1)));
        } else {
            all.extend(placed(16, || softmax::softmax_whole_rows::<f16, 4>(&x, false)));
            all.extend(placed(16, || norm::rms_norm_whole_rows::<f16, 4>(&x, &row, 1e-5)));
        }
        for placement in all.iter().flatten() {
            assert!(placement.tiles.iter().all(|t| !t.home.contains("global")), "{placement}");
        }
    }
}

#[test]
fn matmul_on_a_gpu_reads_a_word_for_four_multiply_adds() {
    let x = Client::cpu().zeros(DType::F32, &[1, 256, 256]).expect("it fits");
    let halves = Client::cpu().zeros(DType::F16, &[1, 256, 256]).expect("it fits");
    let small = placed(16, || matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16));
    let narrow = placed(16, || matmul::matmul_blocks::<f16, f16>(&halves, &halves, |x| x, 64, 64, 16));
    let large = placed(32, || matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 128, 128, 16));
    // The other layouts read and write no worse.
    placed(16, || matmul::matmul_nt_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16));
    placed(16, || matmul::matmul_tn_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16));
    for placement in [small, narrow, large].into_iter().flatten().flatten() {
        let Counts { fma, product_words, barriers, .. } = placement.step;
        assert!(fma >= 4.0 * product_words, "{placement}");
        assert!(barriers <= 2.0, "{placement}");
        // Fetched a step ahead: carried in registers, copied to workgroup memory for its step.
        let carried =
            placement.tiles.iter().filter(|t| t.name.contains("carried") && t.home.contains("copy in workgroup"));
        assert_eq!(carried.count(), 2, "{placement}");
    }
}

#[test]
fn flash_attention_on_a_gpu_keeps_its_tiles_in_registers() {
    fn check<const BQ: usize, const BK: usize>(kib: u64, head: usize) {
        let client = Client::cpu();
        let x = client.zeros(DType::F32, &[1, 1, 256, head]).expect("it fits");
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let call = || flash_attention_in_blocks::<f32, BQ, BK>(&x, &x, &x, &options);
        for placement in placed(kib, call).into_iter().flatten() {
            assert!(placement.step.barriers <= 3.0, "{placement}");
            let own = |t: &&PlacedTile| ["dot", "reduce", "exp", "carried"].iter().any(|n| t.name.contains(n));
            for tile in placement.tiles.iter().filter(own) {
                assert!(tile.home.contains("registers") || tile.home == "fused", "{}: {placement}", tile.name);
            }
            // Scaled queries, in registers as well, may leave too little room for their copy.
            let mut outside = placement.tiles.iter().filter(|t| t.home.contains("global"));
            assert!(outside.all(|t| t.name.contains("mul")), "{placement}");
        }
    }
    check::<64, 16>(32, 64);
    check::<64, 8>(32, 128);
    check::<32, 16>(16, 64);
    check::<32, 8>(16, 128);
}

#[test]
fn gradients_of_flash_attention_on_a_gpu_share_workgroup_memory() {
    fn check<const OWN: usize, const PAST: usize>(kib: u64, head: usize) {
        let cpu = Client::cpu();
        let mut device = cpu.limits().clone();
        (device.profile, device.workgroup_bytes) = (pallas_rt::Profile::Gpu, kib << 10);
        assert_eq!(block_sizes(&device, head), (OWN, PAST));
        let x = cpu.zeros(DType::F32, &[1, 1, 64, head]).expect("it fits");
        let lse = cpu.zeros(DType::F32, &[1, 1, 64]).expect("it fits");
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let call = || gradients_in_blocks::<f32, OWN, PAST>([&x; 3], [&x, &lse], &x, &options);
        for placement in placed(kib, call).into_iter().flatten() {
            assert!(placement.step.barriers <= 4.0, "{placement}");
            assert!(placement.tiles.iter().all(|t| !t.home.contains("global")), "{placement}");
        }
    }
    check::<32, 32>(48, 64);
    check::<32, 16>(32, 64);
    check::<16, 8>(32, 128);
    check::<16, 8>(16, 64);
    check::<8, 4>(16, 128);
}
