//! Elementwise operations where NumPy's meaning for integers and truth values is not that of the operation table.
use super::elementwise_broadcast::{GraphOperand, cast, cast_and_broadcast, common_shape, push_elementwise as general};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Powi;
use pallas_ir::{At, DType, Diag, Literal, ScalarOp, StructuralOp};

/// Appends an operation on operands of the common type `dtype` if NumPy computes it otherwise for integers or truth
/// values than [`ScalarOp`] does, and integer powers; `None` where [`ScalarOp`] serves.
pub(super) fn push_integer_op(
    graph: &mut Graph,
    op: ScalarOp,
    dtype: DType,
    operands: &[GraphOperand],
) -> Option<Result<Var, Diag>> {
    use ScalarOp::*;
    let is_unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64);
    match (op, dtype) {
        (Pow, _) => push_integer_power(graph, dtype, operands),
        _ if dtype.is_float() => None,
        (Floor | Ceil | Trunc | Round, _) => Some(cast_first_operand(graph, operands, dtype)),
        (Abs, DType::Bool) => Some(cast_first_operand(graph, operands, dtype)),
        (Abs, _) if is_unsigned => Some(cast_first_operand(graph, operands, dtype)),
        (Neg, _) if is_unsigned => Some(general(graph, Sub, &[GraphOperand::Int(0), operands[0]])),
        (Sign, _) if is_unsigned => Some(general(graph, Minimum, &[operands[0], GraphOperand::Int(1)])),
        (Add | Maximum, DType::Bool) => Some(general(graph, BitOr, operands)),
        (Mul | Minimum, DType::Bool) => Some(general(graph, BitAnd, operands)),
        (Sub | Neg | Sign, DType::Bool) => {
            let message = format!("`{op}` of truth values");
            Some(Err(Diag::new(
                "dtype",
                At::Op,
                message,
                "cast them to numbers: `x.cast(DType::I32)`; `!x` is logical not",
            )))
        }
        (Rem | Lt | Le | Gt | Ge | Clamp | Fma, DType::Bool) => Some(push_op_as_i32(graph, op, operands)),
        _ => None,
    }
}

/// Appends the first operand, cast to `dtype` and broadcast to the common shape of all operands.
fn cast_first_operand(graph: &mut Graph, operands: &[GraphOperand], dtype: DType) -> Result<Var, Diag> {
    let shape = common_shape(graph, operands)?;
    cast_and_broadcast(graph, 0, operands[0], dtype, &shape)
}

/// Appends an operation on truth values, taken as i32.
fn push_op_as_i32(graph: &mut Graph, op: ScalarOp, operands: &[GraphOperand]) -> Result<Var, Diag> {
    let mut numbers = vec![];
    for &x in operands {
        numbers.push(match x {
            GraphOperand::Var(v) => GraphOperand::Var(cast(graph, v, DType::I32)?),
            GraphOperand::Bool(x) => GraphOperand::Int(i64::from(x)),
            GraphOperand::Float(_) | GraphOperand::Int(_) => x,
        });
    }
    general(graph, op, &numbers)
}

/// Appends a power by repeated products, for an exponent that is an integer of the host or for integer operands; `None`
/// for others.
fn push_integer_power(graph: &mut Graph, dtype: DType, operands: &[GraphOperand]) -> Option<Result<Var, Diag>> {
    if dtype == DType::Bool {
        return Some(push_op_as_i32(graph, ScalarOp::Pow, operands));
    }
    match (operands[0], operands[1]) {
        (_, GraphOperand::Int(n)) if n < 0 && !dtype.is_float() => {
            let message = format!("integers to the power {n}");
            Some(Err(Diag::new("power", At::Operand(1), message, "cast them to floats first")))
        }
        (GraphOperand::Var(v), GraphOperand::Int(n)) => {
            let exponent = i32::try_from(n).ok()?;
            Some(cast(graph, v, dtype).and_then(|v| graph.push(StructuralOp::from(Powi { exponent }), &[v])))
        }
        _ if dtype.is_float() => None,
        _ => Some(push_power_by_squaring(graph, dtype, operands)),
    }
}

/// Number of low bits of an exponent that integer powers read: a power of 64 or more wraps for all numbers but -1, 0
/// and 1.
const POWER_EXPONENT_BITS: u32 = 6;

/// Appends integers to the power of integers, by squaring. A negative exponent is taken modulo 64.
fn push_power_by_squaring(graph: &mut Graph, dtype: DType, operands: &[GraphOperand]) -> Result<Var, Diag> {
    let shape = common_shape(graph, operands)?;
    let mut base = cast_and_broadcast(graph, 0, operands[0], dtype, &shape)?;
    let mut exponent = cast_and_broadcast(graph, 1, operands[1], dtype, &shape)?;
    let [zero, one] = [0, 1].map(|n| graph.splat(Literal::int(dtype, n), &shape));
    let is_zero = graph.push(ScalarOp::Eq, &[base, zero])?;
    let is_raised = graph.push(ScalarOp::Ne, &[exponent, zero])?;
    let vanishes = graph.push(ScalarOp::BitAnd, &[is_zero, is_raised])?;
    let mut result = graph.push(ScalarOp::Select, &[vanishes, zero, one])?;
    for bit in 0..POWER_EXPONENT_BITS {
        let low = graph.push(ScalarOp::BitAnd, &[exponent, one])?;
        let is_set = graph.push(ScalarOp::Ne, &[low, zero])?;
        let product = graph.push(ScalarOp::Mul, &[result, base])?;
        result = graph.push(ScalarOp::Select, &[is_set, product, result])?;
        if bit + 1 < POWER_EXPONENT_BITS {
            base = graph.push(ScalarOp::Mul, &[base, base])?;
            exponent = graph.push(ScalarOp::Shr, &[exponent, one])?;
        }
    }
    Ok(result)
}
