//! `sharding_group`: demands that values have the same sharding, whichever it is.
use super::prelude::identity::*;

/// The operand, which is demanded to have the same sharding as all other values of the group with this number. Numbers
/// belong to one graph: the graphs that it calls, also bodies of loops, have groups of their own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardingGroup(pub u32);

impl IdentityInterface for ShardingGroup {
    fn attributes(&self) -> String {
        format!("group({})", self.0)
    }
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>) {
        ("shard_alike", Some(format!("group={}", self.0)))
    }
    fn operand_property(&self) -> OperandProperty<'_> {
        OperandProperty::InShardingGroup(self.0)
    }
    fn with_update(&self, by: IdentityUpdate) -> Identity {
        if let IdentityUpdate::ShiftGroups(first) = by {
            ShardingGroup(first + self.0).into()
        } else {
            self.clone().into()
        }
    }
}

impl IdentityAxisStateRule for ShardingGroup {
    fn define_result_states(
        &self,
        _: &mut AxisStateInference,
        _: &mut Graph,
        _: &mut Equation,
    ) -> Option<Result<(), Diag>> {
        None
    }
}

impl ShardableIdentity for ShardingGroup {
    fn node_kind(&self) -> Option<NodeKind> {
        Some(NodeKind::ShardingGroup(self.0))
    }
}

impl IdentityHlo for ShardingGroup {
    fn emit_stablehlo(&self, w: &mut HloWriter, x: &HloValue) -> HloValue {
        if w.with_shardings {
            w.emit_op_with_regions("sdy.sharding_group", &[x], vec![], HloAttributes::ShardingGroup(self.0), &[]);
        }
        x.clone()
    }
}
