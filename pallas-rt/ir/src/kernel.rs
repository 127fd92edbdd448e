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
//! Two forms use the same grammar. *Traced*: operands have blocks and maps, accesses are relative to the block, the
//! grid has sequential axes. *Lowered* (what backends read, after `passes::lower`): accesses are [`ViewFrame::Array`],
//! relative to the array's origin; every grid axis is parallel; sequential axes are `for` loops.
use crate::{Allow, DType, Dim, Literal, ScalarOp, StructuralOp};
use std::collections::BTreeMap;
use std::fmt;

/// Declares an index type: a `u32` with a marker that precedes it in text (`%3`, `@1`).
macro_rules! id {
    ($(#[doc = $doc:literal])+ $Id:ident $sigil:literal) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $Id(pub u32);
        impl $Id {
            /// Position in the kernel's vector of these items.
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
    /// Index of a value: a tile or, with rank 0, a run-time scalar.
    Value "%"
}
id! {
    /// Index of an instruction.
    InstId "inst"
}
id! {
    /// Index of a region: a list of instructions with parameters and yielded values.
    RegionId "region"
}
id! {
    /// Index of an operand of the kernel: an array, a scratch buffer or a scalar parameter.
    OperandId "@"
}
id! {
    /// Index of a named dimension.
    DimId "dim"
}

/// Maximum rank of a tile or an array: backends keep strides in arrays of this length.
pub const MAX_RANK: usize = 8;
/// Maximum nesting depth of regions, since backends traverse them recursively.
pub const MAX_DEPTH: usize = 64;

/// Type of a value: element type and shape.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// Type of the elements.
    pub dtype: DType,
    /// Extent of each axis; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Type {
    /// Creates the type of a tile.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Type { dtype, shape: shape.into() }
    }
    /// Creates the type of a scalar (rank 0).
    pub fn scalar(dtype: DType) -> Self {
        Type { dtype, shape: vec![] }
    }
    /// Returns true for a run-time scalar (rank 0).
    pub fn is_scalar(&self) -> bool {
        self.shape.is_empty()
    }
    /// Number of elements of a tile of this type.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
    /// Returns true if all positions in the shape fit an i32, as indices do. An empty axis does not exempt the others,
    /// since strides are products of extents.
    pub fn is_indexable(&self) -> bool {
        let elements = self.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n.max(1)));
        elements.is_some_and(|n| n <= i32::MAX as usize)
    }
    /// Size in bytes in the host's memory.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }
    /// The shape as constant symbolic sizes, in which shape rules compute.
    pub fn dims(&self) -> Vec<Dim> {
        self.shape.iter().map(|&n| Dim::from(n as i64)).collect()
    }
}

/// A position in the user's source: file, line and column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Loc {
    /// File name as rustc gives it.
    pub file: &'static str,
    /// Number of the line, from 1.
    pub line: u32,
    /// Number of the column, from 1.
    pub column: u32,
}

impl Loc {
    /// The absence of a position: for instructions that do not stem from a line of the user's.
    pub const NONE: Loc = Loc { file: "", line: 0, column: 0 };
    /// Position of the caller (`#[track_caller]`).
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

/// A named dimension, which sizes the operands of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimDecl {
    /// The name that the user gave it.
    pub name: String,
    /// Size known while tracing, because a block has it; `None`: a parameter of each launch.
    pub size: Option<i64>,
}

/// Order in which the programs along a grid axis may run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Semantics {
    /// Programs may run in any order and at once.
    Parallel,
    /// Programs run one after the other, in order; scratch and resident output blocks persist between them.
    Arbitrary,
}

/// One axis of a kernel's grid.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Number of programs along the axis, a polynomial in the named dimensions.
    pub extent: Dim,
    /// Order in which its programs may run.
    pub semantics: Semantics,
}

/// The role of an operand in a kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum OperandKind {
    /// An array that programs read by blocks.
    Input,
    /// An array that programs write by blocks; they may read back what they wrote.
    Output {
        /// Value of every element if the grid has no programs.
        empty: Literal,
        /// The input whose memory this output reuses.
        alias: Option<OperandId>,
    },
    /// A table readable element by element, also by index maps, before the grid runs (scalar prefetch).
    Prefetch,
    /// Memory of one parallel program, kept over its sequential steps and uninitialised at the first.
    Scratch,
    /// A run-time scalar that the caller passes.
    Param,
}

/// Partition of one dimension of an operand into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockDim {
    /// Blocks of extent 1, without this axis in the block's shape; the index map gives the position.
    Squeezed,
    /// Blocks of this many elements; the index map gives the block's index.
    Blocked(usize),
    /// Blocks at any offset; the index map gives the first element's offset in the array padded by `low` and `high`.
    Element {
        /// Number of elements of the block.
        size: usize,
        /// Number of padding elements before the array.
        low: usize,
        /// Number of padding elements after the array.
        high: usize,
    },
}

impl BlockDim {
    /// Number of elements of a block along this dimension.
    pub fn size(self) -> usize {
        match self {
            BlockDim::Squeezed => 1,
            BlockDim::Blocked(size) | BlockDim::Element { size, .. } => size,
        }
    }
    /// Returns true if the block's shape has this dimension (it is not squeezed).
    pub fn is_kept(self) -> bool {
        self != BlockDim::Squeezed
    }
}

/// An operand of a kernel: a parameter of the user's function, with its blocks.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// The parameter's name in the user's function.
    pub name: String,
    /// The role of the operand.
    pub kind: OperandKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Extents over the named dimensions, of the array or the scratch buffer; empty for a scalar parameter.
    pub dims: Vec<Dim>,
    /// Partition of each dimension. Scratch, prefetch operands and whole arrays are a single block.
    pub block: Vec<BlockDim>,
    /// Index map, from program ids to one i32 per dimension; `None`: always the first block.
    pub map: Option<RegionId>,
    /// Value of a load outside of the array; `None`: 0 on the backends, poison in the strict interpreter.
    pub fill: Option<Literal>,
    /// Number of blocks that are in flight at once, 1 to 3, for as many sequential steps; `None`: the device decides.
    pub buffered: Option<u32>,
}

impl Operand {
    /// Shape of a block in the body, without its squeezed dimensions.
    pub fn block_shape(&self) -> Vec<usize> {
        self.block.iter().filter(|b| b.is_kept()).map(|b| b.size()).collect()
    }
}

/// The coordinates of a view: its origin and axes are those of the current block or those of the whole array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ViewFrame {
    /// Traced form: the current block; axes are the block's kept dimensions.
    Block,
    /// Lowered form, and scratch in both forms: the array; axes are all of its dimensions.
    Array,
}

/// One axis of a view: elements at `offset + dynamic argument + stride * i` for `i < size`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ViewAxis {
    /// Constant part of the first element's position.
    pub offset: i64,
    /// True if an i32 argument of the instruction is added to the offset.
    pub dynamic: bool,
    /// Number of elements taken.
    pub size: usize,
    /// Distance between neighbouring elements.
    pub stride: i64,
    /// True if the result has this axis; an axis that is dropped has size 1.
    pub kept: bool,
}

impl ViewAxis {
    /// The axis that takes all `size` elements.
    pub fn whole(size: usize) -> Self {
        ViewAxis { offset: 0, dynamic: false, size, stride: 1, kept: true }
    }
}

/// The elements of an operand that a load or store accesses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The block or the array that the axes refer to.
    pub frame: ViewFrame,
    /// One entry per axis of the frame.
    pub axes: Vec<ViewAxis>,
}

impl View {
    /// The view of a whole block of this shape.
    pub fn whole(shape: &[usize]) -> Self {
        View { frame: ViewFrame::Block, axes: shape.iter().map(|&n| ViewAxis::whole(n)).collect() }
    }
    /// Shape of the tile that is loaded or stored.
    pub fn shape(&self) -> Vec<usize> {
        self.axes.iter().filter(|a| a.kept).map(|a| a.size).collect()
    }
    /// Number of i32 arguments that the view takes: one per dynamic axis, in order.
    pub fn dynamic_count(&self) -> usize {
        self.axes.iter().filter(|a| a.dynamic).count()
    }
}

/// The operation that an instruction does; the [`Inst`] has its arguments and results.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Gives a scalar constant.
    Const(Literal),
    /// Applies a [`ScalarOp`] elementwise. Axes of extent 1 stretch; a scalar broadcasts to any shape.
    Scalar(ScalarOp),
    /// Applies an operation on shapes or positions of tiles, from the registry of `structural`.
    Structural(StructuralOp),
    /// Gives the i32 index of this program along a grid axis.
    ProgramId(usize),
    /// Gives the i32 number of programs along a grid axis.
    NumPrograms(usize),
    /// Lowered form: gives the i32 extent of the traced grid's sequential axis, which is an entry of `steps`.
    NumSteps(usize),
    /// Gives the i32 size of a named dimension.
    Extent(DimId),
    /// Gives the value of a scalar parameter.
    Param(OperandId),
    /// Reads an element of a prefetch operand; takes one i32 index per dimension.
    Prefetch(OperandId),
    /// `starts.. (mask, other)?` -> tile. Reads a view; outside of the array it gives the fill, where masked `other`.
    Load {
        /// An input, an output or scratch.
        from: OperandId,
        /// The elements to read.
        view: View,
        /// True if a mask of the view's shape and a scalar `other` follow the starts.
        masked: bool,
    },
    /// `value starts.. mask?`. Elements outside of the array, and masked ones, are not written.
    Store {
        /// An output or scratch.
        to: OperandId,
        /// The elements to write.
        view: View,
        /// True if a mask of the view's shape follows the starts.
        masked: bool,
    },
    /// `starts..` -> bool tile: true for positions along kept axis `axis` that lie inside of the array; its other axes
    /// have extent 1.
    Valid {
        /// An input, an output or scratch.
        of: OperandId,
        /// The elements in question.
        view: View,
        /// Index among the axes that the view keeps.
        axis: usize,
    },
    /// `condition`; regions "then" and "else" without parameters; results are the yields of the region that ran.
    If,
    /// `lo hi step init..`; region (index, carried..) yields carried; results are the last carried values. Indices are
    /// `lo`, `lo + step` .. below `hi`, or these backwards; `step` is at least 1.
    For {
        /// True if indices count down.
        reverse: bool,
    },
    /// `init..`; regions condition (carried..) yields bool, carried'.., and body (carried'..) yields carried; results
    /// are the carried' of the first false condition.
    While,
    /// Prints a scalar or tile with this label.
    DebugPrint(String),
    /// `condition` (bool, any shape): a failure ends the launch with this message.
    DebugAssert(String),
}

/// An instruction of a region.
#[derive(Clone, PartialEq, Debug)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// Arguments, in the order that the doc of the operation states.
    pub args: Vec<Value>,
    /// Values that the instruction defines.
    pub results: Vec<Value>,
    /// Nested regions: bodies of loops, branches of conditions.
    pub regions: Vec<RegionId>,
}

/// A list of instructions with parameters and results.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Region {
    /// Values defined on entry to the region.
    pub params: Vec<Value>,
    /// Instructions in the order of execution.
    pub insts: Vec<InstId>,
    /// Values returned to the instruction that owns the region.
    pub yields: Vec<Value>,
}

/// A kernel in tile IR.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Kernel {
    /// Name of the user's function.
    pub name: String,
    /// Named dimensions, indexed by [`DimId`].
    pub dims: Vec<DimDecl>,
    /// Axes of the grid, slowest first.
    pub grid: Vec<Axis>,
    /// Lowered form: extents of sequential axes, outermost first. The launch computes them, as terms may exceed i32.
    pub steps: Vec<Dim>,
    /// Faults that the strict interpreter does not report.
    pub allow: Allow,
    /// Operands in the order of the function's parameters, indexed by [`OperandId`].
    pub operands: Vec<Operand>,
    /// Types of values, indexed by [`Value`].
    pub values: Vec<Type>,
    /// Name of the first variable of the user's that a value was assigned to.
    pub names: BTreeMap<Value, String>,
    /// Instructions, indexed by [`InstId`].
    pub insts: Vec<Inst>,
    /// Source position of each instruction, indexed by [`InstId`].
    pub locs: Vec<Loc>,
    /// Regions, indexed by [`RegionId`].
    pub regions: Vec<Region>,
    /// The region that a program runs.
    pub body: RegionId,
}

impl Kernel {
    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        &self.values[v.index()]
    }
    /// Sets the name of a value, unless it has one already or `name` is `None`.
    pub fn name_value(&mut self, v: Value, name: Option<&str>) {
        if let Some(name) = name {
            self.names.entry(v).or_insert_with(|| name.into());
        }
    }
    /// A value's number and its name, if it has one, for texts: `7_sum`.
    pub fn label(&self, v: Value) -> String {
        self.names.get(&v).map_or_else(|| v.0.to_string(), |name| format!("{}_{name}", v.0))
    }
    /// Gives a value the name of another value of this kernel.
    pub fn copy_name(&mut self, v: Value, other: Value) {
        self.name_value(v, self.names.get(&other).cloned().as_deref());
    }
    /// The instruction of this index.
    pub fn inst(&self, i: InstId) -> &Inst {
        &self.insts[i.index()]
    }
    /// The region of this index.
    pub fn region(&self, r: RegionId) -> &Region {
        &self.regions[r.index()]
    }
    /// The operand of this index.
    pub fn operand(&self, o: OperandId) -> &Operand {
        &self.operands[o.index()]
    }
    /// Source position of an instruction.
    pub fn loc(&self, i: InstId) -> Loc {
        self.locs[i.index()]
    }
    /// Operands that are arrays in memory at launch: inputs, prefetch operands and outputs.
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
    /// Returns true if no program writes to an operand's memory: an input, prefetch or parameter that no output reuses.
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
