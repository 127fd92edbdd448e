//! Shardings as XLA writes them, and PyTorch/XLA shows them: `{devices=[2,2]<=[4]}`.
//!
//! ```text
//! text    = "{replicated}" | "{maximal device=" n "}" | "{devices=[" tiles "]" devices last? "}"
//! devices = "<=[" n,* "]" ("T(" n,* ")")? | n,*             an iota that is reshaped and transposed, or a list
//! last    = " last_tile_dim_replicate" | " last_tile_dims={" ("replicated" | "unreduced"),* "}"
//! ```
//!
//! The tiles are the parts of each dimension, then those of each entry of `last`.
use pallas_graph::mesh::{Axis, Mesh, Sharding, difference, product_of_sizes};
use pallas_ir::{At, Diag};

/// The text of a sharding as XLA writes it, with the devices in the order of the mesh.
///
/// ```
/// use pallas_rt::sharding::{Mesh, Sharding, to_hlo_sharding};
/// let mesh = Mesh::new(&[("data", 2), ("model", 4)])?;
/// let columns = Sharding::closed([vec![], vec![mesh.axis(1)]]);
/// assert_eq!(to_hlo_sharding(&mesh, &columns), "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}");
/// # Ok::<(), pallas_rt::ir::Diag>(())
/// ```
pub fn to_hlo_sharding(mesh: &Mesh, sharding: &Sharding) -> String {
    let wide = |axes: Vec<Axis>| axes.into_iter().filter(|axis| axis.size > 1).collect::<Vec<_>>();
    let dims: Vec<Vec<Axis>> = sharding.axes().into_iter().map(wide).collect();
    let unreduced = wide(sharding.unreduced.clone());
    let replicated = wide(difference(&mesh.axes(), &[dims.concat(), unreduced.clone()].concat()));
    if dims.concat().is_empty() && unreduced.is_empty() {
        return "{replicated}".into();
    }
    let mut tiles: Vec<usize> = dims.iter().map(|axes| product_of_sizes(axes)).collect();
    let mut last = vec![];
    for (name, axes) in [("replicated", &replicated), ("unreduced", &unreduced)] {
        if !axes.is_empty() {
            tiles.push(product_of_sizes(axes));
            last.push(name);
        }
    }
    let order = [dims.concat(), replicated, unreduced].concat();
    let last = match last[..] {
        [] => String::new(),
        ["replicated"] => " last_tile_dim_replicate".into(),
        _ => format!(" last_tile_dims={{{}}}", last.join(", ")),
    };
    format!("{{devices=[{}]{}{last}}}", join_numbers(&tiles), device_list_text(mesh, &order))
}

fn join_numbers(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The text of the devices, in the order of their coordinates along `order`, which has every axis of the mesh.
fn device_list_text(mesh: &Mesh, order: &[Axis]) -> String {
    if !(0..mesh.device_count()).all(|position| mesh.device(position) == position) {
        let mut all: Vec<usize> = (0..mesh.device_count()).collect();
        all.sort_by_key(|&position| mesh.index(position, order));
        return join_numbers(&all.into_iter().map(|position| mesh.device(position)).collect::<Vec<_>>());
    }
    // The axes in the order of the mesh, and which of them comes when.
    let mut sorted = order.to_vec();
    sorted.sort_by_key(|axis| (axis.id, axis.pre));
    let at = |axis: &Axis| sorted.iter().position(|other| other == axis).expect("it is one of them");
    let mut runs: Vec<(usize, usize)> = vec![];
    for axis in order {
        let (i, n) = (at(axis), axis.len());
        match runs.last_mut() {
            // Neighbours in both orders are one.
            Some((first, count)) if *first + *count == i => *count += 1,
            _ => runs.push((i, 1)),
        }
        debug_assert!(n > 1);
    }
    let extent = |(first, count): (usize, usize)| product_of_sizes(&sorted[first..first + count]);
    let mut reshaped = runs.clone();
    reshaped.sort_unstable();
    let extents: Vec<usize> = reshaped.iter().map(|&run| extent(run)).collect();
    let order: Vec<usize> =
        runs.iter().map(|run| reshaped.iter().position(|other| other == run).expect("it is one of them")).collect();
    let transposed = if order.len() > 1 { format!("T({})", join_numbers(&order)) } else { String::new() };
    format!("<=[{}]{transposed}", join_numbers(&extents))
}

/// The tiles of an array, and by tile, row-major, the devices that hold it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HloTiles {
    /// Number of tiles along each dimension; empty if nothing is said about dimensions.
    pub parts: Vec<usize>,
    pub devices: Vec<Vec<usize>>,
    pub is_unreduced: bool,
}

/// Maximum number of devices in the text of an XLA sharding; a text with more is an error.
const MAX_PARSED_DEVICES: usize = 1 << 24;

/// Reads a sharding of XLA. `devices` is the number of devices that `{replicated}` means.
///
/// # Errors
/// Another text; tiles and devices that differ in number; a device twice.
pub(super) fn parse_hlo_sharding(text: &str, devices: usize) -> Result<HloTiles, Diag> {
    let wrong = |found: &str| {
        let help = "`{replicated}`, `{maximal device=0}`, `{devices=[2,2]0,1,2,3}` or `{devices=[2,2]<=[4]}`";
        Diag::new("sharding", At::Op, format!("`{text}` is no sharding of XLA: {found}"), help)
    };
    let inside = text.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let inside = inside.ok_or_else(|| wrong("it is not in braces"))?.trim();
    if inside == "replicated" {
        return Ok(HloTiles { parts: vec![], devices: vec![(0..devices).collect()], is_unreduced: false });
    }
    if let Some(device) = inside.strip_prefix("maximal device=") {
        let device = device.trim().parse().map_err(|_| wrong("its device is no number"))?;
        return Ok(HloTiles { parts: vec![], devices: vec![vec![device]], is_unreduced: false });
    }
    let numbers = |list: &str| -> Result<Vec<usize>, Diag> {
        list.split(',').map(|n| n.trim().parse().map_err(|_| wrong(&format!("`{n}` is no number")))).collect()
    };
    let rest = inside.strip_prefix("devices=[").ok_or_else(|| wrong("it has no devices"))?;
    let (tiles, rest) = rest.split_once(']').ok_or_else(|| wrong("its list of tiles has no end"))?;
    let (order, last) = match rest.split_once(" last_tile_dim") {
        None => (rest, vec![]),
        Some((order, "_replicate")) => (order, vec!["replicated"]),
        Some((order, last)) => {
            let names = last.strip_prefix("s={").and_then(|last| last.strip_suffix('}'));
            (order, names.ok_or_else(|| wrong("its last tiles have no names"))?.split(',').map(str::trim).collect())
        }
    };
    if let Some(other) = last.iter().find(|name| !matches!(**name, "replicated" | "unreduced")) {
        return Err(wrong(&format!("`{other}` tiles are shown by nothing here")));
    }
    let mut tiles = numbers(tiles)?;
    let count =
        tiles.iter().try_fold(1usize, |n, tile| n.checked_mul(*tile)).filter(|n| (1..=MAX_PARSED_DEVICES).contains(n));
    let count = count.ok_or_else(|| wrong("it has no tile, or more than 2^24"))?;
    let order = match order.strip_prefix("<=[") {
        Some(iota) => parse_iota_devices(iota, count, &wrong, &numbers)?,
        None => numbers(order)?,
    };
    if order.len() != count {
        return Err(wrong(&format!("{} devices for {count} tiles", order.len())));
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong(&format!("device {} is in two tiles", pair[0])));
    }
    if last.len() > tiles.len() {
        return Err(wrong("it has more names of last tiles than tiles"));
    }
    let together: usize = tiles.split_off(tiles.len() - last.len()).iter().product();
    let devices = order.chunks(together).map(<[usize]>::to_vec).collect();
    Ok(HloTiles { parts: tiles, devices, is_unreduced: last.contains(&"unreduced") })
}

/// Returns the `count` device numbers of an iota, transposed to its order; `iota` is the text behind `<=[`, such as
/// `8]` or `2,4]T(1,0)`.
fn parse_iota_devices(
    iota: &str,
    count: usize,
    make_error: &dyn Fn(&str) -> Diag,
    parse_numbers: &dyn Fn(&str) -> Result<Vec<usize>, Diag>,
) -> Result<Vec<usize>, Diag> {
    let (extents, order) = iota.split_once(']').ok_or_else(|| make_error("its iota has no end"))?;
    let extents = parse_numbers(extents)?;
    if extents.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent)) != Some(count) {
        return Err(make_error(&format!("an iota of {extents:?} for {count} tiles")));
    }
    let order = match order {
        "" => (0..extents.len()).collect(),
        order => {
            let inside = order.strip_prefix("T(").and_then(|order| order.strip_suffix(')'));
            parse_numbers(inside.ok_or_else(|| make_error("its iota is followed by something else"))?)?
        }
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..extents.len()) {
        return Err(make_error(&format!("{order:?} is no order of {} axes", extents.len())));
    }
    let stride = |axis: usize| extents[axis + 1..].iter().product::<usize>();
    let mut all = vec![0];
    for &axis in &order {
        all = all.iter().flat_map(|&at| (0..extents[axis]).map(move |i| at + i * stride(axis))).collect();
    }
    Ok(all)
}
