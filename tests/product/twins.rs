//! Programs of functions of arrays beside the same ones in JAX: equal numbers, and sources of about the same length.
#![allow(clippy::duplicate_mod, reason = "the example is a program of its own")]
#[allow(dead_code, reason = "its `main`")]
#[path = "../../examples/twins/main.rs"]
mod example;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Characters of Rust for one of Python, in all programs together.
const LONGEST: f64 = 1.35;
/// Difference of numbers, relative to the largest of their array.
const TOLERANCE: f64 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/twins")
}

/// Characters of a program without imports, comments and whitespace.
fn length(source: &str, left_out: &[&str]) -> usize {
    let counts = |line: &&str| !left_out.iter().any(|start| line.trim_start().starts_with(start));
    source.lines().filter(counts).flat_map(str::chars).filter(|c| !c.is_whitespace()).count()
}

#[test]
fn programs_are_about_as_short_as_in_jax() {
    let read = |name: String| std::fs::read_to_string(folder().join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let lengths = example::TWINS.iter().map(|(name, _)| {
        let rust = length(&read(format!("{name}.rs")), &["//", "use "]);
        (rust, length(&read(format!("{name}.py")), &["#", "import ", "from ", "\"\"\""]))
    });
    let (rust, python) = lengths.reduce(|(a, b), (c, d)| (a + c, b + d)).expect("there are programs");
    let ratio = rust as f64 / python as f64;
    assert!(ratio <= LONGEST, "{rust} characters of Rust for {python} of Python: {ratio:.3}");
}

/// The arrays that a program prints in JAX, by its name.
fn in_jax(python: &str, name: &str) -> Vec<Vec<f64>> {
    let output =
        Command::new(python).arg("-B").arg(folder().join("main.py")).arg(name).output().expect("Python starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {errors}");
    let numbers = |line: &str| line.split(' ').map(|x| x.parse().expect("a number")).collect();
    text.lines().skip(1).map(numbers).collect()
}

#[test]
fn programs_compute_what_they_compute_in_jax() {
    let python = std::env::var("PALLAS_JAX").ok();
    for (name, run) in example::TWINS {
        let found = run().unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = found.iter().map(|x| x.to_vec::<f32>().unwrap_or_else(|e| panic!("{name}: {e}")));
        let found: Vec<Vec<f64>> = found.map(|x| x.into_iter().map(f64::from).collect()).collect();
        assert!(found.iter().flatten().all(|x| x.is_finite()), "{name}: {found:?}");
        let Some(python) = &python else { continue };
        let expected = in_jax(python, name);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "{name}, result {i}");
            let bound = TOLERANCE * expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let apart = found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            assert!(apart <= bound, "{name}, result {i}: {found:?}, in JAX {expected:?}");
        }
    }
}
