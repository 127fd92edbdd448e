//! Folds constants, computes equal operations once, and removes operations that nothing needs.
//!
//! ```text
//! %3 = 64; %4 = 1; %5 = sub %3 %4        ->    %5 = 63
//! %7 = reduce op(add) axes(1) %6          ->    %7 = add %6 0, of one column
//! %6 = mul %2 %3; .. %9 = mul %2 %3      ->    %6 = mul %2 %3, also for %9
//! %7 = if true { .. yield %8 }           ->    .., %8 for %7
//! %9 = eq %2 %2                          ->    %9 = true, for integers
//! %1 = load @x ..; .. %2 = load @x ..    ->    %1 = load @x .., also for %2, where nothing writes to x
//! ```
use super::rewrite::KernelRewriter;
use crate::interp::eval;
use pallas_ir::scalar::SignatureType;
use pallas_ir::structural::Reduce;
use pallas_ir::{DType, Inst, Kernel, Literal, Loc, Op, OperandId, RegionId, ScalarOp, StructuralOp, Value};
use std::collections::{BTreeMap, HashMap};

/// Simplifies a kernel: folds constants, computes equal operations once, and removes operations that nothing needs.
pub(crate) fn simplify(kernel: &Kernel) -> Kernel {
    simplify_and_track(kernel, &mut vec![])
}

/// Simplifies a kernel, and replaces the `tracked` values by those of the result.
pub(crate) fn simplify_and_track(kernel: &Kernel, tracked: &mut Vec<(Value, OperandId)>) -> Kernel {
    let mut simplify = Simplifier { constants: BTreeMap::new(), scopes: vec![HashMap::new()] };
    let folded = copy_kernel(kernel, tracked, &mut |r, inst, loc| simplify.rewrite_inst(r, inst, loc));
    let used = needed_values(&folded);
    let needed = |inst: &Inst| !is_pure(&inst.op) || inst.results.iter().any(|v| used[v.index()]);
    copy_kernel(&folded, tracked, &mut |_, inst, _| !needed(inst))
}

/// Copies a kernel, with the instructions that `decide` puts in place of old ones. The values in `tracked` are replaced
/// by their copies, or removed if they have none.
fn copy_kernel(
    kernel: &Kernel,
    tracked: &mut Vec<(Value, OperandId)>,
    decide: &mut super::rewrite::InstHandler<'_>,
) -> Kernel {
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, decide);
    rewrite.remap_values(tracked);
    rewrite.finish()
}

/// Returns true if an instruction whose results are unused can be removed.
pub(crate) fn is_pure(op: &Op) -> bool {
    match op {
        Op::Store { .. } | Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_) => false,
        Op::Const(_) | Op::Scalar(_) | Op::Structural(_) | Op::Load { .. } | Op::Valid { .. } => true,
        Op::ProgramId(_) | Op::NumPrograms(_) | Op::NumSteps(_) | Op::Extent(_) => true,
        Op::Param(_) | Op::Prefetch(_) => true,
    }
}

/// Returns for each value true if it is needed: by effects, by control flow, or by instructions whose results are
/// needed.
pub(crate) fn needed_values(k: &Kernel) -> Vec<bool> {
    fn mark_needed_in_region(k: &Kernel, r: RegionId, used: &mut [bool]) {
        k.region(r).yields.iter().for_each(|v| used[v.index()] = true);
        k.region(r).params.iter().for_each(|v| used[v.index()] = true);
        for &id in k.region(r).insts.iter().rev() {
            let inst = k.inst(id);
            let needed = !is_pure(&inst.op) || inst.results.iter().any(|v| used[v.index()]);
            if needed {
                inst.args.iter().for_each(|v| used[v.index()] = true);
            }
            inst.regions.iter().for_each(|&r| mark_needed_in_region(k, r, used));
        }
    }
    let mut used = vec![false; k.values.len()];
    mark_needed_in_region(k, k.body, &mut used);
    used
}

/// State of the simplification of a kernel: the constants and the operations found so far.
struct Simplifier {
    /// Scalars of the copy whose value is known.
    constants: BTreeMap<Value, Literal>,
    /// For each open region, the operations of the copy whose results are available, with the results.
    scopes: Vec<HashMap<(Op, Vec<Value>), Value>>,
}

impl Simplifier {
    /// Simplifies an instruction; returns false if it is to be copied unchanged.
    fn rewrite_inst(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        let args = r.mapped_args(inst);
        match &inst.op {
            Op::If if let Some(condition) = self.constants.get(&args[0]) => {
                let taken = inst.regions[usize::from(condition.as_i64() == 0)];
                let yields = r.inline_region(taken, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
                inst.results.iter().zip(yields).for_each(|(&old, new)| r.map_value(old, new));
            }
            Op::If | Op::For { .. } | Op::While => self.rewrite_control_flow(r, inst, args, loc),
            Op::Load { from, .. } if !r.out.kernel().is_constant(*from) => return false,
            op if is_pure(op) => {
                let new = self.simplify_pure_op(r, inst, &args, loc);
                r.map_value(inst.results[0], new);
            }
            _ => return false,
        }
        true
    }
    /// Copies control flow; values computed in its regions are not available after them.
    fn rewrite_control_flow(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, args: Vec<Value>, loc: Loc) {
        let regions = inst
            .regions
            .iter()
            .map(|&region| {
                self.scopes.push(HashMap::new());
                let new = r.copy_region(region, &mut |r, inst, loc| self.rewrite_inst(r, inst, loc));
                self.scopes.pop();
                new
            })
            .collect();
        r.append_control_flow(inst.op.clone(), args, regions, inst, loc);
    }
    /// Returns the value of a pure operation: an existing one if possible, else that of a new instruction.
    fn simplify_pure_op(&mut self, r: &mut KernelRewriter<'_>, inst: &Inst, args: &[Value], loc: Loc) -> Value {
        if let Some(same) = self.identity_operand(&inst.op, args) {
            return same;
        }
        let computed = match self.fold_constants(&inst.op, args, r) {
            Some(known) => (Op::Const(known), vec![]),
            None => match unit_fold_as_scalar_op(&inst.op, args, r) {
                Some((op, neutral)) => {
                    let start = r.out.constant(neutral, loc);
                    self.constants.insert(start, neutral);
                    let (op, args) = (Op::Scalar(op), vec![args[0], start]);
                    if let Some(same) = self.identity_operand(&op, &args) {
                        return same;
                    }
                    (op, args)
                }
                None => (inst.op.clone(), args.to_vec()),
            },
        };
        if let Some(value) = self.scopes.iter().find_map(|scope| scope.get(&computed)) {
            return *value;
        }
        r.append(computed.0.clone(), computed.1.clone(), inst, loc);
        let value = r.mapped_value(inst.results[0]);
        if let Op::Const(x) = computed.0 {
            self.constants.insert(value, x);
        }
        self.scopes.last_mut().expect("the body is open").insert(computed, value);
        value
    }
    /// Returns the operand that equals the operation's result: `x + 0`, `x · 1`, `x & true`, `x - 0`, `x / 1`. Returns
    /// `None` for floats, since -0 + 0 is 0.
    fn identity_operand(&self, op: &Op, args: &[Value]) -> Option<Value> {
        let (Op::Scalar(op), &[x, y]) = (op, args) else { return None };
        let is = |v: Value, neutral: Option<Literal>| neutral.is_some() && self.constants.get(&v).copied() == neutral;
        let dtype = self.constants.get(&y).or(self.constants.get(&x))?.dtype;
        let right = match op {
            ScalarOp::Sub => ScalarOp::Add,
            ScalarOp::Div => ScalarOp::Mul,
            monoid => *monoid,
        };
        match dtype.is_float() {
            true => None,
            false if is(y, right.neutral(dtype)) => Some(x),
            false => is(x, op.neutral(dtype)).then_some(y),
        }
    }
    /// Returns the value of a scalar operation on constants, or of a comparison of an integer with itself; `None` for
    /// other operations.
    fn fold_constants(&self, op: &Op, args: &[Value], r: &KernelRewriter<'_>) -> Option<Literal> {
        let Op::Scalar(op) = op else { return None };
        if let (Some(holds), [x, y]) = (self_comparison_result(*op), args)
            && x == y
            && r.out.kernel().ty(*x).is_scalar()
            && !r.out.kernel().ty(*x).dtype.is_float()
        {
            return Some(Literal::new(DType::Bool, f64::from(holds)));
        }
        let known: Vec<Literal> = args.iter().map(|v| self.constants.get(v).copied()).collect::<Option<_>>()?;
        Some(eval::eval_element(*op, &known))
    }
}

/// Returns the scalar operation and the neutral element that an operation amounts to if it folds axes of extent 1 only;
/// `None` for other operations.
fn unit_fold_as_scalar_op(op: &Op, args: &[Value], r: &KernelRewriter<'_>) -> Option<(ScalarOp, Literal)> {
    let Op::Structural(StructuralOp::Reduce(Reduce { op, axes, keep: true })) = op else { return None };
    let ty = r.out.kernel().ty(args[0]);
    axes.iter().all(|&axis| ty.shape[axis] == 1).then_some((*op, op.neutral(ty.dtype)?))
}

/// Returns the result of comparing a number other than NaN with itself; `None` if `op` is no comparison.
fn self_comparison_result(op: ScalarOp) -> Option<bool> {
    let row = op.row();
    let compares = row.result == SignatureType::Is(DType::Bool)
        && row.operands.iter().map(|o| o.1).eq([SignatureType::T, SignatureType::T]);
    compares.then(|| eval::eval_element(op, &[Literal::int(DType::I32, 0); 2]).bits != 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fold_of_one_element_is_an_operation() {
        let text = "
kernel one {
  in x: f32[4, 1] block [4, 1]
  in w: i32[4, 3] block [4, 3]
  out y: f32[4, 1] block [4, 1] empty 0.0
  out z: i32[4, 1] block [4, 1] empty 0
  body {
    %0: f32[4,1] = load @x array[0:4, 0:1]
    %1: f32[4,1] = reduce op(add) axes(1) %0
    %2: f32[4,1] = reduce op(maximum) axes(1) %1
    store @y array[0:4, 0:1] %2
    %3: i32[4,3] = load @w array[0:4, 0:3]
    %4: i32[4,1] = reduce op(add) axes(1) %3
    %5: i32[4,1] = reduce op(add) axes(1) %4
    store @z array[0:4, 0:1] %5
  }
}
";
        let simple = super::simplify(&text.parse().expect("a kernel")).to_string();
        // Of integers nothing is left: adding 0 changes none.
        assert_eq!(simple.matches(" reduce ").count(), 1, "{simple}");
        assert!(simple.contains(" add %") && simple.contains(" maximum %"), "{simple}");
    }

    #[test]
    fn neutral_elements_change_integers_alone() {
        let text = "
kernel neutral {
  grid 1 parallel
  in x: i32[4] block [4]
  in w: f32[4] block [4]
  out y: i32[4] block [4] empty 0
  out z: f32[4] block [4] empty 0.0
  body {
    %0: i32[4] = load @x array[0:4]
    %1: i32[] = const 0
    %2: i32[] = const -2147483648
    %3: i32[4] = sub %0, %1
    %4: i32[4] = maximum %2, %3
    %5: i32[4] = bitxor %4, %1
    %6: i32[4] = sub %1, %5
    store @y array[0:4] %6
    %7: f32[4] = load @w array[0:4]
    %8: f32[] = const 0.0
    %9: f32[4] = add %7, %8
    store @z array[0:4] %9
  }
}
";
        let simple = super::simplify(&text.parse().expect("a kernel")).to_string();
        let kept = [" sub %1, %0", " add %3, %4"].iter().all(|op| simple.contains(op));
        assert!(kept && !simple.contains("maximum") && !simple.contains("bitxor"), "{simple}");
        assert_eq!(simple.matches(" sub ").count(), 1, "{simple}");
    }
}
