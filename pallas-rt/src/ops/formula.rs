//! Elementwise functions that are formulas of operations.
use super::elementwise_broadcast::{
    GraphOperand, Operand, apply_to_operands, cast_and_broadcast, common_dtype, common_shape,
};
use crate::array::Array;
use pallas_graph::{Graph, Var};
use pallas_ir::emit::ValueId;
use pallas_ir::{DType, Diag, E, Loc};
use std::cell::RefCell;

/// Rule for the element type in which a formula is computed, by the common type of its operands.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum FormulaDtype {
    /// The common type of the operands.
    Any,
    /// The common type of the operands, but i32 for truth values.
    Number,
    /// The common type of the operands, but f32 for integers and truth values.
    Float,
}

/// Makes an array by a formula of operands, which get one shape and one element type; the formula gets the type too.
pub(super) fn apply_formula<const N: usize>(
    kind: FormulaDtype,
    operands: [Operand; N],
    at: Loc,
    f: impl for<'g> Fn([E<'g>; N], DType) -> E<'g>,
) -> Array {
    apply_to_operands(&operands, at, |graph, operands| {
        let operands: [GraphOperand; N] = std::array::from_fn(|i| operands[i]);
        push_formula(graph, kind, operands, f)
    })
}

/// Appends the value of a formula; operands are as in [`apply_formula`].
pub(super) fn push_formula<const N: usize>(
    graph: &mut Graph,
    kind: FormulaDtype,
    operands: [GraphOperand; N],
    f: impl for<'g> Fn([E<'g>; N], DType) -> E<'g>,
) -> Result<Var, Diag> {
    let dtype = match (kind, common_dtype(graph, &operands)) {
        (FormulaDtype::Number, DType::Bool) => DType::I32,
        (FormulaDtype::Float, dtype) if !dtype.is_float() => DType::F32,
        (_, dtype) => dtype,
    };
    let shape = common_shape(graph, &operands)?;
    let mut vars = [Var(0); N];
    for (i, &operand) in operands.iter().enumerate() {
        vars[i] = cast_and_broadcast(graph, i, operand, dtype, &shape)?;
    }
    let cell = RefCell::new(std::mem::take(graph));
    let result = f(vars.map(|v| E { to: &cell, id: ValueId(v.0) }), dtype).id;
    *graph = cell.into_inner();
    Ok(Var(result.0))
}

/// Declares methods of [`Array`] by formulas: `FormulaDtype name(operands; arguments) => value`.
macro_rules! formulas {
    ($(
        $(#[$doc:meta])+
        $FormulaDtype:ident $name:ident($x:ident $(, $other:ident)* $(; $($arg:ident: $Arg:ty),+)?) $(as $dtype:ident)?
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
                let kind = $crate::ops::formula::FormulaDtype::$FormulaDtype;
                $crate::ops::formula::apply_formula(kind, operands, at, |[$x $(, $other)*], _dtype| {
                    $(let $dtype = _dtype;)?
                    $value
                })
            }
        )*}
    };
}
pub(super) use formulas;
