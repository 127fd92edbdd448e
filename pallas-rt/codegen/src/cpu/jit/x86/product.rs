//! Code for small products: every multiplication is an instruction of its own, without loops.
//!
//! ```text
//! for each eight columns, and a few rows: sums = 0
//!     for each term: b = B[term, columns]; for each row: sums[row] += A[row, term] * b
//!     C[rows, columns] = sums + D[rows, columns]
//! ```
use super::super::operand_layouts::{OperandAddress, SmallProduct};
use super::assembler::{BinaryInstruction, FmaForm, Gpr, Mem, Operand, Reg};
use super::frame::{POINTER_REGISTERS, REMAINING_COLUMNS_REGISTER, address_field, first_lanes_mask};
use super::types::{PartialVector, is_narrow_type};
use super::vector::VectorWriter;
use pallas_ir::DType;

/// Elements of a vector; such products are too small for wide vectors.
const LANES: usize = 8;
/// Maximum rows of a small matrix product that are computed together, since the sums of all of them stay in registers.
const MAX_ROWS_IN_REGISTERS: usize = 6;
/// Number of independent sums that are needed so that no addition waits for another.
const MIN_INDEPENDENT_SUMS: usize = 4;
/// Minimum terms per sum of a small matrix product for which each sum may be split into several independent sums, so
/// that additions do not wait for each other.
const MIN_SPLIT_TERMS: usize = 8;

/// Register with the address of A, the left matrix of a product `C = A · B + D`; the next ones have those of B, C and
/// D.
const LEFT_POINTER_REGISTER: Gpr = POINTER_REGISTERS[0];
const RIGHT_POINTER_REGISTER: Gpr = POINTER_REGISTERS[1];
const RESULT_POINTER_REGISTER: Gpr = POINTER_REGISTERS[2];
const ADDEND_POINTER_REGISTER: Gpr = POINTER_REGISTERS[3];

impl SmallProduct {
    /// Number of vector multiplications of the product.
    pub(super) fn vector_multiplication_count(&self) -> usize {
        self.rows * self.terms * self.columns.div_ceil(LANES)
    }
}

/// Writes a product whose operand addresses begin at a given index. Returns `None` if a distance is too long for an
/// instruction, or if there are too few registers.
pub(super) fn emit_product(w: &mut VectorWriter, product: &SmallProduct, first_address: usize) -> Option<()> {
    let pointers = [LEFT_POINTER_REGISTER, RIGHT_POINTER_REGISTER, RESULT_POINTER_REGISTER, ADDEND_POINTER_REGISTER]
        .into_iter()
        .take(product.operand_count())
        .enumerate();
    pointers.for_each(|(i, to)| {
        w.asm.mov_load(to, address_field(first_address + i, std::mem::offset_of!(OperandAddress, start)))
    });
    for from in (0..product.columns).step_by(LANES) {
        let count = (product.columns - from).min(LANES);
        let mut columns = ProductColumns { w, product, from, part: None };
        if count < LANES {
            let mask = first_lanes_mask(columns.w, count);
            let mask = columns.w.load(Operand::Mem(mask))?;
            columns.part = Some(PartialVector { mask, count: REMAINING_COLUMNS_REGISTER, exact: Some(count) });
        }
        for row in (0..product.rows).step_by(MAX_ROWS_IN_REGISTERS) {
            columns.emit_rows(row, MAX_ROWS_IN_REGISTERS.min(product.rows - row))?;
        }
        let part = columns.part;
        part.into_iter().for_each(|part| w.free_register(part.mask));
    }
    Some(())
}

/// The columns of a product from `from` on that fill one vector, or the part of it that exists.
struct ProductColumns<'w> {
    w: &'w mut VectorWriter,
    product: &'w SmallProduct,
    from: usize,
    part: Option<PartialVector>,
}

/// Returns the memory at `base` plus a sum of counts times distances in bytes; `None` if that is too far.
fn memory_operand(base: Gpr, counts_and_strides: &[(usize, isize)]) -> Option<Mem> {
    let offset = counts_and_strides
        .iter()
        .try_fold(0, |sum: isize, (count, by)| sum.checked_add(by.checked_mul(*count as isize)?))?;
    Some(Mem { base, index: None, offset: i32::try_from(offset).ok()? })
}

impl ProductColumns<'_> {
    /// Writes the code that computes these columns of `count` rows of the result, from the row `first` on.
    fn emit_rows(&mut self, first: usize, count: usize) -> Option<()> {
        let &SmallProduct { terms, a, b, c, d, types, .. } = self.product;
        let [left, right, to, added] = types;
        let parts = if terms < MIN_SPLIT_TERMS { 1 } else { (MIN_INDEPENDENT_SUMS / count).max(1) };
        let mut sums = vec![];
        for _ in 0..count * parts {
            let sum = self.w.allocate_register()?;
            self.w.binary_in_place(BinaryInstruction::Xor, sum, Operand::Reg(sum));
            sums.push(sum);
        }
        for term in 0..terms {
            let row = self.load_columns(RIGHT_POINTER_REGISTER, &[(term, b)], right, self.product.padded)?;
            for i in 0..count {
                let from = memory_operand(LEFT_POINTER_REGISTER, &[(first + i, a[0]), (term, a[1])])?;
                let x =
                    if is_narrow_type(left) { self.w.broadcast_narrow(left, from)? } else { self.w.broadcast(from)? };
                self.w.asm.fma(FmaForm::F231, sums[i * parts + term % parts], x, Operand::Reg(row));
                self.w.free_register(x);
            }
            self.w.free_register(row);
        }
        for (i, sums) in sums.chunks(parts).enumerate() {
            let (&sum, others) = sums.split_first()?;
            for &other in others {
                self.w.binary_in_place(BinaryInstruction::Add, sum, Operand::Reg(other));
                self.w.free_register(other);
            }
            if let Some(d) = d {
                let row = self.load_columns(ADDEND_POINTER_REGISTER, &[(first + i, d)], added, false)?;
                self.w.binary_in_place(BinaryInstruction::Add, sum, Operand::Reg(row));
                self.w.free_register(row);
            }
            self.store_rounded(
                memory_operand(RESULT_POINTER_REGISTER, &[(first + i, c), (self.from, to.bytes() as isize)])?,
                to,
                sum,
            )?;
            self.w.free_register(sum);
        }
        Some(())
    }

    /// Writes the load of these columns of one row of B (the right matrix) or D (the addend) of the product. If the row
    /// is `padded` to whole vectors, a whole vector is loaded even where fewer columns exist.
    fn load_columns(
        &mut self,
        base: Gpr,
        row_counts_and_strides: &[(usize, isize)],
        dtype: DType,
        padded: bool,
    ) -> Option<Reg> {
        let from = memory_operand(base, &[row_counts_and_strides, &[(self.from, dtype.bytes() as isize)]].concat())?;
        self.w.load_vector(dtype, from, self.part.filter(|_| !padded))
    }

    /// Stores sums of these columns, rounded to the element type.
    fn store_rounded(&mut self, to: Mem, dtype: DType, x: Reg) -> Option<()> {
        let part = self.part;
        if !is_narrow_type(dtype) {
            return self.w.store_vector(dtype, to, part, x, false);
        }
        let rounded = self.w.round_to_16_bits(dtype, Operand::Reg(x))?;
        self.w.store_vector(dtype, to, part, rounded, false)?;
        self.w.free_register(rounded);
        Some(())
    }
}
