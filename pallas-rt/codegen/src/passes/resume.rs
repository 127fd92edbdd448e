//! Restricts sequential axes to ranges of steps, which each dispatch is given.
//!
//! ```text
//! for s in 0..count { body }    ->    for s in %from0 .. min(count, %to0) { body }
//! ```
//!
//! Two parameters for each sequential axis are added to the kernel's operands. Dispatches in order compute what a
//! single one would; scratch must keep its contents between them, so scratch has to be in memory.
use super::rewrite::Rewrite;
use pallas_ir::{DType, Inst, Kernel, Loc, Op, Operand, OperandId, OperandKind, RegionId, ScalarOp, Value};

/// Returns the kernel with ranges for its `sequential` axes as parameters, outermost first: `from0 to0 from1 to1 ..`.
pub fn resume(kernel: &Kernel, sequential: usize) -> Kernel {
    let mut rewrite = Rewrite::of(kernel);
    let bounds = (0..sequential).flat_map(|axis| [format!("from{axis}"), format!("to{axis}")]);
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
    let mut resume = Resume { old: kernel, sequential, axis: 0 };
    rewrite.region(kernel.body, &mut |r, inst, loc| resume.inst(r, inst, loc));
    rewrite.finish()
}

/// The rewriting of a kernel's loops over sequential axes.
struct Resume<'k> {
    old: &'k Kernel,
    sequential: usize,
    /// Number of axes whose loops are open; the first loop inside of each is that of the next axis.
    axis: usize,
}

impl Resume<'_> {
    /// Replaces a loop over a sequential axis by one over a range of its steps.
    fn inst(&mut self, r: &mut Rewrite<'_>, inst: &Inst, loc: Loc) -> bool {
        if !matches!(inst.op, Op::For { .. }) || self.axis == self.sequential {
            return false;
        }
        let (from, to) = (self.bound(r, 0), self.bound(r, 1));
        self.axis += 1;
        let count = r.get(inst.args[1]);
        let to = r.out.scalar(ScalarOp::Minimum, &[count, to], loc);
        let body: RegionId = r.nested(inst.regions[0], &mut |r, inst, loc| self.inst(r, inst, loc));
        let step = r.get(inst.args[2]);
        r.out.push(Inst { op: inst.op.clone(), args: vec![from, to, step], results: vec![], regions: vec![body] }, loc);
        true
    }
    fn bound(&self, r: &mut Rewrite<'_>, which: usize) -> Value {
        let id = OperandId((self.old.operands.len() + 2 * self.axis + which) as u32);
        r.out.emit(Op::Param(id), &[], Loc::NONE).expect("a parameter has a value")
    }
}
