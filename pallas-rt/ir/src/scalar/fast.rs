//! CPU lane functions: branch-free, `#[inline(always)]`, so that a caller with AVX2 vectorises them.

#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut y = c[0];
    for k in &c[1..] {
        y = y.mul_add(x, *k);
    }
    y
}

/// eˣ within 2 ulp (Cephes' polynomial); flushes below the normal range.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let c = if x > 88.8 { 88.8 } else { x };
    let c = if c < -87.33 { -87.33 } else { c };
    // Adding 1.5·2²³ rounds to nearest even and leaves the integer in the low bits. (`as i32` saturates: 4 times slower.)
    const MAGIC: f32 = 12_582_912.0;
    let shifted = c.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693_359_4, c);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = poly(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5]);
    let p = p.mul_add(r * r, r) + 1.0;
    // Two factors, so that 2^128 does not overflow before the product does. Wrapping: a NaN brings any bits.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let y = p * pow2(half) * pow2(n.wrapping_sub(half));
    let y = if x < -87.33 { 0.0 } else { y };
    if x > 88.8 { f32::INFINITY } else { y }
}

#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// tanh as Eigen's rational function, 13/6.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let c = if x > 7.905_311 { 7.905_311 } else { x };
    let c = if c < -7.905_311 { -7.905_311 } else { c };
    let s = c * c;
    let p = poly(
        s,
        [-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_525e-3],
    );
    let q = poly(s, [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3]);
    c * p / q
}

/// erf as XLA's rational function on [-4, 4].
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let c = if x > 4.0 { 4.0 } else { x };
    let c = if c < -4.0 { -4.0 } else { c };
    let s = c * c;
    let p = poly(
        s,
        [
            -2.726_142_3e-10,
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_4e-5,
            -7.349_906_3e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ],
    );
    let q = poly(s, [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2]);
    c * p / q
}
