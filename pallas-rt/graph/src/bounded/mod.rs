//! One graph for all sizes up to a bound.
//!
//! A function is traced for the bounds, and once more for each size, with that size alone smaller. The traces differ
//! only in extents and constants that depend on the sizes, so comparing them shows how the number of existing elements
//! along each axis depends on the sizes, and operations need not declare anything for it. [`BoundedGraph::graph`]
//! computes the results for any sizes up to the bounds. Its arrays have the bounds as extents, and the elements that
//! exist are at their start. The other elements have no influence: they are replaced where an operation would mix them
//! with existing ones (`mask`). Constants that depend on the sizes become parameters.
//!
//! ```text
//! for 8:         { lambda %0:f32[8] . %1:f32[] = reduce(add) %0  %2:f32[] = 8.0  %3:f32[] = div %1, %2 in %3 }
//! for 7:         { lambda %0:f32[7] . %1:f32[] = reduce(add) %0  %2:f32[] = 7.0  %3:f32[] = div %1, %2 in %3 }
//! for up to 8:   { lambda %0:f32[8], n:i32[], %2:f32[] .
//!                    x = select (iota < n), %0, 0.0  %1:f32[] = reduce(add) x  %3:f32[] = div %1, %2 in %3 }
//! ```
//!
//! A function may do something else for other sizes, such as a loop in Rust over the elements of an axis. So the
//! function is traced once for each combination of sizes, and [`BoundedGraph::size_dependent_args`] checks that its
//! graph belongs to the same function (`trace_comparison`).
mod mask;
mod masked_moves;
mod trace_comparison;

use crate::dead_code::without_dead_equations;
use crate::graph::{Graph, Op};
use crate::simplify::inlined;
use mask::MaskingContext;
pub(crate) use mask::{CallMasking, GraphMasker, MaskedGraphAndParams};
use pallas_ir::{DType, Literal, Loc, StructuralOp, Type};
use std::collections::HashMap;
use trace_comparison::check_same_function;

/// The error for a traced graph that the one graph for all sizes cannot stand for, since it differs from the function's
/// other traces in more than extents and constants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphMismatch {
    /// The user's line of the first operation that differs; `Loc::NONE` if none does.
    pub at: Loc,
    /// The difference, as text.
    pub what: String,
}

impl GraphMismatch {
    fn new(at: Loc, what: impl Into<String>) -> GraphMismatch {
        GraphMismatch { at, what: what.into() }
    }
}

/// The graphs of one function for all sizes up to bounds, with the one masked graph that stands for all of them.
pub struct BoundedGraph {
    /// The traced sizes, each with its graph: first all sizes at their bounds, then one sample for each size, where
    /// that size alone is smaller.
    samples: Vec<(Vec<usize>, Graph)>,
    table: SizeTable,
    masked: Graph,
}

/// An extent, or another integer attribute, as a linear function of the sizes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LinearExtent {
    /// Its value if all sizes are at their bounds.
    bound: usize,
    /// For each size, by how much the extent grows if the size grows by 1.
    slopes: Vec<usize>,
}

/// The extents and constants of a traced function that differ between its traces for several sizes; each is a
/// parameter of the one graph that serves all sizes.
#[derive(Default)]
struct SizeTable {
    extents: Vec<LinearExtent>,
    /// For each constant that differs, its values in the samples.
    literals: Vec<Vec<Literal>>,
    /// For each constant that differs, the lines of the user's program that contain it.
    lines: Vec<Vec<Loc>>,
    extent_numbers: HashMap<LinearExtent, usize>,
    literal_numbers: HashMap<Vec<Literal>, usize>,
}

/// Inlines all functions that the graph calls, also in the bodies of loops and branches, and drops what nothing reads.
fn inline_and_prune(graph: &Graph) -> Graph {
    let mut graph = without_dead_equations(inlined(graph));
    for e in &mut graph.equations {
        if let Op::Call(call) = &e.op {
            e.op = call.map_graphs(inline_and_prune).into();
        }
    }
    graph
}

/// Calls `f` with `samples`, the graphs of one function as traced for fixed sizes, and then with the traces of each
/// graph that they call, at any depth.
fn visit_called_graphs(
    samples: &[&Graph],
    f: &mut dyn FnMut(&[&Graph]) -> Result<(), GraphMismatch>,
) -> Result<(), GraphMismatch> {
    f(samples)?;
    for i in 0..samples[0].equations.len() {
        for called in graphs_called_by(samples, i) {
            visit_called_graphs(&called, f)?;
        }
    }
    Ok(())
}

/// Returns the graphs that equation number `equation` calls: for each called graph, one in each sample.
fn graphs_called_by<'a>(samples: &[&'a Graph], equation: usize) -> Vec<Vec<&'a Graph>> {
    let of = |graph: &&'a Graph| match &graph.equations[equation].op {
        Op::Call(call) => call.graphs(),
        _ => vec![],
    };
    let all: Vec<Vec<&Graph>> = samples.iter().map(of).collect();
    (0..all[0].len()).map(|k| all.iter().map(|graphs| graphs[k]).collect()).collect()
}

impl SizeTable {
    /// Returns the index in the table of the extent that is `values[i]` in the graph traced for `sizes[i]`; `None` if
    /// it does not depend on the sizes.
    fn extent_index(&self, values: &[usize], sizes: &[&[usize]]) -> Option<usize> {
        self.extent_numbers.get(&LinearExtent::from_samples(values, sizes)?).copied()
    }

    /// Returns the position, in the table of constants that depend on sizes, of the one that has `values[i]` in the
    /// graph traced for the sizes number `i`; `None` if the table has none, as where all values are the same.
    fn literal_index(&self, values: &[Literal]) -> Option<usize> {
        self.literal_numbers.get(values).copied()
    }

    /// Adds an extent to the table, unless it is the same in all traces or already listed: it is `values[i]` in the
    /// graph traced for `sizes[i]`. An extent that is not linear in the sizes is an error at line `at`.
    fn add_extent(&mut self, at: Loc, values: &[usize], sizes: &[&[usize]]) -> Result<(), GraphMismatch> {
        if values.iter().all(|n| *n == values[0]) {
            return Ok(());
        }
        let Some(extent) = LinearExtent::from_samples(values, sizes) else {
            return Err(GraphMismatch::new(at, format!("an axis has extents of {values:?} for sizes of {sizes:?}")));
        };
        if !self.extent_numbers.contains_key(&extent) {
            self.extent_numbers.insert(extent.clone(), self.extents.len());
            self.extents.push(extent);
        }
        Ok(())
    }

    /// Adds a constant of line `at` to the table, unless its `values` in the traced graphs are all equal.
    fn add_literal(&mut self, at: Loc, values: Vec<Literal>) {
        if values.iter().all(|x| *x == values[0]) {
            return;
        }
        let number = *self.literal_numbers.entry(values.clone()).or_insert(self.literals.len());
        if number == self.literals.len() {
            self.literals.push(values);
            self.lines.push(vec![]);
        }
        if !self.lines[number].contains(&at) {
            self.lines[number].push(at);
        }
    }

    /// Returns the types of the parameters that stand for the table's entries: first the extents, as i32, then the
    /// constants.
    fn entry_param_types(&self) -> Vec<Type> {
        let extents = self.extents.iter().map(|_| Type::scalar(DType::I32));
        extents.chain(self.literals.iter().map(|x| Type::scalar(x[0].dtype))).collect()
    }
}

impl LinearExtent {
    /// Returns the linear function of the sizes that is `values[i]` for `sizes[i]`; `None` if it is constant or no such
    /// function exists.
    fn from_samples(values: &[usize], sizes: &[&[usize]]) -> Option<LinearExtent> {
        let mut slopes = vec![];
        for (k, (&extent, own)) in values.iter().zip(sizes).enumerate().skip(1) {
            let (grown, by) = (values[0].checked_sub(extent)?, sizes[0][k - 1] - own[k - 1]);
            slopes.push(if grown % by == 0 { grown / by } else { return None });
        }
        slopes.iter().any(|slope| *slope > 0).then_some(LinearExtent { bound: values[0], slopes })
    }

    /// Returns the extent for `sizes`, of which `bounds` are the greatest possible ones.
    fn evaluate(&self, bounds: &[usize], sizes: &[usize]) -> i64 {
        let less = self.slopes.iter().zip(bounds.iter().zip(sizes)).map(|(slope, (most, n))| slope * (most - n));
        self.bound as i64 - less.sum::<usize>() as i64
    }
}

/// Returns the variables that a graph defines, each with the line of its equation; `Loc::NONE` for parameters.
fn defined_vars(graph: &Graph) -> impl Iterator<Item = (crate::Var, Loc)> {
    let made = graph.equations.iter().flat_map(|e| e.results.iter().map(|&r| (r, e.loc)));
    graph.params.iter().map(|&p| (p, Loc::NONE)).chain(made)
}

impl BoundedGraph {
    /// Makes the one graph for all sizes from graphs of a function that were traced for fixed sizes (samples). The
    /// first sample has all sizes at their bounds; then each size has one sample, in which that size alone is smaller.
    ///
    /// # Errors
    /// Graphs that differ in more than extents and constants; an operation that depends on where an axis of variable
    /// extent ends, and that has no masked form.
    pub fn new(samples: Vec<(Vec<usize>, Graph)>) -> Result<BoundedGraph, GraphMismatch> {
        let samples: Vec<(Vec<usize>, Graph)> =
            samples.into_iter().map(|(sizes, graph)| (sizes, inline_and_prune(&graph))).collect();
        let sizes: Vec<&[usize]> = samples.iter().map(|(sizes, _)| &sizes[..]).collect();
        let graphs: Vec<&Graph> = samples.iter().map(|(_, graph)| graph).collect();
        graphs[1..].iter().try_for_each(|graph| check_same_function(graphs[0], graph))?;
        let mut table = SizeTable::default();
        visit_called_graphs(&graphs, &mut |graphs| {
            for (v, at) in defined_vars(graphs[0]) {
                for axis in 0..graphs[0].ty(v).shape.len() {
                    let extents: Vec<usize> = graphs.iter().map(|graph| graph.ty(v).shape[axis]).collect();
                    table.add_extent(at, &extents, &sizes)?;
                }
            }
            for (i, e) in graphs[0].equations.iter().enumerate() {
                for numbers in attributes_in_each_sample(graphs, i) {
                    table.add_extent(e.loc, &numbers, &sizes)?;
                }
                if let Some(values) = literal_in_each_sample(graphs, i) {
                    table.add_literal(e.loc, values);
                }
            }
            Ok(())
        })?;
        let masked = MaskingContext { table: &table, sizes: &sizes }.mask_function(&graphs)?;
        debug_assert_eq!(crate::verify(&masked), Ok(()));
        Ok(BoundedGraph { masked, table, samples })
    }

    /// Returns the graph for all sizes up to the bounds. Its parameters are those of the graph for the bounds, followed
    /// by one for each of the [`size_dependent_args`](BoundedGraph::size_dependent_args).
    pub fn graph(&self) -> &Graph {
        &self.masked
    }

    /// Returns the constants that depend on the sizes: for each, the lines of the user's program that compute with it,
    /// and its values in the samples.
    pub fn size_dependent_literals(&self) -> impl Iterator<Item = (&[Loc], &[Literal])> {
        self.table.lines.iter().zip(&self.table.literals).map(|(lines, values)| (&lines[..], &values[..]))
    }

    /// Returns the values of the additional parameters of [`graph`](BoundedGraph::graph) for these sizes. `graph` is
    /// the function's graph as traced for them.
    ///
    /// # Errors
    /// A traced graph that [`graph`](BoundedGraph::graph) does not compute.
    pub fn size_dependent_args(&self, sizes: &[usize], graph: &Graph) -> Result<Vec<Literal>, GraphMismatch> {
        let graph = inline_and_prune(graph);
        let (bounds, first) = &self.samples[0];
        let all: Vec<&[usize]> = self.samples.iter().map(|(sizes, _)| &sizes[..]).collect();
        check_same_function(first, &graph)?;
        let mut values: Vec<Option<Literal>> = vec![None; self.table.literals.len()];
        let graphs: Vec<&Graph> = self.samples.iter().map(|(_, graph)| graph).chain([&graph]).collect();
        let fits = |samples: &[usize], found: usize| match self.table.extent_index(samples, &all) {
            Some(number) => self.table.extents[number].evaluate(bounds, sizes) == found as i64,
            None => samples[0] == found,
        };
        visit_called_graphs(&graphs, &mut |graphs| {
            let (own, samples) = graphs.split_last().expect("that of these sizes");
            for (v, at) in defined_vars(own) {
                for (axis, &found) in own.ty(v).shape.iter().enumerate() {
                    let extents: Vec<usize> = samples.iter().map(|graph| graph.ty(v).shape[axis]).collect();
                    if !fits(&extents, found) {
                        return Err(GraphMismatch::new(at, format!("an axis has an extent of {found}")));
                    }
                }
            }
            for (i, e) in own.equations.iter().enumerate() {
                for numbers in attributes_in_each_sample(graphs, i) {
                    let (found, numbers) = numbers.split_last().expect("that of these sizes");
                    if !fits(numbers, *found) {
                        return Err(GraphMismatch::new(e.loc, format!("an attribute is {found}")));
                    }
                }
                if let Some(literals) = literal_in_each_sample(graphs, i) {
                    let (found, literals) = literals.split_last().expect("that of these sizes");
                    let expected = match self.table.literal_index(literals) {
                        Some(number) => *values[number].get_or_insert(*found),
                        None => literals[0],
                    };
                    if *found != expected {
                        return Err(GraphMismatch::new(e.loc, format!("the number {found} depends on the size")));
                    }
                }
            }
            Ok(())
        })?;
        let extents = self.table.extents.iter().map(|extent| Literal::int(DType::I32, extent.evaluate(bounds, sizes)));
        Ok(extents.chain(values.into_iter().map(|x| x.expect("every literal of the table is in the graph"))).collect())
    }
}

/// Returns the integer attributes of equation number `equation` that may depend on the sizes, besides extents: steps of
/// a scan, starts of a slice, elements that a pad adds in front. For each attribute there is one value for each sample.
fn attributes_in_each_sample(samples: &[&Graph], equation: usize) -> Vec<Vec<usize>> {
    let of = |graph: &&Graph| match &graph.equations[equation].op {
        Op::Call(call) => call.sized().map_or(vec![], |sized| sized.size_dependent_attributes()),
        Op::Structural(StructuralOp::Slice(slice)) => slice.start.iter().map(|&start| start as usize).collect(),
        Op::Structural(StructuralOp::Pad(pad)) => {
            // Negative padding is the same in all samples.
            pad.low.iter().map(|low| low.as_number().unwrap_or(0) as usize).collect()
        }
        _ => vec![],
    };
    let all: Vec<Vec<usize>> = samples.iter().map(of).collect();
    (0..all[0].len()).map(|k| all.iter().map(|numbers| numbers[k]).collect()).collect()
}

/// Returns the values of the constant that equation number `equation` is, one for each sample; `None` if it is no
/// literal.
fn literal_in_each_sample(samples: &[&Graph], equation: usize) -> Option<Vec<Literal>> {
    let of = |graph: &&Graph| if let Op::Literal(x) = graph.equations[equation].op { Some(x) } else { None };
    samples.iter().map(of).collect()
}
