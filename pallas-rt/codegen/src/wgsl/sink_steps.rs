//! Moves steps that may be executed later to places where fewer barriers are needed.
use super::barriers::{
    AddressMap, Memory, ShaderNode, StepAccess, accesses_conflict, insert_barriers, retain_barriers,
};

/// Moves steps that may be later (`floats`) down, if fewer barriers are needed then: past an existing barrier, for
/// example.
pub(super) fn sink_movable_steps(nodes: &mut Vec<ShaderNode>, trips: f64, r: &dyn AddressMap) {
    let mut best = expected_barriers(nodes, trips);
    let mut found = vec![];
    collect_movable_writes(nodes, &mut found);
    for what in found {
        let mut moved = nodes.clone();
        retain_barriers(&mut moved, &mut std::iter::repeat(false));
        while sink(&mut moved, what, r) {
            let mut tried = moved.clone();
            insert_barriers(&mut tried, r);
            if expected_barriers(&tried, trips) < best {
                best = expected_barriers(&tried, trips);
                *nodes = tried;
            }
        }
    }
}

/// Number of barriers that a thread waits at, if every loop runs `trips` times.
pub(super) fn expected_barriers(nodes: &[ShaderNode], trips: f64) -> f64 {
    let of = |n: &ShaderNode| match n {
        ShaderNode::Barrier(_) => 1.0,
        ShaderNode::ControlFlow(nest) => {
            let inner: f64 = nest.parts.iter().map(|(_, part)| expected_barriers(part, trips)).sum();
            inner * if nest.repeats { trips } else { 1.0 }
        }
        ShaderNode::Text(_) | ShaderNode::MemoryStep(_) => 0.0,
    };
    nodes.iter().map(of).sum()
}

/// Appends the buffers that are written by steps which may be later.
fn collect_movable_writes(nodes: &[ShaderNode], found: &mut Vec<Memory>) {
    for node in nodes {
        match node {
            ShaderNode::MemoryStep(step) if step.can_move_later => found.extend(step.writes.iter().map(|t| t.memory)),
            ShaderNode::ControlFlow(nest) => {
                nest.parts.iter().for_each(|(_, part)| collect_movable_writes(part, found))
            }
            _ => {}
        }
    }
}

/// Moves the step that writes `what` and may be later past its neighbour, unless that reads `what`. Returns true if it
/// moved.
fn sink(nodes: &mut [ShaderNode], what: Memory, r: &dyn AddressMap) -> bool {
    let this = |n: &ShaderNode| matches!(n, ShaderNode::MemoryStep(s) if s.can_move_later && s.writes.iter().any(|t| t.memory == what));
    if let Some(at) = nodes.iter().position(this) {
        let free = nodes.get(at + 1).is_some_and(|next| !touches(next, what, r));
        if free {
            nodes.swap(at, at + 1);
        }
        return free;
    }
    nodes.iter_mut().any(|n| match n {
        ShaderNode::ControlFlow(nest) => nest.parts.iter_mut().any(|(_, part)| sink(part, what, r)),
        _ => false,
    })
}

/// Returns true if a node accesses words of `what`.
fn touches(node: &ShaderNode, what: Memory, r: &dyn AddressMap) -> bool {
    match node {
        ShaderNode::MemoryStep(step) => {
            let it = StepAccess { memory: what, owner: None };
            step.reads.iter().chain(&step.writes).any(|t| accesses_conflict(t, &it, r))
        }
        ShaderNode::ControlFlow(nest) => nest.parts.iter().any(|(_, part)| part.iter().any(|n| touches(n, what, r))),
        ShaderNode::Text(_) | ShaderNode::Barrier(_) => false,
    }
}
