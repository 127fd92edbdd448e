//! Assigns each tile a place in a program's arena, so that tiles alive at the same time do not overlap.
use super::step::StepBlock;
use pallas_ir::{Kernel, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Alignment of tiles in bytes: a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// Rounds a size in bytes up to whole cache lines, at least one.
pub(super) fn round_to_cache_lines(bytes: usize) -> usize {
    bytes.next_multiple_of(CACHE_LINE_BYTES).max(CACHE_LINE_BYTES)
}

/// Lifetimes of values, counted in steps. A value that a nested block uses from outside lives until the step that owns
/// the block ends, since the block may run again.
#[derive(Default)]
struct TileLiveRanges {
    /// First and last time at which each value is needed; one unit of time is a step.
    span: Vec<Option<(usize, usize)>>,
    /// The innermost block that contains each value's definition, by its index in `blocks`.
    block: Vec<usize>,
    /// Values in the order of their definitions.
    order: Vec<Value>,
    /// Values used in a block nested in the one that defines them, with that block.
    outer: Vec<(Value, usize)>,
    /// For each block the enclosing block, and the time at which its step ends.
    blocks: Vec<(usize, usize)>,
    now: usize,
}

/// Returns the byte offset in the arena of each value, `None` for those that own no memory, and the number of bytes of
/// the arena. `base` gives the value whose memory each value refers to, if it is another's.
pub(super) fn assign_arena_offsets(
    kernel: &Kernel,
    base: &[Option<Value>],
    body: &StepBlock,
) -> (Vec<Option<usize>>, usize) {
    let values = kernel.values.len();
    let mut lives = TileLiveRanges {
        span: vec![None; values],
        block: vec![0; values],
        blocks: vec![(0, usize::MAX)],
        ..TileLiveRanges::default()
    };
    lives.record_steps(body, &mut vec![0]);
    lives.extend_live_ranges(base);
    let mut arena = Arena { free: BTreeMap::from([(0, usize::MAX)]), ..Arena::default() };
    let mut slots = vec![None; values];
    let mut order = lives.order;
    order.sort_unstable_by_key(|&v| (lives.span[v.index()], v));
    for v in order.into_iter().filter(|&v| !kernel.ty(v).is_scalar()) {
        let Some((from, to)) = lives.span[v.index()] else { continue };
        slots[v.index()] = Some(arena.allocate_for_lifetime(round_to_cache_lines(kernel.ty(v).bytes()), from, to));
    }
    (slots, arena.top)
}

/// Allocator of the arena, which hands out memory for spans of time.
#[derive(Default)]
struct Arena {
    /// The tiles that are alive, by the time at which each ends: end, start in bytes, and size.
    ends: BinaryHeap<Reverse<(usize, usize, usize)>>,
    /// Free gaps: sizes in bytes by their start. The last gap is unbounded.
    free: BTreeMap<usize, usize>,
    top: usize,
}

impl Arena {
    /// Allocates `bytes` bytes in the first gap that is large enough, for a tile that lives from `first_time` to
    /// `last_time`. Calls come with ascending `first_time`.
    fn allocate_for_lifetime(&mut self, bytes: usize, first_time: usize, last_time: usize) -> usize {
        while let Some(&Reverse((end, start, bytes))) = self.ends.peek()
            && end < first_time
        {
            self.ends.pop();
            self.release(start, bytes);
        }
        let mut gaps = self.free.iter().map(|(&start, &size)| (start, size));
        let (at, size) = gaps.find(|(_, size)| *size >= bytes).expect("the last gap has no end");
        self.free.remove(&at);
        if size > bytes {
            self.free.insert(at + bytes, size - bytes);
        }
        self.top = self.top.max(at + bytes);
        self.ends.push(Reverse((last_time, at, bytes)));
        at
    }
    /// Frees a range of bytes, and merges it with neighbouring gaps.
    fn release(&mut self, mut start: usize, mut bytes: usize) {
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            (start, bytes) = (before, size + bytes);
        }
        bytes += self.free.remove(&(start + bytes)).unwrap_or(0);
        self.free.insert(start, bytes);
    }
}

impl TileLiveRanges {
    /// Records the lifetimes of a block's values; `scope` is the path of blocks around its steps.
    fn record_steps(&mut self, block: &StepBlock, scope: &mut Vec<usize>) {
        for step in &block.steps {
            self.now += 1;
            self.record_reads(&step.reads(), scope);
            self.record_definitions(&step.defines(), scope);
            let blocks = step.nested_blocks();
            if blocks.is_empty() {
                continue;
            }
            // One scope for all blocks of a step: those of a loop run in turn.
            let id = self.blocks.len();
            self.blocks.push((scope[scope.len() - 1], 0));
            scope.push(id);
            for inner in blocks {
                self.record_steps(inner, scope);
                self.now += 1;
                self.record_reads(&inner.yields, scope);
            }
            scope.pop();
            self.now += 1;
            self.blocks[id].1 = self.now;
            // Results and carried values live while the step runs.
            self.record_reads(&step.defines(), scope);
        }
    }
    /// Extends the lifetimes of values that are read at the time `now`: to that time or, if a block in `scope` (the
    /// blocks around the reading step) does not contain the definition, to that block's end.
    fn record_reads(&mut self, values: &[Value], scope: &[usize]) {
        for v in values {
            // Blocks are numbered as they begin: find the first block around the use that began after the value's own.
            let inside = scope.partition_point(|&block| block <= self.block[v.index()]);
            match (&mut self.span[v.index()], scope.get(inside)) {
                (Some(_), Some(&block)) => self.outer.push((*v, block)),
                (Some(span), None) => span.1 = self.now,
                (None, _) => {}
            }
        }
    }
    /// Begins the lifetimes of values that are defined at the time `now`, in the innermost of the blocks `scope` around
    /// the defining step.
    fn record_definitions(&mut self, values: &[Value], scope: &[usize]) {
        for v in values {
            if self.span[v.index()].is_none() {
                self.span[v.index()] = Some((self.now, self.now));
                self.order.push(*v);
            }
            self.block[v.index()] = scope[scope.len() - 1];
        }
    }
    /// Extends each value's lifetime to the ends of the blocks that use it, and the lifetime of a value whose memory
    /// another refers to by that of the other.
    fn extend_live_ranges(&mut self, base: &[Option<Value>]) {
        let until = |span: &mut Option<(usize, usize)>, end: usize| {
            if let Some((_, last)) = span {
                *last = end.max(*last);
            }
        };
        for (v, block) in std::mem::take(&mut self.outer) {
            until(&mut self.span[v.index()], self.blocks[block].1);
        }
        for &v in self.order.iter().rev() {
            let (Some(of), Some((_, mut end))) = (base[v.index()], self.span[v.index()]) else { continue };
            let mut block = self.block[v.index()];
            while block > self.block[of.index()] {
                end = end.max(self.blocks[block].1);
                block = self.blocks[block].0;
            }
            until(&mut self.span[of.index()], end);
        }
    }
}
