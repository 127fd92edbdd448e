//! Quantised matrix products against sums of the dequantised weights in doubles, and how far quantising is off.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::quantized_matmul::{
    Bits, Quantized, matmul_int4_blocks, matmul_int8_blocks, quantize, quantized_matmul,
};
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;

/// The weights that are meant: `[k, n]` with groups of `rows`.
fn dequantised(w: &Quantized, n: usize, rows: usize) -> Vec<f64> {
    let scales = doubles(&w.scales);
    let at = |e: usize| (e / n, e % n);
    match &w.zeros {
        None => {
            let q = w.values.to_vec::<i8>().expect("i8");
            (0..w.k * n).map(|e| f64::from(q[e]) * scales[at(e).0 / rows * n + at(e).1]).collect()
        }
        Some(zeros) => {
            let (q, zeros) = (w.values.to_vec::<u8>().expect("u8"), zeros.to_vec::<u8>().expect("u8"));
            let each = |e: usize| {
                let ((p, j), group) = (at(e), at(e).0 / rows * n + at(e).1);
                let half = q[p / 2 * n + j] >> (p % 2 * 4) & 15;
                (f64::from(half) - f64::from(zeros[group])) * scales[group]
            };
            (0..w.k * n).map(each).collect()
        }
    }
}

fn product(x: &[f64], w: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    (0..m * n).map(|e| (0..k).map(|p| x[e / n * k + p] * w[p * n + e % n]).sum()).collect()
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([m, k, n], size) in around([5, 6, 7]) {
            for (bits, &dtype) in runs(&client, size).iter().flat_map(|t| [(Bits::Eight, t), (Bits::Four, t)]) {
                // A group in two blocks, one, and half a block of k; `quantize` makes none so small.
                for rows in [2 * B, B, B / 2] {
                    let (groups, stored) = (k.div_ceil(rows), k.div_ceil(2));
                    let bytes = |n: usize| (0..n).map(|i| ((i * 7919) >> 3) as u8).collect::<Vec<_>>();
                    let x = array(&client, dtype, &[m, k], &values(m * k, 1));
                    let scales: Vec<f64> = values(groups * n, 2).iter().map(|s| s / 64.0).collect();
                    let scales = array(&client, DType::F32, &[groups, n], &scales);
                    let zeros: Vec<u8> = bytes(groups * n).iter().map(|z| z & 15).collect();
                    let zeros = client.array(&zeros, &[groups, n]).expect("it fits");
                    let (gb, p) = ((B / rows).max(1), (rows / B).max(1));
                    let signed: Vec<i8> = bytes(k * n).into_iter().map(|x| x as i8).collect();
                    let (values, zeros) = match bits {
                        Bits::Eight => (client.array(&signed, &[k, n]), None),
                        Bits::Four => (client.array(&bytes(stored * n), &[stored, n]), Some(zeros)),
                    };
                    let w = Quantized { values: values.expect("it fits"), scales, zeros, k, group: Some(rows) };
                    let out = typed!(dtype, E => match &w.zeros {
                        None => matmul_int8_blocks::<E>(&x, &w.values, &w.scales, B, B, B, gb, p),
                        Some(z) => matmul_int4_blocks::<E>(&x, &w.values, &w.scales, z, B, B, B, B / 2, gb, p),
                    });
                    let want = product(&doubles(&x), &dequantised(&w, n, rows), [m, k, n]);
                    close(
                        &out.expect("it runs"),
                        &want,
                        k,
                        K,
                        &format!("{m}x{k}x{n} {bits:?} groups of {rows} {dtype}"),
                    );
                }
            }
        }
    }
}

#[test]
fn quantised_and_multiplied() {
    let cpu = Client::cpu();
    for (group, dtype) in [None, Some(16), Some(128), Some(512)].into_iter().flat_map(|g| FLOATS.map(|t| (g, t))) {
        let shapes =
            [[3, 300, 140], [130, 515, 70], [1, 1, 1], [1, 1300, 300], [8, 700, 33], [4, 7000, 130]].into_iter();
        let all = shapes.chain(drawn(16, 10)).flat_map(|s| [(Bits::Eight, s), (Bits::Four, s)]);
        for (bits, [m, k, n]) in all {
            let w = array(&cpu, dtype, &[k, n], &values(k * n, 1));
            let q = quantize(&w, bits, group).expect("it is a matrix");
            let rows = group.unwrap_or(k);
            let (meant, scales) = (dequantised(&q, n, rows), doubles(&q.scales));
            for (e, (w, q)) in doubles(&w).iter().zip(&meant).enumerate() {
                let scale = scales[e / n / rows * n + e % n];
                assert!((w - q).abs() <= scale * 0.501, "{bits:?} {group:?}: {w} became {q}, steps are {scale}");
            }
            let x = array(&cpu, dtype, &[1, m, k], &values(m * k, 2));
            let out = quantized_matmul(&x, &q).expect("it runs");
            assert_eq!((out.shape(), out.dtype()), (&[1, m, n][..], dtype));
            close(&out, &product(&doubles(&x), &meant, [m, k, n]), k, K, &format!("{bits:?} {group:?} {dtype}"));
        }
    }
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    let zeros = |shape: &[usize]| cpu.zeros(shape, DType::F32).expect("it fits");
    let message = |x: Result<Quantized>| x.expect_err("it is wrong").to_string();
    assert!(message(quantize(&zeros(&[4, 4]), Bits::Four, Some(24))).contains("groups of 24 rows"));
    assert!(message(quantize(&zeros(&[4]), Bits::Eight, None)).contains("expected [k, n]"));
    assert!(quantize(&cpu.zeros(&[4, 4], DType::I32).expect("it fits"), Bits::Eight, None).is_err());
    let w = quantize(&zeros(&[20, 4]), Bits::Four, Some(16)).expect("zeros are fine");
    assert_eq!(quantized_matmul(&zeros(&[2, 20]), &w).expect("it runs").to_vec::<f32>().expect("f32"), [0.0; 8]);
    assert_eq!(quantized_matmul(&zeros(&[0, 20]), &w).expect("it runs").shape(), [0, 4]);
    let e = quantized_matmul(&zeros(&[2, 19]), &w).expect_err("19 columns for 20 rows").to_string();
    assert!(e.contains("the weights 20 rows"), "{e}");
    let short = Quantized { scales: zeros(&[1, 4]), ..w };
    assert!(quantized_matmul(&zeros(&[2, 20]), &short).is_err(), "two groups have two rows of scales");
}
