//! Lowers a scan to a step of a plan: one kernel for all steps, or a loop that updates carried values in place.
use super::{Scan, single_kernel};
use crate::fuse::{CallLoweringContext, LowerableCall, LoweredStep, StepOp};
use crate::graph::{Graph, Var};
use crate::simplify::simplify;
use pallas_ir::{DType, ScalarOp, Type};
use std::collections::BTreeSet;

impl LowerableCall for Scan {
    /// Lowers the scan to one kernel if possible, otherwise to a loop. The loop updates carried values in place. A
    /// stack takes over the memory of an array that nothing else reads, if each of its elements is written after the
    /// array's element is read.
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        let CallLoweringContext { e, sizes, is_free, .. } = *from;
        if let Some(lowered) = single_kernel::lower_to_kernel(e, self, sizes) {
            return lowered;
        }
        let outputs = e.results.clone();
        let captured = &e.args[..self.captured];
        let (carried, arrays) = e.args[self.captured..].split_at(self.carried);
        let heirs = in_place_stacks(self, |j| is_free(arrays[j]));
        let mut in_place: Vec<Option<Var>> = carried.iter().copied().map(Some).collect();
        // Every element of a stack is written.
        in_place.resize(outputs.len(), None);
        let mut inputs = captured.to_vec();
        for (&array, heir) in arrays.iter().zip(&heirs) {
            match heir {
                Some(stack) => in_place[self.carried + stack] = Some(array),
                None => inputs.push(array),
            }
        }
        // A body that never runs may read elements that do not exist.
        let body = if self.length == 0 { Graph::default() } else { step_graph(self, &heirs) };
        let is_donated: Vec<bool> = (0..body.params.len()).map(|i| i > inputs.len()).collect();
        let body = Box::new(from.plan(&simplify(&body), &is_donated));
        let work = StepOp::For { body, length: self.length, inputs: inputs.len() };
        LoweredStep { work, inputs, outputs, in_place }
    }
}

/// Returns for each array of a scan the index of the stack that takes over its memory; `None` if there is none.
/// `is_overwritable` says whether the memory of an array may be overwritten.
///
/// Such a stack has elements of the array's type, which are computed from the array's element of the same step, so that
/// the element is read before it is overwritten.
fn in_place_stacks(scan: &Scan, is_overwritable: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
    let body = &scan.body;
    let (params, stacks) = (&body.params[scan.first_array_operand()..], &body.results[scan.carried..]);
    let mut is_taken = vec![false; stacks.len()];
    let heir = |(j, &param): (usize, &Var)| {
        if scan.length == 0 || !is_overwritable(j) {
            return None;
        }
        let mut follows: BTreeSet<Var> = BTreeSet::from([param]);
        for e in &body.equations {
            if e.args.iter().any(|arg| follows.contains(arg)) {
                follows.extend(&e.results);
            }
        }
        let fits = |&k: &usize| !is_taken[k] && body.ty(stacks[k]) == body.ty(param) && follows.contains(&stacks[k]);
        let found = (0..stacks.len()).find(fits)?;
        is_taken[found] = true;
        Some(found)
    };
    params.iter().enumerate().map(heir).collect()
}

/// Returns the step of a scan as a graph on whole arrays. It takes the index of the step, the captured values, the
/// arrays that have no stack in `in_place_stacks`, the carried values and the stacks, and gives the next carried values
/// and stacks; an array with such a stack is read from it.
fn step_graph(scan: &Scan, in_place_stacks: &[Option<usize>]) -> Graph {
    let takes = scan.body.param_types();
    let gives = scan.body.result_types();
    let (fixed, elements) = takes.split_at(scan.first_array_operand());
    let long = |ty: &Type| Type::new(ty.dtype, [&[scan.length], &ty.shape[..]].concat());
    let mut graph = Graph::default();
    let counter = graph.param(Type::scalar(DType::I32));
    let captured: Vec<Var> = fixed[..scan.captured].iter().map(|ty| graph.param(ty.clone())).collect();
    let own = |(ty, heir): (&Type, &Option<usize>)| heir.is_none().then(|| graph.param(long(ty)));
    let own: Vec<Option<Var>> = elements.iter().zip(in_place_stacks).map(own).collect();
    let carried: Vec<Var> = fixed[scan.captured..].iter().map(|ty| graph.param(ty.clone())).collect();
    let stacks: Vec<Var> = gives[scan.carried..].iter().map(|ty| graph.param(long(ty))).collect();
    let of = |(own, heir): (&Option<Var>, &Option<usize>)| own.or(heir.map(|k| stacks[k])).expect("one of both");
    let arrays: Vec<Var> = own.iter().zip(in_place_stacks).map(of).collect();

    let position = if scan.reverse {
        let last = graph.i32_literal(scan.length as i64 - 1);
        graph.push_valid(ScalarOp::Sub, &[last, counter])
    } else {
        counter
    };
    let zero = graph.i32_literal(0);
    let positions = |rank: usize| [vec![position], vec![zero; rank]].concat();
    let mut args = [captured, carried].concat();
    for (&array, ty) in arrays.iter().zip(elements) {
        let size = [&[1], &ty.shape[..]].concat();
        let slice = graph.push_dynamic_slice(array, &size, &positions(ty.shape.len()));
        args.push(graph.reshape(slice, &ty.shape));
    }
    let made = graph.inline(&scan.body, &args);
    graph.results = made[..scan.carried].to_vec();
    for ((&stack, &element), ty) in stacks.iter().zip(&made[scan.carried..]).zip(&gives[scan.carried..]) {
        let row = graph.reshape(element, &[&[1], &ty.shape[..]].concat());
        let updated = graph.push_dynamic_update_slice(stack, row, &positions(ty.shape.len()));
        graph.results.push(updated);
    }
    graph
}
