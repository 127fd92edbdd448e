//! Dropout of attention: which probabilities are dropped is read off both passes, with blocks of several sizes, and
//! compared with the random words themselves.
//!
//! Queries and keys of zeros make all probabilities of `N` keys `1/N`. With the unit matrix as values the result is the
//! matrix of probabilities after dropout; with the unit matrix as gradient by the result, `dv` is its transpose.
use super::attention_reference::kept;
use crate::support::{clients, doubles, gpu};
use pallas_kernels::flash_attention::{Dropout, Options, Seed, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_rt::prelude::*;

const BATCH: usize = 2;
const HEADS: usize = 2;
const N: usize = 12;
const SEED: u64 = 0x0123_4567_89ab_cdef;
const RATES: [f32; 4] = [0.0, 0.1, 0.5, 0.9];

/// The factor of each probability, by random words.
fn want(dropout: Dropout<'static>) -> Vec<f64> {
    (0..BATCH * HEADS * N * N).map(|at| kept(dropout, at / N, at % N)).collect()
}

/// Operands q, k and v.
fn operands(client: &Client) -> [Array; 3] {
    let unit: Vec<f32> = (0..BATCH * HEADS * N * N).map(|at| if at / N % N == at % N { 1.0 } else { 0.0 }).collect();
    let zeros = client.zeros(&[BATCH, HEADS, N, N], DType::F32).expect("it fits");
    [zeros.clone(), zeros, client.array(&unit, &[BATCH, HEADS, N, N]).expect("it fits")]
}

/// `x` is `factors / N`, element by element.
fn same(x: &Array, factors: &[f64], what: &str) {
    for (at, (found, factor)) in doubles(x).iter().zip(factors).enumerate() {
        let error = (found * N as f64 - factor).abs();
        assert!(error < 1e-5 * factor.max(0.0) + f64::MIN_POSITIVE, "{what}, element {at}: {found} for {factor}");
    }
}

/// The matrices' transposes.
fn transposed(x: &[f64]) -> Vec<f64> {
    (0..x.len()).map(|at| x[at / (N * N) * N * N + at % N * N + at / N % N]).collect()
}

fn forward<const BQ: usize, const BK: usize>(client: &Client, dropout: Dropout<'static>) {
    let [q, k, v] = operands(client);
    let options = Options { dropout: Some(dropout), ..Options::default() };
    let (out, _) = flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [BQ, BK]).expect("it runs");
    same(&out, &want(dropout), &format!("{dropout:?} forward in blocks of {BQ}x{BK} on {}", client.device()));
    // The same bits as an array.
    let Seed::Number(seed) = dropout.seed else { unreachable!("it is a number") };
    let key = client.array(&[(seed >> 32) as u32, seed as u32], &[2]).expect("it fits");
    let options = Options { dropout: Some(Dropout { seed: (&key).into(), ..dropout }), ..options };
    let (by_key, _) = flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [BQ, BK]).expect("it runs");
    assert_eq!(doubles(&by_key), doubles(&out));
}

fn backward<const BQ: usize, const BK: usize>(client: &Client, dropout: Dropout<'static>, one_pass: bool) {
    let [q, k, unit] = operands(client);
    let options = Options { dropout: Some(dropout), ..Options::default() };
    let lse = client.full(&[BATCH, HEADS, N], (N as f32).ln()).expect("it fits");
    let (operands, results) = ([&q, &k, &unit], [&unit, &lse]);
    let found = match one_pass {
        true => resident_gradients::<f32>(operands, results, &unit, &options, [BQ, BK]),
        false => gradients_in_blocks::<f32>(operands, results, &unit, &options, [[BQ, BK], [BK, BQ]]),
    };
    let (_, _, dv) = found.expect("it runs");
    let what = format!("{dropout:?} backward in blocks of {BQ}x{BK}, one pass {one_pass}, on {}", client.device());
    same(&dv, &transposed(&want(dropout)), &what);
}

#[test]
fn is_the_same_in_both_passes_whatever_the_blocks() {
    for client in [Client::interpreter(), Client::cpu()] {
        for (i, rate) in RATES.into_iter().enumerate() {
            let dropout = Dropout { rate, seed: (SEED + i as u64).into() };
            forward::<4, 4>(&client, dropout);
            forward::<8, 4>(&client, dropout);
            forward::<5, 16>(&client, dropout);
            backward::<4, 4>(&client, dropout, false);
            backward::<8, 3>(&client, dropout, false);
            backward::<4, 8>(&client, dropout, true);
        }
    }
}

/// As above: each rate is a shader of its own.
#[test]
fn is_the_same_forward_on_a_gpu() {
    let Some(client) = gpu() else { return };
    for rate in RATES {
        forward::<4, 4>(&client, Dropout { rate, seed: SEED.into() });
    }
    forward::<8, 8>(&client, Dropout { rate: 0.5, seed: SEED.into() });
}

#[test]
fn is_the_same_backward_on_a_gpu() {
    let Some(client) = gpu() else { return };
    backward::<4, 4>(&client, Dropout { rate: 0.1, seed: SEED.into() }, false);
    backward::<8, 8>(&client, Dropout { rate: 0.5, seed: SEED.into() }, false);
}

/// Seeds are run-time values: both halves of each matter, on every device.
#[test]
fn differs_by_seed() {
    let dropped = |seed: u64| want(Dropout { rate: 0.5, seed: seed.into() });
    for other in [SEED + 1, SEED ^ 1 << 40] {
        assert_ne!(dropped(SEED), dropped(other));
        for client in clients() {
            forward::<4, 4>(&client, Dropout { rate: 0.5, seed: other.into() });
        }
    }
}

#[test]
fn drops_as_many_as_it_should() {
    let n = 128;
    let cpu = Client::cpu();
    for rate in [0.02, 0.3, 0.75] {
        let q = cpu.zeros(&[1, 1, n, n], DType::F32).expect("it fits");
        let unit: Vec<f32> = (0..n * n).map(|at| if at / n == at % n { 1.0 } else { 0.0 }).collect();
        let unit = cpu.array(&unit, &[1, 1, n, n]).expect("it fits");
        let options = Options { dropout: Some(Dropout { rate, seed: SEED.into() }), ..Options::default() };
        let (out, _) = flash_attention_in_blocks::<f32>(&q, &q, &unit, &options, [32, 32]).expect("it runs");
        let (share, rate) =
            (doubles(&out).iter().filter(|&&x| x == 0.0).count() as f64 / (n * n) as f64, f64::from(rate));
        // Four standard deviations.
        assert!((share - rate).abs() < 4.0 * (rate * (1.0 - rate)).sqrt() / n as f64, "{share} dropped of {rate}");
    }
}

/// A key that a compiled function is given is another one at each call, forward and backward; it is compiled once.
#[cfg(feature = "graph")]
#[test]
fn a_compiled_step_drops_others_at_each_call() {
    use pallas_kernels::flash_attention::flash_attention;
    use pallas_rt::{grad, jit};
    let [q, k, v] = operands(&Client::cpu());
    let step = jit(grad(|v: &Array, q: &Array, k: &Array, key: &Array| {
        let dropout = Some(Dropout { rate: 0.5, seed: key.into() });
        flash_attention(q, k, v, &Options { dropout, ..Options::default() }).map(|out| (&out * &out).sum(..))
    }));
    let mut seen: Vec<Vec<f64>> = vec![];
    for seed in [SEED, SEED + 1, SEED ^ 1 << 40] {
        let key = Client::cpu().array(&[(seed >> 32) as u32, seed as u32], &[2]).expect("it fits");
        let found = doubles(&step(&v, &q, &k, &key).expect("it runs"));
        let number = Dropout { rate: 0.5, seed: seed.into() };
        let at_once = grad({
            let (q, k) = (q.clone(), k.clone());
            move |v: &Array| {
                let options = Options { dropout: Some(number), ..Options::default() };
                flash_attention(&q, &k, v, &options).map(|out| (&out * &out).sum(..))
            }
        });
        let want = doubles(&at_once(&v).expect("it runs"));
        assert!(found.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}\n{want:?}");
        assert!(!seen.contains(&found));
        seen.push(found);
    }
}
