//! Reverse-mode differentiation of a scan.
use super::Scan;
use crate::graph::{Equation, Graph, Var};
use crate::identity::OptimizationBarrier;
use crate::refusal::TransformError;
use crate::transform::{
    self, VjpCall, active_loop_params, cotangent_or_zeros, is_float, is_rematerialized, rematerialized_chain,
};
use pallas_ir::{Literal, ScalarOp, Type};

/// Makes the forward scan store the values that the derivative of its steps needs, and appends a scan in the other
/// direction for the cotangents. That scan carries the cotangents of the carried values and the sums of the cotangents
/// of captured values. Returns the cotangents of the operands.
pub(super) fn vjp(scan: &Scan, mut back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
    let (e, on, cotangents) = (back.e, back.on, back.cotangents);
    let flags = active_loop_params(&scan.body, on, scan.captured, scan.carried);
    let both = transform::vjp(&scan.body, &flags)?;
    let mut split = SplitDerivative::new(scan, &both);

    // The forward scan gets additional stacks for the stored values.
    let stored: Vec<Type> = split.stored.iter().map(|&v| stack_type(both.ty(v), scan.length)).collect();
    let results = [&both.results[..scan.body.results.len()], &split.stored[..]].concat();
    let forward = Graph {
        equations: std::mem::take(&mut split.forward),
        results,
        params: scan.body.params.clone(),
        ..both.clone()
    };
    let stored = back.add_forward_results(Scan { body: forward, ..*scan }, stored);
    let to = back.to;

    // The scan in the other direction.
    let types = |range: std::ops::Range<usize>| -> Vec<(usize, Type)> {
        let all = range.filter(|&i| flags[i]).map(|i| (i, both.ty(both.params[i]).clone()));
        all.filter(|(_, ty)| is_float(ty)).collect()
    };
    let fixed = scan.first_array_operand();
    let (sums, states) = (types(0..scan.captured), types(scan.captured..fixed));
    let mut args: Vec<Var> = split.captured.iter().map(|&i| e.args[i]).collect();
    for (i, ty) in &states {
        args.push(cotangent_or_zeros(to, cotangents[i - scan.captured], ty));
    }
    for (_, ty) in &sums {
        args.push(cotangent_or_zeros(to, None, ty));
    }
    for (&r, &cotangent) in e.results.iter().zip(cotangents).skip(scan.carried) {
        let ty = to.ty(r).clone();
        if is_float(&ty) {
            args.push(cotangent_or_zeros(to, cotangent, &ty));
        }
    }
    args.extend(&stored);
    args.extend(split.arrays.iter().map(|&i| e.args[i]));
    let body = split.backward_body(&flags, &states, &sums);
    let back = Scan {
        body,
        captured: split.captured.len(),
        carried: states.len() + sums.len(),
        length: scan.length,
        reverse: !scan.reverse,
    };
    let made = to.push_valid_multi_result(back, &args);
    let mut found = vec![None; on.len()];
    let arrays = types(fixed..on.len());
    for ((i, _), &v) in states.iter().chain(&sums).chain(&arrays).zip(&made) {
        found[*i] = on[*i].then_some(v);
    }
    Ok(found)
}

/// Returns the type of a stack of `length` values of a type.
fn stack_type(ty: &Type, length: usize) -> Type {
    Type::new(ty.dtype, [&[length], &ty.shape[..]].concat())
}

/// The derivative of a scan's body, split into equations that do not depend on cotangents (`forward`) and those that
/// do.
struct SplitDerivative<'a> {
    scan: &'a Scan,
    both: &'a Graph,
    forward: Vec<Equation>,
    backward: Vec<Equation>,
    /// Equations of the forward part that the backward part computes again: see [`is_rematerialized`].
    remade: Vec<Equation>,
    /// Indices of the captured parameters that the backward part reads.
    captured: Vec<usize>,
    /// Indices of the array parameters that the backward part reads.
    arrays: Vec<usize>,
    /// Other values of the forward part that the backward part reads, which the forward scan stores.
    stored: Vec<Var>,
}

impl<'a> SplitDerivative<'a> {
    /// Splits `body_vjp`, the vector-Jacobian product of the scan's body.
    fn new(scan: &'a Scan, body_vjp: &'a Graph) -> SplitDerivative<'a> {
        let known = scan.body.params.len();
        let mut is_back = vec![false; body_vjp.types.len()];
        body_vjp.params[known..].iter().for_each(|p| is_back[p.index()] = true);
        // Equations that follow a barrier, which a checkpoint computes again, belong to the backward part unless a
        // result needs them.
        let mut is_needed = vec![false; body_vjp.types.len()];
        body_vjp.results[..scan.body.results.len()].iter().for_each(|r| is_needed[r.index()] = true);
        for e in body_vjp.equations.iter().rev() {
            if e.results.iter().any(|r| is_needed[r.index()]) {
                e.args.iter().for_each(|a| is_needed[a.index()] = true);
            }
        }
        let (mut forward, mut backward) = (vec![], vec![]);
        for e in &body_vjp.equations {
            let is_again = e.op == OptimizationBarrier.into() && !is_needed[e.result().index()];
            if is_again || e.args.iter().any(|a| is_back[a.index()]) {
                e.results.iter().for_each(|r| is_back[r.index()] = true);
                backward.push(e.clone());
            } else {
                forward.push(e.clone());
            }
        }
        let definitions = body_vjp.definitions();
        let (remade, captured, arrays, stored) = (vec![], vec![], vec![], vec![]);
        let mut split =
            SplitDerivative { scan, both: body_vjp, forward, backward: vec![], remade, captured, arrays, stored };
        let mut seen = vec![false; body_vjp.types.len()];
        let cotangents = &body_vjp.results[scan.body.results.len()..];
        let used = backward.iter().flat_map(|e| &e.args).chain(cotangents);
        let definition = |v: Var| definitions[v.index()].map(|i| &body_vjp.equations[i]);
        let all = used.filter(|v| !is_back[v.index()]).flat_map(|&v| rematerialized_chain(v, definition));
        for v in all {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            let parameter = body_vjp.params[..known].iter().position(|&p| p == v);
            match (parameter, definition(v)) {
                (Some(i), _) if i < scan.captured => split.captured.push(i),
                (Some(i), _) if i >= scan.first_array_operand() => split.arrays.push(i),
                (None, Some(e)) if is_rematerialized(&e.op) => split.remade.push(e.clone()),
                _ => split.stored.push(v),
            }
        }
        split.backward = backward;
        split
    }

    /// Returns the body of the backward scan. `is_differentiated` says which parameters of the scan's body have
    /// cotangents; `carried_params` and `captured_params` list the carried and captured ones among them, with their
    /// types.
    fn backward_body(
        &self,
        is_differentiated: &[bool],
        carried_params: &[(usize, Type)],
        captured_params: &[(usize, Type)],
    ) -> Graph {
        let SplitDerivative { scan, both, .. } = *self;
        let n = scan.body.results.len();
        let mut graph = Graph { types: both.types.clone(), ..Graph::default() };
        graph.params.extend(self.captured.iter().map(|&i| both.params[i]));
        // The cotangents of the results, in the order of the parameters of `both`.
        let mut cotangents = both.params[scan.body.params.len()..].iter();
        let of_results: Vec<Option<Var>> = scan.body.results[..n]
            .iter()
            .map(|&r| is_float(both.ty(r)).then(|| *cotangents.next().expect("one for each result of floats")))
            .collect();
        graph
            .params
            .extend(carried_params.iter().map(|(i, _)| of_results[i - scan.captured].expect("it is of floats")));
        let so_far: Vec<Var> = captured_params.iter().map(|(_, ty)| graph.param(ty.clone())).collect();
        graph.params.extend(of_results[scan.carried..].iter().flatten());
        graph.params.extend(&self.stored);
        graph.params.extend(self.arrays.iter().map(|&i| both.params[i]));
        graph.equations.extend(self.remade.iter().cloned());
        // The cotangent of a carried value that is not differentiated is zero.
        for (i, cotangent) in of_results[..scan.carried].iter().enumerate() {
            if let (Some(v), false) = (cotangent, is_differentiated[scan.captured + i]) {
                let ty = both.ty(*v);
                let zeros = graph.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
                rename_last_result(&mut graph, zeros, *v);
            }
        }
        graph.equations.extend(self.backward.iter().cloned());
        // `both` gives one cotangent for each differentiated parameter, in order.
        let mut made = both.results[n..].iter();
        let mut of_params = |range: std::ops::Range<usize>| -> Vec<Var> {
            let active = range.filter(|&i| is_differentiated[i] && is_float(both.ty(both.params[i])));
            active.map(|_| *made.next().expect("one for each active parameter")).collect()
        };
        let fixed = scan.first_array_operand();
        let (captured, carried, arrays) =
            (of_params(0..scan.captured), of_params(scan.captured..fixed), of_params(fixed..is_differentiated.len()));
        graph.results = carried;
        for (sum, more) in so_far.into_iter().zip(captured) {
            let sum = graph.push_valid(ScalarOp::Add, &[sum, more]);
            graph.results.push(sum);
        }
        graph.results.extend(arrays);
        graph
    }
}

/// Makes the last equation define variable `to` in place of `from`.
fn rename_last_result(graph: &mut Graph, from: Var, to: Var) {
    let last = graph.equations.last_mut().expect("it was just appended");
    assert_eq!(last.results, [from]);
    last.results = vec![to];
}
