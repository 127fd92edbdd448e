//! The blocks of an array and the devices that hold each: what every picture of a sharding shows.
use super::hlo;
use pallas_graph::mesh::{Mesh, Sharding, axes_text};
use pallas_ir::Diag;
use std::ops::Range;

/// The blocks of an array, and the devices that hold each of them. It prints as a table ([`visualize_sharding`]), in
/// the form of JAX ([`to_jax_text`](Picture::to_jax_text)) and of PyTorch/XLA ([`to_xla_text`](Picture::to_xla_text)),
/// and as SVG ([`to_svg`](Picture::to_svg)).
///
/// Arrays with more than two dimensions are shown as several tables, one for each block of the dimensions in front of
/// the last two.
///
/// [`visualize_sharding`]: super::visualize_sharding
///
/// ```
/// use pallas_rt::sharding::{Mesh, Picture, Sharding};
/// let mesh = Mesh::new(&[("data", 2), ("model", 2)])?;
/// let sharding = Sharding::closed([vec![mesh.axis(0)], vec![mesh.axis(1)]]);
/// let picture = Picture::new(&mesh, &sharding, &[8, 8])?;
/// assert!(picture.to_string().starts_with("┌───┬───┐\n│ 0 │ 1 │\n"));
/// assert!(picture.to_svg().starts_with("<svg"));
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Picture {
    /// The extents of the array; `None` if only the number of its blocks is known.
    pub(super) shape: Option<Vec<usize>>,
    /// Number of blocks along each dimension.
    pub(super) parts: Vec<usize>,
    /// By block, row-major, the devices that hold it, in ascending order.
    pub(super) cells: Vec<Vec<usize>>,
    /// Names of the axes along which devices have parts of a sum, as Shardy writes them; empty without such axes.
    pub(super) unreduced: String,
}

/// One table of a picture: blocks along the last two dimensions.
pub(super) struct TableSlice<'p> {
    /// The elements that it shows, as `[0:4, :, :]`; empty if it shows the whole array.
    pub title: String,
    /// Its index among the slices of the picture.
    pub number: usize,
    pub rows: usize,
    pub columns: usize,
    /// By block, row-major, the devices that hold it.
    pub cells: &'p [Vec<usize>],
}

impl Picture {
    /// The picture of an array of a shape.
    ///
    /// # Errors
    /// A sharding of another number of dimensions, or that does not fit the mesh.
    pub fn new(mesh: &Mesh, sharding: &Sharding, shape: &[usize]) -> Result<Picture, Diag> {
        sharding.verify_for(mesh, shape.len(), &format!("the shape {shape:?}"))?;
        Ok(Picture { shape: Some(shape.to_vec()), ..Picture::without_shape(mesh, sharding) })
    }

    /// The picture of an array of which only the number of blocks along each dimension is known.
    pub(super) fn without_shape(mesh: &Mesh, sharding: &Sharding) -> Picture {
        let parts = sharding.blocks_per_dim();
        let mut cells: Vec<Vec<usize>> = vec![vec![]; parts.iter().product()];
        for position in 0..mesh.device_count() {
            let cell =
                sharding.dims.iter().zip(&parts).fold(0, |cell, (dim, n)| cell * n + mesh.index(position, &dim.axes));
            cells[cell].push(mesh.device(position));
        }
        cells.iter_mut().for_each(|cell| cell.sort_unstable());
        Picture { shape: None, parts, cells, unreduced: axes_text(&sharding.unreduced, mesh) }
    }

    /// The picture of a sharding in XLA's text, as PyTorch/XLA gives it: `{devices=[2,2]0,1,2,3}`, the iota form
    /// `{devices=[2,2]<=[4]}`, with `last_tile_dim_replicate`, or `{replicated}` for `devices` devices.
    ///
    /// # Errors
    /// Another text; tiles and devices that differ in number; a device twice.
    ///
    /// ```
    /// use pallas_rt::sharding::Picture;
    /// let picture = Picture::of_hlo("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 4)?;
    /// assert_eq!(picture.to_string(), "┌─────┐\n│ 0,1 │\n├─────┤\n│ 2,3 │\n└─────┘\n");
    /// # Ok::<(), pallas_rt::ir::Diag>(())
    /// ```
    pub fn of_hlo(text: &str, devices: usize) -> Result<Picture, Diag> {
        let hlo::HloTiles { parts, mut devices, is_unreduced } = hlo::parse_hlo_sharding(text, devices)?;
        devices.iter_mut().for_each(|cell| cell.sort_unstable());
        let unreduced = if is_unreduced { "its last tiles".into() } else { String::new() };
        Ok(Picture { shape: None, parts, cells: devices, unreduced })
    }

    /// Number of rows and columns of a table: blocks along the last dimension but one, and along the last.
    pub(super) fn rows_and_columns(&self) -> (usize, usize) {
        match self.parts[..] {
            [] => (1, 1),
            [columns] => (1, columns),
            [.., rows, columns] => (rows, columns),
        }
    }

    /// The tables of a picture, one for each block of the dimensions in front of the last two.
    pub(super) fn table_slices(&self) -> Vec<TableSlice<'_>> {
        let (rows, columns) = self.rows_and_columns();
        let outer = &self.parts[..self.parts.len().saturating_sub(2)];
        let title = |number: usize| {
            if outer.iter().all(|&parts| parts == 1) {
                return String::new();
            }
            let mut rest = number;
            let mut texts: Vec<String> = vec![":".into(), ":".into()];
            for (dim, parts) in outer.iter().enumerate().rev() {
                texts.push(self.range_text(dim, rest % parts));
                rest /= parts;
            }
            texts.reverse();
            format!("[{}]", texts.join(", "))
        };
        let cells = self.cells.chunks(rows * columns).enumerate();
        cells.map(|(number, cells)| TableSlice { title: title(number), number, rows, columns, cells }).collect()
    }

    /// The range of elements of a block along a dimension; `None` if the extent is not known.
    pub(super) fn block_elements(&self, dim: usize, block: usize) -> Option<Range<usize>> {
        let n = self.shape.as_ref()?[dim];
        let local = n.div_ceil(self.parts[dim]);
        Some((block * local).min(n)..((block + 1) * local).min(n))
    }

    /// Text of the elements of a block along a dimension: `0:4`, `:` for all, the number of the block if the extent is
    /// not known.
    pub(super) fn range_text(&self, dim: usize, block: usize) -> String {
        match self.block_elements(dim, block) {
            _ if self.parts[dim] == 1 => ":".into(),
            Some(elements) => format!("{}:{}", elements.start, elements.end),
            None => format!("block {block}"),
        }
    }

    /// The fraction of the array's extent that a block has along a dimension.
    pub(super) fn block_fraction(&self, dim: usize, block: usize) -> f64 {
        match (self.block_elements(dim, block), &self.shape) {
            (Some(elements), Some(shape)) if shape[dim] > 0 => elements.len() as f64 / shape[dim] as f64,
            _ => 1.0 / self.parts[dim] as f64,
        }
    }
}

/// Text of a list of devices: `0,1`, or `0-7` for three or more that follow each other; long lists are cut short:
/// `0,8,16,...,248 (32 devices)`.
pub(super) fn device_ranges_text(all: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for &device in all {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == device => *last = device,
            _ => runs.push((device, device)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    let texts: Vec<String> = runs.iter().map(run).collect();
    match texts.len() {
        0 => "none".into(),
        1..=8 => texts.join(","),
        n => format!("{},...,{} ({} devices)", texts[..3].join(","), texts[n - 1], all.len()),
    }
}

/// The indices below `n`; if they are more than `max_shown`, the first and the last ones with a gap (`None`) between
/// them.
pub(super) fn abbreviated_indices(n: usize, max_shown: usize) -> Vec<Option<usize>> {
    if n <= max_shown {
        return (0..n).map(Some).collect();
    }
    let last = max_shown / 4;
    (0..max_shown - last - 1).map(Some).chain([None]).chain((n - last..n).map(Some)).collect()
}
