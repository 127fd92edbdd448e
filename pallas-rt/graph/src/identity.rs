//! Identities: operations that return their operand, and state something about it: its derivative, its sharding among
//! devices, or what the compiler may assume.
//!
//! An identity has one operand, and a result of the operand's type. If it has a derivative, it is applied to the
//! tangent and to the cotangent too, where sharding groups get numbers of their own.
use crate::graph::{Equation, Graph, Name, Op};
use crate::mesh::Placed;
pub use crate::ops::{Constraint, Identity, OptimizationBarrier, PropagationBarrier, ShardingGroup, StopGradient};
use std::fmt;

/// Properties of every identity operation: its texts, and what it states. No method has a default.
pub(crate) trait IdentityData: Name {
    /// Returns the attributes that follow the name in texts; empty if there are none.
    fn attributes(&self) -> String;
    /// Returns JAX's name of the operation, and its parameter if it has one.
    fn jaxpr(&self) -> (&'static str, Option<String>);
    /// Returns what the operation states about its operand.
    fn statement(&self) -> Statement<'_>;
    /// Returns the operation after a change of the graph or value that it belongs to.
    fn changed(&self, by: Change) -> Identity;
}

/// A statement of an identity about its operand.
pub(crate) enum Statement<'a> {
    /// Derivatives take it for a constant.
    Constant,
    /// The compiler may not take the result for equal to it.
    Opaque,
    /// It has this sharding.
    Placed(&'a Placed),
    /// It has the sharding of all values of the group with this number.
    Group(u32),
    /// Shardings propagate through it in some directions.
    Flow,
}

/// A change of the graph that contains an identity, or of the value that it is applied to.
pub(crate) enum Change {
    /// Sharding groups are renumbered: this number is added to each.
    GroupsFrom(u32),
    /// An identity that demands a sharding is to demand this one.
    Placed(Placed),
    /// The value gets a batch axis in front, about whose sharding nothing is stated.
    Batched,
}

impl Identity {
    /// Returns true if the tangent of the result is that of the operand; false if it is zero.
    pub(crate) fn has_tangent(&self) -> bool {
        !matches!(self.data().statement(), Statement::Constant)
    }

    /// Returns true if the operation stays in plans and files; false if simplification drops it.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.data().statement(), Statement::Opaque)
    }

    /// Returns the sharding that the operation demands of its operand, if it demands one.
    pub(crate) fn placed(&self) -> Option<&Placed> {
        if let Statement::Placed(placed) = self.data().statement() { Some(placed) } else { None }
    }
}

impl Op {
    /// Returns the operation with its sharding group renumbered for a graph whose groups begin at `first`.
    pub(crate) fn in_groups_from(&self, first: u32) -> Op {
        match self {
            Op::Identity(op) => op.data().changed(Change::GroupsFrom(first)).into(),
            _ => self.clone(),
        }
    }

    /// Returns the sharding that the operation demands of its operand, if it demands one.
    pub fn placed(&self) -> Option<&Placed> {
        if let Op::Identity(op) = self { op.placed() } else { None }
    }
}

impl Graph {
    /// Returns the number of sharding groups: one more than the greatest group number, 0 if there are none.
    pub fn groups(&self) -> u32 {
        let group = |e: &Equation| {
            let Op::Identity(op) = &e.op else { return None };
            if let Statement::Group(group) = op.data().statement() { Some(group) } else { None }
        };
        self.equations.iter().filter_map(group).max().map_or(0, |group| group + 1)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format!("{} {}", self.data().name(), self.data().attributes()).trim_end())
    }
}
