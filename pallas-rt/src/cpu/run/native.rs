//! Chains in machine code: where their operands lie, row by row.
use super::super::jit::{Form, Place, Rows};
use super::super::plan::step::{Chain, Input};
use super::super::tile::Tile;
use super::Run;

/// A chain's code, for its operands as they lie now.
#[derive(Clone, Copy)]
pub(super) struct Native {
    /// Which of the chain's codes.
    code: usize,
    /// Whether rows lie side by side in all operands: several are one.
    flat: bool,
}

/// How a tile's elements lie: distances (in elements) between rows, and between elements of a row.
#[derive(Clone, Copy)]
struct Lines {
    row: isize,
    step: isize,
}

impl Run<'_> {
    /// The code of a chain with these results and folds, where it has any; fills in the places of its operands. At most
    /// `height` of the `rows` are computed at a time.
    pub(super) fn native(
        &self,
        chain: &Chain,
        results: &[Tile],
        sinks: &[*mut u8],
        places: &mut Vec<Place>,
        (height, rows): (usize, usize),
    ) -> Option<Native> {
        places.clear();
        let columns = chain.shape.last().copied().unwrap_or(1);
        let inputs = chain.inputs.iter().enumerate().filter_map(|(i, input)| match input {
            Input::Value(v) => Some((i, self.tile(*v).stretched(self.shape(*v), &chain.shape), self.bytes(*v))),
            Input::Constant(_) => None,
        });
        let links = chain.links.iter().enumerate().filter(|(_, l)| l.output.is_some());
        let outputs = links.zip(results).map(|((i, link), tile)| (i, *tile, link.dtype.bytes()));

        let mut flat = chain.sinks.is_empty();
        let mut form = Form::default();
        let side_by_side = |l: Lines| l.row == columns as isize && l.step == 1;
        for (i, tile, bytes) in inputs {
            let l = lines(&tile, &chain.shape)?;
            // Of one column (and one row) it does not matter.
            let l = if columns == 1 { Lines { step: if l.row == 0 && rows > 1 { 0 } else { 1 }, ..l } } else { l };
            flat &= side_by_side(l) || (l.row == 0 && l.step == 0);
            match l.step {
                0 => form.single |= 1u32.checked_shl(i as u32)?,
                1 => {}
                _ => return None,
            }
            places.push(Place { start: tile.start, row: l.row * bytes as isize });
        }
        let mut streamed = vec![];
        for (i, tile, bytes) in outputs {
            let l = lines(&tile, &chain.shape)?;
            let l = if columns == 1 { Lines { step: 1, ..l } } else { l };
            flat &= side_by_side(l);
            if l.step != 1 {
                return None;
            }
            let place = Place { start: tile.start, row: l.row * bytes as isize };
            let aligned = (place.start as usize).is_multiple_of(32) && place.row % 32 == 0 && bytes == 4;
            if aligned && !chain.links[i].aside && self.in_large_array(place.start) {
                streamed.push(i);
            }
            places.push(place);
        }
        places.extend(chain.sinks.iter().zip(sinks).map(|(s, &start)| Place { start, row: s.dtype.bytes() as isize }));
        form.whole = columns % 8 == 0 || (flat && height >= rows && columns * rows % 8 == 0);
        if form.whole {
            for i in streamed {
                form.streamed |= 1u32.checked_shl(i as u32)?;
            }
        }
        let code = chain.codes.find(chain, form)?;
        Some(Native { code, flat })
    }
}

impl Native {
    /// Runs rows of the chain.
    ///
    /// # Safety
    /// The places are those that were found for the chain, and hold these rows of so many columns.
    pub(super) unsafe fn rows(&self, chain: &Chain, places: &[Place], from: usize, to: usize, columns: usize) {
        let rows = match self.flat {
            true => Rows { places, from, to: from + 1, columns: (to - from) * columns },
            false => Rows { places, from, to, columns },
        };
        if let Some(code) = chain.codes.at(self.code) {
            // SAFETY: the caller's; the code was made for this form.
            unsafe { code.run(rows) };
        }
    }
}

/// How a tile of this shape lies, if rows are equally far apart.
fn lines(tile: &Tile, shape: &[usize]) -> Option<Lines> {
    let Some((&columns, outer)) = shape.split_last() else { return Some(Lines { row: 1, step: 1 }) };
    let mut row = None;
    let mut next = 0;
    for (&n, &stride) in outer.iter().zip(&tile.strides).rev().filter(|(n, _)| **n != 1) {
        if row.is_some() && stride != next {
            return None;
        }
        row.get_or_insert(stride);
        next = stride * n as isize;
    }
    let step = tile.strides[outer.len()];
    // A single row may be as far from the next as it likes.
    let row = row.unwrap_or(if step == 0 && columns != 1 { 0 } else { columns as isize });
    Some(Lines { row, step })
}
