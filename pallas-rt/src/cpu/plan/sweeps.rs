//! Chains over the same rows, run a few rows at a time: what one leaves of a row, the next finds in the first level cache.
//!
//! ```text
//! max = fold(x); e, sum = chain(x, max); y = chain(e, sum)    ->    for each few rows: max = ..; e, sum = ..; y = ..
//! ```
//!
//! Every chain of a sweep reads only its own rows of what the others make, since all have the same axes but the last; folded
//! columns are there when all rows have been seen, and end the sweep.
use super::place::{lies_in, memory, needs};
use super::step::{Along, Block, Chain, Step, Sweep};
use pallas_ir::{Kernel, Value};

/// Turns runs of chains into sweeps.
pub(super) fn gather(kernel: &Kernel, base: &[Option<Value>], block: &mut Block) {
    block.steps.iter_mut().flat_map(Step::blocks_mut).for_each(|b| gather(kernel, base, b));
    let steps = std::mem::take(&mut block.steps);
    let mut chains: Vec<Chain> = vec![];
    for step in steps {
        match step {
            Step::Chain(chain)
                if chains.first().is_none_or(|first| same_rows(first, &chain) && !waits(&chain, &chains)) =>
            {
                chains.push(chain);
            }
            step if early(&step) && !follows(base, &step, &chains) => block.steps.push(step),
            // A place for a result that comes: it is given before the sweep, unless that reads the same memory.
            Step::Aim { value, at } if !reads(kernel, base, &block.steps, &chains, &at.operand) => {
                block.steps.push(Step::Aim { value, at });
            }
            Step::Chain(chain) => {
                end(&mut chains, &mut block.steps);
                chains.push(chain);
            }
            other => {
                end(&mut chains, &mut block.steps);
                block.steps.push(other);
            }
        }
    }
    end(&mut chains, &mut block.steps);
    for at in 0..block.steps.len() {
        mark_passing(base, block, at);
    }
}

/// Marks results of a sweep that nothing outside of it reads.
fn mark_passing(base: &[Option<Value>], block: &mut Block, at: usize) {
    let Step::Sweep(Sweep { chains, .. }) = &block.steps[at] else { return };
    let needed = |v: Value| {
        let elsewhere = |(i, s): (usize, &Step)| i != at && needs(s, base, v);
        block.steps.iter().enumerate().any(elsewhere) || block.yields.iter().any(|y| lies_in(base, *y, v))
    };
    let results = chains.iter().flat_map(|c| &c.links).filter_map(|l| l.output);
    let passing: Vec<Value> = results.filter(|v| !needed(*v)).collect();
    if let Step::Sweep(Sweep { chains, .. }) = &mut block.steps[at] {
        for link in chains.iter_mut().flat_map(|c| &mut c.links) {
            link.passing = link.output.is_some_and(|v| passing.contains(&v));
        }
    }
}

/// Steps that can be taken before a sweep: nothing that a chain does changes what they do, but for their operands.
fn early(step: &Step) -> bool {
    use Step::{Count, Load, Prefetch, Program, Reshape, Restride, Scalar, Valid};
    match step {
        Program { .. } | Scalar { .. } | Restride { .. } | Reshape { .. } | Count { .. } | Valid { .. } => true,
        // An operand that is stored to meanwhile is stored to by a step that ends the sweep.
        Prefetch { .. } | Load { mask: None, .. } => true,
        _ => false,
    }
}

/// Whether a step reads what one of the chains makes.
fn follows(base: &[Option<Value>], step: &Step, chains: &[Chain]) -> bool {
    let made: Vec<Value> = chains.iter().flat_map(Chain::defines).collect();
    step.reads().iter().any(|&v| made.iter().any(|&m| lies_in(base, v, m)))
}

/// Whether a chain reads columns that one of the others folds.
fn waits(chain: &Chain, chains: &[Chain]) -> bool {
    let columns = |v: Value| chains.iter().flat_map(|c| &c.sinks).any(|s| s.along == Along::Columns && s.to == v);
    chain.reads().any(columns)
}

fn end(chains: &mut Vec<Chain>, steps: &mut Vec<Step>) {
    if chains.len() > 1 {
        steps.push(Step::Sweep(Sweep { chains: std::mem::take(chains), ..Sweep::default() }));
    } else {
        steps.extend(chains.pop().map(Step::Chain));
    }
}

fn same_rows(a: &Chain, b: &Chain) -> bool {
    let rows = |c: &Chain| c.shape.split_last().map(|(_, rows)| rows.to_vec());
    let several = |rows: &Vec<usize>| rows.iter().product::<usize>() > 1;
    rows(a) == rows(b) && rows(a).is_some_and(|r| several(&r)) && !a.shape.contains(&0) && !b.shape.contains(&0)
}

/// Whether one of the chains reads a tile that may refer to an operand's memory.
fn reads(
    kernel: &Kernel,
    base: &[Option<Value>],
    before: &[Step],
    chains: &[Chain],
    of: &pallas_ir::OperandId,
) -> bool {
    let of = memory(kernel, *of);
    chains.iter().flat_map(Chain::reads).any(|v| {
        let root = super::root(base, v);
        let own = chains.iter().flat_map(Chain::defines).any(|d| d == root);
        let loaded = before.iter().find_map(|s| match s {
            Step::Load { from, to, .. } if lies_in(base, v, *to) => Some(memory(kernel, from.operand)),
            _ => None,
        });
        // What comes from outside of the block may refer to anything.
        !own && !kernel.ty(root).is_scalar() && loaded.is_none_or(|m| m == of)
    })
}
