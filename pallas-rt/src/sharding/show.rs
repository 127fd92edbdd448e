//! Pictures of shardings as text.
use super::picture::{Picture, abbreviated_indices, device_ranges_text};
use crate::array::Array;
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{Mesh, Sharding};
use pallas_ir::{At, Diag, Loc};
use std::fmt::{self, Write};
use std::io::IsTerminal;

/// A table of the blocks of an array: each cell has the devices that hold the block. The last dimension runs to the
/// right, the one before it downwards; there is a table for each block of the dimensions in front.
///
/// ```
/// use pallas_rt::sharding::{Mesh, Sharding, visualize_sharding};
/// let mesh = Mesh::new(&[("data", 2), ("model", 2)])?;
/// let rows = Sharding::closed([vec![mesh.axis(0)], vec![]]);
/// let text = "\
/// ┌─────┐
/// │ 0,1 │
/// ├─────┤
/// │ 2,3 │
/// └─────┘
/// ";
/// assert_eq!(visualize_sharding(&mesh, &rows), text);
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
pub fn visualize_sharding(mesh: &Mesh, sharding: &Sharding) -> String {
    Picture::without_shape(mesh, sharding).to_string()
}

/// The table of an array's blocks in JAX's form, in colours if the program's output is a terminal;
/// `jax.debug.visualize_array_sharding`. An array that is not sharded is on device 0. For a traced function,
/// [`partitioned`](crate::partitioned()) has the picture of every value.
///
/// # Errors
/// A traced array; the error of a poisoned one.
///
/// ```
/// use pallas_rt::Array;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put, visualize_array_sharding};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("x", 2)]).expect("a mesh"));
/// let x = device_put(&Array::full(&[8], 1.0f32)?, &NamedSharding::new(&mesh, P("x")))?;
/// # if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
/// let text = "\
/// ┌───────┬───────┐
/// │ CPU 0 │ CPU 1 │
/// └───────┴───────┘
/// ";
/// assert_eq!(visualize_array_sharding(&x)?, text);
/// # }
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn visualize_array_sharding(x: &Array) -> Result<String> {
    let at = Loc::caller();
    x.check()?;
    if x.is_traced() {
        let help = "`partitioned(f)(..)` has the picture of every value of a function";
        let diag = Diag::new("sharding", At::Op, "a traced array is in no place yet".into(), help);
        return Err(Error::operation(at, diag));
    }
    let one = Mesh::new(&[]).expect("a mesh of one device");
    let (mesh, sharding) = match x.placement() {
        Some(placement) => (&*placement.mesh, placement.sharding.clone()),
        None => (&one, Sharding::replicated(x.shape().len())),
    };
    let picture = Picture::new(mesh, &sharding, x.shape()).map_err(|diag| Error::operation(at, diag))?;
    Ok(picture.to_jax_text(&TextStyle::default()))
}

/// Style of a table of blocks as text.
#[derive(Clone, PartialEq, Debug)]
pub struct TextStyle {
    /// True for boxes in colours instead of lines.
    pub color: bool,
    /// Kind of the devices, such as `CPU`, written before their numbers.
    pub platform: String,
    /// Factor by which the whole table is larger.
    pub scale: f64,
    /// Minimum width of a cell in characters.
    pub min_width: usize,
    /// Maximum width of a table in characters; cells shrink to fit, but never below the width of their text.
    pub max_width: usize,
}

impl Default for TextStyle {
    /// The style of JAX: cells of at least 9 characters in a table of at most 80, in colours if [`wants_color`].
    fn default() -> TextStyle {
        TextStyle { color: wants_color(), platform: "CPU".into(), scale: 1.0, min_width: 9, max_width: 80 }
    }
}

/// True if the program's output is a terminal and `NO_COLOR` (<https://no-color.org>) is not set.
pub fn wants_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Maximum number of rows, columns and tables that are shown; those in the middle are left out.
const MAX_SHOWN_ITEMS: usize = 16;

/// Writes the table that [`visualize_sharding`] returns.
impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_tables(f, |f, slice| {
            let (rows, columns) =
                (abbreviated_indices(slice.rows, MAX_SHOWN_ITEMS), abbreviated_indices(slice.columns, MAX_SHOWN_ITEMS));
            let text = |row: Option<usize>, column: Option<usize>| match (row, column) {
                (Some(row), Some(column)) => device_ranges_text(&slice.cells[row * slice.columns + column]),
                _ => "…".into(),
            };
            let texts: Vec<Vec<TableCell>> = rows
                .iter()
                .map(|&row| columns.iter().map(|&column| TableCell::compact(text(row, column))).collect())
                .collect();
            write_ruled_table(f, &texts)
        })
    }
}

impl Picture {
    /// The table in the form of `jax.debug.visualize_array_sharding`: cells as large as their blocks are. Its text is
    /// JAX's for arrays with one or two dimensions whose table is not wider than `max_width`.
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, Picture, Sharding, TextStyle};
    /// let mesh = Mesh::new(&[("x", 2), ("y", 2)])?;
    /// let sharding = Sharding::closed([vec![mesh.axis(1)], vec![]]);
    /// let style = TextStyle { color: false, scale: 0.6, ..TextStyle::default() };
    /// let text = "\
    /// ┌─────────────┐
    /// │   CPU 0,2   │
    /// │             │
    /// ├─────────────┤
    /// │   CPU 1,3   │
    /// │             │
    /// └─────────────┘
    /// ";
    /// assert_eq!(Picture::new(&mesh, &sharding, &[8, 8])?.to_jax_text(&style), text);
    /// # Ok::<(), pallas_rt::ir::Diag>(())
    /// ```
    pub fn to_jax_text(&self, style: &TextStyle) -> String {
        let rank = self.parts.len();
        let extent = |from_last: usize| self.shape.as_ref().filter(|_| rank >= from_last).map(|s| s[rank - from_last]);
        let height = (10.0 * style.scale) as usize;
        // One dimension runs to the right, as high as a line.
        let (down, right) = if rank == 1 { (extent(1), Some(1)) } else { (extent(2), extent(1)) };
        let aspect = match (down, right) {
            (Some(down), Some(right)) if down > 0 => right as f64 / down as f64,
            _ => 1.0,
        };
        let base = (height as f64 * aspect) as usize;
        let size = |row: usize, column: usize| {
            let high = match rank {
                0 => height,
                1 => 1,
                _ => (self.block_fraction(rank - 2, row) * height as f64) as usize,
            };
            let wide = if rank >= 1 { self.block_fraction(rank - 1, column) } else { 1.0 };
            ((wide * base as f64 * 2.5) as usize, high)
        };
        let text = |cell: &[usize]| {
            let all = cell.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            format!(
                "{} {}",
                style.platform,
                if all.len() > MAX_DEVICE_LIST_CHARACTERS { device_ranges_text(cell) } else { all }
            )
        };
        self.format_sized_tables(style, size, text)
    }

    /// The table in the form of PyTorch/XLA's `visualize_sharding`: cells of equal size, and devices that hold the same
    /// block as a list in brackets.
    ///
    /// ```
    /// use pallas_rt::sharding::{Picture, TextStyle};
    /// let picture = Picture::of_hlo("{devices=[1,2,2]<=[4] last_tile_dim_replicate}", 4)?;
    /// let style = TextStyle { color: false, platform: "TPU".into(), ..TextStyle::default() };
    /// let text = "\
    /// ┌──────────┬──────────┐
    /// │TPU [0, 1]│TPU [2, 3]│
    /// │          │          │
    /// └──────────┴──────────┘
    /// ";
    /// assert_eq!(picture.to_xla_text(&style), text);
    /// # Ok::<(), pallas_rt::ir::Diag>(())
    /// ```
    pub fn to_xla_text(&self, style: &TextStyle) -> String {
        let (rows, columns) = self.rows_and_columns();
        let base = (3.0 * style.scale) as usize;
        let size = ((columns as f64 * base as f64 * 1.5) as usize, rows * base);
        let text = |cell: &[usize]| match cell {
            [one] => format!("{} {one}", style.platform),
            all => {
                let list = all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let list = if list.len() > MAX_DEVICE_LIST_CHARACTERS { device_ranges_text(all) } else { list };
                format!("{} [{list}]", style.platform)
            }
        };
        self.format_sized_tables(style, |_, _| size, text)
    }

    /// Draws tables: `cell_size` gives the width and height of the cell in a row and column, `devices_text` the text of
    /// a cell's devices.
    fn format_sized_tables(
        &self,
        style: &TextStyle,
        cell_size: impl Fn(usize, usize) -> (usize, usize),
        devices_text: impl Fn(&[usize]) -> String,
    ) -> String {
        let mut out = String::new();
        let most = (style.max_width / 4).clamp(4, MAX_SHOWN_ITEMS);
        let drawn = self.write_tables(&mut out, |f, slice| {
            let (rows, columns) = (abbreviated_indices(slice.rows, most), abbreviated_indices(slice.columns, most));
            // If the cells are too wide for the table, all of them are limited to an equal share.
            let share = style.max_width.saturating_sub(columns.len() + 1) / columns.len().max(1);
            let colors = spread_colors(slice.rows * slice.columns);
            let cell = |row: Option<usize>, column: Option<usize>| {
                let (Some(row), Some(column)) = (row, column) else { return TableCell::compact("…".into()) };
                let (wide, high) = cell_size(row, column);
                let text = devices_text(&slice.cells[row * slice.columns + column]);
                let wide = wide.max(style.min_width).min(style.max_width);
                let wide = if (wide + 1) * columns.len() + 1 > style.max_width { wide.min(share) } else { wide };
                let color = style.color.then(|| colors[row * slice.columns + column]);
                TableCell::centered(text, wide, high, color)
            };
            let cells: Vec<Vec<TableCell>> =
                rows.iter().map(|&row| columns.iter().map(|&column| cell(row, column)).collect()).collect();
            if style.color { write_colored_table(f, &cells) } else { write_ruled_table(f, &cells) }
        });
        drawn.expect("a string");
        out
    }

    /// Writes the tables of all slices under their titles; `table` writes one.
    fn write_tables<W: Write>(
        &self,
        f: &mut W,
        mut table: impl FnMut(&mut W, &super::picture::TableSlice<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let slices = self.table_slices();
        for number in abbreviated_indices(slices.len(), MAX_SHOWN_ITEMS) {
            let Some(slice) = number.map(|number| &slices[number]) else {
                writeln!(f, "… {} of {} tables", slices.len() - (MAX_SHOWN_ITEMS - 1), slices.len())?;
                continue;
            };
            if !slice.title.is_empty() {
                writeln!(f, "{}", slice.title)?;
            }
            table(f, slice)?;
        }
        if self.unreduced.is_empty() { Ok(()) } else { writeln!(f, "parts of a sum along {}", self.unreduced) }
    }
}

/// Maximum length in characters of a list of devices that is shown in full.
const MAX_DEVICE_LIST_CHARACTERS: usize = 60;

/// A cell of a table: a text with free space on each side.
struct TableCell {
    text: String,
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
    /// Background colour: red, green and blue.
    color: Option<[u8; 3]>,
}

impl TableCell {
    fn compact(text: String) -> TableCell {
        TableCell { text, left: 1, right: 1, top: 0, bottom: 0, color: None }
    }

    /// A cell of about this width and height in characters. As in JAX, odd free space goes to the right and to the
    /// bottom.
    fn centered(text: String, width: usize, height: usize, color: Option<[u8; 3]>) -> TableCell {
        let around = |whole: usize, own: usize| {
            let free = whole as i64 - own as i64;
            let (before, rest) = (free.div_euclid(2), free.rem_euclid(2));
            let more = i64::from(color.is_some());
            let space = |n: i64| usize::try_from(n + more).unwrap_or(0);
            (space(before), space(before + rest))
        };
        let (left, right) = around(width, text.chars().count() + 2);
        let (top, bottom) = around(height, 2);
        TableCell { text, left, right, top, bottom, color }
    }

    fn width(&self) -> usize {
        self.left + self.text.chars().count() + self.right
    }

    fn height(&self) -> usize {
        self.top + 1 + self.bottom
    }

    /// Line `number` of the cell, padded to the width of its column.
    fn padded_line(&self, number: usize, width: usize) -> String {
        if number != self.top {
            return " ".repeat(width);
        }
        let free = width - self.width();
        let (left, right) = (self.left + free / 2, self.right + free.div_ceil(2));
        format!("{}{}{}", " ".repeat(left), self.text, " ".repeat(right))
    }
}

fn column_widths(cells: &[Vec<TableCell>]) -> Vec<usize> {
    let columns = cells.first().map_or(0, Vec::len);
    (0..columns).map(|column| cells.iter().map(|row| row[column].width()).max().unwrap_or(0)).collect()
}

/// Writes a table with lines around its cells.
fn write_ruled_table(f: &mut impl Write, cells: &[Vec<TableCell>]) -> fmt::Result {
    let widths = column_widths(cells);
    let line = |left: char, between: &str, right: char| {
        let cells: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
        format!("{left}{}{right}", cells.join(between))
    };
    writeln!(f, "{}", line('┌', "┬", '┐'))?;
    for (i, row) in cells.iter().enumerate() {
        if i > 0 {
            writeln!(f, "{}", line('├', "┼", '┤'))?;
        }
        for number in 0..row.iter().map(TableCell::height).max().unwrap_or(0) {
            let texts: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| cell.padded_line(number, width)).collect();
            writeln!(f, "│{}│", texts.join("│"))?;
        }
    }
    writeln!(f, "{}", line('└', "┴", '┘'))
}

/// Writes a table of coloured cells with a terminal's escape codes.
fn write_colored_table(f: &mut impl Write, cells: &[Vec<TableCell>]) -> fmt::Result {
    let widths = column_widths(cells);
    for row in cells {
        for number in 0..row.iter().map(TableCell::height).max().unwrap_or(0) {
            for (cell, &width) in row.iter().zip(&widths) {
                let text = cell.padded_line(number, width);
                match cell.color.filter(|_| number < cell.height()) {
                    Some([r, g, b]) => {
                        let bright = f64::from(r) * 0.299 + f64::from(g) * 0.587 + f64::from(b) * 0.114 > 186.0;
                        let ink = if bright { 0 } else { 255 };
                        write!(f, "\x1b[38;2;{ink};{ink};{ink};48;2;{r};{g};{b}m{text}\x1b[0m")?;
                    }
                    None => write!(f, "{text}")?,
                }
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

/// The colours of JAX's tables: `tab20b` of Matplotlib.
pub(super) const PALETTE: [u32; 20] = [
    0x393b79, 0x5254a3, 0x6b6ecf, 0x9c9ede, 0x637939, 0x8ca252, 0xb5cf6b, 0xcedb9c, 0x8c6d31, 0xbd9e39, 0xe7ba52,
    0xe7cb94, 0x843c39, 0xad494a, 0xd6616b, 0xe7969c, 0x7b4173, 0xa55194, 0xce6dbd, 0xde9ed6,
];

/// Colours of `n` cells in a row: the palette spread over the cells, in an order that gives neighbours different
/// colours.
fn spread_colors(n: usize) -> Vec<[u8; 3]> {
    let step = n / 2 + usize::from(n.is_multiple_of(2)) + usize::from(n % 4 == 2);
    let color = |i: usize| {
        let at = i * step % n;
        let along = if n > 1 { at as f64 / (n - 1) as f64 } else { 0.0 };
        let entry = ((along * PALETTE.len() as f64) as usize).min(PALETTE.len() - 1);
        let [_, r, g, b] = PALETTE[entry].to_be_bytes();
        [r, g, b]
    };
    (0..n).map(color).collect()
}
