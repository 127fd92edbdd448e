//! Runs chains in machine code, if the layout of their operands allows it.
use super::super::indexed_lines::{MAX_PREFETCHED_ROW_BYTES, PREFETCH_DISTANCE_ROWS, prefetch_cache_lines};
use super::super::jit::{CodeCache, CodeCall, CodeSpecialization, MachineCode, OperandAddress};
use super::super::plan::step::ElementwiseChain;
use super::super::tile::StridedTile;
use super::merged_rows::{MergedRowMemory, RowMerging};
use super::spacing::{KeptWindows, VECTOR_ELEMENTS, WIDE_VECTOR_ELEMENTS, columns, row_offset};
use std::ops::Range;

/// The layout of a chain's operands in memory, as machine code needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainOperandLayout {
    /// The form of the code. It names every result that may use non-temporal stores, and every input to prefetch from
    /// an array larger than the caches.
    pub(super) form: CodeSpecialization,
    /// True if rows are adjacent in all operands, so that all rows form one long row.
    pub(super) flat: bool,
    /// Index of the chain's first place among those of the sweep.
    pub(super) first: usize,
    /// Number of rows, at a time, that are equally spaced in every operand: all rows, or those along some of the last
    /// axes.
    pub(super) group: usize,
    /// Start and end of this chain's entries in the list of operands whose groups of rows have addresses of their own.
    pub(super) spread: [usize; 2],
    /// The way in which short rows are processed as one row; `None` if they are not.
    pub(super) weave: Option<RowMerging>,
}

/// Maximum elements of a row for which code of exactly that length is made: two wide vectors.
const MAX_UNROLLED_COLUMNS: usize = 2 * WIDE_VECTOR_ELEMENTS;

/// An operand whose groups of rows are not equally spaced: its address is computed for each group.
#[derive(Clone, Copy)]
pub(super) struct UnevenOperand {
    pub(super) place: usize,
    pub(super) tile: StridedTile,
    pub(super) bytes: usize,
    /// Index of the kept windows that are its rows, if a gather has not copied them.
    pub(super) windows: Option<usize>,
}

impl UnevenOperand {
    /// Sets the operand's address for the group of rows that begins at `first_row`, as if all rows before it were
    /// there too.
    #[inline]
    fn move_to(
        self,
        places: &mut [OperandAddress],
        windows: &[KeptWindows],
        chain: &ElementwiseChain,
        first_row: usize,
    ) {
        let place = &mut places[self.place];
        let Some(kept) = self.windows else {
            let first = row_offset(&self.tile, &chain.shape, first_row) * self.bytes as isize;
            place.start = self.tile.start.wrapping_offset(first - first_row as isize * place.row);
            return;
        };
        let kept = &windows[kept];
        if kept.is_far
            && let Some(next) = kept.starts.get(first_row + PREFETCH_DISTANCE_ROWS as usize)
        {
            prefetch_cache_lines(*next, MAX_PREFETCHED_ROW_BYTES.min(columns(chain) * self.bytes));
        }
        // Its rows are nowhere else.
        (place.start, place.row) = (kept.starts[first_row].cast_mut(), 0);
    }
}

impl ChainOperandLayout {
    /// Returns the form of the code for rows of `columns` elements.
    fn form(self, columns: usize) -> CodeSpecialization {
        let streamed = if columns.is_multiple_of(VECTOR_ELEMENTS) { self.form.streamed } else { 0 };
        let wide = columns >= WIDE_VECTOR_ELEMENTS;
        let whole = columns.is_multiple_of(if wide { WIDE_VECTOR_ELEMENTS } else { VECTOR_ELEMENTS });
        let few = (columns <= MAX_UNROLLED_COLUMNS).then_some(columns);
        CodeSpecialization { streamed, ahead: 0, unrolled_columns: few, wide, whole, ..self.form }
    }
}

/// Runs several chains in machine code, each row through all of them. Returns false, having done nothing, if a chain
/// has no code for it.
pub(super) fn run_row_by_row(
    chains: &[ElementwiseChain],
    codes: &CodeCache,
    lies: &[Option<ChainOperandLayout>],
    forms: &mut Vec<CodeSpecialization>,
    places: &[OperandAddress],
    rows: usize,
) -> bool {
    if lies.iter().flatten().any(|lie| lie.group != rows) {
        return false;
    }
    // The first chain waits for memory; while the others compute, what it reads next comes.
    forms.clear();
    for (at, (chain, lie)) in chains.iter().zip(lies).enumerate() {
        let Some(lie) = lie else { return false };
        let ahead = if at == 0 { 0 } else { lie.form.ahead };
        forms.push(CodeSpecialization { ahead, ..lie.form(columns(chain)) });
    }
    let Some(code) = codes.get_chain_code(chains, forms) else { return false };
    // SAFETY: the places are those of the chains in these forms.
    unsafe { code.run(CodeCall { places, from: 0, to: rows }) };
    true
}

/// Returns the code of a chain with this layout, for `height` of its `rows` rows at a time.
pub(super) fn code(
    chain: &ElementwiseChain,
    lie: ChainOperandLayout,
    rows: usize,
    height: usize,
) -> Option<&MachineCode> {
    // Several rows of a short tile are one where they lie side by side: those of a column fill vectors then.
    let together = height.min(lie.group);
    let even = lie.group.is_multiple_of(together) && (lie.group == rows || height.is_multiple_of(lie.group));
    let form = match lie.flat {
        true if even => lie.form(together * columns(chain)),
        // Any number of rows is one.
        true => CodeSpecialization { unrolled_columns: None, ..lie.form(columns(chain)) },
        false => lie.form(columns(chain)),
    };
    // A fold waits for what lies in memory.
    let waits = chain.links.is_empty() && lie.form.ahead != 0 && form.unrolled_columns.is_none();
    let form = CodeSpecialization { halves: form.wide && waits, ..form };
    chain.codes.get_chain_code(std::slice::from_ref(chain), &[form])
}

/// Runs the code of a chain with this layout over some of its `all` rows.
pub(super) fn run(
    code: &MachineCode,
    chain: &ElementwiseChain,
    lie: ChainOperandLayout,
    (places, spread, windows): (&mut [OperandAddress], &[UnevenOperand], &[KeptWindows]),
    rows: Range<usize>,
    all: usize,
) {
    let spread = &spread[lie.spread[0]..lie.spread[1]];
    if lie.group == all && spread.is_empty() {
        return run_even(code, chain, lie, places, rows);
    }
    let mut from = rows.start;
    while from < rows.end {
        let first = from - from % lie.group;
        let to = rows.end.min(first + lie.group);
        spread.iter().for_each(|s| s.move_to(places, windows, chain, first));
        run_even(code, chain, lie, places, from..to);
        from = to;
    }
}

/// Runs a chain whose short rows are processed as one row, over some of its `all` rows.
pub(super) fn run_merged_rows(
    woven: &MergedRowMemory<'_>,
    (chain, lie, weave): (&ElementwiseChain, ChainOperandLayout, RowMerging),
    (places, spread): (&mut [OperandAddress], &[UnevenOperand]),
    rows: Range<usize>,
    all: usize,
    own: &mut Vec<OperandAddress>,
) {
    let codes = weave.codes(chain).expect("it is there for what is woven");
    let mut from = rows.start;
    while from < rows.end {
        let first = from - from % lie.group;
        let to = rows.end.min(first + lie.group);
        if lie.group != all {
            spread[lie.spread[0]..lie.spread[1]].iter().for_each(|s| s.move_to(places, &[], chain, first));
        }
        woven.run((chain, weave, codes), &places[lie.first..], from..to, own);
        from = to;
    }
}

/// Runs the code of a chain over rows that are equally spaced in all operands.
fn run_even(
    code: &MachineCode,
    chain: &ElementwiseChain,
    lie: ChainOperandLayout,
    places: &mut [OperandAddress],
    rows: Range<usize>,
) {
    let (from, to) = if lie.flat {
        places[lie.first] = OperandAddress::from_column_count(rows.len() * columns(chain));
        (rows.start, rows.start + 1)
    } else {
        (rows.start, rows.end)
    };
    // SAFETY: the places are those of the chain in this form; rows that lie side by side are one.
    unsafe { code.run(CodeCall { places: &places[lie.first..], from, to }) };
}
