//! Mistakes make arrays that hold the message, with the line of the call.
use crate::prelude::*;
use crate::{jit, ops};

#[track_caller]
fn check(found: &Array, line: u32, words: &str) {
    let text = found.to_vec::<f32>().expect_err("it is wrong").to_string();
    let place = format!("{}:{line}:", file!());
    assert!(text.starts_with(&place) && text.contains(words), "expected {place} .. {words}, found {text}");
}

#[test]
fn mistakes_name_the_line_of_the_call() {
    let array = |shape: &[usize]| Client::cpu().full(shape, 1.0f32).expect("it fits");
    let (x, y) = (array(&[2, 3]), array(&[4]));
    let integers = Client::cpu().array(&[1, 2], &[2]).expect("it fits");
    let truths = Client::cpu().array(&[true, false], &[2]).expect("it fits");
    let none: [Array; 0] = [];
    let cases: Vec<(Array, u32, &str)> = vec![
        (x.index((0, 0, 0)), line!(), "an index with 3 positions and ranges of f32[2,3]"),
        (x.index((.., -4)), line!(), "position -4 along axis 1 of f32[2,3]"),
        (x.index(ops::by(.., 0)), line!(), "a range with step 0"),
        (x.index((ops::Item::Rest, ops::Item::Rest)), line!(), "`Rest` once"),
        (ops::concatenate(&[&x, &y], 0), line!(), "all other axes are the same"),
        (ops::concatenate(&none, 0), line!(), "no array to put together"),
        (ops::stack(&[&x, &y], 0), line!(), "`stack` of arrays of shapes [2, 3] and [4]"),
        (x.expand_dims(4), line!(), "a new axis at 4 of an array of shape [2, 3]"),
        (x.index((.., 3..)).argmax(1), line!(), "`argmax` along axis 1 of f32[2,0]"),
        (x.split(2, 1)[0].clone(), line!(), "2 equal parts of 3 elements along axis 1"),
        (x.split(0, 1)[0].clone(), line!(), "0 equal parts of 3 elements along axis 1"),
        (x.array_split(0, 1)[0].clone(), line!(), "0 equal parts"),
        (x.tile(&[usize::MAX / 2, 1]), line!(), "more than 2^31 - 1 elements"),
        (x.repeat(1 << 40, 0), line!(), "more than 2^31 - 1 elements"),
        (y.vander(usize::MAX), line!(), "more than 2^31 - 1 elements"),
        (x.pad(&[(usize::MAX, 0)], 0), line!(), "a pad by -1"),
        (ops::zeros(&[1 << 20, 1 << 20], DType::F32), line!(), "more than 2^31 - 1 elements"),
        (ops::eye(1 << 40, 0, 0, DType::F32), line!(), "more than 2^31 - 1 elements"),
        (ops::arange(0, 1e18, 1, DType::F32), line!(), "more than 2^31 - 1 elements"),
        (x.unstack(2)[0].clone(), line!(), "axis 2 of an array of rank 2"),
        (x.delete(2, 0), line!(), "position 2 along axis 0"),
        (x.insert(0, &y, 0), line!(), "does not broadcast to [3]"),
        (x.squeeze(1), line!(), "squeeze of axis 1 of f32[2,3]"),
        (x.pad(&[(0, 0), (0, 0), (0, 0)], 0), line!(), "a pad of f32[2,3] by 3 pairs"),
        (x.rot90(1, [0, -2]), line!(), "a plane of axis 0 alone"),
        (integers.at(0).add(0.5), line!(), "the number 0.5 in an array of i32"),
        (integers.at(&integers).set(&y), line!(), "elements of f32[4] in an array of i32"),
        (integers.at(integers.gt(1)).multiply(2.0), line!(), "the number 2.0 in an array of i32"),
        (truths.at(ops::by(.., 2)).set(&y), line!(), "elements of f32[4] in an array of bool"),
        (integers.put(&integers, 0.5), line!(), "the number 0.5 in an array of i32"),
        (integers.put_along_axis(&integers, 0.5, 0), line!(), "the number 0.5 in an array of i32"),
        (y.at(&integers).set(&x), line!(), "a broadcast of f32[2,3] to [2]"),
        (x.sort(2), line!(), "axis 2 of an array of rank 2"),
        (x.top_k(4, -1).0, line!(), "the 4 largest elements along axis 1 of [2, 3]"),
        (x.partition(3, 1), line!(), "position 3 along axis 1 of [2, 3]"),
        (ops::lexsort(&[&x, &y], 0), line!(), "arrays of shapes [4] and [2, 3]"),
        (ops::lexsort(&none, 0), line!(), "no array to sort"),
        (ops::sort_together(&[&x], 2, 0)[0].clone(), line!(), "2 keys of 1 arrays"),
        (ops::sort_together(&[&x], 0, 0)[0].clone(), line!(), "no key to sort by"),
        (x.searchsorted(&y, ops::Side::Left), line!(), "searchsorted in a table of f32[2,3]"),
        (y.histogram(&y.index(..1)), line!(), "a histogram of 1 edges"),
        (y.interp(&y, &y.index(..3)), line!(), "as many values as points"),
        (x.quantile(&x, 0, ops::QuantileMethod::Linear), line!(), "quantiles at f32[2,3]"),
        (x.quantile(true, 0, ops::QuantileMethod::Linear), line!(), "quantiles at true"),
        (x.index(2..).median(..), line!(), "a quantile over no elements"),
        (y.index(4..).unique(2, None), line!(), "2 elements of a set without any"),
        (y.unique(2, Some((&y).into())), line!(), "a set filled with f32[4]"),
        (x.glu(1), line!(), "an even number of elements"),
        (x.dot(&y), line!(), "axis 1 of f32[2,3] and axis 0 of f32[4]"),
        (x.cross(&y), line!(), "the last axis of both has 3 elements"),
        (x.tensordot(&y, &[0, 1], &[0]), line!(), "tensordot over 2 and 1 axes"),
        (ops::einsum("ii->i", &[&x]), line!(), "`i` names axes of 2 and 3 elements"),
        (ops::einsum(".i->i", &[&x]), line!(), "dots in the subscripts \".i\""),
        (ops::einsum("...i...->i", &[&x]), line!(), "dots in the subscripts \"...i...\""),
        (ops::einsum("...i->i.", &[&x]), line!(), "dots in the result \"i.\""),
        (ops::einsum("ij...k", &[&x]), line!(), "subscripts \"ij...k\" of an array of 2 axes"),
        (ops::einsum("i...,...->i", &[&x, &y]), line!(), "`...` names axes of 3 and 4 elements"),
        (ops::einsum("ij->ii", &[&x]), line!(), "`i` of the result"),
        (ops::einsum("ij-k", &[&x]), line!(), "`-` in the subscripts"),
        (x.cumsum(ops::reverse(2)), line!(), "axis 2 of an array of rank 2"),
        (x.cumlogsumexp(-3), line!(), "axis -3 of an array of rank 2"),
        (ops::einsum("ij,jk->ik", &[&x]), line!(), "of 1 arrays"),
        (ops::einsum("ij,i->j", &[&x, &y]), line!(), "`i` names axes of 2 and 4 elements"),
        (ops::einsum("ij->k", &[&x]), line!(), "`k` of the result"),
        (x.take_along_axis(&y, 0), line!(), "integers of the same rank"),
        (x.take(&y, 0), line!(), "positions are integers; for a mask there are `select`"),
        (x.index(&truths), line!(), "positions of bool[2]"),
        (x.take(&integers, 2), line!(), "axis 2 of an array of rank 2"),
        (x.index((&integers, 5)), line!(), "position 5 along axis 1 of f32[2,3]"),
        (x.index((&integers, 0, 0)), line!(), "an index with 3 positions and ranges of f32[2,3]"),
        (x.at(&integers).set(&y), line!(), "[4] does not broadcast"),
        (x.at((.., &truths)).set(1.0), line!(), "a mask of [2] for f32[2,3]"),
        (truths.at(&integers).add(true), line!(), "cast it first"),
        (x.put_along_axis(&integers, 1.0, 0), line!(), "integers of the same rank"),
        (x.compress(&truths, 2, 1), line!(), "axis 2 of an array of rank 2"),
        (x.extract(&truths, 1), line!(), "a condition of bool[2] for f32[2,3]"),
        (x.segment_sum(&y, 2), line!(), "the segments of f32[2,3] are f32[4]"),
        (x.bincount(3), line!(), "the counts of f32[2,3]"),
        (x.sum(..).nonzero(1, 0)[0].clone(), line!(), "at least 1 axis"),
        (ops::choose(&integers, &none, ops::IndexMode::Clip), line!(), "no array to choose from"),
        (ops::select_first(&[&truths], &none.each_ref(), 0), line!(), "1 conditions of 0 arrays"),
        (y.fill_diagonal(0), line!(), "the diagonal of f32[4]"),
        (x.average(0, &y), line!(), "weights of shape [4] for an average of [2, 3]"),
        (y.tril(0), line!(), "a triangle of f32[4]"),
        (ops::arange(0, 1, 0, DType::F32), line!(), "arange from 0 to 1 by 0"),
        (ops::geomspace(-1, 1, 3, DType::F32), line!(), "two numbers of one sign"),
        (integers.pow(-1), line!(), "integers to the power -1"),
        (&truths - &truths, line!(), "`sub` of truth values"),
        (x.diag(0).diagonal(0, 0, 0), line!(), "the diagonal of axis 0 alone of f32[2]"),
    ];
    for (found, line, words) in &cases {
        check(found, *line, words);
    }
    assert!(ops::broadcast_shape(&[&[2, 3], &[4]]).expect_err("they differ").to_string().contains("do not broadcast"));
    assert_eq!(ops::broadcast_shape(&[&[2, 1], &[4]]).expect("they fit"), [2, 4]);
}

#[test]
fn a_mistake_in_a_traced_function_is_its_error() {
    let x = Client::cpu().full(&[2, 3], 1.0f32).expect("it fits");
    let line = line!() + 1;
    let f = jit(|x: &Array| x.index(1..).roll(1, 5).sum(..));
    let text = f(&x).expect_err("there is no axis 5").to_string();
    assert!(text.starts_with(&format!("{}:{line}:", file!())) && text.contains("axis 5"), "{text}");
}
