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
use super::import::{Flow, Use, import, is_elementwise, sliced};
use super::provenance::{self, Cause, Causes, Slot, Via};
use super::rule::{Asked, Role, Rule, rule};
use super::split::Split;
use super::strategy::{Direction, aggressive};
use super::view::{Definition, Kind, NodeId, Program, Val};
use crate::graph::Op;
use crate::mesh::{self, DimSharding, Sharding};
use pallas_ir::StructuralOp;
use std::sync::Arc;

/// Number of stages of operation priority; each lets more operations take part than the one before.
const STAGES: usize = 5;

/// A program with the shardings that propagation found for its values.
pub struct Propagation {
    pub(super) flow: Flow,
    /// The declared shardings of the parameters, and those of the results.
    declared: [Vec<Option<Sharding>>; 2],
    /// By node, its sharding rule; `None` if shardings do not propagate through it.
    rules: Vec<Option<Arc<Rule>>>,
    /// By node, true if it is elementwise in Shardy's sense.
    pub(super) is_elementwise: Vec<bool>,
    /// The nodes in preorder: each before those of its regions.
    pub(super) order: Vec<NodeId>,
    /// Nodes that wait for their visit; the last one is next.
    stack: Vec<NodeId>,
    /// By node, true if it is on the stack.
    is_waiting: Vec<bool>,
    /// By array and axis, the step that gave the array the axis.
    pub(super) causes: Causes,
    /// The current stage, from 0 to [`STAGES`] - 1.
    stage: usize,
    /// The current round: the user's priority that is handled.
    round: u32,
}

/// Propagates the shardings of a program's parameters, results and constraints to its other values.
pub fn propagate(program: Program, params: &[Option<Sharding>], results: &[Option<Sharding>]) -> Propagation {
    let mut all = Propagation::of(program, params, results);
    all.rounds();
    all
}

/// Returns the sharding rule of each node; `None` if shardings do not propagate through the node.
pub fn rules(program: &Program) -> Vec<Option<Rule>> {
    let rule_of = |node: &super::view::Node| {
        let all = node.operands.iter().chain(&node.results);
        let sliced = node.operands.iter().map(|&v| sliced(program, v)).collect();
        let types = all.map(|&v| program.ty(v)).collect();
        rule(&Asked { kind: &node.kind, operands: &node.operands, types, sliced })
    };
    program.nodes.iter().map(rule_of).collect()
}

impl Propagation {
    /// Prepares a program for propagation, with nothing propagated yet.
    pub(super) fn of(program: Program, params: &[Option<Sharding>], results: &[Option<Sharding>]) -> Propagation {
        let flow = import(program, params, results);
        let program = &flow.program;
        let rules = rules(program).into_iter().map(|rule| rule.map(Arc::new)).collect();
        let is_elementwise = program.nodes.iter().map(|node| is_elementwise(program, node)).collect();
        let (order, nodes) = (program.preorder(), program.nodes.len());
        Propagation {
            declared: [params.to_vec(), results.to_vec()],
            rules,
            is_elementwise,
            order,
            stack: vec![],
            is_waiting: vec![false; nodes],
            causes: Causes::default(),
            stage: 0,
            round: 0,
            flow,
        }
    }

    /// Returns the program after its preparation, with copies of constants and with edges.
    pub fn program(&self) -> &Program {
        &self.flow.program
    }

    /// Returns the sharding of a value; `None` if propagation found none.
    pub fn sharding(&self, v: Val) -> Option<&Sharding> {
        self.flow.sharding(v)
    }

    /// Returns the declared sharding of a value: as a parameter or as the result of a constraint; with `is_result`
    /// instead as the operand of a constraint or as a result of the program.
    pub(crate) fn declared(&self, v: Val, is_result: bool) -> Option<&Sharding> {
        let program = &self.flow.program;
        let constraint = |node: NodeId| match &program.nodes[node].kind {
            Kind::Constraint(sharding) => Some(sharding),
            _ => None,
        };
        if is_result {
            return self.flow.uses[v.index()].iter().find_map(|reader| match *reader {
                Use::Operand(node, _) => constraint(node),
                Use::Result(i) => self.declared[1][i].as_ref(),
                Use::Yield(..) => None,
            });
        }
        match program.definitions[v.index()] {
            Definition::Param(i) => self.declared[0][i].as_ref(),
            Definition::Result(node, _) => constraint(node),
            Definition::Argument(..) => None,
        }
    }

    /// Returns the sharding of the program's result with this number; `None` if nothing is known about it.
    pub fn result(&self, i: usize) -> Option<&Sharding> {
        self.flow.results[i].as_ref()
    }

    /// Returns the sharding rule of a node; `None` if shardings do not propagate through it.
    pub fn rule(&self, node: NodeId) -> Option<&Rule> {
        self.rules[node].as_deref()
    }

    /// Runs one round for each priority. Axes of later priorities are declared as replicated until their round, so that
    /// nothing uses them.
    pub(super) fn rounds(&mut self) {
        let values = self.flow.shardings.len();
        let mut later: Vec<(u32, usize, Sharding)> = vec![];
        for i in 0..values + self.flow.results.len() {
            let Some(sharding) = self.slot(values, i) else { continue };
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
        self.stages();
        let mut rounds: Vec<u32> = later.iter().map(|(priority, ..)| *priority).collect();
        rounds.sort_unstable();
        rounds.dedup();
        for round in rounds {
            self.round = round;
            for (_, i, original) in later.iter().filter(|(priority, ..)| *priority == round) {
                let sharding = self.slot(values, *i).as_mut().expect("it has a sharding");
                for (dim, declared) in sharding.dims.iter_mut().zip(&original.dims) {
                    if declared.priority == Some(round) {
                        *dim = DimSharding { priority: None, ..declared.clone() };
                        sharding.replicated.retain(|axis| !declared.axes.contains(axis));
                    }
                }
            }
            self.stages();
        }
    }

    /// Returns the sharding of the value whose number `i` is less than `values`, else of the program's result number `i
    /// - values`.
    fn slot(&mut self, values: usize, i: usize) -> &mut Option<Sharding> {
        if i < values { &mut self.flow.shardings[i] } else { &mut self.flow.results[i - values] }
    }

    /// Runs all stages of a round: each visits every node, then again those whose operands or results changed.
    fn stages(&mut self) {
        for stage in 0..STAGES {
            self.stage = stage;
            self.results();
            self.stack = self.order.iter().rev().copied().collect();
            self.is_waiting.fill(false);
            self.stack.iter().for_each(|&node| self.is_waiting[node] = true);
            while let Some(node) = self.stack.pop() {
                self.is_waiting[node] = false;
                self.visit(node);
            }
            self.results();
        }
    }

    /// Propagates between the program's results and the values that are returned as these.
    fn results(&mut self) {
        for i in 0..self.flow.results.len() {
            let v = self.flow.program.body.results[i];
            let rule = Rule::identity(&self.flow.program.ty(v).shape, 1);
            self.step(&[Slot::Value(v), Slot::Result(i)], &rule, &|_| Direction::Both, Via::Return(i));
        }
    }

    /// Propagates shardings between the operands and results of a node.
    fn visit(&mut self, id: NodeId) {
        let Some((slots, rule)) = self.around(id) else { return };
        let directions: Vec<Direction> =
            rule.factors.iter().map(|factor| self.direction(id, factor.role, factor.is_blocked)).collect();
        self.step(&slots, &rule, &|f| directions[f], Via::Node(id));
    }

    /// Returns the arrays between which a node propagates shardings, and the rule by which their dimensions correspond;
    /// `None` if it propagates nothing.
    pub(super) fn around(&self, id: NodeId) -> Option<(Vec<Slot>, Arc<Rule>)> {
        let node = &self.flow.program.nodes[id];
        match node.kind {
            Kind::Edge => {
                let sources = self.sources(node.operands[0]);
                let rule = Rule::identity(&self.flow.program.ty(node.results[0]).shape, sources.len());
                let all = sources.into_iter().chain([node.results[0]]);
                Some((all.map(Slot::Value).collect(), Arc::new(rule)))
            }
            _ => self.rules[id]
                .clone()
                .map(|rule| (node.operands.iter().chain(&node.results).map(|&v| Slot::Value(v)).collect(), rule)),
        }
    }

    /// Returns the values from which a result of a loop, branch or barrier may come.
    fn sources(&self, v: Val) -> Vec<Val> {
        let Definition::Result(id, i) = self.flow.program.definitions[v.index()] else { return vec![] };
        let node = &self.flow.program.nodes[id];
        match node.kind {
            Kind::Loop(_) => vec![node.operands[i], node.regions[1].results[i]],
            Kind::Branches(_) => node.regions.iter().map(|region| region.results[i]).collect(),
            _ => vec![node.operands[i]],
        }
    }

    /// Returns the direction in which a node propagates axes of a factor with this role in the current stage.
    pub(super) fn direction(&self, id: NodeId, role: Role, is_blocked: bool) -> Direction {
        let node = &self.flow.program.nodes[id];
        if is_blocked {
            return Direction::None;
        }
        if let Kind::Barrier(flow) = node.kind {
            return match flow {
                mesh::Flow::Forward => Direction::Forward,
                mesh::Flow::Backward => Direction::Backward,
                mesh::Flow::None => Direction::None,
                mesh::Flow::Both => Direction::Both,
            };
        }
        let is_broadcast = matches!(&node.kind, Kind::Op(Op::Structural(StructuralOp::Broadcast(_))));
        let each = if is_broadcast { Direction::Backward } else { Direction::Both };
        let mut direction = self.passed_through(id, false);
        if self.stage >= 1 {
            direction = direction.union(self.passed_through(id, true));
        }
        if self.stage >= 2 && role == Role::Pass {
            direction = direction.union(each);
        }
        if self.stage >= 3 {
            direction = direction.union(each);
        }
        if self.stage >= 4 {
            direction = Direction::Both;
        }
        direction
    }

    /// Returns the direction in which a node propagates in the first stages, in which only elementwise operations and
    /// those that reorder elements take part. Without `is_shared` they do so only if nothing else reads their operands.
    fn passed_through(&self, id: NodeId, is_shared: bool) -> Direction {
        let (flow, node) = (&self.flow, &self.flow.program.nodes[id]);
        let has_one_use = |&v: &Val| self.count_uses(v) == 1 || flow.program.rank(v) == 0;
        let takes_part = is_shared || node.operands.iter().all(has_one_use);
        let both = if takes_part { Direction::Both } else { Direction::None };
        let is_reordering = matches!(
            &node.kind,
            Kind::Edge | Kind::Op(Op::Structural(StructuralOp::Reshape(_) | StructuralOp::Transpose(_)))
        );
        match &node.kind {
            _ if self.is_elementwise[id] || is_reordering => both,
            Kind::Op(Op::Dynamic(_)) => both.intersection(Direction::Forward),
            _ => Direction::None,
        }
    }

    /// Number of uses of a value.
    pub(super) fn count_uses(&self, v: Val) -> usize {
        self.flow.uses[v.index()].len()
    }

    /// Number of uses of a value in the partitioned program, where groups are no uses and the uses of a barrier's
    /// result count as the operand's.
    pub(super) fn count_readers(&self, v: Val) -> usize {
        let count = |place: &Use| match *place {
            Use::Operand(node, _) => match &self.flow.program.nodes[node].kind {
                Kind::Group(_) => 0,
                Kind::Barrier(_) => self.count_readers(self.flow.program.nodes[node].results[0]),
                _ => 1,
            },
            Use::Yield(..) | Use::Result(_) => 1,
        };
        self.flow.uses[v.index()].iter().map(count).sum()
    }

    /// Returns the current sharding of an array.
    pub(super) fn state(&self, slot: Slot) -> Option<&Sharding> {
        match slot {
            Slot::Value(v) => self.sharding(v),
            Slot::Result(i) => self.flow.results[i].as_ref(),
        }
    }

    /// Propagates once between arrays whose dimensions correspond by a rule, along each factor in the direction given
    /// for its index.
    fn step(&mut self, slots: &[Slot], rule: &Rule, direction: &dyn Fn(usize) -> Direction, via: Via) {
        let old: Vec<Option<Sharding>> = slots.iter().map(|&slot| self.state(slot).cloned()).collect();
        if old.iter().all(Option::is_none) {
            return;
        }
        let split = || -> Vec<Split> {
            let all = old.iter().zip(&rule.tensors);
            all.map(|(sharding, dims)| Split::of(dims, sharding.as_ref(), &rule.factors, false)).collect()
        };
        let mut splits = split();
        let at = if let Via::Node(node) = via { Some(node) } else { None };
        let is_elementwise = at.is_some_and(|node| self.is_elementwise[node]);
        let is_updated = aggressive(&mut splits, rule, direction, is_elementwise);
        for i in (0..slots.len()).filter(|&i| is_updated[i]) {
            let new = splits[i].join(&rule.tensors[i], &rule.factors);
            if old[i].as_ref().map_or(new.mentions_no_axis(), |old| *old == new) {
                continue;
            }
            for (axis, j) in provenance::sources(&split(), &splits[i], i, old[i].as_ref(), &new) {
                self.record(slots[i], axis, via, slots[j]);
            }
            match slots[i] {
                Slot::Value(v) => self.set(v, new, at),
                Slot::Result(i) => self.flow.results[i] = Some(new),
            }
        }
    }

    /// Records by which link and from which array another array got an axis.
    fn record(&mut self, to: Slot, axis: u8, via: Via, from: Slot) {
        let to = if let Slot::Value(v) = to { Slot::Value(self.flow.cell[v.index()]) } else { to };
        self.causes.add(to, axis, Cause { via, from, stage: self.stage, round: self.round });
    }

    /// Sets the sharding of a value, and of the members of its sharding group; nodes next to them will be visited,
    /// except `at`, the node that caused it.
    fn set(&mut self, v: Val, sharding: Sharding, at: Option<NodeId>) {
        let cell = self.flow.cell[v.index()];
        let of = |member: &Val| self.flow.cell[member.index()];
        let group = self.flow.groups.iter().find(|group| group.iter().any(|member| of(member) == cell));
        let others: Vec<Val> = group.map_or(vec![], |group| group.iter().map(of).filter(|&c| c != cell).collect());
        for &other in &others {
            let had: Vec<u8> =
                self.sharding(other).into_iter().flat_map(provenance::axes).map(|axis| axis.id).collect();
            for axis in provenance::axes(&sharding).filter(|axis| !had.contains(&axis.id)) {
                self.record(Slot::Value(other), axis.id, Via::Group, Slot::Value(cell));
            }
        }
        for cell in [cell].into_iter().chain(others) {
            self.flow.shardings[cell.index()] = Some(sharding.clone());
            self.changed(cell, at);
        }
    }

    /// Schedules a visit of the nodes that define or read a cell, except `at`; if `at` is `None`, of none.
    fn changed(&mut self, cell: Val, at: Option<NodeId>) {
        let Some(at) = at else { return };
        let program = &self.flow.program;
        let mut params = vec![];
        if let Some(edge) = program.definer(cell) {
            if program.nodes[edge].kind == Kind::Edge
                && let Definition::Result(node, i) = program.definitions[program.nodes[edge].operands[0].index()]
                && let Kind::Loop(_) = program.nodes[node].kind
            {
                params.extend(program.nodes[node].regions.iter().map(|region| region.params[i]));
            }
            params.into_iter().for_each(|v| self.readers_wait(v, at));
            self.wait(edge, at);
        }
        self.readers_wait(cell, at);
    }

    /// Schedules a visit of the nodes that read a value, or of the edge of the loop or branch that does.
    fn readers_wait(&mut self, v: Val, at: NodeId) {
        for k in (0..self.flow.uses[v.index()].len()).rev() {
            let edge = |node: NodeId, i: usize| self.flow.edges.get(&(node, i)).copied();
            let reader = match self.flow.uses[v.index()][k] {
                Use::Operand(node, i) => match self.flow.program.nodes[node].kind {
                    Kind::Loop(_) | Kind::OptimizationBarrier => edge(node, i),
                    _ => Some(node),
                },
                Use::Yield(node, 0, _) if matches!(self.flow.program.nodes[node].kind, Kind::Loop(_)) => None,
                Use::Yield(node, _, i) => edge(node, i),
                Use::Result(_) => None,
            };
            if let Some(reader) = reader {
                self.wait(reader, at);
            }
        }
    }

    /// Schedules a visit of a node, unless it is scheduled already or is the node `at`.
    fn wait(&mut self, node: NodeId, at: NodeId) {
        if node != at && !self.is_waiting[node] {
            self.is_waiting[node] = true;
            self.stack.push(node);
        }
    }
}
