//! The kernel of a cluster whose product is computed panel by panel.
use super::axis_tiling::AxisTiling;
use super::cluster::Cluster;
use super::lower::KernelLowering;
use super::shared_kernel_code::{block_dims, build_operand};
use crate::build::constant_dims;
use crate::graph::{Graph, Var};
use pallas_ir::structural::Broadcast;
use pallas_ir::{DType, Literal, Loc, Op as TileOp, OperandKind, ScalarOp, Type, Value, View};
use std::collections::BTreeSet;

/// Returns the members of a cluster that its product's operands depend on.
fn members_before_product(
    graph: &Graph,
    definitions: &[Option<usize>],
    cluster: &Cluster,
    product: usize,
) -> BTreeSet<usize> {
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

impl KernelLowering<'_> {
    /// Returns the axes of the grid along which the contracted axes are split into panels.
    fn panel_axes(&self) -> std::ops::Range<usize> {
        self.extents.len() - self.cluster.panels.len()..self.extents.len()
    }

    /// Returns true if the last panel extends beyond the end of an axis with this tiling.
    pub(super) fn has_partial_last_panel(&self, tiling: &AxisTiling) -> bool {
        let of_panels = tiling.grid_axis().map(usize::from).filter(|k| self.panel_axes().contains(k));
        of_panels.is_some_and(|k| !self.extents[k].is_multiple_of(self.blocks[k]))
    }

    /// Appends all members of the cluster. The product is summed in scratch memory panel by panel; members that depend
    /// on it run after the last panel.
    pub(super) fn emit_members_in_panels(&mut self, product: usize, outputs: &[Var]) {
        let e = &self.graph.equations[product];
        let (v, tiling) = (e.result(), self.member_tiling(e.result()));
        let (block, dtype) = (self.block_shape(v, &tiling), self.graph.ty(v).dtype);
        let name = format!("a{}", self.b.kernel().operands.len());
        let ty = Type::new(dtype, &block[..]);
        let sum = self.b.operand(build_operand(name, OperandKind::Scratch, &ty, block_dims(&block), None));
        let load = TileOp::Load { from: sum, view: View::whole(&block), masked: false };
        let store = |to: &mut Self, value| {
            let store = TileOp::Store { to: sum, view: View::whole(&block), masked: false };
            to.b.effect(store, &[value], e.loc).expect("a block of its type");
        };

        self.emit_for_panel(
            |_, _| None,
            |to| {
                let zero = to.b.constant(Literal::new(dtype, 0.0), e.loc);
                let zeros = to.emit_structural(Broadcast::to(constant_dims(&block)), &[zero], e.loc);
                store(to, zeros);
            },
        );
        let front = members_before_product(self.graph, self.definitions, self.cluster, product);
        front.iter().for_each(|&i| self.emit_member(i, outputs));
        let axis_tiling = self.operand_tilings(e);
        let operands = self.load_operand_blocks(e, &axis_tiling);
        let whole: Vec<Value> =
            (0..2).map(|side| self.emit_zeros_past_end(e.args[side], operands[side], &axis_tiling[side])).collect();
        let part = self.emit_equation(e, &whole, &tiling);
        let old = self.emit(load.clone(), &[], e.loc);
        // A product of bools is true where any of its terms is.
        let add = if dtype == DType::Bool { ScalarOp::BitOr } else { ScalarOp::Add };
        let next = self.b.scalar(add, &[old, part], e.loc);
        store(self, next);
        let last = |to: &mut Self, axis| {
            let count = to.emit(TileOp::NumPrograms(axis), &[], e.loc);
            let one = to.b.int(1, e.loc);
            Some(to.b.scalar(ScalarOp::Sub, &[count, one], e.loc))
        };
        self.emit_for_panel(last, |to| {
            let value = to.emit(load, &[], e.loc);
            to.define_and_store(v, tiling, value, outputs, e.loc);
            let members = &to.cluster.members;
            members.iter().filter(|i| **i != product && !front.contains(i)).for_each(|&i| to.emit_member(i, outputs));
        });
    }

    /// Appends instructions that only run for one panel: the one whose number along each axis `panel_index` returns, or
    /// 0 for `None`.
    fn emit_for_panel(
        &mut self,
        panel_index: impl Fn(&mut Self, usize) -> Option<Value>,
        emit_body: impl FnOnce(&mut Self),
    ) {
        let mut is_now: Option<Value> = None;
        for axis in self.panel_axes() {
            let at = self.emit(TileOp::ProgramId(axis), &[], Loc::NONE);
            let number = panel_index(self, axis).unwrap_or_else(|| self.b.int(0, Loc::NONE));
            let here = self.b.scalar(ScalarOp::Eq, &[at, number], Loc::NONE);
            let both = |others| self.b.scalar(ScalarOp::BitAnd, &[others, here], Loc::NONE);
            is_now = Some(is_now.map_or(here, both));
        }
        self.b.begin(&[]);
        emit_body(self);
        let then = self.b.end(&[]);
        self.b.begin(&[]);
        let other = self.b.end(&[]);
        let is_now = is_now.expect("there are panels");
        self.b.emit_if(is_now, then, other, Loc::NONE).expect("it has no results");
    }

    /// Returns the block of a product's operand with zeros beyond the end of the contracted axes. A loaded block has
    /// them already: see `declare_operand`.
    fn emit_zeros_past_end(&mut self, v: Var, mut value: Value, tiling: &[AxisTiling]) -> Value {
        if !self.is_computed_here(v) {
            return value;
        }
        let (block, dtype) = (self.block_shape(v, tiling), self.graph.ty(v).dtype);
        for (axis, &axis_tiling) in tiling.iter().enumerate() {
            if self.has_partial_last_panel(&axis_tiling) {
                let k = usize::from(axis_tiling.grid_axis().expect("it is divided"));
                let end = self.b.extent(&self.names[k], Loc::NONE);
                let zero = self.b.constant(Literal::new(dtype, 0.0), Loc::NONE);
                value = self.emit_fill_past_end(end, [value, zero], (&block, axis, axis_tiling), Loc::NONE);
            }
        }
        value
    }
}
