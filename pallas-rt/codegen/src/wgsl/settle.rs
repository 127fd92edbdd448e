//! Moves steps that may be executed later to places where fewer barriers are needed.
use super::sync::{Memory, Node, Ranges, Touch, conflict, insert, keep};

/// Moves steps that may be later (`floats`) down, if fewer barriers are needed then: past an existing barrier, for
/// example.
pub(super) fn settle(nodes: &mut Vec<Node>, trips: f64, r: &dyn Ranges) {
    let mut best = weight(nodes, trips);
    let mut found = vec![];
    floating(nodes, &mut found);
    for what in found {
        let mut moved = nodes.clone();
        keep(&mut moved, &mut std::iter::repeat(false));
        while sink(&mut moved, what, r) {
            let mut tried = moved.clone();
            insert(&mut tried, r);
            if weight(&tried, trips) < best {
                best = weight(&tried, trips);
                *nodes = tried;
            }
        }
    }
}

/// Number of barriers that a thread waits at, if every loop runs `trips` times.
pub(super) fn weight(nodes: &[Node], trips: f64) -> f64 {
    let of = |n: &Node| match n {
        Node::Barrier(_) => 1.0,
        Node::Nest(nest) => {
            let inner: f64 = nest.parts.iter().map(|(_, part)| weight(part, trips)).sum();
            inner * if nest.repeats { trips } else { 1.0 }
        }
        Node::Text(_) | Node::Step(_) => 0.0,
    };
    nodes.iter().map(of).sum()
}

/// Appends the buffers that are written by steps which may be later.
fn floating(nodes: &[Node], found: &mut Vec<Memory>) {
    for node in nodes {
        match node {
            Node::Step(step) if step.floats => found.extend(step.writes.iter().map(|t| t.of)),
            Node::Nest(nest) => nest.parts.iter().for_each(|(_, part)| floating(part, found)),
            _ => {}
        }
    }
}

/// Moves the step that writes `what` and may be later past its neighbour, unless that reads `what`. Returns true if it
/// moved.
fn sink(nodes: &mut [Node], what: Memory, r: &dyn Ranges) -> bool {
    let this = |n: &Node| matches!(n, Node::Step(s) if s.floats && s.writes.iter().any(|t| t.of == what));
    if let Some(at) = nodes.iter().position(this) {
        let free = nodes.get(at + 1).is_some_and(|next| !touches(next, what, r));
        if free {
            nodes.swap(at, at + 1);
        }
        return free;
    }
    nodes.iter_mut().any(|n| match n {
        Node::Nest(nest) => nest.parts.iter_mut().any(|(_, part)| sink(part, what, r)),
        _ => false,
    })
}

/// Returns true if a node accesses words of `what`.
fn touches(node: &Node, what: Memory, r: &dyn Ranges) -> bool {
    match node {
        Node::Step(step) => {
            let it = Touch { of: what, owner: None };
            step.reads.iter().chain(&step.writes).any(|t| conflict(t, &it, r))
        }
        Node::Nest(nest) => nest.parts.iter().any(|(_, part)| part.iter().any(|n| touches(n, what, r))),
        Node::Text(_) | Node::Barrier(_) => false,
    }
}
