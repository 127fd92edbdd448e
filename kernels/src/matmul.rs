//! Matrix products `C = epilogue(op(A)·op(B))`, any m, n and k, batched, with operands as they lie or transposed.
//!
//! ```text
//! C[b, i, j] = epilogue(Σ_p A[b, i, p] · B[b, p, j])
//! ```
//! Sums are held in f32 for 16-bit floats. Each program computes one block of C; blocks of A and B stream past it.
use crate::dispatch::floats;
use pallas_rt::Profile;
use pallas_rt::prelude::*;

/// How the two matrices lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// A is `[k, m]`.
    pub a_transposed: bool,
    /// B is `[n, k]`.
    pub b_transposed: bool,
}

/// Blocks of `[BM, BK]·[BK, BN]`, accumulated over k in scratch; `epilogue` is applied to the finished block.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_blocks<E: Float, const BM: usize, const BN: usize, const BK: usize>(
    #[block([G, M, K] => [_, BM, BK], |g, i, _, p| (g, i, p), fill = 0.0)] a: In<E>,
    #[block([G, K, N] => [_, BK, BN], |g, _, j, p| (g, p, j), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[fixed] epilogue: impl Fn(Tile<f32>) -> Tile<f32>,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(a.load().cast::<f32>(), b.load().cast::<f32>()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<E>());
    }
}

/// As [`matmul_blocks`] with A given as `[k, m]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_tn_blocks<E: Float, const BM: usize, const BN: usize, const BK: usize>(
    #[block([G, K, M] => [_, BK, BM], |g, i, _, p| (g, p, i), fill = 0.0)] a: In<E>,
    #[block([G, K, N] => [_, BK, BN], |g, _, j, p| (g, p, j), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[fixed] epilogue: impl Fn(Tile<f32>) -> Tile<f32>,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(a.load().cast::<f32>().t(), b.load().cast::<f32>()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<E>());
    }
}

/// As [`matmul_blocks`] with B given as `[n, k]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_nt_blocks<E: Float, const BM: usize, const BN: usize, const BK: usize>(
    #[block([G, M, K] => [_, BM, BK], |g, i, _, p| (g, i, p), fill = 0.0)] a: In<E>,
    #[block([G, N, K] => [_, BN, BK], |g, _, j, p| (g, j, p), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[fixed] epilogue: impl Fn(Tile<f32>) -> Tile<f32>,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(a.load().cast::<f32>(), b.load().cast::<f32>().t()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<E>());
    }
}

/// As [`matmul_blocks`] with A given as `[k, m]` and B as `[n, k]`.
#[kernel(grid = (G, cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, parallel, arbitrary))]
pub fn matmul_tt_blocks<E: Float, const BM: usize, const BN: usize, const BK: usize>(
    #[block([G, K, M] => [_, BK, BM], |g, i, _, p| (g, p, i), fill = 0.0)] a: In<E>,
    #[block([G, N, K] => [_, BN, BK], |g, _, j, p| (g, j, p), fill = 0.0)] b: In<E>,
    #[block([G, M, N] => [_, BM, BN], |g, i, j, _| (g, i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[fixed] epilogue: impl Fn(Tile<f32>) -> Tile<f32>,
) {
    if program_id(3) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(a.load().cast::<f32>().t(), b.load().cast::<f32>().t()));
    if program_id(3) == num_programs(3) - 1 {
        out.store(epilogue(acc.load()).cast::<E>());
    }
}

/// `A·B` of matrices `[m, k]·[k, n]`, or of batches of them `[g, m, k]·[g, k, n]`; f32, f16 or bf16.
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
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    matmul_with(a, b, Layout::default(), |x| x)
}

/// [`matmul`] with transposed operands and an epilogue: a function of the finished f32 block (bias-free: activations,
/// scales), applied before the result is rounded.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_with(
    a: &Array,
    b: &Array,
    layout: Layout,
    epilogue: impl Fn(Tile<f32>) -> Tile<f32> + Sync + 'static,
) -> Result<Array> {
    let batched = |x: &Array| match *x.shape() {
        [m, n] => x.reshape(&[1, m, n]),
        _ => Ok(x.clone()),
    };
    let (a3, b3) = (batched(a)?, batched(b)?);
    let profile = a.client().limits().profile;
    macro_rules! product {
        ($kernel:ident, $E:ty) => {
            match profile {
                // Accumulators in registers: eight by eight a thread, or sixteen rows of eight neighbours.
                Profile::Gpu => $kernel::<$E, 64, 64, 16>(&a3, &b3, epilogue),
                Profile::SimtCpu => $kernel::<$E, 16, 64, 64>(&a3, &b3, epilogue),
                _ => $kernel::<$E, 128, 128, 256>(&a3, &b3, epilogue),
            }
        };
    }
    let out = floats!("matmul", a.dtype(), E => match (layout.a_transposed, layout.b_transposed) {
        (false, false) => product!(matmul_blocks, E),
        (true, false) => product!(matmul_tn_blocks, E),
        (false, true) => product!(matmul_nt_blocks, E),
        (true, true) => product!(matmul_tt_blocks, E),
    })?;
    match (a.rank(), out.shape()) {
        (2, &[_, m, n]) => out.reshape(&[m, n]),
        _ => Ok(out),
    }
}
