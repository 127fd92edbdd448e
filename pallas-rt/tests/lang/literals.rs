//! Literals beside tiles, generic element types, outer constants, associated functions, modules.
use crate::both;
use pallas_rt::prelude::*;

const HEAD: usize = 4;

#[kernel(grid = (1))]
fn generic<E: Float>(
    #[block([{ HEAD }] => [{ HEAD }], |_i| (0,))] x: In<E>,
    #[block([{ HEAD }] => [{ HEAD }], |_i| (0,))] out: Out<E>,
) {
    let y = 2.0 * x.load() * 0.5 + 1.0 - (1.0 - x.load());
    let any = (y > 0.0).any(0).item();
    let mut z = y;
    if any {
        z = z * 2.0;
    }
    if y.sum(0).item() > 0.0 && 100.0 > z.sum(0).item() {
        z = z + HEAD as f32;
    }
    out.store(select(z > 0.0, z, 0.0))
}

#[test]
fn one_kernel_for_every_float() {
    let x = [0.0f32, 1.0, 2.0, 3.0];
    let expected = [4.0, 8.0, 12.0, 16.0];
    assert_eq!(both(x, |x| generic::<f32>(x)), expected);
    for client in [Client::interpreter(), Client::cpu()] {
        let half = client.array(&x.map(f16::from_f32), &[4]).and_then(|x| generic::<f16>(&x));
        let half = half.and_then(|y| y.to_vec::<f16>()).expect("it runs");
        assert_eq!(half, expected.map(f16::from_f32));
        let brain = client.array(&x.map(bf16::from_f32), &[4]).and_then(|x| generic::<bf16>(&x));
        assert_eq!(brain.and_then(|y| y.to_vec::<bf16>()).expect("it runs"), expected.map(bf16::from_f32));
    }
}

/// A double literal keeps its digits.
#[kernel(grid = (1))]
fn doubles(#[block([N] => [N], |_i| (0,))] x: In<f64>, #[block([N] => [N], |_i| (0,))] out: Out<f64>) {
    out.store((0.1 * x.load() + x.load() * 0.1 + 1.0 - 0.3 * x.load()).abs())
}

#[test]
fn double_literals_keep_their_digits() {
    for client in [Client::interpreter(), Client::cpu()] {
        let x = client.array(&[1.0f64; 4], &[4]).expect("it fits");
        let y = doubles(&x).and_then(|y| y.to_vec::<f64>()).expect("it runs");
        assert_eq!(y, [0.1f64 + 0.1 + 1.0 - 0.3; 4]);
    }
}

#[kernel(grid = (cdiv(N, 4)), allow(overflow))]
fn filled<E: Number>(
    #[block([N] => [4], |i| (i,), fill = fill)] x: In<E>,
    #[block([N] => [4], |i| (i,), empty = empty)] out: Out<E>,
    #[fixed] fill: f64,
    #[fixed] empty: f64,
) {
    out.store(x.load() + x.load().max(0));
}

#[test]
fn a_fill_that_no_element_is_is_refused() {
    for client in [Client::interpreter(), Client::cpu()] {
        fn refused<E: Number>(client: &Client, fill: f64, empty: f64, expected: &str) {
            let x = client.zeros(&[3], E::DTYPE).expect("it fits");
            let error = filled::<E>(&x, fill, empty).expect_err("there is no such element");
            assert!(error.to_string().contains(expected), "{error}; expected: {expected}");
            assert_eq!(error.code(), "literal");
        }
        refused::<i32>(&client, 0.5, 0.0, "`fill = 0.5` of `x`: there is no such i32; help: ");
        refused::<u32>(&client, -1.0, 0.0, "`fill = -1` of `x`: there is no such u32");
        refused::<u8>(&client, 0.0, 256.0, "`empty = 256` of `out`: there is no such u8");
        refused::<i64>(&client, f64::NAN, 0.0, "`fill = NaN` of `x`: there is no such i64");
        let x = client.array(&[250u8; 3], &[3]).expect("it fits");
        let y = filled::<u8>(&x, f64::NEG_INFINITY, 255.0).and_then(|y| y.to_vec::<u8>()).expect("it is an element");
        assert_eq!(y, [244; 3]);
        let x = client.array(&[1u64; 3], &[3]).expect("it fits");
        let y = filled::<u64>(&x, 0.0, u64::MAX as f64).and_then(|y| y.to_vec::<u64>()).expect("it is an element");
        assert_eq!(y, [2; 3]);
        let x = client.array(&[1.0f32; 3], &[3]).expect("it fits");
        assert!(filled::<f32>(&x, 0.1, f64::NAN).is_ok());
    }
}

/// Products of 16-bit floats are summed in f32, of 8-bit integers in i32.
#[kernel(grid = (1))]
fn accumulates<E: Float>(
    #[block([M, K] => [M, K], |_i| (0, 0))] a: In<E>,
    #[block([K, N] => [K, N], |_i| (0, 0))] b: In<E>,
    #[block([M, N] => [M, N], |_i| (0, 0))] out: Out<f32>,
) {
    out.store(dot(a.load(), b.load()));
}

#[test]
fn halves_accumulate_in_f32() {
    let client = Client::cpu();
    // 2048 + 1 has no f16; in f32 the sum is exact.
    let a = client.array(&[2048.0, 1.0].map(f16::from_f32), &[1, 2]).expect("it fits");
    let b = client.array(&[1.0, 1.0].map(f16::from_f32), &[2, 1]).expect("it fits");
    let y = accumulates::<f16>(&a, &b).and_then(|y| y.to_vec::<f32>()).expect("it runs");
    assert_eq!(y, [2049.0]);
}

struct Holder;
impl Holder {
    const K: f32 = 3.0;
    fn own(t: Tile<f32>) -> Tile<f32> {
        t * 2.0
    }
    #[kernel(grid = (1))]
    fn associated(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
        if program_id(0) == 0 {
            out.store(Self::own(x.load()) + Self::K)
        }
    }
}
mod inner {
    use pallas_rt::prelude::*;
    #[cfg(not(windows))]
    #[kernel(grid = (1))]
    pub(crate) fn modded(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
        out.store(x.load() + N as f32)
    }
}

#[test]
fn kernels_stand_anywhere() {
    assert_eq!(both([1.0; 4], |x| Holder::associated(x)), [5.0; 4]);
    assert_eq!(both([1.0; 4], |x| inner::modded(x)), [5.0; 4]);
    #[kernel(grid = (1))]
    fn local(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
        out.store(x.load())
    }
    assert_eq!(both([1.0; 4], |x| local(x)), [1.0; 4]);
}

/// Every mix of tile, scalar and number has the type it shows.
#[kernel(grid = (1))]
fn mixes(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, s: f32) {
    let t: Tile<f32> = x.load();
    let a: Tile<f32> = maximum(s, t) + minimum(t, 1.0) + s.maximum(t) + t.pow(2.0);
    let b: Scalar<f32> = maximum(s, 1.0) + s.minimum(3.0) + select(s > 1.0, s, 0.0);
    let mask: Tile<bool> = (t > s) | true & !(t > 1.0);
    let c: Tile<f32> = select(mask, s, t) + select(s > 0.0, 1.0, t) + select(mask, 1.0, 0.0);
    out.store(a + b + c);
}

#[test]
fn mixed_operands() {
    let (s, t) = (2.0f32, 3.0f32);
    let a = t.max(s) + t.min(1.0) + s.max(t) + t * t;
    let b = s + s + s;
    let c = s + 1.0 + 1.0;
    assert_eq!(both([t], |x| mixes(x, s)), [a + b + c]);
}
