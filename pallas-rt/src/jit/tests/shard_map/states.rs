//! The states of values in a body, against those in JAX (`states.py`).
use super::mesh;
use crate::jit::manual_axis_states;
use crate::prelude::*;
use crate::sharding::{P, PartitionSpec};
use crate::spmd::{self, ManualAxisState, pcast};
use crate::{cond, scan, shard_map};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// The mean divides by a constant, of which JAX asks that it is reduced like the value, and we do not. What is a part
/// of a sum cannot be gathered; JAX refuses it along one axis, and loses the state of the other one along two.
const DIFFERENT: &[&str] =
    &["pmean:x IR", "pmean:x VR", "pmean:x UR", "all_gather_reduced:xy VU", "all_gather_reduced:xy UV"];

fn put(x: &Array, wanted: &str) -> Array {
    ["x", "y"].into_iter().zip(wanted.chars()).fold(x.clone(), |x, (axis, state)| match state {
        'V' => pcast(&x, axis, ManualAxisState::Varying),
        'U' => pcast(&pcast(&x, axis, ManualAxisState::Varying), axis, ManualAxisState::Unreduced),
        'R' => pcast(&x, axis, ManualAxisState::Reduced),
        _ => x,
    })
}

fn letters(x: &Array) -> String {
    let of = |state: ManualAxisState| match state {
        ManualAxisState::Invariant => 'I',
        ManualAxisState::Varying => 'V',
        ManualAxisState::Unreduced => 'U',
        ManualAxisState::Reduced => 'R',
    };
    match x.check() {
        Ok(_) => manual_axis_states(x).map_or("II".into(), |all| all.into_iter().map(of).collect()),
        Err(_) => "error".into(),
    }
}

/// The answer of a body about its argument, which is invariant.
fn in_body(f: impl Fn(&Array) -> String + Send + Sync + 'static) -> String {
    let said = Arc::new(Mutex::new(String::new()));
    let own = said.clone();
    let body = move |x: &Array| {
        *own.lock().expect("one thread") = f(x);
        x.clone()
    };
    let x = Array::from_slice(&[0f32; 16], &[4, 4]).expect("it fits");
    shard_map(body, &mesh(&[("x", 2), ("y", 2)]), [P(())], [P(())])(&x).expect("it is traced");
    let said = said.lock().expect("one thread");
    said.clone()
}

fn collective(name: &str, v: &Array, both: bool) -> Array {
    let axes: &[&str] = if both { &["x", "y"] } else { &["x"] };
    let ring: Vec<(usize, usize)> = (0..2 * axes.len()).map(|i| (i, (i + 1) % (2 * axes.len()))).collect();
    match name {
        "psum" => spmd::psum(v, axes),
        "pmean" => spmd::pmean(v, axes),
        "pmax" => spmd::pmax(v, axes),
        "pmin" => spmd::pmin(v, axes),
        "all_gather" => spmd::all_gather_tiled(v, axes, 0),
        "all_gather_invariant" => spmd::all_gather_invariant(v, axes, 0),
        "all_gather_reduced" => spmd::all_gather_reduced(v, axes, 0),
        "psum_scatter" => spmd::psum_scatter_tiled(v, axes, 0),
        "all_to_all" => spmd::all_to_all_tiled(v, axes, 0, 0),
        "ppermute" => spmd::ppermute(v, axes, &ring),
        "varying" => pcast(v, axes, ManualAxisState::Varying),
        "unreduced" => pcast(v, axes, ManualAxisState::Unreduced),
        "reduced" => pcast(v, axes, ManualAxisState::Reduced),
        "axis_index" => spmd::axis_index(axes),
        "axis_size" => crate::ops::zeros(&[4], DType::F32) + spmd::axis_size(axes).expect("it is bound") as f32,
        name => panic!("{name} in states.py"),
    }
}

/// Our result for a line of `states.py`.
fn ours(name: &str, operands: &str) -> String {
    let (name, operands) = (name.to_string(), operands.to_string());
    let (first, second) =
        operands.split_once(',').map_or((operands.clone(), None), |(a, b)| (a.into(), Some(b.to_string())));
    let accepted = |found: Result<()>| if found.is_ok() { "ok".to_string() } else { "error".to_string() };
    match (name.split_once(':'), second) {
        (Some(("out", axes)), _) => {
            let spec: PartitionSpec = match axes {
                "" => P(()),
                "x" => P("x"),
                _ => P((["x", "y"],)),
            };
            let x = Array::from_slice(&[0f32; 16], &[4, 4]).expect("it fits");
            let f = shard_map(move |x: &Array| put(x, &first), &mesh(&[("x", 2), ("y", 2)]), [P(())], [spec]);
            accepted(f(&x).map(drop))
        }
        (Some((name, axes)), _) => {
            let (name, both) = (name.to_string(), axes == "xy");
            in_body(move |v| letters(&collective(&name, &put(v, &first), both)))
        }
        (None, Some(second)) if name == "scan" => in_body(move |v| {
            let steps = crate::ops::zeros(&[2], DType::F32);
            let step = |_: &Array, _: &Array| (put(v, &second), ());
            accepted(scan(&put(v, &first), &steps, step).map(|(x, ())| drop(x)))
        }),
        (None, Some(second)) if name == "cond" => in_body(move |v| {
            let decides = v.sum(..).gt(0.0);
            accepted(cond(&decides, v, |v: &Array| put(v, &first), |v: &Array| put(v, &second)).map(drop))
        }),
        (None, Some(second)) => in_body(move |v| {
            let (a, b) = (put(v, &first), put(v, &second));
            letters(&match &name[..] {
                "add" => a + b,
                "sub" => a - b,
                "mul" => a * b,
                "div" => a / b,
                name => panic!("{name} in states.py"),
            })
        }),
        (None, None) => in_body(move |v| {
            let v = put(v, &first);
            letters(&match &name[..] {
                "neg" => -v,
                "exp" => v.exp(),
                "transpose" => v.transpose(&[1, 0]),
                "sum" => v.sum(..),
                "max" => v.max(..),
                name => panic!("{name} in states.py"),
            })
        }),
    }
}

/// Every collective, operation, loop and branch gives values in the states that JAX says, or is refused as there.
#[test]
fn states_are_those_of_jax() {
    let Ok(python) = std::env::var("PALLAS_JAX") else {
        println!("left out: PALLAS_JAX is not set");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/jit/tests/shard_map/states.py");
    let out = Command::new(python).arg(script).output().expect("Python runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (mut all, mut unlike) = (0, vec![]);
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let [name, operands, theirs] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let found = ours(name, operands);
        all += 1;
        if found != theirs {
            unlike.push((format!("{name} {operands}"), format!("{theirs} in JAX, {found}")));
        }
    }
    println!("states: agreement: {} of {all}", all - unlike.len());
    assert!(all > 500, "{all} lines");
    let different: Vec<&str> = unlike.iter().map(|(cell, _)| &cell[..]).collect();
    assert_eq!(different, DIFFERENT, "{unlike:#?}");
}
