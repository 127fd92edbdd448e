//! Factors multiplied back, solutions put into their equations, derivatives against differences and batches against
//! loops.
use super::*;
use crate::ops::Item::Rest;
use crate::prelude::*;
use crate::{grad, hessian, jit, keep, random, vmap};

/// Extents: empty, one, odd, a block, beyond one and two blocks.
const EXTENTS: &[usize] = &[0, 1, 2, 5, 32, 33, 75];

fn normal(seed: u32, shape: &[usize], dtype: DType) -> Array {
    random::normal(random::key(seed.into()), shape, dtype)
}

/// A symmetric matrix whose eigenvalues are 1 and more.
fn definite(seed: u32, shape: &[usize], dtype: DType) -> Array {
    let x = normal(seed, shape, dtype);
    let n = shape[shape.len() - 1];
    x.matmul(&x.t()) + ops::identity(n, dtype)
}

fn numbers(x: &Array) -> Vec<f64> {
    x.cast(DType::F64).to_vec::<f64>().expect("it runs")
}

/// Distance of two arrays, relative to the larger one's greatest element.
fn distance(a: &Array, b: &Array) -> f64 {
    assert_eq!(a.shape(), b.shape());
    if a.shape().contains(&0) {
        return 0.0;
    }
    let scale = numbers(&b.abs().max(..))[0].max(1.0);
    let error = numbers(&(a - b).abs().max(..))[0] / scale;
    assert!(numbers(a).iter().all(|x| x.is_finite()), "{a}");
    error
}

fn limit(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-11 } else { 1e-4 }
}

/// Calls a check with matrices of many shapes: their batch, rows, columns, and element type.
fn shapes(check: impl Fn(&[usize], DType)) {
    for dtype in [DType::F32, DType::F64] {
        for &n in EXTENTS {
            check(&[n, n], dtype);
            check(&[n, 3], dtype);
            check(&[4, n], dtype);
        }
        check(&[2, 3, 5, 5], dtype);
        check(&[0, 4, 4], dtype);
    }
}

fn squares(check: impl Fn(&[usize], DType)) {
    shapes(|shape, dtype| {
        if shape[shape.len() - 1] == shape[shape.len() - 2] {
            check(shape, dtype);
        }
    });
}

#[test]
fn solutions_fulfil_their_equations() {
    squares(|shape, dtype| {
        let n = shape[shape.len() - 1];
        let a = normal(1, shape, dtype) + ops::identity(n, dtype) * 2.0;
        let b = normal(2, &[n, 3], dtype);
        let wide = b.broadcast_to(&[&shape[..shape.len() - 2], &[n, 3]].concat());
        let far = limit(dtype) * 10.0;
        let case = format!("{dtype}{shape:?}");
        assert!(distance(&a.matmul(&solve(&a, &b)), &wide) < far, "solve {case}");
        let (lower, upper) = (a.tril(0) + ops::identity(n, dtype) * 8.0, a.triu(0) + ops::identity(n, dtype) * 8.0);
        // What lies in the other triangle is not read.
        let spoilt = |x: &Array, kept: &Array| ops::select(&kept.ne(0.0), x, f64::NAN);
        let x = triangular_solve(&spoilt(&lower, &ops::tri(n, n, 0, dtype)), &b, Triangle::Lower);
        assert!(distance(&lower.matmul(&x), &wide) < far, "lower {case}");
        let x = triangular_solve(&spoilt(&upper, &ops::tri(n, n, 0, dtype).t()), &b, Triangle::Upper);
        assert!(distance(&upper.matmul(&x), &wide) < far, "upper {case}");
        let identity = ops::identity(n, dtype).broadcast_to(shape);
        assert!(distance(&a.matmul(&inv(&a)), &identity) < far, "inv {case}");
        let s = definite(3, shape, dtype);
        let l = cholesky(&s);
        assert!(distance(&l.matmul(&l.t()), &s) < far, "cholesky {case}");
        assert!(distance(&l.triu(1), &l.zeros_like()) == 0.0, "cholesky {case}");
        assert!(distance(&s.matmul(&cho_solve(&l, &b)), &wide) < far, "cho_solve {case}");
    });
}

#[test]
fn factors_multiply_to_the_matrix() {
    shapes(|shape, dtype| {
        let [.., m, n] = *shape else { unreachable!("a matrix") };
        let (batch, k, far) = (&shape[..shape.len() - 2], m.min(n), limit(dtype));
        let a = normal(4, shape, dtype);
        let case = format!("{dtype}{shape:?}");
        let is_orthonormal = |q: &Array, columns: usize| {
            let identity = ops::identity(columns, dtype).broadcast_to(&[batch, &[columns, columns]].concat());
            assert!(distance(&q.t().matmul(q), &identity) < far, "{case}");
        };
        for (width, (q, r)) in [(k, qr(&a)), (m, qr_complete(&a))] {
            assert_eq!(q.shape(), [batch, &[m, width]].concat(), "{case}");
            assert!(distance(&q.matmul(&r), &a) < far, "qr {case}");
            assert!(distance(&r.tril(-1), &r.zeros_like()) == 0.0, "qr {case}");
            is_orthonormal(&q, width);
        }
        for (left, right, (u, s, vt)) in [(k, k, svd(&a)), (m, n, svd_complete(&a))] {
            assert_eq!(
                (u.shape(), vt.shape()),
                (&[batch, &[m, left]].concat()[..], &[batch, &[right, n]].concat()[..])
            );
            let product = (u.index((Rest, ..k as i64)) * s.expand_dims(-2)).matmul(&vt.index((Rest, ..k as i64, ..)));
            assert!(distance(&product, &a) < far, "svd {case}");
            assert!(numbers(&s.diff(1, -1)).iter().all(|step| *step <= 0.0), "svd {case}");
            is_orthonormal(&u, left);
            is_orthonormal(&vt.t(), right);
        }
        let p = pinv(&a);
        assert!(distance(&a.matmul(&p).matmul(&a), &a) < far * 10.0, "pinv {case}");
        if m == n {
            let symmetric = &a + a.t();
            let (w, v) = eigh(&a);
            assert!(distance(&(symmetric.matmul(&v) * 0.5), &(&v * w.expand_dims(-2))) < far, "eigh {case}");
            is_orthonormal(&v, n);
        }
    });
}

/// Matrices without full rank, with equal values, of extreme sizes.
#[test]
fn unusual_matrices_have_factors() {
    let dtype = DType::F64;
    let column = normal(5, &[6, 1], dtype);
    let cases = [
        ("zeros", ops::zeros(&[4, 4], dtype)),
        ("identity", ops::identity(5, dtype)),
        ("rank 1", column.matmul(&column.t())),
        ("tall of rank 1", column.matmul(&ops::ones(&[1, 3], dtype))),
        ("huge", normal(6, &[4, 3], dtype) * 1e150),
        ("tiny", normal(6, &[4, 3], dtype) * 1e-150),
        ("signs", ops::identity(4, dtype).flip(1)),
    ];
    for (name, a) in &cases {
        let (u, s, vt) = svd(a);
        let scale = a.abs().max(..) + 1e-300;
        let product = (u.clone() * &s).matmul(&vt);
        assert!(numbers(&((product - a).abs().max(..) / &scale))[0] < 1e-12, "svd of {name}");
        let k = s.shape()[0];
        assert!(distance(&u.t().matmul(&u), &ops::identity(k, dtype)) < 1e-12, "svd of {name}");
        let (q, r) = qr(a);
        assert!(numbers(&((q.matmul(&r) - a).abs().max(..) / &scale))[0] < 1e-12, "qr of {name}");
        if a.shape()[0] == a.shape()[1] {
            let (w, v) = eigh(a);
            assert!(distance(&a.matmul(&v), &(&v * w)) < 1e-12, "eigh of {name}");
        }
    }
    let rank = |i: usize| matrix_rank(&cases[i].1).to_vec::<i32>().expect("it runs")[0];
    assert_eq!([0, 1, 2, 3].map(rank), [0, 5, 1, 1]);
    // Not positive definite: NaN, and only in its own matrix of a batch.
    let pair = ops::stack(&[ops::identity(2, dtype), -ops::identity(2, dtype)], 0);
    assert_eq!(numbers(&cholesky(&pair.index(0))), [1.0, 0.0, 0.0, 1.0]);
    let both = numbers(&cholesky(&pair));
    assert_eq!(both[..4], [1.0, 0.0, 0.0, 1.0]);
    assert!([4, 6, 7].iter().all(|&i| both[i].is_nan()) && both[5] == 0.0, "{both:?}");
    // Singular: no determinant, no solution.
    assert!(numbers(&det(&cases[2].1))[0].abs() < 1e-12);
    let (sign, log) = slogdet(&cases[0].1);
    assert_eq!((numbers(&sign)[0], numbers(&log)[0]), (0.0, f64::NEG_INFINITY));
}

type Loss = fn(&Array) -> Array;

/// Functions of a matrix that are numbers, for matrices of 4 rows and columns, or of 5 by 3 and 3 by 5.
const LOSSES: &[(&str, [usize; 2], Loss)] = &[
    ("solve", [4, 4], |a| solve(&shifted(a), &weights(a)).square().sum(..)),
    ("solve_right_side", [4, 4], |b| solve(&shifted(&weights(b)), b).square().sum(..)),
    ("lower", [4, 4], |a| triangular_solve(&shifted(a), &weights(a), Triangle::Lower).square().sum(..)),
    ("upper", [4, 4], |a| triangular_solve(&shifted(a), &weights(a), Triangle::Upper).square().sum(..)),
    ("inv", [4, 4], |a| (inv(&shifted(a)) * weights(a)).sum(..)),
    ("det", [4, 4], |a| det(&shifted(a))),
    ("slogdet", [4, 4], |a| slogdet(&shifted(a)).1),
    ("cholesky", [4, 4], |a| (cholesky(&positive(a)) * weights(a)).sum(..)),
    ("cho_solve", [4, 4], |a| cho_solve(&cholesky(&positive(a)), &weights(a)).square().sum(..)),
    ("qr", [5, 3], |a| {
        let (q, r) = qr(a);
        (q * weights(a)).sum(..) + r.square().sum(..) + r.sum(..)
    }),
    ("qr_wide", [3, 5], |a| {
        let (q, r) = qr(a);
        (q.matmul(&r) * r.exp() * weights(a)).sum(..)
    }),
    ("qr_complete", [4, 4], |a| (qr_complete(a).0 * weights(a)).sum(..)),
    ("eigh_values", [4, 4], |a| (eigh(a).0 * ops::arange(1, 5, 1, a.dtype())).sum(..)),
    ("eigh_projector", [4, 4], |a| {
        let v = eigh(a).1.index((.., ..2));
        (v.matmul(&v.t()) * weights(a)).sum(..)
    }),
    ("svdvals", [5, 3], |a| (svdvals(a) * ops::arange(1, 4, 1, a.dtype())).sum(..)),
    ("svd_tall", [5, 3], |a| projector(a)),
    ("svd_wide", [3, 5], |a| projector(a)),
    ("pinv", [5, 3], |a| (pinv(a) * weights(a).t()).sum(..)),
    ("pinv_wide", [3, 5], |a| (pinv(a) * weights(a).t()).sum(..)),
    ("nuclear", [5, 3], |a| matrix_norm(a, MatrixNorm::Nuclear)),
    ("power", [4, 4], |a| (matrix_power(&shifted(a), -3) * weights(a)).sum(..)),
];

fn weights(like: &Array) -> Array {
    let n = like.shape().iter().product::<usize>() as i32;
    let flat = (ops::arange(0, n, 1, like.dtype()) * 1.7).sin();
    flat.reshape(like.shape())
}
fn shifted(a: &Array) -> Array {
    a + ops::identity(a.shape()[1], a.dtype()) * 3.0
}
fn positive(a: &Array) -> Array {
    a.matmul(&a.t()) + ops::identity(a.shape()[0], a.dtype())
}
/// A function of the first left and right singular vectors that does not depend on their signs.
fn projector(a: &Array) -> Array {
    let (u, _, vt) = svd(a);
    let product = u.index((.., ..1)).matmul(&vt.index((..1, ..)));
    (product * weights(a)).sum(..)
}

#[test]
fn derivatives_equal_differences() {
    for (name, [m, n], loss) in LOSSES {
        let a = normal(7, &[*m, *n], DType::F64);
        let way = normal(8, &[*m, *n], DType::F64);
        let slope = grad(move |a: &Array| loss(a))(&a).unwrap_or_else(|e| panic!("{name}: {e}"));
        let step = 1e-5;
        let ahead = |by: f64| numbers(&loss(&(&a + &way * by)))[0];
        let difference = (ahead(step) - ahead(-step)) / (2.0 * step);
        let found = numbers(&(slope * &way).sum(..))[0];
        assert!((found - difference).abs() < 1e-6 * difference.abs().max(1.0), "{name}: {found} for {difference}");
    }
}

#[test]
fn second_derivatives_equal_differences() {
    for (name, [m, n], loss) in LOSSES.iter().filter(|(name, ..)| ["solve", "slogdet", "cholesky"].contains(name)) {
        let a = normal(7, &[*m, *n], DType::F64);
        let way = normal(8, &[*m, *n], DType::F64);
        let flat = a.reshape(&[m * n]);
        let shape = [*m, *n];
        let of_flat = move |x: &Array| loss(&x.reshape(&shape));
        let second = hessian(of_flat)(&flat).unwrap_or_else(|e| panic!("{name}: {e}"));
        let w = way.reshape(&[m * n]);
        let found = numbers(&second.matvec(&w).vecdot(&w))[0];
        let step = 1e-4;
        let at = |by: f64| numbers(&loss(&(&a + &way * by)))[0];
        let difference = (at(step) - 2.0 * at(0.0) + at(-step)) / (step * step);
        assert!((found - difference).abs() < 1e-4 * difference.abs().max(1.0), "{name}: {found} for {difference}");
    }
}

#[test]
fn batches_equal_loops_and_compiled_functions() {
    for (name, [m, n], loss) in LOSSES {
        let many = normal(9, &[3, *m, *n], DType::F64);
        let value = move |a: &Array| loss(a);
        let mapped = vmap(value)(&many).unwrap_or_else(|e| panic!("{name}: {e}"));
        let slopes = vmap(move |a: &Array| grad(value)(a))(&many).unwrap_or_else(|e| panic!("{name}: {e}"));
        for i in 0..3 {
            let one = many.index(i);
            let compiled = jit(value)(&one).expect("it compiles");
            assert!(distance(&mapped.index(i), &loss(&one)) < 1e-9, "{name}");
            assert!(distance(&compiled, &loss(&one)) < 1e-9, "{name}");
            assert!(distance(&slopes.index(i), &grad(value)(&one).expect("it runs")) < 1e-9, "{name}");
        }
    }
}

#[test]
fn norms_and_powers() {
    let a = Array::from_slice(&[1.0f64, -2.0, 3.0, 4.0], &[2, 2]).expect("it fits");
    let norms: Vec<f64> =
        [MatrixNorm::Frobenius, MatrixNorm::One, MatrixNorm::MinusOne, MatrixNorm::Infinity, MatrixNorm::MinusInfinity]
            .into_iter()
            .map(|norm| numbers(&matrix_norm(&a, norm))[0])
            .collect();
    assert_eq!(norms, [30f64.sqrt(), 6.0, 4.0, 7.0, 3.0]);
    let (two, low) = (matrix_norm(&a, MatrixNorm::Two), matrix_norm(&a, MatrixNorm::MinusTwo));
    assert!(distance(&cond(&a), &(&two / &low)) < 1e-12);
    assert!(distance(&(&two * &low), &det(&a).abs()) < 1e-12);
    assert!(distance(&(two + low), &matrix_norm(&a, MatrixNorm::Nuclear)) < 1e-12);
    assert!(distance(&matrix_power(&a, 5), &a.matmul(&a).matmul(&a).matmul(&a).matmul(&a)) < 1e-12);
    assert!(distance(&matrix_power(&a, 0), &ops::identity(2, DType::F64)) == 0.0);
    let row = ops::ones(&[2], DType::F64);
    assert!(distance(&multi_dot(&[&row, &a, &a, &row]), &row.matmul(&a).matmul(&a).matmul(&row)) < 1e-12);
    let error = a.matmul(&lstsq(&a, &row)) - &row;
    assert!(numbers(&error.abs().max(keep(0)))[0] < 1e-12);
}

#[test]
fn mistakes_name_the_function() {
    let client = Client::cpu();
    let (tall, whole) = (client.full(&[3, 2], 1.0f32).expect("it fits"), client.full(&[2, 2], 1i32).expect("it fits"));
    let square = client.full(&[2, 2], 1.0f32).expect("it fits");
    let message = |x: Array| x.to_vec::<f32>().expect_err("a mistake").to_string();
    let texts = [
        message(cholesky(&tall)),
        message(inv(&whole)),
        message(solve(&square, &tall)),
        message(svd(&tall.index(0)).1),
        message(multi_dot(&[&square])),
    ];
    let expected = [
        "`cholesky` of matrices of 3 rows and 2 columns",
        "`inv` of i32[2, 2]",
        "the right side has as many rows as the matrix",
        "a matrix is the last two axes",
        "`multi_dot` of 1 arrays",
    ];
    for (text, expected) in texts.iter().zip(expected) {
        assert!(text.contains(expected) && text.contains("linalg/tests.rs"), "{text}");
    }
}
