//! `Tile<T>` and `Scalar<T>`: Copy handles to values of the kernel that runs, and the methods that change shapes.
use super::context::{self, Handle};
use super::make::iota;
use super::operand::{Axes, Choice, Shape, dims};
use pallas_ir::dtype::{Int, Number};
use pallas_ir::{Elem, Op, ScalarOp, StructuralOp, diag, structural as ops};
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
                match context::shown_type(self.handle) {
                    Some(ty) => write!(f, concat!(stringify!($H), " {}"), ty),
                    None => f.write_str(concat!(stringify!($H), " of another kernel")),
                }
            }
        }
        impl<T: Elem> $H<T> {
            /// The elements as type `U`: floats saturate into integers, NaN becomes 0, `bool` is `x != 0`.
            #[track_caller]
            #[must_use]
            pub fn cast<U: Elem>(self) -> $H<U> {
                if T::DTYPE == U::DTYPE {
                    return $H::new(self.handle);
                }
                $H::new(structural(ops::Cast { to: U::DTYPE }, &[self.handle]))
            }
            /// The same bits as type `U` of the same size.
            #[track_caller]
            #[must_use]
            pub fn bitcast<U: Elem>(self) -> $H<U> {
                $H::new(structural(ops::Bitcast { to: U::DTYPE }, &[self.handle]))
            }
            /// An integer power by repeated multiplication.
            #[track_caller]
            #[must_use]
            pub fn powi(self, exponent: i32) -> $H<T> where T: Number {
                $H::new(structural(ops::Powi { exponent }, &[self.handle]))
            }
        }
    )*};
}
handles! { Tile Scalar }

/// The one door of structural operations.
#[track_caller]
pub(crate) fn structural(op: impl Into<StructuralOp>, args: &[Handle]) -> Handle {
    context::emit(Op::Structural(op.into()), args)
}

impl<T: Elem> Tile<T> {
    /// Extents; empty once an operation has failed.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        context::type_of(self.handle).map_or(vec![], |t| t.shape)
    }
    /// Number of axes.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.shape().len()
    }
    #[track_caller]
    fn fold(self, op: ScalarOp, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(ops::Reduce { op, axes: axes.axes(self.rank()) }, &[self.handle]))
    }
    #[track_caller]
    fn scan(self, op: ScalarOp, axis: usize) -> Tile<T> {
        Tile::new(structural(ops::Cumulative { op, axis, reverse: false }, &[self.handle]))
    }
    /// Sum over axes, which stay with extent 1.
    #[track_caller]
    #[must_use]
    pub fn sum(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Add, axes)
    }
    /// Product over axes, which stay with extent 1.
    #[track_caller]
    #[must_use]
    pub fn prod(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Mul, axes)
    }
    /// Largest element over axes, which stay with extent 1; -inf (or the lowest integer) over nothing.
    #[track_caller]
    #[must_use]
    pub fn max(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Maximum, axes)
    }
    /// Smallest element over axes, which stay with extent 1; inf (or the highest integer) over nothing.
    #[track_caller]
    #[must_use]
    pub fn min(self, axes: impl Axes) -> Tile<T>
    where
        T: Number,
    {
        self.fold(ScalarOp::Minimum, axes)
    }
    /// i32 position of the largest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    #[track_caller]
    #[must_use]
    pub fn argmax(self, axis: usize) -> Tile<i32>
    where
        T: Number,
    {
        Tile::new(structural(ops::ArgReduce { max: true, axis }, &[self.handle]))
    }
    /// i32 position of the smallest element along an axis, which stays with extent 1: the first of ties; a NaN wins.
    #[track_caller]
    #[must_use]
    pub fn argmin(self, axis: usize) -> Tile<i32>
    where
        T: Number,
    {
        Tile::new(structural(ops::ArgReduce { max: false, axis }, &[self.handle]))
    }
    /// Running sum along an axis.
    #[track_caller]
    #[must_use]
    pub fn cumsum(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Add, axis)
    }
    /// Running product along an axis.
    #[track_caller]
    #[must_use]
    pub fn cumprod(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Mul, axis)
    }
    /// Running maximum along an axis.
    #[track_caller]
    #[must_use]
    pub fn cummax(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Maximum, axis)
    }
    /// Running minimum along an axis.
    #[track_caller]
    #[must_use]
    pub fn cummin(self, axis: usize) -> Tile<T>
    where
        T: Number,
    {
        self.scan(ScalarOp::Minimum, axis)
    }
    /// The last two axes exchanged.
    #[track_caller]
    #[must_use]
    pub fn t(self) -> Tile<T> {
        let rank = self.rank();
        let mut axes: Vec<usize> = (0..rank.max(2)).collect();
        axes.swap(rank.max(2) - 2, rank.max(2) - 1);
        self.transpose(axes)
    }
    /// A new axis of extent 1 in front of axis `axis`.
    #[track_caller]
    #[must_use]
    pub fn expand(self, axis: usize) -> Tile<T> {
        let mut shape = self.shape();
        if axis > shape.len() {
            return Tile::new(context::blame(diag::new_axis(axis, shape.len())));
        }
        shape.insert(axis, 1);
        self.reshape(shape)
    }
    /// Without an axis of extent 1.
    #[track_caller]
    #[must_use]
    pub fn squeeze(self, axis: usize) -> Tile<T> {
        let mut shape = self.shape();
        if shape.get(axis) != Some(&1) && context::type_of(self.handle).is_some() {
            return Tile::new(context::blame(diag::kept_axis(axis, format_args!("{shape:?}"))));
        }
        if axis < shape.len() {
            shape.remove(axis);
        }
        self.reshape(shape)
    }
    /// Result axis `i` is axis `axes[i]`.
    #[track_caller]
    #[must_use]
    pub fn transpose(self, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(ops::Transpose { axes: axes.axes(self.rank()) }, &[self.handle]))
    }
    /// The same elements, row-major, under another shape.
    #[track_caller]
    #[must_use]
    pub fn reshape(self, shape: impl Shape) -> Tile<T> {
        Tile::new(structural(ops::Reshape { to: dims(&shape) }, &[self.handle]))
    }
    /// Axes of extent 1 stretched to `shape`.
    #[track_caller]
    #[must_use]
    pub fn broadcast(self, shape: impl Shape) -> Tile<T> {
        Tile::new(structural(ops::Broadcast { to: dims(&shape) }, &[self.handle]))
    }
    /// `size` elements from `start` along each axis.
    #[track_caller]
    #[must_use]
    pub fn slice(self, start: impl Shape, size: impl Shape) -> Tile<T> {
        let every = vec![1; size.sizes().len()];
        self.strided_slice(start, size, every)
    }
    /// Every `stride`-th of the elements from `start`, `size` of them along each axis.
    #[track_caller]
    #[must_use]
    pub fn strided_slice(self, start: impl Shape, size: impl Shape, stride: impl Shape) -> Tile<T> {
        let signed = |shape: Vec<usize>| shape.into_iter().map(|n| n as i64).collect();
        let (start, stride) = (signed(start.sizes()), signed(stride.sizes()));
        Tile::new(structural(ops::Slice { start, size: dims(&size), stride }, &[self.handle]))
    }
    /// Elements in opposite order along axes.
    #[track_caller]
    #[must_use]
    pub fn reverse(self, axes: impl Axes) -> Tile<T> {
        Tile::new(structural(ops::Reverse { axes: axes.axes(self.rank()) }, &[self.handle]))
    }
    /// `low` elements of `value` in front of each axis and `high` behind it.
    #[track_caller]
    #[must_use]
    pub fn pad(self, low: impl Shape, high: impl Shape, value: impl Choice<T>) -> Tile<T> {
        let op = ops::Pad { low: dims(&low), high: dims(&high) };
        Tile::new(structural(op, &[self.handle, value.choice()]))
    }
    /// `result[.., i, ..] = self[.., index[.., i, ..], ..]` along an axis.
    #[track_caller]
    #[must_use]
    pub fn take_along_axis(self, index: Tile<i32>, axis: usize) -> Tile<T> {
        Tile::new(structural(ops::TakeAlong { axis }, &[self.handle, index.handle]))
    }
    /// The one element of a tile with one element.
    #[track_caller]
    #[must_use]
    pub fn item(self) -> Scalar<T> {
        Scalar::new(structural(ops::Reshape { to: vec![] }, &[self.handle]))
    }
}
impl Tile<bool> {
    /// Whether any element along axes holds; the axes stay with extent 1.
    #[track_caller]
    #[must_use]
    pub fn any(self, axes: impl Axes) -> Tile<bool> {
        self.fold(ScalarOp::BitOr, axes)
    }
    /// Whether every element along axes holds; the axes stay with extent 1.
    #[track_caller]
    #[must_use]
    pub fn all(self, axes: impl Axes) -> Tile<bool> {
        self.fold(ScalarOp::BitAnd, axes)
    }
}
impl<I: Int> Tile<I> {
    /// A last axis of `depth` marking each index: 1 at its position, 0 elsewhere. The tile's last axis has extent 1.
    #[track_caller]
    #[must_use]
    pub fn one_hot<T: Number>(self, depth: usize) -> Tile<T> {
        let mut shape = vec![1; self.rank()];
        if let Some(last) = shape.last_mut() {
            *last = depth;
        }
        let axis = shape.len().saturating_sub(1);
        self.eq(iota::<I>(shape, axis)).cast()
    }
}
impl<T: Elem> Scalar<T> {
    /// The scalar as a tile without axes, which fits where all dimensions were dropped.
    pub fn tile(self) -> Tile<T> {
        Tile::new(self.handle)
    }
    /// A tile of this value.
    #[track_caller]
    #[must_use]
    pub fn broadcast(self, shape: impl Shape) -> Tile<T> {
        Tile::new(structural(ops::Broadcast { to: dims(&shape) }, &[self.handle]))
    }
}
