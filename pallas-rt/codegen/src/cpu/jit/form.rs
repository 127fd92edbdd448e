//! The layouts that machine code is made for, and the memory that it is given.
use pallas_ir::DType;

/// The memory of an operand, whose row `r` begins `r * row` bytes after `start`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in super::super) struct Place {
    pub(in super::super) start: *mut u8,
    pub(in super::super) row: isize,
    /// Bytes from where it begins in a turn of a loop to where it begins in the next one.
    pub(in super::super) turn: isize,
}

/// The layout of a chain's operands in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in super::super) struct Form {
    /// Inputs (by bit) that have one element a row; the others' are adjacent.
    pub(in super::super) single: u64,
    /// Results (by bit, in the order of their links) that go past the caches: whole vectors at multiples of one.
    pub(in super::super) streamed: u64,
    /// Inputs (by bit) whose next row is fetched from afar while this one is computed.
    pub(in super::super) ahead: u64,
    /// The length of rows if they are short: they have no loops over columns then.
    pub(in super::super) few: Option<usize>,
    /// True if rows are long enough for wide vectors, where the processor has them.
    pub(in super::super) wide: bool,
    /// True if wide vectors are read from memory in halves: caches bring these sooner.
    pub(in super::super) halves: bool,
    /// True if the length of rows is a multiple of the vector's, also of a wide one's if rows are long enough.
    pub(in super::super) whole: bool,
}

/// Part of a turn of a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Piece {
    pub(in super::super) work: Work,
    /// Places (by bit) that begin elsewhere in the next turn; all from the 64th on.
    pub(in super::super) moving: u64,
}

/// The work of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Work {
    /// Rows of the chain of this number.
    Rows {
        chain: usize,
        form: Form,
        rows: usize,
        columns: usize,
    },
    Product(Product),
}

/// `C = A · B` or `C = A · B + D`, of floats, with sums in `f32`. Its places are those of A, B, C and D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Product {
    pub(in super::super) rows: usize,
    pub(in super::super) columns: usize,
    pub(in super::super) terms: usize,
    /// Element types of A, B, C and D.
    pub(in super::super) types: [DType; 4],
    /// Bytes between rows of A, and between its columns.
    pub(in super::super) a: [isize; 2],
    /// Bytes between rows of B, whose columns are adjacent, as those of C and D are.
    pub(in super::super) b: isize,
    /// True if each row of B has whole vectors, whatever they hold behind the last column.
    pub(in super::super) padded: bool,
    pub(in super::super) c: isize,
    /// Bytes between rows of D; `None` if there is none.
    pub(in super::super) d: Option<isize>,
}

impl Product {
    pub(in super::super) fn places(&self) -> usize {
        3 + usize::from(self.d.is_some())
    }
}

/// Returns true if a bit of a word is set; false for bits past its end.
#[cfg(target_arch = "x86_64")]
pub(super) fn bit(word: u64, at: usize) -> bool {
    at < 64 && word >> at & 1 == 1
}

/// Some rows of chains. Of each chain the elements of a row, then places: of inputs that are values, results of links,
/// folds.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rows<'a> {
    pub(in super::super) places: &'a [Place],
    pub(in super::super) from: usize,
    pub(in super::super) to: usize,
}

impl Place {
    /// The elements of a chain's rows, before its places.
    pub(in super::super) fn columns(n: usize) -> Place {
        Place::new(std::ptr::without_provenance_mut(n), 0)
    }
    pub(in super::super) fn new(start: *mut u8, row: isize) -> Place {
        Place { start, row, turn: 0 }
    }
}
