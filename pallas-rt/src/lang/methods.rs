//! Methods of tiles and scalars that change shapes or select parts, and the operations whose files declare a method.
use super::context;
use super::make::iota;
use super::operand::{Axes, Choice, Shape, to_dims};
use super::refs::{BlockIndex, Span};
use super::tile::{Scalar, Tile, emit_structural};
use pallas_ir::dtype::{Bool, Int, Number};
use pallas_ir::{Elem, ScalarOp, diag, structural as ops};

impl<T: Elem> Tile<T> {
    /// The tile with its last two axes swapped.
    #[track_caller]
    #[must_use]
    pub fn t(self) -> Tile<T> {
        let rank = self.rank();
        let mut axes: Vec<usize> = (0..rank.max(2)).collect();
        axes.swap(rank.max(2) - 2, rank.max(2) - 1);
        self.transpose(axes)
    }
    /// The tile with a new axis of extent 1 in front of axis `axis`.
    #[track_caller]
    #[must_use]
    pub fn expand(self, axis: usize) -> Tile<T> {
        let mut shape = self.shape();
        if axis > shape.len() {
            return Tile::new(context::record_error(diag::new_axis_out_of_range(axis, shape.len())));
        }
        shape.insert(axis, 1);
        self.reshape(shape)
    }
    /// The tile without axis `axis`, whose extent must be 1.
    #[track_caller]
    #[must_use]
    pub fn squeeze(self, axis: usize) -> Tile<T> {
        let mut shape = self.shape();
        if shape.get(axis) != Some(&1) && context::type_of(self.handle).is_some() {
            return Tile::new(context::record_error(diag::axis_not_droppable(axis, format_args!("{shape:?}"))));
        }
        if axis < shape.len() {
            shape.remove(axis);
        }
        self.reshape(shape)
    }
    /// `size` elements from `start` along each axis.
    #[track_caller]
    #[must_use]
    pub fn slice(self, start: impl Shape, size: impl Shape) -> Tile<T> {
        let every = vec![1; size.sizes().len()];
        self.strided_slice(start, size, every)
    }
    /// `size` elements along each axis, from `start` in steps of `stride`.
    #[track_caller]
    #[must_use]
    pub fn strided_slice(self, start: impl Shape, size: impl Shape, stride: impl Shape) -> Tile<T> {
        let signed = |shape: Vec<usize>| shape.into_iter().map(|n| n as i64).collect();
        let (start, stride) = (signed(start.sizes()), signed(stride.sizes()));
        Tile::new(emit_structural(ops::Slice { start, size: to_dims(&size), stride }, &[self.handle]))
    }
    /// The part of the tile that an index selects, with the same indices as for a block: `a..b` and `ds(a, n)` keep
    /// elements of an axis, `..` all of it, and a number drops the axis. Positions are known while tracing.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (1))]
    /// fn middle(#[block([2, 6] => [2, 6], |_| (0, 0))] x: In<f32>, #[block([4] => [4], |_| (0,))] out: Out<f32>) {
    ///     out.store(x.load().exp().at((1, 1..5)).ln());
    /// }
    /// let x = Array::from_slice(&[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0], &[2, 6])?;
    /// let rounded: Vec<f32> = middle(&x)?.to_vec::<f32>()?.iter().map(|x| x.round()).collect();
    /// assert_eq!(rounded, [7.0, 8.0, 9.0, 10.0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn at(self, index: impl BlockIndex) -> Tile<T> {
        let Some(ty) = context::type_of(self.handle) else { return self };
        let spans = index.spans();
        if spans.len() > ty.shape.len() {
            return Tile::new(context::record_error(diag::too_many_view_indices(spans.len(), ty.shape.len())));
        }
        let (mut start, mut size, mut stride, mut kept) = (vec![], vec![], vec![], vec![]);
        for (axis, &extent) in ty.shape.iter().enumerate() {
            let (first, count, every) = match spans.get(axis) {
                None | Some(Span::All) => (0, extent, 1),
                Some(&Span::Fixed(at)) => (at, 1, 1),
                Some(&Span::Slice(first, count, every)) => (first as i64, count, every as i64),
                Some(Span::At(_) | Span::From(..)) => {
                    return Tile::new(context::record_error(diag::run_time_tile_position(axis)));
                }
            };
            start.push(first);
            size.push(count);
            stride.push(every);
            if !matches!(spans.get(axis), Some(Span::Fixed(_))) {
                kept.push(count);
            }
        }
        let dropped = kept.len() < size.len();
        let part = Tile::new(emit_structural(ops::Slice { start, size: to_dims(&size), stride }, &[self.handle]));
        if dropped { part.reshape(kept) } else { part }
    }
    /// The one element of a tile with one element.
    #[track_caller]
    #[must_use]
    pub fn item(self) -> Scalar<T> {
        Scalar::new(emit_structural(ops::Reshape { to: vec![] }, &[self.handle]))
    }
}
/// Expands a method that an operation's file declares to a method of [`Tile`].
macro_rules! tile_method {
    ([$(#[$doc:meta])+] $name:ident $Class:ident ($($arg:ident: $Kind:ident),*) $Element:ident { $op:expr }) => {
        impl<T: Elem> Tile<T> {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(self $(, $arg: argument! { $Kind })*) -> Tile<$Element>
            where
                T: $Class,
            {
                $(argument! { $Kind $arg self })*
                let operands = [Some(self.handle) $(, argument! { $Kind $arg })*];
                Tile::new(emit_structural($op, &operands.into_iter().flatten().collect::<Vec<_>>()))
            }
        }
    };
}
/// Expands a kind of argument: alone to its Rust type; with a name and a tile to its conversion to an attribute or a
/// handle; with a name to the operand's handle, or `None` for an attribute.
macro_rules! argument {
    (Axis) => { usize };
    (Axes) => { impl Axes };
    (Size) => { usize };
    (Sizes) => { impl Shape };
    (Offset) => { i64 };
    (Index) => { Tile<i32> };
    (Value) => { impl Choice<T> };
    (Axes $arg:ident $tile:expr) => { let $arg = $arg.axes($tile.rank()); };
    (Size $arg:ident $tile:expr) => { let $arg = pallas_ir::Dim::from($arg as i64); };
    (Sizes $arg:ident $tile:expr) => { let $arg = to_dims(&$arg); };
    (Index $arg:ident $tile:expr) => { let $arg = $arg.handle; };
    (Value $arg:ident $tile:expr) => { let $arg = $arg.choice_handle(); };
    ($Kind:ident $arg:ident $tile:expr) => {};
    (Index $arg:ident) => { Some($arg) };
    (Value $arg:ident) => { Some($arg) };
    ($Kind:ident $arg:ident) => { None };
}
pallas_ir::for_each_structural_method! { tile_method }

impl<I: Int> Tile<I> {
    /// One-hot vectors of the indices: the last axis, whose extent must be 1, gets `depth` elements, 1 at the index and
    /// 0 elsewhere.
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
    /// The scalar as a tile without axes, to be stored where an index has dropped all dimensions.
    pub fn tile(self) -> Tile<T> {
        Tile::new(self.handle)
    }
    /// A tile of this shape with the scalar as every element.
    #[track_caller]
    #[must_use]
    pub fn broadcast(self, shape: impl Shape) -> Tile<T> {
        Tile::new(emit_structural(ops::Broadcast::to(to_dims(&shape)), &[self.handle]))
    }
}
