//! Inserts barriers, which are derived from the memory that steps read and write.
//!
//! [`insert`] walks the program with the accesses made since the last barrier; a step that conflicts with one of them
//! gets a barrier before it. A loop is entered with the accesses before it and those at its own end, until these do
//! not change any more.
//!
//! Two accesses conflict if they access common words, one of them writes, and not every thread keeps to its own words.
use super::place::layout::Class;
use super::place::matrices::Cell;

/// A part of a program.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Lines that every thread executes and that access no shared memory.
    Text(String),
    /// Lines that access memory.
    Step(Step),
    /// A branch or a loop.
    Nest(Nest),
    /// A barrier, with the reason for it.
    Barrier(Barrier),
}

/// Lines that access memory as one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) text: String,
    pub(super) reads: Vec<Touch>,
    pub(super) writes: Vec<Touch>,
    /// True if only what the step writes depends on its position: it may be moved to a later one.
    pub(super) floats: bool,
    /// True if the step itself synchronises all threads: their accesses to workgroup memory before and in it are
    /// complete then.
    pub(super) meets: bool,
    /// The line of the user's kernel; 0 if there is none.
    pub(super) line: u32,
}

/// An access of a step to memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Touch {
    pub(super) of: Memory,
    /// The owner of each word; between accesses with equal owners, every word is accessed by one thread only.
    pub(super) owner: Option<Owner>,
}

/// An assignment of words to threads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Owner {
    /// Threads loop over this many elements in strides.
    Strides(usize),
    /// Blocks of an array that are side by side. For each axis: the extent of a block, and the class of threads that
    /// share it. An element's position in its block determines the thread.
    Blocks(Vec<(usize, Option<Class>)>),
}

/// Memory that steps access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Memory {
    /// The buffer with this index in the plan.
    Buffer(usize),
    /// The array of this operand (for an aliased input, that of its output).
    Array(u32),
}

/// Control flow: parts, each with its opening line, and the closing line.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    pub(super) repeats: bool,
    pub(super) parts: Vec<(String, Vec<Node>)>,
    pub(super) close: String,
}

/// A barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Barrier {
    /// True if the barrier also covers storage, not only workgroup memory.
    pub(super) storage: bool,
    /// Description of the conflicting accesses.
    pub(super) why: String,
}

/// The addresses of memory: overlapping ranges of one address space share words.
pub(super) trait Ranges {
    /// Returns the address space, and the range of words.
    fn range(&self, memory: Memory) -> (Space, usize, usize);
    /// Returns the name for reasons of barriers.
    fn name(&self, memory: Memory) -> String;
}

/// An address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// Workgroup memory with these cells.
    Workgroup(Cell),
    Scratch,
    Array(u32),
}

impl Space {
    /// Returns true if a barrier for workgroup memory does not cover this space.
    pub(super) fn is_storage(self) -> bool {
        !matches!(self, Space::Workgroup(_))
    }
}

/// Returns true if two accesses, one of which writes, conflict.
pub(super) fn conflict(a: &Touch, b: &Touch, r: &dyn Ranges) -> bool {
    let ((s, lo, hi), (t, low, high)) = (r.range(a.of), r.range(b.of));
    let own = a.owner.is_some() && a.owner == b.owner && a.of == b.of;
    s == t && lo < high && low < hi && !own
}

/// The accesses since the last barrier.
#[derive(Clone, Default)]
struct State {
    reads: Vec<Touch>,
    writes: Vec<Touch>,
}

impl State {
    /// Adds accesses.
    fn join(&mut self, reads: &[Touch], writes: &[Touch]) {
        for (mine, new) in [(&mut self.reads, reads), (&mut self.writes, writes)] {
            for touch in new {
                if !mine.contains(touch) {
                    mine.push(touch.clone());
                }
            }
        }
    }
    fn covers(&self, other: &State) -> bool {
        other.reads.iter().all(|t| self.reads.contains(t)) && other.writes.iter().all(|t| self.writes.contains(t))
    }
    /// Returns the barrier that a step needs before it, if it conflicts with an access since the last barrier.
    fn needs(&self, step: &Step, r: &dyn Ranges) -> Option<Barrier> {
        let kinds = [
            (&self.writes, &step.reads, "is written above and read below"),
            (&self.reads, &step.writes, "is read above and overwritten below"),
            (&self.writes, &step.writes, "is written above and below"),
        ];
        let mut found: Option<Barrier> = None;
        for (before, now, how) in kinds {
            for (a, b) in before.iter().flat_map(|a| now.iter().map(move |b| (a, b))) {
                if conflict(a, b, r) {
                    let storage = r.range(a.of).0.is_storage();
                    let place = if step.line > 0 { format!("before line {}: ", step.line) } else { String::new() };
                    let why = || format!("{place}{} {how}", r.name(a.of));
                    let barrier = found.get_or_insert_with(|| Barrier { storage, why: why() });
                    barrier.storage |= storage;
                }
            }
        }
        found
    }
    /// Removes the accesses that a barrier has completed: those to workgroup memory, and to storage if the barrier
    /// covers it.
    fn met(&mut self, storage: bool, r: &dyn Ranges) {
        let open = |t: &Touch| !storage && r.range(t.of).0.is_storage();
        self.reads.retain(open);
        self.writes.retain(open);
    }
}

/// Inserts the necessary barriers into a program; existing ones are replaced.
pub(super) fn insert(nodes: &mut Vec<Node>, r: &dyn Ranges) {
    walk(nodes, &mut State::default(), r);
}

/// Inserts barriers into nodes; `state` has the accesses before them, and afterwards those at their end.
fn walk(nodes: &mut Vec<Node>, state: &mut State, r: &dyn Ranges) {
    nodes.retain(|n| !matches!(n, Node::Barrier(_)));
    let mut i = 0;
    while i < nodes.len() {
        let mut barrier = None;
        match &mut nodes[i] {
            Node::Step(step) => {
                barrier = state.needs(step, r);
                if let Some(b) = &barrier {
                    state.met(b.storage, r);
                }
                state.join(&step.reads, &step.writes);
                if step.meets {
                    state.met(false, r);
                }
            }
            Node::Nest(nest) if nest.repeats => {
                let mut entry = state.clone();
                loop {
                    let mut end = entry.clone();
                    nest.parts.iter_mut().for_each(|(_, part)| walk(part, &mut end, r));
                    if entry.covers(&end) {
                        break;
                    }
                    entry.join(&end.reads, &end.writes);
                }
                *state = entry;
            }
            Node::Nest(nest) => {
                let mut after = State::default();
                for (_, part) in &mut nest.parts {
                    let mut end = state.clone();
                    walk(part, &mut end, r);
                    after.join(&end.reads, &end.writes);
                }
                *state = after;
            }
            Node::Text(_) | Node::Barrier(_) => {}
        }
        if let Some(b) = barrier {
            nodes.insert(i, Node::Barrier(b));
            i += 1;
        }
        i += 1;
    }
}

/// Removes the barriers for which `stand` returns false, in the order of the text.
pub(super) fn keep(nodes: &mut Vec<Node>, stand: &mut dyn Iterator<Item = bool>) {
    nodes.retain_mut(|node| match node {
        Node::Barrier(_) => stand.next().expect("one for each barrier"),
        Node::Nest(nest) => {
            nest.parts.iter_mut().for_each(|(_, part)| keep(part, stand));
            true
        }
        Node::Text(_) | Node::Step(_) => true,
    });
}

/// Returns the reason of every barrier, in the order of the text.
pub(super) fn reasons(nodes: &[Node]) -> Vec<String> {
    let of = |n: &Node| match n {
        Node::Barrier(b) => vec![b.why.clone()],
        Node::Nest(nest) => nest.parts.iter().flat_map(|(_, part)| reasons(part)).collect(),
        Node::Text(_) | Node::Step(_) => vec![],
    };
    nodes.iter().flat_map(of).collect()
}

/// Returns the maximum number of barriers that a thread waits at in one step of the innermost of the `sequential`
/// axes. The loop over each axis is the first loop inside of the loop over the axis before.
pub(super) fn barriers_of_step(nodes: &[Node], sequential: usize) -> f64 {
    /// Returns the maximum number of barriers on a path through nodes.
    fn most(nodes: &[Node]) -> usize {
        let of = |n: &Node| match n {
            Node::Barrier(_) => 1,
            Node::Step(step) => usize::from(step.meets),
            Node::Nest(nest) => nest.parts.iter().map(|(_, part)| most(part)).max().unwrap_or(0),
            Node::Text(_) => 0,
        };
        nodes.iter().map(of).sum()
    }
    let mut nodes = nodes;
    for _ in 0..sequential {
        let axis = nodes.iter().find_map(|n| match n {
            Node::Nest(nest) if nest.repeats => nest.parts.first(),
            _ => None,
        });
        let Some((_, part)) = axis else { break };
        nodes = part;
    }
    most(nodes) as f64
}

#[cfg(test)]
mod tests {
    use super::super::races::{idle, prune, races};
    use super::*;

    /// Buffer n is words n..n+1 of workgroup memory; 9 is storage.
    struct Plain;
    impl Ranges for Plain {
        fn range(&self, memory: Memory) -> (Space, usize, usize) {
            match memory {
                Memory::Buffer(9) => (Space::Scratch, 0, 1),
                Memory::Buffer(b) => (Space::Workgroup(Cell::Word), b, b + 1),
                Memory::Array(id) => (Space::Array(id), 0, 1),
            }
        }
        fn name(&self, memory: Memory) -> String {
            format!("{memory:?}")
        }
    }
    fn touch(b: usize) -> Vec<Touch> {
        vec![Touch { of: Memory::Buffer(b), owner: None }]
    }
    fn read(b: usize) -> Node {
        Node::Step(Step { reads: touch(b), ..Step::default() })
    }
    fn write(b: usize) -> Node {
        Node::Step(Step { writes: touch(b), ..Step::default() })
    }
    fn nest(repeats: bool, parts: Vec<Vec<Node>>) -> Node {
        let parts = parts.into_iter().map(|nodes| (String::new(), nodes)).collect();
        Node::Nest(Nest { repeats, parts, close: String::new() })
    }
    /// Barriers inserted; none is missing, none is idle.
    fn barriers(mut nodes: Vec<Node>) -> usize {
        insert(&mut nodes, &Plain);
        prune(&mut nodes, &Plain);
        assert_eq!(races(&nodes, &Plain), [""; 0]);
        assert_eq!(idle(&nodes, &Plain), [""; 0]);
        reasons(&nodes).len()
    }

    #[test]
    fn barriers_stand_between_conflicts_and_nowhere_else() {
        assert_eq!(barriers(vec![read(0), read(0), write(1)]), 0);
        assert_eq!(barriers(vec![write(0), read(0)]), 1);
        assert_eq!(barriers(vec![write(0), write(1), read(0), read(1)]), 1);
        assert_eq!(barriers(vec![read(0), write(0), write(0)]), 2);
        assert_eq!(barriers(vec![write(9), write(0), read(0), read(9)]), 2);
    }
    #[test]
    fn a_loop_conflicts_with_itself() {
        assert_eq!(barriers(vec![nest(true, vec![vec![write(0), read(0)]])]), 2);
        assert_eq!(barriers(vec![write(0), nest(true, vec![vec![read(0)]]), write(0)]), 2);
        assert_eq!(barriers(vec![nest(true, vec![vec![nest(true, vec![vec![read(0)]]), write(0)]])]), 2);
    }
    #[test]
    fn branches_join() {
        assert_eq!(barriers(vec![nest(false, vec![vec![write(0)], vec![]]), read(0)]), 1);
        assert_eq!(barriers(vec![write(0), nest(false, vec![vec![read(0)], vec![write(0)]])]), 2);
    }
    #[test]
    fn threads_that_keep_to_their_own_words_need_not_meet() {
        let own = |writes: bool| {
            let touch = vec![Touch { of: Memory::Buffer(0), owner: Some(Owner::Strides(8)) }];
            let (reads, writes) = if writes { (vec![], touch) } else { (touch, vec![]) };
            Node::Step(Step { reads, writes, ..Step::default() })
        };
        assert_eq!(barriers(vec![own(true), own(false), own(true)]), 0);
        assert_eq!(barriers(vec![own(true), read(0)]), 1);
    }
    #[test]
    fn the_checker_sees_what_is_missing() {
        let found = races(&[write(0), nest(true, vec![vec![read(0)]])], &Plain);
        assert_eq!(found, ["Buffer(0) and Buffer(0) touch common words without a barrier between"]);
        let barrier = Node::Barrier(Barrier { storage: false, why: String::new() });
        assert!(
            races(&[write(9), barrier, read(9)], &Plain).len() == 1,
            "a barrier for workgroup memory is none for storage"
        );
    }
}
