//! Sweeps: chains over the same rows that run together, a few rows at a time, so that what one chain writes of a row
//! is still in the first-level cache when the next reads it.
//!
//! ```text
//! max = fold(x); e, sum = chain(x, max); y = chain(e, sum)    ->    for each few rows: max = ..; e, sum = ..; y = ..
//! ```
//!
//! Each chain of a sweep reads only its own rows of the other chains' results, since all have the same axes but the
//! last. A fold of columns is complete only after all rows, so a chain that reads one cannot join.
use super::step::{ElementwiseChain, FoldDirection, FusedChains, Step, StepBlock};
use super::uses::StepUses;
use pallas_ir::{Kernel, OperandId, Value};
use std::collections::{HashMap, HashSet};

/// Replaces successive chains over the same rows, in a block and the blocks inside of it, by one [`Step::FusedChains`]
/// each.
pub(super) fn fuse_chains(kernel: &Kernel, roots: &[Value], block: &mut StepBlock) {
    block.steps.iter_mut().flat_map(Step::nested_blocks_mut).for_each(|b| fuse_chains(kernel, roots, b));
    let mut open = ChainFusion { kernel, roots, loaded: HashMap::new(), gathered: FusionGroup::default() };
    for step in std::mem::take(&mut block.steps) {
        match step {
            Step::Chain(chain) => {
                if !open.gathered.can_add_chain(&chain) {
                    open.emit_group(&mut block.steps);
                }
                open.push(chain);
            }
            step => {
                let before = match &step {
                    // Redirects a later result: possible before the sweep, unless the sweep reads the same memory.
                    Step::RedirectResult { at, .. } => !open.gathered.may_read_memory(kernel.memory_of(at.operand)),
                    _ => can_move_before_group(&step) && !open.reads_group_result(&step),
                };
                if !before {
                    open.emit_group(&mut block.steps);
                }
                if let Step::Load { from, to, .. } = &step {
                    open.loaded.insert(*to, kernel.memory_of(from.operand));
                }
                block.steps.push(step);
            }
        }
    }
    open.emit_group(&mut block.steps);
    mark_group_local_results(kernel, roots, block);
}

/// Marks the results of links that only chains of the same [`Step::FusedChains`] read.
fn mark_group_local_results(kernel: &Kernel, roots: &[Value], block: &mut StepBlock) {
    if !block.steps.iter().any(|s| matches!(s, Step::FusedChains(_))) {
        return;
    }
    let uses = StepUses::collect(kernel, roots, block);
    for (at, step) in block.steps.iter_mut().enumerate() {
        let Step::FusedChains(sweep) = step else { continue };
        for link in sweep.chains.iter_mut().flat_map(|c| &mut c.links) {
            link.passing = link.output.is_some_and(|v| !uses.is_read_elsewhere(v, at));
        }
    }
}

/// The state of the fusion of a block's chains: the group that is being gathered, and the tiles loaded so far.
struct ChainFusion<'k> {
    kernel: &'k Kernel,
    roots: &'k [Value],
    /// Tiles loaded so far, with the operands that they are loaded from.
    loaded: HashMap<Value, OperandId>,
    gathered: FusionGroup,
}

/// Chains that will run together as one step, gathered so far, and the memory that they access.
#[derive(Default)]
struct FusionGroup {
    chains: Vec<ElementwiseChain>,
    made: HashSet<Value>,
    /// Folds of columns, which are available only after all rows have been processed.
    columns: HashSet<Value>,
    /// Operands whose memory may be referred to by tiles that the chains read.
    memories: HashSet<OperandId>,
    /// True if the chains read tiles that are defined outside of the block, which may refer to any operand.
    foreign: bool,
}

impl FusionGroup {
    /// Returns true if the chain can join the group: it runs over the same rows and reads no fold of columns that the
    /// group computes.
    fn can_add_chain(&self, chain: &ElementwiseChain) -> bool {
        let waits = || chain.reads().any(|v| self.columns.contains(&v));
        self.chains.first().is_none_or(|first| have_same_rows(first, chain) && !waits())
    }
    /// Returns true if a chain of the group reads a tile that may refer to the operand's memory.
    fn may_read_memory(&self, memory: OperandId) -> bool {
        self.foreign || self.memories.contains(&memory)
    }
}

impl ChainFusion<'_> {
    /// Adds a chain to the group, with the memory that it accesses.
    fn push(&mut self, chain: ElementwiseChain) {
        let gathered = &mut self.gathered;
        for root in chain.reads().map(|v| self.roots[v.index()]) {
            match self.loaded.get(&root) {
                _ if gathered.made.contains(&root) || self.kernel.ty(root).is_scalar() => {}
                Some(&memory) => _ = gathered.memories.insert(memory),
                None => gathered.foreign = true,
            }
        }
        gathered.made.extend(chain.defines());
        gathered.columns.extend(chain.sinks.iter().filter(|s| s.along == FoldDirection::Columns).map(|s| s.to));
        gathered.chains.push(chain);
    }
    /// Returns true if the step reads a value that a chain of the group defines.
    fn reads_group_result(&self, step: &Step) -> bool {
        step.reads().iter().any(|v| self.gathered.made.contains(&self.roots[v.index()]))
    }
    /// Ends the group: emits it as one step, or its chains one by one if fusing them gains nothing.
    fn emit_group(&mut self, steps: &mut Vec<Step>) {
        let mut chains = std::mem::take(&mut self.gathered).chains;
        // A sweep of columns alone would take them element by element.
        if chains.len() > 1 && !chains.iter().all(ElementwiseChain::is_single_column) {
            return steps.push(Step::FusedChains(FusedChains { chains, ..FusedChains::default() }));
        }
        chains.iter_mut().for_each(ElementwiseChain::drop_trailing_unit_axes);
        steps.extend(chains.into_iter().map(Step::Chain));
    }
}

/// Returns true if the step may be moved before a group of chains, if it reads none of their results.
fn can_move_before_group(step: &Step) -> bool {
    use Step::{Iota, Load, Prefetch, ProgramId, Reshape, Restride, Scalar, Valid};
    match step {
        ProgramId { .. } | Scalar { .. } | Restride { .. } | Reshape { .. } | Iota { .. } | Valid { .. } => true,
        // An operand that is stored to meanwhile is stored to by a step that ends the sweep.
        Prefetch { .. } | Load { mask: None, .. } => true,
        _ => false,
    }
}

/// Returns true if two chains have the same axes but the last, and more than one row.
fn have_same_rows(a: &ElementwiseChain, b: &ElementwiseChain) -> bool {
    let (Some((_, rows)), Some((_, others))) = (a.shape.split_last(), b.shape.split_last()) else { return false };
    rows == others && rows.iter().product::<usize>() > 1 && !a.shape.contains(&0) && !b.shape.contains(&0)
}
