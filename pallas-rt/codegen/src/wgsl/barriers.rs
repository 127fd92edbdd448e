//! Inserts barriers, which are derived from the memory that steps read and write.
//!
//! [`insert_barriers`] walks the program with the accesses made since the last barrier; a step that conflicts with one
//! of them gets a barrier before it. A loop is entered with the accesses before it and those at its own end, until
//! these do not change any more.
//!
//! Two accesses conflict if they access common words, one of them writes, and not every thread keeps to its own words.
use super::place::cooperative_matrices::StorageCell;
use super::place::thread_layout::AxisClass;

/// A part of a shader's program: text, a step that accesses memory, a branch or loop, or a barrier.
#[derive(Clone, Debug)]
pub(super) enum ShaderNode {
    /// Lines that every thread executes and that access no shared memory.
    Text(String),
    /// Lines that access memory.
    MemoryStep(MemoryStep),
    /// A branch or a loop.
    ControlFlow(ControlFlow),
    /// A barrier, with the reason for it.
    Barrier(Barrier),
}

/// Lines of a shader that access shared memory and that no barrier divides.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryStep {
    pub(super) text: String,
    pub(super) reads: Vec<StepAccess>,
    pub(super) writes: Vec<StepAccess>,
    /// True if only what the step writes depends on its position: it may be moved to a later one.
    pub(super) can_move_later: bool,
    /// True if the step itself synchronises all threads: their accesses to workgroup memory before and in it are
    /// complete then.
    pub(super) synchronizes: bool,
    /// The line of the user's kernel; 0 if there is none.
    pub(super) line: u32,
}

/// A read or write of a buffer or array by a step, with the thread that owns each word if every thread keeps to its
/// own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct StepAccess {
    pub(super) memory: MemoryId,
    /// The owner of each word; between accesses with equal owners, every word is accessed by one thread only.
    pub(super) owner: Option<WordOwnership>,
}

/// A rule that assigns the words of a memory to threads, each of which accesses its own words only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WordOwnership {
    /// Threads loop over this many elements in strides.
    Strides(usize),
    /// Blocks of an array that are side by side. For each axis: the extent of a block, and the class of threads that
    /// share it. An element's position in its block determines the thread.
    Blocks(Vec<(usize, Option<AxisClass>)>),
}

/// Identifies a memory that steps access: a buffer of the plan, or an array.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum MemoryId {
    /// The buffer with this index in the plan.
    Buffer(usize),
    /// The array of this operand (for an aliased input, that of its output).
    Array(u32),
}

/// A branch or a loop of a shader: its parts, each with its opening line, and the closing line.
#[derive(Clone, Debug)]
pub(super) struct ControlFlow {
    pub(super) repeats: bool,
    pub(super) parts: Vec<(String, Vec<ShaderNode>)>,
    pub(super) close: String,
}

/// A barrier in a shader, at which each thread of a workgroup waits for all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Barrier {
    /// True if the barrier also covers storage, not only workgroup memory.
    pub(super) storage: bool,
    /// Description of the conflicting accesses.
    pub(super) why: String,
}

/// Resolves the memories that steps access to addresses; memories whose ranges in one address space overlap share
/// words.
pub(super) trait AddressResolver {
    /// Returns the address space of a memory, and the first word of its range and the word after the last.
    fn address_range(&self, memory: MemoryId) -> (AddressSpace, usize, usize);
    /// Returns the name of a memory, for the texts that say why a barrier is needed.
    fn memory_name(&self, memory: MemoryId) -> String;
}

/// The address space of a memory: workgroup memory, global scratch, or the array of this operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AddressSpace {
    /// Workgroup memory with these cells.
    Workgroup(StorageCell),
    Scratch,
    Array(u32),
}

impl AddressSpace {
    /// Returns true for scratch and arrays, which are in global memory, and which a barrier for workgroup memory does
    /// not cover.
    pub(super) fn is_storage(self) -> bool {
        !matches!(self, AddressSpace::Workgroup(_))
    }
}

/// Returns true if two accesses, at least one of which writes, may access the same word from different threads.
pub(super) fn accesses_conflict(a: &StepAccess, b: &StepAccess, r: &dyn AddressResolver) -> bool {
    let ((s, lo, hi), (t, low, high)) = (r.address_range(a.memory), r.address_range(b.memory));
    let own = a.owner.is_some() && a.owner == b.owner && a.memory == b.memory;
    s == t && lo < high && low < hi && !own
}

/// The accesses since the last barrier.
#[derive(Clone, Default)]
struct PendingAccesses {
    reads: Vec<StepAccess>,
    writes: Vec<StepAccess>,
}

impl PendingAccesses {
    /// Adds accesses to those since the last barrier, each once.
    fn add_accesses(&mut self, reads: &[StepAccess], writes: &[StepAccess]) {
        for (mine, new) in [(&mut self.reads, reads), (&mut self.writes, writes)] {
            for touch in new {
                if !mine.contains(touch) {
                    mine.push(touch.clone());
                }
            }
        }
    }
    fn contains_all_of(&self, other: &PendingAccesses) -> bool {
        other.reads.iter().all(|t| self.reads.contains(t)) && other.writes.iter().all(|t| self.writes.contains(t))
    }
    /// Returns the barrier that a step needs before it, if it conflicts with an access since the last barrier.
    fn required_barrier(&self, step: &MemoryStep, r: &dyn AddressResolver) -> Option<Barrier> {
        let kinds = [
            (&self.writes, &step.reads, "is written above and read below"),
            (&self.reads, &step.writes, "is read above and overwritten below"),
            (&self.writes, &step.writes, "is written above and below"),
        ];
        let mut found: Option<Barrier> = None;
        for (before, now, how) in kinds {
            for (a, b) in before.iter().flat_map(|a| now.iter().map(move |b| (a, b))) {
                if accesses_conflict(a, b, r) {
                    let storage = r.address_range(a.memory).0.is_storage();
                    let place = if step.line > 0 { format!("before line {}: ", step.line) } else { String::new() };
                    let why = || format!("{place}{} {how}", r.memory_name(a.memory));
                    let barrier = found.get_or_insert_with(|| Barrier { storage, why: why() });
                    barrier.storage |= storage;
                }
            }
        }
        found
    }
    /// Removes the accesses that a barrier has completed: those to workgroup memory and, if it `covers_storage`, those
    /// to global memory.
    fn remove_completed(&mut self, covers_storage: bool, r: &dyn AddressResolver) {
        let open = |t: &StepAccess| !covers_storage && r.address_range(t.memory).0.is_storage();
        self.reads.retain(open);
        self.writes.retain(open);
    }
}

/// Inserts the necessary barriers into a program; existing ones are replaced.
pub(super) fn insert_barriers(nodes: &mut Vec<ShaderNode>, r: &dyn AddressResolver) {
    insert_barriers_from(nodes, &mut PendingAccesses::default(), r);
}

/// Inserts barriers into nodes. `pending` has the accesses since the last barrier before them, and is changed to those
/// at their end.
fn insert_barriers_from(nodes: &mut Vec<ShaderNode>, pending: &mut PendingAccesses, r: &dyn AddressResolver) {
    nodes.retain(|n| !matches!(n, ShaderNode::Barrier(_)));
    let mut i = 0;
    while i < nodes.len() {
        let mut barrier = None;
        match &mut nodes[i] {
            ShaderNode::MemoryStep(step) => {
                barrier = pending.required_barrier(step, r);
                if let Some(b) = &barrier {
                    pending.remove_completed(b.storage, r);
                }
                pending.add_accesses(&step.reads, &step.writes);
                if step.synchronizes {
                    pending.remove_completed(false, r);
                }
            }
            ShaderNode::ControlFlow(nest) if nest.repeats => {
                let mut entry = pending.clone();
                loop {
                    let mut end = entry.clone();
                    nest.parts.iter_mut().for_each(|(_, part)| insert_barriers_from(part, &mut end, r));
                    if entry.contains_all_of(&end) {
                        break;
                    }
                    entry.add_accesses(&end.reads, &end.writes);
                }
                *pending = entry;
            }
            ShaderNode::ControlFlow(nest) => {
                let mut after = PendingAccesses::default();
                for (_, part) in &mut nest.parts {
                    let mut end = pending.clone();
                    insert_barriers_from(part, &mut end, r);
                    after.add_accesses(&end.reads, &end.writes);
                }
                *pending = after;
            }
            ShaderNode::Text(_) | ShaderNode::Barrier(_) => {}
        }
        if let Some(b) = barrier {
            nodes.insert(i, ShaderNode::Barrier(b));
            i += 1;
        }
        i += 1;
    }
}

/// Keeps each barrier for which `kept` gives true, and removes those for which it gives false, in the order of the
/// text.
pub(super) fn retain_barriers(nodes: &mut Vec<ShaderNode>, kept: &mut dyn Iterator<Item = bool>) {
    nodes.retain_mut(|node| match node {
        ShaderNode::Barrier(_) => kept.next().expect("one for each barrier"),
        ShaderNode::ControlFlow(nest) => {
            nest.parts.iter_mut().for_each(|(_, part)| retain_barriers(part, kept));
            true
        }
        ShaderNode::Text(_) | ShaderNode::MemoryStep(_) => true,
    });
}

/// Returns the reason of every barrier, in the order of the text.
pub(super) fn barrier_reasons(nodes: &[ShaderNode]) -> Vec<String> {
    let of = |n: &ShaderNode| match n {
        ShaderNode::Barrier(b) => vec![b.why.clone()],
        ShaderNode::ControlFlow(nest) => nest.parts.iter().flat_map(|(_, part)| barrier_reasons(part)).collect(),
        ShaderNode::Text(_) | ShaderNode::MemoryStep(_) => vec![],
    };
    nodes.iter().flat_map(of).collect()
}

/// Returns the maximum number of barriers that a thread waits at in one step of the innermost sequential axis: in the
/// body of the loop nested `sequential_axes` deep, each the first loop inside of the one before.
pub(super) fn max_barriers_per_step(nodes: &[ShaderNode], sequential_axes: usize) -> f64 {
    /// Returns the maximum number of barriers on a path through nodes.
    fn max_barriers_on_path(nodes: &[ShaderNode]) -> usize {
        let of = |n: &ShaderNode| match n {
            ShaderNode::Barrier(_) => 1,
            ShaderNode::MemoryStep(step) => usize::from(step.synchronizes),
            ShaderNode::ControlFlow(nest) => {
                nest.parts.iter().map(|(_, part)| max_barriers_on_path(part)).max().unwrap_or(0)
            }
            ShaderNode::Text(_) => 0,
        };
        nodes.iter().map(of).sum()
    }
    let mut nodes = nodes;
    for _ in 0..sequential_axes {
        let axis = nodes.iter().find_map(|n| match n {
            ShaderNode::ControlFlow(nest) if nest.repeats => nest.parts.first(),
            _ => None,
        });
        let Some((_, part)) = axis else { break };
        nodes = part;
    }
    max_barriers_on_path(nodes) as f64
}

#[cfg(test)]
mod tests {
    use super::super::races::{find_races, find_redundant_barriers, remove_redundant_barriers};
    use super::*;

    /// Buffer n is words n..n+1 of workgroup memory; 9 is storage.
    struct Plain;
    impl AddressResolver for Plain {
        fn address_range(&self, memory: MemoryId) -> (AddressSpace, usize, usize) {
            match memory {
                MemoryId::Buffer(9) => (AddressSpace::Scratch, 0, 1),
                MemoryId::Buffer(b) => (AddressSpace::Workgroup(StorageCell::Word), b, b + 1),
                MemoryId::Array(id) => (AddressSpace::Array(id), 0, 1),
            }
        }
        fn memory_name(&self, memory: MemoryId) -> String {
            format!("{memory:?}")
        }
    }
    fn touch(b: usize) -> Vec<StepAccess> {
        vec![StepAccess { memory: MemoryId::Buffer(b), owner: None }]
    }
    fn read(b: usize) -> ShaderNode {
        ShaderNode::MemoryStep(MemoryStep { reads: touch(b), ..MemoryStep::default() })
    }
    fn write(b: usize) -> ShaderNode {
        ShaderNode::MemoryStep(MemoryStep { writes: touch(b), ..MemoryStep::default() })
    }
    fn nest(repeats: bool, parts: Vec<Vec<ShaderNode>>) -> ShaderNode {
        let parts = parts.into_iter().map(|nodes| (String::new(), nodes)).collect();
        ShaderNode::ControlFlow(ControlFlow { repeats, parts, close: String::new() })
    }
    /// Barriers inserted; none is missing, none is idle.
    fn barriers(mut nodes: Vec<ShaderNode>) -> usize {
        insert_barriers(&mut nodes, &Plain);
        remove_redundant_barriers(&mut nodes, &Plain);
        assert_eq!(find_races(&nodes, &Plain), [""; 0]);
        assert_eq!(find_redundant_barriers(&nodes, &Plain), [""; 0]);
        barrier_reasons(&nodes).len()
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
            let touch = vec![StepAccess { memory: MemoryId::Buffer(0), owner: Some(WordOwnership::Strides(8)) }];
            let (reads, writes) = if writes { (vec![], touch) } else { (touch, vec![]) };
            ShaderNode::MemoryStep(MemoryStep { reads, writes, ..MemoryStep::default() })
        };
        assert_eq!(barriers(vec![own(true), own(false), own(true)]), 0);
        assert_eq!(barriers(vec![own(true), read(0)]), 1);
    }
    #[test]
    fn the_checker_sees_what_is_missing() {
        let found = find_races(&[write(0), nest(true, vec![vec![read(0)]])], &Plain);
        assert_eq!(found, ["Buffer(0) and Buffer(0) touch common words without a barrier between"]);
        let barrier = ShaderNode::Barrier(Barrier { storage: false, why: String::new() });
        assert!(
            find_races(&[write(9), barrier, read(9)], &Plain).len() == 1,
            "a barrier for workgroup memory is none for storage"
        );
    }
}
