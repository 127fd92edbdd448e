//! Arrays with some of their elements replaced.
use super::elementwise::{Meets, Operand, meet, on_operands, placed};
use super::index::{Index, Item, along, arrays, expanded};
use super::places::{self, Mode, Way, places};
use super::shape::reshape;
use crate::array::Array;
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Var};
use pallas_ir::structural::{Broadcast, Iota, Scatter};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp};

/// Elements of an array that an index names, to read or to replace; see [`Array::at`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Elements {
    array: Array,
    items: Vec<Item>,
    mode: Option<Mode>,
}

impl Elements {
    /// Sets the meaning of positions in arrays that do not exist. The default is [`Mode::Fill`], and [`Mode::Clip`] for
    /// [`get`](Elements::get).
    pub fn mode(self, mode: Mode) -> Elements {
        Elements { mode: Some(mode), ..self }
    }

    /// The elements themselves, as [`Array::index`] gives them.
    #[track_caller]
    #[must_use]
    pub fn get(self) -> Array {
        let Elements { array, items, mode } = self;
        let arrays = arrays(&items);
        let operands: Vec<Operand> = std::iter::once(&array).chain(&arrays).map(Operand::from).collect();
        on_operands(&operands, Loc::caller(), |graph, operands| {
            let vars: Vec<Var> = operands.iter().filter_map(|operand| operand.var()).collect();
            match vars[..] {
                [x] => super::index::index(graph, x, &items),
                _ => places::read(graph, vars[0], &items, &vars[1..], mode.unwrap_or(Mode::Clip), true),
            }
        })
    }

    /// The array with these elements replaced; of several elements for one position, the last one counts.
    #[track_caller]
    #[must_use]
    pub fn set(self, elements: impl Into<Operand>) -> Array {
        self.updated(None, elements.into(), Loc::caller())
    }

    /// The array with numbers added to these elements; all of several numbers for one position are added.
    #[track_caller]
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "the name that JAX has; `+` would not name an update")]
    pub fn add(self, elements: impl Into<Operand>) -> Array {
        self.updated(Some(ScalarOp::Add), elements.into(), Loc::caller())
    }

    /// The array with these elements multiplied by numbers; all of several numbers for one position are multiplied.
    #[track_caller]
    #[must_use]
    pub fn multiply(self, elements: impl Into<Operand>) -> Array {
        self.updated(Some(ScalarOp::Mul), elements.into(), Loc::caller())
    }

    /// The array with each of these elements replaced by the smaller one of itself and a number.
    #[track_caller]
    #[must_use]
    pub fn min(self, elements: impl Into<Operand>) -> Array {
        self.updated(Some(ScalarOp::Minimum), elements.into(), Loc::caller())
    }

    /// The array with each of these elements replaced by the larger one of itself and a number.
    #[track_caller]
    #[must_use]
    pub fn max(self, elements: impl Into<Operand>) -> Array {
        self.updated(Some(ScalarOp::Maximum), elements.into(), Loc::caller())
    }

    /// Makes the array with these elements combined with others by `op`, or replaced by them if `op` is `None`.
    fn updated(self, op: Option<ScalarOp>, elements: Operand, at: Loc) -> Array {
        let Elements { array, items, mode } = self;
        let arrays = arrays(&items);
        let mut operands: Vec<Operand> = std::iter::once(&array).chain(&arrays).map(Operand::from).collect();
        operands.push(elements);
        on_operands(&operands, at, |graph, operands| {
            let Some((elements, rest)) = operands.split_last() else { unreachable!("there are two operands") };
            let vars: Vec<Var> = rest.iter().filter_map(|operand| operand.var()).collect();
            let mode = mode.unwrap_or(Mode::Fill);
            Update { op, mode, items: &items, arrays: &vars[1..] }.of(graph, vars[0], *elements)
        })
    }
}

/// An update of elements that an index names: by `op`, or a replacement if `op` is `None`.
struct Update<'a> {
    op: Option<ScalarOp>,
    mode: Mode,
    items: &'a [Item],
    arrays: &'a [Var],
}

impl Update<'_> {
    /// Appends `x` with the named elements updated by `elements`.
    fn of(&self, graph: &mut Graph, x: Var, elements: Meets) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        fits(graph, elements, ty.dtype)?;
        if let [mask] = self.arrays
            && graph.ty(*mask).dtype == DType::Bool
        {
            return self.masked(graph, x, *mask, elements);
        }
        let items = expanded(&ty, self.items)?;
        let (mut axis, mut is_stepped) = (0, false);
        for item in items.iter().filter(|item| !matches!(item, Item::New)) {
            let (_, count, step) = along(&ty, axis, item)?;
            is_stepped |= step != 1 && count > 1;
            axis += 1;
        }
        if is_stepped {
            return self.by_elements(graph, x, elements);
        }
        if self.arrays.is_empty() {
            return self.window(graph, x, &items, elements);
        }
        let way = Way { mode: self.mode, from_end: true, writes: true };
        let found = places(graph, &ty, self.items, self.arrays, way)?;
        let updates = placed(graph, 1, elements, ty.dtype, &found.shape)?;
        let updates = if found.made == found.shape { updates } else { reshape(graph, updates, &found.made)? };
        if ty.elements() == 0 || found.made.contains(&0) {
            return Ok(x);
        }
        graph.push(StructuralOp::from(found.gather.reversed(self.op)), &[x, found.starts, updates])
    }

    /// Appends `x` with the elements updated where a mask is true.
    fn masked(&self, graph: &mut Graph, x: Var, mask: Var, elements: Meets) -> Result<Var, Diag> {
        let (ty, own) = (graph.ty(x).clone(), graph.ty(mask).shape.clone());
        let is_alone = self.items.iter().all(|item| matches!(item, Item::Array(_) | Item::Rest));
        if !is_alone || !ty.shape.starts_with(&own) {
            let message = format!("a mask of {own:?} for {ty}");
            let help = "the only item, of the array's first axes; elsewhere `select(mask, elements, x)`";
            return Err(Diag::new("index", At::Op, message, help));
        }
        let to = ty.shape.iter().map(|&n| Dim::from(n)).collect();
        let mask = graph.push(StructuralOp::from(Broadcast { to, dims: (0..own.len()).collect() }), &[mask])?;
        let elements = placed(graph, 1, elements, ty.dtype, &ty.shape)?;
        let new = match self.op {
            Some(op) => graph.push(op, &[x, elements])?,
            None => elements,
        };
        graph.push(ScalarOp::Select, &[mask, new, x])
    }

    /// Appends `x` with a window at a known position updated.
    fn window(&self, graph: &mut Graph, x: Var, items: &[Item], elements: Meets) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        let (mut starts, mut size, mut shape, mut axis) = (vec![], vec![], vec![], 0);
        for item in items {
            if let Item::New = item {
                shape.push(1);
                continue;
            }
            let (first, count, _) = along(&ty, axis, item)?;
            starts.push(graph.literal(Literal::int(DType::I32, first.max(0))));
            size.push(count as usize);
            if !matches!(item, Item::At(_)) {
                shape.push(count as usize);
            }
            axis += 1;
        }
        let elements = placed(graph, 1, elements, ty.dtype, &shape)?;
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
    fn by_elements(&self, graph: &mut Graph, x: Var, elements: Meets) -> Result<Var, Diag> {
        let ty = graph.ty(x).clone();
        let total = ty.elements();
        let iota = Iota { shape: vec![Dim::from(total)], axis: 0, dtype: DType::I32 };
        let all = graph.push(StructuralOp::from(iota), &[])?;
        let all = reshape(graph, all, &ty.shape)?;
        let mode =
            if let Mode::Fill | Mode::FillWith(_) = self.mode { Mode::FillWith(total as f64) } else { self.mode };
        let at = match self.arrays {
            [] => super::index::index(graph, all, self.items)?,
            arrays => places::read(graph, all, self.items, arrays, mode, true)?,
        };
        let shape = graph.ty(at).shape.clone();
        let elements = placed(graph, 1, elements, ty.dtype, &shape)?;
        let count = shape.iter().product();
        let (at, elements) = (reshape(graph, at, &[count])?, reshape(graph, elements, &[count])?);
        let flat = reshape(graph, x, &[total])?;
        let made = graph.push(StructuralOp::from(of_elements(self.op)), &[flat, at, elements])?;
        reshape(graph, made, &ty.shape)
    }
}

/// Refuses floating-point elements for an array of integers or truth values.
///
/// # Errors
/// Floating-point elements for integers or truth values.
pub(super) fn fits(graph: &Graph, elements: Meets, dtype: DType) -> Result<(), Diag> {
    let found = match elements {
        Meets::Var(v) if graph.ty(v).dtype.is_float() => format!("elements of {}", graph.ty(v)),
        Meets::Float(x) => format!("the number {x:?}"),
        Meets::Var(_) | Meets::Int(_) | Meets::Bool(_) => return Ok(()),
    };
    if dtype.is_float() {
        return Ok(());
    }
    let help = "cast them to the array's type, or the array to a floating-point type";
    Err(Diag::new("update", At::Op, format!("{found} in an array of {dtype}"), help))
}

/// Returns the scatter that updates rows along axis 0, which have `rows` axes; 0 is for single elements of one axis.
pub(super) fn of_rows(op: Option<ScalarOp>, rows: usize) -> Scatter {
    Scatter {
        update_window_dims: (1..=rows).collect(),
        inserted_window_dims: vec![0],
        input_batching_dims: vec![],
        scatter_indices_batching_dims: vec![],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        op,
    }
}
/// Returns the scatter that updates single elements of an array with one axis.
fn of_elements(op: Option<ScalarOp>) -> Scatter {
    of_rows(op, 0)
}

impl Array {
    /// The elements that an index names ([`Array::index`]), to make an array in which they are replaced. Positions in
    /// arrays that do not exist are skipped; see [`Elements::mode`]. A mask of bools names the elements where it is
    /// true.
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
    pub fn at(&self, items: impl Into<Index>) -> Elements {
        let Index(items) = items.into();
        Elements { array: self.clone(), items, mode: None }
    }

    /// The array with elements at row-major positions replaced: `x.ravel().at(positions).set(elements)`, reshaped.
    #[track_caller]
    #[must_use]
    pub fn put(&self, positions: &Array, elements: impl Into<Operand>) -> Array {
        let operands = [self.into(), positions.into(), elements.into()];
        on_operands(&operands, Loc::caller(), |graph, operands| {
            let [Some(x), Some(at)] = [operands[0].var(), operands[1].var()] else { unreachable!("they are arrays") };
            let shape = graph.ty(x).shape.clone();
            let flat = reshape(graph, x, &[shape.iter().product()])?;
            let items = [Item::Array(positions.clone())];
            let update = Update { op: None, mode: Mode::Fill, items: &items, arrays: &[at] };
            let made = update.of(graph, flat, operands[2])?;
            reshape(graph, made, &shape)
        })
    }

    /// The array with its diagonal replaced by a number: the elements whose positions along all axes are equal.
    #[track_caller]
    #[must_use]
    pub fn fill_diagonal(&self, element: impl Into<Operand>) -> Array {
        on_operands(&[self.into(), element.into()], Loc::caller(), |graph, operands| {
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
            fits(graph, operands[1], ty.dtype)?;
            let mut element = placed(graph, 1, operands[1], ty.dtype, &ty.shape)?;
            for axis in (1..ty.shape.len()).rev() {
                let other = along(graph, axis)?;
                let is_equal = meet(graph, ScalarOp::Eq, &[Meets::Var(first), Meets::Var(other)])?;
                element = graph.push(ScalarOp::Select, &[is_equal, element, x])?;
            }
            Ok(element)
        })
    }
}
