//! Choice of the sizes of blocks of a cluster's kernel.
use super::axis_tiling::{self, AxisTiling, AxisTiling::Grid, min_block_elements};
use super::cluster::Cluster;
use super::convolution_blocks;
use super::device_limits::{CACHE_LINE_ELEMENTS, CORE_CACHE_ELEMENTS, DeviceLimits};
use crate::graph::{Equation, Graph, Op};
use pallas_ir::{Dim, StructuralOp};

/// Elements of the largest tile of an array that is read once and not used again.
const MAX_STREAMED_TILE_ELEMENTS: usize = 1 << 19;
/// Elements of 4 bytes in a vector register of a core (256 bits); where columns are folded, blocks along the last axis
/// are a multiple of it if possible.
const VECTOR_REGISTER_ELEMENTS: usize = 8;

/// Returns the size of blocks along each axis of a cluster's grid, whose extents are given.
pub(super) fn choose_block_sizes(
    graph: &Graph,
    cluster: &Cluster,
    extents: &[usize],
    sizes: &DeviceLimits,
) -> Vec<usize> {
    match cluster.product {
        Some(product) => choose_product_blocks(graph, cluster, product, extents, sizes),
        None => choose_blocks_without_product(graph, cluster, extents, sizes),
    }
}

/// Returns the sizes of blocks of a cluster without a product: along the last axes as many elements as a tile holds,
/// and whole cache lines of columns that are folded.
fn choose_blocks_without_product(
    graph: &Graph,
    cluster: &Cluster,
    extents: &[usize],
    sizes: &DeviceLimits,
) -> Vec<usize> {
    // Shapes and tilings of a program's tiles; the operand of a fold counts too if it is read from memory.
    let mut tiles: Vec<(&[usize], Vec<AxisTiling>)> =
        cluster.tilings.iter().map(|(v, tiling)| (&graph.ty(*v).shape[..], tiling.clone())).collect();
    // The axes of columns that are folded, the last one first.
    let (mut columns, mut folded): (Vec<usize>, usize) = (vec![], 0);
    for e in cluster.members.iter().map(|&i| &graph.equations[i]) {
        if let Op::Structural(StructuralOp::Reduce(_) | StructuralOp::ArgReduce(_)) = &e.op {
            let tiling =
                axis_tiling::operand_tilings(graph, e, &cluster.tilings[&e.result()]).expect("a member has a tiling");
            tiles.push((&graph.ty(e.args[0]).shape, tiling[0].clone()));
            folded = folded.max(graph.ty(e.args[0]).elements());
            if columns.is_empty() {
                columns =
                    tiling[0].iter().rev().map_while(|axis_tiling| axis_tiling.grid_axis()).map(usize::from).collect();
            }
        }
        // A short column of a gather's table, of which a program reads many elements, is like a column that it reads
        // whole.
        if let Op::Structural(StructuralOp::Gather(_)) = &e.op {
            let tiling =
                axis_tiling::operand_tilings(graph, e, &cluster.tilings[&e.result()]).expect("a member has a tiling");
            let shape = &graph.ty(e.args[0]).shape;
            let reads_many = graph.ty(e.result()).elements() >= graph.ty(e.args[0]).elements();
            if reads_many && min_block_elements(shape, &tiling[0]) <= MAX_COUNTED_GATHER_TABLE_ELEMENTS {
                tiles.push((shape, tiling[0].clone()));
            }
        }
    }
    let members = || cluster.members.iter().map(|&i| &graph.equations[i]);
    // A fold alone reads everything once and needs no cache, so large tiles are better: few programs have fewer steps.
    let is_fold = cluster.members.len() == 1 && folded > 0;
    let mut tile =
        if columns.is_empty() && !is_fold { sizes.tile } else { sizes.column_fold_tile_and_row_elements(folded)[0] };
    if is_fold && !columns.is_empty() && folded > CORE_CACHE_ELEMENTS && sizes.panel.is_none() {
        // Whole rows are read faster, as long as enough programs are left.
        tile = tile.max((folded / (8 * sizes.programs)).min(MAX_STREAMED_TILE_ELEMENTS));
    }
    if sizes.panel.is_none()
        && members().any(long_row_gather_test(graph))
        && members().all(|e| is_pointwise(e) || long_row_gather_test(graph)(e))
    {
        // Rows that are gathered are read directly from memory, and need no cache either.
        let elements = members().map(|e| graph.ty(e.result()).elements()).max().unwrap_or(0);
        tile = tile.max((elements / (8 * sizes.programs)).min(MAX_STREAMED_TILE_ELEMENTS));
    }
    let mut most = (sizes.sorted / cluster.count_sorted_elements(graph).max(1)).max(1);
    let mut blocks = vec![1; extents.len()];
    // Axes of columns that are left, and number of adjacent elements so far.
    let (mut columns, mut adjacent) = (columns.into_iter().peekable(), 1);
    for (k, &extent) in extents.iter().enumerate().rev() {
        // Folds of columns read whole cache lines.
        let is_column = columns.next_if_eq(&k).is_some();
        let least = if is_column { sizes.columns.div_ceil(adjacent) } else { 1 };
        // Elements of the largest tile that grows along the axis, with the blocks along later axes.
        let growing = tiles
            .iter()
            .filter(|(_, tiling)| tiling.iter().any(|axis_tiling| axis_tiling.grid_axis() == Some(k as u8)));
        let elements =
            growing.map(|(shape, tiling)| count_block_elements(shape, tiling, &blocks)).max().unwrap_or(1).max(1);
        let mut block = extent.clamp(1, most.min(tile / elements).max(least));
        if block < extent && block > least {
            block -= block % least;
        }
        let unit = if k + 1 == extents.len() {
            if is_column { VECTOR_REGISTER_ELEMENTS } else { CACHE_LINE_ELEMENTS }
        } else {
            1
        };
        blocks[k] = sizes.balanced_block_size(extent, block, if is_column { least } else { 1 }, unit);
        adjacent = if is_column && blocks[k] == extent { adjacent * extent.max(1) } else { sizes.columns };
        most = (most / blocks[k]).max(1);
    }
    blocks
}

/// Fewest elements of a gathered row that a kernel on a CPU reads directly from memory; [`long_row_gather_test`] is
/// false for gathers of shorter rows.
const MIN_DIRECT_GATHER_ROW_ELEMENTS: usize = 144;

/// Returns a predicate that is true for gathers of whole rows of at least [`MIN_DIRECT_GATHER_ROW_ELEMENTS`] elements.
fn long_row_gather_test(graph: &Graph) -> impl Fn(&Equation) -> bool {
    |e| match &e.op {
        Op::Structural(StructuralOp::Gather(gather)) => {
            let last = graph.ty(e.args[0]).shape.last();
            let is_row = |n: usize| {
                n >= MIN_DIRECT_GATHER_ROW_ELEMENTS
                    && gather.slice_sizes.last().and_then(Dim::as_number) == Some(n as i64)
            };
            last.is_some_and(|&n| is_row(n) && graph.ty(e.result()).shape.last() == Some(&n))
        }
        _ => false,
    }
}

/// Returns true for equations each of whose elements needs at most one element of each operand.
fn is_pointwise(e: &Equation) -> bool {
    matches!(
        &e.op,
        Op::Literal(_) | Op::Scalar(_) | Op::Structural(StructuralOp::Broadcast(_) | StructuralOp::Reshape(_))
    )
}

/// Most elements of a gather's table that a program with the smallest blocks reads, for the table to count among the
/// tiles that bound the sizes of blocks.
const MAX_COUNTED_GATHER_TABLE_ELEMENTS: usize = 128;

/// Columns of a product's block that are enough to fill a core's vectors; a block with fewer gets columns of another
/// axis too.
const MIN_PRODUCT_BLOCK_COLUMNS: usize = 16;

/// Most rows of a product that a CPU thread multiplies at once; with more rows it goes through the matrix several
/// times.
const MAX_PRODUCT_ROWS_AT_ONCE: usize = 16;

/// Most columns of a block of a product with few rows: the matrix is read from memory once, the faster the longer the
/// pieces of its rows are.
const MAX_WIDE_BLOCK_COLUMNS: usize = 1 << 13;

/// Returns the sizes of blocks of a cluster with a product: columns in a few equal parts; rows so that every program
/// has about the same amount of work; along all other axes 1, or as many small matrices as make a program worth its
/// steps ([`enlarge_batch_blocks`]). Columns are the last axes of the right operand, rows those of the left operand.
fn choose_product_blocks(
    graph: &Graph,
    cluster: &Cluster,
    product: usize,
    extents: &[usize],
    sizes: &DeviceLimits,
) -> Vec<usize> {
    let e = &graph.equations[product];
    let (shape, tiling) = (&graph.ty(e.result()).shape, &cluster.tilings[&e.result()]);
    let dot = match &e.op {
        Op::Structural(StructuralOp::Dot(dot)) => dot,
        Op::Structural(StructuralOp::Conv(conv)) => {
            return convolution_blocks::choose_conv_blocks(graph, e, conv, tiling, extents, sizes);
        }
        _ => unreachable!("a product is a dot or a convolution"),
    };
    let summed: usize = dot.contract.iter().map(|p| graph.ty(e.args[0]).shape[p.0]).product();
    // Threads of a GPU share a block in groups of four.
    let least = if sizes.panel.is_some() { 4 } else { 1 };
    let part = |extent: usize, most: usize| {
        let even = extent.div_ceil(extent.div_ceil(most).max(1));
        // Parts are whole cache lines.
        let unit = if sizes.panel.is_none() && even >= 4 * CACHE_LINE_ELEMENTS { CACHE_LINE_ELEMENTS } else { least };
        even.next_multiple_of(unit).min(extent).max(1)
    };
    let mut blocks = vec![1; extents.len()];
    // The axes of columns and of rows, the last one first.
    let first = dot.batch.len() + dot.free_axes(0, graph.ty(e.args[0]).shape.len()).len();
    let most_columns = |extent: usize| {
        let rows: usize = shape[dot.batch.len()..first].iter().product();
        let right = e.args[1];
        let is_read_once = rows <= MAX_PRODUCT_ROWS_AT_ONCE
            && graph.ty(right).elements() > CORE_CACHE_ELEMENTS
            && !cluster.members.iter().any(|&i| graph.equations[i].results.contains(&right));
        if sizes.panel.is_some() || !is_read_once {
            return sizes.product[1];
        }
        (extent / (TARGET_LAUNCH_WAVES * sizes.programs))
            .clamp(sizes.product[1], sizes.product[1].max(MAX_WIDE_BLOCK_COLUMNS))
    };
    let long = |axes: std::ops::Range<usize>| axes.rev().filter(move |&axis| shape[axis] > 1);
    let (mut columns, mut matrix) = (1, vec![]);
    for axis in long(first..shape.len()) {
        let block = match tiling[axis] {
            Grid(k) => {
                matrix.push(k as usize);
                blocks[k as usize] = part(shape[axis], (most_columns(shape[axis]) / columns).max(1));
                blocks[k as usize]
            }
            axis_tiling => axis_tiling.min_block_extent(shape[axis]),
        };
        columns *= block;
        if columns >= MIN_PRODUCT_BLOCK_COLUMNS || block < shape[axis] || sizes.panel.is_some() {
            break;
        }
    }
    // If whole rows are longer than a block, memory is left for fewer of them. Short axes of rows share a block.
    let most = (sizes.product[0] * sizes.product[1] / columns).clamp(1, sizes.product[0]);
    let (mut left, mut outermost) = (most, None);
    let rows = if long(dot.batch.len()..first).next().is_some() { dot.batch.len()..first } else { 0..dot.batch.len() };
    for axis in long(rows) {
        let block = match tiling[axis] {
            Grid(k) => {
                matrix.push(k as usize);
                outermost = Some((k as usize, left));
                blocks[k as usize] = shape[axis].min(left);
                blocks[k as usize]
            }
            axis_tiling => axis_tiling.min_block_extent(shape[axis]),
        };
        left /= block;
        if left <= 1 || block < shape[axis] || sizes.panel.is_some() {
            break;
        }
    }
    let programs =
        |blocks: &[usize]| extents.iter().zip(blocks).map(|(n, block)| n.div_ceil(*block)).product::<usize>();
    if let Some((k, left)) = outermost {
        let extent = extents[k];
        blocks[k] = extent.max(1);
        let others = programs(&blocks);
        let mut parts = extent.div_ceil(left).max(1);
        let programs = others * parts;
        // Blocks in panels are as large as threads need; smaller ones would read as many columns for fewer rows.
        let is_uneven =
            sizes.panel.is_none() && !programs.is_multiple_of(sizes.programs) && programs < 4 * sizes.programs;
        if is_uneven && shape.iter().product::<usize>() * summed >= sizes.small {
            parts = programs.next_multiple_of(sizes.programs).div_ceil(others);
        }
        let even = extent.div_ceil(parts.clamp(1, extent.max(1)));
        let unit = if left == most && (sizes.panel.is_some() || even > MAX_PRODUCT_ROWS_AT_ONCE) { 4 } else { 1 };
        blocks[k] = even.next_multiple_of(unit).min(extent).max(1);
    }
    if sizes.panel.is_none() {
        let a_matrix = |axis: usize| matrix.contains(&axis);
        let operands = axis_tiling::operand_tilings(graph, e, tiling).expect("a member has a tiling");
        let values = e.args.iter().copied().zip(operands).chain([(e.result(), tiling.clone())]);
        let elements =
            values.map(|(v, tiling)| count_block_elements(&graph.ty(v).shape, &tiling, &blocks)).max().unwrap_or(1);
        let is_small = shape.iter().product::<usize>() * summed < sizes.small;
        let times = block_growth_factor(programs(&blocks), elements, is_small, sizes);
        match outermost.filter(|&(k, _)| blocks[k] < extents[k]) {
            // More rows of a matrix are adjacent in memory, those of the next matrix are not.
            Some((k, _)) => {
                let parts = extents[k].div_ceil((blocks[k] * times).min(extents[k]));
                blocks[k] = extents[k].div_ceil(parts).next_multiple_of(4).min(extents[k]);
            }
            None => enlarge_batch_blocks(&mut blocks, extents, a_matrix, times),
        }
    }
    blocks
}

/// Programs that a launch should have for each program that the device runs at the same time, where its shape allows as
/// many: the last ones then end at about the same time.
const TARGET_LAUNCH_WAVES: usize = 4;

/// Returns the factor by which blocks of `block_elements` elements may grow: until they fill the largest tile of a
/// program without a product, and as long as enough of the present `programs` remain; for a small product one is
/// enough.
fn block_growth_factor(programs: usize, block_elements: usize, is_small_product: bool, sizes: &DeviceLimits) -> usize {
    let enough = if is_small_product { 1 } else { TARGET_LAUNCH_WAVES * sizes.programs };
    (sizes.tile / block_elements.max(1)).min(programs / enough).max(1)
}

/// Enlarges blocks along axes that belong to no matrix, so that a program has up to `growth_factor` positions of them.
fn enlarge_batch_blocks(
    blocks: &mut [usize],
    extents: &[usize],
    is_matrix_axis: impl Fn(usize) -> bool,
    growth_factor: usize,
) {
    let mut left = growth_factor;
    for axis in (0..extents.len()).rev().filter(|&axis| !is_matrix_axis(axis)) {
        let most = left.clamp(1, extents[axis].max(1));
        // No block extends beyond the array, unless that would make blocks much smaller.
        let even = (most.div_ceil(2)..=most).rev().find(|n| extents[axis].is_multiple_of(*n));
        blocks[axis] = even.unwrap_or(extents[axis].div_ceil(extents[axis].div_ceil(most).max(1)).max(1));
        left /= blocks[axis];
    }
}

/// Returns the number of elements of a value with this tiling that a program has, given the size of blocks along each
/// axis of the grid.
fn count_block_elements(shape: &[usize], tiling: &[AxisTiling], blocks: &[usize]) -> usize {
    let along = |(axis_tiling, &extent): (&AxisTiling, &usize)| {
        let times = axis_tiling.grid_axis().map_or(1, |axis| blocks[axis as usize]);
        axis_tiling.min_block_extent(extent).saturating_mul(times).min(extent)
    };
    tiling.iter().zip(shape).map(along).product()
}
