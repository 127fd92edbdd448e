//! Forward-mode differentiation: Jacobian-vector products of graphs.
use super::partial_eval::split_by_known_params;
use super::rule::{apply_structural_rule, as_expression, expression_var};
use super::{TransformError, check_graph_limits, collective, memo};
use crate::call::{Call, ClosedCall, ExpansionStage};
use crate::graph::{Equation, Graph, Op, Var};
use crate::inline::expand_calls;
use pallas_ir::{E, Literal};
use std::cell::RefCell;

/// Returns the Jacobian-vector product of a graph: a graph that computes its results, and also the tangents of the
/// results from tangents of the parameters for which `is_active` is true.
///
/// Its parameters are those of the graph, then a tangent for each parameter for which `is_active` is true; its results
/// are those of the graph, then a tangent for each result of a floating-point type, zeros for one that depends on no
/// tangent. Each equation of the graph is computed once.
///
/// # Errors
/// A derivative with more axes or elements than an array can have.
///
/// # Panics
/// If `is_active` has not one entry for each parameter, or is true for one that has no floating-point type.
pub fn jvp(graph: &Graph, is_active: &[bool]) -> Result<Graph, TransformError> {
    append_result_tangents(build_tangent_graph(graph, is_active, false)?)
}

/// Splits the Jacobian-vector product ([`jvp`]) into two graphs: one that computes the results, and a linear one that
/// computes the tangents of the results from tangents of the parameters.
///
/// The first graph takes the parameters, and gives the results followed by the values that the second one needs
/// (residuals). The second one takes these values and the tangents. Loops and branches are computed again in the second
/// one.
///
/// # Errors
/// Those of [`jvp`].
///
/// # Panics
/// If `is_active` has not one entry for each parameter, or is true for one that has no floating-point type.
pub fn linearize(graph: &Graph, is_active: &[bool]) -> Result<(Graph, Graph), TransformError> {
    let both = append_result_tangents(build_tangent_graph(graph, is_active, true)?)?;
    Ok(split_by_known_params(&both, graph.params.len(), graph.results.len()))
}

/// Appends the tangents of the results of floating-point types to the graph's results, zeros for a tangent that is
/// zero.
fn append_result_tangents(tangents: TangentGraph) -> Result<Graph, TransformError> {
    let TangentGraph { graph: mut to, of_results, .. } = tangents;
    for (r, tangent) in to.results.clone().into_iter().zip(of_results) {
        if to.ty(r).dtype.is_float() {
            let tangent = tangent_or_zeros(&mut to, tangent, r);
            to.results.push(tangent);
        }
    }
    check_graph_limits(&to)?;
    Ok(to)
}

/// A graph that computes tangents beside its values. The tangents that it takes are additional parameters; its results
/// are values alone.
struct TangentGraph {
    graph: Graph,
    /// For each parameter of the original graph, the parameter that is its tangent.
    of_params: Vec<Option<Var>>,
    /// For each result, its tangent; `None` for zero.
    of_results: Vec<Option<Var>>,
}

/// Returns the graph extended by the tangents of its values, for tangents of the parameters for which `is_active` is
/// true. If `keeps_original_calls` is true, no value depends on a tangent: a call with tangents is appended beside the
/// original call, so that the graph can be split into values and tangents.
fn build_tangent_graph(
    graph: &Graph,
    is_active: &[bool],
    keeps_original_calls: bool,
) -> Result<TangentGraph, TransformError> {
    assert_eq!(is_active.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::open_call_flag_cache();
    let graph = &expand_calls(graph, &|call| call.expansion_at(ExpansionStage::Jvp));
    let mut to = Graph {
        types: graph.types.clone(),
        params: graph.params.clone(),
        equations: vec![],
        results: graph.results.clone(),
        at: graph.at,
    };
    let mut found: Vec<Option<Var>> = vec![None; graph.types.len()];
    let param = |(&p, &on): (&Var, &bool)| {
        assert!(!on || graph.ty(p).dtype.is_float(), "{p} of {} has no tangent", graph.ty(p));
        found[p.index()] = on.then(|| to.param(graph.ty(p).clone()));
        found[p.index()]
    };
    let of_params = graph.params.iter().zip(is_active).map(param).collect();
    let mut to = RefCell::new(to);
    // Sharding groups of tangents have the numbers after those of values.
    let groups = graph.sharding_group_count();
    for e in &graph.equations {
        let given: Vec<Option<Var>> = e.args.iter().map(|a| found[a.index()]).collect();
        to.get_mut().at = e.loc;
        let is_known = given.iter().all(Option::is_none);
        if let (Op::Call(call), false) = (&e.op, is_known) {
            let made = call.rule().jvp(JvpCall {
                to: to.get_mut(),
                e,
                given: &given,
                apart: keeps_original_calls,
                groups: 2 * groups,
            })?;
            e.results.iter().zip(made).for_each(|(r, tangent)| found[r.index()] = tangent);
            continue;
        }
        if let (Op::Collective(op), false) = (&e.op, is_known) {
            collective::check_linear(op, e.loc)?;
        }
        to.get_mut().equations.push(e.clone());
        if !is_known && graph.ty(e.result()).dtype.is_float() {
            found[e.result().index()] = push_tangent(&mut to, e, &given, groups);
        }
    }
    let of_results = graph.results.iter().map(|r| found[r.index()]).collect();
    Ok(TangentGraph { graph: to.into_inner(), of_params, of_results })
}

/// Returns the tangent of an equation's result, from `operand_tangents`, the tangents of its operands; `None` stands
/// for zero. Sharding groups of tangents have numbers from `first_sharding_group` on.
fn push_tangent(
    to: &mut RefCell<Graph>,
    e: &Equation,
    operand_tangents: &[Option<Var>],
    first_sharding_group: u32,
) -> Option<Var> {
    match &e.op {
        Op::Literal(_) => None,
        Op::Scalar(op) => {
            let to = &*to;
            let args: Vec<E<'_>> = e.args.iter().map(|&v| as_expression(to, v)).collect();
            let given: Vec<Option<E<'_>>> = operand_tangents.iter().map(|t| t.map(|v| as_expression(to, v))).collect();
            op.jvp(&args, as_expression(to, e.result()), &given).map(expression_var)
        }
        Op::Structural(op) => {
            let to = &*to;
            let types: Vec<_> = e.args.iter().map(|&v| to.borrow().ty(v).clone()).collect();
            let given: Vec<Option<E<'_>>> = operand_tangents.iter().map(|t| t.map(|v| as_expression(to, v))).collect();
            apply_structural_rule(to, &e.args, &types, |args| op.jvp(args, as_expression(to, e.result()), &given))
                .map(expression_var)
        }
        Op::Dynamic(op) => {
            let (to, arrays) = (to.get_mut(), op.array_operand_count());
            let mut args: Vec<Var> =
                (0..arrays).map(|i| tangent_or_zeros(to, operand_tangents[i], e.args[i])).collect();
            args.extend(&e.args[arrays..]);
            // Both the window and the update are linear in the arrays.
            Some(to.push_valid(op.clone(), &args))
        }
        Op::Identity(op) if !op.has_tangent() => None,
        Op::Identity(_) => operand_tangents[0].map(|tangent| {
            to.get_mut().push_valid(e.op.with_sharding_groups_shifted(first_sharding_group), &[tangent])
        }),
        Op::Collective(_) => operand_tangents[0].map(|tangent| to.get_mut().push_valid(e.op.clone(), &[tangent])),
        Op::Call(_) => unreachable!("calls have a rule of their own"),
    }
}

/// Returns `tangent`, or zeros of the type of `value` if there is none.
fn tangent_or_zeros(to: &mut Graph, tangent: Option<Var>, value: Var) -> Var {
    let ty = to.ty(value).clone();
    tangent.unwrap_or_else(|| to.splat(Literal::new(ty.dtype, 0.0), &ty.shape))
}

/// Splits the values into groups that end at the positions `group_ends`, and lists each group followed by its tangents.
fn interleave_tangents(values: &[Var], tangents: &[Option<Var>], group_ends: &[usize]) -> Vec<Var> {
    let mut all = vec![];
    let mut start = 0;
    for &end in group_ends {
        all.extend(&values[start..end]);
        all.extend(tangents[start..end].iter().flatten());
        start = end;
    }
    all
}

/// A call that is differentiated in forward mode; the methods append it with its tangents.
pub(crate) struct JvpCall<'a> {
    /// The graph with tangents, up to this call.
    pub to: &'a mut Graph,
    /// The call's equation.
    pub e: &'a Equation,
    /// For each operand, its tangent; at least one operand has one.
    pub given: &'a [Option<Var>],
    /// True if the call with tangents is appended after the original call; false if it replaces the original.
    apart: bool,
    /// The number from which on sharding groups of inlined equations are numbered.
    groups: u32,
}

impl JvpCall<'_> {
    /// Returns for each operand whether it has a tangent.
    pub(crate) fn active_operands(&self) -> Vec<bool> {
        tangent_flags(self.given)
    }

    /// Appends `call`, which computes the original results and their tangents `result_tangents`, and returns
    /// `result_tangents`. `group_ends` are the positions at which groups of results end; each group is followed by its
    /// tangents.
    pub(crate) fn push_with_tangents(
        self,
        call: Call,
        args: Vec<Var>,
        group_ends: &[usize],
        result_tangents: Vec<Option<Var>>,
    ) -> Vec<Option<Var>> {
        let JvpCall { to, e, apart, .. } = self;
        let own = match apart {
            true => {
                to.equations.push(e.clone());
                e.results.iter().map(|&r| to.var(to.ty(r).clone())).collect()
            }
            false => e.results.clone(),
        };
        let results = interleave_tangents(&own, &result_tangents, group_ends);
        to.equations.push(Equation { op: call.into(), args, results, loc: e.loc });
        result_tangents
    }

    /// Appends the call without tangents.
    pub(crate) fn push_unchanged(self) {
        self.to.equations.push(self.e.clone());
    }

    /// Appends the call without tangents, and after it the equations of `graph` on `args`; returns the results of
    /// `graph`.
    pub(crate) fn push_then_inline(self, graph: &Graph, args: &[Var]) -> Vec<Var> {
        self.to.equations.push(self.e.clone());
        self.to.inline_with_sharding_groups_from(graph, args, self.groups)
    }

    /// Returns the tangents of the operands of floating-point types, beginning with operand `first_operand`; zeros for
    /// those that have none.
    pub(crate) fn tangents_of_floats(&mut self, first_operand: usize) -> Vec<Var> {
        let all = self.e.args.iter().zip(self.given).skip(first_operand);
        let floats: Vec<_> = all.filter(|(v, _)| self.to.ty(**v).dtype.is_float()).collect();
        floats.into_iter().map(|(&v, tangent)| tangent_or_zeros(self.to, *tangent, v)).collect()
    }

    /// Appends a call of the derivative of a called function, which also gives tangents; returns the tangents of the
    /// results.
    pub(crate) fn push_function_jvp(mut self, graph: &Graph) -> Result<Vec<Option<Var>>, TransformError> {
        let (body, found) = self.differentiate_body(graph)?;
        let (found, args, gives) =
            (self.new_result_tangents(&found), self.operands_and_tangents(), self.e.results.len());
        Ok(self.push_with_tangents(ClosedCall(body).into(), args, &[gives], found))
    }

    /// Returns the derivative of a called graph, whose parameters are all operands followed by tangents of those that
    /// have some, and for each result whether it has a tangent.
    pub(crate) fn differentiate_body(&self, graph: &Graph) -> Result<(Graph, Vec<bool>), TransformError> {
        let TangentGraph { mut graph, of_results, .. } = build_tangent_graph(graph, &self.active_operands(), false)?;
        graph.results = interleave_tangents(&graph.results, &of_results, &[of_results.len()]);
        Ok((graph, tangent_flags(&of_results)))
    }

    /// Returns branches with tangents of the parameters for which `is_active` is true, and for each result whether it
    /// has a tangent. If one branch gives a result a tangent, all branches do.
    pub(crate) fn differentiate_branches(
        &self,
        branches: &[Graph],
        is_active: &[bool],
    ) -> Result<(Vec<Graph>, Vec<bool>), TransformError> {
        let mut made = branches
            .iter()
            .map(|branch| build_tangent_graph(branch, is_active, false))
            .collect::<Result<Vec<_>, _>>()?;
        let n = self.e.results.len();
        let found: Vec<bool> = (0..n).map(|i| made.iter().any(|branch| branch.of_results[i].is_some())).collect();
        for TangentGraph { graph, of_results, .. } in &mut made {
            let own = graph.results.clone();
            for ((tangent, &r), _) in of_results.iter_mut().zip(&own).zip(&found).filter(|(_, has)| **has) {
                *tangent = Some(tangent_or_zeros(graph, *tangent, r));
            }
            graph.results = interleave_tangents(&own, of_results, &[n]);
        }
        Ok((made.into_iter().map(|branch| branch.graph).collect(), found))
    }

    /// Returns the operands, followed by the tangents of those that have some.
    pub(crate) fn operands_and_tangents(&self) -> Vec<Var> {
        interleave_tangents(&self.e.args, self.given, &[self.e.args.len()])
    }

    /// Returns the operands in groups that end at `group_ends`, each group followed by the tangents of those operands
    /// for which `is_active` is true; zeros for tangents that do not exist.
    pub(crate) fn interleaved_operands(&mut self, is_active: &[bool], group_ends: &[usize]) -> Vec<Var> {
        let all = self.e.args.iter().zip(self.given).zip(is_active);
        let tangents: Vec<_> = all.map(|((&v, given), on)| on.then(|| tangent_or_zeros(self.to, *given, v))).collect();
        interleave_tangents(&self.e.args, &tangents, group_ends)
    }

    /// Returns the body of a loop with tangents of the parameters for which `is_active` is true, and for each result
    /// whether it has a tangent. Groups of parameters and of results end at `param_group_ends` and `result_group_ends`.
    /// The carried values are the parameters from position `first_carried` on, and the first group of results.
    pub(crate) fn differentiate_loop_body(
        &self,
        body: &Graph,
        is_active: &[bool],
        first_carried: usize,
        param_group_ends: &[usize],
        result_group_ends: &[usize],
    ) -> Result<(Graph, Vec<bool>), TransformError> {
        let TangentGraph { mut graph, of_params, mut of_results } = build_tangent_graph(body, is_active, false)?;
        let own = graph.results.clone();
        for i in (0..result_group_ends[0]).filter(|&i| is_active[first_carried + i]) {
            of_results[i] = Some(tangent_or_zeros(&mut graph, of_results[i], own[i]));
        }
        graph.params = interleave_tangents(&body.params, &of_params, param_group_ends);
        graph.results = interleave_tangents(&own, &of_results, result_group_ends);
        Ok((graph, tangent_flags(&of_results)))
    }

    /// Returns a new variable for the tangent of each result for which `has_tangent` is true.
    pub(crate) fn new_result_tangents(&mut self, has_tangent: &[bool]) -> Vec<Option<Var>> {
        let one = |(&r, has): (&Var, &bool)| has.then(|| self.to.var(self.to.ty(r).clone()));
        self.e.results.iter().zip(has_tangent).map(one).collect()
    }
}

/// Returns for each tangent whether there is one.
fn tangent_flags(tangents: &[Option<Var>]) -> Vec<bool> {
    tangents.iter().map(Option::is_some).collect()
}
