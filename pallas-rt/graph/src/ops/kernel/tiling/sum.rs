//! Recognizes kernels that compute a plain sum, maximum or minimum over a sequential grid axis.
//!
//! ```text
//! if program_id(k) == 0 { store @acc neutral }
//! store @acc (add (load @acc) term)                      the term reads no accumulator, and nothing else reads the sum
//! if program_id(k) == num_programs(k) - 1 { store @out (load @acc) }
//! ```
//!
//! The addition may be in a loop over windows of the accumulator, if each pass loads, adds to and stores the same
//! window. Different devices may compute parts of such a sum, which are combined afterwards. No other kernel is taken
//! for a sum: an online softmax rescales what it has summed, and a bias added in the last step would be added once by
//! each device.
use pallas_ir::{
    Inst, InstId, Kernel, Literal, Op, OperandId, OperandKind, RegionId, ScalarOp, Semantics, StructuralOp,
};
use pallas_ir::{Value, View};
use std::collections::HashMap;

/// A sum over a grid axis, with the instructions of the kernel that compute it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::ops::kernel) struct GridSum {
    /// The operation that combines terms: `add`, `maximum` or `minimum`.
    pub op: ScalarOp,
    /// The comparison that is true in the first step.
    pub first: InstId,
    /// The comparison that is true in the last step, if there is one.
    pub last: Option<InstId>,
    /// The instructions that add a term, each with the position of the term among its arguments.
    pub terms: Vec<(InstId, usize)>,
}

/// Returns the sum over a sequential grid axis, if the kernel is proven to compute nothing else; `None` otherwise.
pub(super) fn find_plain_sum(kernel: &Kernel, grid_axis: usize) -> Option<GridSum> {
    let is_sequential = |axis: &pallas_ir::Axis| axis.semantics == Semantics::Arbitrary;
    if kernel.grid.iter().filter(|axis| is_sequential(axis)).count() != 1 {
        return None;
    }
    SumMatcher::new(kernel, grid_axis).match_sum()
}

/// A matcher that finds out if a kernel's body computes nothing but a sum over the programs along grid axis `axis`,
/// and which instructions compute it.
struct SumMatcher<'k> {
    kernel: &'k Kernel,
    axis: usize,
    /// For each value, the instruction that defines it.
    made_by: HashMap<Value, InstId>,
    /// For each value, the number of instructions and yields that read it.
    uses: HashMap<Value, usize>,
}

impl<'k> SumMatcher<'k> {
    /// Prepares the search for a sum over grid axis `axis`: finds the instruction that defines each value of the
    /// kernel's body, and counts the reads of each.
    fn new(kernel: &'k Kernel, axis: usize) -> SumMatcher<'k> {
        let (mut made_by, mut uses) = (HashMap::new(), HashMap::new());
        kernel.walk(kernel.body, &mut |id, inst| {
            made_by.extend(inst.results.iter().map(|&v| (v, id)));
            let yields = inst.regions.iter().flat_map(|&region| &kernel.region(region).yields);
            inst.args.iter().chain(yields).for_each(|&v| *uses.entry(v).or_insert(0) += 1);
        });
        SumMatcher { kernel, axis, made_by, uses }
    }

    /// Returns the instruction that defines a value; `None` for a parameter of a region.
    fn definition(&self, v: Value) -> Option<(InstId, &'k Inst)> {
        self.made_by.get(&v).map(|&id| (id, self.kernel.inst(id)))
    }

    /// Finds the sum: the first step's stores of neutral elements, the additions of all steps, and the last step's
    /// stores of the result; `None` if the body does anything else.
    fn match_sum(&self) -> Option<GridSum> {
        let kernel = self.kernel;
        let (mut first, mut last) = (None, None);
        let (mut before, mut behind, mut steps) = (vec![], vec![], vec![]);
        // `of_steps`: the instructions from the first test on, which must contain the accumulator's loads. `of_last`:
        // the region of the last test, which must contain the loads of what it stores.
        let (mut of_steps, mut of_last): (&[InstId], &[InstId]) = (&[], &[]);
        let body = &kernel.region(kernel.body).insts;
        for (at, &id) in body.iter().enumerate() {
            let inst = kernel.inst(id);
            match inst.op {
                Op::If if self.count_stores(inst) > 0 => {
                    let (test, is_first) = self.first_or_last_step_test(inst.args[0])?;
                    let (place, stores) = if is_first { (&mut first, &mut before) } else { (&mut last, &mut behind) };
                    let region = &kernel.region(inst.regions[0]).insts[..];
                    match is_first {
                        true => of_steps = &body[at..],
                        false => of_last = region,
                    }
                    let is_new = place.replace(test).is_none() && (!is_first || steps.is_empty());
                    stores.extend(
                        region.iter().map(|&id| kernel.inst(id)).filter(|inst| matches!(inst.op, Op::Store { .. })),
                    );
                    if !is_new || stores.len() != self.count_stores(inst) {
                        return None;
                    }
                }
                // Additions stand after the first test and before the last one.
                Op::Store { .. } if last.is_none() && first.is_some() => steps.push((inst, None)),
                Op::For { .. } if self.count_stores(inst) > 0 && last.is_none() && first.is_some() => {
                    self.collect_loop_stores(inst, &mut steps)?;
                }
                Op::Store { .. } => return None,
                _ if self.count_stores(inst) > 0 => return None,
                _ => {}
            }
        }
        let mut sums: Vec<(OperandId, ScalarOp, Value)> = vec![];
        let mut terms = vec![];
        for (inst, turn) in steps {
            let (window, value) = stored_window(inst)?;
            let to = window.0;
            let (add, made) = self.definition(value)?;
            let Op::Scalar(op @ (ScalarOp::Add | ScalarOp::Maximum | ScalarOp::Minimum)) = made.op else { return None };
            let among = turn.unwrap_or(of_steps);
            let is_own = |v: Value| self.loaded_window(v, among) == Some(window) && self.uses[&v] == 1;
            let own = made.args.iter().position(|&v| is_own(v)).filter(|_| self.uses[&value] == 1)?;
            if sums.iter().any(|sum| sum.0 == to || sum.1 != op) || kernel.ty(made.args[1 - own]) != kernel.ty(value) {
                return None;
            }
            sums.push((to, op, made.args[own]));
            terms.push((add, 1 - own));
        }
        let op = sums.first()?.1;
        let begins = |of: OperandId| {
            let mut own = before.iter().filter_map(|inst| whole_block_store(kernel, inst)).filter(|(to, _)| *to == of);
            let neutral = op.neutral(kernel.operand(of).dtype);
            own.next().is_some_and(|(_, value)| self.constant_value(value) == neutral) && own.next().is_none()
        };
        if before.len() != sums.len() || !sums.iter().all(|sum| begins(sum.0)) {
            return None;
        }
        let mut read: Vec<Value> = sums.iter().map(|sum| sum.2).collect();
        let mut given: Vec<OperandId> = vec![];
        for inst in behind {
            let (to, value) = whole_block_store(kernel, inst)?;
            let value = self.without_noop_casts(value);
            let from = self.fully_loaded_operand(value, of_last)?;
            if kernel.operand(from).dtype != kernel.operand(to).dtype || !sums.iter().any(|sum| sum.0 == from) {
                return None;
            }
            read.push(value);
            given.push(to);
        }
        let is_output = |id: &OperandId| matches!(kernel.operand(*id).kind, OperandKind::Output { .. });
        let sums_of = |id: &OperandId| sums.iter().any(|sum| sum.0 == *id);
        let outputs = kernel.arrays().map(|(id, _)| id).filter(is_output);
        let is_all = outputs.into_iter().all(|id| given.contains(&id) != sums_of(&id));
        let reads_others = self.made_by.iter().any(|(v, &id)| match kernel.inst(id).op {
            Op::Load { from, .. } => kernel.operand(from).kind != OperandKind::Input && !read.contains(v),
            _ => false,
        });
        (is_all && !reads_others && given.iter().all(is_output)).then_some(GridSum { op, first: first?, last, terms })
    }

    /// Appends the stores in loop `inst` to `steps`, each with the instructions of the loop body it is in; `None` if
    /// anything else in the loop, such as an `if`, contains a store.
    fn collect_loop_stores(&self, inst: &Inst, steps: &mut Vec<(&'k Inst, Option<&'k [InstId]>)>) -> Option<()> {
        let kernel = self.kernel;
        let turn = &kernel.region(inst.regions[0]).insts[..];
        for inst in turn.iter().map(|&id| kernel.inst(id)) {
            match inst.op {
                Op::Store { .. } => steps.push((inst, Some(turn))),
                Op::For { .. } => self.collect_loop_stores(inst, steps)?,
                _ if self.count_stores(inst) > 0 => return None,
                _ => {}
            }
        }
        Some(())
    }

    /// Returns the window of an operand that value `v` was loaded from, if one of the instructions `among` loads it.
    fn loaded_window(&self, v: Value, among: &[InstId]) -> Option<OperandWindow<'k>> {
        let (id, inst) = self.definition(v)?;
        match &inst.op {
            Op::Load { from, view, masked: false } if among.contains(&id) => Some((*from, view, &inst.args[..])),
            _ => None,
        }
    }

    /// Returns the number of stores in the regions of an instruction.
    fn count_stores(&self, inst: &Inst) -> usize {
        let mut count = 0;
        let mut add = |_: InstId, inst: &Inst| count += usize::from(matches!(inst.op, Op::Store { .. }));
        inst.regions.iter().for_each(|&region: &RegionId| self.kernel.walk(region, &mut add));
        count
    }

    /// Returns the comparison that a condition consists of, with true if it holds only in the first step, false if only
    /// in the last one; `None` for other conditions.
    fn first_or_last_step_test(&self, condition: Value) -> Option<(InstId, bool)> {
        let (id, inst) = self.definition(condition)?;
        if inst.op != Op::Scalar(ScalarOp::Eq) || self.uses[&condition] != 1 {
            return None;
        }
        let is_id = |v: Value| self.definition(v).is_some_and(|(_, inst)| inst.op == Op::ProgramId(self.axis));
        let other = *inst.args.iter().find(|&&v| !is_id(v))?;
        if !inst.args.iter().any(|&v| is_id(v)) {
            return None;
        }
        let is = |v: Value, n: i64| self.constant_value(v).is_some_and(|x| x == Literal::int(x.dtype, n));
        if is(other, 0) {
            return Some((id, true));
        }
        let (_, last) = self.definition(other)?;
        let counts = |v: Value| self.definition(v).is_some_and(|(_, inst)| inst.op == Op::NumPrograms(self.axis));
        (last.op == Op::Scalar(ScalarOp::Sub) && counts(last.args[0]) && is(last.args[1], 1)).then_some((id, false))
    }

    /// Returns the constant that all elements of a value are; `None` if it is no constant.
    fn constant_value(&self, v: Value) -> Option<Literal> {
        match self.definition(v)?.1 {
            Inst { op: Op::Const(x), .. } => Some(*x),
            Inst { op: Op::Structural(StructuralOp::Broadcast(_) | StructuralOp::Reshape(_)), args, .. } => {
                self.constant_value(args[0])
            }
            _ => None,
        }
    }

    /// Returns the operand whose whole block was loaded as value `v`; `None` if `v` is no such load, or the load is not
    /// one of the instructions `among`.
    fn fully_loaded_operand(&self, v: Value, among: &[InstId]) -> Option<OperandId> {
        let (id, inst) = self.definition(v)?;
        match &inst.op {
            Op::Load { from, view, masked: false } if is_whole_block_view(self.kernel, *from, view) => {
                among.contains(&id).then_some(*from)
            }
            _ => None,
        }
    }

    /// Returns the value before any casts to the type that it already has.
    fn without_noop_casts(&self, v: Value) -> Value {
        match self.definition(v) {
            Some((_, Inst { op: Op::Structural(StructuralOp::Cast(cast)), args, .. }))
                if cast.to == self.kernel.ty(args[0]).dtype =>
            {
                self.without_noop_casts(args[0])
            }
            _ => v,
        }
    }
}

/// A window of an operand: the operand, the view of it, and the view's computed starts.
type OperandWindow<'k> = (OperandId, &'k View, &'k [Value]);

/// Returns the window that a store writes, and the stored value; `None` for other instructions and masked stores.
fn stored_window(inst: &Inst) -> Option<(OperandWindow<'_>, Value)> {
    match (&inst.op, &inst.args[..]) {
        (Op::Store { to, view, masked: false }, [value, starts @ ..]) => Some(((*to, view, starts), *value)),
        _ => None,
    }
}

/// Returns the operand whose whole block a store writes, and the stored value; `None` for other instructions.
fn whole_block_store(kernel: &Kernel, inst: &Inst) -> Option<(OperandId, Value)> {
    match &inst.op {
        Op::Store { to, view, masked: false } if is_whole_block_view(kernel, *to, view) => Some((*to, inst.args[0])),
        _ => None,
    }
}

/// Returns true if a view is the whole block of its operand.
fn is_whole_block_view(kernel: &Kernel, of: OperandId, view: &View) -> bool {
    *view == View::whole(&kernel.operand(of).block_shape())
}
