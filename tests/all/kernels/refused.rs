//! Options and tables that kernels refuse, with the operand's or option's name, and the source line of errors.
use pallas_kernels::cross_entropy::{self, cross_entropy, cross_entropy_of_logits};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{self, flash_attention};
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::paged_attention::{self, PagedCache, ragged_paged_attention};
use pallas_kernels::quantized_matmul::{Bits, quantize};
use pallas_kernels::splash_attention::{self, splash_attention};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;

fn zeros(dtype: DType, shape: &[usize]) -> Array {
    Client::cpu().zeros(dtype, shape).expect("it fits")
}

fn says<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
    let error = result.expect_err("it is refused").to_string();
    assert!(error.contains(expected), "{error}\n expected: {expected}");
}

#[test]
fn options_out_of_their_range() {
    let (x, labels) = (zeros(DType::F32, &[2, 3]), zeros(DType::I32, &[2]));
    for smoothing in [2.0, -0.5, f32::NAN] {
        let options = cross_entropy::Options { smoothing, ..Default::default() };
        says(cross_entropy(&x, &x, &labels, &options), &format!("`smoothing` is {smoothing}, expected 0 to 1"));
        says(cross_entropy_of_logits(&x, &labels, &options), "`smoothing` is");
    }
    let options = cross_entropy::Options { z_loss: f32::NAN, ..Default::default() };
    says(cross_entropy(&x, &x, &labels, &options), "`z_loss` is NaN, expected a finite number");

    let row = zeros(DType::F32, &[3]);
    for epsilon in [f32::NAN, f32::INFINITY, -1.0] {
        let expected = &format!("`epsilon` is {epsilon}, expected a finite number of at least 0");
        says(layer_norm(&x, &row, &row, epsilon), expected);
        says(rms_norm(&x, &row, epsilon), expected);
        says(layer_norm_backward(&x, &row, &x, epsilon), expected);
        says(rms_norm_backward(&x, &row, &x, epsilon), expected);
    }

    let x = zeros(DType::F32, &[1, 1, 2, 4]);
    let info = MaskInfo::new(&Client::cpu(), &[Mask::causal()], [2, 2]).expect("it fits");
    let cache = PagedCache::new(&Client::cpu(), DType::F32, [2, 1, 2, 4]).expect("it fits");
    let (query, tables, lengths) = (zeros(DType::F32, &[1, 1, 4]), zeros(DType::I32, &[1, 1]), zeros(DType::I32, &[1]));
    for scale in [f32::NAN, f32::NEG_INFINITY] {
        let (expected, scale) = (&format!("`scale` is {scale}, expected a finite number"), Some(scale));
        says(flash_attention(&x, &x, &x, &flash_attention::Options { scale, ..Default::default() }), expected);
        says(decode_attention(&x, &x, &x, &decode_attention::Options { scale, ..Default::default() }), expected);
        says(splash_attention(&x, &x, &x, &info, &splash_attention::Options { scale, soft_cap: None }), expected);
        let options = paged_attention::Options { scale, soft_cap: None };
        says(paged_attention::paged_attention(&query, &cache, &tables, &lengths, &options), expected);
    }
}

#[test]
fn tables_of_another_type() {
    let (x, wrong) = (zeros(DType::F32, &[2, 3]), zeros(DType::F32, &[2]));
    let options = cross_entropy::Options::default();
    says(cross_entropy(&x, &x, &wrong, &options), "`labels` holds f32, expected i32");
    says(cross_entropy_of_logits(&x, &wrong, &options), "`labels` holds f32, expected i32");
    says(embedding(&x, &wrong), "`ids` holds f32, expected i32");
    says(embedding_backward(&x, &zeros(DType::I64, &[2]), 5, None), "`ids` holds i64, expected i32");
    says(quantize(&zeros(DType::I32, &[2, 3]), Bits::Eight, None), "weights hold i32, expected f32, f16 or bf16");

    let cache = PagedCache::new(&Client::cpu(), DType::F32, [2, 1, 2, 4]).expect("it fits");
    let query = zeros(DType::F32, &[1, 1, 4]);
    let check = |[tables, lengths, starts]: [DType; 3], expected: &str| {
        let (tables, lengths, starts) = (zeros(tables, &[1, 1]), zeros(lengths, &[1]), zeros(starts, &[2]));
        let options = paged_attention::Options::default();
        says(ragged_paged_attention(&query, &cache, &tables, &lengths, &starts, &options), expected);
    };
    check([DType::F32, DType::I32, DType::I32], "`tables` holds f32, expected i32");
    check([DType::I32, DType::I64, DType::I32], "`lengths` holds i64, expected i32");
    check([DType::I32, DType::I32, DType::U32], "`starts` holds u32, expected i32");
}

/// An error of a kernel is at the line that calls this crate, so every function in between needs the attribute.
#[test]
fn functions_that_launch_kernels_track_their_caller() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/src");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        // A function's attributes are between the item before it and its name.
        for (at, _) in text.match_indices("pub fn ") {
            let before = &text[..at];
            let attributes = &before[before.rfind(['}', ';', '/']).unwrap_or(0)..];
            let head = &text[at..][..text[at..].find(" {\n").expect("a body")];
            let gives_arrays =
                head.contains("-> Result<") && head[head.find("->").expect("it is there")..].contains("Array");
            // `tables` and `quantize` compute on the host.
            let host = head.starts_with("pub fn tables(") || head.starts_with("pub fn quantize(");
            if gives_arrays && !host {
                seen += 1;
                assert!(attributes.contains("#[track_caller]"), "{}: {head}", path.display());
            }
        }
    }
    assert!(seen > 30, "{seen} functions are found");
}
