//! Grid, operands and memory of a kernel as SVG: a card for each.
//!
//! An array is drawn two dimensions at a time: the last two as a table, those in front of them as smaller tables above
//! it. In every table the block of one program is marked, which the page moves.
use super::facts::{OperandRow, join_texts};
use super::program_accesses::{FollowedProgram, follow_program, program_order};
use super::{ExplainedKernel, Explanation};
use crate::markup::bytes_text;
use crate::markup::svg::{Anchor, Svg, fit_in_box, list_item_color, max_characters, shorten_text, text_width};
use pallas_ir::{BlockDim, Operand, OperandKind};
use std::collections::BTreeMap;

/// Maximum number of programs that are followed and drawn.
const MAX_DRAWN_PROGRAMS: i64 = 256;
/// Largest width and height, in pixels, of the table of the last two dimensions.
const MAX_TABLE_SIZE_PIXELS: [f64; 2] = [240.0, 170.0];
/// Largest width and height, in pixels, of the tables of the dimensions in front of the last two.
const MAX_OUTER_TABLE_SIZE_PIXELS: [f64; 2] = [130.0, 70.0];
/// Height, in pixels, of the strip that stands for an array with one dimension.
const VECTOR_HEIGHT_PIXELS: f64 = 22.0;
/// Least width and height, in pixels, at which a block is drawn.
const MIN_BLOCK_SIZE_PIXELS: f64 = 3.0;
/// Maximum number of lines between blocks along a side.
const MAX_DRAWN_BLOCK_LINES: i64 = 64;
const FONT_SIZE_PIXELS: f64 = 12.0;
const CARD_GAP_PIXELS: f64 = 16.0;
/// Width, in pixels, beyond which the cards of a kernel continue in another row.
const MAX_ROW_WIDTH_PIXELS: f64 = 980.0;

/// A picture of one operand, of the grid or of memory.
pub(super) struct PictureCard {
    pub svg: Svg,
    pub size: [f64; 2],
}

/// An array to draw; the grid is one, whose blocks are programs.
struct DrawnArray {
    /// Index among the arrays in which the page marks a block: 0 for the grid, else the operand's index plus 1.
    number: usize,
    name: String,
    notes: Vec<String>,
    extents: Vec<i64>,
    block: Vec<i64>,
    /// For each dimension, the distance between blocks, which lie side by side; `None` if they may overlap.
    regular: Vec<Option<i64>>,
    /// For each drawn program, the first element of its block in each dimension; `None` if data chooses it.
    firsts: Vec<Vec<Option<i64>>>,
}

/// The programs of a kernel that are drawn, and the number of all.
pub(super) struct DrawnPrograms {
    pub drawn: Vec<FollowedProgram>,
    pub total: i64,
}

impl DrawnPrograms {
    /// Says how many programs are left out and which are drawn; `None` if all are drawn.
    pub(super) fn omitted_programs_note(&self) -> Option<String> {
        let n = self.drawn.len() as i64;
        (n < self.total).then(|| {
            format!(
                "{} of {} programs are left out: drawn are the first {} and the last {}",
                self.total - n,
                self.total,
                n - MAX_DRAWN_PROGRAMS / 4,
                MAX_DRAWN_PROGRAMS / 4
            )
        })
    }
}

impl Explanation {
    /// The kernels as SVG: for each its grid, the blocks of each operand over the operand's shape, with those of the
    /// first program marked, and the memory of a program. [`to_html`](Explanation::to_html) has all programs.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (cdiv(N, 8)))]
    /// fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    ///     out.store(x.load() * 2.0);
    /// }
    /// let x = Array::zeros(&[10], DType::F32)?;
    /// let picture = explain(|| doubled(&x))?.to_svg();
    /// assert!(picture.starts_with("<svg") && picture.contains("[8:16]"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn to_svg(&self) -> String {
        let (mut svg, mut y, mut right) = (Svg::default(), CARD_GAP_PIXELS, 0.0f64);
        for kernel in &self.kernels {
            let title = format!("{}, {}", kernel.name, kernel.grid_text());
            svg.text([CARD_GAP_PIXELS, y + 14.0], Anchor::Start, "font-size=\"15\" font-weight=\"bold\"", &title);
            right = right.max(text_width(&title, 15.0) + CARD_GAP_PIXELS);
            let (mut x, mut bottom) = (CARD_GAP_PIXELS, y + 14.0 + CARD_GAP_PIXELS);
            y = bottom;
            for PictureCard { svg: card, size } in kernel.draw_cards(&kernel.drawn_programs()) {
                if x > CARD_GAP_PIXELS && x + size[0] > MAX_ROW_WIDTH_PIXELS {
                    (x, y) = (CARD_GAP_PIXELS, bottom + CARD_GAP_PIXELS);
                }
                svg.group([x, y], card);
                x += size[0] + CARD_GAP_PIXELS;
                right = right.max(x);
                bottom = bottom.max(y + size[1]);
            }
            y = bottom + 2.0 * CARD_GAP_PIXELS;
        }
        svg.finish(right + CARD_GAP_PIXELS, y, "grids and blocks of kernels")
    }
}

impl ExplainedKernel {
    /// Follows the programs that pictures of the kernel show: all of them, or the first and the last,
    /// [`MAX_DRAWN_PROGRAMS`] together.
    pub(super) fn drawn_programs(&self) -> DrawnPrograms {
        let (ids, total) = program_order(&self.traced, &self.geometry, MAX_DRAWN_PROGRAMS);
        DrawnPrograms {
            drawn: ids.into_iter().map(|ids| follow_program(&self.traced, &self.geometry, ids)).collect(),
            total,
        }
    }

    /// Draws the grid, the operands in memory, and the memory of a program, a card each.
    pub(super) fn draw_cards(&self, programs: &DrawnPrograms) -> Vec<PictureCard> {
        let rows = self.operand_rows();
        let mut cards = vec![self.grid_array(programs).draw_card()];
        for (i, (operand, row)) in self.traced.operands.iter().zip(&rows).enumerate() {
            if !matches!(operand.kind, OperandKind::Scratch | OperandKind::Param) {
                cards.push(self.operand_array(i, operand, row, programs).draw_card());
            }
        }
        cards.push(draw_program_memory(&rows));
        cards
    }

    /// Returns the grid as an array to draw.
    fn grid_array(&self, programs: &DrawnPrograms) -> DrawnArray {
        let ids = |p: &FollowedProgram| p.ids.iter().map(|&n| Some(n)).collect();
        DrawnArray {
            number: 0,
            name: "grid".into(),
            notes: programs.omitted_programs_note().into_iter().collect(),
            extents: self.grid.clone(),
            block: vec![1; self.grid.len()],
            regular: vec![Some(1); self.grid.len()],
            firsts: programs.drawn.iter().map(ids).collect(),
        }
    }

    /// Returns the operand with the index `i` as an array to draw.
    fn operand_array(&self, i: usize, operand: &Operand, row: &OperandRow, programs: &DrawnPrograms) -> DrawnArray {
        let mut notes = vec![format!("{} {}", row.kind, row.array)];
        // Programs read single elements of a table, and have no block of it.
        let is_table = operand.kind == OperandKind::Prefetch;
        if is_table {
            notes.push("read element by element".into());
        }
        if self.has_data_dependent_blocks(operand) {
            notes.push("data chooses its blocks".into());
        }
        let regular = |dim: &BlockDim| match dim {
            BlockDim::Element { .. } => None,
            dim => Some(dim.size() as i64),
        };
        DrawnArray {
            number: i + 1,
            name: operand.name.clone(),
            notes,
            extents: self.geometry.shapes[i].iter().map(|&n| n as i64).collect(),
            block: operand.block.iter().map(|dim| dim.size() as i64).collect(),
            regular: operand.block.iter().map(regular).collect(),
            firsts: programs.drawn.iter().filter(|_| !is_table).map(|p| p.blocks[i].clone()).collect(),
        }
    }
}

/// Two dimensions of a shape as a table, or one as a strip.
struct ArrayTable<'s> {
    array: &'s DrawnArray,
    /// The dimensions along the rows and the columns.
    dims: [Option<usize>; 2],
    /// For each side, the first position and the end of what is drawn, including blocks outside of the array.
    ends: [[i64; 2]; 2],
    corner: [f64; 2],
    size: [f64; 2],
}

impl DrawnArray {
    /// Draws the array as a card: its name and notes, then a table for each two dimensions.
    fn draw_card(&self) -> PictureCard {
        let mut svg = Svg::default();
        let (mut y, mut wide) = (14.0, text_width(&self.name, 14.0));
        svg.text([0.0, y], Anchor::Start, "font-size=\"14\" font-weight=\"bold\"", &self.name);
        for note in &self.notes {
            y += 16.0;
            svg.text([0.0, y], Anchor::Start, "fill=\"#556\"", note);
            wide = wide.max(text_width(note, FONT_SIZE_PIXELS));
        }
        // The last two dimensions are a table, and each two in front of them.
        let rank = self.extents.len();
        let mut pairs: Vec<[Option<usize>; 2]> =
            (0..rank.max(1).div_ceil(2)).map(|pair| [2, 1].map(|back| rank.checked_sub(2 * pair + back))).collect();
        pairs.reverse();
        for (i, &dims) in pairs.iter().enumerate() {
            let largest = if i + 1 == pairs.len() { MAX_TABLE_SIZE_PIXELS } else { MAX_OUTER_TABLE_SIZE_PIXELS };
            let caption = self.caption(dims);
            y += 20.0;
            svg.text([0.0, y], Anchor::Start, "fill=\"#556\"", &caption);
            y += 8.0;
            let table = ArrayTable::new(self, dims, [1.0, y], largest);
            table.draw(&mut svg);
            y += table.size[1];
            wide = wide.max(text_width(&caption, FONT_SIZE_PIXELS)).max(table.size[0] + 2.0);
        }
        PictureCard { svg, size: [wide, y + 4.0] }
    }

    /// Returns the text above a table: `dims 2 x 3: 128 x 32, blocks 64 x 32`.
    fn caption(&self, dims: [Option<usize>; 2]) -> String {
        let dims: Vec<usize> = dims.into_iter().flatten().collect();
        let of = |values: &[i64]| join_texts(dims.iter().map(|&d| values[d]), " x ");
        let (at, extents) = (join_texts(&dims, " x "), of(&self.extents));
        match (dims.is_empty(), self.number == 0) {
            (true, true) => "one program".into(),
            (true, false) => "one element".into(),
            (false, true) => format!("axes {at}: {extents}"),
            (false, false) if self.firsts.is_empty() => format!("dims {at}: {extents}"),
            (false, false) => format!("dims {at}: {extents}, blocks {}", of(&self.block)),
        }
    }

    /// Returns the first position and the end of what is drawn of the dimension `dim`: the array, and blocks that reach
    /// past it. For `None`, which stands for a missing dimension, it is one position.
    fn drawn_range(&self, dim: Option<usize>) -> [i64; 2] {
        let Some(d) = dim else { return [0, 1] };
        let (extent, block) = (self.extents[d], self.block[d]);
        let firsts = || self.firsts.iter().filter_map(|first| first[d]);
        // A block that is further away has no element of the array.
        let low = firsts().min().unwrap_or(0).clamp(-block, 0);
        let high = firsts().max().map_or(0, |first| first + block).clamp(extent, extent + block);
        [low, high.max(low + 1)]
    }
}

impl<'s> ArrayTable<'s> {
    fn new(array: &'s DrawnArray, dims: [Option<usize>; 2], corner: [f64; 2], max_size: [f64; 2]) -> ArrayTable<'s> {
        let ends = dims.map(|dim| array.drawn_range(dim));
        let [rows, columns] = ends.map(|[low, high]| (high - low) as f64);
        let size = match dims {
            [None, None] => [VECTOR_HEIGHT_PIXELS, VECTOR_HEIGHT_PIXELS],
            [None, Some(_)] => [max_size[0], VECTOR_HEIGHT_PIXELS],
            _ => fit_in_box((columns / rows).clamp(0.33, 5.0), max_size),
        };
        ArrayTable { array, dims, ends, corner, size }
    }

    /// Returns the rectangle in the card's SVG, in pixels (`x`, `y`, width, height), of the block that begins at
    /// `start`, clipped to what is drawn. It spans the whole side where `start` is `None`, since data chooses the
    /// block.
    fn block_rectangle(&self, start: [Option<i64>; 2]) -> [f64; 4] {
        let side = |i: usize| {
            let ([low, high], length) = (self.ends[i], self.size[1 - i]);
            let scale = length / (high - low) as f64;
            let [from, to] = match (self.dims[i], start[i]) {
                (Some(d), Some(first)) => [first, first + self.array.block[d]],
                _ => [low, high],
            };
            let [from, to] = [from, to].map(|at| (at.clamp(low, high) - low) as f64 * scale);
            (from.min(length - MIN_BLOCK_SIZE_PIXELS), (to - from).max(MIN_BLOCK_SIZE_PIXELS))
        };
        let ((y, high), (x, wide)) = (side(0), side(1));
        [self.corner[0] + x, self.corner[1] + y, wide, high]
    }

    /// Returns the first row and column of a program's block; `None` along a side without a dimension, or where data
    /// chooses the block.
    fn block_start(&self, program: usize) -> [Option<i64>; 2] {
        self.dims.map(|dim| dim.and_then(|d| self.array.firsts[program][d]))
    }

    /// Draws the array's extent, the blocks that programs see, and the marked block of the first program.
    fn draw(&self, svg: &mut Svg) {
        let [x, y] = self.corner;
        let [wide, high] = self.size;
        let inside = self.array_rectangle();
        if inside != [x, y, wide, high] {
            let tip = "past the array: loads see the fill, stores write nothing";
            svg.rect([x, y, wide, high], "fill=\"#c9c9d2\" stroke=\"#889\" stroke-dasharray=\"4 3\"", tip);
        }
        svg.rect(inside, "fill=\"#fff\" stroke=\"#556\"", "");
        // Blocks that programs see, each once.
        let mut seen: BTreeMap<[Option<i64>; 2], usize> = BTreeMap::new();
        (0..self.array.firsts.len()).for_each(|program| *seen.entry(self.block_start(program)).or_default() += 1);
        let fill = format!(
            "fill=\"{}\" fill-opacity=\"0.6\" stroke=\"#99a\" stroke-width=\"0.6\"",
            list_item_color(self.array.number)
        );
        for (&first, programs) in &seen {
            let tip = match self.array.number {
                0 => format!("programs {}", self.block_elements_text(first)),
                _ => format!("{}: seen by {programs} of the drawn programs", self.block_elements_text(first)),
            };
            svg.rect(self.block_rectangle(first), &fill, &tip);
        }
        self.draw_block_lines(svg, inside);
        if !self.array.firsts.is_empty() {
            let is_known =
                self.dims.iter().zip(self.block_start(0)).all(|(dim, first)| dim.is_none() || first.is_some());
            let dash = if is_known { "" } else { " stroke-dasharray=\"3 3\"" };
            let side = |i: usize| self.dims[i].map_or(-1, |d| d as i64);
            let block = |i: usize| self.dims[i].map_or(1, |d| self.array.block[d]);
            let numbers = [self.array.number as i64, side(0), side(1), block(0), block(1)];
            let ends = self.ends.as_flattened();
            let data = join_texts(numbers.iter().chain(ends), " ");
            let place = format!("{x:.1} {y:.1} {wide:.1} {high:.1}");
            let style = "class=\"now\" fill=\"#f5b642\" fill-opacity=\"0.55\" stroke=\"#7a4b00\" stroke-width=\"1.6\"";
            svg.rect(
                self.block_rectangle(self.block_start(0)),
                &format!("{style}{dash} data-at=\"{data} {place}\""),
                "",
            );
        }
    }

    /// Returns the rectangle of the array in the card's SVG, in pixels: `x`, `y`, width, height.
    fn array_rectangle(&self) -> [f64; 4] {
        let side = |i: usize| {
            let ([low, high], length) = (self.ends[i], self.size[1 - i]);
            let extent = self.dims[i].map_or(1, |d| self.array.extents[d]);
            let at = |position: i64| (position - low) as f64 / (high - low) as f64 * length;
            (at(0), at(extent) - at(0))
        };
        let ((y, high), (x, wide)) = (side(0), side(1));
        [self.corner[0] + x, self.corner[1] + y, wide, high]
    }

    /// Draws lines between blocks that lie side by side.
    fn draw_block_lines(&self, svg: &mut Svg, [x, y, wide, high]: [f64; 4]) {
        let mut path = String::new();
        for (i, dim) in self.dims.iter().enumerate() {
            let Some((extent, step)) = dim.and_then(|d| Some((self.array.extents[d], self.array.regular[d]?))) else {
                continue;
            };
            if step == 0 || extent / step > MAX_DRAWN_BLOCK_LINES {
                continue;
            }
            for at in (1..=(extent - 1).max(0) / step).map(|k| (k * step) as f64 / extent as f64) {
                path += &match i {
                    0 => format!("M{x:.1} {:.1} h{wide:.1} ", y + at * high),
                    _ => format!("M{:.1} {y:.1} v{high:.1} ", x + at * wide),
                };
            }
        }
        if !path.is_empty() {
            svg.path(path.trim_end(), "fill=\"none\" stroke=\"#99a\" stroke-width=\"0.6\"", "");
        }
    }

    /// Formats the elements of a block: `[0:8, 16:32]`.
    fn block_elements_text(&self, start: [Option<i64>; 2]) -> String {
        let range = |(&dim, first): (&Option<usize>, Option<i64>)| {
            dim.map(|d| first.map_or("?".into(), |n| format!("{n}:{}", n + self.array.block[d])))
        };
        format!("[{}]", join_texts(self.dims.iter().zip(start).filter_map(range), ", "))
    }
}

/// Draws the memory of a program: a bar of its blocks and scratch, with their bytes.
fn draw_program_memory(rows: &[OperandRow]) -> PictureCard {
    let parts: Vec<(usize, &OperandRow)> = rows.iter().enumerate().filter(|(_, row)| row.block_bytes > 0).collect();
    let parts: Vec<(usize, &OperandRow)> = parts.into_iter().filter(|(_, row)| row.kind != "scalar").collect();
    let total: usize = parts.iter().map(|(_, row)| row.block_bytes).sum();
    let (mut svg, mut x, mut y) = (Svg::default(), 0.0, 54.0);
    let title = format!("VMEM of a program: {}", bytes_text(total));
    svg.text([0.0, 14.0], Anchor::Start, "font-size=\"14\" font-weight=\"bold\"", &title);
    let mut wide = text_width(&title, 14.0).max(MAX_TABLE_SIZE_PIXELS[0]);
    let whole = wide;
    for (i, row) in &parts {
        let length = row.block_bytes as f64 / total as f64 * whole;
        let text = format!("{} {}", row.name, bytes_text(row.block_bytes));
        let fill = format!("fill=\"{}\" stroke=\"#556\" stroke-width=\"0.6\"", list_item_color(i + 1));
        svg.rect([x, 24.0, length, VECTOR_HEIGHT_PIXELS], &fill, &text);
        let name = shorten_text(&row.name, max_characters(length - 4.0, FONT_SIZE_PIXELS));
        svg.text([x + length / 2.0, 39.0], Anchor::Middle, "pointer-events=\"none\"", &name);
        svg.rect([0.0, y, 10.0, 10.0], &fill, "");
        let text = format!(
            "{}: {} {}",
            row.name,
            if row.kind == "scratch" { "scratch" } else { "block" },
            bytes_text(row.block_bytes)
        );
        svg.text([16.0, y + 9.5], Anchor::Start, "", &text);
        wide = wide.max(text_width(&text, FONT_SIZE_PIXELS) + 16.0);
        x += length;
        y += 17.0;
    }
    PictureCard { svg, size: [wide, y] }
}
