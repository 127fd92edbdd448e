//! Chooses the order of axes in memory in which the arrays of a convolution are multiplied.
//!
//! A product of matrices reads and writes rows of adjacent elements. Best are *features*: axes that are alone in their
//! dimension of each array, other than those along which a window moves. Arrays whose adjacent elements lie along
//! another axis, such as images NCHW, are copied if each element is used often, so that these axes become adjacent:
//!
//! ```text
//! the result, and the operand with its columns      the feature of the result with the smallest stride
//! the other operand                                 its own feature with the smallest stride
//! ```
use super::super::Thresholds;
use super::super::interior_boxes::AffineLoopNest;
use super::super::plan::step::LoopNests;
use super::super::tile::StridedTile;
use super::convolution_gemm::MatrixProduct;
use pallas_ir::structural::{AffinePosition, LoopNest, NestAxisRole};
use std::cmp::Reverse;

/// Cap on the extents by which feature axes are compared, to choose the one that becomes the columns of a convolution's
/// matrix product: axes with at least as many features are equally good.
const MAX_COMPARED_FEATURE_EXTENT: usize = 64;

/// Returns, for the two operands and the result, the order of axes of its copy, or `None` for an array that is not
/// copied. Returns `None` in place of all three if none is copied.
pub(super) fn choose_axis_orders(
    nested: &LoopNests,
    nests: &[AffineLoopNest],
    tiles: [&StridedTile; 3],
    shapes: [&[usize]; 3],
    thresholds: &Thresholds,
) -> Option<[Option<Vec<usize>>; 3]> {
    let lies = |nest: &AffineLoopNest| {
        MatrixProduct::from_nest(nest, &nest.full_ranges(), thresholds).is_some_and(|matrices| matrices.runs_in_place())
    };
    if nests.iter().all(lies) {
        return None;
    }
    let nest = nested.nests.first()?;
    let places = [&nest.operands[0], &nest.operands[1], &nest.result].map(|place| &place[..]);
    // The features of each array with their dimension and distance.
    let features = [0, 1, 2].map(|array| {
        let of = |(dim, position): (usize, &AffinePosition)| {
            Some((feature_axis(nest, &places, position)?, dim, tiles[array].strides[dim].unsigned_abs()))
        };
        places[array].iter().enumerate().filter_map(of).collect::<Vec<_>>()
    });
    let dim = |array: usize, axis: usize| features[array].iter().find(|f| f.0 == axis).map(|f| f.1);
    let extent = |axis: usize| nest.axes[axis].extent as usize;
    let is_own = |axis: usize| dim(0, axis).is_some() != dim(1, axis).is_some();
    let columns = features[2].iter().filter(|f| nest.axes[f.0].role == NestAxisRole::Parallel && is_own(f.0));
    let &(columns, last, _) = columns.min_by_key(|f| (Reverse(extent(f.0).min(MAX_COMPARED_FEATURE_EXTENT)), f.2))?;
    let b = usize::from(dim(0, columns).is_none());
    let &(near, near_dim, _) = features[1 - b].iter().filter(|f| extent(f.0) > 1).min_by_key(|f| f.2)?;
    if extent(columns) < thresholds.features || extent(near) < thresholds.features {
        return None;
    }
    let mut lasts = [near_dim, last, last];
    lasts[b] = dim(b, columns)?;
    lasts[1 - b] = near_dim;
    let mut elements = 0;
    let orders = [0, 1, 2].map(|array| {
        let last = lasts[array];
        (tiles[array].strides[last].unsigned_abs() != 1).then(|| {
            elements += shapes[array].iter().product::<usize>();
            // Elements that are adjacent in the other operand lie side by side.
            let second = dim(array, near).filter(|&dim| dim != last);
            let others = (0..shapes[array].len()).filter(|&axis| axis != last && Some(axis) != second);
            others.chain(second).chain([last]).collect::<Vec<usize>>()
        })
    });
    let all: usize =
        nested.nests.iter().map(|nest| nest.axes.iter().map(|axis| axis.extent as usize).product::<usize>()).sum();
    (orders.iter().any(Option::is_some) && all >= thresholds.uses * elements).then_some(orders)
}

/// Returns the loop axis whose index alone is `position`, if it has several elements and no position in `places` (of
/// both operands and the result) combines it with another index, a stride or an offset; else `None`.
fn feature_axis(nest: &LoopNest, places: &[&[AffinePosition]; 3], position: &AffinePosition) -> Option<usize> {
    let only = |p: &AffinePosition| {
        let mut moving = p.terms.iter().filter(|&&(axis, _)| nest.axes[axis].extent > 1);
        let &(axis, by) = moving.next()?;
        (moving.next().is_none() && by == 1 && p.offset == 0).then_some(axis)
    };
    let axis = only(position)?;
    let has = |p: &&AffinePosition| p.terms.iter().any(|&(a, _)| a == axis);
    places.iter().flat_map(|place| place.iter()).filter(has).all(|p| only(p) == Some(axis)).then_some(axis)
}
