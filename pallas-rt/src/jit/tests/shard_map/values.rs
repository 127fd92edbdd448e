//! Values of functions, against those in JAX (`values.py`).
use super::{close, counting, mesh};
use crate::prelude::*;
use crate::sharding::P;
use crate::spmd::{self, psum, pvary};
use crate::tree;
use crate::{cond, jit, shard_map, switch, while_loop};
use std::process::Command;

/// A loop whose number of steps each device has for itself.
fn own_steps(x: &Array) -> Result<Array> {
    while_loop(x, |x: &Array| x.sum(..).lt(40.0), |x: &Array| x * 1.5 + 1.0)
}

fn own_branch(x: &Array) -> Result<Array> {
    let branches: [fn(&Array) -> Array; 4] = [|x| x.sin(), |x| x.cos(), |x| x * x, |x| -x];
    switch(&spmd::axis_index(["x", "y"]), x, branches)
}

/// Branches and loops in a loop, with the number of the device in the innermost one.
fn nested(x: &Array) -> Result<Array> {
    let step = |x: &Array| {
        let x = cond(&x.sum(..).lt(3.0), x, |x: &Array| x + 2.0, |x: &Array| x * 1.5)?;
        let count = pvary(&Client::cpu().full(&[], 0i32)?, ["x", "y"]);
        let quarters = while_loop(
            &(count, x),
            |(i, _): &(Array, Array)| i.le(&spmd::axis_index("y")),
            |(i, x): &(Array, Array)| (i + 1, x + 0.25),
        )?;
        Ok::<_, Error>(quarters.1)
    };
    while_loop(x, |x: &Array| x.sum(..).lt(20.0), step)
}

fn exchanged(x: &Array) -> Result<Array> {
    let x = own_steps(x)?;
    Ok(psum(&own_branch(&x)?, "x") + spmd::ppermute(&x, "y", &[(0, 1), (1, 0)]))
}

/// Our numbers for a line of `values.py`.
fn ours(name: &str) -> Vec<f32> {
    let blocks = |f: fn(&Array) -> Result<Array>| {
        let both = || [P((["x", "y"],))];
        jit(shard_map(f, &mesh(&[("x", 2), ("y", 2)]), both(), both()))(&counting(&[8])).map(flat)
    };
    let found = match name {
        "own_steps" => blocks(own_steps),
        "own_branch" => blocks(own_branch),
        "nested" => blocks(nested),
        "exchanged" => blocks(exchanged),
        name => panic!("{name} in values.py"),
    };
    found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The numbers of all arrays.
fn flat<T: Tree>(all: T) -> Vec<f32> {
    tree::leaves(&all).iter().flat_map(|x| super::numbers(&x.cast(DType::F32))).collect()
}

/// Each function has the numbers that JAX has: those stored, or with `PALLAS_JAX` those that it computes now.
#[test]
fn values_are_those_of_jax() {
    let text = match std::env::var("PALLAS_JAX") {
        Err(_) => include_str!("values.txt").to_string(),
        Ok(python) => {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/jit/tests/shard_map/values.py");
            let out = Command::new(python).arg(script).output().expect("Python runs");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8_lossy(&out.stdout).into_owned()
        }
    };
    assert_eq!(
        text.lines().map(name_of).collect::<Vec<_>>(),
        include_str!("values.txt").lines().map(name_of).collect::<Vec<_>>()
    );
    for line in text.lines() {
        let theirs: Vec<f32> = line.split(' ').skip(1).map(|number| number.parse().expect("a number")).collect();
        let found = ours(name_of(line));
        assert!(close(&found, &theirs), "{}: {found:?}, {theirs:?} in JAX", name_of(line));
    }
}

fn name_of(line: &str) -> &str {
    line.split(' ').next().expect("a line has a word")
}
