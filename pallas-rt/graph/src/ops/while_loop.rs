//! `while_loop`: a loop that runs as long as a condition holds, as `jax.lax.while_loop`.
mod batch;

use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::manual::with_varying_axes;
use crate::mesh::Sharding;
use crate::shard::partition::move_captured_params_first;
use crate::shard::propagation_program::{NodeKind, RegionCall};
use crate::stablehlo::HloAttributes;
use crate::transform::active_loop_params;
use pallas_ir::{At, DType, ScalarOp};

/// A loop that calls `body` on the carried values as long as `condition` of them is true (`lax.while_loop`).
///
/// ```text
/// operands     captured by the condition.., captured by the body.., carried..
/// condition    (captured by the condition.., carried..) -> bool[]
/// body         (captured by the body.., carried..) -> (carried..)
/// results      carried..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// The condition; if it gives true, one more step runs.
    pub condition: Graph,
    /// The graph of one step.
    pub body: Graph,
    /// Number of operands that the condition captures: they are the same in each step.
    pub condition_captured: usize,
    /// Number of operands that the body captures: they are the same in each step.
    pub body_captured: usize,
}

impl While {
    /// Returns the number of operands before the carried ones.
    fn first_carried_operand(&self) -> usize {
        self.condition_captured + self.body_captured
    }
}

impl CallInterface for While {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Unknown, &self.condition), (RunCount::Unknown, &self.body)]
    }
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call {
        let [condition, body] = graphs.try_into().expect("two graphs");
        While { condition, body, ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let fixed = self.first_carried_operand();
        if args.len() < fixed {
            return Err(invalid_call_diag(self, format!("{} operands for {fixed} captured values", args.len())));
        }
        let carried = &args[fixed..];
        check_param_types(self, &self.condition, &[&args[..self.condition_captured], carried].concat())?;
        check_param_types(self, &self.body, &args[self.condition_captured..])?;
        if self.condition.result_types() != [Type::scalar(DType::Bool)] {
            return Err(invalid_call_diag(
                self,
                format!("the condition gives {:?}, not bool[]", self.condition.result_types()),
            ));
        }
        let gives = self.body.result_types();
        if !gives.iter().eq(carried.iter().copied()) {
            return Err(invalid_call_diag(self, format!("carries {carried:?}, the body gives {gives:?}")));
        }
        Ok(gives)
    }
}

impl PlanStepInterface for While {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for While {
    fn attributes(&self) -> String {
        format!(" captured({}, {})", self.condition_captured, self.body_captured)
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("body_jaxpr={}", text(&self.body)),
            format!("body_nconsts={}", self.body_captured),
            format!("cond_jaxpr={}", text(&self.condition)),
            format!("cond_nconsts={}", self.condition_captured),
        ]
    }
}

impl CallTransformRule for While {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        let on = &is_active[self.condition_captured..];
        active_loop_params(&self.body, on, self.body_captured, self.body.results.len())[self.body_captured..].to_vec()
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let (first, fixed, n) = (self.condition_captured, self.body_captured, forward.e.results.len());
        let on = active_loop_params(&self.body, &forward.active_operands()[first..], fixed, n);
        let (body, found) = forward.differentiate_loop_body(&self.body, &on, fixed, &[fixed, fixed + n], &[n])?;
        let mut condition = self.condition.clone();
        for (&p, _) in self.condition.params[first..].iter().zip(&on[fixed..]).filter(|(_, on)| **on) {
            condition.param(self.condition.ty(p).clone());
        }
        // Values that the condition captures need no tangents.
        let all = [vec![false; first], on.clone()].concat();
        let args = forward.interleaved_operands(&all, &[first + fixed, first + fixed + n]);
        let body_captured = fixed + on[..fixed].iter().filter(|on| **on).count();
        let call = While { condition, body, condition_captured: first, body_captured };
        let found = forward.new_result_tangents(&found);
        Ok(forward.push_with_tangents(call.into(), args, &[n], found))
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let message = "reverse mode through a `while_loop`, whose number of steps is not known".to_string();
        let help = "use `scan` or `fori_loop` with a fixed number of steps, and keep the old value by `select` in \
                    steps that come after the end";
        Err(TransformError { at: back.e.loc, diag: Diag::new("while", At::Op, message, help) })
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        batch::batched(self, batch)
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let carried = batch::carried_batch_flags(self, has_batch_axis, axis);
        if batch::is_condition_batched(self, has_batch_axis, &carried, axis) {
            vec![true; carried.len()]
        } else {
            carried
        }
    }
    /// Returns the number of operands, since no cotangent has to be masked: reverse mode of a `while` is refused.
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        Some(has_batch_axis.len())
    }
}

impl CallLinearity for While {
    fn linearity(&self, of: &mut LinearityAnalysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        let (before, own) = args.split_at(self.condition_captured);
        let found =
            of.analyze_loop(e, own, self.body_captured..own.len(), |of, args| of.analyze_graph(&self.body, args));
        match of.analyze_graph(&self.condition, &[before, &found].concat())[0] {
            Linearity::Zero | Linearity::Constant => found,
            wrong @ (Linearity::Nonlinear(_) | Linearity::Linear) => vec![wrong; found.len()],
        }
    }
}

impl CallAxisStateRule for While {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        mut operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (first, fixed, at) = (self.condition_captured, self.first_carried_operand(), e.loc);
        loop {
            let of_condition = [&operand_states[..first], &operand_states[fixed..]].concat();
            let (condition, decides) = typing.insert_casts(&self.condition, &of_condition)?;
            let (body, found) = typing.insert_casts(&self.body, &operand_states[first..])?;
            let varying = typing.varying_condition_axes("a loop", &decides[0], &[&condition, &body], at)?;
            let after: Vec<AxisStates> = found.iter().map(|found| with_varying_axes(found, &varying)).collect();
            if typing.join_carried_states(&mut operand_states[fixed..], &after, "while_loop", at)? {
                continue;
            }
            let gives = operand_states[fixed..].to_vec();
            let body = typing.cast_results(body, &found, &gives, "while_loop", at)?;
            return Ok(CallWithAxisStates {
                call: While { condition, body, ..*self }.into(),
                takes: operand_states,
                gives,
            });
        }
    }
}

impl ShardableCall for While {
    fn sharding_rule(&self) -> Option<ShardingRule> {
        None
    }
    fn add_propagation_nodes(
        &self,
        build: &mut RegionGraphBuilder<'_>,
        args: &[Val],
        gives: &[Type],
        loc: Loc,
    ) -> Vec<Val> {
        let (captured, carried) = args.split_at(self.first_carried_operand());
        let (of_condition, of_body) = captured.split_at(self.condition_captured);
        let node = build.add_control_flow_node(NodeKind::Loop, RegionCall::new(self.clone()), carried, gives, loc);
        build.add_region(node, gives, |b, x| b.add_graph(&self.condition, &[of_condition, x].concat()).0);
        build.add_region(node, gives, |b, x| b.add_graph(&self.body, &[of_body, x].concat()).0);
        build.program.nodes[node].results.clone()
    }
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let carried: Vec<Sharding> = node.results.iter().map(|&v| to.propagated_sharding(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let inits: Vec<Var> = with(&node.operands).iter().map(|(v, s)| to.reshard_value(*v, s)).collect();
        let [first, second] = [&node.regions[0], &node.regions[1]];
        let holds = vec![(first.results[0], Sharding::replicated(0))];
        let (condition, of_condition) = to.partition_region(first, &with(&first.params), &holds);
        let (body, of_body) = to.partition_region(second, &with(&second.params), &with(&second.results));
        let call = While {
            condition: move_captured_params_first(condition, of_condition.len()),
            body: move_captured_params_first(body, of_body.len()),
            condition_captured: of_condition.len(),
            body_captured: of_body.len(),
        };
        let args = [to.captured_blocks(&of_condition), to.captured_blocks(&of_body), inits].concat();
        let made = to.graph().push_valid_multi_result(call, &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(carried) {
            to.define_value(v, var, sharding);
        }
    }
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        let (first, fixed, carried) = (self.condition_captured, self.first_carried_operand(), self.body.results.len());
        let kinds = [0..first, first..fixed, fixed..fixed + carried];
        let mut condition = of.joint_body(&self.condition, &[first, carried]);
        // The condition is the same on all devices, so one result is enough.
        condition.results.truncate(1);
        let own = While {
            condition,
            body: of.joint_body(&self.body, &[self.body_captured, carried]),
            condition_captured: of.count_over_devices(first),
            body_captured: of.count_over_devices(self.body_captured),
        };
        let operands = kinds.into_iter().flat_map(|kind| of.operands_in_range(kind)).collect();
        of.emit_joint_call(to, own.into(), operands, &[carried])
    }
}

impl LowerableCall for While {
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        let e = from.e;
        let (inputs, carried) = e.args.split_at(self.first_carried_operand());
        let none = vec![false; self.condition.params.len()];
        let is_donated: Vec<bool> = (0..self.body.params.len()).map(|i| i >= self.body_captured).collect();
        let work = StepOp::While {
            condition: Box::new(from.plan(&self.condition, &none)),
            captured: self.condition_captured,
            body: Box::new(from.plan(&self.body, &is_donated)),
            inputs: self.body_captured,
        };
        let in_place = carried.iter().copied().map(Some).collect();
        LoweredStep { work, inputs: inputs.to_vec(), outputs: e.results.clone(), in_place }
    }
}

impl CallMasking for While {
    fn check_same_call(&self, other: &Call, _: bool) -> Result<(), String> {
        let captured = |call: &While| (call.condition_captured, call.body_captured);
        match While::of(other).is_some_and(|other| captured(self) == captured(other)) {
            true => Ok(()),
            false => Err("`while` differs".into()),
        }
    }
    fn size_dependent_attributes(&self) -> Vec<usize> {
        vec![]
    }
    fn push_masked(
        &self,
        scope: &mut GraphMasker<'_>,
        masked_graphs: Vec<MaskedGraphAndParams>,
        _: &[Option<usize>],
        args: &[Var],
    ) -> Vec<Var> {
        let [(mut condition, before), (mut body, inside)] =
            <[_; 2]>::try_from(masked_graphs).unwrap_or_else(|_| unreachable!("a condition and a body"));
        condition.params.splice(0..0, before.values().copied());
        body.params.splice(0..0, inside.values().copied());
        let (own_before, rest) = args.split_at(self.condition_captured);
        let operands =
            [&scope.table_params_for_call(&before)[..], own_before, &scope.table_params_for_call(&inside), rest]
                .concat();
        let call = While {
            condition,
            body,
            condition_captured: self.condition_captured + before.len(),
            body_captured: self.body_captured + inside.len(),
        };
        scope.to.push_valid_multi_result(call, &operands)
    }
}

impl SerializableOp for While {
    fn print(&self, p: &mut text_format::Printer) -> String {
        let (condition, body) = (p.write_graph(&self.condition), p.write_graph(&self.body));
        format!(" {condition} {body} {} {}", self.condition_captured, self.body_captured)
    }
    fn parse(p: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<While, String> {
        let [condition, body] = [(); 2].map(|()| p.take_graph(words.parse_next("a graph")?));
        let [condition_captured, body_captured] = [(); 2].map(|()| words.parse_next("a number"));
        let (condition_captured, body_captured) = (condition_captured?, body_captured?);
        Ok(While { condition: condition?, body: body?, condition_captured, body_captured })
    }
}

impl CallHlo for While {
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let (captured, carried) = args.split_at(self.first_carried_operand());
        let (of_condition, of_body) = captured.split_at(self.condition_captured);
        let condition = p.build_region(gives, |p, x| p.emit_graph(&self.condition, &[of_condition, x].concat()));
        let body = p.build_region(gives, |p, x| p.emit_graph(&self.body, &[of_body, x].concat()));
        let carried: Vec<&HloValue> = carried.iter().collect();
        p.w.emit_op_with_regions("while", &carried, vec![condition, body], HloAttributes::None, gives)
    }
}

impl SampledOp for While {
    fn samples(dtype: DType) -> Vec<OpSample> {
        // `while h < bound { h = h + exp(w) }`
        let scalar = Type::scalar(dtype);
        let mut condition = Graph::default();
        let [bound, h] = [0, 1].map(|_| condition.param(scalar.clone()));
        condition.results = vec![condition.push_valid(ScalarOp::Lt, &[h, bound])];
        let mut body = Graph::default();
        let [w, h] = [0, 1].map(|_| body.param(scalar.clone()));
        let step = body.push_valid(ScalarOp::Exp, &[w]);
        body.results = vec![body.push_valid(ScalarOp::Add, &[h, step])];
        let call = While { condition, body, condition_captured: 1, body_captured: 1 };
        vec![OpSample::new(call, &[scalar.clone(), scalar.clone(), scalar]).without_gradient()]
    }
}
