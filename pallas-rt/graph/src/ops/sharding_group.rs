//! `sharding_group`: demands that values have the same sharding, whichever it is.
use super::prelude::identity::*;

/// The operand, which is demanded to have the same sharding as all other values of the group with this number. Numbers
/// belong to one graph: the graphs that it calls, also bodies of loops, have groups of their own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardingGroup(pub u32);

impl IdentityData for ShardingGroup {
    fn attributes(&self) -> String {
        format!("group({})", self.0)
    }
    fn jaxpr(&self) -> (&'static str, Option<String>) {
        ("shard_alike", Some(format!("group={}", self.0)))
    }
    fn statement(&self) -> Statement<'_> {
        Statement::Group(self.0)
    }
    fn changed(&self, by: Change) -> Identity {
        if let Change::GroupsFrom(first) = by { ShardingGroup(first + self.0).into() } else { self.clone().into() }
    }
}

impl IdentityStates for ShardingGroup {
    fn typed(&self, _: &mut Typing, _: &mut Graph, _: &mut Equation) -> Option<Result<(), Diag>> {
        None
    }
}

impl IdentityRegions for ShardingGroup {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Group(self.0))
    }
}

impl IdentityHlo for ShardingGroup {
    fn stablehlo(&self, w: &mut Writer, x: &Value) -> Value {
        if w.with_shardings {
            w.operation("sdy.sharding_group", &[x], vec![], Detail::Group(self.0), &[]);
        }
        x.clone()
    }
}
