//! Derivatives and batching of collectives inside of a `shard_map` or a `vmap`.
use super::TransformError;
use super::batch::repeat_along_new_axis;
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use crate::mesh::{Collective, CollectiveForm, SentPart};
use pallas_ir::structural::{Concat, Iota, Reduce, Slice, Transpose};
use pallas_ir::{At, DType, Diag, Literal, Loc, ScalarOp, StructuralOp};

/// The transpose of each kind of collective, by which reverse mode differentiates it. No method has a default.
pub(crate) trait CollectiveTransposeRule {
    /// Appends the transpose: returns the cotangent of the operand from that of the result; `None` for a collective
    /// without operand.
    fn push_operand_cotangent(&self, to: &mut Graph, op: &Collective, cotangent: Var) -> Option<Var>;
}

/// Refuses a collective that has no derivative: a fold by another operation than addition.
pub(super) fn check_linear(op: &Collective, at: Loc) -> Result<(), TransformError> {
    match op.first_member_form() {
        CollectiveForm::Fold(monoid, _) if monoid != ScalarOp::Add => {
            let message = format!("the derivative of `{}` by {monoid}", op.name());
            let help = "pass it a `stop_gradient` of its argument, or state the derivative by `custom_vjp`";
            Err(TransformError { at, diag: Diag::new("collective", At::Op, message, help) })
        }
        _ => Ok(()),
    }
}

/// Appends a collective between devices on operands with a batch axis in front. The axis of parts for or from the
/// devices stays the first one, so the batch axis is moved after it.
pub(super) fn push_batched_collective(to: &mut Graph, op: &Collective, x: Var) -> Var {
    let parts_first = |to: &mut Graph, x: Var| {
        let axes: Vec<usize> = [1, 0].into_iter().chain(2..to.ty(x).shape.len()).collect();
        to.push_valid(StructuralOp::from(Transpose { axes }), &[x])
    };
    let (takes_parts, gives_parts) = op.has_operand_and_result_member_axes();
    let x = if takes_parts { parts_first(to, x) } else { x };
    let made = to.push_valid(op.clone(), &[x]);
    if gives_parts { parts_first(to, made) } else { made }
}

/// Returns true if the result of a collective over a batch axis may differ between the elements of the batch;
/// `operand_differs` is true if its operand does.
pub(super) fn result_differs_in_batch(op: &Collective, operand_differs: bool) -> bool {
    match op.first_member_form() {
        CollectiveForm::Stack(SentPart::Whole) | CollectiveForm::Fold(_, SentPart::Whole) => false,
        CollectiveForm::Stack(SentPart::Part)
        | CollectiveForm::Fold(_, SentPart::Part)
        | CollectiveForm::Constant(_) => true,
        CollectiveForm::FromMember(_) => operand_differs || op.source_members().contains(&None),
        CollectiveForm::Own => operand_differs,
    }
}

/// Appends the operations on the whole batch that replace a collective over the batch axis of `size` elements. Returns
/// the result, and true if it has the batch axis; `operand` comes with the same bool.
pub(super) fn push_over_batch_axis(
    to: &mut Graph,
    op: &Collective,
    operand: Option<(Var, bool)>,
    size: usize,
) -> (Var, bool) {
    let differs = result_differs_in_batch(op, operand.is_some_and(|(_, has)| has));
    let Some((x, has)) = operand else { return (push_device_table(to, op), differs) };
    let of_all = |to: &mut Graph| if has { x } else { repeat_along_new_axis(to, x, size) };
    let reduced = |to: &mut Graph, monoid: ScalarOp| match (has, monoid) {
        (true, _) => to.push_valid(StructuralOp::from(Reduce::dropping(monoid, vec![0])), &[x]),
        (false, ScalarOp::Add) => {
            let ty = to.ty(x).clone();
            let x = to.cast(x, ty.dtype.accumulator());
            let count = to.splat(Literal::new(ty.dtype.accumulator(), size as f64), &ty.shape);
            let sum = to.push_valid(ScalarOp::Mul, &[x, count]);
            to.cast(sum, ty.dtype)
        }
        (false, _) => {
            let all = repeat_along_new_axis(to, x, size);
            to.push_valid(StructuralOp::from(Reduce::dropping(monoid, vec![0])), &[all])
        }
    };
    let result = match op.first_member_form() {
        // The first axis of the result lists the operands of all elements: it is the operand's batch axis.
        CollectiveForm::Stack(SentPart::Whole) => of_all(to),
        CollectiveForm::Stack(SentPart::Part) => {
            let all = of_all(to);
            let axes = [1, 0].into_iter().chain(2..to.ty(all).shape.len()).collect();
            to.push_valid(StructuralOp::from(Transpose { axes }), &[all])
        }
        // With `Piece::Part`, the first axis left by the fold, of parts, becomes the batch axis of the result.
        CollectiveForm::Fold(monoid, _) => reduced(to, monoid),
        CollectiveForm::FromMember(_) if differs => {
            let all = of_all(to);
            permute_first_axis(to, all, &op.source_members())
        }
        CollectiveForm::FromMember(_) | CollectiveForm::Own => x,
        CollectiveForm::Constant(_) => unreachable!("a table has no operand"),
    };
    (result, differs)
}

/// Appends an array with the number that a collective without operand, such as one that gives a device's index, has for
/// each element of the batch.
fn push_device_table(to: &mut Graph, op: &Collective) -> Var {
    let number = |k| {
        if let CollectiveForm::Constant(n) = op.kind.form_for_member(k) {
            n
        } else {
            unreachable!("only a table has no operand")
        }
    };
    let table: Vec<i32> = (0..op.group_size()).map(number).collect();
    if table.iter().copied().eq(0..table.len() as i32) {
        let iota = Iota { shape: constant_dims(&[table.len()]), axis: 0, dtype: DType::I32 };
        return to.push_valid(StructuralOp::from(iota), &[]);
    }
    let each: Vec<Var> = table.iter().map(|&n| to.splat(Literal::int(DType::I32, i64::from(n)), &[1])).collect();
    to.push_valid(StructuralOp::from(Concat { axis: 0 }), &each)
}

/// Rearranges the first axis of `x`: element `i` of the result is element `sources[i]` of `x`, or zeros if that is
/// `None`.
fn permute_first_axis(to: &mut Graph, x: Var, sources: &[Option<usize>]) -> Var {
    let ty = to.ty(x).clone();
    let mut parts = vec![];
    // A run of consecutive sources is one slice.
    for run in sources.chunk_by(|a, b| a.map(|a| a + 1) == *b) {
        let size = [&[run.len()], &ty.shape[1..]].concat();
        parts.push(match run[0] {
            None => to.splat(Literal::new(ty.dtype, 0.0), &size),
            Some(first) => {
                let mut start = vec![0; size.len()];
                start[0] = first as i64;
                let stride = vec![1; size.len()];
                to.push_valid(StructuralOp::from(Slice { start, size: constant_dims(&size), stride }), &[x])
            }
        });
    }
    match parts[..] {
        [one] => one,
        _ => to.push_valid(StructuralOp::from(Concat { axis: 0 }), &parts),
    }
}
