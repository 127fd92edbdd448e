//! The layouts that machine code is compiled for, and the addresses that it is called with.
use pallas_ir::DType;

/// The memory of an operand of machine code: row `r` begins `r * row` bytes after `start`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in super::super) struct OperandAddress {
    pub(in super::super) start: *mut u8,
    pub(in super::super) row: isize,
    /// Bytes that the address moves by from one iteration of a loop to the next.
    pub(in super::super) iteration_stride: isize,
}

/// The layout of a chain's operands in memory, for which its machine code is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in super::super) struct CodeSpecialization {
    /// Bit mask of the inputs that have one element for each row; in other inputs, the elements of a row are adjacent.
    pub(in super::super) single: u64,
    /// Bit mask of the results (in the order of their links) that are stored past the caches, as whole aligned
    /// vectors.
    pub(in super::super) streamed: u64,
    /// Bit mask of the inputs whose next row is prefetched while this one is computed.
    pub(in super::super) ahead: u64,
    /// The length of rows, if they are so short that the code has no loop over columns.
    pub(in super::super) unrolled_columns: Option<usize>,
    /// True if rows are long enough for wide vectors, which are used if the processor has them.
    pub(in super::super) wide: bool,
    /// True if wide vectors are loaded in halves, which is faster for data that the caches do not hold.
    pub(in super::super) halves: bool,
    /// True if the length of rows is a multiple of the vector's length, wide or not.
    pub(in super::super) whole: bool,
}

/// A part of the work of one iteration of a loop that runs as machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct LoopPart {
    pub(in super::super) work: LoopPartKind,
    /// Bit mask of the places whose address changes in the next iteration; the last bit stands for all places from it
    /// on.
    pub(in super::super) moving: u64,
}

/// The work of a [`LoopPart`]: some rows of a chain, or a small product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum LoopPartKind {
    /// Runs `rows` rows of the chain at this index in the list of chains.
    ChainRows {
        chain: usize,
        form: CodeSpecialization,
        rows: usize,
        columns: usize,
    },
    Product(SmallProduct),
}

/// A product `C = A · B` or `C = A · B + D` of floats, with sums in `f32`. Its code is called with the addresses of A,
/// B, C and, if there is one, D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct SmallProduct {
    pub(in super::super) rows: usize,
    pub(in super::super) columns: usize,
    pub(in super::super) terms: usize,
    /// Element types of A, B, C and D.
    pub(in super::super) types: [DType; 4],
    /// Bytes between rows of A, and between its columns.
    pub(in super::super) a: [isize; 2],
    /// Bytes between rows of B (`c`: of C); the columns of B, C and D are adjacent.
    pub(in super::super) b: isize,
    /// True if each row of B has whole vectors; what they hold after the last column does not matter.
    pub(in super::super) padded: bool,
    pub(in super::super) c: isize,
    /// Bytes between rows of D; `None` if there is no D.
    pub(in super::super) d: Option<isize>,
}

impl SmallProduct {
    pub(in super::super) fn operand_count(&self) -> usize {
        3 + usize::from(self.d.is_some())
    }
}

/// Returns true if bit `at` of a word is set; false for bits past its end.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_bit_set(word: u64, at: usize) -> bool {
    at < 64 && word >> at & 1 == 1
}

/// Arguments of machine code that runs the rows `from..to` of chains. For each chain, `places` has first the number of
/// elements of a row, then the addresses of the inputs that are not constants, of the links (operations) whose results
/// are stored, and of the results of folds.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct CodeCall<'a> {
    pub(in super::super) places: &'a [OperandAddress],
    pub(in super::super) from: usize,
    pub(in super::super) to: usize,
}

impl OperandAddress {
    /// Stores the number of elements of a row in an [`OperandAddress`], as the entry of [`CodeCall`] before the
    /// addresses of a chain.
    pub(in super::super) fn encode_column_count(n: usize) -> OperandAddress {
        OperandAddress::new(std::ptr::without_provenance_mut(n), 0)
    }
    pub(in super::super) fn new(start: *mut u8, row_stride: isize) -> OperandAddress {
        OperandAddress { start, row: row_stride, iteration_stride: 0 }
    }
}
