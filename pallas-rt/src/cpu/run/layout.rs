//! The order in memory in which the arrays of a nest are multiplied.
//!
//! A product of matrices reads and writes rows of adjacent elements, best along *features*: axes that are alone in their
//! dimension of each array, other than those along which a window moves. Arrays whose adjacent elements lie along another
//! axis are copied if each element is used often:
//!
//! ```text
//! result, and the operand with its columns      the features of the result that lie nearest
//! the other operand                             its own features that lie nearest
//! ```
use super::super::plan::step::Nested;
use super::super::tile::Tile;
use pallas_ir::structural::{Nest, Position, Role};

/// Least multiply-adds for each element that is copied; few in tests, whose arrays are small.
const USES: usize = if cfg!(test) { 8 } else { 16 };
/// Features of which a row is as good as any longer one.
const ENOUGH: usize = 64;

/// For the operands and the result, the order of the axes of each in its copy: none if it is not copied.
pub(super) fn copied(nested: &Nested, tiles: [&Tile; 3], shapes: [&[usize]; 3]) -> [Option<Vec<usize>>; 3] {
    let none = || [0, 1, 2].map(|_| None);
    let Some(nest) = nested.nests.first() else { return none() };
    let places = [&nest.operands[0], &nest.operands[1], &nest.result].map(|place| &place[..]);
    // The features of each array with their dimension and distance.
    let features = [0, 1, 2].map(|i| {
        let of = |(dim, position): (usize, &Position)| {
            let axis = feature(nest, &places, position)?;
            Some((axis, dim, tiles[i].strides[dim].unsigned_abs()))
        };
        places[i].iter().enumerate().filter_map(of).collect::<Vec<_>>()
    });
    let find = |array: usize, axis: usize| features[array].iter().find(|f| f.0 == axis);
    let in_one = |axis: usize| find(0, axis).is_some() != find(1, axis).is_some();
    let extent = |axis: usize| nest.axes[axis].extent as usize;
    let parallel = features[2].iter().filter(|f| nest.axes[f.0].role == Role::Parallel && in_one(f.0));
    let Some(&(columns, last, _)) = parallel.min_by_key(|f| (std::cmp::Reverse(extent(f.0).min(ENOUGH)), f.2)) else {
        return none();
    };
    let mut wanted = [vec![], vec![], vec![last]];
    for i in [0, 1] {
        let nearest = features[i].iter().min_by_key(|f| f.2);
        let Some(&(axis, dim, _)) = find(i, columns).or(nearest) else { continue };
        wanted[i].push(dim);
        // Rows of the product that are adjacent in an operand lie side by side in the result.
        wanted[2].extend(find(2, axis).map(|f| f.1).filter(|&dim| dim != last));
    }
    let mut elements = 0;
    let orders = [0, 1, 2].map(|i| {
        let last = *wanted[i].first()?;
        (tiles[i].strides[last].unsigned_abs() != 1).then(|| {
            elements += shapes[i].iter().product::<usize>();
            let others = (0..shapes[i].len()).filter(|axis| !wanted[i].contains(axis));
            others.chain(wanted[i].iter().rev().copied()).collect()
        })
    });
    let all: usize =
        nested.nests.iter().map(|nest| nest.axes.iter().map(|axis| axis.extent as usize).product::<usize>()).sum();
    if all < USES * elements { none() } else { orders }
}

/// The axis whose positions these are, if it is a feature of more than one element.
fn feature(nest: &Nest, places: &[&[Position]; 3], position: &Position) -> Option<usize> {
    let &[(axis, 1)] = &position.terms[..] else { return None };
    let has = |p: &&Position| p.terms.iter().any(|&(a, _)| a == axis);
    let mut all = places.iter().flat_map(|place| place.iter()).filter(has);
    (nest.axes[axis].extent > 1 && all.all(|p| p.terms.len() == 1 && p.offset == 0)).then_some(axis)
}
