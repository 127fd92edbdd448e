//! Moves of what is computed of moved values: jitted functions have the numbers of the same operations one by one.
use super::*;
use crate::{jit, vmap};

type Function = fn(&Array, &Array) -> Array;

/// A value of two arrays, moved; the second one meets no move but the last.
const FUNCTIONS: &[(&str, Function)] = &[
    ("flips", |x, y| {
        let s = x * 2 - x.flip(0);
        (&s * &s - y).flip(0) + s
    }),
    ("other flips", |x, y| {
        let s = x * 2 - x.flip(1);
        (&s - y).flip(0) + s.flip([0, 1])
    }),
    ("rolls", |x, y| {
        let s = x.roll(3, 0) - x * 3;
        (&s * y).roll(-3, 0) - s.roll(i64::MAX, 1)
    }),
    ("other rolls", |x, y| {
        let s = x.roll(2, 0) - x * 3;
        (&s - y).roll(-2, 1) - s.roll(-1, 0)
    }),
    ("choices", |x, y| {
        let s = crate::ops::select(&x.gt(x.flip(1)), x, &(x.flip(1) * 5));
        (s.maximum(y) - x).flip(1)
    }),
    ("rows", |x, y| {
        let s = x - x.flip(1) + y.max(0);
        (&s * &y.max(0)).flip(1)
    }),
    ("transposed", |x, y| {
        let s = (x.t() * 2 - y.sum(1)) * y.t();
        s.t() * x - y
    }),
    ("turns", |x, y| {
        let all = crate::ops::stack(&[x, y, &(x - y)], 0);
        let turned = all.transpose(&[2, 0, 1]) - x.sum(1) + y.sum(..);
        (turned.maximum(3) - y.sum(1)).transpose(&[1, 2, 0]) - x
    }),
    ("a choice of rows", |x, y| {
        let row = crate::ops::select(&x.sum(1).gt(0).expand_dims(1), y.max(0), y.min(0));
        ((row * y.max(0)).cast(DType::F32) - 3).cast(x.dtype())
    }),
    ("casts", |x, y| {
        let s = (x - x.flip(0)).cast(DType::F32).cast(x.dtype());
        (s + y).flip(0)
    }),
];
/// Of square arrays.
const SQUARE: &[(&str, Function)] = &[("transposes", |x, y| {
    let s = x * 2 - x.t();
    (&s - y).t() * s
})];

fn numbers(shape: &[usize], seed: usize, dtype: DType) -> Array {
    let odd = [f32::NAN, f32::INFINITY, -0.0, 1.5];
    let count = shape.iter().product();
    let all: Vec<f32> = (0..count)
        .map(|i: usize| match (i * 5 + seed) % 13 {
            at @ 0..4 if dtype.is_float() => odd[at],
            at => at as f32 - 6.0,
        })
        .collect();
    Client::cpu().array(&all, shape).expect("it fits").cast(dtype)
}

fn are_alike(found: &Array, want: &Array) -> bool {
    let [found, want] = [found, want].map(|x| x.cast(DType::F64).to_vec::<f64>().expect("it runs"));
    let alike = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    found.len() == want.len() && found.iter().zip(&want).all(alike)
}

#[test]
fn moved_values_are_those_of_single_operations() {
    for dtype in [DType::F32, DType::Bf16, DType::F64, DType::I8, DType::I32] {
        for shape in [[1, 0], [1, 1], [5, 5], [7, 2], [4, 9], [40, 3], [3, 700]] {
            let (x, y) = (numbers(&shape, 1, dtype), numbers(&shape, 8, dtype));
            let square = if shape[0] == shape[1] { SQUARE } else { &[] };
            for &(name, f) in FUNCTIONS.iter().chain(square) {
                let failed = |e: Error| -> Array { panic!("{name} of {shape:?} {dtype}: {e}") };
                let want = f(&x, &y);
                let found = jit(move |x: &Array, y: &Array| f(x, y))(&x, &y).unwrap_or_else(failed);
                assert!(are_alike(&found, &want), "{name} of {shape:?} {dtype}");
                // Examples that share the second array.
                let both = crate::ops::stack(&[&x, &(&x * 3)], 0);
                let each = jit(vmap(move |x: &Array, y: &Array| f(x, y)).in_axes([Some(0), None]));
                let found = each(&both, &y).unwrap_or_else(failed);
                let want = crate::ops::stack(&[&want, &f(&(&x * 3), &y)], 0);
                assert!(are_alike(&found, &want), "examples of {name} of {shape:?} {dtype}");
            }
        }
    }
}

#[test]
fn a_number_for_each_feature_scales_it() {
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I8, DType::I32] {
        for (names, image, window, along) in [
            (["NCHW", "OIHW", "NCHW"], [2, 3, 4, 5], [3, 1, 1, 1], [1, 3, 1, 1]),
            (["NHWC", "HWIO", "NCHW"], [2, 4, 5, 3], [1, 1, 1, 3], [1, 3, 1, 1]),
            (["NHWC", "HWIO", "NHWC"], [1, 1, 7, 1], [1, 1, 1, 1], [1, 1, 1, 1]),
        ] {
            let (x, w) = (numbers(&image, 1, dtype), numbers(&window, 8, dtype));
            let options = crate::ops::Convolution {
                dimension_numbers: names,
                feature_group_count: w.shape().iter().product(),
                ..Default::default()
            };
            let found = crate::ops::conv_general_dilated(&x, &w, &options);
            let x = if names[0] == names[2] { x } else { x.transpose(&[0, 3, 1, 2]) };
            assert!(are_alike(&found, &(x * w.reshape(&along))), "{names:?} {dtype}");
        }
    }
}
