//! Every kernel against sums in double precision, over sizes around the panels' edges and all orientations.
use super::*;

fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A matrix of `rows` x `cols` inside of `data`, stored by rows or by columns, with gaps or with negative strides.
fn layouts(rows: usize, cols: usize, data: &[f32]) -> Vec<Matrix<f32>> {
    let gap = 3;
    let by_rows = Matrix { start: data.as_ptr(), row: (cols + gap) as isize, col: 1 };
    let by_cols = Matrix { start: data.as_ptr(), row: 1, col: (rows + gap) as isize };
    let last = (rows.max(1) - 1) * (cols + gap);
    let reversed = Matrix { start: data[last..].as_ptr(), row: -((cols + gap) as isize), col: 1 };
    let constant = Matrix { start: data.as_ptr(), row: 0, col: 0 };
    vec![by_rows, by_cols, reversed, constant]
}

/// A new matrix with rows of `n` elements.
fn fresh<T>(c: &mut [T], n: isize) -> OutputMatrix<T> {
    OutputMatrix { start: c.as_mut_ptr(), row: n, add: false }
}

fn check(kernel: MicroKernel<f32>, extents: Extents, a: Matrix<f32>, b: Matrix<f32>, accumulate: bool) {
    let Extents { m, n, k } = extents;
    let ldc = n + 2;
    let start = numbers(m * ldc + 1, 3);
    let mut c = start.clone();
    // SAFETY: `layouts` places the matrices inside of their data, C has m rows of n + 2.
    unsafe {
        let target = OutputMatrix { start: c.as_mut_ptr(), row: ldc as isize, add: accumulate };
        dot(kernel, extents, a, b, target, &mut PackingBuffers::default());
        for i in 0..m {
            for j in 0..ldc {
                let product = |p| f64::from(*a.submatrix_at(i, p).start) * f64::from(*b.submatrix_at(p, j).start);
                let old = f64::from(start[i * ldc + j]);
                let want = match (j < n, accumulate) {
                    (true, true) => old + (0..k).map(product).sum::<f64>(),
                    (true, false) => (0..k).map(product).sum::<f64>(),
                    (false, _) => old,
                };
                let found = f64::from(c[i * ldc + j]);
                assert!((found - want).abs() <= 1e-5 * (k as f64 + 1.0), "{} {extents:?} [{i},{j}]", kernel.name);
            }
        }
    }
}

#[test]
fn every_kernel_agrees_with_doubles() {
    let sizes = [0, 1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 33, 65];
    for kernel in supported_f32_kernels() {
        for (m, n, k) in
            sizes.iter().flat_map(|&m| sizes.iter().flat_map(move |&n| [0, 1, 3, 8, 17].map(|k| (m, n, k))))
        {
            let data = (numbers((m + 3) * (k + 3) + 8, 1), numbers((k + 3) * (n + 3) + 8, 2));
            for (x, a) in layouts(m, k, &data.0).into_iter().enumerate() {
                for (y, b) in layouts(k, n, &data.1).into_iter().enumerate() {
                    check(kernel, Extents { m, n, k }, a, b, (x + y) % 2 == 0);
                }
            }
        }
    }
}

#[test]
fn far_rows_and_deep_products_are_packed_right() {
    const ROW: usize = 1152;
    // Beyond the rows, columns and depth of a block, each by a few.
    let sizes = [(37, 70, 600), (MC + 5, 33, 300), (3 * MC + 1, NC + 7, 5), (40, NC + 1, KC + 2)];
    let (a, b) = (numbers((3 * MC + 1) * ROW, 1), numbers(ROW * ROW, 2));
    for (kernel, (m, n, k)) in supported_f32_kernels().into_iter().flat_map(|kernel| sizes.map(|size| (kernel, size))) {
        let a = Matrix { start: a.as_ptr(), row: ROW as isize, col: 1 };
        let b = Matrix { start: b.as_ptr(), row: ROW as isize, col: 1 };
        check(kernel, Extents { m, n, k }, a, b, true);
        check(kernel, Extents { m, n, k }, a, Matrix { row: 1, col: ROW as isize, ..b }, false);
    }
}

#[test]
fn integers_wrap_and_booleans_join() {
    let (a, b) = ([100i8, 100, 3, 4], [2i8, 1, 2, 1]);
    let at = |x: &[i8; 4]| Matrix { start: x.as_ptr(), row: 2, col: 1 };
    let mut c = [0i8; 4];
    // SAFETY: 2 x 2 each.
    unsafe {
        dot(
            vectorized_kernel(),
            Extents { m: 2, n: 2, k: 2 },
            at(&a),
            at(&b),
            fresh(&mut c, 2),
            &mut PackingBuffers::default(),
        )
    };
    assert_eq!(c, [400u32 as i8, 200u8 as i8, 14, 7]);
    let (a, b, mut c) = ([true, false], [true, true], [false]);
    let (row, col) = (Matrix { start: a.as_ptr(), row: 2, col: 1 }, Matrix { start: b.as_ptr(), row: 1, col: 1 });
    // SAFETY: 1 x 2 times 2 x 1.
    unsafe {
        dot(
            vectorized_kernel(),
            Extents { m: 1, n: 1, k: 2 },
            row,
            col,
            fresh(&mut c, 1),
            &mut PackingBuffers::default(),
        )
    };
    assert_eq!(c, [true]);
}

#[test]
fn infinities_and_nan_do_not_leak_into_other_columns() {
    for kernel in supported_f32_kernels() {
        let a = [f32::INFINITY, 1.0];
        let b = [0.0, 1.0, 2.0, f32::NAN, 1.0, -1.0];
        let (a, b) = (Matrix { start: a.as_ptr(), row: 2, col: 1 }, Matrix { start: b.as_ptr(), row: 3, col: 1 });
        let mut c = [0.0f32; 3];
        // SAFETY: 1 x 2 times 2 x 3.
        unsafe {
            dot(kernel, Extents { m: 1, n: 3, k: 2 }, a, b, fresh(&mut c, 3), &mut PackingBuffers::default());
        }
        assert!(c[0].is_nan() && c[1] == f32::INFINITY && c[2] == f32::INFINITY, "{c:?}");
    }
}

#[test]
fn bytes_are_summed_exactly_in_every_orientation() {
    let sizes = [0, 1, 2, 7, 8, 9, 31, 32, 33, 65];
    let bytes: Vec<i8> = (0..40_000).map(|i: i32| if i % 3 == 0 { i8::MIN } else { ((i * 7919) >> 4) as i8 }).collect();
    let extents = sizes.iter().flat_map(|&m| sizes.iter().flat_map(move |&n| [0, 1, 2, 5, 16].map(|k| (m, n, k))));
    for (m, n, k) in extents.chain([(9, 33, 1027), (3, 600, 4)]) {
        for (kernel, turned, accumulate) in
            <i8 as pairwise_dot::PairedElement>::supported_kernels().into_iter().flat_map(|kernel| {
                [[false, false], [true, false], [false, true], [true, true]].map(|t| (kernel, t, (m + n + k) % 2 == 0))
            })
        {
            let matrix = |rows: usize, cols: usize, turned: bool| {
                let (row, col) = if turned { (1, rows as isize + 3) } else { (cols as isize + 3, 1) };
                Matrix { start: bytes.as_ptr(), row, col }
            };
            let (a, b, ldc) = (matrix(m, k, turned[0]), matrix(k, n, turned[1]), n + 2);
            let mut c = vec![i32::MAX; m * ldc + 1];
            // SAFETY: the largest matrix ends at element 36,969 of the 40,000, C has m rows of n + 2.
            unsafe {
                let c = OutputMatrix { start: c.as_mut_ptr(), row: ldc as isize, add: accumulate };
                pairwise_dot::dot(kernel, Extents { m, n, k }, a, b, c, &mut PackingBuffers::default());
            }
            for (i, j) in (0..m).flat_map(|i| (0..ldc).map(move |j| (i, j))) {
                // SAFETY: as above.
                let product =
                    |p| unsafe { i32::from(*a.submatrix_at(i, p).start) * i32::from(*b.submatrix_at(p, j).start) };
                let want = match (j < n, accumulate) {
                    (true, true) => (0..k).map(product).fold(i32::MAX, i32::wrapping_add),
                    (true, false) => (0..k).map(product).sum(),
                    (false, _) => i32::MAX,
                };
                assert_eq!(c[i * ldc + j], want, "{} {m}x{n}x{k} [{i},{j}] {turned:?}", kernel.name);
            }
        }
    }
}

#[test]
fn pairs_of_bf16_agree_with_doubles_in_every_orientation() {
    use half::bf16;
    let sizes = [0, 1, 7, 8, 9, 31, 32, 33, 65];
    let elements: Vec<bf16> = numbers(80_000, 7).into_iter().map(bf16::from_f32).collect();
    let extents = sizes.iter().flat_map(|&m| sizes.iter().flat_map(move |&n| [0, 1, 2, 5, 16].map(|k| (m, n, k))));
    for (m, n, k) in extents.chain([(9, 33, 1027), (3, 600, 4), (40, 32, 600)]) {
        for (kernel, turned, accumulate) in
            <bf16 as pairwise_dot::PairedElement>::supported_kernels().into_iter().flat_map(|kernel| {
                [[false, false], [true, false], [false, true], [true, true]].map(|t| (kernel, t, (m + n + k) % 2 == 0))
            })
        {
            let matrix = |rows: usize, cols: usize, turned: bool| {
                let (row, col) = if turned { (1, rows as isize + 3) } else { (cols as isize + 3, 1) };
                Matrix { start: elements.as_ptr(), row, col }
            };
            let (a, b, ldc) = (matrix(m, k, turned[0]), matrix(k, n, turned[1]), n + 2);
            let mut c = vec![0.5f32; m * ldc + 1];
            // SAFETY: the largest matrix ends at element 36,969 of the 80,000, C has m rows of n + 2.
            unsafe {
                let c = OutputMatrix { start: c.as_mut_ptr(), row: ldc as isize, add: accumulate };
                pairwise_dot::dot(kernel, Extents { m, n, k }, a, b, c, &mut PackingBuffers::default());
            }
            for (i, j) in (0..m).flat_map(|i| (0..ldc).map(move |j| (i, j))) {
                // SAFETY: as above.
                let product =
                    |p| unsafe { (*a.submatrix_at(i, p).start).to_f64() * (*b.submatrix_at(p, j).start).to_f64() };
                let want = match (j < n, accumulate) {
                    (true, true) => 0.5 + (0..k).map(product).sum::<f64>(),
                    (true, false) => (0..k).map(product).sum(),
                    (false, _) => 0.5,
                };
                let size = (0..k).map(|p| product(p).abs()).sum::<f64>();
                let found = f64::from(c[i * ldc + j]);
                let near = (found - want).abs() <= 2e-6 * (1.0 + size);
                assert!(near, "{} {m}x{n}x{k} [{i},{j}] {turned:?}: {found}, not {want}", kernel.name);
            }
        }
    }
}

#[test]
fn products_of_few_rows_agree_with_doubles() {
    use pallas_ir::DType;
    let (bytes, factors) = (numbers(2_400_000, 5), numbers(8 * 1200, 6));
    let bytes: Vec<u8> = bytes.iter().map(|x| (x * 127.0) as i8 as u8 & 0xbb).collect();
    // The value of element `at` in a type.
    let value = |(dtype, bits): (DType, u8), at: usize| match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four"))),
        DType::F16 => half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f64(),
        DType::Bf16 => half::bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f64(),
        DType::I8 => f64::from(bytes[at] as i8),
        _ => f64::from(bytes[at] & bits),
    };
    let sizes = [0, 1, 3, 4, 5, 8, 16, 21, 67].iter().flat_map(|&n| [0, 1, 2, 7, 8, 16, 37].map(|k| (n, k)));
    let extents = sizes.flat_map(|(n, k)| [1, 2, 3, 4, 5, 8, 9, 15, 16].map(|m| (m, n, k)));
    // Rows far apart, wide or deep enough for several blocks, and for several parts of the columns of every type.
    let large = [(1, 1030, 7), (5, 1030, 37), (1, 9, 1040), (6, 7, 1040), (9, 30, 290), (2, 67, 135), (16, 40, 200)];
    let large = large.into_iter().chain([(3, 33_000, 9)]);
    for (m, n, k) in extents.chain(large) {
        // In the fourth one, rows and columns begin an element apart: those of a single column do. In the last one
        // there are no gaps, and nothing behind the matrix.
        let layouts = [(n as isize + 1, 1), (1, k as isize + 1), (2 * n as isize, 2), (1, 1), (n as isize, 1)];
        for (layout, (dtype, bits, kernel)) in
            (0..5).flat_map(|l| few_rows::supported_narrow_kernels().into_iter().map(move |k| (l, k)))
        {
            let (row, col) = layouts[layout];
            let first = if layout == 4 { bytes.len() / dtype.bytes() - n * k } else { 0 };
            let (a_row, a_col) = if layout == 0 { (1, m as isize) } else { (k as isize, 1) };
            let a = Matrix { start: factors.as_ptr(), row: a_row, col: a_col };
            let b = Matrix { start: bytes[first * dtype.bytes()..].as_ptr(), row, col };
            let (ldc, accumulate) = (n + 2, (m + n + k) % 2 == 0);
            let mut c = vec![0.5f32; m * ldc + 1];
            let extents = Extents { m, n, k };
            // SAFETY: the largest matrix ends at element 594,000 of at most four bytes, or at the last one, A at 6,240;
            // C has m rows of n + 2.
            unsafe {
                let c = OutputMatrix { start: c.as_mut_ptr(), row: ldc as isize, add: accumulate };
                few_rows::dot(kernel, extents, a, b, c, &mut PackingBuffers::default());
            }
            for (i, j) in (0..m).flat_map(|i| (0..ldc).map(move |j| (i, j))) {
                let at = |p: usize| first + (p as isize * row + j as isize * col) as usize;
                // SAFETY: as above.
                let factor = |p| unsafe { f64::from(*a.submatrix_at(i, p).start) };
                let terms = (0..k).map(|p| factor(p) * value((dtype, bits), at(p)));
                let (want, size) = match j < n {
                    true => {
                        (terms.clone().sum::<f64>() + if accumulate { 0.5 } else { 0.0 }, terms.map(f64::abs).sum())
                    }
                    false => (0.5, 0.0),
                };
                let found = f64::from(c[i * ldc + j]);
                let near = (found - want).abs() <= 1e-6 * (1.0 + size);
                assert!(near, "{} {dtype} {bits:x} {extents:?} [{i},{j}] {layout}: {found}, not {want}", kernel.name);
            }
        }
    }
}

#[test]
fn products_with_pages_are_those_with_the_rows_of_all_of_them() {
    use pallas_ir::DType;
    let factors = numbers(16 * 700, 8);
    let elements: Vec<u8> = numbers(200_000, 9).iter().map(|x| (x * 90.0) as i8 as u8).collect();
    let pages = [(1, 1, 5), (2, 16, 128), (4, 16, 128), (3, 3, 40), (8, 33, 17), (16, 2, 300), (5, 7, 64), (4, 70, 20)];
    for (m, rows, row) in pages {
        for (are_columns, count, (dtype, bits, kernel)) in [false, true]
            .into_iter()
            .flat_map(|c| [1, 2, 9].map(|n| (c, n)))
            .flat_map(|(c, n)| few_rows::supported_narrow_kernels().into_iter().map(move |kernel| (c, n, kernel)))
        {
            // Bytes of all types, no float of which is NaN or large.
            let patterns: Vec<u8> = match dtype {
                DType::I8 | DType::U8 => elements.clone(),
                _ => elements.iter().map(|byte| byte & 0x3b).collect(),
            };
            let bytes = rows * row * dtype.bytes();
            let places: Vec<usize> = (0..count).map(|i| (i * 5 + 2) % 7 * bytes).collect();
            let starts: Vec<*const u8> = places.iter().map(|&at| patterns[at..][..bytes].as_ptr()).collect();
            let all: Vec<u8> = places.iter().flat_map(|&at| patterns[at..][..bytes].to_vec()).collect();
            let extents = match are_columns {
                true => Extents { m, n: count * rows, k: row },
                false => Extents { m, n: row, k: count * rows },
            };
            let ldc = extents.n + 3;
            // The rows of A are adjacent, or its columns.
            for (a_row, a_col) in [(extents.k as isize, 1), (1, m as isize)] {
                let a = Matrix { start: factors.as_ptr(), row: a_row, col: a_col };
                let mut results = [vec![0.25f32; m * ldc], vec![0.25f32; m * ldc]];
                let [paged, whole] = results.each_mut().map(|c| OutputMatrix {
                    start: c.as_mut_ptr(),
                    row: ldc as isize,
                    add: count == 2,
                });
                let b = Matrix { start: all.as_ptr(), row: row as isize, col: 1 };
                let b = if are_columns { b.transposed() } else { b };
                let pages = few_rows::PagedMatrix { starts: &starts, are_columns };
                // SAFETY: A ends at element 16 · 300, each page holds its rows, C has m rows of n + 3.
                unsafe {
                    few_rows::dot_paged(kernel, extents, a, pages, paged, &mut PackingBuffers::default());
                    few_rows::dot(kernel, extents, a, b, whole, &mut PackingBuffers::default());
                }
                let [found, want] = results;
                let near = found.iter().zip(&want).all(|(x, y)| (x - y).abs() <= 2e-3 + 1e-5 * y.abs());
                assert!(near, "{} {dtype} {bits:x} {extents:?} {are_columns} {count}", kernel.name);
                assert!(found.iter().skip(extents.n).step_by(ldc).all(|&x| x == 0.25), "written beyond a row");
            }
        }
    }
}

#[test]
fn products_of_both_halves_of_bytes_agree_with_doubles() {
    let bytes: Vec<u8> = numbers(1_300_000, 5).iter().map(|x| (x * 127.0) as i8 as u8).collect();
    let factors = numbers(2 * 16 * 300, 6);
    let sizes = [0, 1, 4, 5, 8, 16, 17, 33, 67].iter().flat_map(|&n| [0, 1, 2, 7, 9, 33].map(|k| (n, k)));
    let extents = sizes.flat_map(|(n, k)| [1, 2, 3, 4, 5, 8, 9, 16].map(|m| (m, n, k)));
    for (m, n, k) in extents.chain([(1, 1030, 70), (9, 30, 290), (3, 33_000, 18)]) {
        for (layout, (row, col)) in
            [(n as isize + 1, 1), (1, k as isize + 1), (2 * n as isize, 2)].into_iter().enumerate()
        {
            for kernel in few_rows::supported_nibble_kernels() {
                let (a_row, a_col) = if layout == 0 { (1, m as isize) } else { (k as isize, 1) };
                let a = Matrix { start: factors.as_ptr(), row: a_row, col: a_col };
                let high = Matrix { start: factors[m * k..].as_ptr(), row: k as isize, col: 1 };
                let b = Matrix { start: bytes.as_ptr(), row, col };
                let (ldc, add) = (n + 2, (m + n + k) % 2 == 0);
                let mut c = vec![0.5f32; m * ldc + 1];
                let extents = Extents { m, n, k };
                // SAFETY: the largest matrix ends at byte 1,188,000, A and H at 9,280; C has m rows of n + 2.
                unsafe {
                    let c = OutputMatrix { start: c.as_mut_ptr(), row: ldc as isize, add };
                    few_rows::dot_nibbles(kernel, extents, [a, high], b, c, &mut PackingBuffers::default());
                }
                for (i, j) in (0..m).flat_map(|i| (0..ldc).map(move |j| (i, j))) {
                    let term = |p: usize| {
                        let byte = bytes[(p as isize * row + j as isize * col) as usize];
                        // SAFETY: as above.
                        let [x, y] = unsafe { [*a.submatrix_at(i, p).start, *high.submatrix_at(i, p).start] };
                        [f64::from(x) * f64::from(byte & 15), f64::from(y) * f64::from(byte & 240)]
                    };
                    let (sum, size) = match j < n {
                        true => ((0..k).flat_map(term).sum(), (0..k).flat_map(term).map(f64::abs).sum()),
                        false => (0.0, 0.0),
                    };
                    let want: f64 = sum + if add || j >= n { 0.5 } else { 0.0 };
                    let found = f64::from(c[i * ldc + j]);
                    let near = (found - want).abs() <= 1e-6 * (1.0 + size);
                    assert!(near, "{} {extents:?} [{i},{j}] {layout}: {found}, not {want}", kernel.name);
                }
            }
        }
    }
}

/// Element (i, j) of a product of matrices in double precision.
///
/// # Safety
/// The matrices have these elements.
unsafe fn exact(a: Matrix<f32>, b: Matrix<f32>, k: usize, i: usize, j: usize) -> f64 {
    // SAFETY: the caller's.
    (0..k).map(|p| unsafe { f64::from(*a.submatrix_at(i, p).start) * f64::from(*b.submatrix_at(p, j).start) }).sum()
}

#[test]
fn products_of_few_elements_and_columns_agree_with_doubles() {
    let narrow = few_rows::fastest_narrow_kernel(pallas_ir::DType::F32, few_rows::WHOLE_ELEMENT_MASK);
    let few = [1, 2, 5, 17, 40].into_iter().flat_map(|m| (1..20).flat_map(move |n| [0, 1, 3, 33].map(|k| (m, n, k))));
    // Rows enough for several parts.
    for (m, n, k) in few.chain((1..10).map(|n| (1029, n, 3))) {
        let data = (numbers((m + 3) * (k + 3) + 8, 1), numbers((k + 3) * (n + 3) + 8, 2));
        let orders =
            || layouts(m, k, &data.0).into_iter().flat_map(|a| layouts(k, n, &data.1).into_iter().map(move |b| (a, b)));
        for (at, (a, b)) in orders().enumerate() {
            let (add, row) = (at % 2 == 1, n + if at % 3 == 0 { 2 } else { 0 });
            let begun = numbers(m * row + 1, 3);
            let mut runs: Vec<Vec<f32>> = vec![];
            let mut run = |multiply: &mut dyn FnMut(OutputMatrix<f32>)| {
                let mut c = begun.clone();
                multiply(OutputMatrix { start: c.as_mut_ptr(), row: row as isize, add });
                runs.push(c);
            };
            let extents = Extents { m, n, k };
            // SAFETY: `layouts` places the matrices inside of their data, C has m rows of n or more; the kernel is this
            // machine's.
            unsafe {
                run(&mut |c| {
                    tiny::fastest_tiny_products::<f32>()(
                        tiny::ProductBatch { count: 1, apart: [0; 3] },
                        extents,
                        a,
                        b,
                        c,
                    )
                });
                if let Some(kernel) = narrow {
                    run(&mut |c| {
                        few_rows::dot_few_columns(kernel, extents, a.cast(), b, c, &mut PackingBuffers::default())
                    });
                }
            }
            for (c, at) in runs.iter().flat_map(|c| (0..m * row).map(move |at| (c, at))) {
                let (i, j) = (at / row, at % row);
                // SAFETY: as above.
                let product = if j < n { unsafe { exact(a, b, k, i, j) } } else { 0.0 };
                let old = if add || j >= n { f64::from(begun[at]) } else { 0.0 };
                let error = (f64::from(c[at]) - old - product).abs();
                assert!(error <= 1e-5 * (k as f64 + 1.0), "{extents:?} [{i},{j}], added {add}");
            }
        }
    }
}
