//! Products by cooperative matrices: shaders are valid, do not race, give the interpreter's numbers on an adapter that
//! emulates matrices, and are those of the profile `gpu` where a device has none.
use crate::validate::validate;
use pallas_kernels::attention_options::Operands;
use pallas_kernels::element::Floating;
use pallas_kernels::flash_attention::{Causal, Options, flash_attention_blocks};
use pallas_kernels::matmul::matmul_blocks;
use pallas_rt::__tests::audit_barriers;
use pallas_rt::Target;
use pallas_rt::launch::Explanation;
use pallas_rt::prelude::*;
use pallas_rt::shader::{CooperativeMatrices, Shader};

/// A device with matrices of these sizes.
fn with(half: Option<u32>, float: Option<u32>) -> Target {
    let matrices = CooperativeMatrices { half, float, lanes: 32 };
    Target { matrices: Some(matrices), workgroup_bytes: 32 << 10, ..Target::webgpu() }
}

/// The only kernel that `f` calls, and its shader.
fn shader<R>(target: &Target, multiples: u64, f: impl FnOnce() -> Result<R>) -> (Explanation, Shader) {
    let explanation = explain(f).expect("it is explained");
    assert_eq!(explanation.kernels.len(), 1);
    let shader = explanation.kernels[0].shader(target, multiples).expect("it has a shader");
    (explanation, shader)
}

#[cfg(feature = "gpu")]
mod emulated {
    use super::*;
    use crate::emulation::{agrees, run};
    use crate::support::{array, gpu, values};
    use pallas_kernels::matmul::{Layout, matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks};

    /// `[m, k]·[k, n]` of elements `E` in blocks, on the interpreter and on emulated matrices.
    fn product<E: pallas_rt::ir::dtype::Number, O: Elem>(
        [m, n, k]: [usize; 3],
        [bm, bn, bk]: [usize; 3],
        layout: Layout,
        (target, multiples): (&Target, u64),
        lanes: usize,
    ) {
        let Some(client) = gpu() else { return };
        let host = Client::interpreter();
        let of = |transposed: bool, [r, c]: [usize; 2], seed| {
            let shape = if transposed { [1, c, r] } else { [1, r, c] };
            array(&host, E::DTYPE, &shape, &values(r * c, seed))
        };
        let (a, b) = (of(layout.a_transposed, [m, k], 1), of(layout.b_transposed, [k, n], 2));
        let call = || match (layout.a_transposed, layout.b_transposed) {
            (false, false) => matmul_blocks::<E, O>(&a, &b, |x| x, bm, bn, bk),
            (true, false) => matmul_tn_blocks::<E, O>(&a, &b, |x| x, bm, bn, bk),
            (false, true) => matmul_nt_blocks::<E, O>(&a, &b, |x| x, bm, bn, bk),
            (true, true) => matmul_tt_blocks::<E, O>(&a, &b, |x| x, bm, bn, bk),
        };
        let (kernel, shader) = shader(target, multiples, call);
        assert!(shader.text.contains("coopMultiplyAdd"), "{}", shader.placement);
        let inputs = [("a", &a), ("b", &b)];
        let found = run(&client, &kernel, (&shader, lanes), &inputs, &[], &[("out", vec![1, m, n])]);
        let what = format!("{m}x{n}x{k} of {} {layout:?} for {target:?}\n{}", E::DTYPE, shader.placement);
        agrees(&found["out"], &call().expect("it runs"), k, 4.0, &what);
    }

    #[test]
    fn products_of_any_size_are_the_interpreters() {
        let plain = Layout::default();
        let (half, float) = (with(Some(16), None), with(None, Some(8)));
        product::<f16, f16>([33, 70, 41], [32, 32, 16], plain, (&half, 0), 32);
        product::<f16, f32>([64, 64, 64], [64, 64, 32], plain, (&half, 0), 32);
        product::<f16, f32>([5, 3, 1], [16, 16, 16], plain, (&half, 0), 32);
        product::<f16, f16>([20, 50, 50], [32, 32, 16], plain, (&with(Some(8), Some(8)), 0), 32);
        product::<f32, f32>([33, 25, 41], [32, 16, 8], plain, (&float, 0), 32);
        product::<bf16, f32>([20, 25, 17], [16, 16, 16], plain, (&float, 0), 32);
        // Rows of whole vectors.
        product::<f32, f32>([40, 24, 40], [32, 32, 8], plain, (&float, u64::MAX), 32);
        // Subgroups may turn out smaller than they may be: further ones do again what others do.
        product::<f16, f16>([33, 70, 41], [32, 32, 16], plain, (&half, 0), 8);
    }

    /// Attention of `s` queries over `l` keys, two heads of extent `d`.
    fn attention<E: Floating, const BQ: usize, const BK: usize>(
        [s, l, d]: [usize; 3],
        options: &Options<'_>,
        target: &Target,
    ) {
        let Some(client) = gpu() else { return };
        let host = Client::interpreter();
        let of = |n: usize, seed| array(&host, E::DTYPE, &[1, 2, n, d], &values(2 * n * d, seed));
        let (q, k, v) = (of(s, 1), of(l, 2), of(l, 3));
        let o = options.operands(&q, &k).expect("they fit");
        let call = || narrow_attention::<E, BQ, BK>([&q, &k, &v], &o);
        let (kernel, shader) = shader(target, 0, call);
        assert!(shader.text.contains("coopMultiplyAdd"), "{}", shader.placement);
        let spans = o.spans([BQ, BK]).expect("they fit");
        let inputs = [
            ("q", &q),
            ("k", &k),
            ("v", &v),
            ("lengths", &o.lengths),
            ("offsets", &o.offsets),
            ("seed", &o.seed),
            ("bias", &o.bias),
            ("query_segments", &o.segments[0]),
            ("key_segments", &o.segments[1]),
            ("query_spans", &spans[0]),
            ("key_spans", &spans[1]),
            ("sinks", &o.sinks),
        ];
        let outputs = [("out", vec![1, 2, s, d]), ("lse", vec![1, 2, s])];
        let params = [("scale", o.scale.to_bits())];
        let found = run(&client, &kernel, (&shader, 32), &inputs, &params, &outputs);
        let (out, lse) = call().expect("it runs");
        let what = format!("{s}x{l}x{d} of {} {:?}\n{}", E::DTYPE, o.rules, shader.placement);
        agrees(&found["out"], &out, l, 8.0, &what);
        agrees(&found["lse"], &lse, d, 16.0, &what);
    }

    #[test]
    fn attention_is_the_interpreters() {
        let causal = Options { causal: Causal::FromEnd, soft_cap: Some(3.0), ..Options::default() };
        let (half, float) = (with(Some(16), None), with(None, Some(8)));
        attention::<f16, 16, 16>([20, 37, 32], &Options::default(), &half);
        attention::<f16, 32, 32>([37, 45, 48], &causal, &half);
        attention::<f32, 16, 8>([20, 21, 24], &Options::default(), &float);
        attention::<bf16, 8, 16>([9, 21, 16], &causal, &float);
    }

    #[test]
    fn operands_as_they_lie() {
        let (half, float) = (with(Some(16), None), with(None, Some(8)));
        for (a_transposed, b_transposed) in [(false, true), (true, false), (true, true)] {
            let layout = Layout { a_transposed, b_transposed };
            product::<f16, f16>([33, 50, 41], [32, 32, 16], layout, (&half, 0), 32);
            product::<f32, f32>([17, 25, 12], [16, 32, 8], layout, (&float, 0), 32);
        }
    }
}

/// Attention whose products are of the operands as they are.
fn narrow_attention<E: Floating, const BQ: usize, const BK: usize>(
    [q, k, v]: [&Array; 3],
    o: &Operands,
) -> Result<(Array, Array)> {
    let Operands { lengths, offsets, seed, bias, segments: [own, theirs], sinks, scale, rules } = o;
    let [queries, keys] = &o.spans([BQ, BK])?;
    flash_attention_blocks::<E>(
        q, k, v, lengths, offsets, seed, bias, own, theirs, queries, keys, sinks, *scale, *rules, true, BQ, BK,
    )
}

#[test]
fn attention_by_matrices_is_valid_and_keeps_its_sums_in_registers() {
    fn check<E: Floating, const BQ: usize, const BK: usize>(target: &Target, d: usize) {
        let x = Client::cpu().zeros(&[1, 1, 256, d], E::DTYPE).expect("it fits");
        let o = Options { causal: Causal::FromStart, ..Options::default() }.operands(&x, &x).expect("they fit");
        let kernel = &explain(|| narrow_attention::<E, BQ, BK>([&x; 3], &o)).expect("it is explained").kernels[0];
        let (shader, found) = audit_barriers(&kernel.lowered, kernel.sequential, target, 0).expect("it has a shader");
        validate(&shader.text);
        assert_eq!((found.races, found.idle), (vec![], vec![]), "{}", shader.placement);
        let step = shader.placement.step;
        assert!(step.fragments > 0.0 && step.barriers <= 7.0, "{}", shader.placement);
        let tiles = &shader.placement.tiles;
        assert!(tiles.iter().all(|t| !t.home.contains("global")), "{}", shader.placement);
        let dots = tiles.iter().filter(|t| t.name.contains("dot"));
        assert!(dots.clone().all(|t| t.home.contains("matrices")) && dots.count() > 1, "{}", shader.placement);
    }
    let roomy = |target| Target { workgroup_bytes: 48 << 10, ..target };
    let (half, float) = (roomy(with(Some(16), None)), roomy(with(None, Some(8))));
    check::<f16, 64, 32>(&half, 64);
    check::<f16, 32, 32>(&half, 128);
    check::<f16, 32, 16>(&with(Some(16), None), 64);
    check::<f32, 32, 16>(&float, 64);
    check::<bf16, 32, 16>(&float, 64);
}

/// Products of fragments and barriers of a step, words of workgroup memory a multiply-add takes.
#[test]
fn a_matrix_product_takes_few_words_and_barriers() {
    let zeros = |dtype| Client::cpu().zeros(&[1, 256, 256], dtype).expect("it fits");
    let check = |x: &Array,
                 call: &dyn Fn(&Array) -> Result<Array>,
                 (target, multiples): (&Target, u64),
                 products: f64,
                 words: f64| {
        let (_, shader) = shader(target, multiples, || call(x));
        let step = shader.placement.step;
        assert!(step.barriers <= 2.0, "{}", shader.placement);
        let subgroups = f64::from(shader.threads) / 32.0;
        assert_eq!(step.fragments * subgroups, products, "{}", shader.placement);
        assert!(step.product_words <= words * step.fma, "{}", shader.placement);
        let text = shader.placement.to_string();
        assert!(text.starts_with("profile gpu_coop") && text.contains("products of matrices"), "{text}");
        // The sums stay accumulators until the last step.
        let sums = shader.placement.tiles.iter().filter(|t| t.name.contains("carried") && t.ty == "f32[64,64]");
        assert!(sums.clone().count() > 0, "{text}");
        assert!(sums.clone().all(|t| t.home.contains("matrices") && !t.home.contains("copy")), "{text}");
    };
    let half = |x: &Array| matmul_blocks::<f16, f16>(x, x, |x| x, 64, 64, 32);
    check(&zeros(DType::F16), &half, (&with(Some(16), None), 0), 32.0, 0.1);
    let float = |x: &Array| matmul_blocks::<f32, f32>(x, x, |x| x, 64, 64, 16);
    for multiples in [0, u64::MAX] {
        check(&zeros(DType::F32), &float, (&with(None, Some(8)), multiples), 128.0, 0.15);
    }
}

#[test]
fn without_matrices_the_shader_is_that_of_a_gpu() {
    let zeros = |dtype| Client::cpu().zeros(&[1, 40, 40], dtype).expect("it fits");
    let check = |target: Target, f: &dyn Fn() -> Result<Array>| {
        let (_, coop) = shader(&target, 0, f);
        let (_, plain) = shader(&Target { matrices: None, ..target }, 0, f);
        assert_eq!(coop.text, plain.text);
        assert!(coop.placement.to_string().contains("no product by matrices"), "{}", coop.placement);
    };
    let none = with(None, None);
    let [single, half, brain] = [DType::F32, DType::F16, DType::Bf16].map(zeros);
    check(none, &|| matmul_blocks::<f16, f16>(&half, &half, |x| x, 32, 32, 16));
    // f32 does not become f16, nor does bf16; extents that are no multiples; no room for the results.
    let halves = with(Some(16), None);
    check(halves, &|| matmul_blocks::<f32, f32>(&single, &single, |x| x, 32, 32, 16));
    check(halves, &|| matmul_blocks::<bf16, f32>(&brain, &brain, |x| x, 32, 32, 16));
    check(halves, &|| matmul_blocks::<f16, f16>(&half, &half, |x| x, 32, 32, 8));
    check(halves, &|| matmul_blocks::<f16, f16>(&half, &half, |x| x, 24, 32, 16));
    let little = Target { workgroup_bytes: 4 << 10, ..halves };
    check(little, &|| matmul_blocks::<f16, f16>(&half, &half, |x| x, 32, 32, 16));
}
