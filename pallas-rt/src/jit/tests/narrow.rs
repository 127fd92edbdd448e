//! Arrays of many short rows, which the CPU computes side by side.
use super::*;

type Narrow = (&'static str, fn(&Array, &Array, &Array) -> Vec<Array>);

/// Functions of an array, of a row that all of its rows meet, and of an element for each row.
const NARROW: &[Narrow] = &[
    ("columns", |x, y, _| vec![x * y + y, (x - y).sum(0), (x * x).max(0)]),
    ("rows", |x, _, z| vec![x * z, (x + z) * (z - 1.0)]),
    ("both", |x, y, z| vec![(x - y) * z + y, (x * z - y).sum(0), (x * z).min(0)]),
    ("chains", |x, y, z| {
        let centred = x - x.mean(crate::keep(0));
        vec![&centred * y, (centred * z).abs().max(0)]
    }),
    ("turned", |x, y, z| vec![x.flip(0) * y + x, x * z - x.flip([0, 1])]),
    ("softmax", |x, y, _| vec![x.softmax(0) * y, x.log_softmax(0)]),
    ("wholes", |x, y, z| vec![x.sum(..) + y.sum(..) * z.sum(..), x * x.max(..)]),
    ("positions", |x, y, _| vec![(x * y).argmax(0), x.lt(y).any(0)]),
];

fn numbers(shape: &[usize], seed: usize, dtype: DType, client: &Client) -> Array {
    let count = shape.iter().product();
    // Sums of them are exact in every type that holds them.
    let all: Vec<f32> = (0..count).map(|i| ((i * 7 + seed) % 5) as f32 * 0.5 - 1.0).collect();
    let all = client.array(&all, shape).expect("it fits");
    if dtype.is_float() { all.cast(dtype) } else { (all * 2.0).cast(dtype) }
}

fn is_close(a: &Array, b: &Array, part: f64) -> bool {
    let [a, b] = [a, b].map(|x| x.cast(DType::F64).to_vec::<f64>().unwrap_or_else(|e| panic!("{e}")));
    a.len() == b.len()
        && a.iter().zip(&b).all(|(a, b)| a == b || (a - b).abs() <= part * b.abs().max(1.0) || a.is_nan() && b.is_nan())
}

fn check(what: &str, dtype: DType, made: impl Fn(&Client) -> Result<Vec<Array>>) {
    let [found, wanted] =
        [Client::cpu(), Client::interpreter()].map(|client| made(&client).unwrap_or_else(|e| panic!("{what}: {e}")));
    let part = match dtype {
        DType::Bf16 => 0.02,
        DType::F16 => 0.003,
        _ => 1e-4,
    };
    for (k, (a, b)) in found.iter().zip(&wanted).enumerate() {
        assert!(is_close(a, b, part), "result {k} of {what}: {a} {b}");
    }
}

/// Heights leave rows over behind those that are computed together, or are fewer.
#[test]
fn short_rows_are_those_of_the_interpreter() {
    let dtypes = [DType::F32, DType::Bf16, DType::I32, DType::F16, DType::U8, DType::F32, DType::I8];
    let mut turn = 0;
    for columns in (1..=10).chain([13, 16, 23, 24, 25, 32, 45, 64, 66, 127]) {
        for rows in [1026usize.div_ceil(columns), 2600usize.div_ceil(columns)] {
            let dtype = dtypes[turn % dtypes.len()];
            let (name, f) = NARROW[turn % NARROW.len()];
            turn += 1;
            for (name, f) in [(name, f), NARROW[2]] {
                check(&format!("{name} of {dtype}[{rows}, {columns}]"), dtype, |client| {
                    let x = numbers(&[rows, columns], 1, dtype, client);
                    let [y, z] = [[1, columns], [rows, 1]].map(|shape| numbers(&shape, 3, dtype, client));
                    jit(move |x: &Array, (y, z): &(Array, Array)| f(x, y, z))(&x, &(y, z))
                });
            }
        }
    }
}

/// In a batch, rows that are computed together are those of one example.
#[test]
fn short_rows_of_a_batch() {
    for (columns, rows) in [(2, 700), (3, 500), (7, 200), (9, 130), (20, 60)] {
        for (name, f) in NARROW {
            for axes in [[Some(0), None, Some(0)], [Some(0), Some(0), None], [Some(0), None, None]] {
                check(&format!("{name} of 3 x [{rows}, {columns}] at {axes:?}"), DType::F32, |client| {
                    let shape = |of: [usize; 2], axis: Option<isize>| {
                        [vec![3; usize::from(axis.is_some())], of.to_vec()].concat()
                    };
                    let x = numbers(&shape([rows, columns], axes[0]), 1, DType::F32, client);
                    let y = numbers(&shape([1, columns], axes[1]), 3, DType::F32, client);
                    let z = numbers(&shape([rows, 1], axes[2]), 4, DType::F32, client);
                    let f = crate::vmap(move |x: &[Array; 3]| f(&x[0], &x[1], &x[2])).in_axes([axes]);
                    jit(f)(&[x, y, z])
                });
            }
        }
    }
}

#[test]
fn gradients_of_short_rows() {
    for (columns, rows) in [(1, 1500), (2, 700), (3, 500), (9, 130), (44, 60)] {
        for dtype in [DType::F32, DType::Bf16] {
            for (name, f) in NARROW.iter().filter(|(name, _)| !["positions", "wholes"].contains(name)) {
                check(&format!("{name} of {dtype}[{rows}, {columns}]"), dtype, |client| {
                    let x = numbers(&[rows, columns], 1, dtype, client) * 0.3;
                    let [y, z] = [[1, columns], [rows, 1]].map(|shape| numbers(&shape, 3, dtype, client));
                    let loss = move |x: &[Array; 3]| {
                        let all = f(&x[0], &x[1], &x[2]);
                        let squares = all.iter().map(|x| (x.cast(DType::F32) * 0.01).sin().mean(..));
                        squares.reduce(|a, b| a + b).expect("there are results")
                    };
                    let [x, y, z] = jit(grad(loss))(&[x, y, z])?;
                    Ok(vec![x, y, z])
                });
            }
        }
    }
}

type Fold = (&'static str, fn(&Array, &[isize]) -> Array);

/// Folds along axes on both sides of one that stays, and what they are repeated for: those of rows that lie side by
/// side.
#[test]
fn folds_on_both_sides_of_an_axis() {
    const FOLDS: [Fold; 6] = [
        ("sum", |x, axes| x.sum(axes)),
        ("max", |x, axes| x.max(axes)),
        ("mean", |x, axes| x.mean(axes)),
        ("logsumexp", |x, axes| x.logsumexp(axes)),
        ("var", |x, axes| x.var(axes)),
        ("any", |x, axes| x.gt(0.5).any(axes)),
    ];
    let client = Client::cpu();
    for [a, b, c] in [[26, 90, 2], [40, 3, 9], [9, 5, 3], [300, 2, 25], [70, 1, 63], [3, 40, 7], [0, 3, 2], [30, 0, 2]]
    {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            // Nothing has no largest element.
            for (name, fold) in FOLDS.into_iter().filter(|(name, _)| a > 0 || ["sum", "any"].contains(name)) {
                let x = numbers(&[a, b, c], 1, dtype, &client);
                let y = x.transpose(&[1, 0, 2]).reshape(&[b, a * c]);
                let what = format!("{name} of {dtype}[{a}, {b}, {c}]");
                let part = if dtype == DType::F32 { 1e-4 } else { 0.02 };
                let found = jit(move |x: &Array| fold(x, &[0, 2]))(&x);
                let wanted = jit(move |y: &Array| fold(y, &[1]))(&y);
                let [found, wanted] = [found, wanted].map(|x| x.unwrap_or_else(|e| panic!("{what}: {e}")));
                assert!(is_close(&found, &wanted, part), "{what}: {found} {wanted}");
                if name == "any" {
                    continue;
                }
                let loss = move |x: &Array| (fold(x, &[0, 2]).cast(DType::F32) * 0.5).sin().sum(..);
                let of_rows = move |y: &Array| (fold(y, &[1]).cast(DType::F32) * 0.5).sin().sum(..);
                let found = jit(grad(loss))(&x).unwrap_or_else(|e| panic!("{what}: {e}"));
                let wanted = jit(grad(of_rows))(&y).unwrap_or_else(|e| panic!("{what}: {e}"));
                let wanted = wanted.reshape(&[b, a, c]).transpose(&[1, 0, 2]);
                assert!(is_close(&found, &wanted, part), "slope of {what}: {found} {wanted}");
            }
        }
    }
}
