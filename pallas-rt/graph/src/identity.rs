//! Operations that are the identity, and say something about their operand: about its derivative, its sharding among devices, or
//! what the compiler may assume.
//!
//! They have one operand, and a result of its type. Those with a derivative are on the tangent and on the cotangent too, in
//! sharding groups of their own.
use crate::graph::{Equation, Graph, Name, Op};
use crate::mesh::Placed;
pub use crate::ops::{Constraint, Identity, OptimizationBarrier, PropagationBarrier, ShardingGroup, StopGradient};
use std::fmt;

/// Properties of every identity. No method has a default.
pub(crate) trait IdentityData: Name {
    /// The attributes behind the name in texts; empty if it has none.
    fn attributes(&self) -> String;
    /// JAX's name, and its parameter if it has one.
    fn jaxpr(&self) -> (&'static str, Option<String>);
    /// True if its tangent is that of the operand; otherwise it has none.
    fn has_tangent(&self) -> bool;
    /// True if it stays in plans and files; otherwise simplification drops it.
    fn is_kept(&self) -> bool;
    /// The sharding that it demands of its operand, if it demands one.
    fn placed(&self) -> Option<&Placed>;
    /// The sharding group that its operand belongs to, if it names one.
    fn group(&self) -> Option<u32>;
    /// The same after a change.
    fn changed(&self, by: Change) -> Identity;
}

/// A change of the graph that an identity is in, or of the value that it is on.
pub(crate) enum Change {
    /// The groups of the graph begin with this number.
    GroupsFrom(u32),
    /// What demands a sharding demands this one.
    Placed(Placed),
    /// There are several values, along a first axis about which nothing is said.
    Batched,
}

impl Op {
    /// The operation in a graph whose sharding groups begin with this number.
    pub(crate) fn in_groups_from(&self, first: u32) -> Op {
        match self {
            Op::Identity(op) => op.data().changed(Change::GroupsFrom(first)).into(),
            _ => self.clone(),
        }
    }

    /// The sharding that the operation demands of its operand, if it demands one.
    pub fn placed(&self) -> Option<&Placed> {
        if let Op::Identity(op) = self { op.data().placed() } else { None }
    }
}

impl Graph {
    /// Number of its sharding groups: one more than the greatest number of one.
    pub fn groups(&self) -> u32 {
        let group = |e: &Equation| match &e.op {
            Op::Identity(op) => op.data().group(),
            _ => None,
        };
        self.equations.iter().filter_map(group).max().map_or(0, |group| group + 1)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(format!("{} {}", self.data().name(), self.data().attributes()).trim_end())
    }
}
