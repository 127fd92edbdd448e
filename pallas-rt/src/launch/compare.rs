//! A launch's outputs held against the interpreter's.
#![warn(clippy::wildcard_enum_match_arm)]
use crate::device;
use crate::interp::Data;
use crate::{Array, Error, Result};
use pallas_ir::{At, DType, Diag, Kernel, Loc, Op, OperandId};

/// Largest relative difference that counts as agreement, in units of the element type's precision.
const TOLERANCE: f64 = 1024.0;

/// Compares outputs with the interpreter's.
///
/// # Errors
/// The first element that differs, with its block and the line of the last store to its array.
pub(super) fn compare(kernel: &Kernel, reference: &[Array], outputs: &[Array]) -> Result<()> {
    let names = device::outputs(kernel).map(|i| (i, &kernel.operands[i]));
    for (((index, operand), want), got) in names.zip(reference).zip(outputs) {
        let (shape, want) = (want.shape(), Data::from_bytes(operand.dtype, &want.to_bytes()?));
        let got = Data::from_bytes(operand.dtype, &got.to_bytes()?);
        let values = (0..want.len()).map(|i| (want.get(i).as_f64(), got.get(i).as_f64()));
        let Some((i, (a, b))) = values.enumerate().find(|(_, (a, b))| !agree(operand.dtype, *a, *b)) else { continue };
        let element = crate::interp::datum::unflatten(i, shape);
        let block: Vec<usize> = element.iter().zip(&operand.block).map(|(i, b)| i / b.size().max(1)).collect();
        let message =
            format!("element {element:?} of `{}` (block {block:?}) is {b}, the interpreter has {a}", operand.name);
        let help = "either the kernel amplifies rounding there, or an execution is wrong: then report it";
        let diag = Diag::new("check", At::Op, message, help);
        return Err(Error::kernel(&kernel.name, last_store(kernel, OperandId(index as u32)), "", diag));
    }
    Ok(())
}

fn agree(dtype: DType, a: f64, b: f64) -> bool {
    let epsilon = match dtype {
        DType::F64 => f64::EPSILON,
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
        DType::F32 => f64::from(f32::EPSILON),
        // Integers and truth values that differ do so by 1.
        DType::I8
        | DType::U8
        | DType::I16
        | DType::U16
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::U64
        | DType::Bool => f64::from(f32::EPSILON),
    };
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= TOLERANCE * epsilon * (1.0 + a.abs())
}

fn last_store(kernel: &Kernel, output: OperandId) -> Loc {
    let mut stores = kernel.insts.iter().zip(&kernel.locs).rev();
    let last = stores.find(|(inst, _)| matches!(&inst.op, Op::Store { to, .. } if *to == output));
    last.map_or(Loc::NONE, |(_, loc)| *loc)
}
