//! Every shipped kernel's shader, in every float type, for every kind of device, passes naga's validator and its SPIR-V, MSL
//! and HLSL writers, and the race checker.
//!
//! The groups call them all; a kernel of `kernels/src` that no group calls fails a test.
use crate::kernels::typed;
use crate::validate::validate;
use pallas_kernels::flash_attention::{Causal, Dropout, Options, Window, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_bias::{bias_gradient_in_blocks, sinks_gradient};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{Layout, matmul_int8, matmul_with};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_kernels::{
    cross_entropy, decode_attention, embedding, norm, norm_backward, softmax, softmax_backward, splash_attention,
};
use pallas_rt::__tests::{BarrierAudit, audit_barriers};
use pallas_rt::Target;
use pallas_rt::launch::Explanation;
use pallas_rt::prelude::*;
use pallas_rt::shader::{CooperativeMatrices, Profile};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// What is done with the kernels of a call.
pub(crate) type See<'a> = &'a dyn Fn(&Explanation);
/// Calls of shipped kernels on arrays of an element type.
pub(crate) type Group = fn(See<'_>, DType);

pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Names the groups, and makes a test of each for each element type.
macro_rules! groups {
    ($($group:ident)*) => {
        pub(crate) const GROUPS: &[Group] = &[$($group),*];
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
    // Block sizes are those of the CPU here.
    let plain = Target { workgroup_bytes: 256 << 10, ..Target::webgpu() };
    let matrices = CooperativeMatrices { half: Some(16), float: Some(8), lanes: 32 };
    let targets = Profile::SHADERS.map(|profile| Target { profile, ..plain });
    let targets = targets.into_iter().chain([Target { matrices: Some(matrices), ..plain }]);
    for (kernel, plain) in explanation.kernels.iter().flat_map(|k| targets.clone().map(move |t| (k, t))) {
        for (target, multiples) in [(plain, 0), (Target { lanes: Some(8), ..plain }, u64::MAX)] {
            let found = audit_barriers(&kernel.lowered, kernel.sequential, &target, multiples);
            let (shader, audit) = found.expect("it has a shader");
            validate(&shader.text);
            assert_eq!(audit.barriers, shader.placement.barriers.len());
            let expected = BarrierAudit { barriers: audit.barriers, ..BarrierAudit::default() };
            assert_eq!(audit, expected, "{}\n{}", target.name(), shader.text);
        }
    }
}

/// Every `#[kernel]` of `kernels/src`: its name, and whether it has an element type as parameter.
pub fn shipped() -> Vec<(String, bool)> {
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

/// Kernels that no group calls: the first three are chosen on the CPU, the others on GPUs, where `reaches` looks at their
/// shaders.
const ELSEWHERE: &[&str] = &[
    "flash_attention_whole",
    "flash_attention_whole_gradients",
    "flash_attention_resident_bias",
    "embedding_blocks",
    "embedding_backward_blocks",
];

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
    let mut missing = vec![];
    for (name, generic) in shipped.into_iter().filter(|(name, _)| !ELSEWHERE.contains(&&name[..])) {
        match seen.borrow().get(&name) {
            None => missing.push(name),
            Some(types) => {
                let types = FLOATS.iter().filter(|dtype| generic && !types.contains(&dtype.to_string()));
                missing.extend(types.map(|dtype| format!("{name} of {dtype}")));
            }
        }
    }
    assert!(missing.is_empty(), "no group calls these: their shaders are never validated: {missing:?}");
}

#[kernel(grid = (1))]
fn orders(
    #[block([M, N] => [3, 37], |_i| (0, 0))] x: In<f32>,
    #[block([M, N] => [3, 37], |_i| (0, 0))] sorted: Out<f32>,
    #[block([M, N] => [3, 37], |_i| (0, 0))] positions: Out<i32>,
) {
    let t = x.load();
    sorted.store(t.sort(1));
    positions.store(t.argsort_descending(0) + t.arg_top_k(37, 1) + (t > 0.0).argsort(1));
}

#[test]
fn shaders_of_sorts_are_valid_everywhere() {
    call(&validate_all, || orders(zeros(DType::F32, &[3, 37])));
}

/// Shows the kernels of a call.
fn call<R>(see: See<'_>, f: impl FnOnce() -> Result<R>) {
    see(&explain(f).expect("it is explained"));
}
fn zeros(dtype: DType, shape: &[usize]) -> Array {
    Client::cpu().zeros(shape, dtype).expect("it fits")
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

/// More elements than a core keeps of a row.
const LONG_ROW: usize = (1 << 17) + 1;

fn rows(see: See<'_>, dtype: DType) {
    // Short rows are a block, long ones are swept.
    for n in [9, LONG_ROW] {
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
    for n in [9, LONG_ROW] {
        let (x, parameter) = (zeros(dtype, &[3, n]), zeros(dtype, &[n]));
        call(see, || softmax_backward::softmax_backward(&x, &x));
        call(see, || softmax_backward::log_softmax_backward(&x, &x));
        call(see, || norm_backward::layer_norm_backward(&x, &parameter, &x, 1e-5));
        call(see, || norm_backward::rms_norm_backward(&x, &parameter, &x, 1e-5));
    }
    // What a GPU takes for short rows.
    let (x, gamma) = (zeros(dtype, &[3, 9]), zeros(dtype, &[1, 9]));
    call(see, || match dtype {
        DType::F16 => norm_backward::norm_backward_whole_rows::<f16>(&x, &gamma, &x, 1e-5, true, 4),
        DType::Bf16 => norm_backward::norm_backward_whole_rows::<bf16>(&x, &gamma, &x, 1e-5, true, 4),
        _ => norm_backward::norm_backward_whole_rows::<f32>(&x, &gamma, &x, 1e-5, true, 4),
    });
    let x = zeros(dtype, &[2, 5, 8]);
    call(see, || gated_backward(&x, &x, &x, Gate::Silu));
}

fn losses(see: See<'_>, dtype: DType) {
    let (x, w, labels) = (zeros(dtype, &[5, 70]), zeros(dtype, &[9, 70]), zeros(DType::I32, &[5]));
    let (rows, options) = (zeros(DType::F32, &[5]), cross_entropy::Options::default());
    call(see, || cross_entropy::cross_entropy(&x, &w, &labels, &options));
    call(see, || cross_entropy::cross_entropy_backward(&x, &w, &labels, &rows, &rows, &options));
    // What a GPU takes.
    let [column, columns] = [DType::I32, DType::F32].map(|dtype| zeros(dtype, &[5, 1]));
    macro_rules! gradients {
        ($E:ty) => {{
            let (column, columns) = (&column, &columns);
            call(see, || {
                cross_entropy::cross_entropy_dx::<$E>(&x, &w, column, columns, columns, -100, 0.0, 0.0, 16, 80, 4, 4)
            });
            call(see, || {
                cross_entropy::cross_entropy_dw::<$E>(&x, &w, column, columns, columns, -100, 0.0, 0.0, 16, 80, 4, 4)
            });
        }};
    }
    match dtype {
        DType::F16 => gradients!(f16),
        DType::Bf16 => gradients!(bf16),
        _ => gradients!(f32),
    }
    call(see, || cross_entropy::cross_entropy_of_logits(&x, &labels, &options));
    call(see, || cross_entropy::cross_entropy_of_logits_backward(&x, &labels, &rows, &rows, &options));
    call(see, || cross_entropy::cross_entropy_lse(&rows));
}

fn tables(see: See<'_>, dtype: DType) {
    let (x, w, labels) = (zeros(dtype, &[5, 70]), zeros(dtype, &[9, 70]), zeros(DType::I32, &[5]));
    call(see, || embedding::embedding(&w, &labels));
    call(see, || embedding::embedding_backward(&x, &labels, 9, None));
}

/// Attention without options, and causal.
fn attention(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, _], options| {
        typed!(dtype, E => call(see, || flash_attention_in_blocks::<E>(q, k, k, options, [16, 16])));
    });
}
fn gradients_of_attention(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, lse], options| {
        typed!(dtype, E => call(see, || gradients_in_blocks::<E>([q, k, k], [q, lse], q, options, [[16; 2]; 2])));
    });
}
fn gradients_in_one_pass(see: See<'_>, dtype: DType) {
    plain_and_causal(dtype, |[q, k, lse], options| {
        typed!(dtype, E => call(see, || resident_gradients::<E>([q, k, k], [q, lse], q, options, [16, 16])));
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
        typed!(dtype, E => call(see, || flash_attention_in_blocks::<E>(q, k, v, every, [16, 16])));
    });
}

fn gradients_with_every_option(see: See<'_>, dtype: DType) {
    with_every_option(dtype, |operands, lse, every| {
        let (q, results) = (operands[0], [operands[0], lse]);
        typed!(dtype, E => call(see, || gradients_in_blocks::<E>(operands, results, q, every, [[16; 2]; 2])));
        call(see, || sinks_gradient(results, q, every.sinks.expect("there are")));
    });
}

fn gradients_of_a_bias(see: See<'_>, dtype: DType) {
    with_every_option(dtype, |operands, lse, every| {
        let (q, results) = (operands[0], [operands[0], lse]);
        let options = Options { dropout: None, ..*every };
        typed!(dtype, E => call(see, || bias_gradient_in_blocks::<E>(operands, results, q, &options, [16, 16])));
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
        dropout: Some(Dropout { rate: 0.1, seed: 1.into() }),
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
