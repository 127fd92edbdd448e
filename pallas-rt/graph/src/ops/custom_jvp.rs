//! `custom_jvp`: a function whose tangents the user states, as in JAX.
use super::ClosedCall;
use super::prelude::*;
use super::samples::{OpSample, SampledOp, sine_product_graph};
use crate::dead_code::without_dead_equations;
use crate::transform::{cotangent_or_zeros, is_float, jvp, refuse_captured_tangents, vjp_of_results};
use pallas_ir::DType;

/// A call of a function whose tangents are stated by another graph, as in `jax.custom_jvp`.
///
/// ```text
/// operands     captured.., arguments..
/// primal       (captured.., arguments..) -> (results..)
/// rule         (captured.., arguments.., a tangent of each argument of floats..)
///              -> (results.., a tangent of each result of floats..)
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomJvp {
    /// Number of operands, the first ones, that the function captures: they are no arguments, and have no stated
    /// tangent.
    pub captured: usize,
    /// The function itself.
    pub primal: Graph,
    /// The function together with its tangents, in which it is linear.
    pub rule: Graph,
}

impl CallInterface for CustomJvp {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.primal), (RunCount::Never, &self.rule)]
    }
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call {
        let [primal, rule] = graphs.try_into().expect("two graphs");
        CustomJvp { primal, rule, ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.primal, args)?;
        let arguments = args[self.captured..].iter().copied().filter(|ty| is_float(ty));
        check_param_types(self, &self.rule, &args.iter().copied().chain(arguments).collect::<Vec<_>>())?;
        let (gives, found) = (self.primal.result_types(), self.rule.result_types());
        if !found.iter().eq(gives.iter().chain(gives.iter().filter(|ty| is_float(ty)))) {
            return Err(invalid_call_diag(self, format!("gives {gives:?}, and with tangents {found:?}")));
        }
        Ok(gives)
    }
}

impl CallExpansion for CustomJvp {
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        (at == ExpansionStage::Plan).then_some(&self.primal)
    }
}

impl CallText for CustomJvp {
    fn attributes(&self) -> String {
        format!(" captured({})", self.captured)
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.primal)), format!("jaxpr1={}", text(&self.rule))]
    }
}

impl CallTransformRule for CustomJvp {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        vec![is_active.contains(&true); self.primal.results.len()]
    }
    /// Appends the rule after the call. The rule computes the results too; the pass `common_subexpressions` lets both
    /// share these equations.
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let e = forward.e;
        refuse_captured_tangents(&forward.active_operands()[..self.captured], e)?;
        let args = [&e.args[..], &forward.tangents_of_floats(self.captured)].concat();
        let floats: Vec<bool> = e.results.iter().map(|&r| is_float(forward.to.ty(r))).collect();
        let made = forward.push_then_inline(&self.rule, &args).split_off(e.results.len());
        let mut tangents = made.into_iter();
        Ok(floats.into_iter().map(|is| if is { tangents.next() } else { None }).collect())
    }
    /// Appends the transpose of the rule, which is linear in the tangents of the arguments.
    fn vjp(&self, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        refuse_captured_tangents(&back.on[..self.captured], back.e)?;
        let VjpCall { e, on, .. } = back;
        let n = e.results.len();
        let wrt: Vec<bool> = (0..self.rule.params.len()).map(|i| i >= e.args.len()).collect();
        let of: Vec<bool> = (0..self.rule.results.len()).map(|i| i >= n).collect();
        let mut backward = vjp_of_results(&self.rule, &wrt, &of)?;
        backward.results.drain(..self.rule.results.len());
        let backward = without_dead_equations(backward);
        let mut args = e.args.clone();
        let mut floats = vec![];
        for (i, &arg) in e.args.iter().enumerate().skip(self.captured) {
            let ty = back.to.ty(arg).clone();
            if is_float(&ty) {
                floats.push(i);
                args.push(cotangent_or_zeros(back.to, None, &ty));
            }
        }
        args.extend(back.cotangents_of_floats());
        let made = back.to.push_valid_multi_result(ClosedCall(backward), &args);
        let mut found = vec![None; on.len()];
        floats.into_iter().zip(made).filter(|(i, _)| on[*i]).for_each(|(i, v)| found[i] = Some(v));
        Ok(found)
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (arguments, all) = (&self.primal.params[self.captured..], vec![true; self.primal.results.len()]);
        let is_float = |v: &Var| self.primal.ty(*v).dtype.is_float();
        let tangents = arguments.iter().zip(&has[self.captured..]).filter(|(v, _)| is_float(v)).map(|(_, has)| *has);
        let takes: Vec<bool> = has.iter().copied().chain(tangents).collect();
        let (primal, _) = batched_with_forced_results(&self.primal, has, axis, &all)?;
        let (rule, _) = batched_with_forced_results(&self.rule, &takes, axis, &vec![true; self.rule.results.len()])?;
        let made = to.push_valid_multi_result(CustomJvp { primal, rule, ..*self }, args);
        Ok(made.into_iter().map(|v| (v, true)).collect())
    }
    fn batch_dependent_results(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.primal.results.len()]
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(self.captured)
    }
}

impl CallAxisStateRule for CustomJvp {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let floats = |graph: &Graph, vars: &[Var], states: &[AxisStates]| -> Vec<AxisStates> {
            let all = vars.iter().zip(states).filter(|(v, _)| graph.ty(**v).dtype.is_float());
            all.map(|(_, states)| states.clone()).collect()
        };
        let (primal, mut gives) = typing.insert_casts(&self.primal, &operand_states)?;
        let of_primal = gives.clone();
        let arguments = floats(&self.primal, &self.primal.params[self.captured..], &operand_states[self.captured..]);
        let (rule, found) = typing.insert_casts(&self.rule, &[&operand_states[..], &arguments].concat())?;
        let n = gives.len();
        typing.join_carried_states(&mut gives, &found[..n], "custom_jvp", e.loc)?;
        let primal = typing.cast_results(primal, &of_primal, &gives, "custom_jvp", e.loc)?;
        let all = [gives.clone(), floats(&self.primal, &self.primal.results, &gives)].concat();
        let rule = typing.cast_results(rule, &found, &all, "the tangent that `custom_jvp` states", e.loc)?;
        Ok(CallWithAxisStates { call: CustomJvp { primal, rule, ..*self }.into(), takes: operand_states, gives })
    }
}

impl SampledOp for CustomJvp {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        let primal = sine_product_graph(&ty);
        let rule = jvp(&primal, &[true, true]).expect("a formula");
        vec![OpSample::new(CustomJvp { captured: 0, primal, rule }, &[ty.clone(), ty])]
    }
}
