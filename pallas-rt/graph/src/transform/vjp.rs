//! Reverse-mode differentiation: vector-Jacobian products of graphs.
use super::active_values::active_vars;
use super::calls::VjpCall;
use super::rule::{apply_structural_rule, as_expression, expression_var};
use super::{TransformError, check_graph_limits, collective, memo};
use crate::call::ExpansionStage;
use crate::dead_code::without_dead_equations;
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expand_calls;
use pallas_ir::structural::RuleOperand;
use pallas_ir::{E, Literal, ScalarOp, StructuralOp};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Returns the vector-Jacobian product of a graph: a graph that computes its results, and from cotangents of the
/// results the cotangents of the parameters for which `wrt` is true.
///
/// Its parameters are those of the graph, then a cotangent for each result of a floating-point type; its results are
/// those of the graph, then a cotangent for each parameter with `wrt` true, zeros for one that no result depends on.
/// Values that both directions need are computed once.
///
/// Equations are visited backwards, each by the rule of its operation. The tangent of an elementwise operation is
/// linear and acts on each element separately, so applied to a cotangent it is its own transpose; a structural
/// operation states its transpose; one that is not linear states a tangent, whose equations are visited backwards too.
/// The method is that of Radul et al., "You Only Linearize Once" (2022), without partial evaluation of the whole graph.
///
/// # Errors
/// A loop whose number of steps is unknown before it runs; a derivative with more axes or elements than an array can
/// have.
///
/// # Panics
/// If `wrt` has not one entry for each parameter.
pub fn vjp(graph: &Graph, wrt: &[bool]) -> Result<Graph, TransformError> {
    vjp_of_results(graph, wrt, &vec![true; graph.results.len()])
}

/// Returns the vector-Jacobian product like [`vjp`], but takes cotangents only of the results for which `has_cotangent`
/// is true; those of other results are zero.
///
/// # Errors
/// Those of [`vjp`].
///
/// # Panics
/// If `wrt` has not one entry for each parameter, or `has_cotangent` not one for each result.
pub fn vjp_of_results(graph: &Graph, wrt: &[bool], has_cotangent: &[bool]) -> Result<Graph, TransformError> {
    assert_eq!(has_cotangent.len(), graph.results.len(), "one entry for each result");
    assert_eq!(wrt.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::open_call_flag_cache();
    let graph = expand_calls(graph, &|call| call.expansion_at(ExpansionStage::Vjp));
    // Equations that nothing reads need no derivative, and in a scan they would be hard to remove later.
    let graph = &without_dead_equations(graph);
    let active = active_vars(graph, wrt);
    let cotangents = vec![None; graph.types.len()];
    let mut back = BackwardPass { to: RefCell::new(graph.clone()), cotangents, groups: graph.sharding_group_count() };
    for (&r, &of) in graph.results.iter().zip(has_cotangent) {
        if of && graph.ty(r).dtype.is_float() {
            let cotangent = back.to.get_mut().param(graph.ty(r).clone());
            back.add_cotangent(r, cotangent);
        }
    }
    for (at, e) in graph.equations.iter().enumerate().rev() {
        // A value without a derivative by any parameter passes on no cotangent.
        let cotangent = |r: &Var| back.cotangents[r.index()].filter(|_| active[r.index()]);
        let cotangents: Vec<Option<Var>> = e.results.iter().map(cotangent).collect();
        let on: Vec<bool> = e.args.iter().map(|a| active[a.index()]).collect();
        if !on.contains(&true) || cotangents.iter().all(Option::is_none) {
            continue;
        }
        back.to.get_mut().at = e.loc;
        if let Op::Collective(op) = &e.op {
            collective::check_linear(op, e.loc)?;
        }
        let found = match (&e.op, cotangents[..].first().copied().flatten()) {
            (Op::Call(call), _) => {
                let to = back.to.get_mut();
                call.rule().vjp(VjpCall { to, at, e, on: &on, cotangents: &cotangents })?
            }
            (_, Some(cotangent)) => back.push_operand_cotangents(e, &on, cotangent),
            (_, None) => continue,
        };
        e.args.iter().zip(found).for_each(|(&arg, found)| found.into_iter().for_each(|c| back.add_cotangent(arg, c)));
    }
    let BackwardPass { to, cotangents, .. } = back;
    let mut to = to.into_inner();
    for (&p, _) in graph.params.iter().zip(wrt).filter(|(_, on)| **on) {
        let ty = to.ty(p).clone();
        let zeros = |to: &mut Graph| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
        let cotangent = cotangents[p.index()].filter(|_| active[p.index()]).unwrap_or_else(|| zeros(&mut to));
        to.results.push(cotangent);
    }
    // Rules compute the cotangents of all operands, also of those that are not needed.
    let to = without_dead_equations(to);
    check_graph_limits(&to)?;
    Ok(to)
}

/// The state of [`vjp`]: the graph to which it appends the backward pass, with the cotangents found so far.
struct BackwardPass {
    to: RefCell<Graph>,
    /// For each variable, the sum of the cotangents found so far; `None` for zero.
    cotangents: Vec<Option<Var>>,
    /// Number of sharding groups of the values; groups of cotangents are numbered from here on.
    groups: u32,
}

impl BackwardPass {
    /// Adds a cotangent to the sum of those found for variable `v`.
    fn add_cotangent(&mut self, v: Var, cotangent: Var) {
        if self.cotangents.len() <= v.index() {
            self.cotangents.resize(v.index() + 1, None);
        }
        let sum = match self.cotangents[v.index()] {
            Some(so_far) => self.to.get_mut().push_valid(ScalarOp::Add, &[so_far, cotangent]),
            None => cotangent,
        };
        self.cotangents[v.index()] = Some(sum);
    }

    /// Appends the cotangents of an equation's operands for which `is_active` is true, from that of its result; `None`
    /// for zero.
    fn push_operand_cotangents(&mut self, e: &Equation, is_active: &[bool], cotangent: Var) -> Vec<Option<Var>> {
        match &e.op {
            Op::Literal(_) => vec![],
            Op::Identity(op) if !op.has_tangent() => vec![None],
            // The identity states of the cotangent what it states of the value.
            Op::Identity(_) => {
                vec![Some(self.to.get_mut().push_valid(e.op.with_sharding_groups_shifted(self.groups), &[cotangent]))]
            }
            Op::Collective(op) => vec![op.kind.rule().push_operand_cotangent(self.to.get_mut(), op, cotangent)],
            Op::Scalar(op) => {
                let value = |v: Var| as_expression(&self.to, v);
                let args: Vec<E<'_>> = e.args.iter().map(|&v| value(v)).collect();
                let one = |i: usize| {
                    let tangents: Vec<_> = (0..args.len()).map(|k| (k == i).then(|| value(cotangent))).collect();
                    is_active[i].then(|| op.jvp(&args, value(e.result()), &tangents)).flatten().map(expression_var)
                };
                (0..args.len()).map(one).collect()
            }
            Op::Structural(op) => {
                let linear =
                    self.apply_derivative_rule(e, |args, _| op.transpose(args, as_expression(&self.to, cotangent)));
                let others = |(i, found): (usize, Option<Var>)| match found {
                    _ if !is_active[i] => None,
                    None => self.transpose_tangent(op, e, i, cotangent),
                    found => found,
                };
                linear.into_iter().enumerate().map(others).collect()
            }
            Op::Dynamic(op) => {
                let to = self.to.get_mut();
                let (arrays, positions) = e.args.split_at(op.array_operand_count());
                let window = to.ty(arrays.last().copied().expect("it has an array")).clone();
                let zeros = to.splat(Literal::new(window.dtype, 0.0), &window.shape);
                let found = op.rule().cotangent_operations(cotangent, zeros, &window).into_iter().zip(is_active);
                let found = found.map(|((op, args), on)| on.then(|| to.push_valid(op, &[&args, positions].concat())));
                found.chain(positions.iter().map(|_| None)).collect()
            }
            Op::Call(_) => unreachable!("rules of operations write none"),
        }
    }

    /// Runs `f`, a derivative rule of a structural operation, on the operands and the result of equation `e`.
    fn apply_derivative_rule<'g>(
        &'g self,
        e: &Equation,
        f: impl FnOnce(&[RuleOperand<'_, 'g>], E<'g>) -> Vec<Option<E<'g>>>,
    ) -> Vec<Option<Var>> {
        let types: Vec<_> = e.args.iter().map(|&v| self.to.borrow().ty(v).clone()).collect();
        let found =
            apply_structural_rule(&self.to, &e.args, &types, |args| f(args, as_expression(&self.to, e.result())));
        found.into_iter().map(|found| found.map(expression_var)).collect()
    }

    /// Returns the cotangent of operand number `operand` of an operation that is not linear in it: appends the tangent
    /// for a placeholder in place of the operand's tangent, and then transposes its equations by visiting them
    /// backwards.
    fn transpose_tangent(&mut self, op: &StructuralOp, e: &Equation, operand: usize, cotangent: Var) -> Option<Var> {
        let (placeholder, first) = {
            let to = self.to.get_mut();
            let ty = to.ty(e.args[operand]).clone();
            (to.var(ty), to.equations.len())
        };
        let tangent = self.apply_derivative_rule(e, |args, y| {
            let hole = as_expression(&self.to, placeholder);
            let tangents: Vec<_> = (0..args.len()).map(|k| (k == operand).then_some(hole)).collect();
            vec![op.jvp(args, y, &tangents)]
        })[0]?;
        let to = self.to.get_mut();
        let mut on = BTreeSet::from([placeholder]);
        // Equations that do not depend on the placeholder are no part of the linear function: they are kept as they
        // are.
        let (mut linear, written) = (vec![], to.equations.split_off(first));
        for written in written {
            if written.args.iter().any(|a| on.contains(a)) {
                on.insert(written.result());
                linear.push(written);
            } else {
                to.equations.push(written);
            }
        }
        self.add_cotangent(tangent, cotangent);
        for e in linear.iter().rev() {
            let Some(cotangent) = self.cotangents[e.result().index()] else { continue };
            let flags: Vec<bool> = e.args.iter().map(|a| on.contains(a)).collect();
            let found = self.push_operand_cotangents(e, &flags, cotangent);
            e.args
                .iter()
                .zip(found)
                .for_each(|(&arg, found)| found.into_iter().for_each(|c| self.add_cotangent(arg, c)));
        }
        self.cotangents.get(placeholder.index()).copied().flatten()
    }
}
