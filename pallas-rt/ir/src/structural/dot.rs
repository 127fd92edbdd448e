//! Contraction of two operands: sums of products.
use super::{
    AccessForm, Cast, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, Transpose, VmapBatch, check_arity,
    check_axes, draw::draw_operand_axis,
};
use crate::diag::{At, Diag, shape, size_mismatch_help};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, Type};
use std::fmt;

/// Contraction in type `acc`: `result[batch.., free of a.., free of b..] = Σ a·b` over `contract`. Pairs are (axis of
/// a, axis of b).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dot {
    /// Pairs of axes that both operands share and the result keeps.
    pub batch: Vec<(usize, usize)>,
    /// Pairs of axes that are summed over.
    pub contract: Vec<(usize, usize)>,
    /// Element type of the products, the sums and the result.
    pub acc: DType,
}

impl Dot {
    /// Creates the matrix product `[m, k] · [k, n]`, with products, sums and result of type `acc`.
    pub fn matmul(acc: DType) -> Self {
        Dot { batch: vec![], contract: vec![(1, 0)], acc }
    }
    /// The contraction with the operands swapped.
    pub fn swap_operands(&self) -> Self {
        let turn = |pairs: &[(usize, usize)]| pairs.iter().map(|&(a, b)| (b, a)).collect();
        Dot { batch: turn(&self.batch), contract: turn(&self.contract), acc: self.acc }
    }
    /// Axes of operand 0 (`a`) or operand 1 (`b`), which has this rank, that are neither batch nor contracted: free
    /// axes.
    pub fn free_axes(&self, operand: usize, rank: usize) -> Vec<usize> {
        let own = |p: &(usize, usize)| if operand == 0 { p.0 } else { p.1 };
        let used: Vec<usize> = self.batch.iter().chain(&self.contract).map(own).collect();
        (0..rank).filter(|i| !used.contains(i)).collect()
    }
}

methods! { ($) Dot; }

impl Dot {
    /// Applies `batched_op`, which is `self` with a batch axis of extent `batch_extent` at the front of the operand on
    /// `batched_side` only, and moves that axis to the front of the result. `shapes` are those without the axis.
    fn apply_one_sided_batch<'g>(
        &self,
        batched_op: Dot,
        mut operands: [E<'g>; 2],
        shapes: [&[Dim]; 2],
        batched_side: usize,
        batch_extent: &Dim,
    ) -> E<'g> {
        let free = |of: usize| self.free_axes(of, shapes[of].len());
        let ranks = [0, 1].map(|of| shapes[of].len() + usize::from(of == batched_side));
        let is_single = |of: usize| free(of).iter().all(|&axis| shapes[of][axis].as_number() == Some(1));
        // The axis follows the batch axes if its side is the first one. The second side changes places with the first
        // one if that moves no elements.
        let is_matrix_form =
            |op: &Dot, ranks: [usize; 2]| op.batch.is_empty() && op.contract == [(1, 0)] && ranks != [2, 2];
        let turned = batched_op.swap_operands();
        let prefers = batched_side == 1 && is_single(1) && !is_single(0);
        let is_turned =
            (prefers || is_matrix_form(&batched_op, ranks)) && !is_matrix_form(&turned, [ranks[1], ranks[0]]);
        let op = if is_turned {
            operands.swap(0, 1);
            turned
        } else {
            batched_op
        };
        let (first, last) = if is_turned { (1, 0) } else { (0, 1) };
        let made = operands[0].apply(op, &operands);
        // Axes of the result: those of the batch, then the free ones of each side, as they are and as they should be.
        let n = self.batch.len();
        let mut now: Vec<(usize, usize)> = (0..n).map(|i| (2, i)).collect();
        let own = |of: usize| {
            let new = (of == batched_side).then_some((3, 0));
            new.into_iter().chain(free(of).into_iter().map(move |axis| (of, axis)))
        };
        now.extend(own(first).chain(own(last)));
        let mut wanted = vec![(3, 0)];
        wanted.extend((0..n).map(|i| (2, i)));
        wanted.extend([0, 1].into_iter().flat_map(|of| free(of).into_iter().map(move |axis| (of, axis))));
        let extent = |&(of, i): &(usize, usize)| match of {
            2 => shapes[0][self.batch[i].0].clone(),
            3 => batch_extent.clone(),
            _ => shapes[of][i].clone(),
        };
        let moved = |axes: &[(usize, usize)]| -> Vec<(usize, usize)> {
            axes.iter().copied().filter(|axis| extent(axis).as_number() != Some(1)).collect()
        };
        if now == wanted {
            return made;
        }
        if moved(&now) == moved(&wanted) {
            return made.reshape(&wanted.iter().map(extent).collect::<Vec<_>>());
        }
        let axes = wanted.iter().map(|axis| now.iter().position(|own| own == axis).expect("it has all axes")).collect();
        made.apply(Transpose { axes }, &[made])
    }
}

impl fmt::Display for Dot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = |p: &[(usize, usize)]| p.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(", ");
        write!(f, "dot batch({}) contract({}) acc({})", pairs(&self.batch), pairs(&self.contract), self.acc)
    }
}

impl Structural for Dot {
    const NAME: &'static str = "dot";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Dot {
            batch: attributes.pairs("batch")?,
            contract: attributes.pairs("contract")?,
            acc: attributes.value("acc")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        let (a, b) = (args[0], args[1]);
        for &(i, j) in self.batch.iter().chain(&self.contract) {
            let (Some(x), Some(y)) = (a.get(i), b.get(j)) else {
                let found = format!("dot of {} and {}: there is no axis {i} of `a` or {j} of `b`", shape(a), shape(b));
                return Err(Diag::new(
                    "dot-rank",
                    At::Op,
                    found,
                    "a dot takes two tiles of two axes; `dot_general` names others",
                ));
            };
            if facts.compare_equal(x, y) == SizeComparison::No {
                // Would the other axis have fitted? Then the user forgot a transpose.
                let other = (b.len() == 2 && self.contract == [(1, 0)]).then(|| facts.compare_equal(x, &b[1]));
                let help = match other {
                    Some(SizeComparison::Yes) => {
                        format!("axis 1 of the right side is {}: write `.t()` behind it", b[1])
                    }
                    _ => size_mismatch_help(x, y),
                };
                let found = format!("dot contracts {x} with {y}: {} · {}", shape(a), shape(b));
                return Err(Diag::new("dot-contract", At::Operand(1), found, help));
            }
        }
        let axes = || self.batch.iter().chain(&self.contract);
        check_axes(Self::NAME, &axes().map(|p| p.0).collect::<Vec<_>>(), a)?;
        check_axes(Self::NAME, &axes().map(|p| p.1).collect::<Vec<_>>(), b)?;
        if self.batch.is_empty() && self.contract == [(1, 0)] && (a.len() != 2 || b.len() != 2) {
            let found = format!("dot of {} and {}", shape(a), shape(b));
            return Err(Diag::new(
                "dot-rank",
                At::Op,
                found,
                "a dot takes two tiles of two axes; `dot_general` names others",
            ));
        }
        let batch = self.batch.iter().map(|p| a[p.0].clone());
        let free_a = self.free_axes(0, a.len()).into_iter().map(|i| a[i].clone());
        let free_b = self.free_axes(1, b.len()).into_iter().map(|i| b[i].clone());
        Ok(batch.chain(free_a).chain(free_b).collect())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        match args {
            [a, b] if a == b => Ok(self.acc),
            _ => Err(Diag::new("dtype", At::Operand(1), format!("a dot of {args:?}"), "cast one side")),
        }
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Contract { batch: self.batch.clone(), contract: self.contract.clone() }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        // Pairs of axes for operands that have the batch axis in front.
        let behind = |has: [bool; 2]| {
            move |p: &[(usize, usize)]| {
                p.iter().map(|(a, b)| (a + usize::from(has[0]), b + usize::from(has[1]))).collect::<Vec<_>>()
            }
        };
        let has = [0, 1].map(|side| batch.axes[side].is_some());
        let operand =
            |side: usize| if has[side] { batch.batch_first_operand(side, &args[side]) } else { args[side].value };
        let (behind, all) = (behind(has), [operand(0), operand(1)]);
        let mut op = Dot { batch: behind(&self.batch), contract: behind(&self.contract), acc: self.acc };
        if has == [true; 2] {
            op.batch.insert(0, (0, 0));
            return Some(all[0].apply(op, &all));
        }
        // Only one operand has the batch axis: it is a free axis of the product, the first of its side.
        Some(self.apply_one_sided_batch(op, all, [args[0].shape, args[1].shape], usize::from(has[1]), &batch.size))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (a, b) = (args[0].value, args[1].value);
        let left = tangents[0].map(|da| da.apply(self.clone(), &[da, b]));
        let right = tangents[1].map(|db| db.apply(self.clone(), &[a, db]));
        match (left, right) {
            (Some(x), Some(y)) => Some(x + y),
            (x, y) => x.or(y),
        }
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        // The cotangent's axes: batch, free of a, free of b. For a side, the other's free axes are summed over.
        let side = |own: usize| {
            let (ranks, other) = ([args[0].shape.len(), args[1].shape.len()], 1 - own);
            let of = |p: &(usize, usize), side: usize| if side == 0 { p.0 } else { p.1 };
            let (mine, theirs) = (self.free_axes(own, ranks[own]), self.free_axes(other, ranks[other]));
            let n = self.batch.len();
            let first = |side: usize| if side == 0 { n } else { n + self.free_axes(0, ranks[0]).len() };
            let batch = self.batch.iter().enumerate().map(|(i, p)| (i, of(p, other))).collect();
            let contract: Vec<(usize, usize)> =
                theirs.iter().enumerate().map(|(i, &axis)| (first(other) + i, axis)).collect();
            // Both factors have the type of the sums, which may be wider than the operands'.
            let cast = |x: E<'g>, from: DType, to: DType| if from == to { x } else { x.apply(Cast { to }, &[x]) };
            let factor = cast(args[other].value, args[other].dtype, self.acc);
            // Axis 1 by axis 0 is the product of two matrices; one by an array of another rank is exchanged.
            let is_collective = self.batch.is_empty() && contract == [(1, 0)] && ranks[other] != 2;
            let made = if is_collective {
                cotangent.apply(Dot { batch, contract: vec![(0, 1)], acc: self.acc }, &[factor, cotangent])
            } else {
                cotangent.apply(Dot { batch, contract, acc: self.acc }, &[cotangent, factor])
            };
            let made = cast(made, self.acc, args[own].dtype);
            // Its axes: batch, own free axes, and the contracted axes in the order of the other operand.
            let mut contracted: Vec<(usize, usize)> =
                self.contract.iter().map(|p| (of(p, other), of(p, own))).collect();
            contracted.sort_unstable();
            let mut now: Vec<usize> =
                self.batch.iter().map(|p| of(p, own)).chain(mine).chain(contracted.iter().map(|p| p.1)).collect();
            if is_collective {
                now.rotate_right(contracted.len());
            }
            let axes =
                (0..ranks[own]).map(|axis| now.iter().position(|&a| a == axis).expect("every axis is made")).collect();
            Some(made.apply(Transpose { axes }, &[made]))
        };
        vec![side(0), side(1)]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (a, axis) = draw_operand_axis(from)?;
        let number = |ty: &Type| ty.dtype == a.dtype && ty.dtype != DType::Bool;
        let b = from.choose_operand(&|ty| number(ty) && ty.shape.contains(&a.shape[axis]))?;
        let fitting: Vec<usize> = (0..b.shape.len()).filter(|&i| b.shape[i] == a.shape[axis]).collect();
        let contract = (axis, fitting[from.draw_below(fitting.len())]);
        // Axis 1 by axis 0 is written as a matrix product, whose operands are matrices.
        let fits = contract != (1, 0) || a.shape.len() == 2 && b.shape.len() == 2;
        fits.then(|| Dot { batch: vec![], contract: vec![contract], acc: a.dtype })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let with = &[("M", 2), ("K", 3), ("N", 4), ("B", 2), ("L", 5)];
        let dtypes = &[DType::F32, DType::F32];
        let batched = Dot { batch: vec![(0, 0)], contract: vec![(2, 2)], acc: DType::F32 };
        let crossed = Dot { batch: vec![(1, 2)], contract: vec![(0, 3), (3, 1)], acc: DType::F32 };
        vec![
            OpTestCase { op: Dot::matmul(DType::F32), args: &[&["M", "K"], &["K", "N"]], dtypes, with },
            OpTestCase { op: batched, args: &[&["B", "M", "K"], &["B", "N", "K"]], dtypes, with },
            OpTestCase { op: crossed, args: &[&["K", "B", "M", "L"], &["N", "L", "B", "K"]], dtypes, with },
        ]
    }
}
