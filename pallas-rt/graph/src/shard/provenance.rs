//! The reasons of a propagation: where an axis of a value comes from, and why another one did not reach it.
//!
//! Each step of propagation that gives an array an axis leaves a [`Cause`]. From a value a chain of causes leads to an
//! [`Origin`], which is an annotation. For an axis that a value does not have, the neighbours that have it are looked at in
//! the final state: every step between them was tried last of all and changed nothing, so one of a few [`Reason`]s holds.
//!
//! Each step of propagation that gives a value an axis is remembered by cell and axis with its stage and round (`provenance`),
//! along the factor that carried it, so that a chain leads from any value to an annotation; why an axis did not arrive is not
//! remembered but read off the final state, where every step was tried last of all and changed nothing. Numbers of sharding
//! groups belong to one graph: what `Graph::inline` appends is numbered anew, loop bodies have their own, and cotangents and
//! tangents a second range. A function runs on one mesh; values on others that are views of its devices are put on it first
//! (`Mesh::sharding_of`, `shard/seen`). `jit/sharded` puts both into words, counts exchanges (`budget`), marks trees (`mark`),
//! and audits what is declared against a policy (`audit`): declarations are gathered before propagation, from arrays and from
//! constraints on parameters, and findings compare texts in normal form.
use super::propagate::Propagation;
use super::rule::Rule;
use super::split::{Part, Split};
use super::strategy::{Direction, agreed, within};
use super::view::{Kind, NodeId, Val};
use crate::mesh::axis::{Axis, Prefix, prefix, truncate};
use crate::mesh::{Flow, Sharding};
use std::collections::{BTreeSet, HashMap};

/// An array that takes part in a step of propagation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Slot {
    /// A value.
    Value(Val),
    /// The sharding of a result of the program.
    Result(usize),
}

/// An annotation of the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// The declared sharding of a parameter.
    Param(usize),
    /// The declared sharding of a result.
    Result(usize),
    /// A constraint.
    Constraint(NodeId),
}

/// The link by which two arrays have equal axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Via {
    /// A node of the program that reads or makes both.
    Node(NodeId),
    /// They belong to one group.
    Group,
    /// A result of the program is this value.
    Return(usize),
}

/// The step by which an array got an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    /// The link.
    pub via: Via,
    /// The array that had the axis.
    pub from: Slot,
    /// The stage of operation priority, 0 to 4.
    pub stage: usize,
    /// The user's priority of the round.
    pub round: u32,
}

/// The way of an axis to a value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// The steps, the last one first.
    pub causes: Vec<Cause>,
    /// The annotation with which it began.
    pub origin: Option<Origin>,
}

/// A place where an axis does not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The link between both arrays.
    pub via: Via,
    /// The array that the axis divides.
    pub from: Slot,
    /// The array that it does not divide.
    pub to: Slot,
    /// The obstacle.
    pub reason: Reason,
}

/// An obstacle between two arrays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The other array has nothing that corresponds to this dimension, which the axis divides.
    Missing {
        /// The dimension of the array that has the axis.
        dim: usize,
    },
    /// The operation needs all of this dimension of the other array.
    Whole {
        /// The dimension of the array that has the axis.
        dim: usize,
    },
    /// A barrier, which shardings pass in this direction alone.
    Barrier(Flow),
    /// Nothing may be added to this dimension of the other array.
    Closed {
        /// The dimension.
        dim: usize,
        /// The annotation that says so.
        origin: Option<Origin>,
    },
    /// The other array must not be sharded by the axis.
    Replicated {
        /// The annotation that says so.
        origin: Option<Origin>,
    },
    /// The axis, or a part of it, divides another dimension.
    Taken {
        /// That dimension.
        dim: usize,
    },
    /// The arrays of the operation want different axes for one dimension.
    Conflict {
        /// The array that wants others.
        with: Slot,
        /// The axes that it wants.
        axes: Vec<Axis>,
    },
    /// The part of a dimension that the axis would divide has an extent that it does not fit.
    Extent {
        /// Number of positions.
        extent: usize,
    },
    /// An operand of an elementwise operation is sharded no further than the result.
    Result,
    /// The axis would lie behind a part of this dimension that is not sharded completely, where blocks are no adjacent
    /// elements.
    Behind {
        /// The dimension of the other array.
        dim: usize,
    },
}

/// Everything that is remembered while shardings propagate.
#[derive(Debug, Default)]
pub(super) struct Causes(HashMap<(Slot, u8), Cause>);

impl Causes {
    /// Remembers the first step that gave an array an axis.
    pub(super) fn add(&mut self, slot: Slot, axis: u8, cause: Cause) {
        self.0.entry((slot, axis)).or_insert(cause);
    }
}

/// The axes of a sharding's dimensions.
pub(super) fn axes(sharding: &Sharding) -> impl Iterator<Item = Axis> {
    sharding.dims.iter().flat_map(|dim| dim.axes.iter().copied())
}

/// For each axis that a sharding has and an old one has not: an array that had it along the same factor.
pub(super) fn sources(
    before: &[Split],
    after: &Split,
    i: usize,
    old: Option<&Sharding>,
    new: &Sharding,
) -> Vec<(u8, usize)> {
    let had: Vec<u8> = old.into_iter().flat_map(axes).map(|axis| axis.id).collect();
    let has = |split: &Split, f: usize, axis: Axis| split.get(f).is_some_and(|part| mentions(&part.axes, axis));
    let found = axes(new).filter(|axis| !had.contains(&axis.id)).filter_map(|axis| {
        let (f, _) = after.parts.iter().find(|(_, part)| mentions(&part.axes, axis))?;
        let j = (0..before.len()).find(|&j| j != i && has(&before[j], *f, axis))?;
        Some((axis.id, j))
    });
    found.collect()
}

fn mentions(axes: &[Axis], axis: Axis) -> bool {
    axes.iter().any(|own| own.overlaps(axis))
}

/// The arrays of a step in the final state.
struct FinalStep {
    via: Via,
    slots: Vec<Slot>,
    rule: Rule,
    directions: Vec<Direction>,
}

impl Propagation {
    /// From a value back to an annotation: the steps by which it got an axis.
    pub fn chain(&self, v: Val, axis: u8) -> Chain {
        let mut chain = Chain::default();
        let mut slot = self.same(Slot::Value(v));
        // Each step is younger than the one before, so that none comes twice.
        while let Some(&cause) = self.causes.0.get(&(slot, axis))
            && chain.causes.len() < self.program().types.len()
        {
            chain.causes.push(cause);
            slot = self.same(cause.from);
        }
        let has = |s: &Sharding| axes(s).any(|own| own.id == axis);
        chain.origin = self.state(slot).filter(|s| has(s)).and_then(|_| self.origin(slot));
        chain
    }

    /// The annotation that says something about an array.
    pub fn origin(&self, slot: Slot) -> Option<Origin> {
        match self.same(slot) {
            Slot::Value(cell) => self.flow.origins[cell.index()],
            Slot::Result(i) => self.flow.declared_results[i].then_some(Origin::Result(i)),
        }
    }

    /// The places next to a value where an axis stops that divides its neighbours; if none of these has it, those of the
    /// nearest ones that do. Empty if no array that is connected with the value has the axis. If it divides the value, the
    /// places where it would divide another dimension.
    pub fn stops(&self, v: Val, axis: Axis) -> Vec<Stop> {
        let steps = self.steps_at_the_end();
        let mut at: HashMap<Slot, Vec<usize>> = HashMap::new();
        for (k, step) in steps.iter().enumerate() {
            step.slots.iter().for_each(|&slot| at.entry(self.same(slot)).or_default().push(k));
        }
        let has = |slot: &Slot| self.state(*slot).is_some_and(|s| axes(s).any(|own| own.overlaps(axis)));
        let mut level = vec![self.same(Slot::Value(v))];
        let mut seen: BTreeSet<Slot> = level.iter().copied().collect();
        while !level.is_empty() {
            let (mut found, mut next): (Vec<Stop>, Vec<Slot>) = (vec![], vec![]);
            for &to in &level {
                for &k in at.get(&to).into_iter().flatten() {
                    for &from in &steps[k].slots {
                        if has(&from) {
                            found.extend(self.stop(&steps[k], from, to, axis));
                        } else if seen.insert(self.same(from)) {
                            next.push(self.same(from));
                        }
                    }
                }
            }
            if !found.is_empty() || has(&Slot::Value(v)) {
                found.dedup();
                return found;
            }
            level = next;
        }
        vec![]
    }

    /// One name for all arrays that share a sharding.
    fn same(&self, slot: Slot) -> Slot {
        match slot {
            Slot::Value(v) => Slot::Value(self.flow.cell[v.index()]),
            Slot::Result(_) => slot,
        }
    }

    fn steps_at_the_end(&self) -> Vec<FinalStep> {
        let mut all: Vec<FinalStep> = vec![];
        for &id in &self.order {
            let Some((slots, rule)) = self.around(id) else { continue };
            let directions = rule.factors.iter().map(|f| self.direction(id, f.role, f.is_blocked)).collect();
            all.push(FinalStep { via: Via::Node(id), slots, rule: (*rule).clone(), directions });
        }
        for (i, &v) in self.program().body.results.iter().enumerate() {
            let rule = Rule::identity(&self.program().ty(v).shape, 1);
            let directions = vec![Direction::Both; rule.factors.len()];
            all.push(FinalStep { via: Via::Return(i), slots: vec![Slot::Value(v), Slot::Result(i)], rule, directions });
        }
        all
    }

    /// The obstacle for an axis on its way from one array of a step to another; `None` if it got there.
    fn stop(&self, step: &FinalStep, from: Slot, to: Slot, axis: Axis) -> Option<Stop> {
        let rule = &step.rule;
        let splits: Vec<Split> = (step.slots.iter().zip(&rule.tensors))
            .map(|(&slot, dims)| Split::of(dims, self.state(slot), &rule.factors, false))
            .collect();
        let j = step.slots.iter().position(|&slot| slot == from).expect("an array of the step");
        let i = step.slots.iter().position(|&slot| self.same(slot) == to).expect("an array of the step");
        let is_there = self.same(from) == to || Self::passed(&splits, j, i, axis);
        (!is_there).then(|| Stop {
            via: step.via,
            from,
            to: step.slots[i],
            reason: self.reason(step, &splits, j, i, axis),
        })
    }

    /// Returns true if an axis divides the same factor of both arrays.
    fn passed(splits: &[Split], j: usize, i: usize, axis: Axis) -> bool {
        let carries = |(_, part): &&(usize, Part)| mentions(&part.axes, axis);
        let factor = splits[j].parts.iter().find(carries).map(|(f, _)| *f);
        factor.and_then(|f| splits[i].get(f)).is_some_and(|part| mentions(&part.axes, axis))
    }

    fn reason(&self, step: &FinalStep, splits: &[Split], j: usize, i: usize, axis: Axis) -> Reason {
        let FinalStep { slots, rule, directions, .. } = step;
        let sharded = |t: usize| {
            let dims = self.state(slots[t]).map_or(&[][..], |s| &s.dims);
            dims.iter().position(|dim| mentions(&dim.axes, axis))
        };
        let dim = sharded(j).unwrap_or_default();
        let carries = |(_, part): &&(usize, Part)| mentions(&part.axes, axis);
        let Some((f, wanted)) = splits[j].parts.iter().find(carries).map(|(f, part)| (*f, part.axes.clone())) else {
            // It lies behind what the dimension's factors hold.
            return Reason::Missing { dim };
        };
        let Some(part) = splits[i].get(f) else { return Reason::Missing { dim } };
        let is_result = |t: usize| t >= rule.operands;
        let passes = match directions[f] {
            Direction::None => false,
            Direction::Forward => !is_result(j),
            Direction::Backward => is_result(j),
            Direction::Both => true,
        };
        if let (false, Via::Node(id)) = (passes, step.via)
            && let Kind::Barrier(flow) = self.program().nodes[id].kind
        {
            return Reason::Barrier(flow);
        }
        if !passes {
            return Reason::Whole { dim };
        }
        let own = rule.tensors[i].iter().position(|dim| dim.contains(&f)).unwrap_or_default();
        if part.is_closed {
            return Reason::Closed { dim: own, origin: self.origin(slots[i]) };
        }
        if mentions(&splits[i].replicated, axis) || mentions(&splits[i].unreduced, axis) {
            return Reason::Replicated { origin: self.origin(slots[i]) };
        }
        if let Some(dim) = sharded(i) {
            return Reason::Taken { dim };
        }
        let common = agreed(splits, rule.operands, f, directions[f]);
        if !mentions(&common, axis) {
            let others = (0..slots.len()).filter(|&t| t != j);
            let other = others.filter_map(|t| splits[t].get(f).map(|part| (t, &part.axes)));
            let mut against = other.filter(|(_, axes)| {
                !axes.is_empty() && prefix(axes, &wanted) == Prefix::No && prefix(&wanted, axes) == Prefix::No
            });
            if let Some((t, axes)) = against.next() {
                return Reason::Conflict { with: slots[t], axes: axes.clone() };
            }
        }
        let mut fits = wanted;
        truncate(&mut fits, |axis, before| within(axis, &splits[i], part, before, rule.factors[f].size));
        if !mentions(&fits, axis) {
            return Reason::Extent { extent: rule.factors[f].size };
        }
        let is_elementwise = matches!(step.via, Via::Node(id) if self.is_elementwise[id]);
        if is_elementwise && !is_result(i) && !is_result(j) { Reason::Result } else { Reason::Behind { dim: own } }
    }
}
