//! `optimization_barrier`: keeps the compiler from identifying a value with its operand.
use super::prelude::identity::*;

/// The operand as a value that the compiler does not know to be equal to it, so that equations on the two are never
/// merged (`jax.lax.optimization_barrier`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OptimizationBarrier;

impl IdentityInterface for OptimizationBarrier {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>) {
        (self.name(), None)
    }
    fn operand_property(&self) -> OperandProperty<'_> {
        OperandProperty::Opaque
    }
    fn with_update(&self, _: IdentityUpdate) -> Identity {
        OptimizationBarrier.into()
    }
}

impl IdentityAxisStateRule for OptimizationBarrier {
    fn define_result_states(
        &self,
        typing: &mut AxisStateInference,
        to: &mut Graph,
        e: &mut Equation,
    ) -> Option<Result<(), Diag>> {
        Some(typing.cast_to_joined_states(to, e))
    }
}

impl ShardableIdentity for OptimizationBarrier {
    fn node_kind(&self) -> Option<NodeKind> {
        Some(NodeKind::OptimizationBarrier)
    }
}

impl IdentityHlo for OptimizationBarrier {
    fn emit_stablehlo(&self, w: &mut HloWriter, x: &HloValue) -> HloValue {
        w.emit_unary("optimization_barrier", x)
    }
}
