//! Masked forms of operations that depend on where the existing elements of an axis end: slices, pads, `concatenate`,
//! `reverse`.
use super::mask::GraphMasker;
use crate::graph::{Equation, Var};
use pallas_ir::structural::{Concat, Pad, Reverse};
use pallas_ir::{Dim, Literal, ScalarOp, StructuralOp, Type};

impl GraphMasker<'_> {
    /// Appends structural equation number `equation` in a form that computes positions from the parameters that hold
    /// the actual sizes; `None`, and nothing is appended, if the operation does not depend on where an axis ends.
    pub(super) fn mask_end_dependent_op(&mut self, op: &StructuralOp, equation: usize, args: &[Var]) -> Option<Var> {
        let e = &self.graphs[0].equations[equation];
        match op {
            StructuralOp::Slice(slice) => {
                let starts = self.attribute_table_indices(equation);
                starts.iter().any(Option::is_some).then(|| {
                    // Slices the axes with constant starts, then takes a window at the positions that depend on the
                    // sizes.
                    let (mut rest, whole) = (slice.clone(), self.to.ty(args[0]).dims());
                    let mut at = vec![];
                    for (axis, start) in starts.iter().enumerate() {
                        if start.is_some() {
                            (rest.start[axis], rest.size[axis]) = (0, whole[axis].clone());
                        }
                        at.push(self.table_param_or_constant(*start, 0));
                    }
                    let part = self.to.push_valid(StructuralOp::from(rest), &args[..1]);
                    let size = self.graphs[0].ty(e.result()).shape.clone();
                    self.to.push_dynamic_slice(part, &size, &at)
                })
            }
            StructuralOp::Pad(_) => {
                let lows = self.attribute_table_indices(equation);
                lows.iter().any(Option::is_some).then(|| {
                    let mut x = args[0];
                    for axis in 0..lows.len() {
                        if let Some(number) = self.extent_table_index(e.args[0], axis) {
                            x = self.fill_nonexistent(x, number, axis, args[1]);
                        }
                    }
                    // Pads the axes with constant amounts, then writes the result at the positions that depend on the
                    // sizes.
                    let StructuralOp::Pad(mut rest) = op.clone() else { unreachable!("it is a pad") };
                    let mut at = vec![];
                    for (axis, low) in lows.iter().enumerate() {
                        if low.is_some() {
                            (rest.low[axis], rest.high[axis]) = (Dim::from(0i64), Dim::from(0i64));
                        }
                        at.push(self.table_param_or_constant(*low, 0));
                    }
                    let part = self.to.push_valid(StructuralOp::from(rest), &[x, args[1]]);
                    let whole = self.broadcast_scalar(args[1], &self.graphs[0].ty(e.result()).shape);
                    self.to.push_dynamic_update_slice(whole, part, &at)
                })
            }
            StructuralOp::Concat(Concat { axis }) => {
                let before = e.args.len().saturating_sub(1);
                let moves = e.args[..before].iter().any(|&a| self.extent_table_index(a, *axis).is_some());
                moves.then(|| self.push_masked_concat(e, *axis, args))
            }
            StructuralOp::Reverse(Reverse { axes }) => {
                let moves = axes.iter().any(|&axis| self.extent_table_index(e.args[0], axis).is_some());
                moves.then(|| {
                    let mut v = self.to.push_valid(op.clone(), args);
                    for &axis in axes {
                        if let Some(number) = self.extent_table_index(e.args[0], axis) {
                            v = self.move_tail_to_front(v, number, axis);
                        }
                    }
                    v
                })
            }
            _ => None,
        }
    }

    /// Returns for each integer attribute of equation number `equation` its index in the size table; `None` for one
    /// that does not depend on the sizes.
    pub(super) fn attribute_table_indices(&self, equation: usize) -> Vec<Option<usize>> {
        let all = super::attributes_in_each_sample(self.graphs, equation);
        all.iter().map(|samples| self.masking.table.extent_index(samples, self.masking.sizes)).collect()
    }

    /// Returns the parameter for the entry of the size table at `table_index`, or `constant` as an i32 scalar if
    /// `table_index` is `None`.
    fn table_param_or_constant(&mut self, table_index: Option<usize>, constant: usize) -> Var {
        match table_index {
            Some(number) => self.size_table_param(number),
            None => self.to.i32_literal(constant as i64),
        }
    }

    /// Appends a concatenation along `axis` that writes each operand after the existing elements of those before it.
    fn push_masked_concat(&mut self, e: &Equation, axis: usize, args: &[Var]) -> Var {
        let Type { dtype, shape } = self.graphs[0].ty(e.result()).clone();
        let mut all = self.to.splat(Literal::new(dtype, 0.0), &shape);
        let zero = self.to.i32_literal(0);
        let mut first = zero;
        for (&old, &v) in e.args.iter().zip(args) {
            let mut at = vec![zero; shape.len()];
            at[axis] = first;
            all = self.to.push_dynamic_update_slice(all, v, &at);
            let n =
                self.table_param_or_constant(self.extent_table_index(old, axis), self.graphs[0].ty(old).shape[axis]);
            first = self.to.push_valid(ScalarOp::Add, &[first, n]);
        }
        all
    }

    /// Returns `v` with its last elements along an axis moved to the start; the table's entry at `table_index` is the
    /// number of elements to move.
    fn move_tail_to_front(&mut self, v: Var, table_index: usize, axis: usize) -> Var {
        let Type { dtype, shape } = self.to.ty(v).clone();
        let zero = self.to.literal(Literal::new(dtype, 0.0));
        let mut high = vec![Dim::from(0i64); shape.len()];
        high[axis] = Dim::from(shape[axis]);
        let pad = Pad { low: vec![Dim::from(0i64); shape.len()], high };
        let wide = self.to.push_valid(StructuralOp::from(pad), &[v, zero]);
        let mut at = vec![self.to.i32_literal(0); shape.len()];
        let (n, bound) = (self.size_table_param(table_index), self.to.i32_literal(shape[axis] as i64));
        at[axis] = self.to.push_valid(ScalarOp::Sub, &[bound, n]);
        self.to.push_dynamic_slice(wide, &shape, &at)
    }
}
