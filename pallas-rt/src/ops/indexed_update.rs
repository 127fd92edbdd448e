//! Arrays with some of their elements replaced.
use super::elementwise_broadcast::{GraphOperand, Operand, apply_to_operands, cast_and_broadcast, push_elementwise};
use super::gather_windows::{self, IndexMode, WindowAccess, push_index_windows};
use super::index::{Index, Item, expand_items, item_arrays, resolve_item};
use super::shape::reshape;
use crate::array::Array;
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Var};
use pallas_ir::structural::{Broadcast, Iota, Scatter};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp};

/// Elements of an array that an index names, to read or to replace; see [`Array::at`].
#[derive(Clone, Debug)]
#[must_use]
pub struct IndexedElements {
    array: Array,
    items: Vec<Item>,
    mode: Option<IndexMode>,
}

impl IndexedElements {
    /// Sets the meaning of positions in arrays that do not exist. The default is [`IndexMode::Fill`], and
    /// [`IndexMode::Clip`] for [`get`](IndexedElements::get).
    pub fn mode(self, mode: IndexMode) -> IndexedElements {
        IndexedElements { mode: Some(mode), ..self }
    }

    /// The elements themselves, as [`Array::index`] gives them.
    #[track_caller]
    #[must_use]
    pub fn get(self) -> Array {
        let IndexedElements { array, items, mode } = self;
        let arrays = item_arrays(&items);
        let operands: Vec<Operand> = std::iter::once(&array).chain(&arrays).map(Operand::from).collect();
        apply_to_operands(&operands, Loc::caller(), |graph, operands| {
            let vars: Vec<Var> = operands.iter().filter_map(|operand| operand.var()).collect();
            match vars[..] {
                [x] => super::index::index(graph, x, &items),
                _ => gather_windows::push_gather(
                    graph,
                    vars[0],
                    &items,
                    &vars[1..],
                    mode.unwrap_or(IndexMode::Clip),
                    true,
                ),
            }
        })
    }

    /// The array with these elements replaced; of several elements for one position, the last one counts.
    #[track_caller]
    #[must_use]
    pub fn set(self, elements: impl Into<Operand>) -> Array {
        self.update(None, elements.into(), Loc::caller())
    }

    /// The array with numbers added to these elements; all of several numbers for one position are added.
    #[track_caller]
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "the name that JAX has; `+` would not name an update")]
    pub fn add(self, elements: impl Into<Operand>) -> Array {
        self.update(Some(ScalarOp::Add), elements.into(), Loc::caller())
    }

    /// The array with these elements multiplied by numbers; all of several numbers for one position are multiplied.
    #[track_caller]
    #[must_use]
    pub fn multiply(self, elements: impl Into<Operand>) -> Array {
        self.update(Some(ScalarOp::Mul), elements.into(), Loc::caller())
    }

    /// The array with each of these elements replaced by the smaller one of itself and a number.
    #[track_caller]
    #[must_use]
    pub fn min(self, elements: impl Into<Operand>) -> Array {
        self.update(Some(ScalarOp::Minimum), elements.into(), Loc::caller())
    }

    /// The array with each of these elements replaced by the larger one of itself and a number.
    #[track_caller]
    #[must_use]
    pub fn max(self, elements: impl Into<Operand>) -> Array {
        self.update(Some(ScalarOp::Maximum), elements.into(), Loc::caller())
    }

    /// Makes the array with these elements combined with others by `op`, or replaced by them if `op` is `None`.
    fn update(self, op: Option<ScalarOp>, elements: Operand, at: Loc) -> Array {
        let IndexedElements { array, items, mode } = self;
        let arrays = item_arrays(&items);
        let mut operands: Vec<Operand> = std::iter::once(&array).chain(&arrays).map(Operand::from).collect();
        operands.push(elements);
        apply_to_operands(&operands, at, |graph, operands| {
            let Some((elements, rest)) = operands.split_last() else { unreachable!("there are two operands") };
            let vars: Vec<Var> = rest.iter().filter_map(|operand| operand.var()).collect();
            let mode = mode.unwrap_or(IndexMode::Fill);
            IndexedUpdate { op, mode, items: &items, arrays: &vars[1..] }.push_update(graph, vars[0], *elements)
        })
    }
}

/// An update of elements that an index names: by `op`, or a replacement if `op` is `None`.
struct IndexedUpdate<'a> {
    op: Option<ScalarOp>,
    mode: IndexMode,
    items: &'a [Item],
    arrays: &'a [Var],
}

impl IndexedUpdate<'_> {
    /// Appends `x` with the named elements updated by `elements`.
    fn push_update(&self, graph: &mut Graph, x: Var, elements: GraphOperand) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        check_update_dtype(graph, elements, ty.dtype)?;
        if let [mask] = self.arrays
            && graph.ty(*mask).dtype == DType::Bool
        {
            return self.push_masked_update(graph, x, *mask, elements);
        }
        let items = expand_items(&ty, self.items)?;
        let (mut axis, mut is_stepped) = (0, false);
        for item in items.iter().filter(|item| !matches!(item, Item::New)) {
            let (_, count, step) = resolve_item(&ty, axis, item)?;
            is_stepped |= step != 1 && count > 1;
            axis += 1;
        }
        if is_stepped {
            return self.push_element_updates(graph, x, elements);
        }
        if self.arrays.is_empty() {
            return self.push_window_update(graph, x, &items, elements);
        }
        let way = WindowAccess { mode: self.mode, from_end: true, writes: true };
        let found = push_index_windows(graph, &ty, self.items, self.arrays, way)?;
        let updates = cast_and_broadcast(graph, 1, elements, ty.dtype, &found.shape)?;
        let updates =
            if found.windows_shape == found.shape { updates } else { reshape(graph, updates, &found.windows_shape)? };
        if ty.elements() == 0 || found.windows_shape.contains(&0) {
            return Ok(x);
        }
        graph.push(StructuralOp::from(found.gather.matching_scatter(self.op)), &[x, found.starts, updates])
    }

    /// Appends the update of `x` by `elements` where `mask`, over the first axes of `x`, is true: combined by the
    /// operation, or replaced without one. Refuses other items beside the mask.
    fn push_masked_update(&self, graph: &mut Graph, x: Var, mask: Var, elements: GraphOperand) -> Result<Var, Diag> {
        let (ty, own) = (graph.ty(x).clone(), graph.ty(mask).shape.clone());
        let is_alone = self.items.iter().all(|item| matches!(item, Item::Array(_) | Item::Rest));
        if !is_alone || !ty.shape.starts_with(&own) {
            let message = format!("a mask of {own:?} for {ty}");
            let help = "the only item, of the array's first axes; elsewhere `select(mask, elements, x)`";
            return Err(Diag::new("index", At::Op, message, help));
        }
        let to = ty.shape.iter().map(|&n| Dim::from(n)).collect();
        let mask = graph.push(StructuralOp::from(Broadcast { to, dims: (0..own.len()).collect() }), &[mask])?;
        let elements = cast_and_broadcast(graph, 1, elements, ty.dtype, &ty.shape)?;
        let new = match self.op {
            Some(op) => graph.push(op, &[x, elements])?,
            None => elements,
        };
        graph.push(ScalarOp::Select, &[mask, new, x])
    }

    /// Appends `x` with a window at a known position updated.
    fn push_window_update(
        &self,
        graph: &mut Graph,
        x: Var,
        items: &[Item],
        elements: GraphOperand,
    ) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        let (mut starts, mut size, mut shape, mut axis) = (vec![], vec![], vec![], 0);
        for item in items {
            if let Item::New = item {
                shape.push(1);
                continue;
            }
            let (first, count, _) = resolve_item(&ty, axis, item)?;
            starts.push(graph.literal(Literal::int(DType::I32, first.max(0))));
            size.push(count as usize);
            if !matches!(item, Item::At(_)) {
                shape.push(count as usize);
            }
            axis += 1;
        }
        let elements = cast_and_broadcast(graph, 1, elements, ty.dtype, &shape)?;
        let mut window = if size == shape { elements } else { reshape(graph, elements, &size)? };
        if size.contains(&0) || size.is_empty() && self.op.is_none() {
            return Ok(if size.is_empty() { window } else { x });
        }
        if let Some(op) = self.op {
            let own = graph.push(DynamicSlice { size }, &[&[x], &starts[..]].concat())?;
            window = graph.push(op, &[own, window])?;
        }
        graph.push(DynamicUpdateSlice, &[&[x, window], &starts[..]].concat())
    }

    /// Appends `x` with elements updated by their row-major positions, for ranges with steps.
    fn push_element_updates(&self, graph: &mut Graph, x: Var, elements: GraphOperand) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        let total = ty.elements();
        let iota = Iota { shape: vec![Dim::from(total)], axis: 0, dtype: DType::I32 };
        let all = graph.push(StructuralOp::from(iota), &[])?;
        let all = reshape(graph, all, &ty.shape)?;
        let mode = if let IndexMode::Fill | IndexMode::FillWith(_) = self.mode {
            IndexMode::FillWith(total as f64)
        } else {
            self.mode
        };
        let at = match self.arrays {
            [] => super::index::index(graph, all, self.items)?,
            arrays => gather_windows::push_gather(graph, all, self.items, arrays, mode, true)?,
        };
        let shape = graph.ty(at).shape.clone();
        let elements = cast_and_broadcast(graph, 1, elements, ty.dtype, &shape)?;
        let count = shape.iter().product();
        let (at, elements) = (reshape(graph, at, &[count])?, reshape(graph, elements, &[count])?);
        let flat = reshape(graph, x, &[total])?;
        let made = graph.push(StructuralOp::from(element_scatter(self.op)), &[flat, at, elements])?;
        reshape(graph, made, &ty.shape)
    }
}

/// Refuses floating-point elements for an array of integers or truth values.
///
/// # Errors
/// Floating-point elements for integers or truth values.
pub(super) fn check_update_dtype(graph: &Graph, elements: GraphOperand, dtype: DType) -> Result<(), Diag> {
    let found = match elements {
        GraphOperand::Var(v) if graph.ty(v).dtype.is_float() => format!("elements of {}", graph.ty(v)),
        GraphOperand::Float(x) => format!("the number {x:?}"),
        GraphOperand::Var(_) | GraphOperand::Int(_) | GraphOperand::Bool(_) => return Ok(()),
    };
    if dtype.is_float() {
        return Ok(());
    }
    let help = "cast them to the array's type, or the array to a floating-point type";
    Err(Diag::new("update", At::Op, format!("{found} in an array of {dtype}"), help))
}

/// Returns the scatter that updates rows of `row_rank` axes along axis 0; rank 0 is for single elements of one axis.
pub(super) fn row_scatter(op: Option<ScalarOp>, row_rank: usize) -> Scatter {
    Scatter {
        update_window_dims: (1..=row_rank).collect(),
        inserted_window_dims: vec![0],
        input_batching_dims: vec![],
        scatter_indices_batching_dims: vec![],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        op,
    }
}
/// Returns the scatter that updates single elements of an array with one axis.
fn element_scatter(op: Option<ScalarOp>) -> Scatter {
    row_scatter(op, 0)
}

impl Array {
    /// The elements that an index names ([`Array::index`]), to make an array in which they are replaced. Positions in
    /// arrays that do not exist are skipped; see [`IndexedElements::mode`]. A mask of bools names the elements where it
    /// is true.
    ///
    /// | JAX | here |
    /// |---|---|
    /// | `x.at[i].set(y)` | `x.at(&i).set(&y)` |
    /// | `x.at[1:, i].add(1)` | `x.at((1.., &i)).add(1)` |
    /// | `x.at[x < 0].multiply(2)` | `x.at(x.lt(0.0)).multiply(2.0)` |
    ///
    /// ```
    /// use pallas_rt::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
    /// let at = Array::from_slice(&[0, -1, 0], &[3])?;
    /// assert_eq!(x.at(&at).add(1.0).to_vec::<f32>()?, [3.0, 2.0, 4.0]);
    /// assert_eq!(x.at(1..).set(0.0).to_vec::<f32>()?, [1.0, 0.0, 0.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn at(&self, items: impl Into<Index>) -> IndexedElements {
        let Index(items) = items.into();
        IndexedElements { array: self.clone(), items, mode: None }
    }

    /// The array with elements at row-major positions replaced: `x.ravel().at(positions).set(elements)`, reshaped.
    #[track_caller]
    #[must_use]
    pub fn put(&self, positions: &Array, elements: impl Into<Operand>) -> Array {
        let operands = [self.into(), positions.into(), elements.into()];
        apply_to_operands(&operands, Loc::caller(), |graph, operands| {
            let [Some(x), Some(at)] = [operands[0].var(), operands[1].var()] else { unreachable!("they are arrays") };
            let shape = graph.ty(x).shape.clone();
            let flat = reshape(graph, x, &[shape.iter().product()])?;
            let items = [Item::Array(positions.clone())];
            let update = IndexedUpdate { op: None, mode: IndexMode::Fill, items: &items, arrays: &[at] };
            let made = update.push_update(graph, flat, operands[2])?;
            reshape(graph, made, &shape)
        })
    }

    /// The array with its diagonal replaced by a number: the elements whose positions along all axes are equal.
    #[track_caller]
    #[must_use]
    pub fn fill_diagonal(&self, element: impl Into<Operand>) -> Array {
        apply_to_operands(&[self.into(), element.into()], Loc::caller(), |graph, operands| {
            let Some(x) = operands[0].var() else { unreachable!("it is an array") };
            let ty = graph.ty(x).clone();
            if ty.shape.len() < 2 {
                let message = format!("the diagonal of {ty}");
                return Err(Diag::new("rank", At::Operand(0), message, "at least 2 axes"));
            }
            let along = |graph: &mut Graph, axis| {
                let shape = ty.shape.iter().map(|&n| Dim::from(n)).collect();
                graph.push(StructuralOp::from(Iota { shape, axis, dtype: DType::I32 }), &[])
            };
            let first = along(graph, 0)?;
            check_update_dtype(graph, operands[1], ty.dtype)?;
            let mut element = cast_and_broadcast(graph, 1, operands[1], ty.dtype, &ty.shape)?;
            for axis in (1..ty.shape.len()).rev() {
                let other = along(graph, axis)?;
                let is_equal =
                    push_elementwise(graph, ScalarOp::Eq, &[GraphOperand::Var(first), GraphOperand::Var(other)])?;
                element = graph.push(ScalarOp::Select, &[is_equal, element, x])?;
            }
            Ok(element)
        })
    }
}
