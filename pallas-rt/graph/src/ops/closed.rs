//! A call of a plain function: the same as its equations in place of the call.
use super::prelude::*;
use super::samples::{Sample, Sampled, product};
use pallas_ir::DType;

/// A call of an ordinary function: it means the same as the graph's equations in place of the call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Closed(pub Graph);

impl Called for Closed {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Once, &self.0)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        Closed(graphs.remove(0)).into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        takes(self, &self.0, args)?;
        Ok(self.0.gives())
    }
}

impl Expands for Closed {
    fn expands(&self, _: Stage) -> Option<&Graph> {
        Some(&self.0)
    }
}

impl CallText for Closed {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.0))]
    }
}

impl CallRule for Closed {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        active(&self.0, on)
    }
    fn jvp(&self, _: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        unreachable!("it is expanded before")
    }
    fn vjp(&self, _: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        unreachable!("it is expanded before")
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let (graph, flags) = batched_at_least(&self.0, has, axis, &self.differs(has, axis))?;
        Ok(to.fitting_all(Closed(graph), args).into_iter().zip(flags).collect())
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        differing(&self.0, has, axis)
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallStates for Closed {
    fn typed(&self, typing: &Typing, _: &Equation, own: Vec<States>) -> Result<Made, Refused> {
        let (graph, gives) = typing.typed(&self.0, &own)?;
        Ok(Made { call: Closed(graph).into(), takes: own, gives })
    }
}

impl Sampled for Closed {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        vec![Sample::of(Closed(product(&ty)), &[ty.clone(), ty])]
    }
}
