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
//! pad, concatenate, reverse     positions after the existing elements are computed from their number (`moved`)
//! ```
use super::{Table, Unlike, called};
use crate::build::dims;
use crate::call::Call;
use crate::dynamic::Dynamic;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Access, Broadcast, Iota, Order, Position, Role, Windows};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::collections::{BTreeMap, HashMap};

/// The data that the masking of a graph shares with that of the graphs that it calls.
pub(crate) struct Masking<'a> {
    /// The extents and constants that depend on the sizes.
    pub table: &'a Table,
    /// For each sample, the sizes for which it was traced.
    pub sizes: &'a [&'a [usize]],
}

/// A called graph after masking, and the parameters of its table entries by their index in the table.
pub(crate) type Part = (Graph, BTreeMap<usize, Var>);

/// Masking of calls in a graph for all sizes up to bounds. No method has a default.
pub(crate) trait CallSized {
    /// Checks that `other` is the same call, traced for another size. `is_same_type` is true if both have operands of
    /// the same types.
    ///
    /// # Errors
    /// The difference between the calls, as text.
    fn agree(&self, other: &Call, is_same_type: bool) -> Result<(), String>;
    /// Returns the integer attributes that may depend on the size, such as the number of steps.
    fn numbers(&self) -> Vec<usize>;
    /// Appends the call for all sizes. `parts` are its masked graphs, each with the parameters for its table entries.
    /// `numbers` has the table index of each integer attribute; `None` for one that is constant.
    fn masked(&self, scope: &mut Scope<'_>, parts: Vec<Part>, numbers: &[Option<usize>], args: &[Var]) -> Vec<Var>;
}

/// A masked graph under construction.
pub(crate) struct Scope<'a> {
    pub(super) masking: &'a Masking<'a>,
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

impl<'a> Masking<'a> {
    /// Returns the masked graph of the whole function; its last parameters stand for all entries of the table.
    pub(super) fn whole(&self, graphs: &[&Graph]) -> Result<Graph, Unlike> {
        let mut scope = Scope::new(self, graphs);
        let types = self.table.types();
        for number in 0..types.len() {
            scope.scalar(number);
        }
        let mut graph = scope.graph()?;
        graph.0.params.extend(graph.1.values());
        Ok(graph.0)
    }

    /// Returns the masked form of a called graph, and the parameters for the table entries that it uses, which are not
    /// yet among its own parameters.
    fn part(&self, graphs: &[&Graph]) -> Result<(Graph, BTreeMap<usize, Var>), Unlike> {
        Scope::new(self, graphs).graph()
    }
}

impl<'a> Scope<'a> {
    /// Returns a masked graph with the parameters of the samples and no equations.
    fn new(masking: &'a Masking<'a>, graphs: &'a [&'a Graph]) -> Scope<'a> {
        let made = vec![None; graphs[0].types.len()];
        let (to, scalars, exists) = (Graph::default(), BTreeMap::new(), HashMap::new());
        let mut scope = Scope { masking, graphs, to, made, scalars, exists };
        for &p in &graphs[0].params {
            scope.made[p.index()] = Some(scope.to.param(graphs[0].ty(p).clone()));
        }
        scope
    }

    /// Masks all equations; returns the graph, and the parameters for the table entries that it uses.
    fn graph(mut self) -> Result<(Graph, BTreeMap<usize, Var>), Unlike> {
        for i in 0..self.graphs[0].equations.len() {
            self.equation(i)?;
        }
        self.to.results = self.graphs[0].results.iter().map(|&r| self.var(r)).collect();
        Ok((self.to, self.scalars))
    }

    fn var(&self, old: Var) -> Var {
        self.made[old.index()].expect("defined before its use")
    }

    /// Returns the parameter for entry `number` of the table.
    pub(crate) fn scalar(&mut self, number: usize) -> Var {
        let ty = &self.masking.table.types()[number];
        *self.scalars.entry(number).or_insert_with(|| self.to.var(ty.clone()))
    }

    /// Returns the table index of the extent of `v` along an axis; `None` if it does not depend on the sizes.
    pub(super) fn extent(&self, v: Var, axis: usize) -> Option<usize> {
        let samples: Vec<usize> = self.graphs.iter().map(|graph| graph.ty(v).shape[axis]).collect();
        self.masking.table.extent(&samples, self.masking.sizes)
    }

    /// Appends the masked form of equation `i`.
    fn equation(&mut self, i: usize) -> Result<(), Unlike> {
        let e = &self.graphs[0].equations[i];
        self.to.at = e.loc;
        let mut args: Vec<Var> = e.args.iter().map(|&a| self.var(a)).collect();
        match &e.op {
            Op::Literal(_) => {
                let values = super::literals(self.graphs, i).expect("the samples agree");
                if let Some(number) = self.masking.table.literal(&values) {
                    let v = self.scalar(self.masking.table.extents.len() + number);
                    self.made[e.result().index()] = Some(v);
                    return Ok(());
                }
            }
            Op::Structural(op) => {
                if let Some(v) = self.moved(op, i, &args) {
                    self.made[e.result().index()] = Some(v);
                    return Ok(());
                }
                self.structural(op, i, &mut args);
            }
            Op::Dynamic(op) => self.dynamic(op, e, &mut args),
            Op::Call(call) => {
                let made = self.call(call, i, args)?;
                e.results.iter().zip(made).for_each(|(r, v)| self.made[r.index()] = Some(v));
                return Ok(());
            }
            Op::Scalar(_) | Op::Identity(_) => {}
            Op::Collective(_) => return Err(Unlike::new(e.loc, "an exchange among devices")),
        }
        let v = self.to.fitting(e.op.clone(), &args);
        self.made[e.result().index()] = Some(v);
        Ok(())
    }

    /// Replaces the elements of operand `operand` that do not exist along an axis by `with`.
    fn fill(&mut self, e: &Equation, args: &mut [Var], operand: usize, axis: usize, with: Literal) {
        if let Some(number) = self.extent(e.args[operand], axis) {
            let with = self.to.literal(with);
            args[operand] = self.filled(args[operand], number, axis, with);
        }
    }

    /// Returns `v` with the scalar `with` in place of the elements after the existing ones along an axis. `number` is
    /// the table index of their number.
    pub(super) fn filled(&mut self, v: Var, number: usize, axis: usize, with: Var) -> Var {
        let shape = self.to.ty(v).shape.clone();
        let exists = self.exists(number, &shape, axis);
        let other = self.spread(with, &shape);
        self.to.fitting(ScalarOp::Select, &[exists, v, other])
    }

    /// Returns a mask of a shape: true for the elements that exist along `axis`. `number` is the table index of their
    /// number.
    fn exists(&mut self, number: usize, shape: &[usize], axis: usize) -> Var {
        let key = (number, shape.to_vec(), axis);
        if let Some(&v) = self.exists.get(&key) {
            return v;
        }
        let n = self.scalar(number);
        let line = [shape[axis]];
        let at = self.to.fitting(StructuralOp::from(Iota { shape: dims(&line), axis: 0, dtype: DType::I32 }), &[]);
        let end = self.to.fitting(StructuralOp::from(Broadcast::to(dims(&line))), &[n]);
        let v = self.to.fitting(ScalarOp::Lt, &[at, end]);
        let wide = Broadcast { to: dims(shape), dims: vec![axis] };
        let v = if shape.len() == 1 { v } else { self.to.fitting(StructuralOp::from(wide), &[v]) };
        self.exists.insert(key, v);
        v
    }

    /// Replaces operand elements that do not exist where structural equation `i` would mix them with existing ones.
    fn structural(&mut self, op: &StructuralOp, i: usize, args: &mut [Var]) {
        let graph = self.graphs[0];
        let e = &graph.equations[i];
        let shapes: Vec<_> = e.args.iter().map(|&a| dims(&graph.ty(a).shape)).collect();
        let shapes: Vec<&[_]> = shapes.iter().map(|s| &s[..]).collect();
        let Some(dtype) = e.args.first().map(|&a| graph.ty(a).dtype) else { return };
        let zero = Literal::new(dtype, 0.0);
        if let StructuralOp::Pad(_) = op {
            for axis in 0..shapes[0].len() {
                let pads = |graph: &&Graph| match &graph.equations[i].op {
                    Op::Structural(StructuralOp::Pad(pad)) => pad.high[axis] != Dim::from(0i64),
                    _ => false,
                };
                if let (Some(number), true) = (self.extent(e.args[0], axis), self.graphs.iter().any(pads)) {
                    args[0] = self.filled(args[0], number, axis, args[1]);
                }
            }
        }
        match op.access(&shapes) {
            Access::Contract { contract, .. } => {
                for (a, b) in contract {
                    self.fill(e, args, 0, a, zero);
                    self.fill(e, args, 1, b, Literal::new(graph.ty(e.args[1]).dtype, 0.0));
                }
            }
            Access::Fold { op, axes } => {
                let neutral = op.neutral(dtype).expect("it is a monoid");
                axes.into_iter().for_each(|axis| self.fill(e, args, 0, axis, neutral));
            }
            Access::Scan { op, axis, reverse: true } => {
                self.fill(e, args, 0, axis, op.neutral(dtype).expect("it is a monoid"));
            }
            Access::Nest(nest) => {
                // With several operands the elements are multiplied and then added, so zero is neutral.
                let neutral =
                    if nest.operands.len() > 1 { zero } else { nest.op.neutral(dtype).expect("it is a monoid") };
                for (operand, positions) in nest.operands.iter().enumerate() {
                    for (axis, position) in positions.iter().enumerate() {
                        let is_kept = |&(loop_, _): &(usize, i64)| {
                            nest.axes[loop_].role == Role::Parallel && *position == Position::of(loop_)
                        };
                        if !position.terms.first().is_some_and(is_kept) {
                            self.fill(e, args, operand, axis, neutral);
                        }
                    }
                }
            }
            Access::Arg { max, axis } => {
                let last = if max { Literal::lowest(dtype) } else { Literal::highest(dtype) };
                self.fill(e, args, 0, axis, last);
            }
            Access::Sort { axis, order, .. } => self.fill(e, args, 0, axis, last(order, dtype)),
            Access::Gather { windows, checked } => {
                if checked {
                    self.fill_starts(e, args, &windows, |dtype| Literal::new(dtype, 0.0));
                }
                self.clamp(i, args, &windows);
            }
            Access::Scatter { windows, .. } => self.fill_starts(e, args, &windows, Literal::lowest),
            Access::Map(_)
            | Access::Flat
            | Access::Scan { reverse: false, .. }
            | Access::Iota { .. }
            | Access::Cast
            | Access::Bitcast
            | Access::Powi(_) => {}
        }
    }

    /// Replaces the start positions of a gather or scatter that do not exist.
    fn fill_starts(&mut self, e: &Equation, args: &mut [Var], windows: &Windows, with: impl Fn(DType) -> Literal) {
        let Type { dtype, shape } = self.graphs[0].ty(e.args[1]);
        for axis in (0..shape.len()).filter(|axis| windows.vector != Some(*axis)) {
            self.fill(e, args, 1, axis, with(*dtype));
        }
    }

    /// Limits the start positions of a gather to those at which the whole window exists.
    fn clamp(&mut self, i: usize, args: &mut [Var], windows: &Windows) {
        let e = &self.graphs[0].equations[i];
        let ty = self.graphs[0].ty(e.args[1]).clone();
        for (axis, window) in windows.axes.iter().enumerate() {
            let (Some(k), Some(number)) = (window.start, self.extent(e.args[0], axis)) else { continue };
            // If the window shrinks with the operand, the last start is the same for all sizes.
            if self.graphs.iter().any(|graph| window_of(graph, i, axis) != Some(window.size.clone())) {
                continue;
            }
            let size = window.size.as_number().expect("an access form has sizes of numbers");
            let last = self.less(number, size);
            let last = self.to.fitting(StructuralOp::from(pallas_ir::structural::Cast { to: ty.dtype }), &[last]);
            let last = self.spread(last, &ty.shape);
            let least = self.to.fitting(ScalarOp::Minimum, &[args[1], last]);
            args[1] = match windows.vector {
                Some(vector) if ty.shape[vector] > 1 => {
                    let iota = Iota { shape: dims(&ty.shape), axis: vector, dtype: DType::I32 };
                    let at = self.to.fitting(StructuralOp::from(iota), &[]);
                    let own = self.to.splat(Literal::int(DType::I32, k as i64), &ty.shape);
                    let is_own = self.to.fitting(ScalarOp::Eq, &[at, own]);
                    self.to.fitting(ScalarOp::Select, &[is_own, least, args[1]])
                }
                _ => least,
            };
        }
    }

    /// Returns the extent at a table index minus `by`, as an i32 scalar.
    fn less(&mut self, number: usize, by: i64) -> Var {
        let n = self.scalar(number);
        let by = self.to.int(by);
        self.to.fitting(ScalarOp::Sub, &[n, by])
    }

    /// Broadcasts a scalar to a shape.
    pub(super) fn spread(&mut self, v: Var, shape: &[usize]) -> Var {
        if shape.is_empty() { v } else { self.to.fitting(StructuralOp::from(Broadcast::to(dims(shape))), &[v]) }
    }

    /// Limits the positions of a dynamic window to those at which the whole window exists.
    fn dynamic(&mut self, op: &Dynamic, e: &Equation, args: &mut [Var]) {
        let graph = self.graphs[0];
        let part = op.part(e);
        for (axis, &size) in graph.ty(part).shape.iter().enumerate() {
            let Some(number) = self.extent(e.args[0], axis) else { continue };
            if self.extent(part, axis).is_none() {
                let last = self.less(number, size as i64);
                let at = op.arrays() + axis;
                args[at] = self.to.fitting(ScalarOp::Minimum, &[args[at], last]);
            }
        }
    }

    /// Appends the masked form of a call, after masking the graphs that it calls.
    fn call(&mut self, call: &Call, i: usize, args: Vec<Var>) -> Result<Vec<Var>, Unlike> {
        let called = called(self.graphs, i);
        let parts = called.iter().map(|graphs| self.masking.part(graphs)).collect::<Result<Vec<_>, _>>()?;
        let (sized, numbers) = (call.sized().expect("functions are expanded"), self.numbers(i));
        Ok(sized.masked(self, parts, &numbers, &args))
    }

    /// Returns this graph's variables for the table entries that are keys of `scalars`, to pass them to a called graph.
    pub(crate) fn given(&mut self, scalars: &BTreeMap<usize, Var>) -> Vec<Var> {
        scalars.keys().map(|&number| self.scalar(number)).collect()
    }
}

/// Returns the extent of the windows of gather equation `i` along an axis of its operand; `None` if it is no gather.
fn window_of(graph: &Graph, i: usize, axis: usize) -> Option<Dim> {
    let e = &graph.equations[i];
    let Op::Structural(op) = &e.op else { return None };
    let shapes: Vec<_> = e.args.iter().map(|&a| dims(&graph.ty(a).shape)).collect();
    let shapes: Vec<&[_]> = shapes.iter().map(|s| &s[..]).collect();
    if let Access::Gather { windows, .. } = op.access(&shapes) { Some(windows.axes[axis].size.clone()) } else { None }
}

/// Returns a value that a sort places after all others; since sorts are stable, it stays after equal existing elements
/// too.
fn last(order: Order, dtype: DType) -> Literal {
    match order {
        Order::Ascending if dtype.is_float() => Literal::new(dtype, f64::NAN),
        Order::Ascending => Literal::highest(dtype),
        Order::Descending => Literal::lowest(dtype),
        Order::Largest if dtype.is_float() => Literal { dtype, bits: u64::MAX >> (64 - 8 * dtype.bytes()) },
        Order::Largest => Literal::lowest(dtype),
    }
}
