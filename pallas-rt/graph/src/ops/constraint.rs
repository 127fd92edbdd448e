//! `sharding_constraint`: demands a sharding of a value.
use super::prelude::identity::*;
use crate::mesh::DimSharding;

/// The operand, which is demanded to have this sharding (`jax.lax.with_sharding_constraint`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardingConstraint(pub MeshSharding);

impl IdentityInterface for ShardingConstraint {
    fn attributes(&self) -> String {
        let MeshSharding { mesh, sharding } = &self.0;
        format!("mesh{mesh} sharding<{}>", sharding.text(mesh))
    }
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>) {
        ("sharding_constraint", Some(format!("sharding={}", self.0.sharding.text(&self.0.mesh))))
    }
    fn operand_property(&self) -> OperandProperty<'_> {
        OperandProperty::HasSharding(&self.0)
    }
    fn with_update(&self, by: IdentityUpdate) -> Identity {
        let mut placed = self.0.clone();
        match by {
            IdentityUpdate::ShiftGroups(_) => {}
            IdentityUpdate::ReplaceSharding(other) => placed = other,
            IdentityUpdate::AddBatchAxis => {
                placed.sharding.dims.insert(0, DimSharding { open: true, ..DimSharding::default() })
            }
        }
        ShardingConstraint(placed).into()
    }
}

impl IdentityAxisStateRule for ShardingConstraint {
    /// Gives the result the operand's states over manual mesh axes if the constraint shards along automatic axes alone;
    /// `None` for others, which are refused in a body of `shard_map`.
    fn define_result_states(
        &self,
        typing: &mut AxisStateInference,
        _: &mut Graph,
        e: &mut Equation,
    ) -> Option<Result<(), Diag>> {
        typing.is_on_automatic_axes(&self.0).then(|| {
            let states = typing.states(e.args[0]);
            typing.define_states(e.result(), states);
            Ok(())
        })
    }
}

impl ShardableIdentity for ShardingConstraint {
    fn node_kind(&self) -> Option<NodeKind> {
        Some(NodeKind::Constraint(self.0.sharding.normal(&self.0.mesh)))
    }
}

impl IdentityHlo for ShardingConstraint {
    fn emit_stablehlo(&self, w: &mut HloWriter, x: &HloValue) -> HloValue {
        if !w.with_shardings {
            return x.clone();
        }
        let detail = HloAttributes::Sharding(self.0.sharding.text(&self.0.mesh));
        w.emit_op("sdy.sharding_constraint", &[x], detail, x.ty.clone())
    }
}
