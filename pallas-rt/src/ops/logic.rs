//! Comparisons and logical functions.
use super::elementwise_broadcast::{GraphOperand, Operand, apply_to_operands, cast};
use super::formula::{FormulaDtype, formulas, push_formula};
use super::reduce::reduce;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::{DType, Diag, E, Literal, Loc, ScalarOp};

formulas! {
    /// True where elements are infinite.
    Float is_inf(x) => x.abs().eq(x.like(f64::INFINITY));
    /// True where elements are infinite and positive.
    Float is_pos_inf(x) => x.eq(x.like(f64::INFINITY));
    /// True where elements are infinite and negative.
    Float is_neg_inf(x) => x.eq(x.like(f64::NEG_INFINITY));
    /// True where `|x - y| <= absolute + relative * |y|`; infinities are close to themselves, NaN to nothing.
    /// `jnp.isclose` has 1e-5 and 1e-8.
    Float is_close(x, other; relative: f64, absolute: f64) => close_formula(x, other, relative, absolute);
}

/// True where two numbers are close; see [`Array::is_close`].
fn close_formula<'g>(x: E<'g>, y: E<'g>, relative: f64, absolute: f64) -> E<'g> {
    let is_near = (x - y).abs().le(y.abs() * relative + absolute);
    (is_near & y.is_finite()) | x.eq(y)
}

/// Appends an operand cast to truth values.
pub(super) fn cast_to_bool(graph: &mut Graph, operand: GraphOperand) -> Result<GraphOperand, Diag> {
    Ok(match operand {
        GraphOperand::Var(v) => GraphOperand::Var(cast(graph, v, DType::Bool)?),
        GraphOperand::Bool(x) => GraphOperand::Bool(x),
        GraphOperand::Int(x) => GraphOperand::Bool(x != 0),
        GraphOperand::Float(x) => GraphOperand::Bool(x != 0.0),
    })
}

macro_rules! logical {
    ($($(#[$doc:meta])+ $name:ident($($other:ident)?) $Op:ident;)*) => {
        impl Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(&self $(, $other: impl Into<Operand>)?) -> Array {
                apply_to_operands(&[self.into() $(, $other.into())?], Loc::caller(), |graph, operands| {
                    let mut truths = vec![];
                    for &operand in operands {
                        truths.push(cast_to_bool(graph, operand)?);
                    }
                    super::elementwise_broadcast::push_elementwise(graph, ScalarOp::$Op, &truths)
                })
            }
        )*}
    };
}
logical! {
    /// True where both operands are not 0.
    logical_and(other) BitAnd;
    /// True where at least one operand is not 0.
    logical_or(other) BitOr;
    /// True where exactly one operand is not 0.
    logical_xor(other) BitXor;
    /// True where elements are 0.
    logical_not() Not;
}

/// Appends true, as an array of rank 0, if all elements are true.
fn push_all_true(graph: &mut Graph, v: Var) -> Result<Var, Diag> {
    reduce(graph, ScalarOp::BitAnd, v, &(..).into())
}

impl Array {
    /// True, as an array of rank 0, if all elements are close; see [`Array::is_close`].
    #[track_caller]
    #[must_use]
    pub fn allclose(&self, other: impl Into<Operand>, relative: f64, absolute: f64) -> Array {
        apply_to_operands(&[self.into(), other.into()], Loc::caller(), |graph, operands| {
            let is_close = push_formula(graph, FormulaDtype::Float, [operands[0], operands[1]], |[x, y], _| {
                close_formula(x, y, relative, absolute)
            })?;
            push_all_true(graph, is_close)
        })
    }

    /// True, as an array of rank 0, if shapes and all elements are equal.
    #[track_caller]
    #[must_use]
    pub fn array_equal(&self, other: &Array) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| {
            if graph.ty(v[0]).shape != graph.ty(v[1]).shape {
                return Ok(graph.literal(Literal::new(DType::Bool, 0.0)));
            }
            let is_equal = push_formula(
                graph,
                FormulaDtype::Any,
                [GraphOperand::Var(v[0]), GraphOperand::Var(v[1])],
                |[x, y], _| x.eq(y),
            )?;
            push_all_true(graph, is_equal)
        })
    }

    /// True, as an array of rank 0, if all elements are equal after broadcasting; false if the shapes do not broadcast.
    #[track_caller]
    #[must_use]
    pub fn array_equiv(&self, other: &Array) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| {
            let shapes = [graph.ty(v[0]).shape.clone(), graph.ty(v[1]).shape.clone()];
            if super::elementwise_broadcast::broadcast_shapes(&shapes).is_err() {
                return Ok(graph.literal(Literal::new(DType::Bool, 0.0)));
            }
            let is_equal = push_formula(
                graph,
                FormulaDtype::Any,
                [GraphOperand::Var(v[0]), GraphOperand::Var(v[1])],
                |[x, y], _| x.eq(y),
            )?;
            push_all_true(graph, is_equal)
        })
    }
}
