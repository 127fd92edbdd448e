//! Sweeps: chains over the same rows that run together, a few rows at a time, so that what one chain writes of a row
//! is still in the first-level cache when the next reads it.
//!
//! ```text
//! max = fold(x); e, sum = chain(x, max); y = chain(e, sum)    ->    for each few rows: max = ..; e, sum = ..; y = ..
//! ```
//!
//! Each chain of a sweep reads only its own rows of the other chains' results, since all have the same axes but the
//! last. A fold of columns is complete only after all rows, so a chain that reads one cannot join.
use super::step::{Block, Chain, SinkAlong, Step, Sweep};
use super::uses::Uses;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{HashMap, HashSet};

/// Replaces runs of chains over the same rows, in a block and the blocks inside of it, by sweeps.
pub(super) fn gather(kernel: &Kernel, roots: &[Value], block: &mut Block) {
    block.steps.iter_mut().flat_map(Step::blocks_mut).for_each(|b| gather(kernel, roots, b));
    let mut open = OpenSweeps { kernel, roots, loaded: HashMap::new(), gathered: Gathered::default() };
    for step in std::mem::take(&mut block.steps) {
        match step {
            Step::Chain(chain) => {
                if !open.gathered.takes(&chain) {
                    open.end(&mut block.steps);
                }
                open.push(chain);
            }
            step => {
                let before = match &step {
                    // Redirects a later result: possible before the sweep, unless the sweep reads the same memory.
                    Step::Aim { at, .. } => !open.gathered.reads(kernel.memory_of(at.operand)),
                    _ => early(&step) && !open.follows(&step),
                };
                if !before {
                    open.end(&mut block.steps);
                }
                if let Step::Load { from, to, .. } = &step {
                    open.loaded.insert(*to, kernel.memory_of(from.operand));
                }
                block.steps.push(step);
            }
        }
    }
    open.end(&mut block.steps);
    mark_passing(kernel, roots, block);
}

/// Marks the results of links that only chains of their own sweep read.
fn mark_passing(kernel: &Kernel, roots: &[Value], block: &mut Block) {
    if !block.steps.iter().any(|s| matches!(s, Step::Sweep(_))) {
        return;
    }
    let uses = Uses::of(kernel, roots, block);
    for (at, step) in block.steps.iter_mut().enumerate() {
        let Step::Sweep(sweep) = step else { continue };
        for link in sweep.chains.iter_mut().flat_map(|c| &mut c.links) {
            link.passing = link.output.is_some_and(|v| !uses.elsewhere(v, at));
        }
    }
}

/// The state of the pass over a block: the sweep that is being gathered.
struct OpenSweeps<'k> {
    kernel: &'k Kernel,
    roots: &'k [Value],
    /// Tiles loaded so far, with the operands that they are loaded from.
    loaded: HashMap<Value, OperandId>,
    gathered: Gathered,
}

/// The chains of the sweep that is being gathered, and the memory that they access.
#[derive(Default)]
struct Gathered {
    chains: Vec<Chain>,
    made: HashSet<Value>,
    /// Folds of columns, which are available only after all rows have been processed.
    columns: HashSet<Value>,
    /// Operands whose memory may be referred to by tiles that the chains read.
    memories: HashSet<OperandId>,
    /// True if the chains read tiles that are defined outside of the block, which may refer to any operand.
    foreign: bool,
}

impl Gathered {
    /// Returns true if the chain can join the sweep: it runs over the same rows and reads no fold of columns that the
    /// sweep computes.
    fn takes(&self, chain: &Chain) -> bool {
        let waits = || chain.reads().any(|v| self.columns.contains(&v));
        self.chains.first().is_none_or(|first| same_rows(first, chain) && !waits())
    }
    /// Returns true if a chain of the sweep reads a tile that may refer to the operand's memory.
    fn reads(&self, memory: OperandId) -> bool {
        self.foreign || self.memories.contains(&memory)
    }
}

impl OpenSweeps<'_> {
    /// Adds a chain to the sweep that is being gathered, with the memory that it accesses.
    fn push(&mut self, chain: Chain) {
        let gathered = &mut self.gathered;
        for root in chain.reads().map(|v| self.roots[v.index()]) {
            match self.loaded.get(&root) {
                _ if gathered.made.contains(&root) || self.kernel.ty(root).is_scalar() => {}
                Some(&memory) => _ = gathered.memories.insert(memory),
                None => gathered.foreign = true,
            }
        }
        gathered.made.extend(chain.defines());
        gathered.columns.extend(chain.sinks.iter().filter(|s| s.along == SinkAlong::Columns).map(|s| s.to));
        gathered.chains.push(chain);
    }
    /// Returns true if the step reads a value that a chain of the sweep defines.
    fn follows(&self, step: &Step) -> bool {
        step.reads().iter().any(|v| self.gathered.made.contains(&self.roots[v.index()]))
    }
    /// Ends the sweep that is being gathered: emits it as one step, or its chains one by one if there is no gain.
    fn end(&mut self, steps: &mut Vec<Step>) {
        let mut chains = std::mem::take(&mut self.gathered).chains;
        // A sweep of columns alone would take them element by element.
        if chains.len() > 1 && !chains.iter().all(Chain::is_of_columns) {
            return steps.push(Step::Sweep(Sweep { chains, ..Sweep::default() }));
        }
        chains.iter_mut().for_each(Chain::without_last_units);
        steps.extend(chains.into_iter().map(Step::Chain));
    }
}

/// Returns true if the step may be moved before a sweep: the chains affect nothing but the values that it reads.
fn early(step: &Step) -> bool {
    use Step::{Count, Load, Prefetch, Program, Reshape, Restride, Scalar, Valid};
    match step {
        Program { .. } | Scalar { .. } | Restride { .. } | Reshape { .. } | Count { .. } | Valid { .. } => true,
        // An operand that is stored to meanwhile is stored to by a step that ends the sweep.
        Prefetch { .. } | Load { mask: None, .. } => true,
        _ => false,
    }
}

/// Returns true if two chains have the same axes but the last, and more than one row.
fn same_rows(a: &Chain, b: &Chain) -> bool {
    let (Some((_, rows)), Some((_, others))) = (a.shape.split_last(), b.shape.split_last()) else { return false };
    rows == others && rows.iter().product::<usize>() > 1 && !a.shape.contains(&0) && !b.shape.contains(&0)
}
