//! Race checker: searches, for every two conflicting accesses, a path between them without a barrier.
use super::barriers::{
    AddressMap, MemoryStep, ShaderNode, StepAccess, accesses_conflict, barrier_reasons, retain_barriers,
};
use std::collections::BTreeSet;

/// Returns every pair of conflicting accesses that are connected by a path without a barrier; there must be none.
pub(super) fn races(nodes: &[ShaderNode], r: &dyn AddressMap) -> Vec<String> {
    let graph = ControlFlowGraph::new(nodes, r);
    let all = vec![true; graph.barriers.len()];
    let mut found = vec![];
    for (from, point) in graph.points.iter().enumerate() {
        let FlowPoint::Step(a) = point else { continue };
        // A barrier for workgroup memory does not cover storage, which is searched separately.
        for storage in [false, true].into_iter().filter(|&storage| graph.touches(a, storage)) {
            let below = graph.touched(&graph.reachable_steps(from, &graph.next, storage, &all), storage);
            found.extend(graph.conflicts(&graph.touched(&[a], storage), &below).map(|(x, y)| {
                let (x, y) = (r.name(x.memory), r.name(y.memory));
                format!("{x} and {y} touch common words without a barrier between")
            }));
        }
    }
    found
}

/// Returns the barriers whose removal would cause no race; there must be none.
pub(super) fn find_redundant_barriers(nodes: &[ShaderNode], r: &dyn AddressMap) -> Vec<String> {
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

/// Removes barriers without which there is no race. There may be some since the first rounds over a loop, which had
/// fewer barriers, assumed more accesses at its end than there are.
pub(super) fn remove_redundant_barriers(nodes: &mut Vec<ShaderNode>, r: &dyn AddressMap) {
    let graph = ControlFlowGraph::new(nodes, r);
    let mut stand = vec![true; graph.barriers.len()];
    for i in 0..stand.len() {
        stand[i] = false;
        stand[i] = graph.has_race_without(i, &stand);
    }
    retain_barriers(nodes, &mut stand.into_iter());
}

/// A point of the control-flow graph.
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

/// The control-flow graph of a program.
struct ControlFlowGraph<'a> {
    r: &'a dyn AddressMap,
    points: Vec<FlowPoint<'a>>,
    /// For each point the points after it, and (`before`) those before it.
    next: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// The points of barriers, in the order of the text.
    barriers: Vec<usize>,
}

impl<'a> ControlFlowGraph<'a> {
    fn new(nodes: &'a [ShaderNode], r: &'a dyn AddressMap) -> ControlFlowGraph<'a> {
        let mut graph = ControlFlowGraph { r, points: vec![], next: vec![], before: vec![], barriers: vec![] };
        let start = graph.add_point(FlowPoint::Join);
        graph.add(nodes, start);
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
    /// Adds nodes after the point `at`; returns the last point.
    fn add(&mut self, nodes: &'a [ShaderNode], mut at: usize) -> usize {
        for node in nodes {
            at = match node {
                ShaderNode::Text(_) => at,
                ShaderNode::MemoryStep(step) => {
                    let step_point = self.add_point_after(at, FlowPoint::Step(step));
                    let met = FlowPoint::Barrier { number: None, storage: false };
                    if step.synchronizes { self.add_point_after(step_point, met) } else { step_point }
                }
                ShaderNode::Barrier(b) => {
                    let number = Some(self.barriers.len());
                    let barrier = self.add_point_after(at, FlowPoint::Barrier { number, storage: b.storage });
                    self.barriers.push(barrier);
                    barrier
                }
                ShaderNode::ControlFlow(nest) if nest.repeats => {
                    let head = self.add_point_after(at, FlowPoint::Join);
                    let mut end = head;
                    for (_, part) in &nest.parts {
                        end = self.add(part, end);
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
                        let end = self.add(part, at);
                        self.add_edge(end, join);
                    }
                    join
                }
            };
        }
        at
    }
    /// Returns the steps that can be reached from a point along `edges` without passing a barrier. Only barriers for
    /// which `stand` is true count and, for accesses to storage, only those that cover storage.
    fn reachable_steps(&self, from: usize, edges: &[Vec<usize>], storage: bool, stand: &[bool]) -> Vec<&'a MemoryStep> {
        let mut seen = vec![false; self.points.len()];
        let (mut open, mut found) = (edges[from].clone(), vec![]);
        while let Some(p) = open.pop() {
            if std::mem::replace(&mut seen[p], true) {
                continue;
            }
            match self.points[p] {
                FlowPoint::Barrier { number, storage: s } if (s || !storage) && number.is_none_or(|i| stand[i]) => {
                    continue;
                }
                FlowPoint::Step(step) if self.touches(step, storage) => found.push(step),
                FlowPoint::Step(_) | FlowPoint::Barrier { .. } | FlowPoint::Join => {}
            }
            open.extend(&edges[p]);
        }
        found
    }
    /// Returns true if there is a path between two conflicting accesses through barrier `i`, which is assumed to be
    /// removed.
    fn has_race_without(&self, i: usize, stand: &[bool]) -> bool {
        let at = self.barriers[i];
        let kinds: &[bool] = match self.points[at] {
            FlowPoint::Barrier { storage: true, .. } => &[false, true],
            _ => &[false],
        };
        kinds.iter().any(|&storage| {
            let above = self.reachable_steps(at, &self.before, storage, stand);
            let below = self.reachable_steps(at, &self.next, storage, stand);
            let (above, below) = (self.touched(&above, storage), self.touched(&below, storage));
            self.conflicts(&above, &below).next().is_some()
        })
    }
    fn matches_storage(&self, touch: &StepAccess, storage: bool) -> bool {
        self.r.range(touch.memory).0.is_storage() == storage
    }
    fn touches(&self, step: &MemoryStep, storage: bool) -> bool {
        step.reads.iter().chain(&step.writes).any(|touch| self.matches_storage(touch, storage))
    }
    /// Returns the accesses of steps to storage, or to workgroup memory, each once.
    fn touched(&self, steps: &[&'a MemoryStep], storage: bool) -> AccessSets<'a> {
        let mut all = AccessSets::default();
        for step in steps {
            all.reads.extend(step.reads.iter().filter(|touch| self.matches_storage(touch, storage)));
            all.writes.extend(step.writes.iter().filter(|touch| self.matches_storage(touch, storage)));
        }
        all
    }
    fn conflicts<'t>(
        &self,
        a: &'t AccessSets<'a>,
        b: &'t AccessSets<'a>,
    ) -> impl Iterator<Item = (&'t StepAccess, &'t StepAccess)> {
        let pairs = [(&a.writes, &b.reads), (&a.reads, &b.writes), (&a.writes, &b.writes)];
        let all = pairs.into_iter().flat_map(|(xs, ys)| xs.iter().flat_map(move |x| ys.iter().map(move |y| (*x, *y))));
        all.filter(|(x, y)| accesses_conflict(x, y, self.r))
    }
}

/// The accesses of several steps.
#[derive(Default)]
struct AccessSets<'a> {
    reads: BTreeSet<&'a StepAccess>,
    writes: BTreeSet<&'a StepAccess>,
}
