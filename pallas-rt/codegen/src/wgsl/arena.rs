//! Assigns addresses to buffers; buffers that are not needed at the same time may share words.
//!
//! A buffer is needed from the first step that accesses it to the last; a buffer with contents from outside of a loop
//! is needed until the loop's end. Sharing words may require a barrier, so buffers share words only if they do not fit
//! otherwise.
use super::place::Buffer;
use super::place::matrices::Cell;
use super::sync::{Memory, Node};

/// The lifetime of a buffer.
#[derive(Clone, Debug)]
struct Life {
    /// The first and the last step that access the buffer.
    from: usize,
    to: usize,
    /// The branches and loops around all these steps, each with the side of the branch.
    sides: Vec<(usize, usize)>,
    /// The loops among `sides`.
    loops: Vec<usize>,
}

/// The buffers that may share words, each choice including those before it.
#[derive(Clone, Copy, PartialEq)]
enum Share {
    Nobody,
    /// Buffers on different sides of a branch.
    Sides,
    /// Buffers on different sides, and buffers that are needed at different times and that no loop uses both of, so
    /// that its steps need no barrier for sharing.
    Loops,
    /// All buffers that are needed at different times.
    Time,
}

impl Share {
    /// Returns true if buffers with these lifetimes may share words.
    fn allows(self, a: &Life, b: &Life) -> bool {
        let apart = a.to < b.from || b.to < a.from;
        let sides = a.sides.iter().any(|(at, side)| b.sides.iter().any(|(other, s)| at == other && side != s));
        match self {
            Share::Nobody => false,
            Share::Sides => sides,
            Share::Loops => sides || apart && !a.loops.iter().any(|l| b.loops.contains(l)),
            Share::Time => sides || apart,
        }
    }
}

/// Sizes of a program's memories, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sizes {
    /// Elements of workgroup memory, by [`Cell`].
    workgroup: [usize; Cell::ALL.len()],
    /// Words of global scratch.
    pub(super) scratch: usize,
    /// True if workgroup memory also has the word by which one thread passes scalars to all.
    pub(super) agreed: bool,
}

/// Multiple of bytes to which each array of workgroup memory is rounded up.
const ROUNDED: usize = 16;

impl Sizes {
    pub(super) fn of(&self, cell: Cell) -> usize {
        self.workgroup[cell as usize]
    }
    pub(super) fn workgroup_bytes(&self) -> usize {
        let of = |&cell: &Cell| (self.of(cell) * cell.bytes()).next_multiple_of(ROUNDED);
        Cell::ALL.iter().map(of).sum::<usize>() + if self.agreed { ROUNDED } else { 0 }
    }
}

/// Assigns every buffer its address, with as little sharing of words as fits `room` bytes of workgroup memory.
/// `agreed` if one word is needed to pass scalars to all threads.
pub(super) fn place(buffers: &mut [Buffer], nodes: &[Node], agreed: bool, room: usize) -> Sizes {
    let lives = lives(buffers, nodes);
    let mut sizes = |share: Share| Sizes {
        workgroup: Cell::ALL.map(|cell| fit(buffers, &lives, Some(cell), share)),
        scratch: fit(buffers, &lives, None, Share::Time),
        agreed,
    };
    let shares = [Share::Nobody, Share::Sides, Share::Loops];
    let roomy = shares.into_iter().map(&mut sizes).find(|sizes| sizes.workgroup_bytes() <= room);
    roomy.unwrap_or_else(|| sizes(Share::Time))
}

/// Assigns addresses by first fit, largest buffers first, in workgroup memory of these cells or, if `None`, in global
/// memory. Returns the number of words needed.
fn fit(buffers: &mut [Buffer], lives: &[Option<Life>], cell: Option<Cell>, share: Share) -> usize {
    let here = |b: &Buffer| cell.map_or(b.outside, |cell| !b.outside && b.cell == cell);
    let mut order: Vec<usize> = (0..buffers.len()).filter(|&b| here(&buffers[b]) && lives[b].is_some()).collect();
    order.sort_by_key(|&b| std::cmp::Reverse(buffers[b].words));
    let mut placed: Vec<usize> = vec![];
    let align = cell.unwrap_or_default().aligned();
    let size = |buffers: &[Buffer], b: usize| buffers[b].words.next_multiple_of(align);
    let mut top = 0;
    for b in order {
        let meets = |o: usize| match (&lives[b], &lives[o]) {
            (Some(x), Some(y)) => !share.allows(x, y),
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
fn lives(buffers: &[Buffer], nodes: &[Node]) -> Vec<Option<Life>> {
    let mut walk = ArenaWalk { now: 0, nests: 0, sides: vec![], loops: vec![], lives: vec![None; buffers.len()] };
    walk.nodes(nodes);
    for (life, buffer) in walk.lives.iter_mut().zip(buffers) {
        if buffer.scratch && life.is_some() {
            *life = Some(Life { from: 0, to: walk.now, sides: vec![], loops: vec![] });
        }
    }
    walk.lives
}

/// The walk over a program that finds the lifetimes of buffers.
struct ArenaWalk {
    now: usize,
    nests: usize,
    sides: Vec<(usize, usize)>,
    loops: Vec<usize>,
    lives: Vec<Option<Life>>,
}

impl ArenaWalk {
    /// Records the accesses of nodes, and extends the lifetimes of buffers that loops use from outside.
    fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            self.now += 1;
            match node {
                Node::Text(_) | Node::Barrier(_) => {}
                Node::Step(step) => {
                    for touch in step.reads.iter().chain(&step.writes) {
                        if let Memory::Buffer(b) = touch.of {
                            let (sides, loops) = (&self.sides, &self.loops);
                            let new =
                                || Life { from: self.now, to: self.now, sides: sides.clone(), loops: loops.clone() };
                            let life = self.lives[b].get_or_insert_with(new);
                            life.to = self.now;
                            life.sides.retain(|side| sides.contains(side));
                            life.loops.retain(|l| loops.contains(l));
                        }
                    }
                }
                Node::Nest(nest) => {
                    let start = self.now;
                    self.nests += 1;
                    let this = self.nests;
                    self.loops.extend(nest.repeats.then_some(this));
                    for (side, (_, part)) in nest.parts.iter().enumerate() {
                        self.sides.push((this, side));
                        self.nodes(part);
                        self.sides.pop();
                    }
                    self.loops.retain(|l| *l != this);
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
