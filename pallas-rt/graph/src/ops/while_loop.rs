//! `while_loop`: a loop that runs as long as a condition holds, as `jax.lax.while_loop`.
mod batch;

use super::prelude::*;
use super::samples::{Sample, Sampled};
use crate::manual::varying_over;
use crate::mesh::Sharding;
use crate::shard::partition::captured_first;
use crate::shard::view::{CallView, Kind};
use crate::stablehlo::Detail;
use crate::transform::carried;
use pallas_ir::{At, DType, ScalarOp};

/// A loop that calls `body` on the carried values as long as `condition` of them is true (`lax.while_loop`).
///
/// ```text
/// operands     captured by the condition.., captured by the body.., carried..
/// condition    (captured by the condition.., carried..) -> bool[]
/// body         (captured by the body.., carried..) -> (carried..)
/// results      carried..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// The condition; if it gives true, one more step runs.
    pub condition: Graph,
    /// The graph of one step.
    pub body: Graph,
    /// Number of operands that the condition captures: they are the same in each step.
    pub condition_captured: usize,
    /// Number of operands that the body captures: they are the same in each step.
    pub body_captured: usize,
}

impl While {
    /// Returns the number of operands before the carried ones.
    fn fixed(&self) -> usize {
        self.condition_captured + self.body_captured
    }
}

impl Called for While {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Unknown, &self.condition), (Runs::Unknown, &self.body)]
    }
    fn with_graphs(&self, graphs: Vec<Graph>) -> Call {
        let [condition, body] = graphs.try_into().expect("two graphs");
        While { condition, body, ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let fixed = self.fixed();
        if args.len() < fixed {
            return Err(wrong(self, format!("{} operands for {fixed} captured values", args.len())));
        }
        let carried = &args[fixed..];
        takes(self, &self.condition, &[&args[..self.condition_captured], carried].concat())?;
        takes(self, &self.body, &args[self.condition_captured..])?;
        if self.condition.gives() != [Type::scalar(DType::Bool)] {
            return Err(wrong(self, format!("the condition gives {:?}, not bool[]", self.condition.gives())));
        }
        let gives = self.body.gives();
        if !gives.iter().eq(carried.iter().copied()) {
            return Err(wrong(self, format!("carries {carried:?}, the body gives {gives:?}")));
        }
        Ok(gives)
    }
}

impl Stays for While {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for While {
    fn attributes(&self) -> String {
        format!(" captured({}, {})", self.condition_captured, self.body_captured)
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("body_jaxpr={}", text(&self.body)),
            format!("body_nconsts={}", self.body_captured),
            format!("cond_jaxpr={}", text(&self.condition)),
            format!("cond_nconsts={}", self.condition_captured),
        ]
    }
}

impl CallRule for While {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        let on = &on[self.condition_captured..];
        carried(&self.body, on, self.body_captured, self.body.results.len())[self.body_captured..].to_vec()
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let (first, fixed, n) = (self.condition_captured, self.body_captured, forward.e.results.len());
        let on = carried(&self.body, &forward.on()[first..], fixed, n);
        let (body, found) = forward.loop_body(&self.body, &on, fixed, &[fixed, fixed + n], &[n])?;
        let mut condition = self.condition.clone();
        for (&p, _) in self.condition.params[first..].iter().zip(&on[fixed..]).filter(|(_, on)| **on) {
            condition.param(self.condition.ty(p).clone());
        }
        // Values that the condition captures need no tangents.
        let all = [vec![false; first], on.clone()].concat();
        let args = forward.grouped_operands(&all, &[first + fixed, first + fixed + n]);
        let body_captured = fixed + on[..fixed].iter().filter(|on| **on).count();
        let call = While { condition, body, condition_captured: first, body_captured };
        let found = forward.outputs(&found);
        Ok(forward.replaced(call.into(), args, &[n], found))
    }
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let message = "reverse mode through a `while_loop`, whose number of steps is not known".to_string();
        let help = "use `scan` or `fori_loop` with a fixed number of steps, and keep the old value by `select` in \
                    steps that come after the end";
        Err(Refused { at: back.e.loc, diag: Diag::new("while", At::Op, message, help) })
    }
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        batch::batched(self, batch)
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let carried = batch::carried(self, has, axis);
        if batch::varies(self, has, &carried, axis) { vec![true; carried.len()] } else { carried }
    }
    /// Leaves operands as they are, since reverse mode is refused.
    fn guards_from(&self, has: &[bool]) -> Option<usize> {
        Some(has.len())
    }
}

impl CallLinear for While {
    fn linearity(&self, of: &mut Analysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        let (before, own) = args.split_at(self.condition_captured);
        let found = of.turns(e, own, self.body_captured..own.len(), |of, args| of.graph(&self.body, args));
        match of.graph(&self.condition, &[before, &found].concat())[0] {
            Linearity::Zero | Linearity::Constant => found,
            wrong @ (Linearity::Wrong(_) | Linearity::Linear) => vec![wrong; found.len()],
        }
    }
}

impl CallStates for While {
    fn typed(&self, typing: &Typing, e: &Equation, mut takes: Vec<States>) -> Result<Made, Refused> {
        let (first, fixed, at) = (self.condition_captured, self.fixed(), e.loc);
        loop {
            let of_condition = [&takes[..first], &takes[fixed..]].concat();
            let (condition, decides) = typing.typed(&self.condition, &of_condition)?;
            let (body, found) = typing.typed(&self.body, &takes[first..])?;
            let varying = typing.deciding("a loop", &decides[0], &[&condition, &body], at)?;
            let after: Vec<States> = found.iter().map(|found| varying_over(found, &varying)).collect();
            if typing.carried(&mut takes[fixed..], &after, "while_loop", at)? {
                continue;
            }
            let gives = takes[fixed..].to_vec();
            let body = typing.cast_results(body, &found, &gives, "while_loop", at)?;
            return Ok(Made { call: While { condition, body, ..*self }.into(), takes, gives });
        }
    }
}

impl CallRegions for While {
    fn rule(&self) -> Option<Rule> {
        None
    }
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        let (captured, carried) = args.split_at(self.fixed());
        let (of_condition, of_body) = captured.split_at(self.condition_captured);
        let node = build.structured(Kind::Loop, CallView::of(self.clone()), carried, gives, loc);
        build.region(node, gives, |b, x| b.graph(&self.condition, &[of_condition, x].concat()).0);
        build.region(node, gives, |b, x| b.graph(&self.body, &[of_body, x].concat()).0);
        build.program.nodes[node].results.clone()
    }
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let carried: Vec<Sharding> = node.results.iter().map(|&v| to.wanted(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let inits: Vec<Var> = with(&node.operands).iter().map(|(v, s)| to.sharded(*v, s)).collect();
        let [first, second] = [&node.regions[0], &node.regions[1]];
        let holds = vec![(first.results[0], Sharding::replicated(0))];
        let (condition, of_condition) = to.region(first, &with(&first.params), &holds);
        let (body, of_body) = to.region(second, &with(&second.params), &with(&second.results));
        let call = While {
            condition: captured_first(condition, of_condition.len()),
            body: captured_first(body, of_body.len()),
            condition_captured: of_condition.len(),
            body_captured: of_body.len(),
        };
        let args = [to.outside(&of_condition), to.outside(&of_body), inits].concat();
        let made = to.graph().fitting_all(call, &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(carried) {
            to.define(v, var, sharding);
        }
    }
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>> {
        let (first, fixed, carried) = (self.condition_captured, self.fixed(), self.body.results.len());
        let kinds = [0..first, first..fixed, fixed..fixed + carried];
        let mut condition = of.body(&self.condition, &[first, carried]);
        // The condition is the same on all devices, so one result is enough.
        condition.results.truncate(1);
        let own = While {
            condition,
            body: of.body(&self.body, &[self.body_captured, carried]),
            condition_captured: of.all(first),
            body_captured: of.all(self.body_captured),
        };
        let operands = kinds.into_iter().flat_map(|kind| of.taken(kind)).collect();
        of.called(to, own.into(), operands, &[carried])
    }
}

impl CallStep for While {
    fn lower(&self, from: &Lowering<'_>) -> Lowered {
        let e = from.e;
        let (inputs, carried) = e.args.split_at(self.fixed());
        let none = vec![false; self.condition.params.len()];
        let is_donated: Vec<bool> = (0..self.body.params.len()).map(|i| i >= self.body_captured).collect();
        let work = Work::While {
            condition: Box::new(from.plan(&self.condition, &none)),
            captured: self.condition_captured,
            body: Box::new(from.plan(&self.body, &is_donated)),
            inputs: self.body_captured,
        };
        let in_place = carried.iter().copied().map(Some).collect();
        Lowered { work, inputs: inputs.to_vec(), outputs: e.results.clone(), in_place }
    }
}

impl CallSized for While {
    fn agree(&self, other: &Call, _: bool) -> Result<(), String> {
        let captured = |call: &While| (call.condition_captured, call.body_captured);
        match While::of(other).is_some_and(|other| captured(self) == captured(other)) {
            true => Ok(()),
            false => Err("`while` differs".into()),
        }
    }
    fn numbers(&self) -> Vec<usize> {
        vec![]
    }
    fn masked(&self, scope: &mut Scope<'_>, parts: Vec<Part>, _: &[Option<usize>], args: &[Var]) -> Vec<Var> {
        let [(mut condition, before), (mut body, inside)] =
            <[_; 2]>::try_from(parts).unwrap_or_else(|_| unreachable!("a condition and a body"));
        condition.params.splice(0..0, before.values().copied());
        body.params.splice(0..0, inside.values().copied());
        let (own_before, rest) = args.split_at(self.condition_captured);
        let operands = [&scope.given(&before)[..], own_before, &scope.given(&inside), rest].concat();
        let call = While {
            condition,
            body,
            condition_captured: self.condition_captured + before.len(),
            body_captured: self.body_captured + inside.len(),
        };
        scope.to.fitting_all(call, &operands)
    }
}

impl Saved for While {
    fn print(&self, p: &mut file::Printer) -> String {
        let (condition, body) = (p.graph(&self.condition), p.graph(&self.body));
        format!(" {condition} {body} {} {}", self.condition_captured, self.body_captured)
    }
    fn parse(p: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<While, String> {
        let [condition, body] = [(); 2].map(|()| p.graph_of(words.value("a graph")?));
        let [condition_captured, body_captured] = [(); 2].map(|()| words.value("a number"));
        let (condition_captured, body_captured) = (condition_captured?, body_captured?);
        Ok(While { condition: condition?, body: body?, condition_captured, body_captured })
    }
}

impl CallHlo for While {
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (captured, carried) = args.split_at(self.fixed());
        let (of_condition, of_body) = captured.split_at(self.condition_captured);
        let condition = p.region(gives, |p, x| p.graph(&self.condition, &[of_condition, x].concat()));
        let body = p.region(gives, |p, x| p.graph(&self.body, &[of_body, x].concat()));
        let carried: Vec<&Value> = carried.iter().collect();
        p.w.operation("while", &carried, vec![condition, body], Detail::None, gives)
    }
}

impl Sampled for While {
    fn samples(dtype: DType) -> Vec<Sample> {
        // `while h < bound { h = h + exp(w) }`
        let scalar = Type::scalar(dtype);
        let mut condition = Graph::default();
        let [bound, h] = [0, 1].map(|_| condition.param(scalar.clone()));
        condition.results = vec![condition.fitting(ScalarOp::Lt, &[h, bound])];
        let mut body = Graph::default();
        let [w, h] = [0, 1].map(|_| body.param(scalar.clone()));
        let step = body.fitting(ScalarOp::Exp, &[w]);
        body.results = vec![body.fitting(ScalarOp::Add, &[h, step])];
        let call = While { condition, body, condition_captured: 1, body_captured: 1 };
        vec![Sample::of(call, &[scalar.clone(), scalar.clone(), scalar]).without_gradient()]
    }
}
