//! Slopes where operands are equal, at the ends of pieces, at zeros and infinities: those of JAX, stored by
//! `slopes.py`.
use crate::prelude::*;
use crate::{grad, jit, jvp};

type Function = fn(&[Array]) -> Array;

/// `x` times 1, 2, ..
fn weighted(x: Array) -> Array {
    let weights: Vec<f32> = (1..=x.len()).map(|i| i as f32).collect();
    let weights = Client::cpu().array(&weights, &[weights.len()]).and_then(|w| w.to_device(x.client()));
    x * weights.expect("it fits")
}

fn function(name: &str) -> Option<Function> {
    let f: Function = match name {
        "abs" => |x| x[0].abs(),
        "relu" => |x| x[0].relu(),
        "relu6" => |x| x[0].relu6(),
        "hard_sigmoid" => |x| x[0].hard_sigmoid(),
        "hard_tanh" => |x| x[0].hard_tanh(),
        "hard_silu" => |x| x[0].hard_silu(),
        "leaky_relu" => |x| x[0].leaky_relu(0.25),
        "elu" => |x| x[0].elu(1.0),
        "celu" => |x| x[0].celu(1.0),
        "selu" => |x| x[0].selu(),
        "sparse_plus" => |x| x[0].sparse_plus(),
        "sparse_sigmoid" => |x| x[0].sparse_sigmoid(),
        "sign" => |x| x[0].sign(),
        "nan_to_num" => |x| x[0].nan_to_num(),
        "soft_sign" => |x| x[0].soft_sign(),
        "softplus" => |x| x[0].softplus(),
        "maximum" => |x| x[0].maximum(&x[1]),
        "minimum" => |x| x[0].minimum(&x[1]),
        "fmax" => |x| x[0].fmax(&x[1]),
        "fmin" => |x| x[0].fmin(&x[1]),
        "pow" => |x| x[0].pow(&x[1]),
        "heaviside" => |x| x[0].heaviside(&x[1]),
        "copysign" => |x| x[0].copysign(&x[1]),
        "logaddexp" => |x| x[0].logaddexp(&x[1]),
        "hypot" => |x| x[0].hypot(&x[1]),
        "clip" => |x| x[0].clip(&x[1], &x[2]),
        "cummax" => |x| weighted(x[0].cummax(0)),
        "cummin" => |x| weighted(x[0].cummin(0)),
        "cummax_reverse" => |x| weighted(x[0].flip(0).cummax(0).flip(0)),
        "cumprod" => |x| weighted(x[0].cumprod(0)),
        "sort" => |x| weighted(x[0].sort(0)),
        "max" => |x| x[0].max(..),
        "min" => |x| x[0].min(..),
        "prod" => |x| x[0].prod(..),
        "median" => |x| x[0].median(..),
        "ptp" => |x| x[0].ptp(..),
        "infinity_norm" => |x| x[0].vector_norm(f64::INFINITY, ..),
        _ => return None,
    };
    Some(f)
}

fn numbers(text: &str) -> Vec<f32> {
    text.split(' ').map(|x| x.parse().expect("a number")).collect()
}

fn same(line: &str, way: &str, got: &Array, want: &[f32]) {
    let got = got.to_vec::<f32>().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert_eq!(got.len(), want.len(), "{line}");
    let alike = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 + 1e-5 * b.abs();
    assert!(got.iter().zip(want).all(alike), "{line}\n{way}: {got:?}, JAX {want:?}");
}

#[test]
fn slopes_at_ties_are_those_of_jax() {
    let mut checked = 0;
    for line in include_str!("slopes.txt").lines() {
        let mut parts = line.split("; ");
        let name = parts.next().expect("a name");
        let f = function(name).unwrap_or_else(|| panic!("{name} is not listed"));
        let operands: Vec<(Vec<f32>, Vec<f32>)> = parts
            .map(|part| part.split_once(" -> ").expect("elements and slopes"))
            .map(|(x, d)| (numbers(x), numbers(d)))
            .collect();
        for client in [Client::cpu(), Client::interpreter()] {
            let args: Vec<Array> =
                operands.iter().map(|(x, _)| client.array(x, &[x.len()]).expect("it fits")).collect();
            let backward = move |args: &Vec<Array>| f(args).sum(..);
            let at_once = grad(backward)(&args).unwrap_or_else(|e| panic!("{line}: {e}"));
            let compiled = jit(grad(backward))(&args).unwrap_or_else(|e| panic!("{line}: {e}"));
            for (i, (_, want)) in operands.iter().enumerate() {
                same(line, "at once", &at_once[i], want);
                same(line, "compiled", &compiled[i], want);
            }
        }
        checked += 1;
    }
    assert!(checked > 90, "{checked} lines");
}

/// Forward mode has the same slopes: elements of an elementwise function are apart, so tangents of 1 give all of them.
#[test]
fn forward_slopes_at_ties_are_those_of_jax() {
    for line in include_str!("slopes.txt").lines() {
        let mut parts = line.split("; ");
        let name = parts.next().expect("a name");
        let f = function(name).unwrap_or_else(|| panic!("{name} is not listed"));
        let operands: Vec<(&str, &str)> =
            parts.map(|part| part.split_once(" -> ").expect("elements and slopes")).collect();
        let args: Vec<Array> = operands
            .iter()
            .map(|(x, _)| numbers(x))
            .map(|x| Client::cpu().array(&x, &[x.len()]).expect("it fits"))
            .collect();
        let shape = f(&args).shape().to_vec();
        if shape != args[0].shape() || operands[0].0.split(' ').count() < 8 {
            continue;
        }
        for (i, (_, want)) in operands.iter().enumerate() {
            let tangents: Vec<Array> =
                args.iter().enumerate().map(|(k, x)| x.zeros_like() + if k == i { 1.0 } else { 0.0 }).collect();
            let forward = jvp(move |args: &Vec<Array>| f(args));
            let (_, tangent) = forward(&(args.clone(),), &(tangents,)).unwrap_or_else(|e| panic!("{line}: {e}"));
            // The tangent 0 of another operand times a slope that is not finite is NaN in forward mode, in JAX as well.
            let (tangent, want) = (tangent.to_vec::<f32>().expect("it ran"), numbers(want));
            let all = operands.iter().flat_map(|(x, slopes)| [numbers(x), numbers(slopes)]);
            let all: Vec<Vec<f32>> = all.filter(|x| x.len() == want.len()).collect();
            let is_kept = |k: &usize| all.iter().all(|x| x[*k].is_finite());
            let kept: Vec<usize> = (0..want.len()).filter(is_kept).collect();
            let of = |x: &[f32]| kept.iter().map(|&k| x[k]).collect::<Vec<f32>>();
            let (tangent, want) = (of(&tangent), of(&want));
            let tangent = Client::cpu().array(&tangent, &[tangent.len()]).expect("it fits");
            same(line, "forward", &tangent, &want);
        }
    }
}
