//! Arrays that several programs of a kernel divide.
use crate::jit;
use crate::ops::{self, between, by};
use crate::prelude::*;

/// A function, and for an element of its result the position of that element in the operand; `None` for a pad.
type Movement = (&'static str, fn(&Array) -> Array, fn(usize, usize) -> Option<usize>);

const MOVEMENTS: &[Movement] = &[
    ("flip", |x| x.flip(0), |i, n| Some(n - 1 - i)),
    ("roll", |x| x.roll(1000, 0), |i, n| Some((i + n - 1000) % n)),
    ("part", |x| x.index(by(between(5, -7), 3)), |i, _| Some(5 + 3 * i)),
    ("backwards", |x| x.index(by(.., -2)), |i, n| Some(n - 1 - 2 * i)),
    ("concatenate", |x| ops::concatenate(&[x, &(x * 1), &x.index(..3)], 0), |i, n| Some(i % n)),
    ("stack", |x| ops::stack(&[x, x], 1), |i, _| Some(i / 2)),
    ("pad", |x| x.pad(&[(3, 4)], -1), |i, n| i.checked_sub(3).filter(|&i| i < n)),
    ("tile", |x| x.tile(&[3]), |i, n| Some(i % n)),
    ("repeat", |x| x.repeat(3, 0), |i, _| Some(i / 3)),
    ("running maximum", |x| x.cummax(0), |i, _| Some(i)),
    ("take", |x| x.take_along_axis(&((x.ones_like().cumsum(0) - 1) * 7 % x.len() as i32), 0), |i, n| Some(i * 7 % n)),
];

#[test]
fn elements_of_long_axes_are_moved() {
    let n = 200_003usize;
    let x = Client::cpu().array(&(0..n as i32).collect::<Vec<_>>(), &[n]).expect("it fits");
    for &(name, f, from) in MOVEMENTS {
        // Operations around it let it share a kernel.
        let fused = jit(move |x: &Array| f(&(x + 1)) - 1);
        let alone = f(&x);
        for y in [&alone, &fused(&x).unwrap_or_else(|e| panic!("{name}: {e}"))] {
            let found = y.to_vec::<i32>().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(found.len(), alone.len());
            let pad = if std::ptr::eq(y, &alone) { -1 } else { -2 };
            for (i, &found) in found.iter().enumerate() {
                assert_eq!(found, from(i, n).map_or(pad, |i| i as i32), "{name} at {i}");
            }
        }
    }
}
