//! `vmap`: makes a graph for a whole batch of examples from a graph for one example.
//!
//! A `vmap` whose axis has a name makes a mesh of it too (`Mesh::of_batch`), with the examples as its devices.
//! Collectives over that mesh are the operations that devices use, with the same derivatives, except that a sum is its
//! own transpose (values have no state such as `ManualAxisState::Varying` along a batch). `transform/batch` replaces
//! them by operations on the whole batch, so they never leave the graph of the mapped function.
//!
//! Values that depend on an example get the batch axis in front; all others stay as they are. If only one operand of a
//! `dot` has the axis, it is a free axis of the product, so that the gradient of shared weights is one product that
//! contracts the batch. Three passes then make a mapped function share kernels as one written for the batch does:
//! `simplify/unit_axes` drops axes of extent 1, `simplify/products` merges a sum of products into one product, and
//! `simplify/vector_products` makes elementwise operations of products without matrices.
use super::active_values::active_vars;
use super::batch_call::{BatchedCall, push_batch_select};
use super::rule::{apply_structural_rule, expression_var};
use super::{TransformError, check_graph_limits, collective, memo};
use crate::build::constant_dims;
use crate::call::ExpansionStage;
use crate::dynamic::{Dynamic, WindowAccess};
use crate::graph::{Equation, Graph, Op, Var};
use crate::identity::{IdentityUpdate, StopGradient};
use crate::inline::expand_calls;
use crate::mesh::{Collective, Mesh};
use pallas_ir::structural::{self as ops, Broadcast};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::cell::RefCell;

/// Returns a graph that computes the results of `graph` for each element of an axis at once, and for each result true
/// if it has that axis.
///
/// The parameters for which `is_batched` is true have an additional first axis of extent `size`; so do the results that
/// depend on one of them. Values that depend on none of them are computed once.
///
/// Each operation becomes the operation on the whole axis, by the rule that pallas-ir states for it: a dot becomes one
/// dot, and an operand without the axis stays as it is wherever the operation allows that. A window at positions that
/// differ between elements becomes a gather or a scatter. A `while` whose condition differs between elements runs until
/// all are done, and keeps the values of finished elements by `emit_select`; a `case` whose branch index differs runs
/// all branches and chooses by `emit_select`.
///
/// # Errors
/// Values with more axes or elements than an array can have.
///
/// # Panics
/// If `is_batched` has not one entry for each parameter.
pub fn batched(graph: &Graph, is_batched: &[bool], size: usize) -> Result<(Graph, Vec<bool>), TransformError> {
    batched_with_forced_results(graph, is_batched, BatchAxis { size, named: None }, &vec![false; graph.results.len()])
}

/// Batches a graph like [`batched`]; if `forces_results` is true, every result gets the axis, also one that depends on
/// no batched parameter; if it is false, only results that depend on one.
pub(crate) fn batched_maybe_forcing_results(
    graph: &Graph,
    is_batched: &[bool],
    size: usize,
    forces_results: bool,
) -> Result<(Graph, Vec<bool>), TransformError> {
    batched_with_forced_results(
        graph,
        is_batched,
        BatchAxis { size, named: None },
        &vec![forces_results; graph.results.len()],
    )
}

/// Batches a graph like [`batched`], along an axis with a name ([`Mesh::of_batch`]): collectives over it become
/// operations on the whole batch.
///
/// # Errors
/// Those of [`batched`]; a collective over the axis in a loop or branch whose condition differs between the elements.
///
/// # Panics
/// If `is_batched` has not one entry for each parameter.
pub fn batched_along(graph: &Graph, is_batched: &[bool], axis: &Mesh) -> Result<(Graph, Vec<bool>), TransformError> {
    let axis = BatchAxis { size: axis.device_count(), named: Some(axis) };
    batched_with_forced_results(graph, is_batched, axis, &vec![false; graph.results.len()])
}

/// The axis along which a graph is batched.
#[derive(Clone, Copy)]
pub(crate) struct BatchAxis<'a> {
    /// Extent of the axis: the number of examples.
    pub size: usize,
    /// The mesh that stands for the axis in collectives; `None` for an axis without a name.
    pub named: Option<&'a Mesh>,
}

impl BatchAxis<'_> {
    /// Returns true if `op` is a collective over the batch axis.
    pub(super) fn is_axis_of(&self, op: &Collective) -> bool {
        self.named.is_some_and(|mesh| *op.mesh == *mesh)
    }

    /// Returns true if the operation, or one in a graph that it calls, is a collective over the batch axis.
    pub(super) fn has_collective_in_op(&self, op: &Op) -> bool {
        match op {
            Op::Collective(op) => self.is_axis_of(op),
            Op::Call(call) if self.named.is_some() => {
                call.graphs().into_iter().any(|graph| self.has_collective_in_graph(graph))
            }
            _ => false,
        }
    }

    /// Returns true if the graph contains a collective over the batch axis, at any depth of calls.
    pub(super) fn has_collective_in_graph(&self, graph: &Graph) -> bool {
        graph.equations.iter().any(|e| self.has_collective_in_op(&e.op))
    }
}

/// Batches a graph like [`batched`], along `axis`; each result for which `is_forced` is true gets the axis even if it
/// depends on no batched parameter.
pub(crate) fn batched_with_forced_results(
    graph: &Graph,
    is_batched: &[bool],
    axis: BatchAxis<'_>,
    is_forced: &[bool],
) -> Result<(Graph, Vec<bool>), TransformError> {
    batched_graph_or_branch(graph, is_batched, axis, is_forced, false)
}

/// Batches a branch of a `case` that only some elements take, so that it runs for the whole axis. Its last parameter is
/// a bool for each element, true if the element takes this branch. All results have the axis.
///
/// The branch's results for the other elements are dropped, and may be NaN, as the root of -1 is. Their cotangents are
/// zero, but zero times the slope of such a root is NaN too. So cotangents are cleared by `emit_select` wherever a sum
/// over the axis follows, and at the operands of the branch:
///
/// ```text
/// operand with the axis x        select(taken, x, stop_gradient(x))
/// operand without it w           select(any(taken), w, stop_gradient(w)), if no operand has the axis
/// x + w, and other elementwise    w is repeated along the axis, then treated like x
/// gather(w, x), and others        the result y is treated like x: w's cotangent sums it over the axis
/// dot(x, w)                       y as for gather; dot(select(taken, x, 0), w), so that zeros meet finite numbers
/// scan(x, w), and other calls     w is repeated along the axis, then treated like x
/// ```
///
/// If no derivative is taken, both sides are equal and `simplify` drops all selects but `emit_select(taken, x, 0)`.
pub(crate) fn batched_branch(graph: &Graph, is_batched: &[bool], axis: BatchAxis<'_>) -> Result<Graph, TransformError> {
    let graph = expand_calls(graph, &|call| call.expansion_at(ExpansionStage::Vjp));
    Ok(batched_graph_or_branch(&graph, is_batched, axis, &vec![true; graph.results.len()], true)?.0)
}

/// Batches a graph; each result for which `is_forced` is true gets the axis in any case. If `is_branch` is true, adds
/// the parameter and the selects of [`batched_branch`].
fn batched_graph_or_branch(
    graph: &Graph,
    is_batched: &[bool],
    axis: BatchAxis<'_>,
    is_forced: &[bool],
    is_branch: bool,
) -> Result<(Graph, Vec<bool>), TransformError> {
    assert_eq!(is_batched.len(), graph.params.len(), "one entry for each parameter");
    let _memo = memo::open_call_flag_cache();
    let none = vec![None; graph.types.len()];
    let has = vec![false; graph.types.len()];
    let mut batch = BatchBuilder { to: RefCell::default(), axis, made: none, has, taken: None };
    for (&p, &has) in graph.params.iter().zip(is_batched) {
        let ty = if has { with_leading_axis(graph.ty(p), axis.size) } else { graph.ty(p).clone() };
        let v = batch.to.get_mut().param(ty);
        batch.define_batched(p, v, has);
    }
    if is_branch {
        batch.mask_param_cotangents(graph);
    }
    for e in &graph.equations {
        batch.batch_equation(graph, e)?;
    }
    let mut has = vec![];
    for (&r, &all) in graph.results.iter().zip(is_forced) {
        let (v, own) = (batch.batched_var(r), batch.has[r.index()]);
        let to = batch.to.get_mut();
        let v = if all && !own { repeat_along_new_axis(to, v, axis.size) } else { v };
        to.results.push(v);
        has.push(all || own);
    }
    let to = batch.to.into_inner();
    check_graph_limits(&to)?;
    Ok((to, has))
}

/// Returns `ty` with an axis of extent `size` added in front.
pub(crate) fn with_leading_axis(ty: &Type, size: usize) -> Type {
    Type::new(ty.dtype, [&[size], &ty.shape[..]].concat())
}

/// Repeats a variable along a new first axis of extent `size`.
pub(crate) fn repeat_along_new_axis(to: &mut Graph, v: Var, size: usize) -> Var {
    let shape = with_leading_axis(to.ty(v), size).shape;
    let op = match shape.len() {
        1 => Broadcast::to(constant_dims(&shape)),
        n => Broadcast { to: constant_dims(&shape), dims: (1..n).collect() },
    };
    to.push_valid(StructuralOp::from(op), &[v])
}

/// Returns the value of `v`, with a cotangent that is zero for the elements for which `is_kept` is false.
fn mask_cotangent(to: &mut Graph, is_kept: Var, v: Var) -> Var {
    let fixed = to.push_valid(StopGradient, &[v]);
    push_batch_select(to, is_kept, v, fixed)
}

/// A batched graph under construction, made from the unbatched one.
struct BatchBuilder<'a> {
    to: RefCell<Graph>,
    axis: BatchAxis<'a>,
    /// For each variable of the unbatched graph, the variable in `to` that stands for it.
    made: Vec<Option<Var>>,
    /// For each variable of the unbatched graph, true if its batched value has the axis.
    has: Vec<bool>,
    /// The elements that take this branch; `None` if the graph is no branch.
    taken: Option<BranchElements>,
}

/// The elements of a batch that take the branch under construction.
struct BranchElements {
    /// A bool for each element: true if it takes the branch.
    which: Var,
    /// For each variable of the unbatched branch, true if it has a derivative by a parameter.
    active: Vec<bool>,
    /// For each parameter of the branch that lacks the batch axis: its value with a cotangent that is 0 if no element
    /// takes the branch. Indexed by variable of the unbatched branch.
    shared: Vec<Option<Var>>,
}

impl BatchBuilder<'_> {
    fn batched_var(&self, old: Var) -> Var {
        self.made[old.index()].expect("defined before its use")
    }

    fn define_batched(&mut self, old: Var, new: Var, has_batch_axis: bool) {
        self.made[old.index()] = Some(new);
        self.has[old.index()] = has_batch_axis;
    }

    /// Adds the bool parameter of a branch, and clears the parameters' cotangents for the elements that do not take it.
    fn mask_param_cotangents(&mut self, graph: &Graph) {
        let to = self.to.get_mut();
        to.at = graph.at;
        let which = to.param(Type::new(DType::Bool, [self.axis.size]));
        let any = to.push_valid(StructuralOp::from(ops::Reduce::dropping(ScalarOp::BitOr, vec![0])), &[which]);
        let active = active_vars(graph, &vec![true; graph.params.len()]);
        let mut shared = vec![None; graph.types.len()];
        for &p in graph.params.iter().filter(|p| active[p.index()]) {
            let v = self.batched_var(p);
            if self.has[p.index()] {
                let guarded = mask_cotangent(self.to.get_mut(), which, v);
                self.define_batched(p, guarded, true);
            } else {
                shared[p.index()] = Some(mask_cotangent(self.to.get_mut(), any, v));
            }
        }
        self.taken = Some(BranchElements { which, active, shared });
    }

    /// In a branch, changes an equation's operands so that elements that take another branch add nothing to a cotangent
    /// that is summed over the axis. Returns true if the cotangent of the equation's result has to be cleared by
    /// `emit_select` as well.
    fn mask_operand_cotangents(
        &mut self,
        graph: &Graph,
        e: &Equation,
        args: &mut [Var],
        has_batch_axis: &mut [bool],
    ) -> bool {
        let Some(BranchElements { which, active, shared }) = &self.taken else { return false };
        let (which, to, size) = (*which, self.to.get_mut(), self.axis.size);
        let is_shared = |i: usize, has: &[bool]| !has[i] && active[e.args[i].index()];
        // From this operand on, operands are combined with others that have the axis.
        let first = match &e.op {
            _ if !has_batch_axis.contains(&true) => args.len(),
            Op::Call(call) => match call.rule().first_masked_cotangent_operand(has_batch_axis) {
                Some(first) => first,
                None => return false,
            },
            _ => 0,
        };
        for (arg, old) in args.iter_mut().zip(&e.args).take(first) {
            *arg = shared[old.index()].unwrap_or(*arg);
        }
        let meets = (first..args.len()).any(|i| is_shared(i, has_batch_axis));
        match &e.op {
            Op::Scalar(_) | Op::Call(_) => {
                for i in first..args.len() {
                    if is_shared(i, has_batch_axis) {
                        let wide = repeat_along_new_axis(to, args[i], size);
                        (args[i], has_batch_axis[i]) = (mask_cotangent(to, which, wide), true);
                    }
                }
                false
            }
            Op::Structural(StructuralOp::Dot(_) | StructuralOp::Conv(_) | StructuralOp::Scatter(_)) if meets => {
                for i in (0..args.len()).filter(|&i| has_batch_axis[i] && graph.ty(e.args[i]).dtype.is_float()) {
                    let Type { dtype, shape } = to.ty(args[i]).clone();
                    let zeros = to.splat(Literal::new(dtype, 0.0), &shape);
                    args[i] = push_batch_select(to, which, args[i], zeros);
                }
                true
            }
            _ => meets,
        }
    }

    /// Appends the batched form of an equation of the unbatched graph.
    fn batch_equation(&mut self, graph: &Graph, e: &Equation) -> Result<(), TransformError> {
        let mut args: Vec<Var> = e.args.iter().map(|&a| self.batched_var(a)).collect();
        let mut has: Vec<bool> = e.args.iter().map(|a| self.has[a.index()]).collect();
        let (axis, size) = (self.axis, self.axis.size);
        self.to.get_mut().at = e.loc;
        let selects = self.mask_operand_cotangents(graph, e, &mut args, &mut has);
        if !has.contains(&true) && !axis.has_collective_in_op(&e.op) {
            let to = self.to.get_mut();
            let results: Vec<Var> = e.results.iter().map(|&r| to.var(graph.ty(r).clone())).collect();
            to.equations.push(Equation { op: e.op.clone(), args, results: results.clone(), loc: e.loc });
            e.results.iter().zip(results).for_each(|(&r, v)| self.define_batched(r, v, false));
            return Ok(());
        }
        let result = match &e.op {
            Op::Literal(_) => unreachable!("it has no operand"),
            Op::Scalar(_) => {
                let to = self.to.get_mut();
                args.iter_mut()
                    .zip(&has)
                    .filter(|(_, has)| !**has)
                    .for_each(|(v, _)| *v = repeat_along_new_axis(to, *v, size));
                to.push_valid(e.op.clone(), &args)
            }
            Op::Structural(op) => {
                let types: Vec<Type> = e.args.iter().map(|&a| graph.ty(a).clone()).collect();
                let axes: Vec<Option<usize>> = has.iter().map(|has| has.then_some(0)).collect();
                let batch = ops::VmapBatch { size: Dim::from(size), axes: &axes };
                let result =
                    apply_structural_rule(&self.to, &args, &types, |args| op.batched(args, &batch).map(expression_var));
                result.expect("it has an operand")
            }
            Op::Identity(op) => {
                self.to.get_mut().push_valid(op.data().with_update(IdentityUpdate::AddBatchAxis), &args)
            }
            Op::Collective(op) if axis.is_axis_of(op) => {
                let operand = args.first().map(|&x| (x, has[0]));
                let (result, has) = collective::push_over_batch_axis(self.to.get_mut(), op, operand, size);
                self.define_batched(e.result(), result, has);
                return Ok(());
            }
            Op::Collective(op) => collective::push_batched_collective(self.to.get_mut(), op, args[0]),
            Op::Dynamic(op) if has[op.array_operand_count()..].contains(&true) => {
                batch_varying_windows(self.to.get_mut(), op, &args, &has, size)
            }
            Op::Dynamic(op) => {
                let (to, arrays) = (self.to.get_mut(), op.array_operand_count());
                let unlike = args.iter_mut().zip(&has).take(arrays).filter(|(_, has)| !**has);
                unlike.for_each(|(v, _)| *v = repeat_along_new_axis(to, *v, size));
                args.insert(arrays, to.i32_literal(0));
                to.push_valid(op.rule().with_leading_axis(size), &args)
            }
            Op::Call(call) => {
                let taken = self.taken.as_ref().map(|taken| taken.which);
                let made =
                    call.rule().batched(BatchedCall { to: self.to.get_mut(), args: &args, has: &has, axis, taken })?;
                e.results.iter().zip(made).for_each(|(&r, (v, has))| self.define_batched(r, v, has));
                return Ok(());
            }
        };
        let result = match &self.taken {
            Some(taken) if selects => mask_cotangent(self.to.get_mut(), taken.which, result),
            _ => result,
        };
        self.define_batched(e.result(), result, true);
        Ok(())
    }
}

/// Appends a read or write of one window for each element of a batch, at positions that differ between elements: a
/// gather or a scatter. Operands for which `has_batch_axis` is true have the batch axis in front.
fn batch_varying_windows(to: &mut Graph, op: &Dynamic, args: &[Var], has_batch_axis: &[bool], size: usize) -> Var {
    let (arrays, positions) = args.split_at(op.array_operand_count());
    let shape = |to: &Graph, i: usize| to.ty(arrays[i]).shape[usize::from(has_batch_axis[i])..].to_vec();
    let window = match op.access() {
        WindowAccess::Read(size) => size.to_vec(),
        WindowAccess::Write => shape(to, 1),
    };
    let shape = shape(to, 0);
    // A window that is as long as the array can only start at 0.
    let moved: Vec<usize> = (0..shape.len()).filter(|&axis| window[axis] < shape[axis]).collect();
    let mut own = BatchedWindows { arrays, has: has_batch_axis, size, moved: &moved, index: arrays[0] };
    if moved.is_empty() {
        return own.batched_array(to, arrays.len() - 1);
    }
    let columns: Vec<Var> = moved
        .iter()
        .map(|&axis| {
            let [first, last] = [0, (shape[axis] - window[axis]) as i64];
            let [first, last] = [first, last].map(|n| to.splat(Literal::int(DType::I32, n), &[size]));
            let own = positions[axis];
            let own = if has_batch_axis[arrays.len() + axis] { own } else { repeat_along_new_axis(to, own, size) };
            let own = to.push_valid(ScalarOp::Maximum, &[own, first]);
            let own = to.push_valid(ScalarOp::Minimum, &[own, last]);
            to.reshape(own, &[size, 1])
        })
        .collect();
    own.index = match columns[..] {
        [single] => single,
        _ => to.push_valid(StructuralOp::from(ops::Concat { axis: 1 }), &columns),
    };
    op.rule().batched(to, own)
}

/// Derivatives and batching of an operation on a window (dynamic slice or update). No method has a default.
pub(crate) trait WindowTransformRule {
    /// Returns for each array operand the operation that computes its cotangent, with the operands that go in front of
    /// the positions. `cotangent` is that of the result; `window` is the type of the last array operand, and `zeros` is
    /// an array of zeros of that type.
    fn cotangent_operations(&self, cotangent: Var, zeros: Var, window: &Type) -> Vec<(Dynamic, Vec<Var>)>;
    /// Returns the operation on arrays with an additional first axis of extent `size`, all of which the window covers.
    fn with_leading_axis(&self, size: usize) -> Dynamic;
    /// Appends the operation for a batch whose elements have `windows` at different positions: a gather or a scatter.
    fn batched(&self, to: &mut Graph, windows: BatchedWindows<'_>) -> Var;
}

/// The windows of a batched operation whose positions differ between the elements of the batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchedWindows<'a> {
    /// The array operands; those for which `has` is true have the batch axis in front.
    pub(crate) arrays: &'a [Var],
    pub(crate) has: &'a [bool],
    /// Extent of the batch axis.
    size: usize,
    /// The axes of an array (without the batch axis) along which the window is shorter than the array, so that it has a
    /// position.
    pub(crate) moved: &'a [usize],
    /// The positions of the windows along the axes in `moved`, of shape `[size, moved.len()]`.
    pub(crate) index: Var,
}

impl BatchedWindows<'_> {
    /// Returns array operand number `operand` with the batch axis, repeated along it if it lacks the axis.
    pub(crate) fn batched_array(&self, to: &mut Graph, operand: usize) -> Var {
        if self.has[operand] {
            self.arrays[operand]
        } else {
            repeat_along_new_axis(to, self.arrays[operand], self.size)
        }
    }
}
