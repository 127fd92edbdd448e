//! Prefetches of the rows of B that a product with few rows reads next.
use std::arch::x86_64::*;

/// Maximum bytes, from what is multiplied to the end of what is prefetched, for prefetching into the first-level
/// cache. More lines would evict one another before they are read; they are prefetched into the second level.
const MAX_L1_PREFETCH_BYTES: usize = 1 << 13;
/// Bytes of a cache line.
pub(super) const CACHE_LINE_BYTES: usize = 64;

/// Prefetcher of the rows of B that are read next, a cache line at a time: the rows of one part of B, then those of
/// each later part.
#[derive(Clone, Copy)]
pub(super) struct RowPrefetcher<'a> {
    /// Start of the row, of its next line, and its end.
    row: *const i8,
    line: *const i8,
    end: *const i8,
    /// Distance of rows, and length of a row, in bytes.
    stride: isize,
    bytes: usize,
    /// Rows that are left in this part; rows of each later part, which begin `offset` bytes into it.
    left: usize,
    rows: usize,
    parts: &'a [*const u8],
    offset: isize,
    /// True if lines are prefetched into the first-level cache, else into the second.
    near: bool,
}

impl<'a> RowPrefetcher<'a> {
    /// Creates a prefetcher of `rows` rows of `n` elements, which begin at `offset` in each of the `parts`.
    /// `parts_between` is the number of parts from the one that is multiplied to the first of these; it decides which
    /// level of the cache they go to.
    pub(super) fn new<W>(
        parts: &'a [*const u8],
        parts_between: usize,
        offset: isize,
        row_stride: isize,
        [rows, n]: [usize; 2],
    ) -> Self {
        let (size, bytes) = (size_of::<W>() as isize, n * size_of::<W>());
        let near = (parts_between + parts.len()) * rows * bytes <= MAX_L1_PREFETCH_BYTES;
        // Rows without gaps are one.
        let (left, bytes) = if row_stride == n as isize { (1, rows * bytes) } else { (rows, bytes) };
        let (stride, offset) = (if left == rows { row_stride * size } else { bytes as isize }, offset * size);
        let row: *const i8 = parts[0].wrapping_offset(offset).cast();
        let end = row.wrapping_add(bytes);
        RowPrefetcher { row, line: row, end, stride, bytes, left, rows: left, parts: &parts[1..], offset, near }
    }
    /// Advances to the next row, of this part or of the next.
    #[inline(always)]
    fn advance_to_next_row(&mut self) {
        match self.parts {
            [part, rest @ ..] if self.left == 1 => {
                (self.row, self.left, self.parts) = (part.wrapping_offset(self.offset).cast(), self.rows, rest);
            }
            _ => (self.row, self.left) = (self.row.wrapping_offset(self.stride), self.left.max(2) - 1),
        }
        (self.line, self.end) = (self.row, self.row.wrapping_add(self.bytes));
    }
    /// Prefetches the next lines of the rows, about `bytes` bytes, after those of the last call.
    #[inline(always)]
    pub(super) fn prefetch_cache_lines(&mut self, bytes: usize) {
        for _ in 0..bytes.div_ceil(CACHE_LINE_BYTES) {
            // SAFETY: what is fetched may be anywhere; every processor of this kind has SSE.
            unsafe {
                if self.near {
                    _mm_prefetch::<_MM_HINT_T0>(self.line);
                } else {
                    _mm_prefetch::<_MM_HINT_T1>(self.line);
                }
            }
            self.line = self.line.wrapping_add(CACHE_LINE_BYTES);
            if self.line >= self.end {
                self.advance_to_next_row();
            }
        }
    }
}
