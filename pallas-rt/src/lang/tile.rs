//! `Tile<T>` and `Scalar<T>`: Copy handles to values of the kernel that runs, with their operators and methods.
use super::context::{self, Handle};
use pallas_ir::dtype::{Any, Bits, Bool, Float, Int, Number, Real, Signed, Single};
use pallas_ir::{At, DType, Diag, Dim, Elem, Literal, Op, ScalarOp, StructuralOp, structural};
use std::marker::PhantomData;

/// A block of elements in fast memory: a value of the kernel that runs. Its shape is known while tracing.
///
/// Operators work element by element; axes of extent 1 stretch, scalars and host numbers stand for any shape.
pub struct Tile<T> {
    pub(crate) handle: Handle,
    element: PhantomData<fn() -> T>,
}

/// A run-time scalar: a value of the kernel that runs.
pub struct Scalar<T> {
    pub(crate) handle: Handle,
    element: PhantomData<fn() -> T>,
}

macro_rules! handles {
    ($($H:ident)*) => {$(
        impl<T> Clone for $H<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $H<T> {}
        impl<T> $H<T> {
            pub(crate) fn new(handle: Handle) -> Self {
                $H { handle, element: PhantomData }
            }
        }
        impl<T: Elem> std::fmt::Debug for $H<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match context::type_of(self.handle) {
                    Some(ty) => write!(f, concat!(stringify!($H), " {}"), ty),
                    None => f.write_str(concat!(stringify!($H), " of another kernel")),
                }
            }
        }
        impl<T: Elem> $H<T> {
            /// The elements as type `U`: floats saturate into integers, NaN becomes 0, `bool` is `x != 0`.
            #[track_caller]
            pub fn cast<U: Elem>(self) -> $H<U> {
                if T::DTYPE == U::DTYPE {
                    return $H::new(self.handle);
                }
                $H::new(structural(structural::Cast { to: U::DTYPE }, &[self.handle]))
            }
            /// The same bits as type `U` of the same size.
            #[track_caller]
            pub fn bitcast<U: Elem>(self) -> $H<U> {
                $H::new(structural(structural::Bitcast { to: U::DTYPE }, &[self.handle]))
            }
            /// An integer power by repeated multiplication.
            #[track_caller]
            pub fn powi(self, exponent: i32) -> $H<T> where T: Number {
                $H::new(structural(structural::Powi { exponent }, &[self.handle]))
            }
        }
    )*};
}
handles! { Tile Scalar }

#[track_caller]
fn structural(op: impl Into<StructuralOp>, args: &[Handle]) -> Handle {
    context::emit(Op::Structural(op.into()), args)
}
#[track_caller]
fn elementwise(op: ScalarOp, args: &[Handle]) -> Handle {
    context::emit(Op::Scalar(op), args)
}

/// Host numbers that may stand beside a tile or a scalar.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't stand beside a tile or a scalar here",
    label = "not a number, tile or scalar"
)]
pub trait Host: Copy {
    #[doc(hidden)]
    fn literal(self, dtype: DType) -> Literal;
}
macro_rules! hosts {
    ($method:ident as $As:ty; $($H:ty)*) => {$(
        impl Host for $H {
            fn literal(self, dtype: DType) -> Literal {
                Literal::$method(dtype, self as $As)
            }
        }
    )*};
}
hosts! { int as i64; i8 u8 i16 u16 i32 u32 i64 u64 usize }
hosts! { new as f64; f32 f64 }

/// Which host numbers an element type takes.
#[diagnostic::on_unimplemented(
    message = "a host `{L}` can't be mixed with elements of `{Self}`",
    label = "elements are `{Self}`, this is `{L}`",
    note = "write a float literal (`2.0`) beside float tiles and an integer literal beside integer tiles"
)]
pub trait Takes<L> {}
impl<E: Real> Takes<f32> for E {}
impl<E: Real> Takes<f64> for E {}
macro_rules! takes {
    ($($E:ident: $($L:ident)*;)*) => {$($(impl Takes<$L> for $E {})*)*};
}
takes! { i32: i32 usize i64 u32; u32: u32 usize u64 i32; i64: i64 i32 usize; u64: u64 u32 i32 usize; i8: i8 i32; u8: u8 i32; i16: i16 i32; u16: u16 i32; }

#[track_caller]
pub(crate) fn host_constant<T: Elem, L: Host>(x: L) -> Handle {
    context::constant(x.literal(T::DTYPE))
}

/// What may be given where one element value is meant: a tile, a scalar or a host number.
#[diagnostic::on_unimplemented(
    message = "expected a tile, a scalar or a number of `{T}`, found `{Self}`",
    label = "not `{T}` elements"
)]
pub trait Choice<T: Elem> {
    #[doc(hidden)]
    #[track_caller]
    fn choice(self) -> Handle;
}
impl<T: Elem> Choice<T> for Tile<T> {
    fn choice(self) -> Handle {
        self.handle
    }
}
impl<T: Elem> Choice<T> for Scalar<T> {
    fn choice(self) -> Handle {
        self.handle
    }
}
#[diagnostic::do_not_recommend]
impl<T: Elem + Takes<L>, L: Host> Choice<T> for L {
    #[track_caller]
    fn choice(self) -> Handle {
        host_constant::<T, L>(self)
    }
}
impl Choice<bool> for bool {
    #[track_caller]
    fn choice(self) -> Handle {
        context::constant(Literal::bool(self))
    }
}

/// An operator of the table for every mix of tiles, scalars and host numbers.
macro_rules! binary_operator {
    ($(#[$doc:meta])+ $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident) => {
        binary_operator! { @pair $(#[$doc])+ $Op $name $Class $Trait Tile Tile Tile }
        binary_operator! { @pair $(#[$doc])+ $Op $name $Class $Trait Tile Scalar Tile }
        binary_operator! { @pair $(#[$doc])+ $Op $name $Class $Trait Scalar Tile Tile }
        binary_operator! { @pair $(#[$doc])+ $Op $name $Class $Trait Scalar Scalar Scalar }
        binary_operator! { @host $Op $name $Class $Trait $Assign $assign Tile }
        binary_operator! { @host $Op $name $Class $Trait $Assign $assign Scalar }
    };
    (@pair $(#[$doc:meta])+ $Op:ident $name:ident $Class:ident $Trait:ident $L:ident $R:ident $Out:ident) => {
        impl<T: $Class> std::ops::$Trait<$R<T>> for $L<T> {
            type Output = $Out<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self, other: $R<T>) -> $Out<T> { $Out::new(elementwise(ScalarOp::$Op, &[self.handle, other.handle])) }
        }
    };
    (@host $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident $L:ident) => {
        #[diagnostic::do_not_recommend]
        impl<T: $Class + Takes<H>, H: Host> std::ops::$Trait<H> for $L<T> {
            type Output = $L<T>;
            #[track_caller]
            fn $name(self, other: H) -> $L<T> {
                let other = host_constant::<T, H>(other);
                $L::new(elementwise(ScalarOp::$Op, &[self.handle, other]))
            }
        }
        impl<T: $Class, R> std::ops::$Assign<R> for $L<T> where $L<T>: std::ops::$Trait<R, Output = $L<T>> {
            #[track_caller]
            fn $assign(&mut self, other: R) { *self = std::ops::$Trait::$name(*self, other); }
        }
    };
}
/// A host number left of an operator: only the element's own literal type.
macro_rules! left_operands {
    ($($Op:ident $name:ident $Trait:ident;)*) => {
        $(left_operands! { @each $Op $name $Trait; i32 u32 i64 u64 f64 }
        left_operands! { @float $Op $name $Trait Tile }
        left_operands! { @float $Op $name $Trait Scalar })*
    };
    (@each $Op:ident $name:ident $Trait:ident; $($H:ident)*) => {$(
        left_operands! { @one $Op $name $Trait $H Tile }
        left_operands! { @one $Op $name $Trait $H Scalar }
    )*};
    (@one $Op:ident $name:ident $Trait:ident $H:ident $R:ident) => {
        impl std::ops::$Trait<$R<$H>> for $H {
            type Output = $R<$H>;
            #[track_caller]
            fn $name(self, other: $R<$H>) -> $R<$H> {
                let own = context::constant(Host::literal(self, <$H as Elem>::DTYPE));
                $R::new(elementwise(ScalarOp::$Op, &[own, other.handle]))
            }
        }
    };
    (@float $Op:ident $name:ident $Trait:ident $R:ident) => {
        impl<T: Float> std::ops::$Trait<$R<T>> for f32 {
            type Output = $R<T>;
            #[track_caller]
            fn $name(self, other: $R<T>) -> $R<T> {
                let own = context::constant(Literal::new(T::DTYPE, f64::from(self)));
                $R::new(elementwise(ScalarOp::$Op, &[own, other.handle]))
            }
        }
    };
}
left_operands! { Add add Add; Sub sub Sub; Mul mul Mul; Div div Div; Rem rem Rem; }

/// A row of the table -> its operator or method on tiles and scalars.
macro_rules! surface {
    ([$(#[$doc:meta])+] $Op:ident $name:ident $T:ident $Class:ident ($a:ident: T, $b:ident: T) $Out:ident operator $Trait:ident) => {
        surface! { @assign [$(#[$doc])+] $Op $name $Class $Trait }
    };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Add) => { surface! { @operator $docs $Op $name $Class Add AddAssign add_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Sub) => { surface! { @operator $docs $Op $name $Class Sub SubAssign sub_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Mul) => { surface! { @operator $docs $Op $name $Class Mul MulAssign mul_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Div) => { surface! { @operator $docs $Op $name $Class Div DivAssign div_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Rem) => { surface! { @operator $docs $Op $name $Class Rem RemAssign rem_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident BitAnd) => { surface! { @operator $docs $Op $name $Class BitAnd BitAndAssign bitand_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident BitOr) => { surface! { @operator $docs $Op $name $Class BitOr BitOrAssign bitor_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident BitXor) => { surface! { @operator $docs $Op $name $Class BitXor BitXorAssign bitxor_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Shl) => { surface! { @operator $docs $Op $name $Class Shl ShlAssign shl_assign } };
    (@assign $docs:tt $Op:ident $name:ident $Class:ident Shr) => { surface! { @operator $docs $Op $name $Class Shr ShrAssign shr_assign } };
    (@operator [$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $Assign:ident $assign:ident) => {
        binary_operator! { $(#[$doc])+ $Op $name $Class $Trait $Assign $assign }
    };
    ([$(#[$doc:meta])+] $Op:ident $name:ident $T:ident $Class:ident ($x:ident: T) $Out:ident operator $Trait:ident) => {
        surface! { @unary [$(#[$doc])+] $Op $name $Class $Trait Tile }
        surface! { @unary [$(#[$doc])+] $Op $name $Class $Trait Scalar }
    };
    (@unary [$(#[$doc:meta])+] $Op:ident $name:ident $Class:ident $Trait:ident $H:ident) => {
        impl<T: $Class> std::ops::$Trait for $H<T> {
            type Output = $H<T>;
            $(#[$doc])+
            #[track_caller]
            fn $name(self) -> $H<T> { $H::new(elementwise(ScalarOp::$Op, &[self.handle])) }
        }
    };
    // Comparisons have their own rules (`cmp.rs`), `select` is a function.
    ($docs:tt $Op:ident lt $($rest:tt)*) => {};
    ($docs:tt $Op:ident le $($rest:tt)*) => {};
    ($docs:tt $Op:ident gt $($rest:tt)*) => {};
    ($docs:tt $Op:ident ge $($rest:tt)*) => {};
    ($docs:tt $Op:ident eq $($rest:tt)*) => {};
    ($docs:tt $Op:ident ne $($rest:tt)*) => {};
    ($docs:tt $Op:ident select $($rest:tt)*) => {};
    ([$(#[$doc:meta])+] $Op:ident $name:ident $T:ident $Class:ident ($x:ident: T $(, $arg:ident: T)*) $Out:ident method) => {
        impl<$T: $Class> Tile<$T> {
            $(#[$doc])+
            #[track_caller]
            pub fn $name(self $(, $arg: impl Choice<$T>)*) -> Tile<$Out> {
                $(let $arg = $arg.choice();)*
                Tile::new(elementwise(ScalarOp::$Op, &[self.handle $(, $arg)*]))
            }
        }
        impl<$T: $Class> Scalar<$T> {
            $(#[$doc])+
            #[track_caller]
            pub fn $name(self $(, $arg: impl Choice<$T>)*) -> Scalar<$Out> {
                $(let $arg = $arg.choice();)*
                Scalar::new(elementwise(ScalarOp::$Op, &[self.handle $(, $arg)*]))
            }
        }
    };
}
macro_rules! surfaces {
    ($($(#[$doc:meta])+ $Op:ident $name:ident $T:ident $Class:ident $sig:tt $Out:ident $surface:ident $($Trait:ident)?;)*) => {
        $(surface! { [$(#[$doc])+] $Op $name $T $Class $sig $Out $surface $($Trait)? })*
    };
}
pallas_ir::for_each_scalar_op! { surfaces }

/// Axes to fold: one, or several.
pub trait Axes {
    #[doc(hidden)]
    fn axes(self) -> Vec<usize>;
}
impl Axes for usize {
    fn axes(self) -> Vec<usize> {
        vec![self]
    }
}
impl<const N: usize> Axes for [usize; N] {
    fn axes(self) -> Vec<usize> {
        self.to_vec()
    }
}

impl<T: Elem> Tile<T> {
    /// Extents; empty once an operation has failed.
    pub fn shape(self) -> Vec<usize> {
        context::type_of(self.handle).map_or(vec![], |t| t.shape)
    }
    #[track_caller]
    fn fold(self, op: ScalarOp, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Reduce { op, axes: axes.axes() }, &[self.handle]))
    }
    #[track_caller]
    fn scan(self, op: ScalarOp, axis: usize) -> Tile<T> {
        Tile::new(structural(structural::Cumulative { op, axis, reverse: false }, &[self.handle]))
    }
    /// Sum over axes, which stay with extent 1.
    #[track_caller]
    pub fn sum(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Add, axes)
    }
    /// Product over axes, which stay with extent 1.
    #[track_caller]
    pub fn prod(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Mul, axes)
    }
    /// Largest element over axes, which stay with extent 1; -inf (or the lowest integer) over nothing.
    #[track_caller]
    pub fn max(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Maximum, axes)
    }
    /// Smallest element over axes, which stay with extent 1; inf (or the highest integer) over nothing.
    #[track_caller]
    pub fn min(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Minimum, axes)
    }
    /// i32 position of the largest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    #[track_caller]
    pub fn argmax(self, axis: usize) -> Tile<i32>
    where
        T: Number,
    {
        Tile::new(structural(structural::ArgReduce { max: true, axis }, &[self.handle]))
    }
    /// i32 position of the smallest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    #[track_caller]
    pub fn argmin(self, axis: usize) -> Tile<i32>
    where
        T: Number,
    {
        Tile::new(structural(structural::ArgReduce { max: false, axis }, &[self.handle]))
    }
    /// Running sum along an axis.
    #[track_caller]
    pub fn cumsum(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Add, axis)
    }
    /// Running product along an axis.
    #[track_caller]
    pub fn cumprod(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Mul, axis)
    }
    /// Running maximum along an axis.
    #[track_caller]
    pub fn cummax(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Maximum, axis)
    }
    /// Running minimum along an axis.
    #[track_caller]
    pub fn cummin(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Minimum, axis)
    }
    /// The two axes exchanged.
    #[track_caller]
    pub fn t(self) -> Tile<T> {
        self.transpose([1, 0])
    }
    /// Result axis `i` is axis `axes[i]`.
    #[track_caller]
    pub fn transpose(self, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Transpose { axes: axes.axes() }, &[self.handle]))
    }
    /// The same elements, row-major, under another shape.
    #[track_caller]
    pub fn reshape(self, shape: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Reshape { to: sizes(&shape.axes()) }, &[self.handle]))
    }
    /// Axes of extent 1 stretched to `shape`.
    #[track_caller]
    pub fn broadcast(self, shape: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Broadcast { to: sizes(&shape.axes()) }, &[self.handle]))
    }
    /// `size` elements from `start` along each axis.
    #[track_caller]
    pub fn slice(self, start: impl Axes, size: impl Axes) -> Tile<T> {
        let (start, size) = (start.axes(), size.axes());
        let stride = vec![1; size.len()];
        let start = start.into_iter().map(|s| s as i64).collect();
        Tile::new(structural(structural::Slice { start, size: sizes(&size), stride }, &[self.handle]))
    }
    /// Every `stride`-th of the elements from `start`, `size` of them along each axis.
    #[track_caller]
    pub fn strided_slice(self, start: impl Axes, size: impl Axes, stride: impl Axes) -> Tile<T> {
        let start = start.axes().into_iter().map(|s| s as i64).collect();
        let stride = stride.axes().into_iter().map(|s| s as i64).collect();
        Tile::new(structural(structural::Slice { start, size: sizes(&size.axes()), stride }, &[self.handle]))
    }
    /// Elements in opposite order along axes.
    #[track_caller]
    pub fn reverse(self, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Reverse { axes: axes.axes() }, &[self.handle]))
    }
    /// `low` elements of `value` in front of each axis and `high` behind it.
    #[track_caller]
    pub fn pad(self, low: impl Axes, high: impl Axes, value: impl Choice<T>) -> Tile<T> {
        let (low, high, value) = (sizes(&low.axes()), sizes(&high.axes()), value.choice());
        Tile::new(structural(structural::Pad { low, high }, &[self.handle, value]))
    }
    /// `result[.., i, ..] = self[.., index[.., i, ..], ..]` along an axis.
    #[track_caller]
    pub fn take_along_axis(self, index: Tile<i32>, axis: usize) -> Tile<T> {
        Tile::new(structural(structural::TakeAlong { axis }, &[self.handle, index.handle]))
    }
    /// The one element of a tile with one element.
    #[track_caller]
    pub fn item(self) -> Scalar<T> {
        Scalar::new(structural(structural::Reshape { to: vec![] }, &[self.handle]))
    }
}
impl Tile<bool> {
    /// Whether any element along axes holds; the axes stay with extent 1.
    #[track_caller]
    pub fn any(self, axes: impl Axes) -> Tile<bool> {
        self.fold(ScalarOp::BitOr, axes)
    }
    /// Whether every element along axes holds; the axes stay with extent 1.
    #[track_caller]
    pub fn all(self, axes: impl Axes) -> Tile<bool> {
        self.fold(ScalarOp::BitAnd, axes)
    }
}
impl Tile<i32> {
    /// A last axis of `depth` marking each index: 1 at its position, 0 elsewhere. The tile's last axis has extent 1.
    #[track_caller]
    pub fn one_hot<T: Number>(self, depth: usize) -> Tile<T> {
        let mut shape = self.shape();
        if let Some(last) = shape.last_mut() {
            *last = depth;
        }
        let axis = shape.len().saturating_sub(1);
        let at = iota::<i32>(shape, axis);
        Tile::<bool>::new(elementwise(ScalarOp::Eq, &[at.handle, self.handle])).cast()
    }
}
impl<T: Elem> Scalar<T> {
    /// A tile of this value.
    #[track_caller]
    pub fn broadcast(self, shape: impl Axes) -> Tile<T> {
        Tile::new(structural(structural::Broadcast { to: sizes(&shape.axes()) }, &[self.handle]))
    }
}
impl Axes for Vec<usize> {
    fn axes(self) -> Vec<usize> {
        self
    }
}

fn sizes(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

/// The matrix product `[m, k] · [k, n]`, summed in [`Accumulate::Acc`](pallas_ir::dtype::Accumulate::Acc).
#[track_caller]
pub fn dot<T: Number>(a: Tile<T>, b: Tile<T>) -> Tile<T::Acc> {
    Tile::new(structural(structural::Dot::matmul(<T::Acc as Elem>::DTYPE), &[a.handle, b.handle]))
}

/// The sum of products over pairs of axes, keeping pairs of batch axes: result `[batch.., free of a.., free of b..]`.
#[track_caller]
pub fn dot_general<T: Number>(
    a: Tile<T>,
    b: Tile<T>,
    contract: &[(usize, usize)],
    batch: &[(usize, usize)],
) -> Tile<T::Acc> {
    let op = structural::Dot { batch: batch.to_vec(), contract: contract.to_vec(), acc: <T::Acc as Elem>::DTYPE };
    Tile::new(structural(op, &[a.handle, b.handle]))
}

/// `a` where the mask holds, else `b`.
#[track_caller]
pub fn select<T: Elem>(mask: Tile<bool>, a: impl Choice<T>, b: impl Choice<T>) -> Tile<T> {
    let (a, b) = (a.choice(), b.choice());
    Tile::new(elementwise(ScalarOp::Select, &[mask.handle, a, b]))
}
/// The larger, element by element; a NaN passes through.
#[track_caller]
pub fn maximum<T: Number>(a: Tile<T>, b: impl Choice<T>) -> Tile<T> {
    let b = b.choice();
    Tile::new(elementwise(ScalarOp::Maximum, &[a.handle, b]))
}
/// The smaller, element by element; a NaN passes through.
#[track_caller]
pub fn minimum<T: Number>(a: Tile<T>, b: impl Choice<T>) -> Tile<T> {
    let b = b.choice();
    Tile::new(elementwise(ScalarOp::Minimum, &[a.handle, b]))
}
/// A run-time scalar from a host value.
#[track_caller]
pub fn scalar<T: IntoScalar>(x: T) -> Scalar<T::Element> {
    Scalar::new(x.constant())
}
/// Host values that become run-time scalars.
pub trait IntoScalar {
    /// The element type: `usize` becomes `i32`.
    type Element: Elem;
    #[doc(hidden)]
    #[track_caller]
    fn constant(self) -> Handle;
}
macro_rules! into_scalar {
    ($($H:ty => $E:ty;)*) => {$(
        impl IntoScalar for $H {
            type Element = $E;
            #[track_caller]
            fn constant(self) -> Handle { context::constant(Host::literal(self, <$E as Elem>::DTYPE)) }
        }
    )*};
}
into_scalar! { f32 => f32; f64 => f64; i32 => i32; u32 => u32; i64 => i64; u64 => u64; usize => i32; i8 => i8; u8 => u8; i16 => i16; u16 => u16; }
impl IntoScalar for bool {
    type Element = bool;
    #[track_caller]
    fn constant(self) -> Handle {
        context::constant(Literal::bool(self))
    }
}
/// A tile of one value.
#[track_caller]
pub fn full<T: Elem>(shape: impl Axes, x: impl Choice<T>) -> Tile<T> {
    Scalar::<T>::new(x.choice()).broadcast(shape)
}
/// A tile of zeros.
#[track_caller]
pub fn zeros<T: Elem>(shape: impl Axes) -> Tile<T> {
    Scalar::<T>::new(context::constant(Literal::new(T::DTYPE, 0.0))).broadcast(shape)
}
/// The coordinate along an axis.
#[track_caller]
pub fn iota<T: Number>(shape: impl Axes, axis: usize) -> Tile<T> {
    Tile::new(structural(structural::Iota { shape: sizes(&shape.axes()), axis, dtype: T::DTYPE }, &[]))
}
/// Tiles one behind the other along an axis.
#[track_caller]
pub fn concat<T: Elem, const N: usize>(tiles: [Tile<T>; N], axis: usize) -> Tile<T> {
    let handles: Vec<Handle> = tiles.iter().map(|t| t.handle).collect();
    Tile::new(structural(structural::Concat { axis }, &handles))
}
/// Mask of the lower triangle: `row + offset >= column`.
#[track_caller]
pub fn tril(rows: usize, columns: usize, offset: i32) -> Tile<bool> {
    let (r, c) = (iota::<i32>([rows, 1], 0), iota::<i32>([1, columns], 1));
    (r + offset).ge(c)
}
/// Mask of the upper triangle: `row + offset <= column`.
#[track_caller]
pub fn triu(rows: usize, columns: usize, offset: i32) -> Tile<bool> {
    let (r, c) = (iota::<i32>([rows, 1], 0), iota::<i32>([1, columns], 1));
    (r + offset).le(c)
}
/// This program's index along a grid axis.
#[track_caller]
pub fn program_id(axis: usize) -> Scalar<i32> {
    Scalar::new(context::emit(Op::ProgramId(axis), &[]))
}
/// The grid's extent along an axis.
#[track_caller]
pub fn num_programs(axis: usize) -> Scalar<i32> {
    Scalar::new(context::emit(Op::NumPrograms(axis), &[]))
}
/// Prints a tile or scalar with a label, per program; the interpreter and the CPU backend do.
#[track_caller]
pub fn debug_print<T: Elem>(label: &str, x: impl Choice<T>) {
    let x = x.choice();
    context::effect(Op::DebugPrint(label.into()), &[x]);
}
/// Ends the launch with a message where the condition fails; the interpreter and the CPU backend check it.
#[track_caller]
pub fn debug_assert(condition: impl Choice<bool>, message: &str) {
    let condition = condition.choice();
    context::effect(Op::DebugAssert(message.into()), &[condition]);
}

/// A mistake in how a method was called.
pub(crate) fn misuse(message: String, help: &str) -> Diag {
    Diag::new("misuse", At::Op, message, help)
}
/// Bounds that the table's rows name but no row of this file does.
const _: fn() = || {
    fn used<T: Any + Signed + Int + Bits + Bool + Single + ?Sized>() {}
};

/// Arithmetic of index maps over run-time scalars and host numbers.
pub mod index {
    use super::{Choice, Scalar, ScalarOp, elementwise};

    /// The smaller.
    #[track_caller]
    pub fn min(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
        let (a, b) = (a.choice(), b.choice());
        Scalar::new(elementwise(ScalarOp::Minimum, &[a, b]))
    }
    /// The larger.
    #[track_caller]
    pub fn max(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
        let (a, b) = (a.choice(), b.choice());
        Scalar::new(elementwise(ScalarOp::Maximum, &[a, b]))
    }
    /// The quotient rounded up.
    #[track_caller]
    pub fn cdiv(a: impl Choice<i32>, b: impl Choice<i32>) -> Scalar<i32> {
        let (a, b) = (Scalar::<i32>::new(a.choice()), Scalar::<i32>::new(b.choice()));
        (a + b - 1) / b
    }
}
