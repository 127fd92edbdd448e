//! Tiles that refer to an array's memory and extend past the array's end: the position of the end, and products with
//! such operands.
use super::super::gemm::{Extents, Matrix};
use super::super::nonfinite_search::is_tile_finite;
use super::super::plan::step::{AffineIndex, Dot};
use super::super::row_copies::copy_row;
use super::super::tile::{MAX_RANK, StridedTile};
use super::thread_state::{OverhangingTile, ProgramRunner};
use pallas_ir::{DType, Literal, Value};
use std::ops::Range;

/// The extents of a product, and those of the elements of its operands that exist.
#[derive(Clone, Copy)]
pub(super) struct ProductExtents {
    /// Rows and columns of the whole result.
    pub(super) whole: [usize; 2],
    /// Extents of the matrices that are multiplied: only elements that exist in both operands.
    pub(super) extents: Extents,
    /// Number of terms that exist in each operand; where the other operand has more, this one counts as zeros.
    pub(super) terms: [usize; 2],
}

impl ProductExtents {
    /// Returns true if some elements of the operands do not exist, so that the result must be completed.
    pub(super) fn has_missing_elements(&self) -> bool {
        let Extents { m, n, k } = self.extents;
        [m, n] != self.whole || self.terms != [k; 2]
    }
}

impl ProgramRunner<'_> {
    /// Returns the record of a tile that extends past its array's end; `None` if all elements of the tile exist.
    pub(super) fn find_overhang(&self, of: Value) -> Option<&OverhangingTile> {
        self.buffers.ends.iter().find(|end| end.of == of)
    }

    /// If `from` extends past its array's end, records for its transposed view `to` the extents inside of the array;
    /// `axes` gives for each axis of `from` the axis of `to`.
    pub(super) fn record_transposed_overhang(&mut self, from: Value, axes: &[AffineIndex], to: Value) {
        let end = self.find_overhang(from).copied();
        self.buffers.ends.retain(|end| end.of != to);
        if let Some(end) = end {
            let mut extents = [0; MAX_RANK];
            extents[..self.shape(to).len()].copy_from_slice(self.shape(to));
            for (affine, inside) in axes.iter().zip(end.extents) {
                if let Some(axis) = affine.axis {
                    extents[axis] = extents[axis].min(inside);
                }
            }
            self.buffers.ends.push(OverhangingTile { of: to, extents, fill: end.fill });
        }
    }

    /// Returns the extents of the part of a tile that exists in its array.
    pub(super) fn existing_extents(&self, v: Value) -> [usize; MAX_RANK] {
        let mut extents = [0; MAX_RANK];
        let shape = self.shape(v);
        let own = self.find_overhang(v).map_or(shape, |end| &end.extents[..shape.len()]);
        extents[..shape.len()].copy_from_slice(own);
        extents
    }

    /// Returns the extents of a product as the shapes of its operands give them.
    pub(super) fn declared_product_extents(&self, dot: &Dot) -> Extents {
        let of = |v: Value, axes: &[usize]| axes.iter().map(|&axis| self.shape(v)[axis]).product();
        Extents { m: of(dot.a, &dot.free[0]), n: of(dot.b, &dot.free[1]), k: of(dot.a, &dot.contract[0]) }
    }

    /// Returns the declared extents of a product, with those of its operands' elements that exist: an operand may be a
    /// tile that extends past its array's end.
    pub(super) fn existing_product_extents(&self, dot: &Dot) -> ProductExtents {
        let extents @ Extents { m, n, k } = self.declared_product_extents(dot);
        let mut inside = ProductExtents { whole: [m, n], extents, terms: [k; 2] };
        if self.buffers.ends.is_empty() {
            return inside;
        }
        let of = |v: Value, axes: &[usize]| -> usize {
            let extents = self.existing_extents(v);
            axes.iter().map(|&axis| extents[axis]).product()
        };
        inside.terms = [of(dot.a, &dot.contract[0]), of(dot.b, &dot.contract[1])];
        let k = inside.terms[0].min(inside.terms[1]);
        inside.extents = Extents { m: of(dot.a, &dot.free[0]), n: of(dot.b, &dot.free[1]), k };
        inside
    }
}

/// Completes a product whose operands have zeros past their ends: sets the rest of the result to 0, unless `accumulate`
/// says that the product was added to what the result held, and to NaN where a zero meets an infinity or NaN. The
/// result begins at `start`, `row` elements from row to row.
///
/// # Safety
/// The operands hold the elements inside, of these types; the result, of type `compute`, holds all of its own.
pub(super) unsafe fn complete_product(
    inside: &ProductExtents,
    operands: [(Matrix<u8>, DType); 2],
    (start, row, compute): (*mut u8, isize, DType),
    accumulate: bool,
) {
    let ProductExtents { whole, extents: Extents { m, n, k }, terms } = *inside;
    let bytes = compute.bytes();
    // Sets columns of some rows.
    let set = |rows: Range<usize>, columns: Range<usize>, x: Literal| {
        for i in rows {
            let to = start.wrapping_offset((i as isize * row + columns.start as isize) * bytes as isize);
            // SAFETY: the caller's: the elements are the result's; the bits begin with an element.
            unsafe { copy_row((&raw const x.bits).cast(), 0, to, 1, columns.len(), bytes) };
        }
    };
    if !accumulate {
        let zero = Literal::new(compute, 0.0);
        set(0..m, n..whole[1], zero);
        set(m..whole[0], 0..whole[1], zero);
    }
    for side in 0..2 {
        // Lines of this operand from one term on, which are multiplied with zeros only.
        let (matrix, dtype) = operands[side];
        let matrix = if side == 0 { matrix } else { matrix.transposed() };
        let (own, others) = ([m, n][side], [m, n][1 - side]);
        let is_finite = |lines: Range<usize>, from: usize| {
            let at = lines.start as isize * matrix.row + from as isize * matrix.col;
            let mut tile =
                StridedTile { start: matrix.start.cast_mut(), strides: [0; MAX_RANK] }.offset(at, dtype.bytes());
            (tile.strides[0], tile.strides[1]) = (matrix.row, matrix.col);
            // SAFETY: the caller's.
            unsafe { is_tile_finite(dtype, &tile, &[lines.len(), terms[side] - from]) }
        };
        for (from, behind) in [(0, others..whole[1 - side]), (k, 0..others)] {
            if behind.is_empty() || from == terms[side] || is_finite(0..own, from) {
                continue;
            }
            for i in (0..own).filter(|&i| !is_finite(i..i + 1, from)) {
                let [rows, columns] = if side == 0 { [i..i + 1, behind.clone()] } else { [behind.clone(), i..i + 1] };
                set(rows, columns, Literal::new(compute, f64::NAN));
            }
        }
    }
}
