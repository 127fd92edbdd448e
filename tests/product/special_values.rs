//! NaN and infinities on every device: what moves keeps them, exact operations compute with them, and what they are no
//! part of does not change. On a GPU nothing else is promised (see the guide's page on devices).
use crate::support::clients;
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

const SPECIAL: [f32; 10] =
    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, -2.5, f32::MAX, f32::MIN_POSITIVE, 100.0];
/// Elements of a row.
const WIDTH: usize = 10;

#[kernel(grid = (cdiv(N, 8)))]
fn through(
    #[block([N, D] => [8, D], |i| (i, 0), fill = f32::NEG_INFINITY)] x: In<f32>,
    #[block([N, D] => [8, D], |i| (i, 0), fill = f32::NAN)] y: In<f32>,
    #[block([N, D] => [8, D], |i| (i, 0), fill = 0)] first: In<i32>,
    #[block([N, D] => [8, D], |i| (i, 0))] moved: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] chosen: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] sum: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] product: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] larger: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] smaller: Out<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] grown: Out<f32>,
    #[block([N, 1] => [8, 1], |i| (i, 0))] most: Out<f32>,
) {
    let (a, b) = (x.load(), y.load());
    moved.store(a);
    chosen.store(select(first.load().ne(0), a, b));
    sum.store(a + b);
    product.store(a * b);
    larger.store(maximum(a, b));
    smaller.store(minimum(a, b));
    grown.store(a.exp());
    most.store(a.max(1));
}

/// What a NaN takes part in is NaN.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

#[track_caller]
fn same(found: f32, want: f32, relative: f32, what: &str) {
    let near = (found - want).abs() <= relative * want.abs();
    assert!(found == want || found.is_nan() && want.is_nan() || near, "{what}: {found}, the reference {want}");
}

#[test]
fn nan_and_infinities_go_through_elementwise_kernels() {
    // Every pair, and rows without any: more than one block, the last overhanging.
    let n = 20;
    let x: Vec<f32> =
        (0..n * WIDTH).map(|i| if i / WIDTH < 10 { SPECIAL[i % 10] } else { i as f32 * 0.25 - 30.0 }).collect();
    let y: Vec<f32> = (0..n * WIDTH).map(|i| if i / WIDTH < 10 { SPECIAL[i / WIDTH] } else { 0.5 }).collect();
    let first: Vec<i32> = (0..n * WIDTH).map(|i| (i % 3 == 0) as i32).collect();
    for client in clients() {
        let array = |data: &[f32]| client.array(data, &[n, WIDTH]).expect("it fits");
        let pick = client.array(&first, &[n, WIDTH]).expect("it fits");
        let (moved, chosen, sum, product, up, down, grown, most) =
            through(array(&x), array(&y), &pick).expect("it runs");
        let values = [moved, chosen, sum, product, up, down, grown, most].map(|a| a.to_vec::<f32>().expect("f32"));
        let ieee = client.kind() != DeviceKind::Gpu;
        for i in 0..n * WIDTH {
            let (a, b) = (x[i], y[i]);
            let what = |name: &str| format!("{name} of {a} and {b} on {client:?}");
            same(values[0][i], a, 0.0, &what("the first"));
            assert!(a.is_nan() || values[0][i].to_bits() == a.to_bits(), "{}", what("the bits"));
            same(values[1][i], if first[i] != 0 { a } else { b }, 0.0, &what("the choice"));
            same(values[2][i], a + b, 0.0, &what("the sum"));
            // A device may take numbers this small for 0.
            let tiny = (a * b).is_subnormal() && values[3][i] == 0.0;
            same(values[3][i], if tiny { 0.0 } else { a * b }, 0.0, &what("the product"));
            if ieee || a.is_finite() && b.is_finite() {
                same(values[4][i], larger(a, b), 0.0, &what("the larger"));
                same(values[5][i], -larger(-a, -b), 0.0, &what("the smaller"));
            }
            if ieee || a.is_finite() && a.exp().is_finite() {
                same(values[6][i], a.exp(), 1e-6, &what("the exponential"));
            }
        }
        for (row, &found) in x.chunks(WIDTH).zip(&values[7]) {
            if ieee || row.iter().all(|x| x.is_finite()) {
                same(found, row.iter().copied().fold(f32::NEG_INFINITY, larger), 0.0, "the maximum of a row");
            }
        }
    }
}

#[kernel(grid = (cdiv(N, 8)))]
fn products(
    #[block([N, K] => [8, K], |i| (i, 0), fill = f32::NAN)] x: In<f32>,
    #[block([K, M] => [K, M], |_| (0, 0))] y: In<f32>,
    #[block([N, M] => [8, M], |i| (i, 0))] out: Out<f32>,
) {
    out.store(dot(x.load(), y.load()));
}

#[test]
fn nan_and_infinities_stay_in_their_rows_of_a_product() {
    let (n, k, m) = (19, 5, 4);
    let mut x: Vec<f32> = (0..n * k).map(|i| (i % 7) as f32 - 3.0).collect();
    // A row each; others stay finite.
    (x[2], x[7 * k + 1], x[18 * k]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let y: Vec<f32> = (0..k * m).map(|i| if i % 5 == 4 { 0.0 } else { (i % 3) as f32 - 0.5 }).collect();
    for client in clients() {
        let (a, b) = (client.array(&x, &[n, k]).expect("it fits"), client.array(&y, &[k, m]).expect("it fits"));
        let found = products(&a, &b).and_then(|out| out.to_vec::<f32>()).expect("it runs");
        for i in 0..n * m {
            let row = &x[i / m * k..][..k];
            let want: f32 = row.iter().enumerate().map(|(p, x)| x * y[p * m + i % m]).sum();
            if client.kind() != DeviceKind::Gpu || row.iter().all(|x| x.is_finite()) {
                same(found[i], want, 0.0, &format!("element {i} on {client:?}"));
            }
        }
    }
}

/// Scores of which some are masked by -inf, as softmax has them.
#[kernel(grid = (cdiv(N, 8)))]
fn weights(
    #[block([N, D] => [8, D], |i| (i, 0), fill = f32::NEG_INFINITY)] x: In<f32>,
    #[block([N, D] => [8, D], |i| (i, 0))] out: Out<f32>,
    live: i32,
) {
    let scores = select(iota::<i32>([8, D], 1).lt(live), x.load(), f32::NEG_INFINITY);
    out.store((scores - scores.max(1)).exp());
}

#[test]
fn a_constant_infinity_masks_on_every_device() {
    let (n, d, live) = (11, 6, 4);
    let x: Vec<f32> = (0..n * d).map(|i| ((i * 5) % 11) as f32).collect();
    for client in clients() {
        let scores = client.array(&x, &[n, d]).expect("it fits");
        let found = weights(&scores, live as i32).and_then(|y| y.to_vec::<f32>()).expect("it runs");
        for (row, found) in x.chunks(d).zip(found.chunks(d)) {
            let most = row[..live].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for (at, (x, found)) in row.iter().zip(found).enumerate() {
                same(*found, if at < live { (x - most).exp() } else { 0.0 }, 1e-5, "a weight");
            }
        }
    }
}

/// Quotients of positions along an axis of one element.
#[kernel(grid = (1))]
fn by_position(
    #[block([1, 8] => [1, 8], |_| (0, 0))] x: In<u32>,
    #[block([1, 8] => [1, 8], |_| (0, 0))] quotient: Out<u32>,
    #[block([1, 8] => [1, 8], |_| (0, 0))] remainder: Out<u32>,
    #[block([1, 8] => [1, 8], |_| (0, 0))] inverse: Out<f32>,
) {
    // A window whose position is known: sums with 0 are, too.
    let (zero, same) = (iota::<u32>([1, 8], 0), iota::<u32>([2, 8], 0).slice([0, 0], [1, 8]));
    quotient.store(zero / same);
    remainder.store(x.load() % zero + same % zero);
    let zero = iota::<f32>([1, 8], 0);
    inverse.store(select(x.load().lt(9), 0.5, zero.recip()));
}

#[test]
fn a_divisor_known_to_be_zero_is_no_error_of_a_shader() {
    let data: Vec<u32> = (0..8).collect();
    for client in clients() {
        let x = client.array(&data, &[1, 8]).expect("it fits");
        let (quotient, remainder, inverse) = by_position(&x).expect("it runs");
        assert_eq!(quotient.to_vec::<u32>(), Ok(vec![u32::MAX; 8]), "{client:?}");
        assert_eq!(remainder.to_vec::<u32>(), Ok(data.clone()), "{client:?}");
        assert_eq!(inverse.to_vec::<f32>(), Ok(vec![0.5; 8]), "{client:?}");
    }
}
