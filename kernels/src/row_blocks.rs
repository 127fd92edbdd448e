//! Arrays as matrices of rows, and the blocks of such matrices.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_rows, choose_block_sizes, mesh_block_size};
use crate::dtype_dispatch::floats;
use crate::element::Floating;
use pallas_rt::launch::launch_parts;
use pallas_rt::prelude::*;

/// Reshapes `[.., n]` to `[rows, n]`.
///
/// # Errors
/// The array is a scalar.
#[track_caller]
pub(crate) fn reshape_to_rows(x: &Array) -> Result<Array> {
    match x.shape().split_last() {
        None => argument_error("a row operation needs an array of at least one dimension".into()),
        Some((&n, outer)) => Ok(x.reshape(&[outer.iter().product(), n])),
    }
}

/// Reshapes a parameter of rows, a vector of `n` elements, to `[1, n]`.
///
/// # Errors
/// The array is not a vector of this length.
#[track_caller]
pub(crate) fn reshape_parameter(name: &str, x: &Array, n: usize) -> Result<Array> {
    if x.shape() != [n] {
        return argument_error(format!("`{name}` has shape {:?}, rows have {n} elements", x.shape()));
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
pub(crate) fn cast_sums(dtype: DType, sums: Array) -> Result<Array> {
    match dtype {
        DType::F32 => Ok(sums),
        other => {
            let rows = sums.shape().first().map_or(1, |&n| mesh_block_size(n, 8));
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
    argument_error(format!("`epsilon` is {epsilon}, expected a finite number of at least 0"))
}

/// Maximum length of a row that is one block.
const MAX_WHOLE_ROW_ELEMENTS: usize = 1 << 12;
/// On a CPU, maximum length of a row that is one block: a core keeps row and results in its second-level cache.
const MAX_CACHED_ROW_ELEMENTS: usize = 1 << 17;
/// Number of columns of a block of rows that are too long to be one block.
const LONG_ROW_BLOCK_COLUMNS: usize = 1 << 10;
/// On a CPU, number of columns of a block of rows that are too long to be one block: fewer would be little work for a
/// program.
const CPU_LONG_ROW_BLOCK_COLUMNS: usize = 1 << 13;

/// Returns true if rows of a matrix are read once as a whole, not once in blocks for each statistic of them. Devices of
/// a mesh that divide long rows keep their own columns.
pub(crate) fn has_whole_row_blocks(x: &Array) -> bool {
    x.shape()[1] <= if is_divided_among_cores(x) { MAX_CACHED_ROW_ELEMENTS } else { MAX_WHOLE_ROW_ELEMENTS }
}

/// Returns true if work on the array is divided among a known number of cores, and not among devices of a mesh.
pub(crate) fn is_divided_among_cores(x: &Array) -> bool {
    x.client().target().cores.is_some() && launch_parts() == 1
}

/// Returns true if the rows of an array and their results exceed a core's cache.
#[cfg(feature = "graph")]
pub(crate) fn has_long_rows(x: &Array) -> bool {
    x.shape().last().is_some_and(|&n| n > MAX_CACHED_ROW_ELEMENTS)
}

/// Rows and columns of a block, at most eight rows, of a matrix whose rows are too long to be one block.
pub(crate) fn choose_long_row_block(x: &Array) -> [usize; 2] {
    choose_row_block(
        x,
        8,
        Some(if is_divided_among_cores(x) { CPU_LONG_ROW_BLOCK_COLUMNS } else { LONG_ROW_BLOCK_COLUMNS }),
    )
}

/// Rows and columns of a block of the matrix `x`: at most `max_rows` rows, and few enough that all tiles fit registers,
/// with `columns` columns, or all columns for `None`.
///
/// On the CPU a block has more rows than that if they are short, as long as each core has a block.
pub(crate) fn choose_row_block(x: &Array, max_rows: usize, columns: Option<usize>) -> [usize; 2] {
    // The input rows, the computed rows, a gradient or a parameter, and the result.
    const LIVE_TILES: usize = 4;
    let (target, n) = (x.client().target(), x.shape().last().copied().unwrap_or(1));
    let rows = x.len() / n.max(1);
    let wide = columns.unwrap_or(n);
    let most = (max_rows * MAX_WHOLE_ROW_ELEMENTS / wide.max(MAX_WHOLE_ROW_ELEMENTS)).max(1);
    let short = target.cores.map(|_| choose_block_rows(target, rows, wide, most));
    let smaller = [16, 4, 1].into_iter().filter(|rows| *rows < most);
    let candidates = short.into_iter().chain([most]).chain(smaller);
    let candidates =
        candidates.map(|rows| ([rows, wide], BlockResources::from_live_elements(LIVE_TILES * rows * wide)));
    let [block, wide] = choose_block_sizes(BlockSizeKey::Rows, target, [rows, n], candidates);
    [mesh_block_size(rows, block), wide]
}
