//! Race checker: searches, for every two conflicting accesses, a path between them without a barrier.
use super::sync::{Node, Ranges, Step, Touch, conflict, keep, reasons};
use std::collections::BTreeSet;

/// Returns every pair of conflicting accesses that are connected by a path without a barrier; there must be none.
pub(super) fn races(nodes: &[Node], r: &dyn Ranges) -> Vec<String> {
    let graph = Graph::new(nodes, r);
    let all = vec![true; graph.barriers.len()];
    let mut found = vec![];
    for (from, point) in graph.points.iter().enumerate() {
        let Point::Step(a) = point else { continue };
        // A barrier for workgroup memory does not cover storage, which is searched separately.
        for storage in [false, true].into_iter().filter(|&storage| graph.touches(a, storage)) {
            let below = graph.touched(&graph.steps(from, &graph.next, storage, &all), storage);
            found.extend(graph.conflicts(&graph.touched(&[a], storage), &below).map(|(x, y)| {
                let (x, y) = (r.name(x.of), r.name(y.of));
                format!("{x} and {y} touch common words without a barrier between")
            }));
        }
    }
    found
}

/// Returns the barriers whose removal would cause no race; there must be none.
pub(super) fn idle(nodes: &[Node], r: &dyn Ranges) -> Vec<String> {
    let graph = Graph::new(nodes, r);
    let mut stand = vec![true; graph.barriers.len()];
    let mut idle = vec![];
    for (i, why) in reasons(nodes).into_iter().enumerate() {
        stand[i] = false;
        if !graph.race_through(i, &stand) {
            idle.push(why);
        }
        stand[i] = true;
    }
    idle
}

/// Removes barriers without which there is no race. There may be some since the first rounds over a loop, which had
/// fewer barriers, assumed more accesses at its end than there are.
pub(super) fn prune(nodes: &mut Vec<Node>, r: &dyn Ranges) {
    let graph = Graph::new(nodes, r);
    let mut stand = vec![true; graph.barriers.len()];
    for i in 0..stand.len() {
        stand[i] = false;
        stand[i] = graph.race_through(i, &stand);
    }
    keep(nodes, &mut stand.into_iter());
}

/// A point of the control-flow graph.
#[derive(Clone, Copy)]
enum Point<'a> {
    Join,
    Step(&'a Step),
    Barrier {
        /// Index among the program's barriers; `None` where a step itself synchronises threads.
        number: Option<usize>,
        storage: bool,
    },
}

/// The control-flow graph of a program.
struct Graph<'a> {
    r: &'a dyn Ranges,
    points: Vec<Point<'a>>,
    /// For each point the points after it, and (`before`) those before it.
    next: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// The points of barriers, in the order of the text.
    barriers: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(nodes: &'a [Node], r: &'a dyn Ranges) -> Graph<'a> {
        let mut graph = Graph { r, points: vec![], next: vec![], before: vec![], barriers: vec![] };
        let start = graph.point(Point::Join);
        graph.add(nodes, start);
        graph
    }
    fn point(&mut self, p: Point<'a>) -> usize {
        self.points.push(p);
        self.next.push(vec![]);
        self.before.push(vec![]);
        self.points.len() - 1
    }
    fn way(&mut self, from: usize, to: usize) {
        self.next[from].push(to);
        self.before[to].push(from);
    }
    fn then(&mut self, from: usize, p: Point<'a>) -> usize {
        let to = self.point(p);
        self.way(from, to);
        to
    }
    /// Adds nodes after the point `at`; returns the last point.
    fn add(&mut self, nodes: &'a [Node], mut at: usize) -> usize {
        for node in nodes {
            at = match node {
                Node::Text(_) => at,
                Node::Step(step) => {
                    let step_point = self.then(at, Point::Step(step));
                    let met = Point::Barrier { number: None, storage: false };
                    if step.meets { self.then(step_point, met) } else { step_point }
                }
                Node::Barrier(b) => {
                    let number = Some(self.barriers.len());
                    let barrier = self.then(at, Point::Barrier { number, storage: b.storage });
                    self.barriers.push(barrier);
                    barrier
                }
                Node::Nest(nest) if nest.repeats => {
                    let head = self.then(at, Point::Join);
                    let mut end = head;
                    for (_, part) in &nest.parts {
                        end = self.add(part, end);
                    }
                    self.way(end, head);
                    // A loop may be left, or not entered, at its head; a `while` also after its test.
                    let exit = self.then(head, Point::Join);
                    self.way(end, exit);
                    exit
                }
                Node::Nest(nest) => {
                    let join = self.point(Point::Join);
                    for (_, part) in &nest.parts {
                        let end = self.add(part, at);
                        self.way(end, join);
                    }
                    join
                }
            };
        }
        at
    }
    /// Returns the steps that can be reached from a point along `edges` without passing a barrier. Only barriers for
    /// which `stand` is true count and, for accesses to storage, only those that cover storage.
    fn steps(&self, from: usize, edges: &[Vec<usize>], storage: bool, stand: &[bool]) -> Vec<&'a Step> {
        let mut seen = vec![false; self.points.len()];
        let (mut open, mut found) = (edges[from].clone(), vec![]);
        while let Some(p) = open.pop() {
            if std::mem::replace(&mut seen[p], true) {
                continue;
            }
            match self.points[p] {
                Point::Barrier { number, storage: s } if (s || !storage) && number.is_none_or(|i| stand[i]) => continue,
                Point::Step(step) if self.touches(step, storage) => found.push(step),
                Point::Step(_) | Point::Barrier { .. } | Point::Join => {}
            }
            open.extend(&edges[p]);
        }
        found
    }
    /// Returns true if there is a path between two conflicting accesses through barrier `i`, which is assumed to be
    /// removed.
    fn race_through(&self, i: usize, stand: &[bool]) -> bool {
        let at = self.barriers[i];
        let kinds: &[bool] = match self.points[at] {
            Point::Barrier { storage: true, .. } => &[false, true],
            _ => &[false],
        };
        kinds.iter().any(|&storage| {
            let above = self.steps(at, &self.before, storage, stand);
            let below = self.steps(at, &self.next, storage, stand);
            let (above, below) = (self.touched(&above, storage), self.touched(&below, storage));
            self.conflicts(&above, &below).next().is_some()
        })
    }
    fn is_of(&self, touch: &Touch, storage: bool) -> bool {
        self.r.range(touch.of).0.is_storage() == storage
    }
    fn touches(&self, step: &Step, storage: bool) -> bool {
        step.reads.iter().chain(&step.writes).any(|touch| self.is_of(touch, storage))
    }
    /// Returns the accesses of steps to storage, or to workgroup memory, each once.
    fn touched(&self, steps: &[&'a Step], storage: bool) -> Touched<'a> {
        let mut all = Touched::default();
        for step in steps {
            all.reads.extend(step.reads.iter().filter(|touch| self.is_of(touch, storage)));
            all.writes.extend(step.writes.iter().filter(|touch| self.is_of(touch, storage)));
        }
        all
    }
    fn conflicts<'t>(&self, a: &'t Touched<'a>, b: &'t Touched<'a>) -> impl Iterator<Item = (&'t Touch, &'t Touch)> {
        let pairs = [(&a.writes, &b.reads), (&a.reads, &b.writes), (&a.writes, &b.writes)];
        let all = pairs.into_iter().flat_map(|(xs, ys)| xs.iter().flat_map(move |x| ys.iter().map(move |y| (*x, *y))));
        all.filter(|(x, y)| conflict(x, y, self.r))
    }
}

/// The accesses of several steps.
#[derive(Default)]
struct Touched<'a> {
    reads: BTreeSet<&'a Touch>,
    writes: BTreeSet<&'a Touch>,
}
