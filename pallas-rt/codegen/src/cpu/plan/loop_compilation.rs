//! Finds loops whose iterations consist of chains and small products: all iterations but the first and the last run as
//! one piece of machine code.
//!
//! ```text
//! for t { if t == 0 { h = h0 }; h = tanh(x[t] + h · w); y[t] = h; if t == last { out = h } }
//!   ->  turn 0;  code for the turns 1 .. last - 1;  turn `last`
//! ```
//!
//! A loop qualifies if its iterations consist of chains, products, accesses at positions that move by the same
//! distance from one iteration to the next, and branches that are taken in one iteration at most. The addresses are
//! known only when the loop runs (`run/compiled_loops`).
use super::step::{
    ChainLink, Dot, ElementwiseChain, ElementwiseOp, FoldDirection, LinkOperand, OperandView, Step, StepBlock,
};
use crate::cpu::convert;
use crate::cpu::gemm::few_rows;
use crate::cpu::jit::{CodeCache, LoopPart};
use pallas_ir::{Kernel, Op, OperandId, ScalarOp, Value};
use std::collections::{HashMap, HashSet};

/// Maximum elements of a chain in a loop that runs as one piece of machine code: a loop with a larger one runs step by
/// step, since the overhead between steps does not matter there.
const MAX_JIT_LOOP_CHAIN_ELEMENTS: usize = 4096;

/// A loop that may run as one piece of machine code: what is known of it before it runs.
#[derive(Debug)]
pub(crate) struct JitLoop {
    /// Steps of an iteration that copy a tile from or to an operand, by their position, each with a chain that makes
    /// the copy.
    pub copies: HashMap<usize, ElementwiseChain>,
    /// The conditions of the branches: each is taken when these two values are equal.
    pub equal: Vec<[Value; 2]>,
    /// Right sides of products whose tiles are the same in every iteration.
    pub fixed: HashSet<Value>,
    pub codes: CodeCache<LoopPart>,
}

/// Returns the chains that a step consists of; none if it is neither a chain nor several fused ones.
pub(crate) fn chains(step: &Step) -> &[ElementwiseChain] {
    match step {
        Step::Chain(chain) => std::slice::from_ref(chain),
        Step::FusedChains(sweep) => &sweep.chains,
        _ => &[],
    }
}

/// Marks the loops in a block, and in blocks inside of it, that may run as one piece of machine code.
pub(super) fn mark_jit_loops(kernel: &Kernel, roots: &[Value], block: &mut StepBlock) {
    let mut operations = HashMap::new();
    kernel.walk(kernel.body, &mut |_, inst| {
        if let Op::Scalar(op) = inst.op {
            operations.insert(inst.results[0], op);
        }
    });
    mark_jit_loops_in_block(kernel, roots, &operations, block);
}

/// Records for each loop in a block, and in blocks inside of it, the data with which it may run as one piece of machine
/// code, `None` if it may not. `operations` gives the operation that computes each scalar.
fn mark_jit_loops_in_block(
    kernel: &Kernel,
    roots: &[Value],
    operations: &HashMap<Value, ScalarOp>,
    block: &mut StepBlock,
) {
    for step in &mut block.steps {
        step.nested_blocks_mut()
            .into_iter()
            .for_each(|block| mark_jit_loops_in_block(kernel, roots, operations, block));
        if let Step::For { index, carried, body, rolled, .. } = step
            && carried.is_empty()
        {
            *rolled = IterationAnalysis::new(kernel, roots, operations, *index, body).analyze_body(body).map(Box::new);
        }
    }
}

/// Analysis of one iteration of a loop: its values that are the same in every iteration, and those that move by a
/// constant distance.
struct IterationAnalysis<'k> {
    kernel: &'k Kernel,
    roots: &'k [Value],
    operations: &'k HashMap<Value, ScalarOp>,
    /// Values that the iteration defines.
    own: HashSet<Value>,
    /// Scalars that are the same in each iteration (`fixed`), and those that grow by a constant distance (`moving`).
    fixed: HashSet<Value>,
    moving: HashSet<Value>,
    /// Comparisons for equality of such scalars, by their result.
    equal: HashMap<Value, [Value; 2]>,
    /// Tiles that refer to an operand's memory at the same position in every iteration, with that operand.
    loaded: HashMap<Value, OperandId>,
}

impl<'k> IterationAnalysis<'k> {
    fn new(
        kernel: &'k Kernel,
        roots: &'k [Value],
        operations: &'k HashMap<Value, ScalarOp>,
        index: Value,
        body: &StepBlock,
    ) -> IterationAnalysis<'k> {
        IterationAnalysis {
            kernel,
            roots,
            operations,
            own: body.steps.iter().flat_map(Step::defines).chain([index]).collect(),
            fixed: HashSet::new(),
            moving: HashSet::from([index]),
            equal: HashMap::new(),
            loaded: HashMap::new(),
        }
    }

    /// Returns true if the value is the same in each iteration.
    fn is_loop_invariant(&self, v: Value) -> bool {
        !self.own.contains(&v) || self.fixed.contains(&v)
    }

    /// Returns true if the scalar is the same in each iteration, or grows by a constant distance.
    fn is_affine_in_index(&self, v: Value) -> bool {
        self.is_loop_invariant(v) || self.moving.contains(&v)
    }

    /// Returns true if the value is a scalar that differs between iterations: its memory has a fixed address, but not
    /// fixed contents.
    fn is_varying_scalar(&self, v: Value) -> bool {
        [v, self.roots[v.index()]].iter().any(|v| self.moving.contains(v) || self.equal.contains_key(v))
    }

    /// Returns what the loop needs to run as one piece of machine code, or `None` if a step of `body` does not allow
    /// it.
    fn analyze_body(mut self, body: &'k StepBlock) -> Option<JitLoop> {
        let (mut copies, mut equal, mut written) = (HashMap::new(), vec![], HashSet::new());
        let (mut read, mut right): (Vec<Value>, Vec<Value>) = (vec![], vec![]);
        for (i, step) in body.steps.iter().enumerate() {
            match step {
                Step::ProgramId { to, .. } => _ = self.fixed.insert(*to),
                Step::Scalar { args, to, .. } => self.classify_scalar(args, *to)?,
                Step::Load { from, mask: None, in_place, to, .. } => {
                    self.require_affine_view(from)?;
                    if *in_place && from.starts.iter().all(|&v| self.is_loop_invariant(v)) {
                        self.loaded.insert(*to, self.kernel.memory_of(from.operand));
                    }
                    if !in_place {
                        copies.insert(i, self.make_copy_chain(*to)?);
                    }
                }
                Step::Store { value, to, mask: None } => {
                    self.require_affine_view(to)?;
                    written.insert(self.kernel.memory_of(to.operand));
                    read.push(*value);
                    copies.insert(i, self.make_copy_chain(*value)?);
                }
                Step::RedirectResult { at, .. } => self.require_affine_view(at)?,
                Step::Restride { .. } | Step::Reshape { .. } | Step::Iota { .. } => {}
                Step::Chain(_) | Step::FusedChains(_) => {
                    for chain in chains(step) {
                        let is_small = chain.shape.iter().product::<usize>() <= MAX_JIT_LOOP_CHAIN_ELEMENTS;
                        let has_rows = chain.sinks.iter().all(|sink| sink.along == FoldDirection::Rows);
                        (is_small && has_rows).then_some(())?;
                        read.extend(chain.reads());
                    }
                }
                Step::Dot(Dot { a, b, bits: few_rows::WHOLE_ELEMENT_MASK, .. }) => {
                    read.extend([*a, *b]);
                    right.push(*b);
                }
                Step::If { condition, sides, to } if to.is_empty() && sides[1].steps.is_empty() => {
                    equal.push(*self.equal.get(condition)?);
                }
                _ => return None,
            }
        }
        (!copies.is_empty() && !read.iter().any(|&v| self.is_varying_scalar(v))).then_some(())?;
        let is_same = |v: &Value| {
            let root = self.roots[v.index()];
            !self.own.contains(&root) || self.loaded.get(&root).is_some_and(|memory| !written.contains(memory))
        };
        Some(JitLoop { copies, equal, fixed: right.into_iter().filter(is_same).collect(), codes: CodeCache::default() })
    }

    /// Returns `None` unless the view's position moves by the same distance from each iteration to the next.
    fn require_affine_view(&self, view: &OperandView) -> Option<()> {
        view.starts.iter().all(|&v| self.is_affine_in_index(v)).then_some(())
    }

    /// Classifies a scalar computation of an iteration as fixed, moving or a comparison; `None` if it is none of
    /// these.
    fn classify_scalar(&mut self, args: &[Value], to: Value) -> Option<()> {
        let op = *self.operations.get(&to)?;
        if args.iter().all(|&v| self.is_loop_invariant(v)) {
            self.fixed.insert(to);
            return Some(());
        }
        args.iter().all(|&v| self.is_affine_in_index(v)).then_some(())?;
        match (op, args) {
            (ScalarOp::Add | ScalarOp::Sub, _) => _ = self.moving.insert(to),
            (ScalarOp::Mul, &[a, b]) if self.is_loop_invariant(a) || self.is_loop_invariant(b) => {
                _ = self.moving.insert(to)
            }
            (ScalarOp::Eq, &[a, b]) => _ = self.equal.insert(to, [a, b]),
            _ => return None,
        }
        Some(())
    }

    /// Returns a chain that copies a tile; `None` if it is too large.
    fn make_copy_chain(&self, v: Value) -> Option<ElementwiseChain> {
        let ty = self.kernel.ty(v);
        (ty.elements() <= MAX_JIT_LOOP_CHAIN_ELEMENTS).then(|| ElementwiseChain {
            shape: ty.shape.clone(),
            inputs: vec![super::step::ChainInput::Value(v)],
            links: vec![ChainLink {
                op: ElementwiseOp::Cast,
                strip: convert::cast_strip_fn(ty.dtype, ty.dtype),
                args: vec![(LinkOperand::Input(0), ty.dtype)],
                dtype: ty.dtype,
                buffer: 0,
                output: Some(v),
                aside: false,
                passing: false,
            }],
            widest: ty.dtype.bytes(),
            ..ElementwiseChain::default()
        })
    }
}
