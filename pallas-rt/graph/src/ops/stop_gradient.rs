//! `stop_gradient`: makes the derivative of a value zero.
use super::prelude::identity::*;

/// The operand, which derivatives treat as a constant (`jax.lax.stop_gradient`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StopGradient;

impl IdentityInterface for StopGradient {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>) {
        (self.name(), None)
    }
    fn operand_property(&self) -> OperandProperty<'_> {
        OperandProperty::Constant
    }
    fn with_update(&self, _: IdentityUpdate) -> Identity {
        StopGradient.into()
    }
}

impl IdentityAxisStateRule for StopGradient {
    fn define_result_states(
        &self,
        typing: &mut AxisStateInference,
        to: &mut Graph,
        e: &mut Equation,
    ) -> Option<Result<(), Diag>> {
        Some(typing.cast_to_joined_states(to, e))
    }
}

impl ShardableIdentity for StopGradient {
    fn node_kind(&self) -> Option<NodeKind> {
        None
    }
}

impl IdentityHlo for StopGradient {
    fn emit_stablehlo(&self, _: &mut HloWriter, x: &HloValue) -> HloValue {
        x.clone()
    }
}
