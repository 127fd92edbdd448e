//! Comparison of a launch's outputs with the interpreter's.
#![warn(clippy::wildcard_enum_match_arm)]
use crate::{Array, Error, Result};
use pallas_codegen::interp::Data;
use pallas_ir::structural::AccessForm;
use pallas_ir::{At, DType, Diag, Dim, Kernel, Literal, Loc, Op, OperandId, Value};

/// Largest difference of 32- and 64-bit floats that counts as agreement, in units of their precision. In a kernel with
/// a fold of more additions the bound is the number of additions.
const TOLERANCE_ULPS: f64 = 1024.0;

/// Accepted distance of elements, in units of their type's precision.
struct ErrorBound {
    /// For 32- and 64-bit floats: the number of additions of the longest fold, at least [`TOLERANCE_ULPS`].
    wide: f64,
    /// For 16-bit floats: one for each time that a value is rounded to them, and two for the last one. A sum is rounded
    /// once, whatever its length.
    narrow: f64,
}

impl ErrorBound {
    fn from_kernel(kernel: &Kernel) -> ErrorBound {
        let mut bound = ErrorBound { wide: TOLERANCE_ULPS, narrow: 2.0 };
        kernel.walk(kernel.body, &mut |_, inst| {
            let narrow = |v: &&Value| matches!(kernel.ty(**v).dtype, DType::F16 | DType::Bf16);
            let moves = matches!(&inst.op, Op::Load { .. } | Op::Const(_) | Op::Param(_));
            bound.narrow += inst.results.iter().filter(narrow).filter(|_| !moves).count() as f64;
            let Op::Structural(op) = &inst.op else { return };
            let dims: Vec<Vec<Dim>> = inst.args.iter().map(|&v| kernel.ty(v).dims()).collect();
            let along =
                |axes: &[usize]| axes.iter().map(|&axis| kernel.ty(inst.args[0]).shape[axis]).product::<usize>();
            let additions = match op.access(&dims.iter().map(|d| &d[..]).collect::<Vec<_>>()) {
                AccessForm::Fold { axes, .. } => along(&axes),
                AccessForm::Scan { axis, .. } => along(&[axis]),
                AccessForm::Contract { contract, .. } => along(&contract.iter().map(|pair| pair.0).collect::<Vec<_>>()),
                AccessForm::Nest(nest) => nest.folded_count(),
                AccessForm::Map(_)
                | AccessForm::Flat
                | AccessForm::Arg { .. }
                | AccessForm::Gather { .. }
                | AccessForm::Scatter { .. }
                | AccessForm::Sort { .. }
                | AccessForm::Iota { .. }
                | AccessForm::Cast
                | AccessForm::Bitcast
                | AccessForm::Powi(_) => 0,
            };
            bound.wide = bound.wide.max(additions as f64);
        });
        ErrorBound { narrow: bound.narrow.min(TOLERANCE_ULPS), ..bound }
    }
}

/// Compares outputs with the interpreter's.
///
/// # Errors
/// The first element that differs, with its block and the line of the last store to its array.
pub(super) fn compare_outputs(kernel: &Kernel, reference: &[Array], outputs: &[Array]) -> Result<()> {
    let bound = ErrorBound::from_kernel(kernel);
    let names = pallas_device::output_indices(kernel).map(|i| (i, &kernel.operands[i]));
    for (((index, operand), want), got) in names.zip(reference).zip(outputs) {
        let (shape, want) = (want.shape(), Data::from_bytes(operand.dtype, &want.to_bytes()?));
        let got = Data::from_bytes(operand.dtype, &got.to_bytes()?);
        let values = (0..want.len()).map(|i| (want.get(i), got.get(i)));
        let Some((i, (a, b))) = values.enumerate().find(|(_, (a, b))| !is_within_bound(*a, *b, &bound)) else {
            continue;
        };
        let element = pallas_codegen::interp::datum::unflatten(i, shape);
        let block: Vec<usize> = element.iter().zip(&operand.block).map(|(i, b)| i / b.size().max(1)).collect();
        let message =
            format!("element {element:?} of `{}` (block {block:?}) is {b}, the interpreter has {a}", operand.name);
        let help = if has_repeated_body(kernel) {
            "the kernel amplifies rounding there; or its Rust code counts by itself: the interpreter runs the body at each \
             turn and in each program, a device what was traced once, so use `scalar(0)` in place of a number that changes; \
             or an execution is wrong: then report it"
        } else {
            "the kernel amplifies rounding there; or its Rust code gives something else at each run; or an execution is \
             wrong: then report it"
        };
        let diag = Diag::new("check", At::Op, message, help);
        return Err(Error::kernel(&kernel.name, last_store_loc(kernel, OperandId(index as u32)), "", diag));
    }
    Ok(())
}

/// Returns true if two elements of one type are equal, or floats that differ by rounding.
fn is_within_bound(a: Literal, b: Literal, bound: &ErrorBound) -> bool {
    let far = match a.dtype {
        DType::F64 => bound.wide * f64::EPSILON,
        DType::F16 => bound.narrow * 2f64.powi(-10),
        DType::Bf16 => bound.narrow * 2f64.powi(-7),
        DType::F32 => bound.wide * f64::from(f32::EPSILON),
        DType::I8
        | DType::U8
        | DType::I16
        | DType::U16
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::U64
        | DType::Bool => return a == b,
    };
    let (a, b) = (a.as_f64(), b.as_f64());
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= far * (1.0 + a.abs())
}

/// Returns true if the body runs more than once in a call, or a part of it does.
fn has_repeated_body(kernel: &Kernel) -> bool {
    !kernel.grid.is_empty() || kernel.insts.iter().any(|inst| matches!(inst.op, Op::For { .. } | Op::While))
}

/// Returns the line of the last store to an output.
fn last_store_loc(kernel: &Kernel, output: OperandId) -> Loc {
    let mut stores = kernel.insts.iter().zip(&kernel.locs).rev();
    let last = stores.find(|(inst, _)| matches!(&inst.op, Op::Store { to, .. } if *to == output));
    last.map_or(Loc::NONE, |(_, loc)| *loc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_agree_if_they_are_equal_and_floats_up_to_rounding() {
        let bound = ErrorBound { wide: TOLERANCE_ULPS, narrow: 3.0 };
        let agree = |a, b| is_within_bound(a, b, &bound);
        let agreed = |dtype, a: f64, b: f64| agree(Literal::new(dtype, a), Literal::new(dtype, b));
        assert!(!agreed(DType::I32, 1e7, 1e7 + 1.0), "a large integer is exact");
        assert!(agreed(DType::I32, 1e7, 1e7));
        let [a, b] = [1 << 60, (1 << 60) + 1].map(|n| Literal::int(DType::I64, n));
        assert!(!agree(a, b), "no double tells them apart");
        assert!(agreed(DType::F32, 1e7, 1e7 + 1.0) && agreed(DType::F32, 0.0, -0.0));
        // A sum that accumulates in 16 bits, and one that is rounded once.
        assert!(!agreed(DType::F16, 2944.0, 3000.0) && agreed(DType::F16, 3000.0, 3002.0));
        assert!(agreed(DType::F32, f64::NAN, f64::NAN) && !agreed(DType::F32, 1.0, 1.1));
    }
}
