//! Insertion of barriers: they are derived from the memory that steps read and write.
//!
//! [`insert`] walks the program with the accesses made since the last barrier; a step in conflict with one of them gets a
//! barrier in front. A loop is entered with the accesses before it and those of its own end, to a fixpoint.
//!
//! Two accesses conflict if they touch common words, one of them writes, and threads do not each keep to their own words.
use super::place::layout::Class;
use super::place::matrices::Cell;

/// Part of a program.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// Lines every thread runs alike, on nothing shared.
    Text(String),
    /// Lines that touch memory.
    Step(Step),
    /// Control flow.
    Nest(Nest),
    /// A barrier, and why it is there.
    Barrier(Barrier),
}

/// Lines that touch memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) text: String,
    pub(super) reads: Vec<Touch>,
    pub(super) writes: Vec<Touch>,
    /// Nothing but what it writes depends on its place: it may come later.
    pub(super) floats: bool,
    /// The step itself makes all threads meet: what they did to workgroup memory before and in it is done.
    pub(super) meets: bool,
    /// The user's line; 0: none.
    pub(super) line: u32,
}

/// An access.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Touch {
    pub(super) of: Memory,
    /// With equal owners every word is touched by one thread alone.
    pub(super) owner: Option<Owner>,
}

/// The assignment of words to threads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Owner {
    /// Threads stride over so many elements.
    Strides(usize),
    /// Blocks of an array lie side by side: by axis its extent in a block and the threads that share it. An element's place
    /// in its block tells the thread.
    Blocks(Vec<(usize, Option<Class>)>),
}

/// The memory that is accessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Memory {
    /// A buffer of the plan.
    Buffer(usize),
    /// An array, by operand (an aliased input is its output).
    Array(u32),
}

/// Control flow: parts with the line in front of each, and the closing line.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    pub(super) repeats: bool,
    pub(super) parts: Vec<(String, Vec<Node>)>,
    pub(super) close: String,
}

/// A barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Barrier {
    /// For storage, too, not workgroup memory alone.
    pub(super) storage: bool,
    /// The conflicting accesses.
    pub(super) why: String,
}

/// Addresses of memory: overlapping ranges of one space share words.
pub(super) trait Ranges {
    /// Space and range of words.
    fn range(&self, memory: Memory) -> (Space, usize, usize);
    /// For reasons.
    fn name(&self, memory: Memory) -> String;
}

/// An address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    /// Workgroup memory of such cells.
    Workgroup(Cell),
    Scratch,
    Array(u32),
}

impl Space {
    /// Returns true if a barrier for workgroup memory does not cover it.
    pub(super) fn is_storage(self) -> bool {
        !matches!(self, Space::Workgroup(_))
    }
}

pub(super) fn conflict(a: &Touch, b: &Touch, r: &dyn Ranges) -> bool {
    let ((s, lo, hi), (t, low, high)) = (r.range(a.of), r.range(b.of));
    let own = a.owner.is_some() && a.owner == b.owner && a.of == b.of;
    s == t && lo < high && low < hi && !own
}

#[derive(Clone, Default)]
struct State {
    reads: Vec<Touch>,
    writes: Vec<Touch>,
}

impl State {
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
    /// All threads met: workgroup memory is in order, and storage if the barrier was for it.
    fn met(&mut self, storage: bool, r: &dyn Ranges) {
        let open = |t: &Touch| !storage && r.range(t.of).0.is_storage();
        self.reads.retain(open);
        self.writes.retain(open);
    }
}

/// Puts barriers into a program that has none.
pub(super) fn insert(nodes: &mut Vec<Node>, r: &dyn Ranges) {
    walk(nodes, &mut State::default(), r);
}

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

/// Takes out the barriers that do not stand, said of each in the order of the text.
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

/// The reason of every barrier, in the order of the text.
pub(super) fn reasons(nodes: &[Node]) -> Vec<String> {
    let of = |n: &Node| match n {
        Node::Barrier(b) => vec![b.why.clone()],
        Node::Nest(nest) => nest.parts.iter().flat_map(|(_, part)| reasons(part)).collect(),
        Node::Text(_) | Node::Step(_) => vec![],
    };
    nodes.iter().flat_map(of).collect()
}

/// Barriers a thread meets in one step of the innermost of the `sequential` axes, at most: the first loop inside of each
/// loop is the next one's.
pub(super) fn barriers_of_step(nodes: &[Node], sequential: usize) -> f64 {
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
