//! Casts that products make on their own: a few rows are multiplied with f16, bf16 or bytes as they lie in memory, and what
//! is read once need not be written as f32 before.
use super::super::gemm::narrow;
use crate::passes::rewrite::Rewrite;
use pallas_ir::{DType, Inst, Kernel, Op, StructuralOp, Type, Value};

/// The operand of a cast that a product may make.
fn widened(kernel: &Kernel, inst: &Inst) -> Option<Value> {
    let Op::Structural(StructuralOp::Cast(cast)) = &inst.op else { return None };
    let from = inst.args[0];
    let known = narrow::kernel(kernel.ty(from).dtype).is_some() && !kernel.ty(from).is_scalar();
    (cast.to == DType::F32 && known).then_some(from)
}

/// The kernel with casts behind transposes: where a cast's only use is one, elements change places before they grow.
pub(super) fn behind_transposes(kernel: &Kernel) -> Option<Kernel> {
    let (mut uses, mut source) = (vec![0; kernel.values.len()], vec![None; kernel.values.len()]);
    let mut turned = vec![false; kernel.values.len()];
    kernel.walk(kernel.body, &mut |_, inst| {
        inst.args.iter().for_each(|v| uses[v.index()] += 1);
        inst.regions.iter().flat_map(|&r| &kernel.region(r).yields).for_each(|v| uses[v.index()] += 1);
        if let Some(from) = widened(kernel, inst) {
            source[inst.results[0].index()] = Some((from, inst.op.clone()));
        }
        if let Op::Structural(StructuralOp::Transpose(_)) = &inst.op {
            turned[inst.args[0].index()] = true;
        }
    });
    let moves = |v: Value| turned[v.index()] && uses[v.index()] == 1;
    if !kernel.insts.iter().any(|i| i.results.iter().any(|&v| moves(v) && source[v.index()].is_some())) {
        return None;
    }
    let mut rewrite = Rewrite::of(kernel);
    rewrite.region(kernel.body, &mut |r, inst, loc| {
        // The transpose will find the cast's operand.
        if inst.results.first().is_some_and(|&v| moves(v) && source[v.index()].is_some()) {
            return true;
        }
        let cast = inst.args.first().filter(|&&v| moves(v)).and_then(|v| source[v.index()].clone());
        let Some((from, cast)) = cast else { return false };
        let ty = Type::new(kernel.ty(from).dtype, kernel.ty(inst.results[0]).shape.clone());
        let (from, moved) = (r.get(from), r.out.value(ty));
        r.out.push(Inst { op: inst.op.clone(), args: vec![from], results: vec![moved], regions: vec![] }, loc);
        r.append(cast, vec![moved], inst, loc);
        true
    });
    Some(rewrite.finish())
}

/// For each cast that all its products make on their own, its operand: the other side has few rows.
pub(super) fn in_products(kernel: &Kernel) -> Vec<Option<Value>> {
    let mut source = vec![None; kernel.values.len()];
    kernel.walk(kernel.body, &mut |_, inst| {
        if let Some(from) = widened(kernel, inst) {
            source[inst.results[0].index()] = Some(from);
        }
    });
    kernel.walk(kernel.body, &mut |_, inst| {
        for (side, v) in inst.args.iter().enumerate() {
            let few = match &inst.op {
                Op::Structural(StructuralOp::Dot(dot)) => {
                    let other = &kernel.ty(inst.args[1 - side]).shape;
                    let rows: usize = dot.free(1 - side, other.len()).iter().map(|&axis| other[axis]).product();
                    // The other side is multiplied from the left, unless it is a column.
                    kernel.ty(inst.results[0]).dtype == DType::F32
                        && if side == 1 { rows <= narrow::ROWS } else { rows == 1 }
                }
                _ => false,
            };
            if !few {
                source[v.index()] = None;
            }
        }
        inst.regions.iter().flat_map(|&r| &kernel.region(r).yields).for_each(|v| source[v.index()] = None);
    });
    kernel.region(kernel.body).yields.iter().for_each(|v| source[v.index()] = None);
    source
}
