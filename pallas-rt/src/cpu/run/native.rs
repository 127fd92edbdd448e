//! Chains in machine code: where their operands lie, row by row.
use super::super::jit::{Code, Codes, Form, Place, Rows};
use super::super::plan::step::{Along, Chain, Input};
use super::super::tile::Tile;
use super::Run;
use super::chain::Reaches;
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
}

/// Distances (in elements) between a tile's rows, and between elements of a row.
#[derive(Clone, Copy)]
struct Lines {
    row: isize,
    step: isize,
}

impl Lie {
    /// With rows of whole vectors, or not.
    fn form(self, whole: bool) -> Form {
        Form { streamed: if whole { self.form.streamed } else { 0 }, ahead: 0, whole, ..self.form }
    }
}

impl Run<'_> {
    /// Returns the layout of a chain, given results and folds, if machine code supports it. Appends the operands'
    /// memory.
    pub(super) fn lay(&self, chain: &Chain, reaches: &Reaches, rows: usize, places: &mut Vec<Place>) -> Option<Lie> {
        let columns = columns(chain);
        let inputs = chain.inputs.iter().enumerate().filter_map(|(i, input)| match input {
            Input::Value(v) => Some((i, self.tile(*v).stretched(self.shape(*v), &chain.shape), self.bytes(*v))),
            Input::Constant(_) => None,
        });
        let links = chain.links.iter().enumerate().filter(|(_, l)| l.output.is_some());
        let outputs = links.zip(&reaches.results).map(|((i, link), tile)| (i, *tile, link.dtype.bytes()));

        let mut lie = Lie { form: Form::default(), flat: chain.sinks.is_empty(), first: places.len() };
        places.push(Place::columns(columns));
        let side_by_side = |l: Lines| l.row == columns as isize && l.step == 1;
        for (i, tile, bytes) in inputs {
            let l = lines(&tile, &chain.shape)?;
            // Of one column (and one row) it does not matter.
            let l = if columns == 1 { Lines { step: if l.row == 0 && rows > 1 { 0 } else { 1 }, ..l } } else { l };
            lie.flat &= side_by_side(l) || (l.row == 0 && l.step == 0);
            match l.step {
                0 => lie.form.single |= 1u64.checked_shl(i as u32)?,
                1 if self.in_large_array(tile.start) => lie.form.ahead |= 1u64.checked_shl(i as u32).unwrap_or(0),
                1 => {}
                _ => return None,
            }
            places.push(Place { start: tile.start, row: l.row * bytes as isize });
        }
        for (at, (i, tile, bytes)) in outputs.enumerate() {
            let l = lines(&tile, &chain.shape)?;
            let l = if columns == 1 { Lines { step: 1, ..l } } else { l };
            lie.flat &= side_by_side(l);
            if l.step != 1 {
                return None;
            }
            let place = Place { start: tile.start, row: l.row * bytes as isize };
            let aligned = (place.start as usize).is_multiple_of(32) && place.row % 32 == 0 && bytes == 4;
            if aligned && !chain.links[i].aside && self.in_large_array(place.start) {
                lie.form.streamed |= 1u64.checked_shl(at as u32).unwrap_or(0);
            }
            places.push(place);
        }
        places.extend(chain.sinks.iter().zip(&reaches.sinks).map(|(s, &start)| {
            let row = if s.along == Along::Rows { s.dtype.bytes() as isize } else { 0 };
            Place { start, row }
        }));
        Some(lie)
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
    // The first chain waits for memory; while the others compute, what it reads next comes.
    forms.clear();
    for (at, (chain, lie)) in chains.iter().zip(lies).enumerate() {
        let Some(lie) = lie else { return false };
        let ahead = if at == 0 { 0 } else { lie.form.ahead };
        forms.push(Form { ahead, ..lie.form(columns(chain).is_multiple_of(8)) });
    }
    let Some(code) = codes.get(chains, forms) else { return false };
    // SAFETY: the places are those of the chains in these forms.
    unsafe { code.run(Rows { places, from: 0, to: rows }) };
    true
}

/// The code of a chain whose operands lie so, for `height` of these rows at a time.
pub(super) fn code(chain: &Chain, lie: Lie, rows: usize, height: usize) -> Option<&Code> {
    // Several rows of a short tile are one where they lie side by side: those of a column fill vectors then.
    let together = height.min(rows);
    let some = lie.flat && rows.is_multiple_of(together) && (together * columns(chain)).is_multiple_of(8);
    let form = lie.form(some || columns(chain).is_multiple_of(8));
    chain.codes.get(std::slice::from_ref(chain), &[form])
}

/// Runs the code of a chain whose operands lie so over some rows.
pub(super) fn run(code: &Code, chain: &Chain, lie: Lie, places: &mut [Place], rows: Range<usize>) {
    let (from, to) = if lie.flat {
        places[lie.first] = Place::columns(rows.len() * columns(chain));
        (rows.start, rows.start + 1)
    } else {
        (rows.start, rows.end)
    };
    // SAFETY: the places are those of the chain in this form; rows that lie side by side are one.
    unsafe { code.run(Rows { places: &places[lie.first..], from, to }) };
}

fn columns(chain: &Chain) -> usize {
    chain.shape.last().copied().unwrap_or(1)
}

/// The layout of a tile of this shape, if its rows are equally spaced.
fn lines(tile: &Tile, shape: &[usize]) -> Option<Lines> {
    let Some((&columns, outer)) = shape.split_last() else { return Some(Lines { row: 1, step: 1 }) };
    let row = tile.distance(shape, 0..outer.len())?;
    let step = tile.strides[outer.len()];
    // A single row may be as far from the next as it likes.
    let row = row.unwrap_or(if step == 0 && columns != 1 { 0 } else { columns as isize });
    Some(Lines { row, step })
}
