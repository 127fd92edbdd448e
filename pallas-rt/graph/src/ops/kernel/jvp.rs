//! Forward mode of kernels: a kernel that computes tangents beside its values, from the rules of its tile operations.
//!
//! ```text
//! in x                    in x, in d_x                  d_x has block, map and padding of x
//! scratch s               scratch s, scratch d_s
//! %2 = load @x            %2 = load @x; %5 = load @d_x
//! %3 = mul %2, %2         %3 = mul %2, %2; %8 = add (mul %5, %2), (mul %2, %5)
//! store @out %3           store @out %3; store @d_out %8
//! for (%a)                for (%a, %d_a)                and the same for `while` and `if`
//! ```
use crate::build::constant_dims;
use crate::call::KernelCall;
use pallas_ir::emit::{Term, ValueId};
use pallas_ir::structural::{Broadcast, RuleOperand};
use pallas_ir::{
    At, Builder, Diag, E, Inst, InstId, Kernel, Literal, Loc, Op as TileOp, OperandId, OperandKind, RegionId,
    RuleBackend, ScalarOp, StructuralOp, Type, Value,
};
use std::cell::RefCell;
use std::sync::Arc;

/// A kernel call that computes tangents beside its results.
pub(super) struct KernelCallJvp {
    /// The call. The tangents follow its operands, and its results.
    pub(super) call: KernelCall,
    /// For each operand of the original call, true if the new call takes its tangent: active operands, and those whose
    /// memory an output with a tangent takes over.
    pub(super) takes: Vec<bool>,
    /// For each result of the original call, true if the new call gives its tangent.
    pub(super) gives: Vec<bool>,
}

/// Returns the call with tangents of the operands for which `is_active` is true; `None` if no result depends on them.
///
/// # Errors
/// An operation that has no tangent, with its line.
pub(super) fn jvp_kernel_call(call: &KernelCall, is_active: &[bool]) -> Result<Option<KernelCallJvp>, Diag> {
    let kernel = &*call.kernel;
    let is_read = |o: &OperandKind| matches!(o, OperandKind::Input | OperandKind::Prefetch);
    let mut flags = is_active.iter();
    let mut active = ActivityAnalysis {
        kernel,
        values: vec![false; kernel.values.len()],
        operands: kernel.operands.iter().map(|o| is_read(&o.kind) && *flags.next().unwrap_or(&false)).collect(),
        is_changed: true,
    };
    while std::mem::take(&mut active.is_changed) {
        active.mark_active_aliases();
        active.mark_active_in_region(kernel.body);
    }
    let ActivityAnalysis { values, operands, .. } = active;
    let of = |is: &dyn Fn(&OperandKind) -> bool| -> Vec<bool> {
        kernel.operands.iter().zip(&operands).filter(|(o, _)| is(&o.kind)).map(|(_, active)| *active).collect()
    };
    let (takes, gives) = (of(&is_read), of(&|o| matches!(o, OperandKind::Output { .. })));
    if !gives.contains(&true) {
        return Ok(None);
    }
    let with = |types: &[Type], flags: &[bool]| -> Vec<Type> {
        types.iter().chain(types.iter().zip(flags).filter(|(_, on)| **on).map(|(ty, _)| ty)).cloned().collect()
    };
    let call = KernelCall {
        takes: with(&call.takes, &takes),
        gives: with(&call.gives, &gives),
        kernel: Arc::new(differentiate_kernel(kernel, &values, &operands)?),
        ..call.clone()
    };
    Ok(Some(KernelCallJvp { call, takes, gives }))
}

/// The values and operands of a kernel that depend on the operands with tangents.
struct ActivityAnalysis<'a> {
    kernel: &'a Kernel,
    /// For each value of the kernel, true if it depends on an operand with a tangent.
    values: Vec<bool>,
    /// For each operand, true if its memory depends on an operand with a tangent.
    operands: Vec<bool>,
    /// True if the current pass over the kernel marked anything; passes are repeated until none does.
    is_changed: bool,
}

impl ActivityAnalysis<'_> {
    fn mark_value_if_active(&mut self, v: Value, is_active: bool) {
        if is_active && self.kernel.ty(v).dtype.is_float() && !self.values[v.index()] {
            (self.values[v.index()], self.is_changed) = (true, true);
        }
    }

    fn mark_operand_if_active(&mut self, o: OperandId, is_active: bool) {
        if is_active && !self.operands[o.index()] {
            (self.operands[o.index()], self.is_changed) = (true, true);
        }
    }

    /// Marks both an output and the input that it aliases as active if either is, since they share memory.
    fn mark_active_aliases(&mut self) {
        for (i, operand) in self.kernel.operands.iter().enumerate() {
            if let OperandKind::Output { alias: Some(input), .. } = operand.kind {
                let either = self.operands[i] || self.operands[input.index()];
                self.mark_operand_if_active(input, either);
                self.mark_operand_if_active(OperandId(i as u32), either);
            }
        }
    }

    /// Marks the values and operands that depend on active ones by the instructions of `region` and its nested regions.
    fn mark_active_in_region(&mut self, region: RegionId) {
        let kernel = self.kernel;
        for &id in &kernel.region(region).insts {
            let Inst { op, args, results, regions } = kernel.inst(id);
            match op {
                TileOp::Scalar(_) | TileOp::Structural(_) => {
                    let active = args.iter().any(|a| self.values[a.index()]);
                    self.mark_value_if_active(results[0], active);
                }
                TileOp::Prefetch(of) => self.mark_value_if_active(results[0], self.operands[of.index()]),
                TileOp::Load { from, .. } => {
                    let active = self.operands[from.index()] || args.iter().any(|a| self.values[a.index()]);
                    self.mark_value_if_active(results[0], active);
                }
                TileOp::Store { to, .. } => self.mark_operand_if_active(*to, self.values[args[0].index()]),
                TileOp::If => {
                    for &region in regions {
                        self.mark_active_in_region(region);
                        self.propagate_activity(&[&kernel.region(region).yields, results]);
                    }
                }
                TileOp::For { .. } => {
                    let body = kernel.region(regions[0]);
                    self.propagate_activity(&[&args[3..], &body.params[1..]]);
                    self.mark_active_in_region(regions[0]);
                    self.propagate_activity(&[&args[3..], &body.yields, &body.params[1..], results]);
                }
                TileOp::While => {
                    let [condition, body] = [regions[0], regions[1]].map(|r| kernel.region(r));
                    self.propagate_activity(&[args, &condition.params]);
                    self.mark_active_in_region(regions[0]);
                    self.propagate_activity(&[&condition.yields[1..], &body.params]);
                    self.mark_active_in_region(regions[1]);
                    let (given, carried) = (&condition.params, &condition.yields[1..]);
                    self.propagate_activity(&[args, given, carried, &body.params, &body.yields, results]);
                }
                TileOp::Const(_)
                | TileOp::ProgramId(_)
                | TileOp::NumPrograms(_)
                | TileOp::NumSteps(_)
                | TileOp::Extent(_)
                | TileOp::Param(_)
                | TileOp::Valid { .. }
                | TileOp::DebugPrint(_)
                | TileOp::DebugAssert(_) => {}
            }
        }
    }

    /// Marks values that flow into one another, such as what a branch yields and its results: where any list has an
    /// active value, the values at that position of all lists but the first.
    fn propagate_activity(&mut self, lists: &[&[Value]]) {
        for i in 0..lists[0].len() {
            let active = lists.iter().any(|list| self.values[list[i].index()]);
            lists[1..].iter().for_each(|list| self.mark_value_if_active(list[i], active));
        }
    }
}

/// A kernel under construction, to which derivative rules append tile operations.
struct TileBuilder {
    b: Builder,
    /// The line that appended instructions get.
    at: Loc,
    /// The error of the first operation whose tile exceeds a limit.
    wrong: Option<Diag>,
}

impl TileBuilder {
    /// Appends an instruction and returns its result. If it exceeds a limit of tiles, records the error in `wrong` and
    /// returns any value.
    fn push(&mut self, op: TileOp, args: &[Value]) -> Value {
        match self.b.emit(op, args, self.at) {
            Ok(v) => v,
            Err(diag) => {
                self.wrong.get_or_insert(diag);
                args[0]
            }
        }
    }

    fn splat(&mut self, x: Literal, shape: &[usize]) -> Value {
        let v = self.b.constant(x, self.at);
        self.push_broadcast(v, shape)
    }

    /// Broadcasts `v` to a shape: its axes of extent 1 are stretched, and a scalar is repeated.
    fn push_broadcast(&mut self, v: Value, shape: &[usize]) -> Value {
        let own = &self.b.kernel().ty(v).shape;
        if own == shape {
            return v;
        }
        let op = Broadcast { to: constant_dims(shape), dims: (0..own.len()).collect() };
        self.push(TileOp::Structural(op.into()), &[v])
    }
}

impl RuleBackend for TileBuilder {
    fn emit(&mut self, op: Term, args: &[ValueId]) -> ValueId {
        let args: Vec<Value> = args.iter().map(|a| Value(a.0)).collect();
        let ty = args.first().map(|&v| self.b.kernel().ty(v).clone());
        let made = match (op, ty) {
            (Term::Scalar(op), _) => self.push(TileOp::Scalar(op), &args),
            (Term::Structural(op), _) => self.push(TileOp::Structural(op), &args),
            (Term::Like(x), Some(ty)) => self.splat(Literal::new(ty.dtype, x), &ty.shape),
            (Term::Number(x), Some(ty)) => self.splat(Literal::new(ty.dtype, x), &[]),
            (Term::Like(_) | Term::Number(_), None) => unreachable!("it is typed like an operand"),
        };
        ValueId(made.0)
    }
}

/// A kernel whose forward-mode derivative is being made.
struct KernelJvp<'a> {
    kernel: &'a Kernel,
    to: RefCell<TileBuilder>,
    /// For each value of the kernel, whether it depends on an operand with a tangent.
    is_active: &'a [bool],
    /// For each value of the kernel, its tangent; `None` for zero.
    found: Vec<Option<Value>>,
    /// For each operand, the operand that holds its tangent.
    operands: Vec<Option<OperandId>>,
}

/// Returns the kernel that computes tangents too (forward mode): operands for the tangents of the active ones follow
/// the original operands. `is_value_active` and `is_operand_active` say which depend on an operand with a tangent.
fn differentiate_kernel(kernel: &Kernel, is_value_active: &[bool], is_operand_active: &[bool]) -> Result<Kernel, Diag> {
    let mut own = kernel.clone();
    own.name.push_str("_jvp");
    let first = own.operands.len();
    let mut next = first as u32..;
    let operands: Vec<Option<OperandId>> =
        is_operand_active.iter().map(|active| active.then(|| OperandId(next.next().expect("endless")))).collect();
    for (operand, _) in kernel.operands.iter().zip(&operands).filter(|(_, tangent)| tangent.is_some()) {
        let mut tangent = operand.clone();
        tangent.name = format!("d_{}", operand.name);
        while own.operands.iter().any(|other| other.name == tangent.name) {
            tangent.name.push('_');
        }
        let zero = Literal::new(operand.dtype, 0.0);
        tangent.fill = operand.fill.map(|_| zero);
        if let OperandKind::Output { empty, alias } = &mut tangent.kind {
            *empty = zero;
            *alias = alias.and_then(|input| operands[input.index()]);
        }
        own.operands.push(tangent);
    }
    let found = vec![None; kernel.values.len()];
    let to = RefCell::new(TileBuilder { b: Builder::edit(own), at: Loc::NONE, wrong: None });
    let mut forward = KernelJvp { kernel, to, is_active: is_value_active, found, operands };
    forward.to.get_mut().b.begin(&[]);
    forward.differentiate_insts(kernel.body)?;
    let TileBuilder { mut b, .. } = forward.to.into_inner();
    b.replace(kernel.body, &[]);
    let mut made = b.finish();
    made.renumber();
    debug_assert_eq!(pallas_ir::verify(&made).map_err(|violation| format!("{violation:?}\n{made}")), Ok(()));
    Ok(made)
}

impl KernelJvp<'_> {
    /// Returns the tangent of a value, or zeros if there is none.
    fn tangent_or_zeros(&mut self, v: Value) -> Value {
        let ty = self.kernel.ty(v);
        let found = self.found[v.index()];
        found.unwrap_or_else(|| self.to.get_mut().splat(Literal::new(ty.dtype, 0.0), &ty.shape))
    }

    /// Returns the values, followed by the tangents of those that are active.
    fn with_tangents(&mut self, values: &[Value], is_active: &[bool]) -> Vec<Value> {
        let tangents: Vec<Value> =
            values.iter().zip(is_active).filter(|(_, on)| **on).map(|(&v, _)| self.tangent_or_zeros(v)).collect();
        [values, &tangents].concat()
    }

    /// Adds a new value as the tangent of each active one among `values`; returns `values` followed by the new ones.
    fn with_new_tangents(&mut self, values: &[Value]) -> Vec<Value> {
        let mut all = values.to_vec();
        for &v in values.iter().filter(|v| self.is_active[v.index()]) {
            let tangent = self.to.get_mut().b.value(self.kernel.ty(v).clone());
            self.found[v.index()] = Some(tangent);
            all.push(tangent);
        }
        all
    }

    /// Returns a region with tangents of its active parameters, and of the yielded values for which `yields_tangent` is
    /// true.
    fn differentiate_region(&mut self, region: RegionId, yields_tangent: &[bool]) -> Result<RegionId, Diag> {
        self.to.get_mut().b.begin(&[]);
        let params = self.with_new_tangents(&self.kernel.region(region).params);
        self.differentiate_insts(region)?;
        let yields = self.with_tangents(&self.kernel.region(region).yields, yields_tangent);
        let b = &mut self.to.get_mut().b;
        let made = b.end(&yields);
        b.kernel_mut().regions[made.index()].params = params;
        Ok(made)
    }

    fn differentiate_insts(&mut self, region: RegionId) -> Result<(), Diag> {
        for &id in &self.kernel.region(region).insts {
            self.to.get_mut().at = self.kernel.loc(id);
            self.differentiate_inst(id)?;
            if let Some(diag) = self.to.get_mut().wrong.take() {
                return Err(self.no_tangent_diag(id, &diag.message, &diag.help));
            }
        }
        Ok(())
    }

    fn no_tangent_diag(&self, id: InstId, what: &str, help: &str) -> Diag {
        let message = format!("the tangent of kernel `{}`: {what} ({})", self.kernel.name, self.kernel.loc(id));
        Diag::new("kernel-tangent", At::Op, message, help)
    }

    /// Appends an instruction, and the one that computes the tangent of its result.
    fn differentiate_inst(&mut self, id: InstId) -> Result<(), Diag> {
        let kernel = self.kernel;
        let Inst { op, args, results, regions } = kernel.inst(id);
        if !regions.is_empty() {
            return self.differentiate_control_flow(id);
        }
        self.to.get_mut().b.push_id(id);
        let is_known = args.iter().all(|a| self.found[a.index()].is_none());
        let tangent = match op {
            TileOp::Structural(StructuralOp::Bitcast(_)) if !is_known => {
                let help = "pass the kernel a `stop_gradient` of the argument, or state the derivative by `custom_jvp`";
                return Err(self.no_tangent_diag(id, "the bits of a float have no tangent", help));
            }
            TileOp::Scalar(_) | TileOp::Structural(_) if is_known || !kernel.ty(results[0]).dtype.is_float() => None,
            TileOp::Scalar(op) => {
                let to = &self.to;
                let value = |v: Value| E { to, id: ValueId(v.0) };
                let values: Vec<E<'_>> = args.iter().map(|&v| value(v)).collect();
                let tangents: Vec<Option<E<'_>>> = args.iter().map(|v| self.found[v.index()].map(value)).collect();
                op.jvp(&values, value(results[0]), &tangents).map(|e| Value(e.id.0))
            }
            TileOp::Structural(op) => {
                let to = &self.to;
                let value = |v: Value| E { to, id: ValueId(v.0) };
                let shapes: Vec<_> = args.iter().map(|&v| kernel.ty(v).dims()).collect();
                let values: Vec<RuleOperand<'_, '_>> = args
                    .iter()
                    .zip(&shapes)
                    .map(|(&v, shape)| RuleOperand { value: value(v), shape, dtype: kernel.ty(v).dtype })
                    .collect();
                let tangents: Vec<Option<E<'_>>> = args.iter().map(|v| self.found[v.index()].map(value)).collect();
                op.jvp(&values, value(results[0]), &tangents).map(|e| Value(e.id.0))
            }
            TileOp::Prefetch(of) => {
                self.operands[of.index()].map(|of| self.to.get_mut().push(TileOp::Prefetch(of), args))
            }
            TileOp::Load { from, view, masked } => {
                let other = args.last().filter(|_| *masked).copied();
                match (self.operands[from.index()], other) {
                    (Some(from), Some(other)) => {
                        let mut args = args.clone();
                        *args.last_mut().expect("the other value") = self.tangent_or_zeros(other);
                        let op = TileOp::Load { from, view: view.clone(), masked: true };
                        Some(self.to.get_mut().push(op, &args))
                    }
                    (Some(from), None) => {
                        let op = TileOp::Load { from, view: view.clone(), masked: false };
                        Some(self.to.get_mut().push(op, args))
                    }
                    // The memory has no tangent, so only elements that `other` replaces have one.
                    (None, Some(other)) => self.found[other.index()].map(|tangent| {
                        let to = self.to.get_mut();
                        let zero = to.splat(Literal::new(kernel.ty(other).dtype, 0.0), &[]);
                        to.push(TileOp::Scalar(ScalarOp::Select), &[args[args.len() - 2], zero, tangent])
                    }),
                    (None, None) => None,
                }
            }
            TileOp::Store { to, view, masked } => {
                if let Some(to) = self.operands[to.index()] {
                    let mut args = args.clone();
                    args[0] = self.tangent_or_zeros(args[0]);
                    let tile = self.to.get_mut();
                    let op = TileOp::Store { to, view: view.clone(), masked: *masked };
                    if let Err(diag) = tile.b.effect(op, &args, tile.at) {
                        tile.wrong.get_or_insert(diag);
                    }
                }
                return Ok(());
            }
            _ => None,
        };
        if let (Some(tangent), Some(&y)) = (tangent, results.first()) {
            self.found[y.index()] = Some(self.to.get_mut().push_broadcast(tangent, &kernel.ty(y).shape));
        }
        Ok(())
    }

    /// Appends a loop that also carries tangents, or a branch that also gives them.
    fn differentiate_control_flow(&mut self, id: InstId) -> Result<(), Diag> {
        let kernel = self.kernel;
        let Inst { op, args, results, regions } = kernel.inst(id);
        let gives: Vec<bool> = results.iter().map(|r| self.is_active[r.index()]).collect();
        // The bounds of a loop and conditions are no floats, so they have no tangents.
        let (first, bodies) = match op {
            TileOp::For { .. } => (3, vec![gives.clone()]),
            TileOp::While => (0, vec![[&[false], &gives[..]].concat(), gives.clone()]),
            _ => (args.len(), vec![gives.clone(); 2]),
        };
        let flags = [vec![false; first], gives].concat();
        let args = self.with_tangents(args, &flags[..args.len()]);
        let made = regions.iter().zip(&bodies).map(|(&region, gives)| self.differentiate_region(region, gives));
        let regions = made.collect::<Result<Vec<_>, _>>()?;
        let results = self.with_new_tangents(results);
        let (at, inst) = (kernel.loc(id), Inst { op: op.clone(), args, results, regions });
        self.to.get_mut().b.push(inst, at);
        Ok(())
    }
}
