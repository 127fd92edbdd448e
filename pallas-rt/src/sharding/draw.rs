//! Pictures of shardings as SVG.
use super::picture::{Picture, TableSlice, abbreviated_indices, device_ranges_text};
use crate::markup::svg::{Anchor, Svg, fit_in_box, list_item_color, max_characters, shorten_text, text_width};

/// Maximum number of rows, of columns and of tables that are drawn; of more, those in the middle are left out.
const MAX_DRAWN_ITEMS: usize = 16;
/// Width and height of the largest table.
const MAX_TABLE_PIXELS: [f64; 2] = [420.0, 260.0];
/// Minimum width and height of a cell.
const MIN_CELL_PIXELS: [f64; 2] = [34.0, 22.0];
const FONT_SIZE_PIXELS: f64 = 12.0;
const MARGIN_PIXELS: f64 = 12.0;

/// A table to be drawn: its slice, and its rows and columns, each with its block (`None` for a gap) and its extent.
struct TableLayout<'p> {
    slice: &'p TableSlice<'p>,
    rows: Vec<(Option<usize>, f64)>,
    columns: Vec<(Option<usize>, f64)>,
}

impl TableLayout<'_> {
    fn size_pixels(&self) -> [f64; 2] {
        [&self.columns, &self.rows].map(|all| all.iter().map(|(_, extent)| extent).sum())
    }
}

impl Picture {
    /// Draws the blocks of the array as SVG, each with its devices, its elements and a tooltip. The sides of a table
    /// are in proportion to those of the array where there is space for the text.
    pub fn to_svg(&self) -> String {
        let slices = self.table_slices();
        let chosen = abbreviated_indices(slices.len(), MAX_DRAWN_ITEMS);
        // Many tables are small, so that all of them together are about as large as one.
        let part = (chosen.len() as f64).sqrt().recip();
        let tables: Vec<TableLayout<'_>> =
            chosen.iter().flatten().map(|&number| self.layout_table(&slices[number], part)).collect();
        let labels = self.row_labels();
        let left =
            MARGIN_PIXELS + labels.iter().map(|label| text_width(label, FONT_SIZE_PIXELS)).fold(0.0, f64::max) + 8.0;
        let (mut svg, mut x, mut right, mut y) = (Svg::default(), left, 0.0f64, MARGIN_PIXELS);
        let (mut row_bottom, title) = (0.0f64, if slices.len() > 1 { 18.0 } else { 0.0 });
        for table in &tables {
            let [w, h] = table.size_pixels();
            if x > left && x + w > 900.0 {
                (x, y) = (left, row_bottom + 16.0);
            }
            self.draw_table(&mut svg, table, [x, y + title + 16.0]);
            let w = w.max(text_width(&table.slice.title, FONT_SIZE_PIXELS));
            right = right.max(x + w);
            row_bottom = row_bottom.max(y + title + 16.0 + h);
            x += w + left + 8.0;
        }
        let hidden = slices.len() - tables.len();
        let mut notes = vec![];
        if hidden > 0 {
            notes.push(format!("{hidden} of {} tables are left out", slices.len()));
        }
        if !self.unreduced.is_empty() {
            notes.push(format!("parts of a sum along {}", self.unreduced));
        }
        for note in &notes {
            row_bottom += 20.0;
            svg.text([MARGIN_PIXELS, row_bottom], Anchor::Start, "fill=\"#555\"", note);
            right = right.max(MARGIN_PIXELS + text_width(note, FONT_SIZE_PIXELS));
        }
        let title = match &self.shape {
            Some(shape) => format!("{:?} blocks of an array of the shape {shape:?}", self.parts),
            None => format!("{:?} blocks of an array", self.parts),
        };
        svg.finish(right + MARGIN_PIXELS, row_bottom + MARGIN_PIXELS, &title)
    }

    /// Returns the labels of the rows of every table: the range of indices that each row has along the last dimension
    /// but one; none for fewer than two dimensions.
    fn row_labels(&self) -> Vec<String> {
        match self.parts.len() {
            0 | 1 => vec![],
            rank => (0..self.parts[rank - 2]).map(|row| self.block_label(rank - 2, row)).collect(),
        }
    }

    /// The label of a block along a dimension: its elements; empty if it has all.
    fn block_label(&self, dim: usize, block: usize) -> String {
        if self.parts[dim] == 1 { String::new() } else { self.range_text(dim, block) }
    }

    /// Computes the sizes of a table's rows and columns, in proportion to the array's extents, so that the table fits
    /// in the fraction `size_fraction` of [`MAX_TABLE_PIXELS`]; cells are at least as large as their text.
    fn layout_table<'p>(&self, slice: &'p TableSlice<'p>, size_fraction: f64) -> TableLayout<'p> {
        let rank = self.parts.len();
        let extent = |from_last: usize| match &self.shape {
            Some(shape) if rank >= from_last => shape[rank - from_last].max(1) as f64,
            _ => 1.0,
        };
        // A vector is as high as a line.
        let (down, right) = (extent(2), extent(1));
        let aspect = if rank >= 2 { (right / down).clamp(0.25, 4.0) } else { 8.0 };
        let [wide, high] = fit_in_box(aspect, MAX_TABLE_PIXELS.map(|side| side * size_fraction));
        let sides = |n: usize, side: f64, least: f64, dim: Option<usize>| -> Vec<(Option<usize>, f64)> {
            let part = |block: usize| dim.map_or(1.0, |dim| self.block_fraction(dim, block));
            let of = |block: Option<usize>| {
                (block, block.map_or(MIN_CELL_PIXELS[1], |block| (part(block) * side).max(least)))
            };
            abbreviated_indices(n, MAX_DRAWN_ITEMS).into_iter().map(of).collect()
        };
        let texts = slice.cells.iter().map(|cell| text_width(&device_ranges_text(cell), FONT_SIZE_PIXELS) + 8.0);
        let least = texts.fold(MIN_CELL_PIXELS[0], f64::max).min(120.0);
        let columns = sides(slice.columns, wide, least, rank.checked_sub(1));
        let rows = sides(slice.rows, high, MIN_CELL_PIXELS[1], rank.checked_sub(2));
        TableLayout { slice, rows, columns }
    }

    /// Draws a table with its labels at this position.
    fn draw_table(&self, svg: &mut Svg, table: &TableLayout<'_>, [left, top]: [f64; 2]) {
        let rank = self.parts.len();
        let slice = table.slice;
        if !slice.title.is_empty() {
            svg.text([left, top - 20.0], Anchor::Start, "font-weight=\"bold\"", &slice.title);
        }
        let mut y = top;
        for &(row, high) in &table.rows {
            let mut x = left;
            if let Some(row) = row.filter(|_| rank >= 2) {
                let label = self.block_label(rank - 2, row);
                svg.text([left - 6.0, y + high / 2.0 + 4.0], Anchor::End, "fill=\"#555\"", &label);
            }
            for &(column, wide) in &table.columns {
                if let (Some(row), Some(column)) = (row, column) {
                    let number = row * slice.columns + column;
                    let text = device_ranges_text(&slice.cells[number]);
                    let all = slice.number * slice.rows * slice.columns + number;
                    let tip = format!("{}: devices {text}", self.elements_text(all));
                    let fill = format!("fill=\"{}\" stroke=\"#334\" stroke-width=\"0.8\"", list_item_color(all));
                    svg.rect([x, y, wide, high], &fill, &tip);
                    // Where there is no space for the number of devices, it is in the tooltip alone.
                    let most = max_characters(wide - 4.0, FONT_SIZE_PIXELS);
                    let short = text.split(" (").next().unwrap_or_default();
                    let text = if text.len() > most { shorten_text(short, most) } else { text };
                    svg.text([x + wide / 2.0, y + high / 2.0 + 4.0], Anchor::Middle, "pointer-events=\"none\"", &text);
                } else {
                    svg.text([x + wide / 2.0, y + high / 2.0 + 4.0], Anchor::Middle, "fill=\"#555\"", "…");
                }
                x += wide;
            }
            y += high;
        }
        let mut x = left;
        for &(column, wide) in table.columns.iter().filter(|_| rank >= 1) {
            if let Some(column) = column {
                let label = shorten_text(&self.block_label(rank - 1, column), max_characters(wide, FONT_SIZE_PIXELS));
                svg.text([x + wide / 2.0, top - 5.0], Anchor::Middle, "fill=\"#555\"", &label);
            }
            x += wide;
        }
    }

    /// The elements of a block in every dimension, as `[0:4, :]`.
    fn elements_text(&self, cell: usize) -> String {
        let mut rest = cell;
        let mut texts = vec![];
        for (dim, parts) in self.parts.iter().enumerate().rev() {
            texts.push(self.range_text(dim, rest % parts));
            rest /= parts;
        }
        texts.reverse();
        format!("[{}]", texts.join(", "))
    }
}
