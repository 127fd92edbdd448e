//! The tile IR: what a kernel is after tracing and between passes.
//!
//! ```text
//! Kernel  = "kernel" name "{" DimDecl* Axis* Steps* Allow? Operand* Region "}"
//! DimDecl = "dim" name ("=" integer)?                       a size bound when the kernel is called; "=": static
//! Axis    = "grid" Dim ("parallel" | "arbitrary")           program ids count 0.. along each axis
//! Steps   = "steps" Dim                                     lowered form: turns of the loop of a sequential axis
//! Allow   = "allow" ("overflow" | "lost_store")+            faults of the interpreter that are meant
//! Operand = kind name ":" dtype "[" Dim,* "]" Block? Map?   kind = "in" | "out" | "prefetch" | "scratch" | "param"
//! Block   = "block" "[" ("_" | n | "element" n low high),* "]"
//! Map     = Region from program ids to one i32 per dimension: block indices, or element offsets where "element"
//! Region  = "(" Value,* ")" "{" Inst* "yield" Value,* "}"
//! Inst    = Value,* "=" Op Value,* Region*
//! Value   = "%" n name? ":" dtype "[" n,* "]"               a tile; rank 0 is a run-time scalar; name: the user's
//! ```
//!
//! Everything is a flat vector indexed by a typed `u32`; regions own the order of their instructions, and a value is
//! defined once, by an instruction or as a region's parameter.
//!
//! Two forms use the same grammar. *Traced*: operands have blocks and maps, accesses are relative to the block, the grid
//! has sequential axes. *Lowered* (what backends read, after `passes::lower`): accesses are [`Frame::Array`], relative to
//! the array's origin; every grid axis is parallel; sequential axes are `for` loops.
use crate::{Allow, DType, Dim, Literal, ScalarOp, StructuralOp};
use std::collections::BTreeMap;
use std::fmt;

/// Declares a typed index with its one spelling in text.
macro_rules! id {
    ($(#[doc = $doc:literal])+ $Id:ident $sigil:literal) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $Id(pub u32);
        impl $Id {
            /// The position in the vector this indexes.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl fmt::Display for $Id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($sigil, "{}"), self.0)
            }
        }
        impl fmt::Debug for $Id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}
id! {
    /// A value: a tile or, with rank 0, a run-time scalar.
    Value "%"
}
id! {
    /// An instruction.
    InstId "inst"
}
id! {
    /// A region: parameters, instructions, yields.
    RegionId "region"
}
id! {
    /// An operand of the kernel: an array, a scratch buffer or a scalar parameter.
    OperandId "@"
}
id! {
    /// A named dimension.
    DimId "dim"
}

/// Most axes of a tile or an array: backends keep strides in arrays of this length.
pub const MAX_RANK: usize = 8;
/// Maximum depth of nested regions: backends traverse them recursively.
pub const MAX_DEPTH: usize = 64;

/// The type of a value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Extents; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Type {
    /// A tile's type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Type { dtype, shape: shape.into() }
    }
    /// A scalar's type.
    pub fn scalar(dtype: DType) -> Self {
        Type { dtype, shape: vec![] }
    }
    /// Whether this is a run-time scalar.
    pub fn is_scalar(&self) -> bool {
        self.shape.is_empty()
    }
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
    /// Returns true if all positions in the shape fit an i32, as indices do. An empty axis does not exempt the others,
    /// since strides are products of extents.
    pub fn is_indexable(&self) -> bool {
        let elements = self.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n.max(1)));
        elements.is_some_and(|n| n <= i32::MAX as usize)
    }
    /// Size in bytes as stored on the host.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
    /// The shape as constant sizes, for the shape rules.
    pub fn dims(&self) -> Vec<Dim> {
        self.shape.iter().map(|&n| Dim::from(n as i64)).collect()
    }
}

/// A line of the user's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loc {
    /// File as rustc names it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl Loc {
    /// For instructions that no line of the user's made.
    pub const NONE: Loc = Loc { file: "", line: 0, column: 0 };
    /// The caller's line.
    #[track_caller]
    pub fn caller() -> Loc {
        let at = std::panic::Location::caller();
        Loc { file: at.file(), line: at.line(), column: at.column() }
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A dimension that the kernel's operands name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimDecl {
    /// The user's name.
    pub name: String,
    /// Known while tracing, because it sizes a block; `None`: a parameter of the launch.
    pub size: Option<i64>,
}

/// How the programs along a grid axis may run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Semantics {
    /// In any order, at once.
    Parallel,
    /// One after the other, in order: scratch and resident output blocks persist.
    Arbitrary,
}

/// A grid axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Number of programs, over the dimension names.
    pub extent: Dim,
    /// Order of the programs.
    pub semantics: Semantics,
}

/// What an operand is.
#[derive(Clone, PartialEq, Debug)]
pub enum OperandKind {
    /// Read by blocks.
    Input,
    /// Written by blocks; may be read back.
    Output {
        /// The value of every element when no program runs.
        empty: Literal,
        /// The input whose memory this output takes over.
        alias: Option<OperandId>,
    },
    /// Readable element by element, also by index maps, before the grid runs.
    Prefetch,
    /// Private to a parallel program, persistent over its sequential steps, uninitialised at the first.
    Scratch,
    /// A run-time scalar.
    Param,
}

/// How a dimension of an operand is cut into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockDim {
    /// Extent 1, dropped from the block's shape; the map gives the index.
    Squeezed,
    /// Blocks of this many elements; the map gives the block's index.
    Blocked(usize),
    /// This many elements; the map gives the first one's offset in the array padded by `low` and `high`.
    Element {
        /// Elements in the block.
        size: usize,
        /// Padding in front of the array.
        low: usize,
        /// Padding behind it.
        high: usize,
    },
}

impl BlockDim {
    /// Elements of the block along this dimension.
    pub fn size(self) -> usize {
        match self {
            BlockDim::Squeezed => 1,
            BlockDim::Blocked(size) | BlockDim::Element { size, .. } => size,
        }
    }
    /// Whether the block keeps this dimension.
    pub fn kept(self) -> bool {
        self != BlockDim::Squeezed
    }
}

/// An operand.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// The user's name for it.
    pub name: String,
    /// What it is.
    pub kind: OperandKind,
    /// Element type.
    pub dtype: DType,
    /// Extents of the array over the dimension names; of the buffer for scratch; empty for a parameter.
    pub dims: Vec<Dim>,
    /// One per dimension. Scratch, prefetches and whole arrays are one block.
    pub block: Vec<BlockDim>,
    /// From program ids to one i32 per dimension; `None`: always the first block.
    pub map: Option<RegionId>,
    /// What a load sees outside of the array; `None`: 0 on the backends, poison in the strict interpreter.
    pub fill: Option<Literal>,
    /// How many of its blocks are on their way at once, 1 to 3: those of so many sequential steps; `None`: as many as the
    /// device likes.
    pub buffered: Option<u32>,
}

impl Operand {
    /// The block's shape without squeezed dimensions.
    pub fn block_shape(&self) -> Vec<usize> {
        self.block.iter().filter(|b| b.kept()).map(|b| b.size()).collect()
    }
}

/// What a view's axes count from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Frame {
    /// The current block; axes are the block's kept dimensions. (Traced form.)
    Block,
    /// The array; axes are all of its dimensions. (Lowered form; scratch is the same in both.)
    Array,
}

/// One axis of a view: elements `offset + dynamic + stride * i` for `i < size`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ViewAxis {
    /// Constant part of the first element's position.
    pub offset: i64,
    /// Whether an i32 argument is added to it.
    pub dynamic: bool,
    /// Elements taken.
    pub size: usize,
    /// Distance between them.
    pub stride: i64,
    /// Whether the axis stays in the result; a dropped one has size 1.
    pub kept: bool,
}

impl ViewAxis {
    /// All `size` elements of an axis.
    pub fn whole(size: usize) -> Self {
        ViewAxis { offset: 0, dynamic: false, size, stride: 1, kept: true }
    }
}

/// Which elements a load or store touches.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// What positions count from.
    pub frame: Frame,
    /// One per axis of the frame.
    pub axes: Vec<ViewAxis>,
}

impl View {
    /// A whole block.
    pub fn whole(shape: &[usize]) -> Self {
        View { frame: Frame::Block, axes: shape.iter().map(|&n| ViewAxis::whole(n)).collect() }
    }
    /// The shape of what is loaded or stored.
    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().filter(|a| a.kept).map(|a| a.size).collect()
    }
    /// How many i32 arguments the view takes: one per dynamic axis, in order.
    pub fn dynamic(&self) -> usize {
        self.axes.iter().filter(|a| a.dynamic).count()
    }
}

/// An operation. Arguments and results belong to the instruction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// A scalar constant.
    Const(Literal),
    /// Elementwise; see [`ScalarOp`]. Unit axes stretch, scalars stand for any shape.
    Scalar(ScalarOp),
    /// One of the registry's operations that change shapes or positions.
    Structural(StructuralOp),
    /// i32 index of this program along a grid axis.
    ProgramId(usize),
    /// i32 extent of a grid axis.
    NumPrograms(usize),
    /// i32 extent of a sequential axis of the traced grid, in lowered form, whose grid has none.
    NumSteps(usize),
    /// i32 size of a dimension.
    Extent(DimId),
    /// The value of a parameter operand.
    Param(OperandId),
    /// An element of a prefetch operand; one i32 index per dimension.
    Prefetch(OperandId),
    /// `starts.. (mask, other)?` -> tile. Elements outside of the array are the operand's fill; masked ones `other`.
    Load {
        /// Input, output or scratch.
        from: OperandId,
        /// Which elements.
        view: View,
        /// Whether a mask of the view's shape and a scalar `other` follow the starts.
        masked: bool,
    },
    /// `value starts.. mask?`. Elements outside of the array, and masked ones, are not written.
    Store {
        /// Output or scratch.
        to: OperandId,
        /// Which elements.
        view: View,
        /// Whether a mask of the view's shape follows the starts.
        masked: bool,
    },
    /// `starts..` -> bool tile: which positions along kept axis `axis` of the view lie inside the array; other axes have
    /// extent 1.
    Valid {
        /// Input, output or scratch.
        of: OperandId,
        /// Which elements.
        view: View,
        /// Position among the view's kept axes.
        axis: usize,
    },
    /// `condition`; regions then, else without parameters; results are what they yield.
    If,
    /// `lo hi step init..`; region (index, carried..) yields carried; results are the last ones. Counts `lo`, `lo + step`
    /// .. below `hi`, or the same backwards; `step` is at least 1.
    For {
        /// Count down.
        reverse: bool,
    },
    /// `init..`; regions condition (carried..) yields bool, carried'..; body (carried'..) yields carried; results are
    /// carried' of the first false condition.
    While,
    /// Prints a scalar or tile with this label.
    DebugPrint(String),
    /// `condition` (bool, any shape): a failure ends the launch with this message.
    DebugAssert(String),
}

/// An instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// Arguments, in the order the operation's doc gives.
    pub args: Vec<Value>,
    /// Values it defines.
    pub results: Vec<Value>,
    /// Nested regions.
    pub regions: Vec<RegionId>,
}

/// A list of instructions with parameters and results.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Region {
    /// Values defined on entry.
    pub params: Vec<Value>,
    /// In order of execution.
    pub insts: Vec<InstId>,
    /// Values handed to the owner.
    pub yields: Vec<Value>,
}

/// A kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kernel {
    /// The function's name.
    pub name: String,
    /// By [`DimId`].
    pub dims: Vec<DimDecl>,
    /// Slowest axis first.
    pub grid: Vec<Axis>,
    /// In lowered form the extents of sequential axes, outermost first; the launch computes them, whose terms may exceed i32.
    pub steps: Vec<Dim>,
    /// The faults that the strict interpreter does not report.
    pub allow: Allow,
    /// By [`OperandId`], in the order of the function's parameters.
    pub operands: Vec<Operand>,
    /// By [`Value`].
    pub values: Vec<Type>,
    /// The user's variable that a value was given to first.
    pub names: BTreeMap<Value, String>,
    /// By [`InstId`].
    pub insts: Vec<Inst>,
    /// The user's line of each instruction, by [`InstId`].
    pub locs: Vec<Loc>,
    /// By [`RegionId`].
    pub regions: Vec<Region>,
    /// What a program does.
    pub body: RegionId,
}

impl Kernel {
    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v.index()]
    }
    /// Names a value, unless it has a name already or there is none to give.
    pub fn name_value(&mut self, v: Value, name: Option<&str>) {
        if let Some(name) = name {
            self.names.entry(v).or_insert_with(|| name.into());
        }
    }
    /// A value's number and its name, if it has one: `7_sum`
    pub fn label(&self, v: Value) -> String {
        self.names.get(&v).map_or_else(|| v.0.to_string(), |name| format!("{}_{name}", v.0))
    }
    /// Names a value as another one of this kernel.
    pub fn name_as(&mut self, v: Value, other: Value) {
        self.name_value(v, self.names.get(&other).cloned().as_deref());
    }
    /// An instruction.
    pub fn inst(&self, i: InstId) -> &Inst {
        &self.insts[i.index()]
    }
    /// A region.
    pub fn region(&self, r: RegionId) -> &Region {
        &self.regions[r.index()]
    }
    /// An operand.
    pub fn operand(&self, o: OperandId) -> &Operand {
        &self.operands[o.index()]
    }
    /// The user's line of an instruction.
    pub fn loc(&self, i: InstId) -> Loc {
        self.locs[i.index()]
    }
    /// Operands that are arrays in memory at launch: inputs, prefetches, outputs.
    pub fn arrays(&self) -> impl Iterator<Item = (OperandId, &Operand)> {
        let array =
            |k: &OperandKind| matches!(k, OperandKind::Input | OperandKind::Output { .. } | OperandKind::Prefetch);
        (0..).map(OperandId).zip(&self.operands).filter(move |(_, o)| array(&o.kind))
    }
    /// The output that takes over an operand's memory, or the operand itself.
    pub fn memory_of(&self, id: OperandId) -> OperandId {
        let takes = |o: &Operand| matches!(o.kind, OperandKind::Output { alias: Some(a), .. } if a == id);
        self.operands.iter().position(takes).map_or(id, |i| OperandId(i as u32))
    }
    /// Whether nothing writes to an operand's memory: an input, prefetch or parameter that no output takes over.
    pub fn is_constant(&self, id: OperandId) -> bool {
        matches!(self.operand(self.memory_of(id)).kind, OperandKind::Input | OperandKind::Prefetch | OperandKind::Param)
    }
    /// Calls `f` with every instruction reachable from `region`, outer before inner.
    pub fn walk(&self, region: RegionId, f: &mut dyn FnMut(InstId, &Inst)) {
        for &i in &self.region(region).insts {
            f(i, self.inst(i));
            for &r in &self.inst(i).regions {
                self.walk(r, f);
            }
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}
impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
