//! Identities: operations that return their operand, and state something about it: its derivative, its sharding among
//! devices, or what the compiler may assume.
//!
//! An identity has one operand, and a result of the operand's type. If it has a derivative, it is applied to the
//! tangent and to the cotangent too, where sharding groups get numbers of their own.
use crate::graph::{Equation, Graph, Op, OpName};
use crate::mesh::MeshSharding;
pub use crate::ops::{
    Identity, OptimizationBarrier, PropagationBarrier, ShardingConstraint, ShardingGroup, StopGradient,
};
use std::fmt;

/// Properties that every identity operation states: how it is printed, and what holds for its operand (no derivative, a
/// sharding ..). No method has a default.
pub(crate) trait IdentityInterface: OpName {
    /// Returns the attributes that follow the name in texts; empty if there are none.
    fn attributes(&self) -> String;
    /// Returns JAX's name of the operation, and its parameter if it has one.
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>);
    /// Returns what the operation states about its operand.
    fn operand_property(&self) -> OperandProperty<'_>;
    /// Returns the identity that stands for this one after `by`: renumbered sharding groups, another demanded sharding,
    /// or a batch axis in front of the value.
    fn with_update(&self, by: IdentityUpdate) -> Identity;
}

/// The property that an identity operation states of its operand, for derivatives, the compiler or the partitioner.
pub(crate) enum OperandProperty<'a> {
    /// Derivatives take it for a constant.
    Constant,
    /// The compiler may not take the result for equal to it.
    Opaque,
    /// It has this sharding.
    HasSharding(&'a MeshSharding),
    /// It has the sharding of all values of the group with this number.
    InShardingGroup(u32),
    /// Shardings propagate through it in some directions.
    LimitsPropagation,
}

/// A change that a transformation makes to an identity operation, such as a sharding constraint: other numbers of
/// sharding groups, another demanded sharding, or a batch axis of its operand.
pub(crate) enum IdentityUpdate {
    /// Sharding groups are renumbered: this number is added to each.
    ShiftGroups(u32),
    /// An identity that demands a sharding is to demand this one.
    ReplaceSharding(MeshSharding),
    /// The value gets a batch axis in front, about whose sharding nothing is stated.
    AddBatchAxis,
}

impl Identity {
    /// Returns true if the tangent of the result is that of the operand; false if it is zero.
    pub(crate) fn has_tangent(&self) -> bool {
        !matches!(self.data().operand_property(), OperandProperty::Constant)
    }

    /// Returns true if the operation stays in plans and files; false if simplification drops it.
    pub(crate) fn is_kept_in_plans(&self) -> bool {
        matches!(self.data().operand_property(), OperandProperty::Opaque)
    }

    /// Returns the sharding that the operation demands of its operand, if it demands one.
    pub(crate) fn sharding_constraint(&self) -> Option<&MeshSharding> {
        if let OperandProperty::HasSharding(placed) = self.data().operand_property() { Some(placed) } else { None }
    }
}

impl Op {
    /// Returns the operation with `offset` added to the number of its sharding group; other operations are unchanged.
    pub(crate) fn with_sharding_groups_shifted(&self, offset: u32) -> Op {
        match self {
            Op::Identity(op) => op.data().with_update(IdentityUpdate::ShiftGroups(offset)).into(),
            _ => self.clone(),
        }
    }

    /// Returns the sharding that the operation demands of its operand, if it demands one.
    pub fn sharding_constraint(&self) -> Option<&MeshSharding> {
        if let Op::Identity(op) = self { op.sharding_constraint() } else { None }
    }
}

impl Graph {
    /// Returns the number of sharding groups: one more than the greatest group number, 0 if there are none.
    pub fn sharding_group_count(&self) -> u32 {
        let group = |e: &Equation| {
            let Op::Identity(op) = &e.op else { return None };
            if let OperandProperty::InShardingGroup(group) = op.data().operand_property() { Some(group) } else { None }
        };
        self.equations.iter().filter_map(group).max().map_or(0, |group| group + 1)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format!("{} {}", self.data().name(), self.data().attributes()).trim_end())
    }
}
