//! Positions of elements as text: coordinates in tiles and in arrays.
use pallas_ir::Dim;
use pallas_ir::structural::AffineIndex;

/// Number of adjacent elements that are read and written at once, as a vec4.
pub(super) const VEC4_WIDTH: usize = 4;
/// Names of the components of a vec4.
pub(super) const VEC4_COMPONENTS: [&str; VEC4_WIDTH] = ["x", "y", "z", "w"];

/// A coordinate as text. If it is that of a thread's own element, `own` has the class of the axis and the element's
/// number.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TileCoord {
    pub(super) text: String,
    pub(super) own: Option<(usize, usize)>,
    /// The coordinate as a multiple of four (text) plus a component number, where that is known.
    pub(super) part: Option<(String, usize)>,
}

impl TileCoord {
    pub(super) fn from_text(text: impl Into<String>) -> TileCoord {
        TileCoord { text: text.into(), own: None, part: None }
    }
}

/// A position in a tile: its coordinates and, in a loop over a whole shape, the name of the element's row-major number
/// and the shape.
#[derive(Clone, Debug)]
pub(super) struct TilePosition {
    pub(super) coords: Vec<TileCoord>,
    pub(super) flat: Option<(String, Vec<usize>)>,
}

/// Coordinates and vec4 of an array that earlier lines of the text have computed or loaded, so that accesses reuse
/// them.
#[derive(Default)]
pub(super) struct ArrayAccessCache {
    /// Computed coordinates: axis, coordinate in the view, and result.
    pub(super) along: Vec<(usize, String, ArrayCoord)>,
    /// Loaded vec4: the number of the first element, and the variable's name.
    pub(super) fours: Vec<(String, String)>,
}

/// The position of an access along one axis of an array, as text.
#[derive(Clone)]
pub(super) struct ArrayCoord {
    /// Expression of the position along the axis, an `i32`.
    pub(super) position: String,
    /// Expression of what the position adds to the element's row-major number.
    pub(super) offset: String,
    /// Test that the position is inside of the array; `None` if it always is.
    pub(super) inside: Option<String>,
}

/// Translates a position of a broadcast tile to a position of the tile, which has axes of extent 1.
pub(super) fn position_before_broadcast(shape: &[usize], at: &TilePosition) -> TilePosition {
    let coord = |(n, c): (&usize, &TileCoord)| if *n == 1 { TileCoord::from_text("0u") } else { c.clone() };
    TilePosition { coords: shape.iter().zip(&at.coords).map(coord).collect(), flat: None }
}
fn expect_dim_number(d: &Dim) -> i64 {
    d.as_number().expect("sizes are numbers")
}
/// Returns the coordinate of a view's operand that `index` computes from the coordinates of the view.
pub(super) fn operand_coord(index: &AffineIndex, coords: &[TileCoord]) -> TileCoord {
    let (stride, offset) = (expect_dim_number(&index.stride), expect_dim_number(&index.offset));
    match index.axis {
        None => TileCoord::from_text(format!("{offset}u")),
        Some(a) if stride == 1 && offset == 0 => coords[a].clone(),
        Some(a) => TileCoord::from_text(format!("u32({offset} + {stride} * i32({}))", coords[a].text)),
    }
}
/// Returns the expression `Σ coordinate · stride`.
pub(super) fn offset_expression(coords: &[TileCoord], strides: &[usize]) -> String {
    let terms: Vec<String> = coords
        .iter()
        .zip(strides)
        .filter(|(c, _)| c.text != "0u")
        .map(|(c, s)| if *s == 1 { c.text.clone() } else { format!("{} * {s}u", c.text) })
        .collect();
    if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
}
/// Returns the expression of the coordinate along an axis of the element with this row-major number, an expression.
pub(super) fn unravel_coordinate(shape: &[usize], axis: usize, element_number: &str) -> String {
    let step: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    if shape[axis] == 1 {
        return "0u".into();
    }
    let scaled = if step == 1 { element_number.to_string() } else { format!("({element_number} / {}u)", step.max(1)) };
    if outer == 1 { scaled } else { format!("({scaled} % {}u)", shape[axis].max(1)) }
}
