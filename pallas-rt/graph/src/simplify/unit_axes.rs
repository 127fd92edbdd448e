//! Drops axes of one element that a reshape inserted, by moving the reshape after the operations that read it.
//!
//! ```text
//! tanh (reshape x)               reshape (tanh x)
//! add (reshape x) y              reshape (add x (reshape y))
//! sum (reshape x)                sum x over the axes that stay, reshaped
//! broadcast (reshape x)          broadcast x
//! dot (reshape x) w              reshape (dot x w), if the axes are in neither batch nor sum
//! dot (reshape x) (reshape w)    dot x w, over the other axes
//! transpose (reshape x)          reshape (transpose x)
//! gather x (reshape i)           gather x i, if the axis has the only component of each start; scatters too
//! ```
//!
//! A function of a row or of a single image, mapped over a batch, has such axes everywhere. Without them it shares
//! kernels like the same function written for the batch.
use super::rewrite::GraphRewriter;
use crate::build::{constant_dims, infer};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::StructuralOp;
use pallas_ir::structural::{Broadcast, Dot, Reduce, Reshape, Transpose};

/// Rewrites the equations of a graph without axes of one element that reshapes insert.
pub(super) fn drop_inserted_unit_axes(graph: Graph) -> Graph {
    let (equations, to) = GraphRewriter::take_equations(graph);
    let mut pass = UnitAxisDropper { to };
    for e in equations {
        pass.to.graph.at = e.loc;
        if pass.rewrite_without_unit_axes(&e).is_none() {
            pass.to.push(e);
        }
    }
    pass.to.graph
}

/// The pass that drops inserted axes of one element, with the graph that it writes.
struct UnitAxisDropper {
    to: GraphRewriter,
}

/// A value from which a reshape makes another one by inserting axes of one element.
struct UnreshapedValue {
    value: Var,
    /// By axis of the value, the axis of the reshaped value that it is.
    axes: Vec<usize>,
}

impl UnitAxisDropper {
    fn shape(&self, v: Var) -> &[usize] {
        &self.to.graph.ty(v).shape
    }

    /// If reshapes make a value from one with fewer axes by inserting axes of one element, returns the earliest such
    /// value.
    fn find_unreshaped_value(&self, v: Var) -> Option<UnreshapedValue> {
        let (mut source, mut found) = (v, None);
        while let Some(Equation { op: Op::Structural(StructuralOp::Reshape(_)), args, .. }) = self.to.definition(source)
        {
            source = args[0];
            let is_shorter = self.shape(source).len() < self.shape(v).len();
            let axes = match_nonunit_axes(self.shape(source), self.shape(v)).filter(|_| is_shorter);
            found = axes.map(|axes| UnreshapedValue { value: source, axes }).or(found);
        }
        found
    }

    /// Appends an equation on operands without the axes of one element that reshapes insert, and a reshape of its
    /// result; returns `None` and appends nothing if no operand has such axes.
    fn rewrite_without_unit_axes(&mut self, e: &Equation) -> Option<()> {
        let made = match &e.op {
            Op::Scalar(_) | Op::Structural(StructuralOp::Cast(_) | StructuralOp::Powi(_)) => {
                self.rewrite_elementwise(e)?
            }
            Op::Structural(StructuralOp::Reduce(op)) if !op.keep => {
                let bare = self.find_unreshaped_value(e.args[0])?;
                let axes: Vec<usize> =
                    (0..bare.axes.len()).filter(|&axis| op.axes.contains(&bare.axes[axis])).collect();
                let op = StructuralOp::from(Reduce { axes, ..op.clone() });
                self.to.append(op, &[bare.value])
            }
            // The broadcast repeats nothing.
            Op::Structural(StructuralOp::Broadcast(op))
                if match_nonunit_axes(self.shape(e.args[0]), self.shape(e.result()))
                    .is_some_and(|axes| op.dims.starts_with(&axes)) =>
            {
                self.find_unreshaped_value(e.args[0]).map_or(e.args[0], |bare| bare.value)
            }
            Op::Structural(StructuralOp::Broadcast(op)) => {
                let bare = self.find_unreshaped_value(e.args[0])?;
                let op = Broadcast { to: op.to.clone(), dims: bare.axes.iter().map(|&axis| op.dims[axis]).collect() };
                self.to.append(StructuralOp::from(op), &[bare.value])
            }
            Op::Structural(StructuralOp::Transpose(op)) => {
                let bare = self.find_unreshaped_value(e.args[0])?;
                let kept = op.axes.iter().filter_map(|axis| bare.axes.iter().position(|own| own == axis));
                let op = StructuralOp::from(Transpose { axes: kept.collect() });
                self.to.append(op, &[bare.value])
            }
            Op::Structural(StructuralOp::Dot(op)) => self.rewrite_dot(e, op)?,
            Op::Structural(StructuralOp::Gather(op)) => {
                let index = self.indices_without_unit_axis(e.args[1], op.index_vector_dim)?;
                self.to.append(e.op.clone(), &[e.args[0], index])
            }
            Op::Structural(StructuralOp::Scatter(op)) => {
                let index = self.indices_without_unit_axis(e.args[1], op.index_vector_dim)?;
                self.to.append(e.op.clone(), &[e.args[0], index, e.args[2]])
            }
            _ => return None,
        };
        self.to.define_as_reshape(e, made);
        Some(())
    }

    /// Returns the indices of a gather or scatter without their last axis, along which the components of a start lie,
    /// if it has one element and a reshape inserted it.
    fn indices_without_unit_axis(&self, index: Var, vector_axis: usize) -> Option<Var> {
        let bare = self.find_unreshaped_value(index)?;
        let is_last = vector_axis + 1 == self.shape(index).len() && bare.axes.iter().copied().eq(0..vector_axis);
        is_last.then_some(bare.value)
    }

    /// Appends an elementwise operation on operands without inserted axes of one element; returns its result.
    fn rewrite_elementwise(&mut self, e: &Equation) -> Option<Var> {
        let shape = self.shape(e.result()).to_vec();
        let bare: Vec<Option<UnreshapedValue>> = e.args.iter().map(|&v| self.find_unreshaped_value(v)).collect();
        let least = bare.iter().flatten().min_by_key(|bare| bare.axes.len())?;
        let to = self.shape(least.value).to_vec();
        // Operands of other shapes have no such axes.
        if e.args.iter().any(|&v| self.shape(v) != shape) {
            return None;
        }
        let mut args = vec![];
        for (&v, bare) in e.args.iter().zip(&bare) {
            args.push(match bare {
                Some(bare) if self.shape(bare.value) == to => bare.value,
                _ => self.reshape_to(v, &to),
            });
        }
        Some(self.to.append(e.op.clone(), &args))
    }

    /// Returns a value reshaped to a shape with fewer axes of one element; a broadcast is repeated by a smaller
    /// broadcast instead.
    fn reshape_to(&mut self, v: Var, to: &[usize]) -> Var {
        if let Some(Equation { op: Op::Structural(StructuralOp::Broadcast(op)), args, .. }) = self.to.definition(v)
            && let Some(axes) = match_nonunit_axes(to, self.shape(v))
            && let rank = self.shape(args[0]).len()
            && op.dims[..rank].iter().all(|axis| axes.contains(axis))
        {
            let at = |axis: &usize| axes.iter().position(|own| own == axis).expect("all are kept");
            let (from, moved) = (args[0], op.dims[..rank].iter().map(at).collect());
            return self.to.append(StructuralOp::from(Broadcast { to: constant_dims(to), dims: moved }), &[from]);
        }
        self.to.append(StructuralOp::from(Reshape { to: constant_dims(to) }), &[v])
    }

    /// Appends a product without inserted axes of one element in one or both operands; returns its result.
    fn rewrite_dot(&mut self, e: &Equation, op: &Dot) -> Option<Var> {
        let (mut op, mut args, mut is_less) = (op.clone(), e.args.clone(), false);
        if let [Some(x), Some(w)] = [0, 1].map(|side| self.find_unreshaped_value(args[side])) {
            // Pairs of axes that are dropped on both sides are dropped.
            let renamed = |pairs: &[(usize, usize)]| -> Option<Vec<(usize, usize)>> {
                let at = |bare: &UnreshapedValue, axis: usize| bare.axes.iter().position(|own| *own == axis);
                let pairs = pairs.iter().map(|&(a, b)| (at(&x, a), at(&w, b)));
                let kept = pairs.filter(|pair| *pair != (None, None));
                kept.map(|(a, b)| a.zip(b)).collect()
            };
            if let (Some(batch), Some(contract)) = (renamed(&op.batch), renamed(&op.contract))
                && contract.is_empty() == op.contract.is_empty()
            {
                let fewer = Dot { batch, contract, acc: op.acc };
                let operands = [x.value, w.value];
                let types = operands.map(|v| self.to.graph.ty(v));
                if infer(&Op::Structural(fewer.clone().into()), &types).is_ok() {
                    return Some(self.to.append(StructuralOp::from(fewer), &operands));
                }
            }
        }
        for side in [0, 1] {
            let Some(bare) = self.find_unreshaped_value(args[side]) else { continue };
            // The axes that are dropped are neither batch axes nor contracted.
            let at = |axis: usize| bare.axes.iter().position(|own| *own == axis);
            let renamed = |pairs: &[(usize, usize)]| -> Option<Vec<(usize, usize)>> {
                let one = |&(a, b): &(usize, usize)| if side == 0 { Some((at(a)?, b)) } else { Some((a, at(b)?)) };
                pairs.iter().map(one).collect()
            };
            let (Some(batch), Some(contract)) = (renamed(&op.batch), renamed(&op.contract)) else { continue };
            let (fewer, mut operands) = (Dot { batch, contract, acc: op.acc }, args.clone());
            operands[side] = bare.value;
            // Axis 1 by axis 0 alone is the form of two matrices, which other ranks do not have.
            let types: Vec<_> = operands.iter().map(|&v| self.to.graph.ty(v)).collect();
            if infer(&Op::Structural(fewer.clone().into()), &types).is_ok() {
                (op, args, is_less) = (fewer, operands, true);
            }
        }
        is_less.then(|| self.to.append(StructuralOp::from(op), &args))
    }
}

/// Returns by axis of the shape `from` the axis of `to` that it is, if `to` only has axes of one element in addition.
fn match_nonunit_axes(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut axes = vec![];
    for (axis, n) in to.iter().enumerate() {
        if from.get(axes.len()) == Some(n) {
            axes.push(axis);
        } else if *n != 1 {
            return None;
        }
    }
    (axes.len() == from.len()).then_some(axes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_ir::{DType, Type};

    /// A contraction of an axis of one element is dropped, with others and as a batch axis, if both operands have it
    /// from a reshape.
    #[test]
    fn sums_over_axes_that_both_operands_put_in_go() {
        let float = |shape: &[usize]| Type::new(DType::F32, shape.to_vec());
        let product = |is_batch: bool, both: bool| {
            let mut graph = Graph::default();
            let [x, w] = [graph.param(float(&[5, 3])), graph.param(float(if both { &[5, 4] } else { &[5, 1, 4] }))];
            let wide = |graph: &mut Graph, v: Var, to: &[usize]| {
                graph.push_valid(StructuralOp::from(Reshape { to: constant_dims(to) }), &[v])
            };
            let left = wide(&mut graph, x, &[5, 1, 3]);
            let right = if both { wide(&mut graph, w, &[5, 1, 4]) } else { w };
            let (batch, contract) =
                if is_batch { (vec![(1, 1)], vec![(0, 0)]) } else { (vec![], vec![(0, 0), (1, 1)]) };
            let result = graph.push_valid(StructuralOp::from(Dot { batch, contract, acc: DType::F32 }), &[left, right]);
            let shape = graph.ty(result).shape.clone();
            graph.results = vec![result];
            let made = drop_inserted_unit_axes(graph.clone());
            assert_eq!(made.ty(made.results[0]).shape, shape);
            let dots = made.equations.iter().filter_map(|e| match &e.op {
                Op::Structural(StructuralOp::Dot(dot)) => Some((dot.clone(), e.args.clone())),
                _ => None,
            });
            let dots: Vec<(Dot, Vec<Var>)> = dots.collect();
            let plain = Dot { batch: vec![], contract: vec![(0, 0)], acc: DType::F32 };
            dots == [(plain, vec![x, w])]
        };
        for is_batch in [false, true] {
            assert!(product(is_batch, true), "{is_batch}");
            assert!(!product(is_batch, false), "{is_batch}: the other operand has the axis itself");
        }
    }
}
