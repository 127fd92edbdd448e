//! Shipped kernels as plain operations: equal to the kernels on the CPU, and compiled by real XLA if `PALLAS_JAX` is a
//! Python with JAX.
#![allow(clippy::print_stdout, reason = "how many kernels XLA agrees on")]
use crate::support::values;
use pallas_kernels::attention_scores::Causal;
use pallas_kernels::cross_entropy::{self, cross_entropy_of_logits};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::embedding_rows;
use pallas_kernels::flash_attention::{Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::gated::{Gate, gated};
use pallas_kernels::matmul::matmul;
use pallas_kernels::norm::{layer_norm_whole_rows, rms_norm_whole_rows};
use pallas_kernels::norm_backward::layer_norm_backward;
use pallas_kernels::rotary::{rotary_blocks, tables};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::softmax_backward::softmax_backward;
use pallas_kernels::splash_attention::{self, splash_attention};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::lower;
use pallas_rt::prelude::*;
use std::fmt::Write;
use std::path::Path;

/// A case: its name, its arguments and the function of them.
pub(super) type Case = (&'static str, Vec<Array>, fn(&Vec<Array>) -> Result<Vec<Array>>);

/// The greatest difference to the kernel, of numbers of about 1: sums are added up in another order.
const TOLERANCE: f64 = 1e-5;

pub(super) fn array(shape: &[usize], seed: usize) -> Array {
    let numbers: Vec<f32> = values(shape.iter().product(), seed).into_iter().map(|x| x as f32).collect();
    Client::cpu().array(&numbers, shape).expect("it fits")
}

fn ids(n: usize, below: usize) -> Array {
    let ids: Vec<i32> = (0..n).map(|i| (i * 7 % below) as i32).collect();
    Client::cpu().array(&ids, &[n]).expect("it fits")
}

/// Lengths are no multiples of blocks.
pub(super) fn cases() -> Vec<Case> {
    let x = || array(&[37, 70], 1);
    let attention = || {
        let [q, k, v] = [([1, 2, 70, 16], 1), ([1, 1, 150, 16], 2), ([1, 1, 150, 16], 3)];
        [q, k, v].map(|(shape, seed)| array(&shape, seed)).to_vec()
    };
    let square = || [1, 2, 3].map(|seed| array(&[1, 1, 70, 16], seed)).to_vec();
    vec![
        ("softmax", vec![x()], |x| Ok(vec![softmax(&x[0])?])),
        ("softmax-long", vec![array(&[3, 9000], 1)], |x| Ok(vec![softmax(&x[0])?])),
        ("log-softmax", vec![x()], |x| Ok(vec![log_softmax(&x[0])?])),
        ("softmax-backward", vec![x(), x()], |x| Ok(vec![softmax_backward(&softmax(&x[0])?, &x[1])?])),
        ("layer-norm", vec![x(), array(&[70], 2), array(&[70], 3)], |x| {
            let [gamma, beta] = [&x[1], &x[2]].map(|x| x.expand_dims(0));
            Ok(vec![layer_norm_whole_rows::<f32>(&x[0], &gamma, &beta, 1e-5, 32)?])
        }),
        ("layer-norm-backward", vec![x(), array(&[70], 2), array(&[37, 70], 3)], |x| {
            Ok(<[Array; 3]>::from(layer_norm_backward(&x[0], &x[1], &x[2], 1e-5)?).into())
        }),
        ("rms-norm", vec![x(), array(&[70], 2)], |x| {
            Ok(vec![rms_norm_whole_rows::<f32>(&x[0], &x[1].expand_dims(0), 1e-5, 32)?])
        }),
        ("gated", vec![x(), array(&[37, 70], 2)], |x| Ok(vec![gated(&x[0], &x[1], Gate::Gelu)?])),
        ("matmul", vec![array(&[130, 70], 1), array(&[70, 150], 2)], |x| Ok(vec![matmul(&x[0], &x[1])?])),
        ("matmul-long", vec![array(&[9, 2100], 1), array(&[2100, 33], 2)], |x| Ok(vec![matmul(&x[0], &x[1])?])),
        ("rotary", vec![array(&[2, 37, 16], 1)], |x| {
            let (cos, sin) = tables(x[0].client(), 0, 37, 16, 100.0)?;
            Ok(vec![rotary_blocks::<f32>(&x[0], &cos, &sin, false, false, 1, 64)?])
        }),
        ("embedding", vec![array(&[11, 70], 1), ids(37, 11)], |x| Ok(vec![embedding_rows::<f32>(&x[1], &x[0], 8)?])),
        ("cross-entropy", vec![x(), ids(37, 70)], |x| {
            Ok(<[Array; 2]>::from(cross_entropy_of_logits(&x[0], &x[1], &cross_entropy::Options::default())?).into())
        }),
        ("flash-attention", attention(), |x| Ok(vec![flash_attention(&x[0], &x[1], &x[2], &Options::default())?])),
        ("flash-attention-causal", square(), |x| {
            let options = Options { causal: Causal::FromStart, ..Options::default() };
            Ok(vec![flash_attention_with_lse(&x[0], &x[1], &x[2], &options)?.0])
        }),
        ("flash-attention-backward", attention(), |x| {
            let (out, lse) = flash_attention_with_lse(&x[0], &x[1], &x[2], &Options::default())?;
            let (operands, options) = ([&x[0], &x[1], &x[2]], Options::default());
            Ok(<[Array; 3]>::from(flash_attention_backward(operands, [&out, &lse], &x[0], &options)?).into())
        }),
        (
            "decode-attention",
            vec![array(&[1, 2, 1, 16], 1), array(&[1, 1, 300, 16], 2), array(&[1, 1, 300, 16], 3)],
            |x| {
                let options = decode_attention::Options { splits: Some(3), ..decode_attention::Options::default() };
                Ok(vec![decode_attention(&x[0], &x[1], &x[2], &options)?])
            },
        ),
        ("splash-attention", square(), |x| {
            let mask = MaskInfo::new(x[0].client(), &[Mask::causal()], [70, 70])?;
            Ok(vec![splash_attention(&x[0], &x[1], &x[2], &mask, &splash_attention::Options::default())?])
        }),
    ]
}

/// Writes a case for `stablehlo.py` of pallas-rt.
fn write(folder: &Path, name: &str, texts: [String; 2], args: &[Array], results: &[Array]) {
    let (mut lines, mut bytes) = (String::from("devices 1 blocks\n"), vec![]);
    let all = args.iter().map(|x| (x, None)).chain(results.iter().map(|x| (x, Some(TOLERANCE))));
    for (x, tolerance) in all {
        let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
        let (kind, end) = tolerance.map_or(("in", String::new()), |tolerance| ("out", format!(" {tolerance:e}")));
        writeln!(lines, "{kind} {} {}{end}", x.dtype(), shape.join(",")).expect("a string");
        bytes.extend(x.to_bytes().expect("it ran"));
    }
    let file = |end: &str| folder.join(format!("{name}.{end}"));
    let [stablehlo, hlo] = texts;
    for (end, contents) in
        [("mlir", stablehlo.into_bytes()), ("hlo", hlo.into_bytes()), ("txt", lines.into_bytes()), ("bin", bytes)]
    {
        std::fs::write(file(end), contents).expect("the folder can be written");
    }
}

#[test]
fn shipped_kernels_as_plain_operations_compute_the_same_also_in_xla() {
    let python = std::env::var("PALLAS_JAX").ok();
    let folder = std::env::temp_dir().join(format!("pallas-inlined-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let cases = cases();
    for (name, args, f) in &cases {
        let want = f(args).unwrap_or_else(|e| panic!("{name}: {e}"));
        let lowered = lower(*f)(args).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(lowered.to_stablehlo().contains("call_target_name = \"pallas."), "{name} calls no kernel");
        let plain = lowered.inline_kernels().unwrap_or_else(|e| panic!("{name}: {e}"));
        let texts = [plain.to_stablehlo(), plain.to_hlo()];
        assert!(texts.iter().all(|text| !text.contains("custom")), "{name} still calls a kernel");
        if python.is_some() {
            let args: Vec<Array> = args.iter().chain(plain.captured()).cloned().collect();
            write(&folder, name, texts, &args, &want);
        }
        let found = plain.compile().and_then(|plain| plain(args)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (found, want) in found.iter().zip(&want) {
            assert_eq!((found.shape(), found.dtype()), (want.shape(), want.dtype()), "{name}");
            let [found, want] = [found, want].map(|x| x.to_vec::<f32>().unwrap_or_else(|e| panic!("{name}: {e}")));
            let is_close = |(x, y): (&f32, &f32)| f64::from((x - y).abs()) <= TOLERANCE * f64::from(1.0 + y.abs());
            assert!(found.iter().zip(&want).all(is_close), "{name}");
        }
    }
    let Some(python) = python else {
        println!("left out: PALLAS_JAX is not set");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/pallas-rt/src/jit/tests/stablehlo.py");
    let output = std::process::Command::new(python).arg(script).arg(&folder).output().expect("Python starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    let agreement = format!("agreement: {} of {}", 2 * cases.len(), 2 * cases.len());
    assert_eq!(text.lines().last(), Some(&agreement[..]), "in {}:\n{errors}", folder.display());
    std::fs::remove_dir_all(&folder).expect("a folder");
}
