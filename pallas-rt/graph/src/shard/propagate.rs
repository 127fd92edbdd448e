//! Propagation of shardings through a program.
//!
//! ```text
//! for each priority that users gave, the strongest first:
//!     for each of five stages, which let more and more operations take part:
//!         results of the program, then every node in order, then those next to what has changed, then results again
//! ```
//!
//! The order is Shardy's: nodes wait on a stack, filled in reverse so that the first node is visited first. A change of
//! a value's sharding pushes the node that defines the value, then the nodes that read it, the newest use first. A node
//! that already waits keeps its position.
use super::factor_shardings::FactorShardings;
use super::import::{ShardingState, ValueUse, is_elementwise, prepare_for_propagation, slice_source};
use super::op_sharding_rule::{FactorRole, RuleRequest, ShardingRule, build_sharding_rule};
use super::propagation_program::{NodeId, NodeKind, RegionGraph, Val, ValueDefinition};
use super::provenance::{self, AxisCause, AxisCauses, PropagationLink, ValueOrResult};
use super::strategy::propagate_aggressively;
use crate::graph::Op;
use crate::mesh::{DimSharding, PropagationDirection, Sharding};
use pallas_ir::StructuralOp;
use std::sync::Arc;

/// Number of stages of operation priority; each lets more operations take part than the one before.
const OP_PRIORITY_STAGE_COUNT: usize = 5;

/// A program with the shardings that propagation found for its values.
pub struct Propagation {
    pub(super) flow: ShardingState,
    /// The declared shardings of the parameters, and those of the results.
    declared: [Vec<Option<Sharding>>; 2],
    /// By node, its sharding rule; `None` if shardings do not propagate through it.
    rules: Vec<Option<Arc<ShardingRule>>>,
    /// By node, true if it is elementwise in Shardy's sense.
    pub(super) is_elementwise: Vec<bool>,
    /// The nodes in preorder: each before those of its regions.
    pub(super) order: Vec<NodeId>,
    /// Nodes that wait for their visit; the last one is next.
    stack: Vec<NodeId>,
    /// By node, true if it is on the stack.
    is_waiting: Vec<bool>,
    /// By array and axis, the step that gave the array the axis.
    pub(super) causes: AxisCauses,
    /// The current stage, from 0 to [`OP_PRIORITY_STAGE_COUNT`] - 1.
    stage: usize,
    /// The current round: the user's priority that is handled.
    round: u32,
}

/// Propagates the shardings of a program's parameters, results and constraints to its other values.
pub fn propagate(program: RegionGraph, params: &[Option<Sharding>], results: &[Option<Sharding>]) -> Propagation {
    let mut all = Propagation::new(program, params, results);
    all.run_priority_rounds();
    all
}

/// Returns the sharding rule of each node; `None` if shardings do not propagate through the node.
pub fn sharding_rules_by_node(program: &RegionGraph) -> Vec<Option<ShardingRule>> {
    let rule_of = |node: &super::propagation_program::Node| {
        let all = node.operands.iter().chain(&node.results);
        let sliced = node.operands.iter().map(|&v| slice_source(program, v)).collect();
        let types = all.map(|&v| program.ty(v)).collect();
        build_sharding_rule(&RuleRequest { kind: &node.kind, operands: &node.operands, types, sliced })
    };
    program.nodes.iter().map(rule_of).collect()
}

impl Propagation {
    /// Prepares a program for propagation, with nothing propagated yet.
    pub(super) fn new(program: RegionGraph, params: &[Option<Sharding>], results: &[Option<Sharding>]) -> Propagation {
        let flow = prepare_for_propagation(program, params, results);
        let program = &flow.program;
        let rules = sharding_rules_by_node(program).into_iter().map(|rule| rule.map(Arc::new)).collect();
        let is_elementwise = program.nodes.iter().map(|node| is_elementwise(program, node)).collect();
        let (order, nodes) = (program.preorder(), program.nodes.len());
        Propagation {
            declared: [params.to_vec(), results.to_vec()],
            rules,
            is_elementwise,
            order,
            stack: vec![],
            is_waiting: vec![false; nodes],
            causes: AxisCauses::default(),
            stage: 0,
            round: 0,
            flow,
        }
    }

    /// Returns the program that propagation works on, in which each use of a constant has its own copy, and data-flow
    /// edges link values inside and outside of loops and branches.
    pub fn program(&self) -> &RegionGraph {
        &self.flow.program
    }

    /// Returns the sharding of a value; `None` if propagation found none.
    pub fn sharding(&self, v: Val) -> Option<&Sharding> {
        self.flow.sharding(v)
    }

    /// Returns the declared sharding of a value: as a parameter or as the result of a constraint; with `as_result`
    /// instead as the operand of a constraint or as a result of the program.
    pub(crate) fn declared_sharding(&self, v: Val, as_result: bool) -> Option<&Sharding> {
        let program = &self.flow.program;
        let constraint = |node: NodeId| match &program.nodes[node].kind {
            NodeKind::Constraint(sharding) => Some(sharding),
            _ => None,
        };
        if as_result {
            return self.flow.uses[v.index()].iter().find_map(|reader| match *reader {
                ValueUse::Operand(node, _) => constraint(node),
                ValueUse::Result(i) => self.declared[1][i].as_ref(),
                ValueUse::Yield(..) => None,
            });
        }
        match program.definitions[v.index()] {
            ValueDefinition::Param(i) => self.declared[0][i].as_ref(),
            ValueDefinition::Result(node, _) => constraint(node),
            ValueDefinition::Argument(..) => None,
        }
    }

    /// Returns the sharding of the program's result with this number; `None` if nothing is known about it.
    pub fn result_sharding(&self, i: usize) -> Option<&Sharding> {
        self.flow.results[i].as_ref()
    }

    /// Returns the sharding rule of a node; `None` if shardings do not propagate through it.
    pub fn sharding_rule(&self, node: NodeId) -> Option<&ShardingRule> {
        self.rules[node].as_deref()
    }

    /// Runs one round for each priority. Axes of later priorities are declared as replicated until their round, so that
    /// nothing uses them.
    pub(super) fn run_priority_rounds(&mut self) {
        let values = self.flow.shardings.len();
        let mut later: Vec<(u32, usize, Sharding)> = vec![];
        for i in 0..values + self.flow.results.len() {
            let Some(sharding) = self.value_or_result_sharding_mut(values, i) else { continue };
            let original = sharding.clone();
            for dim in &mut sharding.dims {
                let priority = dim.priority.take().unwrap_or(0);
                if priority == 0 {
                    continue;
                }
                if !later.iter().any(|(p, slot, _)| (*p, *slot) == (priority, i)) {
                    later.push((priority, i, original.clone()));
                }
                sharding.replicated.append(&mut dim.axes);
                dim.open = false;
            }
            sharding.replicated.sort();
        }
        self.run_op_priority_stages();
        let mut rounds: Vec<u32> = later.iter().map(|(priority, ..)| *priority).collect();
        rounds.sort_unstable();
        rounds.dedup();
        for round in rounds {
            self.round = round;
            for (_, i, original) in later.iter().filter(|(priority, ..)| *priority == round) {
                let sharding = self.value_or_result_sharding_mut(values, *i).as_mut().expect("it has a sharding");
                for (dim, declared) in sharding.dims.iter_mut().zip(&original.dims) {
                    if declared.priority == Some(round) {
                        *dim = DimSharding { priority: None, ..declared.clone() };
                        sharding.replicated.retain(|axis| !declared.axes.contains(axis));
                    }
                }
            }
            self.run_op_priority_stages();
        }
    }

    /// Returns the sharding with this index in the list of all values, of which there are `value_count`, followed by
    /// all results of the program.
    fn value_or_result_sharding_mut(&mut self, value_count: usize, index: usize) -> &mut Option<Sharding> {
        if index < value_count { &mut self.flow.shardings[index] } else { &mut self.flow.results[index - value_count] }
    }

    /// Runs the stages of a round one after the other; in each, more kinds of operations propagate. A stage visits
    /// every node, then again those whose operands or results changed.
    fn run_op_priority_stages(&mut self) {
        for stage in 0..OP_PRIORITY_STAGE_COUNT {
            self.stage = stage;
            self.propagate_program_results();
            self.stack = self.order.iter().rev().copied().collect();
            self.is_waiting.fill(false);
            self.stack.iter().for_each(|&node| self.is_waiting[node] = true);
            while let Some(node) = self.stack.pop() {
                self.is_waiting[node] = false;
                self.propagate_through_node(node);
            }
            self.propagate_program_results();
        }
    }

    /// Propagates between the program's results and the values that are returned as these.
    fn propagate_program_results(&mut self) {
        for i in 0..self.flow.results.len() {
            let v = self.flow.program.body.results[i];
            let rule = ShardingRule::elementwise(&self.flow.program.ty(v).shape, 1);
            self.propagate_between(
                &[ValueOrResult::Value(v), ValueOrResult::Result(i)],
                &rule,
                &|_| PropagationDirection::Both,
                PropagationLink::Return(i),
            );
        }
    }

    /// Propagates shardings between the operands and results of a node.
    fn propagate_through_node(&mut self, id: NodeId) {
        let Some((slots, rule)) = self.arrays_and_rule(id) else { return };
        let directions: Vec<PropagationDirection> =
            rule.factors.iter().map(|factor| self.factor_direction(id, factor.role, factor.is_blocked)).collect();
        self.propagate_between(&slots, &rule, &|f| directions[f], PropagationLink::Node(id));
    }

    /// Returns the arrays between which a node propagates shardings, and the rule by which their dimensions correspond;
    /// `None` if it propagates nothing.
    pub(super) fn arrays_and_rule(&self, id: NodeId) -> Option<(Vec<ValueOrResult>, Arc<ShardingRule>)> {
        let node = &self.flow.program.nodes[id];
        match node.kind {
            NodeKind::DataFlowEdge => {
                let sources = self.data_flow_sources(node.operands[0]);
                let rule = ShardingRule::elementwise(&self.flow.program.ty(node.results[0]).shape, sources.len());
                let all = sources.into_iter().chain([node.results[0]]);
                Some((all.map(ValueOrResult::Value).collect(), Arc::new(rule)))
            }
            _ => self.rules[id].clone().map(|rule| {
                (node.operands.iter().chain(&node.results).map(|&v| ValueOrResult::Value(v)).collect(), rule)
            }),
        }
    }

    /// Returns the values from which a result of a loop, branch or barrier may come.
    fn data_flow_sources(&self, v: Val) -> Vec<Val> {
        let ValueDefinition::Result(id, i) = self.flow.program.definitions[v.index()] else { return vec![] };
        let node = &self.flow.program.nodes[id];
        match node.kind {
            NodeKind::Loop(_) => vec![node.operands[i], node.regions[1].results[i]],
            NodeKind::Branches(_) => node.regions.iter().map(|region| region.results[i]).collect(),
            _ => vec![node.operands[i]],
        }
    }

    /// Returns the direction in which a node propagates axes of a factor with this role in the current stage; none if
    /// `is_blocked` is true, which the sharding rule says of factors that never propagate.
    pub(super) fn factor_direction(&self, id: NodeId, role: FactorRole, is_blocked: bool) -> PropagationDirection {
        let node = &self.flow.program.nodes[id];
        if is_blocked {
            return PropagationDirection::None;
        }
        if let NodeKind::PropagationBarrier(direction) = node.kind {
            return direction;
        }
        let is_broadcast = matches!(&node.kind, NodeKind::Op(Op::Structural(StructuralOp::Broadcast(_))));
        let each = if is_broadcast { PropagationDirection::Backward } else { PropagationDirection::Both };
        let mut direction = self.early_stage_direction(id, false);
        if self.stage >= 1 {
            direction = direction.union(self.early_stage_direction(id, true));
        }
        if self.stage >= 2 && role == FactorRole::PassThrough {
            direction = direction.union(each);
        }
        if self.stage >= 3 {
            direction = direction.union(each);
        }
        if self.stage >= 4 {
            direction = PropagationDirection::Both;
        }
        direction
    }

    /// Returns the direction in which a node propagates in the first stages, in which only elementwise operations and
    /// those that reorder elements take part. Without `allows_shared_operands` they do so only if nothing else reads
    /// their operands.
    fn early_stage_direction(&self, id: NodeId, allows_shared_operands: bool) -> PropagationDirection {
        let (flow, node) = (&self.flow, &self.flow.program.nodes[id]);
        let has_one_use = |&v: &Val| self.count_uses(v) == 1 || flow.program.rank(v) == 0;
        let takes_part = allows_shared_operands || node.operands.iter().all(has_one_use);
        let both = if takes_part { PropagationDirection::Both } else { PropagationDirection::None };
        let is_reordering = matches!(
            &node.kind,
            NodeKind::DataFlowEdge
                | NodeKind::Op(Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Transpose(_)))
        );
        match &node.kind {
            _ if self.is_elementwise[id] || is_reordering => both,
            NodeKind::Op(Op::Dynamic(_)) => both.intersection(PropagationDirection::Forward),
            _ => PropagationDirection::None,
        }
    }

    /// Number of uses of a value.
    pub(super) fn count_uses(&self, v: Val) -> usize {
        self.flow.uses[v.index()].len()
    }

    /// Number of uses of a value in the partitioned program, which lacks sharding groups and propagation barriers: the
    /// former count as no use, the latter as the uses of their result.
    pub(super) fn count_partitioned_uses(&self, v: Val) -> usize {
        let count = |place: &ValueUse| match *place {
            ValueUse::Operand(node, _) => match &self.flow.program.nodes[node].kind {
                NodeKind::ShardingGroup(_) => 0,
                NodeKind::PropagationBarrier(_) => {
                    self.count_partitioned_uses(self.flow.program.nodes[node].results[0])
                }
                _ => 1,
            },
            ValueUse::Yield(..) | ValueUse::Result(_) => 1,
        };
        self.flow.uses[v.index()].iter().map(count).sum()
    }

    /// Returns the current sharding of an array.
    pub(super) fn current_sharding(&self, slot: ValueOrResult) -> Option<&Sharding> {
        match slot {
            ValueOrResult::Value(v) => self.sharding(v),
            ValueOrResult::Result(i) => self.flow.results[i].as_ref(),
        }
    }

    /// Propagates once between arrays whose dimensions correspond by a rule, along each factor in the direction given
    /// for its index.
    fn propagate_between(
        &mut self,
        slots: &[ValueOrResult],
        rule: &ShardingRule,
        direction: &dyn Fn(usize) -> PropagationDirection,
        via: PropagationLink,
    ) {
        let old: Vec<Option<Sharding>> = slots.iter().map(|&slot| self.current_sharding(slot).cloned()).collect();
        if old.iter().all(Option::is_none) {
            return;
        }
        let split = || -> Vec<FactorShardings> {
            let all = old.iter().zip(&rule.tensors);
            all.map(|(sharding, dims)| FactorShardings::from_sharding(dims, sharding.as_ref(), &rule.factors, false))
                .collect()
        };
        let mut splits = split();
        let at = if let PropagationLink::Node(node) = via { Some(node) } else { None };
        let is_elementwise = at.is_some_and(|node| self.is_elementwise[node]);
        let is_updated = propagate_aggressively(&mut splits, rule, direction, is_elementwise);
        for i in (0..slots.len()).filter(|&i| is_updated[i]) {
            let new = splits[i].to_sharding(&rule.tensors[i], &rule.factors);
            if old[i].as_ref().map_or(new.mentions_no_axis(), |old| *old == new) {
                continue;
            }
            for (axis, j) in provenance::find_axis_sources(&split(), &splits[i], i, old[i].as_ref(), &new) {
                self.record_axis_cause(slots[i], axis, via, slots[j]);
            }
            match slots[i] {
                ValueOrResult::Value(v) => self.set_group_sharding(v, new, at),
                ValueOrResult::Result(i) => self.flow.results[i] = Some(new),
            }
        }
    }

    /// Records by which link and from which array another array got an axis.
    fn record_axis_cause(&mut self, to: ValueOrResult, axis: u8, via: PropagationLink, from: ValueOrResult) {
        let to = if let ValueOrResult::Value(v) = to { ValueOrResult::Value(self.flow.cell[v.index()]) } else { to };
        self.causes.record_first(to, axis, AxisCause { via, from, stage: self.stage, round: self.round });
    }

    /// Sets the sharding of a value, and of the members of its sharding group; nodes next to them will be visited,
    /// except `cause_node`, the node that caused the change.
    fn set_group_sharding(&mut self, v: Val, sharding: Sharding, cause_node: Option<NodeId>) {
        let cell = self.flow.cell[v.index()];
        let of = |member: &Val| self.flow.cell[member.index()];
        let group = self.flow.groups.iter().find(|group| group.iter().any(|member| of(member) == cell));
        let others: Vec<Val> = group.map_or(vec![], |group| group.iter().map(of).filter(|&c| c != cell).collect());
        for &other in &others {
            let had: Vec<u8> =
                self.sharding(other).into_iter().flat_map(provenance::sharding_axes).map(|axis| axis.id).collect();
            for axis in provenance::sharding_axes(&sharding).filter(|axis| !had.contains(&axis.id)) {
                self.record_axis_cause(
                    ValueOrResult::Value(other),
                    axis.id,
                    PropagationLink::Group,
                    ValueOrResult::Value(cell),
                );
            }
        }
        for cell in [cell].into_iter().chain(others) {
            self.flow.shardings[cell.index()] = Some(sharding.clone());
            self.schedule_neighbors(cell, cause_node);
        }
    }

    /// Schedules a visit of the nodes that define or read the values of a cell, which share one sharding, apart from
    /// node `except`; of no node if `except` is `None`.
    fn schedule_neighbors(&mut self, cell: Val, except: Option<NodeId>) {
        let Some(at) = except else { return };
        let program = &self.flow.program;
        let mut params = vec![];
        if let Some(edge) = program.defining_node(cell) {
            if program.nodes[edge].kind == NodeKind::DataFlowEdge
                && let ValueDefinition::Result(node, i) = program.definitions[program.nodes[edge].operands[0].index()]
                && let NodeKind::Loop(_) = program.nodes[node].kind
            {
                params.extend(program.nodes[node].regions.iter().map(|region| region.params[i]));
            }
            params.into_iter().for_each(|v| self.schedule_readers(v, at));
            self.schedule_visit(edge, at);
        }
        self.schedule_readers(cell, at);
    }

    /// Schedules a visit of the nodes that read a value, apart from node `except`; where a loop, branch or barrier
    /// passes the value on, of the data-flow edge behind it instead.
    fn schedule_readers(&mut self, v: Val, except: NodeId) {
        for k in (0..self.flow.uses[v.index()].len()).rev() {
            let edge = |node: NodeId, i: usize| self.flow.edges.get(&(node, i)).copied();
            let reader = match self.flow.uses[v.index()][k] {
                ValueUse::Operand(node, i) => match self.flow.program.nodes[node].kind {
                    NodeKind::Loop(_) | NodeKind::OptimizationBarrier => edge(node, i),
                    _ => Some(node),
                },
                ValueUse::Yield(node, 0, _) if matches!(self.flow.program.nodes[node].kind, NodeKind::Loop(_)) => None,
                ValueUse::Yield(node, _, i) => edge(node, i),
                ValueUse::Result(_) => None,
            };
            if let Some(reader) = reader {
                self.schedule_visit(reader, except);
            }
        }
    }

    /// Schedules a visit of a node, unless it is scheduled already or is the node `except`.
    fn schedule_visit(&mut self, node: NodeId, except: NodeId) {
        if node != except && !self.is_waiting[node] {
            self.is_waiting[node] = true;
            self.stack.push(node);
        }
    }
}
