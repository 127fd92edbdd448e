//! What the tests share: devices, data, comparison.
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// The devices every kernel runs on: interpreter, CPU and, where there is one, a GPU.
pub fn clients() -> Vec<Client> {
    let mut all = vec![Client::interpreter(), Client::cpu()];
    all.extend(gpu());
    all
}

/// A GPU, if there is one; `PALLAS_REQUIRE_GPU=1` makes its absence a failure.
pub fn gpu() -> Option<Client> {
    match Client::gpu(0) {
        Ok(client) => Some(client),
        Err(e) => {
            assert!(std::env::var("PALLAS_REQUIRE_GPU").is_err(), "PALLAS_REQUIRE_GPU is set: {e}");
            eprintln!("skipped on the GPU: {e}");
            None
        }
    }
}

/// A target with `kib` KiB of workgroup memory, for a GPU that need not be present.
pub fn gpu_target(kib: u64) -> Target {
    Target { workgroup_bytes: kib << 10, has_64_bit: true, ..Target::webgpu() }
}

/// Runs the test of this name once more, in a process of its own that keeps nothing on disk: what the user's cache
/// holds, wherever it lies, is no part of it. False in that process, which goes on.
pub fn apart_from_disk(test: &str) -> bool {
    const APART: &str = "PALLAS_TEST_APART";
    if std::env::var(APART).as_deref() == Ok(test) {
        return false;
    }
    again(test, &[("PALLAS_CACHE_DIR", "off"), (APART, test)]);
    true
}

/// The output of the test of this name in a process of its own, with these variables.
pub fn again(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this binary"));
    command.args([test, "--exact", "--include-ignored", "--nocapture"]).envs(variables.iter().copied());
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "the test's name is `{test}`: {text}");
    text
}

/// Deterministic values in [-1, 1), exact in every float type of at least 8 bits of precision.
pub fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + 13) % 257) as f64 / 128.0 - 1.0).collect()
}

/// An array of a float type.
pub fn array(client: &Client, dtype: DType, shape: &[usize], values: &[f64]) -> Array {
    match dtype {
        DType::F64 => client.array(values, shape),
        DType::F32 => client.array(&values.iter().map(|&x| x as f32).collect::<Vec<_>>(), shape),
        DType::F16 => client.array(&values.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>(), shape),
        DType::Bf16 => client.array(&values.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>(), shape),
        other => panic!("no test data of type {other}"),
    }
    .expect("test data fits")
}

/// The elements as doubles.
pub fn doubles(x: &Array) -> Vec<f64> {
    match x.dtype() {
        DType::F32 => x.to_vec::<f32>().expect("f32").into_iter().map(f64::from).collect(),
        DType::F16 => x.to_vec::<f16>().expect("f16").into_iter().map(f64::from).collect(),
        DType::Bf16 => x.to_vec::<bf16>().expect("bf16").into_iter().map(f64::from).collect(),
        DType::F64 => x.to_vec::<f64>().expect("f64"),
        other => panic!("no doubles of {other}"),
    }
}

/// Unit roundoff of a type.
pub fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
        DType::F64 => 2f64.powi(-53),
        _ => 2f64.powi(-24),
    }
}

/// Within `k · ε · sqrt(terms)` of the reference, relative to magnitudes up to 1; NaN where the reference is.
pub fn close(found: &Array, want: &[f64], terms: usize, k: f64, what: &str) {
    let found_values = doubles(found);
    assert_eq!(found_values.len(), want.len(), "{what}");
    // What is no double is computed in f32.
    let within = if found.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let tolerance = k * (epsilon(found.dtype()) + epsilon(within) * (terms.max(1) as f64).sqrt());
    for (i, (a, b)) in found_values.iter().zip(want).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(same, "{what} on {}: element {i} is {a}, the reference {b}", found.device());
    }
}
