//! Random bits: the published test vectors, and the distributions made of them.
use pallas_rt::prelude::*;
use pallas_rt::{Client, threefry};

#[kernel(grid = (1))]
fn words(
    #[block([N] => [N], |_| (0,))] x: In<u32>,
    #[block([N] => [N], |_| (0,))] y: In<u32>,
    #[block([N] => [N], |_| (0,))] first: Out<u32>,
    #[block([N] => [N], |_| (0,))] second: Out<u32>,
    high: u32,
    low: u32,
) {
    let [a, b] = threefry::threefry2x32([high, low], [x.load(), y.load()]);
    first.store(a);
    second.store(b);
}

/// Random123's kat_vectors of `threefry2x32 20`: counter, key, words.
const KNOWN: [[u32; 6]; 3] = [
    [0, 0, 0, 0, 0x6b20_0159, 0x99ba_4efe],
    [!0, !0, !0, !0, 0x1cb9_96fc, 0xbb00_2be7],
    [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344, 0xc492_3a9c, 0x483d_f7a0],
];

#[test]
fn known_words() {
    for client in [Client::interpreter(), Client::cpu()] {
        for [x, y, high, low, a, b] in KNOWN {
            let (x, y) = (client.array(&[x], &[1]).expect("it fits"), client.array(&[y], &[1]).expect("it fits"));
            let (first, second) = words(&x, &y, high, low).expect("it runs");
            let word = |x: Array| x.to_vec::<u32>().expect("u32")[0];
            assert_eq!((word(first), word(second)), (a, b));
        }
    }
}

#[kernel(grid = (cdiv(N, 512)))]
fn samples(
    #[block([N] => [512], |i| (i,))] uniform: Out<f32>,
    #[block([N] => [512], |i| (i,))] normal: Out<f32>,
    #[dim] N: usize,
) {
    let counter = iota::<u32>([512], 0) + (program_id(0) * 512).cast::<u32>();
    let words = threefry::threefry2x32([scalar(7u32), scalar(8u32)], [counter, full([512], 0u32)]);
    uniform.store(threefry::uniform(words[0]));
    normal.store(threefry::normal(words));
}

#[test]
fn distributions() {
    let n = 20_000;
    let (uniform, normal) = samples(n).expect("it runs");
    let moments = |x: Array| {
        let x: Vec<f64> = x.to_vec::<f32>().expect("f32").into_iter().map(f64::from).collect();
        let mean = x.iter().sum::<f64>() / n as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
        let fourth = x.iter().map(|x| (x - mean).powi(4)).sum::<f64>() / n as f64;
        [mean, variance, fourth]
    };
    let near = |found: [f64; 3], want: [f64; 3], by: f64| {
        assert!(found.iter().zip(want).all(|(a, b)| (a - b).abs() < by), "{found:?}, expected {want:?}");
    };
    // Five standard errors and more.
    near(moments(uniform), [0.5, 1.0 / 12.0, 1.0 / 80.0], 0.012);
    near(moments(normal), [0.0, 1.0, 3.0], 0.35);
}
