//! Elementwise functions that are formulas of operations.
use super::elementwise::{Meets, Operand, common_shape, common_type, on_operands, placed};
use crate::array::Array;
use pallas_graph::{Graph, Var};
use pallas_ir::emit::Id;
use pallas_ir::{DType, Diag, E, Loc};
use std::cell::RefCell;

/// The element type in which a formula is computed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum FormulaKind {
    /// That in which the operands meet.
    Any,
    /// The same, but i32 for truth values.
    Number,
    /// The same, but f32 for integers and truth values.
    Float,
}

/// A formula of operands that have one shape and one element type, which it gets as well.
pub(super) fn formula<const N: usize>(
    kind: FormulaKind,
    operands: [Operand; N],
    at: Loc,
    f: impl for<'g> Fn([E<'g>; N], DType) -> E<'g>,
) -> Array {
    on_operands(&operands, at, |graph, operands| {
        let operands: [Meets; N] = std::array::from_fn(|i| operands[i]);
        evaluate(graph, kind, operands, f)
    })
}

/// Appends a formula; see [`formula`].
pub(super) fn evaluate<const N: usize>(
    graph: &mut Graph,
    kind: FormulaKind,
    operands: [Meets; N],
    f: impl for<'g> Fn([E<'g>; N], DType) -> E<'g>,
) -> Result<Var, Diag> {
    let dtype = match (kind, common_type(graph, &operands)) {
        (FormulaKind::Number, DType::Bool) => DType::I32,
        (FormulaKind::Float, dtype) if !dtype.is_float() => DType::F32,
        (_, dtype) => dtype,
    };
    let shape = common_shape(graph, &operands)?;
    let mut vars = [Var(0); N];
    for (i, &operand) in operands.iter().enumerate() {
        vars[i] = placed(graph, i, operand, dtype, &shape)?;
    }
    let cell = RefCell::new(std::mem::take(graph));
    let result = f(vars.map(|v| E { to: &cell, id: Id(v.0) }), dtype).id;
    *graph = cell.into_inner();
    Ok(Var(result.0))
}

/// Methods of [`Array`] that are formulas: `FormulaKind name(operands; arguments) |values, dtype| value`.
macro_rules! formulas {
    ($(
        $(#[$doc:meta])+
        $FormulaKind:ident $name:ident($x:ident $(, $other:ident)* $(; $($arg:ident: $Arg:ty),+)?) $(as $dtype:ident)?
        => $value:expr;
    )*) => {
        impl $crate::array::Array {$(
            $(#[$doc])+
            #[track_caller]
            #[must_use]
            pub fn $name(
                &self $(, $other: impl Into<$crate::ops::Operand>)* $($(, $arg: $Arg)+)?
            ) -> $crate::array::Array {
                let operands = [$crate::ops::Operand::from(self) $(, $other.into())*];
                let at = pallas_ir::Loc::caller();
                let kind = $crate::ops::formula::FormulaKind::$FormulaKind;
                $crate::ops::formula::formula(kind, operands, at, |[$x $(, $other)*], _dtype| {
                    $(let $dtype = _dtype;)?
                    $value
                })
            }
        )*}
    };
}
pub(super) use formulas;
