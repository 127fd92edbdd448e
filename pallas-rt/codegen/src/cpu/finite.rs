//! Search for infinities and NaN in memory.
use super::strips::compiled;
use super::tile::{Nest, Tile};
use crate::raw;
use pallas_ir::DType;
use std::ops::BitAnd;

/// Returns true if no element is infinite or NaN; always true for integers.
///
/// # Safety
/// The tile's memory holds the shape, of elements of this type.
pub(super) unsafe fn is_finite(dtype: DType, tile: &Tile, shape: &[usize]) -> bool {
    // SAFETY: the caller's; a word is as wide as an element.
    unsafe {
        match dtype {
            DType::F16 => has_zero_in_each(0x7c00u16, tile, shape),
            DType::Bf16 => has_zero_in_each(0x7f80u16, tile, shape),
            DType::F32 => has_zero_in_each(0x7f80_0000u32, tile, shape),
            DType::F64 => has_zero_in_each(0x7ff0u64 << 48, tile, shape),
            _ => true,
        }
    }
}

/// Returns true if no word has all bits of `exponent`, so that no float is infinite or NaN.
///
/// # Safety
/// The tile's memory holds the shape, of words.
unsafe fn has_zero_in_each<W: Word>(exponent: W, tile: &Tile, shape: &[usize]) -> bool {
    let (run, mut found) = (fastest_row::<W>(), false);
    let (tile, sizes) = tile.in_memory_order(shape);
    let nest = Nest::new(&sizes[..shape.len()], [&tile]);
    let (n, by) = (nest.inner(), nest.inner_stride(0));
    nest.rows(|[at]| {
        // SAFETY: the caller's.
        unsafe { run(tile.start.cast::<W>().offset(at), by, n, exponent, &mut found) };
    });
    !found
}

/// An unsigned integer with the bits of a float.
trait Word: Copy + BitAnd<Output = Self> + PartialEq {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for u64 {}

/// Sets `found` if a word of a row has all of these bits.
///
/// # Safety
/// There are `n` words, `by` words apart.
#[inline(always)]
unsafe fn row<W: Word>(x: *const W, by: isize, n: usize, bits: W, found: &mut bool) {
    // SAFETY: the caller's.
    unsafe {
        *found |= match by {
            1 => raw::slice(x, n).iter().fold(false, |found, &x| found | (x & bits == bits)),
            _ => (0..n as isize).any(|i| *x.offset(i * by) & bits == bits),
        };
    }
}
compiled! { fastest_row<W: Word>() = row(x: *const W, by: isize, n: usize, bits: W, found: &mut bool) }
