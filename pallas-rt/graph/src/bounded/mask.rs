//! Masks the graph for the bounds so that the padding elements, which do not exist for smaller sizes, cannot influence
//! those that exist.
//!
//! ```text
//! x[i, k] · y[k, j], k < n      select(k < n, x, 0) · select(k < n, y, 0)
//! fold, reversed running fold   select(.., x, the neutral element)
//! sort, argmax                  select(.., x, the value that is ordered last)
//! gather, dynamic_slice         the start is at most n - the window's extent, where the operand's extent is n
//! scatter                       updates that do not exist start outside of the operand
//! scan of n steps               steps from n on leave the carried values unchanged
//! pad, concatenate, reverse     positions after the existing elements are computed from their number (`masked_moves`)
//! ```
use super::{GraphMismatch, SizeTable, graphs_called_by};
use crate::build::constant_dims;
use crate::call::Call;
use crate::dynamic::Dynamic;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{AccessForm, AffinePosition, Broadcast, IndexedWindows, Iota, NestAxisRole, SortOrder};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::collections::{BTreeMap, HashMap};

/// The data that the masking of a graph shares with that of the graphs that it calls.
pub(crate) struct MaskingContext<'a> {
    /// The extents and constants that depend on the sizes.
    pub table: &'a SizeTable,
    /// For each sample, the sizes for which it was traced.
    pub sizes: &'a [&'a [usize]],
}

/// A called graph after masking, with its parameters for the extents and constants that depend on the sizes, by index
/// in the [`SizeTable`].
pub(crate) type MaskedGraphAndParams = (Graph, BTreeMap<usize, Var>);

/// The rule that makes one call for all sizes up to bounds: elements that a smaller size lacks are masked. No method
/// has a default.
pub(crate) trait CallMasking {
    /// Checks that `other` is the same call, traced for another size. `is_same_type` is true if both have operands of
    /// the same types.
    ///
    /// # Errors
    /// The difference between the calls, as text.
    fn check_same_call(&self, other: &Call, is_same_type: bool) -> Result<(), String>;
    /// Returns the integer attributes that may depend on the size, such as the number of steps.
    fn size_dependent_attributes(&self) -> Vec<usize>;
    /// Appends the call for all sizes. `masked_graphs` are the call's graphs after masking, each with the parameters
    /// for its table entries. `attribute_indices` has the table index of each integer attribute; `None` for one that is
    /// constant.
    fn push_masked(
        &self,
        scope: &mut GraphMasker<'_>,
        masked_graphs: Vec<MaskedGraphAndParams>,
        attribute_indices: &[Option<usize>],
        args: &[Var],
    ) -> Vec<Var>;
}

/// A graph for all sizes under construction, in which the padding elements that smaller sizes lack do not influence the
/// others.
pub(crate) struct GraphMasker<'a> {
    pub(super) masking: &'a MaskingContext<'a>,
    /// The graph to mask, in each sample.
    pub(super) graphs: &'a [&'a Graph],
    pub(crate) to: Graph,
    /// For each variable of the samples, the variable in `to` that stands for it.
    made: Vec<Option<Var>>,
    /// The parameters for entries of the table, by index of the entry.
    scalars: BTreeMap<usize, Var>,
    /// Masks made so far, true where an element exists; by index of the extent, shape, and axis.
    exists: HashMap<(usize, Vec<usize>, usize), Var>,
}

impl<'a> MaskingContext<'a> {
    /// Returns the graph of a whole function for all sizes up to the bounds. `samples` are its graphs as traced for
    /// fixed sizes; its last parameters stand for all entries of the size table.
    pub(super) fn mask_function(&self, samples: &[&Graph]) -> Result<Graph, GraphMismatch> {
        let mut scope = GraphMasker::new(self, samples);
        let types = self.table.entry_param_types();
        for number in 0..types.len() {
            scope.size_table_param(number);
        }
        let mut graph = scope.mask_graph()?;
        graph.0.params.extend(graph.1.values());
        Ok(graph.0)
    }

    /// Returns the form of a called graph for all sizes, and the parameters for the entries of the size table that it
    /// uses, which are not yet among its own. `samples` are the called graph as traced for fixed sizes.
    fn mask_called_graph(&self, samples: &[&Graph]) -> Result<(Graph, BTreeMap<usize, Var>), GraphMismatch> {
        GraphMasker::new(self, samples).mask_graph()
    }
}

impl<'a> GraphMasker<'a> {
    /// Begins the graph for all sizes, with the parameters of `graphs`, a graph as traced for fixed sizes, and no
    /// equations.
    fn new(masking: &'a MaskingContext<'a>, graphs: &'a [&'a Graph]) -> GraphMasker<'a> {
        let made = vec![None; graphs[0].types.len()];
        let (to, scalars, exists) = (Graph::default(), BTreeMap::new(), HashMap::new());
        let mut scope = GraphMasker { masking, graphs, to, made, scalars, exists };
        for &p in &graphs[0].params {
            scope.made[p.index()] = Some(scope.to.param(graphs[0].ty(p).clone()));
        }
        scope
    }

    /// Masks all equations; returns the graph, and the parameters for the entries of the size table that it uses.
    fn mask_graph(mut self) -> Result<(Graph, BTreeMap<usize, Var>), GraphMismatch> {
        for i in 0..self.graphs[0].equations.len() {
            self.mask_equation(i)?;
        }
        self.to.results = self.graphs[0].results.iter().map(|&r| self.masked_var(r)).collect();
        Ok((self.to, self.scalars))
    }

    fn masked_var(&self, old: Var) -> Var {
        self.made[old.index()].expect("defined before its use")
    }

    /// Returns the parameter of this graph that stands for the table's entry at `table_index`; adds it if there is none
    /// yet.
    pub(crate) fn size_table_param(&mut self, table_index: usize) -> Var {
        let ty = &self.masking.table.entry_param_types()[table_index];
        *self.scalars.entry(table_index).or_insert_with(|| self.to.var(ty.clone()))
    }

    /// Returns the table index of the extent of `v` along an axis; `None` if it does not depend on the sizes.
    pub(super) fn extent_table_index(&self, v: Var, axis: usize) -> Option<usize> {
        let samples: Vec<usize> = self.graphs.iter().map(|graph| graph.ty(v).shape[axis]).collect();
        self.masking.table.extent_index(&samples, self.masking.sizes)
    }

    /// Appends the masked form of equation number `equation`.
    fn mask_equation(&mut self, equation: usize) -> Result<(), GraphMismatch> {
        let e = &self.graphs[0].equations[equation];
        self.to.at = e.loc;
        let mut args: Vec<Var> = e.args.iter().map(|&a| self.masked_var(a)).collect();
        match &e.op {
            Op::Literal(_) => {
                let values = super::literal_in_each_sample(self.graphs, equation).expect("the samples agree");
                if let Some(number) = self.masking.table.literal_index(&values) {
                    let v = self.size_table_param(self.masking.table.extents.len() + number);
                    self.made[e.result().index()] = Some(v);
                    return Ok(());
                }
            }
            Op::Structural(op) => {
                if let Some(v) = self.mask_end_dependent_op(op, equation, &args) {
                    self.made[e.result().index()] = Some(v);
                    return Ok(());
                }
                self.fill_structural_operands(op, equation, &mut args);
            }
            Op::Dynamic(op) => self.clamp_window_positions(op, e, &mut args),
            Op::Call(call) => {
                let made = self.mask_call(call, equation, args)?;
                e.results.iter().zip(made).for_each(|(r, v)| self.made[r.index()] = Some(v));
                return Ok(());
            }
            Op::Scalar(_) | Op::Identity(_) => {}
            Op::Collective(_) => return Err(GraphMismatch::new(e.loc, "an exchange among devices")),
        }
        let v = self.to.push_valid(e.op.clone(), &args);
        self.made[e.result().index()] = Some(v);
        Ok(())
    }

    /// Replaces the elements of operand number `operand` that do not exist along an axis by `fill`.
    fn fill_nonexistent_in_operand(
        &mut self,
        e: &Equation,
        args: &mut [Var],
        operand: usize,
        axis: usize,
        fill: Literal,
    ) {
        if let Some(number) = self.extent_table_index(e.args[operand], axis) {
            let with = self.to.literal(fill);
            args[operand] = self.fill_nonexistent(args[operand], number, axis, with);
        }
    }

    /// Returns `v` with the scalar `fill` in place of the elements after the existing ones along an axis. The table's
    /// entry at `table_index` is the number of existing ones.
    pub(super) fn fill_nonexistent(&mut self, v: Var, table_index: usize, axis: usize, fill: Var) -> Var {
        let shape = self.to.ty(v).shape.clone();
        let exists = self.existence_mask(table_index, &shape, axis);
        let other = self.broadcast_scalar(fill, &shape);
        self.to.push_valid(ScalarOp::Select, &[exists, v, other])
    }

    /// Returns a mask of a shape: true for the elements that exist along `axis`, false for those after them. The
    /// table's entry at `table_index` is the number of existing ones.
    fn existence_mask(&mut self, table_index: usize, shape: &[usize], axis: usize) -> Var {
        let key = (table_index, shape.to_vec(), axis);
        if let Some(&v) = self.exists.get(&key) {
            return v;
        }
        let n = self.size_table_param(table_index);
        let line = [shape[axis]];
        let at = self
            .to
            .push_valid(StructuralOp::from(Iota { shape: constant_dims(&line), axis: 0, dtype: DType::I32 }), &[]);
        let end = self.to.push_valid(StructuralOp::from(Broadcast::to(constant_dims(&line))), &[n]);
        let v = self.to.push_valid(ScalarOp::Lt, &[at, end]);
        let wide = Broadcast { to: constant_dims(shape), dims: vec![axis] };
        let v = if shape.len() == 1 { v } else { self.to.push_valid(StructuralOp::from(wide), &[v]) };
        self.exists.insert(key, v);
        v
    }

    /// Replaces operand elements that do not exist where structural equation number `equation` would mix them with
    /// existing ones.
    fn fill_structural_operands(&mut self, op: &StructuralOp, equation: usize, args: &mut [Var]) {
        let graph = self.graphs[0];
        let e = &graph.equations[equation];
        let shapes: Vec<_> = e.args.iter().map(|&a| constant_dims(&graph.ty(a).shape)).collect();
        let shapes: Vec<&[_]> = shapes.iter().map(|s| &s[..]).collect();
        let Some(dtype) = e.args.first().map(|&a| graph.ty(a).dtype) else { return };
        let zero = Literal::new(dtype, 0.0);
        if let StructuralOp::Pad(_) = op {
            for axis in 0..shapes[0].len() {
                let pads = |graph: &&Graph| match &graph.equations[equation].op {
                    Op::Structural(StructuralOp::Pad(pad)) => pad.high[axis] != Dim::from(0i64),
                    _ => false,
                };
                if let (Some(number), true) = (self.extent_table_index(e.args[0], axis), self.graphs.iter().any(pads)) {
                    args[0] = self.fill_nonexistent(args[0], number, axis, args[1]);
                }
            }
        }
        match op.access(&shapes) {
            AccessForm::Contract { contract, .. } => {
                for (a, b) in contract {
                    self.fill_nonexistent_in_operand(e, args, 0, a, zero);
                    self.fill_nonexistent_in_operand(e, args, 1, b, Literal::new(graph.ty(e.args[1]).dtype, 0.0));
                }
            }
            AccessForm::Fold { op, axes } => {
                let neutral = op.neutral(dtype).expect("it is a monoid");
                axes.into_iter().for_each(|axis| self.fill_nonexistent_in_operand(e, args, 0, axis, neutral));
            }
            AccessForm::Scan { op, axis, reverse: true } => {
                self.fill_nonexistent_in_operand(e, args, 0, axis, op.neutral(dtype).expect("it is a monoid"));
            }
            AccessForm::Nest(nest) => {
                // With several operands the elements are multiplied and then added, so zero is neutral.
                let neutral =
                    if nest.operands.len() > 1 { zero } else { nest.op.neutral(dtype).expect("it is a monoid") };
                for (operand, positions) in nest.operands.iter().enumerate() {
                    for (axis, position) in positions.iter().enumerate() {
                        let is_kept = |&(loop_, _): &(usize, i64)| {
                            nest.axes[loop_].role == NestAxisRole::Parallel
                                && *position == AffinePosition::from_axis(loop_)
                        };
                        if !position.terms.first().is_some_and(is_kept) {
                            self.fill_nonexistent_in_operand(e, args, operand, axis, neutral);
                        }
                    }
                }
            }
            AccessForm::Arg { max, axis } => {
                let last = if max { Literal::lowest(dtype) } else { Literal::highest(dtype) };
                self.fill_nonexistent_in_operand(e, args, 0, axis, last);
            }
            AccessForm::Sort { axis, order, .. } => {
                self.fill_nonexistent_in_operand(e, args, 0, axis, value_sorted_last(order, dtype))
            }
            AccessForm::Gather { windows, checked } => {
                if checked {
                    self.fill_nonexistent_starts(e, args, &windows, |dtype| Literal::new(dtype, 0.0));
                }
                self.clamp_gather_starts(equation, args, &windows);
            }
            AccessForm::Scatter { windows, .. } => self.fill_nonexistent_starts(e, args, &windows, Literal::lowest),
            AccessForm::Map(_)
            | AccessForm::Flat
            | AccessForm::Scan { reverse: false, .. }
            | AccessForm::Iota { .. }
            | AccessForm::Cast
            | AccessForm::Bitcast
            | AccessForm::Powi(_) => {}
        }
    }

    /// Replaces those start positions of a gather or scatter that a smaller size lacks by `fill` of their element type.
    fn fill_nonexistent_starts(
        &mut self,
        e: &Equation,
        args: &mut [Var],
        windows: &IndexedWindows,
        fill: impl Fn(DType) -> Literal,
    ) {
        let Type { dtype, shape } = self.graphs[0].ty(e.args[1]);
        for axis in (0..shape.len()).filter(|axis| windows.vector != Some(*axis)) {
            self.fill_nonexistent_in_operand(e, args, 1, axis, fill(*dtype));
        }
    }

    /// Limits the start positions of a gather to those at which the whole window exists.
    fn clamp_gather_starts(&mut self, equation: usize, args: &mut [Var], windows: &IndexedWindows) {
        let e = &self.graphs[0].equations[equation];
        let ty = self.graphs[0].ty(e.args[1]).clone();
        for (axis, window) in windows.axes.iter().enumerate() {
            let (Some(k), Some(number)) = (window.start, self.extent_table_index(e.args[0], axis)) else { continue };
            // If the window shrinks with the operand, the last start is the same for all sizes.
            if self.graphs.iter().any(|graph| gather_window_extent(graph, equation, axis) != Some(window.size.clone()))
            {
                continue;
            }
            let size = window.size.as_number().expect("an access form has sizes of numbers");
            let last = self.extent_minus(number, size);
            let last = self.to.push_valid(StructuralOp::from(pallas_ir::structural::Cast { to: ty.dtype }), &[last]);
            let last = self.broadcast_scalar(last, &ty.shape);
            let least = self.to.push_valid(ScalarOp::Minimum, &[args[1], last]);
            args[1] = match windows.vector {
                Some(vector) if ty.shape[vector] > 1 => {
                    let iota = Iota { shape: constant_dims(&ty.shape), axis: vector, dtype: DType::I32 };
                    let at = self.to.push_valid(StructuralOp::from(iota), &[]);
                    let own = self.to.splat(Literal::int(DType::I32, k as i64), &ty.shape);
                    let is_own = self.to.push_valid(ScalarOp::Eq, &[at, own]);
                    self.to.push_valid(ScalarOp::Select, &[is_own, least, args[1]])
                }
                _ => least,
            };
        }
    }

    /// Returns the extent at a table index minus `subtrahend`, as an i32 scalar.
    fn extent_minus(&mut self, table_index: usize, subtrahend: i64) -> Var {
        let n = self.size_table_param(table_index);
        let by = self.to.i32_literal(subtrahend);
        self.to.push_valid(ScalarOp::Sub, &[n, by])
    }

    /// Broadcasts a scalar to a shape.
    pub(super) fn broadcast_scalar(&mut self, v: Var, shape: &[usize]) -> Var {
        if shape.is_empty() {
            v
        } else {
            self.to.push_valid(StructuralOp::from(Broadcast::to(constant_dims(shape))), &[v])
        }
    }

    /// Limits the positions of a dynamic window to those at which the whole window exists.
    fn clamp_window_positions(&mut self, op: &Dynamic, e: &Equation, args: &mut [Var]) {
        let graph = self.graphs[0];
        let part = op.window_var(e);
        for (axis, &size) in graph.ty(part).shape.iter().enumerate() {
            let Some(number) = self.extent_table_index(e.args[0], axis) else { continue };
            if self.extent_table_index(part, axis).is_none() {
                let last = self.extent_minus(number, size as i64);
                let at = op.array_operand_count() + axis;
                args[at] = self.to.push_valid(ScalarOp::Minimum, &[args[at], last]);
            }
        }
    }

    /// Appends the masked form of a call, after masking the graphs that it calls.
    fn mask_call(&mut self, call: &Call, equation: usize, args: Vec<Var>) -> Result<Vec<Var>, GraphMismatch> {
        let called = graphs_called_by(self.graphs, equation);
        let parts =
            called.iter().map(|graphs| self.masking.mask_called_graph(graphs)).collect::<Result<Vec<_>, _>>()?;
        let (sized, numbers) = (call.sized().expect("functions are expanded"), self.attribute_table_indices(equation));
        Ok(sized.push_masked(self, parts, &numbers, &args))
    }

    /// Returns this graph's parameters for the entries of the size table that a called graph uses, to pass them to it;
    /// `callee_params` are the called graph's own, by index in the table.
    pub(crate) fn table_params_for_call(&mut self, callee_params: &BTreeMap<usize, Var>) -> Vec<Var> {
        callee_params.keys().map(|&number| self.size_table_param(number)).collect()
    }
}

/// Returns the extent of the windows of gather equation number `equation` along an axis of its operand; `None` if it is
/// no gather.
fn gather_window_extent(graph: &Graph, equation: usize, axis: usize) -> Option<Dim> {
    let e = &graph.equations[equation];
    let Op::Structural(op) = &e.op else { return None };
    let shapes: Vec<_> = e.args.iter().map(|&a| constant_dims(&graph.ty(a).shape)).collect();
    let shapes: Vec<&[_]> = shapes.iter().map(|s| &s[..]).collect();
    if let AccessForm::Gather { windows, .. } = op.access(&shapes) {
        Some(windows.axes[axis].size.clone())
    } else {
        None
    }
}

/// Returns a value that a sort places after all others; since sorts are stable, it stays after equal existing elements
/// too.
fn value_sorted_last(order: SortOrder, dtype: DType) -> Literal {
    match order {
        SortOrder::Ascending if dtype.is_float() => Literal::new(dtype, f64::NAN),
        SortOrder::Ascending => Literal::highest(dtype),
        SortOrder::Descending => Literal::lowest(dtype),
        SortOrder::Largest if dtype.is_float() => Literal { dtype, bits: u64::MAX >> (64 - 8 * dtype.bytes()) },
        SortOrder::Largest => Literal::lowest(dtype),
    }
}
