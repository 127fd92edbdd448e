//! A staged `for` runs the same number of iterations on every device, for all bounds and steps.
use super::random::gpus;
use crate::prelude::*;

/// Hashes the indices of a `for` with a step, forwards and reversed, so that their number and order show.
#[kernel(grid = (1))]
fn turns(
    #[block([N] => [1], |_| (0,))] x: In<i32>,
    #[block([N] => [1], |_| (0,))] out: Out<i32>,
    lo: i32,
    hi: i32,
    step: i32,
) {
    let mut sum = x.load();
    for i in (lo..hi).step_by(step) {
        sum = sum * 31 + i;
    }
    for i in (lo..hi).step_by(step).rev() {
        sum = sum * 31 + i;
    }
    out.store(sum);
}

fn clients() -> Vec<Client> {
    [Client::interpreter(), Client::cpu()].into_iter().chain(gpus()).collect()
}

fn run(client: &Client, [lo, hi, step]: [i32; 3]) -> Result<i32> {
    let x = client.array(&[1], &[1])?;
    Ok(turns(&x, lo, hi, step)?.to_vec::<i32>()?[0])
}

#[test]
fn a_for_between_any_bounds() {
    const BIG: i32 = 1 << 30;
    let cases = [[0, 5, 2], [-3, 4, 3], [5, 5, 1], [5, -5, 1], [i32::MAX, i32::MIN, 7]];
    let far = [[0, i32::MAX, BIG], [i32::MIN, i32::MAX, BIG], [i32::MIN, i32::MAX, i32::MAX], [0, BIG, i32::MAX]];
    for case @ [lo, hi, step] in cases.into_iter().chain(far) {
        let seen: Vec<i32> = (i64::from(lo)..i64::from(hi)).step_by(step as usize).map(|i| i as i32).collect();
        let all = seen.iter().chain(seen.iter().rev());
        let want = all.fold(1i32, |sum, &i| sum.wrapping_mul(31).wrapping_add(i));
        for client in clients() {
            assert_eq!(run(&client, case), Ok(want), "{case:?} on {client:?}");
        }
    }
}

#[test]
fn a_step_that_is_not_positive_is_refused() {
    for client in clients() {
        for step in [0, -1, i32::MIN] {
            let error = run(&client, [0, 4, step]).expect_err("no such step");
            assert_eq!(error.code(), "step", "{error} on {client:?}");
            let message = error.to_string();
            let says = format!("the step of this `for` is {step}; it must be at least 1");
            assert!(message.contains(&says) && message.contains("for_tests.rs:"), "{message} on {client:?}");
        }
        assert_eq!(run(&client, [0, 0, 1]), Ok(1), "{client:?} goes on");
    }
}

/// Sorts a block `times` times, which a GPU's driver may stop.
#[kernel(grid = (1))]
fn sorts(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[fixed] times: usize,
) {
    let mut y = x.load();
    #[unroll]
    for i in 0..times {
        y = y.sort(0) * (1.0 + i as f32);
    }
    out.store(y);
}

#[test]
fn a_shader_that_its_driver_stops_reads_its_own_memory() {
    for client in gpus() {
        let x = client.array(&(0..1024).map(|i| (i as f32 * 0.3).sin()).collect::<Vec<_>>(), &[1024]).expect("it fits");
        for times in [1, 10] {
            let code = sorts(&x, times).and_then(|y| y.to_vec::<f32>()).map(|_| ()).map_err(|e| e.code());
            assert!(code == Ok(()) || times > 1 && code == Err("loop-limit"), "{times}: {code:?} on {client:?}");
        }
    }
}
