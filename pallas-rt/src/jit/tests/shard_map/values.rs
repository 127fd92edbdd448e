//! Values of functions, against those in JAX (`values.py`).
use super::{close, counting, mesh};
use crate::prelude::*;
use crate::sharding::P;
use crate::spmd::{self, psum, pvary};
use crate::{cond, grad, jit, jvp, scan, shard_map, switch, tree, vmap, while_loop};
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
            |(i, _): &(Array, Array)| i.le(spmd::axis_index("y")),
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

/// A loop of devices that exchange their blocks, which others do not.
fn rows_steps(x: &Array) -> Result<Array> {
    let is_less = |x: &Array| psum(x, "y").sum(..).lt(60.0);
    while_loop(x, is_less, |x: &Array| x + spmd::ppermute(x, "y", &[(0, 1), (1, 0)]) * 0.5 + 1.0)
}

fn rows_branch(x: &Array) -> Result<Array> {
    let branches: [fn(&Array) -> Array; 2] = [|x| spmd::pmax(x, "y") * x, |x| x - psum(x, "y")];
    switch(&spmd::axis_index("x"), x, branches)
}

fn rows_reused(x: &Array) -> Result<Array> {
    let branches: [fn(&Array) -> Array; 2] =
        [|x| pvary(&psum(&x.sin(), "y"), "y").cos(), |x| x * pvary(&psum(&(x.cos() + x), "y"), "y")];
    let x = switch(&spmd::axis_index("x"), x, branches)?;
    let is_less = |x: &Array| psum(x, "y").sum(..).lt(9.0);
    while_loop(&x, is_less, |x: &Array| pvary(&psum(&x.sin(), "y"), "y") * 0.5 + 2.0)
}

fn rows_nested(x: &Array) -> Result<Array> {
    let step = |(count, x): &(Array, Array)| {
        let x = cond(
            &(count % 2).eq(0),
            x,
            |x: &Array| Ok::<_, Error>(x + psum(x, "y") * 0.125),
            |x: &Array| Ok(rows_branch(x)? * 0.5 + 3.0),
        )?;
        let start = (pvary(&Client::cpu().full(&[], 0i32)?, "x"), x);
        let last = count.clone();
        let moved = while_loop(
            &start,
            move |(i, _): &(Array, Array)| i.le(&last),
            |(i, x): &(Array, Array)| (i + 1, x + spmd::ppermute(x, "y", &[(0, 1)]) * 0.25),
        )?;
        Ok::<_, Error>((count + 1, moved.1))
    };
    let number = spmd::axis_index("x");
    let last = &number * 2 + 2;
    let moved = while_loop(&(number, x.clone()), move |(i, _): &(Array, Array)| i.lt(&last), step)?;
    Ok(moved.1 + psum(x, "x"))
}

/// Functions of one example, by name, on a batch of three.
fn batch(name: &str) -> Option<Result<Vec<f32>>> {
    let nine = counting(&[3, 3]);
    let wide = counting(&[3, 6]);
    let line = || Client::cpu().array(&[0f32, 1.0, 2.0], &[3]);
    let one = |f: fn(&Array) -> Array| jit(vmap(f).axis_name("i"))(&nine).map(flat);
    let six = |f: fn(&Array) -> Array| jit(vmap(f).axis_name("i"))(&wide).map(flat);
    let of_two = |f: fn(&Array) -> Array| {
        vmap(move |x: &Array| vmap(f).axis_name("j")(x)).axis_name("i")(&counting(&[2, 3])).map(flat)
    };
    let gradient = |f: fn(&Array) -> Array| jit(vmap(grad(f)).axis_name("i"))(&nine).map(flat);
    Some(match name {
        "sums" => {
            let all = |x: &Array| (psum(x, "i"), spmd::pmean(x, "i"), spmd::pmax(x, "i"), spmd::pmin(x, "i"));
            vmap(all).axis_name("i")(&nine).map(flat)
        }
        "sum_of_constant" => one(|x| x + psum(&crate::ops::full(&[], 2.0f32, DType::F32), "i")),
        "sum_of_truths" => one(|x| psum(&x.gt(4.0), "i").cast(DType::F32)),
        "gathered" => one(|x| spmd::all_gather(x, "i", 1)),
        "gathered_tiled" => one(|x| spmd::all_gather_tiled(x, "i", 0) * x.at(0).get()),
        "scattered" => one(|x| spmd::psum_scatter(x, "i", 0)),
        "scattered_tiled" => six(|x| spmd::psum_scatter_tiled(x, "i", 0)),
        "to_all" => one(|x| spmd::all_to_all(x, "i", 0, 0)),
        "to_all_tiled" => six(|x| spmd::all_to_all_tiled(x, "i", 0, 0)),
        "permuted" => one(|x| spmd::ppermute(x, "i", &[(0, 2), (1, 0), (2, 1)])),
        "shuffled" => one(|x| spmd::pshuffle(x, "i", &[2, 0, 1])),
        "numbers" => {
            one(|x| x * spmd::axis_index("i").cast(DType::F32) + spmd::axis_size("i").expect("it is bound") as f32)
        }
        "gradient_inside" => gradient(|x| (psum(&(x * x), "i") * x.sin()).sum(..)),
        "gradient_of_gathered" => {
            let weights = line().expect("it fits");
            let f = move |x: &Array| (spmd::all_gather(&(x * x), "i", 0) * &weights).sum(..);
            jit(vmap(grad(f)).axis_name("i"))(&nine).map(flat)
        }
        "gradient_of_scattered" => gradient(|x| spmd::psum_scatter(&x.sin(), "i", 0)),
        "gradient_of_permuted" => gradient(|x| (spmd::ppermute(&(x * x), "i", &[(0, 1), (1, 2), (2, 0)]) * x).sum(..)),
        "tangent" => {
            let f = |x: &Array| jvp(|x: &Array| spmd::pmean(&(x * x), "i"))(&(x.clone(),), &(x + 1.0,));
            vmap(f).axis_name("i")(&nine).map(flat)
        }
        "carried" => {
            let step = |c: &Array, w: &Array| {
                let number = spmd::axis_index("i").cast(DType::F32);
                (c + psum(w, "i"), c * number)
            };
            jit(vmap(move |x: &Array| scan(&x.at(0).get(), x, step)).axis_name("i"))(&nine).map(flat)
        }
        "until" => {
            let f = |x: &Array| while_loop(x, |x: &Array| psum(x, "i").sum(..).lt(100.0), |x: &Array| x * 2.0);
            jit(vmap(f).axis_name("i"))(&nine).map(flat)
        }
        "of_sum" => {
            let f = |x: &Array| {
                let decides = psum(x, "i").sum(..).lt(9.0);
                cond(&decides, x, |x: &Array| x.sin(), |x: &Array| x + spmd::pmax(x, "i"))
            };
            jit(vmap(f).axis_name("i"))(&nine).map(flat)
        }
        "normalized" => one(|x| {
            let centred = x - spmd::pmean(x, "i");
            &centred / spmd::pmean(&(&centred * &centred), "i").sqrt()
        }),
        "around" => {
            let f = vmap(|x: &Array| psum(&x.sin(), "i") * x).axis_name("i");
            jit(grad(move |x: &Array| f(x).map(|y| y.sum(..))))(&nine).map(flat)
        }
        "unmapped" => {
            vmap(|x: &Array| psum(x, "i")).axis_name("i").in_axes([Some(1)]).out_axes([None])(&nine).map(flat)
        }
        "nested_sum" => of_two(|x| x + psum(x, ["i", "j"])),
        "nested_number" => of_two(|x| x * 0.0 + spmd::axis_index(["j", "i"]).cast(DType::F32)),
        "nested_other" => of_two(|x| psum(x, "i") + spmd::pmax(x, "j")),
        "same_name" => {
            let inner = |x: &Array| vmap(|x: &Array| psum(x, "i")).axis_name("i")(x);
            vmap(inner).axis_name("i")(&counting(&[2, 3])).map(flat)
        }
        "in_a_body" => {
            let block = |x: &Array| vmap(|x: &Array| psum(&psum(x, "x"), "i")).axis_name("i")(x);
            jit(shard_map(block, &mesh(&[("x", 2), ("y", 2)]), [P("x")], [P(())]))(&counting(&[8])).map(flat)
        }
        "around_a_body" => {
            let body = |x: &Array| x * psum(&psum(x, "x"), "i");
            let body = shard_map(body, &mesh(&[("x", 2), ("y", 2)]), [P("x")], [P("x")]);
            jit(vmap(move |x: &Array| body(x)).axis_name("i"))(&counting(&[3, 4])).map(flat)
        }
        _ => return None,
    })
}

/// Our numbers for a line of `values.py`.
fn ours(name: &str) -> Vec<f32> {
    let blocks = |f: fn(&Array) -> Result<Array>| {
        let both = || [P((["x", "y"],))];
        jit(shard_map(f, &mesh(&[("x", 2), ("y", 2)]), both(), both()))(&counting(&[8])).map(flat)
    };
    if let Some(found) = super::partial::ours(name).or_else(|| super::nested::ours(name)) {
        return found;
    }
    let found = match name {
        "own_steps" => blocks(own_steps),
        "own_branch" => blocks(own_branch),
        "nested" => blocks(nested),
        "exchanged" => blocks(exchanged),
        "rows_steps" => blocks(rows_steps),
        "rows_branch" => blocks(rows_branch),
        "rows_nested" => blocks(rows_nested),
        "rows_reused" => blocks(rows_reused),
        name => batch(name).unwrap_or_else(|| panic!("{name} in values.py")),
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
