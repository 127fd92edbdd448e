//! Scatter: combines windows of an operand, at positions given by data, with updates.
use super::indexed::{DimensionNumbers, check_index_dtype, in_bounds_mask};
use super::{
    AccessForm, Gather, IndexedWindows, Iota, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch,
    check_arity, check_monoid, derive::shift_axes, join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// Scatter as in StableHLO. Each start vector in the indices addresses a window of the operand, whose elements are
/// combined with those of the updates, in the order of the start vectors; a window that would leave the operand is
/// skipped. The updates have the axes of the indices without that of the start vectors, and the axes of the windows at
/// `update_window_dims`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scatter {
    /// Axes of the updates that count inside of windows, ascending.
    pub update_window_dims: Vec<usize>,
    /// Axes of the operand that windows do not have; their extent in a window is 1.
    pub inserted_window_dims: Vec<usize>,
    /// Axes of the operand that are parallel with axes of the indices.
    pub input_batching_dims: Vec<usize>,
    /// Axes of the indices that are parallel with `input_batching_dims`, in the same order.
    pub scatter_indices_batching_dims: Vec<usize>,
    /// For each number of a start vector: the axis of the operand that it addresses.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// Axis of the indices along which start vectors lie; the rank of the indices if each index is a vector of one
    /// start.
    pub index_vector_dim: usize,
    /// The monoid that combines an element with an update; `None`: the update replaces the element.
    pub op: Option<ScalarOp>,
}

methods! { ($) Scatter; }

impl Scatter {
    /// The dimension numbers under the names shared with gather.
    fn dimension_numbers(&self) -> DimensionNumbers<'_> {
        DimensionNumbers {
            name: Self::NAME,
            window: &self.update_window_dims,
            dropped: &self.inserted_window_dims,
            batching: &self.input_batching_dims,
            index_batching: &self.scatter_indices_batching_dims,
            map: &self.scatter_dims_to_operand_dims,
            vector: self.index_vector_dim,
        }
    }
    /// Extents of a window along each axis of an operand of rank `rank`.
    fn window_sizes(&self, rank: usize, updates: &[Dim]) -> Vec<Dim> {
        let kept = self.dimension_numbers().operand_axes_in_windows(rank);
        let size = |axis| match kept.iter().position(|&a| a == axis) {
            Some(at) => updates[self.update_window_dims[at]].clone(),
            None => 1i64.into(),
        };
        (0..rank).map(size).collect()
    }
    /// Returns the windows of the operand that this scatter writes, for an operand and indices of these ranks, and
    /// updates of shape `updates`.
    pub fn windows(&self, rank: usize, index_rank: usize, updates: &[Dim]) -> IndexedWindows {
        self.dimension_numbers().windows(&self.window_sizes(rank, updates), index_rank)
    }
    /// The gather that reads the elements which this operation writes.
    fn matching_gather(&self, rank: usize, updates: &[Dim]) -> Gather {
        Gather {
            offset_dims: self.update_window_dims.clone(),
            collapsed_slice_dims: self.inserted_window_dims.clone(),
            operand_batching_dims: self.input_batching_dims.clone(),
            start_indices_batching_dims: self.scatter_indices_batching_dims.clone(),
            start_index_map: self.scatter_dims_to_operand_dims.clone(),
            index_vector_dim: self.index_vector_dim,
            slice_sizes: self.window_sizes(rank, updates),
        }
    }
    /// Scatters that fit these shapes and address one axis, for random tests: windows have this axis, with extent 1, or
    /// drop it, and their axes are before or after those of the indices.
    fn single_axis_scatters(x: &[usize], index: &[usize], updates: &[usize]) -> Vec<Scatter> {
        let mut forms = vec![];
        let vectors = (0..index.len()).filter(|&axis| index[axis] == 1).chain([index.len()]);
        for (vector, axis) in vectors.flat_map(|vector| (0..x.len()).map(move |axis| (vector, axis))) {
            let positions: Vec<usize> = (0..index.len()).filter(|&a| a != vector).map(|a| index[a]).collect();
            for inserted in [vec![axis], vec![]] {
                let kept: Vec<usize> = (0..x.len()).filter(|a| !inserted.contains(a)).map(|a| x[a]).collect();
                if updates.len() != positions.len() + kept.len() {
                    continue;
                }
                let fits = |sizes: &[usize]| sizes.iter().zip(&kept).all(|(size, n)| (1..=*n).contains(size));
                for first in [0, positions.len()] {
                    let window: Vec<usize> = (first..first + kept.len()).collect();
                    let rest = [&updates[..first], &updates[first + kept.len()..]].concat();
                    if rest == positions && fits(&updates[first..first + kept.len()]) {
                        forms.push(Scatter {
                            update_window_dims: window,
                            inserted_window_dims: inserted.clone(),
                            input_batching_dims: vec![],
                            scatter_indices_batching_dims: vec![],
                            scatter_dims_to_operand_dims: vec![axis],
                            index_vector_dim: vector,
                            op: None,
                        });
                    }
                }
            }
        }
        forms
    }
    /// Returns this scatter with `op` as the monoid that combines elements with updates; with `None`, updates replace
    /// elements.
    fn with_monoid(&self, op: Option<ScalarOp>) -> Scatter {
        Scatter { op, ..self.clone() }
    }
    /// A bool for each update: true if it is the last one that replaces its element. `read` is the gather of the
    /// elements that the scatter writes.
    fn last_write_mask<'g>(&self, args: &[RuleOperand<'_, 'g>], read: &Gather) -> E<'g> {
        let [x, index, updates] = args else { unreachable!("a scatter has three operands") };
        let count = updates.shape.iter().fold(Dim::from(1i64), |count, n| &count * n);
        let number = index.value.apply(Iota { shape: vec![count], axis: 0, dtype: DType::I32 }, &[]);
        let number = number.reshape(updates.shape);
        let none = index.value.scalar_constant(-1.0).broadcast_to(x.shape);
        let written = none.apply(self.with_monoid(None), &[none, index.value, number]);
        written.apply(read.clone(), &[written, index.value]).eq(number)
    }
}

impl fmt::Display for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "scatter update_window_dims({}) inserted_window_dims({}) input_batching_dims({}) \
             scatter_indices_batching_dims({}) scatter_dims_to_operand_dims({}) index_vector_dim({})",
            join_with_commas(&self.update_window_dims),
            join_with_commas(&self.inserted_window_dims),
            join_with_commas(&self.input_batching_dims),
            join_with_commas(&self.scatter_indices_batching_dims),
            join_with_commas(&self.scatter_dims_to_operand_dims),
            self.index_vector_dim,
        )?;
        self.op.map_or(Ok(()), |op| write!(f, " op({op})"))
    }
}

impl Structural for Scatter {
    const NAME: &'static str = "scatter";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Scatter {
            update_window_dims: attributes.list("update_window_dims")?,
            inserted_window_dims: attributes.list("inserted_window_dims")?,
            input_batching_dims: attributes.list("input_batching_dims")?,
            scatter_indices_batching_dims: attributes.list("scatter_indices_batching_dims")?,
            scatter_dims_to_operand_dims: attributes.list("scatter_dims_to_operand_dims")?,
            index_vector_dim: attributes.value("index_vector_dim")?,
            op: if attributes.has("op") { Some(attributes.value("op")?) } else { None },
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 3)?;
        let (x, index, updates) = (args[0], args[1], args[2]);
        self.dimension_numbers().check_shapes(x, index, facts)?;
        let fits = |(axis, &from): (usize, &Result<usize, usize>)| match from {
            Ok(axis_of_x) => facts.compare_at_most(&updates[axis], &x[axis_of_x]) != SizeComparison::No,
            Err(axis_of_index) => facts.compare_equal(&updates[axis], &index[axis_of_index]) != SizeComparison::No,
        };
        let axes = self.dimension_numbers().windows_axis_origins(x.len(), index.len());
        let full = |axis: usize| facts.compare_at_most(&1i64.into(), &x[axis]) != SizeComparison::No;
        let has_one = |axes: &[usize]| axes.iter().all(|&axis| full(axis));
        let is_empty = updates.iter().any(|n| n.as_number() == Some(0));
        if updates.len() != axes.len() || !axes.iter().enumerate().all(fits) {
            let found = format!("`scatter` of {} into {} at {}", shape(updates), shape(x), shape(index));
            let help = "the updates have the axes of the indices, and those of windows that lie inside of the operand";
            return Err(Diag::new("scatter", At::Operand(2), found, help));
        }
        if !is_empty && !has_one(&self.inserted_window_dims) {
            let found = format!("`scatter` into {}", shape(x));
            return Err(Diag::new("scatter", At::Operand(0), found, "an array without elements has no windows"));
        }
        Ok(x.to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_arity(Self::NAME, args.len(), 3)?;
        check_index_dtype(Self::NAME, args[1])?;
        if args[0] != args[2] {
            let found = format!("a scatter of {} into {}", args[2], args[0]);
            return Err(Diag::new("dtype", At::Operand(2), found, "cast one of them"));
        }
        self.op.map_or(Ok(args[0]), |op| check_monoid(Self::NAME, op, &args[..1]))
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        AccessForm::Scatter { windows: self.windows(args[0].len(), args[1].len(), args[2]), op: self.op }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let (x, updates) = (batch.batch_first_operand(0, &args[0]), batch.batch_first_operand(2, &args[2]));
        let of_index = batch.axes[1].is_some();
        let index = if of_index { batch.batch_first_operand(1, &args[1]) } else { args[1].value };
        let with = |is_first: bool, axes: Vec<usize>| [vec![0; usize::from(is_first)], axes].concat();
        let of_indices = &self.scatter_indices_batching_dims;
        let op = Scatter {
            update_window_dims: with(!of_index, shift_axes(&self.update_window_dims)),
            inserted_window_dims: shift_axes(&self.inserted_window_dims),
            input_batching_dims: with(of_index, shift_axes(&self.input_batching_dims)),
            scatter_indices_batching_dims: if of_index {
                with(true, shift_axes(of_indices))
            } else {
                of_indices.clone()
            },
            scatter_dims_to_operand_dims: shift_axes(&self.scatter_dims_to_operand_dims),
            index_vector_dim: self.index_vector_dim + usize::from(of_index),
            op: self.op,
        };
        Some(x.apply(op, &[x, index, updates]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], y: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (x, index, updates) = (args[0].value, args[1].value, args[2].value);
        let (dx, dupdates) = (tangents[0], tangents[2]);
        dx.or(dupdates)?;
        let [or_zeros, updates_or_zeros] = [dx.unwrap_or_else(|| x.zero()), dupdates.unwrap_or_else(|| updates.zero())];
        let read = self.matching_gather(args[0].shape.len(), args[2].shape);
        let put = |op, to: E<'g>, what: E<'g>| to.apply(self.with_monoid(op), &[to, index, what]);
        let get = |from: E<'g>| from.apply(read.clone(), &[from, index]);
        match self.op {
            None | Some(ScalarOp::Add) => Some(put(self.op, or_zeros, updates_or_zeros)),
            Some(ScalarOp::Mul) => {
                let of_x = dx.map(|dx| put(self.op, dx, updates));
                let of_updates = dupdates.map(|dupdates| {
                    // An update's factor is the product of the others: without zeros a quotient, with one zero that of
                    // all others for it alone, with more none.
                    let is_zero = updates.eq(updates.zero());
                    let (one, zero) = (updates.like(1.0), updates.zero());
                    let nonzero = is_zero.select(one, updates);
                    let product = get(put(self.op, x.like(1.0), nonzero));
                    let zeros = get(put(Some(ScalarOp::Add), x.zero(), is_zero.select(one, zero)));
                    let others = is_zero
                        .select(zeros.eq(one).select(product, zero), zeros.eq(zero).select(product / nonzero, zero));
                    x * put(Some(ScalarOp::Add), x.zero(), dupdates * others)
                });
                match (of_x, of_updates) {
                    (Some(a), Some(b)) => Some(a + b),
                    (a, b) => a.or(b),
                }
            }
            Some(ScalarOp::Minimum | ScalarOp::Maximum) => {
                // The operand's element and the updates that equal the result share the derivative.
                let wins = updates.eq(get(y));
                let stays = x.eq(y).select(x.like(1.0), x.zero());
                let won = wins.select(updates.like(1.0), updates.zero());
                let count = put(Some(ScalarOp::Add), stays, won).maximum(x.like(1.0));
                let own = or_zeros * stays;
                Some(put(Some(ScalarOp::Add), own, wins.select(updates_or_zeros, updates.zero())) / count)
            }
            // The other monoids are on bits, which have no derivative.
            Some(_) => None,
        }
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let (index, updates) = (&args[1], &args[2]);
        let read = self.matching_gather(args[0].shape.len(), updates.shape);
        let put = |what: E<'g>| cotangent.apply(self.clone(), &[cotangent, index.value, what]);
        let masked = |mask: E<'g>| {
            let found = cotangent.apply(read.clone(), &[cotangent, index.value]);
            Some(mask.select(found, found.zero()))
        };
        let windows = self.windows(args[0].shape.len(), index.shape.len(), updates.shape);
        match self.op {
            Some(ScalarOp::Add) => {
                let mask = in_bounds_mask(&windows, args[0].shape, index, updates.shape);
                vec![Some(cotangent), None, masked(mask)]
            }
            None => vec![Some(put(updates.value.zero())), None, masked(self.last_write_mask(args, &read))],
            Some(ScalarOp::Mul) => vec![Some(put(updates.value)), None, None],
            Some(_) => vec![None, None, None],
        }
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let x = from.choose_operand(&|ty| !ty.is_scalar() && !ty.shape.contains(&0))?;
        // Updates of the operand's own shape fit, so that there are some.
        let has_updates = |index: &[usize]| !Scatter::single_axis_scatters(&x.shape, index, &x.shape).is_empty();
        let index = from.choose_operand(&|ty| ty.dtype == DType::I32 && has_updates(&ty.shape))?.shape;
        let forms = |updates: &[usize]| Scatter::single_axis_scatters(&x.shape, &index, updates);
        let updates = from.choose_operand(&|ty| ty.dtype == x.dtype && !forms(&ty.shape).is_empty())?;
        let forms = forms(&updates.shape);
        let ops = [None, Some(ScalarOp::Add), Some(ScalarOp::Minimum), Some(ScalarOp::Maximum)];
        let count = if x.dtype == DType::Bool { 1 } else { ops.len() };
        let form = forms.get(from.draw_below(forms.len()))?;
        Some(form.with_monoid(ops[from.draw_below(count)]))
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let dtypes = &[DType::F32, DType::I32, DType::F32];
        let with = &[("M", 4), ("N", 3), ("K", 5)];
        let rows = Scatter {
            update_window_dims: vec![1],
            inserted_window_dims: vec![0],
            input_batching_dims: vec![],
            scatter_indices_batching_dims: vec![],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            op: None,
        };
        // Windows of two axes that overlap, of which those at the end are skipped.
        let windows = Scatter {
            update_window_dims: vec![0, 2],
            inserted_window_dims: vec![],
            scatter_dims_to_operand_dims: vec![1, 0],
            ..rows.clone()
        };
        let parallel = Scatter {
            update_window_dims: vec![],
            inserted_window_dims: vec![1],
            input_batching_dims: vec![0],
            scatter_indices_batching_dims: vec![1],
            scatter_dims_to_operand_dims: vec![1],
            index_vector_dim: 0,
            op: None,
        };
        let ops = [None, Some(ScalarOp::Add), Some(ScalarOp::Mul), Some(ScalarOp::Minimum), Some(ScalarOp::Maximum)];
        let forms: [(&Scatter, &'static [&'static [&'static str]]); 3] = [
            (&rows, &[&["M", "N"], &["K"], &["K", "N"]]),
            (&windows, &[&["M", "N"], &["K", "2"], &["3", "K", "2"]]),
            (&parallel, &[&["M", "N"], &["1", "M", "4"], &["M", "4"]]),
        ];
        let sample = |(form, args): (&Scatter, _), op| OpTestCase { op: form.with_monoid(op), args, dtypes, with };
        forms.into_iter().flat_map(|form| ops.map(|op| sample(form, op))).collect()
    }
}
