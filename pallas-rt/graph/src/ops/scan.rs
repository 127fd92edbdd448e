//! `scan`: a loop over the first axis of arrays, as `jax.lax.scan`.
mod bounded_length;
mod dead;
mod in_place_loop;
mod scan_vjp;
mod shard;
mod single_kernel;
mod unroll;

use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::stablehlo::HloAttributes;
use crate::transform::{active_loop_params, add_missing_batch_axes, extend_flags_to_fixpoint, swap_first_axes};
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
    fn first_array_operand(&self) -> usize {
        self.captured + self.carried
    }

    /// Returns which parameters of the body have the batch axis, if the operands for which `has_batch_axis` is true do.
    /// A carried value has it in all steps if it gets it in one.
    fn param_batch_flags(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        extend_flags_to_fixpoint(has_batch_axis, self.captured, self.carried, |on| {
            batch_dependent_results(&self.body, on, axis)
        })
    }
}

impl CallInterface for Scan {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Times(self.length), &self.body)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        Scan { body: graphs.remove(0), ..*self }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let fixed = self.first_array_operand();
        if args.len() < fixed {
            return Err(invalid_call_diag(
                self,
                format!("{} operands for {fixed} captured and carried values", args.len()),
            ));
        }
        let element = |x: &&Type| match x.shape.split_first() {
            Some((n, rest)) if *n == self.length => Ok(Type::new(x.dtype, rest)),
            _ => Err(invalid_call_diag(self, format!("an array of {x} has no first axis of {}", self.length))),
        };
        let elements = args[fixed..].iter().map(element).collect::<Result<Vec<_>, _>>()?;
        let given: Vec<&Type> = args[..fixed].iter().copied().chain(&elements).collect();
        check_param_types(self, &self.body, &given)?;
        let (gives, carried) = (self.body.result_types(), &args[self.captured..fixed]);
        if !gives.iter().take(self.carried).eq(carried.iter().copied()) {
            return Err(invalid_call_diag(self, format!("carries {carried:?}, the body gives {gives:?}")));
        }
        let stack = |ty: &Type| Type::new(ty.dtype, [&[self.length], &ty.shape[..]].concat());
        Ok(gives[..self.carried].iter().cloned().chain(gives[self.carried..].iter().map(stack)).collect())
    }
}

impl CallTransformRule for Scan {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        let on = active_loop_params(&self.body, is_active, self.captured, self.carried);
        let mut found = active(&self.body, &on);
        // A scan without steps returns the initial carried values.
        found.iter_mut().zip(&on[self.captured..]).take(self.carried).for_each(|(found, on)| *found |= on);
        found
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let on = active_loop_params(&self.body, &forward.active_operands(), self.captured, self.carried);
        let fixed = self.first_array_operand();
        let (takes, gives) = ([self.captured, fixed, on.len()], [self.carried, forward.e.results.len()]);
        let (body, found) = forward.differentiate_loop_body(&self.body, &on, self.captured, &takes, &gives)?;
        let more = |flags: &[bool]| flags.iter().filter(|on| **on).count();
        let call = Scan {
            body,
            captured: self.captured + more(&on[..self.captured]),
            carried: self.carried + more(&on[self.captured..fixed]),
            ..*self
        };
        let args = forward.interleaved_operands(&on, &takes);
        let found = forward.new_result_tangents(&found);
        Ok(forward.push_with_tangents(call.into(), args, &gives, found))
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        scan_vjp::vjp(self, back)
    }
    /// Batches the body. In arrays and stacks the axis of steps stays the first one, so the batch axis becomes the
    /// second.
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (flags, fixed) = (self.param_batch_flags(has, axis), self.first_array_operand());
        let mut all = vec![false; self.body.results.len()];
        all[..self.carried].copy_from_slice(&flags[self.captured..fixed]);
        let (body, gives) = batched_with_forced_results(&self.body, &flags, axis, &all)?;
        let mut args = add_missing_batch_axes(to, args, has, &flags, axis.size);
        args.iter_mut().zip(has).skip(fixed).filter(|(_, has)| **has).for_each(|(v, _)| *v = swap_first_axes(to, *v));
        let made = to.push_valid_multi_result(Scan { body, ..*self }, &args);
        let is_stack = |i: usize| i >= self.carried;
        let made = made.into_iter().zip(gives).enumerate();
        Ok(made.map(|(i, (v, has))| (if has && is_stack(i) { swap_first_axes(to, v) } else { v }, has)).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        let on = self.param_batch_flags(has_batch_axis, axis);
        let mut found = batch_dependent_results(&self.body, &on, axis);
        found[..self.carried].copy_from_slice(&on[self.captured..self.first_array_operand()]);
        found
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallLinearity for Scan {
    fn linearity(&self, of: &mut LinearityAnalysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        of.analyze_loop(e, args, self.captured..self.first_array_operand(), |of, args| {
            of.analyze_graph(&self.body, args)
        })
    }
}

impl CallAxisStateRule for Scan {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        mut operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        let carried = self.captured..self.first_array_operand();
        loop {
            let (body, found) = typing.insert_casts(&self.body, &operand_states)?;
            if typing.join_carried_states(
                &mut operand_states[carried.clone()],
                &found[..self.carried],
                "scan",
                e.loc,
            )? {
                continue;
            }
            let gives = [&operand_states[carried.clone()], &found[self.carried..]].concat();
            let body = typing.cast_results(body, &found, &gives, "scan", e.loc)?;
            return Ok(CallWithAxisStates { call: Scan { body, ..*self }.into(), takes: operand_states, gives });
        }
    }
}

impl CallText for Scan {
    fn attributes(&self) -> String {
        let Scan { captured, carried, length, reverse, .. } = self;
        let reverse = if *reverse { " reverse" } else { "" };
        format!(" captured({captured}) carried({carried}) length({length}){reverse}")
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("jaxpr={}", text(&self.body)),
            format!("length={}", self.length),
            format!("num_carry={}", self.carried),
            format!("num_consts={}", self.captured),
            format!("reverse={}", if self.reverse { "True" } else { "False" }),
        ]
    }
}

impl SerializableOp for Scan {
    fn print(&self, p: &mut text_format::Printer) -> String {
        let direction = if self.reverse { "reverse" } else { "forward" };
        format!(" {} {} {} {} {direction}", p.write_graph(&self.body), self.captured, self.carried, self.length)
    }
    fn parse(p: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<Scan, String> {
        let body = p.take_graph(words.parse_next("a graph")?)?;
        let [captured, carried, length] = [(); 3].map(|()| words.parse_next("a number"));
        let reverse = match words.next_word("a direction")? {
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
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let (captured, rest) = args.split_at(self.captured);
        let (carried, arrays) = rest.split_at(self.carried);
        let stacks: Vec<HloValue> =
            gives[self.carried..].iter().map(|ty| p.w.emit_constant(Literal::int(ty.dtype, 0), &ty.shape)).collect();
        if self.length == 0 {
            return [carried, &stacks].concat();
        }
        let state = [&[p.w.emit_index_constant(0)], carried, &stacks].concat();
        let types: Vec<Type> = state.iter().map(|x| x.ty.clone()).collect();
        let condition = p.build_region(&types, |p, x| {
            let length = p.w.emit_index_constant(self.length);
            vec![p.w.emit_comparison("LT", &x[0], &length)]
        });
        let body = p.build_region(&types, |p, x| {
            let (carried, stacks) = x[1..].split_at(self.carried);
            let at = if self.reverse {
                let last = p.w.emit_index_constant(self.length - 1);
                p.w.emit_binary("subtract", &last, &x[0])
            } else {
                x[0].clone()
            };
            let zero = p.w.emit_index_constant(0);
            let start = |rank: usize| [vec![&at], vec![&zero; rank]].concat();
            let mut operands = [captured, carried].concat();
            for array in arrays {
                let element = &array.ty.shape[1..];
                let row = Type::new(array.ty.dtype, [&[1], element].concat());
                let from = [vec![array], start(element.len())].concat();
                let row = p.w.emit_op("dynamic_slice", &from, HloAttributes::Sizes(row.shape.clone()), row);
                operands.push(p.w.emit_reshape(&row, element));
            }
            let mut made = p.emit_graph(&self.body, &operands);
            for (value, stack) in made[self.carried..].iter_mut().zip(stacks) {
                let rank = value.ty.shape.len();
                let row = p.w.emit_reshape(value, &[&[1], &value.ty.shape[..]].concat());
                let to = [vec![stack, &row], start(rank)].concat();
                *value = p.w.emit_op("dynamic_update_slice", &to, HloAttributes::None, stack.ty.clone());
            }
            let one = p.w.emit_index_constant(1);
            let next = p.w.emit_binary("add", &x[0], &one);
            made.insert(0, next);
            made
        });
        let state: Vec<&HloValue> = state.iter().collect();
        p.w.emit_op_with_regions("while", &state, vec![condition, body], HloAttributes::None, &types).split_off(1)
    }
}

impl SampledOp for Scan {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let (scalar, rows) = (Type::scalar(dtype), |length| Type::new(dtype, [length]));
        // `(w, h, x) -> (sin(h) w + x, h x)`
        let mut body = Graph::default();
        let [w, h, x] = [0, 1, 2].map(|_| body.param(scalar.clone()));
        let sine = body.push_valid(ScalarOp::Sin, &[h]);
        let moved = body.push_valid(ScalarOp::Mul, &[sine, w]);
        let next = body.push_valid(ScalarOp::Add, &[moved, x]);
        let own = body.push_valid(ScalarOp::Mul, &[h, x]);
        body.results = vec![next, own];
        let of = |(length, reverse)| {
            let scan = Scan { body: body.clone(), captured: 1, carried: 1, length, reverse };
            OpSample::new(scan, &[scalar.clone(), scalar.clone(), rows(length)])
        };
        [(4, false), (3, true), (1, false), (0, false)].map(of).into()
    }
}
