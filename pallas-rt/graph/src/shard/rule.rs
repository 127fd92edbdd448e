//! The sharding rule of an operation: the factors that the dimensions of its operands and results consist of.
//!
//! ```text
//! dot of [8, 16] and [16, 4]:   ([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}
//! reshape of [8, 6] to [48]:    ([i, j])->([ij]) {i=8, j=6}
//! ```
//!
//! Dimensions that share a factor can be sharded by the same axes without communication, or with the communication that
//! the factor's [`Role`] names. A rule is the projection of an operation's access form, by sizes alone: a shift that keeps
//! an extent is a pass-through although elements move, as in Shardy. [`partition`](super) looks at the access form again.
mod collective;
mod nest;

use super::view::{Kind, Val};
use crate::graph::Op;
use pallas_ir::structural::{Access, Index, Piece, Windows};
use pallas_ir::{Dim, StructuralOp, Type};
use std::fmt::Write;

/// The cost of dividing a factor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Nothing: blocks of operands give blocks of results.
    Pass,
    /// Devices have parts of a result that are to be combined.
    Reduce,
    /// Elements move between neighbouring blocks.
    Permute,
    /// The operation cannot be sharded along it.
    Replicate,
}

/// A number of positions that dimensions share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Factor {
    /// Number of positions.
    pub size: usize,
    /// The cost of its division.
    pub role: Role,
    /// True if propagation does not go through it.
    pub is_blocked: bool,
    /// The positions of each part are a multiple of this number: 1, but for kernels, whose programs have whole blocks.
    pub multiple: usize,
}

/// The factors of each dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// The factors.
    pub factors: Vec<Factor>,
    /// By operand, then by result, and by dimension: its factors, the slowest first.
    pub tensors: Vec<Vec<Vec<usize>>>,
    /// Number of operands.
    pub operands: usize,
}

/// A dimension of an operand or, behind these, of a result.
pub(crate) type Place = (usize, usize);

/// The operation whose rule is asked for.
pub(super) struct Asked<'a> {
    pub kind: &'a Kind,
    pub operands: &'a [Val],
    /// The types of the operands, then of the results.
    pub types: Vec<&'a Type>,
    /// By operand, what it is a slice of.
    pub sliced: Vec<Option<Val>>,
}

/// The rule of an operation; `None` if shardings do not propagate through it.
pub(super) fn rule(asked: &Asked<'_>) -> Option<Rule> {
    let operands = asked.operands.len();
    let shapes: Vec<&[usize]> = asked.types.iter().map(|ty| &ty.shape[..]).collect();
    let mut build = Build::new(&shapes, operands);
    match asked.kind {
        Kind::Constraint(_) | Kind::Barrier(_) | Kind::Edge => build.elementwise(),
        Kind::Constant | Kind::OptimizationBarrier | Kind::Loop(_) | Kind::Branches(_) | Kind::Group(_) => return None,
        Kind::Op(op) => match op {
            Op::Call(call) => return call.regions()?.rule(),
            Op::Collective(op) if asked.operands.len() == 1 => build.collective(op),
            Op::Literal(_) | Op::Identity(_) | Op::Collective(_) => return None,
            Op::Scalar(_) => build.elementwise(),
            Op::Dynamic(op) => op.regions().rule(&mut build),
            Op::Structural(op) => build.structural(op, asked)?,
        },
    }
    Some(build.finish())
}

impl Rule {
    /// The rule of arrays of one shape that are sharded alike.
    pub(super) fn identity(shape: &[usize], operands: usize) -> Rule {
        let shapes = vec![shape; operands + 1];
        let mut build = Build::new(&shapes, operands);
        build.elementwise();
        build.finish()
    }

    /// Shardy's text, after `implied` scalars behind the operands that this operation has no operand for.
    pub fn text(&self, implied: usize) -> String {
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
            operands.iter().map(tensor).chain(std::iter::repeat_n("[]".into(), implied)).collect();
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
            ("reduction", list(&|factor| factor.role == Role::Reduce)),
            ("need_replication", list(&|factor| factor.role == Role::Replicate)),
            ("permutation", list(&|factor| factor.role == Role::Permute)),
            ("blocked_propagation", list(&|factor| factor.is_blocked)),
        ];
        for (title, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
            write!(text, " {title}={{{names}}}").expect("a string");
        }
        text
    }
}

/// A rule that is being made. Factors are numbered in the order in which they are added.
pub(crate) struct Build<'a> {
    pub(crate) shapes: &'a [&'a [usize]],
    pub(crate) rule: Rule,
}

impl<'a> Build<'a> {
    pub(crate) fn new(shapes: &'a [&'a [usize]], operands: usize) -> Build<'a> {
        let tensors = shapes.iter().map(|shape| vec![vec![]; shape.len()]).collect();
        Build { shapes, rule: Rule { factors: vec![], tensors, operands } }
    }

    /// The first result.
    pub(crate) fn result(&self) -> usize {
        self.rule.operands
    }

    pub(crate) fn add(&mut self, size: usize, role: Role, places: &[Place]) {
        self.add_blocked(size, role, false, places);
    }

    pub(crate) fn add_blocked(&mut self, size: usize, role: Role, is_blocked: bool, places: &[Place]) {
        let number = self.rule.factors.len();
        // A factor of size 1 is that of a dimension that has no other.
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

    /// Every dimension without a factor gets one of size 1.
    pub(crate) fn finish(mut self) -> Rule {
        let Rule { factors, tensors, .. } = &mut self.rule;
        for dim in tensors.iter_mut().flatten().filter(|dim| dim.is_empty()) {
            dim.push(factors.len());
            factors.push(Factor { size: 1, role: Role::Pass, is_blocked: false, multiple: 1 });
        }
        self.rule
    }

    /// The same position of every array; scalars everywhere.
    fn elementwise(&mut self) {
        for (dim, &n) in self.shapes[self.result()].iter().enumerate() {
            let places: Vec<Place> =
                (0..self.shapes.len()).filter(|&t| !self.shapes[t].is_empty()).map(|t| (t, dim)).collect();
            self.add(n, Role::Pass, &places);
        }
    }

    fn structural(&mut self, op: &StructuralOp, asked: &Asked<'_>) -> Option<()> {
        let dims: Vec<Vec<Dim>> =
            self.shapes[..self.result()].iter().map(|s| s.iter().map(|&n| Dim::from(n)).collect()).collect();
        let dims: Vec<&[Dim]> = dims.iter().map(|dims| &dims[..]).collect();
        match op.access(&dims) {
            Access::Iota { .. } => return None,
            Access::Cast | Access::Bitcast | Access::Powi(_) => self.elementwise(),
            Access::Map(pieces) => self.map(&pieces, asked),
            Access::Flat => return self.flat(),
            Access::Contract { batch, contract } => self.contract(&batch, &contract),
            Access::Fold { axes, .. } => self.fold(&axes),
            Access::Arg { axis, .. } => self.fold(&[axis]),
            Access::Scan { axis, .. } => self.running(axis),
            Access::Sort { axis, .. } => self.whole(axis),
            Access::Gather { windows, .. } => self.gather(&windows),
            Access::Scatter { windows, op } => self.scatter(&windows, op.is_some()),
            Access::Nest(nest) => self.nest(&nest),
        }
        Some(())
    }

    /// Each result element is one operand element.
    fn map(&mut self, pieces: &[Piece], asked: &Asked<'_>) {
        let pieces: Vec<&Piece> = pieces.iter().filter(|piece| !piece.index.is_empty()).collect();
        let (shapes, result) = (self.shapes, self.result());
        let is_joined = |axis: usize| {
            let ends = |piece: &&Piece| {
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
                        self.add(1, Role::Pass, &[(piece.operand, dim)]);
                    }
                    if index.axis == Some(axis) {
                        places.push((piece.operand, dim));
                        let extent = shapes[piece.operand][dim];
                        if !is_joined(axis) {
                            is_moved |= extent != n || is_backward(index);
                            size = extent;
                        }
                    }
                }
            }
            places.push((result, axis));
            let role = match (is_joined(axis), is_moved) {
                (true, _) if are_slices(asked) => Role::Permute,
                (true, _) => Role::Replicate,
                (false, true) => Role::Permute,
                (false, false) => Role::Pass,
            };
            self.add(size, role, &places);
        }
    }

    /// A reshape: both lists of extents are walked, and the greatest common divisor of what is left of each is taken.
    fn flat(&mut self) -> Option<()> {
        let (from, to) = (self.shapes[0], self.shapes[1]);
        if from.contains(&0) {
            return None;
        }
        // By side: the dimension, the product of the extents up to it, the product of the factors.
        let (mut dim, mut whole, mut done) = ([0, 0], [1, 1], [1, 1]);
        let shapes = [from, to];
        'walk: while dim[0] < from.len() || dim[1] < to.len() {
            for side in [0, 1] {
                if shapes[side].get(dim[side]) == Some(&1) {
                    self.add(1, Role::Replicate, &[(side, dim[side])]);
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
            // The side that is behind takes what brings it level, if its extent has such a factor.
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
                self.add(step, Role::Replicate, &[(side, dim[side])]);
                done[side] *= step;
            } else if common > 1 {
                self.add(common, Role::Pass, &[(0, dim[0]), (1, dim[1])]);
                done = done.map(|n| n * common);
            } else {
                // Neither extent divides the other: positions run alike, but are shifted.
                self.add(left[0], Role::Permute, &[(0, dim[0]), (1, dim[1])]);
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

    fn contract(&mut self, batch: &[Place], contract: &[Place]) {
        let (a, b, result) = (self.shapes[0], self.shapes[1], self.result());
        let pairs = || batch.iter().chain(contract);
        let mut axis = 0;
        for &(i, j) in batch {
            self.add(a[i], Role::Pass, &[(0, i), (1, j), (result, axis)]);
            axis += 1;
        }
        for i in (0..a.len()).filter(|&i| pairs().all(|pair| pair.0 != i)) {
            self.add(a[i], Role::Pass, &[(0, i), (result, axis)]);
            axis += 1;
        }
        for j in (0..b.len()).filter(|&j| pairs().all(|pair| pair.1 != j)) {
            self.add(b[j], Role::Pass, &[(1, j), (result, axis)]);
            axis += 1;
        }
        for &(i, j) in contract {
            self.add(a[i], Role::Reduce, &[(0, i), (1, j)]);
        }
    }

    fn fold(&mut self, axes: &[usize]) {
        let (x, result) = (self.shapes[0], self.result());
        let keeps = self.shapes[result].len() == x.len();
        let mut axis = 0;
        for (dim, &n) in x.iter().enumerate() {
            if axes.contains(&dim) {
                self.add(n, Role::Reduce, &[(0, dim)]);
                axis += usize::from(keeps);
            } else {
                self.add(n, Role::Pass, &[(0, dim), (result, axis)]);
                axis += 1;
            }
        }
    }

    /// Every position along an axis depends on all of it.
    fn whole(&mut self, axis: usize) {
        let (x, result) = (self.shapes[0], self.result());
        let is_alone = x.iter().enumerate().all(|(dim, &n)| dim == axis || n == 1);
        for (dim, &n) in x.iter().enumerate() {
            let is_kept = self.shapes[result][dim] == n;
            let places = if is_kept { vec![(0, dim), (result, dim)] } else { vec![(0, dim)] };
            match dim == axis {
                true => self.add_blocked(n, Role::Replicate, is_alone, &places),
                false => self.add(n, Role::Pass, &places),
            }
        }
    }

    /// Each position along an axis depends on those in front of it.
    fn running(&mut self, axis: usize) {
        for (dim, &n) in self.shapes[0].iter().enumerate() {
            let role = if dim == axis && n > 1 { Role::Permute } else { Role::Pass };
            self.add(n, role, &[(0, dim), (self.result(), dim)]);
        }
    }

    /// The dimension of the indices, operand 1, for each of their axes in the windows' array.
    fn index_dims(&self, windows: &Windows) -> Vec<usize> {
        (0..self.shapes[1].len()).filter(|&dim| windows.vector != Some(dim)).collect()
    }

    /// Windows of operand 0 at starts that operand 1 gives.
    fn gather(&mut self, windows: &Windows) {
        let (x, result) = (self.shapes[0], self.result());
        let of_index = self.index_dims(windows);
        for (axis, &n) in self.shapes[result].iter().enumerate() {
            let own = windows.axes.iter().position(|window| window.axis == Some(axis));
            let index = windows.index.iter().position(|&a| a == axis).map(|k| of_index[k]);
            let mut places: Vec<Place> = own.map(|dim| (0, dim)).into_iter().collect();
            places.extend(index.map(|dim| (1, dim)));
            places.push((result, axis));
            match own {
                Some(dim) if index.is_none() && x[dim] != n => {
                    self.add_blocked(x[dim], Role::Replicate, true, &places);
                }
                _ => self.add(n, Role::Pass, &places),
            }
        }
        self.addressed(windows);
    }

    /// Dimensions of operand 0 that are addressed, and that windows do not have.
    fn addressed(&mut self, windows: &Windows) {
        for (dim, window) in windows.axes.iter().enumerate() {
            if window.start.is_some() && window.axis.is_none() {
                let n = self.shapes[0][dim];
                let role = if n == 1 { Role::Replicate } else { Role::Reduce };
                self.add(n, role, &[(0, dim)]);
            }
        }
        self.starts(windows);
    }

    /// Operand 0 with the elements of operand 2, combined or in their place, at starts that operand 1 gives.
    fn scatter(&mut self, windows: &Windows, combines: bool) {
        let (x, result) = (self.shapes[0], self.result());
        let of_index = self.index_dims(windows);
        for (axis, &n) in self.shapes[2].iter().enumerate() {
            let own = windows.axes.iter().position(|window| window.axis == Some(axis));
            let index = windows.index.iter().position(|&a| a == axis).map(|k| (1, of_index[k]));
            match own {
                Some(dim) if index.is_none() && x[dim] != n => {
                    self.add(x[dim], Role::Replicate, &[(0, dim), (result, dim)]);
                    self.add(n, Role::Replicate, &[(2, axis)]);
                }
                Some(dim) => {
                    let places = [Some((0, dim)), index, Some((2, axis)), Some((result, dim))];
                    self.add(n, Role::Pass, &places.into_iter().flatten().collect::<Vec<_>>());
                }
                // Devices combine the updates of their own indices; the order of those that replace each other counts.
                None => {
                    let role = if combines { Role::Reduce } else { Role::Replicate };
                    let places = [index, Some((2, axis))];
                    self.add(n, role, &places.into_iter().flatten().collect::<Vec<_>>());
                }
            }
        }
        for (dim, window) in windows.axes.iter().enumerate() {
            if window.start.is_some() && window.axis.is_none() {
                self.add(x[dim], Role::Pass, &[(0, dim), (result, dim)]);
            }
        }
        self.starts(windows);
    }

    /// The dimension of the indices along which start vectors lie.
    fn starts(&mut self, windows: &Windows) {
        if let Some(dim) = windows.vector {
            self.add(self.shapes[1][dim], Role::Replicate, &[(1, dim)]);
        }
    }
}

fn is_backward(index: &Index) -> bool {
    index.stride.as_number().is_some_and(|stride| stride < 0)
}

/// Returns true if every operand is a slice, or all are one array and slices of it: joining them moves elements only.
fn are_slices(asked: &Asked<'_>) -> bool {
    let source = |i: usize| asked.sliced[i].unwrap_or(asked.operands[i]);
    let all = 0..asked.operands.len();
    // The parts of one array, as in a roll.
    asked.operands.len() == 1
        || asked.sliced.iter().all(Option::is_some)
        || asked.sliced.iter().any(Option::is_some) && all.into_iter().all(|i| source(i) == source(0))
}

pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
