//! Faults of the values that an operation computes: integers that overflow, and NaN made from numbers.
use super::datum::{Datum, flatten, unflatten};
use super::eval;
use super::fault::Fault;
use super::machine::Machine;
use super::scalar_eval;
use pallas_ir::{AccessForm, DType, Loc, Op, ScalarOp, StructuralOp, Type};

/// Checks the result of a pure operation: integers of 8 and 16 bits must not overflow and, if `finds_nans` is set, no
/// NaN may come from operands without NaN.
///
/// # Errors
/// A fault with the code `overflow` or `nan`.
pub(super) fn check_overflow_and_nan(
    machine: &Machine,
    op: &Op,
    args: &[&Datum],
    result: &Datum,
    loc: Loc,
) -> Result<(), Fault> {
    if !machine.kernel().allow.overflow && is_narrow_integer(result.ty.dtype) {
        check_overflow(machine, op, args, result, loc)?;
    }
    if machine.finds_nans && result.ty.dtype.is_float() && matches!(op, Op::Scalar(_) | Op::Structural(_)) {
        check_nan(machine, op, args, result, loc)?;
    }
    Ok(())
}

/// Returns true for integer types so small that ordinary numbers overflow them.
fn is_narrow_integer(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16)
}

/// Compares a result with that of the same operation in 64 bits, and reports a difference as overflow.
fn check_overflow(machine: &Machine, op: &Op, args: &[&Datum], result: &Datum, loc: Loc) -> Result<(), Fault> {
    use ScalarOp::{Abs, Add, Fma, Mul, Neg, Sub};
    let wide_type = Type { dtype: DType::I64, ..result.ty.clone() };
    let wide: Vec<Datum> = args.iter().map(|x| x.cast(DType::I64)).collect();
    let wide: Vec<&Datum> = wide.iter().collect();
    let exact = match op {
        Op::Scalar(op @ (Add | Sub | Mul | Neg | Abs | Fma)) => scalar_eval::eval_scalar(*op, &wide, wide_type),
        Op::Structural(op) if is_arithmetic(op, args) => match eval::eval_structural(op, &wide, wide_type) {
            Ok(exact) => exact,
            Err(_) => return Ok(()),
        },
        _ => return Ok(()),
    };
    let differs = |&i: &usize| !result.is_poison(i) && result.data.get(i).as_i64() != exact.data.get(i).as_i64();
    let Some(i) = (0..result.data.len()).find(differs) else { return Ok(()) };
    let (dtype, bits) = (result.ty.dtype, 8 * result.ty.dtype.bytes() as u32);
    let (lowest, highest) = match dtype {
        DType::I8 | DType::I16 => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        _ => (0, (1i64 << bits) - 1),
    };
    let message = format!(
        "{} is {}, and {dtype} ends at {lowest} and {highest}",
        describe_result_element(op, args, result, i),
        exact.data.get(i).as_i64()
    );
    let help =
        "compute in i32, `x.cast::<i32>()`; if integers are to wrap around, say `allow(overflow)` in `#[kernel(..)]`";
    Err(machine.fault("overflow", loc, message, help))
}

/// Returns true for structural operations that add or multiply elements.
fn is_arithmetic(op: &StructuralOp, args: &[&Datum]) -> bool {
    match eval::access_form(op, args) {
        AccessForm::Contract { .. } | AccessForm::Powi(_) => true,
        AccessForm::Fold { op, .. } | AccessForm::Scan { op, .. } => matches!(op, ScalarOp::Add | ScalarOp::Mul),
        AccessForm::Nest(nest) => matches!(nest.op, ScalarOp::Add | ScalarOp::Mul),
        AccessForm::Map(_)
        | AccessForm::Flat
        | AccessForm::Arg { .. }
        | AccessForm::Gather { .. }
        | AccessForm::Scatter { .. } => false,
        AccessForm::Sort { .. } | AccessForm::Iota { .. } | AccessForm::Cast | AccessForm::Bitcast => false,
    }
}

/// Reports a NaN in the result if no operand has one.
fn check_nan(machine: &Machine, op: &Op, args: &[&Datum], result: &Datum, loc: Loc) -> Result<(), Fault> {
    let is_nan = |x: &Datum, i: usize| !x.is_poison(i) && x.data.get(i).as_f64().is_nan();
    let first = |x: &Datum| (0..x.data.len()).find(|&i| is_nan(x, i));
    let Some(i) = first(result) else { return Ok(()) };
    if args.iter().any(|x| x.ty.dtype.is_float() && first(x).is_some()) {
        return Ok(());
    }
    let message = format!("{} is NaN, and no operand is", describe_result_element(op, args, result, i));
    Err(machine.fault("nan", loc, message, "mask what the operation is not defined for before it, with `select`"))
}

/// Describes an element of a result in words: `div of 0.0 and 0.0, element [3] of the tile,`.
fn describe_result_element(op: &Op, args: &[&Datum], result: &Datum, i: usize) -> String {
    let at = unflatten(i, &result.ty.shape);
    let (name, of) = match op {
        Op::Scalar(op) => {
            let operand = |x: &&Datum| {
                // Axes of extent 1 are broadcast, and a scalar has any shape.
                let own = |(&k, &n): (&usize, &usize)| if n == 1 { 0 } else { k };
                let from: Vec<usize> = at.iter().zip(&x.ty.shape).map(own).collect();
                x.data.get(flatten(&from, &x.ty.shape)).to_string()
            };
            (op.to_string(), args.iter().map(operand).collect::<Vec<_>>().join(" and "))
        }
        Op::Structural(op) => {
            (op.name().to_string(), args.iter().map(|x| x.ty.to_string()).collect::<Vec<_>>().join(" and "))
        }
        _ => (String::new(), String::new()),
    };
    let place = if at.is_empty() { String::new() } else { format!(", element {at:?} of the tile,") };
    format!("`{name}` of {of}{place}")
}
