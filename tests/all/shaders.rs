//! Every shipped kernel's shader, for every kind of device, passes naga's validator and its SPIR-V, MSL and HLSL writers,
//! and the race checker.
use crate::validate::validate;
use pallas_kernels::flash_attention::{self, Causal, Dropout, Options, Window};
use pallas_kernels::flash_attention_backward::{block_sizes, gradients_in_blocks};
use pallas_kernels::flash_attention_bias::{bias_gradient_in_blocks, sinks_gradient};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_kernels::{cross_entropy, decode_attention, embedding, matmul, norm, softmax, splash_attention};
use pallas_rt::prelude::*;
use pallas_rt::wgsl::{Audit, Counts, Limits, PlacedTile, Placement, Profile, Reach, audit};

/// Every kernel that `f` calls, for every kind of device: its shader is valid, its threads meet where they must, and
/// nowhere else.
fn validate_all<R>(f: impl FnOnce() -> Result<R>) {
    let explanation = explain(f).expect("it is explained");
    assert!(!explanation.kernels.is_empty());
    for (kernel, profile) in explanation.kernels.iter().flat_map(|k| Profile::ALL.map(|p| (k, p))) {
        // Blocks are the CPU's here.
        let plain = Limits { workgroup_bytes: 256 << 10, ..Limits::default_of(profile) };
        let more = Limits { lanes: Some(8), multiples: u64::MAX, ..plain };
        for limits in [plain, more] {
            let shader = kernel.shader(&limits).expect("it has a shader");
            validate(&shader.text);
            let audit = audit(&kernel.lowered, kernel.sequential, &limits).expect("it has a shader");
            assert_eq!(audit.barriers, shader.placement.barriers.len());
            let expected = Audit { barriers: audit.barriers, ..Audit::default() };
            assert_eq!(audit, expected, "{}\n{}", profile.name(), shader.text);
        }
    }
}

#[test]
fn shaders_of_the_shipped_kernels_are_valid_everywhere() {
    let cpu = Client::cpu();
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let zeros = |shape: &[usize]| cpu.zeros(dtype, shape).expect("it fits");
        validate_all(|| matmul::matmul(&zeros(&[5, 6]), &zeros(&[6, 7])));
        validate_all(|| softmax::softmax(&zeros(&[3, 9])));
        validate_all(|| softmax::log_softmax(&zeros(&[3, 5000])));
        validate_all(|| norm::layer_norm(&zeros(&[3, 9]), &zeros(&[9]), &zeros(&[9]), 1e-5));
        validate_all(|| norm::rms_norm(&zeros(&[3, 5000]), &zeros(&[5000]), 1e-5));
    }
    let zeros = |shape: &[usize]| cpu.zeros(DType::F32, shape).expect("it fits");
    let (q, k) = (zeros(&[1, 2, 9, 8]), zeros(&[1, 2, 7, 8]));
    let causal = Options { causal: Causal::FromStart, ..Options::default() };
    validate_all(|| flash_attention::flash_attention_in_blocks::<f32, f32, 16, 16>(&q, &k, &k, &causal));
}

#[test]
fn shaders_of_attention_with_every_option_are_valid_everywhere() {
    with_every_option(|operands, _, every| {
        let [q, k, v] = operands;
        validate_all(|| flash_attention::flash_attention_in_blocks::<f16, f32, 16, 16>(q, k, v, every));
        // The plain way back as well.
        let lse = &Client::cpu().zeros(DType::F32, &q.shape()[..3]).expect("it fits");
        validate_all(|| gradients_in_blocks::<f16, f32, 16, 16>(operands, [q, lse], q, &Options::default()));
    });
}

#[test]
fn shaders_of_gradients_of_attention_with_every_option_are_valid_everywhere() {
    with_every_option(|operands, lse, every| {
        let (q, results) = (operands[0], [operands[0], lse]);
        validate_all(|| gradients_in_blocks::<f16, f32, 16, 16>(operands, results, q, every));
        validate_all(|| sinks_gradient(results, q, every.sinks.expect("there are")));
    });
}

#[test]
fn shaders_of_gradients_of_a_bias_are_valid_everywhere() {
    with_every_option(|operands, lse, every| {
        let results = [operands[0], lse];
        let options = Options { dropout: None, ..*every };
        validate_all(|| bias_gradient_in_blocks::<f16, f32, 16, 16>(operands, results, operands[0], &options));
    });
}

/// Calls with q, k and v, a log-sum-exp, and all options of attention at once.
fn with_every_option(call: impl Fn([&Array; 3], &Array, &Options<'_>)) {
    let zeros = |dtype, shape: &[usize]| Client::cpu().zeros(dtype, shape).expect("it fits");
    let (q, k, lse) = ([1, 2, 9, 8], [1, 1, 7, 8], zeros(DType::F32, &[1, 2, 9]));
    let (q, k, bias, sinks) = (zeros(DType::F16, &q), zeros(DType::F16, &k), [1, 2, 9, 7], zeros(DType::F16, &[2]));
    let bias = zeros(DType::F16, &bias);
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

#[test]
fn shaders_of_quantised_products_are_valid_everywhere() {
    let zeros = |dtype, shape: &[usize]| Client::cpu().zeros(dtype, shape).expect("it fits");
    let w = zeros(DType::F32, &[70, 9]);
    for (bits, dtype) in [(Bits::Eight, DType::F32), (Bits::Four, DType::F16)] {
        for group in [None, Some(32)] {
            let w = quantize(&w, bits, group).expect("it is a matrix");
            validate_all(|| quantized_matmul(&zeros(dtype, &[5, 70]), &w));
        }
    }
    let x = zeros(DType::I8, &[9, 9]);
    for layout in [matmul::Layout::default(), matmul::Layout { a_transposed: true, b_transposed: true }] {
        validate_all(|| matmul::matmul_int8(&x, &x, layout));
    }
}

#[test]
fn shaders_of_losses_and_tables_are_valid_everywhere() {
    let cpu = Client::cpu();
    for dtype in [DType::F32, DType::Bf16] {
        let zeros = |shape: &[usize]| cpu.zeros(dtype, shape).expect("it fits");
        let (x, w, labels) = (zeros(&[5, 70]), zeros(&[9, 70]), cpu.zeros(DType::I32, &[5]).expect("it fits"));
        let (rows, options) = (cpu.zeros(DType::F32, &[5]).expect("it fits"), cross_entropy::Options::default());
        validate_all(|| cross_entropy::cross_entropy(&x, &w, &labels, &options));
        validate_all(|| cross_entropy::cross_entropy_backward(&x, &w, &labels, &rows, &rows, &options));
        validate_all(|| cross_entropy::cross_entropy_of_logits(&x, &labels, &options));
        validate_all(|| cross_entropy::cross_entropy_of_logits_backward(&x, &labels, &rows, &rows, &options));
        validate_all(|| embedding::embedding(&w, &labels));
        validate_all(|| embedding::embedding_backward(&x, &labels, 9, None));
    }
}

#[test]
fn shaders_of_attention_over_caches_are_valid_everywhere() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(dtype, shape).expect("it fits");
    let (q, k) = (zeros(DType::F16, &[1, 4, 3, 8]), zeros(DType::F16, &[1, 2, 70, 8]));
    let options = decode_attention::Options { causal: true, splits: Some(2), ..Default::default() };
    validate_all(|| decode_attention::decode_attention(&q, &k, &k, &options));
    for dtype in [DType::F32, DType::I8] {
        let cache = PagedCache::new(&cpu, dtype, [9, 2, 4, 8]).expect("it fits");
        let requests = Requests { tables: &[0, 1, 2, 8, 4, 5], lengths: &[9, 12], starts: &[0, 1, 4] };
        let options = BatchOptions { window: Some(5), pages_per_item: Some(1) };
        let batch = Batch::new(&cache, 4, requests, options).expect("it is right");
        let (q, new) = (zeros(DType::F32, &[4, 4, 8]), zeros(DType::F32, &[4, 2, 8]));
        validate_all(|| batch.attend(&q, &cache, &paged_attention::Options::default()));
        validate_all(|| cache.clone().append(&batch, &new, &new));
    }
    // Masks that are computed, and one that is an array.
    let x = zeros(DType::F32, &[1, 2, 150, 8]);
    for mask in [Mask::window(40), Mask::dense(150, 150, |i, j| (i + j) % 5 == 0)] {
        let info = MaskInfo::in_blocks(&cpu, &[mask, Mask::Full], [150, 150], [16, 16]).expect("it fits");
        let options = splash_attention::Options { scale: None, soft_cap: Some(3.0) };
        validate_all(|| {
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
        let call = || flash_attention::flash_attention_in_blocks::<f32, f32, BQ, BK>(&x, &x, &x, &options);
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
        let call = || gradients_in_blocks::<f32, f32, OWN, PAST>([&x; 3], [&x, &lse], &x, &options);
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
