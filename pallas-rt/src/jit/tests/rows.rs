//! Rows of 16-bit floats that are added up at positions: the CPU makes no f32 array of them, and rounds as the
//! interpreter does, which has one.
use super::programs::planned;
use super::*;
use crate::exec::Compiled;
use crate::{lower, ops, vmap};

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// The elements' bits: all NaN are one.
fn bits(x: &Array) -> Vec<u32> {
    let x = x.cast(DType::F32).to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"));
    x.into_iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// Numbers whose sums round, both zeros and numbers that are none among them.
fn elements(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| match (i * 7 + seed) % 41 {
        0 => -0.0,
        1 => f32::NAN,
        2 => f32::INFINITY,
        3 => 6e-8,
        k => (k as f32 - 20.0) * 1.0078125f32.powi((i % 13) as i32),
    };
    (0..count).map(number).collect()
}

/// Positions along an axis of this extent: some come often, some never, some do not exist.
fn places(count: usize, n: usize, seed: usize) -> Vec<i32> {
    let place = |i: usize| match (i * 5 + seed) % 11 {
        0 => -1,
        1 => n as i32 + 3,
        2 => i32::MIN,
        3..6 => 0,
        k => ((i * k) % n.max(1)) as i32,
    };
    (0..count).map(place).collect()
}

#[test]
fn sums_of_rows_are_those_of_the_interpreter() {
    let sizes = [
        [1, 8, 5],
        [700, 9, 6],
        [3, 9, 40],
        [40, 33, 7],
        [70, 64, 200],
        [5, 7, 30],
        [5, 1, 30],
        [4, 16, 1],
        [0, 8, 3],
        [4, 8, 0],
    ];
    for (seed, [n, width, count]) in sizes.into_iter().enumerate() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let made = |client: &Client| -> Result<Vec<Vec<u32>>> {
                let rows = client.array(&elements(count * width, seed), &[count, width])?.cast(dtype);
                let at = client.array(&places(count, n, seed), &[count])?;
                let sums = jit(move |rows: &Array, at: &Array| rows.segment_sum(at, n))(&rows, &at)?;
                let mut all = vec![bits(&sums)];
                if n > 0 {
                    let table = client.array(&elements(n * width, seed + 1), &[n, width])?.cast(dtype);
                    let taken =
                        |table: &Array, rows: &Array, at: &Array| (table.take(at, 0) * rows).cast(DType::F32).sum(..);
                    let slope = jit(grad(move |table: &Array, (rows, at): &(Array, Array)| taken(table, rows, at)));
                    all.push(bits(&slope(&table, &(rows.clone(), at.clone()))?));
                    let pairs = vmap(move |rows: &Array, at: &Array| rows.segment_sum(at, n));
                    let stacked = |x: &Array| ops::stack(&[x, &x.flip(0)], 0);
                    all.push(bits(&jit(pairs)(&stacked(&rows), &stacked(&at))?));
                }
                Ok(all)
            };
            let [found, wanted] = [Client::cpu(), Client::interpreter()].map(|client| made(&client).expect("it runs"));
            assert_eq!(found, wanted, "{count} rows of {width} {dtype} into {n}");
        }
    }
}

/// What else reads the f32 sums, or the f32 rows, finds them.
#[test]
fn sums_and_rows_that_others_read_are_there() {
    for dtype in HALVES {
        let made = |client: &Client| -> Result<Vec<Vec<u32>>> {
            let rows = client.array(&elements(20 * 9, 2), &[20, 9])?.cast(dtype);
            let at = client.array(&places(20, 6, 2), &[20])?;
            let both = jit(move |rows: &Array, at: &Array| {
                let wide = rows.cast(DType::F32);
                let sums = wide.segment_sum(at, 6);
                let others = (&wide * 2.0).segment_sum(at, 6).cast(dtype);
                (sums.cast(dtype), sums, wide.segment_sum(&(at + 1), 6).cast(dtype), others)
            });
            let (sums, wide, moved, others) = both(&rows, &at)?;
            Ok([sums, wide, moved, others].iter().map(bits).collect())
        };
        let [found, wanted] = [Client::cpu(), Client::interpreter()].map(|client| made(&client).expect("it runs"));
        assert_eq!(found, wanted, "{dtype}");
    }
}

#[test]
fn no_array_of_f32_is_as_large_as_the_sums() {
    let client = Client::cpu();
    let shape = |dtype, shape: &[usize]| client.shape_dtype(shape, dtype).expect("a shape");
    for dtype in HALVES {
        let f = |rows: &Array, at: &Array| rows.segment_sum(at, 5000) * 2.0;
        let lowered = lower(f)(&shape(dtype, &[100, 64]), &shape(DType::I32, &[100])).expect("it is traced");
        let plan = planned(lowered.graph(), &client).1;
        assert!(plan.arena <= 5000 * 64 * 2 + 4096, "{} bytes", plan.arena);
    }
}

/// Rows that do not lie side by side in memory, neither those that are added nor the sums.
#[test]
fn strided_rows_are_added_up() {
    const SUMS: &str = "kernel sums {
  in at: i32[5] block [5]
  in rows: bf16[6, 5] block [6, 5]
  out out: bf16[4, 12] block [4, 12] empty 0.0
  map @at {
    %0: i32[] = const 0
    yield %0
  }
  map @rows {
    %1: i32[] = const 0
    yield %1, %1
  }
  map @out {
    %2: i32[] = const 0
    yield %2, %2
  }
  body {
    %3: bf16[] = const 7.0
    %4: bf16[4,12] = broadcast to(4, 12) %3
    store @out block[0:4, 0:12] %4
    %5: bf16[6,5] = load @rows block[0:6, 0:5]
    %6: bf16[5,6] = transpose axes(1, 0) %5
    %7: f32[5,6] = cast to(f32) %6
    %8: f32[] = const 0.0
    %9: f32[4,6] = broadcast to(4, 6) %8
    %10: i32[5] = load @at block[0:5]
    %11: f32[4,6] = scatter update_window_dims(1) inserted_window_dims(0) input_batching_dims() scatter_indices_batching_dims() scatter_dims_to_operand_dims(0) index_vector_dim(1) op(add) %9, %10, %7
    %12: bf16[4,6] = cast to(bf16) %11
    store @out block[0:4, 0:6:2] %12
  }
}";
    let made = |client: &Client| {
        let rows = client.array(&elements(30, 3), &[6, 5]).expect("it fits").cast(DType::Bf16);
        let at = client.array(&[3, 0, 3, -1, 3], &[5]).expect("it fits");
        let sums = SUMS.parse().map(Compiled::new).expect("it is tile IR").expect("it is well formed");
        let outputs = sums.launch(client, &[], [(&at).into(), (&rows).into()]).expect("it runs");
        bits(&outputs[0])
    };
    assert_eq!(made(&Client::cpu()), made(&Client::interpreter()));
}

type Scattered = fn(ops::IndexedElements, &Array) -> Array;

/// Along an axis of one element there is one position. The same functions of an array with another element behind it
/// say what the results are.
#[test]
fn axes_of_one_element_need_no_positions() {
    const WAYS: [(&str, Scattered); 4] = [
        ("add", |at, u| at.add(u)),
        ("multiply", |at, u| at.multiply(u)),
        ("min", |at, u| at.min(u)),
        ("max", |at, u| at.max(u)),
    ];
    let places = |x: &Array, p: &Array, axis: usize| match (x.shape().len(), axis) {
        (_, 0) => x.at(p),
        (2, _) => x.at((.., p)),
        _ => x.at((.., p, ..)),
    };
    let client = Client::cpu();
    let values = |x: &Array| x.cast(DType::F64).to_vec::<f64>().unwrap_or_else(|e| panic!("{e}"));
    let positions: [(&[i32], &[usize]); 5] = [
        (&[0, -1, 0], &[3]),
        (&[1, 0, -2, 7, i32::MIN, -1], &[6]),
        (&[0, 5, -1, 0, 0, 9], &[2, 3]),
        (&[], &[0]),
        (&[3], &[1]),
    ];
    let tables: [(&[usize], usize); 5] = [(&[1, 9], 0), (&[9, 1], 1), (&[3, 1, 5], 1), (&[1, 1], 0), (&[2, 1, 0], 1)];
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I8, DType::U8, DType::U16] {
        for ((given, shape), (table, axis)) in positions.into_iter().flat_map(|p| tables.map(|table| (p, table))) {
            let numbers = |shape: &[usize], seed: usize| {
                let all: Vec<i32> = (0..shape.iter().product()).map(|i| ((i * 7 + seed) % 4) as i32).collect();
                client.array(&all, shape).expect("it fits").cast(dtype)
            };
            let inside: Vec<i32> = given.iter().map(|p| if [0, -1].contains(p) { 0 } else { 9 }).collect();
            let [p, q] = [given, &inside].map(|p| client.array(p, shape).expect("it fits"));
            let first = client.array(&[0i32], &[]).expect("it fits");
            let x = numbers(table, 1);
            let with_other = move |x: &Array| ops::concatenate(&[x, &(x * 2 + 1)], axis as isize);
            let what = format!("{given:?} of {dtype}{table:?}");
            let taken = jit(move |x: &Array, p: &Array| x.take(p, axis as isize))(&x, &p).expect("it runs");
            let wanted = with_other(&x).take(&q, axis as isize);
            let is_equal = |a: &Array, b: &Array| format!("{:?}", values(a)) == format!("{:?}", values(b));
            assert!(is_equal(&taken, &wanted), "take {what}: {taken}, {wanted}");
            let updates = numbers(taken.shape(), 2);
            for (name, way) in WAYS {
                let f = jit(move |x: &Array, p: &Array, u: &Array| way(places(x, p, axis), u));
                let found = f(&x, &p, &updates).expect("it runs");
                let wanted = way(places(&with_other(&x), &q, axis), &updates).take(&first, axis as isize);
                assert!(is_equal(&found, &wanted), "{name} {what}: {found}, {wanted}");
            }
            if !dtype.is_float() || table[0] == 1 {
                continue;
            }
            // In a batch, tables and positions are parallel.
            let both = vmap(move |x: &Array, p: &Array| x.take(p, axis as isize - 1));
            let rows = |p: &Array| ops::stack(&vec![p; table[0]], 0);
            let found = jit(both)(&x, &rows(&p)).expect("it runs");
            let wanted = vmap(move |x: &Array, p: &Array| x.take(p, axis as isize - 1))(&with_other(&x), &rows(&q));
            let wanted = wanted.expect("it runs");
            assert!(is_equal(&found, &wanted), "vmap {what}: {found}, {wanted}");
            let sum = move |x: &Array, (p, u): &(Array, Array)| (x.take(p, axis as isize) * u).cast(DType::F32).sum(..);
            let weights = (p.clone(), updates.clone());
            let slope =
                jit(grad(move |x: &Array, given: &(Array, Array)| sum(x, given)))(&x, &weights).expect("it runs");
            let wanted = places(&with_other(&x).zeros_like(), &q, axis).add(&updates);
            let wanted = wanted.take(&first, axis as isize);
            assert_eq!(values(&slope), values(&wanted), "slope {what}");
        }
    }
}

/// Positions outside of an operand give the fill, whatever else reads them or what says that they are outside.
#[test]
fn gathers_fill_as_the_interpreter_does() {
    use DType::{Bf16, Bool, F16, F32, F64, I8, I32, U16};
    let sizes = [[1, 3, 4], [5, 7, 30], [40, 9, 70], [3, 130, 2], [6, 1, 50], [4, 200, 1]];
    for ([n, width, count], dtype) in
        sizes.into_iter().flat_map(|sizes| [F32, Bf16, F16, F64, I32, I8, U16, Bool].map(|dtype| (sizes, dtype)))
    {
        let made = |client: &Client| -> Result<Vec<Vec<u32>>> {
            let table = client.array(&elements(n * width, 4), &[n, width])?;
            // Integers have no NaN, and bytes no large numbers.
            let table = if dtype.is_float() { table } else { table.nan_to_num().clip(-100.0, 100.0) }.cast(dtype);
            let rows = client.array(&places(count, n, 1), &[count])?;
            let each = client.array(&places(count * width, n, 2), &[count, width])?;
            let few = client.array(&vec![0; width], &[1, width])?;
            let all = jit(|table: &Array, rows: &Array, each: &Array, few: &Array| {
                let turned = table.transpose(&[1, 0]);
                let taken = [table.take(rows, 0), turned.take(rows, 1)];
                let along = [table.take_along_axis(each, 0), turned.take_along_axis(&each.transpose(&[1, 0]), 1)];
                let outside = each.clip(0, 3).cast(table.dtype());
                [&taken[..], &along, &[table.take_along_axis(few, 0), outside]].concat()
            });
            let mut all: Vec<Vec<u32>> = all(&table, &rows, &each, &few)?.iter().map(bits).collect();
            if dtype == F32 {
                let sum = |table: &Array, each: &Array| table.take_along_axis(each, 0).nan_to_num().sum(..);
                all.push(bits(&jit(grad(sum))(&table.nan_to_num(), &each)?));
            }
            Ok(all)
        };
        let [found, wanted] = [Client::cpu(), Client::interpreter()].map(|client| made(&client).expect("it runs"));
        assert_eq!(found, wanted, "{count} of {n} rows of {width} {dtype}");
    }
}

/// An axis without elements has none to look up: all are the fill, and an empty result is empty.
#[test]
fn axes_without_elements_are_looked_up() {
    for [n, width, count] in [[0, 200, 30], [0, 200, 0], [0, 0, 30], [3, 200, 0]] {
        let made = |client: &Client| -> Result<Vec<Vec<u32>>> {
            let table = client.array(&vec![1.5f32; n * width], &[n, width])?;
            let rows = client.array(&vec![0; count], &[count])?;
            let each = client.array(&vec![0; count * width], &[count, width])?;
            let all = jit(|table: &Array, rows: &Array, each: &Array| {
                let found = [table.take(rows, 0), table.take_along_axis(each, 0)];
                let sums = [&found[0] * 2.0 + each.cast(DType::F32), found[1].sum([1])];
                [found, sums].concat()
            });
            Ok(all(&table, &rows, &each)?.iter().map(bits).collect())
        };
        let [found, wanted] = [Client::cpu(), Client::interpreter()].map(|client| made(&client).expect("it runs"));
        assert_eq!(found, wanted, "{count} of {n} rows of {width}");
    }
}

#[test]
fn operations_read_rows_where_they_lie() {
    use DType::{Bf16, F16, F32, F64, I8, I32};
    let sizes = [[1, 1, 9, 4], [5, 1, 30, 33], [40, 1, 70, 70], [9, 3, 16, 21], [6, 2, 7, 50], [300, 1, 65, 501]];
    // Of rows, a factor for each column, and a number for each element.
    type Of = fn(&Array, &Array, &Array) -> Array;
    let functions: [Of; 6] = [
        |rows, w, _| rows * w,
        |rows, w, b| rows * w + b,
        |rows, _, b| rows - b * rows.max(-1).expand_dims(-1),
        |rows, w, _| (rows.abs() * 2.0 - w).max(0),
        |rows, w, _| (rows + w).abs().max(-1),
        |rows, w, _| rows.transpose(&[1, 0, 2]) + w,
    ];
    for ([n, high, width, count], dtype) in
        sizes.into_iter().flat_map(|sizes| [F32, Bf16, F16, F64, I32, I8].map(|dtype| (sizes, dtype)))
    {
        let made = |client: &Client| -> Result<Vec<Vec<u32>>> {
            let small = |count: usize, seed: usize, shape: &[usize]| -> Result<Array> {
                Ok(client.array(&elements(count, seed), shape)?.nan_to_num().clip(-3.0, 3.0).cast(dtype))
            };
            let table = small(n * high * width, 4, &[n, high, width])?;
            let (w, b) = (small(width, 5, &[width])?, small(count * high * width, 6, &[count, high, width])?);
            // Some of them outside of the table.
            let rows = client.array(&places(count, n, 1), &[count])?;
            let all = functions.map(|f| {
                let of = jit(move |table: &Array, rows: &Array, w: &Array, b: &Array| f(&table.take(rows, 0), w, b));
                of(&table, &rows, &w, &b).map(|x| bits(&x))
            });
            all.into_iter().collect()
        };
        let [found, wanted] = [Client::cpu(), Client::interpreter()].map(|client| made(&client).expect("it runs"));
        assert_eq!(found, wanted, "{count} of {n} x {high} rows of {width} {dtype}");
    }
}
