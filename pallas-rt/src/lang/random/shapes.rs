//! Draws structural operations on computed tiles: samples of every operation, and several windows of one tile.
//!
//! A backend that computes a tile in one layout and reads it in another may go wrong where extents differ. The drawn
//! tiles are therefore combined with tiles of other extents.
use super::draw::Pool;
use crate::lang::tile::{Tile, emit_structural};
use pallas_ir::scalar::SignatureType;
use pallas_ir::{DType, Dim, Op, ScalarOp, StructuralOp, structural as ops};

impl Pool {
    /// Emits a random sample of the structural operations, on tiles of the shapes that it needs.
    pub(super) fn sample(&mut self) {
        let samples = StructuralOp::samples();
        let sample = &samples[self.dice.below(samples.len())];
        let mut places: Vec<usize> = vec![];
        for (names, &dtype) in sample.args.iter().zip(sample.dtypes) {
            let size = |name: &&str| name.parse::<Dim>().ok()?.bind(sample.with).as_number();
            let shape: Vec<usize> = names.iter().filter_map(size).map(|n| n as usize).collect();
            let Some(place) = self.shaped(dtype, &shape) else { return };
            places.push(place);
            if let (DType::I32, [of, _]) = (dtype, &places[..]) {
                // Indices are within every axis.
                let end = self.made[*of].ty.shape.iter().copied().min().unwrap_or(1) as i32;
                self.give(Tile::<i32>::new(self.made[place].handle).clamp(0, end - 1).handle, 0.0);
                *places.last_mut().expect("just pushed") = self.made.len() - 1;
            }
        }
        self.emit(Op::Structural(sample.op.bind(sample.with)), &places);
    }

    /// Makes a tile of this shape from the elements of a random tile, and returns its index.
    fn shaped(&mut self, dtype: DType, shape: &[usize]) -> Option<usize> {
        let tiles: Vec<usize> = (0..self.made.len()).filter(|&i| !self.made[i].ty.is_scalar()).collect();
        let fitting: Vec<usize> = tiles.into_iter().filter(|&i| self.made[i].ty.dtype == dtype).collect();
        let from = if fitting.is_empty() { self.of(dtype)? } else { self.dice.pick(&fitting) };
        let wanted: usize = shape.iter().product();
        let mut n = self.made[from].ty.elements();
        let mut line = self.apply(ops::Reshape { to: sizes(&[n]) }, &[from])?;
        while n < wanted {
            line = self.apply(ops::Concat { axis: 0 }, &[line, line])?;
            n *= 2;
        }
        let start = self.dice.below(n - wanted + 1) as i64;
        let some = self.apply(ops::Slice { start: vec![start], size: sizes(&[wanted]), stride: vec![1] }, &[line])?;
        self.apply(ops::Reshape { to: sizes(shape) }, &[some])
    }

    /// Emits a fold of many 16-bit floats that are multiples of 1/4, so that f32 holds each partial sum exactly and the
    /// order does not matter. Accumulation in 16 bits would give another sum.
    pub(super) fn long(&mut self) {
        let Some(x) = self.shaped(DType::F32, &[2, 3]) else { return };
        if self.made[x].error > 0.0 {
            return;
        }
        let (count, to) = (64 << self.dice.below(3), self.dice.pick(&[DType::F16, DType::Bf16]));
        let quarters = (Tile::<f32>::new(self.made[x].handle) * 4.0).round().clamp(-16.0, 16.0);
        let fold: StructuralOp = match self.dice.below(2) {
            0 => ops::Reduce::keeping(ScalarOp::Add, vec![0]).into(),
            _ => ops::Cumulative { op: ScalarOp::Add, axis: 0, reverse: false }.into(),
        };
        let first = if matches!(fold, StructuralOp::Reduce(_)) { 0 } else { count as i64 - 1 };
        let made = [
            ops::Cast { to }.into(),
            ops::Broadcast { to: sizes(&[count, 2, 3]), dims: vec![1, 2] }.into(),
            fold,
            ops::Slice { start: vec![first, 0, 0], size: sizes(&[1, 2, 3]), stride: vec![1; 3] }.into(),
            ops::Reshape { to: sizes(&[2, 3]) }.into(),
        ];
        let folded = made.into_iter().fold(quarters.handle, |x, op: StructuralOp| emit_structural(op, &[x]));
        self.drawn(folded);
    }

    /// Emits a fold that drops one of three axes, and a broadcast that puts the other two at different positions.
    pub(super) fn dropped(&mut self) {
        let dtype = self.dice.pick(&[DType::F32, DType::I32]);
        let Some(x) = self.shaped(dtype, &[2, 3, 2]) else { return };
        let axis = self.dice.below(3);
        let fold: StructuralOp = match self.dice.below(3) {
            0 => ops::ArgReduce { max: true, axis, keep: false }.into(),
            _ => ops::Reduce::dropping(ScalarOp::Maximum, vec![axis]).into(),
        };
        let Some(left) = self.apply(fold, &[x]) else { return };
        let dims = self.dice.pick(&[[1, 0], [0, 2], [2, 1]]);
        let mut to = vec![2; 2 + usize::from(dims.contains(&2))];
        dims.iter().zip(&self.made[left].ty.shape).for_each(|(&axis, &n)| to[axis] = n);
        self.apply(ops::Broadcast { to: sizes(&to), dims: dims.to_vec() }, &[left]);
    }

    /// Emits two windows of one tile, the first often at the tile's start, and an operation on both.
    pub(super) fn windows(&mut self) {
        let long = |shape: &[usize]| shape.iter().any(|&n| n > 1);
        let tiles: Vec<usize> = (0..self.made.len()).filter(|&i| long(&self.made[i].ty.shape)).collect();
        if tiles.is_empty() {
            return;
        }
        let x = self.dice.pick(&tiles);
        let (shape, dtype) = (self.made[x].ty.shape.clone(), self.made[x].ty.dtype);
        let axes: Vec<usize> = (0..shape.len()).filter(|&a| shape[a] > 1).collect();
        let axis = self.dice.pick(&axes);
        let mut size = shape.clone();
        for a in axes {
            if a == axis || self.dice.below(4) == 0 {
                size[a] = 1 + self.dice.below(shape[a] - 1);
            }
        }
        let window = |pool: &mut Pool, at_0: bool| {
            let start = |a: usize| if at_0 { 0 } else { pool.dice.below(shape[a] - size[a] + 1) as i64 };
            let start = (0..shape.len()).map(start).collect();
            pool.apply(ops::Slice { start, size: sizes(&size), stride: vec![1; shape.len()] }, &[x])
        };
        let at_0 = self.dice.below(4) > 0;
        let (Some(first), Some(second)) = (window(self, at_0), window(self, false)) else { return };
        let binary = |op: &&ScalarOp| op.row().operands.iter().map(|o| o.1).eq([SignatureType::T; 2]);
        let fits = |op: &&ScalarOp| op.row().class.dtypes().contains(&dtype);
        let binary: Vec<ScalarOp> = ScalarOp::ALL.iter().filter(binary).filter(fits).copied().collect();
        let op: Op = match self.dice.below(6) {
            0 => Op::Structural(ops::Concat { axis }.into()),
            1 => Op::Structural(ops::Dot { batch: vec![], contract: vec![(axis, axis)], acc: dtype }.into()),
            _ if binary.is_empty() => return,
            _ => Op::Scalar(self.dice.pick(&binary)),
        };
        let before = self.made.len();
        self.emit(op, &[first, second]);
        // A fold of the whole tile, combined with a part of it.
        if self.made.len() > before && self.dice.below(3) == 0 {
            let whole = self.apply(ops::Reduce::keeping(ScalarOp::Maximum, (0..shape.len()).collect()), &[x]);
            let scalar = whole.and_then(|whole| self.apply(ops::Reshape { to: vec![] }, &[whole]));
            if let (Some(scalar), Some(op)) = (scalar, binary.first()) {
                self.emit(Op::Scalar(*op), &[before, scalar]);
            }
        }
    }

    /// Emits an operation on the values at the indices `places`; returns the index of its result, or `None` if it does
    /// not fit.
    fn apply(&mut self, op: impl Into<StructuralOp>, places: &[usize]) -> Option<usize> {
        let before = self.made.len();
        self.emit(Op::Structural(op.into()), places);
        (self.made.len() > before).then_some(before)
    }
}

fn sizes(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}
