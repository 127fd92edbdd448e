//! Code for small products: every multiplication is an instruction of its own, without loops.
//!
//! ```text
//! for each eight columns, and a few rows: sums = 0
//!     for each term: b = B[term, columns]; for each row: sums[row] += A[row, term] * b
//!     C[rows, columns] = sums + D[rows, columns]
//! ```
use super::super::form::{Place, Product};
use super::asm::{Binary, Fma, Gpr, Mem, Operand, Reg};
use super::frame::{LEFT, POINTERS, entry, first_lanes};
use super::types::{Part, in_fewer_bytes};
use super::vector::Writer;
use pallas_ir::DType;

/// Elements of a vector; such products are too small for wide vectors.
const LANES: usize = 8;
/// Maximum rows whose sums are in registers at once.
const ROWS: usize = 6;
/// Number of independent sums that are needed so that no addition waits for another.
const SUMS: usize = 4;
/// Minimum terms of a sum that is split into several.
const TERMS: usize = 8;

/// Registers with the addresses of the operands.
const A: Gpr = POINTERS[0];
const B: Gpr = POINTERS[1];
const C: Gpr = POINTERS[2];
const D: Gpr = POINTERS[3];

impl Product {
    /// Number of vector multiplications of the product.
    pub(super) fn vectors(&self) -> usize {
        self.rows * self.terms * self.columns.div_ceil(LANES)
    }
}

/// Writes a product whose places begin at index `first`. Returns `None` if a distance is too long for an instruction,
/// or if there are too few registers.
pub(super) fn product(w: &mut Writer, product: &Product, first: usize) -> Option<()> {
    let pointers = [A, B, C, D].into_iter().take(product.places()).enumerate();
    pointers.for_each(|(i, to)| w.asm.mov_load(to, entry(first + i, std::mem::offset_of!(Place, start))));
    for from in (0..product.columns).step_by(LANES) {
        let count = (product.columns - from).min(LANES);
        let mut columns = Columns { w, product, from, part: None };
        if count < LANES {
            let mask = first_lanes(columns.w, count);
            let mask = columns.w.load(Operand::Mem(mask))?;
            columns.part = Some(Part { mask, count: LEFT, exact: Some(count) });
        }
        for row in (0..product.rows).step_by(ROWS) {
            columns.rows(row, ROWS.min(product.rows - row))?;
        }
        let part = columns.part;
        part.into_iter().for_each(|part| w.free(part.mask));
    }
    Some(())
}

/// The columns of a product from `from` on that fill one vector, or the part of it that exists.
struct Columns<'w> {
    w: &'w mut Writer,
    product: &'w Product,
    from: usize,
    part: Option<Part>,
}

/// Returns the memory at `base` plus a sum of counts times distances in bytes; `None` if that is too far.
fn at(base: Gpr, distances: &[(usize, isize)]) -> Option<Mem> {
    let offset =
        distances.iter().try_fold(0, |sum: isize, (count, by)| sum.checked_add(by.checked_mul(*count as isize)?))?;
    Some(Mem { base, index: None, offset: i32::try_from(offset).ok()? })
}

impl Columns<'_> {
    /// Writes `count` rows of these columns of the result.
    fn rows(&mut self, first: usize, count: usize) -> Option<()> {
        let &Product { terms, a, b, c, d, types, .. } = self.product;
        let [left, right, to, added] = types;
        let parts = if terms < TERMS { 1 } else { (SUMS / count).max(1) };
        let mut sums = vec![];
        for _ in 0..count * parts {
            let sum = self.w.take()?;
            self.w.update(Binary::Xor, sum, Operand::Reg(sum));
            sums.push(sum);
        }
        for term in 0..terms {
            let row = self.columns(B, &[(term, b)], right, self.product.padded)?;
            for i in 0..count {
                let from = at(A, &[(first + i, a[0]), (term, a[1])])?;
                let x =
                    if in_fewer_bytes(left) { self.w.broadcast_narrow(left, from)? } else { self.w.broadcast(from)? };
                self.w.asm.fma(Fma::F231, sums[i * parts + term % parts], x, Operand::Reg(row));
                self.w.free(x);
            }
            self.w.free(row);
        }
        for (i, sums) in sums.chunks(parts).enumerate() {
            let (&sum, others) = sums.split_first()?;
            for &other in others {
                self.w.update(Binary::Add, sum, Operand::Reg(other));
                self.w.free(other);
            }
            if let Some(d) = d {
                let row = self.columns(D, &[(first + i, d)], added, false)?;
                self.w.update(Binary::Add, sum, Operand::Reg(row));
                self.w.free(row);
            }
            self.store(at(C, &[(first + i, c), (self.from, to.bytes() as isize)])?, to, sum)?;
            self.w.free(sum);
        }
        Some(())
    }

    /// Loads these columns of a row of B or D.
    fn columns(&mut self, base: Gpr, row: &[(usize, isize)], dtype: DType, padded: bool) -> Option<Reg> {
        let from = at(base, &[row, &[(self.from, dtype.bytes() as isize)]].concat())?;
        self.w.load_vector(dtype, from, self.part.filter(|_| !padded))
    }

    /// Stores sums of these columns, rounded to the element type.
    fn store(&mut self, to: Mem, dtype: DType, x: Reg) -> Option<()> {
        let part = self.part;
        if !in_fewer_bytes(dtype) {
            return self.w.store_vector(dtype, to, part, x, false);
        }
        let rounded = self.w.rounded(dtype, Operand::Reg(x))?;
        self.w.store_vector(dtype, to, part, rounded, false)?;
        self.w.free(rounded);
        Some(())
    }
}
