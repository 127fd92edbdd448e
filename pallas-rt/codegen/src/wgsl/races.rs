//! Race checker: searches, for every two conflicting accesses, a path between them without a barrier.
use super::barriers::{
    AddressResolver, MemoryStep, ShaderNode, StepAccess, accesses_conflict, barrier_reasons, retain_barriers,
};
use std::collections::BTreeSet;

/// Describes every pair of conflicting accesses that a path without a barrier connects; a correct program has none.
pub(super) fn find_races(nodes: &[ShaderNode], r: &dyn AddressResolver) -> Vec<String> {
    let graph = ControlFlowGraph::new(nodes, r);
    let all = vec![true; graph.barriers.len()];
    let mut found = vec![];
    for (from, point) in graph.points.iter().enumerate() {
        let FlowPoint::Step(a) = point else { continue };
        // A barrier for workgroup memory does not cover storage, which is searched separately.
        for storage in [false, true].into_iter().filter(|&storage| graph.step_accesses_memory_kind(a, storage)) {
            let below = graph.collect_accesses(&graph.reachable_steps(from, &graph.next, storage, &all), storage);
            found.extend(graph.conflicting_access_pairs(&graph.collect_accesses(&[a], storage), &below).map(
                |(x, y)| {
                    let (x, y) = (r.memory_name(x.memory), r.memory_name(y.memory));
                    format!("{x} and {y} touch common words without a barrier between")
                },
            ));
        }
    }
    found
}

/// Returns the reasons of the barriers without which there would still be no race.
pub(super) fn find_redundant_barriers(nodes: &[ShaderNode], r: &dyn AddressResolver) -> Vec<String> {
    let graph = ControlFlowGraph::new(nodes, r);
    let mut stand = vec![true; graph.barriers.len()];
    let mut idle = vec![];
    for (i, why) in barrier_reasons(nodes).into_iter().enumerate() {
        stand[i] = false;
        if !graph.has_race_without(i, &stand) {
            idle.push(why);
        }
        stand[i] = true;
    }
    idle
}

/// Removes barriers without which there is no race. Insertion may leave some: its first rounds over a loop, with fewer
/// barriers in the body, assume more accesses at the loop's end than there finally are.
pub(super) fn remove_redundant_barriers(nodes: &mut Vec<ShaderNode>, r: &dyn AddressResolver) {
    let graph = ControlFlowGraph::new(nodes, r);
    let mut stand = vec![true; graph.barriers.len()];
    for i in 0..stand.len() {
        stand[i] = false;
        stand[i] = graph.has_race_without(i, &stand);
    }
    retain_barriers(nodes, &mut stand.into_iter());
}

/// A point of the control-flow graph: a step that accesses memory, a barrier, or a join, at which nothing is executed.
#[derive(Clone, Copy)]
enum FlowPoint<'a> {
    Join,
    Step(&'a MemoryStep),
    Barrier {
        /// Index among the program's barriers; `None` where a step itself synchronises threads.
        number: Option<usize>,
        storage: bool,
    },
}

/// The control-flow graph of a shader: its steps and barriers as points, and the edges between them in both directions.
struct ControlFlowGraph<'a> {
    r: &'a dyn AddressResolver,
    points: Vec<FlowPoint<'a>>,
    /// For each point the points after it, and (`before`) those before it.
    next: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// The points of barriers, in the order of the text.
    barriers: Vec<usize>,
}

impl<'a> ControlFlowGraph<'a> {
    fn new(nodes: &'a [ShaderNode], r: &'a dyn AddressResolver) -> ControlFlowGraph<'a> {
        let mut graph = ControlFlowGraph { r, points: vec![], next: vec![], before: vec![], barriers: vec![] };
        let start = graph.add_point(FlowPoint::Join);
        graph.add_nodes(nodes, start);
        graph
    }
    fn add_point(&mut self, p: FlowPoint<'a>) -> usize {
        self.points.push(p);
        self.next.push(vec![]);
        self.before.push(vec![]);
        self.points.len() - 1
    }
    fn add_edge(&mut self, from: usize, to: usize) {
        self.next[from].push(to);
        self.before[to].push(from);
    }
    fn add_point_after(&mut self, from: usize, p: FlowPoint<'a>) -> usize {
        let to = self.add_point(p);
        self.add_edge(from, to);
        to
    }
    /// Adds nodes to the graph after the point `from`; returns the last point.
    fn add_nodes(&mut self, nodes: &'a [ShaderNode], mut from: usize) -> usize {
        for node in nodes {
            from = match node {
                ShaderNode::Text(_) => from,
                ShaderNode::MemoryStep(step) => {
                    let step_point = self.add_point_after(from, FlowPoint::Step(step));
                    let met = FlowPoint::Barrier { number: None, storage: false };
                    if step.synchronizes { self.add_point_after(step_point, met) } else { step_point }
                }
                ShaderNode::Barrier(b) => {
                    let number = Some(self.barriers.len());
                    let barrier = self.add_point_after(from, FlowPoint::Barrier { number, storage: b.storage });
                    self.barriers.push(barrier);
                    barrier
                }
                ShaderNode::ControlFlow(nest) if nest.repeats => {
                    let head = self.add_point_after(from, FlowPoint::Join);
                    let mut end = head;
                    for (_, part) in &nest.parts {
                        end = self.add_nodes(part, end);
                    }
                    self.add_edge(end, head);
                    // A loop may be left, or not entered, at its head; a `while` also after its test.
                    let exit = self.add_point_after(head, FlowPoint::Join);
                    self.add_edge(end, exit);
                    exit
                }
                ShaderNode::ControlFlow(nest) => {
                    let join = self.add_point(FlowPoint::Join);
                    for (_, part) in &nest.parts {
                        let end = self.add_nodes(part, from);
                        self.add_edge(end, join);
                    }
                    join
                }
            };
        }
        from
    }
    /// Returns the steps that can be reached from a point along `edges` without passing a barrier: steps that access
    /// global memory if `in_storage`, else workgroup memory. A barrier counts if `kept_barriers` has true for it and,
    /// if `in_storage`, if it covers storage.
    fn reachable_steps(
        &self,
        from: usize,
        edges: &[Vec<usize>],
        in_storage: bool,
        kept_barriers: &[bool],
    ) -> Vec<&'a MemoryStep> {
        let mut seen = vec![false; self.points.len()];
        let (mut open, mut found) = (edges[from].clone(), vec![]);
        while let Some(p) = open.pop() {
            if std::mem::replace(&mut seen[p], true) {
                continue;
            }
            match self.points[p] {
                FlowPoint::Barrier { number, storage: s }
                    if (s || !in_storage) && number.is_none_or(|i| kept_barriers[i]) =>
                {
                    continue;
                }
                FlowPoint::Step(step) if self.step_accesses_memory_kind(step, in_storage) => found.push(step),
                FlowPoint::Step(_) | FlowPoint::Barrier { .. } | FlowPoint::Join => {}
            }
            open.extend(&edges[p]);
        }
        found
    }
    /// Returns true if leaving out barrier number `barrier` gives a race: a path through its place then connects two
    /// conflicting accesses without a barrier. `kept_barriers` has true for the barriers that count.
    fn has_race_without(&self, barrier: usize, kept_barriers: &[bool]) -> bool {
        let at = self.barriers[barrier];
        let kinds: &[bool] = match self.points[at] {
            FlowPoint::Barrier { storage: true, .. } => &[false, true],
            _ => &[false],
        };
        kinds.iter().any(|&storage| {
            let above = self.reachable_steps(at, &self.before, storage, kept_barriers);
            let below = self.reachable_steps(at, &self.next, storage, kept_barriers);
            let (above, below) = (self.collect_accesses(&above, storage), self.collect_accesses(&below, storage));
            self.conflicting_access_pairs(&above, &below).next().is_some()
        })
    }
    fn accesses_memory_kind(&self, access: &StepAccess, in_storage: bool) -> bool {
        self.r.address_range(access.memory).0.is_storage() == in_storage
    }
    fn step_accesses_memory_kind(&self, step: &MemoryStep, in_storage: bool) -> bool {
        step.reads.iter().chain(&step.writes).any(|touch| self.accesses_memory_kind(touch, in_storage))
    }
    /// Returns the accesses of steps to global memory if `in_storage`, else to workgroup memory, each once.
    fn collect_accesses(&self, steps: &[&'a MemoryStep], in_storage: bool) -> AccessSets<'a> {
        let mut all = AccessSets::default();
        for step in steps {
            all.reads.extend(step.reads.iter().filter(|touch| self.accesses_memory_kind(touch, in_storage)));
            all.writes.extend(step.writes.iter().filter(|touch| self.accesses_memory_kind(touch, in_storage)));
        }
        all
    }
    fn conflicting_access_pairs<'t>(
        &self,
        a: &'t AccessSets<'a>,
        b: &'t AccessSets<'a>,
    ) -> impl Iterator<Item = (&'t StepAccess, &'t StepAccess)> {
        let pairs = [(&a.writes, &b.reads), (&a.reads, &b.writes), (&a.writes, &b.writes)];
        let all = pairs.into_iter().flat_map(|(xs, ys)| xs.iter().flat_map(move |x| ys.iter().map(move |y| (*x, *y))));
        all.filter(|(x, y)| accesses_conflict(x, y, self.r))
    }
}

/// The reads and the writes of several steps, each access once.
#[derive(Default)]
struct AccessSets<'a> {
    reads: BTreeSet<&'a StepAccess>,
    writes: BTreeSet<&'a StepAccess>,
}
