//! A scan in a graph for all sizes up to bounds: steps beyond the number that exists leave the carried values
//! unchanged.
use super::Scan;
use crate::bounded::{CallMasking, GraphMasker, MaskedGraphAndParams};
use crate::build::constant_dims;
use crate::call::{Call, has_effect};
use crate::graph::Var;
use pallas_ir::structural::Broadcast;
use pallas_ir::{DType, ScalarOp, StructuralOp, Type};

impl CallMasking for Scan {
    /// Checks that another call is the same scan, possibly with another length.
    fn check_same_call(&self, other: &Call, _: bool) -> Result<(), String> {
        let b = Scan::of(other)
            .filter(|b| (self.captured, self.carried, self.reverse) == (b.captured, b.carried, b.reverse));
        let Some(b) = b else { return Err("a scan carries other values".into()) };
        match self.length != b.length && self.body.equations.iter().any(|e| has_effect(&e.op)) {
            true => Err("`debug_print` in a scan whose number of steps depends on the size".into()),
            false => Ok(()),
        }
    }

    fn size_dependent_attributes(&self) -> Vec<usize> {
        vec![self.length]
    }

    /// Appends a scan with the largest number of steps, of which those from the actual length on leave the carried
    /// values unchanged.
    fn push_masked(
        &self,
        scope: &mut GraphMasker<'_>,
        mut masked_graphs: Vec<MaskedGraphAndParams>,
        attribute_indices: &[Option<usize>],
        args: &[Var],
    ) -> Vec<Var> {
        let (mut body, mut scalars) = masked_graphs.remove(0);
        let (captured, rest) = args.split_at(self.captured);
        let Some(length) = attribute_indices[0] else {
            body.params.splice(0..0, scalars.values().copied());
            let operands = [&scope.table_params_for_call(&scalars)[..], args].concat();
            let call = Scan { body, captured: self.captured + scalars.len(), ..*self };
            return scope.to.push_valid_multi_result(call, &operands);
        };
        // Carries the index of the step too.
        let end = *scalars.entry(length).or_insert_with(|| body.var(Type::scalar(DType::I32)));
        let step = body.var(Type::scalar(DType::I32));
        let one = body.i32_literal(if self.reverse { -1 } else { 1 });
        let next = body.push_valid(ScalarOp::Add, &[step, one]);
        let exists = body.push_valid(ScalarOp::Lt, &[step, end]);
        for k in 0..self.carried {
            let (before, after) = (body.params[self.captured + k], body.results[k]);
            let shape = body.ty(after).shape.clone();
            let exists = match shape.is_empty() {
                true => exists,
                false => body.push_valid(StructuralOp::from(Broadcast::to(constant_dims(&shape))), &[exists]),
            };
            body.results[k] = body.push_valid(ScalarOp::Select, &[exists, after, before]);
        }
        let last = self.first_array_operand();
        body.params.insert(last, step);
        body.results.insert(self.carried, next);
        body.params.splice(0..0, scalars.values().copied());
        let first = scope.to.i32_literal(if self.reverse { self.length as i64 - 1 } else { 0 });
        let (carried, arrays) = rest.split_at(self.carried);
        let operands = [&scope.table_params_for_call(&scalars)[..], captured, carried, &[first], arrays].concat();
        let (captured, carried) = (self.captured + scalars.len(), self.carried + 1);
        let mut made = scope.to.push_valid_multi_result(Scan { body, captured, carried, ..*self }, &operands);
        made.remove(self.carried);
        made
    }
}
