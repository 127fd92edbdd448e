//! Reasons for the decisions of a propagation: from which annotation a value has an axis, and why another axis did not
//! reach it.
//!
//! Each step of propagation that gives an array an axis records a [`AxisCause`]. From a value a chain of causes leads
//! back to an [`PropagationOrigin`], which is an annotation. For an axis that a value does not have, the arrays next to
//! it that have the axis are examined in the final state: propagation tried every step between them last of all without
//! a change, so one of a few [`PropagationStopReason`]s holds.
//!
//! A cause has the stage and the round of its step, and the factor along which the axis came. Numbers of sharding
//! groups belong to one graph: groups that `Graph::inline` appends get new numbers, loop bodies have their own, and
//! tangents and cotangents have a second range. A function runs on one mesh; shardings on other meshes of the same
//! devices are first translated to it (`Mesh::translate_sharding`, `shard/constraint_meshes`). `jit/sharded` turns
//! causes and reasons into messages, counts collectives (`budget`), and marks trees (`mark_sharding`). `jit/audit`
//! checks declared shardings against a policy: declarations are gathered before propagation, from arrays and from
//! constraints on parameters, and findings compare texts in normal form.
use super::factor_shardings::{FactorSharding, FactorShardings};
use super::op_sharding_rule::ShardingRule;
use super::propagate::Propagation;
use super::propagation_program::{NodeId, NodeKind, Val};
use super::strategy::{compatible_major_axes, prefix_fitting_factor};
use crate::mesh::axis::{Axis, PrefixRelation, prefix_relation, truncate_axes};
use crate::mesh::{PropagationDirection, Sharding};
use std::collections::{BTreeSet, HashMap};

/// An array whose sharding a step of propagation reads or changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ValueOrResult {
    /// A value of the program.
    Value(Val),
    /// The program's result with this number, whose declared sharding may differ from that of the value returned.
    Result(usize),
}

/// An annotation of the program, from which propagation starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PropagationOrigin {
    /// The declared sharding of the parameter with this number.
    Param(usize),
    /// The declared sharding of the result with this number.
    Result(usize),
    /// The sharding of this constraint node.
    Constraint(NodeId),
}

/// The reason why two arrays should be sharded by the same axes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PropagationLink {
    /// This node of the program reads or makes both.
    Node(NodeId),
    /// Both belong to one sharding group.
    Group,
    /// One is the program's result with this number, the other the value that is returned as that result.
    Return(usize),
}

/// The step of propagation that gave an array an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AxisCause {
    /// The link along which the axis came.
    pub via: PropagationLink,
    /// The array that had the axis before.
    pub from: ValueOrResult,
    /// The stage of operation priority in which the step was taken, 0 to 4.
    pub stage: usize,
    /// The round in which the step was taken: the user's priority that the round is for.
    pub round: u32,
}

/// The steps along which an axis came from an annotation to a value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CauseChain {
    /// The steps of propagation, the last one first.
    pub causes: Vec<AxisCause>,
    /// The annotation at which the steps begin; `None` if it isn't known.
    pub origin: Option<PropagationOrigin>,
}

/// A link between two arrays along which an axis did not propagate, with the reason; one of them is sharded by the
/// axis, the other is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PropagationStop {
    /// The link between both arrays along which the axis could have come.
    pub via: PropagationLink,
    /// The array that is sharded by the axis.
    pub from: ValueOrResult,
    /// The array that is not sharded by the axis.
    pub to: ValueOrResult,
    /// The reason why propagation did not carry the axis from `from` to `to`.
    pub reason: PropagationStopReason,
}

/// The reason why an axis did not propagate from one array (`from`) to another (`to`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PropagationStopReason {
    /// The dimension of `from` that the axis shards has no corresponding dimension in `to`.
    NoCorrespondingDim {
        /// The dimension of `from`.
        dim: usize,
    },
    /// The operation needs the whole dimension of `to` that corresponds.
    NeedsWholeDim {
        /// The dimension of `from`.
        dim: usize,
    },
    /// The link is a barrier, which shardings pass only in this direction.
    Barrier(PropagationDirection),
    /// The corresponding dimension of `to` is closed: propagation may not add axes to it.
    Closed {
        /// The dimension of `to`.
        dim: usize,
        /// The annotation that closed it.
        origin: Option<PropagationOrigin>,
    },
    /// An annotation says that `to` must not be sharded by the axis.
    Replicated {
        /// That annotation.
        origin: Option<PropagationOrigin>,
    },
    /// The axis, or a part of it, already shards another dimension of `to`.
    ShardsOtherDim {
        /// The dimension that is sharded already.
        dim: usize,
    },
    /// The arrays of the operation are sharded by different axes along the corresponding dimensions.
    Conflict {
        /// The array with other axes.
        with: ValueOrResult,
        /// The axes of that array.
        axes: Vec<Axis>,
    },
    /// The axis does not divide evenly the positions that it would shard in `to`.
    UnevenExtent {
        /// Number of those positions.
        extent: usize,
    },
    /// Both arrays are operands of an elementwise operation, and an operand is sharded no further than the result.
    LimitedByResult,
    /// The axis would come after a part of this dimension of `to` that is not fully sharded, so that blocks would not
    /// be adjacent elements.
    AfterPartialFactor {
        /// The dimension of `to`.
        dim: usize,
    },
}

/// By array and axis number, the first step of propagation that gave the array the axis.
#[derive(Debug, Default)]
pub(super) struct AxisCauses(HashMap<(ValueOrResult, u8), AxisCause>);

impl AxisCauses {
    /// Records a step that gave an array an axis, unless an earlier step did.
    pub(super) fn record_first(&mut self, slot: ValueOrResult, axis: u8, cause: AxisCause) {
        self.0.entry((slot, axis)).or_insert(cause);
    }
}

/// Returns the axes that shard any dimension, in the order of the dimensions.
pub(super) fn sharding_axes(sharding: &Sharding) -> impl Iterator<Item = Axis> {
    sharding.dims.iter().flat_map(|dim| dim.axes.iter().copied())
}

/// For each axis that `new` has and `old` lacks, returns the axis number and the array of the step that had the axis
/// before along the same factor. `before` has the arrays of the step before it; `after` is array `changed_array` after
/// it.
pub(super) fn find_axis_sources(
    before: &[FactorShardings],
    after: &FactorShardings,
    changed_array: usize,
    old: Option<&Sharding>,
    new: &Sharding,
) -> Vec<(u8, usize)> {
    let had: Vec<u8> = old.into_iter().flat_map(sharding_axes).map(|axis| axis.id).collect();
    let has =
        |split: &FactorShardings, f: usize, axis: Axis| split.get(f).is_some_and(|part| overlaps_any(&part.axes, axis));
    let found = sharding_axes(new).filter(|axis| !had.contains(&axis.id)).filter_map(|axis| {
        let (f, _) = after.parts.iter().find(|(_, part)| overlaps_any(&part.axes, axis))?;
        let j = (0..before.len()).find(|&j| j != changed_array && has(&before[j], *f, axis))?;
        Some((axis.id, j))
    });
    found.collect()
}

/// Returns true if one of `axes` overlaps `axis`.
fn overlaps_any(axes: &[Axis], axis: Axis) -> bool {
    axes.iter().any(|own| own.overlaps(axis))
}

/// A link between arrays with its sharding rule, to be examined in the final state of propagation.
struct LinkWithRule {
    via: PropagationLink,
    slots: Vec<ValueOrResult>,
    rule: ShardingRule,
    directions: Vec<PropagationDirection>,
}

impl Propagation {
    /// Returns the steps by which a value got the axis with this number, back to an annotation.
    pub fn cause_chain(&self, v: Val, axis: u8) -> CauseChain {
        let mut chain = CauseChain::default();
        let mut slot = self.representative(ValueOrResult::Value(v));
        // Each step is younger than the one before, so that none comes twice.
        while let Some(&cause) = self.causes.0.get(&(slot, axis))
            && chain.causes.len() < self.program().types.len()
        {
            chain.causes.push(cause);
            slot = self.representative(cause.from);
        }
        let has = |s: &Sharding| sharding_axes(s).any(|own| own.id == axis);
        chain.origin = self.current_sharding(slot).filter(|s| has(s)).and_then(|_| self.sharding_origin(slot));
        chain
    }

    /// Returns the annotation that declares the sharding of an array; `None` without one.
    pub fn sharding_origin(&self, slot: ValueOrResult) -> Option<PropagationOrigin> {
        match self.representative(slot) {
            ValueOrResult::Value(cell) => self.flow.origins[cell.index()],
            ValueOrResult::Result(i) => self.flow.declared_results[i].then_some(PropagationOrigin::Result(i)),
        }
    }

    /// Returns the links at which an axis stops on its way to `v`: those between `v` and arrays next to it that have
    /// the axis or, if there are none, between the nearest arrays that lack it and their neighbours that have it. The
    /// result is empty if no array connected with `v` has the axis. If the axis already shards `v`, they are the links
    /// along which it would shard another dimension.
    pub fn propagation_stops(&self, v: Val, axis: Axis) -> Vec<PropagationStop> {
        let steps = self.collect_links();
        let mut at: HashMap<ValueOrResult, Vec<usize>> = HashMap::new();
        for (k, step) in steps.iter().enumerate() {
            step.slots.iter().for_each(|&slot| at.entry(self.representative(slot)).or_default().push(k));
        }
        let has = |slot: &ValueOrResult| {
            self.current_sharding(*slot).is_some_and(|s| sharding_axes(s).any(|own| own.overlaps(axis)))
        };
        let mut level = vec![self.representative(ValueOrResult::Value(v))];
        let mut seen: BTreeSet<ValueOrResult> = level.iter().copied().collect();
        while !level.is_empty() {
            let (mut found, mut next): (Vec<PropagationStop>, Vec<ValueOrResult>) = (vec![], vec![]);
            for &to in &level {
                for &k in at.get(&to).into_iter().flatten() {
                    for &from in &steps[k].slots {
                        if has(&from) {
                            found.extend(self.explain_stop(&steps[k], from, to, axis));
                        } else if seen.insert(self.representative(from)) {
                            next.push(self.representative(from));
                        }
                    }
                }
            }
            if !found.is_empty() || has(&ValueOrResult::Value(v)) {
                found.dedup();
                return found;
            }
            level = next;
        }
        vec![]
    }

    /// Returns the slot that represents all arrays which share a sharding with this one.
    fn representative(&self, slot: ValueOrResult) -> ValueOrResult {
        match slot {
            ValueOrResult::Value(v) => ValueOrResult::Value(self.flow.cell[v.index()]),
            ValueOrResult::Result(_) => slot,
        }
    }

    /// Returns all links between arrays: nodes with a sharding rule, and values with the results that they are returned
    /// as.
    fn collect_links(&self) -> Vec<LinkWithRule> {
        let mut all: Vec<LinkWithRule> = vec![];
        for &id in &self.order {
            let Some((slots, rule)) = self.arrays_and_rule(id) else { continue };
            let directions = rule.factors.iter().map(|f| self.factor_direction(id, f.role, f.is_blocked)).collect();
            all.push(LinkWithRule { via: PropagationLink::Node(id), slots, rule: (*rule).clone(), directions });
        }
        for (i, &v) in self.program().body.results.iter().enumerate() {
            let rule = ShardingRule::elementwise(&self.program().ty(v).shape, 1);
            let directions = vec![PropagationDirection::Both; rule.factors.len()];
            all.push(LinkWithRule {
                via: PropagationLink::Return(i),
                slots: vec![ValueOrResult::Value(v), ValueOrResult::Result(i)],
                rule,
                directions,
            });
        }
        all
    }

    /// Returns the link with the reason why `axis` did not propagate from one array of it to another; `None` if it did.
    fn explain_stop(
        &self,
        link: &LinkWithRule,
        from: ValueOrResult,
        to: ValueOrResult,
        axis: Axis,
    ) -> Option<PropagationStop> {
        let rule = &link.rule;
        let splits: Vec<FactorShardings> = (link.slots.iter().zip(&rule.tensors))
            .map(|(&slot, dims)| {
                FactorShardings::from_sharding(dims, self.current_sharding(slot), &rule.factors, false)
            })
            .collect();
        let j = link.slots.iter().position(|&slot| slot == from).expect("an array of the step");
        let i = link.slots.iter().position(|&slot| self.representative(slot) == to).expect("an array of the step");
        let is_there = self.representative(from) == to || Self::has_propagated(&splits, j, i, axis);
        (!is_there).then(|| PropagationStop {
            via: link.via,
            from,
            to: link.slots[i],
            reason: self.stop_reason(link, &splits, j, i, axis),
        })
    }

    /// Returns true if `axis`, which shards a factor of array `from`, also shards that factor of array `to`.
    fn has_propagated(splits: &[FactorShardings], from: usize, to: usize, axis: Axis) -> bool {
        let carries = |(_, part): &&(usize, FactorSharding)| overlaps_any(&part.axes, axis);
        let factor = splits[from].parts.iter().find(carries).map(|(f, _)| *f);
        factor.and_then(|f| splits[to].get(f)).is_some_and(|part| overlaps_any(&part.axes, axis))
    }

    /// Returns the reason why an axis of array `from` of a link did not propagate to array `to`.
    fn stop_reason(
        &self,
        link: &LinkWithRule,
        splits: &[FactorShardings],
        from: usize,
        to: usize,
        axis: Axis,
    ) -> PropagationStopReason {
        let LinkWithRule { slots, rule, directions, .. } = link;
        let sharded = |t: usize| {
            let dims = self.current_sharding(slots[t]).map_or(&[][..], |s| &s.dims);
            dims.iter().position(|dim| overlaps_any(&dim.axes, axis))
        };
        let dim = sharded(from).unwrap_or_default();
        let carries = |(_, part): &&(usize, FactorSharding)| overlaps_any(&part.axes, axis);
        let Some((f, wanted)) = splits[from].parts.iter().find(carries).map(|(f, part)| (*f, part.axes.clone())) else {
            // The axis comes after the axes of the dimension's factors.
            return PropagationStopReason::NoCorrespondingDim { dim };
        };
        let Some(part) = splits[to].get(f) else { return PropagationStopReason::NoCorrespondingDim { dim } };
        let is_result = |t: usize| t >= rule.operands;
        let passes = match directions[f] {
            PropagationDirection::None => false,
            PropagationDirection::Forward => !is_result(from),
            PropagationDirection::Backward => is_result(from),
            PropagationDirection::Both => true,
        };
        if let (false, PropagationLink::Node(id)) = (passes, link.via)
            && let NodeKind::PropagationBarrier(flow) = self.program().nodes[id].kind
        {
            return PropagationStopReason::Barrier(flow);
        }
        if !passes {
            return PropagationStopReason::NeedsWholeDim { dim };
        }
        let own = rule.tensors[to].iter().position(|dim| dim.contains(&f)).unwrap_or_default();
        if part.is_closed {
            return PropagationStopReason::Closed { dim: own, origin: self.sharding_origin(slots[to]) };
        }
        if overlaps_any(&splits[to].replicated, axis) || overlaps_any(&splits[to].unreduced, axis) {
            return PropagationStopReason::Replicated { origin: self.sharding_origin(slots[to]) };
        }
        if let Some(dim) = sharded(to) {
            return PropagationStopReason::ShardsOtherDim { dim };
        }
        let common = compatible_major_axes(splits, rule.operands, f, directions[f]);
        if !overlaps_any(&common, axis) {
            let others = (0..slots.len()).filter(|&t| t != from);
            let other = others.filter_map(|t| splits[t].get(f).map(|part| (t, &part.axes)));
            let mut against = other.filter(|(_, axes)| {
                !axes.is_empty()
                    && prefix_relation(axes, &wanted) == PrefixRelation::No
                    && prefix_relation(&wanted, axes) == PrefixRelation::No
            });
            if let Some((t, axes)) = against.next() {
                return PropagationStopReason::Conflict { with: slots[t], axes: axes.clone() };
            }
        }
        let mut fits = wanted;
        truncate_axes(&mut fits, |axis, before| {
            prefix_fitting_factor(axis, &splits[to], part, before, rule.factors[f].size)
        });
        if !overlaps_any(&fits, axis) {
            return PropagationStopReason::UnevenExtent { extent: rule.factors[f].size };
        }
        let is_elementwise = matches!(link.via, PropagationLink::Node(id) if self.is_elementwise[id]);
        if is_elementwise && !is_result(to) && !is_result(from) {
            PropagationStopReason::LimitedByResult
        } else {
            PropagationStopReason::AfterPartialFactor { dim: own }
        }
    }
}
