//! `optimization_barrier`: keeps the compiler from identifying a value with its operand.
use super::prelude::identity::*;

/// The operand as a value that the compiler does not know to be equal to it, so that equations on the two are never
/// merged (`jax.lax.optimization_barrier`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct OptimizationBarrier;

impl IdentityData for OptimizationBarrier {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self) -> (&'static str, Option<String>) {
        (self.name(), None)
    }
    fn statement(&self) -> Statement<'_> {
        Statement::Opaque
    }
    fn changed(&self, _: Change) -> Identity {
        OptimizationBarrier.into()
    }
}

impl IdentityStates for OptimizationBarrier {
    fn typed(&self, typing: &mut Typing, to: &mut Graph, e: &mut Equation) -> Option<Result<(), Diag>> {
        Some(typing.join(to, e))
    }
}

impl IdentityRegions for OptimizationBarrier {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::OptimizationBarrier)
    }
}

impl IdentityHlo for OptimizationBarrier {
    fn stablehlo(&self, w: &mut Writer, x: &Value) -> Value {
        w.unary("optimization_barrier", x)
    }
}
