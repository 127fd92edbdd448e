//! Assigns addresses to buffers; buffers that are not needed at the same time may share words.
//!
//! A buffer is needed from the first step that accesses it to the last; a buffer with contents from outside of a loop
//! is needed until the loop's end. Sharing words may require a barrier, so buffers share words only if they do not fit
//! otherwise.
use super::barriers::{MemoryId, ShaderNode};
use super::place::TileBuffer;
use super::place::cooperative_matrices::StorageCell;

/// The part of a program in which a buffer is needed: the steps from its first access to its last, and the branches and
/// loops around them.
#[derive(Clone, Debug)]
struct BufferLifetime {
    /// The first and the last step that access the buffer.
    from: usize,
    to: usize,
    /// The branches and loops around all these steps, each with the side of the branch.
    sides: Vec<(usize, usize)>,
    /// The loops among `sides`.
    loops: Vec<usize>,
}

/// A rule about which buffers may share words, from the strictest to the most permissive: each also allows what those
/// before it allow.
#[derive(Clone, Copy, PartialEq)]
enum SharingPolicy {
    Never,
    /// Buffers on different sides of a branch.
    AcrossBranches,
    /// Buffers on different sides, and buffers that are needed at different times and that no loop uses both of, so
    /// that its steps need no barrier for sharing.
    NotWithinLoop,
    /// All buffers that are needed at different times.
    DisjointLifetimes,
}

impl SharingPolicy {
    /// Returns true if buffers with these lifetimes may share words.
    fn allows(self, a: &BufferLifetime, b: &BufferLifetime) -> bool {
        let apart = a.to < b.from || b.to < a.from;
        let sides = a.sides.iter().any(|(at, side)| b.sides.iter().any(|(other, s)| at == other && side != s));
        match self {
            SharingPolicy::Never => false,
            SharingPolicy::AcrossBranches => sides,
            SharingPolicy::NotWithinLoop => sides || apart && !a.loops.iter().any(|l| b.loops.contains(l)),
            SharingPolicy::DisjointLifetimes => sides || apart,
        }
    }
}

/// Sizes of a program's workgroup memory, by type of cell, and of its global scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct MemorySizes {
    /// Elements of workgroup memory, by [`StorageCell`].
    workgroup: [usize; StorageCell::ALL.len()],
    /// Words of global scratch.
    pub(super) scratch: usize,
    /// True if workgroup memory also has the word by which one thread passes scalars to all.
    pub(super) has_broadcast_word: bool,
}

/// Multiple of bytes to which each array of workgroup memory is rounded up.
const WORKGROUP_ARRAY_ALIGN_BYTES: usize = 16;

impl MemorySizes {
    pub(super) fn workgroup_elements(&self, cell: StorageCell) -> usize {
        self.workgroup[cell as usize]
    }
    pub(super) fn workgroup_bytes(&self) -> usize {
        let of = |&cell: &StorageCell| {
            (self.workgroup_elements(cell) * cell.bytes_per_element()).next_multiple_of(WORKGROUP_ARRAY_ALIGN_BYTES)
        };
        StorageCell::ALL.iter().map(of).sum::<usize>()
            + if self.has_broadcast_word { WORKGROUP_ARRAY_ALIGN_BYTES } else { 0 }
    }
}

/// Assigns every buffer its address, with as little sharing of words as fits `available_bytes` of workgroup memory; if
/// nothing fits, the returned sizes exceed that. `needs_broadcast_word` is true if one word is needed to pass scalars
/// to all threads.
pub(super) fn assign_addresses(
    buffers: &mut [TileBuffer],
    nodes: &[ShaderNode],
    needs_broadcast_word: bool,
    available_bytes: usize,
) -> MemorySizes {
    let lives = buffer_lifetimes(buffers, nodes);
    let mut sizes = |share: SharingPolicy| MemorySizes {
        workgroup: StorageCell::ALL.map(|cell| assign_first_fit(buffers, &lives, Some(cell), share)),
        scratch: assign_first_fit(buffers, &lives, None, SharingPolicy::DisjointLifetimes),
        has_broadcast_word: needs_broadcast_word,
    };
    let shares = [SharingPolicy::Never, SharingPolicy::AcrossBranches, SharingPolicy::NotWithinLoop];
    let roomy = shares.into_iter().map(&mut sizes).find(|sizes| sizes.workgroup_bytes() <= available_bytes);
    roomy.unwrap_or_else(|| sizes(SharingPolicy::DisjointLifetimes))
}

/// Assigns addresses by first fit, largest buffers first, to the buffers in workgroup memory of type `cell` or, if
/// `None`, to those in global memory; two share words only if `policy` allows it for their lifetimes. Returns the
/// number of elements of that memory that are needed.
fn assign_first_fit(
    buffers: &mut [TileBuffer],
    lifetimes: &[Option<BufferLifetime>],
    cell: Option<StorageCell>,
    policy: SharingPolicy,
) -> usize {
    let here = |b: &TileBuffer| cell.map_or(b.outside, |cell| !b.outside && b.cell == cell);
    let mut order: Vec<usize> = (0..buffers.len()).filter(|&b| here(&buffers[b]) && lifetimes[b].is_some()).collect();
    order.sort_by_key(|&b| std::cmp::Reverse(buffers[b].words));
    let mut placed: Vec<usize> = vec![];
    let align = cell.unwrap_or_default().alignment_elements();
    let size = |buffers: &[TileBuffer], b: usize| buffers[b].words.next_multiple_of(align);
    let mut top = 0;
    for b in order {
        let meets = |o: usize| match (&lifetimes[b], &lifetimes[o]) {
            (Some(x), Some(y)) => !policy.allows(x, y),
            _ => false,
        };
        let mut busy: Vec<(usize, usize)> =
            placed.iter().filter(|&&o| meets(o)).map(|&o| (buffers[o].at, buffers[o].at + size(buffers, o))).collect();
        busy.sort_unstable();
        let mut at = 0;
        for (from, to) in busy {
            if at + size(buffers, b) <= from {
                break;
            }
            at = at.max(to);
        }
        buffers[b].at = at;
        top = top.max(at + size(buffers, b));
        placed.push(b);
    }
    top
}

/// Returns the lifetime of each buffer; `None` for buffers that no step accesses.
fn buffer_lifetimes(buffers: &[TileBuffer], nodes: &[ShaderNode]) -> Vec<Option<BufferLifetime>> {
    let mut walk = LifetimeFinder { now: 0, nests: 0, sides: vec![], loops: vec![], lives: vec![None; buffers.len()] };
    walk.visit_nodes(nodes);
    for (life, buffer) in walk.lives.iter_mut().zip(buffers) {
        if buffer.scratch && life.is_some() {
            *life = Some(BufferLifetime { from: 0, to: walk.now, sides: vec![], loops: vec![] });
        }
    }
    walk.lives
}

/// The walk over a program that finds the lifetimes of buffers.
struct LifetimeFinder {
    now: usize,
    nests: usize,
    sides: Vec<(usize, usize)>,
    loops: Vec<usize>,
    lives: Vec<Option<BufferLifetime>>,
}

impl LifetimeFinder {
    /// Records the accesses of nodes, and extends the lifetimes of buffers that loops use from outside.
    fn visit_nodes(&mut self, nodes: &[ShaderNode]) {
        for node in nodes {
            self.now += 1;
            match node {
                ShaderNode::Text(_) | ShaderNode::Barrier(_) => {}
                ShaderNode::MemoryStep(step) => {
                    for touch in step.reads.iter().chain(&step.writes) {
                        if let MemoryId::Buffer(b) = touch.memory {
                            let (sides, loops) = (&self.sides, &self.loops);
                            let new = || BufferLifetime {
                                from: self.now,
                                to: self.now,
                                sides: sides.clone(),
                                loops: loops.clone(),
                            };
                            let life = self.lives[b].get_or_insert_with(new);
                            life.to = self.now;
                            life.sides.retain(|side| sides.contains(side));
                            life.loops.retain(|l| loops.contains(l));
                        }
                    }
                }
                ShaderNode::ControlFlow(nest) => {
                    let start = self.now;
                    self.nests += 1;
                    let this = self.nests;
                    self.loops.extend(nest.repeats.then_some(this));
                    for (side, (_, part)) in nest.parts.iter().enumerate() {
                        self.sides.push((this, side));
                        self.visit_nodes(part);
                        self.sides.pop();
                    }
                    self.loops.retain(|l| *l != this);
                    self.now += 1;
                    if nest.repeats {
                        let end = self.now;
                        let entered = |l: &&mut BufferLifetime| l.from < start && l.to > start;
                        self.lives.iter_mut().flatten().filter(entered).for_each(|l| l.to = end);
                    }
                }
            }
        }
    }
}
