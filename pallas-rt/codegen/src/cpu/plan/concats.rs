//! Stores a concatenation tile by tile, without making a tile of the whole.
//!
//! ```text
//! %3 = concat axis(0) %1, %2; store @y y[0:8, ..] %3    ->    store @y y[0:5, ..] %1; store @y y[5:8, ..] %2
//! ```
use crate::passes::count_uses;
use crate::passes::rewrite::KernelRewriter;
use pallas_ir::{Inst, Kernel, Op, StructuralOp, Value, View};

/// Minimum elements along a concatenated last axis with which a part is stored by itself; if a part has fewer, the
/// whole concatenation is computed before the store.
const MIN_STORED_PART_ROW_ELEMENTS: usize = 16;

/// Returns the kernel with concatenations stored part by part; `None` if there are none.
pub(super) fn split_concat_stores(kernel: &Kernel) -> Option<Kernel> {
    let mut concats: Vec<Option<&Inst>> = vec![None; kernel.values.len()];
    let uses = count_uses(kernel);
    for inst in &kernel.insts {
        if matches!(inst.op, Op::Structural(StructuralOp::Concat(_))) {
            concats[inst.results[0].index()] = Some(inst);
        }
    }
    // The parts of a concatenation that only a store uses: value, axis, and first index along it.
    let parts = |v: Value| -> Option<Vec<(Value, usize, usize)>> {
        let inst = concats[v.index()].filter(|_| uses[v.index()] == 1)?;
        let Op::Structural(StructuralOp::Concat(op)) = &inst.op else { return None };
        let is_last = op.axis + 1 == kernel.ty(v).shape.len();
        let mut start = 0;
        let parts = inst.args.iter().map(|&part| {
            let own = start;
            start += kernel.ty(part).shape[op.axis];
            (!is_last || start - own >= MIN_STORED_PART_ROW_ELEMENTS).then_some((part, op.axis, own))
        });
        parts.collect()
    };
    // Concatenations that are not computed.
    let mut apart = vec![false; kernel.values.len()];
    let stores = kernel.insts.iter().filter(|inst| matches!(inst.op, Op::Store { masked: false, .. }));
    let mut waiting: Vec<Value> = stores.map(|inst| inst.args[0]).collect();
    while let Some(v) = waiting.pop() {
        if let Some(parts) = parts(v) {
            apart[v.index()] = true;
            waiting.extend(parts.into_iter().map(|(part, ..)| part));
        }
    }
    if !apart.contains(&true) {
        return None;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| {
        if matches!(inst.op, Op::Structural(StructuralOp::Concat(_))) {
            return apart[inst.results[0].index()];
        }
        let Op::Store { to, view, masked: false } = &inst.op else { return false };
        let mut waiting = vec![(inst.args[0], view.clone())];
        if !apart[inst.args[0].index()] {
            return false;
        }
        while let Some((v, view)) = waiting.pop() {
            if let Some(parts) = parts(v) {
                let views =
                    parts.iter().map(|&(part, axis, start)| (part, part_view(kernel, &view, part, axis, start)));
                waiting.extend(views.collect::<Vec<_>>().into_iter().rev());
            } else {
                let args = [v].iter().chain(&inst.args[1..]).map(|&v| r.mapped_value(v)).collect();
                let op = Op::Store { to: *to, view, masked: false };
                r.out.push(Inst { op, args, results: vec![], regions: vec![] }, loc);
            }
        }
        true
    });
    Some(rewrite.finish())
}

/// Returns the view of one part of a stored tile, which begins at index `start` along `axis`.
fn part_view(kernel: &Kernel, view: &View, part: Value, axis: usize, start: usize) -> View {
    let mut own = view.clone();
    if let Some(along) = own.axes.iter_mut().filter(|a| a.kept).nth(axis) {
        along.offset += along.stride * start as i64;
        along.size = kernel.ty(part).shape[axis];
    }
    own
}
