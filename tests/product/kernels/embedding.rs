//! Embedding and its gradient: extents around the block, the same bits every time, numbers out of range.
use super::{B, FLOATS, around, drawn, runs, typed};
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::embedding::{embedding, embedding_backward, embedding_backward_blocks, embedding_blocks};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 4.0;

fn numbers(n: usize, vocabulary: usize) -> Vec<i32> {
    (0..n).map(|i| (i * i * 5 % vocabulary) as i32).collect()
}

fn places(client: &Client, ids: &[i32], vocabulary: usize) -> (Array, Array) {
    crate::cases::blocks::places(client, ids, vocabulary).expect("they fit")
}

fn sums(dout: &[f64], ids: &[i32], [v, d]: [usize; 2], padding: Option<i32>) -> Vec<f64> {
    let mut sums = vec![0.0; v * d];
    for (t, &id) in ids.iter().enumerate().filter(|(_, id)| Some(**id) != padding) {
        (0..d).for_each(|c| sums[id as usize * d + c] += dout[t * d + c]);
    }
    sums
}

#[test]
fn every_extent_around_its_blocks() {
    for client in clients() {
        for ([n, v, d], size) in around([5, 6, 7]).filter(|([_, v, _], _)| *v > 0) {
            for &dtype in runs(&client, size) {
                let (ids, what) = (numbers(n, v), format!("{n} of {v}x{d} {dtype}"));
                let table = array(&client, dtype, &[v, d], &values(v * d, 1));
                let at = client.array(&ids, &[n]).expect("it fits");
                let out = typed!(dtype, E => embedding_blocks::<E, B>(&at, &table)).expect("it runs");
                let rows = doubles(&table);
                let want: Vec<f64> = ids.iter().flat_map(|&id| &rows[id as usize * d..][..d]).copied().collect();
                close(&out, &want, 1, 0.0, &what);
                let (starts, order) = places(&client, &ids, v);
                let dout = array(&client, dtype, &[n, d], &values(n * d, 2));
                let room = n.next_power_of_two();
                let dtable = typed!(dtype, E => embedding_backward_blocks::<E, B>(&starts, &order, &dout, v, room));
                close(&dtable.expect("it runs"), &sums(&doubles(&dout), &ids, [v, d], None), n, K, &what);
            }
        }
    }
}

#[test]
fn the_functions_that_choose_blocks() {
    for (client, dtype) in [Client::interpreter(), Client::cpu()].iter().flat_map(|c| FLOATS.map(|t| (c, t))) {
        let is_cpu = client.kind() == DeviceKind::Cpu;
        for [n, v, d] in [[5, 11, 1030]].into_iter().chain(drawn(if is_cpu { 40 } else { 4 }, 8)) {
            let ids = numbers(6 * n, v);
            let at = client.array(&ids, &[n, 6]).expect("it fits");
            let table = array(client, dtype, &[v, d], &values(v * d, 1));
            let out = embedding(&table, &at).expect("it runs");
            assert_eq!(out.shape(), [n, 6, d]);
            let rows = doubles(&table);
            let want: Vec<f64> = ids.iter().flat_map(|&id| &rows[id as usize * d..][..d]).copied().collect();
            assert_eq!(doubles(&out), want, "{n} {v} {d} {dtype}");
            for padding in [None, Some(0), Some(-1)] {
                let dtable = embedding_backward(&out, &at, v, padding).expect("it runs");
                assert_eq!(dtable.dtype(), dtype);
                let what = format!("{n} {v} {d} {dtype} {padding:?}");
                close(&dtable, &sums(&doubles(&out), &ids, [v, d], padding), 6 * n, K, &what);
            }
        }
    }
}

#[test]
fn gradients_are_the_same_every_time() {
    let (n, v, d) = (500, 7, 64);
    let cpu = Client::cpu();
    let dout = array(&cpu, DType::F32, &[n, d], &values(n * d, 1).iter().map(|x| x.exp()).collect::<Vec<_>>());
    let ids = cpu.array(&numbers(n, v), &[n]).expect("it fits");
    let run = || embedding_backward(&dout, &ids, v, None).expect("it runs").to_vec::<f32>().expect("f32");
    let first = run();
    (0..10).for_each(|_| assert_eq!(first, run()));
}

#[test]
fn wrong_inputs() {
    let cpu = Client::cpu();
    let zeros = |shape: &[usize]| cpu.zeros(shape, DType::F32).expect("it fits");
    let ids = |ids: &[i32]| cpu.array(ids, &[ids.len()]).expect("it fits");
    for (bad, message) in [([0, 3], "id 3 at position 1 is no row of a table of 3"), ([-1, 0], "id -1 at position 0")] {
        let e = embedding(&zeros(&[3, 2]), &ids(&bad)).expect_err("it is wrong").to_string();
        assert!(e.contains(message), "{e}");
        let e = embedding_backward(&zeros(&[2, 2]), &ids(&bad), 3, None).expect_err("it is wrong").to_string();
        assert!(e.contains(message), "{e}");
    }
    assert!(embedding(&zeros(&[0, 2]), &ids(&[0])).is_err());
    assert_eq!(embedding(&zeros(&[0, 2]), &ids(&[])).expect("nothing is asked for").shape(), [0, 2]);
    assert!(embedding(&zeros(&[3]), &ids(&[0])).is_err());
    assert!(embedding_backward(&zeros(&[3, 2]), &ids(&[0]), 3, None).is_err());
    assert!(embedding(&cpu.zeros(&[3, 2], DType::I32).expect("it fits"), &ids(&[0])).is_err());
}
