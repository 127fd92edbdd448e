//! Gathers that set elements of windows outside of their operand themselves, instead of a selection after them.
//!
//! ```text
//! %3 = clamp %2, 0, LAST; %4 = eq %2, %3; %5 = gather .. %1, %2; %6 = select %4, %5, FILL    ->    %6 = gather or FILL
//! ```
//! Windows outside are rare: testing the positions of a line costs less than a selection over all elements.
use pallas_ir::{AccessForm, Dim, Inst, Kernel, Literal, Op, ScalarOp, StructuralOp, Value};
use std::collections::HashMap;

/// A `select` between gathered elements and a constant that is fused into the gather: the result of the `select`, and
/// the constant, which stands for elements outside of the operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatherFill {
    pub(super) to: Value,
    pub(super) fill: Literal,
}

/// Finds each `select` between gathered elements and a constant that the gather can do itself: returns it by the
/// gather's result, and true for each value that is the result of such a `select`. Subtracts from `uses` the uses by
/// instructions that become unnecessary.
pub(super) fn find_gather_fills(kernel: &Kernel, uses: &mut [usize]) -> (HashMap<Value, GatherFill>, Vec<bool>) {
    let (mut found, mut is_made) = (HashMap::new(), vec![false; kernel.values.len()]);
    let mut definitions: HashMap<Value, &Inst> = HashMap::new();
    for inst in kernel.region(kernel.body).insts.iter().map(|&i| kernel.inst(i)) {
        if let (Op::Scalar(ScalarOp::Select), &[mask, gathered, fill]) = (&inst.op, &inst.args[..])
            && uses[gathered.index()] == 1
            && kernel.ty(inst.results[0]).shape == kernel.ty(gathered).shape
            && let Some(fill) = splat_constant(&definitions, fill)
            && let Some(gather) = definitions.get(&gathered)
            && is_in_bounds_mask(kernel, &definitions, mask, gather)
        {
            let to = inst.results[0];
            found.insert(gathered, GatherFill { to, fill });
            is_made[to.index()] = true;
            inst.args.iter().filter(|v| **v != gathered).for_each(|&v| remove_use_recursively(&definitions, uses, v));
        }
        inst.results.iter().for_each(|&v| _ = definitions.insert(v, inst));
    }
    (found, is_made)
}

/// Subtracts a use of a value and, if none is left, of the operands of the instruction that computes it.
fn remove_use_recursively(definitions: &HashMap<Value, &Inst>, uses: &mut [usize], v: Value) {
    uses[v.index()] -= 1;
    let Some(inst) = definitions.get(&v).filter(|_| uses[v.index()] == 0) else { return };
    let is_local =
        matches!(inst.op, Op::Scalar(_) | Op::Structural(StructuralOp::Broadcast(_) | StructuralOp::Reshape(_)));
    inst.args.iter().filter(|_| is_local).for_each(|&arg| remove_use_recursively(definitions, uses, arg));
}

/// Returns the constant that all elements of a value have; `None` if the value is not known to be one.
fn splat_constant(definitions: &HashMap<Value, &Inst>, v: Value) -> Option<Literal> {
    let inst = definitions.get(&v)?;
    match &inst.op {
        Op::Const(x) => Some(*x),
        Op::Structural(StructuralOp::Broadcast(_)) => splat_constant(definitions, inst.args[0]),
        _ => None,
    }
}

/// Returns true if `mask` is true exactly for the elements of a gather whose position is inside of the operand.
fn is_in_bounds_mask(kernel: &Kernel, definitions: &HashMap<Value, &Inst>, mask: Value, gather: &Inst) -> bool {
    let (Op::Structural(op @ StructuralOp::Gather(_)), &[from, index]) = (&gather.op, &gather.args[..]) else {
        return false;
    };
    let dims: Vec<Vec<Dim>> = [from, index].iter().map(|&v| kernel.ty(v).dims()).collect();
    let AccessForm::Gather { windows, .. } = op.access(&[&dims[0], &dims[1]]) else { return false };
    let &[last] = &windows.max_starts(&dims[0])[..] else { return false };
    // One position, and what is made of it, may be a scalar.
    let is_one = kernel.ty(index).elements() == 1;
    let plain = |v: Value| if is_one { scalar_source(kernel, definitions, v) } else { v };
    // Axes of the positions in the result.
    let (mask, axes) = match definitions.get(&mask) {
        Some(Inst { op: Op::Structural(StructuralOp::Broadcast(to)), args, .. }) => (args[0], to.dims.clone()),
        _ => (mask, (0..kernel.ty(mask).shape.len()).collect()),
    };
    let are_apart =
        windows.vector.is_some() || windows.index != axes || kernel.ty(mask).shape != kernel.ty(index).shape;
    if are_apart && !is_one {
        return false;
    }
    let index = plain(index);
    let Some(Inst { op: Op::Scalar(ScalarOp::Eq), args, .. }) = definitions.get(&plain(mask)) else { return false };
    let &[a, b] = &[plain(args[0]), plain(args[1])];
    let clamped = if a == index { b } else { a };
    let Some(Inst { op: Op::Scalar(ScalarOp::Clamp), args, .. }) = definitions.get(&clamped) else { return false };
    let is = |v: Value, x: i64| splat_constant(definitions, v).is_some_and(|found| found.as_i64() == x);
    let same = [a, b].contains(&index) && plain(args[0]) == index;
    let has_shape = is_one || kernel.ty(clamped).shape == kernel.ty(index).shape;
    same && has_shape && is(args[1], 0) && is(args[2], last)
}

/// Follows reshapes and broadcasts of a value with one element to the first value that has that element.
fn scalar_source(kernel: &Kernel, definitions: &HashMap<Value, &Inst>, mut v: Value) -> Value {
    while let Some(Inst { op: Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Broadcast(_)), args, .. }) =
        definitions.get(&v)
        && kernel.ty(v).elements() == 1
        && kernel.ty(args[0]).elements() == 1
    {
        v = args[0];
    }
    v
}
