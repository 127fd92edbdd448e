//! Products in panels: a program has a part of the contracted axes at a time.
//!
//! ```text
//! tanh (dot (exp x) w)
//!   -> for each block of the result
//!        for each panel of the contracted axis
//!          if it is the first one { sum = 0 }
//!          sum += dot (exp x) w
//!          if it is the last one { store (tanh sum) }
//! ```
//!
//! For devices whose programs have little memory: the operands' blocks are small however long the contracted axes are, and
//! a shader fetches the next panel while it multiplies one. These axes are the last ones of the grid.
//!
//! **Products.** A cluster grows around one `dot` at most, and its blocks suit that one. A core of a CPU has all that its block
//! of the result sums; so `merge` lets it multiply at once what it made of a product (the weights of attention), if that is the
//! largest array of the next product. On a GPU, where a program has registers and a little workgroup memory, the contracted
//! axes are sequential axes of the grid (`fuse/panels`): a program computes its operands' panels, adds their product to a sum,
//! and does what follows the product behind the last panel. What folds a contracted axis is another kernel then. Columns are
//! divided too, unless rows are folded (softmax of scores). On the CPU a program has several positions of other axes where its
//! matrices are small. Unit tests give the interpreter a GPU's plans, with panels of three elements.
use super::blocks::Sizes;
use super::cluster::Cluster;
use super::cut::Cut::{self, Grid};
use super::lower::Lower;
use crate::build::dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Dot};
use pallas_ir::{
    BlockDim, DType, Literal, Loc, Op as TileOp, Operand, OperandKind, ScalarOp, StructuralOp, Value, View,
};
use std::collections::BTreeSet;

/// The contracted axes with more than one element, as axes of both operands.
fn contracted(graph: &Graph, e: &Equation, dot: &Dot) -> Vec<(usize, usize)> {
    let shape = &graph.ty(e.args[0]).shape;
    dot.contract.iter().copied().filter(|pair| shape[pair.0] > 1).collect()
}

/// The extents of the axes that a product divides into panels: none if a program has all that it sums.
pub(super) fn extents(graph: &Graph, e: &Equation, sizes: &Sizes) -> Vec<usize> {
    let (Op::Structural(StructuralOp::Dot(dot)), Some(panel)) = (&e.op, sizes.panel) else { return vec![] };
    let shape = &graph.ty(e.args[0]).shape;
    let extents: Vec<usize> = contracted(graph, e, dot).into_iter().map(|pair| shape[pair.0]).collect();
    if extents.iter().product::<usize>() > panel { extents } else { vec![] }
}

/// Divides the contracted axes of a cluster's product, whose operands have these cuts.
pub(super) fn divide(graph: &Graph, e: &Equation, cluster: &Cluster, operands: &mut [Vec<Cut>]) {
    let Op::Structural(StructuralOp::Dot(dot)) = &e.op else { return };
    if cluster.panels.is_empty() {
        return;
    }
    for (j, (a, b)) in contracted(graph, e, dot).into_iter().enumerate() {
        let cut = Grid((cluster.extents.len() + j) as u8);
        (operands[0][a], operands[1][b]) = (cut, cut);
    }
}

/// The block sizes along the axes of panels.
pub(super) fn blocks(extents: &[usize], sizes: &Sizes) -> Vec<usize> {
    let mut left = sizes.panel.unwrap_or(usize::MAX);
    let mut blocks: Vec<usize> = vec![];
    for &extent in extents.iter().rev() {
        let block = extent.min(left);
        left /= block;
        blocks.insert(0, block);
        left = left.max(1);
    }
    blocks
}

/// The members of a cluster that compute its product's operands.
fn in_front(graph: &Graph, definitions: &[Option<usize>], cluster: &Cluster, product: usize) -> BTreeSet<usize> {
    let (mut found, mut stack) = (BTreeSet::new(), graph.equations[product].args.clone());
    while let Some(v) = stack.pop() {
        if let Some(i) = definitions[v.index()].filter(|i| cluster.members.contains(i))
            && found.insert(i)
        {
            stack.extend(&graph.equations[i].args);
        }
    }
    found
}

impl Lower<'_> {
    /// The axes of the grid along which panels lie.
    fn axes(&self) -> std::ops::Range<usize> {
        self.extents.len() - self.cluster.panels.len()..self.extents.len()
    }

    /// Returns true if panels reach beyond the end of an axis with this cut.
    pub(super) fn is_ragged(&self, cut: &Cut) -> bool {
        let of_panels = cut.axis().map(usize::from).filter(|k| self.axes().contains(k));
        of_panels.is_some_and(|k| !self.extents[k].is_multiple_of(self.blocks[k]))
    }

    /// All members, of which the product sums panel after panel.
    pub(super) fn in_panels(&mut self, product: usize, outputs: &[Var]) {
        let e = &self.graph.equations[product];
        let (v, cuts) = (e.result(), self.own_cuts(e.result()));
        let (block, dtype) = (self.block(v, &cuts), self.graph.ty(v).dtype);
        let sum = self.b.operand(Operand {
            name: format!("a{}", self.b.kernel().operands.len()),
            kind: OperandKind::Scratch,
            dtype,
            dims: dims(&block),
            block: block.iter().copied().map(BlockDim::Blocked).collect(),
            map: None,
            fill: None,
            buffered: None,
        });
        let load = TileOp::Load { from: sum, view: View::whole(&block), masked: false };
        let store = |to: &mut Self, value| {
            let store = TileOp::Store { to: sum, view: View::whole(&block), masked: false };
            to.b.effect(store, &[value], e.loc).expect("a block of its type");
        };

        self.when(
            |_, _| None,
            |to| {
                let zero = to.b.constant(Literal::new(dtype, 0.0), e.loc);
                let zeros = to.structural(Broadcast::to(dims(&block)), &[zero], e.loc);
                store(to, zeros);
            },
        );
        let front = in_front(self.graph, self.definitions, self.cluster, product);
        front.iter().for_each(|&i| self.member(i, outputs));
        let operand_cuts = self.operand_cuts(e);
        let operands = self.operands(e, &operand_cuts);
        let whole: Vec<Value> =
            (0..2).map(|side| self.within(e.args[side], operands[side], &operand_cuts[side])).collect();
        let part = self.equation(e, &whole, &cuts);
        let old = self.emit(load.clone(), &[], e.loc);
        // Products of truths are true where any of them is.
        let add = if dtype == DType::Bool { ScalarOp::BitOr } else { ScalarOp::Add };
        let next = self.b.scalar(add, &[old, part], e.loc);
        store(self, next);
        let last = |to: &mut Self, axis| {
            let count = to.emit(TileOp::NumPrograms(axis), &[], e.loc);
            let one = to.b.int(1, e.loc);
            Some(to.b.scalar(ScalarOp::Sub, &[count, one], e.loc))
        };
        self.when(last, |to| {
            let value = to.emit(load, &[], e.loc);
            to.define(v, cuts, value, outputs, e.loc);
            let members = &to.cluster.members;
            members.iter().filter(|i| **i != product && !front.contains(i)).for_each(|&i| to.member(i, outputs));
        });
    }

    /// Instructions of one panel alone, whose number along each axis is given, or 0.
    fn when(&mut self, number: impl Fn(&mut Self, usize) -> Option<Value>, then: impl FnOnce(&mut Self)) {
        let mut is_now: Option<Value> = None;
        for axis in self.axes() {
            let at = self.emit(TileOp::ProgramId(axis), &[], Loc::NONE);
            let number = number(self, axis).unwrap_or_else(|| self.b.int(0, Loc::NONE));
            let here = self.b.scalar(ScalarOp::Eq, &[at, number], Loc::NONE);
            is_now = Some(match is_now {
                Some(others) => self.b.scalar(ScalarOp::BitAnd, &[others, here], Loc::NONE),
                None => here,
            });
        }
        self.b.begin(&[]);
        then(self);
        let then = self.b.end(&[]);
        self.b.begin(&[]);
        let other = self.b.end(&[]);
        let is_now = is_now.expect("there are panels");
        self.b.emit_if(is_now, then, other, Loc::NONE).expect("it has no results");
    }

    /// An operand's block with zeros behind the end of the contracted axes. What is loaded has them: see `declare`.
    fn within(&mut self, v: Var, mut value: Value, cuts: &[Cut]) -> Value {
        if !self.is_made_here(v) {
            return value;
        }
        let (block, dtype) = (self.block(v, cuts), self.graph.ty(v).dtype);
        for (axis, &cut) in cuts.iter().enumerate() {
            if self.is_ragged(&cut) {
                let k = usize::from(cut.axis().expect("it is divided"));
                let end = self.b.extent(&self.names[k], Loc::NONE);
                let zero = self.b.constant(Literal::new(dtype, 0.0), Loc::NONE);
                value = self.until(end, [value, zero], (&block, axis, cut), Loc::NONE);
            }
        }
        value
    }
}
