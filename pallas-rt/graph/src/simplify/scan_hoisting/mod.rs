//! Moves out of scans what carried values do not need or do not depend on, so that it is computed for all steps at
//! once.
//!
//! ```text
//! %4, %5 = scan { lambda v w h x . a = dot x v  b = dot h w  k = tanh (add a b)  y = exp k  in k, y } %0, %1, %2, %3
//!
//! %6     = dot %3 %0
//! %4, %7 = scan { lambda   w h a .              b = dot h w  k = tanh (add a b)             in k, k } %1, %2, %6
//! %5     = exp %7
//!
//! %4 = scan { .. lambda c .. in add c (dot a b), .. } ..      %4 = add c0 (dot as bs), which contracts the steps too
//! %4 = scan { .. lambda c .. in add c (sum a), .. } ..        %4 = add c0 (sum as)
//! ```
//!
//! One product of many rows takes less time than many products of few rows, and a small step gets cheaper: a step of a
//! few elements takes longer to start than to compute. The sums are those of gradients of values that a scan captures.
//! New arrays must not need much more memory than the arrays that the scan has. Two kinds of scans stay as they are:
//! bodies with a barrier, which compute values again to save memory, and scans that carry sums alone, which were split
//! to save memory.
//!
//! A scan of one step is replaced by its equations.
mod hoist_decision;
mod split_scan;

use super::cancel::simplify_equations;
use super::common_subexpressions::eliminate_common_subexpressions;
use super::products::replace_sums_of_products;
use super::unit_axes::drop_inserted_unit_axes;
use crate::call::Scan;
use crate::dead_code::without_dead_equations;
use crate::graph::{Equation, Graph, Var};
use crate::identity::OptimizationBarrier;
use crate::inline::inline;
use hoist_decision::PhaseAssignment;

/// A scan split into graphs before, in and after the loop. Variables are those of the scan's body.
struct SplitScan {
    /// The scan that is split.
    scan: Scan,
    /// The parameters of the graph before the loop.
    params: Vec<Var>,
    /// The values that the graph before the loop computes.
    early: Vec<Var>,
    /// The graph before the loop, for all steps at once.
    before: Graph,
    /// One step of the new loop.
    within: Graph,
    /// Number of values that the new loop captures.
    captured: usize,
    /// The carried values of the new loop, by their numbers in the scan.
    inits: Vec<usize>,
    /// The values that the graph after the loop takes.
    late: Vec<Var>,
    /// The graph after the loop, for all steps at once.
    after: Graph,
    /// Carried values that are sums: the number of the carried value, the equations from stacked values to what is
    /// added, and the number of these stacked values.
    sums: Vec<(usize, Vec<Equation>, usize)>,
}

/// Splits the scans of a graph where that is faster, and replaces scans of one step by their equations.
pub(super) fn hoist_out_of_scans(graph: Graph) -> Graph {
    if !graph.equations.iter().any(|e| Scan::of_op(&e.op).is_some()) {
        return graph;
    }
    let mut to = graph.with_equations(vec![]);
    let mut same: Vec<Var> = (0..graph.types.len() as u32).map(Var).collect();
    for e in &graph.equations {
        let mut e = e.clone();
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        to.at = e.loc;
        let made = Scan::of_op(&e.op).and_then(|scan| match scan.length {
            0 => None,
            1 => Some(inline_single_step(&mut to, scan, &e.args)),
            _ => {
                let (scan, args) = merge_equal_operands(scan, &e.args);
                Some(try_split_scan(&scan)?.emit_split_scan(&mut to, &args))
            }
        });
        match made {
            Some(made) => e.results.iter().zip(made).for_each(|(r, v)| same[r.index()] = v),
            None => to.equations.push(e),
        }
    }
    to.at = graph.at;
    to.results.iter_mut().for_each(|r| *r = same[r.index()]);
    to
}

/// Appends the equations of a scan of one step; returns the scan's results.
fn inline_single_step(to: &mut Graph, scan: &Scan, args: &[Var]) -> Vec<Var> {
    let mut args = args.to_vec();
    for v in &mut args[scan.captured + scan.carried..] {
        let shape = to.ty(*v).shape[1..].to_vec();
        *v = to.reshape(*v, &shape);
    }
    let mut made = to.inline(&inline(&without_dead_equations(scan.body.clone())), &args);
    for v in &mut made[scan.carried..] {
        let shape = [&[1], &to.ty(*v).shape[..]].concat();
        *v = to.reshape(*v, &shape);
    }
    made
}

/// Returns the scan with equal operands replaced by one of them, and its operands.
fn merge_equal_operands(scan: &Scan, args: &[Var]) -> (Scan, Vec<Var>) {
    let (mut scan, mut own) = (scan.clone(), vec![]);
    let mut same: Vec<Var> = (0..scan.body.types.len() as u32).map(Var).collect();
    let params = std::mem::take(&mut scan.body.params);
    let arrays = scan.captured + scan.carried;
    let group = |i: usize| (i >= scan.captured, i >= arrays);
    let mut captured = scan.captured;
    for (i, (&arg, &p)) in args.iter().zip(&params).enumerate() {
        let first = args.iter().position(|&other| other == arg).filter(|&first| group(first) == group(i));
        match first.filter(|&first| first < i && group(i) != (true, false)) {
            Some(first) => {
                same[p.index()] = params[first];
                captured -= usize::from(i < scan.captured);
            }
            None => {
                scan.body.params.push(p);
                own.push(arg);
            }
        }
    }
    scan.captured = captured;
    let read = scan.body.equations.iter_mut().flat_map(|e| &mut e.args).chain(&mut scan.body.results);
    read.for_each(|v| *v = same[v.index()]);
    (scan, own)
}

/// Splits a scan into graphs before, in and after the loop: at any operation if that gains something, else at products
/// only; `None` if neither does.
fn try_split_scan(scan: &Scan) -> Option<SplitScan> {
    let passes = [
        without_dead_equations,
        drop_inserted_unit_axes,
        replace_sums_of_products,
        simplify_equations,
        eliminate_common_subexpressions,
        without_dead_equations,
    ];
    let body = passes.iter().fold(inline(&scan.body), |body, pass| pass(body));
    if body.equations.iter().any(|e| e.op == OptimizationBarrier.into()) {
        return None;
    }
    [true, false].into_iter().find_map(|everywhere| PhaseAssignment::new(scan, &body, everywhere)?.try_split())
}
