//! Replaces sums of products by matrix products, which need no array of the terms.
//!
//! ```text
//! sum over a batch axis of dot a b            dot that contracts the axis
//! sum (transpose x)                           transpose (sum x)
//! sum (mul (broadcast a) (broadcast b))       dot a b, if each side has axes that the other lacks
//! ```
//!
//! The mean of `vmap(grad(f))` ends in such sums: each example has its own product of a column and a row.
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Dot, Reduce, Reshape, Transpose};
use pallas_ir::{DType, ScalarOp, StructuralOp};

/// Fewest elements along the axes that only one factor has, for a sum of products to become a matrix product; with
/// fewer, products are folded as they are computed.
const MIN_FREE_AXIS_ELEMENTS: usize = 8;

/// Replaces sums of products in a graph by matrix products.
pub(super) fn replace_sums_of_products(mut graph: Graph) -> Graph {
    let uses = graph.read_counts();
    let equations = std::mem::take(&mut graph.equations);
    let made = vec![None; graph.types.len()];
    let mut to = SumOfProductsRewriter { graph, made, uses };
    for e in equations {
        if let Op::Structural(StructuralOp::Reduce(op)) = &e.op
            && op.op == ScalarOp::Add
            && !op.keep
            && !op.axes.is_empty()
        {
            to.graph.at = e.loc;
            to.rewrite_sum(&e, op);
        } else {
            to.push(e);
        }
    }
    to.graph
}

/// The pass that replaces sums of products, with the graph that it writes.
struct SumOfProductsRewriter {
    graph: Graph,
    /// By variable, the index of its equation in the new graph.
    made: Vec<Option<usize>>,
    /// By variable, number of times that the old graph reads it.
    uses: Vec<usize>,
}

/// The value that a factor of an elementwise product repeats by broadcasts, with the place of its axes in the product.
struct ProductFactor {
    /// The value before it was broadcast.
    value: Var,
    /// By axis of the value with more than one element, the axis of the product that it is.
    axes: Vec<usize>,
}

impl SumOfProductsRewriter {
    /// Appends an equation whose result variables exist.
    fn push(&mut self, e: Equation) {
        e.results.iter().for_each(|r| self.made[r.index()] = Some(self.graph.equations.len()));
        self.graph.equations.push(e);
    }

    /// Appends an operation with a new variable as its result, which is returned.
    fn append(&mut self, op: impl Into<StructuralOp>, args: &[Var]) -> Var {
        let op: StructuralOp = op.into();
        let v = self.graph.push_valid(op, args);
        self.made.resize(self.graph.types.len(), None);
        self.uses.resize(self.graph.types.len(), 1);
        self.made[v.index()] = Some(self.graph.equations.len() - 1);
        v
    }

    fn definition(&self, v: Var) -> Option<&Equation> {
        self.made[v.index()].map(|i| &self.graph.equations[i])
    }

    /// Appends the sum `e`: as a matrix product if it is a sum of products that one can compute, else unchanged.
    fn rewrite_sum(&mut self, e: &Equation, op: &Reduce) {
        let before = self.graph.equations.len();
        match self.emit_sum_as_product(e.args[0], &op.axes) {
            // The last equation gets the variable that others read.
            Some(v) if self.graph.equations.len() > before => {
                let mut last = self.graph.equations.pop().expect("it was appended");
                debug_assert_eq!(last.results, [v]);
                debug_assert_eq!(self.graph.ty(v), self.graph.ty(e.result()));
                last.results = e.results.clone();
                self.push(last);
            }
            _ => self.push(e.clone()),
        }
    }

    /// Appends equations that compute the sum of a value over these axes by a matrix product; returns the sum, or
    /// `None` if that is impossible or other equations read the value.
    fn emit_sum_as_product(&mut self, v: Var, axes: &[usize]) -> Option<Var> {
        if self.uses[v.index()] != 1 {
            return None;
        }
        let Equation { op, args, .. } = self.definition(v)?.clone();
        match op {
            Op::Structural(StructuralOp::Dot(dot)) => {
                let n = dot.batch.len();
                let (inner, rest): (Vec<usize>, Vec<usize>) = axes.iter().copied().partition(|&axis| axis < n);
                if inner.is_empty() {
                    return None;
                }
                let pairs = || dot.batch.iter().copied().enumerate();
                let batch: Vec<_> = pairs().filter(|(i, _)| !inner.contains(i)).map(|(_, pair)| pair).collect();
                let summed = pairs().filter(|(i, _)| inner.contains(i)).map(|(_, pair)| pair);
                let contract = summed.chain(dot.contract.iter().copied()).collect();
                let made = self.emit_dot(Dot { batch, contract, acc: dot.acc }, [args[0], args[1]]);
                if rest.is_empty() {
                    return Some(made);
                }
                let rest = rest.iter().map(|axis| axis - inner.iter().filter(|i| *i < axis).count()).collect();
                Some(self.append(Reduce::dropping(ScalarOp::Add, rest), &[made]))
            }
            Op::Structural(StructuralOp::Transpose(moved)) => {
                let inner: Vec<usize> = axes.iter().map(|&axis| moved.axes[axis]).collect();
                let made = self.emit_sum_as_product(args[0], &inner)?;
                let kept = |axis: &usize| !inner.contains(axis);
                let order: Vec<usize> = moved.axes.iter().copied().filter(kept).collect();
                let position = |axis: &usize| order.iter().filter(|other| *other < axis).count();
                Some(self.append(Transpose { axes: order.iter().map(position).collect() }, &[made]))
            }
            Op::Scalar(ScalarOp::Mul) => self.emit_broadcast_product_sum(v, [args[0], args[1]], axes),
            _ => None,
        }
    }

    /// Appends a product; returns its result. Without batch axes, contracting axis 1 with axis 0 alone is only allowed
    /// for two matrices: operands of other ranks swap sides, and the result is transposed back.
    fn emit_dot(&mut self, dot: Dot, args: [Var; 2]) -> Var {
        let ranks = args.map(|v| self.graph.ty(v).shape.len());
        if !dot.batch.is_empty() || dot.contract != [(1, 0)] || ranks == [2, 2] {
            return self.append(dot, &args);
        }
        let made = self.append(dot.swap_operands(), &[args[1], args[0]]);
        let (first, last) = (ranks[1] - 1, ranks[0] - 1);
        self.append(Transpose { axes: (first..first + last).chain(0..first).collect() }, &[made])
    }

    /// Appends the sum over `axes` of `v`, the elementwise product of the broadcast values `args`, as a matrix product;
    /// returns `None` if it is no product of matrices that are large enough.
    fn emit_broadcast_product_sum(&mut self, v: Var, args: [Var; 2], axes: &[usize]) -> Option<Var> {
        let ty = self.graph.ty(v).clone();
        if !matches!(ty.dtype, DType::F32 | DType::F64) {
            return None;
        }
        let [a, b] = args.map(|v| self.find_product_factor(v));
        let all = (0..ty.shape.len()).filter(|&axis| ty.shape[axis] != 1);
        let (mut batch, mut contract, mut own) = (vec![], vec![], [vec![], vec![]]);
        for axis in all {
            let at = [&a, &b].map(|factor| factor.axes.iter().position(|&own| own == axis));
            match (at, axes.contains(&axis)) {
                ([Some(i), Some(j)], true) => contract.push((i, j)),
                ([Some(i), Some(j)], false) => batch.push((axis, (i, j))),
                ([Some(_), None], false) => own[0].push(axis),
                ([None, Some(_)], false) => own[1].push(axis),
                _ => return None,
            }
        }
        let elements = |axes: &[usize]| axes.iter().map(|&axis| ty.shape[axis]).product::<usize>();
        if contract.is_empty() || own.iter().any(|axes| elements(axes) < MIN_FREE_AXIS_ELEMENTS) {
            return None;
        }
        // The free axes of a factor are in the factor's own order.
        let free = |factor: &ProductFactor, own: &[usize]| -> Vec<usize> {
            factor.axes.iter().copied().filter(|axis| own.contains(axis)).collect()
        };
        let now: Vec<usize> =
            batch.iter().map(|(axis, _)| *axis).chain(free(&a, &own[0])).chain(free(&b, &own[1])).collect();
        let operands = [a, b].map(|factor| self.drop_unit_axes(factor.value));
        let dot = Dot { batch: batch.into_iter().map(|(_, pair)| pair).collect(), contract, acc: ty.dtype };
        let made = self.emit_dot(dot, operands);
        let mut wanted = now.clone();
        wanted.sort_unstable();
        let order = wanted.iter().map(|axis| now.iter().position(|own| own == axis).expect("it has the same axes"));
        let made = self.append(Transpose { axes: order.collect() }, &[made]);
        let kept: Vec<usize> =
            (0..ty.shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| ty.shape[axis]).collect();
        Some(self.append(Reshape { to: constant_dims(&kept) }, &[made]))
    }

    /// Returns a value without its axes of one element.
    fn drop_unit_axes(&mut self, v: Var) -> Var {
        let shape: Vec<usize> = self.graph.ty(v).shape.iter().copied().filter(|&n| n != 1).collect();
        if shape.len() == self.graph.ty(v).shape.len() {
            v
        } else {
            self.append(Reshape { to: constant_dims(&shape) }, &[v])
        }
    }

    /// Returns the value from which broadcasts, transposes and reshapes make `v`, and by axis of this value the axis of
    /// `v` that it becomes; axes of one element are left out.
    fn find_product_factor(&self, v: Var) -> ProductFactor {
        let shape = |v: Var| &self.graph.ty(v).shape;
        let mut value = v;
        // By axis of the value, the axis of the product.
        let mut axes: Vec<Option<usize>> = (0..shape(v).len()).map(Some).collect();
        while let Some(Equation { op: Op::Structural(op), args, .. }) = self.definition(value) {
            let from = args.first().copied();
            let (Some(from), to) = (from, shape(value)) else { break };
            let found: Vec<Option<usize>> = match op {
                StructuralOp::Broadcast(Broadcast { dims, .. }) => {
                    let own = |(&n, &axis): (&usize, &usize)| if n == to[axis] { axes[axis] } else { None };
                    shape(from).iter().zip(dims).map(own).collect()
                }
                StructuralOp::Transpose(op) => {
                    let at = |axis: usize| op.axes.iter().position(|&a| a == axis).expect("a permutation");
                    (0..axes.len()).map(|axis| axes[at(axis)]).collect()
                }
                StructuralOp::Reshape(_) => {
                    let longer = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
                    if longer(to) != longer(shape(from)) {
                        break;
                    }
                    let mut rest = (0..to.len()).filter(|&axis| to[axis] != 1).map(|axis| axes[axis]);
                    shape(from).iter().map(|&n| if n == 1 { None } else { rest.next().flatten() }).collect()
                }
                _ => break,
            };
            (value, axes) = (from, found);
        }
        let is_long = |(axis, &n): (Option<usize>, &usize)| if n == 1 { None } else { axis };
        ProductFactor { value, axes: axes.into_iter().zip(shape(value)).filter_map(is_long).collect() }
    }
}
