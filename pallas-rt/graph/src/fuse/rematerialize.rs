//! Rematerialization: values are computed again where that needs less memory than keeping them.
//!
//! A value that is kept for later readers while most memory is in use is computed a second time for these readers, if a
//! few light operations compute it from values that are there anyway: the readers' kernels then compute it themselves.
//! One of the operations may be an `exp` or the like if there is a single reader: it takes less time than writing and
//! reading a large array.
//!
//! A value with a single reader is always computed by that reader's kernel if light operations compute it from values
//! that the kernel reads anyway.
use super::cluster::ClusteredGraph;
use super::device_limits::DeviceLimits;
use super::equation_kinds::{is_memory_alias, is_product, is_short_fold, is_standalone_op};
use super::schedule::StepDependencies;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use std::collections::{BTreeMap, BTreeSet};

/// Most equations that are copied to compute one value again in place of keeping it in memory.
const MAX_RECOMPUTED_OPS: usize = 8;
/// Divisor of the arena's size: the part of it that a plan must save at least to be taken because it computes values
/// again.
pub(super) const MIN_SAVED_ARENA_DIVISOR: usize = 16;
/// Most bytes of a value that counts as free to read; a kernel computes a value again from larger ones only if it reads
/// these anyway.
const MAX_FREE_READ_BYTES: usize = 1 << 10;

/// A graph with the plan that was made for it.
pub(super) struct PlannedGraph<'p> {
    pub found: &'p ClusteredGraph<'p>,
    pub is_donated: &'p [bool],
    pub sizes: &'p DeviceLimits,
    pub steps: &'p StepDependencies,
    /// The steps in the order of the plan.
    pub schedule: &'p [usize],
    /// The clusters that the steps of the plan compute, in the order of the plan.
    pub order: &'p [usize],
}

/// The lifetime of a value in memory, in indices into the plan's order of steps.
struct ValueLifetime {
    /// Bytes of the value in the arena; 0 if it is kept anyway.
    bytes: usize,
    /// Index of the step that makes the value.
    made: usize,
    /// Indices of the steps that read the value.
    reads: Vec<usize>,
}

impl PlannedGraph<'_> {
    /// Returns the graph in which values that are kept at the peak of memory are computed again for their later
    /// readers; `None` if that saves too little.
    pub(super) fn recompute_at_peak(&self) -> Option<Graph> {
        let (bytes, peak) = self.steps.find_peak_bytes_and_index(self.schedule);
        if bytes < self.sizes.arena {
            return None;
        }
        let waits = self.value_lifetimes();
        let is_idle = |wait: &ValueLifetime| wait.made <= peak && wait.reads.iter().all(|&at| at != peak);
        let mut idle: Vec<(Var, &ValueLifetime)> = waits.iter().map(|(&v, wait)| (v, wait)).collect();
        idle.retain(|(_, wait)| wait.bytes > 0 && is_idle(wait) && wait.reads.last().is_some_and(|&at| at > peak));
        idle.sort_by_key(|(v, wait)| (std::cmp::Reverse(wait.bytes), *v));
        // By value, the equations that compute it again; and the values that those read.
        let mut again: BTreeMap<Var, Vec<usize>> = BTreeMap::new();
        let mut kept: BTreeSet<Var> = BTreeSet::new();
        let mut saved = 0;
        for (v, wait) in idle {
            let late = wait.reads[wait.reads.len() - 1];
            let is_there = |s: Var| {
                let waits_longer =
                    |wait: &ValueLifetime| wait.bytes == 0 || wait.reads.last().is_some_and(|&at| at >= late);
                let waits = !again.contains_key(&s) && waits.get(&s).is_some_and(waits_longer);
                // A parameter that is not donated has its value at all times.
                let param = self.found.graph.params.iter().position(|&p| p == s);
                waits || param.is_some_and(|i| self.is_donated.get(i) != Some(&true))
            };
            let heavy = usize::from(wait.reads.len() == 1);
            if !kept.contains(&v)
                && let Some((equations, reads)) = self.find_cheap_equations(v, heavy, &is_there)
            {
                saved += wait.bytes;
                kept.extend(reads);
                again.insert(v, equations);
            }
        }
        let late: BTreeSet<usize> = self.order.iter().skip(peak + 1).copied().collect();
        (saved >= bytes / MIN_SAVED_ARENA_DIVISOR && saved > 0)
            .then(|| self.rewrite_with_copies(&again, &|cluster, _| late.contains(&cluster)))
    }

    /// Returns the graph in which kernels compute the values that only they read, from others that they read anyway;
    /// `None` if there are none.
    pub(super) fn recompute_in_readers(&self) -> Option<Graph> {
        let (mut again, mut reader): (BTreeMap<Var, Vec<usize>>, BTreeMap<Var, usize>) = Default::default();
        let mut kept: BTreeSet<Var> = BTreeSet::new();
        let waits = self.value_lifetimes();
        for (&v, wait) in &waits {
            let &[at] = &wait.reads[..] else { continue };
            let cluster = self.order[at];
            if wait.bytes < self.sizes.arena.max(1) || kept.contains(&v) || !self.can_recompute_values(cluster) {
                continue;
            }
            let read: BTreeSet<Var> = self.steps.values_read(self.schedule[at]).filter(|&other| other != v).collect();
            let is_small = |s: Var| self.found.graph.ty(s).bytes() <= MAX_FREE_READ_BYTES && waits.contains_key(&s);
            let is_there = |s: Var| (read.contains(&s) || is_small(s)) && !again.contains_key(&s);
            if let Some((equations, reads)) = self.find_cheap_equations(v, 0, &is_there) {
                kept.extend(reads);
                again.insert(v, equations);
                reader.insert(v, cluster);
            }
        }
        (!again.is_empty()).then(|| self.rewrite_with_copies(&again, &|cluster, v| reader.get(&v) == Some(&cluster)))
    }

    /// Returns cheap equations, which take little time per element, that compute a value from values for which
    /// `is_in_memory` is true, and the values that they read; `None` if there are none. At most `max_costly_equations`
    /// of the equations may take more time.
    fn find_cheap_equations(
        &self,
        v: Var,
        max_costly_equations: usize,
        is_in_memory: &dyn Fn(Var) -> bool,
    ) -> Option<(Vec<usize>, Vec<Var>)> {
        let mut chain = CheapEquationSearch {
            found: self.found,
            is_there: is_in_memory,
            equations: vec![],
            reads: vec![],
            heavy: max_costly_equations,
        };
        chain.try_find_equations(v).then_some((chain.equations, chain.reads))
    }

    /// Returns true for a cluster that may compute values again: it has no step of its own, and no product, which would
    /// compute a value again for each of its blocks.
    fn can_recompute_values(&self, cluster: usize) -> bool {
        let own =
            self.found.owner.iter().zip(&self.found.graph.equations).filter(|(owner, _)| **owner == Some(cluster));
        let mut ops = own.map(|(_, e)| &e.op);
        !ops.any(|op| is_standalone_op(op) || is_product(op))
    }

    /// Returns the lifetime of each value that a step makes.
    fn value_lifetimes(&self) -> BTreeMap<Var, ValueLifetime> {
        let mut waits = BTreeMap::new();
        for (at, &step) in self.schedule.iter().enumerate() {
            for (v, bytes) in self.steps.values_made(step) {
                waits.insert(v, ValueLifetime { bytes, made: at, reads: vec![] });
            }
            for v in self.steps.values_read(step) {
                if let Some(wait) = waits.get_mut(&v) {
                    wait.reads.push(at);
                }
            }
        }
        waits
    }

    /// Returns the graph in which each cluster computes a value again by copies of its equations in `copied_equations`
    /// where `needs_copy` returns true for the cluster and the value.
    fn rewrite_with_copies(
        &self,
        copied_equations: &BTreeMap<Var, Vec<usize>>,
        needs_copy: &dyn Fn(usize, Var) -> bool,
    ) -> Graph {
        let mut made = self.found.graph.with_equations(vec![]);
        let mut own: BTreeMap<(usize, Var), Var> = BTreeMap::new();
        for (i, e) in self.found.graph.equations.iter().enumerate() {
            let mut e = e.clone();
            if let Some(cluster) = self.found.owner[i] {
                for arg in &mut e.args {
                    let stored = self.found.storage_value(*arg);
                    if let Some(equations) = copied_equations.get(&stored).filter(|_| needs_copy(cluster, stored)) {
                        *arg = self.copy_for_cluster(&mut made, cluster, *arg, equations, &mut own);
                    }
                }
            }
            made.equations.push(e);
        }
        made
    }

    /// Appends to `rewritten` copies for a cluster of `equations`, which compute `v` or the value that `v` is a
    /// reshape of, and of this reshape; returns the copy of `v`, which may be one of `copies`.
    fn copy_for_cluster(
        &self,
        rewritten: &mut Graph,
        cluster: usize,
        v: Var,
        equations: &[usize],
        copies: &mut BTreeMap<(usize, Var), Var>,
    ) -> Var {
        if let Some(&known) = copies.get(&(cluster, v)) {
            return known;
        }
        let definition = self.found.definitions[v.index()].expect("it is no parameter");
        let mut equations = equations;
        let view = [definition];
        if self.found.storage_value(v) != v {
            self.copy_for_cluster(
                rewritten,
                cluster,
                self.found.graph.equations[definition].args[0],
                equations,
                copies,
            );
            equations = &view;
        }
        for &i in equations {
            let e = &self.found.graph.equations[i];
            let args = e.args.iter().map(|&v| copies.get(&(cluster, v)).copied().unwrap_or(v)).collect();
            let result = rewritten.var(self.found.graph.ty(e.result()).clone());
            rewritten.equations.push(Equation { args, results: vec![result], ..e.clone() });
            copies.insert((cluster, e.result()), result);
        }
        copies[&(cluster, v)]
    }
}

/// A search for cheap equations, which take little time per element, that compute a value from values in memory.
struct CheapEquationSearch<'p> {
    found: &'p ClusteredGraph<'p>,
    /// Returns true for values that are in memory when this one is needed.
    is_there: &'p dyn Fn(Var) -> bool,
    /// The equations found so far, each after those that it reads from.
    equations: Vec<usize>,
    /// The values in memory that the equations found so far read.
    reads: Vec<Var>,
    /// Number of operations that may still be more than cheap.
    heavy: usize,
}

impl CheapEquationSearch<'_> {
    /// Adds to `equations` those that compute a value from values in memory, each after those that it reads from;
    /// returns false if there are none within the limits of number and cost.
    fn try_find_equations(&mut self, v: Var) -> bool {
        let Some(i) = self.found.definitions[v.index()] else { return false };
        let e = &self.found.graph.equations[i];
        if self.equations.contains(&i) {
            return true;
        }
        let is_broadcast = matches!(e.op, Op::Structural(StructuralOp::Broadcast(_)));
        if !e.op.is_cheap_per_element() && !is_broadcast && !is_short_fold(self.found.graph, e) {
            let Some(left) = self.heavy.checked_sub(1).filter(|_| matches!(e.op, Op::Scalar(_))) else { return false };
            self.heavy = left;
        }
        if self.equations.len() == MAX_RECOMPUTED_OPS {
            return false;
        }
        let made = e.args.iter().all(|&arg| self.is_available(arg) || self.try_find_equations(arg));
        if made {
            self.equations.push(i);
        }
        made
    }

    /// Returns true for a value that is in memory, or a literal or the like that is made wherever it is used.
    fn is_available(&mut self, v: Var) -> bool {
        let stored = self.found.storage_value(v);
        if (self.is_there)(stored) {
            self.reads.push(stored);
            return true;
        }
        let is_free = |i: usize| {
            let e = &self.found.graph.equations[i];
            self.found.owner[i].is_none() && !is_memory_alias(self.found.graph, &self.found.definitions, e)
        };
        self.found.definitions[v.index()].is_some_and(is_free)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;
    use crate::dynamic::DynamicSlice;
    use pallas_ir::structural::{Cast, Reduce};
    use pallas_ir::{DType, Diag, Literal, ScalarOp, Type};

    const N: usize = 1 << 10;
    const BYTES: usize = 4 * N;

    /// Returns a graph that reads an element of each of eight arrays, then another one of each at a position that
    /// depends on the first ones. `last` is the last operation that makes the arrays.
    fn read_twice(last: ScalarOp) -> Result<Graph, Diag> {
        let mut graph = Graph::default();
        let (x, first) = (graph.param(Type::new(DType::F32, [N])), graph.param(Type::scalar(DType::I32)));
        let element = || DynamicSlice { size: vec![1] };
        let sum = || StructuralOp::Reduce(Reduce { op: ScalarOp::Add, axes: vec![0], keep: false });
        let (mut all, mut total) = (vec![], graph.splat(Literal::new(DType::F32, 0.0), &[1]));
        for k in 0..8 {
            let k = graph.splat(Literal::new(DType::F32, f64::from(k)), &[N]);
            let scaled = graph.push(ScalarOp::Mul, &[x, k])?;
            all.push(graph.push(last, &[scaled])?);
            let own = graph.push(element(), &[all[all.len() - 1], first])?;
            total = graph.push(ScalarOp::Add, &[total, own])?;
        }
        let second = graph.push(sum(), &[total])?;
        let second = graph.push(StructuralOp::Cast(Cast { to: DType::I32 }), &[second])?;
        for scaled in all {
            let own = graph.push(element(), &[scaled, second])?;
            total = graph.push(ScalarOp::Add, &[total, own])?;
        }
        graph.results.push(total);
        Ok(graph)
    }

    fn sizes(arena: usize) -> DeviceLimits {
        DeviceLimits { arena, ..DeviceLimits::TEST }
    }

    /// Returns a graph of exponentials divided by their sum, for which all programs have to wait.
    fn softmax(n: usize) -> Result<Graph, Diag> {
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, [n]));
        let e = graph.push(ScalarOp::Exp, &[x])?;
        let sum = graph.push(StructuralOp::Reduce(Reduce { op: ScalarOp::Add, axes: vec![0], keep: false }), &[e])?;
        let sum = graph.broadcast(sum, &[n])?;
        let y = graph.push(ScalarOp::Div, &[e, sum])?;
        graph.results.push(y);
        Ok(graph)
    }

    #[test]
    fn an_exponential_that_is_read_once_does_not_wait() {
        let n = 1 << 18;
        let arena = |from| plan(&softmax(n).expect("it fits"), &[], &sizes(from)).arena;
        assert!(arena(0) < n, "{} bytes", arena(0));
        assert!(arena(usize::MAX) >= 4 * n, "{} bytes", arena(usize::MAX));
    }

    /// Shares of a sum are read by a fold and by the equations after it, and the latter compute them again from the
    /// exponentials, which they read anyway.
    #[test]
    fn what_the_reader_reads_makes_a_value() {
        let n = 1 << 18;
        let mut graph = softmax(n).expect("it fits");
        let share = graph.results[0];
        let e =
            graph.equations.iter().find(|e| matches!(e.op, Op::Scalar(ScalarOp::Exp))).expect("it has one").result();
        let sum = Reduce { op: ScalarOp::Add, axes: vec![0], keep: false };
        let sum = graph.push(StructuralOp::Reduce(sum), &[share]).expect("it has the axis");
        let sum = graph.broadcast(sum, &[n]).expect("it fits");
        let own = graph.push(ScalarOp::Add, &[share, sum]).expect("one shape");
        graph.results = vec![graph.push(ScalarOp::Mul, &[own, e]).expect("one shape")];
        let arena = |from| plan(&graph, &[], &sizes(from)).arena;
        assert!(arena(1) < n, "{} bytes", arena(1));
        assert!(arena(usize::MAX) >= 8 * n, "{} bytes", arena(usize::MAX));
    }

    #[test]
    fn cheap_values_do_not_wait() {
        let arena = |last: ScalarOp, from: usize| plan(&read_twice(last).expect("it fits"), &[], &sizes(from)).arena;
        assert!(arena(ScalarOp::Neg, 0) < 4 * BYTES, "{} bytes", arena(ScalarOp::Neg, 0));
        // Others wait, and so do all in a small arena.
        assert!(arena(ScalarOp::Exp, 0) > 8 * BYTES, "{} bytes", arena(ScalarOp::Exp, 0));
        assert!(arena(ScalarOp::Neg, usize::MAX) > 8 * BYTES);
    }
}
