//! Sums of the lanes of vectors.
use std::arch::x86_64::*;

/// Adds up the lanes of each of eight vectors, and returns the sums in order.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn horizontal_sums_of_eight(v: [__m256; 8]) -> __m256 {
    let four = |v: &[__m256]| _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    let (low, high) = (four(&v[..4]), four(&v[4..]));
    _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
}
/// Adds up the lanes of each of sixteen vectors, and returns the sums in order.
#[inline]
#[target_feature(enable = "avx512f,avx2")]
pub(super) fn horizontal_sums_of_sixteen(v: [__m512; 16]) -> __m512 {
    // Half of the sums of two vectors, each in its own lanes.
    let two = |a, b| _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    let half =
        |a, b| _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    let four = |v: &[__m512]| half(two(v[0], v[1]), two(v[2], v[3]));
    let lanes = |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    lanes(lanes(four(&v[..4]), four(&v[4..8])), lanes(four(&v[8..12]), four(&v[12..])))
}
