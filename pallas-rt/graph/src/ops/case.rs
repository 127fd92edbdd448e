//! `case`: a call of one of several graphs, chosen at run time, as `jax.lax.switch`.
use super::prelude::*;
use super::samples::{Sample, Sampled, unary};
use crate::manual::varying_over;
use crate::mesh::Sharding;
use crate::shard::view::{CallView, Kind};
use crate::stablehlo::{Detail, HloRegion};
use crate::transform::{agrees, batched_branch, choose, inlined, vjp};
use pallas_ir::{DType, Literal, ScalarOp};
use std::collections::BTreeMap;

/// A call of the branch at the index that the first operand gives, an i32 scalar (`lax.switch`); an index out of range
/// is clamped. All branches take the other operands, and give results of equal types.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The branches, at least one.
    pub branches: Vec<Graph>,
}

impl Called for Case {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        self.branches.iter().map(|branch| (Runs::Once, branch)).collect()
    }
    fn with_graphs(&self, branches: Vec<Graph>) -> Call {
        Case { branches }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let (Some((index, rest)), Some(first)) = (args.split_first(), self.branches.first()) else {
            return Err(wrong(self, "it has no index or no branch".into()));
        };
        if **index != Type::scalar(DType::I32) {
            return Err(wrong(self, format!("the number of the branch is {index}, not i32[]")));
        }
        self.branches.iter().try_for_each(|branch| takes(self, branch, rest))?;
        match self.branches.iter().find(|branch| branch.gives() != first.gives()) {
            Some(other) => {
                Err(wrong(self, format!("one branch gives {:?}, another {:?}", first.gives(), other.gives())))
            }
            None => Ok(first.gives()),
        }
    }
}

impl Stays for Case {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for Case {
    fn attributes(&self) -> String {
        String::new()
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        self.branches.iter().enumerate().map(|(i, branch)| format!("jaxpr{i}={}", text(branch))).collect()
    }
}

impl CallRule for Case {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        any_of(self.branches.iter().map(|branch| active(branch, &on[1..])))
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let (branches, found) = forward.branches(&self.branches, &forward.on()[1..])?;
        let args = forward.operands();
        let (found, n) = (forward.outputs(&found), forward.e.results.len());
        Ok(forward.replaced(Case { branches }.into(), args, &[n], found))
    }
    /// Appends a `case` whose branches compute the cotangents. Each branch computes its forward values again, as
    /// nothing is stored.
    fn vjp(&self, mut back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let backward = |branch: &Graph| {
            let mut both = vjp(branch, &back.on[1..])?;
            // Prints were made by the forward branch already.
            both.equations.retain(|e| !e.op.is_effect());
            let results = both.results[branch.results.len()..].to_vec();
            Ok(Graph { results, ..both })
        };
        let branches = self.branches.iter().map(backward).collect::<Result<Vec<_>, Refused>>()?;
        let args = [&back.e.args[..], &back.cotangents_of_floats()].concat();
        let mut found = back.to.fitting_all(Case { branches }, &args).into_iter();
        // The index, operand 0, is an integer and has no cotangent.
        Ok(back.on.iter().enumerate().map(|(i, &on)| if on && i > 0 { found.next() } else { None }).collect())
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        if batch.has[0] {
            return of_each(self, batch);
        }
        let Batch { to, args, has, axis, .. } = batch;
        let flags = self.differs(has, axis);
        let branch = |branch: &Graph| Ok(batched_at_least(branch, &has[1..], axis, &flags)?.0);
        let branches = self.branches.iter().map(branch).collect::<Result<_, Refused>>()?;
        Ok(to.fitting_all(Case { branches }, args).into_iter().zip(flags).collect())
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let found = any_of(self.branches.iter().map(|branch| differing(branch, &has[1..], axis)));
        found.into_iter().map(|found| found || has[0]).collect()
    }
    fn guards_from(&self, has: &[bool]) -> Option<usize> {
        // If the index differs between elements, the branches clear the cotangents themselves.
        (!has[0]).then_some(0)
    }
}

/// Combines lists of bools by `or`, position by position.
fn any_of(lists: impl Iterator<Item = Vec<bool>>) -> Vec<bool> {
    let both = |a: Vec<bool>, b: Vec<bool>| a.iter().zip(&b).map(|(a, b)| a | b).collect();
    lists.reduce(both).expect("it has a branch")
}

/// Batches a `case` whose index differs between elements: runs all branches, and selects for each element the results
/// of its own.
fn of_each(case: &Case, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
    let Batch { to, args, has, axis, taken: outer } = batch;
    agrees("branches", &case.branches, axis, to.at)?;
    let last = case.branches.len() - 1;
    let compare = |to: &mut Graph, op: ScalarOp, i: usize| {
        let number = to.splat(Literal::int(DType::I32, i as i64), &[axis.size]);
        to.fitting(op, &[args[0], number])
    };
    let mut found: Option<Vec<Var>> = None;
    for (i, branch) in case.branches.iter().enumerate().rev() {
        // Indices below 0 take the first branch, those that are too large the last one.
        let mut taken = match i {
            _ if i == last && i == 0 => to.splat(Literal::int(DType::Bool, 1), &[axis.size]),
            0 => compare(to, ScalarOp::Le, 0),
            _ if i == last => compare(to, ScalarOp::Ge, i),
            _ => compare(to, ScalarOp::Eq, i),
        };
        let branch = batched_branch(branch, &has[1..], axis)?;
        let is_own = taken;
        if let Some(outer) = outer {
            taken = to.fitting(ScalarOp::BitAnd, &[taken, outer]);
        }
        let made = inlined(to, &branch, &[&args[1..], &[taken]].concat());
        found = Some(match found {
            None => made,
            Some(others) => made.into_iter().zip(others).map(|(own, other)| choose(to, is_own, own, other)).collect(),
        });
    }
    Ok(found.into_iter().flatten().map(|v| (v, true)).collect())
}

impl CallLinear for Case {
    fn linearity(&self, of: &mut Analysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        if let wrong @ Linearity::Wrong(_) = args[0] {
            return vec![wrong; e.results.len()];
        }
        let mut found = of.graph(&self.branches[0], &args[1..]);
        for branch in &self.branches[1..] {
            let other = of.graph(branch, &args[1..]);
            found = of.joined(e, &found, &other);
        }
        found
    }
}

impl CallStates for Case {
    fn typed(&self, typing: &Typing, e: &Equation, mut takes: Vec<States>) -> Result<Made, Refused> {
        let (what, at) = ("the result of a branch", e.loc);
        let typed_all = |takes: &[States]| -> Result<Vec<(Graph, Vec<States>)>, Refused> {
            self.branches.iter().map(|branch| typing.typed(branch, &takes[1..])).collect()
        };
        let branches = typed_all(&takes)?;
        let graphs: Vec<&Graph> = branches.iter().map(|(graph, _)| graph).collect();
        let varying = typing.deciding("branches", &takes[0], &graphs, at)?;
        let wider: Vec<States> = takes[1..].iter().map(|own| varying_over(own, &varying)).collect();
        let branches = if wider == takes[1..] { branches } else { typed_all(&[&takes[..1], &wider].concat())? };
        takes.splice(1.., wider);
        let mut gives: Vec<States> = branches[0].1.iter().map(|found| varying_over(found, &varying)).collect();
        for (_, found) in &branches[1..] {
            typing.carried(&mut gives, found, what, at)?;
        }
        let cast = |(graph, found): (Graph, Vec<States>)| typing.cast_results(graph, &found, &gives, what, at);
        let branches = branches.into_iter().map(cast).collect::<Result<_, _>>()?;
        Ok(Made { call: Case { branches }.into(), takes, gives })
    }
}

impl CallRegions for Case {
    fn rule(&self) -> Option<Rule> {
        None
    }
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        let (low, high) = (build.position(0, loc), build.position(self.branches.len() - 1, loc));
        let index = build.implied(ScalarOp::Clamp, &[args[0], low, high], Type::scalar(DType::I32), loc);
        let node = build.structured(Kind::Branches, CallView::of(self.clone()), &[index], gives, loc);
        for branch in &self.branches {
            build.region(node, &[], |b, _| b.graph(branch, &args[1..]).0);
        }
        build.program.nodes[node].results.clone()
    }
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let results: Vec<Sharding> = node.results.iter().map(|&v| to.wanted(v)).collect();
        let made: Vec<(Graph, Vec<Val>)> = (node.regions.iter())
            .map(|region| {
                let results = region.results.iter().copied().zip(results.iter().cloned()).collect::<Vec<_>>();
                to.region(region, &[], &results)
            })
            .collect();
        // Every branch takes the values that any of them reads.
        let mut captured: Vec<Val> = vec![];
        made.iter().flat_map(|(_, own)| own).for_each(|v| {
            if !captured.contains(v) {
                captured.push(*v);
            }
        });
        let index = to.sharded(node.operands[0], &Sharding::replicated(0));
        let args = [vec![index], to.outside(&captured)].concat();
        let takes: Vec<Type> = args[1..].iter().map(|&v| to.graph().ty(v).clone()).collect();
        let branch = |(mut graph, own): (Graph, Vec<Val>)| {
            let given = std::mem::take(&mut graph.params);
            graph.params = (captured.iter().zip(&takes))
                .map(|(v, ty)| match own.iter().position(|o| o == v) {
                    Some(i) => given[i],
                    None => graph.var(ty.clone()),
                })
                .collect();
            graph
        };
        let branches = made.into_iter().map(branch).collect();
        let made = to.graph().fitting_all(Case { branches }, &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(results) {
            to.define(v, var, sharding);
        }
    }
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>> {
        let takes = self.branches[0].params.len();
        let operands = [vec![of.of_first(0)], of.taken(1..1 + takes)].concat();
        let branches = self.branches.iter().map(|branch| of.body(branch, &[takes])).collect();
        of.called(to, Case { branches }.into(), operands, &[self.branches[0].results.len()])
    }
}

impl CallStep for Case {
    fn lower(&self, from: &Lowering<'_>) -> Lowered {
        let branch = |graph: &Graph| from.plan(graph, &vec![false; graph.params.len()]);
        let work = Work::Case { branches: self.branches.iter().map(branch).collect() };
        Lowered::of(from.e, work)
    }
}

impl CallSized for Case {
    fn agree(&self, other: &Call, _: bool) -> Result<(), String> {
        if Case::of(other).is_some() { Ok(()) } else { Err("`case` differs".into()) }
    }
    fn numbers(&self) -> Vec<usize> {
        vec![]
    }
    fn masked(&self, scope: &mut Scope<'_>, parts: Vec<Part>, _: &[Option<usize>], args: &[Var]) -> Vec<Var> {
        let mut all: BTreeMap<usize, Type> = BTreeMap::new();
        for (graph, scalars) in &parts {
            all.extend(scalars.iter().map(|(number, v)| (*number, graph.ty(*v).clone())));
        }
        let branch = |(mut graph, scalars): Part| {
            let own = |graph: &mut Graph, (number, ty): (&usize, &Type)| match scalars.get(number) {
                Some(v) => *v,
                None => graph.var(ty.clone()),
            };
            let params: Vec<Var> = all.iter().map(|entry| own(&mut graph, entry)).collect();
            graph.params.splice(0..0, params);
            graph
        };
        let branches = parts.into_iter().map(branch).collect();
        let given: Vec<Var> = all.keys().map(|&number| scope.scalar(number)).collect();
        let operands = [&args[..1], &given, &args[1..]].concat();
        scope.to.fitting_all(Case { branches }, &operands)
    }
}

impl Saved for Case {
    fn print(&self, p: &mut file::Printer) -> String {
        file::joined(self.branches.iter().map(|branch| p.graph(branch)).collect::<Vec<_>>())
    }
    fn parse(p: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<Case, String> {
        let numbers: Vec<usize> = words.rest("a graph")?;
        let branches = numbers.into_iter().map(|n| p.graph_of(n)).collect::<Result<_, _>>()?;
        Ok(Case { branches })
    }
}

impl CallHlo for Case {
    /// Writes a StableHLO `case` with the index clamped, because StableHLO takes the last branch for a negative index.
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (low, high) = (p.w.position(0), p.w.position(self.branches.len() - 1));
        let index = p.w.op("clamp", &[&low, &args[0], &high], Detail::None, Type::scalar(DType::I32));
        let branches: Vec<HloRegion> =
            self.branches.iter().map(|graph| p.region(&[], |p, _| p.graph(graph, &args[1..]))).collect();
        p.w.operation("case", &[&index], branches, Detail::None, gives)
    }
}

impl Sampled for Case {
    fn samples(dtype: DType) -> Vec<Sample> {
        let ty = Type::new(dtype, [3]);
        let branches = [ScalarOp::Sin, ScalarOp::Neg, ScalarOp::Exp].map(|op| unary(op, &ty)).into();
        vec![Sample::of(Case { branches }, &[Type::scalar(DType::I32), ty])]
    }
}
