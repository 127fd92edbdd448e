//! Arrays as matrices of rows, and the blocks of such matrices.
use crate::blocks::{Choice, Need, choose, many_rows, shared};
use crate::dispatch::floats;
use crate::element::Floating;
use crate::wrong::wrong;
use pallas_rt::launch::launch_parts;
use pallas_rt::prelude::*;

/// Reshapes `[.., n]` to `[rows, n]`.
///
/// # Errors
/// The array is a scalar.
#[track_caller]
pub(crate) fn rows(x: &Array) -> Result<Array> {
    match x.shape().split_last() {
        None => wrong("a row operation needs an array of at least one dimension".into()),
        Some((&n, outer)) => Ok(x.reshape(&[outer.iter().product(), n])),
    }
}

/// Reshapes a parameter of rows, a vector of `n` elements, to `[1, n]`.
///
/// # Errors
/// The array is not a vector of this length.
#[track_caller]
pub(crate) fn parameter(name: &str, x: &Array, n: usize) -> Result<Array> {
    if x.shape() != [n] {
        return wrong(format!("`{name}` has shape {:?}, rows have {n} elements", x.shape()));
    }
    Ok(x.reshape(&[1, n]))
}

/// Converts sums in the accumulator's type to type `E`.
#[kernel(grid = (cdiv(N, BN), cdiv(D, BD)))]
fn rounded<E: Floating>(
    #[block([N, D] => [BN, BD], |i, j| (i, j))] x: In<E::Acc>,
    #[block([N, D] => [BN, BD], |i, j| (i, j))] out: Out<E>,
    #[dim] BN: usize,
    #[dim] BD: usize,
) {
    out.store(x.load().cast::<E>());
}

/// Converts f32 sums to type `dtype`, that of the operands.
#[track_caller]
#[inline]
pub(crate) fn narrow(dtype: DType, sums: Array) -> Result<Array> {
    match dtype {
        DType::F32 => Ok(sums),
        other => {
            let rows = sums.shape().first().map_or(1, |&n| shared(n, 8));
            floats!("narrow", other, E => rounded::<E>(&sums, rows, 1024))
        }
    }
}

/// Refuses an epsilon of a norm that is NaN, infinite or negative.
#[track_caller]
pub(crate) fn check_epsilon(epsilon: f32) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    wrong(format!("`epsilon` is {epsilon}, expected a finite number of at least 0"))
}

/// Maximum length of a row that is one block.
const WHOLE_ROW: usize = 1 << 12;
/// On a CPU, maximum length of a row that is one block: a core keeps row and results in its second-level cache.
const CACHED_ROW: usize = 1 << 17;
/// Number of columns of a block of longer rows.
const BLOCK: usize = 1 << 10;
/// On a CPU, number of columns of a block of longer rows: fewer would be little work for a program.
const BLOCK_OF_CORES: usize = 1 << 13;

/// Returns true if rows of a matrix are read once as a whole, not once in blocks for each statistic of them. Devices of
/// a mesh that divide long rows keep their own columns.
pub(crate) fn are_whole(x: &Array) -> bool {
    x.shape()[1] <= if on_cores(x) { CACHED_ROW } else { WHOLE_ROW }
}

/// Returns true if work on the array is divided among a known number of cores, and not among devices of a mesh.
pub(crate) fn on_cores(x: &Array) -> bool {
    x.client().target().cores.is_some() && launch_parts() == 1
}

/// Returns true if the rows of an array and their results exceed a core's cache.
#[cfg(feature = "graph")]
pub(crate) fn are_long(x: &Array) -> bool {
    x.shape().last().is_some_and(|&n| n > CACHED_ROW)
}

/// Rows and columns of a block, at most eight rows, of a matrix whose rows are not [whole](are_whole).
pub(crate) fn blocks_of_long_rows(x: &Array) -> [usize; 2] {
    blocks_of_rows(x, 8, Some(if on_cores(x) { BLOCK_OF_CORES } else { BLOCK }))
}

/// Rows and columns of a block of the matrix `x`: at most `most` rows, and few enough that all tiles fit registers,
/// with `columns` columns, or all columns for `None`.
///
/// On the CPU a block has more rows than that if they are short, as long as each core has a block.
pub(crate) fn blocks_of_rows(x: &Array, most: usize, columns: Option<usize>) -> [usize; 2] {
    // The input rows, the computed rows, a gradient or a parameter, and the result.
    const TILES: usize = 4;
    let (target, n) = (x.client().target(), x.shape().last().copied().unwrap_or(1));
    let rows = x.len() / n.max(1);
    let wide = columns.unwrap_or(n);
    let most = (most * WHOLE_ROW / wide.max(WHOLE_ROW)).max(1);
    let short = target.cores.map(|_| many_rows(target, rows, wide, most));
    let smaller = [16, 4, 1].into_iter().filter(|rows| *rows < most);
    let candidates = short.into_iter().chain([most]).chain(smaller);
    let candidates = candidates.map(|rows| ([rows, wide], Need::live_elements(TILES * rows * wide)));
    let [block, wide] = choose(Choice::Rows, target, [rows, n], candidates);
    [shared(rows, block), wide]
}
