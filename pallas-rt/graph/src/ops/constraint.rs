//! `sharding_constraint`: demands a sharding of a value.
use super::prelude::identity::*;
use crate::mesh::DimSharding;

/// The operand, which is demanded to have this sharding (`jax.lax.with_sharding_constraint`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Constraint(pub Placed);

impl IdentityData for Constraint {
    fn attributes(&self) -> String {
        let Placed { mesh, sharding } = &self.0;
        format!("mesh{mesh} sharding<{}>", sharding.text(mesh))
    }
    fn jaxpr(&self) -> (&'static str, Option<String>) {
        ("sharding_constraint", Some(format!("sharding={}", self.0.sharding.text(&self.0.mesh))))
    }
    fn statement(&self) -> Statement<'_> {
        Statement::Placed(&self.0)
    }
    fn changed(&self, by: Change) -> Identity {
        let mut placed = self.0.clone();
        match by {
            Change::GroupsFrom(_) => {}
            Change::Placed(other) => placed = other,
            Change::Batched => placed.sharding.dims.insert(0, DimSharding { open: true, ..DimSharding::default() }),
        }
        Constraint(placed).into()
    }
}

impl IdentityStates for Constraint {
    /// Admits the constraint in a body only if it shards blocks along automatic axes alone.
    fn typed(&self, typing: &mut Typing, _: &mut Graph, e: &mut Equation) -> Option<Result<(), Diag>> {
        typing.is_automatic(&self.0).then(|| {
            let states = typing.states(e.args[0]);
            typing.define(e.result(), states);
            Ok(())
        })
    }
}

impl IdentityRegions for Constraint {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Constraint(self.0.sharding.normal(&self.0.mesh)))
    }
}

impl IdentityHlo for Constraint {
    fn stablehlo(&self, w: &mut Writer, x: &Value) -> Value {
        if !w.with_shardings {
            return x.clone();
        }
        let detail = Detail::Sharding(self.0.sharding.text(&self.0.mesh));
        w.op("sdy.sharding_constraint", &[x], detail, x.ty.clone())
    }
}
