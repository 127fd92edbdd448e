//! Law: the tangent of a random kernel, from its tile operations, is its slope, on the interpreter and the CPU.
//!
//! Random kernels compare, round and choose, so that they have jumps and kinks, and their values are f32. Differences
//! over two steps agree where there is neither; only there is the tangent compared with them.
use super::draw::PROGRAMS;
use super::{Call, OLD, SHAPE, inputs, kernels, source};
use pallas_rt::jvp;
use pallas_rt::prelude::*;

/// The direction of the tangents: no element stays where it is.
fn direction(n: usize) -> Vec<f32> {
    (0..n).map(|i| [1.0, -0.5, 0.75, -1.25, 0.5][i % 5]).collect()
}

/// The floats of the result, and their tangents.
fn tangents(call: Call, client: &Client, number: usize, (n, flag): (i32, bool), q: &[f32]) -> Result<[Vec<f32>; 2]> {
    let given = inputs(number as u64);
    let ints = client.array(&given.ints, &SHAPE)?;
    let (table, slots) = (client.array(&given.table, &[2])?, client.array(&given.slots, &[2])?);
    let (far, old) = (client.array(&given.far, &super::FAR)?, client.array(&given.old, &OLD)?);
    let along = jvp(move |q: &Array| call([&ints, q, &table, &far, &slots, &old], n, flag).map(|(_, b, _)| b));
    let (b, db) = along(&(client.array(q, &SHAPE)?,), &(client.array(&direction(q.len()), &SHAPE)?,))?;
    Ok([b.to_vec()?, db.to_vec()?])
}

#[test]
fn tangents_of_drawn_kernels_are_slopes() {
    let (mut compared, mut moved) = (0, 0);
    for (number, &call) in kernels::KERNELS.iter().enumerate() {
        let whole = inputs(number as u64).floats;
        // Away from whole numbers, where comparisons turn.
        let q: Vec<f32> = whole.iter().enumerate().map(|(i, x)| x + [0.37, -0.21, 0.13, 0.42][i % 4]).collect();
        for setting in [(3, true), (-1, false)] {
            let run = |client: &Client, q: &[f32]| {
                let found = tangents(call, client, number, setting, q);
                found.unwrap_or_else(|e| panic!("{e}\n{}", source(number)))
            };
            let cpu = Client::cpu();
            let shifted = |by: f32| -> Vec<f32> {
                let q: Vec<f32> = q.iter().zip(direction(q.len())).map(|(q, d)| q + by * d).collect();
                run(&cpu, &q)[0].clone()
            };
            let slopes = |h: f32| -> Vec<f64> {
                let ends = shifted(h).into_iter().zip(shifted(-h));
                ends.map(|(a, b)| (f64::from(a) - f64::from(b)) / f64::from(2.0 * h)).collect()
            };
            let ([b, found], [_, interpreted]) = (run(&cpu, &q), run(&Client::interpreter(), &q));
            let (coarse, fine) = (slopes(1.0 / 64.0), slopes(1.0 / 256.0));
            for i in 0..found.len() {
                let (found, other) = (f64::from(found[i]), f64::from(interpreted[i]));
                let (size, apart) = (1.0 + f64::from(b[i]).abs() + coarse[i].abs(), (coarse[i] - fine[i]).abs());
                let fail =
                    |what: &str, want: f64| panic!("{what}: element {i} is {found}, not {want}\n{}", source(number));
                if (found - other).abs() > 1e-4 * size {
                    fail("the interpreter", other);
                }
                if apart > 1e-2 * size || !found.is_finite() {
                    continue;
                }
                (compared, moved) = (compared + 1, moved + usize::from(found != 0.0));
                if (found - coarse[i]).abs() > 2e-2 * size {
                    fail("the slope", coarse[i]);
                }
            }
        }
    }
    let all = 2 * PROGRAMS * SHAPE[0] * SHAPE[1];
    assert!(
        compared > all * 9 / 10 && moved > all / 4,
        "{compared} of {all} were compared, {moved} depend on the floats"
    );
}
