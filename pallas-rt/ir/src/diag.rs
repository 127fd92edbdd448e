//! Diagnostics: one message type for the macro, the tracer and the run time.
use std::fmt;

/// Part of an operation that a message points at; the caller knows its source position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The operation itself.
    Op,
    /// The operand of this index.
    Operand(usize),
}

/// A message about a user's mistake, in the user's terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diag {
    /// A short stable name of the violated rule.
    pub code: &'static str,
    /// Part of the operation to blame.
    pub at: At,
    /// The mistake: lower case, no final period.
    pub message: String,
    /// Hint: what is allowed, or what to write instead; may be empty.
    pub help: String,
}

impl Diag {
    /// Creates a message with the stable name `code` of the violated rule, the part of the operation to blame, and a
    /// hint `help`, which may be empty.
    pub fn new(code: &'static str, at: At, message: String, help: impl Into<String>) -> Self {
        Diag { code, at, message, help: help.into() }
    }
}

impl fmt::Display for Diag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.help) }
    }
}

impl std::error::Error for Diag {}

/// Text of a shape: `[BQ, D]`.
pub fn shape(dims: &[crate::Dim]) -> String {
    format!("[{}]", crate::structural::join_with_commas(dims))
}

/// Text of a number of axes: `1 axis`, `2 axes`.
pub fn axes(n: usize) -> String {
    if n == 1 { "1 axis".into() } else { format!("{n} axes") }
}

/// Text of a number of dimensions: `1 dimension`, `2 dimensions`.
pub fn dimensions(n: usize) -> String {
    if n == 1 { "1 dimension".into() } else { format!("{n} dimensions") }
}

/// Help for two sizes that differ: names may be declared equal, numbers may not.
pub fn size_mismatch_help(a: &crate::Dim, b: &crate::Dim) -> String {
    match (a - b).as_number() {
        Some(_) => format!("{a} and {b} have to be the same"),
        None => format!("if {a} and {b} are always equal, say `assume({a} == {b})`"),
    }
}

/// Message about branches of a conditional whose values have different types.
pub fn branch_type_mismatch(a: impl fmt::Display, b: impl fmt::Display) -> Diag {
    let message = format!("the sides of this `if` give {a} and {b}");
    Diag::new("if-sides", At::Op, message, "both sides give the same shapes and element types")
}

/// Message about a loop-carried variable that changes its type.
pub fn carried_type_mismatch(before: impl fmt::Display, after: impl fmt::Display) -> Diag {
    let message = format!("a variable carried by this loop starts as {before} and ends as {after}");
    Diag::new("carried", At::Op, message, "a carried variable keeps its shape and element type")
}

/// Message about a store of a tile into a block of another shape.
pub fn store_mismatch(tile: impl fmt::Display, target: impl fmt::Display, name: &str) -> Diag {
    let help = "a store neither broadcasts nor reshapes: `.broadcast(..)`, `.reshape(..)`, or `fill(x)` for a scalar";
    Diag::new("store", At::Operand(0), format!("a store of {tile} into {target} of `{name}`"), help)
}

/// Message about a grid axis that does not exist.
pub fn grid_axis_out_of_range(axis: usize, grid_rank: usize) -> Diag {
    let message = format!("there is no grid axis {axis}: the grid has {}", axes(grid_rank));
    Diag::new("grid-axis", At::Op, message, "axes count from 0")
}

/// Message about an axis of a block that does not exist.
pub fn block_axis_out_of_range(axis: usize, block_rank: usize) -> Diag {
    let message = format!("there is no axis {axis}: the block has {}", axes(block_rank));
    Diag::new("axis", At::Op, message, "axes count from 0; squeezed dimensions have none")
}

/// Message about a wrong number of indices of a prefetch operand.
pub fn wrong_prefetch_index_count(name: &str, rank: usize, indices: usize) -> Diag {
    let message = format!("`{name}` has {}, found {indices} indices", dimensions(rank));
    Diag::new("rank", At::Op, message, "one index per dimension")
}

/// Message about a run-time scalar as the index of a list of host values.
pub fn run_time_host_list_index() -> Diag {
    let help = "`#[unroll]` the loop, so that the host counts; or take the numbers as an array, \
                `#[prefetch([N])] table: Prefetch<i32>`, and read `table.at(i)`";
    Diag::new("misuse", At::Op, "a run-time scalar is no index of a list of the host".into(), help)
}

/// Message about more indices than a view has axes.
pub fn too_many_view_indices(indices: usize, of: usize) -> Diag {
    let message = format!("{indices} indices into a view of {}", axes(of));
    Diag::new("misuse", At::Op, message, "squeezed dimensions and dropped axes take no index")
}

/// Message about elements outside of a view's axis.
pub fn view_out_of_bounds(start: impl fmt::Display, end: impl fmt::Display, size: impl fmt::Display) -> Diag {
    let message = format!("elements {start}..{end} of an axis with {size}");
    Diag::new("misuse", At::Op, message, "a view stays inside of its block")
}

/// Message about a run-time position in a computed tile.
pub fn run_time_tile_position(axis: usize) -> Diag {
    let message = format!("a run-time position along axis {axis} of a computed tile");
    let help = "positions of a tile are known while tracing: index the block that it is loaded from, or store it to a \
                `Scratch` and index that";
    Diag::new("misuse", At::Op, message, help)
}

/// Message about a range that ends before it begins.
pub fn reversed_view_range(start: usize, end: usize) -> Diag {
    let message = format!("{start}..{end} ends before it begins");
    Diag::new("misuse", At::Op, message, "a range is `first..end`, without `end`")
}

/// Message about a mask of another shape than the block it masks.
pub fn mask_mismatch(mask: impl fmt::Display, target: impl fmt::Display) -> Diag {
    let message = format!("a mask of {mask} for {target}");
    Diag::new("mask", At::Operand(0), message, "a mask has the shape of what it masks: `.broadcast(..)` it first")
}

/// Message about a new axis beyond the end of a shape.
pub fn new_axis_out_of_range(axis: usize, rank: usize) -> Diag {
    let message = format!("a new axis {axis} of a tile with {}", axes(rank));
    Diag::new("misuse", At::Op, message, "axes count from 0; the last place is behind all axes")
}

/// Message about an axis that cannot be dropped, because its extent is not 1.
pub fn axis_not_droppable(axis: usize, shape: impl fmt::Display) -> Diag {
    let message = format!("axis {axis} of a tile of shape {shape} can't be dropped");
    Diag::new("misuse", At::Op, message, "only an axis of extent 1 can")
}
