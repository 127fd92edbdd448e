//! Windows of an array that only products of a few rows read: they are multiplied where they lie.
//!
//! ```text
//! %1 = load x[..]; %2 = gather %1, ..; .. %3 = dot %a, %2      ->  no copy of %2, whose windows are rows of x
//! ```
//!
//! Such are the pages of a cache. Whether their elements are adjacent is known when the step runs, which copies them if not;
//! so does a product that has no kernel for them.
use super::step::{Block, Dot, Step};
use pallas_ir::{Kernel, OperandId, OperandKind, Value};
use std::collections::{HashMap, HashSet};

/// What is found in a body.
struct Found<'a> {
    kernel: &'a Kernel,
    roots: &'a [Value],
    /// Tiles that may refer to arrays which the kernel does not write.
    loaded: HashSet<Value>,
    /// Gathers of these, and whether products alone read their result.
    gathered: HashMap<Value, bool>,
    /// Tiles whose elements may lie in another order than their own: another shape of one is a copy.
    turned: HashSet<Value>,
}

/// Marks the gathers whose windows need not be copied, and the products that read them.
pub(super) fn keep(kernel: &Kernel, roots: &[Value], body: &mut Block) {
    let mut found = Found { kernel, roots, loaded: HashSet::new(), gathered: HashMap::new(), turned: HashSet::new() };
    found.look(body, false);
    found.gathered.retain(|_, is_kept| *is_kept);
    if !found.gathered.is_empty() {
        found.mark(body);
    }
}

impl Found<'_> {
    fn root(&self, v: Value) -> Value {
        self.roots[v.index()]
    }

    fn is_only_read(&self, operand: OperandId) -> bool {
        let is_output_in =
            |kind: &OperandKind| matches!(kind, OperandKind::Output { alias, .. } if *alias == Some(operand));
        matches!(self.kernel.operand(operand).kind, OperandKind::Input)
            && !self.kernel.operands.iter().any(|other| is_output_in(&other.kind))
    }

    /// Turns that are rolled multiply tiles that lie in their own memory.
    fn look(&mut self, block: &Block, is_rolled: bool) {
        for step in &block.steps {
            for v in step.reads() {
                let v = self.root(v);
                let is_kept = match step {
                    Step::Dot(dot) => !is_rolled && self.is_right_side(dot, v),
                    Step::Reshape { from, .. } => !self.turned.contains(from),
                    Step::Restride { .. } => true,
                    _ => false,
                };
                self.gathered.entry(v).and_modify(|all| *all &= is_kept);
            }
            match step {
                Step::Restride { to, .. } => _ = self.turned.insert(*to),
                Step::Load { from, in_place: true, to, .. } if self.is_only_read(from.operand) => {
                    self.loaded.insert(*to);
                }
                Step::Gather(gather) if gather.fill.is_none() && self.loaded.contains(&self.root(gather.from)) => {
                    self.gathered.insert(gather.to, true);
                }
                _ => {}
            }
            let is_rolled = is_rolled || matches!(step, Step::For { rolled: Some(_), .. });
            step.blocks().into_iter().for_each(|block| self.look(block, is_rolled));
        }
        for v in &block.yields {
            let root = self.root(*v);
            self.gathered.remove(&root);
        }
    }

    /// True if `v` is a matrix on the right side of a product, and nothing else of it.
    fn is_right_side(&self, dot: &Dot, v: Value) -> bool {
        let others = [dot.a].into_iter().chain(dot.high).chain(dot.init);
        self.root(dot.b) == v
            && !others.into_iter().any(|other| self.root(other) == v)
            && dot.batch[0].is_empty()
            && self.kernel.ty(dot.b).shape.len() == 2
            && dot.contract[1].len() == 1
    }

    fn mark(&self, block: &mut Block) {
        for step in &mut block.steps {
            match step {
                Step::Gather(gather) => gather.stays = self.gathered.contains_key(&gather.to),
                Step::Dot(dot) => dot.is_paged = self.gathered.contains_key(&self.root(dot.b)),
                _ => {}
            }
            step.blocks_mut().into_iter().for_each(|block| self.mark(block));
        }
    }
}
