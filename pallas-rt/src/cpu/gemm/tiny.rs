//! Products of a few elements, of which a batch has many: sums in registers, no packing, and no call for each row.
use super::super::strips::compiled;
use super::{Extents, Matrix, Number, Target};

/// Multiply-adds up to which a product is worth no preparation.
pub(crate) const MOST: usize = 512;

type TinyFn<T> = unsafe fn(Extents, Matrix<T>, Matrix<T>, Target<T>);

/// `C (+)= A · B`, compiled for this machine's vectors.
///
/// # Safety
/// A, B and C hold the extents at these strides; C overlaps neither A nor B.
pub(crate) fn fastest<T: Number>() -> TinyFn<T> {
    run::<T>()
}
compiled! { run<T: Number>() -> TinyFn<T> = rows(extents: Extents, a: Matrix<T>, b: Matrix<T>, c: Target<T>) }

/// # Safety
/// See [`fastest`].
#[inline(always)]
unsafe fn rows<T: Number>(extents: Extents, a: Matrix<T>, b: Matrix<T>, c: Target<T>) {
    // SAFETY: the caller's.
    unsafe { if b.col == 1 { all::<T, true>(extents, a, b, c) } else { all::<T, false>(extents, a, b, c) } }
}

/// # Safety
/// See [`fastest`]; if they are adjacent, columns of B are.
#[inline(always)]
unsafe fn all<T: Number, const ADJACENT: bool>(extents: Extents, a: Matrix<T>, b: Matrix<T>, c: Target<T>) {
    let Extents { m, n, k } = extents;
    for i in 0..m {
        let mut j = 0;
        // SAFETY: the caller's: the row and the columns exist.
        unsafe {
            let a = a.at(i, 0);
            macro_rules! columns {
                ($width:literal) => {
                    columns::<T, $width, ADJACENT>(k, a, b.at(0, j), c.at(i, j));
                    j += $width;
                };
            }
            while j + 8 <= n {
                columns!(8);
            }
            if j + 4 <= n {
                columns!(4);
            }
            if j + 2 <= n {
                columns!(2);
            }
            if j < n {
                columns::<T, 1, ADJACENT>(k, a, b.at(0, j), c.at(i, j));
            }
        }
    }
}

/// # Safety
/// As [`all`], of one row and `W` columns.
#[inline(always)]
unsafe fn columns<T: Number, const W: usize, const ADJACENT: bool>(k: usize, a: Matrix<T>, b: Matrix<T>, c: Target<T>) {
    let mut sums = [T::default(); W];
    // SAFETY: the caller's.
    unsafe {
        for p in 0..k {
            let (x, row) = (*a.at(0, p).start, b.at(p, 0));
            for (j, sum) in sums.iter_mut().enumerate() {
                let y = if ADJACENT { *row.start.add(j) } else { *row.at(0, j).start };
                *sum = T::step(*sum, x, y);
            }
        }
        let to = &mut *c.start.cast::<[T; W]>();
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = if c.add { T::add(*to, sum) } else { sum };
        }
    }
}
