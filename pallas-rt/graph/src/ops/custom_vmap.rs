//! `custom_vmap`: a function whose batched form the user states, as `jax.custom_batching.custom_vmap`.
use super::prelude::*;
use super::samples::{Sample, Sampled, product};
use crate::transform::{batched, jvp, stretched, wider};
use pallas_ir::{At, DType};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of a graph whose batched form is made by a stated rule. Reverse mode differentiates the graph itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomVmap {
    /// The function for one example.
    pub graph: Graph,
    /// The rule that makes the function for a batch.
    pub rule: BatchRule,
}

/// A Rust function that is given a batch and returns the graph for it, with a bool for each result: true if it has the
/// batch axis in front. The graph takes the operands of the call, of which batched ones have an additional first axis.
/// Two rules are equal only if one is a clone of the other.
#[derive(Clone)]
pub struct BatchRule(Arc<dyn Rule>);

/// The batch for which a [`BatchRule`] makes a graph.
#[derive(Clone, Debug)]
pub struct Batched {
    /// Number of examples.
    pub size: usize,
    /// For each operand, true if it has the axis of examples in front.
    pub has: Vec<bool>,
    /// The types of the operands, including that axis.
    pub takes: Vec<Type>,
}

/// The result of a [`BatchRule`]: the graph that computes the results for the whole batch, and for each result true if
/// it has the axis of examples in front.
pub type BatchRuleResult = Result<(Graph, Vec<bool>), Refused>;

/// The functions that a [`BatchRule`] can hold.
trait Rule: Fn(&Batched) -> BatchRuleResult + Send + Sync {}

impl<F: Fn(&Batched) -> BatchRuleResult + Send + Sync> Rule for F {}

impl BatchRule {
    /// Makes a rule from a Rust function.
    pub fn new(rule: impl Fn(&Batched) -> BatchRuleResult + Send + Sync + 'static) -> BatchRule {
        BatchRule(Arc::new(rule))
    }

    /// Returns the rule for the call with tangents of the parameters that are `on`: it differentiates the graphs that
    /// this rule makes.
    fn with_tangents(&self, on: &[bool]) -> BatchRule {
        let (rule, on) = (self.clone(), on.to_vec());
        BatchRule::new(move |batch| rule.tangents(batch, &on))
    }

    /// Returns the graph of this rule for a batch, with tangents of the parameters that are `on`, which follow the
    /// operands in `batch`.
    fn tangents(&self, batch: &Batched, on: &[bool]) -> BatchRuleResult {
        let n = on.len();
        let mut graph = Graph::default();
        let params: Vec<Var> = batch.takes.iter().map(|ty| graph.param(ty.clone())).collect();
        // An operand and its tangent get the batch axis if either of them has it.
        let of_tangents = on.iter().enumerate().filter(|(_, on)| **on).map(|(i, _)| i);
        let mut pairs: Vec<(usize, usize)> = of_tangents.zip(n..).collect();
        let has = |i: usize| batch.has[i] || pairs.iter().any(|&(own, tangent)| own == i && batch.has[tangent]);
        let all: Vec<bool> = (0..n).map(has).collect();
        let fitting = |graph: &mut Graph, i: usize, has: bool| match has && !batch.has[i] {
            true => stretched(graph, params[i], batch.size),
            false => params[i],
        };
        let mut args: Vec<Var> = (0..n).map(|i| fitting(&mut graph, i, all[i])).collect();
        args.extend(pairs.drain(..).map(|(own, tangent)| fitting(&mut graph, tangent, all[own])));
        let takes = args[..n].iter().map(|&v| graph.ty(v).clone()).collect();
        let (primal, flags) = (self.0)(&Batched { size: batch.size, has: all, takes })?;
        let is_float: Vec<bool> = primal.gives().iter().map(|ty| ty.dtype.is_float()).collect();
        graph.results = graph.inline(&jvp(&primal, on)?, &args);
        let tangents = flags.iter().zip(is_float).filter(|(_, is_float)| *is_float).map(|(has, _)| *has);
        let flags = flags.iter().copied().chain(tangents.collect::<Vec<_>>()).collect();
        Ok((graph, flags))
    }
}

impl PartialEq for BatchRule {
    fn eq(&self, other: &BatchRule) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for BatchRule {}
impl Hash for BatchRule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}
impl fmt::Debug for BatchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rule for batches")
    }
}

impl Called for CustomVmap {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Once, &self.graph)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        CustomVmap { graph: graphs.remove(0), rule: self.rule.clone() }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        takes(self, &self.graph, args)?;
        Ok(self.graph.gives())
    }
}

impl Expands for CustomVmap {
    fn expands(&self, at: Stage) -> Option<&Graph> {
        matches!(at, Stage::Reverse | Stage::Plan).then_some(&self.graph)
    }
}

impl CallText for CustomVmap {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("call={}", text(&self.graph)), format!("rule={:?}", self.rule)]
    }
}

impl CallRule for CustomVmap {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        active(&self.graph, on)
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let on = forward.on();
        let graph = jvp(&self.graph, &on)?;
        let args = forward.operands();
        let n = forward.e.results.len();
        // Every result of floats gets a tangent, even if it is zero.
        let floats: Vec<bool> = self.graph.gives().iter().map(|ty| ty.dtype.is_float()).collect();
        let found = forward.outputs(&floats);
        let call = CustomVmap { graph, rule: self.rule.with_tangents(&on) };
        Ok(forward.replaced(call.into(), args, &[n], found))
    }
    fn vjp(&self, _: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        unreachable!("it is expanded before")
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let takes: Vec<Type> = args.iter().map(|&v| to.ty(v).clone()).collect();
        let at = to.at;
        let asked = Batched { size: axis.size, has: has.to_vec(), takes };
        let (graph, flags) = (self.rule.0)(&asked)?;
        let own = self.graph.gives();
        let gives = |ty: &Type, has: bool| if has { wider(ty, axis.size) } else { ty.clone() };
        let wanted: Vec<Type> = own.iter().zip(&flags).map(|(ty, &has)| gives(ty, has)).collect();
        if flags.len() != own.len() || graph.gives() != wanted {
            let message = format!("the rule gives {:?} in place of {wanted:?}", graph.gives());
            let help =
                "the results of the function, those for which `out_batched` is true with an axis of examples in front";
            return Err(Refused { at, diag: Diag::new("custom-vmap", At::Op, message, help) });
        }
        let made = to.inline(&graph, args);
        // A rule may return a result without the axis if it is the same for all examples.
        Ok(made.into_iter().zip(flags).collect())
    }
    fn differs(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.graph.results.len()]
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallStates for CustomVmap {
    fn typed(&self, typing: &Typing, _: &Equation, own: Vec<States>) -> Result<Made, Refused> {
        let (graph, gives) = typing.typed(&self.graph, &own)?;
        Ok(Made { call: CustomVmap { graph, rule: self.rule.clone() }.into(), takes: own, gives })
    }
}

impl Sampled for CustomVmap {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        let graph = product(&ty);
        let own = graph.clone();
        let rule = BatchRule::new(move |batch| batched(&own, &batch.has, batch.size));
        vec![Sample::of(CustomVmap { graph, rule }, &[ty.clone(), ty])]
    }
}
