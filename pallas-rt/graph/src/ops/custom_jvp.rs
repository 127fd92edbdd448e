//! `custom_jvp`: a function whose tangents the user states, as in JAX.
use super::Closed;
use super::prelude::*;
use super::samples::{Sample, Sampled, product};
use crate::dead::without_dead;
use crate::transform::{is_float, jvp, no_tangents, or_zeros, vjp_of};
use pallas_ir::DType;

/// A call of a function whose tangents are stated by another graph, as in `jax.custom_jvp`.
///
/// ```text
/// operands     captured.., arguments..
/// primal       (captured.., arguments..) -> (results..)
/// rule         (captured.., arguments.., a tangent of each argument of floats..)
///              -> (results.., a tangent of each result of floats..)
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomJvp {
    /// Number of operands, the first ones, that the function captures: they are no arguments, and have no stated
    /// tangent.
    pub captured: usize,
    /// The function itself.
    pub primal: Graph,
    /// The function together with its tangents, in which it is linear.
    pub rule: Graph,
}

impl Called for CustomJvp {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Once, &self.primal), (Runs::Never, &self.rule)]
    }
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call {
        let [primal, rule] = graphs.try_into().expect("two graphs");
        CustomJvp { primal, rule, ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        takes(self, &self.primal, args)?;
        let arguments = args[self.captured..].iter().copied().filter(|ty| is_float(ty));
        takes(self, &self.rule, &args.iter().copied().chain(arguments).collect::<Vec<_>>())?;
        let (gives, found) = (self.primal.gives(), self.rule.gives());
        if !found.iter().eq(gives.iter().chain(gives.iter().filter(|ty| is_float(ty)))) {
            return Err(wrong(self, format!("gives {gives:?}, and with tangents {found:?}")));
        }
        Ok(gives)
    }
}

impl Expands for CustomJvp {
    fn expands(&self, at: Stage) -> Option<&Graph> {
        (at == Stage::Plan).then_some(&self.primal)
    }
}

impl CallText for CustomJvp {
    fn attributes(&self) -> String {
        format!(" captured({})", self.captured)
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("jaxpr0={}", text(&self.primal)), format!("jaxpr1={}", text(&self.rule))]
    }
}

impl CallRule for CustomJvp {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        vec![on.contains(&true); self.primal.results.len()]
    }
    /// Appends the rule after the call. The rule computes the results too; the pass `common` lets both share these
    /// equations.
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let e = forward.e;
        no_tangents(&forward.on()[..self.captured], e)?;
        let args = [&e.args[..], &forward.tangents_of_floats(self.captured)].concat();
        let floats: Vec<bool> = e.results.iter().map(|&r| is_float(forward.to.ty(r))).collect();
        let made = forward.inlined(&self.rule, &args).split_off(e.results.len());
        let mut tangents = made.into_iter();
        Ok(floats.into_iter().map(|is| if is { tangents.next() } else { None }).collect())
    }
    /// Appends the transpose of the rule, which is linear in the tangents of the arguments.
    fn vjp(&self, mut back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        no_tangents(&back.on[..self.captured], back.e)?;
        let Backward { e, on, .. } = back;
        let n = e.results.len();
        let wrt: Vec<bool> = (0..self.rule.params.len()).map(|i| i >= e.args.len()).collect();
        let of: Vec<bool> = (0..self.rule.results.len()).map(|i| i >= n).collect();
        let mut backward = vjp_of(&self.rule, &wrt, &of)?;
        backward.results.drain(..self.rule.results.len());
        let backward = without_dead(backward);
        let mut args = e.args.clone();
        let mut floats = vec![];
        for (i, &arg) in e.args.iter().enumerate().skip(self.captured) {
            let ty = back.to.ty(arg).clone();
            if is_float(&ty) {
                floats.push(i);
                args.push(or_zeros(back.to, None, &ty));
            }
        }
        args.extend(back.cotangents_of_floats());
        let made = back.to.fitting_all(Closed(backward), &args);
        let mut found = vec![None; on.len()];
        floats.into_iter().zip(made).filter(|(i, _)| on[*i]).for_each(|(i, v)| found[i] = Some(v));
        Ok(found)
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let (arguments, all) = (&self.primal.params[self.captured..], vec![true; self.primal.results.len()]);
        let is_float = |v: &Var| self.primal.ty(*v).dtype.is_float();
        let tangents = arguments.iter().zip(&has[self.captured..]).filter(|(v, _)| is_float(v)).map(|(_, has)| *has);
        let takes: Vec<bool> = has.iter().copied().chain(tangents).collect();
        let (primal, _) = batched_at_least(&self.primal, has, axis, &all)?;
        let (rule, _) = batched_at_least(&self.rule, &takes, axis, &vec![true; self.rule.results.len()])?;
        let made = to.fitting_all(CustomJvp { primal, rule, ..*self }, args);
        Ok(made.into_iter().map(|v| (v, true)).collect())
    }
    fn differs(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.primal.results.len()]
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(self.captured)
    }
}

impl CallStates for CustomJvp {
    fn typed(&self, typing: &Typing, e: &Equation, takes: Vec<States>) -> Result<Made, Refused> {
        let floats = |graph: &Graph, vars: &[Var], states: &[States]| -> Vec<States> {
            let all = vars.iter().zip(states).filter(|(v, _)| graph.ty(**v).dtype.is_float());
            all.map(|(_, states)| states.clone()).collect()
        };
        let (primal, mut gives) = typing.typed(&self.primal, &takes)?;
        let of_primal = gives.clone();
        let arguments = floats(&self.primal, &self.primal.params[self.captured..], &takes[self.captured..]);
        let (rule, found) = typing.typed(&self.rule, &[&takes[..], &arguments].concat())?;
        let n = gives.len();
        typing.carried(&mut gives, &found[..n], "custom_jvp", e.loc)?;
        let primal = typing.cast_results(primal, &of_primal, &gives, "custom_jvp", e.loc)?;
        let all = [gives.clone(), floats(&self.primal, &self.primal.results, &gives)].concat();
        let rule = typing.cast_results(rule, &found, &all, "the tangent that `custom_jvp` states", e.loc)?;
        Ok(Made { call: CustomJvp { primal, rule, ..*self }.into(), takes, gives })
    }
}

impl Sampled for CustomJvp {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        let primal = product(&ty);
        let rule = jvp(&primal, &[true, true]).expect("a formula");
        vec![Sample::of(CustomJvp { captured: 0, primal, rule }, &[ty.clone(), ty])]
    }
}
