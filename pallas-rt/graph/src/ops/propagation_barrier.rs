//! `propagation_barrier`: limits the directions in which shardings propagate through a value.
use super::prelude::identity::*;
use crate::mesh::Flow;

/// The operand, through which shardings propagate only in these directions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PropagationBarrier(pub Flow);

impl IdentityData for PropagationBarrier {
    fn attributes(&self) -> String {
        format!("direction({})", self.0.name())
    }
    fn jaxpr(&self) -> (&'static str, Option<String>) {
        ("propagation_barrier", Some(format!("direction={}", self.0.name())))
    }
    fn statement(&self) -> Statement<'_> {
        Statement::Flow
    }
    fn changed(&self, _: Change) -> Identity {
        self.clone().into()
    }
}

impl IdentityStates for PropagationBarrier {
    /// Admits the barrier in a body of `shard_map` only if it blocks no direction.
    fn typed(&self, typing: &mut Typing, to: &mut Graph, e: &mut Equation) -> Option<Result<(), Diag>> {
        (self.0 == Flow::Both).then(|| typing.join(to, e))
    }
}

impl IdentityRegions for PropagationBarrier {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Barrier(self.0))
    }
}

impl IdentityHlo for PropagationBarrier {
    fn stablehlo(&self, w: &mut Writer, x: &Value) -> Value {
        // The numbers by which Shardy's attribute encodes directions.
        let number = match self.0 {
            _ if !w.with_shardings => return x.clone(),
            Flow::None => 0,
            Flow::Forward => 1,
            Flow::Backward => 2,
            Flow::Both => return x.clone(),
        };
        w.op("sdy.propagation_barrier", &[x], Detail::Flow(number), x.ty.clone())
    }
}
