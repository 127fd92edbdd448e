//! Checks that a graph is linear in some of its parameters, which follows from the tangents of its operations.
use super::rule::{apply_structural_rule, as_expression, expression_var};
use crate::call::{Call, ExpansionStage};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::CollectiveForm;
use pallas_ir::{E, Literal, Loc, ScalarOp, Type};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The error for a result of a graph that is not linear in the chosen parameters.
pub struct NotLinear {
    /// The line of the operation that is not linear, or of the graph.
    pub at: Loc,
    /// The name of the operation that is not linear; `None` for a result that does not depend on the parameters at all.
    pub op: Option<String>,
    /// The type of the result.
    pub ty: Type,
}

/// The rule by which a call that is no function, such as a loop, tells if its results are linear in its operands. No
/// method has a default.
pub(crate) trait CallLinearity {
    /// Returns how each result depends on the parameters; `args` says it for the operands, at least one of which
    /// depends on them.
    fn linearity(&self, analysis: &mut LinearityAnalysis, e: &Equation, args: &[Linearity]) -> Vec<Linearity>;
}

/// The dependence of a value on the chosen parameters. The analysis of a loop joins the states of a carried value
/// before and after a step, upwards in this lattice:
///
/// ```text
///        nonlinear
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
    /// Not linear, because of the operation at this index of `wrong` in [`LinearityAnalysis`].
    Nonlinear(usize),
}

/// Returns the first result of a graph, from index `first_result` on, that is not linear in the parameters for which
/// `is_chosen_param` is true.
///
/// An operation is linear in some operands if its tangent by them does not contain these operands, and if it has no
/// term without them: `x * y` is linear in `x`; `x * x` and `x + y` are not. A term that is certainly zero is ignored,
/// as is NaN, which lookups give for elements that do not exist. Loops, branches and functions with stated derivatives
/// count as linear if `analyze_calls` is false; if it is true, their graphs are analyzed. (An iterative solver is
/// linear in what it computes, not in its steps.) Kernels and host functions are linear only if `analyze_calls` is
/// false.
pub fn find_nonlinear_result(
    graph: &Graph,
    is_chosen_param: &[bool],
    first_result: usize,
    analyze_calls: bool,
) -> Option<NotLinear> {
    let mut analysis = LinearityAnalysis { inside: analyze_calls, wrong: vec![], known: HashMap::new() };
    let params: Vec<Linearity> =
        is_chosen_param.iter().map(|&on| if on { Linearity::Linear } else { Linearity::Constant }).collect();
    let found = analysis.analyze_graph(graph, &params);
    graph.results.iter().zip(found).skip(first_result).find_map(|(r, kind)| {
        let ty = graph.ty(*r).clone();
        match kind {
            Linearity::Nonlinear(i) => {
                let (at, op) = &analysis.wrong[i];
                Some(NotLinear { at: *at, op: Some(op.clone()), ty })
            }
            Linearity::Constant if ty.dtype.is_float() => Some(NotLinear { at: graph.at, op: None, ty }),
            Linearity::Zero | Linearity::Constant | Linearity::Linear => None,
        }
    })
}

/// An analysis of which values of a graph are linear in chosen parameters: the operations found not to be linear, and a
/// cache for calls.
pub(crate) struct LinearityAnalysis {
    inside: bool,
    /// Lines and names of the operations found not to be linear.
    wrong: Vec<(Loc, String)>,
    /// The linearity of the results of calls analyzed before, by the call and the linearity of its operands. A loop
    /// analyzes its body more than once, so nested loops would take exponential time without these.
    known: HashMap<(*const Call, Vec<Linearity>), Vec<Linearity>>,
}

impl LinearityAnalysis {
    /// Records that an operation is not linear, and returns that state.
    pub(crate) fn record_nonlinear(&mut self, e: &Equation) -> Linearity {
        let text = e.op.to_string();
        self.wrong.push((e.loc, text.split_whitespace().next().unwrap_or_default().to_string()));
        Linearity::Nonlinear(self.wrong.len() - 1)
    }

    /// Returns the linearity of a graph's results, given that of its parameters.
    pub(crate) fn analyze_graph(&mut self, graph: &Graph, params: &[Linearity]) -> Vec<Linearity> {
        let mut kinds = vec![Linearity::Constant; graph.types.len()];
        graph.params.iter().zip(params).for_each(|(p, &kind)| kinds[p.index()] = kind);
        for e in &graph.equations {
            let args: Vec<Linearity> = e.args.iter().map(|a| kinds[a.index()]).collect();
            let found = self.analyze_equation(graph, e, &args);
            e.results.iter().zip(found).for_each(|(r, kind)| kinds[r.index()] = kind);
        }
        graph.results.iter().map(|r| kinds[r.index()]).collect()
    }

    /// Returns the linearity of an equation's results, given that of its operands.
    fn analyze_equation(&mut self, graph: &Graph, e: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        let n = e.results.len();
        if let Op::Call(call) = &e.op {
            let key = (Arc::as_ptr(call), args.to_vec());
            if let Some(known) = self.known.get(&key) {
                return known.clone();
            }
            let found = self.analyze_call(graph, e, call, args);
            self.known.insert(key, found.clone());
            return found;
        }
        if let Some(wrong) = find_nonlinear(args) {
            return vec![wrong; n];
        }
        let kind = if args.contains(&Linearity::Linear) {
            if is_linear(graph, e, args) { Linearity::Linear } else { self.record_nonlinear(e) }
        } else if is_certainly_zero(graph, e, args) {
            Linearity::Zero
        } else {
            Linearity::Constant
        };
        vec![kind; n]
    }

    /// Returns the linearity of a call's results: by the graph of a function, or by the rule of the call.
    fn analyze_call(&mut self, graph: &Graph, e: &Equation, call: &Call, args: &[Linearity]) -> Vec<Linearity> {
        let function = call.expansion_at(ExpansionStage::Plan);
        let is_transparent =
            |graph: &&Graph| call.expansion_at(ExpansionStage::Jvp).is_some() || graph.equations.is_empty();
        if let Some(graph) = function.filter(is_transparent) {
            return self.analyze_graph(graph, args);
        }
        let depends = args.iter().any(|kind| matches!(kind, Linearity::Linear | Linearity::Nonlinear(_)));
        if !depends {
            return vec![Linearity::Constant; e.results.len()];
        }
        if !self.inside {
            let of = |r: &Var| if graph.ty(*r).dtype.is_float() { Linearity::Linear } else { Linearity::Constant };
            return e.results.iter().map(|r| find_nonlinear(args).unwrap_or_else(|| of(r))).collect();
        }
        match function {
            Some(graph) => self.analyze_graph(graph, args),
            None => call.linear().expect("it stays").linearity(self, e, args),
        }
    }

    /// Returns the linearity of the results of a loop: repeats `step`, the analysis of the body, until the state of the
    /// carried values no longer changes. `args` are the states that the body takes, `carried` the indices of the
    /// carried values among them.
    pub(crate) fn analyze_loop(
        &mut self,
        e: &Equation,
        args: &[Linearity],
        carried: Range<usize>,
        mut step: impl FnMut(&mut LinearityAnalysis, &[Linearity]) -> Vec<Linearity>,
    ) -> Vec<Linearity> {
        let mut args = args.to_vec();
        loop {
            let mut found = step(self, &args);
            let joined = self.join_linearity(e, &args[carried.clone()], &found[..carried.len()]);
            if joined == args[carried.clone()] {
                found[..carried.len()].copy_from_slice(&joined);
                return found;
            }
            args[carried.clone()].copy_from_slice(&joined);
        }
    }

    /// Returns the linearity of values that are those of `a` or those of `b`: results of two branches, or carried
    /// values before and after a step.
    pub(crate) fn join_linearity(&mut self, e: &Equation, a: &[Linearity], b: &[Linearity]) -> Vec<Linearity> {
        let mut one = |(&a, &b): (&Linearity, &Linearity)| match (a, b) {
            (wrong @ Linearity::Nonlinear(_), _) | (_, wrong @ Linearity::Nonlinear(_)) => wrong,
            (Linearity::Zero, other) | (other, Linearity::Zero) => other,
            (Linearity::Constant, Linearity::Constant) | (Linearity::Linear, Linearity::Linear) => a,
            (Linearity::Constant, Linearity::Linear) | (Linearity::Linear, Linearity::Constant) => {
                self.record_nonlinear(e)
            }
        };
        a.iter().zip(b).map(&mut one).collect()
    }
}

fn find_nonlinear(kinds: &[Linearity]) -> Option<Linearity> {
    kinds.iter().copied().find(|kind| matches!(kind, Linearity::Nonlinear(_)))
}

/// Returns true if an operation is certain to give only zeros, false if it may give other numbers. It is called for
/// operations of which no operand depends on the chosen parameters.
fn is_certainly_zero(graph: &Graph, e: &Equation, args: &[Linearity]) -> bool {
    match &e.op {
        // NaN stands for elements that do not exist.
        Op::Literal(x) => *x == Literal::new(x.dtype, 0.0) || x.as_f64().is_nan(),
        Op::Scalar(ScalarOp::Mul) => args.contains(&Linearity::Zero),
        Op::Identity(op) if !op.has_tangent() => args.contains(&Linearity::Zero),
        // A linear function of zeros gives zeros.
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
        Op::Scalar(op) => is_linear_by_tangents(graph, e, args, |to, params, y, tangents| {
            let args: Vec<E<'_>> = params.iter().map(|&v| as_expression(to, v)).collect();
            op.jvp(&args, as_expression(to, y), tangents).map(expression_var)
        }),
        Op::Structural(op) => is_linear_by_tangents(graph, e, args, |to, params, y, tangents| {
            let types: Vec<_> = e.args.iter().map(|&a| graph.ty(a).clone()).collect();
            apply_structural_rule(to, params, &types, |args| op.jvp(args, as_expression(to, y), tangents))
                .map(expression_var)
        }),
        Op::Collective(op) => match op.first_member_form() {
            CollectiveForm::Fold(by, _) => by == ScalarOp::Add,
            CollectiveForm::Constant(_)
            | CollectiveForm::Own
            | CollectiveForm::FromMember(_)
            | CollectiveForm::Stack(_) => true,
        },
        Op::Dynamic(op) => !args[..op.array_operand_count()].contains(&Linearity::Constant),
        Op::Identity(op) => op.has_tangent(),
        Op::Literal(_) | Op::Call(_) => false,
    }
}

/// Returns true if an equation is linear in the operands that depend on the parameters, by its tangent for each of
/// these. `tangent` appends the tangent for given operands, result and tangents of operands.
fn is_linear_by_tangents(
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
        let tangents: Vec<Option<E<'_>>> =
            (0..params.len()).map(|k| (k == i).then(|| as_expression(&to, holes[k]))).collect();
        // Without a tangent there is no slope: the sign of a tangent is not linear.
        let Some(tangent) = tangent(&to, &params, y, &tangents) else { return false };
        let used = vars_contributing_to(&to.borrow(), tangent);
        if used[y.index()] || linear.iter().any(|&k| used[params[k].index()]) {
            return false;
        }
        params.iter().zip(&mut reads).for_each(|(p, reads)| *reads |= used[p.index()]);
    }
    // An operand that the tangents do not read is no factor of the result, so it is added as a term.
    let is_term = |i: usize| graph.ty(e.args[i]).dtype.is_float() && !linear.contains(&i) && !reads[i];
    (0..e.args.len()).all(|i| !is_term(i) || args[i] == Linearity::Zero)
}

/// Returns a bool for each variable: true if `result` depends on it.
fn vars_contributing_to(graph: &Graph, result: Var) -> Vec<bool> {
    let mut needed = vec![false; graph.types.len()];
    needed[result.index()] = true;
    for e in graph.equations.iter().rev() {
        if e.results.iter().any(|r| needed[r.index()]) {
            e.args.iter().for_each(|a| needed[a.index()] = true);
        }
    }
    needed
}
