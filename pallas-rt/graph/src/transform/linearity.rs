//! Check that a graph is linear in some of its parameters, read off the tangents of its operations.
use super::rule::{made, structural, value};
use crate::call::{Call, Stage};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::Form;
use pallas_ir::{E, Literal, Loc, ScalarOp, Type};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A result of a graph that is not linear in the parameters.
pub struct NotLinear {
    /// The line of the operation, or of the graph.
    pub at: Loc,
    /// The name of the operation that makes it so; `None` for a result that does not depend on the parameters.
    pub op: Option<String>,
    /// The type of the result.
    pub ty: Type,
}

/// The linearity of a call that stays one. No method has a default.
pub(crate) trait CallLinear {
    /// The linearity of its results, of which at least one operand depends on the parameters.
    fn linearity(&self, of: &mut Analysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity>;
}

/// A value as a function of the parameters. A loop joins what a carried value is before and after a step.
///
/// ```text
///          wrong
///        /       \
///   constant   linear
///        \       /
///          zero
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Linearity {
    Zero,
    Constant,
    Linear,
    /// Not linear, by the mistake of this number.
    Wrong(usize),
}

/// The first result of a graph, from number `first` on, that is not linear in the parameters for which `on` is true.
///
/// An operation is linear in operands if its tangent by them has none of these operands in it, and if it has no other term
/// besides: `dx * y` is, `dx * dx` and `dx + y` are not. Terms that are zero for sure are none, nor is NaN, which lookups give
/// for elements that do not exist. Loops, branches and functions with stated derivatives count as linear unless `inside` asks
/// for their graphs: a solver that goes on until it has converged is linear by what it computes and not by its steps. Kernels
/// and functions of the host are linear only if `inside` is false.
pub fn not_linear(graph: &Graph, on: &[bool], first: usize, inside: bool) -> Option<NotLinear> {
    let mut analysis = Analysis { inside, wrong: vec![], known: HashMap::new() };
    let params: Vec<Linearity> =
        on.iter().map(|&on| if on { Linearity::Linear } else { Linearity::Constant }).collect();
    let found = analysis.graph(graph, &params);
    graph.results.iter().zip(found).skip(first).find_map(|(r, kind)| {
        let ty = graph.ty(*r).clone();
        match kind {
            Linearity::Wrong(i) => {
                let (at, op) = &analysis.wrong[i];
                Some(NotLinear { at: *at, op: Some(op.clone()), ty })
            }
            Linearity::Constant if ty.dtype.is_float() => Some(NotLinear { at: graph.at, op: None, ty }),
            Linearity::Zero | Linearity::Constant | Linearity::Linear => None,
        }
    })
}

/// A walk over a graph.
pub(crate) struct Analysis {
    inside: bool,
    /// Lines and names of operations that are not linear.
    wrong: Vec<(Loc, String)>,
    /// The linearity of results of calls, by those of their operands. A loop asks for its body more than once, so without these
    /// loops in loops would cost twice as much for each level.
    known: HashMap<(*const Call, Vec<Linearity>), Vec<Linearity>>,
}

impl Analysis {
    /// Notes that an operation is not linear.
    pub(crate) fn wrong(&mut self, e: &Equation) -> Linearity {
        let text = e.op.to_string();
        self.wrong.push((e.loc, text.split_whitespace().next().unwrap_or_default().to_string()));
        Linearity::Wrong(self.wrong.len() - 1)
    }

    /// The linearity of a graph's results.
    pub(crate) fn graph(&mut self, graph: &Graph, params: &[Linearity]) -> Vec<Linearity> {
        let mut kinds = vec![Linearity::Constant; graph.types.len()];
        graph.params.iter().zip(params).for_each(|(p, &kind)| kinds[p.index()] = kind);
        for e in &graph.equations {
            let args: Vec<Linearity> = e.args.iter().map(|a| kinds[a.index()]).collect();
            let found = self.equation(graph, e, &args);
            e.results.iter().zip(found).for_each(|(r, kind)| kinds[r.index()] = kind);
        }
        graph.results.iter().map(|r| kinds[r.index()]).collect()
    }

    fn equation(&mut self, graph: &Graph, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        let n = e.results.len();
        if let Op::Call(call) = &e.op {
            let key = (Arc::as_ptr(call), args.to_vec());
            if let Some(known) = self.known.get(&key) {
                return known.clone();
            }
            let found = self.call(graph, e, call, args);
            self.known.insert(key, found.clone());
            return found;
        }
        if let Some(wrong) = first_wrong(args) {
            return vec![wrong; n];
        }
        let kind = if args.contains(&Linearity::Linear) {
            if is_linear(graph, e, args) { Linearity::Linear } else { self.wrong(e) }
        } else if is_zero(graph, e, args) {
            Linearity::Zero
        } else {
            Linearity::Constant
        };
        vec![kind; n]
    }

    fn call(&mut self, graph: &Graph, e: &Equation, call: &Call, args: &[Linearity]) -> Vec<Linearity> {
        let function = call.expands(Stage::Plan);
        let is_transparent = |graph: &&Graph| call.expands(Stage::Forward).is_some() || graph.equations.is_empty();
        if let Some(graph) = function.filter(is_transparent) {
            return self.graph(graph, args);
        }
        let depends = args.iter().any(|kind| matches!(kind, Linearity::Linear | Linearity::Wrong(_)));
        if !depends {
            return vec![Linearity::Constant; e.results.len()];
        }
        if !self.inside {
            let of = |r: &Var| if graph.ty(*r).dtype.is_float() { Linearity::Linear } else { Linearity::Constant };
            return e.results.iter().map(|r| first_wrong(args).unwrap_or_else(|| of(r))).collect();
        }
        match function {
            Some(graph) => self.graph(graph, args),
            None => call.linear().expect("it stays").linearity(self, e, args),
        }
    }

    /// The linearity of the results of a loop whose body takes such values; `carried` are the numbers of those that a step replaces.
    pub(crate) fn turns(
        &mut self,
        e: &Equation,
        args: &[Linearity],
        carried: Range<usize>,
        mut step: impl FnMut(&mut Analysis, &[Linearity]) -> Vec<Linearity>,
    ) -> Vec<Linearity> {
        let mut args = args.to_vec();
        loop {
            let mut found = step(self, &args);
            let joined = self.joined(e, &args[carried.clone()], &found[..carried.len()]);
            if joined == args[carried.clone()] {
                found[..carried.len()].copy_from_slice(&joined);
                return found;
            }
            args[carried.clone()].copy_from_slice(&joined);
        }
    }

    /// The linearity of values that come from one of two places.
    pub(crate) fn joined(&mut self, e: &Equation, a: &[Linearity], b: &[Linearity]) -> Vec<Linearity> {
        let mut one = |(&a, &b): (&Linearity, &Linearity)| match (a, b) {
            (wrong @ Linearity::Wrong(_), _) | (_, wrong @ Linearity::Wrong(_)) => wrong,
            (Linearity::Zero, other) | (other, Linearity::Zero) => other,
            (Linearity::Constant, Linearity::Constant) | (Linearity::Linear, Linearity::Linear) => a,
            (Linearity::Constant, Linearity::Linear) | (Linearity::Linear, Linearity::Constant) => self.wrong(e),
        };
        a.iter().zip(b).map(&mut one).collect()
    }
}

fn first_wrong(kinds: &[Linearity]) -> Option<Linearity> {
    kinds.iter().copied().find(|kind| matches!(kind, Linearity::Wrong(_)))
}

/// Returns true if an operation without operands that depend on the parameters gives zeros for sure.
fn is_zero(graph: &Graph, e: &Equation, args: &[Linearity]) -> bool {
    match &e.op {
        // NaN stands for elements that do not exist.
        Op::Literal(x) => *x == Literal::new(x.dtype, 0.0) || x.as_f64().is_nan(),
        Op::Scalar(ScalarOp::Mul) => args.contains(&Linearity::Zero),
        Op::Identity(op) if !op.data().has_tangent() => args.contains(&Linearity::Zero),
        // A linear function of zeros.
        _ => {
            let linear = |&kind: &Linearity| if kind == Linearity::Zero { Linearity::Linear } else { kind };
            let is_float = |v: &Var| graph.ty(*v).dtype.is_float();
            let args: Vec<Linearity> = args.iter().map(linear).collect();
            args.contains(&Linearity::Linear) && e.results.iter().all(is_float) && is_linear(graph, e, &args)
        }
    }
}

/// Returns true if an operation is linear in those of its operands that depend on the parameters.
fn is_linear(graph: &Graph, e: &Equation, args: &[Linearity]) -> bool {
    match &e.op {
        Op::Scalar(op) => by_tangents(graph, e, args, |to, params, y, tangents| {
            let args: Vec<E<'_>> = params.iter().map(|&v| value(to, v)).collect();
            op.jvp(&args, value(to, y), tangents).map(made)
        }),
        Op::Structural(op) => by_tangents(graph, e, args, |to, params, y, tangents| {
            let types: Vec<_> = e.args.iter().map(|&a| graph.ty(a).clone()).collect();
            structural(to, params, &types, |args| op.jvp(args, value(to, y), tangents)).map(made)
        }),
        Op::Collective(op) => match op.form() {
            Form::Fold(by, _) => by == ScalarOp::Add,
            Form::Number(_) | Form::Own | Form::One(_) | Form::Stack(_) => true,
        },
        Op::Dynamic(op) => !args[..op.arrays()].contains(&Linearity::Constant),
        Op::Identity(op) => op.data().has_tangent(),
        Op::Literal(_) | Op::Call(_) => false,
    }
}

/// The same, read off the tangents; `tangent` appends the one for an equation with these operands, this result and these
/// tangents of operands.
fn by_tangents(
    graph: &Graph,
    e: &Equation,
    args: &[Linearity],
    tangent: impl for<'t> Fn(&'t RefCell<Graph>, &[Var], Var, &[Option<E<'t>>]) -> Option<Var>,
) -> bool {
    let linear: Vec<usize> = (0..e.args.len()).filter(|&i| args[i] == Linearity::Linear).collect();
    let mut to = Graph::default();
    let params: Vec<Var> = e.args.iter().map(|&a| to.param(graph.ty(a).clone())).collect();
    let y = to.param(graph.ty(e.result()).clone());
    let holes: Vec<Var> = e.args.iter().map(|&a| to.param(graph.ty(a).clone())).collect();
    let to = RefCell::new(to);
    let mut reads = vec![false; params.len()];
    for &i in &linear {
        let tangents: Vec<Option<E<'_>>> = (0..params.len()).map(|k| (k == i).then(|| value(&to, holes[k]))).collect();
        // Without a tangent there is no slope: the sign of a tangent is not linear.
        let Some(tangent) = tangent(&to, &params, y, &tangents) else { return false };
        let used = needed(&to.borrow(), tangent);
        if used[y.index()] || linear.iter().any(|&k| used[params[k].index()]) {
            return false;
        }
        params.iter().zip(&mut reads).for_each(|(p, reads)| *reads |= used[p.index()]);
    }
    // What is no factor is a term.
    let is_term = |i: usize| graph.ty(e.args[i]).dtype.is_float() && !linear.contains(&i) && !reads[i];
    (0..e.args.len()).all(|i| !is_term(i) || args[i] == Linearity::Zero)
}

/// By variable, true if a result depends on it.
fn needed(graph: &Graph, result: Var) -> Vec<bool> {
    let mut needed = vec![false; graph.types.len()];
    needed[result.index()] = true;
    for e in graph.equations.iter().rev() {
        if e.results.iter().any(|r| needed[r.index()]) {
            e.args.iter().for_each(|a| needed[a.index()] = true);
        }
    }
    needed
}
