//! Reverse mode.
use super::active::active;
use super::calls::Backward;
use super::rule::{made, structural, value};
use super::{Refused, collective, memo, within_limits};
use crate::call::Stage;
use crate::dead::without_dead;
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expanded;
use pallas_ir::structural::Arg;
use pallas_ir::{E, Literal, ScalarOp, StructuralOp};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The vector-Jacobian product: a graph that computes a graph's results, and from cotangents of its results those of the
/// parameters for which `wrt` is true.
///
/// Its parameters are those of the graph, then a cotangent for each result of a floating-point type; its results are
/// those of the graph, then a cotangent for each parameter asked for, zeros for one that no result depends on. Values that
/// both directions need are computed once.
///
/// Equations are followed backwards, each by the rule of its operation. The tangent of an elementwise operation is linear
/// and concerns each element alone, so applied to a cotangent it is its own transpose; a structural operation states its
/// transpose; one that is not linear has a tangent, whose equations are followed backwards in turn. The method is that of
/// Radul et al., "You Only Linearize Once" (2022), without partial evaluation of the whole graph.
///
/// # Errors
/// A loop whose number of steps is not known; a derivative with more axes or elements than an array can have.
///
/// # Panics
/// If `wrt` has not one entry for each parameter.
pub fn vjp(graph: &Graph, wrt: &[bool]) -> Result<Graph, Refused> {
    vjp_of(graph, wrt, &vec![true; graph.results.len()])
}

/// As [`vjp`], with cotangents of the results for which `of` is true; those of others are zero.
///
/// # Errors
/// As [`vjp`].
///
/// # Panics
/// If `wrt` has not one entry for each parameter, or `of` not one for each result.
pub fn vjp_of(graph: &Graph, wrt: &[bool], of: &[bool]) -> Result<Graph, Refused> {
    assert_eq!(of.len(), graph.results.len(), "one entry for each result");
    assert_eq!(wrt.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::scope();
    let graph = expanded(graph, &|call| call.expands(Stage::Reverse));
    // The derivative of what nothing reads would be of no use, and hard to find in a scan.
    let graph = &without_dead(graph);
    let active = active(graph, wrt);
    let cotangents = vec![None; graph.types.len()];
    let mut back = Back { to: RefCell::new(graph.clone()), cotangents, groups: graph.groups() };
    for (&r, &of) in graph.results.iter().zip(of) {
        if of && graph.ty(r).dtype.is_float() {
            let cotangent = back.to.get_mut().param(graph.ty(r).clone());
            back.add(r, cotangent);
        }
    }
    for (at, e) in graph.equations.iter().enumerate().rev() {
        // What depends on no parameter in a way that has a derivative passes no cotangent on.
        let cotangent = |r: &Var| back.cotangents[r.index()].filter(|_| active[r.index()]);
        let cotangents: Vec<Option<Var>> = e.results.iter().map(cotangent).collect();
        let on: Vec<bool> = e.args.iter().map(|a| active[a.index()]).collect();
        if !on.contains(&true) || cotangents.iter().all(Option::is_none) {
            continue;
        }
        back.to.get_mut().at = e.loc;
        if let Op::Collective(op) = &e.op {
            collective::linear(op, e.loc)?;
        }
        let found = match (&e.op, cotangents[..].first().copied().flatten()) {
            (Op::Call(call), _) => {
                let to = back.to.get_mut();
                call.rule().vjp(Backward { to, at, e, on: &on, cotangents: &cotangents })?
            }
            (_, Some(cotangent)) => back.through(e, &on, cotangent),
            (_, None) => continue,
        };
        e.args.iter().zip(found).for_each(|(&arg, found)| found.into_iter().for_each(|c| back.add(arg, c)));
    }
    let Back { to, cotangents, .. } = back;
    let mut to = to.into_inner();
    for (&p, _) in graph.params.iter().zip(wrt).filter(|(_, on)| **on) {
        let ty = to.ty(p).clone();
        let zeros = |to: &mut Graph| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape);
        let cotangent = cotangents[p.index()].filter(|_| active[p.index()]).unwrap_or_else(|| zeros(&mut to));
        to.results.push(cotangent);
    }
    // Rules write the cotangents of all operands, also of those that nothing asks for.
    let to = without_dead(to);
    within_limits(&to)?;
    Ok(to)
}

/// A graph that is continued backwards.
struct Back {
    to: RefCell<Graph>,
    /// By variable, the sum of the cotangents found so far.
    cotangents: Vec<Option<Var>>,
    /// Number of sharding groups of the values; those of cotangents follow.
    groups: u32,
}

impl Back {
    fn add(&mut self, v: Var, cotangent: Var) {
        if self.cotangents.len() <= v.index() {
            self.cotangents.resize(v.index() + 1, None);
        }
        let sum = match self.cotangents[v.index()] {
            Some(so_far) => self.to.get_mut().fitting(ScalarOp::Add, &[so_far, cotangent]),
            None => cotangent,
        };
        self.cotangents[v.index()] = Some(sum);
    }

    /// The cotangents of those operands of an equation that are `on`; `None` for zero.
    fn through(&mut self, e: &Equation, on: &[bool], cotangent: Var) -> Vec<Option<Var>> {
        match &e.op {
            Op::Literal(_) => vec![],
            Op::Identity(op) if !op.data().has_tangent() => vec![None],
            // As the value, so its cotangent.
            Op::Identity(_) => vec![Some(self.to.get_mut().fitting(e.op.in_groups_from(self.groups), &[cotangent]))],
            Op::Collective(op) => vec![op.kind.rule().transposed(self.to.get_mut(), op, cotangent)],
            Op::Scalar(op) => {
                let value = |v: Var| value(&self.to, v);
                let args: Vec<E<'_>> = e.args.iter().map(|&v| value(v)).collect();
                let one = |i: usize| {
                    let tangents: Vec<_> = (0..args.len()).map(|k| (k == i).then(|| value(cotangent))).collect();
                    on[i].then(|| op.jvp(&args, value(e.result()), &tangents)).flatten().map(made)
                };
                (0..args.len()).map(one).collect()
            }
            Op::Structural(op) => {
                let linear = self.rule(e, |args, _| op.transpose(args, value(&self.to, cotangent)));
                let others = |(i, found): (usize, Option<Var>)| match found {
                    _ if !on[i] => None,
                    None => self.turned(op, e, i, cotangent),
                    found => found,
                };
                linear.into_iter().enumerate().map(others).collect()
            }
            Op::Dynamic(op) => {
                let to = self.to.get_mut();
                let (arrays, positions) = e.args.split_at(op.arrays());
                let window = to.ty(arrays.last().copied().expect("it has an array")).clone();
                let zeros = to.splat(Literal::new(window.dtype, 0.0), &window.shape);
                let found = op.rule().transposed(cotangent, zeros, &window).into_iter().zip(on);
                let found = found.map(|((op, args), on)| on.then(|| to.fitting(op, &[&args, positions].concat())));
                found.chain(positions.iter().map(|_| None)).collect()
            }
            Op::Call(_) => unreachable!("rules of operations write none"),
        }
    }

    /// Runs a rule of a structural operation on the operands and the result of an equation.
    fn rule<'g>(
        &'g self,
        e: &Equation,
        f: impl FnOnce(&[Arg<'_, 'g>], E<'g>) -> Vec<Option<E<'g>>>,
    ) -> Vec<Option<Var>> {
        let types: Vec<_> = e.args.iter().map(|&v| self.to.borrow().ty(v).clone()).collect();
        let found = structural(&self.to, &e.args, &types, |args| f(args, value(&self.to, e.result())));
        found.into_iter().map(|found| found.map(made)).collect()
    }

    /// The cotangent of operand `i` of an operation that is not linear in it: writes the tangent for a placeholder, and
    /// follows its equations backwards.
    fn turned(&mut self, op: &StructuralOp, e: &Equation, i: usize, cotangent: Var) -> Option<Var> {
        let (placeholder, first) = {
            let to = self.to.get_mut();
            let ty = to.ty(e.args[i]).clone();
            (to.var(ty), to.equations.len())
        };
        let tangent = self.rule(e, |args, y| {
            let hole = value(&self.to, placeholder);
            let tangents: Vec<_> = (0..args.len()).map(|k| (k == i).then_some(hole)).collect();
            vec![op.jvp(args, y, &tangents)]
        })[0]?;
        let to = self.to.get_mut();
        let mut on = BTreeSet::from([placeholder]);
        // What does not depend on the placeholder stays.
        let (mut linear, written) = (vec![], to.equations.split_off(first));
        for written in written {
            if written.args.iter().any(|a| on.contains(a)) {
                on.insert(written.result());
                linear.push(written);
            } else {
                to.equations.push(written);
            }
        }
        self.add(tangent, cotangent);
        for e in linear.iter().rev() {
            let Some(cotangent) = self.cotangents[e.result().index()] else { continue };
            let flags: Vec<bool> = e.args.iter().map(|a| on.contains(a)).collect();
            let found = self.through(e, &flags, cotangent);
            e.args.iter().zip(found).for_each(|(&arg, found)| found.into_iter().for_each(|c| self.add(arg, c)));
        }
        self.cotangents.get(placeholder.index()).copied().flatten()
    }
}
