//! `case`: a call of one of several graphs, chosen at run time, as `jax.lax.switch`.
use super::prelude::*;
use super::samples::{OpSample, SampledOp, unary_graph};
use crate::manual::with_varying_axes;
use crate::mesh::Sharding;
use crate::shard::propagation_program::{NodeKind, RegionCall};
use crate::stablehlo::{HloAttributes, HloRegion};
use crate::transform::{batched_branch, inline_or_call, push_batch_select, refuse_batch_collectives, vjp};
use pallas_ir::{DType, Literal, ScalarOp};
use std::collections::BTreeMap;

/// A call of the branch at the index that the first operand gives, an i32 scalar (`lax.switch`); an index out of range
/// is clamped. All branches take the other operands, and give results of equal types.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The branches, at least one.
    pub branches: Vec<Graph>,
}

impl CallInterface for Case {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        self.branches.iter().map(|branch| (RunCount::Once, branch)).collect()
    }
    fn with_graphs(&self, branches: Vec<Graph>) -> Call {
        Case { branches }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let (Some((index, rest)), Some(first)) = (args.split_first(), self.branches.first()) else {
            return Err(invalid_call_diag(self, "it has no index or no branch".into()));
        };
        if **index != Type::scalar(DType::I32) {
            return Err(invalid_call_diag(self, format!("the number of the branch is {index}, not i32[]")));
        }
        self.branches.iter().try_for_each(|branch| check_param_types(self, branch, rest))?;
        match self.branches.iter().find(|branch| branch.result_types() != first.result_types()) {
            Some(other) => Err(invalid_call_diag(
                self,
                format!("one branch gives {:?}, another {:?}", first.result_types(), other.result_types()),
            )),
            None => Ok(first.result_types()),
        }
    }
}

impl PlanStepInterface for Case {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for Case {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        self.branches.iter().enumerate().map(|(i, branch)| format!("jaxpr{i}={}", text(branch))).collect()
    }
}

impl CallTransformRule for Case {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        elementwise_or(self.branches.iter().map(|branch| active(branch, &is_active[1..])))
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let (branches, found) = forward.differentiate_branches(&self.branches, &forward.active_operands()[1..])?;
        let args = forward.operands_and_tangents();
        let (found, n) = (forward.new_result_tangents(&found), forward.e.results.len());
        Ok(forward.push_with_tangents(Case { branches }.into(), args, &[n], found))
    }
    /// Appends a `case` whose branches compute the cotangents. Each branch computes its forward values again, as
    /// nothing is stored.
    fn vjp(&self, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let backward = |branch: &Graph| {
            let mut both = vjp(branch, &back.on[1..])?;
            // Prints were made by the forward branch already.
            both.equations.retain(|e| !e.op.has_own_effect());
            let results = both.results[branch.results.len()..].to_vec();
            Ok(Graph { results, ..both })
        };
        let branches = self.branches.iter().map(backward).collect::<Result<Vec<_>, TransformError>>()?;
        let args = [&back.e.args[..], &back.cotangents_of_floats()].concat();
        let mut found = back.to.push_valid_multi_result(Case { branches }, &args).into_iter();
        // The index, operand 0, is an integer and has no cotangent.
        Ok(back.on.iter().enumerate().map(|(i, &on)| if on && i > 0 { found.next() } else { None }).collect())
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        if batch.has[0] {
            return batch_with_varying_index(self, batch);
        }
        let BatchedCall { to, args, has, axis, .. } = batch;
        let flags = self.batch_dependent_results(has, axis);
        let branch = |branch: &Graph| Ok(batched_with_forced_results(branch, &has[1..], axis, &flags)?.0);
        let branches = self.branches.iter().map(branch).collect::<Result<_, TransformError>>()?;
        Ok(to.push_valid_multi_result(Case { branches }, args).into_iter().zip(flags).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let found = elementwise_or(
            self.branches.iter().map(|branch| batch_dependent_results(branch, &has_batch_axis[1..], axis)),
        );
        found.into_iter().map(|found| found || has_batch_axis[0]).collect()
    }
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        // If the index differs between elements, the branches clear the cotangents themselves.
        (!has_batch_axis[0]).then_some(0)
    }
}

/// Combines lists of bools by `or`, position by position.
fn elementwise_or(lists: impl Iterator<Item = Vec<bool>>) -> Vec<bool> {
    let both = |a: Vec<bool>, b: Vec<bool>| a.iter().zip(&b).map(|(a, b)| a | b).collect();
    lists.reduce(both).expect("it has a branch")
}

/// Batches a `case` whose index differs between elements: runs all branches, and selects for each element the results
/// of its own.
fn batch_with_varying_index(case: &Case, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
    let BatchedCall { to, args, has, axis, taken: outer } = batch;
    refuse_batch_collectives("branches", &case.branches, axis, to.at)?;
    let last = case.branches.len() - 1;
    let compare = |to: &mut Graph, op: ScalarOp, i: usize| {
        let number = to.splat(Literal::int(DType::I32, i as i64), &[axis.size]);
        to.push_valid(op, &[args[0], number])
    };
    let mut found: Option<Vec<Var>> = None;
    for (i, branch) in case.branches.iter().enumerate().rev() {
        // Indices below 0 take the first branch, those that are too large the last one.
        let mut taken = match i {
            _ if i == last && i == 0 => to.splat(Literal::int(DType::Bool, 1), &[axis.size]),
            0 => compare(to, ScalarOp::Le, 0),
            _ if i == last => compare(to, ScalarOp::Ge, i),
            _ => compare(to, ScalarOp::Eq, i),
        };
        let branch = batched_branch(branch, &has[1..], axis)?;
        let is_own = taken;
        if let Some(outer) = outer {
            taken = to.push_valid(ScalarOp::BitAnd, &[taken, outer]);
        }
        let made = inline_or_call(to, &branch, &[&args[1..], &[taken]].concat());
        found = Some(match found {
            None => made,
            Some(others) => {
                made.into_iter().zip(others).map(|(own, other)| push_batch_select(to, is_own, own, other)).collect()
            }
        });
    }
    Ok(found.into_iter().flatten().map(|v| (v, true)).collect())
}

impl CallLinearity for Case {
    fn linearity(&self, of: &mut LinearityAnalysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        if let wrong @ Linearity::Nonlinear(_) = args[0] {
            return vec![wrong; e.results.len()];
        }
        let mut found = of.analyze_graph(&self.branches[0], &args[1..]);
        for branch in &self.branches[1..] {
            let other = of.analyze_graph(branch, &args[1..]);
            found = of.join_linearity(e, &found, &other);
        }
        found
    }
}

impl CallAxisStateRule for Case {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        mut operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (what, at) = ("the result of a branch", e.loc);
        let typed_all = |takes: &[AxisStates]| -> Result<Vec<(Graph, Vec<AxisStates>)>, TransformError> {
            self.branches.iter().map(|branch| typing.insert_casts(branch, &takes[1..])).collect()
        };
        let branches = typed_all(&operand_states)?;
        let graphs: Vec<&Graph> = branches.iter().map(|(graph, _)| graph).collect();
        let varying = typing.varying_condition_axes("branches", &operand_states[0], &graphs, at)?;
        let wider: Vec<AxisStates> = operand_states[1..].iter().map(|own| with_varying_axes(own, &varying)).collect();
        let branches =
            if wider == operand_states[1..] { branches } else { typed_all(&[&operand_states[..1], &wider].concat())? };
        operand_states.splice(1.., wider);
        let mut gives: Vec<AxisStates> = branches[0].1.iter().map(|found| with_varying_axes(found, &varying)).collect();
        for (_, found) in &branches[1..] {
            typing.join_carried_states(&mut gives, found, what, at)?;
        }
        let cast = |(graph, found): (Graph, Vec<AxisStates>)| typing.cast_results(graph, &found, &gives, what, at);
        let branches = branches.into_iter().map(cast).collect::<Result<_, _>>()?;
        Ok(CallWithAxisStates { call: Case { branches }.into(), takes: operand_states, gives })
    }
}

impl ShardableCall for Case {
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
        let (low, high) = (build.add_index_constant(0, loc), build.add_index_constant(self.branches.len() - 1, loc));
        let index = build.add_implied_op(ScalarOp::Clamp, &[args[0], low, high], Type::scalar(DType::I32), loc);
        let node = build.add_control_flow_node(NodeKind::Branches, RegionCall::new(self.clone()), &[index], gives, loc);
        for branch in &self.branches {
            build.add_region(node, &[], |b, _| b.add_graph(branch, &args[1..]).0);
        }
        build.program.nodes[node].results.clone()
    }
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let results: Vec<Sharding> = node.results.iter().map(|&v| to.propagated_sharding(v)).collect();
        let made: Vec<(Graph, Vec<Val>)> = (node.regions.iter())
            .map(|region| {
                let results = region.results.iter().copied().zip(results.iter().cloned()).collect::<Vec<_>>();
                to.partition_region(region, &[], &results)
            })
            .collect();
        // Every branch takes the values that any of them reads.
        let mut captured: Vec<Val> = vec![];
        made.iter().flat_map(|(_, own)| own).for_each(|v| {
            if !captured.contains(v) {
                captured.push(*v);
            }
        });
        let index = to.reshard_value(node.operands[0], &Sharding::replicated(0));
        let args = [vec![index], to.captured_blocks(&captured)].concat();
        let takes: Vec<Type> = args[1..].iter().map(|&v| to.graph().ty(v).clone()).collect();
        let branch = |(mut graph, own): (Graph, Vec<Val>)| {
            let given = std::mem::take(&mut graph.params);
            graph.params = (captured.iter().zip(&takes))
                .map(|(v, ty)| match own.iter().position(|o| o == v) {
                    Some(i) => given[i],
                    None => graph.var(ty.clone()),
                })
                .collect();
            graph
        };
        let branches = made.into_iter().map(branch).collect();
        let made = to.graph().push_valid_multi_result(Case { branches }, &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(results) {
            to.define_value(v, var, sharding);
        }
    }
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        let takes = self.branches[0].params.len();
        let operands = [vec![of.first_device_operand(0)], of.operands_in_range(1..1 + takes)].concat();
        let branches = self.branches.iter().map(|branch| of.joint_body(branch, &[takes])).collect();
        of.emit_joint_call(to, Case { branches }.into(), operands, &[self.branches[0].results.len()])
    }
}

impl LowerableCall for Case {
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        let branch = |graph: &Graph| from.plan(graph, &vec![false; graph.params.len()]);
        let work = StepOp::Case { branches: self.branches.iter().map(branch).collect() };
        LoweredStep::from_equation(from.e, work)
    }
}

impl CallMasking for Case {
    fn check_same_call(&self, other: &Call, _: bool) -> Result<(), String> {
        if Case::of(other).is_some() { Ok(()) } else { Err("`case` differs".into()) }
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
        let mut all: BTreeMap<usize, Type> = BTreeMap::new();
        for (graph, scalars) in &masked_graphs {
            all.extend(scalars.iter().map(|(number, v)| (*number, graph.ty(*v).clone())));
        }
        let branch = |(mut graph, scalars): MaskedGraphAndParams| {
            let own = |graph: &mut Graph, (number, ty): (&usize, &Type)| match scalars.get(number) {
                Some(v) => *v,
                None => graph.var(ty.clone()),
            };
            let params: Vec<Var> = all.iter().map(|entry| own(&mut graph, entry)).collect();
            graph.params.splice(0..0, params);
            graph
        };
        let branches = masked_graphs.into_iter().map(branch).collect();
        let given: Vec<Var> = all.keys().map(|&number| scope.size_table_param(number)).collect();
        let operands = [&args[..1], &given, &args[1..]].concat();
        scope.to.push_valid_multi_result(Case { branches }, &operands)
    }
}

impl SerializableOp for Case {
    fn print(&self, p: &mut text_format::Printer) -> String {
        text_format::join_spaced(self.branches.iter().map(|branch| p.write_graph(branch)).collect::<Vec<_>>())
    }
    fn parse(p: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<Case, String> {
        let numbers: Vec<usize> = words.parse_rest("a graph")?;
        let branches = numbers.into_iter().map(|n| p.take_graph(n)).collect::<Result<_, _>>()?;
        Ok(Case { branches })
    }
}

impl CallHlo for Case {
    /// Writes a StableHLO `case` with the index clamped, because StableHLO takes the last branch for a negative index.
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let (low, high) = (p.w.emit_index_constant(0), p.w.emit_index_constant(self.branches.len() - 1));
        let index = p.w.emit_op("clamp", &[&low, &args[0], &high], HloAttributes::None, Type::scalar(DType::I32));
        let branches: Vec<HloRegion> =
            self.branches.iter().map(|graph| p.build_region(&[], |p, _| p.emit_graph(graph, &args[1..]))).collect();
        p.w.emit_op_with_regions("case", &[&index], branches, HloAttributes::None, gives)
    }
}

impl SampledOp for Case {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let ty = Type::new(dtype, [3]);
        let branches = [ScalarOp::Sin, ScalarOp::Neg, ScalarOp::Exp].map(|op| unary_graph(op, &ty)).into();
        vec![OpSample::new(Case { branches }, &[Type::scalar(DType::I32), ty])]
    }
}
