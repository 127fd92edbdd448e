//! Gathers whose windows are read in the array's memory instead of being copied: those whose results only products of
//! a few rows read, or only elementwise operations.
//!
//! ```text
//! %1 = load x[..]; %2 = gather %1, ..; .. %3 = dot %a, %2      ->  no copy of %2, whose windows are rows of x
//! %1 = load x[..]; %2 = gather %1, ..; .. %3 = mul %2, %b      ->  no copy of %2, whose rows are parts of windows of x
//! ```
//!
//! Examples are the pages of a key-value cache, and the rows of an embedding table. Whether a window's elements are
//! adjacent is known only when the step runs; if they are not, the step copies them. Products without a kernel for it
//! and operations without machine code copy them too.
use super::step::{Dot, ElementwiseChain, Step, StepBlock, WindowReaders};
use pallas_ir::{Kernel, OperandId, OperandKind, Value};
use std::collections::{HashMap, HashSet};

/// Search through a kernel's body for gathers whose windows need not be copied: the gathers found so far, and the steps
/// that read them.
struct GatherSearch<'a> {
    kernel: &'a Kernel,
    roots: &'a [Value],
    /// Minimum elements of a row that a chain reads from the array without a copy.
    long: usize,
    /// Tiles that may refer to arrays which the kernel does not write.
    loaded: HashSet<Value>,
    /// Gathers from such tiles, by their results, and the kinds of steps that read these.
    gathered: HashMap<Value, GatherUses>,
    /// Tiles that are strided views, whose elements may be in another order in memory: reshaping one makes a copy.
    turned: HashSet<Value>,
}

/// The kinds of steps that read a gather's result.
#[derive(Clone, Copy, Default)]
struct GatherUses {
    products: bool,
    chains: bool,
    /// True if a reshape or a strided view refers to the result's memory.
    views: bool,
    others: bool,
    /// True if the gather sets elements of windows that leave the array to a fill value.
    is_filled: bool,
}

impl GatherUses {
    /// Returns the kind of steps that read the windows without a copy, or `None` if a step needs the copy.
    fn readers_without_copy(self) -> Option<WindowReaders> {
        match self {
            GatherUses { others: true, .. } => None,
            GatherUses { chains: true, products: false, views: false, .. } => Some(WindowReaders::Chains),
            GatherUses { products: true, chains: false, is_filled: false, .. } => Some(WindowReaders::Products),
            _ => None,
        }
    }
}

/// Marks the gathers whose windows need not be copied, and the products that read them. Chains read rows of at least
/// `min_row_elements` elements without a copy.
pub(super) fn mark_uncopied_gathers(kernel: &Kernel, roots: &[Value], min_row_elements: usize, body: &mut StepBlock) {
    let mut found = GatherSearch {
        kernel,
        roots,
        long: min_row_elements,
        loaded: HashSet::new(),
        gathered: HashMap::new(),
        turned: HashSet::new(),
    };
    found.collect_gathers(body, false);
    found.gathered.retain(|_, uses| uses.readers_without_copy().is_some());
    if !found.gathered.is_empty() {
        found.mark_gathers_and_readers(body);
    }
}

impl GatherSearch<'_> {
    /// Returns the value that owns the memory of `v`.
    fn memory_root(&self, v: Value) -> Value {
        self.roots[v.index()]
    }

    /// Returns true if the kernel does not write the operand: it is an input that no output aliases.
    fn is_only_read(&self, operand: OperandId) -> bool {
        let is_output_in =
            |kind: &OperandKind| matches!(kind, OperandKind::Output { alias, .. } if *alias == Some(operand));
        matches!(self.kernel.operand(operand).kind, OperandKind::Input)
            && !self.kernel.operands.iter().any(|other| is_output_in(&other.kind))
    }

    /// Collects the gathers of a block and the steps that read them. `in_jit_loop`: inside of a loop that may run as
    /// one piece of machine code, whose products need tiles in their own memory.
    fn collect_gathers(&mut self, block: &StepBlock, in_jit_loop: bool) {
        for step in &block.steps {
            for read in step.reads() {
                let v = self.memory_root(read);
                let Some(uses) = self.gathered.get(&v).copied() else { continue };
                let uses = match step {
                    Step::Dot(dot) if !in_jit_loop && self.is_only_right_matrix(dot, v) => {
                        GatherUses { products: true, ..uses }
                    }
                    Step::Chain(chain) if !in_jit_loop && read == v && self.reads_long_rows(chain, v) => {
                        GatherUses { chains: true, ..uses }
                    }
                    Step::Reshape { from, .. } if !self.turned.contains(from) => GatherUses { views: true, ..uses },
                    Step::Restride { .. } => GatherUses { views: true, ..uses },
                    _ => GatherUses { others: true, ..uses },
                };
                self.gathered.insert(v, uses);
            }
            match step {
                Step::Restride { to, .. } => _ = self.turned.insert(*to),
                Step::Load { from, in_place: true, to, .. } if self.is_only_read(from.operand) => {
                    self.loaded.insert(*to);
                }
                Step::Gather(gather) if self.loaded.contains(&self.memory_root(gather.from)) => {
                    self.gathered
                        .insert(gather.to, GatherUses { is_filled: gather.fill.is_some(), ..GatherUses::default() });
                }
                _ => {}
            }
            let is_rolled = in_jit_loop || matches!(step, Step::For { rolled: Some(_), .. });
            step.nested_blocks().into_iter().for_each(|block| self.collect_gathers(block, is_rolled));
        }
        for v in &block.yields {
            let root = self.memory_root(*v);
            self.gathered.remove(&root);
        }
    }

    /// Returns true if `v` is the right matrix of a product without batch axes, and none of its other operands.
    fn is_only_right_matrix(&self, dot: &Dot, v: Value) -> bool {
        let others = [dot.a].into_iter().chain(dot.high).chain(dot.init);
        self.memory_root(dot.b) == v
            && !others.into_iter().any(|other| self.memory_root(other) == v)
            && dot.batch[0].is_empty()
            && self.kernel.ty(dot.b).shape.len() == 2
            && dot.contract[1].len() == 1
    }

    /// Returns true if a chain has the shape of `v`, whose rows are so long that chains read them without a copy.
    fn reads_long_rows(&self, chain: &ElementwiseChain, v: Value) -> bool {
        let shape = &self.kernel.ty(v).shape;
        shape.len() > 1 && chain.shape == *shape && shape.last().is_some_and(|&n| n >= self.long)
    }

    /// Marks the gathers and products of a block, and of the blocks inside of it.
    fn mark_gathers_and_readers(&self, block: &mut StepBlock) {
        let readers = |v: Value| self.gathered.get(&v).and_then(|uses| uses.readers_without_copy());
        for step in &mut block.steps {
            match step {
                Step::Gather(gather) => gather.stays_for = readers(gather.to),
                Step::Dot(dot) => dot.is_paged = readers(self.memory_root(dot.b)) == Some(WindowReaders::Products),
                _ => {}
            }
            step.nested_blocks_mut().into_iter().for_each(|block| self.mark_gathers_and_readers(block));
        }
    }
}
