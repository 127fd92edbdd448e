//! The steps of a block that use each value and operand, found in one pass, so that decisions about a step search no
//! others.
use super::step::{Block, Step};
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

/// Positions of a block's own steps, in ascending order. A position includes the steps nested in that step; a value
/// represents the value whose memory it refers to, and an operand the one whose memory it shares.
#[derive(Default)]
pub(super) struct Uses {
    /// Steps that read a value.
    reads: HashMap<Value, Vec<usize>>,
    /// Values that the block yields to its owner.
    yielded: HashSet<Value>,
    /// The step that defines a value and, for the result of a chain, the link.
    pub(super) defined: HashMap<Value, (usize, Option<usize>)>,
    /// Steps that store to an operand.
    stores: HashMap<OperandId, Vec<usize>>,
    /// Steps that load from it, or store to it.
    touches: HashMap<OperandId, Vec<usize>>,
    /// Tiles that the block loads, and the operands that they are loaded from.
    loaded: HashMap<Value, OperandId>,
    /// Steps that read a tile which the block loads from an operand, and that tile.
    refers: HashMap<OperandId, Vec<(usize, Value)>>,
    /// Steps that read a tile which the block does not define: it may refer to any operand.
    foreign: Vec<usize>,
}

impl Uses {
    pub(super) fn of(kernel: &Kernel, roots: &[Value], block: &Block) -> Uses {
        let mut uses = Uses::default();
        for (at, step) in block.steps.iter().enumerate() {
            uses.defined.extend(step.defines().into_iter().map(|v| (v, (at, None))));
            match step {
                Step::Chain(chain) => {
                    let outputs = chain.links.iter().enumerate().filter_map(|(i, l)| Some((l.output?, (at, Some(i)))));
                    uses.defined.extend(outputs);
                }
                Step::Load { from, to, .. } => {
                    uses.loaded.insert(*to, kernel.memory_of(from.operand));
                }
                _ => {}
            }
            uses.step(kernel, roots, at, step);
        }
        uses.yielded = block.yields.iter().map(|v| roots[v.index()]).collect();
        uses
    }

    fn step(&mut self, kernel: &Kernel, roots: &[Value], at: usize, step: &Step) {
        for v in step.reads().into_iter().map(|v| roots[v.index()]) {
            self.read(v, at);
            if !self.defined.contains_key(&v) && !kernel.ty(v).is_scalar() {
                append(&mut self.foreign, at);
            }
        }
        match step {
            Step::Load { from, .. } => add(&mut self.touches, kernel.memory_of(from.operand), at),
            Step::Store { to, .. } => {
                add(&mut self.touches, kernel.memory_of(to.operand), at);
                add(&mut self.stores, kernel.memory_of(to.operand), at);
            }
            _ => {}
        }
        for block in step.blocks() {
            block.steps.iter().for_each(|s| self.step(kernel, roots, at, s));
            block.yields.iter().for_each(|v| self.read(roots[v.index()], at));
        }
    }
    fn read(&mut self, v: Value, at: usize) {
        add(&mut self.reads, v, at);
        if let Some(&memory) = self.loaded.get(&v) {
            add(&mut self.refers, memory, (at, v));
        }
    }

    /// Returns true if the block yields a value to its owner.
    pub(super) fn yields(&self, v: Value) -> bool {
        self.yielded.contains(&v)
    }
    /// Returns true if another step than this one, or the block's owner, reads a value.
    pub(super) fn elsewhere(&self, v: Value, at: usize) -> bool {
        self.yields(v) || self.reads.get(&v).is_some_and(|all| all.first() != Some(&at) || all.last() != Some(&at))
    }
    /// The position after the last step, from `at` on, that reads a value.
    pub(super) fn end(&self, v: Value, at: usize, steps: usize) -> usize {
        let last = self.reads.get(&v).and_then(|all| all.last()).map_or(at, |&last| last.max(at));
        if self.yields(v) { steps } else { last + 1 }
    }
    /// Returns true if one of these steps stores to an operand's memory.
    pub(super) fn stored(&self, memory: OperandId, steps: Range<usize>) -> bool {
        !within(self.stores.get(&memory), steps, |&at| at).is_empty()
    }
    /// Returns true if one of these steps loads from an operand's memory, or stores to it.
    pub(super) fn touched(&self, memory: OperandId, steps: Range<usize>) -> bool {
        !within(self.touches.get(&memory), steps, |&at| at).is_empty()
    }
    /// The tiles loaded from an operand's memory that these steps read.
    pub(super) fn referring(&self, memory: OperandId, steps: Range<usize>) -> &[(usize, Value)] {
        within(self.refers.get(&memory), steps, |&(at, _)| at)
    }
    /// Returns true if one of these steps reads a tile of another block.
    pub(super) fn foreign(&self, steps: Range<usize>) -> bool {
        !within(Some(&self.foreign), steps, |&at| at).is_empty()
    }
}

fn add<K: Hash + Eq, T: PartialEq>(lists: &mut HashMap<K, Vec<T>>, key: K, at: T) {
    append(lists.entry(key).or_default(), at);
}
fn append<T: PartialEq>(list: &mut Vec<T>, at: T) {
    if list.last() != Some(&at) {
        list.push(at);
    }
}
/// Entries at these positions.
fn within<T>(list: Option<&Vec<T>>, steps: Range<usize>, at: impl Fn(&T) -> usize) -> &[T] {
    let list = list.map_or(&[][..], Vec::as_slice);
    let from = list.partition_point(|entry| at(entry) < steps.start);
    let to = list.partition_point(|entry| at(entry) < steps.end);
    &list[from..to.max(from)]
}
