//! `stop_gradient`: makes the derivative of a value zero.
use super::prelude::identity::*;

/// The operand, which derivatives treat as a constant (`jax.lax.stop_gradient`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct StopGradient;

impl IdentityData for StopGradient {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self) -> (&'static str, Option<String>) {
        (self.name(), None)
    }
    fn statement(&self) -> Statement<'_> {
        Statement::Constant
    }
    fn changed(&self, _: Change) -> Identity {
        StopGradient.into()
    }
}

impl IdentityStates for StopGradient {
    fn typed(&self, typing: &mut Typing, to: &mut Graph, e: &mut Equation) -> Option<Result<(), Diag>> {
        Some(typing.join(to, e))
    }
}

impl IdentityRegions for StopGradient {
    fn kind(&self) -> Option<Kind> {
        None
    }
}

impl IdentityHlo for StopGradient {
    fn stablehlo(&self, _: &mut Writer, x: &Value) -> Value {
        x.clone()
    }
}
