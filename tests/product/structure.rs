//! What kernels do on a GPU, counted on their placed form without one: where tiles live, words that products read,
//! barriers, segments and banks that 32 neighbouring threads reach at once.
//!
//! Blocks are those that the kernels choose there. What holds for all shipped kernels is in `reaches`.
use crate::support::gpu_target;
use pallas_kernels::element::Floating;
use pallas_kernels::flash_attention::{Causal, Options, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::{block_sizes, flash_attention_backward, gradients_in_blocks};
use pallas_kernels::{
    cross_entropy, flash_attention, matmul, norm, norm_backward, quantized_matmul, softmax, softmax_backward,
};
use pallas_rt::Target;
use pallas_rt::prelude::*;
use pallas_rt::shader::{OperationCounts, PlacedTile, Placement, Profile};

fn zeros(dtype: DType, shape: &[usize]) -> Array {
    Client::cpu().zeros(shape, dtype).expect("it fits")
}

/// The placements of the kernels that `f` calls on a GPU with so much workgroup memory: for arrays of any size, and for
/// rows of whole vectors.
fn placed<R>(kib: u64, f: impl Fn() -> Result<R>) -> Vec<Placement> {
    [ragged(kib, &f), vectors(kib, &f)].concat()
}
fn ragged<R>(kib: u64, f: impl Fn() -> Result<R>) -> Vec<Placement> {
    placements(kib, 0, f)
}
fn vectors<R>(kib: u64, f: impl Fn() -> Result<R>) -> Vec<Placement> {
    placements(kib, u64::MAX, f)
}
fn placements<R>(kib: u64, multiples: u64, f: impl Fn() -> Result<R>) -> Vec<Placement> {
    let explanation = explain(f).expect("it is explained");
    let target = gpu_target(kib);
    let shaders = explanation.kernels.iter().map(|kernel| kernel.shader(&target, multiples).expect("it has a shader"));
    let placements: Vec<Placement> = shaders.map(|shader| shader.placement).collect();
    placements.iter().for_each(|placement| reaches_no_more_than_it_must(placement, multiples != 0));
    placements
}

/// Nothing waits for a bank; threads share segments of arrays.
fn reaches_no_more_than_it_must(placement: &Placement, vectors: bool) {
    // What found no room is in the program's own scratch.
    let outside = |name: &str| name.contains("copy") || name.contains("tile");
    for reach in placement.reaches.iter().filter(|r| !r.global || !outside(&r.name)) {
        // Threads that hold what a product gives are as many along a row as keep its sums in registers.
        let parts = if !vectors || reach.write && placement.step.fma > 0.0 { 2 } else { 1 };
        let most = if reach.global { parts * reach.ideal } else { 1 };
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
    let x = Client::cpu().zeros(&[64, 64], DType::F32).expect("it fits");
    for placement in placed(16, || turned(&x)) {
        assert_eq!(placement.barriers.len(), 1, "{placement}");
    }
    if let Some(gpu) = crate::support::gpu() {
        let numbers: Vec<f32> = (0..33 * 70).map(|i| i as f32).collect();
        let found = turned(gpu.array(&numbers, &[33, 70]).expect("it fits")).expect("it runs");
        let found = found.to_vec::<f32>().expect("it runs");
        assert!((0..33 * 70).all(|i| found[i] == 2.0 * numbers[i % 33 * 70 + i / 33]));
    }
}

/// Each block of columns and the sum of those before it.
#[kernel(grid = (cdiv(R, 8), cdiv(C, 32)), semantics = (parallel, arbitrary))]
fn sums_so_far(
    #[block([R, C] => [8, 32], |i, j| (i, j), fill = 0.0)] x: In<f32>,
    #[block([R, C] => [8, 32], |i, j| (i, j))] out: Out<f32>,
    #[scratch([8, 1])] sum: Scratch<f32>,
) {
    if program_id(1) == 0 {
        sum.fill(0.0);
    }
    let x = x.load();
    out.store(x + sum.load());
    sum.store(sum.load() + x.sum(1));
}

#[test]
fn a_block_stored_at_each_step_needs_no_barrier_on_a_gpu() {
    let x = zeros(DType::F32, &[16, 256]);
    for placement in placed(16, || sums_so_far(&x)) {
        // The sums of a step meet; blocks lie side by side, and threads have the same place in each.
        assert!(placement.barriers.iter().all(|why| !why.contains("out is")), "{placement}");
    }
}

#[test]
fn row_kernels_on_a_gpu_stay_in_registers() {
    fn check<E: Floating>() {
        let zeros = |shape: &[usize]| zeros(E::DTYPE, shape);
        let column = self::zeros(DType::F32, &[8, 1]);
        let (x, row, long, part) = (zeros(&[8, 1024]), zeros(&[1, 1024]), zeros(&[8, 4096]), zeros(&[1, 4096]));
        let all = [
            placed(16, || softmax::softmax_whole_rows::<E>(&x, false, 4)),
            placed(16, || softmax::softmax_whole_rows::<E>(&long, true, 1)),
            placed(16, || softmax::softmax_statistics::<E>(&long, 4, 1024)),
            placed(16, || softmax::softmax_apply::<E>(&long, &column, &column, false, 4, 1024)),
            placed(16, || norm::layer_norm_whole_rows::<E>(&x, &row, &row, 1e-5, 4)),
            placed(16, || norm::rms_norm_whole_rows::<E>(&x, &row, 1e-5, 4)),
            placed(16, || norm::row_moment::<E>(&long, &column, 1, 4, 1024)),
            placed(16, || norm::normalise::<E>(&long, &column, &column, &part, &part, 1e-5, 4, 1024)),
            placed(16, || softmax_backward::softmax_backward_whole_rows::<E>(&x, &x, false, 4)),
            placed(16, || softmax_backward::softmax_backward_sums::<E>(&long, &long, false, 4, 1024)),
            placed(16, || norm_backward::norm_backward_whole_rows::<E>(&x, &row, &x, 1e-5, true, 4)),
            placed(16, || {
                norm_backward::norm_backward_means::<E>(&long, &part, &long, &column, &column, 1e-5, 4, 1024)
            }),
            placed(16, || norm_backward::norm_backward_parameters::<E>(&long, &long, &column, &column, 1e-5, 32, 256)),
        ];
        for placement in all.iter().flatten() {
            assert!(placement.tiles.iter().all(|t| !t.home.contains("global")), "{placement}");
        }
    }
    check::<f32>();
    check::<f16>();
}

#[test]
fn losses_on_a_gpu_wait_for_no_bank() {
    let (x, w, column) = (zeros(DType::F32, &[64, 256]), zeros(DType::F32, &[500, 256]), zeros(DType::F32, &[64, 1]));
    let (logits, labels) = (zeros(DType::F32, &[64, 5000]), zeros(DType::I32, &[64, 1]));
    placed(16, || {
        cross_entropy::cross_entropy_of_logits_blocks::<f32>(&logits, &labels, -100, 0.1, 0.0, true, false, 4, 1024)
    });
    placed(16, || {
        cross_entropy::cross_entropy_of_logits_dz::<f32>(&logits, &labels, &column, &column, -100, 0.1, 0.0, 4, 1024)
    });
    placed(16, || cross_entropy::cross_entropy_blocks::<f32>(&x, &w, &labels, -100, 0.1, 0.0, true, 16, 256, 32, 64));
    let sums = [
        placed(16, || {
            cross_entropy::cross_entropy_dx::<f32>(&x, &w, &labels, &column, &column, -100, 0.1, 0.0, 16, 256, 32, 64)
        }),
        placed(16, || {
            cross_entropy::cross_entropy_dw::<f32>(&x, &w, &labels, &column, &column, -100, 0.1, 0.0, 16, 256, 32, 64)
        }),
    ];
    // Sums in arrays: each thread adds to its own elements, whichever block it is; others filled them.
    for placement in sums.iter().flatten() {
        assert!(placement.step.barriers <= 5.0, "{placement}");
    }
}

#[test]
fn matmul_on_a_gpu_reads_a_word_for_four_multiply_adds() {
    let (x, halves) = (zeros(DType::F32, &[1, 256, 256]), zeros(DType::F16, &[1, 256, 256]));
    let bytes = zeros(DType::I8, &[1, 256, 256]);
    let all = [
        vectors(16, || matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16)),
        vectors(16, || matmul::matmul_nt_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16)),
        vectors(16, || matmul::matmul_tn_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16)),
        vectors(16, || matmul::matmul_tt_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16)),
        vectors(16, || matmul::matmul_blocks::<f16, f16>(&halves, &halves, |x| x, 64, 64, 16)),
        vectors(16, || matmul::matmul_blocks::<i8, i32>(&bytes, &bytes, |x| x, 64, 64, 16)),
        ragged(16, || matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 64, 128, 16)),
        ragged(16, || matmul::matmul_nt_blocks::<f32, f32>(&x, &x, |x| x, 64, 128, 16)),
        ragged(16, || matmul::matmul_tn_blocks::<f32, f32>(&x, &x, |x| x, 64, 128, 16)),
        ragged(16, || matmul::matmul_tt_blocks::<f32, f32>(&x, &x, |x| x, 64, 128, 16)),
        ragged(16, || matmul::matmul_blocks::<f16, f16>(&halves, &halves, |x| x, 64, 128, 16)),
        placed(32, || matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 128, 128, 16)),
    ];
    for placement in all.iter().flatten() {
        let OperationCounts { fma, product_words, barriers, .. } = placement.step;
        assert!(fma >= 4.0 * product_words, "{placement}");
        assert!(barriers <= 2.0, "{placement}");
        // Fetched a step ahead: carried in registers, copied to workgroup memory for its step.
        let carried =
            placement.tiles.iter().filter(|t| t.name.contains("carried") && t.home.contains("copy in workgroup"));
        assert_eq!(carried.count(), 2, "{placement}");
    }
}

#[test]
fn products_with_few_bits_on_a_gpu_wait_for_no_bank() {
    let (x, values, halves) =
        (zeros(DType::F32, &[64, 256]), zeros(DType::I8, &[256, 256]), zeros(DType::U8, &[128, 256]));
    for [groups, gb, p] in [[1, 1, 16], [16, 1, 1], [4, 1, 4]] {
        let (scales, offsets) = (zeros(DType::F32, &[groups, 256]), zeros(DType::U8, &[groups, 256]));
        vectors(16, || quantized_matmul::matmul_int8_blocks::<f32>(&x, &values, &scales, 64, 64, 16, gb, p));
        ragged(16, || quantized_matmul::matmul_int8_blocks::<f32>(&x, &values, &scales, 64, 128, 16, gb, p));
        vectors(16, || {
            quantized_matmul::matmul_int4_blocks::<f32>(&x, &halves, &scales, &offsets, 64, 64, 16, 8, gb, p)
        });
        ragged(16, || {
            quantized_matmul::matmul_int4_blocks::<f32>(&x, &halves, &scales, &offsets, 64, 128, 16, 8, gb, p)
        });
    }
}

#[test]
fn flash_attention_on_a_gpu_keeps_its_tiles_in_registers() {
    fn check<const BQ: usize, const BK: usize>(kib: u64, head: usize) {
        let x = zeros(DType::F32, &[1, 1, 256, head]);
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let chosen = flash_attention::block_sizes(&gpu_target(kib), DType::F32, [1, 1, 256, head], 256, &options);
        assert_eq!(chosen, [BQ, BK]);
        let call = || flash_attention_in_blocks::<f32>(&x, &x, &x, &options, [BQ, BK]);
        for placement in placed(kib, call) {
            assert!(placement.step.barriers <= 3.0, "{placement}");
            let own = |t: &&PlacedTile| ["dot", "reduce", "exp", "carried"].iter().any(|n| t.name.contains(n));
            for tile in placement.tiles.iter().filter(own) {
                assert!(tile.home.contains("registers") || tile.home == "fused", "{}: {placement}", tile.name);
            }
            // Scaled queries, in registers as well, may leave too little room for their copy.
            let mut outside = placement.tiles.iter().filter(|t| t.home.contains("global"));
            assert!(outside.all(|t| head == 128 && kib < 48 && t.name.contains("mul")), "{placement}");
        }
    }
    check::<64, 8>(48, 128);
    check::<64, 16>(32, 64);
    check::<64, 8>(32, 128);
    check::<32, 8>(16, 64);
    check::<32, 8>(16, 128);
}

#[test]
fn gradients_of_flash_attention_on_a_gpu_share_workgroup_memory() {
    fn check<const OWN: usize, const PAST: usize>(kib: u64, head: usize) {
        let cpu = Client::cpu();
        assert_eq!(block_sizes(&gpu_target(kib), [64; 2], head), [OWN, PAST]);
        let x = cpu.zeros(&[1, 1, 64, head], DType::F32).expect("it fits");
        let lse = cpu.zeros(&[1, 1, 64], DType::F32).expect("it fits");
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let call = || gradients_in_blocks::<f32>([&x; 3], [&x, &lse], &x, &options, [[OWN, PAST], [PAST, OWN]]);
        for placement in placed(kib, call) {
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

#[test]
fn gradients_of_flash_attention_fit_on_a_software_adapter() {
    let target = Target { profile: Profile::SimtCpu, lanes: Some(8), ..gpu_target(32) };
    let client = Client::cpu_as(target);
    for head in [128, 136, 256] {
        let x = client.zeros(&[1, 1, 64, head], DType::F32).expect("it fits");
        let lse = client.zeros(&[1, 1, 64], DType::F32).expect("it fits");
        let call = || flash_attention_backward([&x; 3], [&x, &lse], &x, &Options::default());
        for kernel in &explain(call).expect("it is explained").kernels {
            let shader = kernel.shader(&target, 0).unwrap_or_else(|e| panic!("heads of {head}: {e}"));
            assert!(shader.workgroup_bytes <= 32 << 10, "heads of {head}: {}", shader.placement);
        }
    }
}

/// Kernels choose block sizes by the rule of `block_sizes.rs`, the only file with rows for kinds of devices.
#[test]
fn no_kernel_names_a_profile() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/src");
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(!text.contains("Profile") || path.ends_with("block_sizes.rs"), "{} names a profile", path.display());
    }
}
