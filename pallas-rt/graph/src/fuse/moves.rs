//! Axes along which operations move elements, or let them meet.
use super::blocks::Sizes;
use pallas_ir::Dim;
use pallas_ir::structural::{Access, Index, Piece, Windows};

/// Fewest columns of a block that programs divide: shorter rows leave vectors partly empty.
const COLUMNS: usize = 64;

/// The axes of the result along which an operation moves the elements of its operands, or lets them meet; `None` for other
/// operations. All axes of a windowed one, which has rules of its own.
pub(super) fn axes(access: &Access, operands: &[&[usize]], result: &[usize]) -> Option<Vec<usize>> {
    let found = match access {
        Access::Map(pieces) => moved(pieces, operands, result),
        Access::Scan { axis, .. } | Access::Sort { axis, .. } => vec![*axis],
        Access::Gather { windows, checked: true } => looked_up(windows),
        Access::Nest(_) => (0..result.len()).collect(),
        _ => vec![],
    };
    (!found.is_empty()).then_some(found)
}

/// The axes along which pieces of operands are shifted, reversed, cut off or put one after another.
pub(super) fn moved(pieces: &[Piece], operands: &[&[usize]], result: &[usize]) -> Vec<usize> {
    let is = |n: &Dim, m: usize| n.as_number() == Some(m as i64);
    let moves = |piece: &Piece, axis: usize| {
        let is_part = |(_, low, high): &(usize, Dim, Dim)| !is(low, 0) || !is(high, result[axis]) || pieces.len() == 1;
        let follows =
            |(index, n): (&Index, &usize)| index.axis != Some(axis) || *index == Index::of(axis) && *n == result[axis];
        piece.bounds.iter().filter(|bound| bound.0 == axis).any(is_part)
            || !piece.index.iter().zip(operands[piece.operand]).all(follows)
    };
    (0..result.len()).filter(|&axis| pieces.iter().any(|piece| moves(piece, axis))).collect()
}

/// The axes of an operand that a lookup addresses.
pub(super) fn looked_up(windows: &Windows) -> Vec<usize> {
    (0..windows.axes.len()).filter(|&axis| windows.axes[axis].start.is_some()).collect()
}

/// Returns true if programs that have these axes whole divide the columns of a value: each has enough of them then. A value
/// that a program holds is not divided.
pub(super) fn divides_columns(axes: &[usize], shape: &[usize], sizes: &Sizes) -> bool {
    let column: usize = axes.iter().map(|&axis| shape[axis]).product();
    column.saturating_mul(COLUMNS) <= sizes.tile && shape.iter().product::<usize>() > sizes.tile
}
