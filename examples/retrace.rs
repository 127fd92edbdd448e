//! Compilations of a function on a mesh: one for equal declarations, another one for each real change.
//!
//! `cargo run --release --example retrace`
//!
//! A mesh of 1 x 2 devices with the axes `batch` and `model`, one array that is marked and two that are not: fifty
//! steps, each with the results of the one before, are one trace. What is declared is compared, not where arrays lie,
//! so equal declarations in other words do not compile the function again, and each real change does so once, with its
//! reason. The exit code is 1 unless this is so.
mod usage;

use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, P};
use pallas_rt::{clear_sharding, jit, jit_misses, mark_sharding};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STEPS: usize = 50;

/// Runs it; returns false if a number of traces is not as it should be.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("batch", 1), ("model", 2)]).expect("axes with names of their own"));
    let full = |shape: &[usize], x: f32| Array::full(shape, x);
    let traces = Arc::new(AtomicUsize::new(0));
    let (count, own) = (|| traces.load(Relaxed), traces.clone());
    let step = jit(move |w: &Array, x: &Array, b: &Array| {
        own.fetch_add(1, Relaxed);
        let y = (x.matmul(w) + b).tanh();
        let b = b + y.mean(0) * 0.1;
        (y, b)
    });
    let w = mark_sharding(&full(&[4, 4], 0.25)?, &mesh, P((None, "model")))?;
    let (mut x, mut b) = (full(&[2, 4], 0.5)?, full(&[4], 0.0)?);
    for _ in 0..STEPS {
        (x, b) = step(&w, &x, &b)?;
    }
    println!("{STEPS} steps, each with the results of the one before: {} trace", count());
    let mut is_right = count() == 1;

    for _ in 0..STEPS {
        step(&w, &full(&[2, 4], 0.5)?, &b)?;
    }
    let cleared = || clear_sharding(&w);
    for equal in [
        mark_sharding(&cleared()?, &mesh, P((None, "model")))?,
        mark_sharding(&cleared()?, &mesh, P(("batch", "model")))?,
    ] {
        step(&equal, &x, &b)?;
    }
    let read = x.to_vec::<f32>()?;
    step(&w, &x, &Array::from_slice(&read[..4], &[4])?)?;
    println!("fresh arrays, equal declarations, arrays after they were read: {} trace", count());
    is_right &= count() == 1;

    let changes = [
        ("another declaration", mark_sharding(&cleared()?, &mesh, P("model"))?, x.clone()),
        ("none", full(&[4, 4], 0.25)?, mark_sharding(&clear_sharding(&x)?, &mesh, P((None, "model")))?),
        ("one more", w.clone(), mark_sharding(&clear_sharding(&x)?, &mesh, P(()))?),
    ];
    for (i, (name, w, x)) in changes.iter().enumerate() {
        for _ in 0..2 {
            step(w, x, &b)?;
        }
        println!("{name}: {} traces", count());
        is_right &= count() == i + 2;
    }
    for miss in jit_misses().iter().filter(|miss| miss.at.file.ends_with("retrace.rs")) {
        let reasons: Vec<String> = miss.reasons.iter().map(ToString::to_string).collect();
        println!("traced since: {}", reasons.join("; "));
        is_right &= !reasons.is_empty();
    }
    Ok(is_right)
}

fn main() -> ExitCode {
    usage::read(include_str!("retrace.rs"), &[]);
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("not as expected: one trace for equal declarations, one more for each change");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
