//! What a program does, step by step. A value is a tile (or a scalar) that steps name by its number in the kernel.
use super::super::fold::Fold;
use super::super::jit::Codes;
use super::super::strips::Strip;
use super::rolled::Rolled;
use pallas_ir::structural::{Nest, Order, Windows};
use pallas_ir::{DType, DimId, Literal, Loc, OperandId, ScalarOp, Value, View};

/// Steps and the values they hand to their owner.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub steps: Vec<Step>,
    pub yields: Vec<Value>,
}

/// Elements of an operand.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub operand: OperandId,
    pub view: View,
    /// One i32 scalar per dynamic axis.
    pub starts: Vec<Value>,
}

/// An elementwise computation over one shape, and folds of its rows, run strip by strip through small buffers.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// That of its tiles; unit axes at their end may be left away.
    pub shape: Vec<usize>,
    pub inputs: Vec<Input>,
    pub links: Vec<Link>,
    pub sinks: Vec<Sink>,
    /// Strip buffers that links need at once.
    pub buffers: usize,
    /// Bytes of the widest element.
    pub widest: usize,
    /// Machine code, where it has been made.
    pub codes: Codes,
}

impl Chain {
    /// Returns true if its rows have one element each.
    pub(super) fn is_of_columns(&self) -> bool {
        self.sinks.is_empty() && self.shape.len() > 1 && self.shape.last() == Some(&1)
    }
    /// Leaves unit axes away that are the last ones: rows of one element each would be computed one by one.
    pub(super) fn without_last_units(&mut self) {
        while self.is_of_columns() {
            self.shape.pop();
        }
    }
    /// Returns true if it is over tiles of this shape.
    pub(super) fn is_of(&self, shape: &[usize]) -> bool {
        shape.strip_prefix(&self.shape[..]).is_some_and(|rest| rest.iter().all(|n| *n == 1))
    }
    /// The inputs that are no constants, with their numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = (usize, Value)> + Clone {
        self.inputs.iter().enumerate().filter_map(|(i, input)| match input {
            Input::Value(v) => Some((i, *v)),
            Input::Constant(_) => None,
        })
    }
    pub(crate) fn reads(&self) -> impl Iterator<Item = Value> {
        self.values().map(|(_, v)| v)
    }
    /// The links whose results leave the chain, with their numbers.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (usize, &Link)> + Clone {
        self.links.iter().enumerate().filter(|(_, link)| link.output.is_some())
    }
    /// The number of places of its machine code: of the length of rows, inputs, results and folds.
    pub(crate) fn places(&self) -> usize {
        1 + self.values().count() + self.outputs().count() + self.sinks.len()
    }
    pub(super) fn defines(&self) -> impl Iterator<Item = Value> {
        self.links.iter().filter_map(|l| l.output).chain(self.sinks.iter().map(|s| s.to))
    }
}

/// Chains over the same rows, and their machine code where it has been made.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    pub chains: Vec<Chain>,
    pub codes: Codes,
}

/// An operand of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Input {
    /// A tile or scalar, stretched to the chain's shape.
    Value(Value),
    /// A number everywhere.
    Constant(Literal),
}

/// The source of a link's operand.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Source {
    /// An input of the chain.
    Input(usize),
    /// An earlier link.
    Link(usize),
}

/// The operation of a link, element by element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Operation {
    Scalar(ScalarOp),
    Cast,
    Bitcast,
}

/// One operation of a chain.
#[derive(Debug)]
pub(crate) struct Link {
    pub op: Operation,
    pub strip: Strip,
    pub args: Vec<(Source, DType)>,
    pub dtype: DType,
    /// The strip buffer it writes.
    pub buffer: usize,
    /// The value whose memory also gets the result, if steps outside of the chain need it.
    pub output: Option<Value>,
    /// True if the chain reads the memory that the result is written to: results are written after all links have
    /// processed a strip.
    pub aside: bool,
    /// True if only chains of the same sweep read that result, so that all rows may use the same memory.
    pub passing: bool,
}

/// The direction in which a sink folds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SinkAlong {
    /// Each row: its result is there with the row's last element.
    Rows,
    /// Each column: its result is there with the last row.
    Columns,
}

/// A fold of rows or columns of an operand or of a link's results, while they are in the first level cache.
#[derive(Debug)]
pub(crate) struct Sink {
    pub along: SinkAlong,
    pub op: ScalarOp,
    pub fold: Fold,
    pub start: Literal,
    pub of: Source,
    pub dtype: DType,
    /// The folded value: one element a row, or a column.
    pub to: Value,
}

/// A part of a result that comes from one operand: `size` elements from `start` on.
#[derive(Debug)]
pub(crate) struct Part {
    pub from: Value,
    pub start: Vec<usize>,
    pub size: Vec<usize>,
    pub axes: Vec<Affine>,
}

/// An operand axis as a function of the result's: `offset + stride * result[axis]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    pub axis: Option<usize>,
    pub stride: isize,
    pub offset: isize,
}

/// A contraction.
#[derive(Debug)]
pub(crate) struct Dot {
    pub a: Value,
    pub b: Value,
    pub to: Value,
    /// Mask of the bits of the bytes of `b` that are used.
    pub bits: u8,
    /// Multiplied with the high halves of the bytes of `b`, where `a` is with the low ones, and added to the product.
    pub high: Option<Value>,
    /// Added to the product; its memory becomes the result's where nothing else needs it.
    pub init: Option<Value>,
    /// True if the result is in the memory of `init`.
    pub in_place: bool,
    /// The scratch operand that `init` is, to which nothing is added where it was left empty.
    pub begins: Option<OperandId>,
    /// True if `b` may be windows that were not copied.
    pub is_paged: bool,
    /// Axes of a, and of b.
    pub batch: [Vec<usize>; 2],
    pub contract: [Vec<usize>; 2],
    pub free: [Vec<usize>; 2],
}

/// Windows of a tile at positions given by data.
#[derive(Debug)]
pub(crate) struct Indexed {
    pub from: Value,
    pub index: Value,
    pub to: Value,
    pub windows: Windows,
    /// The elements of a gather's windows that would leave the operand; `None`: these are moved inside.
    pub fill: Option<Literal>,
    /// Those who alone read a gather's windows and need no copy of them.
    pub stays_for: Option<Readers>,
}

/// Steps that read windows of an array where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readers {
    /// Products of a few rows.
    Products,
    /// Elementwise operations.
    Chains,
}

/// An affine nest.
#[derive(Debug)]
pub(crate) struct Nested {
    /// Nests without dilations and empty loops that together make the result.
    pub nests: Vec<Nest>,
    /// Operands: two that are multiplied, or one.
    pub args: Vec<Value>,
    pub to: Value,
    /// Loops of the monoid, and its neutral element.
    pub fold: Fold,
    pub start: Literal,
}

/// A value that is the same for every program of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fixed {
    Constant(Literal),
    Programs(usize),
    Steps(usize),
    Extent(DimId),
}

/// One step.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "steps are made once per kernel")]
pub(crate) enum Step {
    /// The program's index along a grid axis.
    Program { axis: usize, to: Value },
    /// One operation on scalars.
    Scalar { strip: Strip, args: Vec<Value>, to: Value },
    /// Elementwise operations.
    Chain(Chain),
    /// Chains over the same rows, run for a few rows at a time.
    Sweep(Sweep),
    /// The same memory under other strides.
    Restride { from: Value, axes: Vec<Affine>, to: Value },
    /// The same elements under another shape: the same memory where strides allow it.
    Reshape { from: Value, to: Value },
    /// Numbers along an axis, from a table.
    Count { table: usize, axis: usize, to: Value },
    /// Parts of several operands side by side; earlier parts win.
    Join { parts: Vec<Part>, to: Value },
    /// Folds axes.
    Fold { fold: Fold, start: Literal, from: Value, axes: Vec<usize>, to: Value },
    /// Running fold along an axis.
    Scan { fold: Fold, from: Value, axis: usize, reverse: bool, to: Value },
    /// Position of the extreme along an axis.
    Extreme { max: bool, from: Value, axis: usize, to: Value },
    /// Windows at positions given by data.
    Gather(Indexed),
    /// A tile with windows combined with updates: in the tile's memory if the result is aimed there.
    Scatter { windows: Indexed, updates: Value, fold: Option<Fold> },
    /// Rows of 16-bit floats added up at positions given by data, from zeros on: in f32, rounded once.
    SumRows(Indexed),
    /// Elements along an axis in order, or their positions: the first ones, as many as the result has.
    Sort { from: Value, axis: usize, order: Order, positions: bool, to: Value },
    /// A product.
    Dot(Dot),
    /// A convolution or a windowed reduction.
    Nest(Nested),
    /// Reads an operand: in place where nothing writes it meanwhile and it lies inside of the array. Along the axes of
    /// `open` (a bit each) it may go on behind the array's end: those who read it in place read nothing there.
    Load { from: Place, mask: Option<(Value, Value)>, fill: Literal, in_place: bool, open: u8, to: Value },
    /// Writes an operand.
    Store { value: Value, to: Place, mask: Option<Value> },
    /// Lets the next definition of `value` happen in the operand's memory, where the later store would put it: where that lies
    /// inside of the array, but for its end along the axes of `open`, a bit each, where the definition writes nothing.
    Aim { value: Value, at: Place, open: u8 },
    /// Leaves a scratch operand empty, which the next product sets: in the memory where it will be stored, if that lies inside
    /// of the array in whole rows.
    Begin { sums: OperandId, lend: Option<Place> },
    /// Returns which positions are inside of the array.
    Valid { of: Place, axis: usize, to: Value },
    /// An element of a prefetched array.
    Prefetch { of: OperandId, index: Vec<Value>, to: Value },
    /// A choice.
    If { condition: Value, sides: [Block; 2], to: Vec<Value> },
    /// A counted loop; results share the memory of `carried`.
    For {
        bounds: [Value; 3],
        reverse: bool,
        index: Value,
        carried: Vec<Value>,
        init: Vec<Value>,
        body: Block,
        to: Vec<Value>,
        /// Set if its turns are chains and products.
        rolled: Option<Box<Rolled>>,
        loc: Loc,
    },
    /// A loop with a condition; results share the memory of `carried`.
    While { init: Vec<Value>, tested: Vec<Value>, test: Block, carried: Vec<Value>, body: Block, to: Vec<Value> },
    /// Prints a value.
    Print { label: String, of: Value, loc: Loc },
    /// Fails unless all elements are true.
    Assert { message: String, of: Value, loc: Loc },
}

impl Step {
    /// Values read by the step itself, not by blocks inside of it.
    pub(crate) fn reads(&self) -> Vec<Value> {
        #[cfg(test)]
        super::tests::visited();
        match self {
            Step::Program { .. } | Step::Count { .. } => vec![],
            Step::Scalar { args, .. } => args.clone(),
            Step::Chain(chain) => chain.reads().collect(),
            Step::Sweep(sweep) => sweep.chains.iter().flat_map(Chain::reads).collect(),
            Step::Restride { from, .. }
            | Step::Reshape { from, .. }
            | Step::Fold { from, .. }
            | Step::Scan { from, .. }
            | Step::Extreme { from, .. }
            | Step::Sort { from, .. } => vec![*from],
            Step::Join { parts, .. } => parts.iter().map(|p| p.from).collect(),
            Step::Gather(step) | Step::SumRows(step) => vec![step.from, step.index],
            Step::Scatter { windows, updates, .. } => vec![windows.from, windows.index, *updates],
            Step::Nest(nested) => nested.args.clone(),
            Step::Dot(dot) => [dot.a, dot.b].into_iter().chain(dot.high).chain(dot.init).collect(),
            Step::Load { from, mask, .. } => {
                from.starts.iter().copied().chain(mask.iter().flat_map(|m| [m.0, m.1])).collect()
            }
            Step::Store { value, to, mask } => [*value].into_iter().chain(to.starts.clone()).chain(*mask).collect(),
            Step::Aim { at, .. } => at.starts.clone(),
            Step::Begin { lend, .. } => lend.iter().flat_map(|at| at.starts.clone()).collect(),
            Step::Valid { of, .. } => of.starts.clone(),
            Step::Prefetch { index, .. } => index.clone(),
            Step::If { condition, .. } => vec![*condition],
            Step::For { bounds, init, .. } => bounds.iter().chain(init).copied().collect(),
            Step::While { init, .. } => init.clone(),
            Step::Print { of, .. } | Step::Assert { of, .. } => vec![*of],
        }
    }
    /// Values defined by the step itself.
    pub(crate) fn defines(&self) -> Vec<Value> {
        #[cfg(test)]
        super::tests::visited();
        match self {
            Step::Program { to, .. }
            | Step::Scalar { to, .. }
            | Step::Restride { to, .. }
            | Step::Reshape { to, .. }
            | Step::Count { to, .. }
            | Step::Join { to, .. }
            | Step::Fold { to, .. }
            | Step::Scan { to, .. }
            | Step::Extreme { to, .. }
            | Step::Gather(Indexed { to, .. })
            | Step::SumRows(Indexed { to, .. })
            | Step::Scatter { windows: Indexed { to, .. }, .. }
            | Step::Sort { to, .. }
            | Step::Dot(Dot { to, .. })
            | Step::Nest(Nested { to, .. })
            | Step::Load { to, .. }
            | Step::Valid { to, .. }
            | Step::Prefetch { to, .. } => vec![*to],
            Step::Chain(chain) => chain.defines().collect(),
            Step::Sweep(sweep) => sweep.chains.iter().flat_map(Chain::defines).collect(),
            Step::If { to, .. } => to.clone(),
            Step::For { index, carried, to, .. } => [*index].iter().chain(carried).chain(to).copied().collect(),
            Step::While { tested, carried, to, .. } => tested.iter().chain(carried).chain(to).copied().collect(),
            Step::Store { .. } | Step::Aim { .. } | Step::Begin { .. } | Step::Print { .. } | Step::Assert { .. } => {
                vec![]
            }
        }
    }
    /// Blocks inside of the step.
    pub(crate) fn blocks(&self) -> Vec<&Block> {
        match self {
            Step::If { sides, .. } => sides.iter().collect(),
            Step::For { body, .. } => vec![body],
            Step::While { test, body, .. } => vec![test, body],
            _ => vec![],
        }
    }
    /// Blocks inside of the step.
    pub(crate) fn blocks_mut(&mut self) -> Vec<&mut Block> {
        match self {
            Step::If { sides, .. } => sides.iter_mut().collect(),
            Step::For { body, .. } => vec![body],
            Step::While { test, body, .. } => vec![test, body],
            _ => vec![],
        }
    }
}
