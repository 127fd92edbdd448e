//! Tangents of the shipped kernels, which no rule states: they are slopes of the kernels, on the interpreter and the CPU.
//!
//! For operands x and a direction u, with h = 2⁻¹⁷ in float64, `(f(x + h·u) - f(x - h·u)) / 2h` is compared with the tangent of
//! each result; see [`super::slopes`] for the bound. Kernels that take f32 alone are compared with h = 2⁻⁸: the difference
//! leaves out 1e-5 of the third derivative, and rounding of f32 over 2h is some 1e-5 of the result.
use super::B;
use super::embedding::{numbers, places};
use super::norm::EPSILON;
use crate::support::{array, doubles, values};
use pallas_kernels::attention_scores::flash_attention_delta;
use pallas_kernels::cross_entropy::{
    cross_entropy_blocks, cross_entropy_dw, cross_entropy_dx, cross_entropy_lse, cross_entropy_of_logits_blocks,
    cross_entropy_of_logits_dz,
};
use pallas_kernels::decode_attention::{self, decode_attention_with_lse};
use pallas_kernels::embedding::{embedding_backward_blocks, embedding_blocks};
use pallas_kernels::flash_attention::{Causal, Dropout, Options, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_bias::{bias_gradient_in_blocks, sinks_gradient_in};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::gated::{Gate, gated, gated_backward_blocks, gated_blocks};
use pallas_kernels::matmul::{matmul_blocks, matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks};
use pallas_kernels::norm::{layer_norm_whole_rows, normalise, rms_norm_whole_rows, row_moment};
use pallas_kernels::norm_backward::{
    norm_backward_apply, norm_backward_means, norm_backward_parameters, norm_backward_parts, norm_backward_sums,
    norm_backward_whole_rows,
};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::paged_cache::{paged_append, paged_append_quantised};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_kernels::rotary::{rotary_blocks, tables};
use pallas_kernels::softmax::{softmax, softmax_apply, softmax_statistics, softmax_whole_rows};
use pallas_kernels::softmax_backward::{softmax_backward_apply, softmax_backward_sums, softmax_backward_whole_rows};
use pallas_kernels::splash_attention::{self, attention_in_blocks, gradients_in_blocks as splash_gradients};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use pallas_rt::{grad, hessian, jit, jvp};

type F = fn(&Vec<Array>) -> Result<Vec<Array>>;

/// An operand: a float of this shape, or whole numbers.
#[derive(Clone)]
enum Given {
    Floats(&'static [usize]),
    Whole(Vec<i32>, &'static [usize]),
}
use Given::{Floats, Whole};

/// That the tangents of `f`, whose floats have this type, are its slopes.
fn check(what: &str, dtype: DType, given: &[Given], f: F) {
    let (step, bound) = if dtype == DType::F64 { (1.0 / 131_072.0, 1e-8) } else { (1.0 / 256.0, 1e-3) };
    let mut of_interpreter: Option<Vec<Vec<f64>>> = None;
    for client in [Client::interpreter(), Client::cpu()] {
        let float = |i: usize, shape: &[usize], seed: usize, by: f64| {
            let n = shape.iter().product();
            let moved: Vec<f64> = values(n, i).into_iter().zip(values(n, 40 + i)).map(|(x, u)| x + by * u).collect();
            let along: Vec<f64> = values(n, 40 + i);
            array(&client, dtype, shape, if seed == 0 { &moved } else { &along })
        };
        let at = |by: f64, direction: usize| -> Vec<Array> {
            let one = |(i, given): (usize, &Given)| match given {
                Floats(shape) => float(i + 1, shape, direction, by),
                Whole(..) if direction == 1 => client.zeros(&[0], DType::I32).expect("it fits"),
                Whole(numbers, shape) => client.array(numbers, shape).expect("it fits"),
            };
            given.iter().enumerate().map(one).collect()
        };
        let run = |x: &Vec<Array>| f(x).unwrap_or_else(|e| panic!("{what}: {e}"));
        let x = at(0.0, 0);
        // Whole numbers have no tangents: the function captures them.
        let floats = |all: &[Array]| all.iter().filter(|x| x.dtype().is_float()).cloned().collect::<Vec<_>>();
        let (primals, direction) = ((floats(&x),), (floats(&at(0.0, 1)),));
        let given_x = x.clone();
        let along = jit(jvp(move |floats: &Vec<Array>| {
            let mut floats = floats.iter().cloned();
            let one = |x: &Array| if x.dtype().is_float() { floats.next().expect("as many") } else { x.clone() };
            f(&given_x.iter().map(one).collect())
        }));
        let (y, dy) = along(&primals, &direction).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (want, ends) = (run(&x), [run(&at(step, 0)), run(&at(-step, 0))]);
        assert_eq!((y.len(), dy.len()), (want.len(), want.len()), "{what}");
        let mut tangents = vec![];
        for i in (0..y.len()).filter(|&i| y[i].dtype().is_float()) {
            let tolerance = if y[i].dtype() == DType::F64 { 1e-13 } else { 1e-5 };
            for (found, want) in doubles(&y[i]).iter().zip(doubles(&want[i])) {
                assert!((found - want).abs() <= tolerance * (1.0 + want.abs()), "{what}: {found}, not {want}");
            }
            let found = doubles(&dy[i]);
            for (j, found) in found.iter().enumerate() {
                let slope = (doubles(&ends[0][i])[j] - doubles(&ends[1][i])[j]) / (2.0 * step);
                let error = (found - slope).abs();
                assert!(error <= bound * (1.0 + slope.abs()), "{what}, result {i}, {j}: {found}, its slope is {slope}");
            }
            assert!(found.iter().any(|&d| d != 0.0) || found.is_empty(), "{what}, result {i} has no tangent");
            tangents.push(found);
        }
        match &of_interpreter {
            None => of_interpreter = Some(tangents),
            Some(other) => {
                let tolerance = if dtype == DType::F64 { 1e-11 } else { 1e-4 };
                for (cpu, interpreter) in tangents.iter().flatten().zip(other.iter().flatten()) {
                    let error = (cpu - interpreter).abs();
                    assert!(error <= tolerance * (1.0 + cpu.abs()), "{what}: {cpu}, the interpreter {interpreter}");
                }
            }
        }
    }
}

fn three<T>((a, b, c): (T, T, T)) -> Vec<T> {
    vec![a, b, c]
}
fn two<T>((a, b): (T, T)) -> Vec<T> {
    vec![a, b]
}

#[test]
fn of_rows() {
    let f64 = DType::F64;
    check("softmax", f64, &[Floats(&[5, 6])], |x| Ok(vec![softmax_whole_rows::<f64>(&x[0], false, B)?]));
    check("log softmax", f64, &[Floats(&[5, 6])], |x| {
        let (max, sum) = softmax_statistics::<f64>(&x[0], B, B)?;
        Ok(vec![softmax_apply::<f64>(&x[0], &max, &sum, true, B, B)?])
    });
    check("softmax backward", f64, &[Floats(&[5, 6]), Floats(&[5, 6])], |x| {
        let sums = softmax_backward_sums::<f64>(&x[0], &x[1], false, B, B)?;
        Ok(vec![
            softmax_backward_whole_rows::<f64>(&x[0], &x[1], true, B)?,
            softmax_backward_apply::<f64>(&x[0], &x[1], &sums, false, B, B)?,
        ])
    });
    let norm = [Floats(&[5, 6]), Floats(&[1, 6]), Floats(&[1, 6])];
    check("norms of whole rows", f64, &norm, |x| {
        Ok(vec![
            layer_norm_whole_rows::<f64>(&x[0], &x[1], &x[2], EPSILON, B)?,
            rms_norm_whole_rows::<f64>(&x[0], &x[1], EPSILON, B)?,
        ])
    });
    check("norms in blocks", f64, &norm, |x| {
        let mean = row_moment::<f64>(&x[0], &x[0].client().zeros(&[5, 1], DType::F64)?, 1, B, B)?;
        let variance = row_moment::<f64>(&x[0], &mean, 2, B, B)?;
        Ok(vec![normalise::<f64>(&x[0], &mean, &variance, &x[1], &x[2], EPSILON, B, B)?])
    });
    let back = [Floats(&[5, 6]), Floats(&[1, 6]), Floats(&[5, 6])];
    check("gradients of norms of whole rows", f64, &back, |x| {
        let (dx, dgammas, dbetas) = norm_backward_parts::<f64>(&x[0], &x[1], &x[2], EPSILON, true, 1, 2, B)?;
        let (dgamma, dbeta) = norm_backward_sums::<f64>(&dgammas, &dbetas, 1, B)?;
        let whole = norm_backward_whole_rows::<f64>(&x[0], &x[1], &x[2], EPSILON, false, B)?;
        Ok(vec![dx, dgamma, dbeta, whole.0, whole.2])
    });
    check("gradients of norms in blocks", f64, &back, |x| {
        let (_, mean, variance) = norm_backward_whole_rows::<f64>(&x[0], &x[1], &x[2], EPSILON, true, B)?;
        let (level, along) = norm_backward_means::<f64>(&x[0], &x[1], &x[2], &mean, &variance, EPSILON, B, B)?;
        let dx = norm_backward_apply::<f64>(&x[0], &x[1], &x[2], &mean, &variance, &level, &along, EPSILON, B, B)?;
        let (dgamma, dbeta) = norm_backward_parameters::<f64>(&x[0], &x[2], &mean, &variance, EPSILON, B, B)?;
        Ok(vec![dx, dgamma, dbeta])
    });
}

#[test]
fn of_gates_rotations_and_products() {
    let f64 = DType::F64;
    check("gates", f64, &[Floats(&[9]), Floats(&[9])], |x| {
        Ok(vec![gated_blocks::<f64>(&x[0], &x[1], true, B)?, gated_blocks::<f64>(&x[0], &x[1], false, B)?])
    });
    check("gradients of gates", f64, &[Floats(&[9]), Floats(&[9]), Floats(&[9])], |x| {
        Ok([true, false]
            .into_iter()
            .map(|gelu| gated_backward_blocks::<f64>(&x[0], &x[1], &x[2], gelu, B).map(two))
            .collect::<Result<Vec<_>>>()?
            .concat())
    });
    check("rotary", f64, &[Floats(&[2, 6, 6])], |x| {
        let (cos, sin) = tables(x[0].client(), 3, 6, 6, 100.0)?;
        Ok(vec![
            rotary_blocks::<f64>(&x[0], &cos, &sin, true, false, 1, B)?,
            rotary_blocks::<f64>(&x[0], &cos, &sin, false, true, 2, B)?,
        ])
    });
    check("products", f64, &[Floats(&[2, 5, 7]), Floats(&[2, 7, 6])], |x| {
        Ok(vec![matmul_blocks::<f64, f64>(&x[0], &x[1], |acc| acc.tanh(), B, B, B)?])
    });
    check("products of transposed", f64, &[Floats(&[2, 6, 6]), Floats(&[2, 6, 6])], |x| {
        Ok(vec![
            matmul_tn_blocks::<f64, f64>(&x[0], &x[1], |acc| acc, B, B, B)?,
            matmul_nt_blocks::<f64, f64>(&x[0], &x[1], |acc| acc, B, B, B)?,
            matmul_tt_blocks::<f64, f64>(&x[0], &x[1], |acc| acc, B, B, B)?,
        ])
    });
    for (bits, f) in [
        (Bits::Eight, (|x| quantized(x, Bits::Eight, None)) as F),
        (Bits::Four, |x| quantized(x, Bits::Four, Some(16))),
    ] {
        check(&format!("weights of {bits:?} bits"), DType::F32, &[Floats(&[3, 32])], f);
    }
}

/// A product with quantised weights, by x and by their scales.
fn quantized(x: &[Array], bits: Bits, group: Option<usize>) -> Result<Vec<Array>> {
    let w = array(x[0].client(), DType::F32, &[32, 6], &values(192, 5));
    let w = quantize(&w, bits, group)?;
    let scales = &w.scales * (x[0].sum(..) * 0.0625).exp();
    quantized_matmul(&x[0], &Quantized { scales, ..w }).map(|y| vec![y])
}

#[test]
fn of_losses_and_embeddings() {
    let labels = || Whole(vec![0, 3, 2, 5, 3], &[5, 1]);
    let by_features = [Floats(&[5, 7]), Floats(&[6, 7]), labels(), Floats(&[5, 1])];
    check("cross-entropy", DType::F64, &by_features, |x| {
        let (loss, lse) = cross_entropy_blocks::<f64>(&x[0], &x[1], &x[2], 2, 0.1, 0.01, true, B, 8, B, B)?;
        let dx = cross_entropy_dx::<f64>(&x[0], &x[1], &x[2], &lse, &x[3], 2, 0.1, 0.01, B, 8, B, B)?;
        let dw = cross_entropy_dw::<f64>(&x[0], &x[1], &x[2], &lse, &x[3], 2, 0.1, 0.01, B, 8, B, B)?;
        Ok(vec![loss, lse, dx, dw])
    });
    check("cross-entropy of logits", DType::F64, &[Floats(&[5, 6]), labels(), Floats(&[5, 1])], |x| {
        let (loss, lse) = cross_entropy_of_logits_blocks::<f64>(&x[0], &x[1], 2, 0.0, 0.01, false, false, B, B)?;
        let dz = cross_entropy_of_logits_dz::<f64>(&x[0], &x[1], &lse, &x[2], 2, 0.0, 0.01, B, B)?;
        Ok(vec![loss, dz])
    });
    check("log-sum-exp", DType::F32, &[Floats(&[5])], |x| Ok(vec![cross_entropy_lse(&x[0])?]));
    let [n, v] = [9, 5];
    let rows = [Floats(&[5, 6]), Floats(&[9, 6]), Whole(numbers(n, v), &[9])];
    check("embedding", DType::F64, &rows, |x| {
        let (starts, order) = places(x[0].client(), &numbers(9, 5), 5);
        let sums = embedding_backward_blocks::<f64, B>(&starts, &order, &x[1], 5, 16)?;
        Ok(vec![embedding_blocks::<f64, B>(&x[2], &x[0])?, sums])
    });
}

/// Attention with all its options.
fn options<'a>(x: &'a [Array]) -> Options<'a> {
    Options {
        causal: Causal::FromEnd,
        soft_cap: Some(1.5),
        bias: Some(&x[3]),
        sinks: Some(&x[4]),
        dropout: Some(Dropout { rate: 0.25, seed: 7.into() }),
        ..Options::default()
    }
}

#[test]
fn of_attention() {
    let operands = || {
        let shapes: [&[usize]; 5] = [&[1, 2, 6, 3], &[1, 1, 7, 3], &[1, 1, 7, 3], &[1, 2, 6, 7], &[2]];
        shapes.map(Floats).to_vec()
    };
    check("flash attention", DType::F64, &operands(), |x| {
        flash_attention_in_blocks::<f64>(&x[0], &x[1], &x[2], &options(x), [B, B]).map(two)
    });
    check("plain flash attention", DType::F64, &operands()[..3], |x| {
        flash_attention_in_blocks::<f64>(&x[0], &x[1], &x[2], &Options::default(), [B, B]).map(two)
    });
    let mut back = operands();
    back.push(Floats(&[1, 2, 6, 3]));
    check("gradients of flash attention", DType::F64, &back, |x| {
        let (operands, options) = ([&x[0], &x[1], &x[2]], options(x));
        let (out, lse) = flash_attention_in_blocks::<f64>(&x[0], &x[1], &x[2], &options, [B, B])?;
        let mut all = three(gradients_in_blocks::<f64>(operands, [&out, &lse], &x[5], &options, [[B; 2]; 2])?);
        all.extend(three(resident_gradients::<f64>(operands, [&out, &lse], &x[5], &options, [B, B])?));
        all.push(bias_gradient_in_blocks::<f64>(operands, [&out, &lse], &x[5], &options, [B, B])?);
        all.push(sinks_gradient_in::<f64>([&out, &lse], &x[5], &x[4])?);
        all.push(flash_attention_delta::<f64>(&out, &x[5], &lse, true, B)?);
        Ok(all)
    });
    let splash = [Floats(&[1, 2, 9, 3]), Floats(&[1, 1, 11, 3]), Floats(&[1, 1, 11, 3]), Floats(&[1, 2, 9, 3])];
    check("splash attention", DType::F64, &splash, |x| {
        let heads = [Mask::causal(), Mask::dense(9, 11, |i, j| (i * 5 + j * 3) % 7 < 3)];
        let info = MaskInfo::in_blocks(x[0].client(), &heads, [9, 11], [B, B])?;
        let options = splash_attention::Options { scale: Some(0.5), soft_cap: Some(1.5) };
        let (out, lse) = attention_in_blocks::<f64, B, B>(&x[0], &x[1], &x[2], &info, &options)?;
        let operands = [&x[0], &x[1], &x[2]];
        let mut all = three(splash_gradients::<f64, B, B>(operands, [&out, &lse], &x[3], &info, &options)?);
        all.push(out);
        Ok(all)
    });
}

#[test]
fn of_attention_over_caches() {
    check("decoding", DType::F32, &[Floats(&[2, 4, 1, 8]), Floats(&[2, 2, 40, 8]), Floats(&[2, 2, 40, 8])], |x| {
        let options =
            decode_attention::Options { splits: Some(2), soft_cap: Some(1.5), ..decode_attention::Options::default() };
        decode_attention_with_lse(&x[0], &x[1], &x[2], &options).map(two)
    });
    fn attend(x: &[Array]) -> Result<Vec<Array>> {
        let cache = PagedCache { k: x[1].clone(), v: x[2].clone(), scales: None };
        let requests = Requests { tables: &[0, 2, 1, 3], lengths: &[3, 4], starts: &[0, 1, 3] };
        let batch = Batch::new(&cache, 2, requests, BatchOptions::default())?;
        batch.attend_with_lse(&x[0], &cache, &paged_attention::Options::default()).map(two)
    }
    let pages = [Floats(&[3, 2, 4]), Floats(&[4, 1, 2, 4]), Floats(&[4, 1, 2, 4])];
    check("pages", DType::F32, &pages, |x| attend(x));
    // Rows that are written keep what was there elsewhere.
    let append = [Floats(&[4, 1, 2, 4]), Floats(&[4, 1, 2, 4]), Floats(&[3, 1, 4]), Floats(&[3, 1, 4])];
    check("writing into pages", DType::F64, &append, |x| {
        let slots = x[0].client().array(&[2i32, 1, 0, 0, 3, 1], &[3, 2])?;
        let [new_k, new_v, k, v] = [2, 3, 0, 1].map(|i: usize| x[i].cast(DType::F32));
        paged_append::<f32, f32>(&new_k, &new_v, &slots, &k, &v)
            .map(|(k, v)| vec![k.cast(DType::F64), v.cast(DType::F64)])
    });
    check("writing quantised rows", DType::F32, &[Floats(&[3, 1, 4]), Floats(&[4, 1, 2])], |x| {
        let slots = x[0].client().array(&[2i32, 1, 0, 0, 3, 1], &[3, 2])?;
        let pages = x[0].client().zeros(&[4, 1, 2, 4], DType::I8)?;
        paged_append_quantised::<f32>(&x[0], &slots, &pages, &x[1]).map(|(_, scales)| vec![scales])
    });
}

/// Functions that state their gradients have tangents as well: those of the kernels, and of the kernels of the gradients.
#[test]
fn of_functions_that_state_gradients() {
    check("functions", DType::F32, &[Floats(&[3, 5]), Floats(&[3, 5])], |x| {
        let y = gated(&x[0], &x[1], Gate::Silu)?;
        Ok(vec![softmax(&(&y * 2.0))?, y])
    });
    // Forward over reverse: f = Σ w·softmax(x) has a Hessian, although the kernel of its gradient states none.
    fn loss(x: &Array) -> Result<Array> {
        softmax(x).map(|y| (&y * &y).sum(..))
    }
    let x = Client::cpu().array(&[0.5f32, -0.25, 1.0], &[1, 3]).expect("it fits");
    let plain = hessian(|x: &Array| {
        let y = x.softmax(-1);
        (&y * &y).sum(..)
    });
    let [found, want] = [jit(hessian(loss))(&x), jit(plain)(&x)].map(|h| doubles(&h.unwrap_or_else(|e| panic!("{e}"))));
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() < 1e-6, "{found}, not {want}");
    }
    let refused = grad(|x: &Array| jvp(loss)(&(x.clone(),), &(x.clone(),)).map(|(_, dy)| dy))(&x);
    let error = refused.expect_err("a tangent has no gradient").to_string();
    assert!(error.contains("the gradient of kernel `softmax_whole_rows_jvp`"), "{error}");
}
