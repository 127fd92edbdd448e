//! Moves steps that may be executed later to places where fewer barriers are needed.
use super::barriers::{
    AddressResolver, MemoryId, ShaderNode, StepAccess, accesses_conflict, insert_barriers, retain_barriers,
};

/// Moves steps that may be executed later (`can_move_later`) down if the program then needs fewer barriers, for
/// example past an existing barrier.
pub(super) fn sink_movable_steps(nodes: &mut Vec<ShaderNode>, trips_per_loop: f64, r: &dyn AddressResolver) {
    let mut best = expected_barriers(nodes, trips_per_loop);
    let mut found = vec![];
    collect_movable_writes(nodes, &mut found);
    for what in found {
        let mut moved = nodes.clone();
        retain_barriers(&mut moved, &mut std::iter::repeat(false));
        while sink_writer_by_one(&mut moved, what, r) {
            let mut tried = moved.clone();
            insert_barriers(&mut tried, r);
            if expected_barriers(&tried, trips_per_loop) < best {
                best = expected_barriers(&tried, trips_per_loop);
                *nodes = tried;
            }
        }
    }
}

/// Returns the number of barriers that a thread waits at if every loop runs `trips_per_loop` times.
pub(super) fn expected_barriers(nodes: &[ShaderNode], trips_per_loop: f64) -> f64 {
    let of = |n: &ShaderNode| match n {
        ShaderNode::Barrier(_) => 1.0,
        ShaderNode::ControlFlow(nest) => {
            let inner: f64 = nest.parts.iter().map(|(_, part)| expected_barriers(part, trips_per_loop)).sum();
            inner * if nest.repeats { trips_per_loop } else { 1.0 }
        }
        ShaderNode::Text(_) | ShaderNode::MemoryStep(_) => 0.0,
    };
    nodes.iter().map(of).sum()
}

/// Appends to `found` the buffers and arrays that are written by steps which may be moved to a later place in the
/// program.
fn collect_movable_writes(nodes: &[ShaderNode], found: &mut Vec<MemoryId>) {
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

/// Swaps the first movable step that writes `memory` with the node after it, unless that accesses `memory`. Returns
/// true if they were swapped.
fn sink_writer_by_one(nodes: &mut [ShaderNode], memory: MemoryId, r: &dyn AddressResolver) -> bool {
    let this = |n: &ShaderNode| matches!(n, ShaderNode::MemoryStep(s) if s.can_move_later && s.writes.iter().any(|t| t.memory == memory));
    if let Some(at) = nodes.iter().position(this) {
        let free = nodes.get(at + 1).is_some_and(|next| !node_accesses(next, memory, r));
        if free {
            nodes.swap(at, at + 1);
        }
        return free;
    }
    nodes.iter_mut().any(|n| match n {
        ShaderNode::ControlFlow(nest) => nest.parts.iter_mut().any(|(_, part)| sink_writer_by_one(part, memory, r)),
        _ => false,
    })
}

/// Returns true if a node accesses words of `memory`.
fn node_accesses(node: &ShaderNode, memory: MemoryId, r: &dyn AddressResolver) -> bool {
    match node {
        ShaderNode::MemoryStep(step) => {
            let it = StepAccess { memory, owner: None };
            step.reads.iter().chain(&step.writes).any(|t| accesses_conflict(t, &it, r))
        }
        ShaderNode::ControlFlow(nest) => {
            nest.parts.iter().any(|(_, part)| part.iter().any(|n| node_accesses(n, memory, r)))
        }
        ShaderNode::Text(_) | ShaderNode::Barrier(_) => false,
    }
}
