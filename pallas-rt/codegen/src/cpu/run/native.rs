//! Chains in machine code, over operands that lie in one way.
use super::super::jit::{Code, Codes, Form, Place, Rows};
use super::super::line::{AHEAD, FETCHED, fetch};
use super::super::plan::step::Chain;
use super::super::tile::Tile;
use super::spacing::{Kept, VECTOR, WIDE, columns, row_offset};
use super::weave::{Weave, Woven};
use std::ops::Range;

/// The layout of a chain's operands in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lie {
    /// Includes every result that may use non-temporal stores, and every input to prefetch from an array that fits no cache.
    pub(super) form: Form,
    /// True if rows are adjacent in all operands, so that all of them form one row.
    pub(super) flat: bool,
    /// The position of the chain's first operand among those of the sweep.
    pub(super) first: usize,
    /// Rows that are equally spaced in every operand: all of them, or those along some of the last axes.
    pub(super) group: usize,
    /// Where its operands begin and end among those whose groups have to be found.
    pub(super) spread: [usize; 2],
    /// The way in which short rows are woven; `None` if they are not.
    pub(super) weave: Option<Weave>,
}

/// Most elements of a row that is short: two wide vectors.
const FEW: usize = 2 * WIDE;

/// A place whose groups of rows are anywhere.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub(super) place: usize,
    pub(super) tile: Tile,
    pub(super) bytes: usize,
    /// The number of the windows that are its rows, if they were not copied.
    pub(super) windows: Option<usize>,
}

impl Spread {
    /// Moves the place so that a row of this group lies where the place has that row among all.
    #[inline]
    fn move_to(self, places: &mut [Place], windows: &[Kept], chain: &Chain, first_row: usize) {
        let place = &mut places[self.place];
        let Some(kept) = self.windows else {
            let first = row_offset(&self.tile, &chain.shape, first_row) * self.bytes as isize;
            place.start = self.tile.start.wrapping_offset(first - first_row as isize * place.row);
            return;
        };
        let kept = &windows[kept];
        if kept.is_far
            && let Some(next) = kept.starts.get(first_row + AHEAD as usize)
        {
            fetch(*next, FETCHED.min(columns(chain) * self.bytes));
        }
        // Its rows are nowhere else.
        (place.start, place.row) = (kept.starts[first_row].cast_mut(), 0);
    }
}

impl Lie {
    /// With rows of so many elements.
    fn form(self, columns: usize) -> Form {
        let streamed = if columns.is_multiple_of(VECTOR) { self.form.streamed } else { 0 };
        let wide = columns >= WIDE;
        let whole = columns.is_multiple_of(if wide { WIDE } else { VECTOR });
        let few = (columns <= FEW).then_some(columns);
        Form { streamed, ahead: 0, few, wide, whole, ..self.form }
    }
}

/// Runs several chains in machine code, each row through all of them; false, and nothing is done, if one of them has none.
pub(super) fn row_by_row(
    chains: &[Chain],
    codes: &Codes,
    lies: &[Option<Lie>],
    forms: &mut Vec<Form>,
    places: &[Place],
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
        forms.push(Form { ahead, ..lie.form(columns(chain)) });
    }
    let Some(code) = codes.get(chains, forms) else { return false };
    // SAFETY: the places are those of the chains in these forms.
    unsafe { code.run(Rows { places, from: 0, to: rows }) };
    true
}

/// The code of a chain whose operands lie so, for `height` of these rows at a time.
pub(super) fn code(chain: &Chain, lie: Lie, rows: usize, height: usize) -> Option<&Code> {
    // Several rows of a short tile are one where they lie side by side: those of a column fill vectors then.
    let together = height.min(lie.group);
    let even = lie.group.is_multiple_of(together) && (lie.group == rows || height.is_multiple_of(lie.group));
    let form = match lie.flat {
        true if even => lie.form(together * columns(chain)),
        // Any number of rows is one.
        true => Form { few: None, ..lie.form(columns(chain)) },
        false => lie.form(columns(chain)),
    };
    // A fold waits for what lies in memory.
    let waits = chain.links.is_empty() && lie.form.ahead != 0 && form.few.is_none();
    let form = Form { halves: form.wide && waits, ..form };
    chain.codes.get(std::slice::from_ref(chain), &[form])
}

/// Runs the code of a chain whose operands lie so over some rows.
pub(super) fn run(
    code: &Code,
    chain: &Chain,
    lie: Lie,
    (places, spread, windows): (&mut [Place], &[Spread], &[Kept]),
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

/// Runs a chain of short rows woven together, over some of all rows.
pub(super) fn run_woven(
    woven: &Woven<'_>,
    (chain, lie, weave): (&Chain, Lie, Weave),
    (places, spread): (&mut [Place], &[Spread]),
    rows: Range<usize>,
    all: usize,
    own: &mut Vec<Place>,
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

/// .. which are equally spaced.
fn run_even(code: &Code, chain: &Chain, lie: Lie, places: &mut [Place], rows: Range<usize>) {
    let (from, to) = if lie.flat {
        places[lie.first] = Place::columns(rows.len() * columns(chain));
        (rows.start, rows.start + 1)
    } else {
        (rows.start, rows.end)
    };
    // SAFETY: the places are those of the chain in this form; rows that lie side by side are one.
    unsafe { code.run(Rows { places: &places[lie.first..], from, to }) };
}
