//! Structural operations: one file each, and one line in the registry below.
mod access;
mod derive;
mod draw;
mod indexed;
#[macro_use]
mod methods;
mod nest;
mod window;

pub use access::{AccessForm, AffineIndex, IndexedWindows, MapPiece, SortOrder, WindowAxis};
pub use derive::{RuleOperand, VmapBatch};
pub use draw::RandomKernelGenerator;
pub use nest::{AffinePosition, LoopNest, NestAxisRole, NestLoop};
pub use window::WindowDim;

use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt::{self, Debug, Display};

/// An operation on tiles outside of the scalar table, such as a reshape, a reduction or a product: its text form, the
/// type of its result, its access form, its rules for derivatives and batching. No method has a default.
pub trait Structural: Clone + Eq + std::hash::Hash + Debug + Display + Sized {
    /// Name of the operation in text.
    const NAME: &'static str;
    /// Parses the attributes that `Display` wrote.
    ///
    /// # Errors
    /// An attribute is missing or not understood.
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String>;
    /// The sizes among the attributes, for replacing their names by numbers.
    fn dims(&mut self) -> Vec<&mut Dim>;
    /// Returns the result's shape, for symbolic and constant sizes.
    ///
    /// # Errors
    /// Shapes that do not fit.
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag>;
    /// Returns the result's element type.
    ///
    /// # Errors
    /// Types the operation is not defined for.
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag>;
    /// Returns the access form for operands that `infer` has accepted.
    fn access(&self, args: &[&[Dim]]) -> AccessForm;
    /// The `vmap` rule: applies the operation to operands some of which have an extra batch axis; the result has that
    /// axis first. `None` if there are no operands.
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>>;
    /// The forward derivative: the tangent of the result `y`, given those of the operands; `None` for zero.
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], y: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>>;
    /// The reverse derivative: the cotangent of each operand in which the operation is linear, given that of the
    /// result.
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>>;
    /// Draws a random instance of the operation for tests, whose operands `from` chooses; `None` if no attributes fit.
    /// Tests check that `infer` accepts it.
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self>;
    /// Cases for tests: the operation, operand shapes over names, and values of the names.
    fn samples() -> Vec<OpTestCase<Self>>;
}

/// Test case of a structural operation: shapes of the operands with symbolic sizes, element types, and values of the
/// sizes.
#[derive(Clone, Debug)]
pub struct OpTestCase<O> {
    /// The operation with its attributes.
    pub op: O,
    /// Operand shapes, each extent a name or a number.
    pub args: &'static [&'static [&'static str]],
    /// Element types of the operands.
    pub dtypes: &'static [DType],
    /// Values of the names in the shapes.
    pub with: &'static [(&'static str, i64)],
}

/// Declares the modules of the operations, and [`StructuralOp`] with a method for each one of [`Structural`].
macro_rules! structural_ops {
    (($d:tt) $($file:ident: $($Op:ident),+;)*) => {
        $(mod $file;
        pub use $file::{$($Op),+};)*
        structural_ops! { @all ($d) $($($Op)+)* }
    };
    (@all ($d:tt) $($Op:ident)*) => {
        /// A structural operation: any operation on tiles that is not a row of the scalar table.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum StructuralOp { $(#[doc = concat!("See [`", stringify!($Op), "`].")] $Op($Op)),* }
        $(impl From<$Op> for StructuralOp {
            fn from(op: $Op) -> StructuralOp { StructuralOp::$Op(op) }
        })*
        impl StructuralOp {
            /// Names of all operations.
            pub const NAMES: &[&str] = &[$($Op::NAME),*];
            /// Functions that draw a random instance of an operation for tests ([`Structural::draw`]), in the order of
            /// [`NAMES`](StructuralOp::NAMES).
            pub const DRAWS: &[fn(&mut dyn RandomKernelGenerator) -> Option<StructuralOp>] = &[$(|from| $Op::draw(from).map(Self::$Op)),*];
            /// Name of the operation in text.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$Op(_) => $Op::NAME),* }
            }
            /// Parses the operation of this name with these attributes.
            pub(crate) fn parse(name: &str, attributes: &Attributes<'_>) -> Result<StructuralOp, String> {
                $(if name == $Op::NAME {
                    return Ok(StructuralOp::$Op($Op::parse(attributes)?));
                })*
                Err(format!("there is no operation `{name}`"))
            }
            fn dims(&mut self) -> Vec<&mut Dim> {
                match self { $(Self::$Op(op) => op.dims()),* }
            }
            /// The result's shape: see [`Structural::infer`].
            ///
            /// # Errors
            /// Shapes that do not fit.
            pub fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
                match self { $(Self::$Op(op) => op.infer(args, facts)),* }
            }
            /// The result's element type: see [`Structural::dtype`].
            ///
            /// # Errors
            /// Types the operation is not defined for.
            pub fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
                match self { $(Self::$Op(op) => op.dtype(args)),* }
            }
            /// Returns the access form, by which backends make each element of the result from elements of the
            /// operands: see [`Structural::access`].
            pub fn access(&self, args: &[&[Dim]]) -> AccessForm {
                match self { $(Self::$Op(op) => op.access(args)),* }
            }
            /// Applies the `vmap` rule: see [`Structural::batched`].
            pub fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
                match self { $(Self::$Op(op) => op.batched(args, batch)),* }
            }
            /// The tangent of the result: see [`Structural::jvp`].
            pub fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], y: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
                match self { $(Self::$Op(op) => op.jvp(args, y, tangents)),* }
            }
            /// The cotangents of the operands: see [`Structural::transpose`].
            pub fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
                match self { $(Self::$Op(op) => op.transpose(args, cotangent)),* }
            }
            /// Samples of all operations: see [`Structural::samples`].
            pub fn samples() -> Vec<OpTestCase<StructuralOp>> {
                let mut all = vec![];
                $(all.extend($Op::samples().into_iter().map(|s| OpTestCase { op: Self::$Op(s.op), args: s.args, dtypes: s.dtypes, with: s.with }));)*
                all
            }
        }
        /// Calls `callback!` for every method of tiles that creates a structural operation: see
        /// `structural/methods.rs`.
        #[macro_export]
        macro_rules! for_each_structural_method {
            ($d callback:ident) => { $($crate::$Op! { $d callback })* };
        }
        impl Display for StructuralOp {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$Op(op) => Display::fmt(op, f)),* }
            }
        }
    };
}
// `cargo fmt` does not find the modules that the macro declares; `.ci/run` lists their files.
structural_ops! { ($)
    broadcast: Broadcast;
    concat: Concat;
    conv: Conv;
    convert: Bitcast, Cast, Powi;
    cumulative: Cumulative;
    dot: Dot;
    gather: Gather;
    iota: Iota;
    pad: Pad;
    reduce: ArgReduce, Reduce;
    reduce_window: ReduceWindow;
    reshape: Reshape;
    reverse: Reverse;
    roll: Roll;
    scatter: Scatter;
    slice: Slice;
    sort: ArgSort, ArgTopK, Sort;
    take_along: TakeAlong;
    transpose: Transpose;
}

impl StructuralOp {
    /// Replaces the names in the operation's sizes by these values.
    pub fn bind(&self, values: &[(&str, i64)]) -> Self {
        let mut op = self.clone();
        op.dims().into_iter().for_each(|d| *d = d.bind(values));
        op
    }
    /// The operation with 0 for all sizes among its attributes, for comparisons that ignore sizes.
    pub fn without_sizes(&self) -> Self {
        let mut op = self.clone();
        op.dims().into_iter().for_each(|d| *d = Dim::from(0i64));
        op
    }
    /// The type in which a fold of these operands accumulates, if it is wider than theirs: see
    /// [`ScalarOp::accumulator`](crate::ScalarOp::accumulator). Builders append such a fold between two casts, so that
    /// each fold that runs accumulates in its operand's type; [`verify`](crate::verify) refuses others.
    pub fn accumulator(&self, args: &[DType]) -> Option<DType> {
        let op = match self {
            Self::Reduce(fold) => fold.op,
            Self::Cumulative(fold) => fold.op,
            Self::ReduceWindow(fold) => fold.op,
            _ => return None,
        };
        let &[dtype] = args else { return None };
        op.accumulator(dtype).filter(|&wide| wide != dtype)
    }
    /// The operation that keeps the folded axes with extent 1, as in lowered form, if this one drops them; `None`
    /// otherwise.
    pub fn with_kept_axes(&self) -> Option<Self> {
        match self {
            Self::Reduce(r) if !r.keep => Some(Reduce { keep: true, ..r.clone() }.into()),
            Self::ArgReduce(r) if !r.keep => Some(ArgReduce { keep: true, ..r.clone() }.into()),
            _ => None,
        }
    }
}

/// Checks that an operation has `expected` operands.
fn check_arity(name: &str, found: usize, expected: usize) -> Result<(), Diag> {
    if found == expected {
        return Ok(());
    }
    Err(Diag::new("arity", At::Op, format!("`{name}` takes {expected} operands, found {found}"), ""))
}

/// Checks that `axes` exist in a shape and that none repeats.
fn check_axes(name: &str, axes: &[usize], dims: &[Dim]) -> Result<(), Diag> {
    for (i, &axis) in axes.iter().enumerate() {
        if axis >= dims.len() {
            let found =
                format!("`{name}` along axis {axis} of {}, which has {}", shape(dims), crate::diag::axes(dims.len()));
            return Err(Diag::new("axis", At::Op, found, "axes count from 0"));
        }
        if axes[..i].contains(&axis) {
            let found = format!("`{name}` names axis {axis} of {} twice", shape(dims));
            return Err(Diag::new("axis", At::Op, found, "each axis at most once"));
        }
    }
    Ok(())
}

/// Returns the element type of operand 0.
fn first_dtype(args: &[DType]) -> Result<DType, Diag> {
    args.first().copied().ok_or_else(|| Diag::new("arity", At::Op, "an operand is missing".into(), ""))
}

/// Checks that `op` is a monoid on the operand's element type, and returns that type.
fn check_monoid(name: &str, op: crate::ScalarOp, args: &[DType]) -> Result<DType, Diag> {
    let dtype = first_dtype(args)?;
    if op.row().fold.is_none() {
        let monoids = crate::ScalarOp::ALL.iter().filter(|op| op.row().fold.is_some());
        let monoids: Vec<&crate::ScalarOp> = monoids.collect();
        return Err(Diag::new(
            "monoid",
            At::Op,
            format!("`{name}` by `{op}`"),
            format!("it folds by {}", join_with_commas(&monoids)),
        ));
    }
    op.infer_dtype(&[dtype, dtype])
        .map_err(|m| Diag::new("dtype", At::Operand(0), format!("`{name}`: {m}"), "cast it first"))
}

/// Joins items as in `1, 2, 3`.
pub(crate) fn join_with_commas<T: Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
