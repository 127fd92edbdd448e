//! Shipped kernels as plain operations: equal to the kernels on the CPU, and compiled by real XLA if `PALLAS_JAX` is a
//! Python with JAX.
#![allow(clippy::print_stdout, reason = "how many kernels XLA agrees on")]
use super::{Function, functions};
use crate::cases::{Extents, entry};
use crate::support::values;
use pallas_rt::lower;
use pallas_rt::prelude::*;
use std::fmt::Write;
use std::path::Path;

/// The greatest difference to the kernel, of numbers of about 1: sums are added up in another order.
const TOLERANCE: f64 = 1e-5;

pub(super) fn array(shape: &[usize], seed: usize) -> Array {
    let numbers: Vec<f32> = values(shape.iter().product(), seed).into_iter().map(|x| x as f32).collect();
    Client::cpu().array(&numbers, shape).expect("it fits")
}

const ATTENTION: &Extents = &[('b', 1), ('h', 2), ('g', 1), ('s', 70), ('l', 150), ('d', 16)];
const SQUARE: &Extents = &[('b', 1), ('h', 1), ('g', 1), ('s', 70), ('l', 70), ('d', 16), ('u', 32)];

/// Functions that call a kernel when they are traced. Lengths are no multiples of blocks.
const VALUES: &[(&str, &Extents)] = &[
    ("softmax", &[('n', 37), ('d', 70)]),
    ("softmax", &[('n', 3), ('d', 9000)]),
    ("log_softmax", &[('n', 37), ('d', 70)]),
    ("layer_norm of whole rows", &[('n', 37), ('d', 70), ('u', 32)]),
    ("rms_norm of whole rows", &[('n', 37), ('d', 70), ('u', 32)]),
    ("geglu", &[('n', 37), ('d', 70)]),
    ("matmul", &[('n', 130), ('k', 70), ('m', 150)]),
    ("matmul", &[('n', 9), ('k', 2100), ('m', 33)]),
    ("rotary in blocks", &[('h', 2), ('n', 37), ('d', 16), ('u', 64)]),
    ("embedding of whole tables", &[('n', 37), ('v', 11), ('d', 70), ('u', 8)]),
    ("cross-entropy of logits", &[('n', 37), ('v', 70)]),
    ("attention", ATTENTION),
    ("attention causal in blocks", SQUARE),
    ("decode in parts", &[('b', 1), ('h', 2), ('g', 1), ('s', 1), ('l', 300), ('d', 16), ('a', 3)]),
    ("splash causal", SQUARE),
];
const GRADIENTS: &[(&str, &Extents)] =
    &[("softmax", &[('n', 37), ('d', 70)]), ("layer_norm", &[('n', 37), ('d', 70)]), ("attention", ATTENTION)];

pub(super) fn cases() -> Vec<Function> {
    let of = |(name, extents): &(&str, &Extents)| functions(entry(name), &Client::cpu(), DType::F32, extents);
    VALUES.iter().map(|case| of(case).0).chain(GRADIENTS.iter().filter_map(|case| of(case).1)).collect()
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
    for (number, Function { name, operands: args, call: f }) in cases.iter().enumerate() {
        let want = f(args).unwrap_or_else(|e| panic!("{name}: {e}"));
        let traced = f.clone();
        let lowered = lower(move |x: &Vec<Array>| traced(x))(args).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(lowered.to_stablehlo().contains("call_target_name = \"pallas."), "{name} calls no kernel");
        let plain = lowered.inline_kernels().unwrap_or_else(|e| panic!("{name}: {e}"));
        let texts = [plain.to_stablehlo(), plain.to_hlo()];
        assert!(texts.iter().all(|text| !text.contains("custom")), "{name} still calls a kernel");
        if python.is_some() {
            let args: Vec<Array> = args.iter().chain(plain.captured()).cloned().collect();
            write(&folder, &number.to_string(), texts, &args, &want);
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
