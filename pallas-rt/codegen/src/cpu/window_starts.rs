//! Search for start positions of windows that are outside of an operand.
use super::strips::compiled;
use crate::raw;

/// The `n` start positions of windows along an axis, at a stride; those from 0 to `last` are inside of the operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowStarts {
    pub(super) n: usize,
    pub(super) index: *const i32,
    pub(super) stride: isize,
    pub(super) last: i32,
}

impl WindowStarts {
    /// Returns true if at least one window starts outside of the operand.
    ///
    /// # Safety
    /// The `n` positions are there at their stride.
    pub(super) unsafe fn has_start_outside(self) -> bool {
        let mut outside = false;
        // SAFETY: the caller's.
        unsafe { fastest_detect_start_outside()(self, &mut outside) };
        outside
    }
    /// Calls `f` with the index of each start position that is outside of the operand.
    ///
    /// # Safety
    /// The `n` start positions exist at their stride.
    pub(super) unsafe fn for_each_start_outside(self, mut f: impl FnMut(isize)) {
        for i in 0..self.n as isize {
            // SAFETY: the caller's.
            if !(0..=self.last).contains(unsafe { &*self.index.offset(i * self.stride) }) {
                f(i);
            }
        }
    }
}

/// Sets `outside` to true if a start position is outside of the operand, else to false.
#[inline(always)]
unsafe fn detect_start_outside(positions: WindowStarts, outside: &mut bool) {
    let WindowStarts { n, index, stride, last } = positions;
    let highest = last.max(0);
    // Without branches, so that several positions are tested at once.
    let bits = |all: i32, p: i32| all | p.clamp(0, highest) ^ p;
    // SAFETY: the caller's.
    let all = unsafe {
        match stride {
            1 => raw::slice(index, n).iter().fold(0, |all, &p| bits(all, p)),
            _ => (0..n as isize).fold(0, |all, i| bits(all, *index.offset(i * stride))),
        }
    };
    *outside = all != 0 || last < 0;
}
compiled! { fastest_detect_start_outside<>() = detect_start_outside(positions: WindowStarts, outside: &mut bool) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_outside_are_found() {
        let numbers = [0, 3, -1, 2, 4, i32::MAX, 1, i32::MIN, 3];
        for (n, stride, last) in (0..60).flat_map(|n| [(n, 1, 3), (n, 3, 3), (n, 0, 3), (n, 1, -1), (n, 2, 0)]) {
            for odd in (0..n).step_by(7).map(Some).chain([None]) {
                let at = |i: usize| if Some(i / stride.max(1) as usize) == odd { numbers[i % 9] } else { 0 };
                let positions: Vec<i32> = (0..=n * stride.max(1) as usize).map(at).collect();
                let positions_of = WindowStarts { n, index: positions.as_ptr(), stride, last };
                let is_outside = |&i: &isize| !(0..=last).contains(&positions[(i * stride) as usize]);
                let expected: Vec<isize> = (0..n as isize).filter(is_outside).collect();
                let mut found = vec![];
                // SAFETY: the positions are there.
                unsafe {
                    assert!(
                        n == 0 || positions_of.has_start_outside() != expected.is_empty(),
                        "{positions_of:?} of {positions:?}"
                    );
                    positions_of.for_each_start_outside(|i| found.push(i));
                }
                assert_eq!(found, expected, "{positions_of:?} of {positions:?}");
            }
        }
    }
}
