//! `checkpoint`: trades memory for time in reverse mode by computing values of a graph again, as `jax.checkpoint`.
use super::prelude::*;
use super::samples::{Sample, Sampled, product};
use super::{Closed, Named};
use crate::dead::without_dead;
use crate::graph::Op;
use crate::identity::OptimizationBarrier;
use crate::inline::expanded;
use crate::transform::vjp;
use pallas_ir::{DType, StructuralOp};

/// A call of a graph for which reverse mode stores only the values that a policy selects, and computes the others again
/// (`jax.checkpoint`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Checkpoint {
    /// The function to call.
    pub graph: Graph,
    /// Choice of the graph's values that are stored.
    pub policy: Policy,
}

/// A rule that selects the values inside of a [`Checkpoint`] that are stored for the derivative, as in
/// `jax.checkpoint_policies`. Operands of the checkpoint are always stored.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Policy {
    /// `nothing_saveable`: no value.
    #[default]
    Nothing,
    /// `everything_saveable`: every value that the derivative needs.
    Everything,
    /// `dots_saveable`: results of matrix products and other contractions.
    Dots,
    /// `dots_with_no_batch_dims_saveable`: results of contractions without a batch axis, which both operands and the
    /// result share.
    DotsWithoutBatch,
    /// `save_only_these_names`: values that `checkpoint_name` gave one of these names.
    OnlyNames(Vec<String>),
    /// `save_any_names_but_these`: values that `checkpoint_name` gave any other name.
    NamesExcept(Vec<String>),
    /// `save_anything_except_these_names`: all values, named or not, but those with these names.
    AnythingExcept(Vec<String>),
}

impl Policy {
    /// Returns true if the results of an operation are stored.
    pub fn saves(&self, op: &Op) -> bool {
        let name = Named::of_op(op).map(|named| &named.name);
        let dot = match op {
            Op::Structural(StructuralOp::Dot(dot)) => Some(dot),
            _ => None,
        };
        match self {
            Policy::Nothing => false,
            Policy::Everything => true,
            Policy::Dots => dot.is_some(),
            Policy::DotsWithoutBatch => dot.is_some_and(|dot| dot.batch.is_empty()),
            Policy::OnlyNames(names) => name.is_some_and(|name| names.contains(name)),
            Policy::NamesExcept(names) => name.is_some_and(|name| !names.contains(name)),
            Policy::AnythingExcept(names) => name.is_none_or(|name| !names.contains(name)),
        }
    }
}

impl Checkpoint {
    /// Returns a checkpoint of another graph with the same policy.
    fn with(&self, graph: Graph) -> Checkpoint {
        Checkpoint { graph, policy: self.policy.clone() }
    }
}

impl Called for Checkpoint {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Once, &self.graph)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        self.with(graphs.remove(0)).into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        takes(self, &self.graph, args)?;
        Ok(self.graph.gives())
    }
}

impl Expands for Checkpoint {
    /// Expands the graph in forward mode and if no derivatives are taken, since nothing is computed again there.
    fn expands(&self, at: Stage) -> Option<&Graph> {
        matches!(at, Stage::Forward | Stage::Plan).then_some(&self.graph)
    }
}

impl CallText for Checkpoint {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.graph))]
    }
}

impl CallRule for Checkpoint {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        active(&self.graph, on)
    }
    fn jvp(&self, _: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        unreachable!("it is expanded before")
    }
    /// Appends a derivative that takes the values that the policy stores, which the forward call gives as additional
    /// results, and computes the others again from the operands. Barriers around the operands keep these equations from
    /// being merged with the forward ones.
    fn vjp(&self, mut back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let graph = expanded(&self.graph, &|call| call.expands(Stage::Reverse));
        let both = vjp(&graph, back.on)?;
        let mut backward = Graph { results: both.results[graph.results.len()..].to_vec(), ..both };

        let takes = backward.params.len();
        let stored = self.stored(&graph);
        let mut given: Vec<Var> = (0..backward.types.len() as u32).map(Var).collect();
        for &v in &stored {
            given[v.index()] = backward.param(graph.ty(v).clone());
        }
        let rename = |v: &mut Var| {
            if let Some(&name) = given.get(v.index()) {
                *v = name;
            }
        };
        backward.equations.iter_mut().flat_map(|e| &mut e.args).for_each(rename);
        backward.results.iter_mut().for_each(rename);
        let mut backward = without_dead(backward);
        // Stores only those values that the derivative reads.
        let mut is_read = vec![false; backward.types.len()];
        let read = backward.equations.iter().flat_map(|e| &e.args).chain(&backward.results);
        read.for_each(|v| is_read[v.index()] = true);
        let params = backward.params.split_off(takes);
        let kept: Vec<(Var, Var)> = stored.into_iter().zip(params).filter(|(_, p)| is_read[p.index()]).collect();
        backward.params.extend(kept.iter().map(|(_, p)| *p));

        let mut args: Vec<Var> = back.e.args.iter().map(|&arg| back.to.fitting(OptimizationBarrier, &[arg])).collect();
        args.extend(back.cotangents_of_floats());
        if !kept.is_empty() {
            let types: Vec<Type> = kept.iter().map(|(v, _)| graph.ty(*v).clone()).collect();
            let mut forward = graph;
            forward.results.extend(kept.iter().map(|(v, _)| *v));
            args.extend(back.gives_more(self.with(forward), types));
        }
        let mut made = back.to.fitting_all(Closed(backward), &args).into_iter();
        Ok(back.on.iter().map(|&on| if on { made.next() } else { None }).collect())
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let (graph, flags) = batched_at_least(&self.graph, has, axis, &self.differs(has, axis))?;
        Ok(to.fitting_all(self.with(graph), args).into_iter().zip(flags).collect())
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        differing(&self.graph, has, axis)
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallStates for Checkpoint {
    fn typed(&self, typing: &Typing, _: &Equation, own: Vec<States>) -> Result<Made, Refused> {
        let (graph, gives) = typing.typed(&self.graph, &own)?;
        Ok(Made { call: self.with(graph).into(), takes: own, gives })
    }
}

impl Checkpoint {
    /// Returns the values that the policy stores. Values that depend on no operand are never stored, but computed
    /// again.
    fn stored(&self, graph: &Graph) -> Vec<Var> {
        let mut depends = vec![false; graph.types.len()];
        graph.params.iter().for_each(|p| depends[p.index()] = true);
        let mut all = vec![];
        for e in &graph.equations {
            if e.args.iter().any(|a| depends[a.index()]) {
                e.results.iter().for_each(|r| depends[r.index()] = true);
                if self.policy.saves(&e.op) {
                    all.extend(&e.results);
                }
            }
        }
        all
    }
}

impl Sampled for Checkpoint {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        let of = |policy| Sample::of(Checkpoint { graph: product(&ty), policy }, &[ty.clone(), ty.clone()]);
        [Policy::Nothing, Policy::Everything, Policy::Dots].map(of).into()
    }
}
