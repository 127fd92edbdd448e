//! Elementwise operations; operands get one type and one shape as in NumPy.
use super::dtype_promotion::promote_types;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::scalar::SignatureType;
use pallas_ir::structural::{Broadcast, Cast};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp};

/// An operand of an elementwise operation: an array, or a number of the host, which takes the array's element type.
#[derive(Clone, Debug)]
pub enum Operand {
    /// An array.
    Array(Array),
    /// A floating-point number.
    Float(f64),
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
}

macro_rules! operands {
    ($($T:ty => $Variant:ident |$x:ident| $value:expr;)*) => {$(
        impl From<$T> for Operand {
            fn from($x: $T) -> Operand {
                Operand::$Variant($value)
            }
        }
    )*};
}
operands! {
    Array => Array |x| x;
    &Array => Array |x| x.clone();
    f64 => Float |x| x;
    f32 => Float |x| f64::from(x);
    i32 => Int |x| i64::from(x);
    i64 => Int |x| x;
    bool => Bool |x| x;
}

/// Makes an array by an elementwise operation on operands.
pub(super) fn elementwise(op: ScalarOp, operands: &[Operand], at: Loc) -> Array {
    apply_to_operands(operands, at, |graph, operands| push_elementwise(graph, op, operands))
}

/// Makes an array by appending `equations` to a graph: they get a variable for each operand that is an array, and the
/// other operands as numbers.
pub(super) fn apply_to_operands(
    operands: &[Operand],
    at: Loc,
    equations: impl FnOnce(&mut Graph, &[GraphOperand]) -> Result<Var, Diag>,
) -> Array {
    let array = |x: &'_ Operand| match x {
        Operand::Array(x) => Some(x.clone()),
        Operand::Float(_) | Operand::Int(_) | Operand::Bool(_) => None,
    };
    let arrays: Vec<Array> = operands.iter().filter_map(array).collect();
    apply(&arrays.iter().collect::<Vec<_>>(), at, |graph, vars| {
        let mut vars = vars.iter();
        let operands = operands.iter().map(|x| match x {
            Operand::Array(_) => GraphOperand::Var(*vars.next().expect("a variable for each array")),
            Operand::Float(x) => GraphOperand::Float(*x),
            Operand::Int(x) => GraphOperand::Int(*x),
            Operand::Bool(x) => GraphOperand::Bool(*x),
        });
        let operands: Vec<GraphOperand> = operands.collect();
        equations(graph, &operands)
    })
}

/// An operand in a graph: the variable of an array, or a number.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum GraphOperand {
    Var(Var),
    Float(f64),
    Int(i64),
    Bool(bool),
}

impl GraphOperand {
    /// Returns the variable, if the operand is an array.
    pub(super) fn var(self) -> Option<Var> {
        match self {
            GraphOperand::Var(v) => Some(v),
            GraphOperand::Float(_) | GraphOperand::Int(_) | GraphOperand::Bool(_) => None,
        }
    }
}

/// Returns the common element type of operands: that of the arrays, unless a number asks for another.
pub(super) fn common_dtype(graph: &Graph, operands: &[GraphOperand]) -> DType {
    let var = |x: &GraphOperand| x.var().map(|v| graph.ty(v).dtype);
    let has = |test: fn(&GraphOperand) -> bool| operands.iter().any(test);
    let is_float = has(|x| matches!(x, GraphOperand::Float(_)));
    let is_int = has(|x| matches!(x, GraphOperand::Int(_)));
    match operands.iter().filter_map(var).reduce(promote_types) {
        Some(dtype) if dtype.is_float() => dtype,
        _ if is_float => DType::F32,
        Some(DType::Bool) | None if is_int => DType::I32,
        Some(dtype) => dtype,
        None => DType::Bool,
    }
}

/// Returns the common shape of operands.
///
/// # Errors
/// Shapes that do not broadcast.
pub(super) fn common_shape(graph: &Graph, operands: &[GraphOperand]) -> Result<Vec<usize>, Diag> {
    let shape = |x: &GraphOperand| x.var().map(|v| graph.ty(v).shape.clone());
    broadcast_shapes(&operands.iter().filter_map(shape).collect::<Vec<_>>())
}

/// Appends operand number `operand_number`, cast to an element type and broadcast to a shape.
///
/// # Errors
/// An integer that the type does not hold.
pub(super) fn cast_and_broadcast(
    graph: &mut Graph,
    operand_number: usize,
    operand: GraphOperand,
    dtype: DType,
    shape: &[usize],
) -> Result<Var, Diag> {
    Ok(match operand {
        GraphOperand::Var(v) => {
            let v = cast(graph, v, dtype)?;
            graph.broadcast(v, shape)?
        }
        GraphOperand::Float(x) => splat(graph, Literal::new(dtype, x), shape)?,
        GraphOperand::Int(x) if dtype.is_float() => splat(graph, Literal::new(dtype, x as f64), shape)?,
        GraphOperand::Int(x) => {
            let literal = Literal::int(dtype, x);
            if literal.as_i64() != x {
                let message = format!("the number {x} beside an array of {dtype}");
                return Err(Diag::new(
                    "literal",
                    At::Operand(operand_number),
                    message,
                    "cast the array to a type that holds it",
                ));
            }
            splat(graph, literal, shape)?
        }
        GraphOperand::Bool(x) => splat(graph, Literal::new(dtype, f64::from(u8::from(x))), shape)?,
    })
}

/// Appends an array with `x` as every element.
///
/// # Errors
/// A shape with too many axes or elements.
pub(super) fn splat(graph: &mut Graph, x: Literal, shape: &[usize]) -> Result<Var, Diag> {
    let v = graph.literal(x);
    let to = shape.iter().map(|&n| Dim::from(n)).collect();
    if shape.is_empty() { Ok(v) } else { graph.push(StructuralOp::from(Broadcast::to(to)), &[v]) }
}

/// Appends an elementwise operation after casting its operands to one type and broadcasting them to one shape.
pub(super) fn push_elementwise(graph: &mut Graph, op: ScalarOp, operands: &[GraphOperand]) -> Result<Var, Diag> {
    let row = op.row();
    let is_open = |i: &usize| row.operands.get(*i).is_none_or(|(_, ty)| *ty == SignatureType::T);
    let open: Vec<GraphOperand> = (0..operands.len()).filter(is_open).map(|i| operands[i]).collect();
    let mut dtype = common_dtype(graph, &open);
    if let Some(found) = super::integers::push_integer_op(graph, op, dtype, operands) {
        return found;
    }
    // Functions of floats, and true division, take integers as floats.
    let is_exact = row.class.dtypes().contains(&dtype) && op != ScalarOp::Div;
    if !dtype.is_float() && !is_exact && row.class.dtypes().contains(&DType::F32) {
        dtype = DType::F32;
    }
    let shape = common_shape(graph, operands)?;
    let mut args = vec![];
    for (i, operand) in operands.iter().enumerate() {
        let dtype = match row.operands.get(i) {
            Some((_, SignatureType::Is(dtype))) => *dtype,
            _ => dtype,
        };
        args.push(cast_and_broadcast(graph, i, *operand, dtype, &shape)?);
    }
    graph.push(op, &args)
}

/// Appends a conversion, unless the variable already has the type.
pub(super) fn cast(graph: &mut Graph, v: Var, to: DType) -> Result<Var, Diag> {
    if graph.ty(v).dtype == to { Ok(v) } else { graph.push(StructuralOp::from(Cast { to }), &[v]) }
}

/// Returns the common shape of shapes: they are aligned at the last axis, and each axis is the same or 1.
///
/// # Errors
/// Axes of different extents, neither of which is 1.
pub(super) fn broadcast_shapes(shapes: &[Vec<usize>]) -> Result<Vec<usize>, Diag> {
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for (i, shape) in shapes.iter().enumerate() {
        for (to, &n) in out[rank - shape.len()..].iter_mut().zip(shape) {
            if *to != n && *to != 1 && n != 1 {
                let all: Vec<String> = shapes.iter().map(|s| format!("{s:?}")).collect();
                let message = format!("shapes {} do not broadcast: {n} meets {to}", all.join(" and "));
                let help = "axes are aligned at the last one, and each is the same or 1";
                return Err(Diag::new("broadcast", At::Operand(i), message, help));
            }
            *to = if *to == 1 { n } else { *to };
        }
    }
    Ok(out)
}

/// Elements of `yes` where `condition` is true, of `no` elsewhere; `jnp.where`.
///
/// ```
/// use pallas_rt::ops::select;
/// use pallas_rt::{Array};
/// let x = Array::from_slice(&[-1.0f32, 2.0], &[2])?;
/// assert_eq!(select(&x.gt(0.0), &x, 0.0).to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn select(condition: &Array, yes: impl Into<Operand>, no: impl Into<Operand>) -> Array {
    elementwise(ScalarOp::Select, &[condition.into(), yes.into(), no.into()], Loc::caller())
}

/// Declares the methods and operators of a row of the scalar table.
macro_rules! surface {
    ([$(#[$doc:meta])+] $Op:ident $name:ident ($x:ident $(, $arg:ident)*) function) => {};
    ([$(#[$doc:meta])+] $Op:ident $name:ident ($x:ident) operator $Trait:ident) => {
        surface! { @unary $Op $name $Trait Array }
        surface! { @unary $Op $name $Trait &Array }
    };
    (@unary $Op:ident $name:ident $Trait:ident $T:ty) => {
        impl std::ops::$Trait for $T {
            type Output = Array;
            #[track_caller]
            fn $name(self) -> Array {
                elementwise(ScalarOp::$Op, &[self.into()], Loc::caller())
            }
        }
    };
    ([$(#[$doc:meta])+] $Op:ident $name:ident ($x:ident, $arg:ident) operator $Trait:ident) => {
        impl<B: Into<Operand>> std::ops::$Trait<B> for Array {
            type Output = Array;
            #[track_caller]
            fn $name(self, other: B) -> Array {
                elementwise(ScalarOp::$Op, &[self.into(), other.into()], Loc::caller())
            }
        }
        impl<B: Into<Operand>> std::ops::$Trait<B> for &Array {
            type Output = Array;
            #[track_caller]
            fn $name(self, other: B) -> Array {
                elementwise(ScalarOp::$Op, &[self.into(), other.into()], Loc::caller())
            }
        }
        // One type of floats and one of integers, so that rustc infers that of a literal: `(0.5 * &x).exp()`.
        surface! { @left $Op $name $Trait f64 i32 }
    };
    (@left $Op:ident $name:ident $Trait:ident $($N:ty)*) => {$(
        impl std::ops::$Trait<&Array> for $N {
            type Output = Array;
            #[track_caller]
            fn $name(self, other: &Array) -> Array {
                elementwise(ScalarOp::$Op, &[self.into(), other.into()], Loc::caller())
            }
        }
        impl std::ops::$Trait<Array> for $N {
            type Output = Array;
            #[track_caller]
            fn $name(self, other: Array) -> Array {
                elementwise(ScalarOp::$Op, &[self.into(), other.into()], Loc::caller())
            }
        }
    )*};
    ([$(#[$doc:meta])+] $Op:ident $name:ident ($x:ident $(, $arg:ident)*) $surface:ident) => {
        impl Array {
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self $(, $arg: impl Into<Operand>)*) -> Array {
                elementwise(ScalarOp::$Op, &[self.into() $(, $arg.into())*], Loc::caller())
            }
        }
    };
}
macro_rules! surfaces {
    ($($(#[$doc:meta])+ $Op:ident $name:ident $T:ident $Class:ident ($($arg:ident: $Arg:ident),+) $Out:ident $($surface:ident)+;)*) => {
        $(surface! { [$(#[$doc])+] $Op $name ($($arg),+) $($surface)+ })*
    };
}
pallas_ir::for_each_scalar_op! { surfaces }
