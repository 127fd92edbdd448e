//! The description of a kernel by the expansion of `#[kernel]`: data, and closures for index maps and body.
use super::fixed_values::FixedKey;
use crate::Array;
use crate::lang::context::{self, Handle};
use crate::lang::make::IntoScalar;
use crate::lang::operand::{Choice, Host};
use crate::lang::refs::{self, In, Out, Prefetch, Scratch};
use crate::lang::tile::Scalar;
use pallas_ir::{Allow, DType, Diag, Dim, Elem, Literal, Loc, Op, OperandId, Semantics};
use std::cell::RefCell;

/// Identity of a kernel at one call: its name and line, and the values that are fixed for the call. With the type of
/// the body, which has the generics, and the arrays, it determines the [`KernelSpec`] and the trace. Made for every
/// call, so it only borrows.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The function's name.
    pub name: &'static str,
    /// The function's line.
    pub at: Loc,
    /// The line of the call.
    pub called: Loc,
    /// Names and values of `#[dim]` parameters.
    pub given: &'a [(&'static str, i64)],
    /// Values of outer constants in the spec, as bits.
    pub outer: &'a [u64],
    /// Values of `#[fixed]` parameters.
    pub fixed: &'a [FixedKey<'a>],
}

/// A kernel as an expansion writes it: constant data, so that instances of a generic kernel contain no code for it.
#[derive(Debug)]
pub struct Declared {
    /// Extents of the grid over dimension names.
    pub grid: &'static [Size],
    /// Parallel or sequential, for each grid axis.
    pub semantics: &'static [Semantics],
    /// Faults that the kernel declares to be intended.
    pub allow: Allow,
    /// Pairs of sizes that the kernel declares to be equal.
    pub assume: &'static [(Size, Size)],
    /// Parameters of the kernel, in order.
    pub operands: &'static [DeclaredOperand],
}

/// A parameter of the kernel, as an expansion writes it; [`SpecOperand`] documents the fields.
#[derive(Debug)]
#[expect(missing_docs, reason = "`Operand` has the same fields")]
pub struct DeclaredOperand {
    pub name: &'static str,
    pub kind: Kind,
    pub dtype: DType,
    pub dims: Option<&'static [Size]>,
    pub block: Option<&'static [BlockDim<Size>]>,
    /// Index of the fill's bits in [`Site::outer`].
    pub fill: Option<usize>,
    /// Index of the number in [`Site::outer`].
    pub buffered: Option<usize>,
    /// Index of the value's bits in [`Site::outer`].
    pub empty: Option<usize>,
    pub alias: Option<&'static str>,
}

/// Expression over dimension names that gives a size, as an expansion writes it.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    /// A number, or the value of a const generic.
    Number(i64),
    /// A dimension's name.
    Name(&'static str),
    /// An outer constant, by its index in [`Site::outer`].
    Outer(usize),
    /// `a + b`
    Add(&'static [Size; 2]),
    /// `a - b`
    Sub(&'static [Size; 2]),
    /// `a * b`
    Mul(&'static [Size; 2]),
    /// `cdiv(a, b)`
    Cdiv(&'static [Size; 2]),
    /// `min(a, b)`
    Min(&'static [Size; 2]),
    /// `max(a, b)`
    Max(&'static [Size; 2]),
}

impl Size {
    /// Converts the size to a [`Dim`], with the values of the outer constants.
    fn as_dim(&self, outer_constants: &[u64]) -> Dim {
        let of = |two: &[Size; 2], f: fn(&Dim, &Dim) -> Dim| {
            f(&two[0].as_dim(outer_constants), &two[1].as_dim(outer_constants))
        };
        match self {
            Size::Number(n) => Dim::from(*n),
            Size::Name(name) => Dim::name(name),
            Size::Outer(at) => Dim::from(outer_constants[*at] as i64),
            Size::Add(two) => of(two, |a, b| a + b),
            Size::Sub(two) => of(two, |a, b| a - b),
            Size::Mul(two) => of(two, |a, b| a * b),
            Size::Cdiv(two) => of(two, Dim::cdiv),
            Size::Min(two) => of(two, Dim::min),
            Size::Max(two) => of(two, Dim::max),
        }
    }
}

impl Declared {
    /// Builds the kernel's spec with the values of the outer constants.
    pub(super) fn build_spec(&self, outer_constants: &[u64]) -> KernelSpec {
        let all = |sizes: &[Size]| sizes.iter().map(|size| size.as_dim(outer_constants)).collect();
        let operand = |o: &DeclaredOperand| SpecOperand {
            name: o.name,
            kind: o.kind,
            dtype: o.dtype,
            dims: o.dims.map(all),
            block: o.block.map(|block| block.iter().map(|b| b.map(|size| size.as_dim(outer_constants))).collect()),
            fill: o.fill.map(|at| f64::from_bits(outer_constants[at])),
            buffered: o.buffered.map(|at| outer_constants[at] as u32),
            empty: o.empty.map(|at| f64::from_bits(outer_constants[at])),
            alias: o.alias,
        };
        KernelSpec {
            grid: all(self.grid),
            semantics: self.semantics,
            allow: self.allow,
            assume: self.assume.iter().map(|(a, b)| (a.as_dim(outer_constants), b.as_dim(outer_constants))).collect(),
            operands: self.operands.iter().map(operand).collect(),
        }
    }
}

/// A kernel as declared, with the values of its const generics and outer constants. Built if no equal call was made
/// before.
#[derive(Debug)]
pub(super) struct KernelSpec {
    /// Extents of the grid over dimension names.
    pub grid: Vec<Dim>,
    /// Parallel or sequential, for each grid axis.
    pub semantics: &'static [Semantics],
    /// Faults that the kernel declares to be intended.
    pub allow: Allow,
    /// Pairs of sizes that the kernel declares to be equal.
    pub assume: Vec<(Dim, Dim)>,
    /// Parameters of the kernel, in order.
    pub operands: Vec<SpecOperand>,
}

/// Role of a kernel's parameter: input, output, table for index maps, scratch memory or run-time scalar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// An input array, `In`.
    Input,
    /// An output array, `Out`.
    Output,
    /// A table for index maps, `Prefetch`.
    Prefetch,
    /// Memory that programs share along sequential axes, `Scratch`.
    Scratch,
    /// A run-time scalar.
    Param,
}

/// A parameter of a kernel as declared: its role and element type, the extents of its array and blocks, and options.
#[derive(Debug)]
pub(super) struct SpecOperand {
    /// The parameter's name.
    pub name: &'static str,
    /// The parameter's kind.
    pub kind: Kind,
    /// Element type of the array, scratch buffer or scalar.
    pub dtype: DType,
    /// Extents of the array (or scratch buffer) over dimension names; `None`: any extents.
    pub dims: Option<Vec<Dim>>,
    /// The block's size along each dimension; `None`: the whole array is one block.
    pub block: Option<Vec<BlockDim<Dim>>>,
    /// The value that loads outside of the array give.
    pub fill: Option<f64>,
    /// Number of blocks that are fetched or in use at the same time, 1 to 3; `None`: chosen by the device.
    pub buffered: Option<u32>,
    /// The value of an output's elements if there are no programs.
    pub empty: Option<f64>,
    /// The input whose memory an output takes over.
    pub alias: Option<&'static str>,
}

/// Size of a block along one dimension; sizes of type `S` are expressions over dimension names.
#[derive(Debug)]
pub enum BlockDim<S> {
    /// One element, along a dimension that the block does not have: `_`.
    Squeezed,
    /// Blocks of this size.
    Blocked(S),
    /// Blocks that begin at any element: `Element(size, low, high)`.
    Element {
        /// Number of elements in the block.
        size: S,
        /// Number of elements of padding in front of the array.
        low: S,
        /// Number of elements of padding after the array.
        high: S,
    },
}

impl<S> BlockDim<S> {
    fn map<T>(&self, f: impl Fn(&S) -> T) -> BlockDim<T> {
        match self {
            BlockDim::Squeezed => BlockDim::Squeezed,
            BlockDim::Blocked(size) => BlockDim::Blocked(f(size)),
            BlockDim::Element { size, low, high } => BlockDim::Element { size: f(size), low: f(low), high: f(high) },
        }
    }
    /// Returns the sizes that define the block: its number of elements, then its padding.
    pub(super) fn sizes(&self) -> Vec<&S> {
        match self {
            BlockDim::Squeezed => vec![],
            BlockDim::Blocked(size) => vec![size],
            BlockDim::Element { size, low, high } => vec![size, low, high],
        }
    }
}

/// The arrays a kernel function takes: `&Array`, or an `Array` by value, whose memory an output may reuse.
#[diagnostic::on_unimplemented(
    message = "a kernel takes arrays, found `{Self}`",
    label = "expected `&Array`, or `Array` to donate its memory",
    note = "copy host data to a device first: `Array::from_slice(&data, &shape)?`"
)]
pub trait Input {
    #[doc(hidden)]
    fn into_argument(self) -> Argument;
}
impl Input for &Array {
    fn into_argument(self) -> Argument {
        Argument::Array(self.clone(), false)
    }
}
impl Input for Array {
    fn into_argument(self) -> Argument {
        Argument::Array(self, true)
    }
}

/// An argument of a kernel's call: an array, which may be donated, or a scalar.
#[derive(Clone, Debug)]
pub enum Argument {
    /// An array, and true if it is donated.
    Array(Array, bool),
    /// A scalar, or the reason why the value is not an element of its type.
    Param(std::result::Result<Literal, Diag>),
}
/// Converts an array to an argument of a kernel's call.
pub fn arg(x: impl Input) -> Argument {
    x.into_argument()
}
/// Returns the array of a tuned call, to be passed on to the chosen candidate by value. If the caller keeps it, it is
/// shared, so no output takes over its memory.
pub fn array(x: impl Input) -> Array {
    match x.into_argument() {
        Argument::Array(array, _) => array,
        Argument::Param(_) => unreachable!("an input is an array"),
    }
}
/// Converts a scalar to an argument of a kernel's call.
pub fn param<T: ParamValue>(x: T) -> Argument {
    Argument::Param(x.literal())
}
/// Converts a size that is a constant from outside of the kernel to the bits by which calls are compared.
pub fn whole(x: impl Whole) -> u64 {
    x.bits()
}
/// Integer types of constants from outside of the kernel that its sizes are made of.
#[diagnostic::on_unimplemented(message = "a size is an integer, found `{Self}`", label = "not an integer")]
pub trait Whole {
    #[doc(hidden)]
    fn bits(self) -> u64;
}
macro_rules! whole {
    ($($T:ty)*) => {$(
        impl Whole for $T {
            fn bits(self) -> u64 {
                self as i64 as u64
            }
        }
    )*};
}
whole! { i8 u8 i16 u16 i32 u32 i64 u64 isize usize }
/// Host values of run-time scalar parameters.
#[diagnostic::on_unimplemented(
    message = "a run-time parameter is a number or `bool`, found `{Self}`",
    label = "not a scalar",
    note = "mark the parameter `#[fixed]` if it is decided while tracing"
)]
pub trait ParamValue: Copy {
    /// The element type of the scalar in the body.
    type Element: Elem;
    #[doc(hidden)]
    fn literal(self) -> std::result::Result<Literal, Diag>;
}
macro_rules! param_values {
    ($($T:ty)*) => {$(
        impl ParamValue for $T {
            type Element = <$T as IntoScalar>::Element;
            fn literal(self) -> std::result::Result<Literal, Diag> {
                Host::literal(self, <Self::Element as Elem>::DTYPE)
            }
        }
    )*};
}
param_values! { f32 f64 half::f16 half::bf16 bool i8 u8 i16 u16 i32 u32 i64 u64 usize }
/// Sizes, operands and program ids of the launch, for index maps and body.
#[derive(Debug)]
pub struct Frame {
    /// Sizes of the dimensions that are known while tracing.
    pub(super) sizes: Vec<(String, i64)>,
    /// Program ids, while an index map is traced.
    pub(super) programs: RefCell<Vec<Handle>>,
}

impl Frame {
    /// The program's index along a grid axis; only in an index map.
    pub fn program(&self, axis: usize) -> Scalar<i32> {
        Scalar::new(self.programs.borrow()[axis])
    }
    /// A dimension's extent as a run-time scalar.
    #[track_caller]
    pub fn dim(&self, name: &str) -> Scalar<i32> {
        if let Some((_, n)) = self.sizes.iter().find(|(s, _)| s == name) {
            return Scalar::new(context::emit_constant(Literal::int(DType::I32, *n)));
        }
        let dim = context::with_kernel(|k| k.dims.iter().position(|d| d.name == name)).flatten();
        let dim = dim.expect("the macro declares every dimension it mentions");
        Scalar::new(context::emit(Op::Extent(pallas_ir::DimId(dim as u32)), &[]))
    }
    /// Returns the extent of the dimension `name`, which is a number while tracing since it sizes a block or a scratch
    /// buffer.
    pub fn size(&self, name: &str) -> usize {
        let found = self.sizes.iter().find(|(s, _)| s == name).map(|(_, n)| *n as usize);
        found.expect("the macro asks for the size of static dimensions only")
    }
    /// The input with the operand index `slot`.
    pub fn input<T: Elem>(&self, slot: usize) -> In<T> {
        In::slot(slot)
    }
    /// The output with the operand index `slot`.
    pub fn output<T: Elem>(&self, slot: usize) -> Out<T> {
        Out::slot(slot)
    }
    /// The scratch buffer with the operand index `slot`.
    pub fn scratch<T: Elem>(&self, slot: usize) -> Scratch<T> {
        Scratch::slot(slot)
    }
    /// The prefetched table with the operand index `slot`.
    pub fn prefetch<T: Elem>(&self, slot: usize) -> Prefetch<T> {
        Prefetch::slot(slot)
    }
    /// The scalar parameter with the operand index `slot`.
    #[track_caller]
    pub fn param<T: Elem>(&self, slot: usize) -> Scalar<T> {
        Scalar::new(refs::emit_parameter(OperandId(slot as u32)))
    }
}

/// An entry of an index map that is an element offset, for an `Element` dimension.
#[derive(Clone, Copy, Debug)]
pub struct ElementOffset<T>(T);
/// Marks an entry of an index map as an element offset.
pub fn element<T: Choice<i32>>(offset: T) -> ElementOffset<T> {
    ElementOffset(offset)
}
/// An entry of an index map.
#[diagnostic::on_unimplemented(
    message = "an index map gives integers, found `{Self}`",
    label = "expected a number, a grid index or a dimension"
)]
pub trait MapEntry {
    #[doc(hidden)]
    #[track_caller]
    fn entry(self) -> Handle;
}
impl<T: Choice<i32>> MapEntry for T {
    #[track_caller]
    fn entry(self) -> Handle {
        self.choice_handle()
    }
}
impl<T: Choice<i32>> MapEntry for ElementOffset<T> {
    #[track_caller]
    fn entry(self) -> Handle {
        self.0.choice_handle()
    }
}
/// The result of an index map: a tuple, or one entry.
pub trait MapResult {
    #[doc(hidden)]
    #[track_caller]
    fn entries(self) -> Vec<Handle>;
}
/// Implements [`MapResult`] for tuples of up to eight entries.
macro_rules! map_results {
    ($($first:ident $($rest:ident)*)?) => {
        impl<$($first: MapEntry, $($rest: MapEntry),*)?> MapResult for ($($first, $($rest,)*)?) {
            #[allow(non_snake_case, reason = "named after their position")]
            #[track_caller]
            fn entries(self) -> Vec<Handle> {
                let ($($first, $($rest,)*)?) = self;
                vec![$($first.entry(), $($rest.entry()),*)?]
            }
        }
        $(map_results! { $($rest)* })?
    };
}
map_results! { A B C D E F G H }
/// Returns the handles of the indices that an index map gives.
#[track_caller]
pub fn indices(x: impl MapResult) -> Vec<Handle> {
    x.entries()
}

/// Function from the ids of a program to the indices of the block that the program sees of an operand. Not `dyn Fn`,
/// since a closure behind `&dyn Fn` would also have code for `FnOnce`.
pub trait IndexMap {
    /// Returns the indices of a program's block.
    fn block_indices(&self, frame: &Frame) -> Vec<Handle>;
}
impl<F: Fn(&Frame) -> Vec<Handle>> IndexMap for F {
    fn block_indices(&self, frame: &Frame) -> Vec<Handle> {
        self(frame)
    }
}
/// Index maps, each with the index of its operand.
pub(crate) type IndexMaps<'a> = &'a [(usize, &'a dyn IndexMap)];

/// A kernel's body, as the expansion gives it.
pub(crate) trait KernelBody {
    /// Calls the body with the kernel's sizes and operands in `frame`: once to trace it, or on the interpreter for each
    /// program.
    fn run(&self, frame: &Frame);
}
impl<F: Fn(&Frame)> KernelBody for F {
    fn run(&self, frame: &Frame) {
        self(frame)
    }
}
