//! Chains in machine code: where their operands lie, row by row.
use super::super::jit::{Code, Codes, Form, Place, Rows};
use super::super::line::{AHEAD, FETCHED, fetch};
use super::super::plan::step::{Chain, Input, SinkAlong};
use super::super::tile::Tile;
use super::Run;
use super::chain::{Reaches, row_offset};
use super::pages::Kept;
use super::weave::{Bound, Weave, Woven};
use std::ops::Range;

/// The layout of a chain's operands in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lie {
    /// Includes every result that may use non-temporal stores, and every input to prefetch from an array that fits no cache.
    form: Form,
    /// True if rows are adjacent in all operands, so that all of them form one row.
    flat: bool,
    /// The position of the chain's first operand among those of the sweep.
    first: usize,
    /// Rows that are equally spaced in every operand: all of them, or those along some of the last axes.
    group: usize,
    /// Where its operands begin and end among those whose groups have to be found.
    spread: [usize; 2],
    /// The way in which short rows are woven; `None` if they are not.
    pub(super) weave: Option<Weave>,
}

/// Fewest elements of a group of rows that is worth a call of machine code.
const WORTH: usize = 64;

/// Elements of a vector, and of a wide one.
pub(super) const VECTOR: usize = 8;
pub(super) const WIDE: usize = 16;

/// Most elements of a row that is short: two wide vectors.
const FEW: usize = 2 * WIDE;

/// A place whose groups of rows are anywhere.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    place: usize,
    tile: Tile,
    bytes: usize,
    /// The number of the windows that are its rows, if they were not copied.
    windows: Option<usize>,
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

/// Distances (in elements) between a tile's rows, and between elements of a row.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) row: isize,
    pub(super) step: isize,
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

impl Run<'_> {
    /// Returns the layout of a chain, given results and folds, if machine code supports it. Appends the operands'
    /// memory, and those of them whose groups of rows have to be found.
    pub(super) fn lay(
        &self,
        chain: &Chain,
        reaches: &Reaches,
        rows: usize,
        (places, spread, bound): (&mut Vec<Place>, &mut Vec<Spread>, &mut Vec<Bound>),
    ) -> Option<Lie> {
        let columns = columns(chain);
        let inputs = chain.inputs.iter().enumerate().filter_map(|(i, input)| match input {
            Input::Value(v) => {
                let tile = self.tile(*v).stretched(self.shape(*v));
                Some((i, tile, self.bytes(*v), self.buffers.number_kept(*v)))
            }
            Input::Constant(_) => None,
        });
        let links = chain.links.iter().enumerate().filter(|(_, l)| l.output.is_some());
        let outputs = links.zip(&reaches.results).map(|((i, link), tile)| (i, *tile, link.dtype.bytes()));

        let first = places.len();
        let (form, flat) = (Form::default(), chain.sinks.is_empty());
        let mut lie = Lie { form, flat, first, group: rows, spread: [spread.len(); 2], weave: None };
        places.push(Place::columns(columns));
        // Rows along one axis are equally spaced.
        let axis = if chain.shape.len() <= 2 {
            0
        } else {
            let tiles = inputs.clone().map(|(_, tile, ..)| tile).chain(outputs.clone().map(|(_, tile, _)| tile));
            tiles.map(|tile| first_even(&tile, &chain.shape)).max().unwrap_or(0)
        };
        if axis > 0 {
            lie.group = chain.shape[axis..chain.shape.len() - 1].iter().product();
            (lie.group * columns >= WORTH).then_some(())?;
        }
        lie.weave = Weave::of(chain, lie.group, rows, bound);
        let mut place = |tile: Tile, row: isize, bytes: usize, windows: Option<usize>| {
            if axis > 0 || windows.is_some() {
                spread.push(Spread { place: places.len(), tile, bytes, windows });
            }
            places.push(Place::new(tile.start, row));
        };
        let side_by_side = |l: Lines| l.row == columns as isize && l.step == 1;
        for (k, (i, tile, bytes, windows)) in inputs.enumerate() {
            let l = lines(&tile, &chain.shape, axis);
            // Of one column (and one row) it does not matter.
            let l = if columns == 1 { Lines { step: if l.row == 0 && rows > 1 { 0 } else { 1 }, ..l } } else { l };
            lie.flat &= side_by_side(l) || (l.row == 0 && l.step == 0);
            lie.weave = lie.weave.and_then(|weave| weave.with((i, 1 + k), l, columns, bytes, bound));
            match l.step {
                0 => lie.form.single |= 1u64.checked_shl(i as u32)?,
                1 if self.in_large_array(tile.start) => lie.form.ahead |= 1u64.checked_shl(i as u32).unwrap_or(0),
                1 => {}
                _ => return None,
            }
            if windows.is_some() {
                (lie.group, lie.flat, lie.weave) = (1, false, None);
            }
            place(tile, l.row * bytes as isize, bytes, windows);
        }
        for (at, (i, tile, bytes)) in outputs.enumerate() {
            let l = lines(&tile, &chain.shape, axis);
            let l = if columns == 1 { Lines { step: 1, ..l } } else { l };
            lie.flat &= side_by_side(l);
            lie.weave = lie.weave.filter(|_| side_by_side(l));
            if l.step != 1 {
                return None;
            }
            let (vector, row) = (8 * bytes, l.row * bytes as isize);
            let outer = chain.shape.iter().zip(tile.strides).rev().skip(1).filter(|(n, _)| **n != 1);
            let even = (tile.start as usize).is_multiple_of(vector) && outer.into_iter().all(|(_, s)| s % 8 == 0);
            let aligned = even && row % vector as isize == 0 && matches!(bytes, 2 | 4);
            if aligned && !chain.links[i].aside && self.in_large_array(tile.start) {
                lie.form.streamed |= 1u64.checked_shl(at as u32).unwrap_or(0);
            }
            place(tile, row, bytes, None);
        }
        places.extend(chain.sinks.iter().zip(&reaches.sinks).map(|(s, &start)| {
            let row = if s.along == SinkAlong::Rows { s.dtype.bytes() as isize } else { 0 };
            Place::new(start, row)
        }));
        // Memory is what rows of whole vectors wait for that go past the caches; woven, they took a fifth longer.
        lie.weave = lie.weave.filter(|_| lie.form.streamed == 0 || columns < WIDE);
        lie.spread[1] = spread.len();
        // Strips are faster than a few elements at a time.
        (axis == 0 || lie.flat || lie.weave.is_some() || columns >= VECTOR).then_some(lie)
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

/// Elements of a row.
pub(super) fn columns(chain: &Chain) -> usize {
    chain.shape.last().copied().unwrap_or(1)
}

/// The first axis from which on the rows of a tile of this shape are equally spaced.
pub(super) fn first_even(tile: &Tile, shape: &[usize]) -> usize {
    let outer = shape.len().saturating_sub(1);
    (0..outer).find(|&axis| tile.distance(shape, axis..outer).is_some()).unwrap_or(outer)
}

/// The layout of a tile of this shape along its axes from one on, from which on its rows are equally spaced.
pub(super) fn lines(tile: &Tile, shape: &[usize], axis: usize) -> Lines {
    let Some((&columns, outer)) = shape.split_last() else { return Lines { row: 1, step: 1 } };
    let row = tile.distance(shape, axis..outer.len()).flatten();
    let step = tile.strides[outer.len()];
    // A single row may be as far from the next as it likes.
    let row = row.unwrap_or(if step == 0 && columns != 1 { 0 } else { columns as isize });
    Lines { row, step }
}
