//! Shardings as pictures.
use pallas_graph::mesh::{Mesh, Sharding};
use std::fmt::Write;

/// A table of the blocks of an array: each cell has the devices that hold the block. The last dimension runs to the right,
/// all others downwards. `jax.debug.visualize_array_sharding`.
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
    let parts = sharding.parts();
    let columns = parts.last().copied().unwrap_or(1);
    let rows: usize = parts[..parts.len().saturating_sub(1)].iter().product();
    let mut cells: Vec<Vec<usize>> = vec![vec![]; rows * columns];
    for position in 0..mesh.devices() {
        let cell =
            sharding.dims.iter().zip(&parts).fold(0, |cell, (dim, n)| cell * n + mesh.index(position, &dim.axes));
        cells[cell].push(mesh.device(position));
    }
    let texts: Vec<String> = cells.iter().map(|cell| devices(cell)).collect();
    let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0) + 2;
    let line = |left: char, between: char, right: char| {
        let cells = vec!["─".repeat(width); columns];
        format!("{left}{}{right}\n", cells.join(&between.to_string()))
    };
    let mut picture = line('┌', '┬', '┐');
    for (row, cells) in texts.chunks(columns).enumerate() {
        if row > 0 {
            picture += &line('├', '┼', '┤');
        }
        picture.push('│');
        cells.iter().for_each(|text| write!(picture, "{text:^width$}│").expect("a string"));
        picture.push('\n');
    }
    picture + &line('└', '┴', '┘')
}

/// `0,1`, or `0-7` for many that follow each other.
fn devices(all: &[usize]) -> String {
    let follows = all.len() > 2 && all.windows(2).all(|pair| pair[1] == pair[0] + 1);
    match (all, follows) {
        ([first, .., last], true) => format!("{first}-{last}"),
        _ => all.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}
