//! The steps of a CPU program. Each step computes tiles or scalars, which are named by their [`Value`] in the kernel.
use super::super::fold::FoldFunctions;
use super::super::jit::CodeCache;
use super::super::strips::StripFn;
use super::loop_compilation::JitLoop;
use pallas_ir::structural::{IndexedWindows, LoopNest, SortOrder};
use pallas_ir::{DType, DimId, Literal, Loc, OperandId, ScalarOp, Value, View};

/// A list of steps, and the values that it yields to the step that contains it (an `If`, a loop).
#[derive(Debug, Default)]
pub(crate) struct StepBlock {
    pub steps: Vec<Step>,
    pub yields: Vec<Value>,
}

/// The elements of an operand that a load, a store or a redirected result accesses.
#[derive(Clone, Debug)]
pub(crate) struct OperandView {
    pub operand: OperandId,
    pub view: View,
    /// The first index along each axis of the view whose start is known at run time: one i32 scalar per such axis.
    pub starts: Vec<Value>,
}

/// Elementwise operations over one shape, and folds of rows or columns of their results. A chain runs strip by strip:
/// all its operations over up to 1024 elements, then over the next ones, with small buffers between them.
#[derive(Debug, Default)]
pub(crate) struct ElementwiseChain {
    /// Shape over which the chain runs: that of its tiles, perhaps without trailing axes of extent 1.
    pub shape: Vec<usize>,
    pub inputs: Vec<ChainInput>,
    pub links: Vec<ChainLink>,
    pub sinks: Vec<ChainFold>,
    /// Number of strip buffers that the links need at the same time.
    pub buffers: usize,
    /// Bytes of the widest element type in the chain.
    pub widest: usize,
    /// Machine code of the chain, where it has been compiled.
    pub codes: CodeCache,
}

impl ElementwiseChain {
    /// Returns true if each row of the chain's shape has one element, the shape has several axes, and nothing is
    /// folded.
    pub(super) fn is_single_column(&self) -> bool {
        self.sinks.is_empty() && self.shape.len() > 1 && self.shape.last() == Some(&1)
    }
    /// Removes trailing axes of extent 1 from the shape: rows of one element each would be computed one by one.
    pub(super) fn drop_trailing_unit_axes(&mut self) {
        while self.is_single_column() {
            self.shape.pop();
        }
    }
    /// Returns true if the chain runs over all elements of tiles of this shape.
    pub(super) fn covers_shape(&self, shape: &[usize]) -> bool {
        shape.strip_prefix(&self.shape[..]).is_some_and(|rest| rest.iter().all(|n| *n == 1))
    }
    /// Returns the chain's inputs that are tiles or scalars, not constants, with their positions in `inputs`.
    pub(crate) fn input_values(&self) -> impl Iterator<Item = (usize, Value)> + Clone {
        self.inputs.iter().enumerate().filter_map(|(i, input)| match input {
            ChainInput::Value(v) => Some((i, *v)),
            ChainInput::Constant(_) => None,
        })
    }
    /// Returns the tiles and scalars that the chain reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Value> {
        self.input_values().map(|(_, v)| v)
    }
    /// Returns the links whose results steps outside of the chain need, with their positions in `links`.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (usize, &ChainLink)> + Clone {
        self.links.iter().enumerate().filter(|(_, link)| link.output.is_some())
    }
    /// Number of addresses that the chain's machine code is called with: one stands for the length of a row, the others
    /// for inputs, results and folds.
    pub(crate) fn address_count(&self) -> usize {
        1 + self.input_values().count() + self.outputs().count() + self.sinks.len()
    }
    /// Returns the values that the chain defines: results of links and of folds.
    pub(super) fn defines(&self) -> impl Iterator<Item = Value> {
        self.links.iter().filter_map(|l| l.output).chain(self.sinks.iter().map(|s| s.to))
    }
}

/// Chains over the same rows that run together a few rows at a time, and their machine code where it has been
/// compiled.
#[derive(Debug, Default)]
pub(crate) struct FusedChains {
    pub chains: Vec<ElementwiseChain>,
    pub codes: CodeCache,
}

/// An input of a chain of elementwise operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ChainInput {
    /// A tile or scalar, broadcast to the chain's shape.
    Value(Value),
    /// One number that every element of the input has.
    Constant(Literal),
}

/// An operand of a [`ChainLink`]: an input of its chain or the result of an earlier link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum LinkOperand {
    /// The chain's input at this position.
    Input(usize),
    /// The result of the link at this position, which is earlier in the chain.
    Link(usize),
}

/// The operation that one link of an elementwise chain applies to each element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ElementwiseOp {
    Scalar(ScalarOp),
    Cast,
    Bitcast,
}

/// One elementwise operation of a chain.
#[derive(Debug)]
pub(crate) struct ChainLink {
    pub op: ElementwiseOp,
    pub strip: StripFn,
    pub args: Vec<(LinkOperand, DType)>,
    pub dtype: DType,
    /// Index of the strip buffer that the link writes its result to.
    pub buffer: usize,
    /// The value whose memory the result is also written to, if steps outside of the chain need it.
    pub output: Option<Value>,
    /// True if the chain reads the memory that the result goes to: then the result is written only after all links
    /// have processed a strip.
    pub aside: bool,
    /// True if only chains of the same [`FusedChains`] read the result, so that all rows may be written to the memory
    /// of one.
    pub passing: bool,
}

/// The direction of a [`ChainFold`]: over the elements of each row or of each column of the chain's last two axes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FoldDirection {
    /// Each row is folded to one element, which is complete after the row's last element.
    Rows,
    /// Each column is folded to one element, which is complete after the last row.
    Columns,
}

/// A fold of the rows or columns of a chain's input or of a link's result, done while they are in the first-level
/// cache.
#[derive(Debug)]
pub(crate) struct ChainFold {
    pub along: FoldDirection,
    pub op: ScalarOp,
    pub fold: FoldFunctions,
    pub start: Literal,
    pub of: LinkOperand,
    pub dtype: DType,
    /// The value that holds the folds: one element for each row, or for each column.
    pub to: Value,
}

/// A box of a [`Step::CopyBoxes`]'s result that is copied from one operand: `size` elements along each axis from
/// `start` on.
#[derive(Debug)]
pub(crate) struct CopiedBox {
    pub from: Value,
    pub start: Vec<usize>,
    pub size: Vec<usize>,
    pub axes: Vec<AffineIndex>,
}

/// An operand's index along one axis as a function of the result's indices: `offset + stride * result[axis]`, or
/// `offset` alone if `axis` is `None`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineIndex {
    pub axis: Option<usize>,
    pub stride: isize,
    pub offset: isize,
}

/// A contraction `to = a · b`, or `a · b + init`.
#[derive(Debug)]
pub(crate) struct Dot {
    pub a: Value,
    pub b: Value,
    pub to: Value,
    /// Mask of the bits of each byte of `b` that are multiplied, if `b` has bytes that hold two 4-bit numbers; all
    /// bits otherwise.
    pub bits: u8,
    /// If given, `a` is multiplied with the low halves of the bytes of `b`, this value with the high halves, and both
    /// are added.
    pub high: Option<Value>,
    /// A value that is added to the product; its memory becomes the result's where nothing else needs it.
    pub init: Option<Value>,
    /// True if the result is in the memory of `init`.
    pub in_place: bool,
    /// The scratch operand that `init` is loaded from, if a [`Step::BeginAccumulation`] may have left it empty: nothing
    /// is added then.
    pub begins: Option<OperandId>,
    /// True if `b` may be the result of a gather whose windows were left in their array instead of being copied.
    pub is_paged: bool,
    /// Batch axes of `a` and of `b`; `contract` and `free` are the contracted and the other axes of each.
    pub batch: [Vec<usize>; 2],
    pub contract: [Vec<usize>; 2],
    pub free: [Vec<usize>; 2],
}

/// A gather from, or a scatter to, windows of a tile at positions given by data.
#[derive(Debug)]
pub(crate) struct GatherScatter {
    pub from: Value,
    pub index: Value,
    pub to: Value,
    pub windows: IndexedWindows,
    /// The value of a gather's elements whose windows leave the operand. If `None`, such windows are moved inside of
    /// it.
    pub fill: Option<Literal>,
    /// The only steps that read a gather's result, if these can read its windows in the array, so that they are not
    /// copied.
    pub stays_for: Option<WindowReaders>,
}

/// The kind of steps that read windows in the memory of their array, without a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WindowReaders {
    /// Products whose left side has few rows.
    Products,
    /// Elementwise operations on rows of the windows.
    Chains,
}

/// A convolution or windowed reduction, as nests of loops with affine indices.
#[derive(Debug)]
pub(crate) struct LoopNests {
    /// Nests of loops that together compute the result; none has a dilation or an empty loop.
    pub nests: Vec<LoopNest>,
    /// The operands: two whose elements are multiplied, or one.
    pub args: Vec<Value>,
    pub to: Value,
    /// Inner loops of the monoid that folds the terms; `start` is its neutral element.
    pub fold: FoldFunctions,
    pub start: Literal,
}

/// A value that is the same for every program of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaunchConstant {
    Constant(Literal),
    NumPrograms(usize),
    NumSteps(usize),
    Extent(DimId),
}

/// One step of a CPU program: a computation of tiles or scalars, an access to an operand, a branch or loop over blocks
/// of steps, or a print or assertion.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "steps are made once per kernel")]
pub(crate) enum Step {
    /// The program's index along a grid axis.
    ProgramId { axis: usize, to: Value },
    /// One operation on scalars, computed as a strip of one element.
    Scalar { strip: StripFn, args: Vec<Value>, to: Value },
    /// Elementwise operations over one shape, and folds of their rows or columns.
    Chain(ElementwiseChain),
    /// Chains over the same rows, run for a few rows at a time.
    FusedChains(FusedChains),
    /// A view of a tile's memory with other strides.
    Restride { from: Value, axes: Vec<AffineIndex>, to: Value },
    /// A tile with the same elements in another shape: in the same memory where its strides allow it, else a copy.
    Reshape { from: Value, to: Value },
    /// A tile that counts 0, 1, .. along an axis, read from an index table of the plan.
    Iota { table: usize, axis: usize, to: Value },
    /// A tile made of boxes of several operands; where boxes overlap, the earlier one counts.
    CopyBoxes { parts: Vec<CopiedBox>, to: Value },
    /// A reduction over `axes`, from `start` on.
    Fold { fold: FoldFunctions, start: Literal, from: Value, axes: Vec<usize>, to: Value },
    /// A running fold (scan) along an axis.
    Scan { fold: FoldFunctions, from: Value, axis: usize, reverse: bool, to: Value },
    /// The position of the greatest (`max`) or smallest element along an axis.
    ArgMinMax { max: bool, from: Value, axis: usize, to: Value },
    /// A gather of windows at positions given by data.
    Gather(GatherScatter),
    /// A scatter: a tile with windows replaced by updates, or folded with them; in place if a [`Step::RedirectResult`]
    /// puts the result into the tile's memory.
    Scatter { windows: GatherScatter, updates: Value, fold: Option<FoldFunctions> },
    /// A scatter-add of rows of 16-bit floats to zeros: summed in f32 and rounded once.
    SumRows(GatherScatter),
    /// The elements along an axis in sorted order, or their positions if `positions`; only the first ones if the
    /// result is shorter than the operand.
    Sort { from: Value, axis: usize, order: SortOrder, positions: bool, to: Value },
    /// A contraction.
    Dot(Dot),
    /// A convolution or a windowed reduction.
    LoopNests(LoopNests),
    /// Reads a view of an operand. If `in_place`, the tile refers to the operand's memory where the view lies inside
    /// of the array. Along the axes in the bit mask `open` it may extend past the array's end even then: steps that
    /// read it read nothing there.
    Load { from: OperandView, mask: Option<(Value, Value)>, fill: Literal, in_place: bool, open: u8, to: Value },
    /// Writes a tile to a view of an operand, where the mask is true if there is one.
    Store { value: Value, to: OperandView, mask: Option<Value> },
    /// Makes the next step that defines `value` compute it in the operand's memory, where a later store would copy it.
    /// This happens only if that view lies inside of the array, but for its end along the axes in the bit mask `open`,
    /// past which the step writes nothing.
    RedirectResult { value: Value, at: OperandView, open: u8 },
    /// Leaves a scratch operand empty, so that the next product sets it instead of adding to zeros. With `lend`, the
    /// scratch is moved to the memory where it will be stored, if that lies inside of the array in whole rows.
    BeginAccumulation { sums: OperandId, lend: Option<OperandView> },
    /// Computes a bool for each index along a view's axis: true if it is inside of the array.
    Valid { of: OperandView, axis: usize, to: Value },
    /// Reads an element of a prefetched array.
    Prefetch { of: OperandId, index: Vec<Value>, to: Value },
    /// A branch: `sides[0]` runs if the condition is true, else `sides[1]`.
    If { condition: Value, sides: [StepBlock; 2], to: Vec<Value> },
    /// A counted loop over `bounds` (start, end, step); its results share the memory of the carried values.
    For {
        bounds: [Value; 3],
        reverse: bool,
        index: Value,
        carried: Vec<Value>,
        init: Vec<Value>,
        body: StepBlock,
        to: Vec<Value>,
        /// Machine code for the whole loop, if each iteration consists of chains and products.
        rolled: Option<Box<JitLoop>>,
        loc: Loc,
    },
    /// A loop that runs `body` while `test` yields true; its results share the memory of the carried values.
    While {
        init: Vec<Value>,
        tested: Vec<Value>,
        test: StepBlock,
        carried: Vec<Value>,
        body: StepBlock,
        to: Vec<Value>,
    },
    /// Prints a value for debugging.
    Print { label: String, of: Value, loc: Loc },
    /// Ends the launch with a fault unless all elements are true.
    Assert { message: String, of: Value, loc: Loc },
}

impl Step {
    /// Returns the values that the step itself reads, without those read by blocks inside of it.
    pub(crate) fn reads(&self) -> Vec<Value> {
        #[cfg(test)]
        super::tests::visited();
        match self {
            Step::ProgramId { .. } | Step::Iota { .. } => vec![],
            Step::Scalar { args, .. } => args.clone(),
            Step::Chain(chain) => chain.reads().collect(),
            Step::FusedChains(sweep) => sweep.chains.iter().flat_map(ElementwiseChain::reads).collect(),
            Step::Restride { from, .. }
            | Step::Reshape { from, .. }
            | Step::Fold { from, .. }
            | Step::Scan { from, .. }
            | Step::ArgMinMax { from, .. }
            | Step::Sort { from, .. } => vec![*from],
            Step::CopyBoxes { parts, .. } => parts.iter().map(|p| p.from).collect(),
            Step::Gather(step) | Step::SumRows(step) => vec![step.from, step.index],
            Step::Scatter { windows, updates, .. } => vec![windows.from, windows.index, *updates],
            Step::LoopNests(nested) => nested.args.clone(),
            Step::Dot(dot) => [dot.a, dot.b].into_iter().chain(dot.high).chain(dot.init).collect(),
            Step::Load { from, mask, .. } => {
                from.starts.iter().copied().chain(mask.iter().flat_map(|m| [m.0, m.1])).collect()
            }
            Step::Store { value, to, mask } => [*value].into_iter().chain(to.starts.clone()).chain(*mask).collect(),
            Step::RedirectResult { at, .. } => at.starts.clone(),
            Step::BeginAccumulation { lend, .. } => lend.iter().flat_map(|at| at.starts.clone()).collect(),
            Step::Valid { of, .. } => of.starts.clone(),
            Step::Prefetch { index, .. } => index.clone(),
            Step::If { condition, .. } => vec![*condition],
            Step::For { bounds, init, .. } => bounds.iter().chain(init).copied().collect(),
            Step::While { init, .. } => init.clone(),
            Step::Print { of, .. } | Step::Assert { of, .. } => vec![*of],
        }
    }
    /// Returns the values that the step itself defines, without those defined by blocks inside of it.
    pub(crate) fn defines(&self) -> Vec<Value> {
        #[cfg(test)]
        super::tests::visited();
        match self {
            Step::ProgramId { to, .. }
            | Step::Scalar { to, .. }
            | Step::Restride { to, .. }
            | Step::Reshape { to, .. }
            | Step::Iota { to, .. }
            | Step::CopyBoxes { to, .. }
            | Step::Fold { to, .. }
            | Step::Scan { to, .. }
            | Step::ArgMinMax { to, .. }
            | Step::Gather(GatherScatter { to, .. })
            | Step::SumRows(GatherScatter { to, .. })
            | Step::Scatter { windows: GatherScatter { to, .. }, .. }
            | Step::Sort { to, .. }
            | Step::Dot(Dot { to, .. })
            | Step::LoopNests(LoopNests { to, .. })
            | Step::Load { to, .. }
            | Step::Valid { to, .. }
            | Step::Prefetch { to, .. } => vec![*to],
            Step::Chain(chain) => chain.defines().collect(),
            Step::FusedChains(sweep) => sweep.chains.iter().flat_map(ElementwiseChain::defines).collect(),
            Step::If { to, .. } => to.clone(),
            Step::For { index, carried, to, .. } => [*index].iter().chain(carried).chain(to).copied().collect(),
            Step::While { tested, carried, to, .. } => tested.iter().chain(carried).chain(to).copied().collect(),
            Step::Store { .. }
            | Step::RedirectResult { .. }
            | Step::BeginAccumulation { .. }
            | Step::Print { .. }
            | Step::Assert { .. } => {
                vec![]
            }
        }
    }
    /// Returns the blocks inside of the step: sides of a branch, test and body of a loop.
    pub(crate) fn nested_blocks(&self) -> Vec<&StepBlock> {
        match self {
            Step::If { sides, .. } => sides.iter().collect(),
            Step::For { body, .. } => vec![body],
            Step::While { test, body, .. } => vec![test, body],
            _ => vec![],
        }
    }
    /// Returns the blocks inside of the step for changes; see [`Step::nested_blocks`].
    pub(crate) fn nested_blocks_mut(&mut self) -> Vec<&mut StepBlock> {
        match self {
            Step::If { sides, .. } => sides.iter_mut().collect(),
            Step::For { body, .. } => vec![body],
            Step::While { test, body, .. } => vec![test, body],
            _ => vec![],
        }
    }
}
