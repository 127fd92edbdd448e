//! Lowers a scan to a single kernel: its steps are the innermost grid axis, and carried values stay in scratch between
//! them.
//!
//! ```text
//! scan { lambda h x . h' = tanh (add h x) in h', h' } h, xs
//!   -> for each block of h
//!        for each step t
//!          if t is the first one { carried = h }
//!          h' = tanh (add carried xs[t])      carried = h'      ys[t] = h'
//!          if t is the last one { store h' }
//! ```
//!
//! This takes one launch in place of several for each step, and reads and writes each array once. It requires that each
//! program can compute its block of a carried value from the same block of the previous step, without the blocks of
//! other programs.
use super::Scan;
use crate::build::constant_dims;
use crate::fuse::axis_tiling::{
    self, AxisTiling, AxisTiling::Full, AxisTiling::Grid, has_distinct_blocks, min_block_elements,
};
use crate::fuse::cluster::Cluster;
use crate::fuse::equation_kinds::{MAX_RECOMPUTED_ELEMENTS, is_always_inlined, is_standalone_op};
use crate::fuse::lower::lower_cluster;
use crate::fuse::split_reductions::split_long_reductions;
use crate::fuse::{DeviceLimits, LoweredStep, StepOp};
use crate::graph::{Equation, Graph, Op, Var};
use crate::identity::OptimizationBarrier;
use pallas_ir::{
    Axis, BlockDim, Builder, DType, Dim, InstId, Kernel, Loc, Op as TileOp, Operand, OperandId, OperandKind, RegionId,
    ScalarOp, Semantics, StructuralOp, Type, Value, View,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of equations in the body of a scan that becomes a single kernel; a scan with a larger body stays a
/// loop.
const MAX_SCAN_BODY_EQUATIONS: usize = 100;
/// Maximum number of multiply-adds in one step's products for a scan that becomes a single kernel, unless the device's
/// limit for small products is larger. A body with more gets no such kernel.
const MAX_STEP_MULTIPLY_ADDS: usize = 1 << 16;

/// Lowers a scan equation to one kernel for all steps; `None` if its body does not fit into a kernel.
pub(super) fn lower_to_kernel(e: &Equation, scan: &Scan, limits: &DeviceLimits) -> Option<LoweredStep> {
    let body = with_equations_for_results(&scan.body);
    let is_long = || matches!(split_long_reductions(&body, limits).graph, Cow::Owned(_));
    let alone = body.equations.iter().any(|e| is_standalone_op(&e.op));
    if !(1..=limits.steps).contains(&scan.length)
        || body.equations.len() > MAX_SCAN_BODY_EQUATIONS
        || alone
        || is_long()
    {
        return None;
    }
    // Divides as many axes among programs as all operations of the body allow.
    let common = common_leading_axis_count(&body)?;
    let cluster = (0..=common).rev().find_map(|axes| build_body_cluster(&body, scan, axes, limits))?;
    let tile = (limits.tile / 4).max(1);
    let LoweredStep { work, inputs, outputs, .. } =
        lower_cluster(&body, &body.definitions(), &cluster, &DeviceLimits { tile, ..limits.clone() });
    let StepOp::Kernel { kernel, sizes, params } = work else { unreachable!("a cluster is a kernel") };
    let place = |v: &Var| body.params.iter().position(|p| p == v).expect("all else is computed in the kernel");
    let inputs: Vec<usize> = inputs.iter().map(place).collect();
    let made_as = |r: &Var| outputs.iter().position(|v| v == r).expect("a result is stored");
    let results: Vec<usize> = body.results.iter().map(made_as).collect();
    let kernel = Arc::new(ScanKernelBuilder { scan, inputs: &inputs, results: &results }.build_kernel(&kernel));
    let outputs = e.results.clone();
    Some(LoweredStep {
        work: StepOp::Kernel { kernel, sizes, params },
        inputs: inputs.iter().map(|&i| e.args[i]).collect(),
        in_place: vec![None; outputs.len()],
        outputs,
    })
}

/// Returns the body with an equation for each result, since a kernel cannot have a parameter as its output.
fn with_equations_for_results(body: &Graph) -> Graph {
    let mut body = body.clone();
    for i in 0..body.results.len() {
        if body.params.contains(&body.results[i]) {
            body.results[i] = body.push_valid(OptimizationBarrier, &[body.results[i]]);
        }
    }
    body
}

/// Returns the number of leading axes that have the same extents in all results; `None` if there are no results.
fn common_leading_axis_count(body: &Graph) -> Option<usize> {
    let shapes: Vec<&[usize]> = body.results.iter().map(|&r| &body.ty(r).shape[..]).collect();
    let first = shapes.first()?;
    let is_common = |&axis: &usize| shapes.iter().all(|shape| shape.get(axis) == Some(&first[axis]));
    Some((0..first.len()).take_while(is_common).count())
}

/// Returns the body as one cluster, of which each program computes a block of the results, split along their first
/// `grid_axis_count` axes; `None` if the body does not allow this, for example because a carried value depends on other
/// blocks, or exceeds a limit of size.
fn build_body_cluster(body: &Graph, scan: &Scan, grid_axis_count: usize, limits: &DeviceLimits) -> Option<Cluster> {
    let definitions = body.definitions();
    let tiling = |v: Var| -> Vec<AxisTiling> {
        let divided = |axis: usize| if axis < grid_axis_count { Grid(axis as u8) } else { Full };
        (0..body.ty(v).shape.len()).map(divided).collect()
    };
    let mut wanted: BTreeMap<Var, Vec<AxisTiling>> = body.results.iter().map(|&r| (r, tiling(r))).collect();
    let mut own = Cluster {
        outs: body.results.iter().copied().collect(),
        extents: body.ty(body.results[0]).shape[..grid_axis_count].to_vec(),
        ..Cluster::default()
    };
    let (mut elements, mut products) = (0, 0);
    for (i, e) in body.equations.iter().enumerate().rev() {
        let Some(tiling) = wanted.get(&e.result()).cloned() else { continue };
        if is_always_inlined(body, &definitions, e) && !own.outs.contains(&e.result()) {
            continue;
        }
        let operands = axis_tiling::operand_tilings(body, e, &tiling)?;
        let shape = &body.ty(e.result()).shape;
        // A value that is not split along a grid axis would be computed again by all programs along it.
        if !has_distinct_blocks(own.extents.len(), &tiling)
            && min_block_elements(shape, &tiling) > MAX_RECOMPUTED_ELEMENTS
        {
            return None;
        }
        products += count_multiply_adds(body, e)?;
        elements += min_block_elements(shape, &tiling);
        for (&arg, tiling) in e.args.iter().zip(operands) {
            let is_free =
                definitions[arg.index()].is_some_and(|i| is_always_inlined(body, &definitions, &body.equations[i]));
            if !is_free && *wanted.entry(arg).or_insert_with(|| tiling.clone()) != tiling {
                return None;
            }
        }
        own.members.insert(i);
        own.tilings.insert(e.result(), tiling);
    }
    let carried = body.params[scan.captured..].iter().zip(&body.results[..scan.carried]);
    let mut carried = carried.map(|(p, r)| wanted.get(p).is_none_or(|own| *own == wanted[r]));
    let read =
        body.params.iter().filter_map(|p| wanted.get(p).map(|tiling| min_block_elements(&body.ty(*p).shape, tiling)));
    let fits = elements + read.sum::<usize>() <= limits.tile && products <= MAX_STEP_MULTIPLY_ADDS.max(limits.small);
    (carried.all(|same| same) && fits).then_some(own)
}

/// Returns the number of multiply-adds of an equation; `None` for a convolution, which such a kernel cannot contain.
fn count_multiply_adds(body: &Graph, e: &Equation) -> Option<usize> {
    match &e.op {
        Op::Structural(StructuralOp::Dot(dot)) => {
            let summed: usize = dot.contract.iter().map(|p| body.ty(e.args[0]).shape[p.0]).product();
            Some(body.ty(e.result()).elements() * summed)
        }
        Op::Structural(StructuralOp::Conv(_)) => None,
        _ => Some(0),
    }
}

/// Makes the kernel of all steps from the kernel of one, with the correspondence of their operands.
struct ScanKernelBuilder<'s> {
    scan: &'s Scan,
    /// For each input of the step's kernel, the operand of the scan that it comes from.
    inputs: &'s [usize],
    /// For each result of the scan, the output of the step's kernel that it comes from.
    results: &'s [usize],
}

impl ScanKernelBuilder<'_> {
    /// Returns true if an operand of the scan has a slice for each step, rather than being captured or carried.
    fn is_array_operand(&self, operand: usize) -> bool {
        operand >= self.scan.first_array_operand()
    }

    /// Returns the kernel of all steps, made from `step`, the kernel of one step.
    fn build_kernel(&self, step: &Kernel) -> Kernel {
        let Scan { carried, length, .. } = *self.scan;
        let (count, axis) = (self.inputs.len(), step.grid.len());
        let mut b = Builder::edit(step.clone());
        let semantics = if carried == 0 { Semantics::Parallel } else { Semantics::Arbitrary };
        b.kernel_mut().grid.push(Axis { extent: Dim::from(length), semantics });
        // The next step need not read a carried value, so its store may be lost.
        b.kernel_mut().allow.lost_store = carried > 0;
        b.kernel_mut().operands.clear();
        for (operand, &from) in step.operands.iter().zip(self.inputs) {
            let own = self.scan_operand(&mut b, step, operand, self.is_array_operand(from));
            b.operand(own);
        }
        for (k, &from) in self.results.iter().enumerate() {
            let own = self.scan_operand(&mut b, step, &step.operands[count + from], k >= carried);
            b.operand(own);
        }
        // For each carried value that steps read: the operand with its initial value, and the scratch that holds it
        // between steps.
        let mut kept: BTreeMap<usize, (OperandId, OperandId)> = BTreeMap::new();
        for (i, &from) in self.inputs.iter().enumerate() {
            if let Some(k) = from.checked_sub(self.scan.captured).filter(|&k| k < carried) {
                let block = step.operands[i].block_shape();
                let memory = b.operand(Operand {
                    kind: OperandKind::Scratch,
                    dims: constant_dims(&block),
                    block: block.into_iter().map(BlockDim::Blocked).collect(),
                    map: None,
                    ..step.operands[i].clone()
                });
                kept.insert(k, (OperandId(i as u32), memory));
            }
        }
        self.write_body(&mut b, step, axis, &kept);
        for (i, operand) in b.kernel_mut().operands.iter_mut().enumerate() {
            operand.name = format!("a{i}");
        }
        b.finish()
    }

    /// Returns the operand of the kernel of all steps that corresponds to `operand` of the kernel of one step. If
    /// `is_array`, it has a first axis over the steps, along which a program has the position of its step.
    fn scan_operand(&self, b: &mut Builder, step: &Kernel, operand: &Operand, is_array: bool) -> Operand {
        let mut own = operand.clone();
        own.map = Some(self.scan_index_map(b, step, operand, is_array));
        if is_array {
            own.dims.insert(0, Dim::from(self.scan.length));
            own.block.insert(0, BlockDim::Squeezed);
        }
        own
    }

    /// Returns the index map of an operand: the indices of the step's kernel, which are program ids and zeros, with the
    /// index of the step in front if `is_array`.
    fn scan_index_map(&self, b: &mut Builder, step: &Kernel, operand: &Operand, is_array: bool) -> RegionId {
        let old = step.region(operand.map.expect("operands of a cluster have maps"));
        let ids = b.begin(&vec![Type::scalar(DType::I32); step.grid.len() + 1]);
        let zero = b.int(0, Loc::NONE);
        let (&at, ids) = ids.split_last().expect("the axis of steps");
        let mut yields: Vec<Value> = vec![];
        if is_array && self.scan.reverse {
            let last = b.int(self.scan.length as i64 - 1, Loc::NONE);
            yields.push(b.scalar(ScalarOp::Sub, &[last, at], Loc::NONE));
        } else if is_array {
            yields.push(at);
        }
        yields.extend(old.yields.iter().map(|v| old.params.iter().position(|p| p == v).map_or(zero, |k| ids[k])));
        b.end(&yields)
    }

    /// Writes the body of all steps, whose index is the program id along grid axis `step_axis`. `carried_memories` has,
    /// for each carried value that steps read, the operand with its initial value and the scratch that keeps it between
    /// steps. Loads come before stores, since the stores replace carried values that are loaded.
    fn write_body(
        &self,
        b: &mut Builder,
        step: &Kernel,
        step_axis: usize,
        carried_memories: &BTreeMap<usize, (OperandId, OperandId)>,
    ) {
        let Scan { carried, length, .. } = *self.scan;
        b.begin(&[]);
        let at = b.emit(TileOp::ProgramId(step_axis), &[], Loc::NONE).expect("a program has an id");
        let block = |b: &Builder, id: OperandId| View::whole(&b.kernel().operand(id).block_shape());
        let store = |b: &mut Builder, to: OperandId, value: Value| {
            let view = block(b, to);
            b.effect(TileOp::Store { to, view, masked: false }, &[value], Loc::NONE).expect("a block of its type");
        };
        if !carried_memories.is_empty() {
            self.push_if_step(b, at, 0, &|b| {
                for &(from, to) in carried_memories.values() {
                    let load = TileOp::Load { from, view: block(b, from), masked: false };
                    let first = b.emit(load, &[], Loc::NONE).expect("an input has a block");
                    store(b, to, first);
                }
            });
        }
        let insts: Vec<InstId> = step.region(step.body).insts.clone();
        let mut made = vec![];
        for id in insts {
            let inst = &mut b.kernel_mut().insts[id.index()];
            match &mut inst.op {
                TileOp::Store { to, .. } => {
                    made.push((to.index() - self.inputs.len(), inst.args[0]));
                    continue;
                }
                TileOp::Load { from, .. } => {
                    if let Some((_, memory)) = carried_memories.values().find(|(first, _)| first == from) {
                        *from = *memory;
                    }
                }
                _ => {}
            }
            b.push_id(id);
        }
        let value = |k: usize| made.iter().find(|(output, _)| *output == self.results[k]).expect("it is stored").1;
        let output = |k: usize| OperandId((self.inputs.len() + k) as u32);
        (carried..self.results.len()).for_each(|k| store(b, output(k), value(k)));
        carried_memories.iter().for_each(|(&k, &(_, memory))| store(b, memory, value(k)));
        if carried > 0 {
            self.push_if_step(b, at, length - 1, &|b| (0..carried).for_each(|k| store(b, output(k), value(k))));
        }
        b.replace(step.body, &[]);
    }

    /// Appends an `if` that runs the instructions of `then` only in the step with index `step`; `current_step` is the
    /// value that holds the current step's index.
    fn push_if_step(&self, b: &mut Builder, current_step: Value, step: usize, then: &dyn Fn(&mut Builder)) {
        let step = b.int(step as i64, Loc::NONE);
        let is_now = b.scalar(ScalarOp::Eq, &[current_step, step], Loc::NONE);
        b.begin(&[]);
        then(b);
        let then = b.end(&[]);
        b.begin(&[]);
        let other = b.end(&[]);
        b.emit_if(is_now, then, other, Loc::NONE).expect("it has no results");
    }
}
