//! The order of clusters, and where values are stored.
use super::blocks::Sizes;
use super::cluster::{Clusters, clusters, is_alias};
use super::lower::{Lowered, lower};
use crate::graph::{Graph, Var};
use pallas_ir::{Kernel, Type};
use std::collections::BTreeMap;

/// Memory that a value is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// That of a parameter.
    Param(usize),
    /// New memory that outlives the call: a result has it.
    Fresh(usize),
    /// Memory that the next call uses again.
    Temporary(usize),
}

/// One launch.
#[derive(Debug)]
pub struct Step {
    /// The kernel.
    pub kernel: Kernel,
    /// Extents of its dimensions.
    pub sizes: Vec<i64>,
    /// The memory of its inputs, in the order of the operands.
    pub inputs: Vec<Place>,
    /// The memory of its outputs.
    pub outputs: Vec<Place>,
}

/// The launches and the memory that compute a graph.
#[derive(Debug)]
pub struct Plan {
    /// The launches, in order.
    pub steps: Vec<Step>,
    /// Bytes of each [`Place::Fresh`].
    pub fresh: Vec<usize>,
    /// Bytes of each [`Place::Temporary`]; values that are not needed at the same time share one.
    pub temporary: Vec<usize>,
    /// The results.
    pub results: Vec<(Place, Type)>,
}

/// Plans a graph for a device.
pub fn plan(graph: &Graph, sizes: &Sizes) -> Plan {
    let definitions = graph.definitions();
    let found = clusters(graph);
    let planner = Planner { graph, definitions: &definitions, found: &found };
    let order = planner.order();
    let lowered: Vec<Lowered> = order.iter().map(|&c| lower(graph, &definitions, &found.all[c], sizes)).collect();
    planner.places(lowered)
}

struct Planner<'g> {
    graph: &'g Graph,
    definitions: &'g [Option<usize>],
    found: &'g Clusters,
}

impl Planner<'_> {
    /// The value whose memory a value has: a reshape that belongs to no cluster has its operand's.
    fn stored_as(&self, mut v: Var) -> Var {
        while let Some(i) = self.definitions[v.index()]
            && is_alias(self.graph, self.definitions, &self.graph.equations[i])
            && self.found.owner[i].is_none()
        {
            v = self.graph.equations[i].args[0];
        }
        v
    }

    /// The cluster that computes a value.
    fn cluster_of(&self, v: Var) -> Option<usize> {
        self.found.owner[self.definitions[self.stored_as(v).index()]?]
    }

    /// The clusters that a cluster reads from, in the order of its equations and operands.
    fn sources(&self, cluster: usize) -> Vec<usize> {
        let members = &self.found.all[cluster].members;
        let args = members.iter().flat_map(|&i| &self.graph.equations[i].args);
        let mut all: Vec<usize> = vec![];
        for source in args.filter_map(|&arg| self.cluster_of(arg)) {
            if source != cluster && !all.contains(&source) {
                all.push(source);
            }
        }
        all
    }

    /// Each cluster after those that it reads from, depth first from the results: what is computed is read soon.
    fn order(&self) -> Vec<usize> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            New,
            Open,
            Done,
        }
        let (mut states, mut order) = (vec![State::New; self.found.all.len()], vec![]);
        for result in &self.graph.results {
            let mut stack: Vec<(usize, bool)> = self.cluster_of(*result).map(|c| (c, false)).into_iter().collect();
            while let Some((c, sources_are_done)) = stack.pop() {
                if sources_are_done {
                    states[c] = State::Done;
                    order.push(c);
                } else if states[c] == State::New {
                    states[c] = State::Open;
                    stack.push((c, true));
                    let sources = self.sources(c);
                    assert!(sources.iter().all(|&s| states[s] != State::Open), "clusters depend on each other");
                    stack.extend(sources.into_iter().rev().map(|s| (s, false)));
                }
            }
        }
        order
    }

    fn places(&self, lowered: Vec<Lowered>) -> Plan {
        let graph = self.graph;
        let mut plan = Plan { steps: vec![], fresh: vec![], temporary: vec![], results: vec![] };
        let params = graph.params.iter().enumerate();
        let mut place: BTreeMap<Var, Place> = params.map(|(i, &p)| (p, Place::Param(i))).collect();
        for &result in &graph.results {
            let stored = self.stored_as(result);
            place.entry(stored).or_insert_with(|| {
                plan.fresh.push(graph.ty(stored).bytes());
                Place::Fresh(plan.fresh.len() - 1)
            });
        }
        let mut last_use: BTreeMap<Var, usize> = BTreeMap::new();
        for (at, step) in lowered.iter().enumerate() {
            last_use.extend(step.inputs.iter().map(|&v| (self.stored_as(v), at)));
        }
        // Temporary memory that no value is in, by its size.
        let mut free: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, step) in lowered.into_iter().enumerate() {
            for &v in &step.outputs {
                place.entry(v).or_insert_with(|| {
                    let bytes = graph.ty(v).bytes();
                    let slot = free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
                        plan.temporary.push(bytes);
                        plan.temporary.len() - 1
                    });
                    Place::Temporary(slot)
                });
            }
            let [inputs, outputs] =
                [&step.inputs, &step.outputs].map(|vars| vars.iter().map(|&v| place[&self.stored_as(v)]).collect());
            plan.steps.push(Step { kernel: step.kernel, sizes: step.sizes, inputs, outputs });
            let mut freed: Vec<Var> = step.inputs.iter().map(|&v| self.stored_as(v)).chain(step.outputs).collect();
            freed.sort();
            freed.dedup();
            for v in freed.into_iter().filter(|v| last_use.get(v).is_none_or(|&last| last <= at)) {
                if let Place::Temporary(slot) = place[&v] {
                    free.entry(graph.ty(v).bytes()).or_default().push(slot);
                }
            }
        }
        plan.results = graph.results.iter().map(|&r| (place[&self.stored_as(r)], graph.ty(r).clone())).collect();
        plan
    }
}
