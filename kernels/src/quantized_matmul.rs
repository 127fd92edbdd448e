//! Weight-only quantised matrix products: `x·w` with w held in 8 or 4 bits an element, dequantised inside of the tile.
//!
//! ```text
//! w_pj = scale_gj·(q_pj - zero_gj)        g = p / group        out = x w
//! ```
//! (LLM.int8, Dettmers et al. 2022; groups and zero points as in GPTQ and AWQ.) With one group to a step of k the
//! product is taken over plain q, and scale and zero are applied to its sums, `scale·(x q - zero·Σ x)`: no work per
//! weight but its conversion. For up to four rows a step has several small groups, each a product of its own. Sums are
//! f32.
//!
//! | bits | values | scales | zero points |
//! |---|---|---|---|
//! | 8 | i8 `[k, n]` | f32 `[groups, n]` | none: symmetric |
//! | 4 | u8 `[ceil(k / 2), n]`: byte `(p, j)` has row `2p` in its low half, `2p + 1` in its high half | f32 `[groups, n]` | u8 `[groups, n]` |
//!
//! Groups are runs of rows, a power of two from 16 on, or all rows: then there is one scale a column.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, UNBOUNDED_EXTENT, choose_block_sizes, equal_block_size};
use crate::dtype_dispatch::floats;
use crate::matmul::choose_gpu_block;
use crate::row_blocks::reshape_to_rows;
use pallas_rt::Target;
use pallas_rt::prelude::*;

/// Number of bits of a quantised element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bits {
    /// i8, symmetric about 0.
    Eight,
    /// Half a u8, with zero points.
    Four,
}

/// A quantised matrix `[k, n]`; the [module](self) describes its arrays.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// Quantised elements: i8 `[k, n]`, or u8 `[ceil(k / 2), n]` for four bits.
    pub values: Array,
    /// Scale of each group and column: f32 `[groups, n]`.
    pub scales: Array,
    /// Zero point of each group and column: u8 `[groups, n]`; only for four bits.
    pub zeros: Option<Array>,
    /// Number of rows of the matrix.
    pub k: usize,
    /// Number of rows of a group; `None`: all rows.
    pub group: Option<usize>,
}

/// Multiplies blocks of x and of 8-bit weights and sums over k in scratch. A block of k spans `GB` groups if they are
/// smaller than it, and a group spans `P` blocks if it is larger.
#[kernel(grid = (cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, arbitrary))]
pub fn matmul_int8_blocks<E: Float>(
    #[block([M, K] => [BM, BK], |i, _, p| (i, p), fill = 0.0)] x: In<E>,
    #[block([K, N] => [BK, BN], |_, j, p| (p, j), fill = 0)] values: In<i8>,
    #[block([S, N] => [GB, BN], |_, j, p| (p / P, j), fill = 0.0)] scales: In<f32>,
    #[block([M, N] => [BM, BN], |i, j, _| (i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
    #[dim] GB: usize,
    #[dim] P: usize,
) {
    if program_id(2) == 0 {
        acc.fill(0.0);
    }
    if GB == 1 {
        acc.store(acc.load() + dot(x.load().cast::<f32>(), values.load().cast::<f32>()) * scales.load());
    } else if BM <= MAX_WEIGHT_BOUND_ROWS {
        let x = x.load().cast::<f32>().reshape([BM, GB, BK / GB]);
        let q = values.load().reshape([GB, BK / GB, BN]).cast::<f32>();
        acc.store(
            acc.load() + (dot_general(x, q, &[(2, 1)], &[(1, 0)]) * scales.load().expand(1)).sum(0).reshape([BM, BN]),
        );
    } else {
        let (x, q) = (x.load().cast::<f32>(), values.load().cast::<f32>());
        let w = q.reshape([GB, BK / GB, BN]) * scales.load().expand(1);
        acc.store(acc.load() + dot(x, w.reshape([BK, BN])));
    }
    if program_id(2) == num_programs(2) - 1 {
        out.store(acc.load().cast::<E>());
    }
}

/// Multiplies like [`matmul_int8_blocks`] with 4-bit weights: even columns of x by the low halves of bytes, odd columns
/// by the high halves.
#[kernel(
    grid = (cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)),
    semantics = (parallel, parallel, arbitrary),
    assume(BK == 2 * HB)
)]
pub fn matmul_int4_blocks<E: Float>(
    #[block([M, K] => [BM, BK], |i, _, p| (i, p), fill = 0.0)] x: In<E>,
    #[block([H, N] => [HB, BN], |_, j, p| (p, j), fill = 0)] values: In<u8>,
    #[block([S, N] => [GB, BN], |_, j, p| (p / P, j), fill = 0.0)] scales: In<f32>,
    #[block([S, N] => [GB, BN], |_, j, p| (p / P, j), fill = 0)] zero_points: In<u8>,
    #[block([M, N] => [BM, BN], |i, j, _| (i, j))] out: Out<E>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
    #[dim] BM: usize,
    #[dim] BN: usize,
    #[dim] BK: usize,
    #[dim] HB: usize,
    #[dim] GB: usize,
    #[dim] P: usize,
) {
    if program_id(2) == 0 {
        acc.fill(0.0);
    }
    let (even, odd) =
        (x.at((.., strided(0, HB, 2))).load().cast::<f32>(), x.at((.., strided(1, HB, 2))).load().cast::<f32>());
    let bytes = values.load();
    let (scale, zero, sixteenth) = (scales.load(), zero_points.load().cast::<f32>(), odd * 0.0625);
    // High halves are not shifted, so they are 16 times too large; odd columns of x are divided by 16.
    if GB == 1 {
        let (low, high) = ((bytes & 15).cast::<f32>(), (bytes & 240).cast::<f32>());
        let sums = even.sum(1) + odd.sum(1);
        acc.store(acc.load() + (dot(even, low) + dot(sixteenth, high) - sums * zero) * scale);
    } else if BM <= MAX_WEIGHT_BOUND_ROWS {
        let [even, odd, sixteenth] = [even, odd, sixteenth].map(|x| x.reshape([BM, GB, HB / GB]));
        let bytes = bytes.reshape([GB, HB / GB, BN]);
        let (low, high) = ((bytes & 15).cast::<f32>(), (bytes & 240).cast::<f32>());
        let product = |x, q| dot_general(x, q, &[(2, 1)], &[(1, 0)]);
        let sums = (even.sum(2) + odd.sum(2)).reshape([BM, GB]).t().reshape([GB, BM, 1]);
        let all = product(even, low) + product(sixteenth, high) - sums * zero.expand(1);
        acc.store(acc.load() + (all * scale.expand(1)).sum(0).reshape([BM, BN]));
    } else {
        let (low, high) = ((bytes & 15).cast::<f32>(), (bytes & 240).cast::<f32>());
        let (low, high) = (low.reshape([GB, HB / GB, BN]), high.reshape([GB, HB / GB, BN]));
        let low = ((low - zero.expand(1)) * scale.expand(1)).reshape([HB, BN]);
        let high = ((high - zero.expand(1) * 16.0) * scale.expand(1)).reshape([HB, BN]);
        acc.store(acc.load() + dot(even, low) + dot(sixteenth, high));
    }
    if program_id(2) == num_programs(2) - 1 {
        out.store(acc.load().cast::<E>());
    }
}

/// Number of rows of x up to which reading the weights takes longer than multiplying.
const MAX_WEIGHT_BOUND_ROWS: usize = 16;
/// Number of weights per step for one row of x, if a step has several groups. With more rows steps are smaller, so that
/// sums by group stay in cache.
const WEIGHTS_PER_STEP: usize = 1 << 21;
/// Maximum number of rows of x for which a step has several groups, if they are small.
const MAX_ROWS_OF_SEVERAL_GROUPS: usize = 4;
/// Minimum multiplications of a column by a group's rows and all rows of x from which a step has that group alone:
/// passes over the sums of several groups then take longer than more steps.
const MIN_MULTIPLICATIONS_OF_ONE_GROUP: usize = 256;

/// Block size for products `[m, k]·[k, n]` on a CPU with this number of cores, where `group` rows of weights share a
/// scale.
fn choose_cpu_block(cores: usize, [m, n, k, group]: [usize; 4]) -> [usize; 3] {
    match m {
        // A few rows, as in decoding: reading the weights, as bytes, takes most of the time.
        ..=MAX_WEIGHT_BOUND_ROWS => {
            // Long pieces of rows, which the processor prefetches; a program for each core.
            let width = [2048, 1024, 512, 256].into_iter().find(|bn| n.div_ceil(*bn) >= cores);
            let width = equal_block_size(n, width.unwrap_or(128));
            let group = group.max(2).next_multiple_of(2);
            let has_one_group_per_step =
                m > MAX_ROWS_OF_SEVERAL_GROUPS || m * group >= MIN_MULTIPLICATIONS_OF_ONE_GROUP;
            let deep = if has_one_group_per_step { group } else { WEIGHTS_PER_STEP / m.next_power_of_two() / width };
            let depth = match deep / group {
                // Part of a group, which is a power of two, or all rows.
                0 => 1 << deep.ilog2(),
                most => {
                    let groups = k.div_ceil(group).max(1);
                    group * groups.div_ceil(groups.div_ceil(most))
                }
            };
            [m.max(1), width, depth]
        }
        17..=256 => [128, 128, 256],
        // Weights are unpacked once for each block of rows.
        _ => [512, 128, 256],
    }
}

/// Block size for products `[m, k]·[k, n]`, where `group` rows of weights share a scale.
fn choose_quantized_block(target: &Target, extents: [usize; 4]) -> [usize; 3] {
    let [m, n, ..] = extents;
    let blocks = target.cores.map_or(choose_gpu_block(n), |cores| choose_cpu_block(cores, extents));
    choose_block_sizes(
        BlockSizeKey::QuantizedMatmul,
        target,
        [m, n, UNBOUNDED_EXTENT],
        [(blocks, BlockResources::NO_REQUIREMENTS)],
    )
}

/// Refuses a group of rows that is not a power of two from 16 on, of which blocks of k are made.
#[track_caller]
fn check_group(group: Option<usize>) -> Result<()> {
    match group {
        Some(g) if g < 16 || !g.is_power_of_two() => {
            argument_error(format!("groups of {g} rows: expected a power of two from 16 on, or all rows"))
        }
        _ => Ok(()),
    }
}

/// Quantises a matrix `[k, n]` of f32, f16 or bf16 on the host, with a scale per column and group of `group` rows.
///
/// Eight bits: `scale = max |w| / 127`. Four bits: 15 steps over the range of the group and 0. Elements are rounded to
/// the nearest step, so that each is off by at most half of its scale.
///
/// # Errors
/// No matrix, another element type, a group that is no power of two from 16 on; device trouble.
#[track_caller]
#[inline]
pub fn quantize(w: &Array, bits: Bits, group: Option<usize>) -> Result<Quantized> {
    check_group(group)?;
    let &[k, n] = w.shape() else {
        return argument_error(format!("weights have shape {:?}, expected [k, n]", w.shape()));
    };
    let x: Vec<f32> = match w.dtype() {
        DType::F16 => w.to_vec::<f16>()?.into_iter().map(f16::to_f32).collect(),
        DType::Bf16 => w.to_vec::<bf16>()?.into_iter().map(bf16::to_f32).collect(),
        DType::F32 => w.to_vec::<f32>()?,
        other => return argument_error(format!("weights hold {other}, expected f32, f16 or bf16")),
    };
    let rows = group.unwrap_or(k).max(1);
    let groups = k.div_ceil(rows);
    let (mut scales, mut zeros) = (vec![0f32; groups * n], vec![0u8; groups * n]);
    for (at, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
        let (g, j) = (at / n, at % n);
        let column = (g * rows..k.min((g + 1) * rows)).map(|p| x[p * n + j]);
        // 0 is always one of the steps.
        let (low, high) = column.fold((0f32, 0f32), |(low, high), x| (low.min(x), high.max(x)));
        match bits {
            Bits::Eight => *scale = high.max(-low) / 127.0,
            Bits::Four => {
                *scale = (high - low) / 15.0;
                *zero = if *scale > 0.0 { (-low / *scale).round() as u8 } else { 0 };
            }
        }
    }
    let steps = |p: usize, j: usize| {
        let scale = scales[p / rows * n + j];
        if scale > 0.0 { (x[p * n + j] / scale).round() } else { 0.0 }
    };
    // After the last row the value does not matter: x has no column for it.
    let half = |p: usize, j: usize| match p < k {
        true => (steps(p, j) + f32::from(zeros[p / rows * n + j])).clamp(0.0, 15.0) as u8,
        false => 0,
    };
    let client = w.client();
    let values = match bits {
        Bits::Eight => {
            let q: Vec<i8> = (0..k * n).map(|at| steps(at / n, at % n).clamp(-127.0, 127.0) as i8).collect();
            client.array(&q, &[k, n])?
        }
        Bits::Four => {
            let byte = |at: usize| half(at / n * 2, at % n) | half(at / n * 2 + 1, at % n) << 4;
            client.array(&(0..k.div_ceil(2) * n).map(byte).collect::<Vec<u8>>(), &[k.div_ceil(2), n])?
        }
    };
    let zeros = if bits == Bits::Four { Some(client.array(&zeros, &[groups, n])?) } else { None };
    Ok(Quantized { values, scales: client.array(&scales, &[groups, n])?, zeros, k, group })
}

/// `x·w` of `x [.., k]` (f32, f16 or bf16) and quantised `w [k, n]`: `[.., n]` of x's type.
///
/// # Errors
/// Shapes or element types that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::quantized_matmul::{Bits, quantize, quantized_matmul};
/// use pallas_rt::Array;
/// let w = Array::from_slice(&[127.0f32, -1.0, 2.0, 15.0], &[2, 2])?;
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let y = quantized_matmul(&x, &quantize(&w, Bits::Eight, None)?)?.to_vec::<f32>()?;
/// assert!((y[0] - 131.0).abs() < 1.0 && (y[1] - 29.0).abs() < 0.2, "{y:?}");
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn quantized_matmul(x: &Array, w: &Quantized) -> Result<Array> {
    check_group(w.group)?;
    let flat = reshape_to_rows(x)?;
    let [m, k] = [flat.shape()[0], flat.shape()[1]];
    let groups = if k == 0 { 0 } else { k.div_ceil(w.group.unwrap_or(k)) };
    let stored = if w.zeros.is_some() { w.k.div_ceil(2) } else { w.k };
    let &[_, n] = w.values.shape() else {
        return argument_error(format!(
            "the weights' values have shape {:?}, expected [{stored}, columns]",
            w.values.shape()
        ));
    };
    if k != w.k || w.values.shape()[0] != stored || w.scales.shape() != [groups, n] {
        return argument_error(format!(
            "`x` has shape {:?}, the weights {} rows in an array {:?} with scales {:?}",
            x.shape(),
            w.k,
            w.values.shape(),
            w.scales.shape()
        ));
    }
    let [bm, bn, bk] = choose_quantized_block(x.client().target(), [m, n, k, w.group.unwrap_or(k)]);
    // Groups are powers of two, as blocks are: one of them is a multiple of the other.
    let (gb, p) = match w.group {
        None => (1, k.div_ceil(bk).max(1)),
        Some(g) => ((bk / g).max(1), (g / bk).max(1)),
    };
    let out = floats!("quantized_matmul", x.dtype(), E => match &w.zeros {
        None => matmul_int8_blocks::<E>(&flat, &w.values, &w.scales, bm, bn, bk, gb, p),
        Some(z) => matmul_int4_blocks::<E>(&flat, &w.values, &w.scales, z, bm, bn, bk, bk / 2, gb, p),
    })?;
    let n = out.shape()[1];
    Ok(out.reshape(&[&x.shape()[..x.rank() - 1], &[n]].concat()))
}
