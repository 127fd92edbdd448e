//! `propagation_barrier`: limits the directions in which shardings propagate through a value.
use super::prelude::identity::*;
use crate::mesh::PropagationDirection;

/// The operand, through which shardings propagate only in these directions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PropagationBarrier(pub PropagationDirection);

impl IdentityInterface for PropagationBarrier {
    fn attributes(&self) -> String {
        format!("direction({})", self.0.name())
    }
    fn jaxpr_name_and_param(&self) -> (&'static str, Option<String>) {
        ("propagation_barrier", Some(format!("direction={}", self.0.name())))
    }
    fn operand_property(&self) -> OperandProperty<'_> {
        OperandProperty::LimitsPropagation
    }
    fn with_update(&self, _: IdentityUpdate) -> Identity {
        self.clone().into()
    }
}

impl IdentityAxisStateRule for PropagationBarrier {
    /// Defines the result's states over manual mesh axes if the barrier blocks no direction; `None` for other barriers,
    /// which are refused in a body of `shard_map`.
    fn define_result_states(
        &self,
        typing: &mut AxisStateInference,
        to: &mut Graph,
        e: &mut Equation,
    ) -> Option<Result<(), Diag>> {
        (self.0 == PropagationDirection::Both).then(|| typing.cast_to_joined_states(to, e))
    }
}

impl ShardableIdentity for PropagationBarrier {
    fn node_kind(&self) -> Option<NodeKind> {
        Some(NodeKind::PropagationBarrier(self.0))
    }
}

impl IdentityHlo for PropagationBarrier {
    fn emit_stablehlo(&self, w: &mut HloWriter, x: &HloValue) -> HloValue {
        // The numbers by which Shardy's attribute encodes directions.
        let number = match self.0 {
            _ if !w.with_shardings => return x.clone(),
            PropagationDirection::None => 0,
            PropagationDirection::Forward => 1,
            PropagationDirection::Backward => 2,
            PropagationDirection::Both => return x.clone(),
        };
        w.emit_op("sdy.propagation_barrier", &[x], HloAttributes::BarrierFlow(number), x.ty.clone())
    }
}
