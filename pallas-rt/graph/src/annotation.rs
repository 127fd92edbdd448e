//! Operations that are the identity, and say how their operand is sharded among devices.
//!
//! They have one operand, and a result of its type. The tangent and the cotangent of one are sharded as the value is: their
//! annotation is the same, in sharding groups of its own. Outside of propagation nothing is left of one: `simplify` drops them, so
//! that files and plans have none.
use crate::graph::{Equation, Graph, Name, Op};
use crate::mesh::Placed;
pub use crate::ops::{Annotation, Constraint, PropagationBarrier, ShardingGroup};
use std::fmt;

/// Properties of every annotation. No method has a default.
pub(crate) trait Annotates: Name {
    /// The attributes behind the name in texts.
    fn attributes(&self) -> String;
    /// JAX's name, and its parameter.
    fn jaxpr(&self) -> (&'static str, String);
    /// The sharding that it demands of its operand, if it demands one.
    fn placed(&self) -> Option<&Placed>;
    /// The sharding group that its operand belongs to, if it names one.
    fn group(&self) -> Option<u32>;
    /// The same after a change.
    fn changed(&self, by: Change) -> Annotation;
}

/// A change of the graph that an annotation is in, or of the value that it is on.
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
            Op::Annotation(annotation) => annotation.data().changed(Change::GroupsFrom(first)).into(),
            _ => self.clone(),
        }
    }

    /// The sharding that the operation demands of its operand, if it demands one.
    pub fn placed(&self) -> Option<&Placed> {
        if let Op::Annotation(annotation) = self { annotation.data().placed() } else { None }
    }
}

impl Graph {
    /// Number of its sharding groups: one more than the greatest number of one.
    pub fn groups(&self) -> u32 {
        let group = |e: &Equation| match &e.op {
            Op::Annotation(annotation) => annotation.data().group(),
            _ => None,
        };
        self.equations.iter().filter_map(group).max().map_or(0, |group| group + 1)
    }
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.data().name(), self.data().attributes())
    }
}
