//! Addresses: buffers that are not needed at once may share words.
//!
//! A buffer is needed from the first step that touches it to the last; one that enters a loop from outside, to the loop's
//! end. Sharing may cost a barrier, so buffers share only where they do not fit otherwise.
use super::place::Buffer;
use super::sync::{Memory, Node};

/// From the first to the last step that needs a buffer.
#[derive(Clone, Copy, Debug)]
struct Life {
    from: usize,
    to: usize,
}

/// Gives every buffer its address; the words of workgroup memory and of scratch that takes.
pub(super) fn place(buffers: &mut [Buffer], nodes: &[Node], room: usize) -> (usize, usize) {
    let lives = lives(buffers, nodes);
    let mut words = fit(buffers, &lives, false, false);
    if words > room {
        words = fit(buffers, &lives, false, true);
    }
    (words, fit(buffers, &lives, true, true))
}

/// First fit, largest first; buffers that share no step may share words.
fn fit(buffers: &mut [Buffer], lives: &[Option<Life>], outside: bool, share: bool) -> usize {
    let mut order: Vec<usize> =
        (0..buffers.len()).filter(|&b| buffers[b].outside == outside && lives[b].is_some()).collect();
    order.sort_by_key(|&b| std::cmp::Reverse(buffers[b].words));
    let mut placed: Vec<usize> = vec![];
    let mut top = 0;
    for b in order {
        let meets = |o: usize| match (lives[b], lives[o]) {
            (Some(x), Some(y)) => !share || x.from <= y.to && y.from <= x.to,
            _ => false,
        };
        let mut busy: Vec<(usize, usize)> =
            placed.iter().filter(|&&o| meets(o)).map(|&o| (buffers[o].at, buffers[o].at + buffers[o].words)).collect();
        busy.sort_unstable();
        let mut at = 0;
        for (from, to) in busy {
            if at + buffers[b].words <= from {
                break;
            }
            at = at.max(to);
        }
        buffers[b].at = at;
        top = top.max(at + buffers[b].words);
        placed.push(b);
    }
    top
}

fn lives(buffers: &[Buffer], nodes: &[Node]) -> Vec<Option<Life>> {
    let mut walk = Walk { now: 0, lives: vec![None; buffers.len()] };
    walk.nodes(nodes);
    for (life, buffer) in walk.lives.iter_mut().zip(buffers) {
        if buffer.scratch && life.is_some() {
            *life = Some(Life { from: 0, to: walk.now });
        }
    }
    walk.lives
}

struct Walk {
    now: usize,
    lives: Vec<Option<Life>>,
}

impl Walk {
    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.now += 1;
            match node {
                Node::Text(_) | Node::Barrier(_) => {}
                Node::Step(step) => {
                    for touch in step.reads.iter().chain(&step.writes) {
                        if let Memory::Buffer(b) = touch.of {
                            let life = self.lives[b].get_or_insert(Life { from: self.now, to: self.now });
                            life.to = self.now;
                        }
                    }
                }
                Node::Nest(nest) => {
                    let start = self.now;
                    nest.parts.iter().for_each(|(_, part)| self.nodes(part));
                    self.now += 1;
                    if nest.repeats {
                        let end = self.now;
                        let entered = |l: &&mut Life| l.from < start && l.to > start;
                        self.lives.iter_mut().flatten().filter(entered).for_each(|l| l.to = end);
                    }
                }
            }
        }
    }
}
