//! Structural operations by their methods.
use crate::both;
use pallas_rt::prelude::*;

/// One row of six numbers in, one out.
macro_rules! row {
    ($name:ident, |$t:ident| $body:expr) => {
        #[kernel(grid = (1))]
        fn $name(#[block([N] => [6], |_i| (0,))] x: In<f32>, #[block([N] => [6], |_i| (0,))] out: Out<f32>) {
            let $t = x.load();
            out.store($body);
        }
    };
}
/// The result of a row kernel on these numbers.
#[track_caller]
fn row(kernel: fn(&Array) -> Result<Array>, expected: [f32; 6]) {
    assert_eq!(both([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], kernel), expected);
}

row!(transposed, |t| t.reshape([2, 3]).t().reshape([6]));
row!(permuted, |t| t.reshape([1, 2, 3]).transpose([2, 0, 1]).t().reshape([6]));
row!(reversed, |t| t.reverse(0));
row!(rolled, |t| t.roll(2, 0));
row!(rolled_back, |t| t.reshape([2, 3]).roll(-4, 1).roll(2, 0).roll(-1, 0).reshape([6]));
row!(sliced, |t| concat([t.slice([4], [2]), t.strided_slice([0], [2], [3]), t.slice([1], [2])], 0));
row!(padded, |t| t.slice([0], [3]).pad([1], [2], -1.0));
row!(running, |t| t.cumsum(0));
row!(highest, |t| t.cummax(0) - t.cummin(0));
row!(products, |t| t.reshape([2, 3]).cumprod(1).reshape([6]));
row!(reduced, |t| {
    let m = t.reshape([2, 3]);
    (m * 0.0 + m.sum(1) + m.max(0) + m.min(..) + m.prod([0, 1])).reshape([6])
});
row!(positions, |t| {
    let m = t.reshape([2, 3]);
    (m * 0.0 + m.argmax(1).cast::<f32>() * 10.0 + m.argmin(0).cast::<f32>()).reshape([6])
});
row!(sorted, |t| {
    let m = t.reshape([2, 3]);
    (m.sort(1) * 10.0 + m.argsort(0).cast::<f32>() + m.argsort_descending(1).cast::<f32>() * 0.25).reshape([6])
});
row!(largest, |t| concat([t.arg_top_k(2, 0), t.reshape([2, 3]).arg_top_k(2, 1).reshape([4])], 0).cast::<f32>());
row!(taken, |t| t.take_along_axis(iota::<i32>([6], 0) * -1 + 5, 0));
row!(hot, |t| {
    let at = t.reshape([2, 3]).argmax(1);
    at.one_hot::<f32>(3).reshape([6])
});
row!(triangles, |t| {
    let m = t.reshape([2, 3]);
    (select(tril(2, 3, 0), m, 0.0) + select(triu(2, 3, 1), m * 10.0, 0.0)).reshape([6])
});
row!(logic, |t| {
    let m = (t > 3.0).reshape([2, 3]);
    let (any, all) = (m.any(1), m.all(1));
    select(any & !all, full([2, 3], 1.0), full([2, 3], 2.0)).reshape([6])
});
row!(powers, |t| t.powi(2).bitcast::<u32>().bitcast::<f32>());
row!(axes, |t| t.expand(0).squeeze(0).broadcast([6]).clamp(2.0, 4.0));
row!(batched, |t| {
    let a = t.reshape([2, 1, 3]);
    let b = t.reshape([2, 3, 1]);
    dot(a, b).reshape([2, 1]).broadcast([2, 3]).reshape([6])
});
row!(logarithms, |t| t.log2());
row!(gates, |t| t.silu() + t.mul_add(t, t));

#[test]
fn cost_counts_every_row_of_the_table() {
    let x = Array::from_slice(&[1.0f32; 6], &[6]).expect("it fits");
    let of = |kernel: fn(&Array) -> Result<Array>| {
        let cost = cost(|| kernel(&x)).expect("it is estimated");
        (cost.flops / 6, cost.transcendentals / 6)
    };
    assert_eq!(of(|x| logarithms(x)), (0, 1));
    assert_eq!(of(|x| gates(x)), (3 + 2 + 1, 1));
}

#[test]
fn shapes() {
    row(|x| transposed(x), [3.0, 1.0, 1.0, 5.0, 4.0, 9.0]);
    row(|x| permuted(x), [3.0, 1.0, 1.0, 5.0, 4.0, 9.0]);
    row(|x| reversed(x), [9.0, 5.0, 1.0, 4.0, 1.0, 3.0]);
    row(|x| rolled(x), [5.0, 9.0, 3.0, 1.0, 4.0, 1.0]);
    row(|x| rolled_back(x), [5.0, 9.0, 1.0, 1.0, 4.0, 3.0]);
    row(|x| sliced(x), [5.0, 9.0, 3.0, 1.0, 1.0, 4.0]);
    row(|x| padded(x), [-1.0, 3.0, 1.0, 4.0, -1.0, -1.0]);
    row(|x| axes(x), [3.0, 2.0, 4.0, 2.0, 4.0, 4.0]);
}

#[test]
fn folds() {
    row(|x| running(x), [3.0, 4.0, 8.0, 9.0, 14.0, 23.0]);
    row(|x| highest(x), [0.0, 2.0, 3.0, 3.0, 4.0, 8.0]);
    row(|x| products(x), [3.0, 3.0, 12.0, 1.0, 5.0, 45.0]);
    // Sums 8 and 15, column maxima 3, 5, 9, minimum 1, product 540.
    row(|x| reduced(x), [552.0, 554.0, 558.0, 559.0, 561.0, 565.0]);
    row(|x| positions(x), [21.0, 20.0, 20.0, 21.0, 20.0, 20.0]);
    row(|x| logic(x), [1.0; 6]);
    row(|x| batched(x), [26.0, 26.0, 26.0, 107.0, 107.0, 107.0]);
}

#[test]
fn orders() {
    row(|x| sorted(x), [11.5, 30.0, 40.25, 10.5, 51.25, 91.0]);
    row(|x| largest(x), [5.0, 4.0, 2.0, 0.0, 2.0, 1.0]);
}

#[test]
fn gathers_and_masks() {
    row(|x| taken(x), [9.0, 5.0, 1.0, 4.0, 1.0, 3.0]);
    row(|x| hot(x), [0.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
    row(|x| triangles(x), [3.0, 10.0, 40.0, 1.0, 5.0, 90.0]);
    row(|x| powers(x), [9.0, 1.0, 16.0, 1.0, 25.0, 81.0]);
}
