//! Positions of elements as text: coordinates in tiles and in arrays.
use pallas_ir::Dim;
use pallas_ir::structural::Index;

/// Neighbours that are read and written at once.
pub(super) const FOUR: usize = 4;
/// Components of a vector.
pub(super) const PARTS: [&str; FOUR] = ["x", "y", "z", "w"];

/// A coordinate: its text and, where a thread's own elements are meant, the class and which of them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Coord {
    pub(super) text: String,
    pub(super) own: Option<(usize, usize)>,
    /// A multiple of four and what is added to it, where that is known.
    pub(super) part: Option<(String, usize)>,
}

impl Coord {
    pub(super) fn text(text: impl Into<String>) -> Coord {
        Coord { text: text.into(), own: None, part: None }
    }
}

/// A position: coordinates and, if it strides over a whole shape, the name of the element's number.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) coords: Vec<Coord>,
    pub(super) flat: Option<(String, Vec<usize>)>,
}

/// What accesses to an array have computed.
#[derive(Default)]
pub(super) struct Known {
    /// Axis, coordinate, and what came out.
    pub(super) along: Vec<(usize, String, Coordinate)>,
    /// Numbers of elements, and the name of the four from there on.
    pub(super) fours: Vec<(String, String)>,
}

/// One coordinate of an access.
#[derive(Clone)]
pub(super) struct Coordinate {
    /// The position along the axis, an `i32`.
    pub(super) position: String,
    /// Its share of the element's number.
    pub(super) offset: String,
    /// A test that it lies inside; None: it always does.
    pub(super) inside: Option<String>,
}

/// A position of a tile whose unit axes stretch, as a position of the tile.
pub(super) fn stretch(own: &[usize], at: &At) -> At {
    let coord = |(n, c): (&usize, &Coord)| if *n == 1 { Coord::text("0u") } else { c.clone() };
    At { coords: own.iter().zip(&at.coords).map(coord).collect(), flat: None }
}
fn number(d: &Dim) -> i64 {
    d.as_number().expect("sizes are numbers")
}
/// One coordinate of a moved position.
pub(super) fn moved(i: &Index, coords: &[Coord]) -> Coord {
    let (stride, offset) = (number(&i.stride), number(&i.offset));
    match i.axis {
        None => Coord::text(format!("{offset}u")),
        Some(a) if stride == 1 && offset == 0 => coords[a].clone(),
        Some(a) => Coord::text(format!("u32({offset} + {stride} * i32({}))", coords[a].text)),
    }
}
/// `Σ coordinate · stride`.
pub(super) fn offset(coords: &[Coord], strides: &[usize]) -> String {
    let terms: Vec<String> = coords
        .iter()
        .zip(strides)
        .filter(|(c, _)| c.text != "0u")
        .map(|(c, s)| if *s == 1 { c.text.clone() } else { format!("{} * {s}u", c.text) })
        .collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}
/// Coordinate along an axis of row-major position `e`.
pub(super) fn coordinate(shape: &[usize], axis: usize, e: &str) -> String {
    let step: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    if shape[axis] == 1 {
        return "0u".into();
    }
    let scaled = if step == 1 { e.to_string() } else { format!("({e} / {}u)", step.max(1)) };
    if outer == 1 { scaled } else { format!("({scaled} % {}u)", shape[axis].max(1)) }
}
