//! Each line of the guide's page on numerics, on the interpreter, the CPU and a GPU.
mod bounds;
mod floats;
mod folds;
mod gradients;
mod integers;
mod order;

use pallas_rt::prelude::DType;
use pallas_rt::{Array, Client, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The name of a line, and its test on a device.
type Line = (&'static str, fn(&Client) -> Result<()>);

fn lines() -> impl Iterator<Item = Line> {
    [folds::LINES, order::LINES, integers::LINES, floats::LINES, gradients::LINES].into_iter().flatten().copied()
}

/// The names in the page's tables.
fn named() -> Vec<&'static str> {
    let page = include_str!("../../guide/numerics.md");
    let name = |line: &'static str| line.strip_prefix("| `")?.split('`').next();
    page.lines().filter_map(name).collect()
}

#[test]
fn lines_have_tests_in_their_order() {
    assert_eq!(lines().map(|line| line.0).collect::<Vec<_>>(), named());
}

/// The interpreter, the CPU and, where there is one, a GPU; `PALLAS_REQUIRE_GPU=1` makes its absence a failure.
fn clients() -> Vec<Client> {
    let mut all = vec![Client::interpreter(), Client::cpu()];
    match Client::gpu(0) {
        Ok(client) => all.push(client),
        Err(e) => {
            assert!(std::env::var("PALLAS_REQUIRE_GPU").is_err(), "PALLAS_REQUIRE_GPU is set: {e}");
            eprintln!("skipped on the GPU: {e}");
        }
    }
    all
}

#[test]
fn lines_hold() {
    let mut wrong = vec![];
    for client in clients() {
        for (name, test) in lines() {
            match catch_unwind(AssertUnwindSafe(|| test(&client))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => wrong.push(format!("{name} on {client:?}: {error}")),
                Err(_) => wrong.push(format!("{name} on {client:?}: see above")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The elements as f64.
fn numbers(x: &Array) -> Result<Vec<f64>> {
    let x = x.to_device(&Client::cpu())?;
    if x.dtype() == DType::F64 { x.to_vec::<f64>() } else { x.cast(DType::F64).to_vec::<f64>() }
}

/// Asserts that elements are these, where NaN equals NaN and -0 does not equal 0.
#[track_caller]
fn is(x: &Array, expected: &[f64]) -> Result<()> {
    let found = numbers(x)?;
    let same = |a: &f64, b: &f64| a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits();
    let equal = found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| same(a, b));
    assert!(equal, "{found:?} of {}, expected {expected:?}", x.dtype());
    Ok(())
}

/// Asserts that elements are within a share of these.
#[track_caller]
fn is_near(x: &Array, expected: &[f64], share: f64) -> Result<()> {
    let found = numbers(x)?;
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= share * b.abs();
    let all = found.len() == expected.len() && found.iter().zip(expected).all(near);
    assert!(all, "{found:?} of {}, expected {expected:?}", x.dtype());
    Ok(())
}

/// Returns true if a device has an element type.
fn supports(client: &Client, dtype: DType) -> bool {
    client.zeros(&[1], dtype).is_ok()
}
