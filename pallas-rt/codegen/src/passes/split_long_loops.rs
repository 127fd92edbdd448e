//! Restricts sequential axes to ranges of steps, which each dispatch is given.
//!
//! ```text
//! for s in 0..count { body }    ->    for s in %from0 .. min(count, %to0) { body }
//! ```
//!
//! Two parameters for each sequential axis are added to the kernel's operands. Dispatches in order compute what a
//! single one would; scratch must keep its contents between them, so scratch has to be in memory.
use super::rewrite::KernelRewriter;
use pallas_ir::{DType, Inst, Kernel, Loc, Op, Operand, OperandId, OperandKind, RegionId, ScalarOp, Value};

/// Returns the kernel with a range of steps for each of its `sequential_axes` sequential axes as parameters, outermost
/// axis first: `from0 to0 from1 to1 ..`.
pub fn add_step_ranges(kernel: &Kernel, sequential_axes: usize) -> Kernel {
    let mut rewrite = KernelRewriter::new(kernel);
    let bounds = (0..sequential_axes).flat_map(|axis| [format!("from{axis}"), format!("to{axis}")]);
    rewrite.out.kernel_mut().operands.extend(bounds.map(|name| Operand {
        name,
        kind: OperandKind::Param,
        dtype: DType::I32,
        dims: vec![],
        block: vec![],
        map: None,
        fill: None,
        buffered: None,
    }));
    let mut resume = StepRangeRewrite { old: kernel, sequential: sequential_axes, axis: 0 };
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| resume.rewrite_loop(r, inst, loc));
    rewrite.finish()
}

/// The rewriting of a kernel's loops over sequential axes: each is restricted to a range of its steps that parameters
/// give.
struct StepRangeRewrite<'k> {
    old: &'k Kernel,
    sequential: usize,
    /// Number of axes whose loops are open; the first loop inside of each is that of the next axis.
    axis: usize,
}

impl StepRangeRewrite<'_> {
    /// Replaces a loop over a sequential axis by one over a range of its steps.
    fn rewrite_loop(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        if !matches!(inst.op, Op::For { .. }) || self.axis == self.sequential {
            return false;
        }
        let (from, to) = (self.emit_range_bound(r, 0), self.emit_range_bound(r, 1));
        self.axis += 1;
        let count = r.mapped_value(inst.args[1]);
        let to = r.out.scalar(ScalarOp::Minimum, &[count, to], loc);
        let body: RegionId = r.copy_region(inst.regions[0], &mut |r, inst, loc| self.rewrite_loop(r, inst, loc));
        let step = r.mapped_value(inst.args[2]);
        r.out.push(Inst { op: inst.op.clone(), args: vec![from, to, step], results: vec![], regions: vec![body] }, loc);
        true
    }
    /// Emits the parameter that holds the start (`bound_index` 0) or the end (1) of the range of steps of the current
    /// axis.
    fn emit_range_bound(&self, r: &mut KernelRewriter<'_>, bound_index: usize) -> Value {
        let id = OperandId((self.old.operands.len() + 2 * self.axis + bound_index) as u32);
        r.out.emit(Op::Param(id), &[], Loc::NONE).expect("a parameter has a value")
    }
}
