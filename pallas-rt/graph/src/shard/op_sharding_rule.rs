//! The sharding rule of an operation: the factors of which the dimensions of its operands and results are products.
//!
//! ```text
//! dot of [8, 16] and [16, 4]:   ([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}
//! reshape of [8, 6] to [48]:    ([i, j])->([ij]) {i=8, j=6}
//! ```
//!
//! Dimensions that share a factor can be sharded by the same axes without communication, or with the communication that
//! the factor's [`FactorRole`] names. A rule follows from an operation's access form and from sizes alone: an operation
//! that shifts elements but keeps an extent has a factor without communication, as in Shardy. [`partition`](super)
//! looks at the access form again.
mod collective;
mod nest;

use super::propagation_program::{NodeKind, Val};
use crate::graph::Op;
use pallas_ir::structural::{AccessForm, AffineIndex, IndexedWindows, MapPiece};
use pallas_ir::{Dim, StructuralOp, Type};
use std::fmt::Write;

/// The communication that sharding a factor needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FactorRole {
    /// No communication: blocks of operands give blocks of results.
    PassThrough,
    /// A reduction: devices have partial results that are to be combined.
    Reduce,
    /// A transfer of elements between neighbouring blocks.
    Permute,
    /// A gather: the operation cannot be sharded along the factor.
    Replicate,
}

/// A part of the extent that dimensions of several arrays have in common, and by which all of them can be sharded
/// together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Factor {
    /// Number of positions; the sizes of a dimension's factors multiply to its extent.
    pub size: usize,
    /// The communication that sharding the factor needs.
    pub role: FactorRole,
    /// True if propagation does not carry axes along the factor.
    pub is_blocked: bool,
    /// Positions in each block are a multiple of this number: 1, except in kernels, whose programs need whole blocks.
    pub multiple: usize,
}

/// The sharding rule of an operation: the factors of each dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardingRule {
    /// All factors; dimensions name them by their index here.
    pub factors: Vec<Factor>,
    /// By array (operands, then results) and by dimension, the indices of its factors, the slowest first.
    pub tensors: Vec<Vec<Vec<usize>>>,
    /// Number of operands, after which the results begin in `tensors`.
    pub operands: usize,
}

/// A dimension of an array of a rule: the index of the array among operands and results, and the index of the
/// dimension.
pub(crate) type TensorDim = (usize, usize);

/// An operation whose sharding rule is to be made.
pub(super) struct RuleRequest<'a> {
    /// The operation whose rule is to be made.
    pub kind: &'a NodeKind,
    /// The operation's operands.
    pub operands: &'a [Val],
    /// The types of its operands, then of its results.
    pub types: Vec<&'a Type>,
    /// By operand, the array that it is a slice of, if it is one.
    pub sliced: Vec<Option<Val>>,
}

/// Returns the sharding rule of an operation; `None` if shardings do not propagate through it.
pub(super) fn build_sharding_rule(request: &RuleRequest<'_>) -> Option<ShardingRule> {
    let operands = request.operands.len();
    let shapes: Vec<&[usize]> = request.types.iter().map(|ty| &ty.shape[..]).collect();
    let mut build = RuleBuilder::new(&shapes, operands);
    match request.kind {
        NodeKind::Constraint(_) | NodeKind::PropagationBarrier(_) | NodeKind::DataFlowEdge => {
            build.add_elementwise_factors()
        }
        NodeKind::Constant
        | NodeKind::OptimizationBarrier
        | NodeKind::Loop(_)
        | NodeKind::Branches(_)
        | NodeKind::ShardingGroup(_) => return None,
        NodeKind::Op(op) => match op {
            Op::Call(call) => return call.regions()?.sharding_rule(),
            Op::Collective(op) if request.operands.len() == 1 => build.add_collective_factors(op),
            Op::Literal(_) | Op::Identity(_) | Op::Collective(_) => return None,
            Op::Scalar(_) => build.add_elementwise_factors(),
            Op::Dynamic(op) => op.regions().add_factors(&mut build),
            Op::Structural(op) => build.add_structural_factors(op, request)?,
        },
    }
    Some(build.finish())
}

impl ShardingRule {
    /// Returns the rule by which `operand_count` arrays of this shape and one result of the same shape are sharded
    /// alike.
    pub(super) fn elementwise(shape: &[usize], operand_count: usize) -> ShardingRule {
        let shapes = vec![shape; operand_count + 1];
        let mut build = RuleBuilder::new(&shapes, operand_count);
        build.add_elementwise_factors();
        build.finish()
    }

    /// Returns the rule in Shardy's syntax, with `implied_scalar_count` scalars after the operands, for operands that
    /// StableHLO's operation has in addition.
    pub fn text(&self, implied_scalar_count: usize) -> String {
        let name = |f: usize| match u8::try_from(f) {
            Ok(f @ 0..18) => char::from(b'i' + f).to_string(),
            _ => format!("z_{}", f - 17),
        };
        let tensor = |dims: &Vec<Vec<usize>>| {
            let dims = dims.iter().map(|factors| factors.iter().map(|&f| name(f)).collect::<String>());
            format!("[{}]", dims.collect::<Vec<_>>().join(", "))
        };
        let (operands, results) = self.tensors.split_at(self.operands);
        let operands: Vec<String> =
            operands.iter().map(tensor).chain(std::iter::repeat_n("[]".into(), implied_scalar_count)).collect();
        let results: Vec<String> = results.iter().map(tensor).collect();
        let mut text = format!("({})->({})", operands.join(", "), results.join(", "));
        let list = |of: &dyn Fn(&Factor) -> bool| {
            let all = self.factors.iter().enumerate().filter(|(_, factor)| of(factor));
            all.map(|(f, _)| name(f)).collect::<Vec<_>>().join(", ")
        };
        if !self.factors.is_empty() {
            let sizes = self.factors.iter().enumerate().map(|(f, factor)| format!("{}={}", name(f), factor.size));
            write!(text, " {{{}}}", sizes.collect::<Vec<_>>().join(", ")).expect("a string");
        }
        let lists = [
            ("reduction", list(&|factor| factor.role == FactorRole::Reduce)),
            ("need_replication", list(&|factor| factor.role == FactorRole::Replicate)),
            ("permutation", list(&|factor| factor.role == FactorRole::Permute)),
            ("blocked_propagation", list(&|factor| factor.is_blocked)),
        ];
        for (title, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
            write!(text, " {title}={{{names}}}").expect("a string");
        }
        text
    }
}

/// Builder of a rule. Factors are numbered in the order in which they are added.
pub(crate) struct RuleBuilder<'a> {
    pub(crate) shapes: &'a [&'a [usize]],
    pub(crate) rule: ShardingRule,
}

impl<'a> RuleBuilder<'a> {
    pub(crate) fn new(shapes: &'a [&'a [usize]], operand_count: usize) -> RuleBuilder<'a> {
        let tensors = shapes.iter().map(|shape| vec![vec![]; shape.len()]).collect();
        RuleBuilder { shapes, rule: ShardingRule { factors: vec![], tensors, operands: operand_count } }
    }

    /// Returns the index of the first result among the arrays of the rule.
    pub(crate) fn first_result(&self) -> usize {
        self.rule.operands
    }

    /// Adds a factor that the dimensions `places` share.
    pub(crate) fn add_factor(&mut self, size: usize, role: FactorRole, places: &[TensorDim]) {
        self.add_maybe_blocked_factor(size, role, false, places);
    }

    /// Adds a factor that the dimensions `places` share; propagation does not carry axes along it if `is_blocked`.
    pub(crate) fn add_maybe_blocked_factor(
        &mut self,
        size: usize,
        role: FactorRole,
        is_blocked: bool,
        places: &[TensorDim],
    ) {
        let number = self.rule.factors.len();
        // Factors of size 1 are only for dimensions that have no other factor.
        if size == 1 && places.iter().all(|&(tensor, dim)| !self.rule.tensors[tensor][dim].is_empty()) {
            return;
        }
        self.rule.factors.push(Factor { size, role, is_blocked, multiple: 1 });
        for &(tensor, dim) in places {
            let factors = &mut self.rule.tensors[tensor][dim];
            if (size > 1 || factors.is_empty()) && !factors.contains(&number) {
                factors.push(number);
            }
        }
    }

    /// Returns the rule after giving a factor of size 1 to each dimension without a factor.
    pub(crate) fn finish(mut self) -> ShardingRule {
        let ShardingRule { factors, tensors, .. } = &mut self.rule;
        for dim in tensors.iter_mut().flatten().filter(|dim| dim.is_empty()) {
            dim.push(factors.len());
            factors.push(Factor { size: 1, role: FactorRole::PassThrough, is_blocked: false, multiple: 1 });
        }
        self.rule
    }

    /// Adds the factors of an operation on elements at equal positions; scalar operands have no dimensions.
    fn add_elementwise_factors(&mut self) {
        for (dim, &n) in self.shapes[self.first_result()].iter().enumerate() {
            let places: Vec<TensorDim> =
                (0..self.shapes.len()).filter(|&t| !self.shapes[t].is_empty()).map(|t| (t, dim)).collect();
            self.add_factor(n, FactorRole::PassThrough, &places);
        }
    }

    /// Adds the factors of a structural operation, by the kind of its accesses to its operands; returns `None` if it
    /// has no rule.
    fn add_structural_factors(&mut self, op: &StructuralOp, request: &RuleRequest<'_>) -> Option<()> {
        let dims: Vec<Vec<Dim>> =
            self.shapes[..self.first_result()].iter().map(|s| s.iter().map(|&n| Dim::from(n)).collect()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(|dims| &dims[..]).collect();
        match op.access(&dims) {
            AccessForm::Iota { .. } => return None,
            AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_) => self.add_elementwise_factors(),
            AccessForm::Map(pieces) => self.add_moved_element_factors(&pieces, request),
            AccessForm::Flat => return self.add_reshape_factors(),
            AccessForm::Contract { batch, contract } => self.add_contraction_factors(&batch, &contract),
            AccessForm::Fold { axes, .. } => self.add_fold_factors(&axes),
            AccessForm::Arg { axis, .. } => self.add_fold_factors(&[axis]),
            AccessForm::Scan { axis, .. } => self.add_scan_factors(axis),
            AccessForm::Sort { axis, .. } => self.add_sort_factors(axis),
            AccessForm::Gather { windows, .. } => self.add_gather_factors(&windows),
            AccessForm::Scatter { windows, op } => self.add_scatter_factors(&windows, op.is_some()),
            AccessForm::Nest(nest) => self.add_nest_factors(&nest),
        }
        Some(())
    }

    /// Adds the factors of an operation each of whose result elements is one operand element.
    fn add_moved_element_factors(&mut self, pieces: &[MapPiece], request: &RuleRequest<'_>) {
        let pieces: Vec<&MapPiece> = pieces.iter().filter(|piece| !piece.index.is_empty()).collect();
        let (shapes, result) = (self.shapes, self.first_result());
        let is_joined = |axis: usize| {
            let ends = |piece: &&MapPiece| {
                let of = piece.index.iter().position(|index| index.axis == Some(axis));
                piece.bounds.iter().any(|bound| bound.0 == axis)
                    && of.is_some_and(|dim| shapes[piece.operand][dim] != shapes[result][axis])
            };
            pieces.len() > 1 && pieces.iter().any(ends)
        };
        for (axis, &n) in shapes[result].iter().enumerate() {
            let (mut places, mut is_moved, mut size) = (vec![], false, n);
            for piece in &pieces {
                for (dim, index) in piece.index.iter().enumerate() {
                    let next = piece.index[dim + 1..].iter().find_map(|index| index.axis);
                    let is_first = self.rule.tensors[piece.operand][dim].is_empty();
                    if index.axis.is_none() && next == Some(axis) && is_first {
                        self.add_factor(1, FactorRole::PassThrough, &[(piece.operand, dim)]);
                    }
                    if index.axis == Some(axis) {
                        places.push((piece.operand, dim));
                        let extent = shapes[piece.operand][dim];
                        if !is_joined(axis) {
                            is_moved |= extent != n || has_negative_stride(index);
                            size = extent;
                        }
                    }
                }
            }
            places.push((result, axis));
            let role = match (is_joined(axis), is_moved) {
                (true, _) if is_concat_of_slices(request) => FactorRole::Permute,
                (true, _) => FactorRole::Replicate,
                (false, true) => FactorRole::Permute,
                (false, false) => FactorRole::PassThrough,
            };
            self.add_factor(size, role, &places);
        }
    }

    /// Adds the factors of a reshape, from the greatest common divisors of what is left of the extents on both sides.
    fn add_reshape_factors(&mut self) -> Option<()> {
        let (from, to) = (self.shapes[0], self.shapes[1]);
        if from.contains(&0) {
            return None;
        }
        // By side: the current dimension, the product of the extents up to it, the product of the factors so far.
        let (mut dim, mut whole, mut done) = ([0, 0], [1, 1], [1, 1]);
        let shapes = [from, to];
        'walk: while dim[0] < from.len() || dim[1] < to.len() {
            for side in [0, 1] {
                if shapes[side].get(dim[side]) == Some(&1) {
                    self.add_factor(1, FactorRole::Replicate, &[(side, dim[side])]);
                    dim[side] += 1;
                    continue 'walk;
                }
            }
            for side in [0, 1] {
                if dim[side] < shapes[side].len() && whole[side] == done[side] {
                    whole[side] *= shapes[side][dim[side]];
                }
            }
            let left = [whole[0] / done[0], whole[1] / done[1]];
            let common = gcd(left[0], left[1]);
            // The side with the smaller product of factors gets the factor that makes both equal, if its extent has
            // such a factor.
            let level = |side: usize| {
                let (behind, ahead) = (done[side], done[1 - side]);
                match ahead / behind {
                    step if ahead % behind == 0 && left[side].is_multiple_of(step) => step,
                    _ if left[side] > common => left[side] / common,
                    _ => left[side],
                }
            };
            if done[0] != done[1] {
                let side = usize::from(done[1] < done[0]);
                let step = level(side);
                self.add_factor(step, FactorRole::Replicate, &[(side, dim[side])]);
                done[side] *= step;
            } else if common > 1 {
                self.add_factor(common, FactorRole::PassThrough, &[(0, dim[0]), (1, dim[1])]);
                done = done.map(|n| n * common);
            } else {
                // Neither extent divides the other: positions are in the same order, but shifted.
                self.add_factor(left[0], FactorRole::Permute, &[(0, dim[0]), (1, dim[1])]);
                done = [done[0] * left[0], done[1] * left[1]];
            }
            for side in [0, 1] {
                if dim[side] < shapes[side].len() && whole[side] == done[side] {
                    dim[side] += 1;
                }
            }
        }
        Some(())
    }

    /// Adds the factors of a product: pairs of dimensions of both operands that are batches, or that are summed over.
    fn add_contraction_factors(&mut self, batch: &[TensorDim], contract: &[TensorDim]) {
        let (a, b, result) = (self.shapes[0], self.shapes[1], self.first_result());
        let pairs = || batch.iter().chain(contract);
        let mut axis = 0;
        for &(i, j) in batch {
            self.add_factor(a[i], FactorRole::PassThrough, &[(0, i), (1, j), (result, axis)]);
            axis += 1;
        }
        for i in (0..a.len()).filter(|&i| pairs().all(|pair| pair.0 != i)) {
            self.add_factor(a[i], FactorRole::PassThrough, &[(0, i), (result, axis)]);
            axis += 1;
        }
        for j in (0..b.len()).filter(|&j| pairs().all(|pair| pair.1 != j)) {
            self.add_factor(b[j], FactorRole::PassThrough, &[(1, j), (result, axis)]);
            axis += 1;
        }
        for &(i, j) in contract {
            self.add_factor(a[i], FactorRole::Reduce, &[(0, i), (1, j)]);
        }
    }

    /// Adds the factors of a fold over these axes.
    fn add_fold_factors(&mut self, axes: &[usize]) {
        let (x, result) = (self.shapes[0], self.first_result());
        let keeps = self.shapes[result].len() == x.len();
        let mut axis = 0;
        for (dim, &n) in x.iter().enumerate() {
            if axes.contains(&dim) {
                self.add_factor(n, FactorRole::Reduce, &[(0, dim)]);
                axis += usize::from(keeps);
            } else {
                self.add_factor(n, FactorRole::PassThrough, &[(0, dim), (result, axis)]);
                axis += 1;
            }
        }
    }

    /// Adds the factors of an operation, such as a sort, each of whose results along an axis depends on all elements
    /// along it.
    fn add_sort_factors(&mut self, axis: usize) {
        let (x, result) = (self.shapes[0], self.first_result());
        let is_alone = x.iter().enumerate().all(|(dim, &n)| dim == axis || n == 1);
        for (dim, &n) in x.iter().enumerate() {
            let is_kept = self.shapes[result][dim] == n;
            let places = if is_kept { vec![(0, dim), (result, dim)] } else { vec![(0, dim)] };
            match dim == axis {
                true => self.add_maybe_blocked_factor(n, FactorRole::Replicate, is_alone, &places),
                false => self.add_factor(n, FactorRole::PassThrough, &places),
            }
        }
    }

    /// Adds the factors of a cumulative fold, whose results along an axis depend on the elements before them.
    fn add_scan_factors(&mut self, axis: usize) {
        for (dim, &n) in self.shapes[0].iter().enumerate() {
            let role = if dim == axis && n > 1 { FactorRole::Permute } else { FactorRole::PassThrough };
            self.add_factor(n, role, &[(0, dim), (self.first_result(), dim)]);
        }
    }

    /// Returns the dimension of operand 1 (the indices) for each axis of the array of start vectors, which lacks the
    /// dimension of the vectors' components.
    fn index_dims_by_start_axis(&self, windows: &IndexedWindows) -> Vec<usize> {
        (0..self.shapes[1].len()).filter(|&dim| windows.vector != Some(dim)).collect()
    }

    /// Adds the factors of a gather: windows of operand 0 at starts that operand 1 gives.
    fn add_gather_factors(&mut self, windows: &IndexedWindows) {
        let (x, result) = (self.shapes[0], self.first_result());
        let of_index = self.index_dims_by_start_axis(windows);
        for (axis, &n) in self.shapes[result].iter().enumerate() {
            let own = windows.axes.iter().position(|window| window.axis == Some(axis));
            let index = windows.index.iter().position(|&a| a == axis).map(|k| of_index[k]);
            let mut places: Vec<TensorDim> = own.map(|dim| (0, dim)).into_iter().collect();
            places.extend(index.map(|dim| (1, dim)));
            places.push((result, axis));
            match own {
                Some(dim) if index.is_none() && x[dim] != n => {
                    self.add_maybe_blocked_factor(x[dim], FactorRole::Replicate, true, &places);
                }
                _ => self.add_factor(n, FactorRole::PassThrough, &places),
            }
        }
        self.add_indexed_dim_factors(windows);
    }

    /// Adds the factors of the dimensions of a gather's operand that its indices address and its result lacks, and of
    /// the indices' dimension of components.
    fn add_indexed_dim_factors(&mut self, windows: &IndexedWindows) {
        for (dim, window) in windows.axes.iter().enumerate() {
            if window.start.is_some() && window.axis.is_none() {
                let n = self.shapes[0][dim];
                let role = if n == 1 { FactorRole::Replicate } else { FactorRole::Reduce };
                self.add_factor(n, role, &[(0, dim)]);
            }
        }
        self.add_start_component_factor(windows);
    }

    /// Adds the factors of a scatter: operand 2 is written into operand 0 at starts that operand 1 gives. With
    /// `combines_updates` a monoid combines updates of one element; else the last one counts.
    fn add_scatter_factors(&mut self, windows: &IndexedWindows, combines_updates: bool) {
        let (x, result) = (self.shapes[0], self.first_result());
        let of_index = self.index_dims_by_start_axis(windows);
        for (axis, &n) in self.shapes[2].iter().enumerate() {
            let own = windows.axes.iter().position(|window| window.axis == Some(axis));
            let index = windows.index.iter().position(|&a| a == axis).map(|k| (1, of_index[k]));
            match own {
                Some(dim) if index.is_none() && x[dim] != n => {
                    self.add_factor(x[dim], FactorRole::Replicate, &[(0, dim), (result, dim)]);
                    self.add_factor(n, FactorRole::Replicate, &[(2, axis)]);
                }
                Some(dim) => {
                    let places = [Some((0, dim)), index, Some((2, axis)), Some((result, dim))];
                    self.add_factor(n, FactorRole::PassThrough, &places.into_iter().flatten().collect::<Vec<_>>());
                }
                // Devices can combine the results of their own updates, but not if updates replace each other in order.
                None => {
                    let role = if combines_updates { FactorRole::Reduce } else { FactorRole::Replicate };
                    let places = [index, Some((2, axis))];
                    self.add_factor(n, role, &places.into_iter().flatten().collect::<Vec<_>>());
                }
            }
        }
        for (dim, window) in windows.axes.iter().enumerate() {
            if window.start.is_some() && window.axis.is_none() {
                self.add_factor(x[dim], FactorRole::PassThrough, &[(0, dim), (result, dim)]);
            }
        }
        self.add_start_component_factor(windows);
    }

    /// Adds the factor of the dimension, if there is one, of a gather's or scatter's indices along which the components
    /// of a start vector lie; it has to be replicated.
    fn add_start_component_factor(&mut self, windows: &IndexedWindows) {
        if let Some(dim) = windows.vector {
            self.add_factor(self.shapes[1][dim], FactorRole::Replicate, &[(1, dim)]);
        }
    }
}

fn has_negative_stride(index: &AffineIndex) -> bool {
    index.stride.as_number().is_some_and(|stride| stride < 0)
}

/// Returns true if a concatenation only moves elements of one array: each operand is a slice, or all are one array and
/// its slices.
fn is_concat_of_slices(request: &RuleRequest<'_>) -> bool {
    let source = |i: usize| request.sliced[i].unwrap_or(request.operands[i]);
    let all = 0..request.operands.len();
    // The parts of one array, as in a roll.
    request.operands.len() == 1
        || request.sliced.iter().all(Option::is_some)
        || request.sliced.iter().any(Option::is_some) && all.into_iter().all(|i| source(i) == source(0))
}

/// Returns the greatest common divisor of two numbers.
pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
