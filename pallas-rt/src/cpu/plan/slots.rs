//! Where tiles lie in a program's arena: tiles alive at once do not overlap.
use super::step::Block;
use pallas_ir::{Kernel, Value};

/// Tiles begin at cache lines.
const LINE: usize = 64;

/// A size in whole lines, at least one.
pub(super) fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE).max(LINE)
}

/// The steps during which a value is needed. A value that a block takes from outside stays until the block's step ends:
/// the block may run again.
#[derive(Default)]
struct Lives {
    /// Begin and end of each value, in time.
    span: Vec<Option<(usize, usize)>>,
    /// The blocks around each value's definition.
    scope: Vec<Vec<usize>>,
    /// Uses: the value, when, inside of which blocks.
    uses: Vec<(Value, usize, Vec<usize>)>,
    /// When each block's step ends.
    ends: Vec<usize>,
    now: usize,
}

/// Byte offsets of the values that own memory, and the bytes in all.
pub(super) fn allocate(kernel: &Kernel, base: &[Option<Value>], body: &Block) -> (Vec<Option<usize>>, usize) {
    let values = kernel.values.len();
    let mut lives = Lives { span: vec![None; values], scope: vec![vec![]; values], ..Lives::default() };
    lives.block(body, &mut vec![]);
    lives.settle(base);
    let owns = |v: usize| !kernel.values[v].is_scalar();
    let mut order: Vec<usize> = (0..values).filter(|&v| owns(v) && lives.span[v].is_some()).collect();
    order.sort_by_key(|&v| lives.span[v]);
    let (mut slots, mut top) = (vec![None; values], 0);
    let mut placed: Vec<(usize, usize, usize)> = vec![];
    for v in order {
        let Some((from, to)) = lives.span[v] else { continue };
        // Everything begins in order, so whatever has not ended yet is alive.
        placed.retain(|p| p.0 >= from);
        placed.sort_unstable_by_key(|p| p.1);
        let bytes = rounded(kernel.values[v].bytes());
        let mut at = 0;
        for &(_, start, end) in &placed {
            if at + bytes <= start {
                break;
            }
            at = at.max(end);
        }
        placed.push((to, at, at + bytes));
        slots[v] = Some(at);
        top = top.max(at + bytes);
    }
    (slots, top)
}

impl Lives {
    fn block(&mut self, block: &Block, scope: &mut Vec<usize>) {
        for step in &block.steps {
            self.now += 1;
            self.reads(&step.reads(), scope);
            self.defines(&step.defines(), scope);
            let blocks = step.blocks();
            if blocks.is_empty() {
                continue;
            }
            // One scope for all blocks of a step: those of a loop run in turn.
            let id = self.ends.len();
            self.ends.push(0);
            scope.push(id);
            for inner in blocks {
                self.block(inner, scope);
                self.now += 1;
                self.reads(&inner.yields, scope);
            }
            scope.pop();
            self.now += 1;
            self.ends[id] = self.now;
            // Results and carried values live while the step runs.
            self.reads(&step.defines(), scope);
        }
    }
    fn reads(&mut self, values: &[Value], scope: &[usize]) {
        self.uses.extend(values.iter().map(|&v| (v, self.now, scope.to_vec())));
    }
    fn defines(&mut self, values: &[Value], scope: &[usize]) {
        for v in values {
            self.span[v.index()].get_or_insert((self.now, self.now));
            self.scope[v.index()] = scope.to_vec();
        }
    }
    /// Applies the uses, to the values themselves and to those whose memory they lie in.
    fn settle(&mut self, base: &[Option<Value>]) {
        for (v, at, scope) in std::mem::take(&mut self.uses) {
            let mut next = Some(v);
            while let Some(v) = next {
                let outside = self.scope[v.index()].len();
                let until = scope.get(outside).map_or(at, |&b| self.ends[b].max(at));
                if let Some(span) = &mut self.span[v.index()] {
                    span.1 = span.1.max(until);
                }
                next = base[v.index()];
            }
        }
    }
}
