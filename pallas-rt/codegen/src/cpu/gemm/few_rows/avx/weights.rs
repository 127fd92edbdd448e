//! Loads of B's elements of each type, converted to vectors of f32, for products with few rows.
use super::super::{HIGH_NIBBLE_MASK, LOW_NIBBLE_MASK};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// An element type of the matrix B of products with few rows, whose values f32 represents exactly.
pub(super) trait WeightElement: Copy {
    const ZERO: Self;
    /// Numbers that an element consists of (1, or 2 for a byte with two halves), which are multiplied with adjacent
    /// columns of A.
    const NUMBERS_PER_ELEMENT: usize = 1;
    /// Loads eight elements as f32. The second vector has the second number of each element; it is meaningless if
    /// `NUMBERS_PER_ELEMENT` is 1.
    ///
    /// # Safety
    /// Eight elements are at `from`; the processor has AVX2 and F16C.
    unsafe fn load_eight_as_f32(from: *const Self) -> [__m256; 2];
    /// Loads sixteen elements as f32, with results as in [`WeightElement::load_eight_as_f32`].
    ///
    /// # Safety
    /// Sixteen elements are at `from`; the processor has AVX-512 F, BW and VL.
    unsafe fn load_sixteen_as_f32(from: *const Self) -> [__m512; 2];

    /// Loads `count` elements, fewer than eight, and zeros after them.
    ///
    /// # Safety
    /// `count` elements are at `from`; the processor has AVX2 and F16C.
    #[inline(always)]
    unsafe fn load_partial_eight(from: *const Self, count: usize) -> __m256 {
        // SAFETY: the caller's.
        unsafe { Self::load_eight_as_f32(load_zero_padded::<Self, 8>(from, count).as_ptr())[0] }
    }
    /// Loads `count` elements, fewer than sixteen, and zeros after them.
    ///
    /// # Safety
    /// `count` elements are at `from`; the processor has AVX-512 F, BW and VL.
    #[inline(always)]
    unsafe fn load_partial_sixteen(from: *const Self, count: usize) -> __m512 {
        // SAFETY: the caller's.
        unsafe { Self::load_sixteen_as_f32(load_zero_padded::<Self, 16>(from, count).as_ptr())[0] }
    }

    /// Loads `8 * V` elements as f32: the first eight as the first two vectors, and so on.
    ///
    /// # Safety
    /// `8 * V` elements are at `from`; the processor has AVX2 and F16C.
    #[inline(always)]
    unsafe fn load_eights_as_f32<const V: usize>(from: *const Self) -> [[__m256; 2]; V] {
        // SAFETY: the caller's; a vector of zeros needs AVX alone.
        let mut row = [[unsafe { _mm256_setzero_ps() }; 2]; V];
        for (v, numbers) in row.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *numbers = unsafe { Self::load_eight_as_f32(from.add(8 * v)) };
        }
        row
    }
    /// Loads `16 * V` elements, in the order of columns to which [`WeightElement::permute_columns`] permutes.
    ///
    /// # Safety
    /// `16 * V` elements are at `from`; the processor has AVX-512 F, BW and VL.
    #[inline(always)]
    unsafe fn load_sixteens_as_f32<const V: usize>(from: *const Self) -> [[__m512; 2]; V] {
        // SAFETY: the caller's.
        let mut row = [[unsafe { _mm512_setzero_ps() }; 2]; V];
        for (v, numbers) in row.iter_mut().enumerate() {
            // SAFETY: the caller's.
            *numbers = unsafe { Self::load_sixteen_as_f32(from.add(16 * v)) };
        }
        row
    }
    /// Permutes the elements of vectors of adjacent columns to the order that [`WeightElement::load_sixteens_as_f32`]
    /// gives.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL.
    #[inline(always)]
    unsafe fn permute_columns<const V: usize>(columns: [__m512; V]) -> [__m512; V] {
        columns
    }
    /// Undoes the permutation of [`WeightElement::permute_columns`].
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and VL.
    #[inline(always)]
    unsafe fn unpermute_columns<const V: usize>(columns: [__m512; V]) -> [__m512; V] {
        columns
    }
}

/// Returns the first `count` elements, fewer than `N`, and zeros after them. Copies pieces of constant sizes, without
/// a call.
///
/// # Safety
/// `count` elements are at `from`.
#[inline(always)]
unsafe fn load_zero_padded<W: WeightElement, const N: usize>(from: *const W, count: usize) -> [W; N] {
    let (mut some, mut at) = ([W::ZERO; N], 0);
    // SAFETY: the caller's: pieces lie one behind the other, as many elements as `count` has.
    unsafe {
        let to = some.as_mut_ptr();
        if count & 8 != 0 {
            to.cast::<[W; 8]>().write(from.cast::<[W; 8]>().read());
            at = 8;
        }
        if count & 4 != 0 {
            to.add(at).cast::<[W; 4]>().write(from.add(at).cast::<[W; 4]>().read());
            at += 4;
        }
        if count & 2 != 0 {
            to.add(at).cast::<[W; 2]>().write(from.add(at).cast::<[W; 2]>().read());
            at += 2;
        }
        if count & 1 != 0 {
            to.add(at).write(from.add(at).read());
        }
    }
    some
}

/// Implements [`WeightElement`] for types with one number in each element, from expressions that load them and convert
/// them to f32.
macro_rules! weights {
    ($([$($bits:tt)*] $T:ty, $zero:expr, |$p:ident| $eight:expr, $sixteen:expr, |$mask:ident| $some:expr,
        |$x:ident| $wide_eight:expr, $wide_sixteen:expr $(, $more:item)*;)*) => {$(
        impl<$($bits)*> WeightElement for $T {
            const ZERO: Self = $zero;
            #[inline(always)]
            unsafe fn load_eight_as_f32($p: *const Self) -> [__m256; 2] {
                // SAFETY: the caller's.
                unsafe {
                    let $x = $eight;
                    [$wide_eight; 2]
                }
            }
            #[inline(always)]
            unsafe fn load_sixteen_as_f32($p: *const Self) -> [__m512; 2] {
                // SAFETY: the caller's.
                unsafe {
                    let $x = $sixteen;
                    [$wide_sixteen; 2]
                }
            }
            #[inline(always)]
            unsafe fn load_partial_sixteen($p: *const Self, count: usize) -> __m512 {
                let $mask = (1 << count) - 1;
                // SAFETY: the caller's: elements that the mask leaves out are not read.
                unsafe {
                    let $x = $some;
                    $wide_sixteen
                }
            }
            $($more)*
        }
    )*};
}
weights! {
    [] f32, 0.0, |p| _mm256_loadu_ps(p), _mm512_loadu_ps(p), |mask| _mm512_maskz_loadu_ps(mask, p), |x| x, x,
        #[inline(always)]
        unsafe fn load_partial_eight(from: *const f32, count: usize) -> __m256 {
            // SAFETY: the caller's: elements that the mask leaves out are not read.
            unsafe {
                let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes))
            }
        };
    [] f16, f16::ZERO, |p| _mm_loadu_si128(p.cast()), _mm256_loadu_si256(p.cast()),
        |mask| _mm256_maskz_loadu_epi16(mask, p.cast()), |x| _mm256_cvtph_ps(x), _mm512_cvtph_ps(x);
    [] bf16, bf16::ZERO, |p| _mm_loadu_si128(p.cast()), _mm256_loadu_si256(p.cast()),
        |mask| _mm256_maskz_loadu_epi16(mask, p.cast()),
        |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))),
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)));
    [] i8, 0, |p| _mm_loadl_epi64(p.cast()), _mm_loadu_si128(p.cast()), |mask| _mm_maskz_loadu_epi8(mask, p),
        |x| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
    [const MASK: u8] MaskedByte<MASK>, MaskedByte(0), |p| _mm_loadl_epi64(p.cast()), _mm_loadu_si128(p.cast()),
        |mask| _mm_maskz_loadu_epi8(mask, p.cast()),
        |x| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(mask_bytes::<MASK>(x))),
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(mask_bytes::<MASK>(x)));
}

/// A byte with two 4-bit numbers: the low half, and the high half in its place, that is 16 times as large.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct NibblePair(u8);

impl WeightElement for NibblePair {
    const ZERO: Self = NibblePair(0);
    const NUMBERS_PER_ELEMENT: usize = 2;
    #[inline(always)]
    unsafe fn load_eight_as_f32(p: *const Self) -> [__m256; 2] {
        // SAFETY: the caller's.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let [low, high] =
                [_mm256_set1_epi32(i32::from(LOW_NIBBLE_MASK)), _mm256_set1_epi32(i32::from(HIGH_NIBBLE_MASK))];
            [_mm256_cvtepi32_ps(_mm256_and_si256(bytes, low)), _mm256_cvtepi32_ps(_mm256_and_si256(bytes, high))]
        }
    }
    #[inline(always)]
    unsafe fn load_sixteen_as_f32(p: *const Self) -> [__m512; 2] {
        // SAFETY: the caller's.
        unsafe { nibbles_to_f32(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    /// Loads four vectors at a time, of which each has every fourth column: bytes are shifted within their lanes, none
    /// is widened.
    #[inline(always)]
    unsafe fn load_sixteens_as_f32<const V: usize>(from: *const Self) -> [[__m512; 2]; V] {
        // SAFETY: the caller's.
        unsafe {
            let mut row = [[_mm512_setzero_ps(); 2]; V];
            let (fours, rest) = row.as_chunks_mut::<BYTES_PER_LANE>();
            for (i, four) in fours.iter_mut().enumerate() {
                let bytes = _mm512_loadu_si512(from.add(64 * i).cast());
                *four = [
                    nibbles_to_f32(bytes),
                    nibbles_to_f32(_mm512_srli_epi32::<8>(bytes)),
                    nibbles_to_f32(_mm512_srli_epi32::<16>(bytes)),
                    nibbles_to_f32(_mm512_srli_epi32::<24>(bytes)),
                ];
            }
            for (i, x) in rest.iter_mut().enumerate() {
                *x = Self::load_sixteen_as_f32(from.add(16 * (V / BYTES_PER_LANE * BYTES_PER_LANE + i)));
            }
            row
        }
    }
    #[inline(always)]
    unsafe fn permute_columns<const V: usize>(mut columns: [__m512; V]) -> [__m512; V] {
        for four in columns.as_chunks_mut::<BYTES_PER_LANE>().0 {
            // SAFETY: the caller's.
            *four = unsafe { transpose_within_quarters(transpose_quarters(*four)) };
        }
        columns
    }
    #[inline(always)]
    unsafe fn unpermute_columns<const V: usize>(mut columns: [__m512; V]) -> [__m512; V] {
        for four in columns.as_chunks_mut::<BYTES_PER_LANE>().0 {
            // SAFETY: the caller's.
            *four = unsafe { transpose_quarters(transpose_within_quarters(*four)) };
        }
        columns
    }
}

/// Bytes of a 32-bit lane.
const BYTES_PER_LANE: usize = 4;

/// Returns the low and the high half of the lowest byte of each lane, as f32.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL.
#[inline(always)]
unsafe fn nibbles_to_f32(bytes: __m512i) -> [__m512; 2] {
    // SAFETY: the caller's; the table has sixteen numbers.
    unsafe {
        // Shuffles and conversions have ports of their own. A permutation reads the low four bits of each position.
        let low = _mm512_permutexvar_ps(bytes, _mm512_loadu_ps(NIBBLE_VALUES.as_ptr()));
        [low, _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(i32::from(HIGH_NIBBLE_MASK))))]
    }
}

/// Transposes four vectors, seen as a 4x4 matrix of 128-bit quarters.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL.
#[inline(always)]
unsafe fn transpose_quarters([a, b, c, d]: [__m512; BYTES_PER_LANE]) -> [__m512; BYTES_PER_LANE] {
    // SAFETY: the caller's.
    unsafe {
        let [low, high] = [_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b)];
        let [low_2, high_2] = [_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d)];
        [
            _mm512_shuffle_f32x4::<0x88>(low, low_2),
            _mm512_shuffle_f32x4::<0xdd>(low, low_2),
            _mm512_shuffle_f32x4::<0x88>(high, high_2),
            _mm512_shuffle_f32x4::<0xdd>(high, high_2),
        ]
    }
}

/// Transposes the 4x4 matrix of f32 that each 128-bit quarter of the four vectors forms.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL.
#[inline(always)]
unsafe fn transpose_within_quarters([a, b, c, d]: [__m512; BYTES_PER_LANE]) -> [__m512; BYTES_PER_LANE] {
    // SAFETY: the caller's.
    unsafe {
        let [low, high] = [_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)];
        let [low_2, high_2] = [_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)];
        let [low, high] = [_mm512_castps_pd(low), _mm512_castps_pd(high)];
        let [low_2, high_2] = [_mm512_castps_pd(low_2), _mm512_castps_pd(high_2)];
        [
            _mm512_castpd_ps(_mm512_unpacklo_pd(low, low_2)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(low, low_2)),
            _mm512_castpd_ps(_mm512_unpacklo_pd(high, high_2)),
            _mm512_castpd_ps(_mm512_unpackhi_pd(high, high_2)),
        ]
    }
}

/// The value of each pattern of four bits.
const NIBBLE_VALUES: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// A byte of which only the bits in `MASK` count.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct MaskedByte<const MASK: u8>(u8);

/// Clears the bits of sixteen bytes that are not in `MASK`.
#[inline(always)]
fn mask_bytes<const MASK: u8>(bytes: __m128i) -> __m128i {
    // SAFETY: every processor of this kind has SSE2.
    unsafe { _mm_and_si128(bytes, _mm_set1_epi8(MASK as i8)) }
}
