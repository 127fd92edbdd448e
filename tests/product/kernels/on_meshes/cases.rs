//! Calls of shipped kernels that the texts for other compilers do not have.
use super::super::{Function, inlined, inlined::array};
use pallas_kernels::attention_scores::{Causal, segment_spans};
use pallas_kernels::cross_entropy::{self, cross_entropy, cross_entropy_backward, cross_entropy_of_logits_backward};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::{embedding_backward, embedding_backward_blocks, embedding_blocks};
use pallas_kernels::flash_attention::{Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::flash_attention_bias::{bias_gradient, sinks_gradient};
use pallas_kernels::flash_attention_resident::{resident_gradients, resident_gradients_with_bias};
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks};
use pallas_kernels::norm::layer_norm;
use pallas_kernels::norm_backward::{layer_norm_backward, norm_backward_sums, norm_backward_whole_rows};
use pallas_kernels::paged_attention::{self, paged_attention};
use pallas_kernels::paged_cache::{PagedCache, paged_append, paged_append_quantised};
use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
use pallas_kernels::softmax_backward::softmax_backward;
use pallas_kernels::splash_attention::{self, splash_attention, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use std::sync::Arc;

/// A case: its name, its arguments and the function of them.
type Case = (&'static str, Vec<Array>, fn(&Vec<Array>) -> Result<Vec<Array>>);

fn integers(x: &[i32], shape: &[usize]) -> Array {
    Client::cpu().array(x, shape).expect("it fits")
}

/// Attention with a bias, sinks and segments, and its gradients by all operands.
fn optional(x: &[Array]) -> Result<Vec<Array>> {
    let segments = integers(&[0, 0, 0, 1, 1, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1, 2, 2], &[2, 9]);
    let options = Options {
        causal: Causal::FromStart,
        segments: Some([&segments, &segments]),
        bias: Some(&x[2]),
        sinks: Some(&x[3]),
        ..Options::default()
    };
    let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[1], &options)?;
    let dbias = bias_gradient([&x[0], &x[1], &x[1]], [&out, &lse], &x[0], &options)?;
    let dsinks = sinks_gradient([&out, &lse], &x[0], &x[3])?;
    Ok(vec![out, dbias, dsinks])
}

fn quantised(x: &[Array], bits: Bits, group: Option<usize>) -> Result<Vec<Array>> {
    Ok(vec![quantized_matmul(&x[0], &quantize(&array(&[64, 48], 2), bits, group)?)?])
}

/// Losses and their gradients; of bf16, whose sums are rounded by a kernel of their own.
fn losses(x: &[Array]) -> Result<Vec<Array>> {
    let labels = integers(&(0..11).map(|i| i * 7 % 37).collect::<Vec<_>>(), &[11]);
    let options = cross_entropy::Options::default();
    let mut all = vec![];
    for dtype in [DType::F32, DType::Bf16] {
        let [x, w] = [0, 1].map(|i| x[i].cast(dtype));
        let (loss, lse) = cross_entropy(&x, &w, &labels, &options)?;
        let (dx, dw) = cross_entropy_backward(&x, &w, &labels, &lse, &loss, &options)?;
        all.extend([loss, lse, dx, dw].map(|x| x.cast(DType::F32)));
    }
    Ok(all)
}

/// Those that have texts, and the others.
pub(super) fn all() -> Vec<Function> {
    let function = |(name, operands, f): Case| {
        let call = Arc::new(move |x: &[Array]| f(&x.to_vec()));
        Function { name: name.to_string(), operands, call }
    };
    inlined::cases().into_iter().chain(more().into_iter().map(function)).collect()
}

fn more() -> Vec<Case> {
    vec![
        ("quantized-matmul-4", vec![array(&[37, 64], 1)], |x| quantised(x, Bits::Four, Some(32))),
        ("quantized-matmul-8", vec![array(&[37, 64], 1)], |x| quantised(x, Bits::Eight, None)),
        // A kernel on meshes alone.
        ("embedding-backward", vec![array(&[12, 7], 1)], |x| {
            let ids = integers(&[0, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0], &[12]);
            Ok(vec![embedding_backward(&x[0], &ids, 11, Some(3))?])
        }),
        // Results in the memory of operands.
        (
            "paged-append",
            vec![array(&[3, 4, 8], 1), array(&[3, 4, 8], 2), array(&[5, 4, 2, 8], 3), array(&[5, 4, 2, 8], 4)],
            |x| {
                let slots = integers(&[4, 1, 0, 0, 2, 1], &[3, 2]);
                let (k, v) = paged_append::<f32, f32>(&x[0], &x[1], &slots, &x[2], &x[3])?;
                Ok(vec![k, v])
            },
        ),
        ("attention-of-groups", vec![array(&[2, 6, 9, 8], 1), array(&[2, 3, 12, 8], 2)], |x| {
            let options = Options { causal: Causal::FromEnd, ..Options::default() };
            Ok(vec![flash_attention(&x[0], &x[1], &x[1], &options)?])
        }),
        ("decode-attention-of-batches", vec![array(&[4, 2, 1, 16], 1), array(&[4, 2, 150, 16], 2)], |x| {
            Ok(vec![decode_attention(&x[0], &x[1], &x[1], &decode_attention::Options::default())?])
        }),
        ("splash-attention-of-batches", vec![array(&[4, 2, 70, 16], 1)], |x| {
            let mask = MaskInfo::new(&Client::cpu(), &[Mask::causal(), Mask::causal()], [70, 70])?;
            let options = splash_attention::Options::default();
            Ok(vec![splash_attention(&x[0], &x[0], &x[0], &mask, &options)?])
        }),
        ("attention-of-heads", vec![array(&[2, 6, 9, 8], 1), array(&[2, 6, 12, 8], 2)], |x| {
            Ok(vec![flash_attention(&x[0], &x[1], &x[1], &Options::default())?])
        }),
        (
            "attention-with-options",
            vec![array(&[2, 4, 9, 8], 1), array(&[2, 4, 9, 8], 2), array(&[2, 4, 9, 9], 3), array(&[4], 4)],
            |x| optional(x),
        ),
        ("splash-attention-backward", [1, 2, 3].map(|seed| array(&[2, 2, 70, 16], seed)).to_vec(), |x| {
            let mask = MaskInfo::new(&Client::cpu(), &[Mask::causal(), Mask::causal()], [70, 70])?;
            let (options, operands) = (splash_attention::Options::default(), [&x[0], &x[1], &x[2]]);
            let (out, lse) = splash_attention_with_lse(&x[0], &x[1], &x[2], &mask, &options)?;
            Ok(<[Array; 3]>::from(splash_attention_backward(operands, [&out, &lse], &x[0], &mask, &options)?).into())
        }),
        ("paged-attention", vec![array(&[4, 4, 8], 1), array(&[5, 2, 4, 8], 2), array(&[5, 2, 4, 8], 3)], |x| {
            let cache = PagedCache { k: x[1].clone(), v: x[2].clone(), scales: None };
            let (tables, lengths) = (integers(&[0, 1, 4, 2, 1, 0, 3, 4], &[4, 2]), integers(&[7, 5, 1, 8], &[4]));
            Ok(vec![paged_attention(&x[0], &cache, &tables, &lengths, &paged_attention::Options::default())?])
        }),
        ("paged-append-quantised", vec![array(&[3, 4, 8], 1), array(&[5, 4, 2], 2)], |x| {
            let slots = integers(&[4, 1, 0, 0, 2, 1], &[3, 2]);
            let numbers = Client::cpu().full(&[5, 4, 2, 8], 3i8)?;
            let (ints, scales) = paged_append_quantised::<f32>(&x[0], &slots, &numbers, &x[1])?;
            Ok(vec![ints.cast(DType::F32), scales])
        }),
        // Rows that devices divide evenly: the kernels have arrays of one axis.
        ("gated-of-even-rows", [1, 2, 3].map(|seed| array(&[48, 70], seed)).to_vec(), |x| {
            let (dgate, dup) = gated_backward(&x[0], &x[1], &x[2], Gate::Silu)?;
            Ok(vec![gated(&x[0], &x[1], Gate::Silu)?, dgate, dup])
        }),
        ("transposed-products", vec![array(&[2, 7, 9], 1), array(&[2, 7, 6], 2), array(&[2, 6, 7], 3)], |x| {
            let same = |x: Tile<f32>| x;
            let tn = matmul_tn_blocks::<f32, f32>(&x[0], &x[1], same, 4, 4, 2)?;
            Ok(vec![tn, matmul_tt_blocks::<f32, f32>(&x[0], &x[2], same, 2, 4, 4)?])
        }),
        ("softmax-backward-long", [1, 2].map(|seed| array(&[3, 9000], seed)).to_vec(), |x| {
            Ok(vec![softmax_backward(&(x[0].square() * 1e-3), &x[1])?])
        }),
        ("layer-norm-long", vec![array(&[9, 5000], 1), array(&[5000], 2), array(&[9, 5000], 3)], |x| {
            let y = layer_norm(&x[0], &x[1], &x[1], 1e-5)?;
            Ok([vec![y], <[Array; 3]>::from(layer_norm_backward(&x[0], &x[1], &x[2], 1e-5)?).into()].concat())
        }),
        ("norm-backward-of-whole-rows", vec![array(&[9, 6], 1), array(&[1, 6], 2), array(&[9, 6], 3)], |x| {
            Ok(<[Array; 3]>::from(norm_backward_whole_rows::<f32>(&x[0], &x[1], &x[2], 1e-5, true, 2)?).into())
        }),
        ("cross-entropy-of-classes", vec![array(&[11, 6], 1), array(&[37, 6], 2)], |x| losses(x)),
        ("cross-entropy-of-logits-backward", vec![array(&[11, 37], 1), array(&[11], 2)], |x| {
            let labels = integers(&(0..11).map(|i| i * 7 % 37).collect::<Vec<_>>(), &[11]);
            let options = cross_entropy::Options::default();
            Ok(vec![cross_entropy_of_logits_backward(&x[0], &labels, &x[1], &x[1], &options)?])
        }),
        ("product-with-rows", vec![array(&[2, 7, 9], 1), array(&[2, 6, 9], 2)], |x| {
            Ok(vec![matmul_nt_blocks::<f32, f32>(&x[0], &x[1], |x: Tile<f32>| x, 4, 4, 2)?])
        }),
        ("sums-of-parameters", [1, 2].map(|seed| array(&[4, 300], seed)).to_vec(), |x| {
            let (dgamma, dbeta) = norm_backward_sums::<f32>(&x[0], &x[1], 4, 64)?;
            Ok(vec![dgamma, dbeta])
        }),
        ("segment-spans", vec![array(&[5, 21], 1)], |x| {
            let numbers = (&x[0] * 9.0).cast(DType::I32);
            Ok(vec![segment_spans(&numbers, 4, 6)?.cast(DType::F32)])
        }),
        ("resident-gradients", [1, 2, 3].map(|seed| array(&[4, 2, 11, 4], seed)).to_vec(), |x| {
            let options = Options { causal: Causal::FromStart, ..Options::default() };
            let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[2], &options)?;
            let operands = [&x[0], &x[1], &x[2]];
            Ok(<[Array; 3]>::from(resident_gradients::<f32>(operands, [&out, &lse], &x[0], &options, [4, 4])?).into())
        }),
        (
            "gradients-with-bias",
            vec![array(&[4, 2, 11, 4], 1), array(&[4, 2, 11, 4], 2), array(&[4, 2, 11, 11], 3)],
            |x| {
                let options = Options { bias: Some(&x[2]), ..Options::default() };
                let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[1], &options)?;
                let (operands, results) = ([&x[0], &x[1], &x[1]], [&out, &lse]);
                let all = resident_gradients_with_bias::<f32>(operands, results, &x[0], &options, [4, 4])?;
                Ok(<[Array; 4]>::from(all).into())
            },
        ),
        ("gradients-of-whole-heads", [1, 2, 3].map(|seed| array(&[4, 2, 11, 4], seed)).to_vec(), |x| {
            let options = Options { causal: Causal::FromStart, ..Options::default() };
            let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[2], &options)?;
            let operands = [&x[0], &x[1], &x[2]];
            Ok(<[Array; 3]>::from(flash_attention_backward(operands, [&out, &lse], &x[0], &options)?).into())
        }),
        ("embedding-by-rows", vec![array(&[11, 70], 1), array(&[5, 70], 2)], |x| {
            let (ids, starts, order) = (integers(&[3, 10, 0, 3, 7], &[5]), [0, 2, 2, 5], [4, 1, 0, 2, 3]);
            let (starts, order) = (integers(&starts, &[4]), integers(&order, &[5]));
            let by_table = embedding_backward_blocks::<f32, 32>(&starts, &order, &x[1], 3, 8)?;
            Ok(vec![embedding_blocks::<f32, 32>(&ids, &x[0])?, by_table])
        }),
    ]
}
