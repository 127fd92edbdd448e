//! Index of the steps of a block that use each value and operand, made in one pass, so that decisions about a step
//! need no search.
use super::step::{Step, StepBlock};
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

/// Positions of the steps of a block that use each value and operand, in ascending order. Steps nested in a step count
/// as that step. A value stands for the value whose memory it refers to, an operand for the one whose memory it
/// shares.
#[derive(Default)]
pub(super) struct StepUses {
    /// Steps that read each value.
    reads: HashMap<Value, Vec<usize>>,
    /// Values that the block yields to the step that contains it.
    yielded: HashSet<Value>,
    /// The step that defines each value and, if it is the result of a chain, its link.
    pub(super) defined: HashMap<Value, (usize, Option<usize>)>,
    /// Steps that store to each operand.
    stores: HashMap<OperandId, Vec<usize>>,
    /// Steps that load from, or store to, each operand.
    touches: HashMap<OperandId, Vec<usize>>,
    /// Tiles that the block loads, and the operands that they are loaded from.
    loaded: HashMap<Value, OperandId>,
    /// For each operand the steps that read a tile which the block loads from it, with that tile.
    refers: HashMap<OperandId, Vec<(usize, Value)>>,
    /// Steps that read a tile defined outside of the block, which may refer to any operand.
    foreign: Vec<usize>,
}

impl StepUses {
    /// Collects the uses by a block's steps; `roots` gives the value whose memory each value refers to.
    pub(super) fn collect(kernel: &Kernel, roots: &[Value], block: &StepBlock) -> StepUses {
        let mut uses = StepUses::default();
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
            uses.record_step(kernel, roots, at, step);
        }
        uses.yielded = block.yields.iter().map(|v| roots[v.index()]).collect();
        uses
    }

    /// Records the uses by a step and by the blocks inside of it, all as position `at`.
    fn record_step(&mut self, kernel: &Kernel, roots: &[Value], at: usize, step: &Step) {
        for v in step.reads().into_iter().map(|v| roots[v.index()]) {
            self.record_read(v, at);
            if !self.defined.contains_key(&v) && !kernel.ty(v).is_scalar() {
                append_if_new(&mut self.foreign, at);
            }
        }
        match step {
            Step::Load { from, .. } => append_to_list_if_new(&mut self.touches, kernel.memory_of(from.operand), at),
            Step::Store { to, .. } => {
                append_to_list_if_new(&mut self.touches, kernel.memory_of(to.operand), at);
                append_to_list_if_new(&mut self.stores, kernel.memory_of(to.operand), at);
            }
            _ => {}
        }
        for block in step.nested_blocks() {
            block.steps.iter().for_each(|s| self.record_step(kernel, roots, at, s));
            block.yields.iter().for_each(|v| self.record_read(roots[v.index()], at));
        }
    }
    fn record_read(&mut self, v: Value, at: usize) {
        append_to_list_if_new(&mut self.reads, v, at);
        if let Some(&memory) = self.loaded.get(&v) {
            append_to_list_if_new(&mut self.refers, memory, (at, v));
        }
    }

    /// Returns true if the block yields the value to the step that contains it.
    pub(super) fn yields(&self, v: Value) -> bool {
        self.yielded.contains(&v)
    }
    /// Returns true if any step but the one at `at`, or the step that contains the block, reads the value.
    pub(super) fn is_read_elsewhere(&self, v: Value, at: usize) -> bool {
        self.yields(v) || self.reads.get(&v).is_some_and(|all| all.first() != Some(&at) || all.last() != Some(&at))
    }
    /// Returns the position after the last step, from `at` on, that needs the value: `step_count` (the block's length)
    /// if the block yields it.
    pub(super) fn last_use_end(&self, v: Value, at: usize, step_count: usize) -> usize {
        let last = self.reads.get(&v).and_then(|all| all.last()).map_or(at, |&last| last.max(at));
        if self.yields(v) { step_count } else { last + 1 }
    }
    /// Returns true if a step in the range stores to the operand's memory.
    pub(super) fn is_stored_in(&self, memory: OperandId, steps: Range<usize>) -> bool {
        !entries_in_range(self.stores.get(&memory), steps, |&at| at).is_empty()
    }
    /// Returns true if a step in the range loads from the operand's memory or stores to it.
    pub(super) fn is_accessed_in(&self, memory: OperandId, steps: Range<usize>) -> bool {
        !entries_in_range(self.touches.get(&memory), steps, |&at| at).is_empty()
    }
    /// Returns the reads, by steps in the range, of tiles loaded from the operand's memory: each step with the tile.
    pub(super) fn reads_of_loaded_tiles(&self, memory: OperandId, steps: Range<usize>) -> &[(usize, Value)] {
        entries_in_range(self.refers.get(&memory), steps, |&(at, _)| at)
    }
    /// Returns true if a step in the range reads a tile that is defined outside of the block.
    pub(super) fn reads_outer_tile(&self, steps: Range<usize>) -> bool {
        !entries_in_range(Some(&self.foreign), steps, |&at| at).is_empty()
    }
}

fn append_to_list_if_new<K: Hash + Eq, T: PartialEq>(lists: &mut HashMap<K, Vec<T>>, key: K, item: T) {
    append_if_new(lists.entry(key).or_default(), item);
}
fn append_if_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if list.last() != Some(&item) {
        list.push(item);
    }
}
/// Returns the entries of an ascending list whose positions, given by `at`, are in the range.
fn entries_in_range<T>(list: Option<&Vec<T>>, steps: Range<usize>, at: impl Fn(&T) -> usize) -> &[T] {
    let list = list.map_or(&[][..], Vec::as_slice);
    let from = list.partition_point(|entry| at(entry) < steps.start);
    let to = list.partition_point(|entry| at(entry) < steps.end);
    &list[from..to.max(from)]
}
