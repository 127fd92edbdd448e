//! Convolutions of images NCHW, whose features are copied side by side, of each type: also where sums are rounded.
use pallas_rt::ops;
use pallas_rt::prelude::*;

const FEATURES: usize = 48;
const SIDE: usize = 16;

#[test]
fn convolutions_of_features_that_lie_apart_are_sums_of_products() {
    let small = |n: usize, by: usize| (0..n).map(|i| ((i * by + 3) % 5) as f32 - 2.0).collect::<Vec<f32>>();
    let (x, w) = (small(FEATURES * SIDE * SIDE, 7), small(FEATURES * FEATURES * 9, 11));
    let at = |i: usize, y: isize, z: isize| {
        let inside = (0..SIDE as isize).contains(&y) && (0..SIDE as isize).contains(&z);
        if inside { x[(i * SIDE + y as usize) * SIDE + z as usize] } else { 0.0 }
    };
    let mut expected = vec![];
    for (o, y, z) in (0..FEATURES).flat_map(|o| (0..SIDE).flat_map(move |y| (0..SIDE).map(move |z| (o, y, z)))) {
        let mut sum = 0.0;
        for (i, t) in (0..FEATURES).flat_map(|i| (0..9).map(move |t| (i, t))) {
            let (row, column) = ((y + t / 3) as isize - 1, (z + t % 3) as isize - 1);
            sum += at(i, row, column) * w[(o * FEATURES + i) * 9 + t];
        }
        expected.push(sum);
    }
    let client = Client::cpu();
    let x = client.array(&x, &[1, FEATURES, SIDE, SIDE]).expect("it fits");
    let w = client.array(&w, &[FEATURES, FEATURES, 3, 3]).expect("it fits");
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64] {
        let result = ops::conv(&x.cast(dtype), &w.cast(dtype), &[1, 1], ops::Padding::Same);
        let found = result.cast(DType::F32).to_vec::<f32>().expect("f32");
        let rounded = expected.iter().map(|&sum| match dtype {
            DType::Bf16 => bf16::from_f32(sum).to_f32(),
            DType::F16 => f16::from_f32(sum).to_f32(),
            _ => sum,
        });
        assert!(found == rounded.collect::<Vec<f32>>(), "{dtype}");
    }
}
