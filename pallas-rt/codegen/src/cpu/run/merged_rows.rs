//! Runs machine code over short rows: several adjacent rows are processed as one long row, so that they fill vectors
//! ("woven").
//!
//! ```text
//! x: f32[24080, 9] - y: f32[1, 9]     rows of 1008 elements, and 112 copies of y
//! x: f32[24080, 3] * z: f32[24080, 1] rows of 1008 elements, and each of 336 elements of z three times
//! x + reverse x: f32[24080, 2]        rows of 1008 elements, and copies of 504 rows from the other end
//! sum over axis 0 of x: f32[24080, 9] 1008 sums, of which each column adds up its own in the end
//! ```
use super::super::jit::{CodeCall, CodeSpecialization, MachineCode, OperandAddress};
use super::super::plan::step::{ChainFold, ElementwiseChain, FoldDirection};
use super::super::row_copies::{copy_rows, repeat_each_element, repeat_prefix};
use super::super::strips::STRIP_ELEMENTS;
use super::spacing::{RowStrides, VECTOR_ELEMENTS, WIDE_VECTOR_ELEMENTS, row_length};
use pallas_ir::{DType, ScalarOp};
use std::ops::Range;

/// Maximum elements of a row that fills whole vectors with which several rows are processed as one; longer ones are
/// processed row by row.
const MAX_MERGED_WHOLE_VECTOR_ROW_ELEMENTS: usize = 32;
/// Rows that do not fill whole vectors are processed several at a time if they have fewer elements than this, else row
/// by row.
const MERGED_RAGGED_ROW_ELEMENTS_LIMIT: usize = 128;
/// Maximum elements of a row with which several rows are processed as one although an operand has one element for each
/// row, which must be repeated; longer ones are processed row by row.
const MAX_ELEMENT_REPEATS: usize = 24;
/// Minimum elements of a group of equally spaced rows for which several rows are processed as one; smaller groups are
/// processed row by row.
const MIN_MERGED_ROW_GROUP_ELEMENTS: usize = 512;

/// The way in which a chain's short rows are processed as one row.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RowMerging {
    /// Number of rows that are processed as one.
    rows: usize,
    /// Bit mask of the inputs that have one element for all rows and columns.
    same: u64,
    /// Start and end of this chain's operands in the list of operands with strip buffers, which all fused chains share.
    bound: [usize; 2],
    /// Index of the first strip buffer of this chain: one for each of those operands, then one for each fold.
    buffer: usize,
}

/// An operand that is copied to a strip buffer before the code runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferedOperand {
    /// Index of the operand's address among the chain's places.
    place: usize,
    bytes: usize,
    what: StripBufferContents,
}

/// The contents of an operand's strip buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StripBufferContents {
    /// Copies of one row.
    RepeatedRow,
    /// One element of each row, repeated once for each column.
    RepeatedElements,
    /// Rows that are not adjacent in memory, such as reversed ones.
    NonadjacentRows,
}

impl RowMerging {
    /// Returns the way to process several of a chain's `row_count` rows as one, if `group_rows` rows at a time are
    /// equally spaced; `None` if rows are long or few, or if the chain's folds need them apart.
    pub(super) fn from_chain(
        chain: &ElementwiseChain,
        group_rows: usize,
        row_count: usize,
        buffered: &[BufferedOperand],
    ) -> Option<RowMerging> {
        let n = row_length(chain);
        // A fold into 16 bits rounds at every step, so the order of its rows may not change.
        let folds = chain.sinks.iter().all(|sink| {
            let is_extreme = matches!(sink.op, ScalarOp::Maximum | ScalarOp::Minimum);
            sink.along == FoldDirection::Columns && (is_extreme || !matches!(sink.dtype, DType::F16 | DType::Bf16))
        });
        let is_short = n > 0
            && (n <= MAX_MERGED_WHOLE_VECTOR_ROW_ELEMENTS
                || n < MERGED_RAGGED_ROW_ELEMENTS_LIMIT && !n.is_multiple_of(8));
        let is_one = chain.sinks.is_empty() || group_rows == row_count;
        let is_worth = group_rows > 1 && n * group_rows >= MIN_MERGED_ROW_GROUP_ELEMENTS;
        let (most, from) = (STRIP_ELEMENTS / n.max(1), buffered.len());
        // Rows that fill whole vectors, wide ones if there are enough.
        let rows = if most >= WIDE_VECTOR_ELEMENTS { most - most % WIDE_VECTOR_ELEMENTS } else { most & !7 };
        (folds && is_short && is_one && is_worth).then_some(RowMerging {
            rows,
            bound: [from; 2],
            ..RowMerging::default()
        })
    }

    /// Adds an input: `row_strides` are its strides, `bytes` the size of an element, `address_index` its index among
    /// the chain's addresses. Returns `None` if its rows cannot be processed several at a time.
    pub(super) fn with_input(
        mut self,
        (input, address_index): (usize, usize),
        row_strides: RowStrides,
        columns: usize,
        bytes: usize,
        buffered: &mut Vec<BufferedOperand>,
    ) -> Option<RowMerging> {
        match (row_strides.row, row_strides.step) {
            (row, 1) if row == columns as isize => {}
            (0, 0) => self.same |= 1u64.checked_shl(input as u32)?,
            (0, 1) => {
                buffered.push(BufferedOperand { place: address_index, bytes, what: StripBufferContents::RepeatedRow })
            }
            (_, 0) if columns <= MAX_ELEMENT_REPEATS => buffered.push(BufferedOperand {
                place: address_index,
                bytes,
                what: StripBufferContents::RepeatedElements,
            }),
            (_, 1) if columns < VECTOR_ELEMENTS => buffered.push(BufferedOperand {
                place: address_index,
                bytes,
                what: StripBufferContents::NonadjacentRows,
            }),
            _ => return None,
        }
        self.bound[1] = buffered.len();
        Some(self)
    }

    /// Assigns strip buffers from `*next_buffer` on, and advances it. Returns `None` if none is needed: then all rows
    /// are one long row anyway.
    pub(super) fn with_buffers(mut self, chain: &ElementwiseChain, next_buffer: &mut usize) -> Option<RowMerging> {
        self.buffer = *next_buffer;
        *next_buffer += self.bound[1] - self.bound[0] + chain.sinks.len();
        (*next_buffer > self.buffer).then_some(self)
    }

    /// Returns the machine code for strips of the full number of rows, and that for the last strip, which may have
    /// fewer; `None` if the chain has no such code.
    pub(super) fn full_and_tail_codes(self, chain: &ElementwiseChain) -> Option<[&MachineCode; 2]> {
        let is_whole = (self.rows * row_length(chain)).is_multiple_of(WIDE_VECTOR_ELEMENTS);
        let form = |whole| CodeSpecialization {
            single: self.same,
            wide: true,
            whole: whole && is_whole,
            ..CodeSpecialization::default()
        };
        let code = |whole| chain.codes.get_chain_code(std::slice::from_ref(chain), &[form(whole)]);
        Some([code(true)?, code(false)?])
    }
}

/// The memory of short rows that several fused chains process as one: strip buffers, and the operands that have one.
#[derive(Clone, Copy)]
pub(super) struct MergedRowMemory<'r> {
    pub(super) start: *mut u8,
    /// Bytes from one buffer to the next.
    pub(super) pitch: usize,
    pub(super) bound: &'r [BufferedOperand],
}

impl MergedRowMemory<'_> {
    /// Returns the operands of a chain that have strip buffers.
    fn buffered_operands(&self, merging: RowMerging) -> &[BufferedOperand] {
        &self.bound[merging.bound[0]..merging.bound[1]]
    }
    /// Returns the address of strip buffer `i` of a chain.
    fn buffer_address(&self, merging: RowMerging, i: usize) -> *mut u8 {
        self.start.wrapping_add((merging.buffer + i) * self.pitch)
    }
    /// Returns the folds of a chain, each with its strip buffer.
    fn fold_buffers<'c>(
        &self,
        chain: &'c ElementwiseChain,
        merging: RowMerging,
    ) -> impl Iterator<Item = (&'c ChainFold, *mut u8)> {
        let first = self.buffer_address(merging, self.buffered_operands(merging).len());
        let pitch = self.pitch;
        chain.sinks.iter().enumerate().map(move |(k, sink)| (sink, first.wrapping_add(k * pitch)))
    }

    /// Fills the buffers of folds with their neutral elements.
    pub(super) fn fill_fold_buffers(&self, chain: &ElementwiseChain, merging: RowMerging) {
        for (sink, to) in self.fold_buffers(chain, merging) {
            let bytes = sink.dtype.bytes();
            // SAFETY: a buffer has room for a strip of the widest elements, and the literal has so many bytes.
            unsafe {
                std::ptr::copy_nonoverlapping((&raw const sink.start.bits).cast(), to, bytes);
                repeat_prefix(to, bytes, merging.rows * row_length(chain) * bytes);
            }
        }
    }

    /// Folds the buffer of each fold, which has a row for each of the rows processed as one, into its result in
    /// `fold_results`.
    pub(super) fn reduce_fold_buffers(&self, chain: &ElementwiseChain, merging: RowMerging, fold_results: &[*mut u8]) {
        for ((sink, from), &to) in self.fold_buffers(chain, merging).zip(fold_results) {
            // SAFETY: the buffer holds so many rows, and the fold has an element a column.
            unsafe { sink.fold.fold_columns(from, [merging.rows, row_length(chain)], sink.dtype.bytes(), to) };
        }
    }

    /// Runs a chain over equally spaced rows in machine code, several rows as one. `addresses` are those of its
    /// operands; `changed_addresses` is overwritten with the addresses for the merged rows.
    pub(super) fn run_chain(
        &self,
        (chain, merging, codes): (&ElementwiseChain, RowMerging, [&MachineCode; 2]),
        addresses: &[OperandAddress],
        rows: Range<usize>,
        merged_row_addresses: &mut Vec<OperandAddress>,
    ) {
        let n = row_length(chain);
        let sinks = chain.address_count() - chain.sinks.len();
        merged_row_addresses.clear();
        merged_row_addresses.extend(&addresses[..sinks]);
        merged_row_addresses.extend(self.fold_buffers(chain, merging).map(|(_, to)| OperandAddress::new(to, 0)));
        for at in &mut merged_row_addresses[1..sinks] {
            at.start = at.start.wrapping_offset(rows.start as isize * at.row);
            at.row *= merging.rows as isize;
        }
        for (k, bound) in self
            .buffered_operands(merging)
            .iter()
            .enumerate()
            .filter(|(_, bound)| bound.what == StripBufferContents::RepeatedRow)
        {
            let (from, to, row) =
                (merged_row_addresses[bound.place].start, self.buffer_address(merging, k), n * bound.bytes);
            // SAFETY: the operand has a row, and a buffer has room for the rows of a strip.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to, row);
                repeat_prefix(to, row, merging.rows.min(rows.len()) * row);
            }
            merged_row_addresses[bound.place] = OperandAddress::new(to, 0);
        }
        let are_brought =
            self.buffered_operands(merging).iter().any(|bound| bound.what != StripBufferContents::RepeatedRow);
        let (times, left) = (rows.len() / merging.rows, rows.len() % merging.rows);
        // All strips are run at once if no operand has to be copied for each.
        let together = if are_brought { 1 } else { times.max(1) };
        for turn in (0..times).step_by(together) {
            self.run_strips(
                (chain, merging, codes[0]),
                &addresses[1..],
                &rows,
                turn..turn + together,
                merged_row_addresses,
                merging.rows,
            );
        }
        if left > 0 {
            self.run_strips(
                (chain, merging, codes[1]),
                &addresses[1..],
                &rows,
                times..times + 1,
                merged_row_addresses,
                left,
            );
        }
    }

    /// Copies the operands that need it to strip buffers, then runs machine code over `strips`, numbers of strips
    /// counted from the start of `rows`; each strip has `strip_rows` rows, processed as one. `changed_addresses` are
    /// the operands' addresses for the code, set here for strip buffers.
    fn run_strips(
        &self,
        (chain, merging, code): (&ElementwiseChain, RowMerging, &MachineCode),
        addresses: &[OperandAddress],
        rows: &Range<usize>,
        strips: Range<usize>,
        merged_row_addresses: &mut [OperandAddress],
        strip_rows: usize,
    ) {
        let n = row_length(chain);
        for (k, bound) in self
            .buffered_operands(merging)
            .iter()
            .enumerate()
            .filter(|(_, bound)| bound.what != StripBufferContents::RepeatedRow)
        {
            let (from, to) = (addresses[bound.place - 1], self.buffer_address(merging, k));
            let first = (rows.start + strips.start * merging.rows) as isize;
            let (stride, start) = (from.row / bound.bytes as isize, from.start.wrapping_offset(first * from.row));
            // SAFETY: the operand has the rows, or an element for each, and a buffer has room for a strip.
            unsafe {
                match bound.what {
                    StripBufferContents::NonadjacentRows => {
                        copy_rows([start, to], [1, 1], [stride, n as isize], [strip_rows, n], bound.bytes)
                    }
                    _ => repeat_each_element(start, stride, to, strip_rows, n, bound.bytes),
                }
            }
            merged_row_addresses[bound.place] = OperandAddress::new(to, 0);
        }
        merged_row_addresses[0] = OperandAddress::encode_column_count(strip_rows * n);
        // SAFETY: the places are those of the chain in this form, each with so many elements side by side.
        unsafe { code.run(CodeCall { places: merged_row_addresses, from: strips.start, to: strips.end }) };
    }
}
