//! `custom_vjp`: a function whose reverse-mode derivative the user states, as in JAX.
mod second_order;

use super::ClosedCall;
use super::prelude::*;
use super::samples::{OpSample, SampledOp, sine_product_graph};
use crate::manual::cast_graph_results;
use crate::mesh::ManualAxisState;
use crate::transform::vjp;
use pallas_ir::{At, Literal, ScalarOp, StructuralOp};
use pallas_ir::{DType, structural::Reduce};

/// A call of a function whose reverse-mode derivative is stated by two more graphs, as in `jax.custom_vjp`.
///
/// ```text
/// operands     captured.., arguments..
/// primal       (captured.., arguments..) -> (results..)
/// forward      (captured.., arguments..) -> (results.., residuals..)
/// backward     (captured.., residuals.., a cotangent of each result..) -> (a cotangent of each argument..)
/// ```
///
/// Results and arguments that are no floats have zeros as their cotangents, which nothing reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomVjp {
    /// Number of operands, the first ones, that the function captures: they are no arguments, and have no stated
    /// derivative.
    pub captured: usize,
    /// Number of captured operands, the last ones, that are computed from the arguments. The stated derivative by the
    /// arguments already includes their contribution.
    pub known: usize,
    /// True if forward mode differentiates `primal`. If false, forward mode is refused, because the stated derivative
    /// need not be that of `primal`.
    pub has_tangents: bool,
    /// The function itself.
    pub primal: Graph,
    /// The function with additional results: the residuals that `backward` needs.
    pub forward: Graph,
    /// The stated derivative: cotangents of the arguments from captured values, residuals and cotangents of the
    /// results.
    pub backward: Graph,
}

impl CallInterface for CustomVjp {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.primal), (RunCount::Never, &self.forward), (RunCount::Never, &self.backward)]
    }
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call {
        let [primal, forward, backward] = graphs.try_into().expect("three graphs");
        CustomVjp { primal, forward, backward, ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        check_param_types(self, &self.primal, args)?;
        check_param_types(self, &self.forward, args)?;
        let (gives, forward) = (self.primal.result_types(), self.forward.result_types());
        if forward.get(..gives.len()) != Some(&gives[..]) {
            return Err(invalid_call_diag(self, format!("gives {gives:?}, and with residuals {forward:?}")));
        }
        let (captured, arguments) = args.split_at(self.captured);
        let of_backward: Vec<&Type> = captured.iter().copied().chain(&forward[gives.len()..]).chain(&gives).collect();
        check_param_types(self, &self.backward, &of_backward)?;
        let found = self.backward.result_types();
        if !found.iter().eq(arguments.iter().copied()) {
            return Err(invalid_call_diag(self, format!("arguments {arguments:?} have cotangents {found:?}")));
        }
        Ok(gives)
    }
}

impl CallExpansion for CustomVjp {
    fn expansion_at(&self, at: ExpansionStage) -> Option<&Graph> {
        (at == ExpansionStage::Plan).then_some(&self.primal)
    }
}

impl CallText for CustomVjp {
    fn attributes(&self) -> String {
        format!(" captured({})", self.captured)
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        let graphs = [&self.primal, &self.forward, &self.backward];
        graphs.iter().enumerate().map(|(i, graph)| format!("jaxpr{i}={}", text(graph))).collect()
    }
}

impl CallTransformRule for CustomVjp {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        vec![is_active.contains(&true); self.primal.results.len()]
    }
    fn jvp(&self, forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        if self.has_tangents {
            return forward.push_function_jvp(&self.primal);
        }
        let message = "forward mode of a function that states its reverse-mode gradient".to_string();
        let help = "use reverse mode: `grad`, `vjp`, `jacrev`";
        Err(TransformError { at: forward.e.loc, diag: Diag::new("custom-tangent", At::Op, message, help) })
    }
    /// Appends a call of the stated derivative, and replaces the original call by `forward`, which also gives the
    /// residuals.
    ///
    /// If the function has tangents, both are calls with stated gradients themselves, so that second-order reverse mode
    /// works.
    fn vjp(&self, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let VjpCall { e, on, .. } = back;
        if on[..self.captured - self.known].contains(&true) {
            let message =
                "a function with a stated gradient captures an array that the gradient is asked for".to_string();
            let help = "pass the array as an argument, or capture its `stop_gradient`";
            return Err(TransformError { at: e.loc, diag: Diag::new("custom-captured", At::Op, message, help) });
        }
        let types = self.forward.result_types().split_off(e.results.len());
        // Kernels have tangents of any order, but a stated gradient only for the first two orders of reverse mode.
        let gradient =
            (self.has_tangents && self.known == 0).then(|| second_order::differentiable_gradient(self).ok()).flatten();
        let (forward, arguments): (Call, &[Var]) = match gradient {
            Some(_) => (second_order::with_residuals(self).into(), &e.args[self.captured..]),
            None => (ClosedCall(self.forward.clone()).into(), &[]),
        };
        let residuals = back.add_forward_results(forward, types);
        let args = [&e.args[..self.captured], &residuals, arguments, &back.all_cotangents()].concat();
        let call = gradient.map_or_else(|| ClosedCall(self.backward.clone()).into(), Call::from);
        let made = back.to.push_valid_multi_result(call, &args);
        let found = on.iter().enumerate().map(|(i, &on)| Some(made[i.checked_sub(self.captured)?]).filter(|_| on));
        Ok(found.collect())
    }
    /// Batches the call so that all its results have the batch axis.
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let call: Call = match self.with_batch_axis(has, axis) {
            Ok(batched) => batched.into(),
            // The derivative of a gradient may never be needed, so its failure to batch is no error yet.
            Err(_) if self.known > 0 => {
                let all = vec![true; self.primal.results.len()];
                ClosedCall(batched_with_forced_results(&self.primal, has, axis, &all)?.0).into()
            }
            Err(refused) => return Err(refused),
        };
        Ok(to.push_valid_multi_result(call, args).into_iter().map(|v| (v, true)).collect())
    }
    fn batch_dependent_results(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.primal.results.len()]
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(self.captured)
    }
}

impl CallAxisStateRule for CustomVjp {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        match self.insert_graph_casts(typing, operand_states.clone(), e.loc) {
            // The derivative of a gradient may never be needed, so states that do not fit there are no error yet.
            Err(_) if self.known > 0 => ClosedCall(self.primal.clone()).insert_casts(typing, e, operand_states),
            made => made,
        }
    }
}

impl CustomVjp {
    /// Returns the call with a batch axis in front of all results. An argument without the axis has as its cotangent
    /// the sum over the axis.
    fn with_batch_axis(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Result<CustomVjp, TransformError> {
        let results = self.primal.results.len();
        let all = vec![true; results];
        let (primal, _) = batched_with_forced_results(&self.primal, has_batch_axis, axis, &all)?;
        let residuals = self.forward.results.len() - results;
        let (forward, gives) = batched_with_forced_results(
            &self.forward,
            has_batch_axis,
            axis,
            &[&all[..], &vec![false; residuals]].concat(),
        )?;
        let takes = [&has_batch_axis[..self.captured], &gives[results..], &all].concat();
        let arguments = &has_batch_axis[self.captured..];
        let (mut backward, _) =
            batched_with_forced_results(&self.backward, &takes, axis, &vec![true; arguments.len()])?;
        for (i, _) in arguments.iter().enumerate().filter(|(_, has)| !**has) {
            let cotangent = backward.results[i];
            let ty = Type::new(backward.ty(cotangent).dtype, &backward.ty(cotangent).shape[1..]);
            backward.results[i] = if ty.dtype.is_float() {
                backward.push_valid(StructuralOp::from(Reduce::dropping(ScalarOp::Add, vec![0])), &[cotangent])
            } else {
                backward.splat(Literal::new(ty.dtype, 0.0), &ty.shape)
            };
        }
        Ok(CustomVjp { primal, forward, backward, ..*self })
    }

    /// Infers the states over manual mesh axes (varying, invariant, ..) in the three graphs from those of the operands,
    /// and inserts casts so that the stated derivative has the states of the arguments.
    fn insert_graph_casts(
        &self,
        typing: &AxisStateInference,
        operand_states: Vec<AxisStates>,
        at: Loc,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (primal, mut gives) = typing.insert_casts(&self.primal, &operand_states)?;
        let of_primal = gives.clone();
        let (forward, found) = typing.insert_casts(&self.forward, &operand_states)?;
        let n = gives.len();
        typing.join_carried_states(&mut gives, &found[..n], self.name(), at)?;
        let primal = typing.cast_results(primal, &of_primal, &gives, self.name(), at)?;
        let all = [&gives[..], &found[n..]].concat();
        let forward = typing.cast_results(forward, &found, &all, self.name(), at)?;
        let of_backward = [&operand_states[..self.captured], &found[n..], &gives].concat();
        let (mut backward, found) = typing.insert_casts(&self.backward, &of_backward)?;
        let wanted = &operand_states[self.captured..];
        if let Err((i, axis)) = cast_graph_results(&mut backward, typing.mesh(), &found, wanted) {
            let (is, own) = (found[i][axis], wanted[i][axis]);
            let what = format!("the cotangent that `custom_vjp` states for argument {i}");
            let mut diag = typing.state_mismatch_diag(&what, axis, is, own);
            diag.help = cotangent_state_help(i, typing.mesh().name(axis), is, own);
            return Err(TransformError { at, diag });
        }
        Ok(CallWithAxisStates {
            call: CustomVjp { primal, forward, backward, ..*self }.into(),
            takes: operand_states,
            gives,
        })
    }
}

/// Returns the help text for a stated cotangent of argument `i` that is in another state than the argument, over the
/// mesh axis named `axis`.
fn cotangent_state_help(i: usize, axis: &str, found: ManualAxisState, wanted: ManualAxisState) -> String {
    match (found, wanted) {
        (ManualAxisState::Varying, ManualAxisState::Invariant) => format!(
            "argument {i} is alike on all devices, so its cotangent is the sum of theirs: `psum(.., \"{axis}\")` of it in the \
             stated derivative; or `pvary(.., \"{axis}\")` of argument {i} before the call, so that the function's own \
             derivative adds them up"
        ),
        _ => format!(
            "the cotangent of argument {i} is in the state of the argument over axis `{axis}`: `psum` combines the values of \
             devices; `pcast` changes what is known of a value"
        ),
    }
}

impl SampledOp for CustomVjp {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        let primal = sine_product_graph(&ty);
        let mut forward = primal.clone();
        forward.results.extend(&primal.params);
        let mut backward = vjp(&primal, &[true, true]).expect("a formula");
        backward.results.remove(0);
        let of = |has_tangents| {
            let (primal, forward, backward) = (primal.clone(), forward.clone(), backward.clone());
            let call = CustomVjp { captured: 0, known: 0, has_tangents, primal, forward, backward };
            OpSample::new(call, &[ty.clone(), ty.clone()])
        };
        vec![of(true), of(false).without_tangents()]
    }
}
