//! New arrays. In a function that is being traced they are operations of that function, and take no memory of their
//! own; elsewhere they are on the client of `Client::from_env`.
use super::elementwise_broadcast::{
    GraphOperand, Operand, apply_to_operands, broadcast_shapes, cast, cast_and_broadcast, push_elementwise,
};
use super::formula::{FormulaDtype, push_formula};
use super::shape::reshape;
use crate::array::{Array, Client};
use crate::jit::{apply, innermost_trace_client, mesh_sharding};
use pallas_graph::mesh::ShardingConstraint;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Iota;
use pallas_ir::{At, DType, Diag, Dim, Elem, Loc, ScalarOp, StructuralOp};
use std::borrow::Borrow;

/// Appends an array of this shape whose elements are their own coordinates along an axis, rounded if the element type
/// does not hold them.
pub(super) fn push_coordinates(graph: &mut Graph, shape: &[usize], axis: usize, dtype: DType) -> Result<Var, Diag> {
    // Whole numbers up to this one are exact; blocks add theirs to a first one in the type itself.
    let exact = match dtype {
        DType::Bf16 => 1 << 8,
        DType::F16 => 1 << 11,
        DType::F32 => 1 << 24,
        _ => usize::MAX,
    };
    let own = if shape.get(axis).is_some_and(|&n| n > exact) { DType::I32 } else { dtype };
    let shape = shape.iter().map(|&n| Dim::from(n)).collect();
    let at = graph.push(StructuralOp::from(Iota { shape, axis, dtype: own }), &[])?;
    cast(graph, at, dtype)
}

/// Appends the numbers from 0 to `count` - 1 in the type in which a formula for `dtype` is computed: f64 for f64, else
/// f32.
fn float_coordinates(graph: &mut Graph, count: usize, dtype: DType) -> Result<Var, Diag> {
    push_coordinates(graph, &[count], 0, if dtype == DType::F64 { DType::F64 } else { DType::F32 })
}

/// Numbers in nested arrays of Rust, the argument of [`array`](fn@array). They are f32, i32 or bool, so that rustc
/// infers the type of literals.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no nested array of numbers",
    note = "elements are f32, i32 or bool; `Array::from_slice` takes other types and slices"
)]
pub trait Nested {
    /// Type of the numbers in the innermost Rust arrays.
    type Number: Elem;
    /// Extents, from the outermost array to the innermost.
    fn shape() -> Vec<usize>;
    /// Appends the numbers in row-major order.
    fn collect(&self, to: &mut Vec<Self::Number>);
}
macro_rules! nested {
    ($($T:ty)*) => {$(
        impl Nested for $T {
            type Number = $T;
            fn shape() -> Vec<usize> {
                vec![]
            }
            fn collect(&self, to: &mut Vec<$T>) {
                to.push(*self);
            }
        }
    )*};
}
nested!(f32 i32 bool);

impl<T: Nested, const N: usize> Nested for [T; N] {
    type Number = T::Number;
    fn shape() -> Vec<usize> {
        [vec![N], T::shape()].concat()
    }
    fn collect(&self, to: &mut Vec<T::Number>) {
        self.iter().for_each(|x| x.collect(to));
    }
}

/// An array of nested Rust arrays of f32, i32 or bool; literals without a suffix are f32 or i32.
///
/// ```
/// use pallas_rt::ops;
/// let x = ops::array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
/// assert_eq!((x.shape(), x.sum(1).to_vec::<f32>()?), (&[2, 3][..], vec![6.0, 15.0]));
/// assert_eq!(ops::array(3).to_vec::<i32>()?, [3]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn array<T: Nested>(numbers: T) -> Array {
    let (mut all, shape) = (vec![], T::shape());
    numbers.collect(&mut all);
    let made = innermost_trace_client().map_or_else(Client::from_env, Ok).and_then(|client| client.array(&all, &shape));
    made.unwrap_or_else(|error| Array::new_poisoned(error, Client::cpu(), T::Number::DTYPE, &shape))
}

/// An array with `value`, converted to an element type, as every element.
#[track_caller]
#[must_use]
pub fn full(shape: &[usize], value: impl Into<Operand>, dtype: DType) -> Array {
    apply_to_operands(&[value.into()], Loc::caller(), |graph, operands| {
        cast_and_broadcast(graph, 0, operands[0], dtype, shape)
    })
}

/// An array of zeros, or of `false`.
///
/// ```
/// use pallas_rt::{ir::DType, jit, ops, Array};
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let f = jit(|x: &Array| x + ops::zeros(&[2], DType::F32));
/// assert_eq!(f(&x)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn zeros(shape: &[usize], dtype: DType) -> Array {
    full(shape, false, dtype)
}

/// An array of ones, or of `true`.
#[track_caller]
#[must_use]
pub fn ones(shape: &[usize], dtype: DType) -> Array {
    full(shape, true, dtype)
}

/// Numbers from `start` up to `stop`, which is not included, at a distance of `step`.
///
/// ```
/// use pallas_rt::{ir::DType, ops::arange};
/// assert_eq!(arange(2, 9, 3, DType::I32).to_vec::<i32>()?, [2, 5, 8]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn arange(start: impl Into<f64>, stop: impl Into<f64>, step: impl Into<f64>, dtype: DType) -> Array {
    let (start, stop, step) = (start.into(), stop.into(), step.into());
    apply(&[], Loc::caller(), |graph, _| {
        let count = ((stop - start) / step).ceil();
        if !count.is_finite() || dtype == DType::Bool {
            let message = format!("arange from {start} to {stop} by {step} of {dtype}");
            return Err(Diag::new("arange", At::Op, message, "finite numbers, a step that is not 0, a number type"));
        }
        let count = count.max(0.0) as usize;
        if dtype.is_float() {
            let at = float_coordinates(graph, count, dtype)?;
            let numbers = push_formula(graph, FormulaDtype::Any, [GraphOperand::Var(at)], |[x], _| x * step + start)?;
            return cast(graph, numbers, dtype);
        }
        if [start, step].iter().any(|x| x.fract() != 0.0) {
            let message = format!("arange from {start} by {step} of {dtype}");
            return Err(Diag::new("arange", At::Op, message, "whole numbers, or a float type"));
        }
        let at = push_coordinates(graph, &[count], 0, dtype)?;
        // Integers wrap, so a step backwards is right for unsigned ones too.
        let number = |graph: &mut Graph, x: f64| graph.literal(pallas_ir::Literal::int(dtype, x as i64));
        let (step, start) = (number(graph, step), number(graph, start));
        let scaled = push_elementwise(graph, ScalarOp::Mul, &[GraphOperand::Var(at), GraphOperand::Var(step)])?;
        push_elementwise(graph, ScalarOp::Add, &[GraphOperand::Var(scaled), GraphOperand::Var(start)])
    })
}

/// Appends `count` numbers from `start` to `stop`, both included.
fn push_linspace(graph: &mut Graph, start: f64, stop: f64, count: usize, dtype: DType) -> Result<Var, Diag> {
    let at = float_coordinates(graph, count, dtype)?;
    let last = count.saturating_sub(1) as f64;
    push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(at)], |[i], _| {
        let part = i / last.max(1.0);
        let between = (part.like(1.0) - part) * start + part * stop;
        // The end itself, not what rounding leaves of it.
        if last == 0.0 { between } else { i.eq(i.like(last)).select(i.like(stop), between) }
    })
}

/// `count` numbers at equal distances from `start` to `stop`, both included.
#[track_caller]
#[must_use]
pub fn linspace(start: impl Into<f64>, stop: impl Into<f64>, count: usize, dtype: DType) -> Array {
    let (start, stop) = (start.into(), stop.into());
    apply(&[], Loc::caller(), |graph, _| {
        let numbers = push_linspace(graph, start, stop, count, dtype)?;
        if dtype.is_float() {
            return cast(graph, numbers, dtype);
        }
        let down = push_elementwise(graph, ScalarOp::Floor, &[GraphOperand::Var(numbers)])?;
        cast(graph, down, dtype)
    })
}

/// `base` to the powers that [`linspace`] gives.
#[track_caller]
#[must_use]
pub fn logspace(start: impl Into<f64>, stop: impl Into<f64>, count: usize, base: f64, dtype: DType) -> Array {
    let (start, stop) = (start.into(), stop.into());
    apply(&[], Loc::caller(), |graph, _| {
        let exponents = push_linspace(graph, start, stop, count, dtype)?;
        let powers =
            push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(exponents)], |[x], _| x.like(base).pow(x))?;
        cast(graph, powers, dtype)
    })
}

/// `count` numbers at equal ratios from `start` to `stop`, both included and of one sign.
#[track_caller]
#[must_use]
pub fn geomspace(start: impl Into<f64>, stop: impl Into<f64>, count: usize, dtype: DType) -> Array {
    let (start, stop) = (start.into(), stop.into());
    apply(&[], Loc::caller(), |graph, _| {
        let is_one_sign = start * stop > 0.0;
        if !is_one_sign {
            let message = format!("geomspace from {start} to {stop}");
            return Err(Diag::new("geomspace", At::Op, message, "two numbers of one sign, neither of them 0"));
        }
        let exponents = push_linspace(graph, 0.0, (stop / start).ln(), count, dtype)?;
        let numbers =
            push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(exponents)], |[x], _| x.exp() * start)?;
        cast(graph, numbers, dtype)
    })
}

/// The order of the first two axes of [`meshgrid`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Indexing {
    /// The first array along axis 1, the second one along axis 0: NumPy's default.
    Xy,
    /// The arrays along the axes in their order.
    Ij,
}

/// Coordinates of a grid: for each array of one axis, its elements along an axis of the common shape.
#[track_caller]
#[must_use]
pub fn meshgrid<A: Borrow<Array>>(arrays: &[A], indexing: Indexing) -> Vec<Array> {
    let at = Loc::caller();
    let mut extents: Vec<usize> = arrays.iter().map(|x| x.borrow().len()).collect();
    let swaps = indexing == Indexing::Xy && extents.len() > 1;
    if swaps {
        extents.swap(0, 1);
    }
    let each = |(i, x): (usize, &A)| {
        apply(&[x.borrow()], at, |graph, v| {
            let ty = graph.ty(v[0]).clone();
            if ty.shape.len() > 1 {
                let message = format!("meshgrid of {ty}");
                return Err(Diag::new("meshgrid", At::Op, message, "arrays of one axis: `x.ravel()`"));
            }
            let axis = if swaps && i < 2 { 1 - i } else { i };
            let mut shape = vec![1; extents.len()];
            shape[axis] = ty.elements();
            let own = reshape(graph, v[0], &shape)?;
            graph.broadcast(own, &extents)
        })
    };
    arrays.iter().enumerate().map(each).collect()
}

/// Coordinates of every position of a shape: the first axis of the result has an element for each axis of the shape.
#[track_caller]
#[must_use]
pub fn indices(shape: &[usize], dtype: DType) -> Array {
    apply(&[], Loc::caller(), |graph, _| {
        let mut all = vec![];
        for axis in 0..shape.len() {
            let own = push_coordinates(graph, shape, axis, dtype)?;
            all.push(reshape(graph, own, &[&[1], shape].concat())?);
        }
        super::join::push_concatenate(graph, &all, 0)
    })
}

/// Declares windows as `name |position, last position| value`; a window of one element is 1.
macro_rules! windows {
    ($($(#[$doc:meta])+ $name:ident |$i:ident, $last:ident| $value:expr;)*) => {$(
        $(#[$doc])+
        #[track_caller]
        #[must_use]
        pub fn $name(count: usize) -> Array {
            apply(&[], Loc::caller(), |graph, _| {
                let at = float_coordinates(graph, count, DType::F32)?;
                let $last = count.saturating_sub(1) as f64;
                push_formula(graph, FormulaDtype::Float, [GraphOperand::Var(at)], |[$i], _| if count == 1 { $i + 1.0 } else { $value })
            })
        }
    )*};
}
windows! {
    /// The triangular window of `count` elements, f32.
    bartlett |i, last| (i * (2.0 / last) - 1.0).abs() * -1.0 + 1.0;
    /// The Hann window of `count` elements, f32.
    hanning |i, last| (i * (std::f64::consts::TAU / last)).cos() * -0.5 + 0.5;
    /// The Hamming window of `count` elements, f32.
    hamming |i, last| (i * (std::f64::consts::TAU / last)).cos() * -0.46 + 0.54;
    /// The Blackman window of `count` elements, f32.
    blackman |i, last| {
        let angle = i * (std::f64::consts::TAU / last);
        angle.cos() * -0.5 + (angle * 2.0).cos() * 0.08 + 0.42
    };
}

/// The shape to which shapes broadcast; `jnp.broadcast_shapes`.
///
/// # Errors
/// [`Error::Operation`](crate::Error::Operation) with the caller's line: axes of different extents, neither of which is
/// 1.
#[track_caller]
pub fn broadcast_shape(shapes: &[&[usize]]) -> crate::Result<Vec<usize>> {
    let shapes: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
    broadcast_shapes(&shapes).map_err(|diag| crate::Error::operation(Loc::caller(), diag))
}

impl Array {
    /// An array of one number in this array's shape and element type. If the array is sharded on a mesh, the result is
    /// sharded as well; in a traced function the operations that read it decide, and `shard_alike` ties it to the
    /// array.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
    /// let w = device_put(&Array::full(&[4, 8], 1.0f32)?, &NamedSharding::new(&mesh, P("data")))?;
    /// assert_eq!(w.zeros_like().sharding().expect("it is sharded").blocks_per_dim(), [2, 1]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn full_like(&self, value: impl Into<Operand>) -> Array {
        let division = mesh_sharding(self);
        apply_to_operands(&[self.into(), value.into()], Loc::caller(), |graph, operands| {
            let v = operands[0].var().expect("the first operand is an array");
            let ty = graph.ty(v).clone();
            let all = cast_and_broadcast(graph, 1, operands[1], ty.dtype, &ty.shape)?;
            // Nothing that the elements are computed from is sharded.
            match division {
                Some(placed) => graph.push(ShardingConstraint(placed), &[all]),
                None => Ok(all),
            }
        })
    }

    /// Zeros in the array's shape and element type.
    #[track_caller]
    #[must_use]
    pub fn zeros_like(&self) -> Array {
        self.full_like(false)
    }

    /// Ones in the array's shape and element type.
    #[track_caller]
    #[must_use]
    pub fn ones_like(&self) -> Array {
        self.full_like(true)
    }
}
