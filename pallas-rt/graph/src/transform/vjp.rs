//! Reverse-mode differentiation: vector-Jacobian products of graphs.
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
pub fn vjp(graph: &Graph, wrt: &[bool]) -> Result<Graph, Refused> {
    vjp_of(graph, wrt, &vec![true; graph.results.len()])
}

/// Returns the vector-Jacobian product like [`vjp`], but takes cotangents only of the results for which `of` is true;
/// those of other results are zero.
///
/// # Errors
/// Those of [`vjp`].
///
/// # Panics
/// If `wrt` has not one entry for each parameter, or `of` not one for each result.
pub fn vjp_of(graph: &Graph, wrt: &[bool], of: &[bool]) -> Result<Graph, Refused> {
    assert_eq!(of.len(), graph.results.len(), "one entry for each result");
    assert_eq!(wrt.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::scope();
    let graph = expanded(graph, &|call| call.expands(Stage::Reverse));
    // Equations that nothing reads need no derivative, and in a scan they would be hard to remove later.
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
        // A value without a derivative by any parameter passes on no cotangent.
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
    // Rules compute the cotangents of all operands, also of those that are not needed.
    let to = without_dead(to);
    within_limits(&to)?;
    Ok(to)
}

/// A graph that is extended by the backward pass.
struct Back {
    to: RefCell<Graph>,
    /// For each variable, the sum of the cotangents found so far; `None` for zero.
    cotangents: Vec<Option<Var>>,
    /// Number of sharding groups of the values; groups of cotangents are numbered from here on.
    groups: u32,
}

impl Back {
    /// Adds a cotangent to the sum of those found for variable `v`.
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

    /// Appends the cotangents of an equation's operands that are `on`, from that of its result; `None` for zero.
    fn through(&mut self, e: &Equation, on: &[bool], cotangent: Var) -> Vec<Option<Var>> {
        match &e.op {
            Op::Literal(_) => vec![],
            Op::Identity(op) if !op.has_tangent() => vec![None],
            // The identity states of the cotangent what it states of the value.
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

    /// Runs `f`, a derivative rule of a structural operation, on the operands and the result of equation `e`.
    fn rule<'g>(
        &'g self,
        e: &Equation,
        f: impl FnOnce(&[Arg<'_, 'g>], E<'g>) -> Vec<Option<E<'g>>>,
    ) -> Vec<Option<Var>> {
        let types: Vec<_> = e.args.iter().map(|&v| self.to.borrow().ty(v).clone()).collect();
        let found = structural(&self.to, &e.args, &types, |args| f(args, value(&self.to, e.result())));
        found.into_iter().map(|found| found.map(made)).collect()
    }

    /// Returns the cotangent of operand `i` of an operation that is not linear in it: appends the tangent for a
    /// placeholder in place of the operand's tangent, and then transposes its equations by visiting them backwards.
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
