//! Search for infinities and NaN in memory.
use super::strips::compiled;
use super::tile::{StridedTile, TileLoops};
use crate::raw;
use pallas_ir::DType;
use std::ops::BitAnd;

/// Returns true if no element is infinite or NaN; always true for integers.
///
/// # Safety
/// The tile's memory holds the shape, of elements of this type.
pub(super) unsafe fn is_tile_finite(dtype: DType, tile: &StridedTile, shape: &[usize]) -> bool {
    // SAFETY: the caller's; a word is as wide as an element.
    unsafe {
        match dtype {
            DType::F16 => are_words_finite(0x7c00u16, tile, shape),
            DType::Bf16 => are_words_finite(0x7f80u16, tile, shape),
            DType::F32 => are_words_finite(0x7f80_0000u32, tile, shape),
            DType::F64 => are_words_finite(0x7ff0u64 << 48, tile, shape),
            _ => true,
        }
    }
}

/// Returns true if no word has all bits of the exponent set, so that no float is infinite or NaN.
///
/// # Safety
/// The tile's memory holds the shape, of words.
unsafe fn are_words_finite<W: FloatBits>(exponent_mask: W, tile: &StridedTile, shape: &[usize]) -> bool {
    let (run, mut found) = (fastest_search_row_for_nonfinite::<W>(), false);
    let (tile, sizes) = tile.with_axes_in_memory_order(shape);
    let nest = TileLoops::new(&sizes[..shape.len()], [&tile]);
    let (n, by) = (nest.inner_extent(), nest.inner_stride(0));
    nest.for_each_row(|[at]| {
        // SAFETY: the caller's.
        unsafe { run(tile.start.cast::<W>().offset(at), by, n, exponent_mask, &mut found) };
    });
    !found
}

/// An unsigned integer with the bits of a float.
trait FloatBits: Copy + BitAnd<Output = Self> + PartialEq {}
impl FloatBits for u16 {}
impl FloatBits for u32 {}
impl FloatBits for u64 {}

/// Sets `found` to true if a word of a row has all bits of the exponent, so that its float is infinite or NaN; else
/// leaves it.
///
/// # Safety
/// There are `n` words at this stride.
#[inline(always)]
unsafe fn search_row_for_nonfinite<W: FloatBits>(
    x: *const W,
    stride: isize,
    n: usize,
    exponent_mask: W,
    found: &mut bool,
) {
    // SAFETY: the caller's.
    unsafe {
        *found |= match stride {
            1 => raw::slice(x, n).iter().fold(false, |found, &x| found | (x & exponent_mask == exponent_mask)),
            _ => (0..n as isize).any(|i| *x.offset(i * stride) & exponent_mask == exponent_mask),
        };
    }
}
compiled! { fastest_search_row_for_nonfinite<W: FloatBits>() = search_row_for_nonfinite(x: *const W, by: isize, n: usize, bits: W, found: &mut bool) }
