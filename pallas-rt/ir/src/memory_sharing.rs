//! Decides which pairs of operands may share memory.
use crate::ScalarOp;
use crate::kernel::{BlockDim, InstId, Kernel, Op, OperandId, OperandKind, RegionId, Value, View, ViewFrame};
use std::collections::HashMap;

/// Returns true if an output may reuse the memory of an input: no element of the input is needed after it is
/// overwritten. That is certain where
///
/// - both have the same blocks and the same index map, without overlap;
/// - each program has its own block in each of its steps;
/// - every load of the input comes before every store of the output.
pub fn may_share_memory(kernel: &Kernel, input: OperandId, output: OperandId) -> bool {
    let (x, y) = (kernel.operand(input), kernel.operand(output));
    let alike = x.kind == OperandKind::Input && x.dtype == y.dtype && x.dims == y.dims && x.block == y.block;
    let apart = !x.block.iter().any(|b| matches!(b, BlockDim::Element { .. }));
    let own_block = match (x.map, y.map) {
        (Some(a), Some(b)) => {
            let map = kernel.region(b);
            // Different programs, different blocks: every grid index has an entry of the map for itself.
            map.params.iter().all(|&id| map.yields.iter().any(|&y| is_constant_shift(kernel, b, y, id)))
                && are_same_function(kernel, a, b)
        }
        (None, None) => kernel.grid.is_empty(),
        _ => false,
    };
    alike && apart && own_block && loads_before_stores(kernel, input, output)
}

/// Returns true if a value of a region is `base` plus a constant, or a constant minus `base`.
fn is_constant_shift(kernel: &Kernel, region: RegionId, value: Value, base: Value) -> bool {
    if value == base {
        return true;
    }
    let insts = kernel.region(region).insts.iter().map(|&i| kernel.inst(i));
    let made = |v: Value| insts.clone().find(|inst| inst.results.contains(&v));
    let is_constant = |v: Value| made(v).is_some_and(|inst| matches!(inst.op, Op::Const(_)));
    let Some(inst) = made(value).filter(|inst| matches!(inst.op, Op::Scalar(ScalarOp::Add | ScalarOp::Sub))) else {
        return false;
    };
    let [a, b] = inst.args[..] else { return false };
    let shifted = |v| is_constant_shift(kernel, region, v, base);
    (is_constant(a) && shifted(b)) || (is_constant(b) && shifted(a))
}

/// Returns true if two regions compute the same function of their parameters.
fn are_same_function(kernel: &Kernel, a: RegionId, b: RegionId) -> bool {
    let (a, b) = (kernel.region(a), kernel.region(b));
    let mut twin: HashMap<Value, Value> = a.params.iter().copied().zip(b.params.iter().copied()).collect();
    let same = |twin: &HashMap<Value, Value>, x: &[Value], y: &[Value]| {
        x.len() == y.len() && x.iter().zip(y).all(|(x, y)| twin.get(x) == Some(y))
    };
    if a.insts.len() != b.insts.len() {
        return false;
    }
    for (&i, &j) in a.insts.iter().zip(&b.insts) {
        let (i, j) = (kernel.inst(i), kernel.inst(j));
        if i.op != j.op || !i.regions.is_empty() || !same(&twin, &i.args, &j.args) {
            return false;
        }
        twin.extend(i.results.iter().copied().zip(j.results.iter().copied()));
    }
    same(&twin, &a.yields, &b.yields)
}

/// Returns true if all loads of `input` come before the first store to `output`, and both access only their blocks.
fn loads_before_stores(kernel: &Kernel, input: OperandId, output: OperandId) -> bool {
    let accesses = |id: InstId| {
        let (mut loads, mut stores) = (false, false);
        let mut look = |op: &Op| match op {
            Op::Load { from, .. } if *from == input => loads = true,
            Op::Store { to, .. } if *to == output => stores = true,
            _ => {}
        };
        look(&kernel.inst(id).op);
        kernel.inst(id).regions.iter().for_each(|&r| kernel.walk(r, &mut |_, inst| look(&inst.op)));
        (loads, stores)
    };
    let mut within = true;
    kernel.walk(kernel.body, &mut |_, inst| {
        let view = |o: OperandId, view: &View| (o != input && o != output) || view.frame == ViewFrame::Block;
        within &= match &inst.op {
            Op::Load { from: o, view: v, .. } | Op::Store { to: o, view: v, .. } => view(*o, v),
            _ => true,
        };
    });
    // An instruction of the body that does both (a loop, an `if`) is not looked into.
    let mut stored = false;
    within
        && kernel.region(kernel.body).insts.iter().all(|&id| {
            let (loads, stores) = accesses(id);
            let late = loads && (stored || (stores && !kernel.inst(id).regions.is_empty()));
            stored |= stores;
            !late
        })
}
