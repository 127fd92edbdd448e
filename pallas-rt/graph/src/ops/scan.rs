//! `scan`: a loop over the first axis of arrays, as `jax.lax.scan`.
mod dead;
mod plan;
mod reverse;
mod shard;
mod sized;
mod stepped;
mod unroll;

use super::prelude::*;
use super::samples::{Sample, Sampled};
use crate::stablehlo::Detail;
use crate::transform::{carried, fixpoint, swapped, widened};
use pallas_ir::{DType, Literal, ScalarOp};

/// A loop that calls `body` once for each element of the first axis of its array operands (`lax.scan`). Values that a
/// step hands to the next one are *carried*; values that each step gives are collected along a first axis, as *stacks*.
///
/// ```text
/// operands     captured.., carried.., arrays..
/// body         (captured.., carried.., an element of each array..) -> (carried.., an element of each stack..)
/// results      carried.., stacks..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scan {
    /// The graph of one step.
    pub body: Graph,
    /// Number of operands, the first ones, that are the same in each step.
    pub captured: usize,
    /// Number of operands after those that each step replaces.
    pub carried: usize,
    /// Number of steps: the extent of the first axis of arrays and stacks.
    pub length: usize,
    /// True if the steps run from the last element to the first.
    pub reverse: bool,
}

impl Scan {
    /// Returns the number of operands before the arrays: captured and carried ones.
    fn fixed(&self) -> usize {
        self.captured + self.carried
    }

    /// Returns which parameters of the body have the batch axis, if the operands for which `has` is true do. A carried
    /// value has it in all steps if it gets it in one.
    fn batched_params(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        fixpoint(has, self.captured, self.carried, |on| differing(&self.body, on, axis))
    }
}

impl Called for Scan {
    fn graphs(&self) -> Vec<(Runs, &Graph)> {
        vec![(Runs::Times(self.length), &self.body)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        Scan { body: graphs.remove(0), ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let fixed = self.fixed();
        if args.len() < fixed {
            return Err(wrong(self, format!("{} operands for {fixed} captured and carried values", args.len())));
        }
        let element = |x: &&Type| match x.shape.split_first() {
            Some((n, rest)) if *n == self.length => Ok(Type::new(x.dtype, rest)),
            _ => Err(wrong(self, format!("an array of {x} has no first axis of {}", self.length))),
        };
        let elements = args[fixed..].iter().map(element).collect::<Result<Vec<_>, _>>()?;
        let given: Vec<&Type> = args[..fixed].iter().copied().chain(&elements).collect();
        takes(self, &self.body, &given)?;
        let (gives, carried) = (self.body.gives(), &args[self.captured..fixed]);
        if !gives.iter().take(self.carried).eq(carried.iter().copied()) {
            return Err(wrong(self, format!("carries {carried:?}, the body gives {gives:?}")));
        }
        let stack = |ty: &Type| Type::new(ty.dtype, [&[self.length], &ty.shape[..]].concat());
        Ok(gives[..self.carried].iter().cloned().chain(gives[self.carried..].iter().map(stack)).collect())
    }
}

impl CallRule for Scan {
    fn active(&self, on: &[bool]) -> Vec<bool> {
        let on = carried(&self.body, on, self.captured, self.carried);
        let mut found = active(&self.body, &on);
        // A scan without steps returns the initial carried values.
        found.iter_mut().zip(&on[self.captured..]).take(self.carried).for_each(|(found, on)| *found |= on);
        found
    }
    fn jvp(&self, mut forward: Forward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        let on = carried(&self.body, &forward.on(), self.captured, self.carried);
        let fixed = self.fixed();
        let (takes, gives) = ([self.captured, fixed, on.len()], [self.carried, forward.e.results.len()]);
        let (body, found) = forward.loop_body(&self.body, &on, self.captured, &takes, &gives)?;
        let more = |flags: &[bool]| flags.iter().filter(|on| **on).count();
        let call = Scan {
            body,
            captured: self.captured + more(&on[..self.captured]),
            carried: self.carried + more(&on[self.captured..fixed]),
            ..*self
        };
        let args = forward.grouped_operands(&on, &takes);
        let found = forward.outputs(&found);
        Ok(forward.replaced(call.into(), args, &gives, found))
    }
    fn vjp(&self, back: Backward<'_>) -> Result<Vec<Option<Var>>, Refused> {
        reverse::vjp(self, back)
    }
    /// Batches the body. In arrays and stacks the axis of steps stays the first one, so the batch axis becomes the
    /// second.
    fn batched(&self, batch: Batch<'_>) -> Result<Vec<(Var, bool)>, Refused> {
        let Batch { to, args, has, axis, .. } = batch;
        let (flags, fixed) = (self.batched_params(has, axis), self.fixed());
        let mut all = vec![false; self.body.results.len()];
        all[..self.carried].copy_from_slice(&flags[self.captured..fixed]);
        let (body, gives) = batched_at_least(&self.body, &flags, axis, &all)?;
        let mut args = widened(to, args, has, &flags, axis.size);
        args.iter_mut().zip(has).skip(fixed).filter(|(_, has)| **has).for_each(|(v, _)| *v = swapped(to, *v));
        let made = to.fitting_all(Scan { body, ..*self }, &args);
        let is_stack = |i: usize| i >= self.carried;
        let made = made.into_iter().zip(gives).enumerate();
        Ok(made.map(|(i, (v, has))| (if has && is_stack(i) { swapped(to, v) } else { v }, has)).collect())
    }
    fn differs(&self, has: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let on = self.batched_params(has, axis);
        let mut found = differing(&self.body, &on, axis);
        found[..self.carried].copy_from_slice(&on[self.captured..self.fixed()]);
        found
    }
    fn guards_from(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallLinear for Scan {
    fn linearity(&self, of: &mut Analysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        of.turns(e, args, self.captured..self.fixed(), |of, args| of.graph(&self.body, args))
    }
}

impl CallStates for Scan {
    fn typed(&self, typing: &Typing, e: &Equation, mut takes: Vec<States>) -> Result<Made, Refused> {
        let carried = self.captured..self.fixed();
        loop {
            let (body, found) = typing.typed(&self.body, &takes)?;
            if typing.carried(&mut takes[carried.clone()], &found[..self.carried], "scan", e.loc)? {
                continue;
            }
            let gives = [&takes[carried.clone()], &found[self.carried..]].concat();
            let body = typing.cast_results(body, &found, &gives, "scan", e.loc)?;
            return Ok(Made { call: Scan { body, ..*self }.into(), takes, gives });
        }
    }
}

impl CallText for Scan {
    fn attributes(&self) -> String {
        let Scan { captured, carried, length, reverse, .. } = self;
        let reverse = if *reverse { " reverse" } else { "" };
        format!(" captured({captured}) carried({carried}) length({length}){reverse}")
    }
    fn jaxpr(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("jaxpr={}", text(&self.body)),
            format!("length={}", self.length),
            format!("num_carry={}", self.carried),
            format!("num_consts={}", self.captured),
            format!("reverse={}", if self.reverse { "True" } else { "False" }),
        ]
    }
}

impl Saved for Scan {
    fn print(&self, p: &mut file::Printer) -> String {
        let direction = if self.reverse { "reverse" } else { "forward" };
        format!(" {} {} {} {} {direction}", p.graph(&self.body), self.captured, self.carried, self.length)
    }
    fn parse(p: &mut file::Parser<'_>, words: &mut file::Words<'_>) -> Result<Scan, String> {
        let body = p.graph_of(words.value("a graph")?)?;
        let [captured, carried, length] = [(); 3].map(|()| words.value("a number"));
        let reverse = match words.word("a direction")? {
            "forward" => false,
            "reverse" => true,
            other => return Err(format!("expected `forward` or `reverse`, found `{other}`")),
        };
        Ok(Scan { body, captured: captured?, carried: carried?, length: length?, reverse })
    }
}

impl CallHlo for Scan {
    /// Writes a `while` over the index of the step, the carried values and the stacks, whose body reads the arrays from
    /// outside.
    fn stablehlo(&self, p: &mut Printer, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (captured, rest) = args.split_at(self.captured);
        let (carried, arrays) = rest.split_at(self.carried);
        let stacks: Vec<Value> =
            gives[self.carried..].iter().map(|ty| p.w.constant(Literal::int(ty.dtype, 0), &ty.shape)).collect();
        if self.length == 0 {
            return [carried, &stacks].concat();
        }
        let state = [&[p.w.position(0)], carried, &stacks].concat();
        let types: Vec<Type> = state.iter().map(|x| x.ty.clone()).collect();
        let condition = p.region(&types, |p, x| {
            let length = p.w.position(self.length);
            vec![p.w.compare("LT", &x[0], &length)]
        });
        let body = p.region(&types, |p, x| {
            let (carried, stacks) = x[1..].split_at(self.carried);
            let at = if self.reverse {
                let last = p.w.position(self.length - 1);
                p.w.binary("subtract", &last, &x[0])
            } else {
                x[0].clone()
            };
            let zero = p.w.position(0);
            let start = |rank: usize| [vec![&at], vec![&zero; rank]].concat();
            let mut operands = [captured, carried].concat();
            for array in arrays {
                let element = &array.ty.shape[1..];
                let row = Type::new(array.ty.dtype, [&[1], element].concat());
                let from = [vec![array], start(element.len())].concat();
                let row = p.w.op("dynamic_slice", &from, Detail::Sizes(row.shape.clone()), row);
                operands.push(p.w.reshape(&row, element));
            }
            let mut made = p.graph(&self.body, &operands);
            for (value, stack) in made[self.carried..].iter_mut().zip(stacks) {
                let rank = value.ty.shape.len();
                let row = p.w.reshape(value, &[&[1], &value.ty.shape[..]].concat());
                let to = [vec![stack, &row], start(rank)].concat();
                *value = p.w.op("dynamic_update_slice", &to, Detail::None, stack.ty.clone());
            }
            let one = p.w.position(1);
            let next = p.w.binary("add", &x[0], &one);
            made.insert(0, next);
            made
        });
        let state: Vec<&Value> = state.iter().collect();
        p.w.operation("while", &state, vec![condition, body], Detail::None, &types).split_off(1)
    }
}

impl Sampled for Scan {
    fn samples(dtype: DType) -> Vec<Sample> {
        let (scalar, rows) = (Type::scalar(dtype), |length| Type::new(dtype, [length]));
        // `(w, h, x) -> (sin(h) w + x, h x)`
        let mut body = Graph::default();
        let [w, h, x] = [0, 1, 2].map(|_| body.param(scalar.clone()));
        let sine = body.fitting(ScalarOp::Sin, &[h]);
        let moved = body.fitting(ScalarOp::Mul, &[sine, w]);
        let next = body.fitting(ScalarOp::Add, &[moved, x]);
        let own = body.fitting(ScalarOp::Mul, &[h, x]);
        body.results = vec![next, own];
        let of = |(length, reverse)| {
            let scan = Scan { body: body.clone(), captured: 1, carried: 1, length, reverse };
            Sample::of(scan, &[scalar.clone(), scalar.clone(), rows(length)])
        };
        [(4, false), (3, true), (1, false), (0, false)].map(of).into()
    }
}
