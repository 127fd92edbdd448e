//! `checkpoint_name`: gives a value a name, by which checkpoint policies select it.
use super::prelude::*;
use super::samples::{Sample, Sampled};
use pallas_ir::DType;

/// The identity of one value with a name, by which checkpoint policies select the value (`checkpoint_name`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The graph that the call stands for: one parameter, which is its result.
    pub graph: Graph,
}

impl Named {
    /// Makes the call that names a value of type `ty`.
    pub fn new(name: impl Into<String>, ty: Type) -> Named {
        let mut graph = Graph::default();
        graph.results = vec![graph.param(ty)];
        Named { name: name.into(), graph }
    }
}

impl Called for Named {
    /// Returns none, since the identity is not written as a called graph.
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        takes(self, &self.graph, args)?;
        Ok(self.graph.gives())
    }
}

impl Expands for Named {
    fn expands(&self, at: Stage) -> Option<&Graph> {
        (at == Stage::Plan).then_some(&self.graph)
    }
}

impl CallText for Named {
    fn attributes(&self) -> String {
        format!(" {:?}", self.name)
    }
    fn jaxpr(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("name={}", self.name)]
    }
}

impl CallRule for Named {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        on.to_vec()
    }
    fn jvp(&self, forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let given = forward.given.to_vec();
        forward.kept();
        Ok(given)
    }
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        Ok(back.cotangents.to_vec())
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, .. } = batch;
        let ty = to.ty(args[0]).clone();
        let made = to.fitting_all(Named::new(&*self.name, ty), args);
        Ok(made.into_iter().zip(has.iter().copied()).collect())
    }
    fn differs(&self, has: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        has.to_vec()
    }
    fn guards_from(&self, has: &[bool]) -> Option<usize> {
        Some(has.len())
    }
}

impl CallStates for Named {
    fn typed(&self, _: &Typing, _: &Equation, own: Vec<States>) -> Result<Made, Refused> {
        Ok(Made { call: self.clone().into(), takes: own.clone(), gives: own })
    }
}

impl Sampled for Named {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        vec![Sample::of(Named::new("kept", ty.clone()), &[ty])]
    }
}
