//! Embedding: lookup of table rows by number, and the gradient by the table.
//!
//! ```text
//! out_t = table[ids_t]        dtable_v = Σ_{t: ids_t = v} dout_t
//! ```
//! The numbers are a prefetch operand: index maps read them, so a program loads the one row it copies. For the gradient
//! the positions of each number are gathered on the host (a counting sort, O(positions + vocabulary)); one program then
//! sums a row's gradients in ascending order of position, in f32: no atomics, the same result every time. It costs one
//! read of `dout` and one write of `dtable`, as rows that nobody looked up are zeros. On the CPU it is `segment_sum` of
//! arrays, with the feature `graph`.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_rows, choose_block_sizes, mesh_block_size};
use crate::dtype_dispatch::{floats, read_i32_elements, with_gradient};
use crate::element::Floating;
use crate::row_blocks::reshape_to_rows;
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;

/// Copies a row of the table in blocks of `BD` elements; a number out of range gives NaN.
#[kernel(grid = (N, cdiv(D, BD)))]
pub fn embedding_blocks<E: Floating, const BD: usize>(
    #[prefetch([N])] ids: Prefetch<i32>,
    #[block([V, D] => [_, BD], |t, j| (ids.at(t).maximum(0).minimum(V - 1), j))] table: In<E>,
    #[block([N, D] => [_, BD], |t, j| (t, j))] out: Out<E>,
) {
    let id = ids.at(program_id(0));
    out.store(select(id.ge(0) & id.lt(V), table.load(), f32::NAN));
}

/// Sums rows `order[starts[v] .. starts[v + 1]]` of `dout` into row v of the gradient. `NP` is the number of rows of
/// `dout` for which the kernel is compiled, at least N.
#[kernel(grid = (V, cdiv(D, BD)))]
pub fn embedding_backward_blocks<E: Floating, const BD: usize>(
    #[prefetch([S])] starts: Prefetch<i32>,
    #[prefetch([T])] order: Prefetch<i32>,
    #[block([N, D] => [NP, BD], |_, j| (0, j))] dout: In<E>,
    #[block([V, D] => [_, BD], |v, j| (v, j))] dtable: Out<E>,
    #[dim] V: usize,
    #[dim] NP: usize,
) {
    let v = program_id(0);
    let mut sum = zeros::<E::Acc>([BD]);
    for t in starts.at(v)..starts.at(v + 1) {
        sum += dout.at((order.at(t), ..)).load().cast::<E::Acc>();
    }
    dtable.store(sum.cast::<E>());
}

/// Copies blocks of rows, for processors whose programs read the whole table. A number out of range gives NaN.
#[kernel(grid = (cdiv(N, BN)))]
pub fn embedding_rows<E: Floating>(
    #[block([N] => [BN], |t| (t,), fill = 0)] ids: In<i32>,
    #[block([V, D] => [V, D], |_| (0, 0))] table: In<E>,
    #[block([N, D] => [BN, D], |t| (t, 0))] out: Out<E>,
    #[dim] BN: usize,
) {
    let (ids, table) = (ids.load(), table.load());
    let index = ids.expand(1).broadcast([BN, D]);
    if ids.min(0).item().ge(0) & ids.max(0).item().lt(V as i32) {
        out.store(table.take_along_axis(index, 0));
    } else {
        let inside = (ids.ge(0) & ids.lt(V as i32)).expand(1);
        let index = index.maximum(0).minimum(V as i32 - 1);
        out.store(select(inside, table.take_along_axis(index, 0), f32::NAN));
    }
}

/// Sums rows of `dout` into blocks of rows of the gradient. `order` has pairs of a position and its number, sorted by
/// number; those of block i are `starts[i] .. starts[i + 1]`. `NP` is the number of rows for which the kernel is
/// compiled, at least N.
#[kernel(grid = (cdiv(V, BV), cdiv(D, BD)))]
pub fn embedding_backward_rows<E: Floating>(
    #[prefetch([S])] starts: Prefetch<i32>,
    #[prefetch([T, 2])] order: Prefetch<i32>,
    #[block([N, D] => [NP, BD], |_, j| (0, j))] dout: In<E>,
    #[block([V, D] => [BV, BD], |v, j| (v, j))] dtable: Out<E>,
    #[scratch([BV, BD])] sums: Scratch<E::Acc>,
    #[dim] V: usize,
    #[dim] BV: usize,
    #[dim] NP: usize,
    #[dim] BD: usize,
) {
    let block = program_id(0);
    if E::DTYPE == <E::Acc as Elem>::DTYPE {
        // The sums are accumulated in the result.
        dtable.fill(0.0);
        for t in starts.at(block)..starts.at(block + 1) {
            let sum = dtable.at((order.at((t, 1)) - block * BV, ..));
            sum.store(sum.load() + dout.at((order.at((t, 0)), ..)).load());
        }
    } else {
        sums.fill(0.0);
        for t in starts.at(block)..starts.at(block + 1) {
            let sum = sums.at((order.at((t, 1)) - block * BV, ..));
            sum.store(sum.load() + dout.at((order.at((t, 0)), ..)).load().cast::<E::Acc>());
        }
        dtable.store(sums.load().cast::<E>());
    }
}

/// Returns true if a program copies several rows: where the number of cores is known and the table is not empty.
fn has_row_blocks(table: &Array) -> bool {
    table.client().target().cores.is_some() && !table.is_empty()
}

/// Number of rows of a block, for `row_count` rows as long as those of `x`.
fn choose_rows_per_block(x: &Array, row_count: usize) -> usize {
    let target = x.client().target();
    let each = choose_block_rows(target, row_count, x.shape().last().copied().unwrap_or(1), 1);
    let [rows] = choose_block_sizes(
        BlockSizeKey::EmbeddingRows,
        target,
        [row_count],
        [([each], BlockResources::NO_REQUIREMENTS)],
    );
    mesh_block_size(row_count, rows)
}

/// Number of elements of a row that a program copies.
fn choose_columns_per_block(x: &Array) -> usize {
    // One element per thread where 64 fit the registers, so that a few rows are many programs.
    let candidates = [1024, 256].map(|width| ([width], BlockResources::from_live_elements(64 * width)));
    let [width] = choose_block_sizes(
        BlockSizeKey::Embedding,
        x.client().target(),
        [x.shape().last().copied().unwrap_or(1)],
        candidates,
    );
    width
}

/// Reads the ids on the host, and refuses those that are no row of a table of `vocabulary` rows; returns an empty
/// vector, without a check, if a traced function computes them.
#[track_caller]
fn read_checked_ids(ids: &Array, vocabulary: usize) -> Result<Vec<i32>> {
    if ids.is_traced() && ids.dtype() == DType::I32 {
        return Ok(vec![]);
    }
    let found = read_i32_elements("ids", ids)?;
    match found.iter().position(|&id| usize::try_from(id).map_or(true, |id| id >= vocabulary)) {
        None => Ok(found),
        Some(at) => argument_error(format!("id {} at position {at} is no row of a table of {vocabulary}", found[at])),
    }
}

/// Rows of `table [vocabulary, d]` (f32, f16 or bf16) by i32 `ids [..]`: `[.., d]`.
///
/// The numbers are read on the host to check them, so on a GPU the call waits for the kernels that write them. Numbers
/// that a traced function computes are not checked: one out of range gives a row of NaN, and where the number of cores
/// is not known, the gradient by the table is refused.
///
/// # Errors
/// A table that is no matrix, other element types, a number out of range; device trouble.
///
/// ```
/// use pallas_kernels::embedding::{embedding, embedding_backward};
/// use pallas_rt::Array;
/// let table = Array::from_slice(&[0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0], &[3, 2])?;
/// let ids = Array::from_slice(&[2, 0, 2], &[3])?;
/// let out = embedding(&table, &ids)?;
/// assert_eq!(out.to_vec::<f32>()?, [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
/// let dtable = embedding_backward(&out, &ids, 3, Some(0))?;
/// assert_eq!(dtable.to_vec::<f32>()?, [0.0, 0.0, 0.0, 0.0, 40.0, 42.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn embedding(table: &Array, ids: &Array) -> Result<Array> {
    let &[vocabulary, _] = table.shape() else {
        return argument_error(format!("`table` has shape {:?}, expected [vocabulary, d]", table.shape()));
    };
    read_checked_ids(ids, vocabulary)?;
    if ids.is_traced() {
        if vocabulary == 0 {
            return argument_error("`table` has no rows".into());
        }
        #[cfg(feature = "graph")]
        if let Some(found) = crate::composed_ops::compose_row_lookup(table, ids) {
            return Ok(found);
        }
        // The gradient needs the numbers on the host.
        return look_up_rows(table, ids);
    }
    let (call, [table]) = Differentiable::begin([table])?;
    let [out] = with_gradient!(call, [look_up_rows(&table, ids)?], &[], |[], [dout]| {
        [embedding_backward(&dout, ids, vocabulary, None)?]
    });
    Ok(out)
}

/// Looks up rows by numbers that are checked, or that a traced function computes.
#[track_caller]
#[inline]
fn look_up_rows(table: &Array, ids: &Array) -> Result<Array> {
    let flat = ids.reshape(&[ids.len()]);
    let out = floats!("embedding", table.dtype(), E => match choose_columns_per_block(table) {
        _ if has_row_blocks(table) => embedding_rows::<E>(&flat, table, choose_rows_per_block(table, ids.len())),
        256 => embedding_blocks::<E, 256>(&flat, table),
        _ => embedding_blocks::<E, 1024>(&flat, table),
    })?;
    Ok(out.reshape(&[ids.shape(), &table.shape()[1..]].concat()))
}

/// The gradient `[vocabulary, d]` by the table, from the gradient `dout [.., d]` by [`embedding`]'s result. The
/// gradient of row `padding`, if given, is 0, as in PyTorch.
///
/// # Errors
/// As [`embedding`]; `dout` of another shape.
#[track_caller]
#[inline]
pub fn embedding_backward(dout: &Array, ids: &Array, vocabulary: usize, padding: Option<i32>) -> Result<Array> {
    let flat = reshape_to_rows(dout)?;
    let &[n, d] = flat.shape() else { unreachable!("rows are a matrix") };
    if [ids.shape(), &[d]].concat() != dout.shape() {
        return argument_error(format!("`dout` has shape {:?} for ids of shape {:?}", dout.shape(), ids.shape()));
    }
    if ids.is_traced() {
        return argument_error(
            "the gradient of `embedding` sorts `ids` on the host, and a traced function computes them".into(),
        );
    }
    let ids = read_checked_ids(ids, vocabulary)?;
    let client = dout.client();
    #[cfg(feature = "graph")]
    if let Some(sums) = crate::composed_ops::compose_segment_sums(&flat, &ids, vocabulary, padding)? {
        return Ok(sums);
    }
    let room = n.next_power_of_two();
    // A program has a block of rows on the CPU, a row elsewhere.
    let is_by_rows = client.target().cores.is_some() && vocabulary * d > 0;
    let block = if is_by_rows { choose_rows_per_block(&flat, vocabulary) } else { 1 };
    // Counting sort: starts[v] is the number of ids below v; each position goes to the next free place of its id.
    let kept = |id: &i32| Some(*id) != padding;
    let mut starts = vec![0i32; vocabulary + 1];
    ids.iter().filter(|id| kept(id)).for_each(|&id| starts[id as usize + 1] += 1);
    (0..vocabulary).for_each(|v| starts[v + 1] += starts[v]);
    let (mut next, mut order) = (starts.clone(), vec![0i32; n.max(1)]);
    for (at, &id) in ids.iter().enumerate().filter(|(_, id)| kept(id)) {
        order[next[id as usize] as usize] = at as i32;
        next[id as usize] += 1;
    }
    if is_by_rows {
        let pairs: Vec<i32> = order.iter().flat_map(|&at| [at, ids.get(at as usize).copied().unwrap_or(0)]).collect();
        let starts: Vec<i32> = (0..=vocabulary.div_ceil(block)).map(|i| starts[(i * block).min(vocabulary)]).collect();
        let (starts, pairs) = (client.array(&starts, &[starts.len()])?, client.array(&pairs, &[order.len(), 2])?);
        return floats!("embedding_backward", dout.dtype(), E => {
            embedding_backward_rows::<E>(&starts, &pairs, &flat, vocabulary, block, room, choose_columns_per_block(dout))
        });
    }
    let (starts, order) = (client.array(&starts, &[vocabulary + 1])?, client.array(&order, &[order.len()])?);
    floats!("embedding_backward", dout.dtype(), E => match choose_columns_per_block(dout) {
        256 => embedding_backward_blocks::<E, 256>(&starts, &order, &flat, vocabulary, room),
        _ => embedding_backward_blocks::<E, 1024>(&starts, &order, &flat, vocabulary, room),
    })
}
