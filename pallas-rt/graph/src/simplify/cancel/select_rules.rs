//! The rules for selects, and for the comparisons of bools by which batched branches select.
use super::{EquationSimplifier, SimplerForm};
use crate::graph::{Equation, Op, Var};
use pallas_ir::{DType, ScalarOp, StructuralOp};

impl EquationSimplifier {
    /// Simplifies a select by the negation of a condition to a select by the condition with swapped operands.
    pub(super) fn simplify_negated_select(&self, e: &Equation) -> Option<SimplerForm> {
        let [which, yes, no] = e.args[..] else { return None };
        let not = |v: Var| match self.definition(v)? {
            Equation { op: Op::Scalar(ScalarOp::Not), args, .. } if self.graph.ty(v).dtype == DType::Bool => {
                Some(args[0])
            }
            _ => None,
        };
        if let Some(c) = not(which) {
            return Some(SimplerForm::Operation(e.op.clone(), vec![c, no, yes]));
        }
        let (StructuralOp::Broadcast(repeat), from) = self.structural_definition(which)? else { return None };
        let repeated = (Op::Structural(repeat.clone().into()), vec![not(from[0])?]);
        Some(SimplerForm::NewOperand(vec![which, no, yes], 0, repeated))
    }

    /// Simplifies a select of a value that is computed from another select by the same condition.
    pub(super) fn simplify_nested_select(&self, e: &Equation) -> Option<SimplerForm> {
        [1, 2].into_iter().find_map(|side| {
            let Equation { op: op @ Op::Scalar(_), args, .. } = self.definition(e.args[side])? else { return None };
            let own = |v: Var| match self.definition(v)? {
                Equation { op: Op::Scalar(ScalarOp::Select), args, .. } if args[0] == e.args[0] => Some(args[side]),
                _ => None,
            };
            let now: Vec<Var> = args.iter().map(|&v| own(v).unwrap_or(v)).collect();
            (self.uses[e.args[side].index()] == 1 && now != *args)
                .then(|| SimplerForm::NewOperand(e.args.clone(), side, (op.clone(), now)))
        })
    }

    /// Simplifies a comparison of a bool, cast to a number, with a literal; batched `cond` and `switch` select by such
    /// numbers.
    pub(super) fn simplify_bool_comparison(&self, op: ScalarOp, e: &Equation) -> Option<SimplerForm> {
        let compare: fn(&f64, &f64) -> bool = match op {
            ScalarOp::Eq => f64::eq,
            ScalarOp::Ne => f64::ne,
            ScalarOp::Lt => f64::lt,
            ScalarOp::Le => f64::le,
            ScalarOp::Gt => f64::gt,
            ScalarOp::Ge => f64::ge,
            _ => return None,
        };
        let (StructuralOp::Cast(_), from) = self.structural_definition(e.args[0])? else { return None };
        let (_, limit) = self.splat_literal(e.args[1])?;
        let of = |truth: f64| compare(&truth, &limit.as_f64());
        match (self.graph.ty(from[0]).dtype, of(0.0), of(1.0)) {
            (DType::Bool, false, true) => Some(SimplerForm::Existing(from[0])),
            (DType::Bool, true, false) => Some(SimplerForm::Operation(Op::Scalar(ScalarOp::Not), from.to_vec())),
            _ => None,
        }
    }
}
