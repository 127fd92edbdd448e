//! The race checker: for every two accesses in conflict, is there a way from one to the other without a barrier?
use super::sync::{Barrier, Node, Ranges, Step, conflict};

/// Every pair of accesses in conflict that a way without barrier leads between: what must be empty.
pub(super) fn races(nodes: &[Node], r: &dyn Ranges) -> Vec<String> {
    let mut graph = Graph { r, points: vec![], next: vec![] };
    let start = graph.point(Point::Join);
    graph.add(nodes, start);
    let mut found = vec![];
    for from in 0..graph.points.len() {
        if let Point::Step(a) = graph.points[from] {
            graph.search(from, a, &mut found);
        }
    }
    found
}

/// Barriers without which nothing would race: what must be empty as well.
pub(super) fn idle(nodes: &[Node], r: &dyn Ranges) -> Vec<String> {
    let mut idle = vec![];
    for i in 0.. {
        let mut nodes = nodes.to_vec();
        let Some(barrier) = remove(&mut nodes, &mut { i }) else { break };
        if races(&nodes, r).is_empty() {
            idle.push(barrier.why);
        }
    }
    idle
}

/// Takes the barrier out that `i` others precede.
fn remove(nodes: &mut Vec<Node>, i: &mut usize) -> Option<Barrier> {
    for at in 0..nodes.len() {
        match &mut nodes[at] {
            Node::Barrier(barrier) => {
                if *i == 0 {
                    let barrier = barrier.clone();
                    nodes.remove(at);
                    return Some(barrier);
                }
                *i -= 1;
            }
            Node::Nest(nest) => {
                if let Some(found) = nest.parts.iter_mut().find_map(|(_, part)| remove(part, i)) {
                    return Some(found);
                }
            }
            Node::Text(_) | Node::Step(_) => {}
        }
    }
    None
}

/// Takes out barriers without which nothing races: a loop's first rounds, with fewer barriers, leave more open at its end
/// than the last.
pub(super) fn prune(nodes: &mut Vec<Node>, r: &dyn Ranges) {
    let mut i = 0;
    loop {
        let mut fewer = nodes.clone();
        if remove(&mut fewer, &mut { i }).is_none() {
            return;
        }
        if races(&fewer, r).is_empty() { *nodes = fewer } else { i += 1 }
    }
}

#[derive(Clone, Copy)]
enum Point<'a> {
    Join,
    Step(&'a Step),
    Barrier { storage: bool },
}

struct Graph<'a> {
    r: &'a dyn Ranges,
    points: Vec<Point<'a>>,
    next: Vec<Vec<usize>>,
}

impl<'a> Graph<'a> {
    fn point(&mut self, p: Point<'a>) -> usize {
        self.points.push(p);
        self.next.push(vec![]);
        self.points.len() - 1
    }
    fn then(&mut self, from: usize, p: Point<'a>) -> usize {
        let to = self.point(p);
        self.next[from].push(to);
        to
    }
    /// Adds nodes behind point `at`; returns the last point.
    fn add(&mut self, nodes: &'a [Node], mut at: usize) -> usize {
        for node in nodes {
            at = match node {
                Node::Text(_) => at,
                Node::Step(step) => {
                    let step_point = self.then(at, Point::Step(step));
                    if step.meets { self.then(step_point, Point::Barrier { storage: false }) } else { step_point }
                }
                Node::Barrier(b) => self.then(at, Point::Barrier { storage: b.storage }),
                Node::Nest(nest) if nest.repeats => {
                    let head = self.then(at, Point::Join);
                    let mut end = head;
                    for (_, part) in &nest.parts {
                        end = self.add(part, end);
                    }
                    self.next[end].push(head);
                    // A loop may be left, or not entered, at its head; a `while` also behind its test.
                    let exit = self.then(head, Point::Join);
                    self.next[end].push(exit);
                    exit
                }
                Node::Nest(nest) => {
                    let join = self.point(Point::Join);
                    for (_, part) in &nest.parts {
                        let end = self.add(part, at);
                        self.next[end].push(join);
                    }
                    join
                }
            };
        }
        at
    }
    fn search(&self, from: usize, a: &Step, found: &mut Vec<String>) {
        // What a barrier for workgroup memory alone leaves open is storage: searched apart.
        for storage in [false, true] {
            let mut seen = vec![false; self.points.len()];
            let mut open = self.next[from].clone();
            while let Some(p) = open.pop() {
                if std::mem::replace(&mut seen[p], true) {
                    continue;
                }
                match self.points[p] {
                    Point::Barrier { storage: s } if s || !storage => continue,
                    Point::Step(b) => self.compare(a, b, storage, found),
                    Point::Barrier { .. } | Point::Join => {}
                }
                open.extend(&self.next[p]);
            }
        }
    }
    fn compare(&self, a: &Step, b: &Step, storage: bool, found: &mut Vec<String>) {
        let pairs = [(&a.writes, &b.reads), (&a.reads, &b.writes), (&a.writes, &b.writes)];
        for (x, y) in pairs.into_iter().flat_map(|(xs, ys)| xs.iter().flat_map(move |x| ys.iter().map(move |y| (x, y))))
        {
            let of_kind = self.r.range(x.of).0.is_storage() == storage;
            if of_kind && conflict(x, y, self.r) {
                found.push(format!(
                    "{} and {} touch common words without a barrier between",
                    self.r.name(x.of),
                    self.r.name(y.of)
                ));
            }
        }
    }
}
