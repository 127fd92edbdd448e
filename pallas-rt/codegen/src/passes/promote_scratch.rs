//! Promotes scratch that is only loaded and stored as a whole to values that loops and branches carry.
//!
//! ```text
//! for j { store x %0; %1 = load x; .. }    ->  for j carrying %x { .. }         the load is the last value stored
//! if c { store x %2 }                      ->  %x' = if c { yield %2 } else { yield %x }
//! ```
//!
//! Reads before the first store give zeros; the strict interpreter has reported them before. Values are better for
//! placement: it keeps them in registers, whereas scratch would be memory that needs barriers.
use super::gpu_pass_state::PlacementPassState;
use super::lower::is_whole_scratch_view;
use super::rewrite::KernelRewriter;
use pallas_ir::{
    Builder, Inst, Kernel, Literal, Loc, Op, OperandId, OperandKind, RegionId, ScalarOp, Type, Value,
    structural::Broadcast,
};

/// Promotes scratch buffers, except those in `kept`, to values that loops and branches carry, where every access is to
/// the whole buffer.
pub(super) fn promote_scratch(staged: &mut PlacementPassState) {
    let kernel = &staged.kernel;
    let mut scratch = find_promotable_scratch(kernel);
    scratch.retain(|id| !staged.kept.contains(id));
    if scratch.is_empty() {
        return;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    let now = scratch.iter().map(|&id| emit_zeros(&mut rewrite.out, &scratch_type(kernel, id))).collect();
    let mut promote = ScratchPromotion { old: kernel, scratch, now, carried: vec![] };
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| promote.rewrite_inst(r, inst, loc));
    staged.carried = promote.carried;
    staged.kernel = rewrite.finish();
}

/// Returns the scratch operands all of whose accesses are to the whole buffer.
fn find_promotable_scratch(kernel: &Kernel) -> Vec<OperandId> {
    let scratch = |id: OperandId| kernel.operand(id).kind == OperandKind::Scratch;
    let mut whole: Vec<bool> = (0..kernel.operands.len()).map(|i| scratch(OperandId(i as u32))).collect();
    kernel.walk(kernel.body, &mut |_, inst| match &inst.op {
        Op::Load { from: id, view, .. } | Op::Store { to: id, view, .. } => {
            whole[id.index()] &= is_whole_scratch_view(kernel, *id, view);
        }
        Op::Valid { of, .. } => whole[of.index()] = false,
        _ => {}
    });
    (0..).map(OperandId).zip(whole).filter(|(_, whole)| *whole).map(|(id, _)| id).collect()
}

fn scratch_type(kernel: &Kernel, id: OperandId) -> Type {
    let operand = kernel.operand(id);
    Type::new(operand.dtype, operand.block_shape())
}

fn emit_zeros(out: &mut Builder, ty: &Type) -> Value {
    let zero = out.constant(Literal::new(ty.dtype, 0.0), Loc::NONE);
    if ty.is_scalar() {
        return zero;
    }
    let broadcast = Broadcast::to(ty.dims());
    out.emit(Op::Structural(broadcast.into()), &[zero], Loc::NONE).expect("a scalar has any shape")
}

/// Promotion of scratch buffers of a kernel to values that its loops and branches carry.
struct ScratchPromotion<'k> {
    old: &'k Kernel,
    scratch: Vec<OperandId>,
    /// The current value of each buffer at this point of the copy.
    now: Vec<Value>,
    carried: Vec<(Value, OperandId)>,
}

impl ScratchPromotion<'_> {
    fn promoted_index(&self, id: OperandId) -> Option<usize> {
        self.scratch.iter().position(|s| *s == id)
    }

    /// Replaces accesses to promoted scratch, and control flow that stores to it.
    fn rewrite_inst(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        match &inst.op {
            Op::Load { from, masked, .. } => {
                let Some(i) = self.promoted_index(*from) else { return false };
                let loaded = match (masked, &inst.args[..]) {
                    (true, [mask, other]) => {
                        let (mask, other) = (r.mapped_value(*mask), r.mapped_value(*other));
                        r.out.scalar(ScalarOp::Select, &[mask, self.now[i], other], loc)
                    }
                    _ => self.now[i],
                };
                r.map_value(inst.results[0], loaded);
            }
            Op::Store { to, masked, .. } => {
                let Some(i) = self.promoted_index(*to) else { return false };
                let value = r.mapped_value(inst.args[0]);
                self.now[i] = if *masked {
                    let mask = r.mapped_value(inst.args[1]);
                    r.out.scalar(ScalarOp::Select, &[mask, value, self.now[i]], loc)
                } else {
                    value
                };
                self.carried.push((self.now[i], *to));
            }
            Op::If | Op::For { .. } | Op::While => {
                let stored = self.stored_buffers(&inst.regions);
                if stored.is_empty() {
                    return false;
                }
                self.rewrite_control_flow(r, inst, &stored, loc);
            }
            _ => return false,
        }
        true
    }

    /// Returns the buffers that an instruction in one of the regions stores to.
    fn stored_buffers(&self, regions: &[RegionId]) -> Vec<usize> {
        let mut stored = vec![false; self.scratch.len()];
        for &region in regions {
            self.old.walk(region, &mut |_, inst| {
                if let Op::Store { to, .. } = &inst.op
                    && let Some(i) = self.promoted_index(*to)
                {
                    stored[i] = true;
                }
            });
        }
        (0..stored.len()).filter(|&i| stored[i]).collect()
    }

    /// Copies control flow, and appends the buffers in `stored` to the values that it carries and yields.
    fn rewrite_control_flow(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, stored: &[usize], loc: Loc) {
        let branch = matches!(inst.op, Op::If);
        let before = self.now.clone();
        let mut args = r.mapped_args(inst);
        if !branch {
            args.extend(stored.iter().map(|&i| before[i]));
        }
        let regions = inst
            .regions
            .iter()
            .map(|&region| {
                self.now.clone_from(&before);
                self.rewrite_region(r, region, if branch { &[] } else { stored }, stored)
            })
            .collect();
        let mut results: Vec<Value> = inst.results.iter().map(|&v| r.define_copy(v)).collect();
        self.now = before;
        for &i in stored {
            let result = r.out.value(scratch_type(self.old, self.scratch[i]));
            self.now[i] = result;
            self.record_buffer_value(r, i, result);
            results.push(result);
        }
        r.out.push(Inst { op: inst.op.clone(), args, results, regions }, loc);
    }

    /// Copies a region, with parameters for the buffers in `carried`, and yields of those in `yielded`.
    fn rewrite_region(
        &mut self,
        r: &mut KernelRewriter<'_>,
        region: RegionId,
        carried: &[usize],
        yielded: &[usize],
    ) -> RegionId {
        let more = carried.iter().map(|&i| scratch_type(self.old, self.scratch[i])).collect();
        r.copy_region_with_params(region, more, |r, buffers| {
            for (&i, &n) in carried.iter().zip(buffers) {
                self.now[i] = n;
                self.record_buffer_value(r, i, n);
            }
            let mut yields = r.inline_region(region, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
            yields.extend(yielded.iter().map(|&i| self.now[i]));
            yields
        })
    }

    /// Records that a value stands for a buffer, and gives it the buffer's name.
    fn record_buffer_value(&mut self, r: &mut KernelRewriter<'_>, i: usize, value: Value) {
        self.carried.push((value, self.scratch[i]));
        r.out.kernel_mut().name_value(value, Some(&self.old.operand(self.scratch[i]).name));
    }
}
