//! Runs chains in machine code, if the layout of their operands allows it.
use super::super::indexed_lines::{MAX_PREFETCHED_ROW_BYTES, PREFETCH_DISTANCE_ROWS, prefetch_cache_lines};
use super::super::jit::{CodeCache, CodeCall, CodeSpecialization, MachineCode, OperandAddress};
use super::super::plan::step::ElementwiseChain;
use super::super::tile::StridedTile;
use super::merged_rows::{MergedRowMemory, RowMerging};
use super::spacing::{UncopiedWindows, VECTOR_ELEMENTS, WIDE_VECTOR_ELEMENTS, row_length, row_offset};
use std::ops::Range;

/// The layout of a chain's operands in memory, as machine code needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainOperandLayout {
    /// The form of the code. It names every result that may use non-temporal stores, and every input to prefetch from
    /// an array larger than the caches.
    pub(super) form: CodeSpecialization,
    /// True if rows are adjacent in all operands, so that all rows form one long row.
    pub(super) flat: bool,
    /// Index of the chain's first address among those of all chains that run together.
    pub(super) first: usize,
    /// Number of rows, at a time, that are equally spaced in every operand: all rows, or those along some of the last
    /// axes.
    pub(super) group: usize,
    /// Start and end of this chain's entries in the list of operands whose groups of rows have addresses of their own.
    pub(super) spread: [usize; 2],
    /// The way in which short rows are processed as one row; `None` if they are not.
    pub(super) weave: Option<RowMerging>,
}

/// Maximum elements of a row for which code of exactly that length is made, two wide vectors; code for longer rows
/// takes any length.
const MAX_UNROLLED_COLUMNS: usize = 2 * WIDE_VECTOR_ELEMENTS;

/// An operand whose groups of rows are not equally spaced: its address is computed for each group.
#[derive(Clone, Copy)]
pub(super) struct UnevenlySpacedOperand {
    pub(super) place: usize,
    pub(super) tile: StridedTile,
    pub(super) bytes: usize,
    /// Index of the kept windows that are its rows, if a gather has not copied them.
    pub(super) windows: Option<usize>,
}

impl UnevenlySpacedOperand {
    /// Sets the operand's address for the group of rows that begins at `first_row`: row 0 of the chain is taken to lie
    /// `first_row` row strides before that row, since the code adds as many.
    #[inline]
    fn set_group_address(
        self,
        places: &mut [OperandAddress],
        windows: &[UncopiedWindows],
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
            prefetch_cache_lines(*next, MAX_PREFETCHED_ROW_BYTES.min(row_length(chain) * self.bytes));
        }
        // Its rows are nowhere else.
        (place.start, place.row) = (kept.starts[first_row].cast_mut(), 0);
    }
}

impl ChainOperandLayout {
    /// Returns the variant of a chain's machine code to compile for rows of `columns` elements: code for exactly that
    /// length up to [`MAX_UNROLLED_COLUMNS`], else code for rows of any length.
    fn code_specialization(self, columns: usize) -> CodeSpecialization {
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
    layouts: &[Option<ChainOperandLayout>],
    specializations: &mut Vec<CodeSpecialization>,
    addresses: &[OperandAddress],
    rows: usize,
) -> bool {
    if layouts.iter().flatten().any(|lie| lie.group != rows) {
        return false;
    }
    // The first chain waits for memory; while the others compute, what it reads next comes.
    specializations.clear();
    for (at, (chain, lie)) in chains.iter().zip(layouts).enumerate() {
        let Some(lie) = lie else { return false };
        let ahead = if at == 0 { 0 } else { lie.form.ahead };
        specializations.push(CodeSpecialization { ahead, ..lie.code_specialization(row_length(chain)) });
    }
    let Some(code) = codes.get_chain_code(chains, specializations) else { return false };
    // SAFETY: the places are those of the chains in these forms.
    unsafe { code.run(CodeCall { places: addresses, from: 0, to: rows }) };
    true
}

/// Returns the machine code of a chain with this layout, for `rows_at_a_time` of its `rows` rows in each call, which is
/// compiled at first use; `None` if there is none for the chain.
pub(super) fn get_or_compile_code(
    chain: &ElementwiseChain,
    layout: ChainOperandLayout,
    rows: usize,
    rows_at_a_time: usize,
) -> Option<&MachineCode> {
    // Several rows of a short tile are one where they lie side by side: those of a column fill vectors then.
    let together = rows_at_a_time.min(layout.group);
    let even =
        layout.group.is_multiple_of(together) && (layout.group == rows || rows_at_a_time.is_multiple_of(layout.group));
    let form = match layout.flat {
        true if even => layout.code_specialization(together * row_length(chain)),
        // Any number of rows is one.
        true => CodeSpecialization { unrolled_columns: None, ..layout.code_specialization(row_length(chain)) },
        false => layout.code_specialization(row_length(chain)),
    };
    // A fold waits for what lies in memory.
    let waits = chain.links.is_empty() && layout.form.ahead != 0 && form.unrolled_columns.is_none();
    let form = CodeSpecialization { halves: form.wide && waits, ..form };
    chain.codes.get_chain_code(std::slice::from_ref(chain), &[form])
}

/// Runs a chain's machine code over the rows `rows` of its `row_count` rows, one group of equally spaced rows at a
/// time. For each group, operands in `uneven` get a new address, which is one of `windows` if a gather left their rows
/// uncopied.
pub(super) fn run_chain_code(
    code: &MachineCode,
    chain: &ElementwiseChain,
    layout: ChainOperandLayout,
    (addresses, uneven, windows): (&mut [OperandAddress], &[UnevenlySpacedOperand], &[UncopiedWindows]),
    rows: Range<usize>,
    row_count: usize,
) {
    let spread = &uneven[layout.spread[0]..layout.spread[1]];
    if layout.group == row_count && spread.is_empty() {
        return run_evenly_spaced_rows(code, chain, layout, addresses, rows);
    }
    let mut from = rows.start;
    while from < rows.end {
        let first = from - from % layout.group;
        let to = rows.end.min(first + layout.group);
        spread.iter().for_each(|s| s.set_group_address(addresses, windows, chain, first));
        run_evenly_spaced_rows(code, chain, layout, addresses, from..to);
        from = to;
    }
}

/// Runs a chain whose short rows are processed several at a time, over some of its `row_count` rows.
pub(super) fn run_merged_rows(
    memory: &MergedRowMemory<'_>,
    (chain, layout, merging): (&ElementwiseChain, ChainOperandLayout, RowMerging),
    (addresses, uneven): (&mut [OperandAddress], &[UnevenlySpacedOperand]),
    rows: Range<usize>,
    row_count: usize,
    changed_addresses: &mut Vec<OperandAddress>,
) {
    let codes = merging.full_and_tail_codes(chain).expect("it is there for what is woven");
    let mut from = rows.start;
    while from < rows.end {
        let first = from - from % layout.group;
        let to = rows.end.min(first + layout.group);
        if layout.group != row_count {
            uneven[layout.spread[0]..layout.spread[1]]
                .iter()
                .for_each(|s| s.set_group_address(addresses, &[], chain, first));
        }
        memory.run_chain((chain, merging, codes), &addresses[layout.first..], from..to, changed_addresses);
        from = to;
    }
}

/// Runs the code of a chain over rows that are equally spaced in all operands.
fn run_evenly_spaced_rows(
    code: &MachineCode,
    chain: &ElementwiseChain,
    layout: ChainOperandLayout,
    addresses: &mut [OperandAddress],
    rows: Range<usize>,
) {
    let (from, to) = if layout.flat {
        addresses[layout.first] = OperandAddress::encode_column_count(rows.len() * row_length(chain));
        (rows.start, rows.start + 1)
    } else {
        (rows.start, rows.end)
    };
    // SAFETY: the places are those of the chain in this form; rows that lie side by side are one.
    unsafe { code.run(CodeCall { places: &addresses[layout.first..], from, to }) };
}
