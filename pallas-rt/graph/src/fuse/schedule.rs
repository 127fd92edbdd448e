//! An order of a plan's steps in which their values need little memory at the same time.
//!
//! As XLA's memory schedulers do, several orders are made by different rules, and the one that needs the fewest bytes
//! is taken: the given one; a depth-first one that first computes the operand which needs most memory (Sethi and
//! Ullman, "The Generation of Optimal Code for Arithmetic Expressions", 1970); one that always takes the step which frees
//! most; and one that does so from the last step to the first, so that a value is computed as late as possible, such as
//! those that a checkpoint computes again.
use super::cluster::ClusteredGraph;
use super::plan::LoweredStep;
use crate::call::has_effect;
use crate::graph::Var;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Divisor of the peak of memory: the part of it that another order must save at least to be taken, since in the given
/// order values are read soon after they are computed, while they are in caches.
const MIN_SAVED_PEAK_DIVISOR: usize = 16;

/// Steps of a plan in a given order, with the data that decides which other orders are possible and how much memory
/// they need.
#[derive(Default)]
pub(super) struct StepDependencies {
    /// By step, the steps that have to come before it.
    before: Vec<Vec<usize>>,
    /// By step, the values that it makes.
    makes: Vec<Vec<usize>>,
    /// By step, the values that it reads.
    reads: Vec<Vec<usize>>,
    /// By step, the values whose memory one of its results takes over.
    takes_over: Vec<Vec<usize>>,
    /// By step, bytes of the arena that it needs while it runs, besides its values.
    scratch: Vec<usize>,
    /// By value, the step that makes it; `usize::MAX` for parameters.
    maker: Vec<usize>,
    /// By value, its bytes in the arena.
    bytes: Vec<usize>,
    /// By value, the variable of the graph.
    vars: Vec<Var>,
    /// By value, the steps that read it, in the given order.
    readers: Vec<Vec<usize>>,
}

impl StepDependencies {
    /// Collects the steps of a plan. Each step has to come after those that make what it reads, steps with effects stay
    /// in their order, and a value is read before its memory is taken over.
    pub(super) fn new(found: &ClusteredGraph<'_>, lowered: &[LoweredStep], is_donated: &[bool]) -> StepDependencies {
        let graph = found.graph;
        let stored_as = |v| found.storage_value(v);
        let n = lowered.len();
        let none = || vec![vec![]; n];
        let scratch = lowered.iter().map(|step| step.work.scratch_bytes()).collect();
        let (before, makes, reads, takes_over) = (none(), none(), none(), none());
        let mut steps = StepDependencies { before, makes, reads, takes_over, scratch, ..StepDependencies::default() };
        let outlives: BTreeSet<Var> = graph.results.iter().map(|&r| stored_as(r)).collect();
        // Parameters count as values of no bytes, for the order of their readers.
        let mut values: BTreeMap<Var, usize> = BTreeMap::new();
        for (at, step) in lowered.iter().enumerate() {
            let taken = step.in_place.iter().flatten().map(|&v| stored_as(v));
            let read: BTreeSet<Var> = step.inputs.iter().map(|&v| stored_as(v)).chain(taken.clone()).collect();
            for v in read {
                let value = *values.entry(v).or_insert_with(|| steps.add_value(v, usize::MAX, 0));
                steps.readers[value].push(at);
                steps.reads[at].push(value);
                if steps.maker[value] != usize::MAX {
                    steps.before[at].push(steps.maker[value]);
                }
            }
            for value in taken.map(|v| values[&v]) {
                steps.takes_over[at].push(value);
                let earlier: Vec<usize> = steps.readers[value].iter().copied().filter(|&other| other != at).collect();
                steps.before[at].extend(earlier);
            }
            for &v in &step.outputs {
                let bytes = if outlives.contains(&v) { 0 } else { graph.ty(v).bytes() };
                let value = steps.add_value(v, at, bytes);
                values.insert(v, value);
                steps.makes[at].push(value);
            }
        }
        // The last reader of a donated parameter may take over its memory.
        for (p, _) in graph.params.iter().zip(is_donated).filter(|(_, donated)| **donated) {
            let Some(&value) = values.get(p) else { continue };
            if let [others @ .., last] = &steps.readers[value][..] {
                steps.before[*last].extend(others);
            }
        }
        let has_effect = |step: &LoweredStep| match step.outputs.first().and_then(|v| found.definitions[v.index()]) {
            Some(i) => has_effect(&graph.equations[i].op),
            None => false,
        };
        let effects: Vec<usize> = (0..n).filter(|&at| has_effect(&lowered[at])).collect();
        effects.windows(2).for_each(|pair| steps.before[pair[1]].push(pair[0]));
        for before in &mut steps.before {
            before.sort_unstable();
            before.dedup();
        }
        steps
    }

    /// Adds variable `v` to the table of values, as one that step `maker_step` makes (`usize::MAX` for a parameter)
    /// with this number of bytes in the arena; returns its index in the table.
    fn add_value(&mut self, v: Var, maker_step: usize, bytes: usize) -> usize {
        self.vars.push(v);
        self.maker.push(maker_step);
        self.bytes.push(bytes);
        self.readers.push(vec![]);
        self.bytes.len() - 1
    }

    /// Returns the steps in an order that needs little memory.
    pub(super) fn choose_low_memory_order(&self) -> Vec<usize> {
        let given: Vec<usize> = (0..self.before.len()).collect();
        let most = self.peak_bytes(&given);
        let others = [self.depth_first_order(), self.greedy_order(), self.reverse_greedy_order()];
        match others.into_iter().map(|order| (self.peak_bytes(&order), order)).min_by_key(|(peak, _)| *peak) {
            Some((peak, order)) if peak < most - most / MIN_SAVED_PEAK_DIVISOR => order,
            _ => given,
        }
    }

    /// Returns the values that a step makes, each with its bytes in the arena.
    pub(super) fn values_made(&self, step: usize) -> impl Iterator<Item = (Var, usize)> {
        self.makes[step].iter().map(|&value| (self.vars[value], self.bytes[value]))
    }

    /// Returns the values that a step reads, each once.
    pub(super) fn values_read(&self, step: usize) -> impl Iterator<Item = Var> {
        self.reads[step].iter().map(|&value| self.vars[value])
    }

    /// Returns the most bytes of the arena that are in use at once if the steps run in this order.
    fn peak_bytes(&self, order: &[usize]) -> usize {
        self.find_peak_bytes_and_index(order).0
    }

    /// Returns the most bytes of the arena that are in use at once in this order, and the first index in the order at
    /// which they are.
    pub(super) fn find_peak_bytes_and_index(&self, order: &[usize]) -> (usize, usize) {
        let mut left: Vec<usize> = self.readers.iter().map(Vec::len).collect();
        let (mut live, mut peak) = (0, (0, 0));
        for (place, &at) in order.iter().enumerate() {
            for &v in &self.reads[at] {
                left[v] -= 1;
            }
            let is_taken = |v: &usize| self.takes_over[at].contains(v);
            let freed = |v: &usize| left[*v] == 0;
            let bytes = |v: &usize| self.bytes[*v];
            live -= self.reads[at].iter().filter(|v| freed(v) && is_taken(v)).map(bytes).sum::<usize>();
            live += self.makes[at].iter().map(bytes).sum::<usize>();
            if live + self.scratch[at] > peak.0 {
                peak = (live + self.scratch[at], place);
            }
            live -= self.reads[at].iter().filter(|v| freed(v) && !is_taken(v)).map(bytes).sum::<usize>();
            live -= self.makes[at].iter().filter(|v| self.readers[**v].is_empty()).map(bytes).sum::<usize>();
        }
        peak
    }

    /// Returns the steps in depth-first order, beginning at those that no other step depends on. Of the steps that one
    /// step reads from, the one that needs the most memory beyond its result comes first (Sethi-Ullman order), where
    /// each result counts as read by one step only.
    fn depth_first_order(&self) -> Vec<usize> {
        let n = self.before.len();
        let (mut need, mut sources) = (vec![0; n], vec![vec![]; n]);
        let mut is_read = vec![false; n];
        for at in 0..n {
            let mut held: BTreeMap<usize, usize> = self.before[at].iter().map(|&source| (source, 0)).collect();
            for &v in &self.reads[at] {
                if let Some(bytes) = held.get_mut(&self.maker[v]) {
                    *bytes += self.bytes[v];
                }
            }
            self.before[at].iter().for_each(|&source| is_read[source] = true);
            let mut order: Vec<(usize, usize)> = held.into_iter().collect();
            order.sort_by_key(|&(source, bytes)| Reverse(need[source] - bytes.min(need[source])));
            let mut before = 0;
            for &(source, bytes) in &order {
                need[at] = need[at].max(before + need[source]);
                before += bytes;
            }
            let made: usize = self.makes[at].iter().map(|&v| self.bytes[v]).sum();
            need[at] = need[at].max(before + made + self.scratch[at]);
            sources[at] = order.into_iter().map(|(source, _)| source).collect();
        }
        depth_first_post_order((0..n).filter(|&at| !is_read[at]), n, |at| sources[at].clone())
    }

    /// Returns the order that always continues with the possible step after which the fewest bytes are in use.
    fn greedy_order(&self) -> Vec<usize> {
        let n = self.before.len();
        let mut waits: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut after: Vec<Vec<usize>> = vec![vec![]; n];
        for (at, before) in self.before.iter().enumerate() {
            before.iter().for_each(|&other| after[other].push(at));
        }
        let mut left: Vec<usize> = self.readers.iter().map(Vec::len).collect();
        let growth = |at: usize, left: &[usize]| -> i64 {
            let bytes = |v: &usize| self.bytes[*v] as i64;
            let made: i64 = self.makes[at].iter().filter(|v| !self.readers[**v].is_empty()).map(bytes).sum();
            made - self.reads[at].iter().filter(|v| left[**v] == 1).map(bytes).sum::<i64>()
        };
        let mut keys: Vec<i64> = (0..n).map(|at| growth(at, &left)).collect();
        let mut ready: BTreeSet<(i64, usize)> = (0..n).filter(|&at| waits[at] == 0).map(|at| (keys[at], at)).collect();
        let (mut order, mut is_done) = (Vec::with_capacity(n), vec![false; n]);
        while let Some((_, at)) = ready.pop_first() {
            order.push(at);
            is_done[at] = true;
            for &v in &self.reads[at] {
                left[v] -= 1;
                if left[v] == 1 && self.bytes[v] > 0 {
                    let last = self.readers[v].iter().copied().find(|&reader| !is_done[reader]);
                    let last = last.expect("one reader is left");
                    let was_ready = ready.remove(&(keys[last], last));
                    keys[last] = growth(last, &left);
                    if was_ready {
                        ready.insert((keys[last], last));
                    }
                }
            }
            for &next in &after[at] {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.insert((keys[next], next));
                }
            }
        }
        order
    }

    /// Returns the order that is chosen from its end: of the steps on which only chosen ones depend, always the one
    /// before which the fewest bytes are in use.
    fn reverse_greedy_order(&self) -> Vec<usize> {
        let n = self.before.len();
        let mut dependents = vec![0; n];
        self.before.iter().flatten().for_each(|&source| dependents[source] += 1);
        // A value is in use before a step if the step or a later one reads it, and no later one makes it.
        let mut is_used = vec![false; self.bytes.len()];
        let growth = |at: usize, is_used: &[bool]| -> i64 {
            let bytes_used = |all: &[usize], used: bool| -> i64 {
                all.iter().filter(|&&v| is_used[v] == used).map(|&v| self.bytes[v] as i64).sum()
            };
            bytes_used(&self.reads[at], false) - bytes_used(&self.makes[at], true)
        };
        let mut keys: Vec<i64> = (0..n).map(|at| growth(at, &is_used)).collect();
        let ready = (0..n).filter(|&at| dependents[at] == 0).map(|at| (keys[at], Reverse(at)));
        let mut ready: BTreeSet<(i64, Reverse<usize>)> = ready.collect();
        let mut order = Vec::with_capacity(n);
        while let Some((_, Reverse(at))) = ready.pop_first() {
            order.push(at);
            for &v in self.reads[at].iter().filter(|&&v| self.bytes[v] > 0) {
                if std::mem::replace(&mut is_used[v], true) {
                    continue;
                }
                for &reader in &self.readers[v] {
                    if ready.remove(&(keys[reader], Reverse(reader))) {
                        keys[reader] -= self.bytes[v] as i64;
                        ready.insert((keys[reader], Reverse(reader)));
                    }
                }
            }
            for &source in &self.before[at] {
                dependents[source] -= 1;
                if dependents[source] == 0 {
                    keys[source] = growth(source, &is_used);
                    ready.insert((keys[source], Reverse(source)));
                }
            }
        }
        order.reverse();
        order
    }
}

/// Returns the clusters that a cluster reads from, in the order of its equations and operands.
fn source_clusters(found: &ClusteredGraph<'_>, cluster: usize) -> Vec<usize> {
    let members = &found.all[cluster].members;
    let args = members.iter().flat_map(|&i| &found.graph.equations[i].args);
    let mut all: Vec<usize> = vec![];
    for source in args.filter_map(|&arg| found.cluster_of(arg)) {
        if source != cluster && !all.contains(&source) {
            all.push(source);
        }
    }
    all
}

/// Returns the clusters in an order in which each comes after those that it reads from, by a depth-first search from
/// the clusters with side effects in program order, and then from those of the results; values are thus read soon
/// after they are computed.
pub(super) fn initial_cluster_order(found: &ClusteredGraph<'_>) -> Vec<usize> {
    let effects = found.graph.equations.iter().zip(&found.owner).filter(|(e, _)| has_effect(&e.op));
    let effects = effects.filter_map(|(_, owner)| *owner);
    let results = found.graph.results.iter().filter_map(|&r| found.cluster_of(r));
    depth_first_post_order(effects.chain(results), found.all.len(), |cluster| source_clusters(found, cluster))
}

/// Returns the nodes `roots` and all that they depend on, in depth-first order, each after the nodes that `sources`
/// returns for it. Nodes are numbers less than `node_count`.
fn depth_first_post_order(
    roots: impl Iterator<Item = usize>,
    node_count: usize,
    sources: impl Fn(usize) -> Vec<usize>,
) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum VisitState {
        New,
        Open,
        Done,
    }
    let (mut states, mut order) = (vec![VisitState::New; node_count], vec![]);
    for root in roots {
        let mut stack = vec![(root, false)];
        while let Some((at, sources_are_done)) = stack.pop() {
            if sources_are_done {
                states[at] = VisitState::Done;
                order.push(at);
            } else if states[at] == VisitState::New {
                states[at] = VisitState::Open;
                stack.push((at, true));
                let sources = sources(at);
                assert!(sources.iter().all(|&s| states[s] != VisitState::Open), "they depend on each other");
                stack.extend(sources.into_iter().rev().map(|s| (s, false)));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceLimits, plan};
    use super::*;
    use crate::graph::Graph;
    use pallas_ir::structural::Dot;
    use pallas_ir::{DType, StructuralOp, Type};

    impl StepDependencies {
        /// Makes steps of one value each, from its bytes and the steps that it reads from.
        fn of(all: &[(usize, Vec<usize>)]) -> StepDependencies {
            let mut steps = StepDependencies {
                before: all.iter().map(|(_, reads)| reads.clone()).collect(),
                makes: (0..all.len()).map(|at| vec![at]).collect(),
                reads: all.iter().map(|(_, reads)| reads.clone()).collect(),
                takes_over: vec![vec![]; all.len()],
                scratch: vec![0; all.len()],
                maker: (0..all.len()).collect(),
                bytes: all.iter().map(|(bytes, _)| *bytes).collect(),
                vars: (0..all.len()).map(|at| Var(at as u32)).collect(),
                readers: vec![vec![]; all.len()],
            };
            for (at, (_, reads)) in all.iter().enumerate() {
                reads.iter().for_each(|&v| steps.readers[v].push(at));
            }
            steps
        }

        fn is_possible(&self, order: &[usize]) -> bool {
            let mut place = vec![usize::MAX; self.before.len()];
            order.iter().enumerate().for_each(|(i, &at)| place[at] = i);
            let comes_later = |at: usize| self.before[at].iter().all(|&source| place[source] < place[at]);
            order.len() == place.len() && (0..place.len()).all(|at| place[at] != usize::MAX && comes_later(at))
        }
    }

    /// Returns a pseudorandom number below `n`: the high bits of a sequence with Knuth's multiplier.
    fn below(state: &mut u64, n: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % n
    }

    #[test]
    fn orders_are_possible_and_need_no_more_than_the_given_one() {
        let (mut shrunk, mut state) = (0, 1);
        for _ in 0..500 {
            let n = 1 + below(&mut state, 30);
            let step = |at: usize, state: &mut u64| {
                let reads: BTreeSet<usize> = (0..below(state, 4).min(at)).map(|_| below(state, at)).collect();
                (below(state, 1000), reads.into_iter().collect())
            };
            let all: Vec<(usize, Vec<usize>)> = (0..n).map(|at| step(at, &mut state)).collect();
            let mut steps = StepDependencies::of(&all);
            let second = below(&mut state, n);
            steps.takes_over[second] = steps.reads[second].first().copied().into_iter().collect();
            let given: Vec<usize> = (0..n).collect();
            let orders = [steps.depth_first_order(), steps.greedy_order(), steps.reverse_greedy_order()];
            for order in orders.into_iter().chain([steps.choose_low_memory_order()]) {
                assert!(steps.is_possible(&order), "{order:?} of {all:?}");
            }
            assert!(steps.peak_bytes(&steps.choose_low_memory_order()) <= steps.peak_bytes(&given));
            shrunk += usize::from(steps.peak_bytes(&steps.choose_low_memory_order()) < steps.peak_bytes(&given));
        }
        assert!(shrunk > 100, "{shrunk} of 500 need less");
    }

    #[test]
    fn what_needs_most_comes_first() {
        // Nine values wait for each other in the given order; two at once are enough.
        let combined = |at: usize| (100, vec![17 - at, if at == 9 { 0 } else { at - 1 }]);
        let all: Vec<(usize, Vec<usize>)> = (0..9).map(|_| (100, vec![])).chain((9..17).map(combined)).collect();
        let steps = StepDependencies::of(&all);
        assert_eq!(steps.peak_bytes(&(0..17).collect::<Vec<_>>()), 1000);
        assert_eq!(steps.peak_bytes(&steps.choose_low_memory_order()), 300);
    }

    /// The products `a_1 b_1 (a_2 b_2 (a_3 b_3 .. x))`, in which each weight is a product itself and the first operand.
    #[test]
    fn products_of_weights_are_made_when_they_are_needed() {
        const N: usize = 64;
        let mut graph = Graph::default();
        let square = Type::new(DType::F32, [N, N]);
        let weights: Vec<[Var; 2]> = (0..10).map(|_| [(); 2].map(|()| graph.param(square.clone()))).collect();
        let x = graph.param(square);
        let dot = || StructuralOp::Dot(Dot::matmul(DType::F32));
        let made: Vec<Var> = weights.iter().map(|w| graph.push(dot(), w).expect("it fits")).collect();
        let y = made.iter().rev().fold(x, |y, &w| graph.push(dot(), &[w, y]).expect("it fits"));
        graph.results.push(y);
        let sizes = DeviceLimits { arena: 0, ..DeviceLimits::TEST };
        let plan = plan(&graph, &[], &sizes);
        assert!(plan.arena <= 3 * N * N * 4, "{} bytes", plan.arena);
        assert_eq!(plan.steps.len(), 20);
    }
}
