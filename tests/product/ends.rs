//! Products of blocks that go on behind the end of their arrays, where there are zeros: the numbers are the
//! interpreter's, also in what the results have there, and where zeros meet infinities.
//!
//! Elements are small integers, whose sums are the same in any order.
use pallas_rt::prelude::*;

/// Sums over blocks of terms, and the product of the last one; `a` and `b` may end after different numbers of terms.
#[kernel(grid = (ROWS, COLUMNS, TERMS), semantics = (parallel, parallel, arbitrary))]
fn straight<E: Number, F: Number>(
    #[block([M, K] => [BM, BK], |i, _, p| (i, p), fill = 0)] a: In<E>,
    #[block([L, N] => [BK, BN], |_, j, p| (p, j), fill = 0)] b: In<F>,
    #[block([R, C] => [BM, BN], |i, j, _| (i, j))] sums: Out<E::Acc>,
    #[block([R, C] => [BM, BN], |i, j, _| (i, j))] last: Out<E::Acc>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[dim] ROWS: usize,
    #[dim] COLUMNS: usize,
    #[dim] TERMS: usize,
    #[dim] R: usize,
    #[dim] C: usize,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(2) == 0 {
        acc.store(zeros([BM, BN]));
    }
    let product = dot(a.load(), b.load().cast::<E>());
    acc.store(acc.load() + product);
    if program_id(2) == num_programs(2) - 1 {
        last.store(product);
        sums.store(acc.load());
    }
}

/// The same with both operands transposed, and each column's largest sum.
#[kernel(grid = (ROWS, COLUMNS, TERMS), semantics = (parallel, parallel, arbitrary))]
fn turned<E: Number, F: Number>(
    #[block([K, M] => [BK, BM], |i, _, p| (p, i), fill = 0)] a: In<E>,
    #[block([N, L] => [BN, BK], |_, j, p| (j, p), fill = 0)] b: In<F>,
    #[block([R, C] => [BM, BN], |i, j, _| (i, j))] sums: Out<E::Acc>,
    #[block([ROWS, C] => [1, BN], |i, j, _| (i, j))] largest: Out<E::Acc>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[dim] ROWS: usize,
    #[dim] COLUMNS: usize,
    #[dim] TERMS: usize,
    #[dim] R: usize,
    #[dim] C: usize,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(2) == 0 {
        acc.store(zeros([BM, BN]));
    }
    acc.store(acc.load() + dot(a.load().t(), b.load().t().cast::<E>()));
    if program_id(2) == num_programs(2) - 1 {
        sums.store(acc.load());
        largest.store(acc.load().max(0));
    }
}

/// Small integers, some of them infinite.
fn numbers(client: &Client, dtype: DType, shape: [usize; 2], by: usize, infinite: &[usize]) -> Array {
    let mut x: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i * by + i / 7) % 5) as f32 - 2.0).collect();
    infinite.iter().filter(|_| dtype.is_float()).for_each(|i| {
        let n = x.len();
        x[i % n] = f32::INFINITY;
    });
    client.array(&x, &shape).expect("it fits").cast(dtype)
}

/// Bits, but one NaN.
fn bits(x: &Array) -> Vec<u64> {
    let x = x.cast(DType::F64).to_vec::<f64>().expect("f64");
    x.into_iter().map(|x| if x.is_nan() { f64::NAN } else { x + 0.0 }.to_bits()).collect()
}

fn agree<E: Number, F: Number>([m, n, k, l]: [usize; 4], [bm, bn, bk]: [usize; 3], infinite: &[usize]) {
    let [rows, columns, terms] = [m.div_ceil(bm), n.div_ceil(bn), k.max(l).div_ceil(bk)];
    // The results end with the operands, or have all of the last block.
    for [r, c] in [[m, n], [rows * bm, columns * bn]] {
        let call = |client: &Client| {
            let of = |dtype, shape, by| numbers(client, dtype, shape, by, infinite);
            let (a, b) = (of(E::DTYPE, [m, k], 3), of(F::DTYPE, [l, n], 7));
            let (at, bt) = (of(E::DTYPE, [k, m], 3), of(F::DTYPE, [n, l], 7));
            let (sums, last) = straight::<E, F>(&a, &b, rows, columns, terms, r, c, bm, bn, bk)?;
            let (other, largest) = turned::<E, F>(&at, &bt, rows, columns, terms, r, c, bm, bn, bk)?;
            Ok([sums, last, other, largest].map(|x| bits(&x)))
        };
        let [found, expected]: [[Vec<u64>; 4]; 2] = [Client::cpu(), Client::interpreter()].map(|client| {
            let run: Result<_> = call(&client);
            run.unwrap_or_else(|e| panic!("{m}x{n}x{k}, {l} in {bm}x{bn}x{bk}: {e}"))
        });
        for (i, name) in ["sums", "last", "turned", "largest"].into_iter().enumerate() {
            assert_eq!(
                found[i],
                expected[i],
                "{name} of {m}x{n}x{k}, {l} in {bm}x{bn}x{bk} to {r}x{c} of {}, {}, infinite {infinite:?}",
                E::DTYPE,
                F::DTYPE
            );
        }
    }
}

/// Rows, columns and terms of both operands, and the blocks.
const SIZES: [([usize; 4], [usize; 3]); 7] = [
    ([1, 43, 43, 43], [1, 16, 24]),
    ([5, 100, 70, 70], [5, 48, 32]),
    ([20, 30, 33, 33], [16, 32, 16]),
    ([70, 3, 50, 50], [64, 3, 32]),
    // One operand ends first.
    ([9, 40, 30, 27], [8, 32, 16]),
    ([9, 40, 20, 31], [8, 32, 16]),
    ([3, 1, 17, 17], [8, 8, 8]),
];

#[test]
fn products_of_blocks_behind_arrays_are_the_interpreters() {
    for (sizes, blocks) in SIZES {
        agree::<f32, f32>(sizes, blocks, &[]);
        agree::<bf16, bf16>(sizes, blocks, &[]);
        agree::<f16, f16>(sizes, blocks, &[]);
        agree::<f32, i8>(sizes, blocks, &[]);
        agree::<f32, bf16>(sizes, blocks, &[]);
        agree::<i8, i8>(sizes, blocks, &[]);
        agree::<i32, i32>(sizes, blocks, &[]);
        agree::<f64, f64>(sizes, blocks, &[]);
    }
}

#[test]
fn zeros_behind_arrays_meet_infinities() {
    for (sizes, blocks) in SIZES {
        for infinite in [&[5][..], &[77, 400], &[1, 2, 3, 900], &[1_000_003]] {
            agree::<f32, f32>(sizes, blocks, infinite);
            agree::<bf16, bf16>(sizes, blocks, infinite);
            agree::<f32, f16>(sizes, blocks, infinite);
            agree::<f64, f64>(sizes, blocks, infinite);
        }
    }
}
