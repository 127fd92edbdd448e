//! Slices of raw memory. An array without elements may have no memory, and its address is null then, of which no slice may
//! be made: every slice of raw memory is made here.

/// `len` elements from `start` on.
///
/// # Safety
/// If there are any, `start` is aligned and points at `len` initialised elements that nobody writes during `'a`.
#[inline(always)]
pub(crate) unsafe fn slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// `len` elements from `start` on, for writing.
///
/// # Safety
/// If there are any, `start` is aligned and points at `len` initialised elements that nobody else touches during `'a`.
#[inline(always)]
pub(crate) unsafe fn slice_mut<'a, T>(start: *mut T, len: usize) -> &'a mut [T] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

#[cfg(test)]
mod tests {
    use super::{slice, slice_mut};

    #[test]
    fn empty_slices_need_no_memory() {
        // SAFETY: they have no elements.
        let (empty, written) =
            unsafe { (slice::<u64>(std::ptr::null(), 0), slice_mut::<u64>(std::ptr::null_mut(), 0)) };
        assert!(empty.is_empty() && written.is_empty());
        let mut some = [1, 2, 3];
        // SAFETY: the array's elements.
        unsafe { slice_mut(some.as_mut_ptr().add(1), 2) }.fill(7);
        // SAFETY: as above.
        assert_eq!(unsafe { slice(some.as_ptr(), 3) }, [1, 7, 7]);
    }
}
