//! Lowers the traced form of tile IR to the form that backends read.
//!
//! ```text
//! load x block[0.., 0..]            ->  load x array[origin + 0.., ..]       origin = index map's entry · block size
//! grid B parallel, S arbitrary      ->  grid B parallel, steps S; for s in 0..S { body }
//! program_id(1), num_programs(1)    ->  s, S
//! reduce axes(1) keep(false) x      ->  reshape (reduce axes(1) x)           for every operation that drops axes
//! ```
//!
//! Index maps disappear. Scratch stays memory that a parallel program keeps over its loops.
#![warn(clippy::wildcard_enum_match_arm)]
use super::block_position_ranges;
use super::rewrite::KernelRewriter;
use pallas_ir::{
    BlockDim, DType, Inst, Kernel, Literal, Loc, Op, OperandId, RegionId, ScalarOp, Semantics, Type, Value, View,
    ViewAxis, ViewFrame, structural::Reshape,
};

/// Lowers a traced kernel to the form that backends read: loops over its sequential axes, and views of arrays in place
/// of blocks.
pub(crate) fn lower(kernel: &Kernel) -> Kernel {
    let mut rewrite = KernelRewriter::new(kernel);
    let declared = rewrite.out.kernel_mut();
    declared.operands.iter_mut().for_each(|o| o.map = None);
    let sequential = kernel.grid.iter().filter(|axis| axis.semantics == Semantics::Arbitrary);
    // A kernel that is lowered again has no sequential axis, and keeps its own.
    declared.steps.extend(sequential.map(|axis| axis.extent.clone()));
    declared.grid.retain(|axis| axis.semantics == Semantics::Parallel);
    let mut lower =
        TracedKernelLowering { old: kernel, ids: vec![], counts: vec![], origins: vec![None; kernel.operands.len()] };
    lower.lower_axes(&mut rewrite, 0);
    rewrite.finish()
}

/// State of the lowering of one traced kernel: the values of the new kernel that stand for program ids, extents of the
/// grid, and positions of blocks.
struct TracedKernelLowering<'k> {
    old: &'k Kernel,
    /// Index of the program along each axis of the traced grid.
    ids: Vec<Value>,
    counts: Vec<Value>,
    /// First element of each operand's block in each dimension.
    origins: Vec<Option<Vec<Value>>>,
}

impl TracedKernelLowering<'_> {
    /// Opens a loop for each sequential axis from `axis` on, then lowers the body.
    fn lower_axes(&mut self, r: &mut KernelRewriter<'_>, axis: usize) {
        let Some(declared) = self.old.grid.get(axis) else { return self.lower_body(r) };
        let count = self.emit_program_count(r, axis);
        self.counts.push(count);
        if declared.semantics == Semantics::Parallel {
            let parallel = self.old.grid[..axis].iter().filter(|a| a.semantics == Semantics::Parallel).count();
            let id = r.out.emit(Op::ProgramId(parallel), &[], Loc::NONE).expect("the axis exists");
            self.ids.push(id);
            return self.lower_axes(r, axis + 1);
        }
        let (zero, one) = (r.out.int(0, Loc::NONE), r.out.int(1, Loc::NONE));
        let index = r.out.begin(&[Type::scalar(DType::I32)])[0];
        self.ids.push(index);
        self.lower_axes(r, axis + 1);
        let body = r.out.end(&[]);
        r.out.emit_for([zero, count, one], false, &[], body, Loc::NONE).expect("bounds are i32");
    }

    /// Emits the number of programs along an axis: a constant or a named dimension where it is one, which passes can
    /// compare, else a value that the launch computes, in arithmetic that is wide enough for its terms.
    fn emit_program_count(&self, r: &mut KernelRewriter<'_>, axis: usize) -> Value {
        let extent = &self.old.grid[axis].extent;
        if let Some(n) = extent.as_number() {
            return r.out.int(n, Loc::NONE);
        }
        if let Some(name) = extent.as_name() {
            return r.out.extent(&name, Loc::NONE);
        }
        let semantics = self.old.grid[axis].semantics;
        let before = self.old.grid[..axis].iter().filter(|a| a.semantics == semantics).count();
        let op = match semantics {
            Semantics::Parallel => Op::NumPrograms(before),
            Semantics::Arbitrary => Op::NumSteps(before),
        };
        r.out.emit(op, &[], Loc::NONE).expect("the axis exists")
    }

    fn lower_body(&mut self, r: &mut KernelRewriter<'_>) {
        for i in 0..self.old.operands.len() {
            self.origins[i] = self.emit_block_origin(r, OperandId(i as u32));
        }
        r.inline_region(self.old.body, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
    }

    /// Emits the computation of the first element of an operand's block from its index map; `None` if it has no map.
    fn emit_block_origin(&self, r: &mut KernelRewriter<'_>, id: OperandId) -> Option<Vec<Value>> {
        let operand = self.old.operand(id);
        let map: RegionId = operand.map?;
        let params = self.old.region(map).params.clone();
        params.iter().zip(&self.ids).for_each(|(&p, &v)| r.map_value(p, v));
        let index = r.inline_region(map, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
        // An index that comes from data or from a division may have any value. If its position would overflow, it is
        // clamped to a position that is still outside of the array.
        let known = block_position_ranges::are_block_positions_affine(self.old, id);
        let clamp = |r: &mut KernelRewriter<'_>, i: Value, clamped: bool, op: ScalarOp, bound: i64| {
            if !clamped {
                return i;
            }
            let bound = r.out.int(bound, Loc::NONE);
            r.out.scalar(op, &[i, bound], Loc::NONE)
        };
        let place = |((i, &block), known): ((Value, &BlockDim), bool)| match block {
            BlockDim::Squeezed => i,
            BlockDim::Blocked(n) => {
                let most = i64::from(i32::MAX) / (n as i64).max(1);
                let i = clamp(r, i, !known, ScalarOp::Minimum, most);
                let i = clamp(r, i, !known, ScalarOp::Maximum, -most);
                let n = r.out.int(n as i64, Loc::NONE);
                r.out.scalar(ScalarOp::Mul, &[i, n], Loc::NONE)
            }
            BlockDim::Element { low, .. } => {
                let i = clamp(r, i, !known, ScalarOp::Maximum, i64::from(i32::MIN) + low as i64);
                let low = r.out.int(low as i64, Loc::NONE);
                r.out.scalar(ScalarOp::Sub, &[i, low], Loc::NONE)
            }
        };
        Some(index.into_iter().zip(&operand.block).zip(known).map(place).collect())
    }

    /// Replaces an instruction on blocks or the grid by one on arrays and the values of the loops around it: program
    /// ids, grid extents, views of blocks, and operations that drop folded axes. Returns false if the instruction is to
    /// be copied unchanged.
    fn rewrite_inst(&self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        let mut op = inst.op.clone();
        let (id, view, skip) = match &mut op {
            Op::ProgramId(axis) => {
                r.map_value(inst.results[0], self.ids[*axis]);
                return true;
            }
            Op::NumPrograms(axis) => {
                r.map_value(inst.results[0], self.counts[*axis]);
                return true;
            }
            Op::Load { from: id, view, .. } | Op::Valid { of: id, view, .. } => (*id, view, 0),
            Op::Store { to, view, .. } => (*to, view, 1),
            Op::Structural(op) => {
                let Some(kept) = op.with_kept_axes() else { return false };
                let kept = r.out.emit(Op::Structural(kept), &r.mapped_args(inst), loc).expect("the axes exist");
                let to = self.old.ty(inst.results[0]).dims();
                r.append(Op::Structural(Reshape { to }.into()), vec![kept], inst, loc);
                return true;
            }
            Op::Const(_) | Op::Scalar(_) | Op::NumSteps(_) | Op::Extent(_) | Op::Param(_) | Op::Prefetch(_) => {
                return false;
            }
            Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_) => return false,
        };
        // The view is in lowered form already.
        if view.frame == ViewFrame::Array {
            return false;
        }
        let args = self.lower_view(r, id, view, inst, skip, loc);
        r.append(op, args, inst, loc);
        true
    }

    /// Converts a view of the block to a view of the array. Returns the operands of `inst`, with the starts of the new
    /// view in place of the old ones; `skip` operands come before the starts.
    fn lower_view(
        &self,
        r: &mut KernelRewriter<'_>,
        id: OperandId,
        view: &mut View,
        inst: &Inst,
        skip: usize,
        loc: Loc,
    ) -> Vec<Value> {
        let operand = self.old.operand(id);
        let mapped = r.mapped_args(inst);
        let (head, rest) = mapped.split_at(skip);
        let (starts, tail) = rest.split_at(view.dynamic_count());
        let (mut starts, mut kept) = (starts.iter().copied(), view.axes.iter());
        let origin = self.origins[id.index()].as_ref();
        let (mut axes, mut placed) = (vec![], head.to_vec());
        for (axis, block) in operand.block.iter().enumerate() {
            let squeezed = ViewAxis { kept: false, ..ViewAxis::whole(1) };
            let mut a =
                if block.is_kept() { *kept.next().expect("one view axis per kept dimension") } else { squeezed };
            let own = if a.dynamic { starts.next() } else { None };
            let start = match (origin.map(|o| o[axis]), own) {
                (Some(a), Some(b)) => Some(r.out.scalar(ScalarOp::Add, &[a, b], loc)),
                (a, b) => a.or(b),
            };
            a.dynamic = start.is_some();
            placed.extend(start);
            axes.push(a);
        }
        placed.extend(tail);
        *view = View { frame: ViewFrame::Array, axes };
        placed
    }
}

/// Returns true if the index map of an operand reads tables or run-time scalars.
pub(crate) fn has_data_dependent_map(kernel: &Kernel, operand: OperandId) -> bool {
    let mut found = false;
    if let Some(map) = kernel.operand(operand).map {
        kernel.walk(map, &mut |_, inst| found |= matches!(inst.op, Op::Prefetch(_) | Op::Param(_)));
    }
    found
}

/// Returns true if a view is the whole of a scratch buffer, in order.
pub(crate) fn is_whole_scratch_view(kernel: &Kernel, scratch: OperandId, view: &View) -> bool {
    let shape = kernel.operand(scratch).block_shape();
    view.axes.iter().copied().eq(shape.into_iter().map(ViewAxis::whole))
}

/// Returns the value that loads get outside of an array on the backends.
pub(crate) fn fill_value(kernel: &Kernel, operand: OperandId) -> Literal {
    let operand = kernel.operand(operand);
    operand.fill.unwrap_or(Literal::new(operand.dtype, 0.0))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{body, parse};
    use super::lower;
    use expect_test::expect;

    #[test]
    fn dropped_axes_are_kept_and_reshaped() {
        let kernel = parse(
            "
kernel dropped {
  grid 1 parallel
  in x: f32[2, 3, 4] block [2, 3, 4]
  out y: f32[3] block [3] empty 0.0
  out z: i32[3, 2] block [3, 2] empty 0
  body {
    %0: f32[2,3,4] = load @x array[0:2, 0:3, 0:4]
    %1 sum: f32[3] = reduce op(add) axes(2, 0) keep(false) %0
    store @y array[0:3] %1
    %2: i32[2,3] = arg_reduce max(true) axis(2) keep(false) %0
    %3: i32[3,2] = broadcast to(3, 2) dims(1, 0) %2
    store @z array[0:3, 0:2] %3
  }
}
",
        );
        body(
            &lower(&kernel),
            expect![[r#"
              body {
                %0: i32[] = const 1
                %1: i32[] = program_id axis(0)
                %2: f32[2,3,4] = load @x array[0:2, 0:3, 0:4]
                %3: f32[1,3,1] = reduce op(add) axes(2, 0) %2
                %4 sum: f32[3] = reshape to(3) %3
                store @y array[0:3] %4
                %5: i32[2,3,1] = arg_reduce max(true) axis(2) %2
                %6: i32[2,3] = reshape to(2, 3) %5
                %7: i32[3,2] = broadcast to(3, 2) dims(1, 0) %6
                store @z array[0:3, 0:2] %7
              }
            }
        "#]],
        );
    }
}
