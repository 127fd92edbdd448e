//! Gather: windows of an operand at positions given by data.
use super::indexed::{DimensionNumbers, check_index_dtype, clamp_starts};
use super::{
    AccessForm, IndexedWindows, OpTestCase, RandomKernelGenerator, RuleOperand, Scatter, Structural, VmapBatch,
    check_arity,
    derive::{cotangent_of_gathered, shift_axes},
    join_with_commas,
};
use crate::diag::{At, Diag, shape};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, MAX_RANK, ScalarOp};
use std::fmt;

/// Gather as in StableHLO. Each start vector in the indices addresses a window of the operand; a window that would
/// leave the operand is moved to the nearest position inside. The result has the axes of the indices without that of
/// the start vectors, and the axes of the windows at `offset_dims`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Gather {
    /// Axes of the result that count inside of windows, ascending.
    pub offset_dims: Vec<usize>,
    /// Axes of the operand that windows do not have; their extent in a window is 1.
    pub collapsed_slice_dims: Vec<usize>,
    /// Axes of the operand that are parallel with axes of the indices.
    pub operand_batching_dims: Vec<usize>,
    /// Axes of the indices that are parallel with `operand_batching_dims`, in the same order.
    pub start_indices_batching_dims: Vec<usize>,
    /// For each number of a start vector: the axis of the operand that it addresses.
    pub start_index_map: Vec<usize>,
    /// Axis of the indices along which start vectors lie; the rank of the indices if each index is a vector of one
    /// start.
    pub index_vector_dim: usize,
    /// Extents of a window along each axis of the operand.
    pub slice_sizes: Vec<Dim>,
}

methods! { ($) Gather; }

impl Gather {
    /// The dimension numbers under the names shared with scatter.
    fn dimension_numbers(&self) -> DimensionNumbers<'_> {
        DimensionNumbers {
            name: Self::NAME,
            window: &self.offset_dims,
            dropped: &self.collapsed_slice_dims,
            batching: &self.operand_batching_dims,
            index_batching: &self.start_indices_batching_dims,
            map: &self.start_index_map,
            vector: self.index_vector_dim,
        }
    }
    /// Returns the windows of the operand that this gather reads, for indices of rank `index_rank`.
    pub fn windows(&self, index_rank: usize) -> IndexedWindows {
        self.dimension_numbers().windows(&self.slice_sizes, index_rank)
    }
    /// The scatter that writes the elements which this operation reads, combined by `op`.
    pub fn matching_scatter(&self, op: Option<ScalarOp>) -> Scatter {
        Scatter {
            update_window_dims: self.offset_dims.clone(),
            inserted_window_dims: self.collapsed_slice_dims.clone(),
            input_batching_dims: self.operand_batching_dims.clone(),
            scatter_indices_batching_dims: self.start_indices_batching_dims.clone(),
            scatter_dims_to_operand_dims: self.start_index_map.clone(),
            index_vector_dim: self.index_vector_dim,
            op,
        }
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "gather offset_dims({}) collapsed_slice_dims({}) operand_batching_dims({}) start_indices_batching_dims({}) \
             start_index_map({}) index_vector_dim({}) slice_sizes({})",
            join_with_commas(&self.offset_dims),
            join_with_commas(&self.collapsed_slice_dims),
            join_with_commas(&self.operand_batching_dims),
            join_with_commas(&self.start_indices_batching_dims),
            join_with_commas(&self.start_index_map),
            self.index_vector_dim,
            join_with_commas(&self.slice_sizes)
        )
    }
}

impl Structural for Gather {
    const NAME: &'static str = "gather";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Gather {
            offset_dims: attributes.list("offset_dims")?,
            collapsed_slice_dims: attributes.list("collapsed_slice_dims")?,
            operand_batching_dims: attributes.list("operand_batching_dims")?,
            start_indices_batching_dims: attributes.list("start_indices_batching_dims")?,
            start_index_map: attributes.list("start_index_map")?,
            index_vector_dim: attributes.value("index_vector_dim")?,
            slice_sizes: attributes.list("slice_sizes")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.slice_sizes.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        let (x, index) = (args[0], args[1]);
        self.dimension_numbers().check_shapes(x, index, facts)?;
        let dropped = |axis| !self.dimension_numbers().operand_axes_in_windows(x.len()).contains(&axis);
        let fits = |axis: usize| match self.slice_sizes.get(axis) {
            Some(size) if dropped(axis) && size.as_number() != Some(1) => false,
            // The batch may be empty.
            Some(_) if self.operand_batching_dims.contains(&axis) => true,
            Some(size) => facts.compare_at_most(size, &x[axis]) != SizeComparison::No,
            None => false,
        };
        if self.slice_sizes.len() != x.len() || !(0..x.len()).all(fits) {
            let found = format!("`gather` of windows of {} from {}", shape(&self.slice_sizes), shape(x));
            let help = "windows lie inside of the operand, and have extent 1 along axes that the result drops";
            return Err(Diag::new("gather", At::Operand(0), found, help));
        }
        let size = |axis: Result<usize, usize>| match axis {
            Ok(axis) => self.slice_sizes[axis].clone(),
            Err(axis) => index[axis].clone(),
        };
        Ok(self.dimension_numbers().windows_axis_origins(x.len(), index.len()).into_iter().map(size).collect())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        check_index_dtype(Self::NAME, args[1])?;
        Ok(args[0])
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        AccessForm::Gather { windows: self.windows(args[1].len()), checked: false }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let [of_x, of_index] = [0, 1].map(|i| batch.axes[i].is_some());
        let all = [0, 1]
            .map(|i| if batch.axes[i].is_some() { batch.batch_first_operand(i, &args[i]) } else { args[i].value });
        let with = |is_first: bool, axes: Vec<usize>| [vec![0; usize::from(is_first)], axes].concat();
        let on = |is_moved: bool, axes: &[usize]| if is_moved { shift_axes(axes) } else { axes.to_vec() };
        let both = of_x && of_index;
        let own = if of_index { Dim::from(1i64) } else { batch.size.clone() };
        let op = Gather {
            offset_dims: with(!of_index, shift_axes(&self.offset_dims)),
            collapsed_slice_dims: on(of_x, &self.collapsed_slice_dims),
            operand_batching_dims: with(both, on(of_x, &self.operand_batching_dims)),
            start_indices_batching_dims: with(both, on(of_index, &self.start_indices_batching_dims)),
            start_index_map: on(of_x, &self.start_index_map),
            index_vector_dim: self.index_vector_dim + usize::from(of_index),
            slice_sizes: [vec![own; usize::from(of_x)], self.slice_sizes.clone()].concat(),
        };
        Some(all[0].apply(op, &all))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let dx = tangents[0]?;
        Some(dx.apply(self.clone(), &[dx, args[1].value]))
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        // A scatter skips windows that leave the operand, so starts are moved as the gather moves them.
        let index = clamp_starts(&self.windows(args[1].shape.len()), args[0].shape, &args[1]);
        vec![
            Some(cotangent_of_gathered(
                self.matching_scatter(Some(ScalarOp::Add)),
                &args[0],
                (index, args[1].shape),
                cotangent,
            )),
            None,
        ]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let x = from.choose_operand(&|ty| !ty.is_scalar() && !ty.shape.contains(&0))?.shape;
        let index = from.choose_operand(&|ty| ty.dtype == DType::I32)?.shape;
        // Start vectors along an axis that is short enough, else indices of one start each.
        let short: Vec<usize> = (0..index.len()).filter(|&axis| (1..=x.len()).contains(&index[axis])).collect();
        let vector = if from.draw_below(2) == 0 { short.get(from.draw_below(short.len())).copied() } else { None };
        let mut axes: Vec<usize> = (0..x.len()).collect();
        let starts = vector.map_or(1, |axis| index[axis]);
        let map: Vec<usize> = (0..starts).map(|_| axes.remove(from.draw_below(axes.len()))).collect();
        let vector = vector.unwrap_or(index.len());
        let (mut batching, mut index_batching): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
        for axis in axes {
            let equal = |&b: &usize| b != vector && index[b] == x[axis] && !index_batching.contains(&b);
            if let Some(b) = (0..index.len()).find(equal).filter(|_| from.draw_below(3) > 0) {
                batching.push(axis);
                index_batching.push(b);
            }
        }
        let (mut sizes, mut collapsed) = (vec![Dim::from(1i64); x.len()], vec![]);
        for axis in (0..x.len()).filter(|axis| !batching.contains(axis)) {
            let size = if map.contains(&axis) && from.draw_below(2) == 0 { 1 } else { 1 + from.draw_below(x[axis]) };
            sizes[axis] = size.into();
            if size == 1 && from.draw_below(2) == 0 {
                collapsed.push(axis);
            }
        }
        let windows = x.len() - batching.len() - collapsed.len();
        let rank = windows + index.len() - usize::from(vector < index.len());
        if rank > MAX_RANK.min(4) {
            return None;
        }
        let mut offset: Vec<usize> = (0..rank).collect();
        while offset.len() > windows {
            offset.remove(from.draw_below(offset.len()));
        }
        Some(Gather {
            offset_dims: offset,
            collapsed_slice_dims: collapsed,
            operand_batching_dims: batching,
            start_indices_batching_dims: index_batching,
            start_index_map: map,
            index_vector_dim: vector,
            slice_sizes: sizes,
        })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let dtypes = &[DType::F32, DType::I32];
        let with = &[("M", 4), ("N", 3), ("K", 5)];
        let sizes = |sizes: &[i64]| sizes.iter().map(|&n| Dim::from(n)).collect::<Vec<_>>();
        let rows = Gather {
            offset_dims: vec![1],
            collapsed_slice_dims: vec![0],
            operand_batching_dims: vec![],
            start_indices_batching_dims: vec![],
            start_index_map: vec![0],
            index_vector_dim: 1,
            slice_sizes: vec![1i64.into(), Dim::name("N")],
        };
        // Windows of two axes, of which those at the end are moved inside.
        let windows = Gather {
            offset_dims: vec![0, 2],
            collapsed_slice_dims: vec![],
            start_index_map: vec![1, 0],
            slice_sizes: sizes(&[3, 2]),
            ..rows.clone()
        };
        let parallel = Gather {
            offset_dims: vec![],
            collapsed_slice_dims: vec![1],
            operand_batching_dims: vec![0],
            start_indices_batching_dims: vec![1],
            start_index_map: vec![1],
            index_vector_dim: 0,
            slice_sizes: sizes(&[1, 1]),
        };
        vec![
            OpTestCase { op: rows, args: &[&["M", "N"], &["K"]], dtypes, with },
            OpTestCase { op: windows, args: &[&["M", "N"], &["K", "2"]], dtypes, with },
            OpTestCase { op: parallel, args: &[&["M", "N"], &["1", "M", "2"]], dtypes, with },
        ]
    }
}
