//! Matrix products `C = epilogue(op(A)·op(B))` for any m, n and k, batched; each operand may be stored transposed.
//!
//! ```text
//! C[b, i, j] = epilogue(Σ_p A[b, i, p] · B[b, p, j])
//! ```
//! Sums are held in f32 for 16-bit floats and in i32 for 8- and 16-bit integers; C is of any type. Each program
//! computes one block of C; blocks of A and B stream past it (Goto & van de Geijn 2008).
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes, equal_block_size, mesh_block_size};
use crate::dtype_dispatch::{floats, with_gradient};
use pallas_rt::prelude::*;
use pallas_rt::{Differentiable, Target};

/// Storage order of the two matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// A is stored as `[k, m]`.
    pub a_transposed: bool,
    /// B is stored as `[n, k]`.
    pub b_transposed: bool,
}

/// Multiplies blocks `[BM, BK]·[BK, BN]`, accumulates over k in scratch, and applies `epilogue` to the finished block.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_blocks<E: Number, O: Elem>(
    #[block([G, M, K] => [_, BM, BK], |g, i, _, p| (g, i, p), fill = 0.0)] a: In<E>,
    #[block([G, K, N] => [_, BK, BN], |g, _, j, p| (g, p, j), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<O>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[fixed] epilogue: impl Fn(Tile<E::Acc>) -> Tile<E::Acc>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(3) == 0 {
        acc.store(zeros([BM, BN]));
    }
    acc.store(acc.load() + dot(a.load(), b.load()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<O>());
    }
}

/// Multiplies like [`matmul_blocks`], with A stored as `[k, m]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_tn_blocks<E: Number, O: Elem>(
    #[block([G, K, M] => [_, BK, BM], |g, i, _, p| (g, p, i), fill = 0.0)] a: In<E>,
    #[block([G, K, N] => [_, BK, BN], |g, _, j, p| (g, p, j), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<O>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[fixed] epilogue: impl Fn(Tile<E::Acc>) -> Tile<E::Acc>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(3) == 0 {
        acc.store(zeros([BM, BN]));
    }
    acc.store(acc.load() + dot(a.load().t(), b.load()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<O>());
    }
}

/// Multiplies like [`matmul_blocks`], with B stored as `[n, k]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_nt_blocks<E: Number, O: Elem>(
    #[block([G, M, K] => [_, BM, BK], |g, i, _, p| (g, i, p), fill = 0.0)] a: In<E>,
    #[block([G, N, K] => [_, BN, BK], |g, _, j, p| (g, j, p), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<O>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[fixed] epilogue: impl Fn(Tile<E::Acc>) -> Tile<E::Acc>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(3) == 0 {
        acc.store(zeros([BM, BN]));
    }
    acc.store(acc.load() + dot(a.load(), b.load().t()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<O>());
    }
}

/// Multiplies like [`matmul_blocks`], with A stored as `[k, m]` and B as `[n, k]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_tt_blocks<E: Number, O: Elem>(
    #[block([G, K, M] => [_, BK, BM], |g, i, _, p| (g, p, i), fill = 0.0)] a: In<E>,
    #[block([G, N, K] => [_, BN, BK], |g, _, j, p| (g, j, p), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<O>,
    #[scratch([BM, BN])] acc: Scratch<E::Acc>,
    #[fixed] epilogue: impl Fn(Tile<E::Acc>) -> Tile<E::Acc>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
) {
    if program_id(3) == 0 {
        acc.store(zeros([BM, BN]));
    }
    acc.store(acc.load() + dot(a.load().t(), b.load().t()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<O>());
    }
}

/// Block sizes `[BM, BN, BK]` for the CPU. Large blocks copy less of A and B (a block of C with 512 x 512 has a quarter
/// of the traffic of 128 x 128); small ones waste less where they extend past the matrices' ends.
const CPU_BLOCK_SIZES: [[usize; 3]; 10] = [
    [2048, 1024, 512],
    [1024, 1024, 512],
    [1024, 512, 512],
    [512, 512, 512],
    [512, 512, 256],
    [512, 256, 512],
    [256, 256, 512],
    [256, 256, 256],
    [128, 128, 256],
    [32, 128, 64],
];

/// Maximum number of rows of A with which reading B from memory takes at least as long as multiplying.
const MAX_MEMORY_BOUND_ROWS: usize = 16;

/// Block size for products with few rows: the longest runs of B in memory that still give each core work.
fn choose_memory_bound_block(cores: usize, [g, m, n]: [usize; 3], b_transposed: bool) -> [usize; 3] {
    let (widths, bk) = if b_transposed { ([256, 128, 64], 1024) } else { ([1024, 512, 256], 256) };
    let enough = widths.into_iter().find(|bn| g * n.div_ceil(*bn) >= 2 * cores);
    [m.max(1), enough.unwrap_or(128), bk]
}

/// Block size for `g` products `[m, k]·[k, n]` on a CPU with this number of cores.
fn choose_cpu_block(cores: usize, [g, m, n, k]: [usize; 4], b_transposed: bool) -> [usize; 3] {
    // Cost of accessing an element of a block, in multiply-adds: it is packed, or added to.
    const ACCESS_COST_MULTIPLY_ADDS: usize = 8;
    if m <= MAX_MEMORY_BOUND_ROWS {
        return choose_memory_bound_block(cores, [g, m, n], b_transposed);
    }
    // The work of the busiest core: blocks are multiplied whole, also those that overhang the edge.
    let cost = |most: &[usize; 3]| {
        let [bm, bn, bk] = [equal_block_size(m, most[0]), equal_block_size(n, most[1]), equal_block_size(k, most[2])];
        let programs = g as f64 * (m.div_ceil(bm) * n.div_ceil(bn)) as f64;
        let step = bm * bn * bk + ACCESS_COST_MULTIPLY_ADDS * (bm * bk + bk * bn + bm * bn);
        (programs / cores as f64).ceil() * k.div_ceil(bk) as f64 * step as f64
    };
    let best = CPU_BLOCK_SIZES.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    *best.expect("there are blocks")
}

/// Block size for `g` products `[m, k]·[k, n]` of elements of this type.
fn choose_matmul_block(target: &Target, dtype: DType, extents: [usize; 4], b_transposed: bool) -> [usize; 3] {
    let [_, m, n, k] = extents;
    let matrices = dtype == DType::F16 && target.matrices.is_some_and(|m| m.half.is_some());
    let candidates = [
        target.cores.map(|cores| (choose_cpu_block(cores, extents, b_transposed), BlockResources::NO_REQUIREMENTS)),
        // All accumulators are copied to workgroup memory at the same time.
        matrices
            .then_some(([64, 64, 32], BlockResources { staged_bytes: 32 << 10, ..BlockResources::NO_REQUIREMENTS })),
        matrices.then_some(([32, 32, 32], BlockResources::NO_REQUIREMENTS)),
    ];
    choose_block_sizes(
        BlockSizeKey::Matmul,
        target,
        [m, n, k],
        candidates.into_iter().flatten().chain([(choose_gpu_block(n), BlockResources::NO_REQUIREMENTS)]),
    )
}

/// Block size `[BM, BN, BK]` for a C with `columns` columns and GPU threads that hold eight by eight accumulators in
/// registers each. Where rows of C are not a multiple of a vector, 16 threads along a row write half a memory segment
/// at once.
pub(crate) fn choose_gpu_block(columns: usize) -> [usize; 3] {
    if !columns.is_multiple_of(4) && columns > 64 { [64, 128, 16] } else { [64, 64, 16] }
}

/// Reshapes operands to batches, and calls the kernel for their layout with the device's block size.
macro_rules! product {
    ($E:ty, $O:ty, $a:expr, $b:expr, $layout:expr, $epilogue:expr) => {{
        let (a, b, layout, epilogue) = (reshape_to_batch($a)?, reshape_to_batch($b)?, $layout, $epilogue);
        let extent = |x: &Array, axis: usize| x.shape().get(axis).copied().unwrap_or(0);
        let (m, k) = if layout.a_transposed { (extent(&a, 2), extent(&a, 1)) } else { (extent(&a, 1), extent(&a, 2)) };
        let n = extent(&b, if layout.b_transposed { 1 } else { 2 });
        let extents = [extent(&a, 0), m, n, k];
        let [bm, bn, bk] = choose_matmul_block($a.client().target(), <$E as Elem>::DTYPE, extents, layout.b_transposed);
        let [bm, bn, bk] = [mesh_block_size(m, bm), mesh_block_size(n, bn), mesh_block_size(k, bk)];
        let out = match (layout.a_transposed, layout.b_transposed) {
            (false, false) => matmul_blocks::<$E, $O>(&a, &b, epilogue, bm, bn, bk),
            (true, false) => matmul_tn_blocks::<$E, $O>(&a, &b, epilogue, bm, bn, bk),
            (false, true) => matmul_nt_blocks::<$E, $O>(&a, &b, epilogue, bm, bn, bk),
            (true, true) => matmul_tt_blocks::<$E, $O>(&a, &b, epilogue, bm, bn, bk),
        }?;
        match ($a.rank(), out.shape()) {
            (2, &[_, m, n]) => Ok(out.reshape(&[m, n])),
            _ => Ok(out),
        }
    }};
}

/// Reshapes a matrix to a batch of one; returns other arrays as they are.
#[track_caller]
fn reshape_to_batch(x: &Array) -> Result<Array> {
    match *x.shape() {
        [m, n] => Ok(x.reshape(&[1, m, n])),
        _ => Ok(x.clone()),
    }
}

/// `A·B` of matrices `[m, k]·[k, n]`, or of batches of them `[g, m, k]·[g, k, n]`; f32, f16 or bf16, and i8 with result
/// i32.
///
/// # Errors
/// Ranks, sizes or element types that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::matmul;
/// use pallas_rt::Array;
/// let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let c = matmul::matmul(&a, &a)?;
/// assert_eq!(c.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    match a.dtype() {
        DType::I8 => matmul_int8(a, b, Layout::default()),
        _ => {
            let (call, [a, b]) = Differentiable::begin([a, b])?;
            let c = matmul_with(&a, &b, Layout::default(), |x| x)?;
            let [c] = with_gradient!(call, [c], &[&a, &b], |[a, b], [dc]| {
                let [to_a, to_b] = [false, true].map(|of_b| Layout { a_transposed: of_b, b_transposed: !of_b });
                [matmul_with(&dc, b, to_a, |x| x)?, matmul_with(a, &dc, to_b, |x| x)?]
            });
            Ok(c)
        }
    }
}

/// [`matmul`] with transposed operands and an epilogue: a function (activation, scale ..) of a finished f32 block,
/// which is applied before the result is rounded.
///
/// # Errors
/// As [`matmul`].
///
/// ```
/// use pallas_kernels::matmul::{Layout, matmul_with};
/// use pallas_rt::prelude::*;
/// // max(x wᵀ, 0), w as it lies: a row per output.
/// let (x, w) = (Array::from_slice(&[1.0f32, -2.0], &[1, 2])?, Array::from_slice(&[3.0f32, 1.0, 0.0, 1.0], &[2, 2])?);
/// let y = matmul_with(&x, &w, Layout { b_transposed: true, ..Layout::default() }, |y| maximum(y, 0.0))?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn matmul_with(
    a: &Array,
    b: &Array,
    layout: Layout,
    epilogue: impl Fn(Tile<f32>) -> Tile<f32> + Sync + 'static,
) -> Result<Array> {
    floats!("matmul", a.dtype(), E => product!(E, E, a, b, layout, epilogue))
}

/// [`matmul`] of i8 operands in any layout: exact i32 sums, which wrap past 2³¹ (k beyond 131,072).
///
/// # Errors
/// As [`matmul`].
///
/// ```
/// use pallas_kernels::matmul::{Layout, matmul_int8};
/// use pallas_rt::Array;
/// let a = Array::from_slice(&[-128i8, 127], &[1, 2])?;
/// let c = matmul_int8(&a, &a, Layout { b_transposed: true, ..Layout::default() })?;
/// assert_eq!(c.to_vec::<i32>()?, [128 * 128 + 127 * 127]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn matmul_int8(a: &Array, b: &Array, layout: Layout) -> Result<Array> {
    product!(i8, i32, a, b, layout, |x: Tile<i32>| x)
}
