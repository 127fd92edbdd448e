//! Refs: the blocks of a kernel's operands, their views, loads and stores.
use super::context::{self, Handle};
use super::operand::Choice;
use super::tile::{Scalar, Tile};
use pallas_ir::{DType, Elem, Literal, Op, OperandId, View, ViewAxis, diag, structural};
use std::marker::PhantomData;

/// Part of an operand's current block: which elements, and the run-time starts of its dynamic axes.
///
/// Views chain: each indexes what the one before selected.
pub struct Window<T, A> {
    operand: OperandId,
    /// Kernel call that the operand belongs to.
    generation: u32,
    view: View,
    /// Run-time starts, one per dynamic axis, in order.
    starts: Vec<Handle>,
    element: PhantomData<fn() -> (T, A)>,
}

/// Access of a window into an input: it can be loaded.
#[derive(Clone, Copy, Debug)]
pub enum ReadOnly {}
/// Access of a window into an output or scratch buffer: it can be loaded and stored.
#[derive(Clone, Copy, Debug)]
pub enum Writable {}

/// The positions that a view selects along one axis.
#[derive(Clone, Copy, Debug)]
pub enum Span {
    /// One element at a run-time position; the axis is dropped.
    At(Handle),
    /// One element at a position known while tracing; the axis is dropped. A negative position is out of range.
    Fixed(i64),
    /// `size` elements from a run-time start, `stride` apart.
    From(Handle, usize, usize),
    /// `size` elements from a start known while tracing, `stride` apart.
    Slice(usize, usize, usize),
    /// The whole axis.
    All,
}

/// `size` elements from `start`, which is a host number or a run-time scalar.
pub fn ds(start: impl Start, size: usize) -> Span {
    start.span(size, 1)
}
/// `size` elements from `start`, `stride` apart.
pub fn strided(start: impl Start, size: usize, stride: usize) -> Span {
    start.span(size, stride)
}

/// Start of a [`ds`] or [`strided`]: a host number or a run-time scalar.
pub trait Start {
    #[doc(hidden)]
    fn span(self, size: usize, stride: usize) -> Span;
}
impl Start for usize {
    fn span(self, size: usize, stride: usize) -> Span {
        Span::Slice(self, size, stride)
    }
}
impl Start for Scalar<i32> {
    fn span(self, size: usize, stride: usize) -> Span {
        Span::From(self.handle, size, stride)
    }
}

/// An index of one axis: a host number or run-time scalar (drops the axis), a [`ds`], a range `a..b`, or `..`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not index a block's axis",
    label = "expected a number, a run-time `Scalar<i32>`, `ds(start, size)` or `..`"
)]
pub trait AxisIndex {
    #[doc(hidden)]
    #[track_caller]
    fn axis_span(self) -> Span;
}
impl AxisIndex for usize {
    fn axis_span(self) -> Span {
        Span::Fixed(size_to_i64(self))
    }
}
impl AxisIndex for i32 {
    fn axis_span(self) -> Span {
        Span::Fixed(self.into())
    }
}
impl AxisIndex for Scalar<i32> {
    fn axis_span(self) -> Span {
        Span::At(self.handle)
    }
}
impl AxisIndex for Span {
    fn axis_span(self) -> Span {
        self
    }
}
impl AxisIndex for std::ops::RangeFull {
    fn axis_span(self) -> Span {
        Span::All
    }
}
impl AxisIndex for std::ops::Range<usize> {
    #[track_caller]
    fn axis_span(self) -> Span {
        if self.end < self.start {
            context::record_error(diag::reversed_view_range(self.start, self.end));
        }
        Span::Slice(self.start, self.end.saturating_sub(self.start), 1)
    }
}

/// The index of several axes: a tuple, or one index for the first axis.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not index a block",
    label = "expected an index per axis: a number, a run-time `Scalar<i32>`, `ds(start, size)` or `..`"
)]
pub trait BlockIndex {
    #[doc(hidden)]
    #[track_caller]
    fn spans(self) -> Vec<Span>;
}
impl<A: AxisIndex> BlockIndex for A {
    #[track_caller]
    fn spans(self) -> Vec<Span> {
        vec![self.axis_span()]
    }
}
macro_rules! tuple_index {
    ($($A:ident $a:ident $i:tt),*) => {
        impl<$($A: AxisIndex),*> BlockIndex for ($($A,)*) {
            #[track_caller]
            fn spans(self) -> Vec<Span> {
                vec![$(self.$i.axis_span()),*]
            }
        }
    };
}
tuples! { tuple_index }

impl<T, A> Clone for Window<T, A> {
    fn clone(&self) -> Self {
        Window { view: self.view.clone(), starts: self.starts.clone(), ..*self }
    }
}
impl<T, A> std::fmt::Debug for Window<T, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.operand, self.view)
    }
}

impl<T: Elem, A> Window<T, A> {
    #[track_caller]
    fn whole_block(operand: OperandId, generation: u32) -> Self {
        let own = context::check_same_kernel_call(generation);
        let shape = context::with_kernel(|k| if own { k.operand(operand).block_shape() } else { vec![] });
        let view = View::whole(&shape.unwrap_or_default());
        Window { operand, generation, view, starts: vec![], element: PhantomData }
    }
    /// Emits an access of the operand; returns a poisoned handle if the operand is not of the running kernel call.
    #[track_caller]
    fn emit_access(&self, op: Op, args: &[Handle]) -> Handle {
        if context::check_same_kernel_call(self.generation) {
            context::emit(op, args)
        } else {
            context::POISONED_HANDLE
        }
    }
    /// Extents of the view.
    pub fn shape(&self) -> Vec<usize> {
        self.view.shape()
    }
    /// A view of this view; axes that the index leaves out stay whole.
    #[track_caller]
    #[must_use]
    pub fn at(&self, index: impl BlockIndex) -> Window<T, A> {
        let mut spans = index.spans();
        let kept: Vec<usize> = (0..self.view.axes.len()).filter(|&a| self.view.axes[a].kept).collect();
        if spans.len() > kept.len() {
            context::record_error(diag::too_many_view_indices(spans.len(), kept.len()));
            spans.truncate(kept.len());
        }
        let mut starts = self.starts.iter().copied();
        let mut out = Window { view: self.view.clone(), starts: vec![], ..*self };
        for (a, axis) in self.view.axes.iter().enumerate() {
            let own = axis.dynamic.then(|| starts.next().expect("one start per dynamic axis"));
            let span = kept.iter().position(|&k| k == a).and_then(|k| spans.get(k)).copied().unwrap_or(Span::All);
            let (axis, start) = narrow_axis(*axis, own, span);
            out.view.axes[a] = axis;
            out.starts.extend(start);
        }
        out
    }
    /// Loads the elements of the view.
    #[track_caller]
    pub fn load(&self) -> Tile<T> {
        Tile::new(
            self.emit_access(Op::Load { from: self.operand, view: self.view.clone(), masked: false }, &self.starts),
        )
    }
    /// Loads the elements where the mask is true, and `other` elsewhere; masked elements are not read. They may be
    /// outside of the block, if a window with a run-time start extends beyond it.
    #[track_caller]
    pub fn load_masked(&self, mask: Tile<bool>, other: impl Choice<T>) -> Tile<T> {
        let other = other.choice_handle();
        let mut args = self.starts.clone();
        args.extend([mask.handle, other]);
        Tile::new(self.emit_access(Op::Load { from: self.operand, view: self.view.clone(), masked: true }, &args))
    }
    /// A mask of the positions along an axis that are inside of the array; other axes have extent 1.
    #[track_caller]
    pub fn valid(&self, axis: usize) -> Tile<bool> {
        Tile::new(self.emit_access(Op::Valid { of: self.operand, view: self.view.clone(), axis }, &self.starts))
    }
}

impl<T: Elem> Window<T, Writable> {
    /// Writes the tile to the view; elements outside of the array are dropped.
    #[track_caller]
    pub fn store(&self, tile: Tile<T>) {
        self.emit_store(tile.handle, None);
    }
    /// Writes the elements where the mask is true; the others may be outside of the block, as in
    /// [`Window::load_masked`].
    #[track_caller]
    pub fn store_masked(&self, tile: Tile<T>, mask: Tile<bool>) {
        self.emit_store(tile.handle, Some(mask.handle));
    }
    /// Writes `x` to every element of the view.
    #[track_caller]
    pub fn fill(&self, x: impl Choice<T>) {
        let to = self.shape().into_iter().map(pallas_ir::Dim::from).collect();
        let op = structural::Broadcast::to(to);
        let tile = context::emit(Op::Structural(op.into()), &[x.choice_handle()]);
        self.emit_store(tile, None);
    }
    /// Writes the tile to the view and returns what was there.
    #[track_caller]
    pub fn swap(&self, tile: Tile<T>) -> Tile<T> {
        let old = self.load();
        self.store(tile);
        old
    }
    /// Emits a store of `value`, masked if there is a mask.
    #[track_caller]
    fn emit_store(&self, value: Handle, mask: Option<Handle>) {
        let mut args = vec![value];
        args.extend(&self.starts);
        args.extend(mask);
        if context::check_same_kernel_call(self.generation) {
            context::emit_effect(
                Op::Store { to: self.operand, view: self.view.clone(), masked: mask.is_some() },
                &args,
            );
        }
    }
}

/// Converts a host size to the IR's integer type; a size beyond its range becomes the largest integer.
fn size_to_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Narrows an axis of a view, whose run-time start is `start`, to `span`; returns the new axis and its run-time start.
#[track_caller]
fn narrow_axis(axis: ViewAxis, start: Option<Handle>, span: Span) -> (ViewAxis, Option<Handle>) {
    let (offset, dynamic, size, stride, kept) = match span {
        Span::All => return (axis, start),
        Span::Fixed(i) => (i, None, 1, 1, false),
        Span::Slice(i, size, stride) => (size_to_i64(i), None, size, stride, true),
        Span::At(h) => (0, Some(h), 1, 1, false),
        Span::From(h, size, stride) => (0, Some(h), size, stride, true),
    };
    let end = offset.saturating_add(size_to_i64(size.saturating_sub(1).saturating_mul(stride))).saturating_add(1);
    if dynamic.is_none() && (size > 0 && (offset < 0 || end > size_to_i64(axis.size)) || stride == 0) {
        context::record_error(diag::view_out_of_bounds(offset, end, axis.size));
    }
    // The inner start counts in steps of the outer stride.
    let scaled = dynamic.map(|h| {
        if axis.stride == 1 {
            return h;
        }
        let by = context::emit_constant(Literal::int(DType::I32, axis.stride));
        context::emit(Op::Scalar(pallas_ir::ScalarOp::Mul), &[h, by])
    });
    let start = match (start, scaled) {
        (Some(a), Some(b)) => Some(context::emit(Op::Scalar(pallas_ir::ScalarOp::Add), &[a, b])),
        (a, b) => a.or(b),
    };
    let offset = axis.offset.saturating_add(offset.saturating_mul(axis.stride));
    let stride = axis.stride.saturating_mul(size_to_i64(stride));
    let view = ViewAxis { offset, dynamic: start.is_some(), size, stride, kept };
    (view, start)
}

macro_rules! refs {
    ($($(#[$doc:meta])+ $Ref:ident;)*) => {$(
        $(#[$doc])+
        #[derive(Debug)]
        pub struct $Ref<T> {
            operand: OperandId,
            generation: u32,
            element: PhantomData<fn() -> T>,
        }
        impl<T> Clone for $Ref<T> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<T> Copy for $Ref<T> {}
        impl<T: Elem> $Ref<T> {
            #[doc(hidden)]
            pub fn slot(slot: usize) -> Self {
                $Ref { operand: OperandId(slot as u32), generation: context::running_call_generation(), element: PhantomData }
            }
        }
    )*};
}
refs! {
    /// An input's current block.
    In;
    /// An output's current block: writable, and readable where it was written.
    Out;
    /// A buffer of one parallel program, which persists over its sequential steps and is undefined at the first.
    Scratch;
    /// A scalar-prefetch operand: readable element by element, also in index maps.
    Prefetch;
}
macro_rules! readable {
    ($($Ref:ident $Access:ident;)*) => {$(
        impl<T: Elem> $Ref<T> {
            #[track_caller]
            fn window(self) -> Window<T, $Access> {
                Window::whole_block(self.operand, self.generation)
            }
            /// The block's extents, without squeezed dimensions.
            #[track_caller]
            pub fn shape(self) -> Vec<usize> {
                self.window().shape()
            }
            /// A view of the block; axes that the index leaves out stay whole.
            #[track_caller]
            #[must_use]
            pub fn at(self, index: impl BlockIndex) -> Window<T, $Access> {
                self.window().at(index)
            }
            /// Loads the whole block.
            #[track_caller]
            pub fn load(self) -> Tile<T> {
                self.window().load()
            }
            /// Loads the elements where the mask is true; gives `other` elsewhere.
            #[track_caller]
            pub fn load_masked(self, mask: Tile<bool>, other: impl Choice<T>) -> Tile<T> {
                self.window().load_masked(mask, other)
            }
            /// A mask of the positions along an axis that are inside of the array; other axes have extent 1.
            #[track_caller]
            pub fn valid(self, axis: usize) -> Tile<bool> {
                self.window().valid(axis)
            }
        }
    )*};
}
readable! {
    In ReadOnly;
    Out Writable;
    Scratch Writable;
}
macro_rules! writable {
    ($($Ref:ident)*) => {$(
        impl<T: Elem> $Ref<T> {
            /// Writes the whole block; elements outside of the array are dropped.
            #[track_caller]
            pub fn store(self, tile: Tile<T>) {
                self.window().store(tile);
            }
            /// Writes the elements of the block where the mask is true.
            #[track_caller]
            pub fn store_masked(self, tile: Tile<T>, mask: Tile<bool>) {
                self.window().store_masked(tile, mask);
            }
            /// Writes `x` to every element of the block.
            #[track_caller]
            pub fn fill(self, x: impl Choice<T>) {
                self.window().fill(x);
            }
            /// Writes the whole block and returns what was there.
            #[track_caller]
            pub fn swap(self, tile: Tile<T>) -> Tile<T> {
                self.window().swap(tile)
            }
        }
    )*};
}
writable! { Out Scratch }

impl<T: Elem> Prefetch<T> {
    /// Reads an element of the table; there is one index per dimension.
    #[track_caller]
    pub fn at(self, index: impl ElementIndex) -> Scalar<T> {
        let index = index.handles();
        if !context::check_same_kernel_call(self.generation) {
            return Scalar::new(context::POISONED_HANDLE);
        }
        Scalar::new(context::emit(Op::Prefetch(self.operand), &index))
    }
}

/// Indices of one element: a number or run-time scalar per dimension.
pub trait ElementIndex {
    #[doc(hidden)]
    #[track_caller]
    fn handles(self) -> Vec<Handle>;
}
impl<A: Choice<i32>> ElementIndex for A {
    #[track_caller]
    fn handles(self) -> Vec<Handle> {
        vec![self.choice_handle()]
    }
}
macro_rules! element_index {
    ($($A:ident $a:ident $i:tt),*) => {
        impl<$($A: Choice<i32>),*> ElementIndex for ($($A,)*) {
            #[track_caller]
            fn handles(self) -> Vec<Handle> {
                vec![$(self.$i.choice_handle()),*]
            }
        }
    };
}
tuples! { element_index }

/// Emits the value of a scalar parameter of the kernel.
pub(crate) fn emit_parameter(operand: OperandId) -> Handle {
    context::emit(Op::Param(operand), &[])
}
